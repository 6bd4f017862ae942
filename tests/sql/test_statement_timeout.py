"""A statement's time-out is one for its preparation and its run, whatever each of them waits for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from ducktail.engine.clock import SystemClock
from ducktail.engine.database import Database
from ducktail.engine.errors import QueryCanceled
from ducktail.engine.waiting import Wait, Waiting
from ducktail.sql.session import Session

TEXT = "SELECT 1"


class Stepped(SystemClock):
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Stepped:
    return Stepped()


@pytest.fixture
def session(clock: Stepped) -> Iterator[Session]:
    database = Database.open(":memory:", clock=clock)
    yield Session(database, settings={"statement_timeout": "5s"})
    database.close()


def waits(seconds: float) -> Waiting[None]:
    never: Future[None] = Future()
    yield Wait(never, seconds)


def took_s(clock: Stepped, work: Waiting[None]) -> float:
    """How long it takes by the clock, whose time passes while it waits and at no other time."""
    began_s = clock.now_s
    try:
        wait = next(work)
        while True:
            assert wait.timeout_s is not None
            clock.now_s += wait.timeout_s
            wait = work.send(False)
    except (StopIteration, QueryCanceled):
        return clock.now_s - began_s


def test_preparation_counts(session: Session, clock: Stepped) -> None:
    assert took_s(clock, session.calls.prepare(TEXT, lambda: waits(3))) == pytest.approx(3)
    assert took_s(clock, session.calls.prepare(TEXT, lambda: waits(1))) == pytest.approx(1)
    assert took_s(clock, session.calls.run(lambda: waits(60), text=TEXT)) == pytest.approx(1)
    # What runs next has all of its time.
    assert took_s(clock, session.calls.run(lambda: waits(60), text=TEXT)) == pytest.approx(5)


@pytest.mark.parametrize("text", [TEXT, "SELECT 2"])
def test_a_later_statement_has_all_of_its_time(session: Session, clock: Stepped, text: str) -> None:
    took_s(clock, session.calls.prepare(TEXT, lambda: waits(4)))
    if text == TEXT:
        clock.now_s += 60
        session.cycle_ended()
    assert took_s(clock, session.calls.run(lambda: waits(60), text=text)) == pytest.approx(5)


def test_a_preparation_that_takes_all_is_ended(session: Session, clock: Stepped) -> None:
    assert took_s(clock, session.calls.prepare(TEXT, lambda: waits(60))) == pytest.approx(5)
    assert took_s(clock, session.calls.run(lambda: waits(60), text=TEXT)) == pytest.approx(5)

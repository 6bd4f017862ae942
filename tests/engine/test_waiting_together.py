"""Several pieces of work at once: all of them, or until one answers."""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest

from ducktail.engine.waiting import Wait, Waiting, all_of, first_true


def waits(future: Future[int], timeout_s: float | None, closed: list[str], name: str = "") -> Waiting[int]:
    """Wait once, and tell when it is closed before its end."""
    try:
        done = yield Wait(future, timeout_s)
    except GeneratorExit:
        closed.append(name)
        raise
    return future.result() if done else -1


def fails() -> Waiting[int]:
    raise ValueError("no")
    yield


def test_all_go_on_as_their_futures_come() -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    works = [waits(first, None, []), waits(second, 60.0, []), fails(), waits(Future(), 0.0, [])]
    together = all_of(works, time.monotonic)
    wait = next(together)
    second.set_result(2)
    assert wait.future.done()
    wait = together.send(True)
    first.set_result(1)
    with pytest.raises(StopIteration) as stop:
        while True:
            wait = together.send(wait.future.done())
    one, two, error, late = stop.value.value
    assert (one, two, late) == (1, 2, -1) and isinstance(error, ValueError)


def test_all_are_closed_where_the_whole_is() -> None:
    closed: list[str] = []
    works = [waits(Future(), None, closed, name) for name in ("a", "b")]
    together = all_of(works, time.monotonic)
    next(together)
    together.close()
    assert closed == ["a", "b"]


def test_the_first_that_is_true_ends_the_others() -> None:
    closed: list[str] = []
    come: Future[int] = Future()
    works = [waits(Future(), None, closed, "a"), waits(come, None, closed, "b")]
    together = first_true(works, time.monotonic)  # type: ignore[arg-type]
    next(together)
    come.set_result(1)
    with pytest.raises(StopIteration) as stop:
        together.send(True)
    assert stop.value.value is True and closed == ["a"]


def test_none_is_true() -> None:
    done: Future[int] = Future()
    done.set_result(0)
    together = first_true([waits(done, None, [])], time.monotonic)  # type: ignore[list-item]
    next(together)
    with pytest.raises(StopIteration) as stop:
        together.send(True)
    assert stop.value.value is False

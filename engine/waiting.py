"""Waits as values: the conditions that a session waits for, independent of the way of waiting.

Work that may have to wait is a generator. It yields a `Wait` and is sent True when the wait's
future is done, False when its time is up first. The driver of the generator determines the way of waiting:
`drive` blocks the calling thread (the DB-API), the gateway awaits the future on its event loop.
So a waiting session holds no thread in the gateway. Source: docs/design/engine.md, "Waits".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """A condition to wait for.

    Args:
        future: done when the condition holds; its result or exception is passed to the waiter.
        timeout_s: longest time to wait in seconds; None for no limit.
        final: True if neither a cancel nor the statement's timeout ends the wait, because the outcome is
            being decided elsewhere.
        works: True if the work calls DuckDB next, and must be resumed on a thread that may block.
    """

    future: Future[Any]
    timeout_s: float | None = None
    final: bool = False
    works: bool = False


Waiting = Generator[Wait, bool, T]


def on_worker() -> Waiting[None]:
    """Continue on a thread that may block; a driver that blocks itself continues at once."""
    now: Future[None] = Future()
    now.set_result(None)
    yield Wait(now, works=True)


def drive(work: Waiting[T]) -> T:
    """Drive `work` to its end, blocking the calling thread at each wait."""
    try:
        wait = next(work)
        while True:
            wait = work.send(block_on(wait))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        # An interrupt of the thread while it waited: the work now releases its locks.
        work.close()
        raise


def block_on(wait: Wait) -> bool:
    """Block until `wait` is over; True when its future is done (with a result or an error)."""
    try:
        wait.future.exception(wait.timeout_s)
    except TimeoutError:
        return wait.future.done()
    return True


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run slow work on a thread of its own."""
    done: Future[T] = Future()

    def run_it() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run_it, daemon=True).start()
    return done


def first_of(futures: Sequence[Future[Any]]) -> Future[Any]:
    """A future that is done as soon as one of these is; the waiter determines which."""
    if len(futures) == 1:
        return futures[0]
    first: Future[Any] = Future()

    def come(_: Future[Any]) -> None:
        with suppress(InvalidStateError):  # Another one was earlier.
            first.set_result(None)

    for future in futures:
        future.add_done_callback(come)
    return first


def all_of(
    works: Sequence[Waiting[T]], now_s: Callable[[], float], *, told: bool = False
) -> Waiting[list[T | Exception]]:
    """Run several pieces of work at once; each continues as soon as its wait has ended.

    Args:
        now_s: a monotonic clock, seconds.
        told: True to make an error that ends the wait, such as a cancel, the outcome of all unfinished work,
            for the caller to judge; False to end the work and raise it.

    Returns:
        The outcomes in order: the result of each, or the exception that ended it.
    """
    outcomes: dict[int, T | Exception] = {}

    def note(place: int, outcome: T | Exception) -> bool:
        outcomes[place] = outcome
        return False

    yield from _together(works, now_s, note, told=told)
    return [outcomes[place] for place in range(len(works))]


def _ended_by(work: Waiting[T], error: Exception) -> T | Exception:
    """The outcome of waiting work after it has received an error."""
    try:
        work.throw(error)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Exception as outcome:
        return outcome
    work.close()
    return error


def first_true(works: Sequence[Waiting[bool]], now_s: Callable[[], float]) -> Waiting[bool]:
    """Run several pieces of work at once until one returns True; the others are then abandoned.

    Args:
        now_s: a monotonic clock, seconds.

    Returns:
        True if one did.
    """

    def is_true(_: int, outcome: bool | Exception) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    return (yield from _together(works, now_s, is_true))


def _together(
    works: Sequence[Waiting[T]],
    now_s: Callable[[], float],
    ended: Callable[[int, T | Exception], bool],
    *,
    told: bool = False,
) -> Waiting[bool]:
    """Run several pieces of work at once, until all have ended or one outcome is enough.

    Args:
        ended: called with each position and outcome; returns True to abandon the others.
        told: as in `all_of`.

    Returns:
        True if the others were abandoned.
    """
    waits: dict[int, tuple[Wait, float | None]] = {}

    def step(place: int, done: bool | None) -> bool:
        try:
            work = works[place]
            wait = next(work) if done is None else work.send(done)
        except StopIteration as stop:
            return ended(place, stop.value)
        except Exception as error:
            return ended(place, error)
        waits[place] = wait, None if wait.timeout_s is None else now_s() + wait.timeout_s
        return False

    try:
        for place in range(len(works)):
            if step(place, None):
                return True
        while waits:
            ends = [end for _, end in waits.values() if end is not None]
            left = max(0.0, min(ends) - now_s()) if ends else None
            try:
                yield Wait(first_of([wait.future for wait, _ in waits.values()]), left)
            except Exception as error:
                if not told:
                    raise
                for place in waits:
                    ended(place, _ended_by(works[place], error))
                return False
            for place, (wait, end) in list(waits.items()):
                if wait.future.done() or (end is not None and end <= now_s()):
                    del waits[place]
                    if step(place, wait.future.done()):
                        return True
    finally:
        for work in works:
            work.close()
    return False

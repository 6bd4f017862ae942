"""Waits as values: what a session needs to wait for, without saying how.

Work that may have to wait is a generator. It yields a `Wait` and is sent True when the wait's
future is done, False when its time is up first. Who drives the generator owns the waiting:
`run` blocks the calling thread (the DB-API), the gateway awaits the future on its event loop.
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
    """One thing to wait for.

    Args:
        future: done when what is waited for has come (its result and exception are the waiter's).
        timeout_s: longest time to wait in seconds; None is without end.
    """

    future: Future[Any]
    timeout_s: float | None = None


Waiting = Generator[Wait, bool, T]


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
        # An interrupt of the thread while it waited: what the work holds, it lets go of now.
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
    """Do what takes a while on a thread of its own."""
    done: Future[T] = Future()

    def run_it() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run_it, daemon=True).start()
    return done


def first_of(futures: Sequence[Future[Any]]) -> Future[Any]:
    """A future that is done as soon as one of these is; whoever waits looks which it was."""
    if len(futures) == 1:
        return futures[0]
    first: Future[Any] = Future()

    def come(_: Future[Any]) -> None:
        with suppress(InvalidStateError):  # Another was before it.
            first.set_result(None)

    for future in futures:
        future.add_done_callback(come)
    return first


def all_of(
    works: Sequence[Waiting[T]], now_s: Callable[[], float], *, told: bool = False
) -> Waiting[list[T | Exception]]:
    """Do several pieces of work at once: each goes on as soon as what it waits for has come.

    Args:
        now_s: a clock that never goes back, seconds.
        told: an error that ends the wait, as a cancel does, is the outcome of all that have not ended: who
            asked for them says what stands. Else it ends them, and is raised.

    Returns:
        What each has come to, in their order: its result, or the exception that it ended with.
    """
    outcomes: dict[int, T | Exception] = {}

    def note(place: int, outcome: T | Exception) -> bool:
        outcomes[place] = outcome
        return False

    yield from _together(works, now_s, note, told=told)
    return [outcomes[place] for place in range(len(works))]


def _ended_by(work: Waiting[T], error: Exception) -> T | Exception:
    """The result of work that is told of an error while it waits."""
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
    """Do several pieces of work at once until one answers True; the others are given up then.

    Args:
        now_s: a clock that never goes back, seconds.

    Returns:
        Whether one did.
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
    """Do several pieces of work at once, until all of them have ended or one is enough.

    Args:
        ended: is given each one's place and outcome; whether the others are to be given up.
        told: see `all_of`.

    Returns:
        Whether they were.
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

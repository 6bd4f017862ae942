"""Waits as values: what a session needs to wait for, without saying how.

Work that may have to wait is a generator. It yields a `Wait` and is sent True when the wait's
future is done, False when its time is up first. Who drives the generator owns the waiting:
`run` blocks the calling thread (the DB-API), the gateway awaits the future on its event loop.
So a waiting session holds no thread in the gateway. Source: docs/design/engine.md, "Waits".
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
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


def run(work: Waiting[T]) -> T:
    """Drive `work` to its end, blocking the calling thread at each wait."""
    try:
        wait = next(work)
        while True:
            wait = work.send(block(wait))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        # An interrupt of the thread while it waited: what the work holds, it lets go of now.
        work.close()
        raise


def block(wait: Wait) -> bool:
    """Block until `wait` is over; True when its future is done (with a result or an error)."""
    try:
        wait.future.exception(wait.timeout_s)
    except TimeoutError:
        return wait.future.done()
    return True


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

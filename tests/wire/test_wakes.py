"""What other threads tell an event loop: all of it comes, whatever came together."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ducktail.pgwire_gateway.server.event_loop import Wakes

THREADS, EACH = 8, 500


def test_what_many_threads_settle_all_comes() -> None:
    """None is lost between the loop's look and the next that is told."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wakes = Wakes(loop)
        waiters: list[list[asyncio.Future[Any]]] = [
            [loop.create_future() for _ in range(EACH)] for _ in range(THREADS)
        ]

        def settle(mine: list[asyncio.Future[Any]]) -> None:
            for number, waiter in enumerate(mine):
                wakes.settle(waiter, number)

        threads = [threading.Thread(target=settle, args=(mine,)) for mine in waiters]
        for thread in threads:
            thread.start()
        for mine in waiters:
            assert await asyncio.wait_for(asyncio.gather(*mine), 60) == list(range(EACH))
        for thread in threads:
            thread.join()

    asyncio.run(main())


@pytest.mark.parametrize("on_loop", [False, True])
def test_an_error_is_one_and_the_first_value_stays(on_loop: bool) -> None:
    """A wait that has been given up takes no second answer."""

    def settle(wakes: Wakes, kept: asyncio.Future[str], failed: asyncio.Future[str]) -> None:
        wakes.settle(kept, "second")
        wakes.settle(failed, None, ValueError("it failed"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wakes = Wakes(loop)
        failed, kept = loop.create_future(), loop.create_future()
        kept.set_result("first")
        if on_loop:
            settle(wakes, kept, failed)
            assert failed.done(), "nobody has to wake this loop"
        else:
            await asyncio.to_thread(settle, wakes, kept, failed)
        with pytest.raises(ValueError, match="it failed"):
            await failed
        assert kept.result() == "first"

    asyncio.run(main())


def test_a_closed_loop_is_told_nothing() -> None:
    """A lock may be passed on after the server has ended."""
    loop = asyncio.new_event_loop()
    wakes, waiter = Wakes(loop), loop.create_future()
    loop.close()
    late = threading.Thread(target=wakes.settle, args=(waiter, True))
    late.start()
    late.join()
    assert not waiter.done()

"""A server that is killed by SIGKILL while clients load it, and started again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from server_process import ServerProcess

# Works with a connection of its own from the barrier on, until the server is gone.
LoadClient = Callable[[threading.Barrier], None]


def kill_under_load(
    server: ServerProcess, clients: Sequence[LoadClient], done: Callable[[], int], more: int
) -> None:
    """Kill the server at a point of the load, and start it again once all clients have ended.

    Args:
        done: how much the server has acknowledged so far.
        more: how much more it is to acknowledge before it is killed.
    """
    started = threading.Barrier(len(clients) + 1)
    threads = [threading.Thread(target=client, args=(started,)) for client in clients]
    for thread in threads:
        thread.start()
    started.wait(30)
    goal = done() + more
    while done() < goal:
        assert any(thread.is_alive() for thread in threads)
        threads[0].join(0.002)
    server.kill()
    for thread in threads:
        thread.join(30)
    server.start()

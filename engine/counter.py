"""A counter that several threads increment."""

from __future__ import annotations

import threading


class ThreadSafeCounter:
    """A count from 0; its lock is held for one addition, never around anything else."""

    __slots__ = ("_mutex", "value")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.value = 0

    def add(self, count: int) -> None:
        """Increase the count."""
        with self._mutex:
            self.value += count

"""A number that several threads count up."""

from __future__ import annotations

import threading


class Tally:
    """A count from 0; its lock is held for one addition, never around anything else."""

    __slots__ = ("_mutex", "value")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.value = 0

    def add(self, count: int) -> None:
        """Count up."""
        with self._mutex:
            self.value += count

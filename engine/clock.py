"""Time as an argument: the only module that reads the machine's clocks."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock of the engine."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970-01-01 UTC."""

    def monotonic_s(self) -> float:
        """A monotonic clock, in seconds from an arbitrary start."""


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """A monotonic clock, in seconds from an arbitrary start."""
        return time.monotonic()

"""Time as an argument: the one place that asks the machine what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock of the engine."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970-01-01 UTC."""

    def monotonic_s(self) -> float:
        """A clock that never goes back, in seconds from any start."""


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """A clock that never goes back, in seconds from any start."""
        return time.monotonic()

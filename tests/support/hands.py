"""A clock that goes when it is told to, and lengths of time for it."""

from __future__ import annotations

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US


class Hands:
    """The time of a test."""

    def __init__(self) -> None:
        self.us = 1_700_000_000 * SECOND_US
        self.ahead_us = 0

    def now_us(self) -> int:
        """The time that it shows."""
        return self.us + self.ahead_us

    def monotonic_s(self) -> float:
        """Elapsed time, in seconds, which knows of no jump (`ahead_us`)."""
        return self.us / SECOND_US

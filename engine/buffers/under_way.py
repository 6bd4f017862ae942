"""The scans that are under way: what one of them is still to give stays in the log for so long.

A scan ends at an LSN that was fixed when it began. Compaction that went beyond that would take events which
are superseded by such as this scan does not give: of their keys it would give nothing. A scan is forgotten
once it is at its end, closed, or held by nobody. Source: docs/design/compaction.md, "What goes".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol
from weakref import WeakSet


class Reading(Protocol):
    """What is to be known of a scan.

    Attributes:
        begun_us: when it began, microseconds since 1970.
        seen_lsn: the stream's end, as whoever reads sees it.
    """

    begun_us: int
    seen_lsn: int

    @property
    def stream_id(self) -> int:
        """Whose events it gives."""

    @property
    def over(self) -> bool:
        """Whether it gives nothing more."""


class UnderWay:
    """See the head of the file; safe to use from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._scans: WeakSet[Reading] = WeakSet()

    def begin(self, scan: Reading) -> None:
        """A scan begins."""
        with self._mutex:
            self._scans.add(scan)

    def least_end(self, since_us: Mapping[int, int]) -> int | None:
        """The least LSN at which one of the scans ends; None without any.

        Args:
            since_us: stream id -> a time: scans of other streams, and what began before, do not count.
        """
        with self._mutex:
            scans = list(self._scans)
        ends = (
            scan.seen_lsn
            for scan in scans
            if not scan.over and scan.begun_us >= since_us.get(scan.stream_id, scan.begun_us + 1)
        )
        return min(ends, default=None)

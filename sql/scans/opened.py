"""A stream scan that has been opened: its events, from where in each partition, and whose read they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...engine.buffers.scan import Scan, ScanRange
from ...engine.catalog.streams import Stream
from ...engine.groups.member import MemberHold
from ..positions import Reader
from ..spread.gathering import Gathered, GatheredScan
from ..spread.membership import MemberRead


@dataclass(frozen=True, slots=True)
class Opened:
    """A scan that is ready to be read, as often as needed.

    Args:
        committed: partition -> committed LSN from which a group's read begins; empty without one.
        ends: partition -> LSN of its last event within the scan's end.
        changes: whether it is read as ENVELOPE CHANGES.
        first: a scan that has not been read: for the first reader.
        reader: whose read position a read of it sets; None where it sets none.
        hold: what a member holds while it is read.
        gathered: the events, where they are of several nodes; there are no bounds then.
        again: partition -> the released events among what was gathered here.
    """

    stream: Stream
    bounds: ScanRange
    committed: Mapping[int, int]
    ends: Mapping[int, int]
    first: Scan | GatheredScan
    reader: Reader | None = None
    hold: MemberHold | MemberRead | None = None
    changes: bool = False
    gathered: Gathered | None = None
    again: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @property
    def released(self) -> Mapping[int, frozenset[int]]:
        """Partition -> the released events that it gives, as far as they are this node's."""
        aside = self.bounds.aside
        if aside is None:
            return self.again
        found: dict[int, set[int]] = {}
        for lsn, partition in aside.partitions.items():
            found.setdefault(partition, set()).add(lsn)
        return {partition: frozenset(lsns) for partition, lsns in found.items()}

"""The events that a reader has lost to retention: the facts for an error or a warning.

No event is skipped silently (promise 9): a read whose next event has been trimmed fails with 72000, or, if
its group is defined so, continues at the first remaining event with a WARNING of the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..catalog.streams import Stream
from ..errors import Gap
from ..log.deleted_ranges import BY_BYTES, BY_LOSS, Edge
from ..quoting import ident, literal
from ..values.dates_times import duration_text


@dataclass(frozen=True, slots=True)
class Gone:
    """Requested events of one partition that are no longer retained.

    Args:
        after_lsn: the LSN after which the read was to continue.
        edge: the partition's edge.
        first_lsn: the first remaining event, None without any (or during a trim).
        position: number of the partition's events at or before `after_lsn`; None if unknown.
        exact: True if `position` is exact, False if it is a lower bound.
        group: the reader's consumer group, if it has one.
    """

    stream: Stream
    partition: int
    after_lsn: int
    edge: Edge
    first_lsn: int | None
    position: int | None = None
    exact: bool = False
    group: str | None = None

    @property
    def events(self) -> int:
        """The number of lost events; the maximum possible if it is not known exactly."""
        return self.edge.events - (self.position or 0)

    @property
    def message(self) -> str:
        """The message of the error."""
        who = "the read" if self.group is None else f'consumer group "{self.group}"'
        what = "is lost" if self.edge.reason == BY_LOSS else "has been trimmed"
        return (
            f'{who} is at a gap in partition {self.partition} of stream "{self.stream.name}": '
            f"what follows LSN {self.after_lsn} {what}"
        )

    @property
    def detail(self) -> str:
        """The facts: the number of lost events, the reason, and the remaining events."""
        if self.edge.reason == BY_LOSS:
            return (
                f"What came after LSN {self.after_lsn} was on a node whose file is lost. How many events "
                f"that were is not known; what is published since has LSNs after {self.edge.through_lsn}."
            )
        count = f"{self.events} event{'' if self.events == 1 else 's'}"
        if not self.exact:
            count = f"At most {count}"
        verb = "is" if self.events == 1 else "are"
        left = (
            f"The first available one has LSN {self.first_lsn}."
            if self.first_lsn
            else "No later one is there now."
        )
        return (
            f"{count} after LSN {self.after_lsn}, up to LSN {self.edge.through_lsn}, {verb} gone: "
            f"{self._why()}. {left}"
        )

    def _why(self) -> str:
        if self.edge.reason == BY_BYTES:
            bound = self.stream.retention_bytes
            return "retention by bytes" + (f" (retention_bytes = {bound})" if bound else "")
        length = self.stream.retention_us
        return "retention by time" + (f" (retention = '{duration_text(length)}')" if length else "")

    def error(self) -> Gap:
        """The error of a read that ends at the gap."""
        if self.group is None:
            hint = (
                f"Read what is left with AFTER {self.edge.through_lsn}, or all that is retained with AFTER 0."
            )
        else:
            name = f"ALTER CONSUMER GROUP {ident(self.group)} ON {ident(self.stream.name)}"
            hint = (
                f"{name} SEEK TO EARLIEST goes on at what is left; "
                f"{name} SET (on_gap = {literal('earliest')}) lets reads do so by themselves."
            )
        return Gap(self.message, detail=self.detail, hint=hint)

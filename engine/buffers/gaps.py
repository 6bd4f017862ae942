"""The events that a reader has lost to retention: one value with the facts, for an error or a warning.

Nothing is skipped silently (promise 9): a read whose next event has been trimmed fails with 72000, or
goes on at the first event that is left with a WARNING of the same facts, where its group says so.
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
    """Events of one partition that a reader asked for and that are no longer retained.

    Args:
        after_lsn: the LSN behind which the reader wanted to go on.
        edge: the partition's edge.
        first_lsn: the first event that is left, None where none is (or a trim is just under way).
        position: how many of the partition's events are at or before `after_lsn`; None: not known.
        exact: whether `position` is exactly that, or a number that it is not below.
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
        """The number of events that are gone; where that is not known exactly, the most that may be."""
        return self.edge.events - (self.position or 0)

    @property
    def message(self) -> str:
        """The loss, as an error's message."""
        who = "the read" if self.group is None else f'consumer group "{self.group}"'
        what = "is lost" if self.edge.reason == BY_LOSS else "has been trimmed"
        return (
            f'{who} is at a gap in partition {self.partition} of stream "{self.stream.name}": '
            f"what follows LSN {self.after_lsn} {what}"
        )

    @property
    def detail(self) -> str:
        """The facts: how many events, why, and what is left."""
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
        """The error of a read that ends here."""
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

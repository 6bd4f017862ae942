"""A batch of events, as a program that follows a stream gets them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ...engine.log.events import Event, arrow_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Some events of a stream, at least one, in the order in which they are read.

    Args:
        stream: the stream's name.
        events: the events, as tuples with names.
        position: partition -> the LSN up to which everything has been given with this batch. From a map
            like this `follow(after=...)` goes on.
        number: of the batch in this follow, from 1.
        event_count: how many events the consumer has been given with this batch, over all its follows.
    """

    stream: str
    events: tuple[Event, ...]
    position: Mapping[int, int]
    number: int
    event_count: int

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def first_lsn(self) -> int:
        """LSN of the first event."""
        return self.events[0].lsn

    @property
    def last_lsn(self) -> int:
        """LSN of the last event."""
        return self.events[-1].lsn

    def position_text(self) -> str:
        """The position as AFTER and COMMIT OFFSETS AT take it: a JSON object."""
        return json.dumps({str(partition): lsn for partition, lsn in sorted(self.position.items())})

    def arrow(self) -> pa.RecordBatch:
        """The events as Arrow, with all columns of docs/sql.md, "Reading"."""
        return arrow_of(self.events)

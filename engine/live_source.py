"""What the rows of live views are made from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import duckdb

from .buffers.buffer import StreamBuffer
from .buffers.buffers import Buffers
from .buffers.publisher import Publisher
from .clock import Clock
from .log.log import EVENT_NAMES
from .members.assigned import Assigned
from .offsets.offsets import Offsets
from .offsets.parked import Parked
from .offsets.polls import Polls
from .placement.holds import Holds
from .placement.identities import Identities
from .placement.membership import Membership
from .quoting import shown_name
from .rights.rights import Rights
from .sessions import Sessions
from .settings import ShownSetting
from .streams.catalog import Catalog
from .streams.streams import Stream
from .transactions.commit_times import CommitTimes
from .transactions.transactions import Transactions

Row = dict[str, Any]


COMMIT_TIME = EVENT_NAMES.index("commit_time")


@dataclass(frozen=True, slots=True)
class LastRead:
    """When a group last read a partition (microseconds since 1970), for whom, and as which member."""

    at_us: int
    user: str
    member: str | None


class LiveSource(Protocol):
    """What the views need of an open database (`database.Database`)."""

    catalog: Catalog
    rights: Rights
    buffers: Buffers
    offsets: Offsets
    last_reads: dict[tuple[int, int], LastRead]
    members: Assigned
    parked: Parked
    sessions: Sessions
    polls: Polls
    transactions: Transactions
    publisher: Publisher
    shown_settings: tuple[ShownSetting, ...]
    clock: Clock
    commit_times: CommitTimes
    cluster: Membership
    holds: Holds
    identities: Identities

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A cursor of the engine's own."""


def time_text(us: int | None) -> str | None:
    return None if not us else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()


def names_text(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown_name, names))


def buffered_streams(database: LiveSource) -> list[tuple[Stream, StreamBuffer]]:
    with database.catalog.mutex:
        streams = sorted(database.catalog.streams.values(), key=lambda s: s.key)
        return [(s, database.buffers[s.stream_id]) for s in streams]

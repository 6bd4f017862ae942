"""The parts of an open database as a type that modules below `database.Database` can use.

Retention, the system views and definitions work on several parts at once. They take `Parts`, which is a lower
layer, so that `database.py` can be a higher layer and create them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import duckdb

from .buffers.buffers import Buffers
from .buffers.publisher import Publisher
from .catalog.catalog import Catalog
from .catalog.rights import Rights
from .clock import Clock
from .groups.deliveries import Deliveries
from .groups.feed_activity import FeedActivity
from .groups.members import Members
from .groups.offsets import Offsets
from .groups.parked import Parked
from .groups.polls import Polls
from .groups.sink_activity import SinkActivity
from .placement.holds import Holds, Identities
from .placement.membership import Membership
from .replication.continuous_copies import ContinuousCopies
from .sessions import Sessions
from .settings import Settings, ShownSetting
from .transactions.commit_times import CommitTimes
from .transactions.commits import Commits
from .transactions.group_commit import GroupCommit
from .transactions.transactions import Transactions


@dataclass(frozen=True, slots=True)
class LastRead:
    """The last read of a partition by a group: time (microseconds since 1970), user and member."""

    at_us: int
    user: str
    member: str | None


class Parts(ABC):
    """The parts of an open database.

    Attributes:
        last_reads: (group id, partition) -> its last read.
        continuous_copies: the copies of the whole database; None if it is not copied.
        unlike: stream id -> the difference of its table from its log.
    """

    settings: Settings
    shown_settings: tuple[ShownSetting, ...]
    clock: Clock
    commit_times: CommitTimes
    catalog: Catalog
    rights: Rights
    sessions: Sessions
    cluster: Membership
    holds: Holds
    identities: Identities
    last_reads: dict[tuple[int, int], LastRead]
    members: Members
    polls: Polls
    offsets: Offsets
    parked: Parked
    sink_activity: SinkActivity
    feed_activity: FeedActivity
    deliveries: Deliveries
    unlike: dict[int, str]
    buffers: Buffers
    publisher: Publisher
    commits: Commits
    transactions: Transactions
    group_commit: GroupCommit
    continuous_copies: ContinuousCopies | None

    @abstractmethod
    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor on this database; with `utc`, in that time zone."""

    @abstractmethod
    def has_fallen(self) -> bool:
        """True if DuckDB has invalidated the database. Asks DuckDB."""

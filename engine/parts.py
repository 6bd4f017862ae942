"""The parts of an open database, as what stands on them sees it: `database.Database` is what has them.

Retention, the system views and definitions work on several parts at once. They take `Parts`, which lies below
them, so that `database.py` can lie above them and make them.
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
from .groups.members import Members
from .groups.offsets import Offsets
from .groups.parked import Parked
from .groups.polls import Polls
from .placement.holds import Holds, Identities
from .placement.membership import Membership
from .sessions import Sessions
from .settings import Settings, ShownSetting
from .transactions.commit_times import CommitTimes
from .transactions.commits import Commits
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
        last_reads: by group id and partition.
        unlike: by stream id, why its table is not what its log says.
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
    unlike: dict[int, str]
    buffers: Buffers
    publisher: Publisher
    commits: Commits
    transactions: Transactions

    @abstractmethod
    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor on this database; with `utc`, in that time zone."""

    @abstractmethod
    def has_fallen(self) -> bool:
        """True if DuckDB has given the database up. Asks DuckDB."""

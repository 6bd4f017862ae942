"""What the runners of statements need of a session: its parts and its transaction.

The one real implementation is `session.Session`; the runners import this and not that, so that the
session can import the runners.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import duckdb

from ..engine.database import Database
from ..engine.transaction import Transaction
from ..engine.waiting import Waiting
from .frames import Frames
from .names import Names
from .positions import ReadPositions
from .results import Result
from .statement import Statement
from .variables import Variables

T = TypeVar("T")


class Context(Protocol):
    """See the head of the file; each member is documented in `session.Session`."""

    database: Database
    user: str
    wire: bool
    id: int
    cursor: duckdb.DuckDBPyConnection
    meta: duckdb.DuckDBPyConnection
    names: Names
    frames: Frames
    variables: Variables
    positions: ReadPositions
    prepared: dict[str, Statement]
    transaction: Transaction | None
    block: str
    implicit: bool
    interrupts: set[Callable[[], None]]
    ddl_in_block: bool

    @property
    def in_block(self) -> bool:
        """Whether statements now belong to a transaction block."""

    @property
    def has_open_result(self) -> bool:
        """Whether the session's cursor still has rows to give."""

    def looking(self) -> AbstractContextManager[None]:
        """Within, names are looked up and texts bound, outside or inside a statement that runs."""

    def settle(self) -> None:
        """Take the rest of an unfinished result into memory, so that the cursor is free."""

    def later(self, sql: str) -> None:
        """Run a setting of the cursor's before the next statement."""

    @property
    def lock_timeout_ms(self) -> int:
        """How long this session waits for a lock."""

    def notice(
        self,
        message: str,
        *,
        severity: str = "NOTICE",
        sqlstate: str = "00000",
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Tell the client something beside the answer."""

    def parse(self, text: str, oids: tuple[int, ...] = ()) -> Waiting[Statement]:
        """Parse one statement."""

    def begin_implicit(self) -> Waiting[None]:
        """What follows is one transaction, unless one is open."""

    def begin_block(self) -> None:
        """Begin a block."""

    def opened(self) -> Transaction:
        """The block's DuckDB transaction, begun if it was not."""

    def touched(self) -> Transaction:
        """The block's transaction, about to have an MVCC snapshot."""

    def commit_block(self) -> Waiting[None]:
        """COMMIT of an open block."""

    def rollback_block(self) -> None:
        """ROLLBACK of a block."""

    def unit(self, work: Callable[[Transaction], Waiting[T]]) -> Waiting[T]:
        """Do `work` in the block's transaction, or in one of its own that commits with it."""

    def changed(self, key: str, shown: str, value: str, *, report: bool, local: bool) -> None:
        """A setting has a new value."""


Runner = Callable[[Context, Statement, tuple[object, ...]], Waiting[Result]]

"""The context of a session: its parts, as the runners of statements see them.

`session.Session` is the only class that implements it. Runners take a `Context`, which is in a layer below
them, so that the session can be above them and call them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ...engine.database import Database
from ...engine.duck.objects import Object, Objects
from ...engine.placement.peer import Peer
from ...engine.waiting import Waiting
from ..language.statements import AddSourceTables, CreateStream, Statement
from ..peers.links import Links
from ..peers.owners import Holds, OwnerCache
from ..peers.remote import Learned
from ..peers.requests import Part
from ..results.cursors import Cursors
from ..results.notices import Notices
from ..results.results import Result
from ..settings import Variables
from ..text.classified import Classified
from .access import Access
from .block import Block
from .data_frames import Frames
from .guard import Guard
from .listening import Listening
from .names import Names
from .portals import Portals
from .positions import Positions
from .spelling import Speller
from .statement import Description, ParsedStatement, PreparedStatement

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waited:
    """The outcome of a statement's WAIT.

    Args:
        through_lsn: LSN up to which all events were readable when the wait ended.
        streams: stream names at the start of the wait -> numbers of the streams that it waited for.
        left: group ids and members that LEAVE CONSUMER GROUP removed meanwhile; they do not join again.
    """

    through_lsn: int
    streams: Mapping[tuple[str, ...], int]
    left: frozenset[tuple[int, str]] = frozenset()


class Context(ABC):
    """The session's parts for runners; each member is documented in `session.Session` or in its own class."""

    database: Database
    user: str
    access: Access
    wire: bool
    id: int
    cursors: Cursors
    block: Block
    guard: Guard
    names: Names
    frames: Frames
    notices: Notices
    variables: Variables
    positions: Positions
    prepared: dict[str, PreparedStatement]
    portals: Portals
    # The rewriting of a text within a statement.
    spell: Speller
    # The OID of a table, view or type for clients, from it, the database's objects and the session's
    # temporary ones; None in process. The origins of the columns of texts (pipeline/column_origins.py).
    object_oid: Callable[[Object, Objects, Objects], int] | None
    origins: dict[object, object]
    # The outcome of the present statement's WAIT; None without one.
    waited: Waited | None
    listening: Listening
    # The links to the other nodes of a cluster; None without a cluster, or where no other node may be asked.
    links: Links | None
    # Makes the node learn other nodes' definitions; callers that come meanwhile share the answer. Callable
    # from any thread; None without a cluster.
    learn: Callable[[], Future[Learned]] | None
    # The number of rows that the present statement's client takes at first; None for all rows.
    first_rows: int | None
    # A schema of another database that comes after the search path: PostgreSQL's functions for clients of the
    # wire; empty without one. Its functions in small letters, which no file may need to be read.
    path_end: str
    path_functions: frozenset[str]
    # The node that is the client; None for any other client.
    peer: Peer | None
    # The distribution of events of topics with several owners.
    owner_cache: OwnerCache
    # The facts of the share that the present statement is; None where it is no share.
    part: Part | None
    # The rows of a COPY to a topic of which other nodes own a part, until its end; else None.
    collected: list[pa.Table] | None
    # What members hold because of this session's running reads and commits at other nodes.
    holds: Holds
    # Requests to other nodes that have not been answered yet.
    told: list[Future[Any]]

    @property
    @abstractmethod
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's cursor for the user's statements."""

    @property
    @abstractmethod
    def meta(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's cursor for binding and lookups."""

    @abstractmethod
    def looking(self) -> AbstractContextManager[None]:
        """Context in which names are looked up and texts are bound, outside or inside a running statement."""

    @abstractmethod
    def judge(self, asked: ParsedStatement | Classified | CreateStream | AddSourceTables) -> None:
        """Check a statement's rights again, after it has had to wait."""

    @abstractmethod
    def parse(self, text: str, oids: tuple[int, ...] = (), *, told: bool = True) -> Waiting[ParsedStatement]:
        """Parse one statement.

        Args:
            told: True if the client requests its columns before it runs.
        """

    @abstractmethod
    def handle(self, node: Statement, parameters: tuple[object, ...] = ()) -> Waiting[Result]:
        """Run one of ducktail's statements within the running one, with the same rights."""

    @abstractmethod
    def execute_within(
        self, statement: ParsedStatement, parameters: tuple[object, ...], run: Runner | None = None
    ) -> Waiting[Result]:
        """Run a statement that is part of the running one; its names and rights are its own.

        Args:
            run: runs it in place of the runner of its kind.
        """

    @abstractmethod
    def describe(self, statement: ParsedStatement) -> Description:
        """The description of a statement for the client, before it runs."""

    @abstractmethod
    def is_inline(self, statement: ParsedStatement) -> bool:
        """True if running a statement now needs no DuckDB work: BEGIN, SHOW, a plain read, a commit."""

    @abstractmethod
    def begin_implicit(self) -> Waiting[None]:
        """Begin one transaction for the following statements, unless one is open."""

    @abstractmethod
    def within_call(self, text: str, work: Callable[[], Waiting[T]]) -> Waiting[T]:
        """Do the work that a statement waits for before it runs, in the running call or in a call of its own.

        It can be cancelled, and counts towards the statement's time-out."""

    @abstractmethod
    def kept(self, result: Result) -> None:
        """Note that a portal's result is fetched in parts from now on, inside other calls or in calls of
        their own."""

    @abstractmethod
    def changed(self, key: str, value: str, *, report: bool, local: bool) -> None:
        """Note the new value of a setting."""


Runner = Callable[[Context, ParsedStatement, tuple[object, ...]], Waiting[Result]]

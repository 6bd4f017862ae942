"""A session: one client's cursors, transaction block, settings and read positions.

A statement is parsed (`parse`), perhaps described, and executed (`execute`); both are generators that yield
their waits (engine/waiting.py), so the same session runs under the gateway's event loop and under the
calling thread of the DB-API. One call at a time (`guard.py`, `calls.py`): a driver owns its session.
Several statements of one message are an implicit block (`block.py`).

If DuckDB invalidates the database, a session discards its cursors and creates new ones at its next
statement: an open block has failed then, temporary tables are lost; settings, registered frames, prepared
statements and read positions are kept. Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ..engine.database import Database
from ..engine.duck.duckdb_errors import recognized, translated
from ..engine.duck.objects import Object, Objects
from ..engine.errors import AdminShutdown, CachedPlanChanged, DucktailError, ProgramLimitExceeded
from ..engine.notifications import Notification
from ..engine.placement.peer import CLUSTER, DATABASE, DIGEST, EPOCH, NODE, Peer
from ..engine.sessions import IDLE, SessionEntry
from ..engine.waiting import Waiting
from .cluster import relay
from .cluster.shares import own_share
from .dml import group_writes
from .dml.batch_insert import Many
from .language.statements import AddSourceTables, CreateStream, Statement
from .language.statements.publishing import published_positions
from .peer_requests import serving
from .peers.links import Links
from .peers.owners import Holds, OwnerCache
from .peers.remote import Learned, Remote
from .peers.requests import Part
from .pipeline import checks, description, execute, long_lists
from .pipeline.calls import Calls
from .pipeline.parsing import again
from .pipeline.statement_cache import ParsedStatements
from .results.cursors import Cursors
from .results.notices import Notice, Notices
from .results.results import CopyIn, ReadySource, Result
from .rights import permission, visibility
from .session_state.access import Access
from .session_state.block import Block
from .session_state.context import Context, Runner, Waited
from .session_state.data_frames import Frames
from .session_state.guard import Guard
from .session_state.listening import Listening
from .session_state.names import Names
from .session_state.portals import Portals
from .session_state.positions import Positions
from .session_state.spelling import AsWritten, Speller
from .session_state.statement import Description, ParsedStatement, PreparedStatement
from .settings import TRACE, Variables
from .statements import cursor_statements
from .statements.set_and_show import renew_path, renew_values, restore_values, set_variable
from .statements.transactions import ENDINGS
from .text.classified import Classified, Kind
from .text.spans import Replacement, original_positions

T = TypeVar("T")

# The maximum time in which a session must release its cursors.
LET_GO_S = 30.0


class Session(Context):
    """One client's session; the driver calls its methods one at a time.

    Args:
        database: the open database.
        user: the user's name, as the client gave it.
        application_name: the client's name for itself.
        settings: session settings by PostgreSQL's names, as texts.
        wire: rows are for PostgreSQL's wire: types that Arrow cannot represent without loss are text.
        account: the user whose rights it has; None has all rights, as the owner of the database.
        peer: the node that the client is; None for other clients.

    Raises:
        UndefinedObject: a setting is unknown.
        InvalidParameterValue: a value is invalid.
        IoError: DuckDB has invalidated the database, and its file is not open again yet.
    """

    def __init__(
        self,
        database: Database,
        *,
        user: str = "ducktail",
        application_name: str = "",
        settings: Mapping[str, str] | None = None,
        wire: bool = False,
        account: str | None = None,
        peer: Peer | None = None,
    ) -> None:
        self.database = database
        self.peer = peer
        self.part: Part | None = None
        self.owner_cache = OwnerCache()
        self.collected: list[pa.Table] | None = None
        self.wire = wire
        self.user = user
        self.id = database.sessions.new_id()
        bounds = database.settings
        self.variables = Variables(
            {
                "session_authorization": user,
                "application_name": application_name,
                "lock_timeout": str(bounds.lock_timeout_ms),
                "idle_in_transaction_session_timeout": str(bounds.idle_in_transaction_session_timeout_ms),
            }
        )
        self.positions = Positions(database.members)
        self.holds = Holds(database.members)
        self.told: list[Future[Any]] = []
        self.notices = Notices()
        self.prepared: dict[str, PreparedStatement] = {}
        self.portals = Portals(bounds.portals_max, database.clock.now_us)
        self.spell: Speller = AsWritten
        self.object_oid: Callable[[Object, Objects, Objects], int] | None = None
        self.origins: dict[object, object] = {}
        # Set by a gateway: the client's last text; name, text, time of creation and parameters' OIDs of the
        # statements that its protocol has prepared.
        self.last_text: Callable[[], str] = str
        self.bound_statements: Callable[[], Sequence[tuple[str, str, int, tuple[int, ...]]]] = tuple
        self.begun_us = database.clock.now_us()
        self.listening = Listening(database, self._overrun, lambda: self.access)
        self.waited: Waited | None = None
        self.links: Links | None = None
        self.learn: Callable[[], Future[Learned]] | None = None
        self.first_rows: int | None = None
        self.on_ended: Callable[[DucktailError], None] | None = None
        # Called when another session has cancelled this one; also ends the answer to its client.
        self.on_cancelled: Callable[[], None] = lambda: None
        self._dresses: list[Callable[[Session], None]] = []
        self.path_end = ""
        self.path_functions: frozenset[str] = frozenset()
        self._freed = False
        self.cursors = Cursors(database)
        self.guard = Guard(database.clock, self.cursors.interrupt)
        self.entry = SessionEntry(
            self.id,
            user,
            application_name,
            self._end_idle,
            self.guard.warn,
            self._let_go,
            self.guard.shield,
            bounds.idle_in_transaction_session_timeout_ms,
            node=None if peer is None else peer.node,
        )
        restore = partial(restore_values, self)
        self.block = Block(
            database,
            self.entry,
            self.cursors,
            self.variables,
            self._committing,
            self._transaction_ended,
            restore,
        )
        self.access: Access = Access(database, account, lambda: self.block.transaction)
        self.access.of_node = peer is not None
        self.variables.values["is_superuser"] = "on" if self.access.superuser else "off"
        self.calls = Calls(self, self.entry, self._renew)
        self._parsed = ParsedStatements(self, self.calls)
        self.calls.mark(IDLE)
        with self.guard.alone():
            database.sessions.register(self.entry)
            try:
                self.cursors.renew()
                self.names = Names(database, self.cursors, self.block)
                self.access.replaced = self.names.replaced
                self.names.limited = lambda: self.access.limited
                self.names.sees, self.names.sees_object = self.access.sees, self.access.sees_object
                self.frames = Frames(self.cursor, self.names, self._parsed.forget)
                for name, value in (settings or {}).items():
                    set_variable(self, name, (value,), local=False)
                self.variables.started()
            except BaseException:
                database.sessions.unregister(self.id)
                raise
        if account is not None:
            self.dress(visibility.attach)

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's cursor for the user's statements."""
        return self.cursors.main

    @property
    def meta(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's cursor for binding and lookups."""
        return self.cursors.meta

    # Calls of the driver.

    @property
    def transaction_status(self) -> str:
        """PostgreSQL's byte: 'I' outside a block, 'T' in one, 'E' in a failed one."""
        return self.block.status

    def parse(self, text: str, oids: Sequence[int] = (), *, told: bool = True) -> Waiting[ParsedStatement]:
        """Parse one statement.

        Args:
            text: the statement; empty is allowed.
            oids: PostgreSQL type OIDs of its parameters, 0 for an undeclared one.
            told: True if the client requests its columns before it runs.

        Raises:
            SyntaxError_: the text is invalid; the error has its position.
        """
        self.access.said = [(text, ())]
        return self._parsed.parse(text, oids, told=told)

    def execute(self, statement: ParsedStatement, parameters: Sequence[object] = ()) -> Waiting[Result]:
        """Run a statement.

        Raises:
            DucktailError: the statement fails; an open block has then failed too.
        """
        self.access.said = [(statement.classified.text, parameters)]
        return (
            yield from self.calls.run(
                lambda: self._execute(statement, parameters),
                text=statement.text,
                commits=lambda: checks.may_commit(self, statement),
            )
        )

    def handle(self, node: Statement, parameters: tuple[object, ...] = ()) -> Waiting[Result]:
        """Run one of ducktail's statements within the running one, with the same rights."""
        return execute.handle(self, node, parameters)

    def execute_within(
        self, statement: ParsedStatement, parameters: tuple[object, ...], run: Runner | None = None
    ) -> Waiting[Result]:
        """Run a statement that is part of the running one; its names and rights are its own."""
        return execute.execute(self, statement, parameters, run)

    def describe(self, statement: ParsedStatement) -> Description:
        """The description of a statement for the client, before it runs.

        Raises:
            DucktailError: the statement is invalid.
        """
        return description.describe(self, statement)

    def is_inline(self, statement: ParsedStatement) -> bool:
        """True if running a statement now needs no DuckDB work: BEGIN, SHOW, a plain read, a commit."""
        return execute.is_inline(self, statement)

    def cycle_ended(self) -> None:
        """Handle a Sync of the wire: preparation time before it counts for no later statement."""
        self.calls.forget_prepared()

    def is_stale(self, statement: ParsedStatement) -> bool:
        """True if the described columns of a statement may have changed."""
        return description.is_stale(self, statement)

    def renew(self, statement: ParsedStatement) -> None:
        """Describe a statement again, with the parameter types of the first description.

        Raises:
            DucktailError: the statement has become invalid.
        """
        statement.renew()

    def is_known_write(self, text: str) -> bool:
        """True if a text is a small write with literals that takes no DuckDB work here."""
        return group_writes.is_known(self, text)

    def sent_inline(self, parameters: Sequence[object]) -> bool:
        """True if a forwarded statement needs no DuckDB work: it is cached here, and inline."""
        return self._parsed.sent_inline(parameters)

    def many(self, statement: ParsedStatement) -> Waiting[Many | None]:
        """The statement that runs many executions of this one at once; None if there is none."""
        return self._parsed.many(statement)

    def _execute(self, statement: ParsedStatement, parameters: Sequence[object]) -> Waiting[Result]:
        if statement.part is None:
            return (yield from self._executed(statement, parameters))
        with own_share(self, statement.part):
            return (yield from self._executed(statement, parameters))

    def _executed(self, statement: ParsedStatement, parameters: Sequence[object]) -> Waiting[Result]:
        kind = statement.classified.kind
        if self.peer is not None and not (kind is Kind.FORWARD and serving.is_under_way(parameters)):
            self.database.cluster.check_epoch(self.peer)
        if statement.classified.verb not in ENDINGS:
            self.block.check_sound()
        if kind is Kind.CURSOR:
            portal = cursor_statements.named(self, statement)
            self.cursors.settle(None if portal is None else portal.result)
        elif kind is Kind.FORWARD:
            self.cursors.settle(serving.spared(self, parameters))
        elif statement.classified.verb not in ENDINGS or not self.block.begun:
            # The end of a transaction ends its results, whose remaining rows nobody takes.
            self.cursors.settle()
        self._catch_up()
        statement = yield from execute.located(self, statement)
        if statement.away is not None:
            if self.block.begun:
                self.block.changing()
            return self._arriving((yield from relay.execute(self, statement, tuple(parameters))))

        pieces: Sequence[Replacement] = ()
        if (written := long_lists.as_json(statement, parameters)) is not None:
            text, pieces, parameters = written
            statement = again(self, text, statement)
        with original_positions(pieces), published_positions(statement.published):
            try:
                result = yield from execute.execute_here(self, statement, tuple(parameters))
            except CachedPlanChanged:
                statement.described_in = None  # Another preparation of it computes the description again.
                raise
        if not result.ended and result.columns is not None:
            self.cursors.giving(result)
            if not isinstance(result.source, ReadySource):
                result.bind_guard(partial(self.calls.fetch, committed=result.committed))
        return self._arriving(result)

    def _arriving(self, result: Result) -> Result:
        """The result; if its rows come from another node, the waits for them and for its end are calls
        too."""
        result.guard_settling(partial(self.calls.run, ends=True))
        source = result.source
        if not result.ended and isinstance(source, relay.RowSource):
            result.bind_guard(self.calls.fetch)
            result.bind_arrival(lambda rows: self.calls.run(lambda: source.arrive(rows)))
        return result

    def within_call(self, text: str, work: Callable[[], Waiting[T]]) -> Waiting[T]:
        """Do the work that a statement waits for before it runs, in the running call or in a call of its
        own."""
        return self.calls.prepare(text, work)

    def judge(self, asked: ParsedStatement | Classified | CreateStream | AddSourceTables) -> None:
        """Check a statement's rights again, after it has had to wait.

        Raises:
            DucktailError: a right is missing.
        """
        permission.judge(self, asked)

    def kept(self, result: Result) -> None:
        """Note that a portal's result is taken in parts from now on."""
        self.cursors.keeping(result)
        result.bind_guard(partial(self.calls.fetch, committed=result.committed))

    def with_frames(self, work: Callable[[Frames], None]) -> Waiting[None]:
        """Register or unregister objects of this process.

        Raises:
            DucktailError: the work fails; an open block has then failed too.
        """

        def changed() -> Waiting[None]:
            self.cursors.settle()
            self._catch_up()
            if self.block.transaction is not None:
                self.block.touched()
            work(self.frames)
            if self.block.transaction is None:
                self.frames.transaction_ended(committed=True)
            return
            yield

        yield from self.calls.run(changed)

    def copy_data(self, copy: CopyIn, data: bytes) -> Waiting[None]:
        """Pass a piece of the client's data to a COPY FROM STDIN.

        Raises:
            DucktailError: a row is malformed (the error has its line); nothing of the COPY is kept.
        """
        yield from self.calls.run(lambda: self._in_whole_block(lambda: copy.write(data)))

    def copy_done(self, copy: CopyIn) -> Waiting[Result]:
        """End a COPY FROM STDIN after its last row."""
        return (
            yield from self.calls.run(
                lambda: self._in_whole_block(copy.finish), commits=lambda: not self.block.begun
            )
        )

    def _in_whole_block(self, work: Callable[[], Waiting[T]]) -> Waiting[T]:
        """Check that the block in which an operation began has not failed meanwhile."""
        self.block.check_whole()
        return (yield from work())

    def begin_implicit(self, *, piped: bool = False) -> Waiting[None]:
        """Begin one transaction for everything up to `commit_implicit` (unless BEGIN is among it).

        Args:
            piped: the block holds the statements up to a Sync, which PostgreSQL does not count as a block.
        """
        if not self.block.begun:
            self.block.begin(implicit=True, piped=piped)
        return
        yield

    def commit_implicit(self) -> Waiting[None]:
        """Commit the open block, if it is still an implicit one.

        Raises:
            DucktailError: the commit failed; everything of the block is rolled back.
        """
        if self.block.implicit:
            yield from self.calls.run(lambda: self._in_whole_block(self.block.commit), commits=lambda: True)

    def abort_implicit(self) -> Waiting[None]:
        """Roll an implicit block back, if it is still one."""
        if self.block.implicit:
            self.block.rollback()
        return
        yield

    def fail(self) -> None:
        """Fail the open block, because of a protocol error."""
        self.block.failed()

    def as_told(self, error: Exception) -> DucktailError:
        """Convert any exception to the error that the session's client receives."""
        return self.calls.told(translated(error))

    def cancel(self) -> None:
        """End the session's current operation with 57014; from any thread, at any time."""
        self.guard.cancel()

    def close(self) -> Waiting[None]:
        """Roll back open work and free everything; may be called twice."""
        if not self._freed:
            self._freed = True
            self.guard.close(AdminShutdown("the session is closed"))
            # The watchdog may be using it now: two threads must not share a cursor.
            with self.guard.alone():
                self.cursors.drop_result()
                if self.block.begun:
                    self.block.rollback()
            self.portals.close()
            self.database.sessions.unregister(self.id)
            self.positions.close()
            self.holds.close()
            self.listening.close()
            if self.links is not None:
                self.links.close()
            self.frames.close()
            self.cursors.close()
            self.cursors.spool.close()
        return
        yield

    @property
    def has_news(self) -> bool:
        """True if there are notices or changed parameters to take."""
        return bool(self.notices.pending or self.variables.changes)

    def take_notices(self) -> list[Notice]:
        """Take the notices since the last call that are of the client's lowest level or above."""
        return self.notices.take(self.variables["client_min_messages"])

    def take_notifications(self) -> list[Notification]:
        """Take the notifications of the session's channels; it must be in no transaction."""
        return self.listening.take()

    def _overrun(self) -> None:
        """End the session, because it has left too many notifications unread."""
        if self.on_ended is not None:
            self.on_ended(ProgramLimitExceeded("too many notifications wait for this session"))

    def take_parameter_changes(self) -> dict[str, str]:
        """Take the reported settings that have changed since the last call."""
        return self.variables.take_changes()

    def parameter_status(self) -> dict[str, str]:
        """The reported settings; for another node also the identity of this node."""
        reported = self.variables.reported()
        if self.peer is not None:
            ours = self.database.placement
            reported |= {NODE: ours.local.name, CLUSTER: ours.cluster}
            reported |= {EPOCH: str(ours.epoch), DIGEST: ours.digest}
            reported |= {DATABASE: self.database.cluster.identity}
        return reported

    def trace(self) -> str:
        """The id that identifies the session's work in the logs of several nodes; "" for none."""
        return self.variables[TRACE]

    def reach(self, remote: Remote, trace: str) -> None:
        """Give the session access to the other nodes of the cluster, with the rights of its account there.

        Args:
            trace: the id of its statements in all nodes' logs, unless its client sets another.
        """

        def follow() -> None:
            self.changed(TRACE, trace, report=False, local=False)

        self.links = Links(remote, self.access.account, self.variables, self.notices, follow)

    def dress(self, work: Callable[[Session], None]) -> None:
        """Do something to the session's cursors: now, and to later cursors that replace them."""
        with self.guard.alone(), self.cursors.mutex:
            work(self)
            self._dresses.append(work)

    def _end_idle(self, error: DucktailError) -> bool:
        """End the idle session for the watchdog, unless it is working or no longer in a transaction."""
        with self.guard.alone(0) as alone:
            if not alone or self.guard.closed:
                return False
            if not self.block.begun:
                # An unfinished result outside a transaction: keep its rest, and release its snapshot.
                if not self.cursors.has_open_result:
                    return False
                self.cursors.settle()
                self.entry.has_snapshot = False
                return True
            self.block.rollback()
            self.calls.mark(IDLE)
            self.guard.close(error)
        if self.on_ended is not None:
            self.on_ended(error)
        return True

    # Names and statements.

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Context in which names are looked up and texts bound, outside or inside a running statement.

        Raises:
            DucktailError: the work in it fails.
        """
        with self.cursors.mutex:
            try:
                self._renew()
                yield
            except Exception as error:
                known = recognized(error)
                told = error if known is None else self.calls.told(known)
                if told is not error:
                    raise told from error
                raise

    def _catch_up(self) -> None:
        """Run the settings that a failed transaction did not accept, and repair the effects of its
        rollback."""
        if self.block.transaction is None:
            self.cursors.catch_up()
            if self.names.on_commit:
                self.names.transaction_over()
            if self.frames.stale:
                self.frames.mend()
        if self.names.awaited and not self.block.broken:
            renew_path(self)

    def _committing(self) -> None:
        self.portals.keep_held(self.cursors.keep_rest)
        self.cursors.drop_result()

    def _transaction_ended(self, committed: bool) -> None:
        self.portals.transaction_ended(committed=committed)
        self.listening.transaction_ended(committed=committed)
        self.positions.transaction_ended(committed=committed)
        self.frames.transaction_ended(committed=committed)
        self.names.changed()
        if self.links is not None:
            self.links.transaction_ended(committed=committed)

    def changed(self, key: str, value: str, *, report: bool, local: bool) -> None:
        """Note the new value of a setting."""
        self.variables.change(key, value, report=report, local=local)
        if key == "application_name":
            self.entry.application_name = value
        if key == TRACE:
            self.entry.trace = value
        if key == "idle_in_transaction_session_timeout":
            self.entry.idle_timeout_ms = int(value)

    # After DuckDB has invalidated the database.

    def _let_go(self, error: DucktailError) -> bool:
        """Close the cursors, once no statement runs; False if one still does."""
        with self.guard.alone(LET_GO_S) as alone:
            if not alone:
                return False
            with self.cursors.mutex:
                self.block.lose(error)
                self.cursors.close()
        return True

    def _renew(self) -> None:
        """Create new cursors, if the file has been reopened since the last ones were created."""
        fallen = self.database.fallen
        if fallen is not None:
            raise fallen
        if not self.cursors.stale:
            return
        with self.cursors.mutex:
            self.cursors.renew()
            self.frames.renew(self.cursor)
            self._parsed.forget()
            renew_values(self)
            for work in self._dresses:
                work(self)

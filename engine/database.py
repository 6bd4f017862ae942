"""An open database: the DuckDB file, and the parts of the engine around it.

`Database` opens, closes and reopens. Its parts do the work on an open database; each owns the state that it
changes:

- `catalog`: the streams, groups and captured tables;
- `snapshots`, `commits`, `transactions`: the right to write, the numbers, COMMIT; `topics`: publishing;
- `offsets`, `parked`: committed LSNs, and the parked events of groups;
- `publisher`, `buffers`: readable events; `retention`: removed events;
- `members`: members of groups; `polls`: waiting readers; `sessions`: open sessions;
- `cluster`: ownership by nodes.

All parts that depend on the file are created in `_stand`, again for each DuckDB instance: at the open, and
after DuckDB has invalidated its instance (`storage/reopening.py`). DuckDB is not called under
`catalog.mutex`.

Source: docs/design/engine.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
from duckdb.func import FunctionNullHandling

from . import schema
from .buffers.buffers import Buffers
from .buffers.publisher import Publisher
from .buffers.ready import ReadyMaker, ReadyQueries
from .catalog.catalog import Catalog
from .catalog.segments import Segments
from .catalog.streams import Group, Stream
from .checkpoints.duckdb_backend import Saved
from .checks import row_sums
from .checks.check import mark_unlike
from .clock import Clock, SystemClock
from .duck.duckdb_errors import translated
from .duck.identities import any_always
from .duck.macros import KnownMacros
from .duck.objects import KnownObjects
from .errors import (
    DatabaseReplaced,
    DucktailError,
    InvalidParameterValue,
    IoError,
    UndefinedDatabase,
    WrongState,
)
from .groups.coordination import MemberEpochs
from .groups.deliveries import Deliveries
from .groups.feed_activity import FeedActivity
from .groups.members import Members
from .groups.offsets import Offsets
from .groups.parked import Parked
from .groups.polls import Polls
from .groups.sink_activity import SinkActivity
from .notifications import Notifications
from .parts import LastRead, Parts
from .placement.holds import Holds, Identities
from .placement.membership import Arrivals, Membership
from .placement.placement import Placement
from .replication.continuous_copies import ContinuousCopies
from .replication.fences import refuse_replaced
from .replication.generation_writer import DatabaseIdentity
from .replication.synchronous_copies import SynchronousCopies
from .replication.targets import DirectoryTarget
from .retention.retention import Retention
from .rights_changes import read_rights
from .sessions import Sessions, Watchdog
from .settings import Settings, shown
from .storage import opening
from .storage.duckdb_file import MEMORY, DuckdbFile, lock_down
from .storage.incarnation import Hole
from .storage.loading import (
    Counters,
    lost_tables,
    make_changes_views,
    read_catalog,
    read_objects,
    refresh_views,
)
from .storage.opening import read_stamp, stamp_left
from .storage.reopening import Reopener
from .storage.side_file import SideFile, side_path
from .storage.spill import SpillSpace
from .system_views.partition_of import PartitionOf
from .system_views.rows import live_rows
from .topics import Topics
from .transactions.commit_times import CommitTimes
from .transactions.commits import Commits
from .transactions.group_commit import GroupCommit
from .transactions.locks import TableWriters
from .transactions.snapshots import Snapshots
from .transactions.transactions import Transactions
from .waiting import Waiting

# Time for which a system view waits for the publisher before it shows the present state.
LIVE_WAIT_S = 10.0
# Time for which a checkpoint of a database with copies waits for captured writers.
COPY_LOCK_WAIT_MS = 2_000
# Further names of the only database of a server: the defaults of tools.
NAME_ALIASES = frozenset({"ducktail", "postgres", "template1"})


class Database(Parts):
    """An open database. Created by `Database.open`; safe to use from several threads."""

    def __init__(
        self,
        file: DuckdbFile,
        settings: Settings,
        clock: Clock,
        *,
        accept_loss: bool = False,
        stamp: bytes | None = None,
    ) -> None:
        self.path = file.path
        self.name = "memory" if file.path == MEMORY else Path(file.path).stem
        self.catalog_name = file.catalog_name
        self.settings = settings
        self.shown_settings = shown(settings)  # the command sets more: its own, and their sources
        self.clock = clock
        self.commit_times = CommitTimes(clock)
        self.catalog = Catalog()
        self.objects = KnownObjects(file.catalog_name, self.catalog.changes)
        self.macros = KnownMacros(self.catalog.changes)
        self.sessions = Sessions(lambda: self.fallen)
        self.notifications = Notifications()
        self.spill = SpillSpace(file.path, settings.spool_bytes_max)
        self.cluster = Membership(lambda: self.cursor())
        self.arrivals = Arrivals()
        self.last_reads: dict[tuple[int, int], LastRead] = {}  # by group id and partition
        self.members = Members(clock)
        self.polls = Polls(settings.long_polls_max, clock)
        self.members.on_change = self.polls.member_changed
        self.members.on_leave = self.polls.member_left
        self.members.committed = self._committed_group
        self.sink_activity = SinkActivity()
        self.feed_activity = FeedActivity()
        self.generation = 0
        self.side: SideFile | None = None
        self._stands = False
        self.continuous_copies: ContinuousCopies | None = None
        # Set when a target has the fence of a promoted standby; the server then ends.
        self.replaced: DatabaseReplaced | None = None
        self.on_replaced: Callable[[], None] = lambda: None
        self.copies_of_groups: dict[int, Future[None]] = {}  # groups whose whole copy is being made
        self.checkpoints = Saved()  # in the database's own table
        self._openers: list[Callable[[Database], None]] = []
        self._reopener = Reopener(self._let_go, self._come_back, clock, has_file=file.path != MEMORY)
        self._closed = False
        self._claimed: tuple[int, int] | None = None
        self._stand(file, {}, accept_loss=accept_loss, stamp=stamp)

    def forget_reads(self, group_ids: Iterable[int]) -> None:
        """Forget the times of the last reads of dropped groups."""
        gone = frozenset(group_ids)
        for place in [place for place in list(self.last_reads) if place[0] in gone]:
            self.last_reads.pop(place, None)

    def _committed_group(self, group: Group) -> Group | None:
        found = self.catalog.groups.get(group.key)
        return found if found is not None and found.group_id == group.group_id else None

    # Opening and closing.

    @classmethod
    def open(
        cls,
        path: str,
        settings: Settings | None = None,
        clock: Clock | None = None,
        *,
        accept_loss: bool = False,
    ) -> Database:
        """Open the database file at `path`, or create it; ":memory:" is a database without a file.

        Args:
            accept_loss: open it although acknowledged commits are missing.

        Raises:
            ObjectInUse: this process has the file open.
            InvalidParameterValue: a database in memory is to be copied.
            IoError: the file cannot be opened, is not a database, or is open in another process.
            DataCorrupted: the file is unreadable for this version, or lacks acknowledged commits.
        """
        settings = settings or Settings()
        if settings.copy_to and path == MEMORY:
            raise InvalidParameterValue("a database in memory cannot be copied", hint="copy_to wants a file.")
        claimed, stamp = opening.claim(path), None
        is_new = claimed is None
        try:
            if claimed is not None:
                stamp = read_stamp(path)
                opening.check_logs(path, accept_loss=accept_loss)
            else:
                opening.set_aside(path)
            file = opening.connect(path, settings, accept_loss=accept_loss)
            try:
                claimed = claimed or opening.claim_new(path)
                clock = clock or SystemClock()
                database = cls(file, settings, clock, accept_loss=accept_loss, stamp=stamp)
            except BaseException as error:
                file.abandon()
                if isinstance(error, duckdb.Error):
                    raise translated(error) from error
                raise
        except BaseException:
            opening.release(claimed)
            raise
        database._claimed = claimed
        if is_new:
            bodies = schema.partition_of_bodies()
            database.macros.begin(database.catalog_name, bodies, schema.PARTITION_OF)
        return database

    def close(self) -> None:
        """Publish and write unfinished work, and close the file. Sessions must have ended."""
        if self._closed:
            return
        self._closed = True
        self.polls.close()
        self._reopener.close()
        self._end_threads()
        self._file.close()
        self._release_copies()
        if self.side is not None:
            stamp = stamp_left(self.path)
            if stamp is not None:
                self.side.leave(stamp)
            self.side.close()
        opening.release(self._claimed)

    def _stand(
        self, file: DuckdbFile, seeks: Mapping[int, int], *, accept_loss: bool, stamp: bytes | None
    ) -> None:
        """Create all parts that depend on the file; the threads last, when nothing can fail any more.

        Args:
            stamp: the file's stamp from before DuckDB opened it; None if it was not read.
        """
        self._file = file
        file.connection.create_function(
            schema.LIVE_FUNCTION,
            self._live,
            ["VARCHAR", "VARCHAR"],
            "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL,
            side_effects=True,
        )
        file.connection.create_function(
            schema.PARTITION_FUNCTION,
            PartitionOf(lambda: self.catalog, lambda: self.rights, partial(file.cursor, utc=True)),
            ["VARCHAR", "VARCHAR", "VARCHAR[]", "VARCHAR[]", "VARCHAR"],
            "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL,
        )
        counters = self._load(accept_loss=accept_loss, stamp=stamp)
        self._refuse_replaced()
        for opener in self._openers:
            opener(self)
        catalog, clock, settings = self.catalog, self.clock, self.settings
        cursor, utc_cursor = file.cursor, partial(file.cursor, utc=True)
        ready_queries = ReadyQueries()
        self.buffers = Buffers(
            catalog,
            settings.buffer_bytes_total,
            clock,
            utc_cursor,
            self.damage,
            self.unlike,
            self.has_fallen,
            self.notifications,
            self.polls,
            ready_queries,
        )
        self.buffers.refill(counters.lsn)
        self.commit_times.given(counters.commit_us)
        retention_cursor = utc_cursor()
        self.offsets = Offsets(utc_cursor(), clock, self._check_side, self._offsets_written, seeks)
        with closing(utc_cursor()) as cursor_once:
            self.parked = Parked(cursor_once)
            self.identities = Identities(cursor_once)
            self.holds = Holds(cursor_once)
        self.deliveries = Deliveries(utc_cursor())
        self.member_epochs = MemberEpochs(utc_cursor())
        self.publisher = Publisher(
            self.buffers.publish,
            counters.lsn,
            self.polls.is_awaited,
            self.buffers.is_light,
            lambda: self.synchronous_copies,
        )
        self.polls.hurry = self.publisher.hurry
        gate = TableWriters()
        self.snapshots = Snapshots(catalog, gate)
        self.commits = Commits(
            catalog,
            self.snapshots,
            self.offsets,
            self.publisher,
            self.side,
            self.commit_times,
            cursor,
            self.has_fallen,
            last_txid=counters.txid,
            last_lsn=counters.lsn,
        )
        self.transactions = Transactions(
            catalog,
            self.snapshots,
            self.commits,
            self.offsets,
            self.members,
            self.sessions,
            lambda: self.fallen,
            cursor,
            ReadyMaker(
                catalog,
                ready_queries,
                self.polls.is_awaited_lately,
                self._has_one_writer,
                lambda stream: self.buffers.of(stream).event_bytes,
            ),
            gate=gate,
        )
        self.topics = Topics(catalog, self.buffers, self.transactions, cursor, lambda: self.cluster.placement)
        self.group_commit = GroupCommit(self.transactions, cursor)
        owner, interval_ms = self.sessions.new_id(), settings.retention_interval_ms
        self.retention = Retention(self, retention_cursor, owner, interval_ms)
        bound = settings.wal_bytes_max
        self.watchdog = Watchdog(
            self.sessions, clock, file.on_disk, file.wal_path, bound, self.checkpoint, self._look_at_side
        )
        if self.settings.copy_to and file.on_disk is not None:
            self.continuous_copies = self._make_copies(file)
        self.watchdog.start()
        self.retention.start()
        if self.continuous_copies is not None:
            self.continuous_copies.start()
        self._stands = True

    def _make_copies(self, file: DuckdbFile) -> ContinuousCopies:
        side, owner = self.side, self.sessions.new_id()
        assert side is not None and file.on_disk is not None and file.wal_path is not None
        return ContinuousCopies(
            file.on_disk,
            file.wal_path,
            self.settings,
            self.clock,
            lambda: DatabaseIdentity(str(side.identity), (self.side or side).incarnation),
            self.checkpoint,
            partial(self.transactions.hold_writer, owner, COPY_LOCK_WAIT_MS),
            lambda: (self.commits.last_txid, self.commits.last_lsn),
            self._was_replaced,
        )

    def _refuse_replaced(self) -> None:
        """Refuse to open a database in whose place a standby was promoted."""
        side = self.side
        if side is None:
            return
        identity = DatabaseIdentity(str(side.identity), side.incarnation)
        try:
            for place in self.settings.copy_to:
                refuse_replaced(DirectoryTarget(Path(place)), identity)
        except OSError as error:
            side.close()
            raise IoError("a copy of the database cannot be read", detail=str(error)) from error
        except DatabaseReplaced:
            side.close()
            raise

    def _was_replaced(self, error: DatabaseReplaced) -> None:
        if self.replaced is None:
            self.replaced = error
            self.on_replaced()

    @property
    def synchronous_copies(self) -> SynchronousCopies | None:
        """The copies for which commits wait; None without them."""
        copies = self.continuous_copies
        return None if copies is None else copies.synchronous

    def confirm_commits(self) -> Waiting[None]:
        """Wait until the synchronous copies have everything that is committed now.

        Raises:
            CommitNotConfirmed: they do not have it within their time; what is committed stands.
        """
        copies = self.synchronous_copies
        if copies is not None:
            yield from copies.confirm()

    def _release_copies(self) -> None:
        """Close the copies' descriptor of the file, which DuckDB has closed."""
        copies, self.continuous_copies = self.continuous_copies, None
        if copies is not None:
            copies.release()

    def _end_threads(self) -> None:
        """Publish and write unfinished work, and end the engine's threads."""
        if self._stands:
            self._stands = False
            self.watchdog.close()
            if self.continuous_copies is not None:
                self.continuous_copies.close()
            self.retention.close()
            self.group_commit.close()
            self.offsets.close()
            self.publisher.close()
            self.buffers.close()

    def check_name(self, name: str) -> None:
        """Refuse a name that is not this database's.

        Raises:
            UndefinedDatabase: the name is not that of this database.
        """
        if name not in NAME_ALIASES | {self.name}:
            raise UndefinedDatabase(
                f'database "{name}" does not exist',
                hint=f'The database of this server is called "{self.name}".',
            )

    # Invalidation and reopening (reopening.py).

    def at_opening(self, opener: Callable[[Database], None]) -> None:
        """Call a function now, and again whenever the file has been reopened."""
        opener(self)
        if opener not in self._openers:
            self._openers.append(opener)

    @property
    def fallen(self) -> DucktailError | None:
        """The error for statements while the database is invalidated and not reopened, else None."""
        return self._reopener.error

    def has_fallen(self) -> bool:
        """True if DuckDB has invalidated the database, which is then reopened. Asks DuckDB.

        Call it after an I/O error, or after an unknown error of DuckDB.
        """
        if self.fallen is None and not self._closed:
            reason = self._file.why_invalidated()
            if reason is not None:
                self._reopener.fell(reason)
        return self.fallen is not None

    def standing(self) -> Waiting[None]:
        """Wait while the file is being opened again.

        Raises:
            IoError: the file cannot be opened yet.
            DataCorrupted: acknowledged commits are missing.
        """
        yield from self._reopener.standing()

    def _let_go(self, error: DucktailError) -> None:
        """Release all cursors on the old instance, and close it."""
        self.sessions.let_go(error)
        self._end_threads()
        self._file.abandon()
        self._release_copies()
        if self.side is not None:
            self.side.close()

    def _come_back(self) -> None:
        """Open the file again, with all checks of a start."""
        if not opening.lock_is_free(self.path):
            raise IoError(f'database file "{self.path}" is in use by another process')
        opening.check_logs(self.path, accept_loss=False)
        file = opening.connect(self.path, self.settings, accept_loss=False)
        try:
            with self.catalog.changes.changing():
                self._stand(file, self.offsets.all_seeks(), accept_loss=False, stamp=None)
        except BaseException:
            file.abandon()
            if self.side is not None:
                self.side.close()
            raise
        self.generation += 1

    @property
    def placement(self) -> Placement:
        """The placement of partitions on nodes; all on this node without a cluster."""
        return self.cluster.placement

    def install_placement(self, new: Placement) -> None:
        """Put a newer placement in force, as in `Membership.install`.

        Raises:
            ConnectionRefused: the placement belongs to another cluster.
            SerializationFailure: the placement is older than one that was in force.
            InvalidParameterValue: another placement has its epoch.
        """
        self.cluster.install(new)

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor on this database; with `utc`, in time zone UTC."""
        return self._file.cursor(utc=utc)

    def _has_one_writer(self) -> bool:
        """True if no other captured writer waits, and all commits are published."""
        waiting = self.transactions.writer_lock.waiting_count + self.group_commit.waiting_count
        return not waiting and self.publisher.is_idle

    def checkpoint(self) -> bool:
        """Ask DuckDB to fold its log into the file; False while a transaction prevents it."""
        cursor = self.cursor()
        try:
            cursor.execute("CHECKPOINT")
            return True
        except duckdb.TransactionException:
            return False
        except duckdb.FatalException:
            self.has_fallen()
            raise
        finally:
            cursor.close()

    def _load(self, *, accept_loss: bool, stamp: bytes | None) -> Counters:
        """Check the file, install or migrate our schema, read the counters and the catalog."""
        cursor = self.cursor(utc=True)
        looked = opening.look(cursor, self.path, accept_loss=accept_loss)
        try:
            settled = opening.settle(cursor, self.path, looked)
        except BaseException:
            if looked.side is not None:
                looked.side.close()
            raise
        lock_down(cursor, self.path, self.settings.allowed_directories)
        self.side, self.holes = settled.side, settled.holes
        is_as_left = stamp is not None and self.side is not None and self.side.stamp == stamp
        counters = settled.counters
        catalog = read_catalog(cursor)
        if make_changes_views(cursor, catalog):
            catalog = read_catalog(cursor)
        refresh_views(cursor, catalog)
        catalog.has_identities = any_always(cursor)
        catalog.version, catalog.changes = self.catalog.version + 1, self.catalog.changes
        catalog.segments = Segments.read(cursor)
        self.catalog = catalog
        self.rights = read_rights(cursor, getattr(self, "rights", None))
        row_sums.take_missing(cursor, catalog, counters.lsn)
        self.damage: dict[int, DucktailError] = {}
        self.lost: dict[int, WrongState] = {}
        if not looked.is_new:
            damage = opening.find_damage(cursor, catalog, counters.lsn, accept_loss=accept_loss)
            self.lost = lost_tables(cursor, catalog)
            self.damage = {**self.lost, **damage}
            if not is_as_left and not accept_loss:
                mark_unlike(cursor, catalog, damage)
        self.unlike = row_sums.marks(cursor)
        if self.side is not None:
            self.side.tell(read_objects(cursor))
        cursor.close()
        return counters

    def refuse_lost(self, stream: Stream) -> None:
        """Refuse an operation that needs all tables of a stream over several.

        Raises:
            WrongState: one was dropped while no ducktail had the file open.
        """
        if stream.stream_id in self.lost:
            raise self.lost[stream.stream_id]

    def _live(self, kind: str, account: str | None) -> str:
        """The rows of a live view visible to an account, including everything readable before the call."""
        future = self.publisher.wait_for(self.commits.readable_lsn)
        if future is not None:
            with suppress(TimeoutError):
                future.result(LIVE_WAIT_S)
        return live_rows(self, kind, account)

    # The side file.

    def raised(self, incarnation: int, hole: Hole) -> None:
        """Record that the incarnation was raised while the database is open; under the writer lock."""
        self.holes = tuple(sorted((*self.holes, hole), key=lambda one: one.after))
        before = self.side
        if before is None:
            return
        mark = replace(before.mark, lsn=hole.through)
        try:
            made = SideFile.create(side_path(self.path), before.identity, incarnation, mark)
        except IoError as error:
            before.superseded(error)
            return
        made.announce(before.address)
        if before.objects is not None:
            made.tell(before.objects)
        self.side = self.commits.side = made
        before.close()

    @property
    def side_failure(self) -> str | None:
        """The reason why the side file cannot be written, or None."""
        return None if self.side is None else self.side.failure

    def _look_at_side(self) -> None:
        """Retry a failed write of the side file, as there may be no commit that would do so."""
        if self.side is not None and self.side.failure is not None:
            with suppress(IoError):
                self.side.check()

    def announce(self, address: str) -> None:
        """Store the address at which this database is served in the side file; "" for none."""
        if self.side is not None:
            self.side.announce(address)

    def _check_side(self) -> None:
        """Check the side file before offset commits are written."""
        if self.side is not None:
            self.side.check()

    def _offsets_written(self, seq: int) -> None:
        """Record that the committer has written offset commits up to this number."""
        if self.side is not None:
            self.side.acknowledge(seq=seq)

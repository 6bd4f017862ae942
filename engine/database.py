"""An open database: the DuckDB file, and the parts of the engine around it.

`Database` opens and closes, falls and comes back; what there is to do with an open one its parts do,
each the owner of what it changes:

- `catalog`: what streams, groups and captured tables there are;
- `snapshots`, `commits`, `transactions`: who may write, its numbers, its COMMIT; `topics`: who publishes;
- `offsets`, `parked`: committed LSNs, and what groups have set aside;
- `publisher`, `buffers`: events that are readable; `retention`: those that go;
- `members`: who shares a group; `polls`: who waits for events; `sessions`: who is there;
- `cluster`: which node owns what.

All that is made from the file is made in `_stand`, anew with each instance of DuckDB's: at the open, and
again where DuckDB has given its instance up (`storage/reopening.py`). No DuckDB call is made under
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
from .duck.objects import KnownObjects
from .errors import DucktailError, IoError, UndefinedDatabase, WrongState
from .groups.coordination import MemberEpochs
from .groups.members import Members
from .groups.offsets import Offsets
from .groups.parked import Parked
from .groups.polls import Polls
from .notifications import Notifications
from .parts import LastRead, Parts
from .placement.holds import Holds, Identities
from .placement.membership import Arrivals, Membership
from .placement.placement import Placement
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
from .transactions.locks import TableWriters
from .transactions.snapshots import Snapshots
from .transactions.transactions import Transactions
from .waiting import Waiting

# How long a system view waits for the publisher before it shows what there is.
LIVE_WAIT_S = 10.0
# Names that reach the one database of a server besides its own: what tools have as default.
NAME_ALIASES = frozenset({"ducktail", "postgres"})


class Database(Parts):
    """See the head of the file. Made by `Database.open`; safe to use from several threads."""

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
        self.shown_settings = shown(settings)  # the command tells it more: its own, and their places
        self.clock = clock
        self.commit_times = CommitTimes(clock)
        self.catalog = Catalog()
        self.objects = KnownObjects(file.catalog_name, self.catalog.changes)
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
        self.generation = 0
        self.side: SideFile | None = None
        self._stands = False
        self.copies_of_groups: dict[int, Future[None]] = {}  # those that a whole copy is being taken for
        self.checkpoints = Saved()  # in the database's own table
        self._openers: list[Callable[[Database], None]] = []
        self._reopener = Reopener(self._let_go, self._come_back, clock, has_file=file.path != MEMORY)
        self._closed = False
        self._claimed: tuple[int, int] | None = None
        self._stand(file, {}, accept_loss=accept_loss, stamp=stamp)

    def forget_reads(self, group_ids: Iterable[int]) -> None:
        """Groups are gone: nobody asks any more when they were read."""
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
        """Open the database file at `path`, or make it; ":memory:" is one without a file.

        Args:
            accept_loss: serve it although commits that were acknowledged are missing.

        Raises:
            ObjectInUse: this process has it open.
            IoError: the file cannot be opened, is no database, or another process has it.
            DataCorrupted: the file holds what this version cannot read, or lacks commits that
                were acknowledged.
        """
        settings = settings or Settings()
        claimed, stamp = opening.claim(path), None
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
        return database

    def close(self) -> None:
        """Publish and write what is under way, and close the file. Sessions must have ended."""
        if self._closed:
            return
        self._closed = True
        self.polls.close()
        self._reopener.close()
        self._end_threads()
        self._file.close()
        if self.side is not None:
            stamp = stamp_left(self.path)
            if stamp is not None:
                self.side.leave(stamp)
            self.side.close()
        opening.release(self._claimed)

    def _stand(
        self, file: DuckdbFile, seeks: Mapping[int, int], *, accept_loss: bool, stamp: bytes | None
    ) -> None:
        """Make everything that is made from the file; the threads last, when nothing can fail any more.

        Args:
            stamp: the file's before DuckDB had it open; None where nobody has looked.
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
        self.member_epochs = MemberEpochs(utc_cursor())
        self.publisher = Publisher(
            self.buffers.publish, counters.lsn, self.polls.is_awaited, self.buffers.is_light
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
        owner, interval_ms = self.sessions.new_id(), settings.retention_interval_ms
        self.retention = Retention(self, retention_cursor, owner, interval_ms)
        bound = settings.wal_bytes_max
        self.watchdog = Watchdog(
            self.sessions, clock, file.wal_path, bound, self.checkpoint, self._look_at_side
        )
        self.watchdog.start()
        self.retention.start()
        self._stands = True

    def _end_threads(self) -> None:
        """Publish and write what is under way, and end the engine's threads."""
        if self._stands:
            self._stands = False
            self.watchdog.close()
            self.retention.close()
            self.offsets.close()
            self.publisher.close()

    def check_name(self, name: str) -> None:
        """Refuse a name that is not this database's.

        Raises:
            UndefinedDatabase.
        """
        if name not in NAME_ALIASES | {self.name}:
            raise UndefinedDatabase(
                f'database "{name}" does not exist',
                hint=f'The database of this server is called "{self.name}".',
            )

    # Falling, and coming back: see reopening.py.

    def at_opening(self, opener: Callable[[Database], None]) -> None:
        """Have something made beside the database: now, and whenever its file has been opened again."""
        opener(self)
        if opener not in self._openers:
            self._openers.append(opener)

    @property
    def fallen(self) -> DucktailError | None:
        """The error of statements while the database is not open, once DuckDB has given it up."""
        return self._reopener.error

    def has_fallen(self) -> bool:
        """True if DuckDB has given the database up; it is then opened again. Asks DuckDB.

        To be asked by whoever met an I/O error, or one that DuckDB has no word for.
        """
        if self.fallen is None and not self._closed:
            reason = self._file.why_invalidated()
            if reason is not None:
                self._reopener.fell(reason)
        return self.fallen is not None

    def standing(self) -> Waiting[None]:
        """Wait while the file is being opened again.

        Raises:
            IoError: it cannot be opened yet. DataCorrupted: it lacks what was acknowledged.
        """
        yield from self._reopener.standing()

    def _let_go(self, error: DucktailError) -> None:
        """Nobody has a cursor on the old instance any more, and it is closed."""
        self.sessions.let_go(error)
        self._end_threads()
        self._file.abandon()
        if self.side is not None:
            self.side.close()

    def _come_back(self) -> None:
        """Open the file again, with all that is held against it at a start."""
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
        """The placement of partitions on nodes; all on this one where there is no cluster."""
        return self.cluster.placement

    def install_placement(self, new: Placement) -> None:
        """Put a newer placement in force; see `Membership.install`.

        Raises:
            ConnectionRefused: it is another cluster's. SerializationFailure: it is older than
                one that was in force. InvalidParameterValue: another one has its epoch.
        """
        self.cluster.install(new)

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor on this database; with `utc`, in that time zone."""
        return self._file.cursor(utc=utc)

    def _has_one_writer(self) -> bool:
        """True if no other captured writer waits, and all that was committed is published."""
        return not self.transactions.writer_lock.waiting_count and self.publisher.is_idle

    def checkpoint(self) -> None:
        """Ask DuckDB to fold its log into the file; nothing happens while a snapshot is in the way."""
        cursor = self.cursor()
        try:
            cursor.execute("CHECKPOINT")
        except duckdb.TransactionException:
            return
        except duckdb.FatalException:
            self.has_fallen()
            raise
        finally:
            cursor.close()

    def _load(self, *, accept_loss: bool, stamp: bytes | None) -> Counters:
        """Look at the file, install or migrate our schema, read the counters and the catalog."""
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
        """Refuse what wants all tables of a stream over several.

        Raises:
            WrongState: one was dropped while no ducktail had the file open.
        """
        if stream.stream_id in self.lost:
            raise self.lost[stream.stream_id]

    def _live(self, kind: str, account: str | None) -> str:
        """Rows of a live view, as an account is told; what was committed before it was asked is in them."""
        future = self.publisher.wait_for(self.commits.last_lsn)
        if future is not None:
            with suppress(TimeoutError):
                future.result(LIVE_WAIT_S)
        return live_rows(self, kind, account)

    # The side file.

    def raised(self, incarnation: int, hole: Hole) -> None:
        """The incarnation was raised while the database is open; under the writer lock."""
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
        """The reason why the side file cannot be written; None where it can."""
        return None if self.side is None else self.side.failure

    def _look_at_side(self) -> None:
        """Retry the side file where it could not be written, as nobody may have anything to commit."""
        if self.side is not None and self.side.failure is not None:
            with suppress(IoError):
                self.side.check()

    def announce(self, address: str) -> None:
        """Say in the side file where this database is served; "" when it no longer is."""
        if self.side is not None:
            self.side.announce(address)

    def _check_side(self) -> None:
        """Before offset commits are written."""
        if self.side is not None:
            self.side.check()

    def _offsets_written(self, seq: int) -> None:
        """The committer has written offset commits up to this number."""
        if self.side is not None:
            self.side.acknowledge(seq=seq)

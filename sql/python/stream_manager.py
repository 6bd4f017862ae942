"""The streams that a program follows on one connection: `Connection.streams`.

    with ducktail.connect("shop.duckdb") as con:
        orders = con.streams.open("orders_stream")
        for batch in orders.follow("mirror"):
            for event in batch:
                apply(event)

Each follow has its own sessions: the connection is free meanwhile, and its transactions are separate. `stop`,
`pause`, `resume` and `checkpoint` may be called from any thread. A consumer without a group keeps its
position as a checkpoint in the database, under the stream's number: a stream that is created again under an
old name begins anew, and a rename changes nothing.
Source: docs/checkpoints.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType

from ...engine.catalog.streams import Group, Stream
from ...engine.checkpoints.backend import KEEP, Report, report_to_log
from ...engine.checkpoints.duckdb_backend import DuckdbBackend, Scope
from ...engine.checkpoints.positions import PartitionLsns
from ...engine.checkpoints.state import NAME_BYTES_MAX, CheckpointState, check_text
from ...engine.database import Database
from ...engine.definitions.groups import find_group
from ...engine.definitions.start_positions import check_lsns
from ...engine.errors import AdminShutdown, DucktailError, InvalidParameterValue, ObjectInUse, WrongState
from ...engine.quoting import ident
from ...engine.waiting import drive
from ..results.notices import Notice
from ..session import Session
from ..text.classified import TokenReader
from ..text.tokens import tokenize
from .errors import translated
from .feed import Batch, ConsumerStore, Feed, GroupFeed, Reads, StreamFeed, position_text, within
from .follower import (
    BATCH_SIZE,
    BUFFER_BYTES,
    BUFFER_SIZE,
    CHECKPOINT_EVERY,
    Bounds,
    Follower,
    Following,
    Key,
    end_all,
)

Tell = Callable[[Iterable[Notice]], None]


@dataclass(frozen=True, slots=True)
class ConsumerCheckpoint:
    """The progress of a consumer.

    Args:
        stream, consumer_id: the names of the stream and the consumer.
        group: the consumer group whose progress this is; None for a checkpoint of the consumer's own.
        position: partition -> the last processed LSN.
        sequence: the number of earlier checkpoints; None for a group.
        event_count: the number of processed events, over all follows; None for a group.
        watermark: commit time of the last processed event, or None.
        created_at: the time at which it was stored; None if nothing has been committed yet.
    """

    stream: str
    consumer_id: str
    group: str | None
    position: Mapping[int, int]
    sequence: int | None = None
    event_count: int | None = None
    watermark: datetime | None = None
    created_at: datetime | None = None


class StreamManager:
    """The streams that a program follows on one connection; `Connection.streams`.

    Safe to use from several threads. As a context manager it stops its streams at the end.

    Args:
        database: the open database.
        following: the running follows of the database.
        user: the user of the sessions, for `ducktail.sessions`.
        tell: receives the notices.
    """

    def __init__(self, database: Database, following: Following, user: str, tell: Tell) -> None:
        self._database = database
        self._following = following
        self._user = user
        self._tell = tell
        self._mutex = threading.Lock()
        self._followed: dict[Key, tuple[ReplicationStream, Follower]] = {}
        self._closed: DucktailError | None = None

    @property
    def active(self) -> tuple[ReplicationStream, ...]:
        """The followed streams."""
        with self._mutex:
            return tuple(stream for stream, _ in self._followed.values())

    @property
    def count(self) -> int:
        """The number of streams that are being followed."""
        return len(self.active)

    def open(self, stream: str) -> ReplicationStream:
        """A stream or topic to follow.

        Args:
            stream: the stream's name in SQL: schema-qualified or not, quoted where necessary.

        Raises:
            ProgrammingError: the stream does not exist.
            OperationalError: the manager is closed.
        """
        with translated():
            self._check_open()
            return ReplicationStream(self, self._found(stream))

    def get_checkpoint(
        self, stream: str, consumer_id: str, group: str | None = None
    ) -> ConsumerCheckpoint | None:
        """The progress of a consumer, or of its group; None if nothing is stored.

        Raises:
            ProgrammingError: the stream or group does not exist.
        """
        with translated():
            found = self._found(stream)
            if group is not None:
                return self._of_group(found, consumer_id, self._group(found, group))
            with _session(self._database, self._user) as session:
                state = within(session, partial(self._store, found, consumer_id)).latest
            return None if state is None else _shown(found, consumer_id, state)

    def set_checkpoint(
        self,
        stream: str,
        consumer_id: str,
        position: After,
        group: str | None = None,
    ) -> None:
        """Make a consumer continue after a position, forward or back; with a group this is its SEEK.

        Args:
            position: an LSN for each partition, or one for all.

        Raises:
            DataError: the position does not match the stream.
            OperationalError: the consumer is following.
        """
        with translated():
            found = self._found(stream)
            lsns = self._lsns(found, position, whole=group is None)
            if group is not None:
                self._seek(found, group, f"AFTER '{position_text(lsns)}'")
                return
            with self._following.alone((found.stream_id, 0, consumer_id), found.name):
                self._change(found, consumer_id, partial(_moved, lsns=lsns))

    def clear_checkpoint(self, stream: str, consumer_id: str, group: str | None = None) -> None:
        """Make a consumer begin again at the first retained event; with a group this is SEEK TO EARLIEST.

        Raises:
            OperationalError: the consumer is following.
        """
        with translated():
            found = self._found(stream)
            if group is not None:
                self._seek(found, group, "EARLIEST")
                return
            with self._following.alone((found.stream_id, 0, consumer_id), found.name):
                self._change(found, consumer_id, ConsumerStore.clear)

    def jobs(self, *, keep: int = KEEP) -> DuckdbBackend:
        """The backend for checkpoints of jobs on sources other than a stream of this database.

        Args:
            keep: the number of newest checkpoints to keep for each job.

        Raises:
            DataError: `keep` is not between 1 and 10,000. The backend itself raises the engine's errors
                (`ducktail.engine.errors`), with the same SQLSTATEs.
        """
        with translated():
            return checkpoints_of_jobs(self._database, keep=keep)

    def close(self) -> None:
        """Stop all follows, store completed work, and open no more; may be called twice."""
        with translated():
            self.end(None)

    def end(self, error: DucktailError | None) -> None:
        """End all follows as `close` does, with an error for their programs."""
        with self._mutex:
            self._closed = self._closed or AdminShutdown("the stream manager is closed")
            followers = [follower for _, follower in self._followed.values()]
        end_all(followers, error)

    def __enter__(self) -> StreamManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Calls of a ReplicationStream.

    def begin(
        self,
        followed: ReplicationStream,
        stream: Stream,
        consumer_id: str,
        group: str | None,
        after: After | None,
        bounds: Bounds,
    ) -> tuple[Follower, Callable[[], None]]:
        """Begin a follow: its follower, and the function to call when it is over."""
        self._check_open()
        check_text("the consumer's name", consumer_id, NAME_BYTES_MAX)
        member_of = None if group is None else self._group(stream, group)
        if member_of is not None and after is not None:
            raise InvalidParameterValue(
                "a member of a consumer group reads behind the group's committed position",
                hint="ALTER CONSUMER GROUP g ON s SEEK, or set_checkpoint, moves that.",
            )
        key = (stream.stream_id, 0 if member_of is None else member_of.group_id, consumer_id)
        self._following.enter(key, stream.name)
        try:
            follower = self._follower(stream, consumer_id, member_of, after, bounds)
        except BaseException:
            self._following.leave(key)
            raise
        with self._mutex:
            self._followed[key] = (followed, follower)
        self._following.began(key, follower)
        return follower, partial(self._ended, key)

    def _ended(self, key: Key) -> None:
        with self._mutex:
            self._followed.pop(key, None)
        self._following.leave(key)

    def _follower(
        self,
        stream: Stream,
        consumer_id: str,
        group: Group | None,
        after: After | None,
        bounds: Bounds,
    ) -> Follower:
        with ExitStack() as opened:
            new = partial(Reads, self._database, stream, self._user, tell=self._tell)
            reads = new(application_name=f"follow {consumer_id}")
            opened.callback(reads.close)
            commits = new(application_name=f"checkpoint {consumer_id}")
            opened.callback(commits.close)
            feed, event_count = self._feed(reads, commits, stream, consumer_id, group, after)
            opened.pop_all()
        return Follower(stream.name, feed, bounds, event_count)

    def _feed(
        self,
        reads: Reads,
        commits: Reads,
        stream: Stream,
        consumer_id: str,
        group: Group | None,
        after: After | None,
    ) -> tuple[Feed, int]:
        if group is not None:
            return GroupFeed(reads, commits, group, consumer_id), 0
        store = within(commits.session, partial(self._store, stream, consumer_id))
        latest = store.latest
        if after is not None:
            position = self._lsns(stream, after, whole=True)
        elif latest is not None:
            position = position_of(latest)
            check_lsns(self._database, stream, position)
        else:
            position = dict.fromkeys(range(stream.partitions), 0)
        feed = StreamFeed(reads, commits, position, store, asked=after is not None)
        return feed, 0 if latest is None else latest.event_count

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _found(self, name: str) -> Stream:
        if not isinstance(name, str):
            raise InvalidParameterValue(f"a stream's name is a text, not {name!r}")
        reader = TokenReader(name, tokenize(name))
        parts = reader.qualified()
        if not reader.at_end:
            raise reader.unexpected()
        with _session(self._database, self._user) as session:
            drive(self._database.standing())
            with session.looking():
                return session.names.stream(parts)

    def _group(self, stream: Stream, name: str) -> Group:
        return find_group(self._database.catalog, stream, name, None)

    def _store(self, stream: Stream, consumer_id: str) -> ConsumerStore:
        backend = checkpoints_of(self._database, stream)
        return ConsumerStore(backend, self._database.clock, consumer_id)

    def _change(self, stream: Stream, consumer_id: str, change: Callable[[ConsumerStore], None]) -> None:
        with _session(self._database, self._user) as session:
            within(session, lambda: change(self._store(stream, consumer_id)))

    def _lsns(self, stream: Stream, position: After, *, whole: bool) -> dict[int, int]:
        """The LSNs of a program's position, checked against the stream."""
        if isinstance(position, int):
            position = dict.fromkeys(range(stream.partitions), position)
        if not isinstance(position, Mapping):
            raise InvalidParameterValue(f"a position is an LSN, or one for each partition, not {position!r}")
        lsns = dict(PartitionLsns(position).lsns)
        drive(self._database.commits.wait_readable())
        check_lsns(self._database, stream, lsns)
        missing = set(range(stream.partitions)) - lsns.keys()
        if whole and missing:
            raise InvalidParameterValue(
                f"the position does not say partition {min(missing)}",
                detail=f'Stream "{stream.name}" has {stream.partitions} partitions, and each is to be named.',
            )
        return lsns

    def _of_group(self, stream: Stream, consumer_id: str, group: Group) -> ConsumerCheckpoint:
        positions = self._database.offsets.positions(group.group_id)
        committed_us = max((place.committed_at_us for place in positions.values()), default=0)
        return ConsumerCheckpoint(
            stream.name,
            consumer_id,
            group.name,
            {partition: positions[partition].lsn for partition in sorted(positions)},
            created_at=_time(committed_us),
        )

    def _seek(self, stream: Stream, group: str, place: str) -> None:
        with _session(self._database, self._user) as session:
            text = (
                f"ALTER CONSUMER GROUP {ident(group)} ON {ident(stream.schema)}.{ident(stream.name)} "
                f"SEEK TO {place}"
            )
            result = drive(session.execute(drive(session.parse(text))))
            while result.fetch(None) is not None:
                pass


@contextmanager
def _session(database: Database, user: str) -> Iterator[Session]:
    """Context with a session, closed at its end."""
    session = Session(database, user=user)
    try:
        yield session
    finally:
        drive(session.close())


def _moved(store: ConsumerStore, lsns: Mapping[int, int]) -> None:
    done = 0 if store.latest is None else store.latest.event_count
    store.save(lsns, done, 0, rewind=True)


def _shown(stream: Stream, consumer_id: str, state: CheckpointState) -> ConsumerCheckpoint:
    return ConsumerCheckpoint(
        stream.name,
        consumer_id,
        None,
        position_of(state),
        state.sequence,
        state.event_count,
        None if state.watermark_ns is None else _time(state.watermark_ns // 1000),
        _time(state.created_us),
    )


def _time(us: int) -> datetime | None:
    return datetime.fromtimestamp(us / 1_000_000, UTC) if us else None


def position_of(state: CheckpointState) -> dict[int, int]:
    """The position in a consumer's checkpoint."""
    assert state.checkpoint is not None and isinstance(state.checkpoint.position, PartitionLsns)
    return dict(state.checkpoint.position.lsns)


# The position after which a follow begins: an LSN for each partition, or one for all.
After = Mapping[int, int] | int


class ReplicationStream:
    """A stream that a program follows in process; made by `StreamManager.open`.

    One follow at a time; each of several consumers has its own ReplicationStream.
    """

    def __init__(self, manager: StreamManager, stream: Stream) -> None:
        self._manager = manager
        self._stream = stream
        self._mutex = threading.Lock()
        self._follower: Follower | None = None
        self._stopped = object()  # replaced by each `stop`

    @property
    def name(self) -> str:
        """The stream's name, as it was when it was opened."""
        return self._stream.name

    @property
    def active(self) -> bool:
        """True while the stream is being followed."""
        return self._follower is not None

    def follow(
        self,
        consumer_id: str,
        group: str | None = None,
        *,
        after: After | None = None,
        batch_size: int = BATCH_SIZE,
        buffer_size: int = BUFFER_SIZE,
        buffer_bytes: int = BUFFER_BYTES,
        checkpoint_every: int | None = CHECKPOINT_EVERY,
    ) -> Generator[Batch]:
        """Yield the stream's events in batches, as they arrive, until `stop`.

        It begins after the consumer's checkpoint; without one, at the first retained event. A batch is done
        once the next one is requested. Completed work is stored before more than `checkpoint_every` events
        would be delivered again, when no event has arrived for a second, and when the follow ends.

        Args:
            consumer_id: the key of the checkpoint; with a group, the member's name.
            group: the consumer group to read as a member of; the checkpoint is its committed position.
            after: begin after this position instead: an LSN for each partition, or one LSN for all. If it is
                before the checkpoint, the first stored checkpoint moves it back.
            batch_size: the maximum number of events in a batch; never more than `checkpoint_every`.
            buffer_size: the maximum number of events read ahead of the program.
            buffer_bytes: the approximate maximum of their bytes.
            checkpoint_every: the maximum number of events delivered again after a crash; None: only
                `checkpoint` stores.

        Raises:
            OperationalError: the next event has been trimmed; 57P01: the database is being closed; 40001: a
                partition was taken from the group's member; 55006: the consumer follows already.
            ProgrammingError: the group does not exist, or the stream has been dropped.
            DataError: an argument is invalid, or a position does not match the stream any more.
        """
        with translated():
            bounds = Bounds(batch_size, buffer_size, buffer_bytes, checkpoint_every)
            begin = partial(self._manager.begin, self, self._stream, consumer_id, group, after, bounds)
        return self._batches(begin, self._stopped)

    def _batches(
        self, begin: Callable[[], tuple[Follower, Callable[[], None]]], stopped: object
    ) -> Generator[Batch]:
        if self._stopped is not stopped:
            return
        with translated():
            with self._mutex:
                if self._follower is not None:
                    raise ObjectInUse(
                        f'stream "{self.name}" is being followed through this object already',
                        hint="Open it once more for another consumer.",
                    )
                follower, ended = begin()
                self._follower = follower
            try:
                if self._stopped is not stopped:
                    follower.stop(None)
                yield from follower.batches()
            finally:
                self._follower = None
                ended()

    def checkpoint(self, batch: Batch | None = None) -> None:
        """Store completed work now; with a batch of this follow, it and all batches before it count as done.

        Raises:
            OperationalError: nothing is being followed; 40001: see `follow`.
        """
        with translated():
            self._followed().checkpoint(batch)

    def pause(self) -> None:
        """Deliver no more batches until `resume`: a program that requests one waits."""
        with translated():
            self._followed().pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        with translated():
            self._followed().resume()

    def stop(self) -> None:
        """End the follow: a program that waits for a batch gets the end of its loop, at once.

        A program that has called `follow` and not requested its first batch also gets the end.
        """
        self._stopped = object()
        follower = self._follower
        if follower is not None:
            follower.stop(None)

    def _followed(self) -> Follower:
        follower = self._follower
        if follower is None:
            raise WrongState(f'stream "{self.name}" is not being followed')
        return follower


def checkpoints_of(
    database: Database,
    stream: Stream,
    group: Group | None = None,
    *,
    keep: int = KEEP,
    report: Report = report_to_log,
) -> DuckdbBackend:
    """The backend for the checkpoints of a stream's consumers, or of one of its groups, with a key for each.

    The checkpoints are dropped with the stream or group; RENAME keeps them.
    """

    def stands() -> bool:
        if database.catalog.stream_by_id(stream.stream_id) is None:
            return False
        groups = database.catalog.groups_of(stream.stream_id)
        return group is None or any(group.group_id == one.group_id for one in groups)

    return DuckdbBackend(
        database.cursor,
        database.checkpoints,
        Scope(stream.stream_id, 0 if group is None else group.group_id),
        keep=keep,
        report=report,
        stands=stands,
        has_fallen=database.has_fallen,
    )


def checkpoints_of_jobs(
    database: Database, *, keep: int = KEEP, report: Report = report_to_log
) -> DuckdbBackend:
    """The backend for the checkpoints of jobs on sources other than a stream of the database."""
    return DuckdbBackend(
        database.cursor,
        database.checkpoints,
        keep=keep,
        report=report,
        has_fallen=database.has_fallen,
    )

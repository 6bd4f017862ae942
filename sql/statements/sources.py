"""Streams with a source: CREATE STREAM ... FROM, PAUSE STREAM, RESUME STREAM, and the tables in ALTER STREAM.

The connectors are the server's: a statement asks them to look at the source, and waits for the answer without
a thread. Source: docs/sources.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...engine.catalog.feeds import PAUSED, POSTGRES, RUNNING, Feed, Selection
from ...engine.catalog.source_tables import SourceTable
from ...engine.catalog.streams import TABLES_MAX, Stream
from ...engine.definitions import feeds, mirrors
from ...engine.definitions.stream_spec import FeedSpec
from ...engine.errors import (
    DucktailError,
    InsufficientPrivilege,
    NotSupported,
    ProgramLimitExceeded,
    SourceUnavailable,
)
from ...engine.groups.feed_activity import Description
from ...engine.quoting import fold
from ...engine.schema import SCHEMA as OURS
from ...engine.table_changes import feed_tables
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Wait, Waiting
from ..language import statements as st
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values
from .runners import runs

# The time that a source has to answer a statement; connecting and each query have shorter ones.
DESCRIBE_S, REMOVE_S = 60.0, 20.0


def described(session: Context, made: st.CreateStream) -> Waiting[FeedSpec]:
    """Look at the source of a new stream.

    Raises:
        NotSupported: no server runs in this process; or an option needs old values that the source does not
            send.
        DucktailError: the connector's error.
    """
    source = made.source
    assert source is not None
    if session.database.cluster.placement.epoch:
        raise NotSupported(
            "a stream with a source is not supported in a cluster",
            hint="Make it on a server of its own, and let readers connect to that.",
        )
    if source.schema is not None or source.publication is not None:
        name = source.schema or source.publication
        assert name is not None
        if len(name.parts) > 1:
            raise NotSupported(f'"{name}" has a qualifier', position=name.position or None)
        kind = "schema" if source.schema is not None else "publication"
        selection = Selection(kind, ((None, name.last),))
    else:
        selection = Selection("tables", tuple(map(_source_name, made.tables)))
    options: dict[str, str | int | None] = {"snapshot": made.options.text("snapshot") or "initial"}
    for option in made.options:
        if option.name in ("slot", "server_id"):
            assert isinstance(option.value, str | int)
            options[option.name] = option.value
    found = yield from _look(session, source.kind, source.address, selection, options)
    if len(found.tables) > TABLES_MAX:
        raise ProgramLimitExceeded(
            f"a stream is on {TABLES_MAX} tables at most, not on {len(found.tables)}",
            hint="Make several streams.",
        )
    by = made.options.names("partition_by") or ()
    _check_partition_by(by, found.tables, made.options.position("partition_by"))
    return FeedSpec(
        source.kind, source.address, found.shown, selection, options, tuple(found.tables), found.identity
    )


def _look(
    session: Context, kind: str, address: str, selection: Selection, options: Mapping[str, str | int | None]
) -> Waiting[Description]:
    """Look at tables of a source."""
    future = session.database.feed_activity.connected().describe(kind, address, selection, options)
    if not (yield Wait(future, DESCRIBE_S)):
        raise SourceUnavailable(f"the source did not answer within {DESCRIBE_S:.0f} s")
    return future.result()


def _source_name(table: st.Name) -> tuple[str | None, str]:
    """Schema (None if it is not written) and name of a table of a source."""
    if len(table.parts) > 2:
        raise NotSupported(f'"{table}" has two qualifiers', position=table.position or None)
    return (table.parts[0] if len(table.parts) > 1 else None, table.last)


def _check_partition_by(
    names: Sequence[str], tables: Sequence[SourceTable], position: int | None = None
) -> None:
    """Refuse partition columns whose old values the source does not send with each change."""
    wanted = {fold(name) for name in names}
    for table in tables:
        for column, sent in zip(table.columns, table.identity, strict=True):
            if fold(column.name) in wanted and not sent:
                raise NotSupported(
                    f'table {table.shown} cannot be partitioned by "{column.name}"',
                    detail="The source does not send its old value when it changes.",
                    hint=f"ALTER TABLE {table.shown} REPLICA IDENTITY FULL there.",
                    position=position,
                )


@runs(st.CreateMirror)
def create_mirror(session: Context, made: st.CreateMirror, parameters: Values) -> Waiting[Result]:
    """CREATE TABLE ... MIRROR OF STREAM."""
    session.block.refuse_within("CREATE TABLE ... MIRROR OF STREAM")
    stream = session.names.stream(made.stream.parts, made.stream.position)
    session.names.refuse_hidden_of(stream)
    key = session.names.made_key(made.name.parts)
    if key[0] == OURS:
        raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')
    if made.if_not_exists and session.names.kind_of(key) is not None:
        session.notices.add(f'relation "{made.name.last}" already exists, skipping', sqlstate="42P07")
        return Result.command(st.tag_of(made))
    source_name = _source_name(made.table)
    name = session.names.new_name(made.name.parts)
    session.names.refuse_hidden(key)
    yield from mirrors.create_mirror(
        session.database,
        session.id,
        session.cursor,
        name,
        stream,
        source_name,
        session.block.lock_timeout_ms,
        session.access.owner,
    )
    session.block.defined()
    return Result.command(st.tag_of(made))


@runs(st.AddSourceTables)
def add_source_tables(session: Context, asked: st.AddSourceTables, parameters: Values) -> Waiting[Result]:
    """ALTER STREAM ... ADD TABLE: tables of its source are described, and copied with the next attempt."""
    stream, feed = _altered(session, asked.name, "ALTER STREAM ... ADD TABLE")
    selection = Selection("tables", tuple(map(_source_name, asked.tables)))
    if feed.selection.kind == "tables":
        # A slot is made by CREATE STREAM: the one that is there is its own.
        options = {name: value for name, value in feed.options.items() if name != "slot"}
        found = yield from _look(session, feed.kind, feed.address, selection, options)
        tables = found.tables
        by = stream.partition_by if stream.several is not None or _is_asked(session, stream) else ()
        _check_partition_by(by, tables)
    else:
        tables = ()  # It is refused, with what it selects.
    yield from feed_tables.add_tables(
        session.database,
        session.id,
        session.cursor,
        stream,
        tables,
        session.block.lock_timeout_ms,
        lambda: session.judge(asked),
    )
    _tell_later(session, stream)
    return Result.command(st.tag_of(asked))


def _is_asked(session: Context, stream: Stream) -> bool:
    """True if a stream on one table is partitioned by columns other than the table's key."""
    (captured,) = session.database.catalog.tables_of(stream)
    return stream.partition_by != captured.shape.primary_key


@runs(st.DropSourceTables)
def drop_source_tables(session: Context, asked: st.DropSourceTables, parameters: Values) -> Waiting[Result]:
    """ALTER STREAM ... DROP TABLE: no changes of tables of its source are stored from here on."""
    stream, feed = _altered(session, asked.name, "ALTER STREAM ... DROP TABLE")
    numbers = dict.fromkeys(
        mirrors.table_of_source(feed, stream, _source_name(name)) for name in asked.tables
    )
    yield from feed_tables.drop_tables(
        session.database,
        session.id,
        session.cursor,
        stream,
        tuple(numbers),
        session.block.lock_timeout_ms,
    )
    return Result.command(st.tag_of(asked))


@runs(st.SnapshotStream)
def snapshot_stream(session: Context, asked: st.SnapshotStream, parameters: Values) -> Waiting[Result]:
    """ALTER STREAM ... SNAPSHOT: the rows of tables of its source are copied again with the next attempt."""
    stream, feed = _altered(session, asked.name, "ALTER STREAM ... SNAPSHOT")
    number = None
    if asked.table is not None:
        number = mirrors.table_of_source(feed, stream, _source_name(asked.table))
    yield from feed_tables.ask_copies(
        session.database,
        session.id,
        session.cursor,
        stream,
        number,
        None if asked.where is None else asked.where.text,
        session.block.lock_timeout_ms,
    )
    _tell_later(session, stream)
    return Result.command(st.tag_of(asked))


def _altered(session: Context, name: st.Name, what: str) -> tuple[Stream, Feed]:
    """The stream whose tables a statement alters, and its feed; outside of a block."""
    session.block.refuse_within(what)
    stream = session.names.stream(name.parts, name.position)
    session.names.refuse_hidden_of(stream)
    return stream, feeds.feed_of(session.database, stream)


def _tell_later(session: Context, stream: Stream) -> None:
    """Say so if nothing is copied before RESUME STREAM."""
    feed = session.database.catalog.feeds.get(stream.stream_id)
    if feed is not None and feed.state != RUNNING:
        session.notices.add(
            f'stream "{stream.name}" is {feed.state}: the rows are copied after RESUME STREAM',
        )


@runs(st.PauseStream)
def pause_stream(session: Context, asked: st.PauseStream, parameters: Values) -> Waiting[Result]:
    """PAUSE STREAM: nothing is read from its source from COMMIT on, until RESUME STREAM."""
    yield from _set_state(session, asked.name, PAUSED)
    return Result.command(st.tag_of(asked))


@runs(st.ResumeStream)
def resume_stream(session: Context, asked: st.ResumeStream, parameters: Values) -> Waiting[Result]:
    """RESUME STREAM: its source is read again, after a pause, a stop, or a fault at once."""
    yield from _set_state(session, asked.name, RUNNING)
    return Result.command(st.tag_of(asked))


def _set_state(session: Context, name: st.Name, state: str) -> Waiting[None]:
    stream = session.names.stream(name.parts, name.position)
    session.names.refuse_hidden_of(stream)
    feeds.feed_of(session.database, stream)

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        feeds.set_state(session.database, transaction, stream.stream_id, state)

    yield from session.block.unit(work)


def remove_at_source(session: Context, feed: Feed) -> Waiting[None]:
    """Remove what a dropped stream has made at its source, or warn that it remains there."""
    sources = session.database.feed_activity.sources
    reason = "no server runs in this process"
    if sources is not None:
        try:
            future = sources.remove(feed)
            if (yield Wait(future, REMOVE_S)):
                future.result()
                return
            reason = f"the source did not answer within {REMOVE_S:.0f} s"
        except DucktailError as error:
            reason = error.message
    if feed.kind == POSTGRES:
        session.notices.add(
            f'replication slot "{feed.slot}" could not be dropped at {feed.shown}: {reason}',
            severity="WARNING",
            hint=f"There: SELECT pg_drop_replication_slot('{feed.slot}'); it retains the log until then.",
        )

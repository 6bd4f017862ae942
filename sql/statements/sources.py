"""Streams with a source: CREATE STREAM ... FROM, PAUSE STREAM and RESUME STREAM.

The connectors are the server's: a statement asks them to look at the source, and waits for the answer without
a thread. Source: docs/sources.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.catalog.feeds import PAUSED, POSTGRES, RUNNING, Feed, Selection
from ...engine.catalog.source_tables import SourceTable
from ...engine.catalog.streams import TABLES_MAX
from ...engine.definitions import feeds, mirrors
from ...engine.definitions.stream_spec import FeedSpec
from ...engine.errors import DucktailError, InsufficientPrivilege, NotSupported, ProgramLimitExceeded
from ...engine.quoting import fold
from ...engine.schema import SCHEMA as OURS
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
        for table in made.tables:
            if len(table.parts) > 2:
                raise NotSupported(f'"{table}" has two qualifiers', position=table.position or None)
        names = ((table.parts[0] if len(table.parts) > 1 else None, table.last) for table in made.tables)
        selection = Selection("tables", tuple(names))
    options: dict[str, str | int | None] = {"snapshot": made.options.text("snapshot") or "initial"}
    for option in made.options:
        if option.name in ("slot", "server_id"):
            assert isinstance(option.value, str | int)
            options[option.name] = option.value
    sources = session.database.feed_activity.connected()
    future = sources.describe(source.kind, source.address, selection, options)
    if not (yield Wait(future, DESCRIBE_S)):
        raise NotSupported(f"the source did not answer within {DESCRIBE_S:.0f} s")
    found = future.result()
    if len(found.tables) > TABLES_MAX:
        raise ProgramLimitExceeded(
            f"a stream is on {TABLES_MAX} tables at most, not on {len(found.tables)}",
            hint="Make several streams.",
        )
    _check_partition_by(made, found.tables)
    return FeedSpec(
        source.kind, source.address, found.shown, selection, options, tuple(found.tables), found.identity
    )


def _check_partition_by(made: st.CreateStream, tables: Sequence[SourceTable]) -> None:
    """Refuse partition columns whose old values the source does not send with each change."""
    wanted = {fold(name) for name in made.options.names("partition_by") or ()}
    for table in tables:
        for column, sent in zip(table.columns, table.identity, strict=True):
            if fold(column.name) in wanted and not sent:
                raise NotSupported(
                    f'table {table.shown} cannot be partitioned by "{column.name}"',
                    detail="The source does not send its old value when it changes.",
                    hint=f"ALTER TABLE {table.shown} REPLICA IDENTITY FULL there.",
                    position=made.options.position("partition_by"),
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
    if len(made.table.parts) > 2:
        raise NotSupported(f'"{made.table}" has two qualifiers', position=made.table.position or None)
    source_name = (made.table.parts[0] if len(made.table.parts) > 1 else None, made.table.last)
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

"""Statements about streams and topics: CREATE, ALTER, COMMENT ON, DROP, CHECK and RESYNC.

Source: docs/streams.md; docs/checks.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ...engine.catalog.streams import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    TABLES_MAX,
    Stream,
)
from ...engine.checks.check import TOLD_MAX, Look
from ...engine.checks.row_sums import ALTERED, OPENED, VERSION
from ...engine.definitions import alter, create, drop
from ...engine.definitions.stream_spec import Keeping, StreamSpec
from ...engine.duck.cursors import ask_maybe
from ...engine.duck.objects import TEMPORARY
from ...engine.errors import (
    InvalidParameterValue,
    InvalidSchemaName,
    NotSupported,
    ProgramLimitExceeded,
    WrongObjectType,
)
from ...engine.quoting import fold, folded_sql
from ...engine.table_changes import resync
from ...engine.waiting import Waiting
from ..cluster import definitions
from ..language import statements as st
from ..language.clauses import COMPACTED, INTERVALS, Options
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.names import Key
from ..session_state.run_text import Values
from . import sources
from .runners import answer, runs

T = TypeVar("T")


@runs(st.CreateStream, in_cluster=definitions.create_stream)
def create_stream(session: Context, made: st.CreateStream, parameters: Values) -> Waiting[Result]:
    """CREATE STREAM."""
    session.block.refuse_within("CREATE STREAM")
    schema, name = session.names.new_name(made.name.parts)
    if made.if_not_exists and session.names.find_stream(made.name.parts) is not None:
        session.notices.add(f'stream "{name}" already exists, skipping', sqlstate="42710")
        return Result.command(st.tag_of(made))
    if made.source is not None:
        feed = yield from sources.described(session, made)
        spec = replace(_spec(made, schema, name, ()), feed=feed, snapshot=str(feed.options["snapshot"]))
        return (yield from _create(session, made, spec))
    keys = [_captured_key(session, table) for table in made.tables]
    twice = next((table for at, table in enumerate(made.tables) if keys[at] in keys[:at]), None)
    if twice is not None:
        raise InvalidParameterValue(f'table "{twice.last}" is named twice', position=twice.position or None)
    if len(keys) > TABLES_MAX:
        raise ProgramLimitExceeded(
            f"a stream is on {TABLES_MAX} tables at most, not on {len(keys)}",
            hint="Make several streams: they share one order of LSNs.",
        )
    spec = _spec(made, schema, name, tuple(keys))
    if made.all_in_schema is not None:
        spec = replace(spec, of_schema=_schema(session, made.all_in_schema))
    return (yield from _create(session, made, spec))


def _create(session: Context, made: st.CreateStream, spec: StreamSpec) -> Waiting[Result]:
    yield from create.create_stream(
        session.database,
        session.id,
        session.cursor,
        spec,
        session.block.lock_timeout_ms,
        session.access.owner,
        lambda: session.judge(made),
    )
    return Result.command(st.tag_of(made))


def _schema(session: Context, name: st.Name) -> str:
    """The schema of ALL TABLES IN SCHEMA, with its stored spelling."""
    parts = name.parts
    if len(parts) > 2 or (len(parts) == 2 and fold(parts[0]) != fold(session.database.catalog_name)):
        raise NotSupported(
            f'cross-database references are not supported: "{name}"', position=name.position or None
        )
    found = ask_maybe(
        session.meta,
        "SELECT schema_name FROM system.main.duckdb_schemas() "
        f"WHERE database_name = $1 AND {folded_sql('schema_name')} = $2",
        [session.database.catalog_name, fold(name.last)],
    )
    if found is None:
        raise InvalidSchemaName(f'schema "{name.last}" does not exist', position=name.position or None)
    if found[0] in ("ducktail", "information_schema", "pg_catalog"):
        raise NotSupported(
            f'a stream on schema "{found[0]}" is not supported', position=name.position or None
        )
    return str(found[0])


def _captured_key(session: Context, table: st.Name) -> Key:
    """Schema and name, in small letters, of the table of a new stream."""
    key = session.names.table_key(table.parts)
    if key[0] == TEMPORARY:
        raise NotSupported(f'a stream on temporary table "{table.last}" is not supported')
    if key[0] == "ducktail":
        raise NotSupported('a stream on schema "ducktail" is not supported')
    session.names.refuse_hidden(key)
    if session.names.find_stream(table.parts) is not None:
        raise NotSupported(
            f'"{table.last}" is a stream, and a stream is made on a table',
            hint="CREATE CONSUMER GROUP ... ON it reads it a second time.",
        )
    return key


@runs(st.CreateTopic, in_cluster=definitions.create_topic)
def create_topic(session: Context, made: st.CreateTopic, parameters: Values) -> Waiting[Result]:
    """CREATE TOPIC."""
    session.block.refuse_within("CREATE TOPIC")
    schema, name = session.names.new_name(made.name.parts)
    known = session.names.find_stream(made.name.parts)
    if made.if_not_exists and known is not None and known.topic:
        session.notices.add(f'topic "{name}" already exists, skipping', sqlstate="42710")
        return Result.command(st.tag_of(made))
    options = made.options
    _refuse_compaction(session, options)
    spec = create.TopicSpec(
        schema,
        name,
        options.integer("partitions") or DEFAULT_PARTITIONS_WITH_KEY,
        _keeping(options),
        None if session.part is None else session.part.uid,
        session.part is not None and session.part.fresh,
    )
    yield from create.create_topic(
        session.database,
        session.id,
        session.cursor,
        spec,
        session.block.lock_timeout_ms,
        owner_of_made(session),
    )
    if session.part is not None:
        session.database.cluster.owe(session.part.without)
    return Result.command(st.tag_of(made))


def _refuse_compaction(session: Context, options: Options) -> None:
    """Refuse compaction of a topic in a cluster, whose partitions move with their events; it can be ended."""
    ends = options.text("compaction") == "none"
    given = [o for o in options if o.name in COMPACTED or (o.name == "compaction" and not ends)]
    if given and session.database.cluster.placement.epoch:
        raise NotSupported(
            f'option "{given[0].name}" of a topic is not supported in a cluster',
            hint="A stream on a table can be compacted there.",
            position=given[0].position or None,
        )


def owner_of_made(session: Context) -> str | None:
    """The owner of a new topic or group: the session's user, or the user that another node sends."""
    told = None if session.part is None else session.part.owner
    return told or session.access.owner


def _spec(made: st.CreateStream, schema: str, name: str, tables: tuple[Key, ...]) -> StreamSpec:
    options = made.options
    return StreamSpec(
        schema=schema,
        name=name,
        tables=tables,
        columns=made.columns,
        operations=frozenset(made.operations),
        filter=made.where.text if made.where is not None else None,
        partitions=options.integer("partitions"),
        partition_by=options.names("partition_by"),
        snapshot=options.text("snapshot") or "none",
        before=options.text("before") or "full",
        minimal_changes=options.text("minimal_changes") or "replace",
        keeping=_keeping(options),
    )


def _keeping(options: Options) -> Keeping:
    return Keeping(
        options.integer("buffer_bytes") or DEFAULT_BUFFER_BYTES,
        _retention_us(options),
        options.integer("retention_bytes"),
        options.text("compaction") or "none",
        _us(options, "compaction_lag", DEFAULT_COMPACTION_LAG_US),
        _us(options, "tombstone_retention", DEFAULT_TOMBSTONE_RETENTION_US),
    )


def _us(options: Options, name: str, default: T) -> int | T:
    """An option that is an interval, in microseconds; the default if it is absent or 'none'."""
    length_ms = options.integer(name)
    return default if length_ms is None else length_ms * 1000


def _retention_us(options: Options) -> int | None:
    """The option retention in microseconds; None for 'none'."""
    return _us(options, "retention", None) if "retention" in options else DEFAULT_RETENTION_US


def _of_kind(session: Context, name: st.Name, *, topic: bool) -> Stream:
    """The stream or the topic of this name."""
    stream = session.names.stream(name.parts, name.position, _word(topic).lower())
    if stream.topic != topic:
        raise WrongObjectType(
            f'"{name}" is not a {"topic" if topic else "stream"}',
            hint=f"It is a {stream.kind}: say {stream.kind.upper()}.",
            position=name.position or None,
        )
    session.names.refuse_hidden_of(stream)
    return stream


def _word(topic: bool) -> str:
    return "TOPIC" if topic else "STREAM"


@runs(st.SetStream)
@runs(st.SetTopic, in_cluster=definitions.change_topic)
def set_stream(session: Context, asked: st.SetStream, parameters: Values) -> Waiting[Result]:
    """ALTER { STREAM | TOPIC } ... SET (option = value)."""
    session.block.refuse_within(st.tag_of(asked))
    stream = _of_kind(session, asked.name, topic=asked.topic)
    if asked.topic:
        _refuse_compaction(session, asked.options)
    values: dict[str, int | str | None] = {}
    for option in asked.options:
        if option.name == "compaction":
            values[option.name] = asked.options.text(option.name)
        elif option.name in INTERVALS:
            values[f"{option.name}_us"] = _us(asked.options, option.name, None)
        else:
            values[option.name] = asked.options.integer(option.name)
    yield from alter.set_stream(
        session.database, session.id, session.cursor, stream, values, session.block.lock_timeout_ms
    )
    return Result.command(st.tag_of(asked))


@runs(st.CommentOnStream)
@runs(st.CommentOnTopic, in_cluster=definitions.change_topic)
def comment_on_stream(session: Context, asked: st.CommentOnStream, parameters: Values) -> Waiting[Result]:
    """COMMENT ON { STREAM | TOPIC } ... IS."""
    session.block.refuse_within(f"COMMENT ON {_word(asked.topic)}")
    stream = _of_kind(session, asked.name, topic=asked.topic)
    yield from alter.comment_on_stream(
        session.database, session.id, session.cursor, stream, asked.text, session.block.lock_timeout_ms
    )
    return Result.command(st.tag_of(asked))


@runs(st.RenameStream, in_cluster=definitions.rename_stream)
@runs(st.RenameTopic, in_cluster=definitions.change_topic)
def rename_stream(session: Context, asked: st.RenameStream, parameters: Values) -> Waiting[Result]:
    """ALTER { STREAM | TOPIC } ... RENAME TO."""
    session.block.refuse_within(st.tag_of(asked))
    stream = _of_kind(session, asked.name, topic=asked.topic)
    yield from alter.rename_stream(
        session.database, session.id, session.cursor, stream, asked.new, session.block.lock_timeout_ms
    )
    return Result.command(st.tag_of(asked))


@runs(st.DropStream)
@runs(st.DropTopic, in_cluster=definitions.drop_topic)
def drop_stream(session: Context, dropped: st.DropStream, parameters: Values) -> Waiting[Result]:
    """DROP { STREAM | TOPIC }."""
    word = _word(dropped.topic)
    session.block.refuse_within(f"DROP {word}")
    stream = session.names.find_stream(dropped.name.parts)
    if stream is None and dropped.if_exists:
        session.notices.add(f'{word.lower()} "{dropped.name}" does not exist, skipping')
        return Result.command(st.tag_of(dropped))
    stream = _of_kind(session, dropped.name, topic=dropped.topic)
    feed = session.database.catalog.feeds.get(stream.stream_id)
    yield from drop.drop_stream(
        session.database, session.id, session.cursor, stream, dropped.cascade, session.block.lock_timeout_ms
    )
    if feed is not None:
        yield from sources.remove_at_source(session, feed)
    return Result.command(st.tag_of(dropped))


DIFFERENCE_COLUMNS = (
    ("difference", "VARCHAR"),
    ("key", "JSON"),
    ("lsn", "BIGINT"),
    ("expected", "JSON"),
    ("found", "JSON"),
    ("detail", "VARCHAR"),
    ("table_name", "VARCHAR"),
)


@runs(st.CheckStream, DIFFERENCE_COLUMNS)
def check_stream(session: Context, asked: st.CheckStream, parameters: Values) -> Waiting[Result]:
    """CHECK STREAM: one row for each difference between a stream and its table."""
    session.block.refuse_within("CHECK STREAM")
    stream = _on_table(session, asked.stream, "CHECK STREAM")
    looks = yield from resync.check_stream(
        session.database, session.id, session.cursor, stream, session.block.lock_timeout_ms
    )
    rows: list[list[object]] = []
    for look in looks:
        _tell(session, look)
        rows += [
            [one.kind, one.key, one.lsn, one.expected, one.found, one.detail, look.table] for one in look.told
        ]
    return answer(asked, rows)


@runs(st.ResyncStream)
def resync_stream(session: Context, asked: st.ResyncStream, parameters: Values) -> Waiting[Result]:
    """ALTER STREAM ... RESYNC: turns the differences between a stream and its table into events."""
    session.block.refuse_within("ALTER STREAM ... RESYNC")
    stream = _on_table(session, asked.name, "ALTER STREAM ... RESYNC")
    mended = yield from resync.resync_stream(
        session.database, session.id, session.cursor, stream, session.block.lock_timeout_ms
    )
    session.notices.add(f'{mended.events} events put right what differed from stream "{stream.name}"')
    if mended.again:
        session.notices.add(
            f"{mended.again} rows without retained events are given again, as snapshot events",
            detail="Some of them differed, and which cannot be told; no more can those that are gone, or "
            "that a filter lets pass no longer.",
        )
    if mended.gone:
        session.notices.add(
            f"at least {mended.gone} rows without retained events are gone and cannot be named",
            severity="WARNING",
            hint="A copy that is kept of the table has to be made again, or to be held against the table.",
        )
    return Result.command(st.tag_of(asked))


def _on_table(session: Context, name: st.Name, what: str) -> Stream:
    """The stream of this name."""
    stream = session.names.stream(name.parts, name.position)
    if stream.topic:
        raise WrongObjectType(
            f'"{name}" is a topic, and {what} wants a stream on a table',
            hint="A topic has no table that it could differ from.",
            position=name.position or None,
        )
    session.names.refuse_hidden_of(stream)
    session.database.refuse_lost(stream)
    feed = session.database.catalog.feeds.get(stream.stream_id)
    if feed is not None and not feed.copies:
        raise NotSupported(
            f'{what} is not supported for stream "{name}"',
            detail="It has a source, of which not all rows are known (snapshot = 'none').",
        )
    return stream


def _tell(session: Context, look: Look) -> None:
    """Add a notice with the extent of the comparison."""
    if "table" in look.counts:
        return  # The stream has no log yet.
    if look.kept is None:
        session.notices.add(
            f"the row-hash sum of {look.table} is not known: only keys with retained events were looked at",
            severity="WARNING",
        )
    else:
        session.notices.add(
            f"{look.table} was held against its log and the row-hash sum taken at {look.kept.taken_at}",
            detail=SINCE.get(look.kept.reason),
        )
    found = sum(look.counts.values())
    if found > TOLD_MAX:
        session.notices.add(f"the first {TOLD_MAX} of {found} differences are told")


SINCE = {
    OPENED: "It was taken when a ducktail that keeps such sums first opened the database: of what was "
    "written past an older one only keys with retained events tell.",
    ALTERED: "It was taken anew when the table got another column: of what was written past ducktail before "
    "that only keys with retained events tell.",
    VERSION: "It was taken anew as another version of DuckDB, or of ducktail, hashes otherwise: of what was "
    "written past ducktail before that only keys with retained events tell.",
}

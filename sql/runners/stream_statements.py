"""CREATE and DROP of streams, DESCRIBE and SHOW of streams and groups. Source: docs/streams.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ...engine.asking import ask_maybe
from ...engine.checks.checking import UNLIKE_COLUMNS
from ...engine.definitions import alterations, definitions, dropping, topic_definitions
from ...engine.errors import (
    ActiveTransaction,
    DucktailError,
    InvalidParameterValue,
    InvalidSchemaName,
    NotSupported,
    ProgramLimitExceeded,
    WrongObjectType,
)
from ...engine.log.event_rows import ARROW_TYPES as EVENT_TYPES_OF_ARROW
from ...engine.log.log import EVENT_COLUMNS
from ...engine.rights import rights
from ...engine.schema import LIVE_VIEWS
from ...engine.streams.streams import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    TABLES_MAX,
    Stream,
)
from ...engine.waiting import Waiting
from ..arguments import Values, text
from ..context import Context
from ..language import statements as st
from ..language import statements_other as sto
from ..language.options import COMPACTED, INTERVALS, Options
from ..language.render import render_statement
from ..names import TEMPORARY, Key
from ..peers.owners import Owners
from ..peers.part import Part
from ..results.results import Result, ResultColumn, table_result
from ..running import text_rows
from ..spread.gathering import away
from ..spread.listing import checkpoints_of, everywhere
from ..spread.naming import check_not_making
from ..spread.shares import Row, ask_all, check_held, in_cluster, own_share, rows_of, spread
from .show_create import CREATE_COLUMNS


def no_transaction(session: Context, what: str) -> None:
    """Refuse what makes its own transaction inside a block, which could not take it back.

    Raises:
        ActiveTransaction: 25001.
    """
    if session.block.begun:
        raise ActiveTransaction(
            f"{what} cannot run inside a transaction block",
            hint="Run it by itself, in autocommit.",
        )


def create_stream(session: Context, made: st.CreateStream, parameters: Values) -> Waiting[Result]:
    """CREATE STREAM."""
    no_transaction(session, "CREATE STREAM")
    schema, name = session.names.new_name(made.name.parts)
    if made.if_not_exists and session.names.find_stream(made.name.parts) is not None:
        session.notices.add(f'stream "{name}" already exists, skipping', sqlstate="42710")
        return Result.command("CREATE STREAM")
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
    yield from definitions.create_stream(
        session.database,
        session.id,
        session.cursor,
        spec,
        session.block.lock_timeout_ms,
        session.access.owner,
    )
    return Result.command("CREATE STREAM")


def _schema(session: Context, name: st.Name) -> str:
    """The schema of ALL TABLES IN SCHEMA, as it is spelled.

    Raises:
        NotSupported: 0A000, it is another database's, or none of a user's. InvalidSchemaName: 3F000.
    """
    parts = name.parts
    if len(parts) > 2 or (len(parts) == 2 and parts[0].lower() != session.database.catalog_name.lower()):
        raise NotSupported(
            f'cross-database references are not supported: "{name}"', position=name.position or None
        )
    found = ask_maybe(
        session.meta,
        "SELECT schema_name FROM duckdb_schemas() "
        "WHERE database_name = $1 AND lower(schema_name) = lower($2)",
        [session.database.catalog_name, name.last],
    )
    if found is None:
        raise InvalidSchemaName(f'schema "{name.last}" does not exist', position=name.position or None)
    if found[0] in ("ducktail", "information_schema", "pg_catalog"):
        raise NotSupported(
            f'a stream on schema "{found[0]}" is not supported', position=name.position or None
        )
    return str(found[0])


def _captured_key(session: Context, table: st.Name) -> Key:
    """Schema and name, in small letters, of a table that a stream is to be on.

    Raises:
        NotSupported: 0A000, it is no table of the database that can have one.
    """
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


def create_topic(session: Context, made: st.CreateTopic, parameters: Values) -> Waiting[Result]:
    """CREATE TOPIC."""
    no_transaction(session, "CREATE TOPIC")
    schema, name = session.names.new_name(made.name.parts)
    known = session.names.find_stream(made.name.parts)
    if made.if_not_exists and known is not None and known.topic:
        session.notices.add(f'topic "{name}" already exists, skipping', sqlstate="42710")
        return Result.command("CREATE TOPIC")
    options = made.options
    _refuse_compaction(session, options)
    spec = topic_definitions.TopicSpec(
        schema,
        name,
        options.integer("partitions") or DEFAULT_PARTITIONS_WITH_KEY,
        options.integer("buffer_bytes") or DEFAULT_BUFFER_BYTES,
        _retention_us(options) if "retention" in options else DEFAULT_RETENTION_US,
        options.integer("retention_bytes"),
        options.text("compaction") or "none",
        _us(options, "compaction_lag", DEFAULT_COMPACTION_LAG_US),
        _us(options, "tombstone_retention", DEFAULT_TOMBSTONE_RETENTION_US),
        None if session.part is None else session.part.uid,
        session.part is not None and session.part.fresh,
    )
    yield from topic_definitions.create_topic(
        session.database,
        session.id,
        session.cursor,
        spec,
        session.block.lock_timeout_ms,
        owner_of_made(session),
    )
    return Result.command("CREATE TOPIC")


def _refuse_compaction(session: Context, options: Options) -> None:
    """Of a topic in a cluster: its partitions move with their events. One from before may end it.

    Raises:
        NotSupported: 0A000.
    """
    ends = options.text("compaction") == "none"
    given = [o for o in options if o.name in COMPACTED or (o.name == "compaction" and not ends)]
    if given and session.database.cluster.placement.epoch:
        raise NotSupported(
            f'option "{given[0].name}" of a topic is not supported in a cluster',
            hint="A stream on a table can be compacted there.",
            position=given[0].position or None,
        )


def owner_of_made(session: Context) -> str | None:
    """Whose a topic or a group is that a session makes: its user's, or what another node has told."""
    told = None if session.part is None else session.part.owner
    return told or session.access.owner


def _spec(made: st.CreateStream, schema: str, name: str, tables: tuple[Key, ...]) -> definitions.StreamSpec:
    options = made.options
    return definitions.StreamSpec(
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
        buffer_bytes=options.integer("buffer_bytes") or DEFAULT_BUFFER_BYTES,
        retention_us=_retention_us(options) if "retention" in options else DEFAULT_RETENTION_US,
        retention_bytes=options.integer("retention_bytes"),
        compaction=options.text("compaction") or "none",
        compaction_lag_us=_us(options, "compaction_lag", DEFAULT_COMPACTION_LAG_US),
        tombstone_retention_us=_us(options, "tombstone_retention", DEFAULT_TOMBSTONE_RETENTION_US),
    )


def _us(options: Options, name: str, default: int) -> int:
    """An option that is an interval, in microseconds."""
    length_ms = options.integer(name)
    return default if length_ms is None else length_ms * 1000


def _retention_us(options: Options) -> int | None:
    """The option retention in microseconds; None is 'none'."""
    length_ms = options.integer("retention")
    return None if length_ms is None else length_ms * 1000


def _of_kind(session: Context, name: st.Name, *, topic: bool) -> Stream:
    """The stream or the topic of this name.

    Raises:
        UndefinedObject: 42704, there is none. WrongObjectType: 42809, it is the other, or a table.
    """
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


def set_stream(session: Context, asked: st.SetStream, parameters: Values) -> Waiting[Result]:
    """ALTER { STREAM | TOPIC } ... SET (option = value)."""
    tag = f"ALTER {_word(asked.topic)}"
    no_transaction(session, tag)
    stream = _of_kind(session, asked.name, topic=asked.topic)
    if asked.topic:
        _refuse_compaction(session, asked.options)
    values: dict[str, int | str | None] = {}
    for option in asked.options:
        if option.name == "compaction":
            values[option.name] = asked.options.text(option.name)
        elif option.name in INTERVALS:
            length_ms = asked.options.integer(option.name)
            values[f"{option.name}_us"] = None if length_ms is None else length_ms * 1000
        else:
            values[option.name] = asked.options.integer(option.name)
    yield from alterations.set_stream(
        session.database, session.id, session.cursor, stream, values, session.block.lock_timeout_ms
    )
    return Result.command(tag)


def comment_on_stream(session: Context, asked: st.CommentOnStream, parameters: Values) -> Waiting[Result]:
    """COMMENT ON { STREAM | TOPIC } ... IS."""
    no_transaction(session, f"COMMENT ON {_word(asked.topic)}")
    stream = _of_kind(session, asked.name, topic=asked.topic)
    yield from alterations.comment_on_stream(
        session.database, session.id, session.cursor, stream, asked.text, session.block.lock_timeout_ms
    )
    return Result.command("COMMENT")


def rename_stream(session: Context, asked: st.RenameStream, parameters: Values) -> Waiting[Result]:
    """ALTER { STREAM | TOPIC } ... RENAME TO."""
    tag = f"ALTER {_word(asked.topic)}"
    no_transaction(session, tag)
    stream = _of_kind(session, asked.name, topic=asked.topic)
    yield from alterations.rename_stream(
        session.database, session.id, session.cursor, stream, asked.new, session.block.lock_timeout_ms
    )
    return Result.command(tag)


def drop_stream(session: Context, dropped: st.DropStream, parameters: Values) -> Waiting[Result]:
    """DROP { STREAM | TOPIC }."""
    word = _word(dropped.topic)
    no_transaction(session, f"DROP {word}")
    stream = session.names.find_stream(dropped.name.parts)
    if stream is None and dropped.if_exists:
        session.notices.add(f'{word.lower()} "{dropped.name}" does not exist, skipping')
        return Result.command(f"DROP {word}")
    stream = _of_kind(session, dropped.name, topic=dropped.topic)
    yield from dropping.drop_stream(
        session.database, session.id, session.cursor, stream, dropped.cascade, session.block.lock_timeout_ms
    )
    return Result.command(f"DROP {word}")


# SHOW and DESCRIBE.


@dataclass(frozen=True, slots=True)
class Shown:
    """What a SHOW answers: columns of a system view, for one stream and perhaps one group.

    Args:
        where: a condition of its own.
    """

    view: str
    columns: tuple[str, ...]
    tag: str
    where: str = ""


SHOWN: dict[type, Shown] = {
    st.ShowStreams: Shown(
        "streams",
        (
            "schema_name",
            "stream_name",
            "table_name",
            "operations",
            "partitions",
            "events",
            "end_lsn",
            "comment",
        ),
        "SHOW STREAMS",
        "table_name IS NOT NULL",
    ),
    st.ShowPartitions: Shown(
        "partitions",
        (
            "partition",
            "first_lsn",
            "last_lsn",
            "events",
            "bytes",
            "buffered_from_lsn",
            "trimmed_events",
            "trimmed_through_lsn",
            "owner",
            "epoch",
            "owner_host",
            "owner_port",
        ),
        "SHOW PARTITIONS",
    ),
    st.ShowGroups: Shown(
        "consumer_groups",
        (
            "schema_name",
            "stream_name",
            "group_name",
            "start",
            "on_gap",
            "session_timeout",
            "created_at",
            "lag_events",
            "members",
        ),
        "SHOW CONSUMER GROUPS",
    ),
    st.ShowOffsets: Shown(
        "offsets",
        (
            "partition",
            "committed_lsn",
            "end_lsn",
            "lag_events",
            "lag_seconds",
            "lag_bytes",
            "headroom_events",
            "headroom_seconds",
            "trimmed_unread",
            "committed_at",
            "committed_by",
            "member",
        ),
        "SHOW OFFSETS",
    ),
    st.ShowMembers: Shown(
        "members",
        (
            "member_name",
            "epoch",
            "partitions",
            "state",
            "lag_events",
            "joined_at",
            "last_heartbeat",
            "last_read_at",
            "last_commit_at",
            "user_name",
        ),
        "SHOW MEMBERS",
    ),
    st.ShowParked: Shown(
        "parked",
        (
            "partition",
            "lsn",
            "state",
            "key",
            "behind",
            "reason",
            "parked_at",
            "parked_by",
            "op",
            "before",
            "after",
            "commit_time",
            "txid",
        ),
        "SHOW PARKED",
    ),
    sto.ShowBookmarks: Shown(
        "bookmarks",
        (
            "schema_name",
            "stream_name",
            "bookmark_name",
            "position",
            "whole",
            "events",
            "trimmed_events",
            "trimmed",
            "created_at",
            "created_by",
        ),
        "SHOW BOOKMARKS",
    ),
    sto.ShowNodes: Shown("nodes", ("node", "host", "port", "local", "epoch", "connected"), "SHOW NODES"),
    sto.ShowPlacement: Shown(
        "placement", ("cluster", "epoch", "topics", "node", "local", "partitions", "places"), "SHOW PLACEMENT"
    ),
    sto.ShowCheckpoints: Shown(
        "checkpoints",
        (
            "schema_name",
            "stream_name",
            "consumer_name",
            "group_name",
            "position_type",
            "position",
            "sequence",
            "watermark",
            "event_count",
            "age_seconds",
        ),
        "SHOW CHECKPOINTS",
    ),
}
TOPICS = Shown(
    "streams",
    ("schema_name", "stream_name", "partitions", "retention", "events", "bytes", "end_lsn", "comment"),
    "SHOW TOPICS",
    "table_name IS NULL",
)
POSITION_COLUMNS = (("position", "JSON"),)
SEEK_COLUMNS = (
    ("partition", "INTEGER"),
    ("from_lsn", "BIGINT"),
    ("to_lsn", "BIGINT"),
    ("events_again", "BIGINT"),
    ("events_skipped", "BIGINT"),
)
INSTALLED_COLUMNS = (("node", "VARCHAR"), ("epoch", "BIGINT"), ("moves", "BIGINT"), ("new", "BOOLEAN"))
DESCRIBE_COLUMNS = (("property", "VARCHAR"), ("value", "VARCHAR"))


def _shown(statement: st.Statement) -> Shown | None:
    if isinstance(statement, st.ShowStreams) and statement.topics:
        return TOPICS
    return SHOWN.get(type(statement))


def shown_columns(statement: st.Statement, session: Context) -> tuple[ResultColumn, ...] | None:
    """The columns that one of our statements answers with, None without rows."""
    shown = _shown(statement)
    if shown is not None:
        types = dict(LIVE_VIEWS[shown.view])
        named = tuple(ResultColumn(name, types[name]) for name in shown.columns)
        return (*named, ResultColumn("node", "VARCHAR")) if _of_all_nodes(session, statement) else named
    own: dict[type, tuple[tuple[str, str], ...]] = {
        st.ShowReadPosition: POSITION_COLUMNS,
        st.DescribeStream: DESCRIBE_COLUMNS,
        st.ShowCreateStream: CREATE_COLUMNS,
        st.ShowChanges: EVENT_COLUMNS,
        st.CheckStream: UNLIKE_COLUMNS,
        st.DescribeGroup: DESCRIBE_COLUMNS,
        st.SeekGroup: SEEK_COLUMNS,
        sto.InstallPlacement: INSTALLED_COLUMNS,
    }
    columns = own.get(type(statement))
    return None if columns is None else tuple(ResultColumn(*column) for column in columns)


def show(session: Context, asked: st.Statement, parameters: Values) -> Waiting[Result]:
    """SHOW STREAMS, TOPICS, PARTITIONS, GROUPS, OFFSETS, MEMBERS, PARKED, BOOKMARKS, CHECKPOINTS, NODES,
    PLACEMENT: rows of the views."""
    shown, columns = _shown(asked), shown_columns(asked, session)
    assert shown is not None and columns is not None
    if _of_all_nodes(session, asked):
        rows = yield from everywhere(session, asked, lambda: _own_rows(session, asked))
        return table_result(columns, _table(columns, rows), lambda _: shown.tag)
    where = [shown.where] if shown.where else []
    values: list[object] = []
    stream = _stream_of(session, asked)
    if stream is not None:
        where += ["schema_name = $1", "stream_name = $2"]
        values += [stream.schema, stream.name]
    if isinstance(asked, st.ShowOffsets | st.ShowMembers | st.ShowParked):
        assert stream is not None
        group = session.access.group(stream, text(asked.group, parameters), None, use=False)
        where.append("group_name = $3")
        values.append(group.name)
    if isinstance(asked, st.ShowStreams) and asked.like is not None:
        where.append("stream_name ILIKE $1")
        values.append(asked.like)
    owners = None if stream is None else spread(session, stream)
    if stream is not None and owners is not None and isinstance(asked, GATHERED):
        return (yield from _shown_by_all(session, asked, stream, owners))
    if stream is not None and owners is not None and isinstance(asked, sto.ShowCheckpoints):
        answers = yield from _asked_all(session, asked, stream, owners)
        return table_result(columns, _table(columns, checkpoints_of(answers, owners)), lambda _: shown.tag)
    if stream is not None and isinstance(asked, GATHERED):
        check_held(session, stream)
    yield from session.database.commits.wait_readable()
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    sql = f"SELECT {', '.join(shown.columns)} FROM ducktail.{shown.view}{condition}"
    table = session.meta.sql(sql, params=values or None).to_arrow_table()
    return table_result(columns, table, lambda _: shown.tag)


def _of_all_nodes(session: Context, asked: st.Statement) -> bool:
    """Whether it lists what all nodes of the cluster have."""
    listing = isinstance(asked, st.ShowStreams) or (isinstance(asked, st.ShowGroups) and asked.stream is None)
    return listing and in_cluster(session)


def _own_rows(session: Context, asked: st.Statement) -> Waiting[list[Row]]:
    return rows_of((yield from show(session, asked, ())))


def few_rows(columns: Sequence[ResultColumn], rows: Sequence[Row], tag: str) -> Result:
    """A result of rows that came from several nodes; they are few."""
    return table_result(columns, _table(columns, rows), lambda _: tag)


def _table(columns: Sequence[ResultColumn], rows: Sequence[Row]) -> pa.Table:
    """Rows of several nodes as one table."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(list(v), ARROW_TYPES[c.type]) for c, v in zip(columns, values, strict=True)]
    return pa.Table.from_arrays(arrays, [column.name for column in columns])


ARROW_TYPES = {**EVENT_TYPES_OF_ARROW, "DOUBLE": pa.float64(), "INTEGER[]": pa.list_(pa.int32())}
# What each owner shows of its own partitions.
GATHERED = (st.ShowPartitions, st.ShowOffsets, st.ShowParked)


def _asked_all(
    session: Context, asked: st.Statement, stream: Stream, owners: Owners
) -> Waiting[dict[str, list[Row]]]:
    """Node -> what it shows, of all that own partitions of a topic.

    Raises:
        DucktailError: an owner's, with its partitions.
    """
    whole = replace(asked, stream=st.Name((stream.schema, stream.name)))  # type: ignore[call-arg]
    if isinstance(whole, st.ShowOffsets | st.ShowParked):
        whole = replace(whole, group=str(whole.group))
    part = Part(owners.epoch)
    texts = {node: (part.text(render_statement(whole)), ()) for node in owners.remote}
    answers = yield from ask_all(session, texts, again=True)
    if owners.local in owners.partitions:
        with own_share(session, part):
            answers[owners.local] = rows_of((yield from show(session, whole, ())))
    found: dict[str, list[Row]] = {}
    for node, answer in answers.items():
        if isinstance(answer, DucktailError):
            raise away(stream.name, node, owners.partitions[node], answer) from answer
        if isinstance(answer, Exception):
            raise answer
        found[node] = answer
    return found


def _shown_by_all(session: Context, asked: st.Statement, stream: Stream, owners: Owners) -> Waiting[Result]:
    """What the owners of a topic's partitions show of them, in their order."""
    shown, columns = _shown(asked), shown_columns(asked, session)
    assert shown is not None and columns is not None
    answers = yield from _asked_all(session, asked, stream, owners)
    place = shown.columns.index("partition")
    rows = [row for node, own in answers.items() for row in own if row[place] in owners.partitions[node]]
    rows.sort(key=lambda row: int(str(row[place])))
    return table_result(columns, _table(columns, rows), lambda _: shown.tag)


def _stream_of(session: Context, asked: st.Statement) -> Stream | None:
    name: st.Name | None = getattr(asked, "stream", None)
    return None if name is None else session.names.stream(name.parts, name.position)


def describe_stream(session: Context, asked: st.DescribeStream, parameters: Values) -> Waiting[Result]:
    """DESCRIBE STREAM: its definition, a property a row."""
    check_not_making(session, asked.stream)
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    yield from session.database.commits.wait_readable()
    names = [name for name, _ in LIVE_VIEWS["streams"]]
    row = ask_maybe(
        session.meta,
        f"SELECT {', '.join(f'{name}::VARCHAR' for name in names)} FROM ducktail.streams "
        "WHERE schema_name = $1 AND stream_name = $2",
        [stream.schema, stream.name],
    )
    assert row is not None
    all_groups = session.database.catalog.groups_of(stream.stream_id)
    group_names = [g.name for g in all_groups if session.access.sees_group(stream, g)]
    rows: list[list[object]] = [[name, value] for name, value in zip(names, row, strict=True)]
    rows.append(["consumer_groups", ", ".join(sorted(group_names)) or None])
    rows.append(["event_columns", ", ".join(f"{name} {type_}" for name, type_ in EVENT_COLUMNS)])
    if session.part is not None:
        kept_us = stream.retention_us
        rows.append(["retention_us", None if kept_us is None else str(kept_us)])
        item = rights.relation(stream.schema, stream.name)
        rows.append(["owner", session.database.rights.owners.get(item)])
    return text_rows(DESCRIBE_COLUMNS, rows, "DESCRIBE STREAM")

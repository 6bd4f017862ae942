"""SHOW CREATE STREAM: the statement that makes a stream or a topic again. Source: docs/sql.md.

SHOW and DESCRIBE STREAM: rows of the system views; of a cluster, from all nodes that have some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.catalog import rights
from ...engine.catalog.streams import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    OPERATIONS,
    Stream,
)
from ...engine.checks.check import UNLIKE_COLUMNS
from ...engine.duck.queries import ask_maybe
from ...engine.duck.table_shape import TableShape
from ...engine.log.log import EVENT_COLUMNS
from ...engine.schema import LIVE_VIEWS
from ...engine.waiting import Waiting
from ..cluster import listing
from ..cluster.definitions import check_not_making
from ..cluster.shares import check_held
from ..language import statements as st
from ..language import statements as sto
from ..language.options import Option, Options, Value
from ..language.render import render_statement
from ..results.results import Result, ResultColumn, table_result
from ..session_state.context import Context
from ..session_state.run_text import Values, text, text_rows

CREATE_COLUMNS = (("name", "VARCHAR"), ("create_sql", "VARCHAR"))


def show_create(session: Context, asked: st.ShowCreateStream, parameters: object) -> Waiting[Result]:
    """SHOW CREATE STREAM: its name, and the text that makes it again."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    made: st.Statement
    if stream.topic:
        made = as_topic(stream)
    else:
        session.database.refuse_lost(stream)
        tables = session.database.catalog.tables_of(stream)
        made = as_stream(stream, [captured.shape for captured in tables])
    return text_rows(CREATE_COLUMNS, [[stream.name, render_statement(made)]], "SHOW CREATE STREAM")
    yield


def as_topic(stream: Stream) -> st.CreateTopic:
    """The CREATE TOPIC that a topic could have been made by."""
    options = _options(_kept(stream, DEFAULT_PARTITIONS_WITH_KEY))
    return st.CreateTopic(_name(stream.schema, stream.name), options)


def as_stream(stream: Stream, shapes: Sequence[TableShape]) -> st.CreateStream:
    """The CREATE STREAM that a stream could have been made by: what is a default is left out."""
    by = () if stream.several is not None else shapes[0].primary_key
    keyed = stream.of_schema or stream.partition_by or any(shape.primary_key for shape in shapes)
    values: dict[str, tuple[Value, Value]] = {
        **_kept(stream, DEFAULT_PARTITIONS_WITH_KEY if keyed else 1),
        "partition_by": (stream.partition_by, by),
        "snapshot": (stream.snapshot, "none"),
        "before": (stream.before, "full"),
        "minimal_changes": (stream.minimal_changes, "replace"),
    }
    return st.CreateStream(
        name=_name(stream.schema, stream.name),
        tables=() if stream.of_schema else tuple(_name(shape.schema, shape.name) for shape in shapes),
        all_in_schema=_name(stream.of_schema) if stream.of_schema else None,
        columns=None if stream.all_columns else stream.columns,
        operations=tuple(op for op in OPERATIONS if op in stream.operations),
        where=None if stream.filter is None else st.Fragment(stream.filter, 0),
        options=_options(values),
    )


def _name(*parts: str) -> st.Name:
    return st.Name(parts)


def _kept(stream: Stream, partitions: int) -> dict[str, tuple[Value, Value]]:
    """Options that streams and topics have: what they are, and their default."""
    retention_ms = None if stream.retention_us is None else stream.retention_us // 1000
    return {
        "partitions": (stream.partitions, partitions),
        "retention": (retention_ms, DEFAULT_RETENTION_US // 1000),
        "retention_bytes": (stream.retention_bytes, None),
        "buffer_bytes": (stream.buffer_bytes, DEFAULT_BUFFER_BYTES),
        "compaction": (stream.compaction, "none"),
        "compaction_lag": (stream.compaction_lag_us // 1000, DEFAULT_COMPACTION_LAG_US // 1000),
        "tombstone_retention": (
            stream.tombstone_retention_us // 1000,
            DEFAULT_TOMBSTONE_RETENTION_US // 1000,
        ),
    }


def _options(values: dict[str, tuple[Value, Value]]) -> Options:
    return Options(
        tuple(Option(name, value) for name, (value, default) in values.items() if value != default)
    )


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
        return (*named, listing.NODE) if listing.is_of_all_nodes(session, statement) else named
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
    if stream is not None and isinstance(asked, BY_PARTITION):
        check_held(session, stream)
    yield from session.database.commits.wait_readable()
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    sql = f"SELECT {', '.join(shown.columns)} FROM ducktail.{shown.view}{condition}"
    table = session.meta.sql(sql, params=values or None).to_arrow_table()
    return table_result(columns, table, lambda _: shown.tag)


# What has a row for each partition: those that are on their way to this node are not passed over.
BY_PARTITION = (st.ShowPartitions, st.ShowOffsets, st.ShowParked)


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

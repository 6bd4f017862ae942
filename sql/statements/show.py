"""SHOW of rows of the system views; DESCRIBE and SHOW CREATE STREAM. Source: docs/sql.md, "Streams"."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.catalog import rights
from ...engine.catalog.feeds import Feed
from ...engine.catalog.streams import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    OPERATIONS,
    Stream,
)
from ...engine.duck.cursors import ask_maybe
from ...engine.duck.table_shape import TableShape
from ...engine.log.log import EVENT_COLUMNS
from ...engine.schema import LIVE_VIEWS
from ...engine.waiting import Waiting
from ..cluster import listing, topic_statements
from ..cluster.definitions import check_not_making
from ..cluster.shares import check_held
from ..language import statements as st
from ..language.clauses import Option, Options, Value
from ..results.results import Result, ResultColumn, table_result
from ..session_state.context import Context
from ..session_state.run_text import Values, text
from .runners import Runner, answer, columns_of, runs

CREATE_COLUMNS = (("name", "VARCHAR"), ("create_sql", "VARCHAR"))
DESCRIBE_COLUMNS = (("property", "VARCHAR"), ("value", "VARCHAR"))


@runs(st.ShowCreateStream, CREATE_COLUMNS)
def show_create(session: Context, asked: st.ShowCreateStream, parameters: object) -> Waiting[Result]:
    """SHOW CREATE STREAM: the stream's name, and the statement that creates it."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    made: st.Statement
    if stream.topic:
        made = as_topic(stream)
    else:
        session.database.refuse_lost(stream)
        tables = session.database.catalog.tables_of(stream)
        feed = session.database.catalog.feeds.get(stream.stream_id)
        made = as_stream(stream, [captured.shape for captured in tables], feed)
    return answer(asked, [[stream.name, st.render_statement(made)]])
    yield


def as_topic(stream: Stream) -> st.CreateTopic:
    """A CREATE TOPIC that creates an equal topic."""
    options = _options(_kept(stream, DEFAULT_PARTITIONS_WITH_KEY))
    return st.CreateTopic(_name(stream.schema, stream.name), options)


def as_stream(stream: Stream, shapes: Sequence[TableShape], feed: Feed | None) -> st.CreateStream:
    """A CREATE STREAM that creates an equal stream, without defaults, and without secrets of its source."""
    by = () if stream.several is not None else shapes[0].primary_key
    keyed = stream.of_schema or stream.partition_by or any(shape.primary_key for shape in shapes)
    values: dict[str, tuple[Value, Value]] = {
        **_kept(stream, DEFAULT_PARTITIONS_WITH_KEY if keyed else 1),
        "partition_by": (stream.partition_by, by),
        "snapshot": (stream.snapshot, "none" if feed is None else "initial"),
        "before": (stream.before, "full"),
        "minimal_changes": (stream.minimal_changes, "replace"),
    }
    tables = () if stream.of_schema else tuple(_name(shape.schema, shape.name) for shape in shapes)
    source = None
    if feed is not None:
        values |= {name: (feed.options.get(name), None) for name in ("slot", "server_id")}
        names = [_name(*(part for part in name if part is not None)) for name in feed.selection.names]
        tables = tuple(names) if feed.selection.kind == "tables" else ()
        source = st.SourceClause(
            feed.kind,
            feed.shown,
            schema=names[0] if feed.selection.kind == "schema" else None,
            publication=names[0] if feed.selection.kind == "publication" else None,
        )
    return st.CreateStream(
        name=_name(stream.schema, stream.name),
        tables=tables,
        all_in_schema=_name(stream.of_schema) if stream.of_schema else None,
        columns=None if stream.all_columns else stream.columns,
        operations=tuple(op for op in OPERATIONS if op in stream.operations),
        where=None if stream.filter is None else st.Fragment(stream.filter, 0),
        options=_options(values),
        source=source,
    )


def _name(*parts: str) -> st.Name:
    return st.Name(parts)


def _kept(stream: Stream, partitions: int) -> dict[str, tuple[Value, Value]]:
    """Options of streams and topics: present value and default."""
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


def runner(row: st.Row) -> Runner:
    """The runner of a SHOW whose row names a view, and which has no runner of its own."""
    in_cluster = listing.show if row.in_cluster is st.InCluster.ALL_NODES else None
    at_owners = topic_statements.show_by_partition if row.in_cluster is st.InCluster.OWNERS else None
    return Runner(show, None, in_cluster, at_owners)


def shown_columns(asked: st.Statement, session: Context) -> tuple[ResultColumn, ...] | None:
    """The columns of a statement's answer; None without rows."""
    row = st.row_of(asked)
    if row is None or row.view is None:
        return columns_of(asked)
    types = dict(LIVE_VIEWS[row.view.name])
    named = tuple(ResultColumn(name, types[name]) for name in row.view.names)
    return (*named, listing.NODE) if listing.is_of_all_nodes(session, asked) else named


@runs(st.ShowOffsets, at_owners=topic_statements.show_offsets)
@runs(st.ShowBookmarks, at_owners=topic_statements.show_bookmarks)
@runs(st.ShowCheckpoints, at_owners=topic_statements.show_checkpoints)
def show(session: Context, asked: st.Statement, parameters: Values) -> Waiting[Result]:
    """Run a SHOW whose row names a view: the rows of the view, filtered by the fields of the statement.

    These are `stream`, `group`, and `like`, a pattern for the stream's name.
    """
    row, columns = st.row_of(asked), shown_columns(asked, session)
    assert row is not None and row.view is not None and columns is not None
    stream = _stream_of(session, asked)
    filters: dict[str, object] = {}
    if stream is not None:
        filters |= {"schema_name =": stream.schema, "stream_name =": stream.name}
    if (group_name := getattr(asked, "group", None)) is not None:
        assert stream is not None
        group = session.access.group(stream, text(group_name, parameters), None, use=False)
        filters["group_name ="] = group.name
    if (like := getattr(asked, "like", None)) is not None:
        filters["stream_name ILIKE"] = like
    if stream is not None and row.in_cluster is st.InCluster.OWNERS:
        # Partitions that are moving to this node are not skipped.
        check_held(session, stream)
    yield from session.database.commits.wait_readable_now()
    where = [row.view.where] if row.view.where else []
    where += [f"{condition} ${number}" for number, condition in enumerate(filters, 1)]
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    sql = f"SELECT {row.view.columns} FROM ducktail.{row.view.name}{condition}"
    table = session.meta.sql(sql, params=list(filters.values()) or None).to_arrow_table()
    return table_result(columns, table, lambda _: row.tag)


def _stream_of(session: Context, asked: st.Statement) -> Stream | None:
    name: st.Name | None = getattr(asked, "stream", None)
    return None if name is None else session.names.stream(name.parts, name.position)


@runs(st.DescribeStream, DESCRIBE_COLUMNS)
def describe_stream(session: Context, asked: st.DescribeStream, parameters: Values) -> Waiting[Result]:
    """DESCRIBE STREAM: its definition, one property in each row."""
    check_not_making(session, asked.stream)
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    yield from session.database.commits.wait_readable_now()
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
    return answer(asked, rows)

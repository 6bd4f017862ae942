"""SHOW CREATE STREAM: the statement that makes a stream or a topic again. Source: docs/sql.md."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.catalog.streams import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    OPERATIONS,
    Stream,
)
from ...engine.duck.table_shape import TableShape
from ...engine.waiting import Waiting
from ..context import Context
from ..language import statements as st
from ..language.options import Option, Options, Value
from ..language.render import render_statement
from ..results.results import Result
from ..running import text_rows

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

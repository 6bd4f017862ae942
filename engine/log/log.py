"""The log of a captured table: its rows, and the parts of them that events show.

The log holds each change once, typed and flat, for any number of streams on the table:

    lsn, txid, op ('i','u','d','s'), stream_id (of an initial snapshot's row), rid, key_hash,
    key_change (pair number of an update that was split), o1..on the old row, n1..nn the new one

A table has a log for each version of its columns, and each owns a range of LSNs (`table_versions.py`). The
first rows of every version but the first are its schema events: op 'x', one a partition, whose number is
the row's key_hash.

A stream is a cursor over the log. One SELECT (`queries.py`) computes everything that a stream adds
(operations, filter, columns, before, partition, JSON): the publisher runs it for the rows just committed, a
cold read for a range, and the stream's own view for all rows. So all three return the same bytes.

A schema event has the table's columns as JSON, and an earlier version is kept as JSON.
Source: docs/design/engine.md, "The log"; docs/schema_changes.md; docs/design/schema_changes.md, "The shape".
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..catalog.captured_tables import Captured, is_fed
from ..duck.table_shape import Column, TableShape
from ..partitioning import hash_sql
from ..quoting import ident, shown_name
from ..schema import SCHEMA
from ..schema import SCHEMA as OURS

EVENT_COLUMNS: tuple[tuple[str, str], ...] = (
    ("lsn", "BIGINT"),
    ("partition", "INTEGER"),
    ("op", "VARCHAR"),
    ("table_name", "VARCHAR"),
    ("key", "JSON"),
    ("before", "JSON"),
    ("after", "JSON"),
    ("commit_time", "TIMESTAMP WITH TIME ZONE"),
    ("txid", "BIGINT"),
    ("tx_seq", "INTEGER"),
    ("tx_last", "BOOLEAN"),
    ("schema_version", "INTEGER"),
    ("headers", "JSON"),
)
# The column of WITH DELIVERIES, behind those of an event.
DELIVERIES = ("deliveries", "INTEGER")
EVENT_NAMES = tuple(name for name, _ in EVENT_COLUMNS)
EVENT_TYPES = tuple(type_ for _, type_ in EVENT_COLUMNS)
# The columns of an event from its transaction's row in `commits`, and those from its own log row.
COMMIT_NAMES = ("commit_time", "tx_seq", "tx_last")
# Columns that need the transaction's row: the annotation is in the headers.
COMMIT_COLUMNS = frozenset({"commit_time", "tx_seq", "headers"})
ROW_NAMES = tuple(name for name in EVENT_NAMES if name not in COMMIT_NAMES)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of rows that are read from a stream.

    Args:
        types: the types of all columns, as sent to a client.
        lsn, partition: the positions of these two columns.
    """

    types: tuple[str, ...]
    lsn: int
    partition: int


EVENT_LAYOUT = Layout(EVENT_TYPES, EVENT_NAMES.index("lsn"), EVENT_NAMES.index("partition"))


class Commit(NamedTuple):
    """A transaction's row of `commits`, if all rows of a query belong to one known transaction.

    Args:
        commit_us: its commit time, microseconds since 1970.
        annotation: a JSON object as text, or None.
    """

    first_lsn: int
    commit_us: int
    annotation: str | None = None


# For a query that uses none of it.
NO_COMMIT = Commit(0, 0)
# Member of an event's headers that contains its transaction's annotation.
ANNOTATION = "annotation"
# The same of an event of a stream with a source: where its transaction is there.
SOURCE = "source"

HIDDEN = "__ducktail_"
# Bytes of an event besides its images: LSN, time and so on, as text.
HEAD_BYTES = 128


def end_of_transaction(lsn: int) -> str:
    """SQL of the last LSN of the transaction that contains an LSN."""
    return (
        f"coalesce((SELECT max(last_lsn) FROM {SCHEMA}.commits "
        f"WHERE {lsn} BETWEEN first_lsn AND last_lsn), {lsn})"
    )


def log_name(table_id: int, version: int) -> str:
    """The qualified, quoted name of a log."""
    return f"{SCHEMA}.{ident(f'log_{table_id}_{version}')}"


def bare_name(log: str) -> str:
    """The name of a log in DuckDB's catalog."""
    return log.partition(".")[2].strip('"')


def side_log(log: str) -> str:
    """The qualified, quoted name of the table of parked copies of a log's rows."""
    return f"{SCHEMA}.{ident('parked_' + bare_name(log).removeprefix('log_'))}"


def create_log_sql(name: str, shape: TableShape) -> str:
    """The DDL of a log for a table of this shape."""
    images = [
        f"{side}{place} {column.type}" for side in ("o", "n") for place, column in enumerate(shape.stored, 1)
    ]
    head = (
        "lsn BIGINT, txid BIGINT, op VARCHAR, stream_id INTEGER, rid BIGINT, "
        "key_hash UINTEGER, key_change INTEGER"
    )
    return f"CREATE TABLE {name} ({head}, {', '.join(images)})"


def snapshot_sql(captured: Captured, stream_id: int, base_lsn: int, txid: int) -> str:
    """Insert the table's present rows as a stream's first events, from LSN base_lsn + 1 on."""
    return _rows_sql(captured, "s", str(stream_id), base_lsn, txid)


def copied_sql(captured: Captured, rows: str, base_lsn: int, txid: int) -> str:
    """Insert rows that the table has, and a relation `rows` too, as snapshot events."""
    return _rows_sql(captured, "s", "NULL", base_lsn, txid, rows)


def made_sql(captured: Captured, base_lsn: int, txid: int) -> str:
    """Insert all rows of a table that this transaction has created, as inserts."""
    return _rows_sql(captured, "i", "NULL", base_lsn, txid)


def dropped_sql(captured: Captured, base_lsn: int, txid: int) -> str:
    """Insert all rows of a table that is about to be dropped, as deletes."""
    return _rows_sql(captured, "d", "NULL", base_lsn, txid)


def _rows_sql(
    captured: Captured, op: str, stream_id: str, base_lsn: int, txid: int, rows: str | None = None
) -> str:
    shape = captured.shape
    key_types = {column.name: column.type for column in shape.stored}
    key = [(ident(name), key_types[name]) for name in shape.primary_key]
    key_hash = hash_sql(key) if key else "NULL"
    image = ", ".join(f"{'o' if op == 'd' else 'n'}{place}" for place in range(1, len(shape.stored) + 1))
    values = ", ".join(ident(column.name) for column in shape.stored)
    return (
        f"INSERT INTO {captured.table.log} (lsn, txid, op, stream_id, key_hash, {image}) "
        f"SELECT {base_lsn} + row_number() OVER (), {txid}, '{op}', {stream_id}, {key_hash}, {values} "
        f"FROM {rows or shape.qualified}"
    )


def shown_table(shape: TableShape) -> str:
    """A table's name with its schema, as a user would write it; for a dropped table its former name, for the
    table of a feed the name at its source."""
    if is_fed(shape):
        return shape.name.split(" ", 2)[2]
    if shape.schema == OURS:
        return shape.name.partition(" ")[2]
    return f"{shown_name(shape.schema)}.{shown_name(shape.name)}"


def dropped_name(table_id: int, shown: str) -> str:
    """The name, in our schema, of the table that replaces a dropped one, which was shown by that name."""
    return f"{table_id} {shown}"


def columns_told(shape: TableShape, carried: Collection[str]) -> list[dict[str, Any]]:
    """The columns that a stream carries as JSON objects, in the table's order.

    Args:
        carried: their names.
    """
    return [
        {
            "name": column.name,
            "type": column.type,
            "not_null": column.not_null,
            **({} if column.default is None else {"default": column.default}),
        }
        for column in shape.stored
        if column.name in carried
    ]


def schema_json(shape: TableShape, carried: Collection[str], renamed_from: str | None) -> str:
    """The value of `after` in a schema event of a stream that carries these columns.

    Args:
        renamed_from: the table's previous name, or None if it is unchanged.
    """
    if shape.schema == OURS and not is_fed(shape):
        return json.dumps({"table": shown_table(shape), "dropped": True}, ensure_ascii=False)
    told = {
        "table": shown_table(shape),
        **({} if renamed_from is None else {"renamed_from": renamed_from}),
        "primary_key": list(shape.primary_key),
        "columns": columns_told(shape, carried),
    }
    return json.dumps(told, ensure_ascii=False)


class KeptVersion(NamedTuple):
    """A stored version: its shape, and the other fields that a `TableVersion` has with these names."""

    shape: TableShape
    ids: tuple[int, ...]
    carried: tuple[tuple[int, tuple[int, ...]], ...] = ()
    txid: int = 0
    renamed_from: str | None = None


def version_json(version: KeptVersion) -> str:
    """The text in which a version is stored."""
    rest = {name: value for name, value in version._asdict().items() if name != "shape"}
    return json.dumps({**asdict(version.shape), **rest}, ensure_ascii=False)


def version_of(text: str) -> KeptVersion:
    """The version read from a text of `version_json`; an old text may lack txid and previous name."""
    kept = json.loads(text)
    shape = TableShape(
        schema=kept["schema"],
        name=kept["name"],
        stored=tuple(Column(**column) for column in kept["stored"]),
        generated=tuple((name, type_, text) for name, type_, text in kept["generated"]),
        column_order=tuple(kept["column_order"]),
        primary_key=tuple(kept["primary_key"]),
        unique=tuple(tuple(names) for names in kept["unique"]),
        unique_expressions=kept["unique_expressions"],
    )
    carried = tuple((stream_id, tuple(ids)) for stream_id, ids in kept["carried"])
    return KeptVersion(shape, tuple(kept["ids"]), carried, kept.get("txid", 0), kept.get("renamed_from"))

"""Columns with a sequence of their own, SERIAL and IDENTITY: the kind is in the text of the default.

DuckDB has sequences and defaults, but neither serial nor identity columns. Such a column is one whose default
is a CASE that names the kind and gives the next value of the sequence, which is dropped with the table. So
the kind follows the column through renames, copies of the file and restores, and goes with the default.
"""

from __future__ import annotations

import duckdb

from ..quoting import fold, folded_sql, ident, literal
from .cursors import ask_maybe
from .objects import Object

SERIAL, ALWAYS, BY_DEFAULT = "serial", "identity always", "identity by default"
_CLOSING = ") END"


def own_default(sequence: str, kind: str) -> str:
    """The default of a column with a sequence of its own, as SQL.

    Args:
        sequence: the sequence's qualified name as a string literal.
        kind: SERIAL, ALWAYS or BY_DEFAULT.

    >>> own_default("'main.t_id_seq'", ALWAYS)
    "CASE 'identity always' WHEN '' THEN NULL ELSE nextval('main.t_id_seq') END"
    """
    return f"CASE {literal(kind)} WHEN '' THEN NULL ELSE nextval({sequence}{_CLOSING}"


def stored_opening(kind: str) -> str:
    """The beginning of such a default as DuckDB shows it, up to the sequence's literal.

    >>> stored_opening(SERIAL)
    "CASE  WHEN (('serial' = '')) THEN (NULL) ELSE nextval("
    """
    return f"CASE  WHEN (({literal(kind)} = '')) THEN (NULL) ELSE nextval("


def has_always(table: Object) -> bool:
    """True if a listed table has a column GENERATED ALWAYS AS IDENTITY."""
    return stored_opening(ALWAYS) in table.definition


def any_always(cursor: duckdb.DuckDBPyConnection) -> bool:
    """True if a table of the database has a column GENERATED ALWAYS AS IDENTITY."""
    # The list of columns would bind all of DuckDB's own views, which takes longer than most of an opening.
    sql = (
        "SELECT 1 FROM system.main.duckdb_tables() WHERE database_name = current_database() "
        "AND contains(sql, $1) LIMIT 1"
    )
    return ask_maybe(cursor, sql, [stored_opening(ALWAYS)]) is not None


def drop_statements(cursor: duckdb.DuckDBPyConnection, schema: str, table: str) -> list[str]:
    """The statements that drop a table of the database with its columns' own sequences, in this order.

    DuckDB's own OWNED BY is not used: it writes such a drop to its log in an order that it refuses to replay,
    and forgets the owner when the file is closed.
    """
    return [
        f"DROP TABLE {ident(schema)}.{ident(table)}",
        *_drop_sequences(_own_of(cursor, None, schema, table)),
    ]


def _drop_sequences(own: dict[str, tuple[str, str]]) -> list[str]:
    return [f"DROP SEQUENCE IF EXISTS {name_in(literal)}" for _, literal in own.values()]


def name_in(literal: str) -> str:
    """The name in a string literal, as SQL.

    >>> name_in("'\"main\".\"it''s\"'")
    '"main"."it\'s"'
    """
    return literal[1:-1].replace("''", "'")


def _own(default: str) -> tuple[str, str] | None:
    """The kind and the string literal of the sequence's name in a default; None for another default."""
    for kind in (SERIAL, ALWAYS, BY_DEFAULT):
        if default.startswith(stored_opening(kind)):
            return kind, default.removeprefix(stored_opening(kind)).removesuffix(_CLOSING)
    return None


def own_sequences(cursor: duckdb.DuckDBPyConnection, table: Object) -> dict[str, tuple[str, str]]:
    """Column -> its kind and the string literal of its sequence's name, for the columns that have one."""
    return _own_of(cursor, table.catalog, table.schema, table.name)


def _own_of(
    cursor: duckdb.DuckDBPyConnection, catalog: str | None, schema: str, table: str
) -> dict[str, tuple[str, str]]:
    rows = cursor.execute(
        "SELECT column_name, column_default FROM system.main.duckdb_columns() "
        "WHERE database_name = coalesce($1, current_database()) "
        f"AND {folded_sql('schema_name')} = $2 AND {folded_sql('table_name')} = $3 "
        "AND starts_with(column_default, 'CASE ') ORDER BY column_index",
        [catalog, fold(schema), fold(table)],
    ).fetchall()
    found = {column: _own(default) for column, default in rows}
    return {column: own for column, own in found.items() if own is not None}

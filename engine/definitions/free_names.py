"""Names that a stream could have: tables, views, streams and topics of a schema share theirs."""

from __future__ import annotations

from collections.abc import Collection, Container
from itertools import chain, count

import duckdb

from ..database import Database
from ..errors import DuplicateObject
from ..quoting import fold, folded_sql, ident
from ..streams.streams import CHANGES_SUFFIX, Stream, key_of
from ..table import RELATIONS


def taken_names(cursor: duckdb.DuckDBPyConnection, catalog: str, schema: str) -> dict[str, str]:
    """What has each name of a schema: 'table' or 'view', by the name in small letters.

    Each stream and topic has a view of its name.

    Args:
        catalog: the database's name in DuckDB.
    """
    return dict(
        cursor.execute(
            f"SELECT {folded_sql('table_name')}, kind FROM {RELATIONS} WHERE database_name = $1 "
            f"AND {folded_sql('schema_name')} = $2",
            [catalog, fold(schema)],
        ).fetchall()
    )


def free_name(first: str, taken: Container[str]) -> str:
    """A name that a stream can have, and its view of typed changes with it.

    Args:
        first: what it is if that is free; else a number is put behind it.
        taken: in small letters.
    """
    for name in chain([first], (f"{first}_{number}" for number in count(2))):
        if fold(name) not in taken and fold(f"{name}{CHANGES_SUFFIX}") not in taken:
            return name
    raise AssertionError("numbers have no end")


def check_no_stream(database: Database, schema: str, name: str) -> None:
    """Raise DuplicateObject (42710) where a stream or a topic has the name."""
    known = database.catalog.streams.get(key_of(schema, name))
    if known is not None:
        raise DuplicateObject(f'{known.kind} "{name}" already exists')


def check_names(
    database: Database, cursor: duckdb.DuckDBPyConnection, stream: Stream, own: Collection[str] = ()
) -> None:
    """Nothing else may have the names of the stream's views.

    Args:
        own: views that it has already, which are to go.

    Raises:
        DuplicateObject: 42710.
    """
    free = {fold(name) for name in own}
    named = taken_names(cursor, database.catalog_name, stream.schema)
    taken = {name: kind for name, kind in named.items() if name not in free}
    for name in stream.views:
        if fold(name) not in taken:
            continue
        kind = taken[fold(name)]
        other = ident(free_name(f"{stream.name}_{stream.kind}", taken))
        raise DuplicateObject(
            f'the name "{name}" is taken by a {kind}',
            hint=f"Tables, views, streams and topics share their names: try {other}."
            if name == stream.name
            else f"It would be the stream's view of typed changes: name the stream otherwise, as {other}.",
        )

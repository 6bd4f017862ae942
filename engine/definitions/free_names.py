"""Names that a stream could have: tables, views, streams and topics of a schema share theirs."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count

import duckdb

from ..streams.streams import CHANGES_SUFFIX


def taken_names(cursor: duckdb.DuckDBPyConnection, catalog: str, schema: str) -> dict[str, str]:
    """What has each name of a schema: DuckDB's word for a table or a view, by the name in small letters.

    Each stream and topic has a view of its name.

    Args:
        catalog: the database's name in DuckDB.
    """
    return dict(
        cursor.execute(
            "SELECT lower(table_name), table_type FROM information_schema.tables WHERE table_catalog = $1 "
            "AND lower(table_schema) = lower($2)",
            [catalog, schema],
        ).fetchall()
    )


def free_name(first: str, taken: Container[str]) -> str:
    """A name that a stream can have, and its view of typed changes with it.

    Args:
        first: what it is if that is free; else a number is put behind it.
        taken: in small letters.
    """
    for name in chain([first], (f"{first}_{number}" for number in count(2))):
        if name.lower() not in taken and f"{name}{CHANGES_SUFFIX}".lower() not in taken:
            return name
    raise AssertionError("numbers have no end")

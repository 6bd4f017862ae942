"""What DuckDB's binder says of a text without running it: columns, parameters, whether it writes.

`_bind` of the DuckDB client answers all of it in a tenth of a millisecond, but is not public; where
a client lacks it, PREPARE's public neighbours answer, slower. This file is the only place that
knows. Binding fixes a transaction's MVCC snapshot, so it is done on a cursor of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb


@dataclass(frozen=True, slots=True)
class Bound:
    """A text as the binder sees it.

    Args:
        names, types: of the result's columns, in order (DuckDB type texts).
        parameters: name ("1", "2", ..) -> DuckDB type text.
        writes: whether running it changes the database.
        returns_rows: whether it answers rows (a plain INSERT answers a count).
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    parameters: dict[str, str]
    writes: bool
    returns_rows: bool


def bind(cursor: duckdb.DuckDBPyConnection, text: str) -> Bound:
    """Bind one statement.

    Raises:
        duckdb.Error: the binder's or the parser's own, with the place in `text`.
    """
    names, types, parameters, returns, _, kind, writes = cursor._bind(text, with_type=True, with_writes=True)
    if kind == SEVERAL:
        # A PIVOT asks the rows first which columns it has.
        relation = cursor.sql(text)
        names, types = relation.columns, relation.types
    return Bound(
        tuple(names),
        tuple(type_text(type_) for type_ in types),
        {name: type_text(type_) for name, type_ in parameters},
        writes,
        returns == "query_result",
    )


# What the client calls a text that is run as several statements.
SEVERAL = "multi"


def type_text(type_: object) -> str:
    """A DuckDB type's text; the type of a bare NULL or an untold parameter is VARCHAR."""
    text = str(type_)
    return "VARCHAR" if text in ('"NULL"', "NULL", "UNKNOWN", '"UNKNOWN"', "SQLNULL") else text

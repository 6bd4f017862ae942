"""Pieces of SQL about the rows of a log: column lists, key hashes, the user's RETURNING.

The images stand in the log by position, o1..on the old row and n1..nn the new one, so that no name
of a user's column can clash with one of ours.
"""

from __future__ import annotations

import re

from ..partitioning import hash_sql
from ..quoting import fold, ident
from ..table import RESERVED_PREFIX, TableShape
from .description import BASE, HIDDEN, CapturedTable

_NAME = re.compile(r'"(?:[^"]|"")*"|\w+')


def images(side: str, shape: TableShape) -> str:
    """`o1, o2, ...` or `n1, n2, ...`, one for each stored column."""
    return ",".join(f"{side}{place}" for place in range(1, len(shape.stored) + 1))


def stored_names(shape: TableShape) -> str:
    """The stored columns by their own names, quoted."""
    return ",".join(ident(column.name) for column in shape.stored)


def _key_places(shape: TableShape) -> list[int]:
    places = (shape.position(name) for name in shape.primary_key)
    return [place + 1 for place in places if place is not None]


def partition_hash(side: str, shape: TableShape) -> str:
    """SQL of the partition hash of an image's primary key; NULL without a primary key."""
    places = _key_places(shape)
    if not places:
        return "NULL"
    return hash_sql([(f"{side}{place}", shape.stored[place - 1].type) for place in places])


def partition_hash_of(expressions: list[str], shape: TableShape) -> str:
    """The same over the stored columns' expressions."""
    places = _key_places(shape)
    if not places:
        return "NULL"
    return hash_sql([(expressions[place - 1], shape.stored[place - 1].type) for place in places])


def conflict_hash(op: str, shape: TableShape) -> str | None:
    """SQL of the 64-bit hash that write conflicts are told by, over a row of the log.

    Args:
        op: 'i', 'd' or 'u' where all rows are of one; '' where the row's own op decides.

    Returns:
        The expression (UBIGINT, NULL where the row has no key to tell), or None where no row has.
    """
    places = _key_places(shape)
    if not places:
        whole = f"hash({images('o', shape)})"
        return {"i": None, "": f"CASE WHEN op<>'i' THEN {whole} END"}.get(op, whole)
    if op:
        side = "n" if op == "i" else "o"
        return f"hash({','.join(f'{side}{place}' for place in places)})"
    sides = (f"CASE op WHEN 'i' THEN n{place} ELSE o{place} END" for place in places)
    return f"hash({','.join(sides)})"


def conflict_hash_by_name(shape: TableShape) -> str:
    """The same over an image that has the columns' own names."""
    names = shape.primary_key or tuple(column.name for column in shape.stored)
    return f"hash({','.join(map(ident, names))})"


def image_as_table(side: str, shape: TableShape, source: str, hidden: str = "") -> str:
    """A SELECT that gives an image under the columns' own names, generated ones computed.

    Args:
        side: 'o' or 'n'.
        source: what stands behind FROM: a relation with the image's columns, and WHERE.
        hidden: SQL over `source` of the column that HIDDEN names, if there is to be one.
    """
    places = enumerate(shape.stored, start=1)
    named = ",".join(f"{c.collated(f'{side}{i}')} AS {ident(c.name)}" for i, c in places)
    if hidden:
        named += f",{hidden} AS {HIDDEN}"
    plain = f"SELECT {named} FROM {source}"
    if not shape.generated:
        return plain
    computed = ",".join(f"({text})::{kind} AS {ident(name)}" for name, kind, text in _in_order(shape))
    order = ",".join(ident(name) for name in shape.column_order) + (f",{HIDDEN}" if hidden else "")
    return f"SELECT {order} FROM (SELECT *,{computed} FROM ({plain}))"


def _in_order(shape: TableShape) -> list[tuple[str, str, str]]:
    """The generated columns, each behind those that its expression may name."""
    left = list(shape.generated)
    ordered: list[tuple[str, str, str]] = []
    while left:
        waiting = {fold(column[0]) for column in left}
        ready = [column for column in left if not (_names_in(column[2]) & waiting - {fold(column[0])})]
        assert ready, "DuckDB refuses generated columns that need each other"
        ordered += ready
        left = [column for column in left if column not in ready]
    return ordered


def _names_in(expression: str) -> set[str]:
    """Every word of an expression that may be a column's name, in lower case."""
    found = (name[1:-1].replace('""', '"') if name[0] == '"' else name for name in _NAME.findall(expression))
    return {fold(name) for name in found}


def logged(table: CapturedTable, condition: str = "") -> str:
    """The rows that this statement has logged, as a FROM clause."""
    return f"{table.log} WHERE lsn>{BASE}{condition}"


WRITTEN = f"{RESERVED_PREFIX}_w"
LOGGED = f"{RESERVED_PREFIX}_l"
TARGET = f"{RESERVED_PREFIX}_t"
STAGE = f"{RESERVED_PREFIX}_c"

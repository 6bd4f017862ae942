"""SQL of a table's log in captured statements: its columns, its hashes, and the log written from a stage.

The columns of images in the log are numbered, o1..on the old row and n1..nn the new one, so that no user's
column name can clash with ours.

Shapes B and C write the log from a stage: a materialized SELECT of the rows that a statement touches, as
`rid` (the row id, NULL for a row that does not exist yet), `o1`.. (the old row) and `n1`.. (the new one).
Each row has a sort:

    d  the row is deleted
    c  its key changes: a delete of the old row, which has no row id so that nothing is applied, and
       an insert of the new one; each has the images of both, so that a stream with a filter can
       decide whether it also carries the other
    u  the row is updated
    i  the row is inserted
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ..duck.table_shape import RESERVED_PREFIX, Column, TableShape
from ..partitioning import hash_sql
from ..quoting import fold, ident
from .plan import BASE, HIDDEN, TXID, UPPER, Assignment, CapturedTable

# The most distinct lists of assigned columns in one MERGE: row ids are below 2 to the 56th, so that a row id
# times this is still a BIGINT.
GROUPS_MAX = 100
_NAME = re.compile(r'"(?:[^"]|"")*"|\w+')
WRITTEN = f"{RESERVED_PREFIX}_w"
LOGGED = f"{RESERVED_PREFIX}_l"
TARGET = f"{RESERVED_PREFIX}_t"
STAGE = f"{RESERVED_PREFIX}_c"


def by_position(shape: TableShape, sets: Iterable[Assignment]) -> dict[int, str | None]:
    """Assignments by the position of their column."""
    return {shape.place(name): value for name, value in sets}


def assigned(column: Column, value: str | None) -> str:
    """SQL of an assignment's value as the column stores it."""
    expression = (column.default or "NULL") if value is None else value
    return f"({expression})::{column.type}"


def touches_unique(shape: TableShape, places: Collection[int]) -> bool:
    """True if one of these columns is in a unique key."""
    named = {shape.stored[place].name for place in places}
    return any(named & set(columns) for columns in shape.unique)


def log_head(table: CapturedTable, with_text: str = "") -> str:
    """The beginning of the log's INSERT, to be followed by a SELECT of its columns."""
    columns = f"{images('o', table.shape)},{images('n', table.shape)}"
    head = f"INSERT INTO {table.log}(lsn,txid,op,rid,key_hash,key_change,{columns})"
    return f"{head} {with_text}" if with_text else head


def key_changes(shape: TableShape, places: Iterable[int]) -> str:
    """SQL boolean: one of these columns differs between the old and the new row."""
    return " OR ".join(_differs(place + 1, shape.stored[place]) for place in places)


def _differs(place: int, column: Column) -> str:
    """SQL boolean: a column's old and new value differ; texts byte by byte in any collation."""
    if column.type != "VARCHAR":
        return f"o{place} IS DISTINCT FROM n{place}"
    return f"encode(o{place}) IS DISTINCT FROM encode(n{place})"


def log_from_stage(
    table: CapturedTable,
    with_text: str,
    staged: str,
    sort: str,
    sorts: str,
    inexact: Iterable[int],
    once: str = "",
) -> str:
    """The log's INSERT from a materialized stage.

    The stage is needed if a new value is used twice (does the key change, is it equal to the old one): a
    volatile value must not be evaluated twice. Events are numbered by counting, one sort of event after the
    other: sorting such wide rows takes ten times as long.

    Args:
        staged: the SELECT of the stage.
        sort: SQL of a staged row's sort.
        sorts: the possible sorts, in the order d, c, u, i.
        inexact: positions of columns that keep their old value if the new one compares equal.
        once: SQL behind FROM that selects a row once if it may be found several times.
    """
    shape = table.shape
    kept = [
        f"CASE WHEN rid IS NOT NULL AND n{i} IS NOT DISTINCT FROM o{i} THEN o{i} ELSE n{i} END AS n{i}"
        for i in (place + 1 for place in inexact)
    ]
    replaced = f" REPLACE ({','.join(kept)})" if kept else ""
    counted = ",".join(
        f"count(*) FILTER (WHERE sort='{x}') OVER (ROWS UNBOUNDED PRECEDING) AS {x}" for x in sorts
    )
    parts = " UNION ALL ".join(_parts(shape, sorts))
    return (
        f"{log_head(table)} {f'{with_text},' if with_text else 'WITH '}"
        f"{STAGE}_0 AS MATERIALIZED ({staged}),"
        f"{STAGE} AS MATERIALIZED (SELECT *,{counted} FROM "
        f"(SELECT *{replaced},{sort} AS sort FROM {STAGE}_0{once})) {parts}"
    )


def _parts(shape: TableShape, sorts: str) -> list[str]:
    """The SELECTs of the log's rows from the stage: deletes, updates, inserts."""
    old, new, none = images("o", shape), images("n", shape), nulls(shape)
    gone, there = partition_hash("o", shape), partition_hash("n", shape)
    rows = (
        ("d", f"'d',rid::BIGINT,{gone},NULL::INTEGER,{old},{none}"),
        ("c", f"'d',NULL::BIGINT,{gone},c::INTEGER,{old},{new}"),
        ("u", f"'u',rid::BIGINT,{there},NULL::INTEGER,{old},{new}"),
        ("c", f"'i',rid::BIGINT,{there},c::INTEGER,{old},{new}"),
        ("i", f"'i',NULL::BIGINT,{there},NULL::INTEGER,{none},{new}"),
    )
    parts, number = [], BASE
    for sort, row in rows:
        if sort in sorts:
            parts.append(f"SELECT {number}+{sort},{TXID},{row} FROM {STAGE} WHERE sort='{sort}'")
            number += f"+(SELECT count(*) FROM {STAGE} WHERE sort='{sort}')"
    return parts


def nulls(shape: TableShape) -> str:
    """A NULL for each stored column."""
    return ",".join(["NULL"] * len(shape.stored))


def apply_update(table: CapturedTable, places: Iterable[int], group: int = 0, groups: int = 1) -> str:
    """UPDATE of the touched rows from the log; a split update's row id is on its insert.

    Args:
        places: positions of the columns to set.
        group, groups: if several lists of columns are set, the log's rid is the row id times `groups` plus
            the `group` of the row.
    """
    values = ",".join(f"{ident(table.shape.stored[i].name)}={STAGE}.n{i + 1}" for i in places)
    rid = f"{STAGE}.rid" if groups == 1 else f"{STAGE}.rid//{groups} AND {STAGE}.rid%{groups}={group}"
    return (
        f"UPDATE {table.shape.qualified} AS {TARGET} SET {values} FROM {table.log} AS {STAGE} "
        f"WHERE {STAGE}.lsn>{BASE} AND {STAGE}.lsn<={UPPER} AND {TARGET}.rowid={rid}"
    )


def apply_delete(table: CapturedTable, groups: int = 1) -> str:
    """DELETE of the rows that the log deletes; `groups` as in `apply_update`."""
    rid = f"{STAGE}.rid" if groups == 1 else f"{STAGE}.rid//{groups}"
    return (
        f"DELETE FROM {table.shape.qualified} AS {TARGET} USING {table.log} AS {STAGE} "
        f"WHERE {STAGE}.lsn>{BASE} AND {STAGE}.lsn<={UPPER} AND {STAGE}.op='d' AND {TARGET}.rowid={rid}"
    )


def apply_insert(table: CapturedTable) -> str:
    """INSERT of the rows that are new."""
    return (
        f"INSERT INTO {table.shape.qualified}({stored_names(table.shape)}) "
        f"SELECT {images('n', table.shape)} FROM {table.log} "
        f"WHERE lsn>{BASE} AND lsn<={UPPER} AND op='i' AND rid IS NULL"
    )


def split_deletes(table: CapturedTable) -> str:
    """SELECT of the number of deletes that are half of a split update."""
    return f"SELECT count(*) FROM {logged(table)} AND op='d' AND rid IS NULL"


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
    """SQL of the partition hash, computed from an expression for each stored column."""
    places = _key_places(shape)
    if not places:
        return "NULL"
    return hash_sql([(expressions[place - 1], shape.stored[place - 1].type) for place in places])


def conflict_hash(op: str, shape: TableShape) -> str | None:
    """SQL of the 64-bit hash that detects write conflicts, computed from a row of the log.

    Args:
        op: 'i', 'd' or 'u' if it is the op of all rows; '' if each row's own op decides.

    Returns:
        The expression (UBIGINT, NULL for a row without a key), or None if no row has a key.
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
    """SQL of the conflict hash, computed from an image with the columns' own names."""
    names = shape.primary_key or tuple(column.name for column in shape.stored)
    return f"hash({','.join(map(ident, names))})"


def image_as_table(side: str, shape: TableShape, source: str, hidden: str = "") -> str:
    """A SELECT of an image with the columns' own names; generated columns are computed.

    Args:
        side: 'o' or 'n'.
        source: the SQL behind FROM: a relation with the image's columns, and WHERE.
        hidden: SQL over `source` of the column named HIDDEN, or '' for none.
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
    """The generated columns, each after those that its expression may use."""
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
    """A FROM clause of the log rows that this statement has written."""
    return f"{table.log} WHERE lsn>{BASE}{condition}"

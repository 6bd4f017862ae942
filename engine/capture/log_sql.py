"""SQL of a table's log in captured statements: its columns, its hashes, the log by way of a stage.

The images stand in the log by position, o1..on the old row and n1..nn the new one, so that no name of a
user's column can clash with one of ours.

Shapes B and C write the log from a stage: a materialized SELECT of the rows that a statement touches, as
`rid` (the row id, NULL for a row that is not there yet), `o1`.. (the old row) and `n1`.. (the new one).
Each row has a sort:

    d  it is deleted
    c  its key changes: a delete of the old row, which has no row id so that nothing is applied, and
       an insert of the new one; each has the images of both, by which a stream with a filter finds
       out whether it has the other
    u  it is updated
    i  it is inserted
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ..duck.table_shape import RESERVED_PREFIX, Column, TableShape
from ..partitioning import hash_sql
from ..quoting import fold, ident
from .plan import BASE, HIDDEN, TXID, UPPER, Assignment, CapturedTable

# The most distinct lists of assigned columns in one MERGE: row ids are below 2 to the 56th, and one
# of them times this is still a BIGINT.
GROUPS_MAX = 100
_NAME = re.compile(r'"(?:[^"]|"")*"|\w+')
WRITTEN = f"{RESERVED_PREFIX}_w"
LOGGED = f"{RESERVED_PREFIX}_l"
TARGET = f"{RESERVED_PREFIX}_t"
STAGE = f"{RESERVED_PREFIX}_c"


def by_position(shape: TableShape, sets: Iterable[Assignment]) -> dict[int, str | None]:
    """Assignments by the place of their column."""
    return {shape.place(name): value for name, value in sets}


def assigned(column: Column, value: str | None) -> str:
    """An assignment's value as the column stores it."""
    expression = (column.default or "NULL") if value is None else value
    return f"({expression})::{column.type}"


def touches_unique(shape: TableShape, places: Collection[int]) -> bool:
    """True if one of these columns is in a unique key."""
    named = {shape.stored[place].name for place in places}
    return any(named & set(columns) for columns in shape.unique)


def log_head(table: CapturedTable, with_text: str = "") -> str:
    """The opening of the log's INSERT, behind which a SELECT of its columns stands."""
    columns = f"{images('o', table.shape)},{images('n', table.shape)}"
    head = f"INSERT INTO {table.log}(lsn,txid,op,rid,key_hash,key_change,{columns})"
    return f"{head} {with_text}" if with_text else head


def key_changes(shape: TableShape, places: Iterable[int]) -> str:
    """SQL boolean: one of these columns has another value in the new row than in the old one."""
    return " OR ".join(_differs(place + 1, shape.stored[place]) for place in places)


def _differs(place: int, column: Column) -> str:
    """SQL boolean: a column's old and new value differ; texts byte by byte, whatever its collation."""
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
    """The log's INSERT by way of a materialized stage.

    It is needed where a new value is looked at twice (does the key change, is it equal to the old
    one): a volatile one must not be evaluated twice. Events get their numbers by counting, each
    sort of event behind the one before it: sorting rows as wide as these takes ten times as long.

    Args:
        staged: the SELECT of the stage.
        sort: SQL of a staged row's sort.
        sorts: the sorts that there may be, in the order d, c, u, i.
        inexact: places of columns that keep their old value where the new one compares equal.
        once: what stands behind FROM to take a row once that may be found more than once.
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
    """Set the touched rows to what the log says; a split update's row id is on its insert.

    Args:
        places: of the columns to set.
        group, groups: where several lists of columns are set, the log's rid is the row id times
            `groups` plus the row's own `group`.
    """
    values = ",".join(f"{ident(table.shape.stored[i].name)}={STAGE}.n{i + 1}" for i in places)
    rid = f"{STAGE}.rid" if groups == 1 else f"{STAGE}.rid//{groups} AND {STAGE}.rid%{groups}={group}"
    return (
        f"UPDATE {table.shape.qualified} AS {TARGET} SET {values} FROM {table.log} AS {STAGE} "
        f"WHERE {STAGE}.lsn>{BASE} AND {STAGE}.lsn<={UPPER} AND {TARGET}.rowid={rid}"
    )


def apply_delete(table: CapturedTable, groups: int = 1) -> str:
    """Delete the rows that the log says; `groups` as in `apply_update`."""
    rid = f"{STAGE}.rid" if groups == 1 else f"{STAGE}.rid//{groups}"
    return (
        f"DELETE FROM {table.shape.qualified} AS {TARGET} USING {table.log} AS {STAGE} "
        f"WHERE {STAGE}.lsn>{BASE} AND {STAGE}.lsn<={UPPER} AND {STAGE}.op='d' AND {TARGET}.rowid={rid}"
    )


def apply_insert(table: CapturedTable) -> str:
    """Insert the rows that were not there."""
    return (
        f"INSERT INTO {table.shape.qualified}({stored_names(table.shape)}) "
        f"SELECT {images('n', table.shape)} FROM {table.log} "
        f"WHERE lsn>{BASE} AND lsn<={UPPER} AND op='i' AND rid IS NULL"
    )


def split_deletes(table: CapturedTable) -> str:
    """SELECT of the number of deletes that are half of an update."""
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

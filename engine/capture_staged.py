"""Shapes B and C: the log is written first, from a SELECT that works out the old and new rows.

In shape B the user's own statement then runs as it is, and its row count must be the log's. It is
for what is surely deterministic, so that both see the same values. In shape C the log is the
staging table: what it holds is applied to the table by row id, so that what is volatile is
evaluated once.

An update that changes a column of `split_on` is logged as a delete and an insert. All deletes of a
statement come first, then updates, then inserts: no other order folds a swap of two keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from .capture_bulk import given_places
from .capture_description import (
    BASE,
    PROPOSED,
    PROPOSED_PREFIX,
    TXID,
    UPPER,
    Assignment,
    CapturedTable,
    Conflict,
    Dml,
    Plan,
    Shape,
)
from .capture_rows import (
    STAGE,
    TARGET,
    conflict_hash,
    image_as_table,
    images,
    logged,
    partition_hash,
    partition_hash_of,
    stored_names,
)
from .determinism import compares_inexactly
from .errors import InternalError
from .quoting import ident
from .table import RESERVED_PREFIX, Column, TableShape

_RID = f"{RESERVED_PREFIX}_rid"
_PLACE = f"{RESERVED_PREFIX}_place"


@dataclass(frozen=True, slots=True)
class _Stage:
    """The SELECT that finds the rows which a statement touches.

    Args:
        with_text: the user's common table expressions, or ''.
        old, new: an SQL expression for each stored column, over `source`.
        rid: expression of the row id, NULL for a row that is not there yet.
        place: expression of a proposed row's place in the source, or '' where there is one row.
        source: what stands behind FROM, WHERE included.
        once: a row may be found more than once, and counts once.
        old_text, new_text: shorter texts of all of `old` and `new`, or ''.
    """

    with_text: str
    old: list[str]
    new: list[str]
    rid: str
    place: str
    source: str
    once: bool = False
    old_text: str = ""
    new_text: str = ""


def plan_update(dml: Dml, table: CapturedTable, deterministic: bool, few: bool) -> Plan:
    """Plan an UPDATE, in shape B where it is deterministic, else in shape C."""
    shape = table.shape
    relation = dml.relation
    sets = _by_position(shape, dml.sets)
    old = [f"{relation}.{ident(column.name)}" for column in shape.stored]
    new = [_assigned(shape.stored[i], sets[i]) if i in sets else old[i] for i in range(len(old))]
    rid = f"{relation}.rowid"
    target = f"{dml.target} AS {dml.alias}" if dml.alias else dml.target
    source = target + (f",{dml.source}" if dml.source else "") + (f" WHERE {dml.where}" if dml.where else "")
    once = dml.source is not None
    old_text, new_text = ("", "") if shape.generated else _starred(relation, shape, sets, new)
    stage = _Stage(dml.with_text, old, new, rid, "", source, once, old_text, new_text)
    return _plan(dml, table, stage, sets, deterministic, few, may_insert=False)


def _starred(
    relation: str, shape: TableShape, sets: dict[int, str | None], new: list[str]
) -> tuple[str, str]:
    """The images as `t.*`: DuckDB's parser takes twice as long over the columns' names."""
    replaced = ",".join(f"{new[i]} AS {ident(shape.stored[i].name)}" for i in sets)
    return f"{relation}.*", f"{relation}.* REPLACE ({replaced})"


def plan_upsert(dml: Dml, table: CapturedTable, deterministic: bool, few: bool) -> Plan:
    """Plan INSERT ... ON CONFLICT DO UPDATE and INSERT OR REPLACE, in shape B or C."""
    assert dml.conflict is not None
    shape, conflict = table.shape, dml.conflict
    listed = given_places(dml, shape)
    keys = _conflict_columns(conflict, shape)
    sets = _by_position(shape, _upsert_sets(conflict, shape, listed, keys))
    # The alias is needed only where the user's own text names it.
    relation = dml.relation
    rid = f"{relation}.rowid"
    proposed = [f"{PROPOSED}.{ident(PROPOSED_PREFIX + column.name)}" for column in shape.stored]
    old = [f"{relation}.{ident(column.name)}" for column in shape.stored]
    updated = [_assigned(shape.stored[i], sets[i]) if i in sets else old[i] for i in range(len(old))]
    new = [
        theirs if theirs == ours else f"CASE WHEN {rid} IS NULL THEN {theirs} ELSE {ours} END"
        for theirs, ours in zip(proposed, updated, strict=True)
    ]
    place = f"{PROPOSED}.{_PLACE}" if _has_places(dml) else ""
    joined = " AND ".join(
        f"{relation}.{ident(shape.stored[i].name)}={proposed[i]}" for i in (shape.place(key) for key in keys)
    )
    name = f"{dml.target} AS {relation}" if dml.alias else dml.target
    source = f"({_proposed_rows(dml, shape, listed, keys)}) AS {PROPOSED} LEFT JOIN {name} ON {joined}"
    if conflict.where is not None:
        source += f" WHERE {rid} IS NULL OR ({conflict.where})"
    stage = _Stage(dml.with_text, old, new, rid, place, source)
    return _plan(dml, table, stage, sets, deterministic, few, may_insert=True)


def _by_position(shape: TableShape, sets: tuple[Assignment, ...]) -> dict[int, str | None]:
    return {shape.place(name): value for name, value in sets}


def _assigned(column: Column, value: str | None) -> str:
    """An assignment's value as the column stores it."""
    expression = (column.default or "NULL") if value is None else value
    return f"({expression})::{column.type}"


def _conflict_columns(conflict: Conflict, shape: TableShape) -> tuple[str, ...]:
    if conflict.target is not None:
        return conflict.target
    if len(shape.unique) != 1:
        # DuckDB refuses the statement when it binds it, which comes before planning.
        raise InternalError("an upsert without a conflict target on a table with several unique keys")
    return shape.unique[0]


def _upsert_sets(
    conflict: Conflict, shape: TableShape, listed: tuple[int, ...], keys: tuple[str, ...]
) -> tuple[Assignment, ...]:
    """The assignments; OR REPLACE sets every listed column that is not of the key."""
    if not conflict.replaces:
        return conflict.sets
    key_places = {shape.place(key) for key in keys}
    names = [shape.stored[place].name for place in listed if place not in key_places]
    return tuple((name, f"{PROPOSED}.{ident(PROPOSED_PREFIX + name)}") for name in names)


def _has_places(dml: Dml) -> bool:
    return dml.row_count != 1


def _proposed_rows(dml: Dml, shape: TableShape, listed: tuple[int, ...], keys: tuple[str, ...]) -> str:
    """A SELECT of the rows that the INSERT proposes, of one key the first one alone.

    Each value is cast on its own: a VALUES list would first give all its rows one type.
    """
    names = [f"{RESERVED_PREFIX}_v{i}" for i in range(len(listed))]
    given = dict(zip(listed, names, strict=True))
    selected = []
    for place, column in enumerate(shape.stored):
        value = given.get(place)
        value = f"({column.default or 'NULL'})" if value is None else value
        selected.append(f"{value}::{column.type} AS {ident(PROPOSED_PREFIX + column.name)}")
    if dml.rows is None:
        rows = f"({dml.query}) AS {RESERVED_PREFIX}_q({','.join(names)})"
    elif not names:
        rows = ""
    else:
        texts = (_row(row, listed, shape) for row in dml.rows)
        rows = f"(VALUES {','.join(texts)}) AS {RESERVED_PREFIX}_q({','.join(names)})"
    source = f" FROM {rows}" if rows else ""
    if not _has_places(dml):
        return f"SELECT {','.join(selected)}{source}"
    numbered = f"SELECT row_number() OVER () AS {_PLACE},{','.join(selected)}{source}"
    key = ",".join(ident(PROPOSED_PREFIX + shape.stored[shape.place(name)].name) for name in keys)
    # Not row_number() = 1: DuckDB 2.0.0 makes a sort key of the whole row then, and -0.0 loses its sign.
    return f"SELECT * FROM ({numbered}) QUALIFY min({_PLACE}) OVER (PARTITION BY {key})={_PLACE}"


def _row(row: tuple[str | None, ...], listed: tuple[int, ...], shape: TableShape) -> str:
    values = (_assigned(shape.stored[place], value) for place, value in zip(listed, row, strict=True))
    return f"({','.join(values)})"


def _plan(
    dml: Dml,
    table: CapturedTable,
    stage: _Stage,
    sets: dict[int, str | None],
    deterministic: bool,
    few: bool,
    may_insert: bool,
) -> Plan:
    shape = table.shape
    split = [i for i in sets if shape.stored[i].name in table.split_on]
    inexact = [i for i in sets if compares_inexactly(shape.stored[i])] if not deterministic else []
    if split or inexact or stage.once or (may_insert and not deterministic):
        select = _log_from_stage(table, stage, split, inexact, may_insert)
    else:
        select = _log_direct(table, stage, may_insert, needs_rid=not deterministic)
    key = conflict_hash("" if may_insert or split else "u", shape) or "NULL"
    entry = f"op,rid IS NULL,{key}" if may_insert or split else f"'u',false,{key}"
    returning = None
    if dml.returning is not None:
        image = image_as_table("n", shape, logged(table, " AND op<>'d'" if split else ""))
        returning = f"SELECT {dml.returning} FROM ({image}) AS {dml.relation}"
    return Plan(
        shape=Shape.LOG_FIRST if deterministic else Shape.STAGED,
        log=select + (f" RETURNING {entry}" if few else ""),
        lists_entries=few,
        entries=f"SELECT {entry} FROM {logged(table)}",
        verbatim=dml.text if deterministic else None,
        update=None if deterministic or not sets else _apply_update(table, sets),
        insert=None if deterministic or not may_insert else _apply_insert(table),
        returning=returning,
        deletes=f"SELECT count(*) FROM {logged(table)} AND op='d'" if split else None,
        sliceable=not deterministic and not shape.unique_expressions and not _touches_unique(shape, sets),
    )


def _touches_unique(shape: TableShape, sets: dict[int, str | None]) -> bool:
    named = {shape.stored[i].name for i in sets}
    return any(named & set(columns) for columns in shape.unique)


def _head(table: CapturedTable, stage: _Stage) -> str:
    columns = f"{images('o', table.shape)},{images('n', table.shape)}"
    head = f"INSERT INTO {table.log}(lsn,txid,op,rid,key_hash,key_change,{columns})"
    return f"{head} {stage.with_text}" if stage.with_text else head


def _log_direct(table: CapturedTable, stage: _Stage, may_insert: bool, needs_rid: bool) -> str:
    """The log's INSERT where each touched row is one event and is evaluated once."""
    op, order = "'u'", ""
    if may_insert:
        op = f"CASE WHEN {stage.rid} IS NULL THEN 'i' ELSE 'u' END"
        order = f"ORDER BY {stage.rid} IS NULL,{stage.place}" if stage.place else ""
    rid = stage.rid if needs_rid or may_insert else "NULL"
    old = stage.old_text or ",".join(stage.old)
    new = stage.new_text or ",".join(stage.new)
    return (
        f"{_head(table, stage)} SELECT {BASE}+row_number() OVER ({order}),{TXID},{op},{rid},"
        f"{partition_hash_of(stage.new, table.shape)},NULL,{old},{new} "
        f"FROM {stage.source}"
    )


def _log_from_stage(
    table: CapturedTable, stage: _Stage, split: list[int], inexact: list[int], may_insert: bool
) -> str:
    """The log's INSERT by way of a materialized stage.

    It is needed where a new value is looked at twice (does the key change, is it equal to the old
    one): a volatile one must not be evaluated twice. Events get their numbers by counting, each
    sort of event behind the one before it: sorting rows as wide as these takes ten times as long.
    """
    shape = table.shape
    values = [f"{x} AS o{i}" for i, x in enumerate(stage.old, start=1)]
    values += [f"{x} AS n{i}" for i, x in enumerate(stage.new, start=1)]
    place = ",row_number() OVER () AS place" if stage.once else ""
    staged = f"SELECT {stage.rid} AS rid{place},{','.join(values)} FROM {stage.source}"
    # Not DISTINCT ON: it makes sort keys of nested values, and a -0.0 in them loses its sign.
    once = " QUALIFY min(place) OVER (PARTITION BY rid)=place" if stage.once else ""
    kept = [
        f"CASE WHEN rid IS NOT NULL AND n{i} IS NOT DISTINCT FROM o{i} THEN o{i} ELSE n{i} END AS n{i}"
        for i in (place + 1 for place in inexact)
    ]
    replaced = f" REPLACE ({','.join(kept)})" if kept else ""
    changes = " OR ".join(_differs(place + 1, shape.stored[place]) for place in split)
    sort = (
        "CASE WHEN rid IS NULL THEN 'i'" + (f" WHEN {changes} THEN 'c'" if changes else "") + " ELSE 'u' END"
    )
    with_text = f"{stage.with_text}," if stage.with_text else "WITH "
    counted = ",".join(
        f"count(*) FILTER (WHERE sort='{x}') OVER (ROWS UNBOUNDED PRECEDING) AS {x}" for x in "cui"
    )
    head = _head(table, _Stage("", [], [], "", "", ""))
    return (
        f"{head} {with_text}{STAGE}_0 AS MATERIALIZED ({staged}),"
        f"{STAGE} AS MATERIALIZED (SELECT *,{counted} FROM "
        f"(SELECT *{replaced},{sort} AS sort FROM {STAGE}_0{once})) "
        + " UNION ALL ".join(_parts(shape, bool(split), may_insert))
    )


def _differs(place: int, column: Column) -> str:
    """Whether a column's old and new value are two; texts byte by byte, whatever its collation."""
    if column.type != "VARCHAR":
        return f"o{place} IS DISTINCT FROM n{place}"
    return f"encode(o{place}) IS DISTINCT FROM encode(n{place})"


def _parts(shape: TableShape, may_split: bool, may_insert: bool) -> list[str]:
    """The SELECTs of the log's rows from the stage: deletes, updates, inserts.

    A row of sort 'c' changes its key: it is a delete of the old row, which has no row id so that
    nothing is applied, and an insert of the new one.
    """
    old, new = images("o", shape), images("n", shape)
    pairs = f"(SELECT count(*) FROM {STAGE} WHERE sort='c')"
    updates = f"(SELECT count(*) FROM {STAGE} WHERE sort='u')"
    parts = []
    if may_split:
        parts.append(
            _part(f"{BASE}+c", "d", "NULL", partition_hash("o", shape), "c", old, _nulls(shape), "c")
        )
    number = f"{BASE}+{pairs}+u" if may_split else f"{BASE}+u"
    parts.append(_part(number, "u", "rid", partition_hash("n", shape), "NULL", old, new, "u"))
    if may_split:
        number = f"{BASE}+{pairs}+{updates}+c"
        parts.append(_part(number, "i", "rid", partition_hash("n", shape), "c", _nulls(shape), new, "c"))
    if may_insert:
        number = f"{BASE}+2*{pairs}+{updates}+i" if may_split else f"{BASE}+{updates}+i"
        parts.append(_part(number, "i", "NULL", partition_hash("n", shape), "NULL", old, new, "i"))
    return parts


def _part(lsn: str, op: str, rid: str, key_hash: str, pair: str, old: str, new: str, sort: str) -> str:
    row = f"{lsn},{TXID},'{op}',{rid}::BIGINT,{key_hash},{pair}::INTEGER,{old},{new}"
    return f"SELECT {row} FROM {STAGE} WHERE sort='{sort}'"


def _nulls(shape: TableShape) -> str:
    return ",".join(["NULL"] * len(shape.stored))


def _apply_update(table: CapturedTable, sets: dict[int, str | None]) -> str:
    """Set the touched rows to what the log says; a split update's row id is on its insert."""
    values = ",".join(f"{ident(table.shape.stored[i].name)}={STAGE}.n{i + 1}" for i in sets)
    return (
        f"UPDATE {table.shape.qualified} AS {TARGET} SET {values} FROM {table.log} AS {STAGE} "
        f"WHERE {STAGE}.lsn>{BASE} AND {STAGE}.lsn<={UPPER} AND {TARGET}.rowid={STAGE}.rid"
    )


def _apply_insert(table: CapturedTable) -> str:
    """Insert the rows that were not there."""
    return (
        f"INSERT INTO {table.shape.qualified}({stored_names(table.shape)}) "
        f"SELECT {images('n', table.shape)} FROM {table.log} "
        f"WHERE lsn>{BASE} AND lsn<={UPPER} AND op='i' AND rid IS NULL"
    )

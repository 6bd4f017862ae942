"""The three shapes of a captured statement: how one statement writes both its table and the log.

Shape A puts the user's own INSERT or DELETE into one statement with the log:

    WITH w(n1, ..) AS (<the user's text> RETURNING "c1", ..)
    INSERT INTO log (..) SELECT base + row_number() OVER (), .. FROM w

RETURNING yields the stored rows: defaults, sequences and random values are evaluated once. Every read of the
user's text is an ancestor of the write to the log, which makes two writes in one statement safe: the parts of
a CTE have no other order. With RETURNING the log's INSERT becomes a CTE too, and the user's list is selected
from the rows that it returns. The first column is a BIGINT, because DuckDB's client reads row 0, column 0 of
such a statement as a count. The row id that DELETE ... RETURNING may use is taken from the log.

Shapes B and C write the log first, from a SELECT of the old and new rows: of an UPDATE, the before image and
the after image (`plan_update`). In shape B the user's own statement then runs unchanged, and its row count
must be the log's. Shape B is for statements that are certainly deterministic, so that both evaluations see
the same values. In shape C the log is the staging table: its rows are applied to the table by row id, so that
volatile expressions are evaluated once.

An INSERT ... SELECT that can run twice takes shape B: a SELECT over one base table without volatile
expressions, so that both runs return the same rows. In bulk this takes two thirds of the time of shape A,
which must return every row of the table's INSERT and hash its key.

An update that changes a column of `split_on` is logged as a delete and an insert. All deletes of a statement
come first, then updates, then inserts: only this order folds a swap of two keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..duck.determinism import compares_inexactly, goes_by_names
from ..duck.table_shape import RESERVED_PREFIX, Column, TableShape
from ..errors import InternalError
from ..quoting import ident
from .log_sql import (
    LOGGED,
    TARGET,
    WRITTEN,
    apply_insert,
    apply_update,
    assigned,
    by_position,
    conflict_hash,
    conflict_hash_by_name,
    image_as_table,
    images,
    key_changes,
    log_from_stage,
    log_head,
    logged,
    partition_hash,
    partition_hash_of,
    split_deletes,
    stored_names,
    touches_unique,
)
from .plan import (
    BASE,
    PROPOSED,
    PROPOSED_PREFIX,
    TXID,
    Assignment,
    CapturedTable,
    Conflict,
    Dml,
    Plan,
    Shape,
    Step,
    Verb,
)

_SOURCE = f"{RESERVED_PREFIX}_q"
_ROWS = f"{RESERVED_PREFIX}_w"
_PLACE = f"{RESERVED_PREFIX}_place"
_TARGET = f"{RESERVED_PREFIX}_target"
_Stated = tuple[list[str], list[str], str, str]


def plan_verbatim(dml: Dml, table: CapturedTable, few: bool, *, separate: bool = False) -> Plan:
    """Plan an INSERT without DO UPDATE, or a DELETE.

    Args:
        few: True if few rows are expected, so that the log's INSERT may return the key of each.
        separate: each event belongs to a transaction of its own, numbered in their order.
    """
    shape = table.shape
    side, op = ("n", "i") if dml.verb is Verb.INSERT else ("o", "d")
    columns = images(side, shape)
    one_row = dml.row_count == 1
    number = BASE + ("+1" if one_row else "+row_number() OVER ()")
    txid = f"{TXID}-1+row_number() OVER ()" if separate else TXID
    key = conflict_hash(op, shape)
    rid, rowid = (",rid", ",rowid") if dml.names_hidden else ("", "")
    written = f"{WRITTEN}({columns}{rid}) AS ({dml.text} RETURNING {stored_names(shape)}{rowid})"
    insert = (
        f"INSERT INTO {table.log}(lsn,txid,op,key_hash,{columns}{rid}) "
        f"SELECT {number},{txid},'{op}',{partition_hash(side, shape)},{columns}{rid} FROM {WRITTEN}"
    )
    entries = f"SELECT {key} FROM {logged(table)}" if key else None
    if dml.returning is None:
        listed = few and key is not None
        text = f"WITH {written} {insert}" + (f" RETURNING {key}" if listed else "")
        return Plan(Shape.VERBATIM, text, listed, entries, one_row, inserts=op == "i", deletes=op == "d")
    image = image_as_table(side, shape, LOGGED, rid.lstrip(","))
    named_key = f"{conflict_hash_by_name(shape)}," if key else ""
    text = (
        f"WITH {written},{LOGGED} AS ({insert} RETURNING {columns}{rid}) "
        f"SELECT 0::BIGINT,{named_key}{dml.returning} FROM ({image}) AS {dml.relation}"
    )
    inserts = op == "i"
    return Plan(
        Shape.VERBATIM, text, False, entries, one_row, gives_rows=True, inserts=inserts, deletes=not inserts
    )


def given_places(dml: Dml, shape: TableShape) -> tuple[int, ...]:
    """The positions of the stored columns that the source supplies, in the source's order."""
    if dml.rows == ((),):
        return ()
    if dml.columns is None:
        return tuple(range(len(shape.stored)))
    return tuple(shape.place(name) for name in dml.columns)


def default_texts(dml: Dml, shape: TableShape) -> list[str]:
    """The defaults of the columns that the source does not supply."""
    given = set(given_places(dml, shape))
    return [c.default for i, c in enumerate(shape.stored) if i not in given and c.default is not None]


def plan_repeatable(dml: Dml, table: CapturedTable) -> Plan:
    """Plan an INSERT whose query returns the same rows when it runs twice."""
    shape = table.shape
    given = given_places(dml, shape)
    names = {place: f"{RESERVED_PREFIX}_v{i}" for i, place in enumerate(given)}
    values = [
        f"({names.get(place) or column.default or 'NULL'})::{column.type} AS n{place + 1}"
        for place, column in enumerate(shape.stored)
    ]
    columns = images("n", shape)
    source = f"({dml.query}) AS {_SOURCE}({','.join(names[place] for place in given)})"
    key = conflict_hash("i", shape)
    return Plan(
        shape=Shape.LOG_FIRST,
        log=f"INSERT INTO {table.log}(lsn,txid,op,key_hash,{columns}) "
        f"SELECT {BASE}+row_number() OVER (),{TXID},'i',{partition_hash('n', shape)},{columns} "
        f"FROM (SELECT {','.join(values)} FROM {source}) AS {_ROWS}",
        lists_entries=False,
        entries=f"SELECT 'i',false,{key} FROM {logged(table)}" if key else None,
        verbatim=dml.text,
        inserts=True,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """The SELECT of the rows that a statement touches.

    Args:
        with_text: the user's common table expressions, or ''.
        old, new: an SQL expression for each stored column, over `source`.
        rid: expression of the row id, NULL for a row that does not exist yet.
        place: expression of a proposed row's position in the source, or '' if there is one row.
        source: the SQL behind FROM, including WHERE.
        once: a row may be found several times, and counts once.
        one_row: at most one row is found.
        old_text, new_text: shorter texts of all of `old` and `new`, or ''.
        unnamed: expressions get no alias, because a value may depend on it.
    """

    with_text: str
    old: list[str]
    new: list[str]
    rid: str
    place: str
    source: str
    once: bool = False
    one_row: bool = False
    old_text: str = ""
    new_text: str = ""
    unnamed: bool = False


def plan_update(dml: Dml, table: CapturedTable, deterministic: bool, few: bool) -> Plan:
    """Plan an UPDATE, in shape B if it is deterministic, else in shape C."""
    shape = table.shape
    relation = dml.relation
    sets = by_position(shape, dml.sets)
    old = [f"{relation}.{ident(column.name)}" for column in shape.stored]
    new = [assigned(shape.stored[i], sets[i]) if i in sets else old[i] for i in range(len(old))]
    rid = f"{relation}.rowid"
    target = f"{dml.target} AS {dml.alias}" if dml.alias else dml.target
    source = target + (f",{dml.source}" if dml.source else "") + (f" WHERE {dml.where}" if dml.where else "")
    once = dml.source is not None
    unnamed = goes_by_names(dml.calls)
    old_text, new_text = ("", "") if shape.generated or unnamed else _starred(relation, shape, sets, new)
    stage = _Stage(
        dml.with_text,
        old,
        new,
        rid,
        "",
        source,
        once=once,
        old_text=old_text,
        new_text=new_text,
        unnamed=unnamed,
    )
    return _plan(dml, table, stage, sets, deterministic, few, may_insert=False)


def plan_updates(
    table: CapturedTable, sets: dict[int, str], keys: dict[int, str], source: str, place: str
) -> Plan:
    """Plan UPDATEs of one row each, found by the primary key, each of them a transaction of its own.

    No two of them find the same row; an UPDATE that finds none has no event.

    Args:
        sets: position of a stored column -> its new value, over `source`; no column of a key.
        keys: position of each column of the primary key -> its value, over `source`.
        source: the SQL behind FROM: a relation with a row for each UPDATE.
        place: the column of `source` with the position of an UPDATE; the events have this order.
    """
    shape = table.shape
    old = [f"{TARGET}.{ident(column.name)}" for column in shape.stored]
    new = list(old)
    for i, value in sets.items():
        column = shape.stored[i]
        new[i] = _kept_if_equal(column, assigned(column, value), old[i])
    found = " AND ".join(f"{old[i]}={value}" for i, value in keys.items())
    return _plan_separate(
        table,
        "'u'",
        f"'u',false,{conflict_hash('u', shape)}",
        (old, new),
        f"{shape.qualified} AS {TARGET},{source} WHERE {found}",
        (("u", apply_update(table, sets)),),
        order=f"ORDER BY {place}",
    )


def plan_upserts(table: CapturedTable, values: dict[int, str], sets: dict[int, int], source: str) -> Plan:
    """Plan upserts of one row each by the primary key, each of them a transaction of its own.

    No two of them have the same key.

    Args:
        values: position of a stored column -> its proposed value, over `source`; others have their default.
        sets: position of a column that is set in a row that exists -> position of the proposed value; no
            column of a key.
        source: the SQL behind FROM: a relation with a row for each upsert.
    """
    shape = table.shape
    proposed = [f"{PROPOSED}.p{i}" for i in range(len(shape.stored))]
    given = (
        f"{column.collated(assigned(column, values.get(i)))} AS p{i}" for i, column in enumerate(shape.stored)
    )
    old = [f"{TARGET}.{ident(column.name)}" for column in shape.stored]
    new = []
    for i, column in enumerate(shape.stored):
        kept = old[i]
        if i in sets:
            kept = _kept_if_equal(column, assigned(column, proposed[sets[i]]), old[i])
        new.append(f"CASE WHEN {TARGET}.rowid IS NULL THEN {proposed[i]} ELSE {kept} END")
    found = " AND ".join(f"{old[i]}={proposed[i]}" for i in map(shape.place, shape.primary_key))
    return _plan_separate(
        table,
        "CASE WHEN rid IS NULL THEN 'i' ELSE 'u' END",
        f"op,rid IS NULL,{conflict_hash('', shape)}",
        (old, new),
        f"(SELECT {','.join(given)} FROM {source}) AS {PROPOSED} LEFT JOIN {shape.qualified} AS {TARGET} "
        f"ON {found}",
        (("u", apply_update(table, sets)), ("i", apply_insert(table))),
    )


def _kept_if_equal(column: Column, value: str, old: str) -> str:
    """SQL of an assigned value: DuckDB leaves an equal one as it is, even if it looks different."""
    if not compares_inexactly(column):
        return value
    return f"CASE WHEN {value} IS NOT DISTINCT FROM {old} THEN {old} ELSE {value} END"


def _plan_separate(
    table: CapturedTable,
    op: str,
    entry: str,
    values: tuple[list[str], list[str]],
    source: str,
    steps: tuple[Step, ...],
    order: str = "",
) -> Plan:
    """The plan, in shape C, of writes of one row each, each of them a transaction of its own.

    Args:
        op: the op of an event, which may depend on `rid`, the row id.
        entry: the entry of an event.
        values: the old and the new value of each stored column, over `source`.
        source: the SQL behind FROM, in which TARGET is the table.
        order: the order of the events.
    """
    shape = table.shape
    staged = [f"{x} AS {side}{i}" for side, xs in zip("on", values, strict=True) for i, x in enumerate(xs, 1)]
    log = (
        f"{log_head(table)} SELECT {BASE}+k,{TXID}-1+k,{op},rid,{partition_hash('n', shape)},NULL,"
        f"{images('o', shape)},{images('n', shape)} FROM (SELECT row_number() OVER ({order}) AS k,"
        f"{TARGET}.rowid AS rid,{','.join(staged)} FROM {source}) RETURNING {entry}"
    )
    return Plan(
        shape=Shape.STAGED,
        log=log,
        lists_entries=True,
        entries=f"SELECT {entry} FROM {logged(table)}",
        steps=steps,
    )


def _starred(
    relation: str, shape: TableShape, sets: dict[int, str | None], new: list[str]
) -> tuple[str, str]:
    """The images as `t.*`: DuckDB's parser takes twice as long for the columns' names."""
    replaced = ",".join(f"{new[i]} AS {ident(shape.stored[i].name)}" for i in sets)
    return f"{relation}.*", f"{relation}.* REPLACE ({replaced})"


def plan_upsert(dml: Dml, table: CapturedTable, deterministic: bool, few: bool) -> Plan:
    """Plan INSERT ... ON CONFLICT DO UPDATE and INSERT OR REPLACE, in shape B or C."""
    assert dml.conflict is not None
    shape, conflict = table.shape, dml.conflict
    listed = given_places(dml, shape)
    keys = _conflict_columns(conflict, shape)
    sets = by_position(shape, _upsert_sets(conflict, shape, listed, keys))
    by_names = goes_by_names(dml.calls)
    rows = _proposed_rows(dml, shape, listed, keys, bare=deterministic and not by_names)
    place = f"{PROPOSED}.{_PLACE}" if _has_places(dml) else ""
    parts = _Parts(dml, conflict, shape, rows, sets, keys)
    old, new, rid, source = _by_names(parts) if by_names and not conflict.replaces else _renamed(parts)
    stage = _Stage(dml.with_text, old, new, rid, place, source, one_row=not _has_places(dml))
    return _plan(dml, table, stage, sets, deterministic, few, may_insert=True)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of the stage of an upsert.

    Args:
        rows: the query of the proposed rows.
        sets: position of a stored column -> its assigned expression; None for its default.
        keys: the columns of the conflict.
    """

    dml: Dml
    conflict: Conflict
    shape: TableShape
    rows: str
    sets: dict[int, str | None]
    keys: tuple[str, ...]

    @property
    def proposed(self) -> list[str]:
        """The proposed value of each stored column."""
        return [f"{PROPOSED}.{ident(PROPOSED_PREFIX + column.name)}" for column in self.shape.stored]

    def joined(self, relation: str) -> str:
        """SQL boolean: the key of a proposed row equals the key of the table's row."""
        places, proposed = [self.shape.place(key) for key in self.keys], self.proposed
        names = self.shape.stored
        return " AND ".join(f"{relation}.{ident(names[i].name)}={proposed[i]}" for i in places)


def _renamed(parts: _Parts) -> _Stated:
    """The images, row id and source: `excluded.c` has a name of ours beside the table's c."""
    dml, shape, conflict, sets = parts.dml, parts.shape, parts.conflict, parts.sets
    # The alias is needed only if the user's own text uses it.
    relation = dml.relation
    rid = f"{relation}.rowid"
    old = [f"{relation}.{ident(column.name)}" for column in shape.stored]
    updated = [assigned(shape.stored[i], sets[i]) if i in sets else old[i] for i in range(len(old))]
    new = [
        theirs if theirs == ours else f"CASE WHEN {rid} IS NULL THEN {theirs} ELSE {ours} END"
        for theirs, ours in zip(parts.proposed, updated, strict=True)
    ]
    name = f"{dml.target} AS {relation}" if dml.alias else dml.target
    source = f"({parts.rows}) AS {PROPOSED} LEFT JOIN {name} ON {parts.joined(relation)}"
    if conflict.where is not None:
        source += f" WHERE {rid} IS NULL OR ({conflict.where})"
    return old, new, rid, source


def _by_names(parts: _Parts) -> _Stated:
    """The images, row id and source if a value may depend on the names of its parts.

    The user's own text is evaluated in a scope where the table and `excluded` have their own columns: a
    lateral query over the table's row, whose names precede those of the enclosing `excluded`. That costs a
    join.
    """
    dml, shape, conflict = parts.dml, parts.shape, parts.conflict
    rid, values = f"{_TARGET}.rowid", f"{RESERVED_PREFIX}_values"
    old = [f"{_TARGET}.{ident(column.name)}" for column in shape.stored]
    proposed = parts.proposed
    new = [
        f"CASE WHEN {rid} IS NULL THEN {theirs} ELSE {ours} END"
        for theirs, ours in zip(proposed, old, strict=True)
    ]
    texts, names = [], []
    for i, value in by_position(shape, conflict.sets_as_written).items():
        value = assigned(shape.stored[i], value)
        texts.append(f"CASE WHEN {rid} IS NULL THEN {proposed[i]} ELSE {value} END")
        names.append(f"n{i}")
        new[i] = f"{values}.n{i}"
    where = ""
    if conflict.where_as_written is not None:
        texts.append(f"{rid} IS NULL OR ({conflict.where_as_written})")
        names.append("kept")
        where = f" WHERE {values}.kept"
    theirs = ",".join(f"{x} AS {ident(c.name)}" for x, c in zip(proposed, shape.stored, strict=True))
    here = ",".join(f"{_TARGET}.{ident(name)}" for name in (*shape.column_order, "rowid"))
    worked_out = f"SELECT {','.join(texts)} FROM (SELECT {here}) AS {dml.relation}"
    source = (
        f"({parts.rows}) AS {PROPOSED} LEFT JOIN {dml.target} AS {_TARGET} ON {parts.joined(_TARGET)},"
        f"LATERAL (SELECT {theirs}) AS excluded,LATERAL ({worked_out}) AS {values}({','.join(names)}){where}"
    )
    return old, new, rid, source


def _conflict_columns(conflict: Conflict, shape: TableShape) -> tuple[str, ...]:
    if conflict.target is not None:
        return conflict.target
    if len(shape.unique) != 1:
        # DuckDB has refused the statement when it bound it, before planning.
        raise InternalError("an upsert without a conflict target on a table with several unique keys")
    return shape.unique[0]


def _upsert_sets(
    conflict: Conflict, shape: TableShape, listed: tuple[int, ...], keys: tuple[str, ...]
) -> tuple[Assignment, ...]:
    """The assignments of an upsert; OR REPLACE sets every listed column that is not part of the key."""
    if not conflict.replaces:
        return conflict.sets
    key_places = {shape.place(key) for key in keys}
    names = [shape.stored[place].name for place in listed if place not in key_places]
    return tuple((name, f"{PROPOSED}.{ident(PROPOSED_PREFIX + name)}") for name in names)


def _has_places(dml: Dml) -> bool:
    return dml.row_count != 1


def _proposed_rows(
    dml: Dml, shape: TableShape, listed: tuple[int, ...], keys: tuple[str, ...], *, bare: bool
) -> str:
    """A SELECT of the rows that the INSERT proposes; of several rows with one key only the first.

    Each value is cast on its own: a VALUES list would first give all its rows one type.

    Args:
        bare: the expressions of a single row may get other names and be evaluated twice.
    """
    names = [f"{RESERVED_PREFIX}_v{i}" for i in range(len(listed))]
    if dml.rows is None:
        rows = f"({dml.query}) AS {RESERVED_PREFIX}_q({','.join(names)})"
    elif bare and len(dml.rows) == 1:
        # DuckDB plans one row sooner without VALUES around it.
        names, rows = [f"({value})" for value in _values(dml.rows[0], listed, shape)], ""
    elif not names:
        rows = ""
    else:
        texts = (f"({','.join(_values(row, listed, shape))})" for row in dml.rows)
        rows = f"(VALUES {','.join(texts)}) AS {RESERVED_PREFIX}_q({','.join(names)})"
    given = dict(zip(listed, names, strict=True))
    selected = []
    for place, column in enumerate(shape.stored):
        value = given.get(place)
        value = f"({column.default or 'NULL'})" if value is None else value
        value = column.collated(f"{value}::{column.type}")
        selected.append(f"{value} AS {ident(PROPOSED_PREFIX + column.name)}")
    source = f" FROM {rows}" if rows else ""
    if not _has_places(dml):
        return f"SELECT {','.join(selected)}{source}"
    numbered = f"SELECT row_number() OVER () AS {_PLACE},{','.join(selected)}{source}"
    key = ",".join(ident(PROPOSED_PREFIX + shape.stored[shape.place(name)].name) for name in keys)
    # Not row_number() = 1: DuckDB 2.0.0 makes a sort key of the whole row then, and -0.0 loses its sign.
    return f"SELECT * FROM ({numbered}) QUALIFY min({_PLACE}) OVER (PARTITION BY {key})={_PLACE}"


def _values(row: tuple[str | None, ...], listed: tuple[int, ...], shape: TableShape) -> list[str]:
    return [assigned(shape.stored[place], value) for place, value in zip(listed, row, strict=True)]


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
        steps=() if deterministic else _steps(table, sets, may_insert),
        applies_all=bool(sets),
        returning=returning,
        split_deletes=split_deletes(table) if split else None,
        sliceable=not deterministic and not shape.unique_expressions and not touches_unique(shape, sets),
    )


def _steps(table: CapturedTable, sets: dict[int, str | None], may_insert: bool) -> tuple[Step, ...]:
    updates = (("u", apply_update(table, sets)),) if sets else ()
    return (*updates, ("i", apply_insert(table))) if may_insert else updates


def _log_direct(table: CapturedTable, stage: _Stage, may_insert: bool, needs_rid: bool) -> str:
    """The log's INSERT if each touched row is one event and is evaluated once."""
    op, order = "'u'", ""
    if may_insert:
        op = f"CASE WHEN {stage.rid} IS NULL THEN 'i' ELSE 'u' END"
        order = f"ORDER BY {stage.rid} IS NULL,{stage.place}" if stage.place else ""
    rid = stage.rid if needs_rid or may_insert else "NULL"
    number = "1" if stage.one_row else f"row_number() OVER ({order})"
    old = stage.old_text or ",".join(stage.old)
    new = stage.new_text or ",".join(stage.new)
    return (
        f"{log_head(table, stage.with_text)} SELECT {BASE}+{number},{TXID},{op},{rid},"
        f"{partition_hash_of(stage.new, table.shape)},NULL,{old},{new} "
        f"FROM {stage.source}"
    )


def _log_from_stage(
    table: CapturedTable, stage: _Stage, split: list[int], inexact: list[int], may_insert: bool
) -> str:
    """The log's INSERT from a materialized stage."""
    values = [f"{x} AS o{i}" for i, x in enumerate(stage.old, start=1)]
    values += [f"{x} AS n{i}" for i, x in enumerate(stage.new, start=1)]
    place = ",row_number() OVER () AS place" if stage.once else ""
    staged = f"SELECT {stage.rid} AS rid{place},{','.join(values)} FROM {stage.source}"
    if stage.unnamed:
        names = [f"{side}{i}" for side in "on" for i in range(1, len(stage.old) + 1)]
        texts = ",".join((stage.rid, *stage.old, *stage.new))
        columns = ",".join(names)
        staged = (
            f"SELECT rid{place},{columns} FROM (SELECT {texts} FROM {stage.source}) AS named(rid,{columns})"
        )
    # Not DISTINCT ON: it makes sort keys of nested values, and a -0.0 in them loses its sign.
    once = " QUALIFY min(place) OVER (PARTITION BY rid)=place" if stage.once else ""
    changed = f" WHEN {key_changes(table.shape, split)} THEN 'c'" if split else ""
    sort = f"CASE WHEN rid IS NULL THEN 'i'{changed} ELSE 'u' END"
    sorts = ("c" if split else "") + "u" + ("i" if may_insert else "")
    return log_from_stage(table, stage.with_text, staged, sort, sorts, inexact, once)

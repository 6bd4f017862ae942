"""MERGE in shape B or C: each WHEN clause with an action becomes a SELECT of its rows.

    WHEN MATCHED                  FROM source JOIN target ON ...
    WHEN NOT MATCHED              FROM source ANTI JOIN target ON ...
    WHEN NOT MATCHED BY SOURCE    FROM target ANTI JOIN source ON ...

Each has a WHERE clause: no earlier WHEN clause applies, and its own condition does. This keeps the user's
names in DuckDB's scope (a clause without a match sees one side only), and evaluates a clause's expressions
for its own rows alone. The SELECTs are in the order of their events: deletes, updates, inserts. Source:
docs/design/engine.md, "MERGE".

Source, ON and conditions occur in several of these SELECTs. In shape C a source that could return other rows
the second time is read into a materialized CTE, and if a condition could change, the clauses of its match
become one CASE expression.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from operator import itemgetter

import duckdb

from ..duck.determinism import (
    NamesInUse,
    calls_with,
    compares_inexactly,
    goes_by_names,
    is_deterministic,
    is_settled,
)
from ..duck.table_shape import RESERVED_PREFIX, TableShape
from ..errors import NotSupported
from ..quoting import fold, ident
from ..schema import SCHEMA
from .log_sql import (
    GROUPS_MAX,
    apply_delete,
    apply_insert,
    apply_update,
    assigned,
    by_position,
    conflict_hash,
    image_as_table,
    images,
    key_changes,
    log_from_stage,
    log_head,
    logged,
    nulls,
    partition_hash,
    partition_hash_of,
    split_deletes,
    touches_unique,
)
from .plan import BASE, TXID, Action, CapturedTable, Dml, Match, Merge, MergeClause, Plan, Shape, Step

# DuckDB's wording of the error.
TWICE = (
    "MERGE INTO command cannot affect the same target row more than once. A target row matched more "
    "than one source row; ensure the source rows are deduplicated or the ON condition is unique."
)
_ERROR = f"{RESERVED_PREFIX}_error"
_ERROR_BEGINS, _ERROR_ENDS = f"{_ERROR}(", f"){_ERROR}"
_SOURCE = f"{RESERVED_PREFIX}_m"
_MIXED = f"{RESERVED_PREFIX}_x"
_ROWS = f"{RESERVED_PREFIX}_q"

# The SELECTs' order: an ERROR clause must run and returns no row; a mixed SELECT passes through a stage,
# which orders its rows.
_ORDER = {Action.ERROR: 0, Action.DELETE: 1, Action.UPDATE: 2, Action.INSERT: 3}
_MIXED_ORDER = 1

_MERGE_ACTION = "merge_action"
_DONE = "CASE WHEN op='d' THEN 'DELETE' WHEN op='i' AND rid IS NULL THEN 'INSERT' ELSE 'UPDATE' END"


def merge_error(error: duckdb.Error) -> duckdb.Error | None:
    """DuckDB's own form of the error that an ERROR clause has raised in shape C, or None."""
    raw = str(error)
    begins, ends = raw.find(_ERROR_BEGINS), raw.rfind(_ERROR_ENDS)
    if begins < 0 or ends < begins + len(_ERROR_BEGINS):
        return None
    told = raw[begins + len(_ERROR_BEGINS) : ends]
    if '"exception_message"' in raw:
        told = str(json.loads(f'"{told}"'))
    return duckdb.ConstraintException(f"Constraint Error: Merge error condition {told}")


def plan_merge(dml: Dml, table: CapturedTable, macros: NamesInUse, views: NamesInUse, few: bool) -> Plan:
    """Plan a MERGE, in shape B if it is deterministic, else in shape C.

    Raises:
        NotSupported: the statement cannot be evaluated once only, or its two sides have the same name.
    """
    assert dml.merge is not None
    _require_two_names(dml, dml.merge)
    clauses = tuple(_spelled_out(dml.merge, clause, table.shape) for clause in dml.merge.clauses)
    merge = replace(dml.merge, clauses=clauses)
    selects = _Selects(dml, merge, table.shape, _may_log_first(dml, merge, table.shape, macros, views))
    if not selects.log_first:
        selects.read_once(macros, views)
    return _plan(dml, table, selects, few)


def _require_two_names(dml: Dml, merge: Merge) -> None:
    name = merge.source_name
    if name is not None and fold(name.strip('"')) == fold(dml.relation.strip('"')):
        raise NotSupported(
            "MERGE on a table with a stream wants different names for target and source",
            hint="Give one of them an alias: MERGE INTO t AS a USING t AS b ...",
        )


def _spelled_out(merge: Merge, clause: MergeClause, shape: TableShape) -> MergeClause:
    """A clause with its list of columns written out, if it takes the source's columns by name or position."""
    if clause.star is None:
        return clause
    names = merge.source_columns
    values = tuple(f"{merge.source_name}.{ident(name)}" for name in names)
    columns = names if clause.star == "name" else tuple(column.name for column in shape.stored)
    if clause.action is Action.UPDATE:
        return replace(clause, sets=tuple(zip(columns, values, strict=True)))
    return replace(clause, columns=columns, values=values)


def _may_log_first(dml: Dml, merge: Merge, shape: TableShape, macros: NamesInUse, views: NamesInUse) -> bool:
    """True if two evaluations of the statement certainly give the same values (shape B)."""
    if dml.with_text or dml.has_subquery or not merge.plain_source:
        return False
    if any(compares_inexactly(shape.stored[i]) for each in merge.clauses for i in _places(each, shape)):
        return False
    calls = calls_with(dml.calls, _defaults(merge, shape), shape)
    return is_deterministic(calls, macros) and not _names_view(merge, views)


def _places(clause: MergeClause, shape: TableShape) -> tuple[int, ...]:
    """The positions of the columns that an UPDATE clause assigns, in table order; () for other clauses."""
    return tuple(sorted(by_position(shape, clause.sets)))


def _defaults(merge: Merge, shape: TableShape) -> list[str]:
    """The texts of the defaults that the clauses may use: all of them if a row is inserted."""
    if any(clause.action is Action.INSERT for clause in merge.clauses):
        return [column.default or "" for column in shape.stored]
    sets = (by_position(shape, clause.sets).items() for clause in merge.clauses)
    return [shape.stored[i].default or "" for each in sets for i, value in each if value is None]


def _names_view(merge: Merge, views: NamesInUse) -> bool:
    """True if the source may read a view, which may hide volatile functions, or the log itself."""
    if merge.source.startswith("(") and "from" not in merge.source_words and not merge.is_join:
        return False
    if SCHEMA in merge.source_words:
        return True
    return not merge.source_words.isdisjoint(views() if callable(views) else views)


class _Selects:
    """The SELECTs of a MERGE's rows (op, rid, old row, new row), with the WITH clause before them."""

    def __init__(self, dml: Dml, merge: Merge, shape: TableShape, log_first: bool) -> None:
        self.merge = merge
        self.log_first = log_first
        self._shape = shape
        self._relation = dml.relation
        self._target = f"{dml.target} AS {dml.alias}" if dml.alias else dml.target
        self._source = merge.source
        self._user_with = dml.with_text
        self._with: list[str] = []
        self.mixed: set[Match] = set()
        self._by_names = goes_by_names(dml.calls)
        self.does = {clause.action for clause in merge.clauses}
        lists = dict.fromkeys(_places(clause, shape) for clause in merge.clauses if clause.sets)
        self.lists = list(lists)

    @property
    def groups(self) -> int:
        """The number of column lists that shape C sets; the log's rid is a row id times this."""
        return 1 if self.log_first else max(1, len(self.lists))

    @property
    def with_text(self) -> str:
        """The user's common table expressions and ours; complete once `texts` has been called."""
        if not self._with:
            return self._user_with
        return (f"{self._user_with}," if self._user_with else "WITH ") + ",".join(self._with)

    def read_once(self, macros: NamesInUse, views: NamesInUse) -> None:
        """Arrange that every part that could change between two reads is read once.

        Raises:
            NotSupported.
        """
        merge = self.merge
        if len(self.lists) > GROUPS_MAX:
            raise NotSupported(f"a MERGE on a table with a stream sets at most {GROUPS_MAX} lists of columns")
        for match in Match:
            clauses = [clause for clause in merge.clauses if clause.match is match]
            if len(clauses) > 1 and not all(is_settled(clause.calls, macros) for clause in clauses):
                self.mixed.add(match)
        acting = [clause for clause in merge.clauses if clause.action is not Action.NOTHING]
        if len({clause.match for clause in acting}) > 1 and not is_settled(merge.on_calls, macros):
            raise NotSupported(
                "a volatile function in ON is not supported in a MERGE on a table with a stream",
                hint="Compute its value in the source: USING (SELECT ...) AS s.",
            )
        steady = merge.plain_source and is_deterministic(merge.source_calls, macros)
        if len(acting) > 1 and (self._user_with or not steady or _names_view(merge, views)):
            self._read_source_once()

    def _read_source_once(self) -> None:
        if self.merge.source_name is None:
            raise NotSupported(
                "MERGE on a table with a stream wants a name for a source that must be read once",
                hint="Give the source one: USING (SELECT ...) AS s.",
            )
        self._source = f"{_SOURCE} AS {self.merge.source_name}"
        self._with.append(f"{_SOURCE} AS MATERIALIZED (SELECT * FROM {self.merge.source})")

    def texts(self) -> list[str]:
        """The SELECTs in the order of their events."""
        found = [(_MIXED_ORDER, self._mixed(match)) for match in Match if match in self.mixed]
        # In shape B the user's own text raises the error.
        idle = {Action.NOTHING, Action.ERROR} if self.log_first else {Action.NOTHING}
        for place, clause in enumerate(self.merge.clauses):
            if clause.action not in idle and clause.match not in self.mixed:
                found.append((_ORDER[clause.action], self._select(place, clause)))
        return [text for _, text in sorted(found, key=itemgetter(0))]

    def _select(self, place: int, clause: MergeClause) -> str:
        """The SELECT of one clause's rows."""
        conditions = [
            f"({each.condition}) IS NOT TRUE"
            for each in self.merge.clauses[:place]
            if each.match is clause.match and each.condition is not None
        ]
        if clause.condition is not None:
            conditions.append(f"({clause.condition})")
        where = " AND ".join(conditions)
        rows = self._rows_of(clause.match)
        if clause.action is Action.ERROR:
            # Not in WHERE: DuckDB would push it below the join and evaluate it for rows of other matches.
            none = nulls(self._shape)
            row = f"{_raised(clause)}::VARCHAR,NULL::BIGINT,{none},{none}"
        else:
            op, rid, values = self._row(clause)
            row = f"'{op}',{rid},{self._images(clause, values)}"
        return f"SELECT {row} FROM {rows}" + (f" WHERE {where}" if where else "")

    def _rows_of(self, match: Match) -> str:
        """The SQL behind FROM for the rows of a match."""
        if match is Match.NOT_BY_SOURCE:
            source = f"({self._source})" if self.merge.is_join else self._source
            return f"{self._target} ANTI JOIN {source} {self.merge.on}"
        join = "JOIN" if match is Match.MATCHED else "ANTI JOIN"
        return f"{self._source} {join} {self._target} {self.merge.on}"

    def _images(self, clause: MergeClause, values: list[str]) -> str:
        """The old row and the new one; as `t.*` if that is shorter."""
        if clause.action is Action.INSERT:
            return f"{nulls(self._shape)},{','.join(values)}"
        if self._shape.generated or self._by_names:
            return f"{','.join(self._target_row())},{','.join(values)}"
        star = f"{self._relation}.*"
        if clause.action is Action.DELETE:
            return f"{star},{nulls(self._shape)}"
        places = _places(clause, self._shape)
        replaced = ",".join(f"{values[i]} AS {ident(self._shape.stored[i].name)}" for i in places)
        return f"{star},{star} REPLACE ({replaced})"

    def _target_row(self) -> list[str]:
        return [f"{self._relation}.{ident(column.name)}" for column in self._shape.stored]

    def _row(self, clause: MergeClause) -> tuple[str, str, list[str]]:
        """The event's op, the row id and the new row's values of an UPDATE, DELETE or INSERT."""
        shape = self._shape
        if clause.action is Action.INSERT:
            columns = clause.columns
            listed = range(len(shape.stored)) if columns is None else [shape.place(x) for x in columns]
            given = dict(zip(listed, clause.values, strict=True))
            values = [assigned(column, given.get(i)) for i, column in enumerate(shape.stored)]
            return "i", "NULL::BIGINT", values
        rid = f"{self._relation}.rowid"
        if clause.action is Action.DELETE:
            return "d", rid if self.groups == 1 else f"{rid}*{self.groups}", ["NULL"] * len(shape.stored)
        if self.groups > 1:
            rid = f"{rid}*{self.groups}+{self.lists.index(_places(clause, shape))}"
        sets = by_position(shape, clause.sets)
        values = [
            assigned(shape.stored[i], sets[i]) if i in sets else old
            for i, old in enumerate(self._target_row())
        ]
        return "u", rid, values

    def _mixed(self, match: Match) -> str:
        """The rows of all clauses of a match, with each condition evaluated once.

        A row's clause and its values are one CASE expression, whose branches are structs. A cast names the
        fields, because a value may depend on its alias.
        """
        names = [f"n{i}" for i in range(1, len(self._shape.stored) + 1)]
        types = [f"{name} {column.type}" for name, column in zip(names, self._shape.stored, strict=True)]
        struct = f"STRUCT(op VARCHAR,rid BIGINT,{','.join(types)})"
        branches, otherwise = [], "NULL"
        for clause in self.merge.clauses:
            if clause.match is not match:
                continue
            branch = "NULL"
            if clause.action is Action.ERROR:
                branch = _raised(clause)
            elif clause.action is not Action.NOTHING:
                op, rid, values = self._row(clause)
                branch = f"row('{op}',{rid},{','.join(values)})::{struct}"
            if clause.condition is None:
                otherwise = branch
            else:
                branches.append(f"WHEN {clause.condition} THEN {branch}")
        has_target = match is not Match.NOT_BY_TARGET
        old = self._target_row() if has_target else ["NULL"] * len(names)
        olds = ",".join(f"{x} AS o{i}" for i, x in enumerate(old, start=1))
        case = f"CASE {' '.join(branches)} ELSE {otherwise} END"
        staged = f"{_MIXED}_{len(self._with)}"
        self._with.append(
            f"{staged} AS MATERIALIZED (SELECT {case} AS done,{olds} FROM {self._rows_of(match)})"
        )
        new = ",".join(f"done.{name}" for name in names)
        row = f"done.op,done.rid,{images('o', self._shape)},{new}"
        return f"SELECT {row} FROM {staged} WHERE done IS NOT NULL"


def _raised(clause: MergeClause) -> str:
    """A call of error() with the text that `merge_error` reads."""
    told = clause.match.value + (f" AND ({clause.condition})" if clause.condition is not None else "")
    text = "'" + f"{_ERROR}({told}".replace("'", "''") + "'"
    if clause.message is not None:
        text += f"||': '||coalesce(({clause.message})::VARCHAR,'NULL')"
    return f"error({text}||'){_ERROR}')"


def _plan(dml: Dml, table: CapturedTable, selects: _Selects, few: bool) -> Plan:
    shape = table.shape
    touched = sorted({i for places in selects.lists for i in places})
    split = [i for i in touched if shape.stored[i].name in table.split_on]
    entry = f"op,rid IS NULL,{conflict_hash('', shape) or 'NULL'}"
    steps = () if selects.log_first else _steps(table, selects)
    rid = "rid" if selects.groups == 1 else f"rid//{selects.groups}"
    return Plan(
        shape=Shape.LOG_FIRST if selects.log_first else Shape.STAGED,
        log=_log(table, selects, touched, split) + (f" RETURNING {entry}" if few else ""),
        lists_entries=few,
        entries=f"SELECT {entry} FROM {logged(table)}",
        verbatim=dml.text if selects.log_first else None,
        steps=steps,
        returning=_returning(dml, table, selects.does),
        split_deletes=split_deletes(table) if split else None,
        twice=f"SELECT count(rid)-count(DISTINCT {rid}) FROM {logged(table)}" if steps else None,
        sliceable=bool(steps) and not shape.unique_expressions and not touches_unique(shape, touched),
    )


def _steps(table: CapturedTable, selects: _Selects) -> tuple[Step, ...]:
    groups = selects.groups
    deletes = [("d", apply_delete(table, groups))] if Action.DELETE in selects.does else []
    # One UPDATE for each list of columns: a column that a clause does not assign must not be touched, because
    # another table's row may refer to it.
    updates = [("u", apply_update(table, places, i, groups)) for i, places in enumerate(selects.lists)]
    inserts = [("i", apply_insert(table))] if Action.INSERT in selects.does else []
    return (*deletes, *updates, *inserts)


def _log(table: CapturedTable, selects: _Selects, touched: list[int], split: list[int]) -> str:
    shape, does = table.shape, selects.does
    old, new = images("o", shape), images("n", shape)
    texts = selects.texts() or [f"SELECT 'd',NULL::BIGINT,{nulls(shape)},{nulls(shape)} WHERE false"]
    rows = f"({' UNION ALL '.join(texts)}) AS {_ROWS}(op,rid,{old},{new})"
    inexact = [] if selects.log_first else [i for i in touched if compares_inexactly(shape.stored[i])]
    if split or inexact or selects.mixed:
        sort = f"CASE WHEN op='u' AND ({key_changes(shape, split)}) THEN 'c' ELSE op END" if split else "op"
        sorts = ("d" if Action.DELETE in does or not touched else "") + ("c" if split else "")
        sorts += ("u" if touched else "") + ("i" if Action.INSERT in does else "")
        return log_from_stage(table, selects.with_text, f"SELECT * FROM {rows}", sort, sorts, inexact)
    key = partition_hash("n", shape)
    if Action.DELETE in does:
        both = [f"CASE op WHEN 'd' THEN o{i} ELSE n{i} END" for i in range(1, len(shape.stored) + 1)]
        key = partition_hash_of(both, shape)
    number = f"{BASE}+row_number() OVER ()"
    row = f"{number},{TXID},op,rid,{key},NULL,{old},{new}"
    return f"{log_head(table, selects.with_text)} SELECT {row} FROM {rows}"


def _returning(dml: Dml, table: CapturedTable, does: Collection[Action]) -> str | None:
    """The user's RETURNING over the rows in their present state, deleted rows as they were."""
    if dml.returning is None:
        return None
    shape = table.shape
    source = logged(table, " AND (op<>'d' OR rid IS NOT NULL)")
    if Action.DELETE in does:
        both = (f"CASE op WHEN 'd' THEN o{i} ELSE n{i} END AS n{i}" for i in range(1, len(shape.stored) + 1))
        source = f"(SELECT op,rid,{','.join(both)} FROM {source})"
    hidden = ""
    if dml.names_hidden:
        # A column of this name hides the virtual one.
        own = shape.position(_MERGE_ACTION)
        hidden = _DONE if own is None else f"n{own + 1}"
    return f"SELECT {dml.returning} FROM ({image_as_table('n', shape, source, hidden)}) AS {dml.relation}"

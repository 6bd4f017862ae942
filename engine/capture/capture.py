"""Capture: a DML statement on a captured table and its log rows, in one transaction.

There are three shapes, because none suits every statement (docs/design/engine.md, "Capture"):

    A  verbatim    INSERT, DELETE, TRUNCATE    one statement: the log is filled from the rows written
    B  log first   a deterministic UPDATE,     the log from a SELECT, then the user's own text, whose
                   upsert, INSERT ... SELECT   row count must be the log's
    C  staged      the rest                    the log from a SELECT, then the table from the log

`plan` builds the texts (cached by statement text and table version). `execute` runs them inside a transaction
that its caller has begun and, on any error, rolls back. Each result is drained before the next step. Events
of a statement are ordered deletes, updates, inserts, and their LSNs are base + 1, base + 2, ... in the log's
own order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from ..duck.cursors import arrow_table
from ..duck.determinism import (
    NamesInUse,
    calls_with,
    compares_inexactly,
    is_deterministic,
    read_macros,
    read_views,
)
from ..duck.table_shape import TableShape
from ..errors import InternalError
from ..quoting import fold
from .merge import TWICE, merge_error, plan_merge
from .plan import (
    BASE,
    HIDDEN,
    PROPOSED,
    PROPOSED_PREFIX,
    Action,
    Assignment,
    CapturedTable,
    Conflict,
    Dml,
    Explain,
    Match,
    Merge,
    MergeClause,
    Outcome,
    Plan,
    Shape,
    Verb,
    numbers,
    refuse_zero_characters,
)
from .shapes import (
    default_texts,
    plan_repeatable,
    plan_update,
    plan_updates,
    plan_upsert,
    plan_upserts,
    plan_verbatim,
)

__all__ = [
    "HIDDEN",
    "KEYS_MAX",
    "PROPOSED",
    "PROPOSED_PREFIX",
    "Action",
    "Assignment",
    "CapturedTable",
    "Conflict",
    "Dml",
    "Explain",
    "Match",
    "Merge",
    "MergeClause",
    "Outcome",
    "Plan",
    "Shape",
    "Verb",
    "execute",
    "plan",
    "plan_group",
    "plan_updates",
    "plan_upserts",
    "read_macros",
    "read_views",
]

# Most keys collected for one statement; above it the conflict check assumes every key. 10,000 hashes are
# about 1 MB of Python objects and 5 ms.
KEYS_MAX = 10_000

# Rows that shape C applies in one go: more than this in one UPDATE ... FROM runs out of a memory
# limit of 600 MB at 5 million rows of 8 columns (docs/design/engine.md, "Bulk").
SLICE_ROWS_MAX = 500_000

# A key that WHERE fixes by `=` or IN means few rows; so does a VALUES list of up to this many rows.
FEW_ROWS_MAX = 1_000


def plan(
    dml: Dml, table: CapturedTable, macros: NamesInUse = frozenset(), views: NamesInUse = frozenset()
) -> Plan:
    """Choose the shape and build its texts.

    Args:
        dml: the statement, which DuckDB has already bound (so its names and types are valid).
        table: the table that the statement writes.
        macros: lower-case names of the users' macros (`read_macros`, 12 ms), which may hide functions, or a
            callable that returns them.
        views: the same for views (`read_views`), which may hide volatile functions.

    Raises:
        NotSupported: capture cannot evaluate the MERGE once only.
        CharacterNotInRepertoire: the text contains the character 0.
    """
    refuse_zero_characters(dml)
    few = _few_rows(dml, table.shape)
    if dml.verb is Verb.MERGE:
        return plan_merge(dml, table, macros, views, few)
    if dml.verb is Verb.UPDATE:
        return plan_update(dml, table, _may_log_first(dml, table.shape, macros), few)
    if dml.conflict is not None:
        return plan_upsert(dml, table, _may_log_first(dml, table.shape, macros), few)
    if dml.repeatable and dml.returning is None and _is_repeatable(dml, table.shape, macros):
        return plan_repeatable(dml, table)
    return plan_verbatim(dml, table, few)


def plan_group(dml: Dml, table: CapturedTable) -> Plan:
    """Plan an INSERT or DELETE each of whose rows is the event of a transaction of its own.

    Raises:
        CharacterNotInRepertoire: the text contains the character 0.
    """
    refuse_zero_characters(dml)
    return plan_verbatim(dml, table, few=True, separate=True)


def _few_rows(dml: Dml, shape: TableShape) -> bool:
    """True if few rows are expected; a wrong guess only costs time."""
    if dml.verb in (Verb.INSERT, Verb.MERGE):
        return dml.row_count is not None and dml.row_count <= FEW_ROWS_MAX
    key = {fold(name) for name in shape.primary_key}
    return bool(key) and key <= dml.equal_columns


def _may_log_first(dml: Dml, shape: TableShape, macros: NamesInUse) -> bool:
    """True if two evaluations of the statement certainly give the same values (shape B)."""
    if dml.with_text or dml.source is not None or dml.query is not None or dml.has_subquery:
        return False
    assigned = {fold(name): value for name, value in _assignments(dml)}
    touched = [column for column in shape.stored if fold(column.name) in assigned]
    texts = [column.default or "" for column in touched if assigned[fold(column.name)] is None]
    if dml.conflict is not None:
        target = dml.conflict.target or shape.primary_key
        if {fold(name) for name in target} != {fold(name) for name in shape.primary_key}:
            return False  # DuckDB keeps any one of several rows whose unique key is NULL
        # The staging SELECT may turn a proposed -0.0 into 0.0.
        touched = list(shape.stored)
        texts = [column.default or "" for column in shape.stored]
    if any(compares_inexactly(column) for column in touched):
        return False
    return is_deterministic(calls_with(dml.calls, texts, shape), macros)


def _is_repeatable(dml: Dml, shape: TableShape, macros: NamesInUse) -> bool:
    """True if two evaluations of an INSERT's query and its defaults certainly agree (shape B)."""
    if dml.by_name:
        return False
    return is_deterministic(calls_with(dml.calls, default_texts(dml, shape), shape), macros)


def _assignments(dml: Dml) -> Iterable[Assignment]:
    return dml.sets if dml.conflict is None else dml.conflict.sets


def execute(
    cursor: duckdb.DuckDBPyConnection,
    plan: Plan,
    parameters: Sequence[object],
    base_lsn: int,
    txid: int,
    explain: Explain | None = None,
) -> Outcome:
    """Run a planned statement inside the cursor's open transaction.

    Args:
        cursor: in an explicit transaction that holds the writer lock.
        parameters: values of $1, $2, ... of the user's text (Python values or duckdb.Value).
        base_lsn: the LSN before the statement's first event.
        txid: the transaction's number.
        explain: EXPLAIN ANALYZE: the plan of the log's statement replaces the rows of RETURNING.

    Raises:
        duckdb.Error: the user's own statement fails in the same way; the transaction must be rolled back.
        InternalError: log and table disagree; the transaction must be rolled back.
    """
    run = _Run(cursor, plan, parameters, base_lsn, txid)
    try:
        return _executed(run, plan, explain)
    except duckdb.InvalidInputException as error:
        told = merge_error(error)
        if told is None:
            raise
        raise told from error


def _executed(run: _Run, plan: Plan, explain: Explain | None) -> Outcome:
    explained = None
    if explain is not None:
        explained = run.table(f"{explain.words} {plan.log}")
        entries, events = _logged(run, plan, explain)
    elif plan.gives_rows:
        return _returning_verbatim(run, plan)
    else:
        entries, events = _write_log(run, plan)
    assert events <= 1 or not plan.one_row, "one row was planned, and numbered so"
    if plan.shape is Shape.VERBATIM:
        keys = frozenset[int]() if plan.entries is None else _keys(entries, events, 0)
        return Outcome(events, events, keys, explained)
    rows = events - _split_deletes(run, plan, entries)
    if plan.verbatim is not None:
        _require_same(run.count(plan.verbatim), rows)
    elif events:
        if plan.twice is not None and run.count(plan.twice):
            raise duckdb.InvalidInputException(TWICE)
        _apply(run, plan, entries, events, rows)
    returned = explained if plan.returning is None or explained else run.table(plan.returning)
    told = frozenset[int]() if plan.entries is None else _keys(entries, events, 2)
    return Outcome(events, rows, told, returned)


# The entry of an event in the log: (key) in shape A, else (op, "has no row id", key).
_Entries = list[tuple[Any, ...]]


class _Run:
    """One execution: the cursor, the numbers and the parameters of every step."""

    __slots__ = ("_cursor", "_parameters", "_plan", "_txid", "base_lsn")

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        plan: Plan,
        parameters: Sequence[object],
        base_lsn: int,
        txid: int,
    ) -> None:
        self._cursor = cursor
        self._plan = plan
        self._parameters = {str(number): value for number, value in enumerate(parameters, start=1)}
        self.base_lsn = base_lsn
        self._txid = txid

    def rows(self, text: str, after_lsn: int | None = None, upper_lsn: int | None = None) -> _Entries:
        """Run a step and drain its rows; it applies the slice (after_lsn, upper_lsn] of the log."""
        return self._run(text, after_lsn, upper_lsn).fetchall()

    def table(self, text: str) -> pa.Table:
        """Run a step and drain its rows as Arrow."""
        return arrow_table(self._run(text))

    def _run(
        self, text: str, after_lsn: int | None = None, upper_lsn: int | None = None
    ) -> duckdb.DuckDBPyConnection:
        base_lsn = self.base_lsn if after_lsn is None else after_lsn
        # Parameters beyond the highest number that a text can name are ignored.
        values = self._parameters | numbers(base_lsn, self._txid, upper_lsn)
        return self._plan.parsed(text).run(self._cursor, values)

    def count(self, text: str, after_lsn: int | None = None, upper_lsn: int | None = None) -> int:
        """Run a step and return the number in its first row and column."""
        return int(self.rows(text, after_lsn, upper_lsn)[0][0])


def _write_log(run: _Run, plan: Plan) -> tuple[_Entries | None, int]:
    """Write the log; returns its entries (None if they are too many) and the number of events."""
    if plan.lists_entries:
        entries = run.rows(plan.log)
        return entries, len(entries)
    events = run.count(plan.log)
    return _entries_of(run, plan, events), events


def _logged(run: _Run, plan: Plan, explain: Explain) -> tuple[_Entries | None, int]:
    """The result of `_write_log` for a statement that has returned other rows, read from the log."""
    events = run.count(f"SELECT count(*) FROM {explain.log} WHERE lsn>{BASE}")
    return _entries_of(run, plan, events), events


def _entries_of(run: _Run, plan: Plan, events: int) -> _Entries | None:
    """The entries, read from the log; None if they are too many, or if none has a key."""
    if plan.entries is None or events > KEYS_MAX:
        return None
    return run.rows(plan.entries) if events else []


def _keys(entries: _Entries | None, events: int, place: int) -> frozenset[int] | None:
    """The keys at position `place` of the entries; None if they are too many."""
    if entries is None or events > KEYS_MAX:
        return None
    return frozenset(entry[place] for entry in entries if entry[place] is not None)


def _split_deletes(run: _Run, plan: Plan, entries: _Entries | None) -> int:
    """The number of deletes that are half of a split update."""
    if plan.split_deletes is None:
        return 0
    if entries is None:
        return run.count(plan.split_deletes)
    return sum(op == "d" and has_no_row for op, has_no_row, _ in entries)


def _apply(run: _Run, plan: Plan, entries: _Entries | None, events: int, rows: int) -> None:
    """Shape C: apply the log to the table.

    If the entries are known, steps without rows are skipped.
    """
    kinds = None if entries is None else {_kind(op, has_no_row) for op, has_no_row, _ in entries}
    last = run.base_lsn + events
    step = SLICE_ROWS_MAX if plan.sliceable else events
    applied = 0
    for kind, text in plan.steps:
        if kinds is None or kind in kinds:
            for after in range(run.base_lsn, last, step):
                applied += run.count(text, after, min(after + step, last))
    if plan.applies_all:
        _require_same(applied, rows)


def _kind(op: str, has_no_row: bool) -> str:
    """The kind of step that an event needs; a split update counts as an update by its insert."""
    if op == "d":
        return "" if has_no_row else "d"
    return "i" if has_no_row else "u"


def _require_same(applied: int, logged: int) -> None:
    if applied != logged:
        raise InternalError(
            f"the table took {applied} rows and its log has {logged}",
            detail="Nothing of the transaction is kept.",
        )


def _returning_verbatim(run: _Run, plan: Plan) -> Outcome:
    """Shape A with RETURNING: the log's statement returns the user's rows."""
    result = run.table(plan.log)
    events = result.num_rows
    assert events <= 1 or not plan.one_row, "one row was planned, and numbered so"
    keys: frozenset[int] | None = frozenset()
    own = 1
    if plan.entries is not None:
        own = 2
        keys = None if events > KEYS_MAX else frozenset(result.column(1).to_pylist())
    schema = pa.schema(list(result.schema)[own:])
    return Outcome(events, events, keys, pa.Table.from_arrays(result.columns[own:], schema=schema))

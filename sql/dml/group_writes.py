"""One-row writes that may run together with those of other sessions (engine/transactions/group_commit.py).

A statement has a plan for this if one statement with lists of parameters certainly does the same as many
executions of it: an INSERT of one row of parameters and plain literals into a captured table, or a PUBLISH of
such a row. The plan is made when a session has run the statement alone, and is then known to all sessions, by
its text, for one state of the catalog. A write is offered only outside a transaction block, for users whose
rights do not depend on the catalog, and if its values are of exactly the types of its parameters; otherwise
it runs alone, as always. Whatever is not listed here is not offered. Source: docs/design/small_writes.md.
"""

from __future__ import annotations

import datetime
import logging
import re
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast

import duckdb

from ...engine.capture import capture
from ...engine.capture.capture import read_macros, read_views
from ...engine.catalog.captured_tables import Captured
from ...engine.catalog.catalog import Catalog
from ...engine.catalog.streams import Stream
from ...engine.duck.binding import Bound, bind
from ...engine.duck.determinism import calls_in, is_constant
from ...engine.duck.table_shape import Column, TableShape
from ...engine.errors import DucktailError
from ...engine.log.topic_rows import Single
from ...engine.quoting import fold, folded_sql, ident
from ...engine.topics import Topics
from ...engine.transactions.group_commit import GroupPlan, PlanChanged, Write
from ...engine.transactions.transaction import Part, Transaction
from ...engine.transactions.transactions import Transactions
from ...engine.values import arrow_types, datarow
from ...engine.waiting import Waiting, drive, on_worker
from ..cluster.shares import in_cluster
from ..language.classify import classify
from ..session_state.context import Context
from ..session_state.names import Key
from ..session_state.statement import FORM, ParsedStatement
from ..text.tokens import NUMBER, PARAMETER, STRING, Token, closing, tokenize
from .dml import slice_dml
from .literals import LiteralForm, fitting, literal_form
from .literals import form_of as form_of_tokens

logger = logging.getLogger("ducktail.sql")

# The key under which a statement keeps its plan.
KEPT = "group"
# Values of more characters than this run alone: they are not handled on an event loop.
CHARS_MAX = 32_768
# The bytes of a value in a batch that is no text.
VALUE_BYTES = 32
# DuckDB's type of a parameter -> the type of the Python values that are equal to it in a list and alone, and
# the type of the list's elements.
_KINDS: Mapping[str, tuple[type, str]] = {
    "TINYINT": (int, "BIGINT"),
    "SMALLINT": (int, "BIGINT"),
    "INTEGER": (int, "BIGINT"),
    "BIGINT": (int, "BIGINT"),
    "FLOAT": (float, "DOUBLE"),
    "DOUBLE": (float, "DOUBLE"),
    "BOOLEAN": (bool, "BOOLEAN"),
    "VARCHAR": (str, "VARCHAR"),
    "JSON": (str, "VARCHAR"),
    "UUID": (uuid.UUID, "UUID"),
    "DATE": (datetime.date, "DATE"),
    "TIMESTAMP": (datetime.datetime, "TIMESTAMP"),
    "TIMESTAMP WITH TIME ZONE": (datetime.datetime, "TIMESTAMP WITH TIME ZONE"),
    "BLOB": (bytes, "BLOB"),
    "DECIMAL": (Decimal, "VARCHAR"),
}
# The elements of DECIMALs of one list may have digits that no common DECIMAL holds: they are texts.
_DECIMAL = "DECIMAL"
_WITH_ZONE = "TIMESTAMP WITH TIME ZONE"
# Rows of a table up to which a batch of UPDATEs or DELETEs costs less than its writes one by one, and batches
# after which they are counted again.
JOINED_ROWS_MAX = 1_000_000
BATCHES_UNMEASURED = 256
# Looks at a plan until it is used again, after a batch has failed because a row exists, or of annotations.
RESTED_LOOKS = 3000
_ROWS = f"""
    SELECT estimated_size FROM system.main.duckdb_tables()
    WHERE database_name = current_database() AND {folded_sql("schema_name")} = $1
      AND {folded_sql("table_name")} = $2"""
# Literals whose meaning depends on nothing.
_CONSTANTS = frozenset({"NULL", "TRUE", "FALSE"})
_CHECKS = f"""
    SELECT constraint_type, constraint_text, referenced_table FROM system.main.duckdb_constraints()
    WHERE database_name = $1 AND {folded_sql("schema_name")} = $2 AND {folded_sql("table_name")} = $3
      AND constraint_type IN ('CHECK', 'FOREIGN KEY')"""


def _base(type_: str) -> str:
    """The name of a type without width and scale."""
    return type_.partition("(")[0] if type_.startswith(_DECIMAL) else type_


@dataclass(slots=True)
class TableSize:
    """The size of a table whose rows are found by a join of its key with a list: DuckDB reads all keys.

    Args:
        fits: True if it is small enough.
        batches: the number of batches since it was measured.
    """

    fits: bool = True
    batches: int = BATCHES_UNMEASURED

    def measure(self, cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> bool:
        """True if the table is small enough; measured from time to time."""
        self.batches += 1
        if self.batches > BATCHES_UNMEASURED:
            given = [fold(shape.schema), fold(shape.name)]
            rows = cursor.execute(_ROWS, given).fetchall()
            self.batches, self.fits = 0, bool(rows) and rows[0][0] <= JOINED_ROWS_MAX
        return self.fits


@dataclass(slots=True)
class Rest:
    """A pause of a plan whose writes have failed a batch: they run alone, and do not delay others.

    Args:
        looks: how often the plan is looked at until it is over.
    """

    looks: int = 0

    def begin(self) -> None:
        """Begin the pause."""
        self.looks = RESTED_LOOKS

    @property
    def is_over(self) -> bool:
        """True if there is none; a look shortens it."""
        self.looks = max(0, self.looks - 1)
        return not self.looks


@dataclass(frozen=True, slots=True, eq=False)
class GroupWrite(GroupPlan):
    """A write of one row of a captured table: an INSERT, or an upsert, UPDATE or DELETE by the primary key.

    Args:
        target: the table.
        version: the version of the catalog for which it was made.
        one: the plan of one write.
        many: the plan of several; each of its parameters is the list of values of one parameter.
        types: DuckDB's types of the parameters.
        returned: the columns of RETURNING; None without it.
        keys: for an UPDATE, DELETE or ON CONFLICT, the places of the primary key's values among the
            parameters.
        ordered: the events have the order of the writes.
        joins: rows of the table are found by a join with its key.
        rest: the pause after a batch that ON CONFLICT, or annotations without an order, have failed.
        size: the size of the table, if they are.
    """

    transactions: Transactions
    target: Key
    table: capture.CapturedTable
    version: int
    one: capture.Plan
    many: capture.Plan
    types: tuple[str, ...]
    returned: Bound | None = None
    keys: tuple[int, ...] = ()
    ordered: bool = True
    joins: bool = False
    rest: Rest = field(default_factory=Rest)
    size: TableSize = field(default_factory=TableSize)

    def run(self, transaction: Transaction, writes: Sequence[Write]) -> tuple[list[Part], list[object]]:
        """Run writes as one statement; see `GroupPlan.run`."""
        transactions = self.transactions
        captured = drive(transactions.enter_captured(transaction, self.target, 0))
        if (
            captured is None
            or captured.table is not self.table
            or transaction.catalog_version != self.version
        ):
            raise PlanChanged
        if not self.ordered and len({write.annotation for write in writes}) > 1:
            self.rest.begin()
            raise PlanChanged  # It is not known which event belongs to which write.
        if self.joins and not self.size.measure(transaction.cursor, captured.shape) and len(writes) > 1:
            raise PlanChanged
        if len(writes) == 1:
            outcome = transactions.write_captured(transaction, captured, self.one, writes[0].values)
        else:
            columns = zip(*(write.values for write in writes), strict=True)
            lists = [elements(*column) for column in zip(columns, self.types, strict=True)]
            outcome = transactions.write_captured(transaction, captured, self.many, lists)
        if outcome.events != len(writes):
            if not self.joins:
                self.rest.begin()
            raise PlanChanged  # A row does not exist; or it does, and ON CONFLICT does nothing.
        if self.joins and (outcome.keys is None or len(outcome.keys) != len(writes)):
            raise PlanChanged  # Two keys have found one row.
        inserts = not self.keys
        parts = [Part.of_event(captured.table_id, write.annotation, inserts=inserts) for write in writes]
        if outcome.returning is None:
            return parts, [None] * len(writes)
        return parts, [outcome.returning.slice(place, 1) for place in range(len(writes))]

    def bytes_of(self, values: Sequence[object]) -> int:
        """The approximate size of the values."""
        return sum(len(value) if isinstance(value, (str, bytes)) else VALUE_BYTES for value in values)

    def key(self, values: Sequence[object]) -> Hashable:
        """The primary key of the row that may exist; None for an INSERT of a new row."""
        return tuple(values[place] for place in self.keys) or None

    def applies(self, catalog: Catalog) -> bool:
        """True if the table is still the one that was planned."""
        captured = catalog.tables.get(self.target)
        is_same = captured is not None and captured.table is self.table
        return is_same and self.size.fits and self.rest.is_over


@dataclass(frozen=True, slots=True, eq=False)
class GroupPublish(GroupPlan):
    """A PUBLISH, or an INSERT into a topic, of one event that is made without DuckDB.

    Args:
        version: the version of the catalog for which it was made.
    """

    topics: Topics
    topic: Stream
    version: int

    def run(self, transaction: Transaction, writes: Sequence[Write]) -> tuple[list[Part], list[object]]:
        """Store events as one statement; see `GroupPlan.run`."""
        topic = drive(self.topics.enter(transaction, self.topic, 0))
        if topic != self.topic:
            raise PlanChanged
        events = [cast(Single, write.values[0]) for write in writes]
        places = self.topics.publish_group(transaction, topic, events)
        parts = [Part.of_event(topic.table_id, write.annotation, inserts=False) for write in writes]
        return parts, list(places)

    def bytes_of(self, values: Sequence[object]) -> int:
        """The approximate size of the event."""
        event = cast(Single, values[0])
        return sum(len(text) for text in (event.payload, event.key, event.headers) if text is not None)

    def key(self, values: Sequence[object]) -> None:
        """None: an event conflicts with nothing."""

    def applies(self, catalog: Catalog) -> bool:
        """True if the topic is still the one that was planned."""
        return catalog.streams.get(self.topic.key) is self.topic


def elements(values: Sequence[object], type_: str) -> list[object]:
    """The elements of the list of a parameter's values."""
    if _base(type_) != _DECIMAL:
        return list(values)
    return [f"{value:f}" if isinstance(value, Decimal) else None for value in values]


# A session's side.


def plan_of(
    session: Context, statement: ParsedStatement, generation: int | None = None
) -> GroupWrite | GroupPublish | None:
    """The plan by which a statement may run together with others now; None if it runs alone.

    Args:
        generation: the state of the catalog in which its rights were checked; None for a session that may
            do everything.
    """
    database = session.database
    kept, version = statement.plans.get(KEPT), database.catalog.version
    plan = kept if isinstance(kept, (GroupWrite, GroupPublish)) else None
    if plan is None or plan.version != version:
        if not _has_events(session, statement):
            return None
        plan = _known(session, statement)
        if plan is None:
            return None
        statement.plans[KEPT] = plan
    if session.access.limited and generation is None:
        return None
    return plan if _may_offer(session) and plan.applies(database.catalog) else None


def _known(session: Context, statement: ParsedStatement) -> GroupWrite | GroupPublish | None:
    """The plan of a text in the present state of the catalog, from any session."""
    found = session.database.group_commit.plans.get(_key(statement))
    if isinstance(found, (GroupWrite, GroupPublish)) and found.version == session.database.catalog.version:
        return found
    return None


def _has_events(session: Context, statement: ParsedStatement) -> bool:
    facts, catalog = statement.classified.dml, session.database.catalog
    if facts is None:
        return False
    key = session.names.table_key(facts.target)
    return key in catalog.tables or key in catalog.streams


def _may_offer(session: Context) -> bool:
    names = session.names
    if session.block.begun or not names.plain or names.awaited:
        return False
    return session.database.group_commit.enabled and session.part is None and not in_cluster(session)


def _key(statement: ParsedStatement) -> tuple[str, bool]:
    """The key of a statement's plan: its text, or the form of a text with literals."""
    form = form_of(statement)
    return statement.text if form is None else form.text, statement.published is not None


def form_of(statement: ParsedStatement) -> LiteralForm | None:
    """The form of a text with literals; None for any other text."""
    if FORM not in statement.plans:
        statement.plans[FORM] = literal_form(statement.classified)
    found = statement.plans[FORM]
    return found if isinstance(found, LiteralForm) else None


def is_ready(session: Context, statement: ParsedStatement) -> bool:
    """True if a client's write is only offered by its session, which takes no DuckDB work."""
    return session.wire and plan_of(session, statement) is not None


# The beginnings of the texts that may be small writes, in capitals; longer texts are read on a thread.
_BEGINNINGS = frozenset({"INSERT", "UPDATE", "DELETE"})
READ_CHARS_MAX = 4096


def is_known(session: Context, text: str) -> bool:
    """True if a text with literals has a planned form: parsing and offering it takes no DuckDB work."""
    database = session.database
    plans = database.group_commit.plans
    if not plans or text[:6].upper() not in _BEGINNINGS or len(text) > READ_CHARS_MAX:
        return False
    if session.access.limited or not _may_offer(session) or session.cursors.stale:
        return False
    try:
        form = form_of_tokens(tokenize(text))
    except DucktailError:
        return False
    plan = None if form is None else plans.get((form.text, False))
    return isinstance(plan, GroupWrite) and plan.version == database.catalog.version


def write(
    session: Context,
    statement: ParsedStatement,
    plan: GroupWrite | GroupPublish,
    values: Sequence[object] | None,
    generation: int | None = None,
) -> Waiting[Write | None]:
    """Offer a write and wait for it.

    Args:
        values: the values of the write; None if they are not suitable.
        generation: see `plan_of`.

    Returns:
        The committed write; None if it is to run alone, now on a thread that may block.

    Raises:
        LockNotAvailable: no batch has taken it within `lock_timeout`.
    """
    commit, timeout_ms = session.database.group_commit, session.block.lock_timeout_ms
    if values is not None:
        size, key = plan.bytes_of(values), plan.key(values)
        offered = Write(plan, session.id, values, size, session.variables.annotation, key, generation)
        if size <= CHARS_MAX and (yield from commit.write(offered, timeout_ms)):
            return offered
    if session.wire:
        yield from on_worker()
    return None


def offers(session: Context, statement: ParsedStatement) -> bool:
    """True if a planned write is offered now.

    In process, a session that need not wait writes at once, unless its text would have to be planned first.
    """
    database = session.database
    if session.wire or form_of(statement) is not None:
        return True
    return database.transactions.writer_lock.holder() is not None or bool(database.group_commit.waiting_count)


def suitable(
    plan: GroupWrite, statement: ParsedStatement, parameters: Sequence[object]
) -> Sequence[object] | None:
    """The values of a statement's parameters or literals, if they are the same in a list and alone."""
    form, values = form_of(statement), parameters
    if form is not None:
        read = form.values(plan.types)
        if read is None or parameters:
            return None
        values = read
    if len(values) != len(plan.types) or any(values[place] is None for place in plan.keys):
        return None
    found = list(values)
    for place, (value, type_) in enumerate(zip(values, plan.types, strict=True)):
        if value is None:
            continue
        kind = _KINDS[_base(type_)][0]
        if type(value) is int and type_ == "DOUBLE" and abs(value) <= 2**53:
            found[place] = float(value)
            continue
        if kind is Decimal and type(value) is int:
            value = found[place] = Decimal(value)
        if type(value) is not kind or (isinstance(value, Decimal) and fitting(value, type_) is None):
            return None
        if type(value) is int and not -(2**63) <= value < 2**63:
            return None
        if isinstance(value, datetime.datetime) and (value.tzinfo is None) is (type_ == _WITH_ZONE):
            return None
    return found


# Plans.


def learn(session: Context, statement: ParsedStatement, target: Key) -> None:
    """Plan a statement that has just run alone, if it may run together with others; never fails."""
    captured = session.database.catalog.tables.get(target)
    if captured is None or not _is_due(session, statement):
        return
    try:
        plan = _learned(session, statement, captured)
    except Exception:  # The statement has been committed.
        logger.exception("planning a write for batches")
        return
    if plan is not None and plan.version == session.database.catalog.version:
        session.database.group_commit.keep(_key(statement), plan)


def _learned(session: Context, statement: ParsedStatement, captured: Captured) -> GroupWrite | None:
    form = form_of(statement)
    if form is not None:
        classified = classify(form.text)
        made = ParsedStatement(classified, None, (), session.describe, session.is_inline)
        bound = bind(session.meta, form.text)
        one = capture.plan(
            slice_dml(classified, captured.shape.schema),
            captured.table,
            lambda: read_macros(session.meta),
            lambda: read_views(session.meta),
        )
        return _planned(session, made, captured, one, bound)
    kept = statement.plans.get(statement.text)
    if not isinstance(kept, tuple) or kept[0] is not captured.table:
        return None
    return _planned(session, statement, captured, kept[2], kept[3])


def learn_topic(session: Context, statement: ParsedStatement, topic: Stream) -> None:
    """Plan a publication that has just run alone."""
    if _is_due(session, statement) and topic.compaction != "key":
        database = session.database
        plan = GroupPublish(database.topics, topic, database.catalog.version)
        database.group_commit.keep(_key(statement), plan)


def _is_due(session: Context, statement: ParsedStatement) -> bool:
    """True if a statement, or another one of its form, runs again in the present state of the catalog."""
    if session.block.begun or not session.names.plain:
        return False
    commit, version, key = session.database.group_commit, session.database.catalog.version, _key(statement)
    of_form = form_of(statement) is not None
    seen = commit.plans.get(key) if of_form else statement.plans.get(KEPT)
    if seen == (version, True) or (isinstance(seen, (GroupWrite, GroupPublish)) and seen.version == version):
        return False
    state = (version, seen == (version, False))
    if of_form:
        commit.keep(key, state)
    else:
        statement.plans[KEPT] = state
    # Writes of two plans would be two statements of a batch.
    return seen == (version, False) and (of_form or _known(session, statement) is None)


def _planned(
    session: Context, statement: ParsedStatement, captured: Captured, one: capture.Plan, bound: Bound
) -> GroupWrite | None:
    if statement.node is not None or statement.classified.dml is None or statement.classified.dml.main:
        return None
    types = tuple(bound.parameters.get(str(n), "") for n in range(1, len(bound.parameters) + 1))
    if not types or not _KINDS.keys() >= set(map(_base, types)) or captured.shape.unique_expressions:
        return None
    planner = _PLANNERS.get(statement.classified.verb)
    return None if planner is None else planner(_Planned(session, statement, captured, one, bound, types))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A statement that is being planned, and the plan of one execution."""

    session: Context
    statement: ParsedStatement
    captured: Captured
    one: capture.Plan
    bound: Bound
    types: tuple[str, ...]

    @property
    def dml(self) -> capture.Dml:
        """The divided statement."""
        return slice_dml(self.statement.classified, self.captured.shape.schema)

    def plan(self, many: capture.Plan, **rest: Any) -> GroupWrite:
        """The plan, given that of several executions."""
        database = self.session.database
        version, table = database.catalog.version, self.captured.table
        given = self.captured.key, table, version, self.one, many, self.types
        return GroupWrite(database.transactions, *given, **rest)

    def may_take(self, columns: Sequence[Column], items: Sequence[_Item]) -> bool:
        """True if values may be assigned to columns: none is converted with the session's time zone."""
        return len(columns) == len(items) and all(map(self._is_same_moment, columns, items))

    def _is_same_moment(self, column: Column, item: _Item) -> bool:
        type_ = self.types[item.number - 1] if item.number else ""
        if _WITH_ZONE not in column.type:
            return type_ != _WITH_ZONE
        return type_ == _WITH_ZONE

    def relation(self, *, placed: bool = False) -> str:
        """The relation of the lists, with the columns of `_Item.text`.

        Args:
            placed: add a column with the position of each execution.
        """
        kinds = [_KINDS[_base(type_)][1] for type_ in self.types]
        lists = [listed(n, type_) + f" AS {_P}{n}" for n, type_ in enumerate(self.types, 1)]
        if placed:
            lists.append(f"unnest(range(len($1::{kinds[0]}[]))) AS {_P}0")
        return f"(SELECT {', '.join(lists)})"


def listed(number: int, type_: str) -> str:
    """The expression of the values of a list that is the parameter of a number."""
    text = f"unnest(${number}::{_KINDS[_base(type_)][1]}[])"
    return f"{text}::{type_}" if _base(type_) == _DECIMAL else text


def _plan_insert(made: _Planned) -> GroupWrite | None:
    session, captured, shape = made.session, made.captured, made.captured.shape
    tokens = made.statement.classified.tokens
    end = _end_of_values(tokens)
    row = None if end is None else _row(tokens, end)
    dml = made.dml
    if row is None or end is None or dml.by_name or dml.names_hidden:
        return None
    names = [column.name for column in shape.stored] if dml.columns is None else list(dml.columns)
    columns = [shape.stored[shape.place(name)] for name in names]
    omitted = [column for column in shape.stored if column not in columns]
    if not made.may_take(columns, row) or not all(map(_has_steady_default, omitted)):
        return None
    if not _has_steady_constraints(session, shape, [column.default or "" for column in omitted]):
        return None
    items = {shape.place(name): item for name, item in zip(names, row, strict=True)}
    behind = tokens[end + 1 :]
    if behind and behind[0].kind == "ON":
        return _plan_conflict(made, items, [token for token in behind if token.kind != ";"])
    if (behind and behind[0].kind not in ("RETURNING", ";")) or not made.one.one_row:
        return None
    if made.one.shape is not capture.Shape.VERBATIM:
        return None
    if dml.returning is not None and not _returns_columns(made.statement, captured, made.bound):
        return None
    many = _plan_rows(made, items)
    return None if many is None else made.plan(many, returned=None if dml.returning is None else made.bound)


def _plan_rows(made: _Planned, items: Mapping[int, _Item], behind: str = "") -> capture.Plan | None:
    """The plan of an INSERT of the rows of the lists; None if a parameter has no place in it."""
    shape = made.captured.shape
    names = ", ".join(ident(shape.stored[place].name) for place in items)
    values = ", ".join(item.text for item in items.values())
    text = f"INSERT INTO {shape.qualified} ({names}) SELECT {values} FROM {made.relation()} AS {_P}{behind}"
    if len(bind(made.session.meta, text).parameters) != len(made.types):
        return None
    return capture.plan_group(replace(made.dml, text=text, row_count=None), made.captured.table)


def _plan_conflict(made: _Planned, items: Mapping[int, _Item], tokens: Sequence[Token]) -> GroupWrite | None:
    """The plan of an INSERT with ON CONFLICT by the primary key: nothing, or proposed values are taken."""
    shape, table = made.captured.shape, made.captured.table
    keys = {place: items[place] for place in map(shape.place, shape.primary_key) if place in items}
    if not keys or len(keys) != len(shape.primary_key) or not _are_keys(made, keys):
        return None
    sets = _excluded(tokens, shape)
    if sets is None:
        return None
    places = tuple(item.number - 1 for item in keys.values())
    if not sets:
        many = _plan_rows(made, items, " ON CONFLICT DO NOTHING")
        return None if many is None else made.plan(many, keys=places, ordered=False)
    fixed = {fold(name) for name in (*table.split_on, *shape.primary_key)}
    fixed.update(fold(name) for unique in shape.unique for name in unique)
    if fixed & {fold(shape.stored[place].name) for place in sets}:
        return None
    if any(shape.stored[place].type != shape.stored[given].type for place, given in sets.items()):
        return None  # The value would be converted once more.
    if not all(is_constant(c.default or "") for i, c in enumerate(shape.stored) if i not in items):
        return None  # A sequence's number is taken once.
    values = {place: item.text for place, item in items.items()}
    many = capture.plan_upserts(table, values, sets, f"{made.relation()} AS {_P}")
    return made.plan(many, keys=places, ordered=False, joins=True)


def _excluded(tokens: Sequence[Token], shape: TableShape) -> dict[int, int] | None:
    """The columns that `ON CONFLICT ... DO UPDATE SET a = excluded.b` sets, and the proposed ones they take.

    Returns:
        Positions of stored columns; empty for DO NOTHING; None for any other text, or another key.
    """
    words = [token.kind for token in tokens]
    do = words.index("DO") if "DO" in words else 0
    target, action = list(tokens[2:do]), list(tokens[do + 1 :])
    named = {fold(token.name) for token in target[1:-1:2] if token.is_name}
    if words[:2] != ["ON", "CONFLICT"] or not do or not action:
        return None
    if target and (
        [token.kind for token in target[::2]] != ["(", *[","] * (len(target) // 2 - 1), ")"]
        or named != {fold(name) for name in shape.primary_key}
        or len(named) != len(target) // 2
    ):
        return None
    if [token.kind for token in action] == ["NOTHING"]:
        return {}
    if not target or [token.kind for token in action[:2]] != ["UPDATE", "SET"] or (len(action) - 2) % 6 != 5:
        return None
    sets: dict[int, int] = {}
    for at in range(2, len(action), 6):
        column, equals, excluded, dot, given, *comma = action[at : at + 6]
        if not (column.is_name and given.is_name and equals.kind == "=" and dot.kind == "."):
            return None
        if fold(excluded.text) != "excluded" or (comma and comma[0].kind != ","):
            return None
        place, value = shape.position(column.name), shape.position(given.name)
        if place is None or value is None or place in sets:
            return None
        sets[place] = value
    return sets


def _plan_update(made: _Planned) -> GroupWrite | None:
    shape, facts = made.captured.shape, made.statement.classified.dml
    tokens = made.statement.classified.tokens
    assert facts is not None
    where_at = next((at for at, token in enumerate(tokens) if token.kind == "WHERE"), 0)
    set_at = next((at for at, token in enumerate(tokens) if token.kind == "SET"), 0)
    if set_at != 2 * len(facts.target) or where_at < set_at or facts.has_returning:
        return None
    sets = _equations(tokens[set_at + 1 : where_at], ",", None)
    keys = _by_key(made, tokens[where_at + 1 :])
    if sets is None or keys is None or any(shape.position(name) is None for name in sets):
        return None
    places = {shape.place(name): item for name, item in sets.items()}
    columns = [shape.stored[place] for place in places]
    fixed = {fold(name) for name in made.captured.table.split_on}
    fixed.update(fold(name) for unique in shape.unique for name in unique)
    if not made.may_take(columns, list(sets.values())) or fixed & {fold(column.name) for column in columns}:
        return None
    if not _has_steady_constraints(made.session, shape, ()):
        return None
    many = capture.plan_updates(
        made.captured.table,
        {place: item.text for place, item in places.items()},
        {place: item.text for place, item in keys.items()},
        f"{made.relation(placed=True)} AS {_P}",
        f"{_P}.{_P}0",
    )
    return made.plan(many, keys=tuple(item.number - 1 for item in keys.values()), joins=True)


def _plan_delete(made: _Planned) -> GroupWrite | None:
    shape, facts = made.captured.shape, made.statement.classified.dml
    tokens = made.statement.classified.tokens
    assert facts is not None
    where_at = next((at for at, token in enumerate(tokens) if token.kind == "WHERE"), 0)
    if where_at != 1 + 2 * len(facts.target) or facts.has_returning:
        return None
    keys = _by_key(made, tokens[where_at + 1 :])
    if keys is None:
        return None
    found = " AND ".join(
        f"{_P}_t.{ident(shape.stored[place].name)} = {item.text}" for place, item in keys.items()
    )
    text = f"DELETE FROM {shape.qualified} AS {_P}_t USING {made.relation()} AS {_P} WHERE {found}"
    many = capture.plan_group(replace(made.dml, text=text, row_count=None), made.captured.table)
    places = tuple(item.number - 1 for item in keys.values())
    return made.plan(many, keys=places, ordered=False, joins=True)


_PLANNERS: Mapping[str, Callable[[_Planned], GroupWrite | None]] = {
    "INSERT": _plan_insert,
    "UPDATE": _plan_update,
    "DELETE": _plan_delete,
}


def _by_key(made: _Planned, tokens: Sequence[Token]) -> dict[int, _Item] | None:
    """The parameter of each column of the primary key, if a condition is the equality of all of them."""
    shape = made.captured.shape
    found = _equations(tokens, "AND", shape.name)
    if found is None or not shape.primary_key:
        return None
    if {fold(name) for name in found} != {fold(name) for name in shape.primary_key}:
        return None
    keys = {shape.place(name): item for name, item in found.items()}
    return keys if _are_keys(made, keys) else None


def _are_keys(made: _Planned, keys: Mapping[int, _Item]) -> bool:
    """True if these columns have values that Python and DuckDB compare in the same way."""
    for place, item in keys.items():
        column = made.captured.shape.stored[place]
        if not item.number or item.cast or column.collation is not None or column.type not in _KEY_TYPES:
            return False
        if _KINDS[_base(made.types[item.number - 1])][0] is not _KINDS[column.type][0]:
            return False
    return True


_KEY_TYPES = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "VARCHAR", "UUID", "DATE"})


def _equations(tokens: Sequence[Token], between: str, table: str | None) -> dict[str, _Item] | None:
    """The items of `a = item, b = item`, or with AND in between; None for any other text.

    Args:
        table: a name that may qualify the columns.
    """
    left = [token for token in tokens if token.kind != ";"]
    found: dict[str, _Item] = {}
    while left:
        end = next((at for at, token in enumerate(left) if token.kind == between), len(left))
        part, left = left[:end], left[end + 1 :]
        qualified = len(part) > 3 and part[1].kind == "." and part[0].is_name
        if qualified and table is not None and fold(part[0].name) == fold(table):
            part = part[2:]
        if len(part) < 3 or not part[0].is_name or part[1].kind != "=":
            return None
        item = _item(part[2:])
        if item is None or fold(part[0].name) in map(fold, found):
            return None
        found[part[0].name] = item
    return found


# The prefix of names in a text of several executions; no column of a captured table has it.
_P = "__ducktail_b"


@dataclass(frozen=True, slots=True)
class _Item:
    """An element of a row, or an assigned or compared value.

    Args:
        text: its text over the relation of the lists.
        number: the number of its parameter; 0 for a literal.
        cast: the parameter is cast.
    """

    text: str
    number: int = 0
    cast: bool = False


def _end_of_values(tokens: Sequence[Token]) -> int | None:
    """The place of the parenthesis that closes the first row of VALUES; None for any other text."""
    verb = next((at for at, token in enumerate(tokens) if token.kind == "VALUES" and not token.depth), None)
    if verb is None or any(token.kind in ("OR", "OVERRIDING", "DEFAULT") for token in tokens):
        return None
    return closing(tokens, verb + 1) if verb + 1 < len(tokens) and tokens[verb + 1].kind == "(" else None


def _row(tokens: Sequence[Token], end: int) -> list[_Item] | None:
    """The row of VALUES, if it consists of parameters and literals whose meaning depends on nothing."""
    begin = max(at for at in range(end) if tokens[at].kind == "VALUES")
    found: list[_Item] = []
    item: list[Token] = []
    for token in tokens[begin + 2 : end + 1]:
        if token.kind != "," and token is not tokens[end]:
            item.append(token)
            continue
        read = _item(item)
        if read is None:
            return None
        found.append(read)
        item = []
    return found


# Types of a cast of a parameter, each of one word.
_CASTS = frozenset(
    {"SMALLINT", "INT2", "INTEGER", "INT", "INT4", "BIGINT", "INT8", "FLOAT8", "DOUBLE", "BOOLEAN", "BOOL"}
    | {"VARCHAR", "TEXT", "UUID", "DATE", "TIMESTAMP", "TIMESTAMPTZ", "JSON"}
)


def _item(tokens: Sequence[Token]) -> _Item | None:
    if len(tokens) == 2 and tokens[0].kind == "-" and tokens[1].kind == NUMBER:
        return _Item(f"-{tokens[1].text}")
    if len(tokens) == 3 and tokens[0].kind == PARAMETER and tokens[1].kind == "::":
        cast, item = tokens[2].text.upper(), _item(tokens[:1])
        return (
            None if item is None or cast not in _CASTS else _Item(f"{item.text}::{cast}", item.number, True)
        )
    if len(tokens) != 1:
        return None
    (token,) = tokens
    if token.kind == PARAMETER:
        digits = token.text[1:]
        if token.text[0] != "$" or not (digits.isascii() and digits.isdigit()):
            return None
        return _Item(f"{_P}.{_P}{digits}", int(digits))
    if token.kind == STRING:
        # Others may be read by the type of their place (pipeline/placed_literals.py).
        plain = token.text[0] == "'" and token.value[:1].isalpha() and token.value.isascii()
        return _Item(token.text) if plain else None
    return _Item(token.text) if token.kind == NUMBER or token.kind in _CONSTANTS else None


# Functions of a default that are evaluated for each row, whatever transaction it is in.
_EACH_ROW = re.compile(r"\b(?:nextval|uuid|gen_random_uuid)\s*\(")


def _has_steady_default(column: Column) -> bool:
    """True if a column's default depends neither on the transaction nor on the session."""
    if column.default is None:
        return True
    return _WITH_ZONE not in column.type and is_constant(_EACH_ROW.sub("(", column.default))


_MENTIONS_ZONE = re.compile("ZONE|TIMESTAMPTZ|TIMETZ", re.IGNORECASE)


def _has_steady_constraints(session: Context, shape: TableShape, defaults: Sequence[str]) -> bool:
    """True if the checks of a row depend on its values alone."""
    catalog = session.database.catalog_name
    given = [catalog, fold(shape.schema), fold(shape.name)]
    calls = set().union(*map(calls_in, defaults))
    has_zone = any(_WITH_ZONE in column.type for column in shape.stored)
    for kind, text, referenced in session.meta.execute(_CHECKS, given).fetchall():
        if kind == "FOREIGN KEY":
            # DuckDB finds the key of a row that the same statement inserts in none of its other rows.
            if fold(referenced) == fold(shape.name):
                return False
            continue
        condition = text.removeprefix("CHECK")
        if has_zone or _MENTIONS_ZONE.search(condition) or not is_constant(condition):
            return False
        calls |= calls_in(condition)
    return not calls or calls.isdisjoint(read_macros(session.meta))


def _returns_columns(statement: ParsedStatement, captured: Captured, bound: Bound) -> bool:
    """True if RETURNING lists stored columns of types that leave DuckDB without a conversion."""
    shape = captured.shape
    if shape.generated or datarow.select_text(bound.types) or arrow_types.select_plain(bound.types):
        return False
    if any(_WITH_ZONE in type_ for type_ in bound.types):
        return False
    tokens = statement.classified.tokens
    at = next(at for at, token in enumerate(tokens) if token.kind == "RETURNING" and not token.depth)
    listed = [token for token in tokens[at + 1 :] if token.kind != ";"]
    known = {fold(name) for name in shape.column_order}
    wanted = True
    for token in listed:
        if not wanted:
            if token.kind != ",":
                return False
        elif token.kind != "*" and not (token.is_name and fold(token.name) in known):
            return False
        wanted = not wanted
    return not wanted

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
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import duckdb

from ...engine.capture import capture
from ...engine.capture.capture import read_macros
from ...engine.catalog.captured_tables import Captured
from ...engine.catalog.streams import Stream
from ...engine.duck.binding import Bound, bind
from ...engine.duck.determinism import calls_in, is_constant
from ...engine.duck.table_shape import TableShape
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
from ..session_state.context import Context
from ..session_state.names import Key
from ..session_state.statement import ParsedStatement
from ..text.tokens import NUMBER, PARAMETER, STRING, Token, closing
from .dml import slice_dml

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
}
_WITH_ZONE = "TIMESTAMP WITH TIME ZONE"
# Literals whose meaning depends on nothing.
_CONSTANTS = frozenset({"NULL", "TRUE", "FALSE"})
_CHECKS = f"""
    SELECT constraint_type, constraint_text, referenced_table FROM system.main.duckdb_constraints()
    WHERE database_name = $1 AND {folded_sql("schema_name")} = $2 AND {folded_sql("table_name")} = $3
      AND constraint_type IN ('CHECK', 'FOREIGN KEY')"""


@dataclass(frozen=True, slots=True, eq=False)
class GroupInsert(GroupPlan):
    """An INSERT of one row into a captured table.

    Args:
        target: the table.
        version: the version of the catalog for which it was made.
        one: the plan of one write.
        many: the plan of several; each of its parameters is the list of values of one parameter.
        types: DuckDB's types of the parameters.
        returned: the columns of RETURNING; None without it.
    """

    transactions: Transactions
    target: Key
    table: capture.CapturedTable
    version: int
    one: capture.Plan
    many: capture.Plan
    types: tuple[str, ...]
    returned: Bound | None

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
        if len(writes) == 1:
            outcome = transactions.write_captured(transaction, captured, self.one, writes[0].values)
        else:
            lists = [list(column) for column in zip(*(write.values for write in writes), strict=True)]
            outcome = transactions.write_captured(transaction, captured, self.many, lists)
        if outcome.events != len(writes):
            raise PlanChanged
        parts = [Part(captured.table_id, inserts=True, annotation=write.annotation) for write in writes]
        if outcome.returning is None:
            return parts, [None] * len(writes)
        return parts, [outcome.returning.slice(place, 1) for place in range(len(writes))]

    def key(self, write: Write) -> None:
        """None: any two INSERTs can be in one batch."""


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
        parts = [Part(topic.table_id, inserts=False, annotation=write.annotation) for write in writes]
        return parts, list(places)

    def key(self, write: Write) -> None:
        """None: an event conflicts with nothing."""


# A session's side.


def plan_of(session: Context, statement: ParsedStatement) -> GroupInsert | GroupPublish | None:
    """The plan by which a statement may run together with others now; None if it runs alone."""
    database = session.database
    commit, version = database.group_commit, database.catalog.version
    kept = statement.plans.get(KEPT)
    plan = kept if isinstance(kept, (GroupInsert, GroupPublish)) else None
    if plan is None or plan.version != version:
        found = commit.plans.get(_key(statement))
        if not isinstance(found, (GroupInsert, GroupPublish)) or found.version != version:
            return None
        plan = statement.plans[KEPT] = found
    names = session.names
    if session.block.begun or session.access.limited or not names.plain or names.awaited:
        return None
    if not commit.enabled or session.part is not None or in_cluster(session):
        return None
    return plan


def _key(statement: ParsedStatement) -> object:
    return statement.text, statement.published is not None


def is_ready(session: Context, statement: ParsedStatement) -> bool:
    """True if a client's write is only offered by its session, which takes no DuckDB work."""
    return session.wire and plan_of(session, statement) is not None


def write(
    session: Context, plan: GroupPlan, values: Sequence[object] | None, timeout_ms: int
) -> Waiting[Write | None]:
    """Offer a write and wait for it.

    Args:
        values: the values of the write; None if they are not suitable.

    Returns:
        The committed write; None if it is to run alone, now on a thread that may block.

    Raises:
        LockNotAvailable: no batch has taken it within `timeout_ms`.
    """
    commit = session.database.group_commit
    # In process, a session that need not wait writes at once.
    if values is not None and (session.wire or _is_contended(session)):
        size = sum(len(value) if isinstance(value, (str, bytes)) else VALUE_BYTES for value in values)
        offered = Write(plan, session.id, values, size, session.variables.annotation)
        if size <= CHARS_MAX and (yield from commit.write(offered, timeout_ms)):
            return offered
    if session.wire:
        yield from on_worker()
    return None


def _is_contended(session: Context) -> bool:
    database = session.database
    return database.transactions.writer_lock.holder() is not None or bool(database.group_commit.waiting_count)


def suitable(plan: GroupInsert, values: Sequence[object]) -> Sequence[object] | None:
    """The values, if they are the same in a list and alone; else None."""
    if len(values) != len(plan.types):
        return None
    for value, type_ in zip(values, plan.types, strict=True):
        if value is None:
            continue
        kind = _KINDS[type_][0]
        if type(value) is not kind:
            return None
        if kind is int and not -(2**63) <= value < 2**63:  # type: ignore[operator]
            return None
        if kind is datetime.datetime and (value.tzinfo is None) is (type_ == _WITH_ZONE):  # type: ignore[attr-defined]
            return None
    return values


# Plans.


def learn(session: Context, statement: ParsedStatement, target: Key) -> None:
    """Plan a statement that has just run alone, if it may run together with others; never fails."""
    if not _is_due(session, statement):
        return
    captured = session.database.catalog.tables.get(target)
    kept = statement.plans.get(statement.text)
    if captured is None or not isinstance(kept, tuple) or kept[0] is not captured.table:
        return
    try:
        plan = _planned(session, statement, captured, kept[2], kept[3])
    except (DucktailError, duckdb.Error):
        return
    if plan is not None and plan.version == session.database.catalog.version:
        session.database.group_commit.keep(_key(statement), plan)


def learn_topic(session: Context, statement: ParsedStatement, topic: Stream) -> None:
    """Plan a publication that has just run alone."""
    if _is_due(session, statement) and topic.compaction != "key":
        database = session.database
        plan = GroupPublish(database.topics, topic, database.catalog.version)
        database.group_commit.keep(_key(statement), plan)


def _is_due(session: Context, statement: ParsedStatement) -> bool:
    """True if a statement runs again in the present state of the catalog: most texts with literals do not."""
    version = session.database.catalog.version
    seen = statement.plans.get(KEPT)
    if session.block.begun or not session.names.plain or seen == (version, True):
        return False
    statement.plans[KEPT] = (version, seen == (version, False))
    return seen == (version, False)


def _planned(
    session: Context, statement: ParsedStatement, captured: Captured, one: capture.Plan, bound: Bound
) -> GroupInsert | None:
    classified, shape = statement.classified, captured.shape
    version = session.database.catalog.version
    row = _row(classified.tokens)
    types = tuple(bound.parameters.get(str(n), "") for n in range(1, len(bound.parameters) + 1))
    if row is None or statement.node is not None or not types or not _KINDS.keys() >= set(types):
        return None
    if classified.verb != "INSERT" or one.shape is not capture.Shape.VERBATIM or not one.one_row:
        return None
    dml = slice_dml(classified, shape.schema)
    if dml.with_text or dml.conflict is not None or dml.by_name or dml.names_hidden:
        return None
    names = [column.name for column in shape.stored] if dml.columns is None else list(dml.columns)
    if len(row) != len(names) or shape.unique_expressions:
        return None
    columns = [shape.stored[shape.place(name)] for name in names]
    placed = zip(columns, row, strict=True)
    if any(_WITH_ZONE in column.type and kind != PARAMETER for column, (kind, _) in placed):
        return None
    omitted = [column for column in shape.stored if column not in columns]
    if not all(column.default is None or _is_steady(column.default, column.type) for column in omitted):
        return None
    texts = [column.default or "" for column in omitted]
    if not _has_steady_constraints(session, shape, texts):
        return None
    if dml.returning is not None and not _returns_columns(session, statement, captured, bound):
        return None
    text = _text_of_many(shape, names, row, types)
    asked = bind(session.meta, text).parameters
    if len(asked) != len(types):
        return None
    many = capture.plan_group(replace(dml, text=text, row_count=None), captured.table)
    returned = None if dml.returning is None else bound
    transactions = session.database.transactions
    return GroupInsert(transactions, captured.key, captured.table, version, one, many, types, returned)


# An element of a row: PARAMETER with its number, or "" with the text of a literal.
_Item = tuple[str, str]


def _row(tokens: Sequence[Token]) -> list[_Item] | None:
    """The only row of VALUES, if it consists of parameters and literals whose meaning depends on nothing."""
    verb = next((at for at, token in enumerate(tokens) if token.kind == "VALUES" and not token.depth), None)
    if verb is None or any(token.kind in ("OR", "OVERRIDING", "DEFAULT") for token in tokens):
        return None
    if verb + 1 >= len(tokens) or tokens[verb + 1].kind != "(":
        return None
    end = closing(tokens, verb + 1)
    behind = tokens[end + 1 :]
    if behind and behind[0].kind not in ("RETURNING", ";"):
        return None
    found: list[_Item] = []
    item: list[Token] = []
    for token in tokens[verb + 2 : end + 1]:
        if token.kind != "," and token is not tokens[end]:
            item.append(token)
            continue
        read = _item(item)
        if read is None:
            return None
        found.append(read)
        item = []
    return found


def _item(tokens: Sequence[Token]) -> _Item | None:
    if len(tokens) == 2 and tokens[0].kind == "-" and tokens[1].kind == NUMBER:
        return "", f"-{tokens[1].text}"
    if len(tokens) != 1:
        return None
    (token,) = tokens
    if token.kind == PARAMETER:
        digits = token.text[1:]
        return (PARAMETER, digits) if token.text[0] == "$" and digits.isascii() and digits.isdigit() else None
    if token.kind == STRING:
        # Others may be read by the type of their place (pipeline/placed_literals.py).
        plain = token.text[0] == "'" and token.value[:1].isalpha() and token.value.isascii()
        return ("", token.text) if plain else None
    return ("", token.text) if token.kind == NUMBER or token.kind in _CONSTANTS else None


def _text_of_many(shape: TableShape, names: Sequence[str], row: Sequence[_Item], types: Sequence[str]) -> str:
    """The INSERT of many rows, each of whose parameters is the list of values of one parameter."""
    items = [f"batch.p{text}" if kind == PARAMETER else text for kind, text in row]
    lists = [f"unnest(${n}::{_KINDS[type_][1]}[]) AS p{n}" for n, type_ in enumerate(types, 1)]
    return (
        f"INSERT INTO {shape.qualified} ({', '.join(map(ident, names))}) SELECT {', '.join(items)} "
        f"FROM (SELECT {', '.join(lists)}) AS batch"
    )


# Functions of a default that are evaluated for each row, whatever transaction it is in.
_EACH_ROW = re.compile(r"\b(?:nextval|uuid|gen_random_uuid)\s*\(")


def _is_steady(default: str, type_: str) -> bool:
    """True if a default depends neither on the transaction nor on the session."""
    return _WITH_ZONE not in type_ and is_constant(_EACH_ROW.sub("(", default))


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


def _returns_columns(session: Context, statement: ParsedStatement, captured: Captured, bound: Bound) -> bool:
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

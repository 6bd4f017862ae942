"""Data classes of capture: a DML statement, a table, a plan and an outcome.

A description is cut from the user's text by the language layer, which knows tokens: every `..._text` and
expression in it is a piece of that text, never a text regenerated from a tree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import pyarrow as pa

from ..duck.binding import Parsed
from ..duck.table_shape import RESERVED_PREFIX, TableShape
from ..errors import CharacterNotInRepertoire

# In a DO UPDATE expression `excluded.c` stands as `__ducktail_s."__ducktail_x_c"`: the proposed row
# under names that no column of the table has, so that a bare `c` stays the table's own.
PROPOSED = f"{RESERVED_PREFIX}_s"
PROPOSED_PREFIX = f"{RESERVED_PREFIX}_x_"

# The virtual column that RETURNING names (merge_action of MERGE, rowid of DELETE), where the select
# list stands over a subquery.
HIDDEN = f"{RESERVED_PREFIX}_h"

# Assigned column and expression; None stands for DEFAULT.
Assignment = tuple[str, str | None]


class Verb(enum.Enum):
    """The verb of a statement; TRUNCATE counts as DELETE."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    MERGE = "merge"


class Match(enum.Enum):
    """The kind of rows of a WHEN clause of MERGE; the value is DuckDB's wording."""

    MATCHED = "WHEN MATCHED"
    NOT_BY_TARGET = "WHEN NOT MATCHED"
    NOT_BY_SOURCE = "WHEN NOT MATCHED BY SOURCE"


class Action(enum.Enum):
    """The action of a WHEN clause of MERGE."""

    UPDATE = "update"
    INSERT = "insert"
    DELETE = "delete"
    NOTHING = "do nothing"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class MergeClause:
    """One WHEN clause of MERGE.

    Args:
        condition: the condition behind AND, or None; `calls` are its calls, as in Dml.
        sets: UPDATE SET: the assignments in order.
        columns: INSERT: the column list, None without one.
        values: INSERT VALUES: the expressions, None for DEFAULT; empty for DEFAULT VALUES.
        star: UPDATE or INSERT of all of the source's columns: by "name" or "position", else None.
        message: ERROR: the expression, or None.
    """

    match: Match
    action: Action
    condition: str | None = None
    calls: frozenset[str] = frozenset()
    sets: tuple[Assignment, ...] = ()
    columns: tuple[str, ...] | None = None
    values: tuple[str | None, ...] = ()
    star: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """The part of a MERGE behind its target.

    Args:
        source: the table reference behind USING.
        source_name: the qualifier of the source's columns, as SQL; None if it has no single name (a join, a
            subquery without an alias).
        source_columns: the names of its columns; set only if a clause has a `star`.
        is_join: the source is a join.
        on: the join's qualifier, ON (...) or USING (...).
        clauses: the WHEN clauses in order.
        plain_source: by its keywords the source returns the same rows at every read, provided that it names
            base tables only and calls deterministic functions only.
        source_words: lower-case names in the source, including tables.
        source_calls, on_calls: the `calls` of these parts alone, as in Dml.
    """

    source: str
    source_name: str | None
    source_columns: tuple[str, ...]
    is_join: bool
    on: str
    clauses: tuple[MergeClause, ...]
    plain_source: bool
    source_words: frozenset[str]
    source_calls: frozenset[str]
    on_calls: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conflict:
    """ON CONFLICT DO UPDATE, or INSERT OR REPLACE (`replaces`, which has no assignments).

    Args:
        target: the conflict columns, None if the statement names none.
        sets: the assignments in order, with `excluded` replaced as described at PROPOSED.
        where: the predicate behind DO UPDATE SET, or None.
        sets_as_written, where_as_written: both in the user's own text.
    """

    target: tuple[str, ...] | None
    sets: tuple[Assignment, ...]
    where: str | None
    replaces: bool
    sets_as_written: tuple[Assignment, ...] = ()
    where_as_written: str | None = None


@dataclass(frozen=True, slots=True)
class Dml:
    """One INSERT, UPDATE, DELETE or MERGE, split into pieces.

    Args:
        text: the whole statement without its RETURNING; a TRUNCATE as a DELETE.
        with_text: `WITH a AS (...), b AS (...)` as the user wrote it, or ''.
        target: the table's name as written, with its qualifiers.
        relation: the table's name in RETURNING, SET and WHERE, as SQL: its alias if it has one (in an INSERT
            without DO UPDATE always the table's name).
        alias: the alias as written, or None.
        returning: the select list behind RETURNING, or None.
        names_hidden: the select list uses the statement's virtual column, renamed to HIDDEN.
        columns: INSERT: the column list, None without one.
        by_name: INSERT BY NAME.
        row_count: INSERT VALUES, DEFAULT VALUES and MERGE USING (VALUES ...): the number of rows in the text.
            None if the source is a query, or a VALUES list followed by further clauses.
        rows: the expressions of each of these rows, if the statement may update rows; None for DEFAULT;
            DEFAULT VALUES is one row without expressions.
        query: the text of the source query, if the statement may update rows or `query_from` is set; else
            None.
        query_from: for an INSERT that updates no rows: the unquoted name, with its qualifiers, of the only
            table that `query` selects from, if it neither limits, groups nor orders rows. () for any other
            query.
        repeatable: the caller knows that two reads of `query_from` return the same rows.
        conflict: the conflict clause that may update rows; None for DO NOTHING and OR IGNORE.
        sets: UPDATE: the assignments in order.
        source: UPDATE: the text behind FROM, or None.
        where: UPDATE and DELETE: the predicate, or None.
        equal_columns: lower-case names of the columns that WHERE compares by `=` or IN on its top level,
            without OR: a hint that few rows match, never needed for correctness.
        calls: lower-case names followed by `(`, without those in RETURNING.
        has_subquery: the text contains a query in brackets, outside RETURNING and MERGE's source.
        merge: MERGE: the rest of the statement.
    """

    verb: Verb
    text: str
    with_text: str
    target: str
    relation: str
    alias: str | None
    returning: str | None = None
    names_hidden: bool = False
    columns: tuple[str, ...] | None = None
    by_name: bool = False
    row_count: int | None = None
    rows: tuple[tuple[str | None, ...], ...] | None = None
    query: str | None = None
    query_from: tuple[str, ...] = ()
    repeatable: bool = False
    conflict: Conflict | None = None
    sets: tuple[Assignment, ...] = ()
    source: str | None = None
    where: str | None = None
    equal_columns: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    has_subquery: bool = False
    merge: Merge | None = None


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table whose changes are logged.

    Args:
        shape: the table's columns and constraints.
        log: the log's qualified, quoted name.
        split_on: the primary key and every stream's partition columns: an update that changes one
            of them is logged as a delete and an insert.
    """

    shape: TableShape
    log: str
    split_on: frozenset[str]


class Shape(enum.Enum):
    """The shape in which a statement is run: verbatim, log first or staged."""

    VERBATIM = "A"
    LOG_FIRST = "B"
    STAGED = "C"


# The numbers of a planned text are its parameters, behind all that a user's text can have (the wire counts
# parameters with 16 bits): the LSN before the statement's first event, the transaction's number, the last LSN
# of a slice.
USER_PARAMETERS_MAX = 65_535
_BASE, _TXID, _UPPER = "65536", "65537", "65538"
BASE, TXID, UPPER = (f"${name}::BIGINT" for name in (_BASE, _TXID, _UPPER))


def numbers(base_lsn: int, txid: int, upper_lsn: int | None = None) -> dict[str, object]:
    """The values of a planned text's own parameters; the last one only for texts that use it."""
    upper = {} if upper_lsn is None else {_UPPER: upper_lsn}
    return {_BASE: base_lsn, _TXID: txid, **upper}


def refuse_zero_characters(dml: Dml) -> None:
    """Raise 22021 if a text contains the character 0, as PostgreSQL does."""
    if "\0" in dml.text or "\0" in (dml.returning or ""):
        raise CharacterNotInRepertoire("a statement cannot contain the character 0")


# The effect of a step on the table ("d" deletes, "u" updates, "i" inserts rows), and its text.
Step = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a captured statement: the texts of its steps, cached by (text, table version).

    Args:
        log: the INSERT into the log; in shape A it contains the user's statement.
        lists_entries: `log` returns an entry for each event (few are expected); else the number of events.
        entries: SELECT of the same entries from the log; None if no event has a key.
        one_row: shape A: the text makes at most one event, and numbers it without counting.
        gives_rows: shape A: `log` returns the rows of RETURNING, behind a constant and, if there are entries,
            the key.
        verbatim: shape B: the user's statement.
        steps: shape C: the statements that apply the log to the table, up to UPPER, in order.
        applies_all: shape C: each event (but a split update's delete) is one row of the steps.
        returning: SELECT of the user's RETURNING from the log, or None.
        split_deletes: SELECT of the number of deletes that split updates have logged, or None if every event
            is a row of the statement.
        twice: shape C: SELECT of the number of events whose row another event touches too.
        sliceable: shape C may apply the log in several slices.
        inserts: each event is an insert, and none is half of a split update.
        deletes: each event is a delete.
    """

    shape: Shape
    log: str
    lists_entries: bool
    entries: str | None
    one_row: bool = False
    gives_rows: bool = False
    verbatim: str | None = None
    steps: tuple[Step, ...] = ()
    applies_all: bool = True
    returning: str | None = None
    split_deletes: str | None = None
    twice: str | None = None
    sliceable: bool = False
    inserts: bool = False
    deletes: bool = False
    _parsed: dict[str, Parsed] = field(default_factory=dict, init=False, repr=False, compare=False)

    def parsed(self, text: str) -> Parsed:
        """One of its texts in parsed form, cached between runs."""
        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = Parsed(text)
        return found


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN ANALYZE of a captured statement.

    Args:
        words: the text before the statement: `EXPLAIN ANALYZE` with its options.
        log: the log's qualified, quoted name.
    """

    words: str
    log: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a captured statement.

    Args:
        events: the number of log rows, whose LSNs are base + 1 to base + events.
        rows: the statement's row count, as in plain DuckDB.
        keys: 64-bit hashes of the old and new primary keys written, or, without a primary key, of the whole
            old rows; None for more than KEYS_MAX.
        returning: the rows of RETURNING, or None if the statement has none.
    """

    events: int
    rows: int
    keys: frozenset[int] | None
    returning: pa.Table | None

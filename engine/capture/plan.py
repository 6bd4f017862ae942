"""The values of capture without behaviour: a DML statement, a table and a plan.

A description is cut from the user's own text (by the language layer, which knows tokens): every
`..._text` and expression in it is a piece of that text, never a text made again from a tree.
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
    """The verb of a statement; TRUNCATE is a DELETE."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    MERGE = "merge"


class Match(enum.Enum):
    """The rows that a WHEN clause of MERGE is about; the value is DuckDB's wording of it."""

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
    """One WHEN clause.

    Args:
        condition: what stands behind AND, or None; `calls` are its, as in Dml.
        sets: of UPDATE SET: the assignments in order.
        columns: of INSERT: the column list, None without one.
        values: of INSERT VALUES: the expressions, None for DEFAULT; of DEFAULT VALUES none.
        star: UPDATE and INSERT of the source's columns as they are: "name" or "position", else None.
        message: of ERROR: the expression, or None.
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
    """MERGE behind its target.

    Args:
        source: the table reference behind USING.
        source_name: what the source's columns are qualified by, as SQL; None where it has no one
            name (a join, a subquery without an alias).
        source_columns: its columns' names; only told where a clause takes them as they are.
        is_join: the source is a join of several.
        on: the join's qualifier, ON (...) or USING (...).
        clauses: the WHEN clauses in order.
        plain_source: by its words the source gives the same rows whenever it is read, if all that it
            names are base tables and all that it calls is deterministic.
        source_words: lower-case names in the source, tables' among them.
        source_calls, on_calls: as in Dml, of these parts alone.
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
    """ON CONFLICT DO UPDATE, or INSERT OR REPLACE (`replaces`, which names no assignments).

    Args:
        target: the conflict columns, None where the statement names none.
        sets: assignments in order, `excluded` written as PROPOSED says.
        where: the predicate behind DO UPDATE SET, or None.
        sets_as_written, where_as_written: the same in the user's own words.
    """

    target: tuple[str, ...] | None
    sets: tuple[Assignment, ...]
    where: str | None
    replaces: bool
    sets_as_written: tuple[Assignment, ...] = ()
    where_as_written: str | None = None


@dataclass(frozen=True, slots=True)
class Dml:
    """One INSERT, UPDATE, DELETE or MERGE, cut into pieces.

    Args:
        text: the whole statement without its RETURNING; a TRUNCATE as the DELETE that it is.
        with_text: `WITH a AS (...), b AS (...)` as the user wrote it, or ''.
        target: the table's name as written, with its qualifiers.
        relation: the name that RETURNING, SET and WHERE know the table by, as SQL: its alias where
            it has one (but for an INSERT without DO UPDATE, where that is the table's name).
        alias: the alias as written, or None.
        returning: the select list behind RETURNING, or None.
        names_hidden: the select list names the statement's virtual column, as HIDDEN.
        columns: of INSERT: the column list, None without one.
        by_name: INSERT BY NAME.
        row_count: of INSERT VALUES, DEFAULT VALUES and MERGE USING (VALUES ...): rows in the text.
            None where a query, or a VALUES list with more than rows behind it, is the source.
        rows: where rows may be updated: the expressions of each of these rows, None for DEFAULT;
            DEFAULT VALUES is one row without expressions.
        query: where rows may be updated, or `query_from` is told: the text of the query that is the
            source, else None.
        query_from: of an INSERT that updates nothing: the unquoted name, with its qualifiers, of the one
            table that `query` selects from, if it neither picks, groups nor orders rows. () for any
            other query.
        repeatable: the caller knows that `query_from` gives the same rows when it is read twice.
        conflict: where rows may be updated. DO NOTHING and OR IGNORE have none.
        sets: of UPDATE: the assignments in order.
        source: of UPDATE: what stands behind FROM, or None.
        where: of UPDATE and DELETE: the predicate, or None.
        equal_columns: lower-case names of the columns that WHERE compares by `=` or IN on its top
            level, where it has no OR: says that few rows can be meant. Never needed for rightness.
        calls: lower-case names that a `(` follows, RETURNING left out.
        has_subquery: a query stands in brackets somewhere, RETURNING and MERGE's source left out.
        merge: of MERGE: the rest of it.
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
        shape: its columns and constraints.
        log: the log's qualified, quoted name.
        split_on: the primary key and every stream's partition columns: an update that changes one
            of them is logged as a delete and an insert.
    """

    shape: TableShape
    log: str
    split_on: frozenset[str]


class Shape(enum.Enum):
    """The shape in which a statement is run; see capture.py."""

    VERBATIM = "A"
    LOG_FIRST = "B"
    STAGED = "C"


# The numbers of a planned text are parameters of it, behind all that a user's text can have (the wire
# counts them with 16 bits): the LSN before the statement's first event, the transaction's number, the
# last LSN of a slice.
USER_PARAMETERS_MAX = 65_535
_BASE, _TXID, _UPPER = "65536", "65537", "65538"
BASE, TXID, UPPER = (f"${name}::BIGINT" for name in (_BASE, _TXID, _UPPER))


def numbers(base_lsn: int, txid: int, upper_lsn: int | None = None) -> dict[str, object]:
    """The values of a planned text's own parameters; the last one is of those that name it."""
    upper = {} if upper_lsn is None else {_UPPER: upper_lsn}
    return {_BASE: base_lsn, _TXID: txid, **upper}


def refuse_zero_characters(dml: Dml) -> None:
    """Raise 22021 where a text has the character 0, as PostgreSQL does."""
    if "\0" in dml.text or "\0" in (dml.returning or ""):
        raise CharacterNotInRepertoire("a statement cannot contain the character 0")


# What a step does to the table ("d" deletes, "u" updates, "i" inserts rows), and its text.
Step = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a captured statement: the texts of its steps, to be kept by (text, table version).

    Args:
        log: the INSERT into the log; in shape A it holds the user's statement.
        lists_entries: `log` returns an entry for each event (few are expected), else their number.
        entries: SELECT of the same entries from the log; None where no event has a key to tell.
        one_row: shape A: the text can make one event at most, which it numbers so.
        gives_rows: shape A: `log` gives the rows of RETURNING, behind a constant and, where there
            are entries, the key.
        verbatim: shape B: the user's statement.
        steps: shape C: what applies the log to the table, up to UPPER, in order.
        applies_all: shape C: each event (but a split update's delete) is one row of the steps.
        returning: SELECT of the user's RETURNING from the log, or None.
        split_deletes: SELECT of the number of deletes that split updates have logged, or None where
            every event is a row of the statement.
        twice: shape C: SELECT of the number of events that touch a row which another one touches.
        sliceable: shape C may apply the log in several goes.
        inserts: each event is an insert, and none is half of a split update.
        deletes: each is a delete.
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
        """One of its texts, as it is kept between runs."""
        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = Parsed(text)
        return found


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN ANALYZE of a captured statement.

    Args:
        words: what stands before the statement: `EXPLAIN ANALYZE`, options included.
        log: the log's qualified, quoted name.
    """

    words: str
    log: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a captured statement.

    Args:
        events: rows of the log, LSNs base + 1 to base + events.
        rows: the statement's own row count, as plain DuckDB gives it.
        keys: 64-bit hashes of the old and new primary keys it wrote; without a primary key of the
            whole old rows; None where there are more than KEYS_MAX.
        returning: the rows of RETURNING, or None where the statement has none.
    """

    events: int
    rows: int
    keys: frozenset[int] | None
    returning: pa.Table | None

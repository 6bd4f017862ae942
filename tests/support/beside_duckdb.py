"""A random statement run on plain DuckDB, and what of its answer a captured table's must be."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import duckdb
from random_dml import Generator, Statement, TableKind

# What a statement did: 'ok', its count and its rows (sorted texts), or an error's class and text.
Result = tuple[str, object, object]


def first_texts(rng: random.Random, kind: TableKind) -> tuple[list[str], list[str]]:
    """The statements that make a table of a kind, and those of its first rows, some refused."""
    generator = Generator(rng, kind)
    columns = ", ".join(kind.columns)
    rows = []
    for number in range(rng.choice((0, 5, 8, 12))):
        values = [
            str(number) if kind.columns[c] == "int" and c in generator.keys else generator.value(c, False)
            for c in kind.columns
        ]
        ignoring = " or ignore" if kind.unique else ""
        rows.append(f"insert{ignoring} into {kind.name} ({columns}) values ({', '.join(values)})")
    made = ["create sequence sq start 100", "create schema s2", *kind.before, kind.ddl]
    return made, [*rows, *kind.after]


def run_plain(cursor: duckdb.DuckDBPyConnection, statement: Statement, *, in_block: bool = False) -> Result:
    """Run a statement as it is, in a transaction of its own or, `in_block`, in one that is open."""
    named = {str(n): value for n, value in enumerate(statement.parameters, 1)}
    try:
        if not in_block:
            cursor.execute("begin")
        if answers_rows(statement):
            table = cursor.sql(statement.text, params=named or None).to_arrow_table()
            result: Result = ("ok", table.num_rows, rows_of(table))
        else:
            rows = cursor.execute(statement.text, named or None).fetchall()
            result = ("ok", rows[0][0] if rows else None, None)
        if not in_block:
            cursor.execute("commit")
    except duckdb.Error as error:
        rollback(cursor)
        return type(error).__name__, str(error), None
    return result


def answers_rows(statement: Statement) -> bool:
    """Whether it answers rows, and not a count alone."""
    text = strip_strings(statement.text)
    return text.startswith("select ") or " returning " in text


def strip_strings(text: str) -> str:
    return re.sub(r"'(?:[^']|'')*'", "''", text)


def rows_of(table: object) -> tuple[list[str], list[str]]:
    """Types and sorted rows; names are the binder's, which a session asks of the user's own text."""
    columns = [column.to_pylist() for column in table.columns]  # type: ignore[attr-defined]
    types = [str(kind) for kind in table.schema.types]  # type: ignore[attr-defined]
    return types, texts(zip(*columns, strict=True))


def texts(rows: Iterable[object]) -> list[str]:
    """Rows as sorted texts, in which equal values are one.

    An update by an equal value (0.0 by -0.0, a month by 30 days) stays undone or not in plain DuckDB,
    by the way that it takes. The log is held against the table without that leniency.
    """
    return sorted(EQUAL.sub(lambda found: EQUALS[found[0]], repr(row)) for row in rows)


EQUALS = {"-0.0": "0.0", "1 month": "30 days", "months=1, days=0": "months=0, days=30"}
EQUAL = re.compile("|".join(map(re.escape, EQUALS)))


def rollback(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("rollback")
    except duckdb.Error:
        pass  # DuckDB has ended the transaction itself


# Errors of which a MERGE may have several at once; whose row comes first is nobody's promise.
ROW_ERRORS = {"ConstraintException", "InvalidInputException", "ConversionException", "OutOfRangeException"}


def stage(result: Result) -> int:
    """Where capture meets such an error: in the rows' SELECT, among its rows, or in the table."""
    if "more than once" in str(result[1]):
        return 1
    return 2 if result[0] == "ConstraintException" and "Merge error condition" not in str(result[1]) else 0


def forgiven(
    kind: TableKind, statement: Statement, ours: Result, theirs: Result, *, in_block: bool = False
) -> bool:
    """Differences that are known, wanted and documented (docs/design/engine.md, "Differences")."""
    # A key that the transaction has written before is still there to plain DuckDB's check.
    if in_block and ours[0] == "ok" and "uplicate key" in str(theirs[1]):
        return True
    # RETURNING turns plain DuckDB's update of a referenced row into delete and insert, which fails.
    if kind.label == "foreign key parent" and theirs[0] == "ConstraintException":
        return True
    # In one transaction plain DuckDB cannot delete a row that it has replaced there.
    if ours[0] == "ok" and "Failed to delete all rows from index" in str(theirs[1]):
        return True
    # Plain DuckDB's cast of lists to an array may look at the length of a NULL.
    if theirs[0] == "ConversionException" and "list with length 0" in str(theirs[1]):
        return True
    # One clause frees a key that another takes: deletes go first in shape C.
    if "merge into" in statement.text and ours[0] == "ok" and "uplicate key" in str(theirs[1]):
        return True
    # Plain DuckDB works out a constant of a clause that no row takes; capture goes on, to its keys.
    further = ours[0] in ("ok", "ConstraintException")
    if "merge into" in statement.text and further and "string 'zz' to ENUM" in str(theirs[1]):
        return True
    # Of two errors capture meets the earlier one; had it got past that, the other one must be the same.
    several = "merge into" in statement.text and {ours[0], theirs[0]} <= ROW_ERRORS
    return several and stage(ours) <= stage(theirs)

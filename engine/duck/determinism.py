"""The determinism of SQL texts: if two evaluations in a transaction give the same values.

Shape B of capture evaluates a statement's expressions once for the log and once for the table. This is
allowed only if DuckDB marks every function in them CONSISTENT or CONSISTENT_WITHIN_QUERY (constant within a
transaction: now(), current_setting(), ...). Unknown functions count as inconsistent.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable

import duckdb

from ..quoting import fold, folded_sql
from .table_shape import Column, TableShape

# Words before a bracket that are grammar or types, not functions.
_GRAMMAR_WORDS = """
    and any all as between by case cast coalesce columns default distinct do else end exclude excluded
    except exists extract filter from if in interval into is like ilike glob not null on or over partition
    position row select set similar substring then trim try_cast update using value values when where
    with escape order insert conflict overlay nullif grouping lambda map struct union array list
    decimal numeric dec varchar char bpchar text string nvarchar character bit bitstring varbit float
    double time timestamp timestamptz timetz enum blob bytea varying precision"""
# A word before a bracket, and the quote that ends a quoted name before one.
_CALL = re.compile(r"(?<!\w)\w++(?=\s*+\()")
_QUOTED_CALL = re.compile(r'"(?=\s*+\()')
# A string, and the words that are functions without brackets.
_STRING = re.compile(r"'(?:[^']|'')*+'")
_MOMENT = re.compile(r"\b(?:current_\w+|localtime(?:stamp)?|session_user|user)\b", re.IGNORECASE)
# Functions whose values depend on the names of their arguments.
BY_NAMES = frozenset({"alias", "struct_pack"})
# Types with values that are equal but not identical (-0.0 and 0.0, 1 month and 30 days): an UPDATE in place
# skips such a change, so the log must take the value that the table then holds.
_UNEQUAL_EQUALS = re.compile(r"\b(?:FLOAT|DOUBLE|REAL|INTERVAL|VARIANT)\b", re.IGNORECASE)

# Lower-case names, or a function that reads them from the catalog, called only if needed.
NamesInUse = Collection[str] | Callable[[], Collection[str]]

_CONSISTENT = f"""
    SELECT {folded_sql("function_name")} FROM system.main.duckdb_functions()
    WHERE internal AND function_type = 'scalar'
    GROUP BY 1 HAVING bool_and(stability IN ('CONSISTENT', 'CONSISTENT_WITHIN_QUERY'))"""


@functools.cache
def consistent_functions() -> frozenset[str]:
    """Lower-case names of the functions whose overloads are all consistent.

    They are read once from a database in memory of the running DuckDB.
    """
    with duckdb.connect(":memory:") as connection:
        scalar = {row[0] for row in connection.execute(_CONSISTENT).fetchall()}
    return frozenset(scalar.union(_GRAMMAR_WORDS.split()))


@functools.cache
def _aggregates() -> frozenset[str]:
    """Lower-case names of the aggregates of the running DuckDB."""
    query = (
        "SELECT function_name FROM system.main.duckdb_functions() "
        "WHERE internal AND function_type = 'aggregate'"
    )
    with duckdb.connect(":memory:") as connection:
        return frozenset(fold(row[0]) for row in connection.execute(query).fetchall())


@functools.cache
def built_in_functions() -> frozenset[str]:
    """Lower-case names of all functions and macros of the running DuckDB."""
    query = "SELECT DISTINCT function_name FROM system.main.duckdb_functions() WHERE internal"
    with duckdb.connect(":memory:") as connection:
        return frozenset(fold(row[0]) for row in connection.execute(query).fetchall())


def is_constant(default: str) -> bool:
    """True if a column's default, in DuckDB's text, has the same value at every evaluation."""
    words = _STRING.sub("''", default)
    if _MOMENT.search(words) is not None:
        return False
    return calls_in(words) <= _constant_functions()


@functools.cache
def _constant_functions() -> frozenset[str]:
    query = _CONSISTENT.replace("'CONSISTENT', 'CONSISTENT_WITHIN_QUERY'", "'CONSISTENT'")
    with duckdb.connect(":memory:") as connection:
        scalar = {row[0] for row in connection.execute(query).fetchall()}
    return frozenset(scalar.union(_GRAMMAR_WORDS.split()))


def is_settled(calls: Collection[str], macros: NamesInUse) -> bool:
    """True if two calls in one statement give the same values; this includes aggregates over one snapshot."""
    return is_deterministic(set(calls) - _aggregates(), macros)


def read_macros(cursor: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Lower-case names of the users' macros and functions, which may hide built-in ones. It takes 13 ms."""
    query = "SELECT function_name FROM system.main.duckdb_functions() WHERE NOT internal"
    return frozenset(fold(row[0]) for row in cursor.execute(query).fetchall())


def read_views(cursor: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Lower-case names of views, including streams' own views and registered relations."""
    query = "SELECT view_name FROM system.main.duckdb_views() WHERE NOT internal"
    return frozenset(fold(row[0]) for row in cursor.execute(query).fetchall())


def is_deterministic(calls: Collection[str], macros: NamesInUse) -> bool:
    """True if two calls of these lower-case names in a transaction give the same values."""
    if not calls or not consistent_functions().issuperset(calls):
        return not calls
    return set(calls).isdisjoint(macros() if callable(macros) else macros)


def goes_by_names(calls: Collection[str]) -> bool:
    """True if the result of these calls, in lower case, may depend on the names of their arguments.

    A function that is not DuckDB's own may be a macro with such a call.
    """
    if not BY_NAMES.isdisjoint(calls):
        return True
    return not (consistent_functions().issuperset(calls) or _known().issuperset(calls))


@functools.cache
def _known() -> frozenset[str]:
    return consistent_functions() | built_in_functions()


def calls_in(expression: str) -> set[str]:
    """Lower-case names that may be called in an expression written by DuckDB (a default).

    The set may be too large: a word before a bracket inside a string counts.
    """
    found = {fold(word) for word in _CALL.findall(expression)}
    for end in _QUOTED_CALL.finditer(expression):
        begins = expression.rfind('"', 0, end.start())
        while begins > 0 and expression[begins - 1] == '"':  # A doubled quote is a part of the name.
            begins = expression.rfind('"', 0, begins - 1)
        found.add(fold(expression[begins + 1 : end.start()]))
    return found


def calls_with(calls: Iterable[str], texts: Iterable[str], shape: TableShape) -> set[str]:
    """The calls of a statement, of these texts of DuckDB and of the generated columns."""
    generated = (expression for _, _, expression in shape.generated)
    return set(calls).union(*map(calls_in, texts), *map(calls_in, generated))


def compares_inexactly(column: Column) -> bool:
    """True if two values of the column can be equal without being the same."""
    return _UNEQUAL_EQUALS.search(column.type) is not None

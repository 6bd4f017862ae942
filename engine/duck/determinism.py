"""The determinism of SQL texts: whether evaluating one twice in a transaction gives the same values.

Shape B of capture evaluates a statement's expressions once for the log and once for the table. It
may only where every function in them is one that DuckDB calls CONSISTENT or
CONSISTENT_WITHIN_QUERY (those are fixed for a transaction: now(), current_setting(), ...). What is
not known to be consistent is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable

import duckdb

from ..quoting import fold, folded_sql, literal
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
# Functions whose values depend on how their arguments are called.
BY_NAMES = frozenset({"alias", "struct_pack"})
# Types of which two values can be equal and yet not the same (-0.0 and 0.0, 1 month and 30 days): an
# UPDATE in place skips such a change, so that the log must be told by what the table then holds.
_UNEQUAL_EQUALS = re.compile(r"\b(?:FLOAT|DOUBLE|REAL|INTERVAL|VARIANT)\b", re.IGNORECASE)

# Lower-case names, or what reads them from the catalog: it is asked only where they matter.
NamesInUse = Collection[str] | Callable[[], Collection[str]]

_CONSISTENT = f"""
    SELECT {folded_sql("function_name")} FROM system.main.duckdb_functions()
    WHERE internal AND function_type = 'scalar'
    GROUP BY 1 HAVING bool_and(stability IN ('CONSISTENT', 'CONSISTENT_WITHIN_QUERY'))"""


@functools.cache
def consistent_functions() -> frozenset[str]:
    """Lower-case names of the functions of which every overload is consistent.

    They are those of the DuckDB that runs, read once from a database in memory.
    """
    with duckdb.connect(":memory:") as connection:
        scalar = {row[0] for row in connection.execute(_CONSISTENT).fetchall()}
    return frozenset(scalar.union(_GRAMMAR_WORDS.split()))


@functools.cache
def _aggregates() -> frozenset[str]:
    """Lower-case names of the aggregates of the DuckDB that runs."""
    query = (
        "SELECT function_name FROM system.main.duckdb_functions() "
        "WHERE internal AND function_type = 'aggregate'"
    )
    with duckdb.connect(":memory:") as connection:
        return frozenset(fold(row[0]) for row in connection.execute(query).fetchall())


@functools.cache
def built_in_functions() -> frozenset[str]:
    """Lower-case names of all functions and macros of the DuckDB that runs."""
    query = "SELECT DISTINCT function_name FROM system.main.duckdb_functions() WHERE internal"
    with duckdb.connect(":memory:") as connection:
        return frozenset(fold(row[0]) for row in connection.execute(query).fetchall())


def is_constant(default: str) -> bool:
    """True if a column's default, in DuckDB's own words, is the same value wherever it is evaluated."""
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
    """True if these give the same twice in one statement: aggregates over one snapshot do too."""
    return is_deterministic(set(calls) - _aggregates(), macros)


def read_macros(cursor: duckdb.DuckDBPyConnection, catalog_name: str | None = None) -> frozenset[str]:
    """Lower-case names of the users' macros and functions, or of one database's.

    One may hide a built-in function. It takes 13 ms.
    """
    query = "SELECT function_name FROM system.main.duckdb_functions() WHERE NOT internal"
    if catalog_name is not None:
        query += f" AND database_name = {literal(catalog_name)}"
    return frozenset(fold(row[0]) for row in cursor.execute(query).fetchall())


def read_views(cursor: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Lower-case names of views, streams' own and registered relations among them."""
    query = "SELECT view_name FROM system.main.duckdb_views() WHERE NOT internal"
    return frozenset(fold(row[0]) for row in cursor.execute(query).fetchall())


def is_deterministic(calls: Collection[str], macros: NamesInUse) -> bool:
    """True if functions of these lower-case names give the same twice in a transaction."""
    if not calls or not consistent_functions().issuperset(calls):
        return not calls
    return set(calls).isdisjoint(macros() if callable(macros) else macros)


def goes_by_names(calls: Collection[str]) -> bool:
    """True if what calls these, of lower-case names, may depend on how its parts are called.

    Whatever is not DuckDB's own may be a macro over what does.
    """
    if not BY_NAMES.isdisjoint(calls):
        return True
    return not (consistent_functions().issuperset(calls) or _known().issuperset(calls))


@functools.cache
def _known() -> frozenset[str]:
    return consistent_functions() | built_in_functions()


def calls_in(expression: str) -> set[str]:
    """Lower-case names that may be called in an expression of DuckDB's own making (a default).

    Errs on the side of more: a text before a bracket inside a string counts.
    """
    found = {fold(word) for word in _CALL.findall(expression)}
    for end in _QUOTED_CALL.finditer(expression):
        begins = expression.rfind('"', 0, end.start())
        while begins > 0 and expression[begins - 1] == '"':  # It is doubled: a part of the name.
            begins = expression.rfind('"', 0, begins - 1)
        found.add(fold(expression[begins + 1 : end.start()]))
    return found


def calls_with(calls: Iterable[str], texts: Iterable[str], shape: TableShape) -> set[str]:
    """The calls of a statement, of these texts of DuckDB's making and of the generated columns."""
    generated = (expression for _, _, expression in shape.generated)
    return set(calls).union(*map(calls_in, texts), *map(calls_in, generated))


def compares_inexactly(column: Column) -> bool:
    """True if two values of the column can be equal without being the same."""
    return _UNEQUAL_EQUALS.search(column.type) is not None

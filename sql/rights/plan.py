"""The check of a statement against DuckDB's plan: the tables that it reads, through views and macros.

The plan is the unoptimized one, so that no table is omitted because its rows do not matter. It lacks the
target of an INSERT. Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import duckdb

from ...engine.database import Database
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.macros import list_macros
from ...engine.errors import InsufficientPrivilege
from ...engine.quoting import fold, folded_sql
from ...engine.schema import SCHEMA, SECRET_TABLES
from ..dml import topic_writes
from ..language.classify import classify
from ..language.parse import Query
from ..reading import scan_relation
from ..session_state.access import Key
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from ..text.spans import defining_query_span, numbered, variable_value
from ..text.tokens import Token, tokenize
from .hidden_names import as_told
from .reach import TRUSTED, cannot_tell

# `lock_down` leaves this setting open (engine/storage/duckdb_file.py); the front end lets no user set it.
_ALL = "SET SESSION explain_output = 'all'"
_PHYSICAL = "SET SESSION explain_output = 'physical_only'"
# Functions that read a table whose name may be computed and so need not be in the text.
_COMPUTED = frozenset(
    {"query", "query_table", "histogram", "histogram_values", "summary", "seq_scan", "duckdb_table_sample"}
)

# The names in the definitions of views and macros are kept up to this length.
SHORT = 4096

Parts = tuple[str, ...]


def check(
    session: Context,
    statement: ParsedStatement,
    parameters: Sequence[object],
    reached: Set[Key],
    *,
    explains: bool,
) -> None:
    """Check that everything that DuckDB's plan reads has been checked.

    Args:
        reached: the relations that were found by the names in the text.
        explains: the plan will be shown.

    Raises:
        InsufficientPrivilege: the plan reads a relation that was not checked.
        DucktailError: the text does not bind.
    """
    text = _planned(session, statement)
    if text is None:
        return
    try:
        # DuckDB's text lacks the parameters of ducktail's clauses.
        tables = _plan_tables(session, *numbered(text, parameters))
    except duckdb.Error as error:
        raise as_told(session.access, translated(error)) from error
    catalog = fold(session.database.catalog_name)
    for parts in tables:
        database, key = parts[0], tuple(parts[-2:])
        if database in (TRUSTED, "temp", "system"):
            continue
        if database != catalog or len(parts) != 3 or key not in reached:
            raise cannot_tell()
        if explains and key[0] != "ducktail" and not session.access.may("select", key):
            raise InsufficientPrivilege(
                "permission denied: the plan would show what is under a view",
                hint="Its owner can look at it.",
            )


def _planned(session: Context, statement: ParsedStatement) -> str | None:
    """The text that DuckDB plans when a statement runs: the statement or its query; None if there is none."""
    classified = statement.classified
    if isinstance(statement.node, Query):
        classified = classify(scan_relation.bindable(session, statement.node))
    if classified.verb == "SET VARIABLE":
        start = variable_value(classified.tokens)
        return None if start is None else f"SELECT {classified.text[start:]}"
    if classified.kind is Kind.DDL:
        span = defining_query_span(classified)
        return None if span is None else classified.text[span[0] : span[1]]
    if topic_writes.target(session, classified) is not None:
        return topic_writes.query_of(session, classified).query
    return classified.text


def _plan_tables(session: Context, text: str, parameters: Sequence[object]) -> frozenset[Parts]:
    """The tables of a statement as (catalog, schema, table), in small letters.

    The text is bound on the session's own cursor, like the statement itself.
    """
    cursor = session.cursor
    cursor.execute(_ALL)
    try:
        cursor.execute(f"EXPLAIN (FORMAT json) {text}", list(parameters) or None)
        rows = cursor.fetchall()
        cursor.execute(_PHYSICAL)
    except BaseException:
        # A failed transaction accepts no setting.
        session.cursors.later(_PHYSICAL)
        raise
    plans = [json.loads(plan) for key, plan in rows if key == "logical_plan"]
    assert plans, "explain_output = 'all' tells the logical plan"
    return frozenset(_parts(name) for plan in plans for name in _tables(plan))


def _tables(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for child in node:
            yield from _tables(child)
        return
    table = node.get("extra_info", {}).get("Table")
    if isinstance(table, str):
        yield table
    yield from _tables(node.get("children", []))


def _parts(name: str) -> Parts:
    """The parts of a name that is quoted where necessary."""
    return tuple(fold(token.name) for token in tokenize(name) if token.kind != ".")


def refuse_passwords(text: str) -> None:
    """Refuse a text that names the table of password verifiers, or that of sinks, which has their keys.

    Raises:
        InsufficientPrivilege: the text names the table.
    """
    lowered = text.lower()
    for table in SECRET_TABLES:
        if table in lowered:
            raise InsufficientPrivilege(f'permission denied for table "{table}"')


def refuse_computed(session: Context, statement: ParsedStatement, parameters: Sequence[object]) -> None:
    """Refuse a text that computes the name of such a table, itself or in a view or macro that it uses.

    Raises:
        InsufficientPrivilege: the text reads the table.
    """
    text, words = _planned(session, statement), _names(statement.classified.tokens)
    if text is None or (words.isdisjoint(_COMPUTED) and words.isdisjoint(_definitions_that_compute(session))):
        return
    if session.block.begun:
        session.block.touched()
    session.cursors.settle()
    try:
        tables = _plan_tables(session, *numbered(text, parameters))
    except duckdb.Error:
        return  # The text does not bind; running it reports the error.
    for table in SECRET_TABLES:
        if any(parts[-2:] == (SCHEMA, table) for parts in tables):
            raise InsufficientPrivilege(f'permission denied for table "{table}"')


def _definitions_that_compute(session: Context) -> frozenset[str]:
    """Views and macros that contain such a function, directly or through other views and macros."""
    version = session.database.catalog.version
    kept = _kept.get(session.database)
    if kept is not None and kept[0] == version and not session.block.ddl:
        return kept[1]
    found = _look(session)
    if not session.block.ddl:
        _kept[session.database] = (version, found)
    return found


def _names(tokens: Sequence[Token]) -> frozenset[str]:
    return frozenset(fold(token.name) for token in tokens if token.is_name)


def _words(definition: str) -> frozenset[str]:
    return _words_of_short(definition) if len(definition) < SHORT else _names(tokenize(definition))


@lru_cache(maxsize=256)
def _words_of_short(definition: str) -> frozenset[str]:
    return _names(tokenize(definition))


# For each open database, the catalog version and the last listing.
_kept: WeakKeyDictionary[Database, tuple[int, frozenset[str]]] = WeakKeyDictionary()


def _look(session: Context) -> frozenset[str]:
    if session.block.ddl:
        session.cursors.settle()
        cursor, macros = session.cursor, list_macros(session.cursor)
    else:
        cursor, macros = session.meta, session.database.macros.latest(session.meta)
    found = cursor.execute(
        f"SELECT {folded_sql('view_name')}, sql FROM system.main.duckdb_views() "
        "WHERE NOT internal AND database_name <> $1",
        [TRUSTED],
    ).fetchall()
    found += [
        (macro.name, macro.definition)
        for macro in macros
        if macro.definition is not None and macro.catalog != TRUSTED
    ]
    definitions = [(name, _words(sql)) for name, sql in found]
    computing: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, words in definitions if words & (_COMPUTED | computing))
        if more == computing:
            return computing
        computing = more

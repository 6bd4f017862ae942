"""The tables that a text reads, through views and macros, according to DuckDB's own plan.

The plan is the one that the optimizer has not seen yet, so no table is left out because its rows turned
out not to matter. What an INSERT writes is not in it. Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import duckdb

from ...engine.database import Database
from ...engine.errors import InsufficientPrivilege
from ...engine.quoting import fold, folded_sql
from ...engine.schema import SCHEMA, USERS
from ..session_state.context import Context
from ..text.classified import Classified
from ..text.tokens import Token, tokenize

# `lock_down` leaves it open (engine/storage/duckdb_file.py); the front end lets no user set it.
_ALL = "SET SESSION explain_output = 'all'"
_PHYSICAL = "SET SESSION explain_output = 'physical_only'"
# What reads a table whose name the text need not show: it may be put together.
_COMPUTED = frozenset(
    {"query", "query_table", "histogram", "histogram_values", "summary", "seq_scan", "duckdb_table_sample"}
)

Parts = tuple[str, ...]


def plan_tables(session: Context, text: str, parameters: Sequence[object]) -> frozenset[Parts]:
    """The tables of a statement as (catalog, schema, table), in small letters.

    It binds on the session's own cursor, as the statement itself would.

    Raises:
        duckdb.Error: it does not bind.
    """
    cursor = session.cursor
    cursor.execute(_ALL)
    try:
        cursor.execute(f"EXPLAIN (FORMAT json) {text}", list(parameters) or None)
        rows = cursor.fetchall()
        cursor.execute(_PHYSICAL)
    except BaseException:
        # A failed transaction takes no setting.
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
    """The parts of a name that is quoted where it must be."""
    return tuple(fold(token.name) for token in tokenize(name) if token.kind != ".")


def refuse_passwords(text: str) -> None:
    """No text names the table of what passwords are held against.

    Raises:
        InsufficientPrivilege.
    """
    if USERS in text.lower():
        raise InsufficientPrivilege(f'permission denied for table "{USERS}"')


def may_compute(session: Context, classified: Classified) -> bool:
    """True if a text may compute a name, itself or in a view or a macro that it uses."""
    words = _names(classified.tokens)
    return not (words.isdisjoint(_COMPUTED) and words.isdisjoint(_definitions_that_compute(session)))


def refuse_computed(session: Context, text: str, parameters: Sequence[object]) -> None:
    """Nor does a text that puts the name together.

    Raises:
        InsufficientPrivilege.
    """
    if session.block.begun:
        session.block.touched()
    session.cursors.settle()
    try:
        tables = plan_tables(session, text, parameters)
    except duckdb.Error:
        return  # It does not bind, and will say so itself.
    if any(parts[-2:] == (SCHEMA, USERS) for parts in tables):
        raise InsufficientPrivilege(f'permission denied for table "{USERS}"')


def _definitions_that_compute(session: Context) -> frozenset[str]:
    """Views and macros in which such a function stands, themselves or by others of them."""
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


# What was found last in each open database, and as of which version of its catalog.
_kept: WeakKeyDictionary[Database, tuple[int, frozenset[str]]] = WeakKeyDictionary()


def _look(session: Context) -> frozenset[str]:
    cursor = session.meta
    if session.block.ddl:
        session.cursors.settle()
        cursor = session.cursor
    found = cursor.execute(
        f"SELECT {folded_sql('view_name')}, sql FROM system.main.duckdb_views() WHERE NOT internal UNION ALL "
        f"SELECT {folded_sql('function_name')}, macro_definition FROM system.main.duckdb_functions() "
        "WHERE NOT internal AND macro_definition IS NOT NULL"
    ).fetchall()
    definitions = [(name, _names(tokenize(sql))) for name, sql in found]
    computing: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, words in definitions if words & (_COMPUTED | computing))
        if more == computing:
            return computing
        computing = more

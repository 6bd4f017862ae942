"""Makes the catalog beside an open database, once: its tables and macros."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import duckdb

from ...engine.clock import SystemClock
from ...engine.version import VERSION
from ...engine.whole import whole
from ...sql.variables import SERVER_VERSION
from . import fixed_tables, functions, session, told
from .places import CATALOG, HOME
from .rewrite import rewrite

_lock = threading.Lock()

# Read once at the start, so that the first client does not wait while our own tables are made ready.
WARMING = "SELECT c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c"


class Home(Protocol):
    """What the catalog needs of an open database (`engine.database.Database`)."""

    name: str
    catalog_name: str

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A cursor on it."""


def install(database: Home) -> None:
    """Make the catalog of this database, if it is not there yet (it has two servers, or had one)."""
    cursor = database.cursor()
    try:
        with _lock:
            found = cursor.execute(
                "SELECT count(*) FROM system.main.duckdb_databases() WHERE database_name = $1", [CATALOG]
            ).fetchall()
            if found == [(0,)]:
                _make(cursor, database)
    finally:
        cursor.close()


def _make(cursor: duckdb.DuckDBPyConnection, database: Home) -> None:
    session.register(cursor)
    cursor.execute(f"ATTACH ':memory:' AS {CATALOG}")
    cursor.execute(f"CREATE SCHEMA {HOME}")
    version = f"PostgreSQL {SERVER_VERSION} (ducktail {VERSION}, DuckDB {duckdb.__version__})"
    macros = functions.macros(database.catalog_name, database.name, version, SystemClock().now_us())
    with whole(cursor):
        fixed_tables.make(cursor)
        for statement in (*_macro_statements(macros), *told.statements()):
            cursor.execute(statement)
    rewrite(WARMING)


def _macro_statements(macros: dict[str, str]) -> Iterator[str]:
    """One CREATE MACRO a name, with all its forms, in the order in which the names come first."""
    forms: dict[str, list[str]] = {}
    for head, body in macros.items():
        name, _, parameters = head.partition("(")
        forms.setdefault(name, []).append(f"({parameters} AS ({body})")
    for name, found in forms.items():
        yield f"CREATE MACRO {HOME}.{name}{', '.join(found)}"

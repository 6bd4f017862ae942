"""The DuckDB file itself: connected, locked down, and the cursors on it.

Nothing here knows streams. Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from .asking import ask
from .errors import IoError
from .quoting import ident, literal
from .schema import SCHEMA

MEMORY = ":memory:"
# A file whose stem is our schema's name, or a name of DuckDB's own, is attached under this catalog
# name: `ducktail.streams` would be ambiguous otherwise.
ALIAS = "ducktail_db"
RESERVED_CATALOGS = frozenset(
    {SCHEMA, "information_schema", "pg_catalog", "main", "memory", "system", "temp", "__ducktail_pg"}
)

# DuckDB settings that a session may still change after the configuration is locked.
SESSION_CONFIGS = (
    "timezone",
    "search_path",
    "schema",
    "errors_as_json",
    "arrow_lossless_conversion",
    "max_execution_time",
    "default_order",
    "default_null_order",
    "null_order",
    "integer_division",
    "calendar",
    "preserve_identifier_case",
)


@dataclass(frozen=True, slots=True)
class DuckdbFile:
    """A connected database file, or one in memory.

    Args:
        path: as the user gave it; MEMORY is one without a file.
        catalog_name: under which DuckDB has it attached.
    """

    path: str
    connection: duckdb.DuckDBPyConnection
    catalog_name: str

    @classmethod
    def connect(cls, path: str) -> DuckdbFile:
        """Connect to the file at `path`, or make it.

        Raises:
            IoError: 58030, the file cannot be opened, is no database, or another process has it.
        """
        config: dict[str, str | bool | int | float | list[str]] = {
            "custom_user_agent": "ducktail",
            "python_enable_replacements": False,
        }
        alias = path != MEMORY and Path(path).stem.lower() in RESERVED_CATALOGS
        try:
            connection = duckdb.connect(MEMORY if alias else path, config=config)
            if alias:
                connection.execute(f"ATTACH {literal(path)} AS {ALIAS}")
        except duckdb.Error as error:
            raise _cannot_open(path, error) from error
        name = ALIAS if alias else str(ask(connection, "SELECT current_database()")[0])
        return cls(path, connection, name)

    @property
    def wal_path(self) -> str | None:
        """DuckDB's write-ahead log beside the file; None in memory."""
        return None if self.path == MEMORY else f"{self.path}.wal"

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor; with `utc`, in that time zone."""
        cursor = self.connection.cursor()
        cursor.execute("SET errors_as_json = true")
        if self.catalog_name == ALIAS:
            cursor.execute(f"USE {ident(ALIAS)}")
        if utc:
            cursor.execute("SET TimeZone = 'UTC'")
        return cursor

    def close(self) -> None:
        """Close the connection; DuckDB folds its log into the file."""
        self.connection.close()


def lock_down(cursor: duckdb.DuckDBPyConnection) -> None:
    """Nothing outside the database is reachable through SQL from here on (promise 14)."""
    allowed = ", ".join(literal(name) for name in SESSION_CONFIGS)
    cursor.execute("SET GLOBAL preserve_insertion_order = true")
    cursor.execute("SET GLOBAL TimeZone = 'UTC'")
    cursor.execute(f"SET GLOBAL allowed_configs = [{allowed}]")
    cursor.execute("SET GLOBAL enable_external_access = false")
    cursor.execute("SET GLOBAL lock_configuration = true")


def _cannot_open(path: str, error: duckdb.Error) -> IoError:
    text = str(error)
    if "lock" in text.lower():
        return IoError(f'database file "{path}" is in use by another process')
    return IoError(f'cannot open database file "{path}"', detail=text.splitlines()[0])

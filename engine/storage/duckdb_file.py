"""The DuckDB file: its connection, its locked-down configuration, and its cursors.

This module does not depend on streams. Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

import duckdb

from ..duck.allowed_files import is_allowed
from ..duck.cursors import ask
from ..errors import DataCorrupted, DucktailError, InvalidParameterValue, IoError
from ..quoting import fold, ident, literal
from ..schema import SCHEMA
from ..settings import Settings

MEMORY = ":memory:"
# A file whose stem is our schema's name, or one of DuckDB's names, is attached under this catalog name:
# `ducktail.streams` would be ambiguous otherwise.
ALIAS = "ducktail_db"
RESERVED_CATALOGS = frozenset(
    {SCHEMA, "information_schema", "pg_catalog", "main", "memory", "system", "temp", "__ducktail_pg"}
)

# Below it DuckDB cannot keep the blocks of a few columns at once, for each of its threads.
MEMORY_BYTES_MIN = 64 << 20

# Bytes of a result that DuckDB computes ahead of its reader: the first row is returned once they exist.
STREAMING_BYTES = 1 << 20
SESSION_SETUP = f"""
    SET SESSION errors_as_json = true;
    SET SESSION max_streaming_buffer_size = '{STREAMING_BYTES}B'
"""

DATA_HINT = "Make a database beside it, allow its directory, and read it with SQL: FROM 'file.csv'."

# A size that no log reaches: with it DuckDB makes no checkpoint by itself.
NO_CHECKPOINT = "1024 TiB"

# DuckDB settings that a session may still change after the configuration is locked.
SESSION_CONFIGS = (
    "timezone",
    "search_path",
    "schema",
    "errors_as_json",
    "max_streaming_buffer_size",
    "arrow_lossless_conversion",
    "max_execution_time",
    "default_null_order",
    "null_order",
    "integer_division",
    "calendar",
    "preserve_identifier_case",
    "explain_output",
)


@dataclass(frozen=True, slots=True)
class DuckdbFile:
    """A connected database file, or one in memory.

    Args:
        path: the path given by the user; MEMORY for a database without a file.
        catalog_name: the name under which DuckDB has it attached.
    """

    path: str
    connection: duckdb.DuckDBPyConnection
    catalog_name: str
    _cursors: WeakSet[duckdb.DuckDBPyConnection] = field(default_factory=WeakSet, compare=False)

    @classmethod
    def connect(cls, path: str, settings: Settings | None = None, *, read_only: bool = False) -> DuckdbFile:
        """Connect to the file at `path`, or create it, with the memory limits of the settings.

        With `read_only` the file is not changed.

        Raises:
            IoError: the file cannot be opened, is not a database, or is open in another process.
            DataCorrupted: DuckDB finds it damaged.
        """
        config: dict[str, str | bool | int | float | list[str]] = {
            "custom_user_agent": "ducktail",
            "python_enable_replacements": False,
        }
        if settings is not None and settings.copy_to:
            # From the first commit on: the copies decide when there is a checkpoint.
            config["wal_autocheckpoint"] = NO_CHECKPOINT
        alias = path != MEMORY and fold(Path(path).stem) in RESERVED_CATALOGS
        try:
            connection = duckdb.connect(
                MEMORY if alias else path, config=config, read_only=read_only and not alias
            )
            bound_memory(connection, path, settings or Settings())
            if alias:
                mode = " (READ_ONLY)" if read_only else ""
                connection.execute(f"ATTACH {literal(path)} AS {ALIAS}{mode}")
        except duckdb.Error as error:
            raise _cannot_open(path, error) from error
        name = ALIAS if alias else str(ask(connection, "SELECT current_database()")[0])
        sql = "SELECT path FROM system.main.duckdb_databases() WHERE database_name = $1"
        (where,) = ask(connection, sql, [name])
        if where is None and path != MEMORY:
            # DuckDB opens a data file in a database in memory: anything written to it would be lost.
            connection.close()
            raise IoError(f'"{path}" is a file of data, no DuckDB database', hint=DATA_HINT)
        return cls(path, connection, name)

    @property
    def on_disk(self) -> str | None:
        """The path of the file; None in memory."""
        return None if self.path == MEMORY else self.path

    @property
    def wal_path(self) -> str | None:
        """DuckDB's write-ahead log beside the file; None in memory."""
        return None if self.path == MEMORY else f"{self.path}.wal"

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor; with `utc`, in time zone UTC."""
        cursor = self.connection.cursor()
        self._cursors.add(cursor)
        cursor.execute(SESSION_SETUP)
        if self.catalog_name == ALIAS:
            cursor.execute(f"USE {ident(ALIAS)}")
        if utc:
            cursor.execute("SET SESSION TimeZone = 'UTC'")
        return cursor

    def why_invalidated(self) -> str | None:
        """The reason why DuckDB invalidated this database; None if it did not."""
        try:
            self.cursor().close()
        except duckdb.FatalException as error:
            _, _, original = str(error).partition("Original error: ")
            return " ".join(original.split()).strip('"') or str(error)
        except duckdb.Error:
            return None  # It is closed or out of memory for a cursor, not invalidated.
        return None

    def abandon(self) -> None:
        """Close the connection and its cursors, and leave the file and its log unchanged.

        No call on them may be running. DuckDB releases the file with the last one.
        """
        with suppress(duckdb.Error):
            self.connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        for cursor in list(self._cursors):
            cursor.close()
        self.connection.close()

    def close(self) -> None:
        """Close the connection; DuckDB folds its log into the file."""
        self.connection.close()


def bound_memory(connection: duckdb.DuckDBPyConnection, path: str, settings: Settings) -> None:
    """Set DuckDB's limits: memory, and the temporary files that it may write when memory is not enough.

    Raises:
        InvalidParameterValue: the limit is below the memory that DuckDB needs.
    """
    limit = settings.memory_limit_bytes
    if not limit:
        # DuckDB's default is four fifths of the memory of the machine or container.
        (share,) = ask(connection, "SELECT current_setting('memory_limit')")
        (whole,) = ask(connection, "SELECT parse_formatted_bytes($1)", [share])
        limit = max(int(whole) - settings.buffer_bytes_total, int(whole) // 2)
    if limit < MEMORY_BYTES_MIN:
        raise InvalidParameterValue(
            f'setting "memory_limit_bytes" wants at least {MEMORY_BYTES_MIN} bytes, not {limit}'
        )
    connection.execute(f"SET GLOBAL memory_limit = '{limit}B'")
    if path != MEMORY:
        connection.execute(f"SET GLOBAL temp_directory = {literal(path + '.tmp')}")
    connection.execute(f"SET GLOBAL max_temp_directory_size = '{settings.temp_bytes_max}B'")


def lock_down(cursor: duckdb.DuckDBPyConnection, path: str, directories: Sequence[str] = ()) -> None:
    """Make everything outside the database unreachable through SQL (promise 14).

    Args:
        path: the path of the database.
        directories: directories that stay reachable, with links resolved.

    Raises:
        InvalidParameterValue: a directory contains the database, or a link to a directory outside.
    """
    for directory in directories:
        if path != MEMORY and Path(os.path.realpath(path)).is_relative_to(directory):
            raise InvalidParameterValue(
                f'directory "{directory}" cannot be allowed: the database lies under it',
                hint="Allow a directory that holds the files to be read and written, and nothing else.",
            )
        _refuse_ways_out(directory, directories)
    if directories:
        listed = ", ".join(map(literal, directories))
        cursor.execute(f"SET GLOBAL allowed_directories = [{listed}]")
    allowed = ", ".join(literal(name) for name in SESSION_CONFIGS)
    cursor.execute("SET GLOBAL preserve_insertion_order = true")
    cursor.execute("SET GLOBAL TimeZone = 'UTC'")
    cursor.execute(f"SET GLOBAL allowed_configs = [{allowed}]")
    cursor.execute("SET GLOBAL enable_external_access = false")
    cursor.execute("SET GLOBAL lock_configuration = true")


def _refuse_ways_out(directory: str, directories: Sequence[str]) -> None:
    """Refuse links to directories outside.

    DuckDB resolves a file's links before it compares, but removes `link/..` from a path; the system then
    opens it relative to the link's target.
    """
    for root, below, _ in os.walk(directory):
        for name in below:
            link = os.path.join(root, name)
            if os.path.islink(link) and not is_allowed(link, directories):
                raise InvalidParameterValue(
                    f'directory "{directory}" cannot be allowed: the link "{link}" leads out of it',
                    hint="Take the link away, or allow the directory that it leads to as well.",
                )


def _cannot_open(path: str, error: duckdb.Error) -> DucktailError:
    text = str(error)
    if "replaying WAL" in text:
        return DataCorrupted(
            f'DuckDB refuses the write-ahead log of database "{path}"',
            detail=text.splitlines()[0],
            hint="Put back the log that belongs to the file, or open it with --accept-loss.",
        )
    if "orrupt" in text or "hecksum" in text:
        return DataCorrupted(f'database file "{path}" is damaged', detail=text.splitlines()[0])
    if "lock" in text.lower():
        return IoError(f'database file "{path}" is in use by another process')
    return IoError(f'cannot open database file "{path}"', detail=text.splitlines()[0])

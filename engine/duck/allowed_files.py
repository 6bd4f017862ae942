"""The files that SQL may reach: those under the allowed directories, and never the database's own.

DuckDB restricts SQL to the allowed directories, but also permits the files of open databases. So the file
names of a statement are checked against both here, before DuckDB sees them. Source: docs/operations.md,
"Files".
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from ..quoting import fold

# The files of DuckDB and ducktail beside the database's file.
_BESIDE = ("", ".wal", ".wal.checkpoint", ".wal.recovery", ".ducktail", ".tmp")
_SCHEME = re.compile(r"file:(?://localhost|//)?(?=/)|file://", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[\\]")
# The end of a name that DuckDB treats as a file's, as a regular expression.
DATA_NAME = r"\.(?:csv|tsv|parquet|json|jsonl|ndjson|geojson|db|ddb|duckdb)(?:\.(?:gz|zst))?"
_DATA = re.compile(rf"{DATA_NAME}\Z", re.IGNORECASE)


@functools.cache
def file_functions() -> frozenset[str]:
    """Lower-case names of DuckDB's table functions whose first argument names files.

    `glob` is not included: it returns names only, and none outside the allowed directories.
    """
    query = (
        "SELECT DISTINCT function_name FROM system.main.duckdb_functions() WHERE internal "
        "AND function_type = 'table' AND parameters[1] IN ('path', 'paths', 'file')"
    )
    with duckdb.connect(":memory:") as connection:
        return frozenset(fold(row[0]) for row in connection.execute(query).fetchall())


def is_allowed(path: str, directories: Sequence[str]) -> bool:
    """True if a file's name, with links and `..` resolved as the system does, is under a directory."""
    return any(Path(os.path.realpath(path)).is_relative_to(directory) for directory in directories)


def is_reachable(name: str, directories: Sequence[str], database: str) -> bool:
    """True if SQL may use this file or pattern: all its files are allowed, and none belongs to the database.

    Args:
        name: a file's name or DuckDB's pattern of names, as in the statement.
        directories: the allowed directories, with links resolved.
        database: the path of the database.
    """
    return is_allowed(_parts(name)[0], directories) and not leads_to_own(name, database)


def looks_like_data(name: str) -> bool:
    """True if DuckDB would read a table of this name from a file."""
    return _DATA.search(name) is not None


def leads_to_own(name: str, database: str) -> bool:
    """True if a file's name, or a pattern of names, may refer to a file of the database.

    All ways count: `..`, a link, another name of the same file. A pattern may refer to such a file if one is
    anywhere below its first directory, or if it goes up again.
    """
    path, rest = _parts(name)
    own = [database + end for end in _BESIDE]
    spilled = os.path.realpath(database + ".tmp")
    if os.path.isdir(spilled):
        own += [os.path.join(spilled, entry) for entry in os.listdir(spilled)]
    files = {number for each in own if (number := _number(each)) is not None}
    if rest:
        return ".." in rest.split("/") or any(_number(found) in files for found in _below(path))
    if _number(path) in files:
        return True
    real = os.path.realpath(path)
    return any(real == os.path.realpath(each) or real.startswith(spilled + "/") for each in own)


def _parts(name: str) -> tuple[str, str]:
    """A name resolved by the system and ""; for a pattern its first directory and the rest."""
    name = _SCHEME.sub("", name, count=1) if _SCHEME.match(name) else name
    if name.startswith("~"):
        # DuckDB's interpretation, which does not know other users' homes.
        name = os.environ.get("HOME", "") + name[1:]
    special = _PATTERN.search(name)
    if special is None:
        return name, ""
    directory = os.path.dirname(name[: special.start()])
    return directory or ".", name[len(directory) :]


def _number(path: str) -> tuple[int, int] | None:
    """The identity of a file, independent of its name; None if it does not exist."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _below(directory: str) -> Iterator[str]:
    """The files in a directory, its subdirectories and the targets of its links."""
    seen: set[str] = set()
    for root, below, files in os.walk(directory, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        yield from (os.path.join(root, file) for file in files)

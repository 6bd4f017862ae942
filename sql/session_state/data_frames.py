"""Data frames of this process as relations of one session: `register`, `unregister`.

DuckDB reads the object itself while a statement runs, so nothing is copied beforehand and a frame larger
than memory may be a reader. An object belongs to one session: DuckDB makes it a temporary view of that
session's cursor, and the session's name lookup is informed, so that binding happens there.

A rollback removes a view that was created in the transaction and restores one that was dropped in it, but
the frames that a program has registered must not change. The session therefore repairs its views after a
rollback. Source: docs/clients.md, "Python in process".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

import duckdb
import pyarrow as pa

from ...engine.duck.duckdb_errors import translated
from ...engine.duck.table_shape import RESERVED_PREFIX
from ...engine.errors import (
    DatatypeMismatch,
    DuplicateTable,
    InsufficientPrivilege,
    SyntaxError_,
    UndefinedTable,
)
from ...engine.quoting import fold, ident
from .names import Names

# Libraries, by the first part of the module of an object's class, and their classes that DuckDB reads by
# itself, any number of times.
KNOWN = {
    "pandas": frozenset({"DataFrame"}),
    "polars": frozenset({"DataFrame", "LazyFrame"}),
    "pyarrow": frozenset({"Table", "RecordBatch", "RecordBatchReader"}),
}


class Stream(Protocol):
    """An object that exports Arrow batches through the PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The batches, as a PyCapsule."""


class Once:
    """A stream that may be readable only once.

    A second read of such a stream returns no rows and no error, which a statement that reads it twice would
    take for its end. Here the second read is an error.
    """

    def __init__(self, source: Stream) -> None:
        self._reader: pa.RecordBatchReader | None = pa.RecordBatchReader.from_stream(source)
        self._schema = self._reader.schema

    def __arrow_c_schema__(self) -> object:
        """The batches' schema, as a PyCapsule."""
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the batches, once.

        Raises:
            RuntimeError: the batches have been read already; DuckDB makes it an error of the statement.
        """
        reader, self._reader = self._reader, None
        if reader is None:
            raise RuntimeError("it has already been consumed, and can be read only once")
        return reader.__arrow_c_stream__(requested_schema)


class Frames:
    """The objects that a program has registered with one session.

    Args:
        cursor: the session's own cursor.
        names: the session's name lookup.
        forget_plans: called when a name gets other columns.
    """

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, names: Names, forget_plans: Callable[[], None]
    ) -> None:
        self._cursor, self._names, self._forget_plans = cursor, names, forget_plans
        self._objects: dict[str, tuple[str, object]] = {}  # in small letters -> (name, object)
        self._changed: set[str] = set()  # since the transaction began
        self.stale = False

    @property
    def registered(self) -> bool:
        """True if any frame is registered."""
        return bool(self._objects)

    def __contains__(self, name: str) -> bool:
        return fold(name) in self._objects

    def register(self, name: str, frame: object) -> None:
        """Make an object readable under a name; it replaces an earlier registration of the name.

        Raises:
            DuplicateTable: a table, view or stream has the name.
            DatatypeMismatch: the object holds no rows, or DuckDB cannot read it.
            InsufficientPrivilege: the name is reserved.
        """
        if fold(name).startswith(RESERVED_PREFIX):
            raise InsufficientPrivilege(f'names that begin with "{RESERVED_PREFIX}" are ducktail\'s own')
        if name not in self and self._names.is_table(name):
            raise DuplicateTable(
                f'"{name}" is a table, view or stream', hint="Register the object under another name."
            )
        self.put(name, frame)

    def put(self, name: str, frame: object) -> None:
        """Register without checking whether the name is taken: internal names do not clash.

        Raises:
            SyntaxError_: the name is empty.
            DatatypeMismatch: the object holds no rows, or DuckDB cannot read it.
        """
        if not name:
            raise SyntaxError_("the name of a registered object is empty")
        readable = readable_by_duckdb(frame)
        try:
            self._cursor.register(name, readable)
        except duckdb.Error as error:
            raise translated(error) from error
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise DatatypeMismatch(f'"{name}" cannot be read as rows', detail=f"{error}.") from error
        self._objects[fold(name)] = (name, readable)
        self._names.temporary.add(fold(name))
        self._names.changed()
        self._note(name)

    def unregister(self, name: str) -> None:
        """Remove a registered object.

        Raises:
            UndefinedTable: nothing is registered under the name.
        """
        if name not in self:
            raise UndefinedTable(f'no object is registered as "{name}"')
        self._drop(self._objects.pop(fold(name))[0])
        self._names.temporary.discard(fold(name))
        self._names.changed()
        self._note(name)

    def transaction_ended(self, *, committed: bool) -> None:
        """Keep the frames that a transaction registered; after a rollback, repair the views."""
        self.stale = self.stale or (bool(self._changed) and not committed)
        if committed:
            self._changed.clear()

    def mend(self) -> None:
        """Restore the views of registered objects, after a rollback and outside a transaction."""
        self.stale = False
        changed, self._changed = self._changed, set()
        for key in changed:
            if key in self._objects:
                self._cursor.register(*self._objects[key])
            else:
                self._drop(key)

    def renew(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Move to another cursor of the session, on which `mend` registers all objects."""
        self._cursor = cursor
        self._changed = set(self._objects)
        self.stale = True
        self._names.temporary = set(self._objects)
        self._names.changed()

    def close(self) -> None:
        """Remove all registered objects."""
        self._objects.clear()

    def _note(self, name: str) -> None:
        self._changed.add(fold(name))
        self._forget_plans()

    def _drop(self, name: str) -> None:
        """Drop a view that may be missing: a user can DROP VIEW it."""
        self._cursor.unregister(name)
        with suppress(duckdb.CatalogException):
            self._cursor.execute(f"DROP VIEW IF EXISTS temp.{ident(name)}")


def readable_by_duckdb(frame: object) -> Any:
    """The object itself if DuckDB can read it, else its Arrow stream, which can be read once.

    Raises:
        DatatypeMismatch: the object exports no Arrow stream.
    """
    kind = type(frame)
    for base in kind.__mro__:
        if base.__name__ in KNOWN.get(base.__module__.partition(".")[0], ()):
            return frame
    if not hasattr(frame, "__arrow_c_stream__"):
        raise DatatypeMismatch(
            f"{kind.__module__}.{kind.__qualname__} holds no rows",
            hint="Give a pandas or polars DataFrame, an Arrow Table, RecordBatch or RecordBatchReader, "
            "or any object with __arrow_c_stream__.",
        )
    try:
        return Once(cast(Stream, frame))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DatatypeMismatch(
            f"the Arrow stream of {kind.__module__}.{kind.__qualname__} cannot be read", detail=f"{error}."
        ) from error

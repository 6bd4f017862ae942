"""The objects of DuckDB's catalog in one snapshot, and the resolution of names.

Names are resolved only here, by DuckDB's rules (`Resolver`). An object keeps its identity (DuckDB's OID)
through ALTER and RENAME; an object recreated under its name has another. The list of the database's objects
is cached until a change of the catalog is committed or being committed (`Generation`); the temporary objects
of a session are listed on its own cursor.

Source: docs/design/sql.md, "Names".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import duckdb

from ..errors import LockNotAvailable
from ..quoting import fold, ident
from .binding import Parsed

TEMPORARY = "temp"
DEFAULT_SCHEMA = "main"
TABLE, VIEW, SEQUENCE, TYPE, INDEX, SCHEMA = "table", "view", "sequence", "type", "index", "schema"
# Kinds that share one name space within a schema.
RELATIONS = frozenset({TABLE, VIEW})

# Functions are qualified by catalog and schema: no view, table or macro of a user hides them.
_LISTED = (
    (TABLE, "tables", "table_name", "table_oid", "sql"),
    (VIEW, "views", "view_name", "view_oid", "sql"),
    # Its SQL includes its next value.
    (SEQUENCE, "sequences", "sequence_name", "sequence_oid", "NULL"),
    # Of an enum, its labels.
    (
        TYPE,
        "types",
        "type_name",
        "type_oid",
        "logical_type || coalesce(system.main.chr(31) || "
        "system.main.array_to_string(labels, system.main.chr(31)), '')",
    ),
    (SCHEMA, "schemas", "schema_name", "oid", "NULL"),
)
_OBJECTS = Parsed(
    " UNION ALL ".join(
        f"SELECT '{kind}', schema_name, {name}, {oid}, {definition} FROM system.main.duckdb_{listed}() "
        "WHERE database_name = $1" + (" AND NOT internal" if kind in (VIEW, TYPE) else "")
        for kind, listed, name, oid, definition in _LISTED
    )
)

_INDEXES = (
    "SELECT schema_name, index_name, index_oid, table_name FROM system.main.duckdb_indexes() "
    "WHERE database_name = $1"
)

# A COMMIT takes milliseconds; one that writes a checkpoint may take long.
SETTLE_S = 30.0
# Number of times that the catalog is listed again if changes are committed meanwhile.
LISTINGS_MAX = 20

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """One object of the catalog.

    Args:
        kind: TABLE, VIEW, SEQUENCE, TYPE, INDEX or SCHEMA.
        catalog: the database's name, or TEMPORARY.
        schema, name: as stored; for a schema both are its name.
        oid: its identity in this process.
        definition: its SQL; for an index its table's name, for a type the built-in type that it is, and the
            labels of an enum, separated by U+001F.
    """

    kind: str
    catalog: str
    schema: str
    name: str
    oid: int
    definition: str = field(default="", repr=False)

    @property
    def temporary(self) -> bool:
        """True if only its session can see it."""
        return self.catalog == TEMPORARY

    @property
    def key(self) -> Key:
        """(schema, name), folded; (temp, name) for a temporary one."""
        return (TEMPORARY if self.temporary else fold(self.schema), fold(self.name))

    @property
    def in_full(self) -> str:
        """The object's unambiguous name in SQL: "catalog"."schema"."name"."""
        return f"{ident(self.catalog)}.{ident(self.schema)}.{ident(self.name)}"


def group_of(kind: str) -> str:
    """The name space of a kind: tables and views share one, every other kind has its own."""
    return TABLE if kind in RELATIONS else kind


class Objects:
    """The objects of one catalog in one snapshot, found by kind and folded name.

    Attributes:
        schemas: the folded names of the schemas.
    """

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self._found: dict[tuple[str, Key], Object] = {}
        for one in objects:
            self._found[group_of(one.kind), (fold(one.schema), fold(one.name))] = one
        self.schemas = frozenset(key[1] for kind, key in self._found if kind == SCHEMA)

    def __iter__(self) -> Iterator[Object]:
        return iter(self._found.values())

    def get(self, kind: str, schema: str, name: str) -> Object | None:
        """The object of a kind; TABLE finds tables and views."""
        return self._found.get((kind, (fold(schema), fold(name))))

    def identity(self, one: Object) -> int | None:
        """The OID of the object with this object's name here, or None."""
        found = self.get(group_of(one.kind), one.schema, one.name)
        return None if found is None else found.oid

    def has_schema(self, name: str) -> bool:
        """True if a schema of this name exists."""
        return fold(name) in self.schemas

    def relations_of(self, schema: str) -> Mapping[str, Object]:
        """The tables and views of a schema, by folded name."""
        wanted = fold(schema)
        found = self._found.items()
        return {key[1]: one for (kind, key), one in found if kind == TABLE and key[0] == wanted}


EMPTY = Objects()


def read_objects(cursor: duckdb.DuckDBPyConnection, catalog: str) -> Objects:
    """The objects of a catalog in the cursor's snapshot.

    Raises:
        duckdb.Error: the query fails.
    """
    rows = _OBJECTS.run(cursor, [catalog]).fetchall()
    return Objects(
        Object(kind, catalog, schema, name, oid or 0, definition or "")
        for kind, schema, name, oid, definition in rows
    )


def read_indexes(
    cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object]
) -> list[tuple[Any, ...]]:
    """The rows of a query of `duckdb_indexes()`.

    DuckDB looks up the tables of all indexes by their latest names, and fails for the name of a rename that
    another transaction has not yet committed or rolled back. So indexes are listed only when requested.

    Raises:
        LockNotAvailable: such a rename is in progress.
        duckdb.Error: the query fails.
    """
    try:
        return cursor.execute(sql, parameters).fetchall()
    except duckdb.CatalogException as error:
        raise LockNotAvailable(
            "the indexes cannot be listed: another transaction renames a table that has some",
            hint="Try again.",
        ) from error


def indexes(cursor: duckdb.DuckDBPyConnection, catalog: str) -> list[Object]:
    """The indexes of a catalog in the cursor's snapshot.

    Raises:
        LockNotAvailable, duckdb.Error: as in `read_indexes`.
    """
    rows = read_indexes(cursor, _INDEXES, [catalog])
    return [Object(INDEX, catalog, schema, name, oid, table) for schema, name, oid, table in rows]


def temporary_objects(cursor: duckdb.DuckDBPyConnection) -> Objects:
    """The temporary objects of the cursor's session."""
    return read_objects(cursor, TEMPORARY)


def everything(found: Object) -> bool:
    """True for every object: the default of a session without restrictions."""
    return True


@dataclass(frozen=True, slots=True)
class Resolver:
    """Finds DuckDB's object for a name, in one snapshot and for one session.

    Temporary objects come first; then the schemas of the search path in turn, then `main`. A first part equal
    to the database's name is that database. In DuckDB `main.t` also means a temporary t, if one exists,
    because its schema is also named main.

    Args:
        catalog: the database's name.
        objects: the objects of the database.
        temporary: the objects of the session.
        path: the search path's schemas.
        sees: returns True if the session may see an object; for the session others do not exist.
    """

    catalog: str
    objects: Objects
    temporary: Objects
    path: tuple[str, ...]
    sees: Callable[[Object], bool] = everything

    def find(self, kind: str, parts: tuple[str, ...]) -> Object | None:
        """The object of a name; None if it does not exist, or if the name is ambiguous in DuckDB.

        Args:
            kind: TABLE finds tables and views.
            parts: one to three, outermost first.
        """
        if len(parts) == 1:
            first = self.temporary.get(kind, DEFAULT_SCHEMA, parts[0])
            found = (self._seen(kind, schema, parts[0]) for schema in (*self.path, DEFAULT_SCHEMA))
            return first or next((one for one in found if one is not None), None)
        if len(parts) == 2:
            return self._in_schema(kind, *parts)
        if len(parts) != 3:
            return None
        catalog, schema, name = parts
        if fold(catalog) == TEMPORARY:
            return self.temporary.get(kind, schema, name)
        return self._seen(kind, schema, name) if fold(catalog) == fold(self.catalog) else None

    def _seen(self, kind: str, schema: str, name: str) -> Object | None:
        found = self.objects.get(kind, schema, name)
        return found if found is not None and self.sees(found) else None

    def _in_schema(self, kind: str, first: str, name: str) -> Object | None:
        """The object of a name with one qualifier: a schema, the database or `temp`."""
        is_schema = self.objects.has_schema(first)
        if fold(first) in (TEMPORARY, fold(self.catalog)):
            if is_schema and fold(first) != DEFAULT_SCHEMA:
                return None  # "Ambiguous reference to catalog or schema"
            if fold(first) == TEMPORARY:
                return self.temporary.get(kind, DEFAULT_SCHEMA, name)
            return self._seen(kind, DEFAULT_SCHEMA, name)
        return self.temporary.get(kind, first, name) or self._seen(kind, first, name)


class Generation:
    """Counts committed changes of the catalog, and shows if one may be committed at this moment.

    A statement that is checked and begun in autocommit reads it twice: if both values are equal, the snapshot
    that DuckDB took in between has the checked catalog.
    """

    def __init__(self) -> None:
        self._settled = threading.Condition()
        self._changed = 0
        self._macros_changed = 0
        self._changing = 0

    @property
    def stable(self) -> int | None:
        """The number of changes so far; None while one may be committed."""
        with self._settled:
            return None if self._changing else self._changed

    @property
    def stable_macros(self) -> int | None:
        """The number of changes so far that may concern macros; None while any change may be committed."""
        with self._settled:
            return None if self._changing else self._macros_changed

    def settle(self) -> int:
        """Wait until no change is being committed: memory, including rights, then shows all committed
        changes.

        Returns:
            The number of changes so far.

        Raises:
            LockNotAvailable: the wait exceeds SETTLE_S.
        """
        with self._settled:
            if not self._settled.wait_for(lambda: not self._changing, SETTLE_S):
                raise _changing()
            return self._changed

    @contextmanager
    def changing(self, *, macros: bool = True) -> Iterator[None]:
        """A context in which a change of the catalog may be committed and not yet visible in memory.

        Args:
            macros: False if the change makes, changes and drops no macro.
        """
        with self._settled:
            self._changing += 1
        try:
            yield
        finally:
            with self._settled:
                self._changing -= 1
                self._changed += 1
                self._macros_changed += macros
                self._settled.notify_all()


class KnownObjects:
    """The database's committed objects, listed once for each generation."""

    def __init__(self, catalog: str, generation: Generation) -> None:
        self.catalog = catalog
        self._generation = generation
        self._known: tuple[int, Objects] | None = None

    def now(self, cursor: duckdb.DuckDBPyConnection) -> tuple[int, Objects]:
        """The listed generation, and its objects.

        Args:
            cursor: a cursor without an open transaction.

        Raises:
            LockNotAvailable: the catalog changes too often.
        """
        for _ in range(LISTINGS_MAX):
            self._generation.settle()
            generation, objects = self.latest(cursor)
            if generation is not None:
                return generation, objects
        raise _changing()

    def latest(self, cursor: duckdb.DuckDBPyConnection) -> tuple[int | None, Objects]:
        """The generation and its objects, or without generation while a change is being committed."""
        before, known = self._generation.stable, self._known
        if known is not None and known[0] == before:
            return known
        objects = read_objects(cursor, self.catalog)
        if before is None or self._generation.stable != before:
            return None, objects
        self._known = before, objects
        return before, objects


def _changing() -> LockNotAvailable:
    return LockNotAvailable("changes of the catalog are being committed", hint="Try again.")

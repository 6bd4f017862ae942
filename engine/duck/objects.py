"""The objects of DuckDB's catalog, as one snapshot has them: what a name is, and which object that is.

A name is resolved here and nowhere else, by DuckDB's rules (`Resolver`). An object keeps its identity
(DuckDB's OID) through ALTER and RENAME; one that is made anew under its name has another. The listing of the
database's own objects is kept for as long as no change of the catalog is committed or being committed
(`Generation`); the temporary objects of a session are listed on its own cursor.

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

TEMPORARY = "temp"
DEFAULT_SCHEMA = "main"
TABLE, VIEW, SEQUENCE, TYPE, INDEX, SCHEMA = "table", "view", "sequence", "type", "index", "schema"
# Kinds that share one space of names within a schema.
RELATIONS = frozenset({TABLE, VIEW})

# Every function stands with its catalog and schema: no view, table or macro of a user hides it.
_LISTED = (
    (TABLE, "tables", "table_name", "table_oid", "sql"),
    (VIEW, "views", "view_name", "view_oid", "sql"),
    # Its SQL tells its next value.
    (SEQUENCE, "sequences", "sequence_name", "sequence_oid", "NULL"),
    (TYPE, "types", "type_name", "type_oid", "system.main.array_to_string(labels, system.main.chr(31))"),
    (SCHEMA, "schemas", "schema_name", "oid", "NULL"),
)
_SQL = " UNION ALL ".join(
    f"SELECT '{kind}', schema_name, {name}, {oid}, {definition} FROM system.main.duckdb_{listed}() "
    "WHERE database_name = $1" + (" AND NOT internal" if kind in (VIEW, TYPE) else "")
    for kind, listed, name, oid, definition in _LISTED
)

_INDEXES = (
    "SELECT schema_name, index_name, index_oid, table_name FROM system.main.duckdb_indexes() "
    "WHERE database_name = $1"
)

# A COMMIT takes milliseconds; one that writes a checkpoint may take long.
SETTLE_S = 30.0
# How often the catalog is listed anew where changes of it are committed meanwhile.
LISTINGS_MAX = 20

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """One object of the catalog.

    Args:
        kind: TABLE, VIEW, SEQUENCE, TYPE, INDEX or SCHEMA.
        catalog: the database's name, or TEMPORARY.
        schema, name: as they are stored; of a schema both are its name.
        oid: its identity in this process.
        definition: its SQL; of an index, its table's name; of a type, its labels.
    """

    kind: str
    catalog: str
    schema: str
    name: str
    oid: int
    definition: str = field(default="", repr=False)

    @property
    def temporary(self) -> bool:
        """True if it is its session's alone."""
        return self.catalog == TEMPORARY

    @property
    def key(self) -> Key:
        """(schema, name), folded; (temp, name) of a temporary one."""
        return (TEMPORARY if self.temporary else fold(self.schema), fold(self.name))

    @property
    def in_full(self) -> str:
        """Its name as SQL that means it and nothing else: "catalog"."schema"."name"."""
        return f"{ident(self.catalog)}.{ident(self.schema)}.{ident(self.name)}"


def group_of(kind: str) -> str:
    """Tables and views share one space of names, every other kind has its own."""
    return TABLE if kind in RELATIONS else kind


class Objects:
    """The objects of one catalog in one snapshot, found by kind and folded name.

    Attributes:
        schemas: their folded names.
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
        """The OID of what has an object's name here."""
        found = self.get(group_of(one.kind), one.schema, one.name)
        return None if found is None else found.oid

    def has_schema(self, name: str) -> bool:
        """True if there is a schema of this name."""
        return fold(name) in self.schemas

    def relations_of(self, schema: str) -> Mapping[str, Object]:
        """The tables and views of a schema, by folded name."""
        wanted = fold(schema)
        found = self._found.items()
        return {key[1]: one for (kind, key), one in found if kind == TABLE and key[0] == wanted}


EMPTY = Objects()


def read_objects(cursor: duckdb.DuckDBPyConnection, catalog: str) -> Objects:
    """The objects of a catalog, as the cursor's snapshot has them.

    Raises:
        duckdb.Error: the query's own.
    """
    rows = cursor.execute(_SQL, [catalog]).fetchall()
    return Objects(
        Object(kind, catalog, schema, name, oid or 0, definition or "")
        for kind, schema, name, oid, definition in rows
    )


def read_indexes(
    cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object]
) -> list[tuple[Any, ...]]:
    """The rows of a query of `duckdb_indexes()`.

    DuckDB looks up the tables of all indexes by their latest names, and finds none by that of a rename which
    another transaction has not committed, or rolled back, yet. So indexes are listed where they are asked for
    and nowhere else.

    Raises:
        LockNotAvailable: there is such a rename. duckdb.Error: the query's own.
    """
    try:
        return cursor.execute(sql, parameters).fetchall()
    except duckdb.CatalogException as error:
        raise LockNotAvailable(
            "the indexes cannot be listed: another transaction renames a table that has some",
            hint="Try again.",
        ) from error


def indexes(cursor: duckdb.DuckDBPyConnection, catalog: str) -> list[Object]:
    """The indexes of a catalog, as the cursor's snapshot has them.

    Raises:
        LockNotAvailable, duckdb.Error: as `read_indexes`.
    """
    rows = read_indexes(cursor, _INDEXES, [catalog])
    return [Object(INDEX, catalog, schema, name, oid, table) for schema, name, oid, table in rows]


def temporary_objects(cursor: duckdb.DuckDBPyConnection) -> Objects:
    """The temporary objects of the cursor's session."""
    return read_objects(cursor, TEMPORARY)


def everything(found: Object) -> bool:
    """True for every object: a session without bounds sees all."""
    return True


@dataclass(frozen=True, slots=True)
class Resolver:
    """Finds the object that a name means to DuckDB, in one snapshot and for one session.

    Temporary objects come first; then the schemas of the search path in turn, then `main`. A first part that
    is the database's own name is that database. To DuckDB `main.t` is a temporary t as well, where there is
    one: its schema is called main too.

    Args:
        catalog: the database's name.
        objects: of the database.
        temporary: of the session.
        path: the search path's schemas.
        sees: whether the session may know of an object; to it the others are not there.
    """

    catalog: str
    objects: Objects
    temporary: Objects
    path: tuple[str, ...]
    sees: Callable[[Object], bool] = everything

    def find(self, kind: str, parts: tuple[str, ...]) -> Object | None:
        """The object of a name; None where there is none, or where the name is ambiguous to DuckDB.

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
        """A name with one qualifier: a schema's, the database's or `temp`."""
        is_schema = self.objects.has_schema(first)
        if fold(first) in (TEMPORARY, fold(self.catalog)):
            if is_schema and fold(first) != DEFAULT_SCHEMA:
                return None  # "Ambiguous reference to catalog or schema"
            if fold(first) == TEMPORARY:
                return self.temporary.get(kind, DEFAULT_SCHEMA, name)
            return self._seen(kind, DEFAULT_SCHEMA, name)
        return self.temporary.get(kind, first, name) or self._seen(kind, first, name)


class Generation:
    """Counts the changes of the catalog that are committed; says whether one may be committed right now.

    A statement that is judged and begun in autocommit has two looks at it: where both answer the same, the
    snapshot that DuckDB took in between has the catalog that was judged.
    """

    def __init__(self) -> None:
        self._settled = threading.Condition()
        self._changed = 0
        self._changing = 0

    @property
    def stable(self) -> int | None:
        """The number of changes so far; None while one may be committed."""
        with self._settled:
            return None if self._changing else self._changed

    def settle(self) -> int:
        """Wait until no change is being committed: what is committed is shown in memory then, rights as well.

        Returns:
            The number of changes so far.

        Raises:
            LockNotAvailable: that takes longer than SETTLE_S.
        """
        with self._settled:
            if not self._settled.wait_for(lambda: not self._changing, SETTLE_S):
                raise _changing()
            return self._changed

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Within, a change of the catalog may be committed, and memory may not know of it yet."""
        with self._settled:
            self._changing += 1
        try:
            yield
        finally:
            with self._settled:
                self._changing -= 1
                self._changed += 1
                self._settled.notify_all()


class KnownObjects:
    """The database's objects as they are outside of any transaction, listed once for each generation."""

    def __init__(self, catalog: str, generation: Generation) -> None:
        self.catalog = catalog
        self._generation = generation
        self._known: tuple[int, Objects] | None = None

    def now(self, cursor: duckdb.DuckDBPyConnection) -> tuple[int, Objects]:
        """The generation that is listed, and its objects.

        Args:
            cursor: of no open transaction.

        Raises:
            LockNotAvailable: the catalog does not stand still.
        """
        for _ in range(LISTINGS_MAX):
            self._generation.settle()
            generation, objects = self.latest(cursor)
            if generation is not None:
                return generation, objects
        raise _changing()

    def latest(self, cursor: duckdb.DuckDBPyConnection) -> tuple[int | None, Objects]:
        """The same without waiting for a change that is being committed: there is no generation then."""
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

"""The resolution of a name in a statement, for one session and in its snapshot.

DuckDB's objects are found by `engine/duck/objects.py`, in one listing for each generation of the catalog, or
in a transaction's own listing where it differs; streams and topics are found in the engine's catalog. No
other module resolves a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import duckdb

from ...engine.catalog.streams import Stream, key_of
from ...engine.database import Database
from ...engine.definitions.stream_spec import free_name
from ...engine.duck.cursors import ask_maybe
from ...engine.duck.macros import Macros, list_macros
from ...engine.duck.objects import (
    DEFAULT_SCHEMA,
    EMPTY,
    INDEX,
    TABLE,
    TEMPORARY,
    Object,
    Objects,
    Resolver,
    group_of,
    indexes,
    read_objects,
    temporary_objects,
)
from ...engine.errors import InvalidSchemaName, NotSupported, UndefinedObject, WrongObjectType
from ...engine.quoting import fold, ident
from ..results.cursors import Cursors
from .block import Block

OURS = "ducktail"
# The maximum number of streams that a HINT names.
HINTED_STREAMS_MAX = 5
# The cheapest statement that fixes a transaction's snapshot of the database.
_FIX = "FROM ducktail.meta LIMIT 0"

Key = tuple[str, ...]


class CatalogChanged(Exception):
    """A transaction's assumption about its snapshot does not hold; the transaction must begin again."""


class Names:
    """Name lookup for one session.

    Attributes:
        path: the existing schemas of the search path.
        awaited: its schemas that do not exist, in small letters.
        temporary: folded names that this session's temporary tables and views have or have had.
    """

    def __init__(self, database: Database, cursors: Cursors, block: Block) -> None:
        self._database = database
        self._cursors = cursors
        self._block = block
        self.path: tuple[str, ...] = (DEFAULT_SCHEMA,)
        self.awaited: frozenset[str] = frozenset()
        self.temporary: set[str] = set()
        self._temporary: Objects | None = EMPTY
        self._replaced: tuple[Objects, Objects, frozenset[tuple[str, Key]]] | None = None
        # Temporary tables with ON COMMIT, by name and identity -> True if they are dropped then.
        self.on_commit: dict[tuple[str, int], bool] = {}
        # Stream names -> the numbers of the streams for whose events the present statement has waited: it
        # then reads the same streams, even after a rename.
        self.waited: Mapping[tuple[str, ...], int] = {}
        # The rights that limit which names the session may know of.
        self.sees: Callable[[Key], bool] = lambda key: True
        self.limited: Callable[[], bool] = lambda: False
        self.sees_object: Callable[[Object], bool] = lambda found: True

    # Snapshots.

    def objects(self) -> Objects:
        """The database's objects in the session's snapshot.

        In a transaction that may have a snapshot, this call fixes it.
        """
        transaction = self._block.transaction
        if transaction is None or transaction.snapshot_counter is None:
            return self._listed()[1]
        if transaction.objects is None:
            self._cursors.settle()
            changes, cursor = self._database.catalog.changes, self._cursors.main
            if not transaction.assumes:
                ask_maybe(cursor, _FIX)
            generation, objects = self._listed()
            # No change was committed between the snapshot and now: it equals the present catalog.
            same = generation is not None and generation == transaction.generation == changes.stable
            if transaction.assumes and not same:
                raise CatalogChanged
            if transaction.ddl or not same:
                objects = read_objects(cursor, self._database.catalog_name)
                if self.limited():
                    changes.settle()  # Memory must show the others' changes in the snapshot.
            transaction.objects = objects
            if transaction.base is None:
                transaction.base = objects
        return transaction.objects

    def _listed(self) -> tuple[int | None, Objects]:
        """The database's objects outside of transactions; a limited session waits until its rights agree."""
        known, cursor = self._database.objects, self._cursors.meta
        return known.now(cursor) if self.limited() else known.latest(cursor)

    def macros(self) -> Macros:
        """The macros in the session's snapshot, of all databases."""
        transaction, known = self._block.transaction, self._database.macros
        if transaction is None or transaction.snapshot_counter is None:
            return known.latest(self._cursors.meta)
        # A temporary macro is in the session's own list only.
        if self.plain and not transaction.ddl and transaction.generation is not None:
            self.objects()  # The snapshot is fixed now, or assumed to have the catalog of its generation.
            macros = known.latest(self._cursors.meta)
            if self._database.catalog.changes.stable == transaction.generation:
                return macros
        self._cursors.settle()
        return list_macros(self._cursors.main)

    def replaced(self) -> frozenset[tuple[str, Key]]:
        """Kinds and keys of snapshot objects that other sessions have since dropped or created again.

        Rights are the present ones: for these names they apply to other objects, or to none.
        """
        transaction = self._block.transaction
        if transaction is None or transaction.base is None:
            return frozenset()
        base, (_, now) = transaction.base, self._database.objects.now(self._cursors.meta)
        if base is now:
            return frozenset()
        if self._replaced is None or self._replaced[0] is not base or self._replaced[1] is not now:
            found = (one for one in base if now.identity(one) != one.oid)
            self._replaced = base, now, frozenset((group_of(one.kind), one.key) for one in found)
        return self._replaced[2]

    def temporary_objects(self) -> Objects:
        """The session's temporary objects."""
        if not self.temporary:
            return EMPTY
        if self._temporary is None:
            if self._block.whole:
                self._block.touched()
            self._cursors.settle()
            self._temporary = temporary_objects(self._cursors.main)
        return self._temporary

    def ends_with_transaction(self, name: str, *, drops: bool) -> None:
        """Note a new temporary table with ON COMMIT.

        Args:
            drops: ON COMMIT DROP; else DELETE ROWS.
        """
        found = self.temporary_objects().get(TABLE, DEFAULT_SCHEMA, name)
        if found is not None:
            self.on_commit[found.name, found.oid] = drops

    def transaction_over(self) -> None:
        """Drop or empty the temporary tables with ON COMMIT; no transaction is open."""
        objects = self.temporary_objects()
        for (name, oid), drops in list(self.on_commit.items()):
            found = objects.get(TABLE, DEFAULT_SCHEMA, name)
            is_there = found is not None and found.oid == oid
            if is_there:
                text = "DROP TABLE" if drops else "TRUNCATE"
                self._cursors.main.execute(f"{text} temp.main.{ident(name)}").fetchall()
            if drops or not is_there:
                del self.on_commit[name, oid]
            self._temporary = None

    def changed(self) -> None:
        """Note that a statement, or a transaction's end, may have changed the catalog."""
        self._temporary = None
        if self._block.transaction is not None:
            self._block.transaction.objects = None

    @property
    def resolver(self) -> Resolver:
        """The resolver of names in this session's present state."""
        catalog, sees = self._database.catalog_name, self.sees_object
        return Resolver(catalog, self.objects(), self.temporary_objects(), self.path, sees)

    def find(self, kind: str, parts: tuple[str, ...]) -> Object | None:
        """The object of a name, as `Resolver.find` resolves it.

        Raises:
            LockNotAvailable: the name is an index's, and indexes cannot be listed now.
        """
        if kind != INDEX:
            return self.resolver.find(kind, parts)
        self._cursors.settle()
        temporary = indexes(self._cursors.main, TEMPORARY) if self.temporary else []
        objects = Objects([*self.objects(), *indexes(self.cursor(), self._database.catalog_name)])
        return replace(self.resolver, objects=objects, temporary=Objects(temporary)).find(kind, parts)

    @property
    def plain(self) -> bool:
        """True if a table's name can mean one object only: one schema on the path, nothing temporary."""
        return self.path == (DEFAULT_SCHEMA,) and not self.temporary

    @property
    def schema(self) -> str:
        """The schema in which an unqualified name is created."""
        return self.path[0]

    def table_key(self, parts: tuple[str, ...]) -> Key:
        """(schema, table) of a table's name, folded; (temp, table) for a temporary table.

        Raises:
            NotSupported: the table is in another database.
        """
        given, parts = parts, self.without_catalog(parts)
        whole, name = parts is not given, fold(parts[-1])
        # To DuckDB, main.t also names a temporary t: the schema of temporary tables is called main too.
        may_hide = not whole and (len(parts) == 1 or fold(parts[0]) == DEFAULT_SCHEMA)
        if may_hide and self._is_hidden(name):
            return (TEMPORARY, name)
        if len(parts) == 2:
            return key_of(*parts)
        if self.path == (DEFAULT_SCHEMA,):
            return key_of(DEFAULT_SCHEMA, name)
        return key_of(self._schema_of(name), name)

    def _is_hidden(self, name: str) -> bool:
        """True if a temporary table or view has the folded name now."""
        return name in self.temporary and bool(self.temporary_objects().get(TABLE, DEFAULT_SCHEMA, name))

    def refuse_hidden(self, key: Key) -> None:
        """Refuse a table of the database that one of the session's temporary tables hides.

        The statements that capture adds name the table by its schema, which would be the temporary table's.

        Raises:
            NotSupported: a temporary table hides the table.
        """
        if key[0] == DEFAULT_SCHEMA and self._is_hidden(key[1]):
            raise NotSupported(
                f'table "{key[1]}" is hidden by a temporary table or view of this session',
                hint="Drop that one, or give it another name.",
            )

    def refuse_hidden_of(self, stream: Stream) -> None:
        """Refuse a stream if the session hides its table or its views, which are also named by their schemas.

        Raises:
            NotSupported: a temporary table or view hides one of them.
        """
        for view in stream.views:
            self.refuse_hidden(key_of(stream.schema, view))
        for captured in self._database.catalog.tables_of(stream):
            self.refuse_hidden(captured.key)

    def without_catalog(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The name without a leading database name."""
        if len(parts) == 1:
            return parts
        catalog = fold(self._database.catalog_name)
        if len(parts) == 3:
            if fold(parts[0]) == TEMPORARY:
                return (TEMPORARY, parts[2])
            if fold(parts[0]) != catalog:
                raise NotSupported(f'cross-database references are not supported: "{".".join(parts)}"')
            return parts[1:]
        if len(parts) == 2 and fold(parts[0]) == catalog and not self.has_schema(parts[0]):
            return (DEFAULT_SCHEMA, parts[1])
        if len(parts) > 3:
            raise NotSupported(f'improper qualified name (too many parts): "{".".join(parts)}"')
        return parts

    def has_schema(self, name: str) -> bool:
        """True if the schema exists."""
        return self.objects().has_schema(name)

    def _schema_of(self, name: str) -> str:
        """The first schema of the search path that has a table, view or stream of this name.

        After the path DuckDB looks into its default schema, even if the path does not contain it.
        """
        found = self.find(TABLE, (name,))
        return self.path[0] if found is None else found.schema

    def is_table(self, name: str) -> bool:
        """True if a table or view of this name is visible without a schema."""
        if fold(name) in self.temporary:
            return True
        path, objects = {DEFAULT_SCHEMA, *map(fold, self.path)}, self.objects()
        return any(objects.get(TABLE, s, name) is not None and self.sees((s, fold(name))) for s in path)

    def made_key(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """(schema, name), folded, of a new object, or of an object of a kind without a search path."""
        parts = self.without_catalog(parts)
        schema = parts[0] if len(parts) == 2 else self.schema
        return fold(schema), fold(parts[-1])

    def kind_of(self, key: Key) -> str | None:
        """'table' or 'view' for a key (streams have a view); None if there is neither."""
        if key[0] == TEMPORARY:
            return "table" if self._is_hidden(key[-1]) else None
        found = self.objects().get(TABLE, *key)
        return None if found is None else found.kind

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """The cursor with the session's view of the database: the open snapshot, if there is one."""
        transaction = self._block.transaction
        if transaction is not None and transaction.snapshot_counter is not None:
            self._cursors.settle()
            return self._cursors.main
        return self._cursors.meta

    def new_name(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """(schema, name) of a new object.

        Raises:
            InvalidSchemaName: the schema does not exist.
            NotSupported: the schema is reserved.
        """
        parts = self.without_catalog(parts)
        schema = parts[0] if len(parts) == 2 else self.schema
        if fold(schema) == OURS:
            raise NotSupported(f'schema "{OURS}" holds ducktail\'s own objects')
        if fold(schema) == TEMPORARY:
            raise NotSupported("a stream cannot be temporary")
        if len(parts) == 2 and not self.has_schema(schema):
            raise InvalidSchemaName(f'schema "{schema}" does not exist')
        return schema, parts[-1]

    def find_stream(self, parts: tuple[str, ...]) -> Stream | None:
        """The stream of this name, or None."""
        parts = self.without_catalog(parts)
        streams = self._database.catalog.streams
        for key in [parts] if len(parts) == 2 else [(schema, parts[0]) for schema in self.path]:
            stream = streams.get(key_of(*key))
            if stream is not None and self.sees(stream.key):
                return stream
        return None

    def stream(self, parts: tuple[str, ...], position: int = 0, kind: str = "stream") -> Stream:
        """The stream of this name.

        Args:
            kind: the statement's word for it: a missing topic is reported as a topic.

        Raises:
            UndefinedObject: no stream has this name.
            WrongObjectType: the name is a table's.
        """
        stream = self.find_stream(parts)
        there_is = stream is None and self._there_is(parts)
        if there_is:
            # DuckDB shows the view of a new stream a moment before the catalog has the stream.
            self._database.catalog.changes.settle()
            stream = self.find_stream(parts)
        if stream is not None:
            return stream
        shown = ".".join(parts)
        place = position or None
        if there_is:
            lost = self._database.catalog.unserved.get(self.table_key(parts))
            if lost is not None:
                raise UndefinedObject(
                    f'stream "{shown}" is not served: table {lost} does not exist any more',
                    detail="It was dropped past ducktail. The stream's view shows what is retained.",
                    hint="CREATE TABLE of that name, and open the database again: DROP STREAM drops it then.",
                    position=place,
                )
            raise WrongObjectType(f'"{shown}" is not a {kind}', hint=self._stream_on(parts), position=place)
        raise UndefinedObject(
            f'{kind} "{shown}" does not exist', hint=f"SHOW {kind.upper()}S lists them.", position=place
        )

    def _stream_on(self, parts: tuple[str, ...]) -> str | None:
        """A HINT with the streams on a table, or with the statement that creates one; None for other
        objects."""
        key, name = self.table_key(parts), self.without_catalog(parts)[-1]
        if key[0] in (TEMPORARY, OURS) or self.kind_of(key) != "table":
            return None
        captured = self._database.catalog.tables.get(key)
        there = () if captured is None else captured.streams
        shown = [self._written(s.schema, s.name) for s in there if self._there_is((s.schema, s.name))]
        if shown:
            return f"Its changes are in {' and '.join(shown[:HINTED_STREAMS_MAX])}."
        made = self.free_name(key[0], f"{name}_stream")
        return f"A stream on it is made with CREATE STREAM {made} ON {self._written(key[0], name)}."

    def free_name(self, schema: str, first: str) -> str:
        """An unused stream name in a schema, as a HINT writes it.

        Args:
            first: the preferred name.
        """
        return self._written(schema, free_name(first, self.objects().relations_of(schema)))

    def _written(self, schema: str, name: str) -> str:
        return ident(name) if fold(schema) == fold(self.schema) else f"{ident(schema)}.{ident(name)}"

    def scanned(self, parts: tuple[str, ...], position: int, kind: str) -> Stream:
        """The stream that a scan names; after a wait, the stream that had this name when the wait began.

        Raises:
            UndefinedObject: no stream has this name.
            WrongObjectType: the name is a table's.
        """
        stream_id = self.waited.get(parts)
        stream = None if stream_id is None else self._database.catalog.stream_by_id(stream_id)
        return stream if stream is not None and self.sees(stream.key) else self.stream(parts, position, kind)

    def _there_is(self, parts: tuple[str, ...]) -> bool:
        key = self.table_key(parts)
        return key[0] == TEMPORARY or (self.kind_of(key) is not None and self.sees(key))

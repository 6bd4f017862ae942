"""Which object of the database a name in a statement is.

The front end must know the table that a statement writes before DuckDB does, so names are looked up
here as DuckDB does it: a temporary table first, then the schemas of the search path in turn, and a
first part that is the database's own name is that database. What is ours is found in the engine's
catalog; only where several schemas could have the name is DuckDB's catalog asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import duckdb

from ..engine.asking import ask_maybe
from ..engine.database import Database
from ..engine.definitions.free_names import free_name, taken_names
from ..engine.errors import InvalidSchemaName, NotSupported, UndefinedObject, WrongObjectType
from ..engine.quoting import ident
from ..engine.streams.streams import Stream, fold

TEMPORARY = "temp"
DEFAULT_SCHEMA = "main"
OURS = "ducktail"

Key = tuple[str, ...]


class Names:
    """Name lookup for one session.

    Args:
        cursor: gives the cursor that sees what the session sees now.
    """

    def __init__(self, database: Database, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._database = database
        self._cursor = cursor
        self.path: tuple[str, ...] = (DEFAULT_SCHEMA,)
        self.temporary: set[str] = set()  # names of temporary tables made in this session
        # Only the session's own cursor sees its temporary tables: the session tells.
        self.is_temporary: Callable[[str], bool] = lambda name: name in self.temporary
        # By their names, the streams (their numbers) whose events the present statement has waited for: they
        # are the same ones when it reads, whatever they are called by then.
        self.waited: Mapping[tuple[str, ...], int] = {}
        # What the session may know of; the rest is not there.
        self.sees: Callable[[Key], bool] = lambda key: True

    @property
    def schema(self) -> str:
        """Where a name without a schema is made."""
        return self.path[0]

    def table_key(self, parts: tuple[str, ...]) -> Key:
        """(schema, table) in small letters of a table's name; (temp, table) for a temporary one.

        Raises:
            NotSupported: 0A000, the table is in another database.
        """
        given, parts = parts, self.without_catalog(parts)
        whole, name = parts is not given, parts[-1].lower()
        # To DuckDB main.t is the temporary t as well, where there is one: its schema is called main too.
        may_hide = not whole and (len(parts) == 1 or parts[0].lower() == DEFAULT_SCHEMA)
        if may_hide and self._is_hidden(name):
            return (TEMPORARY, name)
        if len(parts) == 2:
            return fold(*parts)
        if self.path == (DEFAULT_SCHEMA,):
            return fold(DEFAULT_SCHEMA, name)
        return fold(self._schema_of(name), name)

    def _is_hidden(self, name: str) -> bool:
        """Whether a temporary table or view has the name (in small letters) now."""
        return name in self.temporary and self.is_temporary(name)

    def refuse_hidden(self, key: Key) -> None:
        """Refuse a table of the database that a temporary one of the session hides.

        What capture adds to a statement names the table by its schema, which is the temporary one then.

        Raises:
            NotSupported: 0A000.
        """
        if key[0] == DEFAULT_SCHEMA and self._is_hidden(key[1]):
            raise NotSupported(
                f'table "{key[1]}" is hidden by a temporary table or view of this session',
                hint="Drop that one, or give it another name.",
            )

    def refuse_hidden_of(self, stream: Stream) -> None:
        """The same of a stream's table and its views, which are called by their schemas as well.

        Raises:
            NotSupported: 0A000.
        """
        for view in stream.views:
            self.refuse_hidden(fold(stream.schema, view))
        for captured in self._database.catalog.tables_of(stream):
            self.refuse_hidden(captured.key)

    def without_catalog(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The name without the database's own name in front."""
        if len(parts) == 1:
            return parts
        catalogs = {self._database.catalog_name.lower()}
        if len(parts) == 3:
            if parts[0].lower() == TEMPORARY:
                return (TEMPORARY, parts[2])
            if parts[0].lower() not in catalogs:
                raise NotSupported(f'cross-database references are not supported: "{".".join(parts)}"')
            return parts[1:]
        if len(parts) == 2 and parts[0].lower() in catalogs and not self._is_schema(parts[0]):
            return (DEFAULT_SCHEMA, parts[1])
        if len(parts) > 3:
            raise NotSupported(f'improper qualified name (too many parts): "{".".join(parts)}"')
        return parts

    def _is_schema(self, name: str) -> bool:
        row = ask_maybe(
            self._cursor(),
            "SELECT count(*) FROM duckdb_schemas() WHERE lower(schema_name) = lower($1) "
            "AND database_name = $2",
            [name, self._database.catalog_name],
        )
        return row is not None and bool(row[0])

    def _schema_of(self, name: str) -> str:
        """The first schema of the search path that has a table, view or stream of this name.

        Behind the path DuckDB looks into its default schema, whether it stands there or not.
        """
        there = self._schemas_with(name)
        places = (*self.path, DEFAULT_SCHEMA)
        return next((schema for schema in places if schema.lower() in there), self.path[0])

    def _schemas_with(self, name: str) -> set[str]:
        """In small letters, the schemas that have a table or view of this name."""
        sql = (
            "SELECT lower(table_schema) FROM information_schema.tables "
            "WHERE table_catalog = $1 AND lower(table_name) = lower($2)"
        )
        return {row[0] for row in self._cursor().execute(sql, [self._database.catalog_name, name]).fetchall()}

    def is_table(self, name: str) -> bool:
        """Whether a table or view of this name can be seen without a schema."""
        if name.lower() in self.temporary:
            return True
        path = {DEFAULT_SCHEMA, *(schema.lower() for schema in self.path)}
        return any(self.sees((schema, name.lower())) for schema in self._schemas_with(name) & path)

    def made_key(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """(schema, name) in small letters of something that is to be made, or of a kind without a path."""
        parts = self.without_catalog(parts)
        schema = parts[0] if len(parts) == 2 else self.schema
        return schema.lower(), parts[-1].lower()

    def kind_of(self, key: Key) -> str | None:
        """Whether a key is of a 'table' or a 'view' (streams have one); None where there is neither."""
        if key[0] == TEMPORARY:
            return "table" if self._is_hidden(key[-1]) else None
        row = ask_maybe(
            self._cursor(),
            "SELECT table_type FROM information_schema.tables WHERE table_catalog = $1 "
            "AND lower(table_schema) = $2 AND lower(table_name) = $3",
            [self._database.catalog_name, *key],
        )
        return None if row is None else "view" if row[0] == "VIEW" else "table"

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """The cursor on which names are looked up."""
        return self._cursor()

    def has_schema(self, name: str) -> bool:
        """Whether there is this schema."""
        return self._is_schema(name)

    def new_name(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """(schema, name) of something that is to be made.

        Raises:
            InvalidSchemaName: 3F000, the schema is not there. NotSupported: 0A000, in ours.
        """
        parts = self.without_catalog(parts)
        schema = parts[0] if len(parts) == 2 else self.schema
        if schema.lower() == OURS:
            raise NotSupported(f'schema "{OURS}" holds ducktail\'s own objects')
        if schema.lower() == TEMPORARY:
            raise NotSupported("a stream cannot be temporary")
        if len(parts) == 2 and not self._is_schema(schema):
            raise InvalidSchemaName(f'schema "{schema}" does not exist')
        return schema, parts[-1]

    def find_stream(self, parts: tuple[str, ...]) -> Stream | None:
        """The stream of this name, if there is one."""
        parts = self.without_catalog(parts)
        streams = self._database.catalog.streams
        for key in [parts] if len(parts) == 2 else [(schema, parts[0]) for schema in self.path]:
            stream = streams.get(fold(*key))
            if stream is not None and self.sees(stream.key):
                return stream
        return None

    def stream(self, parts: tuple[str, ...], position: int = 0, kind: str = "stream") -> Stream:
        """The stream of this name.

        Args:
            kind: what the statement calls it: a topic is told to be missing as a topic.

        Raises:
            UndefinedObject: 42704, there is none. WrongObjectType: 42809, it is a table.
        """
        stream = self.find_stream(parts)
        if stream is not None:
            return stream
        shown = ".".join(parts)
        place = position or None
        if self._there_is(parts):
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
        """How a stream is made on a table, for a HINT; None for what can have none."""
        key, name = self.table_key(parts), self.without_catalog(parts)[-1]
        if key[0] in (TEMPORARY, OURS) or self.kind_of(key) != "table":
            return None
        made = self.free_name(key[0], f"{name}_stream")
        return f"A stream on it is made with CREATE STREAM {made} ON {self._written(key[0], name)}."

    def free_name(self, schema: str, first: str) -> str:
        """A name that a stream of a schema could have, as it is written in a HINT.

        Args:
            first: what it is, if it is free.
        """
        taken = taken_names(self._cursor(), self._database.catalog_name, schema)
        return self._written(schema, free_name(first, taken))

    def _written(self, schema: str, name: str) -> str:
        return ident(name) if schema.lower() == self.schema.lower() else f"{ident(schema)}.{ident(name)}"

    def scanned(self, parts: tuple[str, ...], position: int, kind: str) -> Stream:
        """The stream that a scan names; one that it has waited for by the name that it had then.

        Raises:
            UndefinedObject: 42704, there is none. WrongObjectType: 42809, it is a table.
        """
        stream_id = self.waited.get(parts)
        stream = None if stream_id is None else self._database.catalog.stream_by_id(stream_id)
        return stream if stream is not None and self.sees(stream.key) else self.stream(parts, position, kind)

    def _there_is(self, parts: tuple[str, ...]) -> bool:
        key = self.table_key(parts)
        return key[0] == TEMPORARY or (self.kind_of(key) is not None and self.sees(key))

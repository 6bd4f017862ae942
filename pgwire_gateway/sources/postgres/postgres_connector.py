"""PostgreSQL as a source: checks, the publication and the slot, copies as of their position, and changes.

Without a PUBLICATION the connector makes one with the name of the slot, for the selected tables. A table
whose rows cannot be identified is refused before it is published, because the source itself would refuse
every UPDATE and DELETE of it afterwards. A copy reads in the snapshot that a slot exports when it is made,
so the changes after the slot's position are exactly those that the copy does not contain.

Source: PostgreSQL, "Logical Decoding", "CREATE PUBLICATION", "Streaming Replication Protocol";
docs/design/sources.md.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....engine import errors
from ....engine.catalog.source_tables import PIECE_ROWS, SourceTable
from ....engine.checkpoints.positions import PostgresLsn
from ..connector import Changes, Connector, Copy
from .libpq import Link, Row, identifier, literal, names, parameters
from .pgoutput import PIECE_BYTES, PgoutputDecoder
from .postgres_catalog import CatalogTable, PostgresCatalog, PublishedTable, Relation
from .postgres_types import is_list, read_array
from .replication import PostgresChanges

log = logging.getLogger("ducktail.sources")

VERSION_MIN = 120000
# From these versions on: publish_via_partition_root; streaming of transactions in progress.
_PARTITION_ROOT_SINCE = 130000
_STREAMING_SINCE = 140000
# A slot begins where all transactions that were open have ended.
SLOT_TIMEOUT_S = 600.0
# The server notices the end of a connection late, if the machine behind it is gone.
ACTIVE_TRIES = 20
ACTIVE_PAUSE_S = 0.5
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_KINDS = {
    "v": "a view", "m": "a materialized view", "f": "a foreign table", "i": "an index", "I": "an index",
    "S": "a sequence", "c": "a composite type", "t": "a TOAST table",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PostgresSelection:
    """The tables of a source; exactly one of the three is given.

    Args:
        tables: (schema or None for the search path, name).
        schema: a schema, whose tables of now are meant.
        publication: a publication that the user has made.
    """

    tables: tuple[tuple[str | None, str], ...] = ()
    schema: str | None = None
    publication: str | None = None

    def __post_init__(self) -> None:
        if bool(self.tables) + (self.schema is not None) + (self.publication is not None) != 1:
            raise errors.InvalidParameterValue("a source has tables, or a schema, or a publication")


class PostgresConnector(Connector):
    """The client of one PostgreSQL database.

    Args:
        conninfo: libpq's connection string or URI.
        slot: name of the replication slot; without a publication in the selection also of the publication.
        identity: the `identity` of an earlier `describe`, with which the server's must agree; None at first.
        directory: of files of large transactions in progress; None for the system's.
        progress_s: time between two positions without changes.
    """

    def __init__(
        self,
        conninfo: str,
        selection: PostgresSelection,
        slot: str,
        *,
        identity: str | None = None,
        directory: Path | None = None,
        progress_s: float = 10.0,
    ) -> None:
        if not _SLOT.fullmatch(slot):
            raise errors.InvalidParameterValue(
                f'"{slot}" is no name of a replication slot',
                hint="It has 1 to 63 lower-case letters, digits and underscores.",
            )
        self._parameters = parameters(conninfo, f"ducktail {slot}")
        self._selection = selection
        self._slot = slot
        self._publication = selection.publication or slot
        self._owns_publication = selection.publication is None
        self._identity = identity
        self._directory = directory
        self._progress_s = progress_s
        self._control_link: Link | None = None
        self._links: list[Link] = []
        self._changes: list[PostgresChanges] = []
        self._catalog_read: PostgresCatalog | None = None
        self._closed = False

    @property
    def identity(self) -> str | None:
        """The source's system identifier and database; known after `describe`."""
        return self._identity

    def describe(self) -> Sequence[SourceTable]:
        """The selected tables; checks that the source can be read."""
        control = self._control()
        self._check_server(control)
        link = self._link(replication=True)
        try:
            self._check_identity(link)
        finally:
            link.close()
        return [found.table for found in self._selected(control, self._catalog(control))]

    def slot_exists(self) -> bool:
        """True if the source has a slot of this name, of whatever kind."""
        return bool(self._slot_row(self._control()))

    def begin(self) -> Copy:
        """Make publication and slot afresh, and a copy as of the slot's position."""
        control = self._control()
        self._check_server(control)
        self._drop_slot(control)
        self.publish()
        return self._copy(self._slot, "")

    def copy(self) -> Copy:
        """Another copy, as of now, by a slot that ends with it."""
        self._check_server(self._control())
        return self._copy(f"{self._slot[:50]}_{secrets.token_hex(6)}", "TEMPORARY ")

    def publish(self) -> None:
        """Make the connector's own publication, or let it have the selected tables; another's is checked."""
        control = self._control()
        tables = self._selected(control, self._catalog(control))
        if not self._owns_publication:
            return
        listed = ", ".join(
            f"ONLY {identifier(found.table.schema)}.{identifier(found.table.name)}" for found in tables
        )
        if control.query("SELECT FROM pg_catalog.pg_publication WHERE pubname = $1", self._publication):
            control.query(f"ALTER PUBLICATION {identifier(self._publication)} SET TABLE {listed}")
            return
        options = "publish = 'insert, update, delete, truncate'"
        if control.server_version >= _PARTITION_ROOT_SINCE:
            options += ", publish_via_partition_root = true"
        control.query(
            f"CREATE PUBLICATION {identifier(self._publication)} FOR TABLE {listed} WITH ({options})"
        )

    def changes(self, tables: Sequence[SourceTable], position: str, until: str | None = None) -> Changes:
        """The changes after a position, of tables whose definitions are known as of it."""
        start = PostgresLsn.parse(position).number
        end = None if until is None else PostgresLsn.parse(until).number
        if end is not None and end < start:
            raise errors.SourceUnavailable(
                f"the copy is as of {until}, before the stream's position {position}"
            )
        control = self._control()
        self._check_server(control)
        self._check_slot(control, start)
        catalog = self._catalog(control)
        known = self._known(control, catalog, tables)
        link = self._link(replication=True)
        try:
            self._check_identity(link)
            self._start(link, start)
        except BaseException:
            link.close()
            raise
        decoder = PgoutputDecoder(catalog, known, self._stranger(catalog), start, self._directory, end)
        changes = PostgresChanges(link, control, decoder, start, self._progress_s)
        self._changes = [*(one for one in self._changes if not one.closed), changes]
        return changes

    def remove(self) -> None:
        """Drop the slot, and the publication that is the connector's own."""
        control = self._control()
        self._drop_slot(control)
        if self._owns_publication:
            control.query(f"DROP PUBLICATION IF EXISTS {identifier(self._publication)}")

    def close(self) -> None:
        """Close all connections; from any thread."""
        self._closed = True
        for link in list(self._links):
            link.close()
        for changes in self._changes:
            changes.close()

    # Connections.

    def _link(self, *, replication: bool = False) -> Link:
        link = Link(self._parameters, replication=replication)
        self._links = [*(one for one in self._links if not one.closed), link]
        if self._closed:
            link.close()
        try:
            return link.open()
        except BaseException:
            link.close()
            raise

    def _control(self) -> Link:
        if self._control_link is None or not self._control_link.is_alive():
            link = self._link()
            if link.server_version >= _STREAMING_SINCE:
                link.query("SET idle_session_timeout = 0")
            self._control_link, self._catalog_read = link, None
        return self._control_link

    def _catalog(self, control: Link) -> PostgresCatalog:
        if self._catalog_read is None:
            self._catalog_read = PostgresCatalog(control.query, control.server_version)
        return self._catalog_read

    # Checks.

    def _check_server(self, control: Link) -> None:
        if control.server_version < VERSION_MIN:
            raise errors.NotSupported(
                f"the source is PostgreSQL {control.server_version // 10000}, which is too old",
                hint="Changes are read from PostgreSQL 12 and later.",
            )
        ((level, standby),) = control.query(
            "SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery()"
        )
        if standby == "t":
            raise errors.WrongState(
                "the source is a standby", hint="Connect to the primary server: target_session_attrs=primary."
            )
        if level != "logical":
            raise errors.WrongState(
                f"wal_level is {level} at the source, and must be logical",
                hint="ALTER SYSTEM SET wal_level = logical, then restart the source's server.",
            )

    def _check_identity(self, link: Link) -> None:
        ((system, _, _, database),) = link.query("IDENTIFY_SYSTEM")
        found = f"{system}/{database}"
        if self._identity is not None and found != self._identity:
            raise errors.SourceLost(
                "the source is another database than before",
                detail=f"Its system identifier and name are {found}; they were {self._identity}.",
                hint="Connect to the former server, or make the stream anew.",
            )
        self._identity = found

    def _selected(self, control: Link, catalog: PostgresCatalog) -> list[CatalogTable]:
        """The selected tables, checked."""
        published: dict[int, tuple[str, ...]] | None = None
        if self._selection.publication is not None:
            changed = self._publication_row(control, self._selection.publication)
            rows = catalog.published(self._selection.publication)
            published = {row.oid: row.columns for row in rows if row.columns is not None}
            oids = [row.oid for row in rows]
            what = f'publication "{self._selection.publication}" of the source has no tables'
        elif self._selection.schema is not None:
            changed = True
            oids = self._tables_of_schema(control, self._selection.schema)
            what = f'schema "{self._selection.schema}" of the source has no tables'
        else:
            changed = True
            oids = self._tables_by_name(control)
            what = ""
        if not oids:
            raise errors.UndefinedTable(what)
        tables = catalog.tables(oids, published)
        for found in tables:
            self._check_table(control, found, {one.oid for one in tables}, changed)
        if self._owns_publication:
            self._check_may_publish(control, tables)
        return tables

    def _publication_row(self, control: Link, publication: str) -> bool:
        """True if a publication has updates or deletes."""
        rows = control.query(
            "SELECT pubupdate OR pubdelete FROM pg_catalog.pg_publication WHERE pubname = $1", publication
        )
        if not rows:
            raise errors.UndefinedObject(
                f'publication "{publication}" does not exist at the source',
                hint="CREATE PUBLICATION ... FOR TABLE ... at the source, or name tables instead.",
            )
        return rows[0][0] == "t"

    def _tables_of_schema(self, control: Link, schema: str) -> list[int]:
        rows = control.query(
            "SELECT n.oid, c.oid FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c ON "
            "c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' "
            "AND NOT c.relispartition WHERE n.nspname = $1 ORDER BY c.relname",
            schema,
        )
        if not rows:
            raise errors.InvalidSchemaName(f'schema "{schema}" does not exist at the source')
        return [int(oid) for _, oid in rows if oid is not None]

    def _tables_by_name(self, control: Link) -> list[int]:
        quoted = [
            identifier(name) if schema is None else f"{identifier(schema)}.{identifier(name)}"
            for schema, name in self._selection.tables
        ]
        rows = control.query(
            "SELECT pg_catalog.to_regclass(value)::pg_catalog.oid FROM "
            "pg_catalog.json_array_elements_text($1::pg_catalog.json) WITH ORDINALITY ORDER BY ordinality",
            json.dumps(quoted),
        )
        oids: dict[int, None] = {}
        for (schema, name), (oid,) in zip(self._selection.tables, rows, strict=True):
            if oid is None:
                raise _no_table(name if schema is None else f"{schema}.{name}")
            oids[int(oid)] = None
        return list(oids)

    def _check_table(self, control: Link, found: CatalogTable, selected: set[int], changed: bool) -> None:
        shown = f'table "{found.table.shown}" of the source'
        if found.kind in _KINDS:
            raise errors.WrongObjectType(
                f'"{found.table.shown}" of the source is {_KINDS[found.kind]}',
                hint="Changes are read from tables: name those that it consists of.",
            )
        if found.persistence != "p":
            kind = "unlogged" if found.persistence == "u" else "temporary"
            raise errors.WrongObjectType(
                f"{shown} is {kind}, and has no changes in the log",
                hint="ALTER TABLE ... SET LOGGED at the source." if kind == "unlogged" else None,
            )
        if found.kind == "p" and control.server_version < _PARTITION_ROOT_SINCE:
            raise errors.WrongObjectType(
                f"{shown} is partitioned", hint="PostgreSQL 12 publishes the partitions only: name these."
            )
        if found.partition_of in selected and found.partition_of != found.oid:
            raise errors.WrongObjectType(f"{shown} is a partition of another selected table")
        if not found.is_reachable:
            raise errors.InsufficientPrivilege(
                f'permission denied for schema "{found.table.schema}" of the source',
                hint=f"GRANT USAGE ON SCHEMA {identifier(found.table.schema)} TO the user of the connection.",
            )
        if found.unreadable:
            raise errors.InsufficientPrivilege(
                f"permission denied for {shown}",
                detail=f"The user may not read: {names(found.unreadable)}.",
                hint=f"GRANT SELECT ON {found.table.shown} TO the user of the connection.",
            )
        if found.has_policies:
            raise errors.InsufficientPrivilege(
                f"row-level security hides rows of {shown} from the user",
                hint="ALTER ROLE ... BYPASSRLS at the source, or connect as the table's owner.",
            )
        if changed and found.unidentified:
            raise errors.WrongState(
                f"{shown} has no identity for its rows",
                detail="Once it is published, the source refuses every UPDATE and DELETE of: "
                f"{names(found.unidentified)}.",
                hint=f"Add a primary key, or ALTER TABLE {found.unidentified[0]} REPLICA IDENTITY FULL.",
            )

    def _check_may_publish(self, control: Link, tables: Sequence[CatalogTable]) -> None:
        """A publication needs the right CREATE in the database, and tables that the user owns."""
        foreign = [found.table.shown for found in tables if not found.is_owner]
        if foreign:
            raise errors.InsufficientPrivilege(
                f"the user must own the source's tables to publish them: {names(foreign)}",
                hint="Let their owner CREATE PUBLICATION, and name it: FROM POSTGRES ... PUBLICATION.",
            )
        ((may,),) = control.query(
            "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"
        )
        if may != "t":
            raise errors.InsufficientPrivilege(
                "the user may not make a publication in the source's database",
                hint="GRANT CREATE ON DATABASE ... TO the user, or name a publication: PUBLICATION ....",
            )

    # Slots.

    def _slot_row(self, control: Link) -> Row | None:
        status = "wal_status" if control.server_version >= _PARTITION_ROOT_SINCE else "NULL"
        rows = control.query(
            f"SELECT plugin, slot_type, database = pg_catalog.current_database(), active_pid, "
            f"confirmed_flush_lsn, {status}, pg_catalog.pg_current_wal_flush_lsn() "
            "FROM pg_catalog.pg_replication_slots WHERE slot_name = $1",
            self._slot,
        )
        return rows[0] if rows else None

    def _check_slot(self, control: Link, start: int) -> None:
        """Check that the slot still has the changes after a position."""
        row = self._slot_row(control)
        again = "DROP STREAM, and create it again: it copies the tables anew."
        if row is None:
            raise errors.SourceLost(
                f'replication slot "{self._slot}" does not exist at the source',
                detail="It was dropped, or the source is a copy of the former server.",
                hint=again,
            )
        plugin, _, ours, _, confirmed, status, end = row
        if plugin != "pgoutput" or ours != "t":
            raise errors.SourceLost(
                f'replication slot "{self._slot}" of the source is not that of this stream', hint=again
            )
        if status == "lost" or confirmed is None:
            raise errors.SourceLost(
                f'replication slot "{self._slot}" was invalidated by the source',
                detail="It has removed the log that was not read yet, as max_slot_wal_keep_size allows.",
                hint=again,
            )
        if PostgresLsn.parse(confirmed).number > start:
            raise errors.SourceLost(
                f'replication slot "{self._slot}" of the source is at {confirmed}, which is beyond the '
                f"stream's position {PostgresLsn(start)}",
                detail="Another client has read from the slot, or this database is an older copy.",
                hint=again,
            )
        if end is not None and PostgresLsn.parse(end).number < start:
            raise errors.SourceLost(
                f"the source's log ends at {end}, before the stream's position {PostgresLsn(start)}",
                detail="The source is an older copy of the former server, or a standby that was behind.",
                hint=again,
            )

    def _drop_slot(self, control: Link) -> None:
        row = self._slot_row(control)
        if row is None:
            return
        plugin, kind, ours = row[:3]
        if plugin != "pgoutput" or kind != "logical" or ours != "t":
            raise errors.DuplicateObject(
                f'replication slot "{self._slot}" of the source has another use',
                hint="Choose another name: WITH (slot = ...).",
            )
        drop = "SELECT pg_catalog.pg_drop_replication_slot($1)"
        try:
            _while_active(lambda: control.query(drop, self._slot))
        except errors.SourceError as error:
            # A slot that was still being made ends with its client, which may have been killed.
            if error.sqlstate != errors.UndefinedObject.sqlstate:
                raise

    def _start(self, link: Link, start: int) -> None:
        options = [f"publication_names {literal(identifier(self._publication))}"]
        if link.server_version >= _STREAMING_SINCE:
            options += ["proto_version '2'", "streaming 'on'"]
        else:
            options += ["proto_version '1'"]
        sql = (
            f"START_REPLICATION SLOT {identifier(self._slot)} LOGICAL {PostgresLsn(start)} "
            f"({', '.join(options)})"
        )
        _while_active(lambda: link.start_replication(sql))

    def _known(
        self, control: Link, catalog: PostgresCatalog, tables: Sequence[SourceTable]
    ) -> dict[int, SourceTable]:
        """The tables by oid; checks that they are published."""
        self._check_published(control)
        published = {(row.schema, row.name): row for row in catalog.published(self._publication)}
        known: dict[int, SourceTable] = {}
        for table in tables:
            row = published.pop((table.schema, table.name), None)
            if row is None:
                raise self._not_published(control, table, list(published.values()))
            known[row.oid] = table
        if published and not self._owns_publication:
            raise self._more_published([row.shown for row in published.values()])
        self._unpublish(control, list(published))
        return known

    def _unpublish(self, control: Link, others: Sequence[tuple[str, str]]) -> None:
        """Remove tables that were dropped from the stream from the connector's own publication.

        A failure does no harm: their changes are sent, and not stored.
        """
        selected = self._selection.tables
        # Names without a schema are those of CREATE STREAM, since which no table was dropped.
        gone = [name for name in others if name not in selected]
        if not gone or not selected or any(schema is None for schema, _ in selected):
            return
        listed = ", ".join(f"ONLY {identifier(schema)}.{identifier(name)}" for schema, name in gone)
        try:
            control.query(f"ALTER PUBLICATION {identifier(self._publication)} DROP TABLE {listed}")
        except errors.SourceUnavailable:
            raise
        except errors.DucktailError as error:
            text = 'publication "%s" of the source still has tables that were dropped from the stream: %s'
            log.warning(text, self._publication, error)

    def _check_published(self, control: Link) -> None:
        sql = "SELECT FROM pg_catalog.pg_publication WHERE pubname = $1"
        if not control.query(sql, self._publication):
            raise errors.SourceLost(
                f'publication "{self._publication}" does not exist at the source',
                detail="The source cannot tell the changes before it is made again.",
                hint="DROP STREAM, and create it again: changes since then are not sent.",
            )

    def _not_published(
        self, control: Link, table: SourceTable, others: Sequence[PublishedTable]
    ) -> errors.DucktailError:
        name = f"{identifier(table.schema)}.{identifier(table.name)}"
        ((oid,),) = control.query("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", name)
        if oid is None:
            error = _no_table(table.shown)
            if others:
                shown = names([row.shown for row in others])
                error.detail = f"The publication has tables that the stream does not have: {shown}."
            return error
        return errors.SourceLost(
            f'table "{table.shown}" is no longer in publication "{self._publication}" of the source',
            detail="Its changes since then are not sent, also after it is added again.",
            hint="ALTER PUBLICATION ... ADD TABLE at the source, ALTER STREAM ... SNAPSHOT TABLE, which puts "
            "right what was lost, and RESUME STREAM.",
        )

    def _more_published(self, shown: Sequence[str]) -> errors.DucktailError:
        return errors.WrongState(
            f'publication "{self._publication}" of the source has tables that the stream does not have: '
            f"{names(shown)}",
            hint="ALTER PUBLICATION ... DROP TABLE at the source, and make another stream for these tables.",
        )

    def _stranger(self, catalog: PostgresCatalog) -> Callable[[Relation], None]:
        """A check of a table of which changes arrive although the stream does not have it.

        In the connector's own publication that is a table that was just dropped from the stream or is being
        added. A table that the user has added to his publication is an error, now as at the beginning.
        """

        def check(relation: Relation) -> None:
            if not self._owns_publication:
                if relation.oid in {row.oid for row in catalog.published(self._publication)}:
                    raise self._more_published([f"{relation.schema}.{relation.name}"])

        return check

    def _copy(self, slot: str, temporary: str) -> Copy:
        """A slot, and a transaction in its snapshot.

        A snapshot no longer shows the rows that a TRUNCATE removes later. So the tables are locked (ACCESS
        SHARE) from before the slot begins until the copy ends.
        """
        guard, link, copying = self._link(), self._link(replication=True), self._link()
        try:
            self._check_identity(link)
            guard.query("BEGIN")
            self._lock(guard)
            position, snapshot = _make_slot(link, slot, temporary)
            copying.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            copying.query(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
            self._lock(copying)
            published = PostgresCatalog(copying.query, copying.server_version).published(self._publication)
            return PostgresCopy(copying, position, {(row.schema, row.name): row for row in published})
        except BaseException:
            copying.close()
            raise
        finally:
            guard.close()
            link.close()

    def _lock(self, link: Link) -> None:
        """Lock the published tables; unlike LOCK TABLE, this needs the right to read some column only."""
        for row in PostgresCatalog(link.query, link.server_version).published(self._publication):
            link.query(f"SELECT FROM {identifier(row.schema)}.{identifier(row.name)} LIMIT 0")


class PostgresCopy(Copy):
    """A transaction in the snapshot of a slot's beginning.

    Args:
        published: the publication's tables as of then, whose columns and filters are the copy's too.
    """

    def __init__(self, link: Link, position: str, published: dict[tuple[str, str], PublishedTable]) -> None:
        self._link = link
        self.position = position
        self._published = published

    def rows(self, table: SourceTable) -> Iterator[Sequence[tuple[object, ...]]]:
        """The rows of a table in blocks."""
        name = f"{identifier(table.schema)}.{identifier(table.name)}"
        ((kind,),) = self._link.query(
            "SELECT relkind FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass($1) "
            "UNION ALL SELECT NULL WHERE pg_catalog.to_regclass($1) IS NULL",
            name,
        )
        if kind is None:
            raise _no_table(table.shown)
        listed = ", ".join(identifier(column.name) for column in table.columns)
        # Tables that inherit from it have changes of their own.
        sql = f"SELECT {listed} FROM {'' if kind == 'p' else 'ONLY '}{name}"
        published = self._published.get((table.schema, table.name))
        if published is not None and published.row_filter:
            sql += f" WHERE {published.row_filter}"
        lists = [place for place, column in enumerate(table.columns) if is_list(column)]
        width = len(table.columns)
        for data in self._link.copy_out(f"COPY ({sql}) TO STDOUT", PIECE_ROWS, PIECE_BYTES):
            rows = copy_rows(data, width)
            yield _with_lists(rows, lists) if lists else rows

    def close(self) -> None:
        """End the transaction."""
        self._link.close()


_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def copy_rows(data: bytes | bytearray, width: int) -> list[tuple[object, ...]]:
    r"""Rows of COPY's text format.

    >>> copy_rows(b"1\tx\\ty\n2\t\\N\n", 2)
    [('1', 'x\ty'), ('2', None)]
    """
    if not width:
        return [()] * data.count(b"\n")
    # Each tab and each line feed ends a value; those within one are escaped.
    values: list[str | None] = data.decode().replace("\n", "\t").split("\t")  # type: ignore[assignment]
    values.pop()
    escapes = data.count(b"\\")
    if escapes:
        if escapes == values.count("\\N"):
            values = [None if value == "\\N" else value for value in values]
        else:
            values = [_unescaped(value) if value and "\\" in value else value for value in values]
    return list(zip(*[iter(values)] * width, strict=True))


def _unescaped(value: str) -> str | None:
    if value == "\\N":
        return None
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), value)


def _with_lists(rows: list[tuple[object, ...]], lists: Sequence[int]) -> list[tuple[object, ...]]:
    converted = []
    for row in rows:
        values = list(row)
        for place in lists:
            if isinstance(text := values[place], str):
                values[place] = read_array(text)
        converted.append(tuple(values))
    return converted


def _make_slot(link: Link, name: str, temporary: str) -> tuple[str, str]:
    """Make a slot; the position where it begins, and the name of the snapshot of then."""
    sql = f"CREATE_REPLICATION_SLOT {identifier(name)} {temporary}LOGICAL pgoutput EXPORT_SNAPSHOT"
    try:
        ((_, position, snapshot, _),) = link.query(sql, timeout_s=SLOT_TIMEOUT_S)
    except errors.ConfigurationLimit as error:
        error.hint = (
            "Raise max_replication_slots at the source and restart it, or drop a slot that is not used."
        )
        raise
    except errors.SourceUnavailable as error:
        error.hint = "A slot begins when all transactions that were open at the source have ended."
        raise
    return position or "", snapshot or ""


def _while_active(call: Callable[[], object]) -> None:
    """Make a call again while the slot is in use, for some time."""
    for left in range(ACTIVE_TRIES, -1, -1):
        try:
            call()
            return
        except errors.ObjectInUse as error:
            if not left:
                error.hint = "End the other client of the slot, or wait until the source notices its end."
                raise
            time.sleep(ACTIVE_PAUSE_S)


def _no_table(shown: str) -> errors.UndefinedTable:
    return errors.UndefinedTable(
        f'table "{shown}" does not exist at the source',
        hint="It may have been dropped or renamed there; a table outside the search path needs its schema.",
    )

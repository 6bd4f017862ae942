"""The connector of MySQL and MariaDB: checks, copies and changes.

Nothing is made at the source. A position is a set of GTIDs where the server has them (MariaDB always), else a
place in a file. A copy is one transaction with a snapshot, and the position as of it:

| server | snapshot and position | rights beyond those for reading the log |
|---|---|---|
| MariaDB | START TRANSACTION WITH CONSISTENT SNAPSHOT, which tells the place in the log | none |
| MySQL | FLUSH TABLES WITH READ LOCK while the snapshot begins and the place is read | RELOAD |

Tables of engines without transactions have no snapshot: they are locked for writing while the copy lasts,
which takes the right LOCK TABLES. Changes that InnoDB makes by the actions of foreign keys are not in the log
(MySQL before 9.6, MariaDB): tables with such keys are refused.

Source: docs/sources.md; MySQL Reference Manual, "InnoDB and FOREIGN KEY Constraints".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ....engine.catalog.source_tables import PIECE_ROWS, SourceTable
from ....engine.checkpoints.positions import BinlogPosition, MariadbGtids, MysqlGtids, Position
from ....engine.errors import (
    InvalidParameterValue,
    SourceLost,
    SourceUnavailable,
    UndefinedTable,
    WrongObjectType,
    WrongState,
)
from ..connector import Changes, Connector, Copy
from .binlog import BinlogStream, file_name, position_of
from .mysql_changes import MysqlChanges
from .mysql_server import PAUSE_S, RIGHTS_HINT, MysqlConnections, MysqlServer, log_end, parsed, table_now
from .mysql_statements import foreign_key_error
from .mysql_types import MysqlTable, converter, quoted, selected, table_of

if TYPE_CHECKING:
    import pymysql

# Engines with transactions, whose tables a snapshot has.
_SNAPSHOT_ENGINES = frozenset(("innodb", "rocksdb", "tokudb"))
SERVER_ID_MAX = (1 << 32) - 1
# Waiting for the lock of tables, before a copy; writers wait behind it.
_LOCK_S = 30
_TableName = tuple[str, str]


class MysqlConnector(Connector):
    """The client of a MySQL or MariaDB server.

    Args:
        url: its URL; see `mysql_server`.
        selection: tables by database and name, where None is the URL's database; or the name of a database,
            for all its tables.
        server_id: the number under which the server knows the reader of its log, from 1; no replica and no
            other reader may have it.
        identity: the server's identity (`identity`) in an earlier run; None at the first.

    Raises:
        NotSupported: pymysql is not installed.
        InvalidParameterValue: the URL or the number is malformed.
    """

    def __init__(
        self,
        url: str,
        selection: Sequence[tuple[str | None, str]] | str,
        server_id: int,
        identity: str | None = None,
    ) -> None:
        if not 0 < server_id <= SERVER_ID_MAX:
            raise InvalidParameterValue(f"the server id {server_id} is not from 1 to {SERVER_ID_MAX}")
        self._url = parsed(url)
        self._connections = MysqlConnections(self._url)
        self._selection = selection
        self._server_id = server_id
        self._known_identity = identity
        self._server: MysqlServer | None = None
        self._tables: Sequence[MysqlTable] = ()
        self._locked: Sequence[_TableName] = ()

    @property
    def identity(self) -> str:
        """The server's identity, after `describe`. It matters for positions in files, which are its own."""
        assert self._server is not None, "describe has been called"
        return self._server.identity

    def describe(self) -> Sequence[SourceTable]:
        """The selected tables; checks settings, rights and types.

        Raises:
            SourceUnavailable: the server cannot be reached, or is busy.
            InvalidPassword: it refuses the user or the password.
            WrongState: a setting of the server does not allow to read its log.
            InsufficientPrivilege: the user has not all rights.
            UndefinedTable: a table does not exist; WrongObjectType: it is a view.
            NotSupported: the version, a type or a foreign key cannot be read.
        """
        connection = self._connections.open()
        try:
            server = self._server = self._connections.server(connection)
            self._check_settings(server)
            names = self._names(connection)
            self._check_filters(connection, names)
            self._tables = [self._described(connection, name) for name in names]
            self._locked = self._engines(connection)
            self._check_foreign_keys(connection)
            self._check_log(connection)
        finally:
            self._connections.end(connection)
        return [table.source_table() for table in self._tables]

    def _check_settings(self, server: MysqlServer) -> None:
        found, shown = server.variables, self._url.shown
        if not server.on("log_bin"):
            raise WrongState(
                f"MySQL server {shown} has no binary log", hint="Set log_bin at the source, and restart it."
            )
        for name, wanted in (("binlog_format", "ROW"), ("binlog_row_image", "FULL")):
            if found.get(name, "").upper() != wanted:
                raise WrongState(
                    f"MySQL server {shown} has {name} = {found.get(name)}",
                    hint=f"SET GLOBAL {name} = {wanted} at the source, and in its configuration; sessions "
                    "keep the old value until they end.",
                )
        if found.get("binlog_row_value_options"):
            raise WrongState(
                f"MySQL server {shown} logs parts of JSON values (binlog_row_value_options)",
                hint="SET GLOBAL binlog_row_value_options = '' at the source.",
            )
        if server.on("binlog_transaction_compression"):
            raise WrongState(
                f"MySQL server {shown} compresses transactions in its log, which cannot be read",
                hint="SET GLOBAL binlog_transaction_compression = OFF at the source.",
            )
        if found.get("server_id") == str(self._server_id):
            raise WrongState(
                f"MySQL server {shown} itself has the server id {self._server_id}",
                hint="Each reader and each replica of a server needs a server id of its own.",
            )

    def _names(self, connection: pymysql.Connection[Any]) -> list[_TableName]:
        """The schema and name of each selected table, as the server writes them."""
        if isinstance(self._selection, str):
            text = connection.escape(self._selection)
            rows = self._connections.ask(
                connection,
                "SELECT table_schema, table_name FROM information_schema.tables "
                f"WHERE table_schema = {text} AND table_type = 'BASE TABLE' ORDER BY table_name",
            )
            if not rows:
                raise UndefinedTable(
                    f'database "{self._selection}" of MySQL server {self._url.shown} has no tables',
                    hint="They are not seen by a user without rights on them.",
                )
            return [(schema, name) for schema, name in rows]
        names = []
        for schema, name in self._selection:
            schema = schema if schema is not None else self._url.database
            if not schema:
                raise InvalidParameterValue(
                    f'table "{name}" is selected without a database', hint="Name it, here or in the URL."
                )
            names.append(self._found(connection, schema, name))
        if len(set(names)) < len(names):
            raise InvalidParameterValue("a table is selected twice")
        return names

    def _found(self, connection: pymysql.Connection[Any], schema: str, name: str) -> _TableName:
        rows = self._connections.ask(
            connection,
            "SELECT table_schema, table_name, table_type FROM information_schema.tables "
            f"WHERE table_schema = {connection.escape(schema)} AND table_name = {connection.escape(name)}",
        )
        if not rows:
            raise UndefinedTable(
                f'table "{schema}.{name}" does not exist at MySQL server {self._url.shown}, or the user has '
                "no rights on it",
                hint=RIGHTS_HINT,
            )
        found_schema, found_name, kind = rows[0]
        if kind not in ("BASE TABLE", "SYSTEM VERSIONED"):
            raise WrongObjectType(
                f'"{schema}.{name}" at MySQL server {self._url.shown} is no table ({kind.lower()})',
                hint="Select the tables that it reads.",
            )
        return found_schema, found_name

    def _check_filters(self, connection: pymysql.Connection[Any], names: Sequence[_TableName]) -> None:
        """Check that the server logs the tables' databases; and the right to read its position."""
        _, only, ignored = log_end(self._connections, connection, self._known_server)
        for schema, _ in names:
            if (only and schema not in only.split(",")) or schema in ignored.split(","):
                raise WrongState(
                    f'MySQL server {self._url.shown} leaves database "{schema}" out of its log',
                    hint="Change binlog_do_db or binlog_ignore_db at the source.",
                )

    def _described(self, connection: pymysql.Connection[Any], name: _TableName) -> MysqlTable:
        table = table_now(self._connections, connection, self._known_server, *name)
        columns = ", ".join(quoted(column.name) for column in table.columns)
        self._connections.ask(connection, f"SELECT {columns} FROM {_qualified(table)} LIMIT 0")
        return table

    def _engines(self, connection: pymysql.Connection[Any]) -> Sequence[_TableName]:
        """The tables whose engines have no snapshot."""
        found = []
        for table in self._tables:
            rows = self._connections.ask(
                connection,
                "SELECT engine FROM information_schema.tables "
                f"WHERE table_schema = {connection.escape(table.schema)} "
                f"AND table_name = {connection.escape(table.name)}",
            )
            if str(rows[0][0]).lower() not in _SNAPSHOT_ENGINES:
                found.append((table.schema, table.name))
        return found

    def _check_foreign_keys(self, connection: pymysql.Connection[Any]) -> None:
        """Refuse tables that InnoDB changes by itself: such changes are not in the log."""
        if self._ignores_foreign_keys or self._known_server.logs_foreign_keys:
            return
        for table in self._tables:
            rows = self._connections.ask(
                connection,
                "SELECT constraint_name, delete_rule, update_rule "
                "FROM information_schema.referential_constraints "
                f"WHERE constraint_schema = {connection.escape(table.schema)} "
                f"AND table_name = {connection.escape(table.name)}",
            )
            for name, *rules in rows:
                if not {*rules} <= {"RESTRICT", "NO ACTION"}:
                    raise foreign_key_error(table.shown, name)

    @property
    def _ignores_foreign_keys(self) -> bool:
        return self._url.parameters.get("foreign_key_actions") == "ignore"

    def _check_log(self, connection: pymysql.Connection[Any]) -> None:
        """Check the right to read the log, by reading at its end."""
        end, _, _ = log_end(self._connections, connection, self._known_server)
        reader = self._connections.open()
        try:
            stream = BinlogStream(reader, end, 0, self._connections.error, follow=False)
            while stream.next(time.monotonic() + _LOCK_S) is not None:
                pass
        except EOFError:
            pass
        finally:
            self._connections.end(reader)

    # Copies.

    def begin(self) -> Copy:
        """A copy as of now; nothing is made at the source.

        Raises:
            InsufficientPrivilege: the user cannot lock as a copy needs it.
            SourceUnavailable: a table was altered meanwhile.
        """
        copy = self.copy()
        try:
            # The position is behind or before an ALTER TABLE after `describe`: nobody knows.
            for table in self._tables:
                copy.check(table)
        except BaseException:
            copy.close()
            raise
        return copy

    def publish(self) -> None:
        """Nothing: the source logs the changes of all tables."""

    def copy(self) -> MysqlCopy:
        """A copy as of now."""
        if self._server is None:
            self.describe()
        return MysqlCopy(self._connections, self._known_server, self._tables, self._locked, self.uses_gtids)

    @property
    def uses_gtids(self) -> bool:
        """True if positions are GTIDs, after `describe`."""
        wanted, server = self._url.parameters.get("position"), self._known_server
        has = server.mariadb or server.variables.get("gtid_mode") == "ON"
        if wanted == "gtid" and not has:
            raise WrongState(
                f"MySQL server {self._url.shown} has gtid_mode = {server.variables.get('gtid_mode')}",
                hint="Set gtid_mode to ON at the source, or leave position=gtid out of the URL.",
            )
        return has and wanted != "file"

    # Changes.

    def changes(self, tables: Sequence[SourceTable], position: str, until: str | None = None) -> Changes:
        """The changes after a position.

        Raises:
            SourceLost: the server no longer has them, or is another one.
            SourceUnavailable: `until` is before the position.
            WrongState: the two positions cannot be compared.
        """
        if self._server is None:
            self.describe()
        found, server = position_of(position), self._known_server
        self._check_position(found)
        end = None if until is None else position_of(until)
        if end is not None:
            _check_end(found, end)
        known = [table_of(table) for table in tables]
        if isinstance(found, MysqlGtids):
            self._check_executed(found)
        return MysqlChanges(
            self._connections, server, known, found, self._server_id, self._ignores_foreign_keys, end
        )

    def _check_position(self, position: Position) -> None:
        server, shown = self._known_server, self._url.shown
        if isinstance(position, BinlogPosition):
            if self._known_identity not in (None, server.identity):
                raise SourceLost(
                    f"{shown} is another MySQL server than before, and the position {position} is a place in "
                    "a file of the former one",
                    hint="Read the former server, or create the stream again. With GTIDs at the source, a "
                    "stream follows a failover.",
                )
        elif isinstance(position, MariadbGtids) != server.mariadb:
            raise SourceLost(
                f"the position {position} is none of {server.product} server {shown}",
                hint="Read the server that the position is from, or create the stream again.",
            )
        elif isinstance(position, MysqlGtids) and server.variables.get("gtid_mode") != "ON":
            raise SourceLost(
                f"MySQL server {shown} has gtid_mode = {server.variables.get('gtid_mode')}, and the position "
                "is a set of GTIDs",
                hint="Set gtid_mode to ON at the source, or create the stream again.",
            )

    def _check_executed(self, position: MysqlGtids) -> None:
        """Check that a server has all transactions that were read: it would not miss them itself."""
        connection = self._connections.open()
        try:
            executed = str(self._connections.ask(connection, "SELECT @@GLOBAL.gtid_executed")[0][0])
        finally:
            self._connections.end(connection)
        if position not in MysqlGtids.parse(executed):
            raise SourceLost(
                f"MySQL server {self._url.shown} does not have all transactions that were read before",
                detail=f"It has {executed[:500]}.",
                hint="It may have lost some in a failover. Create the stream again.",
            )

    @property
    def _known_server(self) -> MysqlServer:
        assert self._server is not None, "describe has been called"
        return self._server

    def remove(self) -> None:
        """Nothing: the source keeps its log by its own rules, whoever reads it."""

    def close(self) -> None:
        """End all connections; from any thread."""
        self._connections.close()


def _check_end(position: Position, end: Position) -> None:
    """Check that the position of a copy is not before that of the stream."""
    if type(position) is not type(end):
        raise WrongState(
            f"the stream's position {position} and that of the copy, {end}, cannot be compared",
            detail="The source had no GTIDs when the stream was created.",
            hint="DROP STREAM, and create it again.",
        )
    if not end >= position:
        raise SourceUnavailable(f"the copy is as of {end}, before the stream's position {position}")


def _qualified(table: MysqlTable) -> str:
    return f"{quoted(table.schema)}.{quoted(table.name)}"


class MysqlCopy(Copy):
    """The tables as of one position.

    Args:
        tables: the tables, as `describe` has found them.
        locked: those without a snapshot, which are locked while the copy lasts.
    """

    def __init__(
        self,
        connections: MysqlConnections,
        server: MysqlServer,
        tables: Sequence[MysqlTable],
        locked: Sequence[_TableName],
        uses_gtids: bool,
    ) -> None:
        self._connections, self._server = connections, server
        self._opened: list[pymysql.Connection[Any]] = []
        try:
            self._connection = self._open()
            self.position = self._begin(locked, uses_gtids)
            self._tables = {(table.schema, table.name): self._now(table) for table in tables}
        except BaseException:
            self.close()
            raise

    def _open(self) -> pymysql.Connection[Any]:
        connection = self._connections.open()
        self._opened.append(connection)
        limit = "max_statement_time" if self._server.mariadb else "max_execution_time"
        self._connections.ask(
            connection,
            f"SET SESSION lock_wait_timeout = {_LOCK_S}, net_write_timeout = {PAUSE_S}, "
            f"wait_timeout = {PAUSE_S}, {limit} = 0",
        )
        return connection

    def _begin(self, locked: Sequence[_TableName], uses_gtids: bool) -> str:
        ask, connection = self._connections.ask, self._connection
        names = ", ".join(f"{quoted(schema)}.{quoted(name)} READ" for schema, name in locked)
        ask(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if self._server.mariadb:
            if names:
                ask(self._open(), f"LOCK TABLES {names}")
            ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            found: dict[str, str] = dict(ask(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
            end = BinlogPosition.parse(f"{found['Binlog_snapshot_file']}:{found['Binlog_snapshot_position']}")
            return self._mariadb_gtids(end) if uses_gtids else str(end)
        flusher = self._open()
        try:
            ask(flusher, "FLUSH TABLES WITH READ LOCK")
            ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            end, _, _ = log_end(self._connections, connection, self._server)
            executed = str(ask(connection, "SELECT @@GLOBAL.gtid_executed")[0][0]) if uses_gtids else ""
            if names:
                ask(self._open(), f"LOCK TABLES {names}")
        finally:
            self._opened.remove(flusher)
            self._connections.end(flusher)
        # A server without any transaction has the empty set, which is no text.
        return str(MysqlGtids.parse(executed)) if executed else str(end)

    def _mariadb_gtids(self, end: BinlogPosition) -> str:
        text = f"SELECT BINLOG_GTID_POS('{file_name(end)}', {end.offset})"
        gtids = self._connections.ask(self._connection, text)[0][0]
        if gtids is None:
            raise SourceUnavailable("the place of the snapshot is no longer in the source's log")
        if gtids:
            return str(MariadbGtids.parse(str(gtids)))
        # The log has no transaction: the empty text would be no position.
        found = self._server.variables
        return f"{found['gtid_domain_id']}-{found['server_id']}-0"

    def _now(self, table: MysqlTable) -> MysqlTable:
        return table_now(self._connections, self._connection, self._server, table.schema, table.name)

    def check(self, table: MysqlTable) -> None:
        """Check that a table has this definition.

        Raises:
            SourceUnavailable: it has another one.
        """
        if not table.has_shape_of(self._tables[table.schema, table.name]):
            raise SourceUnavailable(f"table {table.shown} is being altered at the source")

    def rows(self, table: SourceTable) -> Iterator[Sequence[tuple[object, ...]]]:
        """The rows of a table in blocks.

        Raises:
            SourceUnavailable: the connection is lost, or the table was altered.
        """
        known = table_of(table)
        self.check(known)
        connection, failed = self._connection, self._connections.guarded
        chosen = ", ".join(selected(column) for column in known.columns)
        failed(lambda: connection.query(f"SELECT {chosen} FROM {_qualified(known)}", unbuffered=True))
        result = connection._result
        assert result is not None
        # pymysql has a function for each type; here each column has its own.
        encodings = [encoding for encoding, _ in result.converters]
        converters = [converter(known, column) for column in known.columns]
        result.converters = list(zip(encodings, converters, strict=True))
        try:
            while rows := failed(lambda: _block(result)):
                yield rows
        finally:
            if result.unbuffered_active:
                # The rest is not read: the connection ends, and with it the copy.
                result.unbuffered_active = False
                self.close()

    def close(self) -> None:
        """End the view, and the locks."""
        for connection in self._opened:
            self._connections.end(connection)
        self._opened.clear()


def _block(result: Any) -> list[tuple[object, ...]]:
    """The next rows of an unbuffered result."""
    rows: list[tuple[object, ...]] = []
    while len(rows) < PIECE_ROWS:
        row = result._read_rowdata_packet_unbuffered()
        if row is None:
            break
        rows.append(row)
    return rows

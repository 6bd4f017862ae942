"""Changes of MySQL and MariaDB: the events of the log as transactions.

A transaction begins with an event with its GTID (or with BEGIN, where there are none) and ends with XID or
COMMIT; a statement that defines something is a transaction of its own. The position behind a transaction is
the set of all GTIDs so far, so a server to which a stream fails over gives what is missing, and no more.

Rules that keep the rows right:

- A row event is decoded by the definition that its table has at that place of the log: the known one with
  each later statement applied (`mysql_statements`). The types in the event must fit it, and its names, if the
  log has them (binlog_row_metadata = FULL).
- A statement that is not understood is answered by the server, with the present definition; before that, the
  rest of the log is read for later statements on the table, which would make it the wrong one.
- A change of a table that is not logged by rows ends the stream with an error.

Source: docs/sources.md; MariaDB, "Global Transaction ID"; MySQL Reference
Manual, "Replication with Global Transaction Identifiers".
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....engine.catalog.source_tables import (
    DEFINE,
    DELETE,
    INSERT,
    PIECE_ROWS,
    TRUNCATE,
    UPDATE,
    Change,
    Commit,
    Piece,
)
from ....engine.checkpoints.positions import BinlogPosition, MariadbGtids, MysqlGtids, Position
from ....engine.errors import DataError, NotSupported, SourceLost, SourceUnavailable, WrongState
from ..connector import Changes
from . import binlog
from .binlog import BinlogStream, Event, RowReader, TableMap
from .mysql_server import MysqlConnections, MysqlServer, log_end, table_now
from .mysql_statements import Define, Dialect, Effect, Reread, Truncate, effects
from .mysql_types import LONGLONG, MysqlTable, decoder

if TYPE_CHECKING:
    import pymysql

# Bytes of events after which the changes of a transaction are given, although it goes on.
PIECE_BYTES = 4 << 20
# Between pieces that only say that the position has moved, and between looks at the log's end.
QUIET_S = 1.0
# For the first event, which a server sends at once.
_FIRST_S = 30.0
# Behind the row events of a table, at most; a server numbers tables anew when it opens them.
_MAPS_MAX = 4096
_BEGIN, _COMMIT = b"BEGIN", b"COMMIT"
_TableName = tuple[str, str]


class LogPlace:
    """The place of reading in the files of the log.

    Args:
        file: the file's name; "" until the server has said it.
        offset: the end of the last event, which counts on behind 4 GiB.
        known: True if an event of the file was read.
    """

    def __init__(self) -> None:
        self.file, self.offset, self.known = "", 0, False

    def rotate(self, event: Event) -> None:
        self.offset = int.from_bytes(event.body[:8], "little")
        self.file = event.body[8:].decode()
        # The first file of a connection is told from its begin, wherever reading goes on.
        self.known = self.known or bool(event.end)

    def hear(self, event: Event) -> None:
        """A heartbeat: the server has sent everything up to a place."""
        if event.type == binlog.HEARTBEAT and event.body.decode("utf-8", "replace") == self.file:
            self.advance(event)

    def advance(self, event: Event) -> None:
        if event.end:
            high = self.offset >> 32
            if event.end < self.offset & 0xFFFFFFFF and self.offset & 0xFFFFFFFF > 1 << 31:
                high += 1
            self.offset = max(self.offset, high << 32 | event.end)
            self.known = True

    @property
    def text(self) -> str:
        return f"{self.file}:{self.offset}"


class _Reached:
    """The position behind the transactions so far."""

    def __init__(self, position: Position, place: LogPlace) -> None:
        self._place = place
        self._is_file = isinstance(position, BinlogPosition)
        self._domains = dict(position.domains) if isinstance(position, MariadbGtids) else {}
        intervals = position.intervals if isinstance(position, MysqlGtids) else {}
        self._sets = {server: [list(pair) for pair in pairs] for (server, _), pairs in intervals.items()}
        self._text = str(position)

    @property
    def text(self) -> str:
        return self._place.text if self._is_file else self._text

    def add_mariadb(self, domain: int, server_id: int, number: int) -> None:
        self._domains[domain] = (server_id, number)
        found = sorted(self._domains.items())
        self._text = ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in found)

    def add_mysql(self, server: str, number: int) -> None:
        pairs = self._sets.setdefault(server, [])
        last = pairs[-1] if pairs else None
        if last is not None and number == last[1] + 1:
            last[1] = number
        elif last is None or number > last[1]:
            pairs.append([number, number])
        else:
            merged = MysqlGtids({(server, ""): tuple((a, b) for a, b in [*pairs, [number, number]])})
            self._sets[server] = [list(pair) for pair in merged.intervals[server, ""]]
        texts = (
            server + "".join(f":{a}-{b}" if a != b else f":{a}" for a, b in pairs)
            for server, pairs in sorted(self._sets.items())
        )
        self._text = ",".join(texts)


class MysqlChanges(Changes):
    """The changes after a position.

    Args:
        tables: the tables with their definitions as of the position.
        ignores_foreign_keys: True to accept foreign keys whose actions change rows without being logged.
        until: the position behind which nothing is given; None for no end.
    """

    def __init__(
        self,
        connections: MysqlConnections,
        server: MysqlServer,
        tables: Sequence[MysqlTable],
        position: Position,
        server_id: int,
        ignores_foreign_keys: bool,
        until: Position | None = None,
    ) -> None:
        self._until, self._compared = until, ""
        self._passed = until is not None and position >= until
        self._connections, self._server = connections, server
        self._tables = {(table.schema, table.name): table for table in tables}
        self._dialect = Dialect(
            server.mariadb,
            server.variables.get("lower_case_table_names", "0") != "0",
            ignores_foreign_keys or server.logs_foreign_keys,
        )
        self._place = LogPlace()
        self._reached = _Reached(position, self._place)
        # A table's number -> the event that has explained it, and the reader of its rows; None for others.
        self._maps: dict[int, tuple[bytes, _TableName, RowReader | None]] = {}
        self._changes: list[Change] = []
        self._bytes = 0
        self._commit: Commit | None = None
        self._quiet: Commit | None = None
        self._quiet_s = time.monotonic()
        # The present transaction: its GTID, if one statement is all of it, if it is one of XA; rows so far.
        self._gtid: Callable[[], str] | None = None
        self._standalone = self._in_transaction = self._is_xa = self._has_rows = self._skips = False
        self._time_us: int | None = None
        self._status: pymysql.Connection[Any] | None = None
        self._status_s = 0.0
        self._behind: tuple[int | None, str] = (None, "")
        self._stream = self._open(position, server_id)

    def _open(self, position: Position, server_id: int) -> BinlogStream:
        connection = self._connection = self._connections.open()
        try:
            stream = BinlogStream(connection, position, server_id, self._connections.error)
            # The answer to a position that the server does not have comes first.
            first = stream.next(time.monotonic() + _FIRST_S)
            if first is None:
                raise SourceUnavailable("the source does not answer with its log")
            self._read(first)
            return stream
        except BaseException:
            self._connections.end(connection)
            raise

    # Reading.

    def next(self, timeout_s: float) -> Piece | None:
        """The next piece; None if there is none within the time."""
        ends_s = time.monotonic() + timeout_s
        piece = self._piece()
        while piece is None:
            if self._has_passed():
                piece, self._quiet = self._end_piece(), None
                return piece
            event = self._event(ends_s)
            if event is None:
                return self._quiet_piece()
            self._read(event)
            if self._changes:
                piece = self._piece()
            elif self._quiet is not None:
                piece = self._quiet_piece()
        return piece

    def _has_passed(self) -> bool:
        """True once the end is reached that was asked for, between two transactions."""
        if self._until is None or self._passed or self._in_transaction:
            return self._passed
        text = self._reached.text
        if text != self._compared and (self._place.file or not isinstance(self._until, BinlogPosition)):
            self._compared = text
            self._passed = binlog.position_of(text) >= self._until
        return self._passed

    def _end_piece(self) -> Piece | None:
        """The end of a transaction whose changes have all been given before, if it is not given yet."""
        return None if self._quiet is None else Piece((), self._quiet)

    @property
    def ended(self) -> bool:
        """True once everything up to the end that was asked for has been given."""
        return self._passed and not self._changes and self._quiet is None

    def _event(self, ends_s: float) -> Event | None:
        try:
            return self._stream.next(ends_s)
        except SourceUnavailable:
            self._connections.end(self._connection)
            raise

    def _piece(self) -> Piece | None:
        """The changes so far, if they are many or the transaction has ended."""
        count = len(self._changes)
        if not count or (self._commit is None and count < PIECE_ROWS and self._bytes < PIECE_BYTES):
            return None
        given, self._changes = self._changes[:PIECE_ROWS], self._changes[PIECE_ROWS:]
        size = self._bytes * len(given) // count
        self._bytes -= size
        commit = None
        if not self._changes:
            commit, self._commit = self._commit, None
        self._quiet, self._quiet_s = None, time.monotonic()
        return Piece(given, commit, size)

    def _quiet_piece(self) -> Piece | None:
        """A piece without changes, at most one a second; not inside of a transaction with changes."""
        if self._quiet is None or self._has_rows or time.monotonic() - self._quiet_s < QUIET_S:
            return None
        commit, self._quiet, self._quiet_s = self._quiet, None, time.monotonic()
        return Piece((), commit)

    def _read(self, event: Event) -> None:
        try:
            self._take(event)
        except (IndexError, KeyError, ValueError, struct.error, zlib.error) as error:
            raise DataError(
                f"an event of the binary log at {self._place.text} is malformed (type {event.type}): {error}"
            ) from error

    def _take(self, event: Event) -> None:
        type_ = event.type
        if type_ in binlog.ROWS:
            self._place.advance(event)
            self._take_rows(event)
            return
        if type_ == binlog.TABLE_MAP:
            self._place.advance(event)
            self._take_map(event)
            return
        handler = _HANDLERS.get(type_)
        if type_ in (binlog.HEARTBEAT, binlog.HEARTBEAT_2):
            self._place.hear(event)
        elif type_ != binlog.ROTATE:
            self._place.advance(event)
        if handler is not None:
            handler(self, event)

    def _take_rotate(self, event: Event) -> None:
        self._place.rotate(event)
        self._maps.clear()

    def _take_format(self, event: Event) -> None:
        self._maps.clear()
        # A server that was killed has not ended the transaction in its last file.
        self._abandon()

    def _abandon(self) -> None:
        if self._has_rows:
            raise SourceLost(
                "the source's log ends in the middle of a transaction",
                hint="The server was killed, and has lost the end of its log (sync_binlog = 0). Create the "
                "stream again, which copies the tables.",
            )
        self._in_transaction = False

    # Transactions.

    def _begin(
        self, gtid: Callable[[], str] | None, *, standalone: bool = False, is_xa: bool = False
    ) -> None:
        if self._in_transaction:
            self._abandon()
        self._gtid, self._standalone, self._is_xa = gtid, standalone, is_xa
        self._in_transaction, self._has_rows, self._time_us, self._skips = True, False, None, False

    def _end(self, event: Event) -> None:
        """The transaction is committed."""
        txid = self._gtid() if self._gtid is not None else self._place.text
        time_us = self._time_us if self._time_us is not None else event.time_s * 1_000_000
        commit = Commit(self._reached.text, time_us, txid)
        if self._changes:
            self._commit = commit
        elif self._has_rows:
            # All changes were given before: the end is given at once.
            self._quiet, self._quiet_s = commit, 0.0
        else:
            self._quiet = commit
        self._gtid, self._in_transaction, self._has_rows = None, False, False

    def _take_mariadb_gtid(self, event: Event) -> None:
        found = binlog.mariadb_gtid(event)

        def reach() -> str:
            self._reached.add_mariadb(found.domain, found.server_id, found.number)
            return f"{found.domain}-{found.server_id}-{found.number}"

        self._begin(reach, standalone=found.standalone, is_xa=found.prepared)
        self._skips = found.starts_alter or found.drops_alter

    def _take_mysql_gtid(self, event: Event) -> None:
        server, number, self_us = binlog.mysql_gtid(event)

        def reach() -> str:
            self._reached.add_mysql(server, number)
            return f"{server}:{number}"

        anonymous = event.type == binlog.ANONYMOUS_GTID
        self._begin(None if anonymous else reach, standalone=True)
        self._time_us = self_us

    def _take_query(self, event: Event) -> None:
        found = binlog.query(event)
        text = found.text
        if text == _BEGIN:
            if not self._in_transaction:
                self._begin(None)
            self._standalone = False
        elif text == _COMMIT:
            self._end(event)
        else:
            self._take_statement(event, found)

    def _take_statement(self, event: Event, found: binlog.LoggedQuery) -> None:
        text = self._connections.text(found.text, found.charset)
        first = text[:20].upper().split()
        if first[:1] == ["ROLLBACK"]:
            if self._has_rows:
                raise self._cannot("a rollback of changes in the log")
            if first[1:2] != ["TO"]:
                self._end(event)
            return
        if first[:2] == ["XA", "START"] or first[:2] == ["XA", "BEGIN"]:
            self._is_xa, self._standalone = True, False
            return
        if first[:2] == ["XA", "COMMIT"] or first[:2] == ["XA", "ROLLBACK"]:
            self._end(event)
            return
        if not self._skips and self._may_concern(text):
            for effect in effects(text, found.database, found.sql_mode, self._tables, self._dialect):
                self._apply(effect)
                self._has_rows = True
        if self._standalone or not self._in_transaction:
            self._end(event)

    def _may_concern(self, text: str) -> bool:
        """True if the name of a table or of its database is in a statement: most are not read further."""
        if self._dialect.lower_names:
            text = text.lower()
        return any(name in text or "`" in name or '"' in name for table in self._tables for name in table)

    def _take_xa_prepare(self, event: Event) -> None:
        if self._has_rows and event.body[0] == 0:
            raise self._cannot("a prepared transaction (XA)")
        self._end(event)

    def _cannot(self, what: str) -> NotSupported:
        return NotSupported(
            f"the log of MySQL server {self._connections.url.shown} has {what} in the tables of the "
            "stream, which cannot be followed",
            hint="Create the stream again, which copies the tables.",
        )

    def _refuse(self, event: Event) -> None:
        if event.type == binlog.PARTIAL_UPDATE:
            known = self._maps.get(binlog.table_id(event))
            if known is not None and known[2] is None:
                return
        raise self._cannot(_REFUSED[event.type])

    # Rows.

    def _take_map(self, event: Event) -> None:
        number = binlog.table_id(event)
        known = self._maps.get(number)
        if known is not None and known[0] == event.body:
            return
        if len(self._maps) >= _MAPS_MAX:
            self._maps.clear()
        name = binlog.table_name(event)
        table = self._tables.get(name)
        reader = None if table is None else _row_reader(table, binlog.table_map(event))
        self._maps[number] = event.body, name, reader

    def _take_rows(self, event: Event) -> None:
        known = self._maps.get(binlog.table_id(event))
        if known is None:
            # The number that ends a statement without rows.
            if binlog.table_id(event) == 0xFFFFFF or len(event.body) <= 10:
                return
            raise WrongState("the binary log has rows of a table that it has not named")
        _, name, reader = known
        if reader is None:
            return
        if self._is_xa and self._server.mariadb:
            raise self._cannot("a prepared transaction (XA)")
        rows = reader.rows(event)
        if event.type in binlog.WRITES:
            self._changes += [Change(INSERT, name, None, row) for row in rows]
        elif event.type in binlog.DELETES:
            self._changes += [Change(DELETE, name, row, None) for row in rows]
        else:
            pairs = iter(rows)
            self._changes += [Change(UPDATE, name, old, new) for old, new in zip(pairs, pairs, strict=True)]
        self._bytes += len(event.body)
        self._has_rows = True

    # Definitions.

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, Truncate):
            self._changes.append(Change(TRUNCATE, effect.table, None, None))
            return
        if isinstance(effect, Reread):
            effect = self._read_again(effect.table)
        table = effect.table
        name = table.schema, table.name
        self._tables[name] = table
        self._maps.clear()
        self._changes.append(Change(DEFINE, name, None, table.source_table(effect.fills)))

    def _read_again(self, name: _TableName) -> Define:
        """The present definition of a table, if it is the one that the table has here."""
        known = self._tables[name]
        connection = self._connections.open()
        try:
            now = table_now(self._connections, connection, self._server, *name)
            end, _, _ = log_end(self._connections, connection, self._server)
        finally:
            self._connections.end(connection)
        self._check_unchanged(name, end)
        return Define(_continued(known, now), {})

    def _check_unchanged(self, name: _TableName, end: BinlogPosition) -> None:
        """Check that the log has no further statement on a table up to a place."""
        connection = self._connections.open()
        try:
            here = BinlogPosition.parse(self._place.text)
            stream = BinlogStream(connection, here, 0, self._connections.error, follow=False)
            place = LogPlace()
            while (event := stream.next(time.monotonic() + _FIRST_S)) is not None:
                if event.type == binlog.ROTATE:
                    place.rotate(event)
                    continue
                place.advance(event)
                if event.type in (binlog.QUERY, binlog.MARIADB_QUERY_COMPRESSED):
                    self._check_other(name, binlog.query(event))
                if place.file and BinlogPosition.parse(place.text) >= end:
                    return
            raise SourceUnavailable("the source does not answer with its log")
        except EOFError:
            return
        finally:
            self._connections.end(connection)

    def _check_other(self, name: _TableName, found: binlog.LoggedQuery) -> None:
        if found.text in (_BEGIN, _COMMIT):
            return
        text = self._connections.text(found.text, found.charset)
        known = {name: self._tables[name]}
        later = effects(text, found.database, found.sql_mode, known, self._dialect)
        if any(not isinstance(effect, Truncate) for effect in later):
            raise WrongState(
                f"the definition of table {name[0]}.{name[1]} was changed at the source by a statement that "
                "is not certain from its text, and again afterwards",
                hint="Copy the table again: DROP STREAM, and create it again.",
            )

    # The end of the log.

    def confirm(self, position: str) -> None:
        """Nothing: the source keeps its log by its own rules, whoever reads it."""

    def behind(self) -> tuple[int | None, str]:
        """The bytes between the place of reading and the end of the log; looked up once a second at most."""
        if time.monotonic() - self._status_s >= QUIET_S:
            if self._status is None:
                self._status = self._connections.open()
            try:
                self._behind = self._look(self._status)
            except SourceUnavailable:
                self._connections.end(self._status)
                self._status = None
                raise
            self._status_s = time.monotonic()
        return self._behind

    def _look(self, connection: pymysql.Connection[Any]) -> tuple[int | None, str]:
        end, _, _ = log_end(self._connections, connection, self._server)
        if not self._place.known:
            return None, str(end)
        last = binlog.file_name(end)
        if last == self._place.file:
            return max(end.offset - self._place.offset, 0), str(end)
        sizes = {str(row[0]): int(row[1]) for row in self._connections.ask(connection, "SHOW BINARY LOGS")}
        if self._place.file not in sizes:
            return None, str(end)
        between = sum(size for name, size in sizes.items() if self._place.file < name < last)
        return sizes[self._place.file] - self._place.offset + between + end.offset, str(end)

    def close(self) -> None:
        """End reading; from any thread."""
        self._connections.forget(self._connection)
        self._stream.close()


def _row_reader(table: MysqlTable, found: TableMap) -> RowReader:
    """The reader of a table's rows, if its known definition fits its description in the log."""
    count = len(table.columns)
    hidden = found.columns[count:]
    if len(found.columns) < count or len(hidden) > table.hidden or any(c[0] != LONGLONG for c in hidden):
        raise WrongState(
            f"table {table.shown} has {len(found.columns)} columns in the binary log, and {count} in the "
            "known definition",
            hint="The table was changed in a way that could not be followed: copy it again.",
        )
    for column, name in zip(table.columns, found.names, strict=False):
        if column.name != name:
            raise WrongState(
                f'column "{column.name}" of table {table.shown} has the name "{name}" in the binary log',
                hint="The table was changed in a way that could not be followed: copy it again.",
            )
    decoders = [
        decoder(table, column, *described)
        for column, described in zip(table.columns, found.columns, strict=False)
    ]
    return RowReader(table.shown, decoders, len(hidden))


def _continued(known: MysqlTable, now: MysqlTable) -> MysqlTable:
    """A definition that the server has given, with the numbers that its columns had.

    A new column is refused: its values in the rows that are there are not known.
    """
    numbers = {column.name.casefold(): column.number for column in known.columns}
    columns = []
    for column in now.columns:
        number = numbers.get(column.name.casefold())
        if number is None:
            raise WrongState(
                f'table {known.shown} has got column "{column.name}" at the source by a statement that is '
                "not certain from its text",
                hint="Copy the table again: DROP STREAM, and create it again.",
            )
        columns.append((column, number))
    return replace(now, numbers=known.numbers, columns=tuple(replace(c, number=n) for c, n in columns))


_REFUSED: Mapping[int, str] = {
    binlog.TRANSACTION_PAYLOAD: "a compressed transaction (binlog_transaction_compression)",
    binlog.TAGGED_GTID: "a GTID with a tag",
    binlog.PARTIAL_UPDATE: "parts of JSON values (binlog_row_value_options)",
    binlog.INCIDENT: "a mark of lost changes (INCIDENT)",
}
_HANDLERS: Mapping[int, Callable[[MysqlChanges, Event], None]] = {
    binlog.ROTATE: MysqlChanges._take_rotate,
    binlog.FORMAT_DESCRIPTION: MysqlChanges._take_format,
    binlog.MARIADB_GTID: MysqlChanges._take_mariadb_gtid,
    binlog.GTID: MysqlChanges._take_mysql_gtid,
    binlog.ANONYMOUS_GTID: MysqlChanges._take_mysql_gtid,
    binlog.QUERY: MysqlChanges._take_query,
    binlog.MARIADB_QUERY_COMPRESSED: MysqlChanges._take_query,
    binlog.EXECUTE_LOAD_QUERY: MysqlChanges._take_query,
    binlog.XID: MysqlChanges._end,
    binlog.XA_PREPARE: MysqlChanges._take_xa_prepare,
    **dict.fromkeys(_REFUSED, MysqlChanges._refuse),
}

"""The decoder of pgoutput, PostgreSQL's own plugin of logical decoding: from messages to changes.

It does no I/O but for temporary files. A transaction arrives between Begin and Commit and is given as it
arrives. With protocol 2, a large one arrives before it is known to commit, in segments between Stream Start
and Stream Stop, mixed with those of others and with whole transactions. Its messages are kept in a file
until its Stream Commit, which gives them, or its Stream Abort, which drops them: all of them, or those of a
subtransaction, which are the ones from its first message on, as what follows in the transaction before the
subtransaction ends belongs to it or is within it.

| message | fields behind its letter |
|---|---|
| B Begin | commit LSN 8, time 8, xid 4 |
| C Commit | flags 1, commit LSN 8, end LSN 8, time 8 |
| R Relation | oid 4, schema, name, identity 1, columns 2, each: flags 1, name, type 4, modifier 4 |
| I Insert | oid 4, N, tuple |
| U Update | oid 4, optional K or O with a tuple, N, tuple |
| D Delete | oid 4, K or O, tuple |
| T Truncate | number of relations 4, options 1, their oids |
| S Stream Start, E Stream Stop | xid 4, first segment 1; none |
| c Stream Commit | xid 4, flags 1, commit LSN 8, end LSN 8, time 8 |
| A Stream Abort | xid 4, xid of the subtransaction 4 |
| Y Type, O Origin, M Message | not used |

Within a segment the xid of the (sub)transaction, 4 bytes, comes first in R, Y, I, U, D, T and M.
A tuple is the number of its columns 2, and for each n (NULL), u (an unchanged value in TOAST), or t with the
length 4 and the text.

Source: PostgreSQL, "Logical Replication Message Formats"; docs/design/sources.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import IO

from ....engine import errors
from ....engine.catalog.source_tables import (
    DEFINE,
    DELETE,
    INSERT,
    PIECE_ROWS,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    Commit,
    Piece,
    SourceTable,
    Unchanged,
)
from .postgres_catalog import PostgresCatalog, Relation, RelationColumn
from .postgres_types import is_list, read_array

# A piece of a transaction has no more bytes than this and one change.
PIECE_BYTES = 8 << 20
# Of a transaction in progress, before they are written to its file.
_BUFFER_BYTES = 128 << 10
# 2000-01-01 in microseconds since 1970.
EPOCH_US = 946_684_800_000_000

_BEGIN = Struct("!QqI")
_COMMIT = Struct("!BQQq")
_STREAM_COMMIT = Struct("!IBQQq")
_TWO = Struct("!II")
_OID = Struct("!I")
_COUNT = Struct("!H")
_TYPE = Struct("!Ii")

_TEXT, _NULL, _KEPT = b"tnu"
_KEY_TUPLE, _OLD_TUPLE, _NEW_TUPLE = b"KON"
_KEY_FLAG = 1
_INSERT, _UPDATE, _DELETE, _RELATION, _STREAM_STOP, _TRUNCATE = b"IUDRET"
_ROW_LETTERS = b"IUD"
# A shorter tuple has lengths of two bytes only: the two before these are 0.
_SHORT = 0xFFFF
# A message of replication: w, its LSN, the server's end, a time, and then pgoutput's message.
DATA = ord("w")
DATA_BYTES = 25


class _Decoded:
    """A relation of which rows arrive.

    Args:
        table: its definition; None if its changes are not wanted.
        announced: False until the definition is given, before the first row.
    """

    __slots__ = ("announced", "lists", "name", "not_key", "places", "plain", "table")

    def __init__(self, relation: Relation, table: SourceTable | None, announced: bool) -> None:
        self.table = table
        self.announced = announced
        self.places = range(len(relation.columns))
        self.name: tuple[str, str] = (table.schema, table.name) if table else ("", "")
        self.lists: tuple[int, ...] = ()
        self.not_key: tuple[int, ...] = ()
        if table is not None:
            self.lists = tuple(place for place, column in enumerate(table.columns) if is_list(column))
            key = set(table.key)
            self.not_key = tuple(
                place for place, column in enumerate(table.columns) if column.name not in key
            )
        # Its rows are texts, and need nothing before them.
        self.plain = table is not None and announced and not self.lists


class _InProgress:
    """The messages of one transaction that has not ended, in a file beyond some size."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._written = 0
        self._buffer = bytearray()
        # xid of a subtransaction -> the place of its first message.
        self._first: dict[int, int] = {}
        # Relation messages outlive a subtransaction that is rolled back: the source does not send them again.
        self._relations: list[tuple[int, bytes]] = []

    @property
    def size(self) -> int:
        return self._written + len(self._buffer)

    def add(self, xid: int, message: bytes) -> None:
        """Append a message, without the xid."""
        self._first.setdefault(xid, self.size)
        if message[0] == _RELATION:
            self._relations.append((self.size, message))
        self._buffer += _OID.pack(len(message))
        self._buffer += message
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115
                prefix="ducktail-source-", dir=self._directory, buffering=0
            )
        view = memoryview(self._buffer)
        while view:
            view = view[self._file.write(view) :]
        view.release()
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def abort(self, xid: int, subtransaction: int) -> None:
        """Drop the messages of a subtransaction."""
        place = self._first.get(subtransaction)
        if place is None:
            return
        if place >= self._written:
            del self._buffer[place - self._written :]
        else:
            assert self._file is not None, "something is written"
            self._file.truncate(place)
            self._file.seek(place)
            self._written, self._buffer = place, bytearray()
        self._first = {one: first for one, first in self._first.items() if first < place}
        dropped = [message for at, message in self._relations if at >= place]
        self._relations = [(at, message) for at, message in self._relations if at < place]
        for message in dropped:
            self.add(xid, message)

    def messages(self) -> Iterator[bytes]:
        """All messages in order."""
        if self._file is not None:
            self._flush()
            self._file.seek(0)
            reader = open(self._file.fileno(), "rb", buffering=1 << 20, closefd=False)  # noqa: SIM115
            while head := reader.read(4):
                yield reader.read(_OID.unpack(head)[0])
            return
        data, at = bytes(self._buffer), 0
        while at < len(data):
            end = at + 4 + _OID.unpack_from(data, at)[0]
            yield data[at + 4 : end]
            at = end

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()


class PgoutputDecoder:
    """Decodes the messages after a position.

    Args:
        catalog: completes the definition in a Relation message.
        known: the tables whose changes are wanted, by oid.
        stranger: called with a relation that is none of them; it may raise an error.
        position: transactions that have committed before it are not given.
        directory: of files of transactions in progress; None for the system's.
        until: only transactions that have committed before it are given; None for all.

    Attributes:
        passed: True once nothing before `until` is left to be read.
        end, end_us: the LSN behind the last transaction, with wanted changes or without, and its time.
    """

    def __init__(
        self,
        catalog: PostgresCatalog,
        known: Mapping[int, SourceTable],
        stranger: Callable[[Relation], None],
        position: int,
        directory: Path | None = None,
        until: int | None = None,
    ) -> None:
        self.until = until
        self.passed = False
        self._catalog = catalog
        self._known = known
        self._stranger = stranger
        self._position = position
        self._directory = directory
        # Four bytes of an oid -> its relation.
        self._relations: dict[bytes, _Decoded] = {}
        self._changes: list[Change] = []
        self._bytes = 0
        # None outside of a transaction; it is True while one is skipped.
        self._skipped: bool | None = None
        self._xid = 0
        self._streams: dict[int, _InProgress] = {}
        self._segment: _InProgress | None = None
        self._replayed: Generator[Piece, None, None] | None = None
        # True once a piece of the present transaction was given.
        self._is_open = False
        self.end, self.end_us = position, 0
        self._actions: Mapping[int, Callable[[bytes], None]] = {
            ord("I"): self._insert,
            ord("U"): self._update,
            ord("D"): self._delete,
            ord("T"): self._truncate,
            ord("R"): self._relation,
        }

    @property
    def between(self) -> bool:
        """True if no transaction is being given: everything that was read has been given."""
        return self._skipped is None and self._replayed is None and not self._changes

    @property
    def in_progress(self) -> Mapping[int, int]:
        """The bytes that are kept of each transaction in progress, by xid."""
        return {xid: stream.size for xid, stream in self._streams.items()}

    def look(self, lsn: int) -> None:
        """The source has sent everything before an LSN."""
        self.passed = self.passed or (self.until is not None and lsn >= self.until)

    @property
    def ended(self) -> bool:
        """True once everything before `until` has been given."""
        return self.passed and self.between

    def pending(self) -> Piece | None:
        """The next piece of a transaction whose end is known; before the next message is read."""
        if self._replayed is not None:
            for piece in self._replayed:
                return piece
            self._replayed = None
        return None

    def read(self, messages: Sequence[bytes], at: int) -> tuple[Piece | None, int]:
        """Decode messages of replication from a place on, up to a complete piece or to a keepalive.

        Returns:
            The piece, if any, and the place behind the messages that are decoded.
        """
        end = len(messages)
        while at < end and messages[at][0] == DATA and not self.passed:
            full = self._full
            if full and self._is_wanted(messages[at], DATA_BYTES):
                return self._piece(None), at
            is_row = messages[at][DATA_BYTES] in _ROW_LETTERS and not full
            if is_row and self._skipped is False and self._segment is None:
                begin, at = at, self._rows(messages, at)
                if at > begin:
                    continue
            piece = self._one(messages[at][DATA_BYTES:])
            at += 1
            if piece is not None:
                return piece, at
        return None, at

    @property
    def _full(self) -> bool:
        return len(self._changes) >= PIECE_ROWS or self._bytes >= PIECE_BYTES

    def _is_wanted(self, message: bytes, at: int) -> bool:
        """True if a message adds a change: a full piece is given before it, so that the last has changes."""
        if message[at] in _ROW_LETTERS:
            return self._relations[message[at + 1 : at + 5]].table is not None
        return message[at] == _TRUNCATE

    def _rows(self, messages: Sequence[bytes], at: int) -> int:
        """Decode consecutive changes of rows with one tuple in ASCII, which most messages are, without calls.

        Returns:
            The place of the first message that is something else.
        """
        relations, changes, size = self._relations, self._changes, self._bytes
        add, make = changes.append, tuple.__new__
        room = PIECE_ROWS - len(changes)
        assert room > 0, "the piece is not full"
        for at in range(at, min(len(messages), at + room)):  # noqa: B020
            message = messages[at]
            if message[0] != DATA or message[DATA_BYTES] not in _ROW_LETTERS or size >= PIECE_BYTES:
                break
            letter, relation, kind = message[DATA_BYTES], relations[message[26:30]], message[30]
            body = message[33:]
            if not relation.plain or not body.isascii() or len(body) > _SHORT:
                break
            if letter == _UPDATE and kind != _NEW_TUPLE:
                break
            text, begin = body.decode("ascii"), 5
            values: list[str | Unchanged | None] = []
            for _ in relation.places:
                form = body[begin - 5]
                if form == _TEXT:
                    end = begin + (body[begin - 2] << 8 | body[begin - 1])
                    values.append(text[begin:end])
                    begin = end + 5
                else:
                    values.append(None if form == _NULL else UNCHANGED)
                    begin += 1
            if letter == _DELETE:
                if kind == _KEY_TUPLE:
                    for place in relation.not_key:
                        values[place] = UNCHANGED
                add(make(Change, (DELETE, relation.name, tuple(values), None)))
            else:
                op = INSERT if letter == _INSERT else UPDATE
                add(make(Change, (op, relation.name, None, tuple(values))))
            size += len(message) - DATA_BYTES
        else:
            at += 1
        self._bytes = size
        return at

    def _one(self, message: bytes) -> Piece | None:
        kind = message[0]
        if self._segment is not None and kind != _STREAM_STOP:
            self._kept(message)
            return None
        action = self._actions.get(kind)
        if action is None:
            return self._control(kind, message)
        # Relation messages are not sent again.
        if not self._skipped or kind == _RELATION:
            self._apply(action, message)
        return None

    def _apply(self, action: Callable[[bytes], None], message: bytes) -> None:
        before = len(self._changes)
        action(message)
        if len(self._changes) > before:
            self._bytes += len(message)

    def _control(self, kind: int, message: bytes) -> Piece | None:
        match chr(kind):
            case "B":
                lsn, _, self._xid = _BEGIN.unpack_from(message, 1)
                if self.until is not None and lsn >= self.until:
                    self.passed = True
                    return None
                self._skipped = lsn < self._position
            case "C":
                _, _, end, time = _COMMIT.unpack_from(message, 1)
                skipped, self._skipped = self._skipped, None
                self.look(end)
                if not skipped:
                    self.end, self.end_us = max(self.end, end), time + EPOCH_US
                    return self._last(self._commit(end, time, self._xid))
            case "S":
                (xid,) = _OID.unpack_from(message, 1)
                self._xid = xid
                if xid not in self._streams:
                    self._streams[xid] = _InProgress(self._directory)
                self._segment = self._streams[xid]
            case "E":
                self._segment = None
            case "c":
                xid, _, lsn, end, time = _STREAM_COMMIT.unpack_from(message, 1)
                if self.until is not None and lsn >= self.until:
                    self.passed = True
                    return None
                self.look(end)
                stream = self._streams.pop(xid, None) or _InProgress(self._directory)
                commit = self._commit(end, time, xid)
                self._replayed = self._replay(stream, commit, end, lsn < self._position)
                return self.pending()
            case "A":
                xid, subtransaction = _TWO.unpack_from(message, 1)
                if xid == subtransaction:
                    dropped = self._streams.pop(xid, None)
                    if dropped is not None:
                        dropped.close()
                elif xid in self._streams:
                    self._streams[xid].abort(xid, subtransaction)
            case "Y" | "O" | "M":
                pass
            case other:
                raise errors.ProtocolViolation(f'the source has sent a message "{other}" that is not known')
        return None

    def close(self) -> None:
        """Remove the files of transactions in progress."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        if self._replayed is not None:
            self._replayed.close()
            self._replayed = None

    def _kept(self, message: bytes) -> None:
        """Keep a message of a segment, without its xid."""
        if message[0] in self._actions:
            assert self._segment is not None, "a segment is read"
            (xid,) = _OID.unpack_from(message, 1)
            self._segment.add(xid, message[:1] + message[5:])

    def _replay(
        self, stream: _InProgress, commit: Commit, end: int, skipped: bool
    ) -> Generator[Piece, None, None]:
        try:
            for message in stream.messages():
                if skipped and message[0] != _RELATION:
                    continue
                if self._full and self._is_wanted(message, 0):
                    yield self._piece(None)
                self._apply(self._actions[message[0]], message)
            if not skipped:
                self.end, self.end_us = max(self.end, end), commit.commit_us
                if (piece := self._last(commit)) is not None:
                    yield piece
        finally:
            stream.close()

    def _last(self, commit: Commit) -> Piece | None:
        """The last piece of a transaction; None if it has no changes at all."""
        if self._changes or self._is_open:
            return self._piece(commit)
        return None

    def _piece(self, commit: Commit | None) -> Piece:
        piece = Piece(self._changes, commit, self._bytes)
        self._is_open = commit is None
        self._changes, self._bytes = [], 0
        return piece

    @staticmethod
    def _commit(end: int, time: int, xid: int) -> Commit:
        return Commit(f"{end >> 32:X}/{end & 0xFFFFFFFF:X}", time + EPOCH_US, str(xid))

    def _insert(self, message: bytes) -> None:
        relation = self._relations[message[1:5]]
        if relation.table is None:
            return
        if not relation.announced:
            self._announce(relation)
        new, _ = _tuple(message, 6, relation)
        self._changes.append(Change(INSERT, relation.name, None, new))

    def _update(self, message: bytes) -> None:
        relation = self._relations[message[1:5]]
        if relation.table is None:
            return
        if not relation.announced:
            self._announce(relation)
        kind, at = message[5], 6
        old: tuple[object, ...] | None = None
        if kind != _NEW_TUPLE:
            old, at = _tuple(message, 6, relation)
            if kind == _KEY_TUPLE:
                old = _only_key(old, relation)
            at += 1
        new, _ = _tuple(message, at, relation)
        if old is not None and kind == _OLD_TUPLE and UNCHANGED in new:
            new = tuple(
                before if value is UNCHANGED else value for before, value in zip(old, new, strict=True)
            )
        self._changes.append(Change(UPDATE, relation.name, old, new))

    def _delete(self, message: bytes) -> None:
        relation = self._relations[message[1:5]]
        if relation.table is None:
            return
        if not relation.announced:
            self._announce(relation)
        old, _ = _tuple(message, 6, relation)
        if message[5] == _KEY_TUPLE:
            old = _only_key(old, relation)
        self._changes.append(Change(DELETE, relation.name, old, None))

    def _truncate(self, message: bytes) -> None:
        (count,) = _OID.unpack_from(message, 1)
        for at in range(6, 6 + 4 * count, 4):
            relation = self._relations[message[at : at + 4]]
            if relation.table is not None:
                self._changes.append(Change(TRUNCATE, relation.name, None, None))

    def _relation(self, message: bytes) -> None:
        relation = read_relation(message)
        key = message[1:5]
        before = self._relations.get(key)
        known = before.table if before is not None else self._known.get(relation.oid)
        if known is None:
            self._stranger(relation)
            self._relations[key] = _Decoded(relation, None, True)
            return
        if (relation.schema, relation.name) != (known.schema, known.name):
            raise renamed(known, f"{relation.schema}.{relation.name}")
        table = self._catalog.define(relation, known)
        announced = table == known and (before is None or before.announced)
        self._relations[key] = _Decoded(relation, table, announced)

    def _announce(self, relation: _Decoded) -> None:
        self._changes.append(Change(DEFINE, relation.name, None, relation.table))
        relation.announced = True
        relation.plain = not relation.lists


def renamed(known: SourceTable, name: str) -> errors.DucktailError:
    """The error of a table that has another name at the source."""
    return errors.WrongState(
        f'table "{known.shown}" of the source is now named "{name}"',
        hint="Rename it back at the source, or drop the table from the stream and add it under its new name.",
    )


def read_relation(message: bytes) -> Relation:
    """Decode a Relation message, without an xid."""
    (oid,) = _OID.unpack_from(message, 1)
    schema, at = _string(message, 5)
    name, at = _string(message, at)
    identity = chr(message[at])
    (count,) = _COUNT.unpack_from(message, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = _string(message, at + 1)
        type_oid, modifier = _TYPE.unpack_from(message, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, modifier, bool(flags & _KEY_FLAG)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def _tuple(message: bytes, at: int, relation: _Decoded) -> tuple[tuple[object, ...], int]:
    """The values of a tuple that begins at a place, and the place behind it.

    Most tuples are ASCII as a whole, lengths included: their texts are cut out of one string then, which is
    faster than decoding each.
    """
    start = at + 2
    body = message[start:]
    at = 0
    values: list[object] = []
    if body.isascii():
        text = body.decode("ascii")
        for _ in relation.places:
            kind = body[at]
            if kind == _TEXT:
                begin = at + 5
                at = begin + int.from_bytes(body[at + 1 : begin], "big")
                values.append(text[begin:at])
            else:
                values.append(None if kind == _NULL else UNCHANGED)
                at += 1
    else:
        for _ in relation.places:
            kind = body[at]
            if kind == _TEXT:
                begin = at + 5
                at = begin + int.from_bytes(body[at + 1 : begin], "big")
                values.append(body[begin:at].decode())
            else:
                values.append(None if kind == _NULL else UNCHANGED)
                at += 1
    for place in relation.lists:
        if isinstance(found := values[place], str):
            values[place] = read_array(found)
    return tuple(values), start + at


def _only_key(old: Sequence[object], relation: _Decoded) -> tuple[object, ...]:
    """An old row of which only the key was sent; the other columns are NULL in it."""
    values = list(old)
    for place in relation.not_key:
        values[place] = UNCHANGED
    return tuple(values)

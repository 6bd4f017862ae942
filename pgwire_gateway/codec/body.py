"""A cursor over the body of one message: each field is taken once, in order, and none is left over."""

from __future__ import annotations

import struct

from ...engine.errors import CharacterNotInRepertoire, ProtocolViolation

_INT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")


class Body:
    """The fields of a message, taken from the front.

    Args:
        data: the bytes after the length word.

    Raises:
        ProtocolViolation: 08P01, from every method, when the bytes end before the field does.
        CharacterNotInRepertoire: 22021, from `text`.

    Source: PostgreSQL documentation, "Message Data Types".
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, length: int) -> bytes:
        """The next `length` bytes."""
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise ProtocolViolation("insufficient data left in message")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def byte(self) -> bytes:
        """One byte, as bytes of length 1."""
        return self.take(1)

    def count(self) -> int:
        """An Int16 that counts something: 0 to 65535, as PostgreSQL reads it."""
        value: int = _INT16.unpack(self.take(2))[0]
        return value

    def int32(self) -> int:
        """A signed Int32."""
        value: int = _INT32.unpack(self.take(4))[0]
        return value

    def oid(self) -> int:
        """An unsigned Int32."""
        value: int = _UINT32.unpack(self.take(4))[0]
        return value

    def counts(self) -> tuple[int, ...]:
        """An Int16 n and n Int16."""
        count = self.count()
        if count == 1:
            return (self.count(),)
        return struct.unpack(f"!{count}H", self.take(2 * count)) if count else ()

    def oids(self) -> tuple[int, ...]:
        """An Int16 n and n unsigned Int32."""
        return tuple(self.oid() for _ in range(self.count()))

    def value(self) -> bytes | None:
        """An Int32 length and that many bytes; the length -1 is NULL."""
        length = self.int32()
        return None if length == -1 else self.take(length)

    def values(self) -> tuple[bytes | None, ...]:
        """An Int16 n and n values."""
        # As `value` does it, without a call for each: a batch has tens of thousands of them.
        found: list[bytes | None] = []
        data, size = self._data, len(self._data)
        for _ in range(self.count()):
            end = self._at + 4
            length: int = -2 if end > size else _INT32.unpack_from(data, self._at)[0]
            self._at = end
            if length == -1:
                found.append(None)
                continue
            end += length
            if length < 0 or end > size:
                raise ProtocolViolation("insufficient data left in message")
            found.append(data[self._at : end])
            self._at = end
        return tuple(found)

    def raw_text(self) -> bytes:
        """A String, without its closing zero byte, undecoded."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("invalid string in message")
        taken = self._data[self._at : end]
        self._at = end + 1
        return taken

    def text(self) -> str:
        """A String, decoded from UTF-8."""
        raw = self.raw_text()
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            wrong = " ".join(f"0x{byte:02x}" for byte in raw[error.start : error.end])
            raise CharacterNotInRepertoire(f'invalid byte sequence for encoding "UTF8": {wrong}') from None

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Assert that nothing is left."""
        if self._at != len(self._data):
            raise ProtocolViolation("invalid message format")

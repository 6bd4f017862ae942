"""Cuts the byte stream of a client into messages, within the bounds of one connection (`Limits`).

The receiver is a machine of three states. It starts at `startup`, where packets have no type
byte; a Startup packet takes it to `typed`; bytes that are no message take it to `dead`, from
which it reads nothing more (what follows cannot be told from data: CVE-2015-0244). It raises
nothing: an error in the bytes is itself a message, `Malformed` or `Undecodable`, at its place in
the order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from ...engine.errors import CharacterNotInRepertoire, DucktailError, ProtocolViolation
from .frontend import (
    FORMATS,
    LARGE_BYTES_MAX,
    SMALL_BYTES_MAX,
    Body,
    Close,
    Describe,
    Execute,
    Flush,
    Format,
    Malformed,
    Message,
    Startup,
    Sync,
    Undecodable,
    decode_startup,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection.

    Args:
        unauthenticated_bytes_max: longest message of a client that is not let in yet, the startup packet
            included. PostgreSQL's bound: whoever has not said who he is gets little memory.
        message_bytes_max: longest query, parameter list or piece of COPY data after that.
        statements_max: prepared statements that a session keeps.
    """

    unauthenticated_bytes_max: int = 10_000
    message_bytes_max: int = LARGE_BYTES_MAX
    statements_max: int = 10_000


_LENGTH = struct.Struct("!i")
_HEAD = struct.Struct("!Bi")


LIMITS = Limits()


# What drivers send again and again with the same few bytes: names, and no values of a user's.
REPEATED = frozenset({Describe, Execute, Close, Sync, Flush})
REPEATED_BYTES_MAX = 64


def _decoded(known: Format, data: bytes) -> Message:
    body = Body(data)
    message = known.decode(body)
    body.end()
    return message


_repeated = lru_cache(1024)(_decoded)


class Receiver:
    """Cuts a byte stream into messages.

    `authenticated` lifts the limit on message length: set it once the client is let in.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self.authenticated = False
        self._buffer = bytearray()
        self._next = self._startup

    @property
    def empty(self) -> bool:
        """True if no message has begun."""
        return not self._buffer

    def receive(self, data: bytes) -> list[Message]:
        """The messages that `data` completes, in order."""
        self._buffer += data
        messages: list[Message] = []
        at = 0
        while (step := self._next(at)) is not None:
            message, at = step
            messages.append(message)
        del self._buffer[:at]
        return messages

    def _startup(self, at: int) -> tuple[Message, int] | None:
        have = len(self._buffer) - at
        if have < 4:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, at)
        if not 8 <= length <= self._limits.unauthenticated_bytes_max:
            return self._die(ProtocolViolation("invalid length of startup packet"))
        if have < length:
            return None
        try:
            body = Body(bytes(self._buffer[at + 4 : at + length]))
            message = decode_startup(body)
            body.end()
        except DucktailError as error:
            return self._die(error)
        if isinstance(message, Startup):
            self._next = self._typed
        elif have > length:
            # After SSLRequest and its like the client waits for an answer. What comes at once was
            # put there by someone else, to be taken for part of the secured stream (CVE-2021-23214).
            return self._die(ProtocolViolation("received unencrypted data after SSL request"))
        return message, at + length

    def _typed(self, at: int) -> tuple[Message, int] | None:
        buffer = self._buffer
        have = len(buffer) - at
        if have < 1:
            return None
        known = FORMATS.get(buffer[at])
        if known is None:
            return self._die(ProtocolViolation(f"invalid frontend message type {buffer[at]}"))
        if have < 5:
            return None
        _, length = _HEAD.unpack_from(buffer, at)
        if not 4 <= length <= self._bytes_max(known):
            return self._die(ProtocolViolation(f"invalid message length {length}"))
        if have < 1 + length:
            return None
        end = at + 1 + length
        data = bytes(buffer[at + 5 : end])
        try:
            if length <= REPEATED_BYTES_MAX and known.kind in REPEATED:
                message = _repeated(known, data)
            else:
                message = _decoded(known, data)
        except CharacterNotInRepertoire as error:
            return Undecodable(known.kind, error), end
        except DucktailError as error:
            return self._die(error)
        return message, end

    def _bytes_max(self, known: Format) -> int:
        if not self.authenticated:
            return self._limits.unauthenticated_bytes_max
        return self._limits.message_bytes_max if known.large else SMALL_BYTES_MAX

    def _dead(self, at: int) -> tuple[Message, int] | None:
        self._buffer.clear()
        return None

    def _die(self, error: DucktailError) -> tuple[Message, int]:
        self._next = self._dead
        return Malformed(error), 0

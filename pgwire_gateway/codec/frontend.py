"""The client's messages: one frozen class each, their decoders, and the receiver that divides bytes into
them.

`Body` reads the fields of a message one after the other, each once, and checks that none is left over.
Startup packets have no type byte: the code after their length distinguishes them.

`Receiver` divides the byte stream of a client into messages, within the bounds of one connection (`Limits`).
It is a machine of three states. It starts at `startup`, where packets have no type byte; a Startup packet
leads to `typed`; bytes that are no message lead to `dead`, in which it reads nothing more (the following
bytes cannot be distinguished from data: CVE-2015-0244). It raises nothing: an error in the bytes is itself a
message, `Malformed` or `Undecodable`, at its place in the order. Source: PostgreSQL documentation, "Message
Data Types", "Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from ...engine.errors import (
    CharacterNotInRepertoire,
    DucktailError,
    ProtocolViolation,
    UntranslatableCharacter,
)
from ...engine.values.client_encodings import UTF8, Encoding

_INT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")


class Body:
    """The fields of a message, read in order.

    Args:
        data: the bytes after the length word.
        encoding: the client's.

    Raises:
        ProtocolViolation: from every method, if the bytes end before the field does.
        CharacterNotInRepertoire: from `text`, if the bytes are no text in the client's encoding.

    Source: PostgreSQL documentation, "Message Data Types".
    """

    __slots__ = ("_at", "_data", "_encoding")

    def __init__(self, data: bytes, encoding: Encoding = UTF8) -> None:
        self._data = data
        self._at = 0
        self._encoding = encoding

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
        """An Int16 count: 0 to 65535, as PostgreSQL reads it."""
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
        # The same as `value`, without a call for each: a batch has tens of thousands of them.
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
        """A String, decoded."""
        return self._encoding.decoded(self.raw_text())

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Check that no bytes are left."""
        if self._at != len(self._data):
            raise ProtocolViolation("invalid message format")


CANCEL_REQUEST_CODE = 1234 << 16 | 5678
SSL_REQUEST_CODE = 1234 << 16 | 5679
GSSENC_REQUEST_CODE = 1234 << 16 | 5680

# PostgreSQL's PQ_SMALL_MESSAGE_LIMIT: messages with names only need no more.
SMALL_BYTES_MAX = 10_000
# The maximum size of a query, a parameter list or a piece of COPY data; one such message is held in memory
# once, so a session uses at most this before its statement runs.
LARGE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SslRequest:
    """Request for TLS."""


@dataclass(frozen=True, slots=True)
class GssEncRequest:
    """Request for GSSAPI encryption."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel the statement of session `pid`, if `secret` is its own."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """The first message of a session: protocol version and parameters, in the order sent."""

    major: int
    minor: int
    parameters: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """Simple protocol: statements, separated by semicolons."""

    text: str


@dataclass(frozen=True, slots=True)
class Parse:
    """Create a prepared statement; an oid of 0 leaves that parameter's type open."""

    name: str
    text: str
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """Create a portal from a prepared statement and its parameters.

    Args:
        parameter_formats: none (all text), one (for all) or one for each parameter; 0 text, 1 binary.
        parameters: raw bytes, None for NULL.
        result_formats: none (all text), one (for all) or one for each column.
    """

    portal: str
    statement: str
    parameter_formats: tuple[int, ...]
    parameters: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """Describe a statement (`S`) or portal (`P`): its parameters and columns."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Close:
    """Forget a statement (`S`) or a portal (`P`)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a portal; `max_rows` of 0 or less is without limit."""

    portal: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class Sync:
    """End of a request in the extended protocol."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Send the collected answers."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """End of the session."""


@dataclass(frozen=True, slots=True)
class CopyData:
    """A piece of the rows of a COPY; outside a COPY it is ignored, as are the next two messages."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CopyDone:
    """All rows of a COPY have been sent."""


@dataclass(frozen=True, slots=True)
class CopyFail:
    """The client cancels a COPY, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The old fast-path function call, which is not supported."""


@dataclass(frozen=True, slots=True)
class Password:
    """An answer to an authentication request; for SASL all of its bytes, of which `sasl_first` reads the
    first answer."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A well-formed message of kind `kind` with bytes that are no text; only this message fails.

    Args:
        kind: class of the message that it would have been.
        error: the error to answer.
    """

    kind: type[Message]
    error: DucktailError


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no message: the following bytes cannot be trusted."""

    error: DucktailError


Message = (
    SslRequest
    | GssEncRequest
    | CancelRequest
    | Startup
    | Query
    | Parse
    | Bind
    | Describe
    | Close
    | Execute
    | Sync
    | Flush
    | Terminate
    | CopyData
    | CopyDone
    | CopyFail
    | FunctionCall
    | Password
    | Undecodable
    | Malformed
)


@dataclass(frozen=True, slots=True)
class Format:
    """The decoding of messages of one type byte.

    Args:
        kind: class of the message.
        large: True if it contains text or values of the user, and not only names.
        decode: converts the body into the message; it must read all of it.
    """

    kind: type[Message]
    large: bool
    decode: Callable[[Body], Message]


def _bind(body: Body) -> Bind:
    return Bind(body.text(), body.text(), body.counts(), body.values(), body.counts())


def _target(body: Body) -> tuple[str, str]:
    kind, name = body.byte(), body.text()
    if kind not in (b"S", b"P"):
        raise ProtocolViolation(f"invalid message subtype {kind[0]}")
    return kind.decode(), name


def _function_call(body: Body) -> FunctionCall:
    body.rest()
    return FunctionCall()


def sasl_first(data: bytes) -> tuple[str, bytes]:
    """The mechanism that the client has chosen in SASLInitialResponse, and its first message.

    Raises:
        ProtocolViolation: the bytes are no SASLInitialResponse.
    """
    body = Body(data)
    mechanism, words = body.text(), body.value()
    body.end()
    return mechanism, words or b""


FORMATS: dict[int, Format] = {
    ord("Q"): Format(Query, True, lambda body: Query(body.text())),
    ord("P"): Format(Parse, True, lambda body: Parse(body.text(), body.text(), body.oids())),
    ord("B"): Format(Bind, True, _bind),
    ord("D"): Format(Describe, False, lambda body: Describe(*_target(body))),
    ord("C"): Format(Close, False, lambda body: Close(*_target(body))),
    ord("E"): Format(Execute, False, lambda body: Execute(body.text(), body.int32())),
    ord("S"): Format(Sync, False, lambda body: Sync()),
    ord("H"): Format(Flush, False, lambda body: Flush()),
    ord("X"): Format(Terminate, False, lambda body: Terminate()),
    ord("F"): Format(FunctionCall, True, _function_call),
    ord("d"): Format(CopyData, True, lambda body: CopyData(body.rest())),
    ord("c"): Format(CopyDone, False, lambda body: CopyDone()),
    ord("f"): Format(CopyFail, False, lambda body: CopyFail(body.text())),
    ord("p"): Format(Password, False, lambda body: Password(body.rest())),
}


def decode_startup(body: Body) -> Message:
    """The message of a packet without a type byte.

    Raises:
        ProtocolViolation: the parameters are no pairs of strings closed by a zero byte.
    """
    code = body.int32()
    special = STARTUP_CODES.get(code)
    if special is not None:
        return special(body)
    version = code & 0xFFFFFFFF
    major, minor = version >> 16, version & 0xFFFF
    # Only packets of a known major version have the known layout.
    parameters = _parameters(body) if major == 3 else ()
    if major != 3:
        body.rest()
    return Startup(major, minor, parameters)


def _parameters(body: Body) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    while name := body.text():
        pairs.append((name, body.text()))
    return tuple(pairs)


STARTUP_CODES: dict[int, Callable[[Body], Message]] = {
    CANCEL_REQUEST_CODE: lambda body: CancelRequest(body.int32(), body.rest()),
    SSL_REQUEST_CODE: lambda body: SslRequest(),
    GSSENC_REQUEST_CODE: lambda body: GssEncRequest(),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection.

    Args:
        unauthenticated_bytes_max: longest message of a client before authentication, including the startup
            packet. PostgreSQL's bound: unauthenticated clients get little memory.
        message_bytes_max: longest query, parameter list or piece of COPY data after that.
        statements_max: the maximum number of prepared statements in a session.
    """

    unauthenticated_bytes_max: int = 10_000
    message_bytes_max: int = LARGE_BYTES_MAX
    statements_max: int = 10_000


_LENGTH = struct.Struct("!i")
# Terminate in place of a startup packet.
_LEAVES = b"X\x00\x00\x00\x04"
_HEAD = struct.Struct("!Bi")


LIMITS = Limits()


# Messages that drivers repeat with the same few bytes: names, and no values of a user.
REPEATED = frozenset({Describe, Execute, Close, Sync, Flush})
REPEATED_BYTES_MAX = 64


def _decoded(known: Format, data: bytes, encoding: Encoding) -> Message:
    body = Body(data, encoding)
    message = known.decode(body)
    body.end()
    return message


_repeated = lru_cache(1024)(_decoded)


class Receiver:
    """Divides a byte stream into messages.

    `authenticated` lifts the limit on message length: set it once the client is authenticated. `encoding` is
    the client's, from the next bytes on.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self.authenticated = False
        self.encoding = UTF8
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
        if self._buffer.startswith(_LEAVES, at):
            return Terminate(), at + len(_LEAVES)  # node-postgres leaves so while it connects.
        if have == 4 and _LEAVES.startswith(self._buffer[at:]):
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
            # After SSLRequest and similar packets the client waits for an answer. Bytes that arrive at once
            # were inserted by a third party, to be taken for a part of the secured stream (CVE-2021-23214).
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
                message = _repeated(known, data, self.encoding)
            else:
                message = _decoded(known, data, self.encoding)
        except (CharacterNotInRepertoire, UntranslatableCharacter) as error:
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

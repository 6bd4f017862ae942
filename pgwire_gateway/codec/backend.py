"""The server's messages: one frozen class for each, and the table from class to encoder.

Rows are not included: they arrive as ready DataRow bytes from engine/values/datarow.py and the partition
buffers. Source: PostgreSQL documentation, "Message Formats", "Error and Notice Message Fields".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...engine.values.client_encodings import UTF8, Encoding

_INT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")
_FIELD = struct.Struct("!IHIhiH")

# The answers to SSLRequest and GSSENCRequest: a bare byte, no message.
ACCEPTED = b"S"
REFUSED = b"N"


@dataclass(frozen=True, slots=True)
class AuthenticationOk:
    """The client is authenticated."""


@dataclass(frozen=True, slots=True)
class AuthenticationSasl:
    """The client must authenticate, by one of these mechanisms."""

    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuthenticationSaslContinue:
    """The server's message in the middle of the exchange."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AuthenticationSaslFinal:
    """The server's final message, with its own proof."""

    data: bytes


@dataclass(frozen=True, slots=True)
class NegotiateProtocolVersion:
    """The newest supported minor version of protocol 3, and the unknown `_pq_.` options."""

    minor: int
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParameterStatus:
    """The present value of a reported parameter."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class BackendKeyData:
    """The key that a CancelRequest for this session must contain."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class ReadyForQuery:
    """The server waits for a request; `status` is I (idle), T (in a transaction) or E (failed)."""

    status: str


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a RowDescription.

    Args:
        length: the number of bytes of a value of fixed size; negative for variable size.
        modifier: the type's modifier, -1 for none.
        format: 0 text, 1 binary.
        table_oid, number: pg_class.oid and pg_attribute.attnum of the column whose values it has; 0 for none.
    """

    name: str
    oid: int
    length: int
    modifier: int
    format: int
    table_oid: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class RowDescription:
    """The columns of the rows that follow, or would follow."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    """The parameters of a prepared statement."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoData:
    """The statement returns no rows."""


@dataclass(frozen=True, slots=True)
class ParseComplete:
    """The statement is prepared."""


@dataclass(frozen=True, slots=True)
class BindComplete:
    """The portal has been created."""


@dataclass(frozen=True, slots=True)
class CloseComplete:
    """The statement or portal has been closed."""


@dataclass(frozen=True, slots=True)
class PortalSuspended:
    """The row limit of Execute was reached."""


@dataclass(frozen=True, slots=True)
class EmptyQueryResponse:
    """The text contained no statement."""


@dataclass(frozen=True, slots=True)
class CopyInResponse:
    """The server waits for the rows of a COPY, with a number of columns."""

    columns: int
    binary: bool = False


@dataclass(frozen=True, slots=True)
class CopyOutResponse:
    """The rows of a COPY follow, with a number of columns."""

    columns: int
    binary: bool = False


@dataclass(frozen=True, slots=True)
class CopyOutDone:
    """All rows of a COPY have been sent."""


@dataclass(frozen=True, slots=True)
class CommandComplete:
    """A statement has ended; `tag` names it, with its number of rows."""

    tag: str


@dataclass(frozen=True, slots=True)
class Report:
    """The fields of an error or a notice.

    Args:
        severity: ERROR, FATAL, WARNING, NOTICE, ...
        position: the position in the client's text, in characters from 1.
        context: the position in loaded data: CONTEXT in psql.
        file, routine: the file and routine in PostgreSQL's source.
        schema, table, column, constraint: the object of an integrity violation.
    """

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    position: int | None = None
    context: str | None = None
    file: str | None = None
    routine: str | None = None
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    constraint: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A statement, or with severity FATAL the session, has failed."""

    report: Report


@dataclass(frozen=True, slots=True)
class NoticeResponse:
    """Information for the user."""

    report: Report


@dataclass(frozen=True, slots=True)
class NotificationResponse:
    """A notification on a channel to which the session listens."""

    pid: int
    channel: str
    payload: str


# The bytes of a string with its closing zero byte, in the client's encoding.
_Text = Callable[[str], bytes]


def _text_in(encoding: Encoding) -> _Text:
    # A zero byte ends a string on the wire, so it cannot be in one; lone surrogates are no UTF-8.
    return lambda text: encoding.spelled(text.replace("\0", "\ufffd")) + b"\0"


def _message(kind: bytes, *parts: bytes) -> bytes:
    length = 4 + sum(map(len, parts))
    return b"".join((kind, _INT32.pack(length), *parts))


def _negotiate(message: NegotiateProtocolVersion, text: _Text) -> bytes:
    # Documented as the minor version alone; PostgreSQL sends, and libpq reads, the whole number.
    version, count = _INT32.pack(3 << 16 | message.minor), _INT32.pack(len(message.options))
    return _message(b"v", version, count, *map(text, message.options))


def _row_description(message: RowDescription, text: _Text) -> bytes:
    parts = [_INT16.pack(len(message.fields))]
    for field in message.fields:
        parts.append(text(field.name))
        origin = field.table_oid, field.number
        parts.append(_FIELD.pack(*origin, field.oid, field.length, field.modifier, field.format))
    return _message(b"T", *parts)


def _copy_begins(kind: bytes, message: CopyInResponse | CopyOutResponse) -> bytes:
    # The overall format is a byte, that of each column, which is the same, an Int16.
    form = int(message.binary)
    columns = _INT16.pack(message.columns) + _INT16.pack(form) * message.columns
    return _message(kind, bytes([form]), columns)


def _parameter_description(message: ParameterDescription) -> bytes:
    return _message(b"t", _INT16.pack(len(message.oids)), *map(_UINT32.pack, message.oids))


def _report(report: Report, text: _Text) -> list[bytes]:
    fields = [
        ("S", report.severity),
        ("V", report.severity),
        ("C", report.sqlstate),
        ("M", report.message),
        ("D", report.detail),
        ("H", report.hint),
        ("P", None if report.position is None else str(report.position)),
        ("W", report.context),
        ("s", report.schema),
        ("t", report.table),
        ("c", report.column),
        ("n", report.constraint),
        ("F", report.file),
        ("R", report.routine),
    ]
    return [code.encode() + text(value) for code, value in fields if value is not None] + [b"\0"]


_READY = {status: _message(b"Z", status.encode()) for status in "ITE"}

_ENCODERS: dict[type, Callable[[Any, _Text], bytes]] = {
    AuthenticationSasl: lambda m, text: _message(b"R", _INT32.pack(10), *map(text, m.mechanisms), b"\0"),
    AuthenticationSaslContinue: lambda m, text: _message(b"R", _INT32.pack(11), m.data),
    AuthenticationSaslFinal: lambda m, text: _message(b"R", _INT32.pack(12), m.data),
    NegotiateProtocolVersion: _negotiate,
    ParameterStatus: lambda m, text: _message(b"S", text(m.name), text(m.value)),
    BackendKeyData: lambda m, text: _message(b"K", _INT32.pack(m.pid), m.secret),
    ReadyForQuery: lambda m, text: _READY[m.status],
    RowDescription: _row_description,
    ParameterDescription: lambda m, text: _parameter_description(m),
    CopyInResponse: lambda m, text: _copy_begins(b"G", m),
    CopyOutResponse: lambda m, text: _copy_begins(b"H", m),
    NotificationResponse: lambda m, text: _message(
        b"A", _INT32.pack(m.pid), text(m.channel), text(m.payload)
    ),
    CommandComplete: lambda m, text: _message(b"C", text(m.tag)),
    ErrorResponse: lambda m, text: _message(b"E", *_report(m.report, text)),
    NoticeResponse: lambda m, text: _message(b"N", *_report(m.report, text)),
}

_FIXED: dict[type, bytes] = {
    AuthenticationOk: _message(b"R", _INT32.pack(0)),
    ParseComplete: _message(b"1"),
    BindComplete: _message(b"2"),
    CloseComplete: _message(b"3"),
    PortalSuspended: _message(b"s"),
    NoData: _message(b"n"),
    CopyOutDone: _message(b"c"),
    EmptyQueryResponse: _message(b"I"),
}

Message = (
    AuthenticationOk
    | AuthenticationSasl
    | AuthenticationSaslContinue
    | AuthenticationSaslFinal
    | NegotiateProtocolVersion
    | ParameterStatus
    | BackendKeyData
    | ReadyForQuery
    | RowDescription
    | ParameterDescription
    | NoData
    | ParseComplete
    | BindComplete
    | CloseComplete
    | PortalSuspended
    | EmptyQueryResponse
    | CopyInResponse
    | CopyOutResponse
    | CopyOutDone
    | NotificationResponse
    | CommandComplete
    | ErrorResponse
    | NoticeResponse
)


_UTF8 = _text_in(UTF8)


def encode(message: Message, encoding: Encoding = UTF8) -> bytes:
    """The bytes of `message`, type byte and length word included.

    Args:
        encoding: the client's; a character that it lacks is a question mark.
    """
    fixed = _FIXED.get(type(message))
    if fixed is not None:
        return fixed
    return _ENCODERS[type(message)](message, _UTF8 if encoding is UTF8 else _text_in(encoding))

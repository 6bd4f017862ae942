"""COPY FROM STDIN and TO STDOUT: what lies between CopyInResponse or CopyOutResponse and CopyDone.

Rows in are taken as they come; the channel's bound makes a client wait that sends faster than they
are written. Rows out go batch by batch, as fast as the client takes them. While rows come in, Sync and
Flush mean nothing (libpq sends a Sync with Execute); after an error what is still sent of the COPY is
passed over. Source: PostgreSQL documentation, "COPY Operations".
"""

from __future__ import annotations

from ...engine.errors import ProtocolViolation, QueryCanceled
from ...engine.values.arrow_form import END, schema_bytes
from ...engine.values.copy_rows import BINARY_HEADER, BINARY_TRAILER, header_line, message, messages
from ..codec.backend import CopyDone as AllSent
from ..codec.backend import CopyInResponse, CopyOutResponse
from ..codec.frontend import CopyData, CopyDone, CopyFail, Flush, Sync, Undecodable
from .channel import Channel
from .encoding import FIRST_ROWS, encoded, rows_wanted
from .needs import CopyIn, CopyOut, Result, Session
from .steps import Need, Steps


def take_rows(channel: Channel, session: Session, copy: CopyIn) -> Steps[Result]:
    """Take the rows of a COPY FROM STDIN; its answer, once they are all there.

    Raises:
        QueryCanceled: 57014, the client gives it up, or it is cancelled.
        ProtocolViolation: 08P01, a message that does not belong here.
        DucktailError: a row that is wrong.
    """
    channel.send(CopyInResponse(copy.column_count, copy.binary))
    while True:
        message = yield from channel.next(Need.COPYING)
        match message:
            case CopyData(data):
                yield Need.WORKER
                yield from session.copy_data(copy, data)
            case CopyDone():
                yield Need.WORKER
                result: Result = yield from session.copy_done(copy)
                return result
            case CopyFail(reason):
                raise QueryCanceled(f"COPY from stdin failed: {reason}")
            case Sync() | Flush():
                pass
            case Undecodable():
                raise message.error
            case _:
                name = type(message).__name__
                raise ProtocolViolation(f"unexpected message during COPY from stdin: {name}")


def send_rows(channel: Channel, result: Result, copy: CopyOut, timezone: str) -> Steps[None]:
    """Send the rows of a COPY ... TO STDOUT, one message each (in Arrow as it comes), up to CopyDone.

    Raises:
        DucktailError: the query failed under way, or was cancelled; what was sent does not count.
    """
    columns = result.columns or ()
    types = [column.type for column in columns]
    channel.send(CopyOutResponse(len(columns), copy.form.binary or copy.form.arrow))
    if copy.form.arrow:
        channel.send_bytes(messages(schema_bytes(result.arrow_schema, [column.name for column in columns])))
    if copy.header:
        channel.send_bytes(header_line([column.name for column in columns], copy.form))
    # PostgreSQL sends the header of a binary file together with what comes first.
    head = BINARY_HEADER if copy.form.binary else b""
    while True:
        wanted = rows_wanted(result, None)
        if result.elsewhere:
            yield from result.arrive(wanted)
        yield Need.WORKER
        batch = result.fetch(wanted)
        if batch is None:
            if result.settles:
                yield from result.settled()
            break
        channel.check_cancelled()
        for rows in encoded(batch, lambda part: part.copy_rows(types, copy.form, timezone)):
            if head and batch.row_count:
                head, rows = b"", _behind(head, rows)
            channel.send_bytes(rows)
        yield from channel.relieve(at_once=result.row_count == FIRST_ROWS)
    if copy.form.binary:
        channel.send_bytes(message(head + BINARY_TRAILER))
    if copy.form.arrow:
        channel.send_bytes(message(END))
    channel.send(AllSent())


def _behind(head: bytes, rows: bytes | memoryview) -> bytes:
    """The rows, the first of them behind the header in one message with it."""
    view = memoryview(rows)
    first = 1 + int.from_bytes(view[1:5], "big")
    return b"".join((message(head + bytes(view[5:first])), view[first:]))

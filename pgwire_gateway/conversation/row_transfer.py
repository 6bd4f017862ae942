"""Rows to and from the client: encoding in parallel, COPY FROM STDIN and COPY TO STDOUT.

Rows are encoded on as many threads as there are cores. Arrow and numpy do nearly all of it and release
Python's lock: two threads encode the two halves of a batch in half the time. More threads than cores only
compete for the lock, and each keeps memory of its own.

The rows of a COPY FROM STDIN are taken as they arrive; the channel's bound slows down a client that sends
faster than they are written. The rows of a COPY TO STDOUT are sent batch by batch, as fast as the client
takes them. During COPY FROM STDIN, Sync and Flush have no effect (libpq sends a Sync with Execute); after an
error the rest of the COPY is skipped. Source: PostgreSQL documentation, "COPY Operations".
"""

from __future__ import annotations

import os
from codecs import IncrementalDecoder
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...engine.errors import ProtocolViolation, QueryCanceled
from ...engine.values.arrow_types import END, schema_bytes
from ...engine.values.copy_rows import BINARY_HEADER, BINARY_TRAILER, header_line, message, messages
from ...sql.results.results import CopyIn, CopyOut, Result, ResultBatch
from ..codec.backend import CopyInResponse, CopyOutDone, CopyOutResponse
from ..codec.frontend import CopyData, CopyDone, CopyFail, Flush, Sync, Undecodable
from .channel import Channel, Need, Steps
from .interfaces import Session

CORES = len(os.sched_getaffinity(0))
# The number of rows sent before the rest of their batch, for clients that need the first row soon.
FIRST_ROWS = 1024

Encode = Callable[[ResultBatch], bytes | memoryview]

_encoders = ThreadPoolExecutor(CORES, thread_name_prefix="ducktail-encoder")


def rows_wanted(result: Result, limit: int | None) -> int | None:
    """The number of rows to fetch next, None for no limit: the first batch is small."""
    if result.row_count or (limit is not None and limit <= FIRST_ROWS):
        return limit
    return FIRST_ROWS


def encoded(batch: ResultBatch, encode: Encode) -> Sequence[bytes | memoryview]:
    """The bytes of a batch's rows, in consecutive pieces.

    The call waits for the encoders if the batch has parts for them; batches of inline results have none.

    Raises:
        DucktailError: `encode` fails.
    """
    parts = batch.parts()
    if not parts:
        return (encode(batch),)
    return [piece.result() for piece in [_encoders.submit(encode, part) for part in parts]]


def take_rows(channel: Channel, session: Session, copy: CopyIn) -> Steps[Result]:
    """Take the rows of a COPY FROM STDIN, and return its answer.

    Raises:
        QueryCanceled: the client cancels it.
        ProtocolViolation: a message is out of place.
        DucktailError: a row is malformed.
    """
    channel.encoding.check_copy(binary=copy.binary)
    channel.send(CopyInResponse(copy.column_count, copy.binary))
    pieces = channel.encoding.pieces() if channel.encoding.codec else None
    while True:
        message = yield from channel.next(Need.COPYING)
        match message:
            case CopyData(data):
                yield Need.WORKER
                yield from session.copy_data(
                    copy, data if pieces is None else _in_utf8(channel, pieces, data)
                )
            case CopyDone():
                yield Need.WORKER
                if pieces is not None:
                    _in_utf8(channel, pieces, b"", final=True)
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


def _in_utf8(channel: Channel, pieces: IncrementalDecoder, data: bytes, *, final: bool = False) -> bytes:
    """A piece of the client's rows, in UTF8."""
    try:
        return pieces.decode(data, final).encode()
    except UnicodeDecodeError as error:
        channel.encoding.decoded(error.object[error.start : error.end] or data)
        raise


def send_rows(
    channel: Channel, result: Result, types: Sequence[str], copy: CopyOut, timezone: str
) -> Steps[None]:
    """Send the rows of a COPY ... TO STDOUT, one message each (Arrow in its own pieces), up to CopyDone.

    Args:
        types: those of the columns, in the session's styles.

    Raises:
        DucktailError: the query failed in the middle, or was cancelled; the sent rows do not count.
    """
    columns = result.columns or ()
    encoding = channel.encoding
    encoding.check_copy(binary=copy.form.binary or copy.form.arrow)

    def copied(part: ResultBatch) -> bytes | memoryview:
        return encoding.copied(part.copy_rows(types, copy.form, timezone))

    channel.send(CopyOutResponse(len(columns), copy.form.binary or copy.form.arrow))
    if copy.form.arrow:
        channel.send_bytes(messages(schema_bytes(result.arrow_schema, [column.name for column in columns])))
    if copy.header:
        channel.send_bytes(encoding.copied(header_line([column.name for column in columns], copy.form)))
    # PostgreSQL sends the header of a binary file in one message with the first row.
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
        if not result.committed:
            channel.check_cancelled()
        for rows in encoded(batch, copied):
            if head and batch.row_count:
                head, rows = b"", _behind(head, rows)
            channel.send_bytes(rows)
        yield from channel.relieve(at_once=result.row_count == FIRST_ROWS, committed=result.committed)
    if copy.form.binary:
        channel.send_bytes(message(head + BINARY_TRAILER))
    if copy.form.arrow:
        channel.send_bytes(message(END))
    channel.send(CopyOutDone())


def _behind(head: bytes, rows: bytes | memoryview) -> bytes:
    """The rows, with the header in the first one's message."""
    view = memoryview(rows)
    first = 1 + int.from_bytes(view[1:5], "big")
    return b"".join((message(head + bytes(view[5:first])), view[first:]))

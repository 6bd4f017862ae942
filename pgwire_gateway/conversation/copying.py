"""COPY FROM STDIN: what a client sends between CopyInResponse and CopyDone.

The rows are taken as they come; the channel's bound makes a client wait that sends faster than they
are written. Sync and Flush mean nothing in between (libpq sends a Sync with Execute). After an error
what is still sent of the COPY is passed over. Source: PostgreSQL documentation, "COPY Operations".
"""

from __future__ import annotations

from ...engine.errors import ProtocolViolation, QueryCanceled
from ..codec.backend import CopyInResponse
from ..codec.frontend import CopyData, CopyDone, CopyFail, Flush, Sync, Undecodable
from .channel import Channel
from .needs import CopyIn, Result, Session
from .steps import Need, Steps


def take_rows(channel: Channel, session: Session, copy: CopyIn) -> Steps[Result]:
    """Take the rows of a COPY FROM STDIN; its answer, once they are all there.

    Raises:
        QueryCanceled: 57014, the client gives it up, or it is cancelled.
        ProtocolViolation: 08P01, a message that does not belong here.
        DucktailError: a row that is wrong.
    """
    channel.send(CopyInResponse(copy.column_count))
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

"""LISTEN, UNLISTEN and NOTIFY. Source: docs/sql.md, "Notifications"."""

from __future__ import annotations

from ...engine.errors import InvalidParameterValue, NotSupported
from ...engine.notifications import Notification
from ...engine.waiting import Waiting
from ..cluster import listing
from ..language import statements as st
from ..results.results import Result
from ..session_state.context import Context
from .runners import runs

# PostgreSQL's bounds of a NOTIFY.
CHANNEL_BYTES_MAX = 63
PAYLOAD_BYTES_MAX = 7_999


def _wants_wire(session: Context, what: str) -> None:
    if not session.wire:
        raise NotSupported(
            f"{what} wants a connection over the wire",
            hint="In process a read with WAIT, or a loop of reads, tells of new events.",
        )


def _channel(name: str) -> str:
    if len(name.encode()) > CHANNEL_BYTES_MAX:
        raise InvalidParameterValue("channel name too long")
    return name


@runs(st.Listen, in_cluster=listing.listen)
def listen(session: Context, node: st.Listen, parameters: tuple[object, ...]) -> Waiting[Result]:
    """LISTEN channel; a stream's name means the stream.

    Raises:
        InvalidParameterValue: the name is too long.
        NotSupported: the session has no wire, or the stream is another node's.
    """
    _wants_wire(session, "LISTEN")
    channel = _channel(node.channel)
    stream = session.names.find_stream((channel,))
    number = None if stream is None else stream.stream_id
    session.listening.do(
        lambda hub, listener: hub.listen(listener, channel, number), later=session.block.begun
    )
    return Result.command(st.tag_of(node))
    yield


@runs(st.Unlisten)
def unlisten(session: Context, node: st.Unlisten, parameters: tuple[object, ...]) -> Waiting[Result]:
    """UNLISTEN { channel | * }"""
    session.listening.do(
        lambda hub, listener: hub.unlisten(listener, node.channel), later=session.block.begun
    )
    return Result.command(st.tag_of(node))
    yield


@runs(st.Notify)
def notify(session: Context, node: st.Notify, parameters: tuple[object, ...]) -> Waiting[Result]:
    """NOTIFY channel [, 'payload']; the database itself notifies of streams.

    Raises:
        InvalidParameterValue: the channel's name or the payload is too long.
    """
    if len(node.payload.encode()) > PAYLOAD_BYTES_MAX:
        raise InvalidParameterValue("payload string too long")
    note = Notification(session.id, _channel(node.channel), node.payload)
    session.listening.say(note, later=session.block.begun)
    return Result.command(st.tag_of(node))
    yield

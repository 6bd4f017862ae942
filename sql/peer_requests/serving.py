"""The owner's end of forwarding: `FORWARD $1`, the one statement that nodes send each other.

Its parameter is a request (`peers/requests.py`); its answer consists of frames (`peers/peer_frames.py`), one
in each row. The statement in a request is checked, run and answered as if the session's user had sent it, but
the session never asks a further node. An answer that exceeds one reply or the requested number of rows stays
open as a portal for later requests, so the read position covers the rows sent to the entry node's client, and
no others.
Source: docs/design/cluster.md, "Forwarding".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial

from ...engine.errors import (
    ActiveTransaction,
    NotSupported,
    ProtocolViolation,
    UndefinedObject,
    UndefinedTable,
)
from ...engine.values.value_types import pg_type
from ...engine.waiting import Waiting
from ..cluster.shares import own_share
from ..language.statements.publishing import published_positions
from ..peers.peer_frames import FrameBatch, Head, Tail, batch_frame, facts_frame
from ..peers.requests import CLOSE, FAILED, FETCH, LACKS, UNDER_WAY, Request, split
from ..results.results import ReadySource, Result, ResultColumn
from ..session_state.context import Context
from ..session_state.portals import Portal
from ..session_state.statement import ParsedStatement
from ..statements.set_and_show import carried, set_variable
from ..text.classified import Kind
from . import partition_moves
from .learning import look_again

# The errors of a name that is not here.
MISSING = (UndefinedObject, UndefinedTable)
FRAME = (ResultColumn("frame", "BLOB"),)
# A reply takes no more rows once it has so many bytes: much against a round trip, little to be held twice.
REPLY_BYTES = 1024 * 1024
# Requests that are kept as they were read: of the sessions that are at it now, and short.
KEPT_MAX, KEPT_BYTES_MAX = 64, 4096
# What may be sent to another node; the rest is about the session itself.
_SENT = frozenset({Kind.READ, Kind.DML, Kind.OURS, Kind.EXPLAIN})

Operation = Callable[[Context, Request], Waiting[list[bytes]]]


def run_forward(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """FORWARD $1: execute one request of another node."""
    if session.block.begun:
        raise ActiveTransaction("FORWARD cannot run inside a transaction block")
    request = _request(parameters)
    operation = OPERATIONS.get(request.op)
    if operation is None:
        raise ProtocolViolation(f'unknown operation of another node: "{request.op}"')
    # At most one hop: what is not here is not looked for elsewhere.
    session.links = None
    for name, value in request.settings.items():
        set_variable(session, name, (carried(session, name, value),), local=False)
    if request.settings:
        # The statement is measured by the time-out that came with it, not by that of the one before.
        session.guard.limit(session.variables.milliseconds("statement_timeout"))
    frames = yield from operation(session, request)
    return Result(FRAME, ReadySource([FrameBatch(frames)]), lambda rows: f"FORWARD {rows}")


def _statement_of(session: Context, request: Request) -> Waiting[ParsedStatement]:
    inner = yield from session.parse(request.text, oids_of(request))
    if inner.classified.error is not None:
        raise inner.classified.error
    if inner.classified.kind not in _SENT:
        raise NotSupported(f"{inner.classified.verb} cannot be sent to another node")
    return inner.as_arrow() if request.arrow else inner


def _execute(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Run a statement, and return the first part of its answer."""
    with session.positions.answering(request.portal, pending=request.pending):
        try:
            return (yield from _executed(session, request))
        except MISSING as error:
            missing = error
        part, _ = split(request.text)
        if part is None:
            raise missing
        # This node may lack what the others have.
        work = partial(_executed, session, request)
        return (yield from look_again(session, missing, MISSING, work, makes=part.makes))


def _executed(session: Context, request: Request) -> Waiting[list[bytes]]:
    inner = yield from _statement_of(session, request)
    values = tuple(request.values)
    share = nullcontext() if inner.part is None else own_share(session, inner.part)
    with published_positions(inner.published), share:
        result = yield from session.execute_within(inner, values)
    if result.copy_in is not None:
        result.close()
        raise NotSupported("COPY FROM STDIN cannot be sent to another node")
    head = Head(result.columns, result.arrow_schema).encode()
    if result.columns is None:
        return [head, Tail(result.tag).encode()]
    name = _portal(request)
    portal = Portal(inner, values, hold=True, ours=False)
    session.portals.remove(name)
    session.portals.add(name, portal)
    portal.result = result
    session.kept(result)
    if not result.inline and request.rows != 0 and inner.inline:
        # It may be the event loop that runs this: the rows are not in memory, or many, and are fetched.
        return [head, Tail(None, more=True).encode()]
    return [head, *_taken(session, name, portal, request.rows)]


def _describe(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Describe a statement before it runs."""
    inner = yield from _statement_of(session, request)
    description = inner.description
    return [Head(description.columns, parameters=description.parameter_types).encode()]


def ready_request(parameters: Sequence[object]) -> Request | None:
    """The request, if it only runs a statement: without new settings, and not with rows as Arrow."""
    request = _request(parameters)
    return request if request.op == "execute" and not (request.settings or request.arrow) else None


def oids_of(request: Request) -> tuple[int, ...]:
    """The PostgreSQL types of a statement's parameters, 0 for an open one."""
    return tuple(pg_type(type_).oid if type_ else 0 for type_ in request.types)


def spared(session: Context, parameters: Sequence[object]) -> Result | None:
    """The open answer from which a FORWARD takes more rows."""
    request = _request(parameters)
    portal = session.portals.get(_portal(request)) if request.op == FETCH else None
    return None if portal is None else portal.result


def is_under_way(parameters: Sequence[object]) -> bool:
    """True if a FORWARD continues an answer that was begun before."""
    return _request(parameters).op in UNDER_WAY


def _request(parameters: Sequence[object]) -> Request:
    data = parameters[0] if parameters else None
    if not isinstance(data, bytes):
        raise ProtocolViolation("malformed request of another node")
    return _kept_request(data) if len(data) <= KEPT_BYTES_MAX else Request.decode(data)


# It is looked at where the statement is planned, where it is run, and before both.
_kept_request = lru_cache(KEPT_MAX)(Request.decode)


def _portal(request: Request) -> str:
    return f"forwarded {request.portal}"


def _taken(session: Context, name: str, portal: Portal, rows: int | None) -> list[bytes]:
    """The next rows, and whether there are more."""
    assert portal.result is not None, "an answer is there before it is taken"
    frames: list[bytes] = []
    size, left, placed = 0, rows, portal.statement.part is not None
    while (left is None or left > 0) and size < REPLY_BYTES:
        batch = portal.take(left)
        if batch is None:
            tag = portal.result.tag
            session.portals.remove(name)
            return [*frames, Tail(tag).encode()]
        frames.append(batch_frame(batch, placed=placed))
        size += len(frames[-1])
        left = None if left is None else left - batch.row_count
    if left == 0:
        # Its client has been answered with these, and may come back for more.
        portal.result.suspend()
    return [*frames, Tail(None, more=True).encode()]


def _fetch(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Return more rows of an answer."""
    name = _portal(request)
    with session.positions.answering(request.portal, pending=request.pending):
        return _taken(session, name, session.portals.find(name), request.rows)
    yield


def _counts(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Turn pending rows into the read position, because the entry node's client has received its answer."""
    through, reason = request.more.get("through"), request.more.get("reason")
    # Where its answer may go on, more of it may count later.
    for read in session.positions.pending_reads(request.portal, last=through is None):
        stream = session.database.catalog.stream_by_id(read.reader.key[0])
        if reason is not None or stream is None:
            session.positions.void(read.reader, reason or "the stream has been dropped")
        elif through is None:
            session.positions.set(read.reader, read.lsns, read.again)
        else:
            cut = read.through(through, session.database.buffers.of(stream))
            session.positions.set(cut.reader, cut.lsns, cut.again)
    return []
    yield


def _close(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Discard the rest of an answer."""
    session.portals.remove(_portal(request))
    return []
    yield


def _failed(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Void an answer that the entry node's client does not receive, for example after a cancel."""
    portal = session.portals.get(_portal(request))
    if portal is not None and portal.result is not None:
        portal.result.fail()
    session.portals.remove(_portal(request))
    session.positions.unanswered(request.portal)
    return []
    yield


def _wipe(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Reset the session for the entry node's next session."""
    session.positions.clear()
    session.holds.close()
    session.portals.clear()
    return []
    yield


def _void(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Void the reads of the entry node's transaction, because it was rolled back."""
    session.positions.clear()
    return []
    yield


def _lacks(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Note that a topic was created while this node was unavailable; it then asks for the definition."""
    session.database.cluster.lacks_more()
    return []
    yield


def _where(session: Context, request: Request) -> Waiting[list[bytes]]:
    """The streams of a list that are on this node. Topics are omitted: every node has them, or learns
    them."""
    assert session.peer is not None, "only nodes ask this"
    streams = session.database.catalog.streams
    keys = [tuple(key) for key in request.more["keys"]]
    here = [key for key in keys if (stream := streams.get(key)) is not None and not stream.topic]
    lacks = session.database.cluster.owes(session.peer.node)
    return [facts_frame({"streams": [key for key in here if session.access.sees(key)], "lacks": lacks})]
    yield


OPERATIONS: dict[str, Operation] = {
    "execute": _execute,
    "describe": _describe,
    "counts": _counts,
    FETCH: _fetch,
    CLOSE: _close,
    FAILED: _failed,
    "hold": partition_moves.answer,
    LACKS: _lacks,
    "void": _void,
    "where": _where,
    "wipe": _wipe,
}

"""A stream on a table wants a name that no other node has: CREATE STREAM, ALTER STREAM ... RENAME TO.

There is no lock over nodes. Who makes a name says so on its own node (`Membership.making`) before it asks
the others, and until the name is there: so of two that make one name at the same moment at least one is told
of the other, and never do both make it. That one of them does, and not none, their order sees to: the node
of the later name gives up at once, the other waits for that.
Source: docs/design/cluster.md, "Lists".
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ...engine.catalog.streams import key_of
from ...engine.errors import DucktailError, DuplicateObject, LockNotAvailable, UndefinedObject
from ...engine.quoting import fold
from ...engine.waiting import Wait, Waiting
from ..context import Context
from ..language import statements as st
from ..language.render import render_statement
from ..peers.part import Part
from ..results.results import Result
from .listing import warn
from .shares import ask_all, other_nodes

Plain = Callable[..., Waiting[Result]]
# How often a node is asked again that makes the same name.
AGAIN_S = 0.05


def create_stream(
    session: Context, made: st.CreateStream, parameters: tuple[object, ...], plain: Plain
) -> Waiting[Result]:
    """CREATE STREAM."""
    if session.block.begun or session.names.find_stream(made.name.parts) is not None:
        return (yield from plain(session, made, parameters))
    place = session.names.new_name(made.name.parts)
    return (yield from named_anew(session, *place, lambda: plain(session, made, parameters)))


def rename_stream(
    session: Context, asked: st.RenameStream, parameters: tuple[object, ...], plain: Plain
) -> Waiting[Result]:
    """ALTER STREAM ... RENAME TO."""
    stream = session.names.find_stream(asked.name.parts)
    if session.block.begun or stream is None or fold(stream.name) == fold(asked.new):
        return (yield from plain(session, asked, parameters))
    return (
        yield from named_anew(session, stream.schema, asked.new, lambda: plain(session, asked, parameters))
    )


def named_anew(
    session: Context, schema: str, name: str, work: Callable[[], Waiting[Result]]
) -> Waiting[Result]:
    """Do what gives a stream this name, if no other node has it.

    Raises:
        DuplicateObject: 42710, one has it, or makes it. LockNotAvailable: 55P03, one makes it for longer than
            `lock_timeout`.
    """
    cluster, clock = session.database.cluster, session.database.clock
    ends_s = clock.monotonic_s() + session.block.lock_timeout_ms / 1000
    with cluster.making(key_of(schema, name)):
        while busy := (yield from _others_making(session, schema, name)):
            if min(busy) < cluster.placement.local.name:
                raise DuplicateObject(f'stream "{name}" is being made on node "{min(busy)}"', hint=_HINT)
            if clock.monotonic_s() > ends_s:
                raise LockNotAvailable(f'stream "{name}" is being made on node "{min(busy)}"')
            yield Wait(Future(), AGAIN_S)
        return (yield from work())


_HINT = "A stream is known to all nodes by its name."


def _others_making(session: Context, schema: str, name: str) -> Waiting[list[str]]:
    """The nodes that make this name as well; no other one has it.

    Raises:
        DuplicateObject: 42710. A node that cannot be asked is a WARNING: tables here are not to wait for it.
    """
    part = Part(session.database.cluster.placement.epoch, makes=True)
    sql = part.text(render_statement(st.DescribeStream(st.Name((schema, name)))))
    outcomes = yield from ask_all(session, dict.fromkeys(other_nodes(session), (sql, ())), again=True)
    found = []
    for node, outcome in outcomes.items():
        if isinstance(outcome, UndefinedObject):
            continue
        if isinstance(outcome, LockNotAvailable):
            found.append(node)
        elif isinstance(outcome, DucktailError):
            message = f'cannot tell whether node "{node}" has a stream "{name}" as well: {outcome}'
            warn(session, message, outcome, "A name that two nodes have is 55000 when a third one uses it.")
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            raise DuplicateObject(
                f'stream "{name}" already exists', detail=f'It is on node "{node}".', hint=_HINT
            )
    return found


def check_not_making(session: Context, name: st.Name) -> None:
    """Of a name that another node is to make: this one is not at it.

    Raises:
        LockNotAvailable: 55P03.
    """
    if session.part is None or not session.part.makes or len(name.parts) != 2:
        return
    cluster = session.database.cluster
    if session.names.find_stream(name.parts) is None and cluster.is_making(key_of(*name.parts)):
        raise LockNotAvailable(f'stream "{name}" is being made on node "{cluster.placement.local.name}"')

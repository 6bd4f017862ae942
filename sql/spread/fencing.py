"""An owner's share of what members do: it lets nobody in under an older epoch than it has seen.

Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from ...engine.catalog.streams import Group, Stream
from ...engine.groups.member import MemberHold
from ...engine.waiting import Wait, Waiting
from ..context import Context
from ..peers.part import Part
from .shares import check_owned

# How soon it is looked again whether commits under older epochs are written: one takes about a millisecond.
PAUSE_S = 0.002


def take_over(session: Context, part: Part, stream: Stream, group: Group, member: str) -> Waiting[None]:
    """A member comes with partitions that are assigned to it: later epochs are made to stay.

    Raises:
        SerializationFailure: 40001, one of its epochs is not the latest; or a partition is not here any more.
    """
    database, group_id = session.database, group.group_id
    kept = database.member_epochs.of(group_id)
    later = database.members.take_over(group, stream.partitions, member, session.user, part.assigned, kept)
    if later:
        # From now on nobody is let in with an older one: those that were before are few and soon over.
        while database.members.is_pinned(group_id, later):
            never: Future[None] = Future()
            yield Wait(never, PAUSE_S)
        database.member_epochs.keep(group_id, later)
    # Of a partition that was given meanwhile the epoch of before may have been told.
    check_owned(session, stream, list(part.assigned))


def begin_read(
    session: Context, part: Part, stream: Stream, group: Group, member: str
) -> Waiting[MemberHold]:
    """A member reads the partitions that are assigned to it.

    Raises:
        SerializationFailure: 40001.
    """
    yield from take_over(session, part, stream, group, member)
    return session.database.members.begin_assigned(group, stream.partitions, member, part.assigned)


def begin_unassigned(
    session: Context, part: Part, stream: Stream, group: Group, partitions: Iterable[int]
) -> None:
    """Somebody who is no member commits.

    Raises:
        SerializationFailure: 40001, there have been members since the home was asked.
    """
    kept = session.database.member_epochs.of(group.group_id)
    session.database.members.begin_unassigned(group, stream.partitions, partitions, part.nobody, kept)

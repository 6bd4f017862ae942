"""Statements about members: LEAVE CONSUMER GROUP, SHOW MEMBERS and READ POSITION.

Of a topic that is spread over nodes its home knows the members (cluster/membership.py).
Source: docs/groups.md.
"""

from __future__ import annotations

from ...engine.catalog.streams import Group, Stream
from ...engine.quoting import literal
from ...engine.waiting import Waiting
from ..cluster import membership, topic_statements
from ..language import statements as st
from ..language.position_text import format_positions
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, text
from .runners import answer, runs
from .show import show

POSITION_COLUMNS = (("position", "JSON"),)


@runs(st.LeaveGroup, at_owners=topic_statements.leave_group)
def leave_group(session: Context, asked: st.LeaveGroup, parameters: Values) -> Waiting[Result]:
    """LEAVE CONSUMER GROUP: what the member has goes to others, in a transaction at its COMMIT."""
    stream, group = _named(session, asked.stream, asked.group, parameters)
    name, members = text(asked.member, parameters), session.database.members
    there = members.has(group, stream.partitions, name)
    if there and session.block.begun:
        session.block.opened().leaving.append((group.group_id, name))
    elif there:
        members.remove(group.group_id, name)
    if not there:
        session.notices.add(f'{literal(name)} is not a member of consumer group "{group.name}", skipping')
    return Result.command(st.tag_of(asked))
    yield


@runs(st.ShowReadPosition, POSITION_COLUMNS, at_owners=topic_statements.show_read_position)
def show_read_position(session: Context, asked: st.ShowReadPosition, parameters: Values) -> Waiting[Result]:
    """SHOW READ POSITION: what COMMIT OFFSETS would commit, as the map that its AT takes."""
    stream, group = _named(session, asked.stream, asked.group, parameters)
    seeks = session.database.offsets.seeks(group.group_id)
    member = None if asked.member is None else text(asked.member, parameters)
    if member is None:
        key = (stream.stream_id, group.group_id)
        lsns = session.positions.get(key, group.name, seeks).lsns
    else:
        lsns = session.database.members.position(group, stream.partitions, member, seeks).lsns
    return answer(asked, [[format_positions(lsns)]])
    yield


@runs(st.ShowMembers, at_owners=topic_statements.show_members)
def show_members(session: Context, asked: st.ShowMembers, parameters: Values) -> Waiting[Result]:
    """SHOW MEMBERS; as the home's share, what another node asks of it."""
    if session.part is not None and session.part.asked is not None:
        return membership.answer(session, *_named(session, asked.stream, asked.group, parameters))
    return (yield from show(session, asked, parameters))


def _named(
    session: Context, name: st.Name, group_name: st.Text, parameters: Values, *, use: bool = True
) -> tuple[Stream, Group]:
    stream = session.names.stream(name.parts, name.position)
    transaction = session.block.transaction if use else None
    return stream, session.access.group(stream, text(group_name, parameters), transaction, use=use)

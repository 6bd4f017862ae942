"""Statements about members: LEAVE CONSUMER GROUP, SHOW MEMBERS, OFFSETS and READ POSITION.

Of a topic that is spread over nodes its home knows the members (cluster/membership.py).
Source: docs/groups.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.catalog.streams import Group, Stream
from ...engine.errors import NotSupported
from ...engine.quoting import literal
from ...engine.waiting import Waiting
from ..cluster import membership
from ..cluster.membership import Home
from ..cluster.shares import Row, rows_of, spread
from ..language import statements as st
from ..language.position_text import format_positions
from ..results.results import Result, ResultColumn
from ..session_state.context import Context
from ..session_state.run_text import Values, text, text_rows
from .show import POSITION_COLUMNS, few_rows, show, shown_columns


def leave_group(session: Context, asked: st.LeaveGroup, parameters: Values) -> Waiting[Result]:
    """LEAVE CONSUMER GROUP: what the member has goes to others, in a transaction at its COMMIT."""
    stream, group = _named(session, asked.stream, asked.group, parameters)
    name, members = text(asked.member, parameters), session.database.members
    home = _home(session, stream, group)
    if home is not None:
        if session.block.begun:
            raise NotSupported(
                f'LEAVE CONSUMER GROUP of topic "{stream.name}" in a transaction block is not supported: '
                "other nodes have some of its partitions",
                hint="Run it by itself, in autocommit.",
            )
        there = yield from home.leave(name)
    else:
        there = members.has(group, stream.partitions, name)
        if there and session.block.begun:
            session.block.opened().leaving.append((group.group_id, name))
        elif there:
            members.remove(group.group_id, name)
    if not there:
        session.notices.add(f'{literal(name)} is not a member of consumer group "{group.name}", skipping')
    return Result.command("LEAVE CONSUMER GROUP")


def show_read_position(session: Context, asked: st.ShowReadPosition, parameters: Values) -> Waiting[Result]:
    """SHOW READ POSITION: what COMMIT OFFSETS would commit, as the map that its AT takes."""
    stream, group = _named(session, asked.stream, asked.group, parameters)
    seeks = session.database.offsets.seeks(group.group_id)
    member = None if asked.member is None else text(asked.member, parameters)
    home = _home(session, stream, group)
    if member is None:
        key = (stream.stream_id, group.group_id)
        lsns = session.positions.get(key, group.name, seeks).lsns
    elif home is None:
        lsns = session.database.members.position(group, stream.partitions, member, seeks).lsns
    else:
        lsns = dict((yield from home.position(member)))
    return text_rows(POSITION_COLUMNS, [[format_positions(lsns)]], "SHOW READ POSITION")


def show_offsets(session: Context, asked: st.ShowOffsets, parameters: Values) -> Waiting[Result]:
    """SHOW OFFSETS: on a spread topic each owner's rows, and the members that the home knows."""
    shown = yield from show(session, asked, parameters)
    stream, group = _named(session, asked.stream, asked.group, parameters, use=False)
    home = _home(session, stream, group)
    if home is None:
        return shown
    _, owners = yield from home.everybody()
    columns = shown.columns or ()
    place, partition = (_place(columns, name) for name in ("member", "partition"))
    rows = [(*row[:place], owners[int(str(row[partition]))], *row[place + 1 :]) for row in rows_of(shown)]
    return few_rows(columns, rows, "SHOW OFFSETS")


def show_members(session: Context, asked: st.ShowMembers, parameters: Values) -> Waiting[Result]:
    """SHOW MEMBERS; as the home's share, what another node asks of it."""
    if session.part is not None and session.part.asked is not None:
        return membership.answer(session, *_named(session, asked.stream, asked.group, parameters))
    stream, group = _named(session, asked.stream, asked.group, parameters, use=False)
    home = _home(session, stream, group)
    if home is None:
        return (yield from show(session, asked, parameters))
    members, _ = yield from home.everybody()
    offsets = yield from show(session, st.ShowOffsets(asked.stream, group.name), ())
    named = offsets.columns or ()
    partition, lag = _place(named, "partition"), _place(named, "lag_events")
    lags = {int(str(row[partition])): int(str(row[lag])) for row in rows_of(offsets)}
    rows: list[Row] = [
        (
            member.name,
            member.epoch,
            list(member.partitions),
            member.state,
            sum(lags[partition] for partition in member.partitions),
            # Microseconds since 1970; 0 is never.
            *(us or None for us in (member.joined_us, member.heard_us, member.last_read_us)),
            member.last_commit_us or None,
            member.user,
        )
        for member in members
    ]
    columns = shown_columns(asked, session)
    assert columns is not None
    return few_rows(columns, rows, "SHOW MEMBERS")


def _named(
    session: Context, name: st.Name, group_name: st.Text, parameters: Values, *, use: bool = True
) -> tuple[Stream, Group]:
    stream = session.names.stream(name.parts, name.position)
    transaction = session.block.transaction if use else None
    return stream, session.access.group(stream, text(group_name, parameters), transaction, use=use)


def _home(session: Context, stream: Stream, group: Group) -> Home | None:
    """The home of a topic that is spread; None where this node has all."""
    owners = spread(session, stream)
    return None if owners is None else Home(session, stream, group, owners)


def _place(columns: Sequence[ResultColumn], name: str) -> int:
    return [column.name for column in columns].index(name)

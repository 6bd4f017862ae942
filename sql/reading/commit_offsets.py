"""COMMIT OFFSET and COMMIT OFFSETS, outside a transaction and inside one.

Outside a transaction the committer writes the commit together with others, and the answer waits until it is
durable. Inside, the commit is kept with the transaction and written by its COMMIT, as a compare-and-set: the
committed LSN must still be where the transaction (or the earlier read) found it.
Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.parking import covered_meanwhile, parked_of
from ...engine.definitions.start_positions import check_lsns
from ...engine.definitions.whole_copies import copy_of
from ...engine.errors import WrongState
from ...engine.groups.member import Claim, CommitRight
from ...engine.groups.parked import RELEASED, released_through
from ...engine.groups.read_positions import ReadPosition
from ...engine.offset_commits import commit_covering, commit_within, submit
from ...engine.transactions.transaction import CommitStep
from ...engine.waiting import Waiting
from ..cluster import membership
from ..cluster.shares import check_owned, may_be_placed, own_partitions
from ..language import statements as st
from ..language.position_text import parse_positions
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text


def commit_offset(session: Context, asked: st.CommitOffset, parameters: Values) -> Waiting[Result]:
    """COMMIT OFFSET PARTITION p AT lsn."""
    partition = number(asked.partition, parameters, "PARTITION")
    lsn = number(asked.lsn, parameters, "AT")
    yield from _commit(session, asked, parameters, {partition: lsn})
    return Result.command(st.tag_of(asked))


def commit_offsets(session: Context, asked: st.CommitOffsets, parameters: Values) -> Waiting[Result]:
    """COMMIT OFFSETS [AT map]."""
    at = None if asked.at is None else parse_positions(text(asked.at, parameters))
    yield from _commit(session, asked, parameters, at)
    return Result.command(st.tag_of(asked))


def is_inline(session: Context, node: object) -> bool:
    """True if a statement is a commit of offsets that only waits for the committer.

    A commit that covers released events which its session has read runs as a transaction instead.
    """
    if not isinstance(node, st.CommitOffset | st.CommitOffsets) or session.database.parked.released:
        return False
    if session.block.begun or len(node.stream.parts) != 1:
        return False
    # A share of a topic may have to be written with its member's epochs.
    return not may_be_placed(session, node.stream)


def _commit(
    session: Context,
    asked: st.CommitOffset | st.CommitOffsets,
    parameters: Values,
    lsns: dict[int, int] | None,
) -> Waiting[None]:
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    group = session.access.group(stream, text(asked.group, parameters), session.block.transaction)
    member = None if asked.member is None else text(asked.member, parameters)
    part = session.part
    if part is not None and member is not None:
        yield from membership.take_over(session, part, stream, group, member)
    if lsns is not None:
        check_owned(session, stream, list(lsns))
        # Events committed before this statement must be readable, so that their LSNs are accepted.
        yield from session.database.commits.wait_readable()
        copy = copy_of(session.database, session.block.transaction, group)
        check_lsns(session.database, stream, lsns, copy)
    seeks = session.database.offsets.seeks(group.group_id)
    commit = _begin(session, stream, group, member, lsns, seeks)
    key = stream.stream_id, group.group_id
    try:
        covered = _covered(session, group, member, commit)
        if session.block.begun:
            transaction = session.block.opened()
            yield from commit_within(
                session.database, transaction, group, commit, covered, session.block.lock_timeout_ms
            )
            if member is None:
                transaction.at(CommitStep.WAKE, partial(session.positions.committed, key, commit.lsns))
            session.notices.add(
                "the offsets are committed when the transaction is", hint="COMMIT makes them durable."
            )
            return
        if lsns is None:
            check_lsns(session.database, stream, commit.lsns, copy_of(session.database, None, group))
        # The writer refuses an LSN that goes back, under the group's lock.
        read_after = seeks if lsns is None else None
        if covered:
            yield from commit_covering(
                session.database,
                stream,
                group,
                commit,
                covered,
                session.block.unit,
                session.block.lock_timeout_ms,
                read_after,
            )
        else:
            # A wire session may run on an event loop: one hop to another thread, whichever thread writes.
            yield from submit(session.database, group, commit, session.user, read_after, hop=session.wire)
        if member is None:
            session.positions.committed(key, commit.lsns)
    finally:
        if commit.hold is not None:
            session.database.members.end(commit.hold)


def _covered(session: Context, group: Group, member: str | None, commit: CommitRight) -> frozenset[int]:
    """The released events that a commit covers.

    In a transaction the commit fails where another session has covered some of the events that were read.
    """
    database, transaction = session.database, session.block.transaction
    parked = parked_of(database, transaction, group)
    if commit.again is None:
        given = session.positions.released((group.stream_id, group.group_id), member)
        if session.part is not None and session.part.given is not None:
            given = _up_to(given, session.part.given)
        return released_through(parked, commit.lsns, given)
    if not commit.again:
        return frozenset()
    covered = commit.again & {event.lsn for event in parked.of(RELEASED)}
    if session.block.begun:
        # Events covered by an earlier commit of this transaction are still released for other sessions.
        others = database.parked.get(group.group_id)
        if others is None or not commit.again <= {event.lsn for event in others.of(RELEASED)}:
            raise covered_meanwhile(group)
    return covered


def _begin(
    session: Context,
    stream: Stream,
    group: Group,
    member: str | None,
    lsns: dict[int, int] | None,
    seeks: int,
) -> CommitRight:
    """The LSNs of a commit and the right to it.

    It is refused without a read position, without MEMBER on a group that has members, and for a member that
    does not own all of its partitions.
    """
    members, part = session.database.members, session.part
    if member is not None:
        # A share has the epochs of its member; partitions that a transaction has read keep its own epochs.
        since = {} if part is None else dict(part.epochs or {})
        mine = None
        if session.block.begun:
            since |= session.block.opened().epochs.get((group.group_id, member), {})
            if lsns is None:
                key = (stream.stream_id, group.group_id)
                mine = session.positions.of_transaction(key, member, group.name, seeks)
        if part is not None and lsns is None and mine is None:
            mine = _through(session, group, members.position(group, stream.partitions, member, seeks))
        if mine is not None:
            lsns = {p: lsn for p, lsn in mine.lsns.items() if part is None or p in since}
        commit = members.begin_commit(group, stream.partitions, member, session.user, lsns, seeks, since)
        return commit if mine is None else replace(commit, began=mine.began, again=mine.again)
    if part is None:
        members.check_none(group, stream.partitions)
    position = None
    if lsns is None:
        own = session.positions.get((stream.stream_id, group.group_id), group.name, seeks)
        position = _through(session, group, own).left()
        lsns = position.lsns
    nobody = 0
    if part is not None:
        nobody = part.nobody
        if position is None or part.through is not None:
            # The asking node takes all of them for committed; some may have gone while others were awaited.
            check_owned(session, stream, list(lsns))
        else:
            lsns = {p: lsn for p, lsn in lsns.items() if p in own_partitions(session, stream, [p])}
        membership.begin_unassigned(session, part, stream, group, lsns)
    claims = dict.fromkeys(lsns, Claim(None, nobody))
    if position is None:
        return CommitRight(lsns, {}, claims)
    return CommitRight(lsns, position.began, claims, again=position.again)


def _through(session: Context, group: Group, position: ReadPosition) -> ReadPosition:
    """The part of a read position here that the client of another node has been given.

    It fails where this node does not know all of that part any more.
    """
    if session.part is None or session.part.through is None:
        return position
    through = session.part.through
    standing = session.database.offsets.positions(group.group_id)
    # Later commits of other readers remain.
    found = {p: max(standing[p].lsn, lsn) for p, lsn in through.items()}
    # A smaller LSN is from another read: one from before the partition moved away, or one that came late.
    known = {p: max(standing[p].lsn, lsn) for p, lsn in position.lsns.items() if p in found}
    if any(known.get(p, -1) < lsn for p, lsn in found.items()):
        raise WrongState("what was read of the group on this node is not known any more")
    given = {p: replace(position.given[p], lsn=lsn) for p, lsn in found.items()}
    return replace(position, given=given, released=_up_to(position.released, through))


def _up_to(released: Mapping[int, frozenset[int]], through: Mapping[int, int]) -> dict[int, frozenset[int]]:
    """The released events read here that the client of another node was given."""
    return {p: frozenset(lsn for lsn in lsns if lsn <= through.get(p, 0)) for p, lsns in released.items()}

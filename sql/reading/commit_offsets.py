"""COMMIT OFFSET and COMMIT OFFSETS, outside a transaction and inside one.

Outside a transaction the committer writes the commit together with others, and the answer waits until it is
durable. Inside, the commit is kept with the transaction and written by its COMMIT, as a compare-and-set: the
committed LSN must still be where the transaction (or the earlier read) found it.

A read with COMMIT runs the commit before anything else of it. It is the session's own: a session that has
read nothing as the member commits nothing, because the events of the member's position may have been read by
a program that ended before it processed them.
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
from ...engine.errors import InvalidParameterValue, NotSupported, SerializationFailure, WrongState
from ...engine.groups.member import Claim, CommitRight
from ...engine.groups.parked import RELEASED, released_through
from ...engine.groups.read_positions import ReadPosition
from ...engine.offset_commits import commit_covering, commit_within, submit
from ...engine.transactions.transaction import CommitStep
from ...engine.waiting import Waiting
from ..cluster import membership
from ..cluster.shares import check_owned, may_be_placed, own_partitions
from ..language import statements as st
from ..language.parse import Query
from ..language.position_text import parse_positions
from ..read_shape.shape import ReadKind
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from .scans import bound_shapes, stream_of


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
    return isinstance(node, st.CommitOffset | st.CommitOffsets) and _only_waits(session, node.stream)


def is_inline_before(session: Context, query: Query) -> bool:
    """True if the commit before a read only waits for the committer, or there is none."""
    scan = query.commits
    return scan is None or _only_waits(session, scan.stream)


def _only_waits(session: Context, stream: st.Name) -> bool:
    if session.database.parked.released or session.block.begun or len(stream.parts) != 1:
        return False
    # A share of a topic may have to be written with its member's epochs.
    return not may_be_placed(session, stream)


def commits_before(statement: ParsedStatement) -> bool:
    """True if a statement first commits the read position of its session."""
    node = statement.node
    return isinstance(node, Query) and node.commits is not None and statement.classified.kind is Kind.READ


def commit_before(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[None]:
    """COMMIT in a stream scan: COMMIT OFFSETS, if the session has read events that it has not committed.

    Raises:
        NotSupported: the query leaves no read position, so that nothing of it could be committed.
        DucktailError: the error of COMMIT OFFSETS.
    """
    query = statement.node
    assert isinstance(query, Query)
    (found,) = [one for one in bound_shapes(session, statement, query, parameters) if one.scan.commits]
    scan = found.scan
    if scan.away is not None or found.kind is ReadKind.UNCHANGED:
        return  # The stream's own node commits; or the client asks for the columns only.
    if found.kind is ReadKind.NONE:
        raise NotSupported(
            "COMMIT is not supported in a query that leaves no read position",
            detail=f"{found.reason[0].upper()}{found.reason[1:]}.",
            hint="Read the events, and compute from them in a query around it or in the client.",
            position=scan.start + 1,
        )
    assert scan.group is not None
    stream = stream_of(session, found)
    group = session.access.group(stream, text(scan.group, parameters), session.block.transaction)
    member = None if scan.member is None else text(scan.member, parameters)
    if session.positions.uncommitted((stream.stream_id, group.group_id), member):
        asked = st.CommitOffsets(scan.stream, scan.group, None, scan.member, own_only=True)
        try:
            yield from session.handle(asked, parameters)
        except (InvalidParameterValue, SerializationFailure, WrongState) as error:
            told = "Nothing was read: a read without COMMIT gives what is not committed."
            error.detail = told if error.detail is None else f"{error.detail} {told}"
            raise


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
    own_only = isinstance(asked, st.CommitOffsets) and asked.own_only
    commit = _begin(session, stream, group, member, lsns, seeks, own_only=own_only)
    key = stream.stream_id, group.group_id
    try:
        covered = _covered(session, group, member, commit)
        if session.block.begun:
            transaction = session.block.opened()
            yield from commit_within(
                session.database, transaction, group, commit, covered, session.block.lock_timeout_ms
            )
            transaction.at(CommitStep.WAKE, partial(session.positions.committed, key, member, commit.lsns))
            session.notices.add(
                "the offsets are committed when the transaction is", hint="COMMIT makes them durable."
            )
            return
        if lsns is None:
            check_lsns(session.database, stream, commit.lsns, copy_of(session.database, None, group))
        # The writer refuses an LSN that goes back, under the group's lock.
        read_after = seeks if lsns is None else getattr(asked, "seeks", None)
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
        session.positions.committed(key, member, commit.lsns)
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
    *,
    own_only: bool,
) -> CommitRight:
    """The LSNs of a commit and the right to it.

    It is refused without a read position, without MEMBER on a group that has members, and for a member that
    does not own all of its partitions.

    Args:
        own_only: True to commit only the reads of the session itself as the member.
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
        read = session.positions.uncommitted((stream.stream_id, group.group_id), member) if own_only else None
        commit = members.begin_commit(
            group, stream.partitions, member, session.user, lsns, seeks, since, own=read
        )
        if own_only and mine is None:
            # Later commits of the member's other sessions remain.
            standing = session.database.offsets.positions(group.group_id)
            commit = replace(commit, lsns={p: max(standing[p].lsn, lsn) for p, lsn in commit.lsns.items()})
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

"""COMMIT OFFSET and COMMIT OFFSETS, outside a transaction and inside one.

Outside, the committer writes it with whatever else has come, and the answer waits until it is
durable. Inside, it is kept with the transaction and written by its COMMIT, as a compare-and-set: the
committed LSN must still be where the transaction (or the earlier read) found it.
Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.parking import covered_meanwhile, parked_of
from ...engine.definitions.start_positions import check_lsns, check_partitions
from ...engine.definitions.whole_copies import copy_of
from ...engine.errors import DucktailError, SerializationFailure, WrongState
from ...engine.groups.assigned import epoch_told
from ...engine.groups.member import Claim, CommitRight
from ...engine.groups.parked import RELEASED, released_through
from ...engine.groups.read_positions import ReadPosition
from ...engine.offset_commits import commit_covering, commit_within, submit
from ...engine.transactions.transaction import CommitStep
from ...engine.waiting import Waiting
from ..cluster import membership
from ..cluster import offset_shares as spread_offsets
from ..cluster.membership import Home
from ..cluster.shares import check_owned, listed, own_partitions, own_share, spread
from ..language import statements as st
from ..language.position_text import parse_positions
from ..peers.part import Part
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text


def commit_offset(session: Context, asked: st.CommitOffset, parameters: Values) -> Waiting[Result]:
    """COMMIT OFFSET PARTITION p AT lsn."""
    partition = number(asked.partition, parameters, "PARTITION")
    lsn = number(asked.lsn, parameters, "AT")
    yield from _commit(session, asked, parameters, {partition: lsn})
    return Result.command("COMMIT OFFSET")


def commit_offsets(session: Context, asked: st.CommitOffsets, parameters: Values) -> Waiting[Result]:
    """COMMIT OFFSETS [AT map]."""
    at = None if asked.at is None else parse_positions(text(asked.at, parameters))
    yield from _commit(session, asked, parameters, at)
    return Result.command("COMMIT OFFSETS")


def is_inline(session: Context, node: object) -> bool:
    """Whether a statement of ours is a commit that only waits for the committer.

    One that covers released events is a transaction: which of them it covers its session was given before.
    """
    if not isinstance(node, st.CommitOffset | st.CommitOffsets) or session.database.parked.released:
        return False
    if session.database.cluster.placement.epoch:
        stream = session.names.find_stream(node.stream.parts)
        if stream is None or stream.topic:
            return False  # Its own share of a topic may have to be written with the epochs of a member.
    return not session.block.begun and len(node.stream.parts) == 1


def _commit(
    session: Context,
    asked: st.CommitOffset | st.CommitOffsets,
    parameters: Values,
    lsns: dict[int, int] | None,
) -> Waiting[None]:
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    group = session.access.group(stream, text(asked.group, parameters), session.block.transaction)
    member = None if asked.member is None else text(asked.member, parameters)
    owners = spread(session, stream)
    if owners is None:
        yield from _commit_own(session, stream, group, member, lsns)
        return
    home = Home(session, stream, group, owners)
    if lsns is not None:
        check_partitions(stream, lsns)
    if session.block.begun:
        part = yield from _part_of_block(session, home, member, lsns)
        with own_share(session, part):
            yield from _commit_own(session, stream, group, member, lsns)
    elif member is None:
        yield from _commit_unassigned(session, home, lsns)
    else:
        yield from _commit_as_member(session, home, member, lsns)


def _commit_own(
    session: Context, stream: Stream, group: Group, member: str | None, lsns: dict[int, int] | None
) -> Waiting[None]:
    """A commit of this node's own partitions."""
    part = session.part
    if part is not None and member is not None:
        yield from membership.take_over(session, part, stream, group, member)
    if lsns is not None:
        check_owned(session, stream, list(lsns))
        # What was committed before this statement is readable, so it may be committed.
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
        # Whether it goes back is told by who writes it, under the group's lock.
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
            # A session of the wire may be on an event loop, and one hop is one whoever writes.
            yield from submit(session.database, group, commit, session.user, read_after, hop=session.wire)
        if member is None:
            session.positions.committed(key, commit.lsns)
    finally:
        if commit.hold is not None:
            session.database.members.end(commit.hold)


# On a topic that is spread over nodes.


def _own_position(session: Context, home: Home) -> Mapping[int, int]:
    """The session's read position, of all owners' partitions, since its last commit.

    Raises:
        WrongState: 55000, nothing has been read.
    """
    seeks = session.database.offsets.seeks(home.group.group_id)
    key = (home.stream.stream_id, home.group.group_id)
    return session.positions.get(key, home.group.name, seeks).left().lsns


def _part_of_block(
    session: Context, home: Home, member: str | None, lsns: dict[int, int] | None
) -> Waiting[Part]:
    """By what right a transaction commits this node's own partitions.

    Raises:
        NotSupported: 0A000, others are committed as well. DucktailError: as of the commit itself.
    """
    group_id, position = home.group.group_id, lsns
    if member is None:
        found = _own_position(session, home) if position is None else position
        spread_offsets.check_own(session, home, [p for p, lsn in found.items() if lsn or lsns is not None])
        asks = bool(session.database.member_epochs.of(group_id))
        return Part(home.owners.epoch, nobody=(yield from home.nobody()) if asks else 0)
    if position is None:
        key = (home.stream.stream_id, group_id)
        seeks = session.database.offsets.seeks(group_id)
        mine = session.positions.of_transaction(key, member, home.group.name, seeks)
        if mine is not None:
            position = {partition: lsn for partition, lsn in mine.lsns.items() if lsn}
    claimed = yield from home.commit(member, position)
    # The home holds nothing for it: what the transaction has read it holds by that.
    yield from home.committed(claimed, {})
    spread_offsets.check_own(session, home, list(claimed.lsns))
    epochs = {str(p): epoch for p, epoch in claimed.epochs.items()}
    through = {str(p): lsn for p, lsn in claimed.lsns.items()} if position is None else None
    return Part(home.owners.epoch, epochs=epochs, through=through)


def _commit_unassigned(session: Context, home: Home, lsns: dict[int, int] | None) -> Waiting[None]:
    """A commit without MEMBER; where an owner knows of members, the home is asked whether there are any."""
    position = _own_position(session, home) if lsns is None else lsns
    key = (home.stream.stream_id, home.group.group_id)
    given = None if lsns is None else session.positions.lsns(key)
    nobody = 0
    committed: list[int] = []
    while True:
        left = {partition: lsn for partition, lsn in position.items() if partition not in committed}
        facts = Part(home.owners.epoch, nobody=nobody)
        shares = spread_offsets.commit_shares(home, left, facts, given=given)
        try:
            yield from spread_offsets.run_shares(
                session, home.stream, home.owners, shares, "committed", committed
            )
            session.positions.committed(key, position)
            return
        except SerializationFailure as refused:
            later = epoch_told(refused)
            if nobody and (later is None or later < nobody):
                raise
            try:
                if nobody:
                    # An owner knows of a later epoch than the home has given out.
                    yield from home.passed(later or 0)
                nobody = yield from home.nobody()
            except DucktailError as error:
                if committed:
                    error.detail = f"Partitions {listed(sorted(committed))} are committed."
                raise


def _commit_as_member(
    session: Context, home: Home, member: str, lsns: dict[int, int] | None
) -> Waiting[None]:
    """A member's commit: the home lets it pass, and is told what of it is durable."""
    claimed = yield from home.commit(member, lsns)
    committed: list[int] = []
    try:
        facts = Part(home.owners.epoch, epochs={str(p): epoch for p, epoch in claimed.epochs.items()})
        given = None if lsns is None else claimed.given
        shares = spread_offsets.commit_shares(home, claimed.lsns, facts, given=given, member=member)
        yield from spread_offsets.run_shares(
            session, home.stream, home.owners, shares, "committed", committed
        )
    except BaseException:
        home.tell(
            {"do": "committed", "hold": claimed.number, "lsns": {p: claimed.lsns[p] for p in committed}}
        )
        raise
    yield from home.committed(claimed, claimed.lsns)


def _covered(session: Context, group: Group, member: str | None, commit: CommitRight) -> frozenset[int]:
    """The released events that a commit covers.

    Raises:
        SerializationFailure: 40001, in a transaction: somebody else has covered some that were read.
    """
    database, transaction = session.database, session.block.transaction
    parked = parked_of(database, transaction, group)
    if commit.again is None:
        given = session.positions.released((group.stream_id, group.group_id), member)
        if session.part is not None and session.part.given is not None:
            given = _up_to(given, {int(p): lsn for p, lsn in session.part.given.items()})
        return released_through(parked, commit.lsns, given)
    if not commit.again:
        return frozenset()
    covered = commit.again & {event.lsn for event in parked.of(RELEASED)}
    if session.block.begun:
        # What this transaction has covered by an earlier commit is still released for the others.
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
    """What is to be committed, and by what right.

    Raises:
        WrongState: 55000, nothing has been read; or the group has members, and this is none of theirs.
        SerializationFailure: 40001, by a member that is none, or does not have all of it.
    """
    members, part = session.database.members, session.part
    if member is not None:
        # Of a share, the epochs that its member has come with; what a transaction has read counts by its own.
        since = {} if part is None else part.assigned
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
            # Who asks takes all of them for committed, and some may have gone while others were waited for.
            check_owned(session, stream, list(lsns))
        else:
            lsns = {p: lsn for p, lsn in lsns.items() if p in own_partitions(session, stream, [p])}
        membership.begin_unassigned(session, part, stream, group, lsns)
    claims = dict.fromkeys(lsns, Claim(None, nobody))
    if position is None:
        return CommitRight(lsns, {}, claims)
    return CommitRight(lsns, position.began, claims, again=position.again)


def _through(session: Context, group: Group, position: ReadPosition) -> ReadPosition:
    """What of a read position here the client of another node has been given.

    Raises:
        WrongState: 55000, some of it is not known here any more.
    """
    if session.part is None or session.part.through is None:
        return position
    through = {int(partition): lsn for partition, lsn in session.part.through.items()}
    standing = session.database.offsets.positions(group.group_id)
    # What another reader has committed since stands.
    found = {p: max(standing[p].lsn, lsn) for p, lsn in through.items()}
    # Less is of another read: one from before the partition was elsewhere, or one that came late.
    known = {p: max(standing[p].lsn, lsn) for p, lsn in position.lsns.items() if p in found}
    if any(known.get(p, -1) < lsn for p, lsn in found.items()):
        raise WrongState("what was read of the group on this node is not known any more")
    given = {p: replace(position.given[p], lsn=lsn) for p, lsn in found.items()}
    return replace(position, given=given, released=_up_to(position.released, through))


def _up_to(released: Mapping[int, frozenset[int]], through: Mapping[int, int]) -> dict[int, frozenset[int]]:
    """Of the released events that were read here, those that the client of another node was given."""
    return {p: frozenset(lsn for lsn in lsns if lsn <= through.get(p, 0)) for p, lsns in released.items()}

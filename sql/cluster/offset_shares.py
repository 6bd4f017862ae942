"""Changes of a group's offsets in a topic that other nodes have partitions of: each owner's own.

A commit is acknowledged once every owner has acknowledged its share. One of the read position is held, at
each owner, against what this session has read there: a SEEK in between voids it.
Source: docs/design/cluster.md, "Shares".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...engine.catalog.streams import Stream
from ...engine.definitions.start_positions import check_partitions
from ...engine.errors import DucktailError, NotSupported, SerializationFailure
from ...engine.groups.assigned import epoch_told
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.position_text import format_positions, parse_positions
from ..peers.owners import Owners
from ..peers.part import Part
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text
from .gathering import by_owner
from .membership import Home
from .shares import Answer, Share, ask_nodes, first_failure, is_unknown, listed, own_share


def name_of(topic: Stream) -> st.Name:
    """The topic's name as every node finds it."""
    return st.Name((topic.schema, topic.name))


def run_shares(
    session: Context,
    topic: Stream,
    owners: Owners,
    shares: Mapping[str, Share],
    done: str,
    standing: list[int] | None = None,
) -> Waiting[dict[str, Answer]]:
    """Have every owner do its share.

    Args:
        done: what its partitions are when it is done: "committed".
        standing: gets the partitions for which it is done, also where others have failed.

    Returns:
        Node -> what it has answered.

    Raises:
        DucktailError: the first owner's that has one; it names the partitions that stand.
    """
    found = yield from ask_nodes(session, shares, ended=True)
    failed = {node: e for node, e in found.items() if isinstance(e, Exception)}
    if standing is not None:
        standing += [p for node, share in shares.items() if node not in failed for p in share.partitions]
    if not failed:
        return {node: answer for node, answer in found.items() if isinstance(answer, Answer)}
    node, error = first_failure(failed)
    if not isinstance(error, DucktailError):
        raise error
    unknown = {n for n, e in failed.items() if is_unknown(e, here=n == owners.local)}
    # That is said of the one owner's share.
    own = (error.detail or "").replace("Nothing was committed.", "").strip()
    told = [own] if own else []
    for words, some in (
        (f"are {done}", [n for n in shares if n not in failed]),
        (f"are not {done}", [n for n in failed if n not in unknown]),
        (f"may be {done}, or not", [n for n in failed if n in unknown]),
    ):
        partitions = sorted(p for name in some for p in shares[name].partitions)
        if standing is not None and words == f"are {done}":
            partitions = sorted(standing)
        if partitions:
            told.append(f"Partitions {listed(partitions)} {words}.")
    raise type(error)(
        f'topic "{topic.name}", partitions {listed(shares[node].partitions)} on node "{node}": '
        f"{error.message}",
        detail=" ".join(told),
        hint=error.hint,
    ) from error


def commit_offsets(
    session: Context,
    topic: Stream,
    owners: Owners,
    asked: st.CommitOffset | st.CommitOffsets,
    parameters: Values,
) -> Waiting[Result]:
    """COMMIT OFFSET and COMMIT OFFSETS; within a transaction of this node's own partitions only."""
    lsns: dict[int, int] | None = None
    if isinstance(asked, st.CommitOffset):
        partition = number(asked.partition, parameters, "PARTITION")
        lsns = {partition: number(asked.lsn, parameters, "AT")}
    elif asked.at is not None:
        lsns = parse_positions(text(asked.at, parameters))
    group = session.access.group(topic, text(asked.group, parameters), session.block.transaction)
    member = None if asked.member is None else text(asked.member, parameters)
    home = Home(session, topic, group, owners)
    if lsns is not None:
        check_partitions(topic, lsns)
    if session.block.begun:
        facts = yield from _facts_in_block(session, home, member, lsns)
        with own_share(session, facts):
            return (yield from session.handle(asked, parameters))
    if member is None:
        yield from _commit_unassigned(session, home, lsns)
    else:
        yield from _commit_as_member(session, home, member, lsns)
    return Result.command(st.tag_of(asked))


def _own_position(session: Context, home: Home) -> Mapping[int, int]:
    """The session's read position, of all owners' partitions, since its last commit."""
    seeks = session.database.offsets.seeks(home.group.group_id)
    key = (home.stream.stream_id, home.group.group_id)
    return session.positions.get(key, home.group.name, seeks).left().lsns


def _facts_in_block(
    session: Context, home: Home, member: str | None, lsns: dict[int, int] | None
) -> Waiting[Part]:
    """By what right a transaction commits this node's own partitions."""
    group_id, position = home.group.group_id, lsns
    if member is None:
        found = _own_position(session, home) if position is None else position
        _check_own(session, home, [p for p, lsn in found.items() if lsn or lsns is not None])
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
    _check_own(session, home, list(claimed.lsns))
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
        shares = _commit_shares(home, left, facts, given=given)
        try:
            yield from run_shares(session, home.stream, home.owners, shares, "committed", committed)
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
        shares = _commit_shares(home, claimed.lsns, facts, given=given, member=member)
        yield from run_shares(session, home.stream, home.owners, shares, "committed", committed)
    except BaseException:
        home.tell(
            {"do": "committed", "hold": claimed.number, "lsns": {p: claimed.lsns[p] for p in committed}}
        )
        raise
    yield from home.committed(claimed, claimed.lsns)


def _check_own(session: Context, home: Home, partitions: Sequence[int]) -> None:
    """Refuse a transaction block's commit on other nodes."""
    own = by_owner(home.owners, sorted(partitions))
    refuse_block(session, home.stream, home.owners, own, "commit the offset")


def _commit_shares(
    home: Home,
    lsns: Mapping[int, int],
    facts: Part,
    *,
    given: Mapping[int, int] | None,
    member: str | None = None,
) -> dict[str, Share]:
    """The owners' shares of a commit.

    Args:
        facts: by what right it is one.
        given: how far who commits has been given events; None: it is that, the read position, which is
            committed.
    """
    read = given is None
    if read:
        # Nothing was given of those partitions.
        lsns = {partition: lsn for partition, lsn in lsns.items() if lsn}
    shares = {}
    for node, partitions in by_owner(home.owners, sorted(lsns)).items():
        part_lsns = {partition: lsns[partition] for partition in partitions}
        part = facts
        if facts.epochs is not None:
            epochs = {str(p): facts.epochs[str(p)] for p in partitions}
            part = replace(facts, epochs=epochs)
        at = None if read else format_positions(part_lsns)
        if given is None:
            part = replace(part, through={str(partition): lsn for partition, lsn in part_lsns.items()})
        else:
            part = replace(part, given={str(p): given[p] for p in partitions if p in given})
        statement = st.CommitOffsets(name_of(home.stream), home.group.name, at, member)
        # A new connection knows no read position: a second commit of one would be refused.
        shares[node] = Share(statement, part, partitions, again=not read, changes=True)
    return shares


def refuse_block(
    session: Context, topic: Stream, owners: Owners, own: Mapping[str, Sequence[int]], what: str
) -> None:
    """Refuse what a transaction block would do on another node.

    Raises:
        NotSupported.
    """
    remote = [node for node in own if node != owners.local]
    if remote and session.block.begun:
        raise NotSupported(
            f'a transaction block cannot {what} of partition {own[remote[0]][0]} of topic "{topic.name}", '
            f'which is of node "{remote[0]}"',
            detail="The two nodes could not commit together.",
            hint="Do it in autocommit, or in a transaction on the node that owns the partition.",
        )

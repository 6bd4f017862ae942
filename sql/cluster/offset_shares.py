"""Changes of a group's offsets in a topic that other nodes have partitions of: each owner's own.

A commit is acknowledged once every owner has acknowledged its share. One of the read position is held, at
each owner, against what this session has read there: a SEEK in between voids it.
Source: docs/design/cluster.md, "Commits".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...engine.catalog.streams import Stream
from ...engine.errors import DucktailError, NotSupported
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.position_text import format_positions
from ..peers.owners import Owners
from ..peers.part import Part
from ..session_state.context import Context
from .gathering import by_owner
from .membership import Home
from .shares import (
    Answer,
    Share,
    ask_nodes,
    first_failure,
    is_unknown,
    listed,
)


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


def check_own(session: Context, home: Home, partitions: Sequence[int]) -> None:
    """Refuse a transaction block's commit on other nodes.

    Raises:
        NotSupported: 0A000.
    """
    own = by_owner(home.owners, sorted(partitions))
    refuse_block(session, home.stream, home.owners, own, "commit the offset")


def commit_shares(
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
        NotSupported: 0A000.
    """
    remote = [node for node in own if node != owners.local]
    if remote and session.block.begun:
        raise NotSupported(
            f'a transaction block cannot {what} of partition {own[remote[0]][0]} of topic "{topic.name}", '
            f'which is of node "{remote[0]}"',
            detail="The two nodes could not commit together.",
            hint="Do it in autocommit, or in a transaction on the node that owns the partition.",
        )

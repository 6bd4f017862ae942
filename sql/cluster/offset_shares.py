"""Bookmarks of a topic that other nodes have partitions of: one map of LSNs, which every node keeps.

Each owner goes by its own partitions of it: it checks their LSNs, counts their events, and moves a group
there. The home makes a bookmark first, so that of two statements with one name one is refused; what was done
on some nodes only stands, and the error says where. Source: docs/design/cluster.md, "Bookmarks".

COMMIT OFFSETS, SEEK, PARK and RELEASE of a topic that other nodes have partitions of: each owner its own.

A commit is acknowledged once every owner has acknowledged its share. One of the read position is held, at
each owner, against what this session has read there: a SEEK in between voids it.
Source: docs/design/cluster.md, "Commits".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...engine.catalog.streams import Stream
from ...engine.definitions.start_positions import check_partitions
from ...engine.errors import DucktailError, NotSupported
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language import statements as sto
from ..language.position_text import format_positions, parse_after
from ..peers.owners import Owners
from ..peers.part import Part
from ..session_state.context import Context
from .gathering import bare_number, by_owner
from .membership import Home
from .shares import (
    Answer,
    Row,
    Share,
    all_nodes,
    ask_nodes,
    do_on_nodes,
    first_failure,
    is_unknown,
    listed,
    named,
)

HINT = "What is done stands: DROP BOOKMARK IF EXISTS takes it away wherever it is."


def refuse_in_block(session: Context, verb: str) -> None:
    """Refuse what nodes do each in a transaction of its own.

    Raises:
        NotSupported: 0A000.
    """
    if session.block.begun:
        raise NotSupported(
            f"{verb} in a transaction block is not supported on a topic of several nodes' partitions",
            detail="Each node does it in a transaction of its own.",
            hint="Run it by itself, in autocommit.",
        )


def make(
    session: Context, stream: Stream, owners: Owners, name: str, lsns: Mapping[int, int]
) -> Waiting[None]:
    """Make a bookmark on every node.

    Args:
        lsns: partition -> LSN.

    Raises:
        DucktailError: a node's; it says where it is done.
    """
    statement = sto.CreateBookmark(name, name_of(stream), at=format_positions(lsns))
    share = Share(statement, Part(owners.epoch))
    yield from do_on_nodes(session, f'bookmark "{name}"', all_nodes(session), owners.home, share, HINT)


def drop(session: Context, stream: Stream, owners: Owners, name: str) -> Waiting[bool]:
    """Drop a bookmark on every node that has it; False where none has."""
    answers = yield from asked(session, owners, sto.ShowBookmarks(name_of(stream)), all_nodes(session))
    # The third column is the name.
    nodes = [
        node for node, shown in answers.items() if any(fold(str(r[2])) == fold(name) for r in shown.rows)
    ]
    share = Share(sto.DropBookmark(name, name_of(stream)), Part(owners.epoch))
    yield from do_on_nodes(session, f'bookmark "{name}"', nodes, owners.home, share, HINT)
    return bool(nodes)


def asked(
    session: Context, owners: Owners, statement: st.Statement, nodes: Sequence[str]
) -> Waiting[dict[str, Answer]]:
    """What nodes answer to a statement.

    Raises:
        DucktailError: the first one's that fails.
    """
    share = Share(statement, Part(owners.epoch))
    outcomes = yield from ask_nodes(session, dict.fromkeys(nodes, share), ended=True)
    found: dict[str, Answer] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise named(outcome, f'node "{node}": {outcome}', getattr(outcome, "detail", None)) from outcome
        found[node] = outcome
    return found


def merged(answers: Mapping[str, Answer]) -> list[Row]:
    """One row for each bookmark, of what owners say of their own partitions."""
    names = [column.name for column in next(iter(answers.values())).columns]
    of: dict[str, list[dict[str, object]]] = {}
    for answer in answers.values():
        for row in answer.rows:
            facts = dict(zip(names, row, strict=True))
            of.setdefault(fold(str(facts["bookmark_name"])), []).append(facts)
    found: list[Row] = []
    for _, parts in sorted(of.items()):
        trimmed: dict[str, int] = {}
        for part in parts:
            trimmed |= json.loads(str(part["trimmed"])) if part["trimmed"] else {}
        facts = parts[0] | {
            "whole": len(parts) == len(answers) and all(part["whole"] for part in parts),
            "events": sum(int(str(part["events"])) for part in parts),
            "trimmed_events": sum(int(str(part["trimmed_events"])) for part in parts),
            "trimmed": json.dumps(dict(sorted(trimmed.items(), key=lambda one: int(one[0]))))
            if trimmed
            else None,
        }
        found.append(tuple(facts[name] for name in names))
    return found


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
) -> Waiting[dict[str, list[Row]]]:
    """Have every owner do its share.

    Args:
        done: what its partitions are when it is done: "committed".
        standing: gets the partitions for which it is done, also where others have failed.

    Returns:
        Node -> the rows that it has answered.

    Raises:
        DucktailError: the first owner's that has one; it names the partitions that stand.
    """
    found = yield from ask_nodes(session, shares, ended=True)
    failed = {node: e for node, e in found.items() if isinstance(e, Exception)}
    if standing is not None:
        standing += [p for node, share in shares.items() if node not in failed for p in share.partitions]
    if not failed:
        return {node: answer.rows for node, answer in found.items() if isinstance(answer, Answer)}
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


def seek_shares(
    session: Context, topic: Stream, owners: Owners, asked: st.SeekGroup, partition: int | None
) -> dict[str, Share] | None:
    """The owners' shares of a SEEK, whose values stand in it; None where this node's own is all.

    Raises:
        InvalidParameterValue: 22023, one LSN for partitions of several nodes.
        NotSupported: 0A000, in a transaction block.
    """
    partitions = list(range(topic.partitions)) if partition is None else [partition]
    to = asked.to
    after: int | dict[int, int] | None = None
    if to.kind == "after":
        assert isinstance(to.value, int | str)
        after = parse_after(to.value)
        if isinstance(after, int) and partition is None:
            raise bare_number(topic.name, "AFTER")
        if not isinstance(after, int):
            partitions = list(after)
            check_partitions(topic, partitions)
    own = by_owner(owners, sorted(partitions))
    if session.block.begun and not asked.dry_run:
        refuse_block(session, topic, owners, own, "move the position")
        if len(own) == 1:
            return None
    shares = {}
    for node, some in own.items():
        place = to
        if isinstance(after, dict):
            place = st.Place("after", format_positions({p: after[p] for p in some}))
        statement = replace(asked, stream=name_of(topic), to=place)
        shares[node] = Share(statement, Part(owners.epoch), some, again=True, changes=not asked.dry_run)
    return shares

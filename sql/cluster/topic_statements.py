"""Statements about a topic that other nodes have partitions of: each owner does its share.

A handler here is asked before the one of a single node (`pipeline/dispatch.py`); it answers None where the
statement is about this node's own partitions alone, and is done as anywhere then.

A bookmark is one map of LSNs, which every node keeps. Each owner goes by its own partitions of it: it checks
their LSNs, counts their events, and moves a group there. The home makes it first, so that of two statements
with one name one is refused. Source: docs/design/cluster.md, "Topics", "Bookmarks".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.start_positions import check_partitions
from ...engine.errors import DucktailError, InvalidParameterValue, NotSupported
from ...engine.log.events import ARROW_TYPES as EVENT_ARROW_TYPES
from ...engine.quoting import fold, literal
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.position_text import format_positions, parse_after, parse_positions
from ..peers.owners import Owners
from ..peers.part import Part
from ..results.results import Result, ResultColumn, table_result
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text, text_rows, value_of
from .gathering import away, bare_number, by_owner
from .membership import Home
from .offset_shares import name_of, refuse_block, run_shares
from .shares import Answer, Row, Share, all_nodes, ask_node, ask_nodes, do_on_nodes, named

DONE_HINT = "What is done stands: DROP BOOKMARK IF EXISTS takes it away wherever it is."
ARROW_TYPES = {**EVENT_ARROW_TYPES, "DOUBLE": pa.float64(), "INTEGER[]": pa.list_(pa.int32())}
Columns = tuple[ResultColumn, ...]


def rows_result(columns: Sequence[ResultColumn], rows: Sequence[Row], tag: str) -> Result:
    """A result of rows that came from several nodes; they are few."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(list(v), ARROW_TYPES[c.type]) for c, v in zip(columns, values, strict=True)]
    table = pa.Table.from_arrays(arrays, [column.name for column in columns])
    return table_result(columns, table, lambda _: tag)


def _place(columns: Iterable[ResultColumn], name: str) -> int:
    return [column.name for column in columns].index(name)


def _group(session: Context, topic: Stream, name: st.Text, parameters: Values, *, use: bool = True) -> Group:
    transaction = session.block.transaction if use else None
    return session.access.group(topic, text(name, parameters), transaction, use=use)


def _refuse_block(session: Context, verb: str) -> None:
    if session.block.begun:
        raise NotSupported(
            f"{verb} in a transaction block is not supported on a topic of several nodes' partitions",
            detail="Each node does it in a transaction of its own.",
            hint="Run it by itself, in autocommit.",
        )


# Groups.


def seek_group(
    session: Context, topic: Stream, owners: Owners, asked: st.SeekGroup, parameters: Values
) -> Waiting[Result | None]:
    """ALTER CONSUMER GROUP ... SEEK.

    Raises:
        InvalidParameterValue: one LSN for partitions of several nodes.
        NotSupported: in a transaction block.
    """
    name, partitions, only = text(asked.group, parameters), list(range(topic.partitions)), None
    if asked.partition is not None:
        only = number(asked.partition, parameters, "PARTITION")
        partitions = [only]
        check_partitions(topic, partitions)
    to, after = asked.to, None
    if to.value is not None:
        value = value_of(to.value, parameters)
        to = replace(to, value=value if isinstance(value, int) else str(value))
    if to.kind == "after":
        assert isinstance(to.value, int | str)
        after = parse_after(to.value)
        if isinstance(after, int) and only is None:
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
        statement = replace(asked, stream=name_of(topic), group=name, partition=only, to=place)
        shares[node] = Share(statement, Part(owners.epoch), some, again=True, changes=not asked.dry_run)
    answers = yield from run_shares(session, topic, owners, shares, "moved")
    columns = [(c.name, c.type) for c in next(iter(answers.values())).columns]
    rows = sorted(
        chain.from_iterable(answer.rows for answer in answers.values()), key=lambda row: int(str(row[0]))
    )
    return text_rows(columns, rows, st.tag_of(asked))


def park_event(
    session: Context, topic: Stream, owners: Owners, asked: st.Park, parameters: Values
) -> Waiting[Result | None]:
    """ALTER CONSUMER GROUP ... PARK."""
    reason = None if asked.reason is None else text(asked.reason, parameters)
    partition, lsn = number(asked.partition, parameters, "PARTITION"), number(asked.lsn, parameters, "AT")
    whole = replace(asked, partition=partition, lsn=lsn, reason=reason)
    return (yield from _at_owner(session, topic, owners, whole, partition, parameters))


def release_events(
    session: Context, topic: Stream, owners: Owners, asked: st.Release, parameters: Values
) -> Waiting[Result | None]:
    """ALTER CONSUMER GROUP ... RELEASE."""
    lsn = None if asked.lsn is None else number(asked.lsn, parameters, "AT")
    partition = number(asked.partition, parameters, "PARTITION")
    whole = replace(asked, partition=partition, lsn=lsn)
    return (yield from _at_owner(session, topic, owners, whole, partition, parameters))


def _at_owner(
    session: Context,
    topic: Stream,
    owners: Owners,
    asked: st.Park | st.Release,
    partition: int,
    parameters: Values,
) -> Waiting[Result | None]:
    """Have the owner of a partition do what is about it, where that is another node."""
    if partition >= topic.partitions or owners.of(partition) == owners.local:
        return None
    node = owners.of(partition)
    refuse_block(session, topic, owners, {node: [partition]}, "set aside events")
    whole = replace(asked, stream=name_of(topic), group=text(asked.group, parameters))
    # It is not sent twice: a second one would be refused because of the first.
    share = Share(whole, Part(owners.epoch), [partition], changes=True)
    yield from run_shares(session, topic, owners, {node: share}, "changed")
    return Result.command(st.tag_of(asked))


# Members.


def leave_group(
    session: Context, topic: Stream, owners: Owners, asked: st.LeaveGroup, parameters: Values
) -> Waiting[Result]:
    """LEAVE CONSUMER GROUP, which the topic's home is told."""
    group, name = _group(session, topic, asked.group, parameters), text(asked.member, parameters)
    if session.block.begun:
        raise NotSupported(
            f'LEAVE CONSUMER GROUP of topic "{topic.name}" in a transaction block is not supported: '
            "other nodes have some of its partitions",
            hint="Run it by itself, in autocommit.",
        )
    if not (yield from Home(session, topic, group, owners).leave(name)):
        session.notices.add(f'{literal(name)} is not a member of consumer group "{group.name}", skipping')
    return Result.command(st.tag_of(asked))


def show_read_position(
    session: Context, topic: Stream, owners: Owners, asked: st.ShowReadPosition, parameters: Values
) -> Waiting[Result | None]:
    """SHOW READ POSITION of a member; without one it is the session's own."""
    if asked.member is None:
        return None
    group = _group(session, topic, asked.group, parameters)
    lsns = yield from Home(session, topic, group, owners).position(text(asked.member, parameters))
    return text_rows([("position", "JSON")], [[format_positions(lsns)]], st.tag_of(asked))


def show_offsets(
    session: Context, topic: Stream, owners: Owners, asked: st.ShowOffsets, parameters: Values
) -> Waiting[Result]:
    """SHOW OFFSETS: each owner's rows, and the members that the home knows."""
    group = _group(session, topic, asked.group, parameters, use=False)
    columns, rows = yield from _by_partition(session, topic, owners, replace(asked, group=group.name))
    _, members = yield from Home(session, topic, group, owners).everybody()
    place, partition = _place(columns, "member"), _place(columns, "partition")
    found = [(*row[:place], members[int(str(row[partition]))], *row[place + 1 :]) for row in rows]
    return rows_result(columns, found, st.tag_of(asked))


def show_members(
    session: Context, topic: Stream, owners: Owners, asked: st.ShowMembers, parameters: Values
) -> Waiting[Result]:
    """SHOW MEMBERS: those that the home knows, with their owners' lags."""
    group = _group(session, topic, asked.group, parameters, use=False)
    members, _ = yield from Home(session, topic, group, owners).everybody()
    offsets = st.ShowOffsets(asked.stream, group.name)
    columns, shown = yield from _by_partition(session, topic, owners, offsets)
    partition, lag = _place(columns, "partition"), _place(columns, "lag_events")
    lags = {int(str(row[partition])): int(str(row[lag])) for row in shown}
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
    whole = replace(asked, stream=name_of(topic), group=group.name)
    here = yield from ask_node(session, owners.local, Share(whole, Part(owners.epoch)))
    return rows_result(here.columns, rows, st.tag_of(asked))


# What owners show.


def show_by_partition(
    session: Context, topic: Stream, owners: Owners, asked: st.Statement, parameters: Values
) -> Waiting[Result]:
    """A SHOW with a row for each partition."""
    if (name := getattr(asked, "group", None)) is not None:
        group = _group(session, topic, name, parameters, use=False)
        asked = replace(asked, group=group.name)  # type: ignore[call-arg]
    return rows_result(*(yield from _by_partition(session, topic, owners, asked)), st.tag_of(asked))


def _by_partition(
    session: Context, topic: Stream, owners: Owners, asked: st.Statement
) -> Waiting[tuple[Columns, list[Row]]]:
    """Collect the answers of the owners of a topic's partitions, in the order of partitions."""
    whole = replace(asked, stream=name_of(topic))  # type: ignore[call-arg]
    answers = yield from _shown(session, topic, owners, whole)
    columns = next(iter(answers.values())).columns
    place = _place(columns, "partition")
    rows = [
        row
        for node, answer in answers.items()
        for row in answer.rows
        if row[place] in owners.partitions[node]
    ]
    return columns, sorted(rows, key=lambda row: int(str(row[place])))


def _shown(
    session: Context, topic: Stream, owners: Owners, asked: st.Statement
) -> Waiting[dict[str, Answer]]:
    """Node -> what it shows, of all that own partitions of a topic."""
    share = Share(asked, Part(owners.epoch), again=True)
    outcomes = yield from ask_nodes(session, dict.fromkeys(owners.partitions, share))
    found: dict[str, Answer] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, DucktailError) and node != owners.local:
            raise away(topic.name, node, owners.partitions[node], outcome) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        found[node] = outcome
    return found


def show_checkpoints(
    session: Context, topic: Stream, owners: Owners, asked: st.ShowCheckpoints, parameters: Values
) -> Waiting[Result]:
    """SHOW CHECKPOINTS ON a topic, of what its owners show.

    A group's position is in each partition what its owner says, and as old as the latest of its commits.
    """
    answers = yield from _shown(session, topic, owners, replace(asked, stream=name_of(topic)))
    columns = next(iter(answers.values())).columns
    consumer, group, position, age = (
        _place(columns, name) for name in ("consumer_name", "group_name", "position", "age_seconds")
    )
    rows: list[Row] = []
    groups: dict[object, list[tuple[str, Row]]] = {}
    for node, answer in answers.items():
        for row in answer.rows:
            if row[consumer] is None:
                groups.setdefault(row[group], []).append((node, row))
            else:
                rows.append(row)
    for _, told in sorted(groups.items(), key=lambda item: str(item[0])):
        lsns: dict[int, int] = {}
        for node, row in told:
            lsns |= {
                int(p): lsn for p, lsn in json.loads(str(row[position])).items() if owners.of(int(p)) == node
            }
        whole = list(told[0][1])
        whole[position] = format_positions(dict(sorted(lsns.items())))
        whole[age] = min((float(str(row[age])) for _, row in told if row[age] is not None), default=None)
        rows.append(tuple(whole))
    return rows_result(columns, rows, st.tag_of(asked))


# Bookmarks.


def create_bookmark(
    session: Context, topic: Stream, owners: Owners, made: st.CreateBookmark, parameters: Values
) -> Waiting[Result]:
    """CREATE BOOKMARK, on every node.

    Raises:
        DucktailError: a node's; it says where it is done.
    """
    at = None if made.at is None else parse_positions(text(made.at, parameters))
    _refuse_block(session, "CREATE BOOKMARK")
    lsns = yield from _lsns(session, topic, owners, made, at, parameters)
    statement = st.CreateBookmark(made.name, name_of(topic), at=format_positions(lsns))
    yield from _on_nodes(session, owners, made.name, all_nodes(session), statement)
    return Result.command(st.tag_of(made))


def _lsns(
    session: Context,
    topic: Stream,
    owners: Owners,
    made: st.CreateBookmark,
    at: dict[int, int] | None,
    parameters: Values,
) -> Waiting[dict[int, int]]:
    """The LSNs of a bookmark on partitions of several nodes."""
    name = name_of(topic)
    if made.group is not None:
        group = session.access.group(topic, text(made.group, parameters), None)
        offsets = st.ShowOffsets(name, group.name)
        return (yield from _column(session, topic, owners, offsets, "committed_lsn"))
    ends = yield from _column(session, topic, owners, st.ShowPartitions(name), "last_lsn")
    if at is None:
        return ends
    # Before anything is made: what one owner would refuse is then not there on the others.
    for partition, lsn in at.items():
        if partition < topic.partitions:
            end_lsn = max(ends[p] for p in owners.partitions[owners.of(partition)])
            if lsn > end_lsn:
                raise InvalidParameterValue(
                    f'LSN {lsn} of partition {partition} is past the end of topic "{topic.name}" on node '
                    f'"{owners.of(partition)}", {end_lsn}'
                )
    return at


def _column(
    session: Context,
    topic: Stream,
    owners: Owners,
    asked: st.ShowPartitions | st.ShowOffsets,
    name: str,
) -> Waiting[dict[int, int]]:
    """Partition -> value of a column."""
    columns, rows = yield from _by_partition(session, topic, owners, asked)
    partition, place = _place(columns, "partition"), _place(columns, name)
    return {int(str(row[partition])): int(str(row[place] or 0)) for row in rows}


def drop_bookmark(
    session: Context, topic: Stream, owners: Owners, dropped: st.DropBookmark, parameters: Values
) -> Waiting[Result | None]:
    """DROP BOOKMARK, on every node that has it; where none has, what this node says of that is the answer."""
    _refuse_block(session, "DROP BOOKMARK")
    answers = yield from _bookmarks(session, topic, owners, all_nodes(session))
    nodes = []
    for node, shown in answers.items():
        place = _place(shown.columns, "bookmark_name")
        if any(fold(str(row[place])) == fold(dropped.name) for row in shown.rows):
            nodes.append(node)
    if not nodes:
        return None
    statement = st.DropBookmark(dropped.name, name_of(topic))
    yield from _on_nodes(session, owners, dropped.name, nodes, statement)
    return Result.command(st.tag_of(dropped))


def _on_nodes(
    session: Context, owners: Owners, name: str, nodes: Sequence[str], statement: st.Statement
) -> Waiting[None]:
    share = Share(statement, Part(owners.epoch))
    yield from do_on_nodes(session, f'bookmark "{name}"', nodes, owners.home, share, DONE_HINT)


def _bookmarks(
    session: Context, topic: Stream, owners: Owners, nodes: Sequence[str]
) -> Waiting[dict[str, Answer]]:
    """The bookmarks of a topic that nodes have."""
    share = Share(st.ShowBookmarks(name_of(topic)), Part(owners.epoch))
    outcomes = yield from ask_nodes(session, dict.fromkeys(nodes, share), ended=True)
    found: dict[str, Answer] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise named(outcome, f'node "{node}": {outcome}', getattr(outcome, "detail", None)) from outcome
        found[node] = outcome
    return found


def show_bookmarks(
    session: Context, topic: Stream, owners: Owners, asked: st.ShowBookmarks, parameters: Values
) -> Waiting[Result]:
    """SHOW BOOKMARKS: what all owners say of theirs."""
    answers = yield from _bookmarks(session, topic, owners, list(owners.partitions))
    columns = next(iter(answers.values())).columns
    return rows_result(columns, _merged(columns, answers), st.tag_of(asked))


def _merged(columns: Columns, answers: Mapping[str, Answer]) -> list[Row]:
    """One row for each bookmark, of what owners say of their own partitions."""
    names = [column.name for column in columns]
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

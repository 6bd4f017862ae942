"""Statements about a topic with partitions on other nodes: each owner executes its share.

A handler in this module precedes the handler for a single node (`statements/runners.py`); it returns None if
the statement concerns this node's own partitions only, which the other handler then executes.

A commit is acknowledged once every owner has acknowledged its share. Each owner compares a commit of the read
position with the reads of this session there: a SEEK in between voids it.

A bookmark is one map of LSNs, which every node stores. Each owner uses the part for its own partitions: it
checks their LSNs, counts their events, and moves a group there. The home creates the bookmark first, so that
one of two statements with the same name is refused. Source: docs/design/cluster.md, "Topics", "Bookmarks".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.start_positions import check_partitions
from ...engine.errors import DucktailError, InvalidParameterValue, NotSupported, SerializationFailure
from ...engine.groups.coordination import epoch_told
from ...engine.log.events import ARROW_TYPES as EVENT_ARROW_TYPES
from ...engine.quoting import fold, literal
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.position_text import format_positions, parse_after, parse_positions
from ..peers.owners import Owners
from ..peers.requests import Part
from ..results.results import Result, ResultColumn, table_result
from ..session_state import run_text
from ..session_state.context import Context
from .gathering import away, bare_number, by_owner
from .membership import Home
from .shares import (
    Answer,
    Row,
    Share,
    all_nodes,
    ask_node,
    ask_nodes,
    do_on_nodes,
    first_failure,
    is_unknown,
    listed,
    named,
    own_share,
)

DONE_HINT = "What is done stands: DROP BOOKMARK IF EXISTS takes it away wherever it is."
ARROW_TYPES = {
    **EVENT_ARROW_TYPES,
    "DOUBLE": pa.float64(),
    "INTEGER[]": pa.list_(pa.int32()),
    "VARCHAR[]": pa.list_(pa.string()),
}
Columns = tuple[ResultColumn, ...]


@dataclass(frozen=True, slots=True)
class SharedTopic:
    """A topic with partitions on other nodes, for a statement that names it.

    Args:
        parameters: the statement's values.
    """

    session: Context
    stream: Stream
    owners: Owners
    parameters: run_text.Values

    @property
    def name(self) -> st.Name:
        """The name under which every node finds the topic."""
        return st.Name((self.stream.schema, self.stream.name))

    def text(self, value: st.Text) -> str:
        """A text or text parameter of the statement."""
        return run_text.text(value, self.parameters)

    def number(self, value: st.Scalar, clause: str) -> int:
        """A number or number parameter of the statement."""
        return run_text.number(value, self.parameters, clause)

    def group(self, name: st.Text, *, use: bool = True) -> Group:
        """A group of the topic; with `use` it counts as used by the statement, in its transaction."""
        transaction = self.session.block.transaction if use else None
        return self.session.access.group(self.stream, self.text(name), transaction, use=use)

    def home(self, group: Group) -> Home:
        """The topic's home, for requests about a group."""
        return Home(self.session, self.stream, group, self.owners)

    def share(self, statement: st.Statement, *, again: bool = False) -> Share:
        """A statement in the form of a share, for any node."""
        return Share(statement, Part(self.owners.epoch), again=again)

    def refuse_block(self, own: Mapping[str, Sequence[int]], what: str) -> None:
        """Refuse a transaction block an operation on another node.

        Args:
            own: node -> partitions.

        Raises:
            NotSupported.
        """
        remote = [node for node in own if node != self.owners.local]
        if remote and self.session.block.begun:
            raise NotSupported(
                f"a transaction block cannot {what} of partition {own[remote[0]][0]} of topic "
                f'"{self.stream.name}", which is of node "{remote[0]}"',
                detail="The two nodes could not commit together.",
                hint="Do it in autocommit, or in a transaction on the node that owns the partition.",
            )

    def refuse_any_block(self, verb: str) -> None:
        """Refuse in a transaction block an operation that each node executes in a transaction of its own.

        Raises:
            NotSupported.
        """
        if self.session.block.begun:
            raise NotSupported(
                f"{verb} in a transaction block is not supported on a topic of several nodes' partitions",
                detail="Each node does it in a transaction of its own.",
                hint="Run it by itself, in autocommit.",
            )


def rows_result(columns: Sequence[ResultColumn], rows: Sequence[Row], tag: str) -> Result:
    """A result of a few rows from several nodes."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(list(v), ARROW_TYPES[c.type]) for c, v in zip(columns, values, strict=True)]
    table = pa.Table.from_arrays(arrays, [column.name for column in columns])
    return table_result(columns, table, lambda _: tag)


def _place(columns: Iterable[ResultColumn], name: str) -> int:
    return [column.name for column in columns].index(name)


# Groups.


def seek_group(topic: SharedTopic, asked: st.SeekGroup) -> Waiting[Result | None]:
    """ALTER CONSUMER GROUP ... SEEK.

    Raises:
        InvalidParameterValue: one LSN for partitions of several nodes.
        NotSupported: in a transaction block.
    """
    name, partitions, only = topic.text(asked.group), list(range(topic.stream.partitions)), None
    if asked.partition is not None:
        only = topic.number(asked.partition, "PARTITION")
        partitions = [only]
        check_partitions(topic.stream, partitions)
    to, after = asked.to, None
    if to.value is not None:
        value = run_text.value_of(to.value, topic.parameters)
        to = replace(to, value=value if isinstance(value, int) else str(value))
    if to.kind == "after":
        assert isinstance(to.value, int | str)
        after = parse_after(to.value)
        if isinstance(after, int) and only is None:
            raise bare_number(topic.stream.name, "AFTER")
        if not isinstance(after, int):
            partitions = list(after)
            check_partitions(topic.stream, partitions)
    own = by_owner(topic.owners, sorted(partitions))
    if topic.session.block.begun and not asked.dry_run:
        topic.refuse_block(own, "move the position")
        if len(own) == 1:
            return None
    shares = {}
    for node, some in own.items():
        place = to
        if isinstance(after, dict):
            place = st.Place("after", format_positions({p: after[p] for p in some}))
        statement = replace(asked, stream=topic.name, group=name, partition=only, to=place)
        shares[node] = Share(statement, Part(topic.owners.epoch), some, again=True, changes=not asked.dry_run)
    answers = yield from run_shares(topic, shares, "moved")
    columns = [(c.name, c.type) for c in next(iter(answers.values())).columns]
    rows = sorted(
        chain.from_iterable(answer.rows for answer in answers.values()), key=lambda row: int(str(row[0]))
    )
    return run_text.text_rows(columns, rows, st.tag_of(asked))


def park_event(topic: SharedTopic, asked: st.Park) -> Waiting[Result | None]:
    """ALTER CONSUMER GROUP ... PARK."""
    reason = None if asked.reason is None else topic.text(asked.reason)
    partition, lsn = topic.number(asked.partition, "PARTITION"), topic.number(asked.lsn, "AT")
    whole = replace(asked, partition=partition, lsn=lsn, reason=reason)
    return (yield from _at_owner(topic, whole, partition))


def end_parking(topic: SharedTopic, asked: st.Release | st.Discard) -> Waiting[Result | None]:
    """ALTER CONSUMER GROUP ... RELEASE and DISCARD."""
    lsn = None if asked.lsn is None else topic.number(asked.lsn, "AT")
    partition = topic.number(asked.partition, "PARTITION")
    whole = replace(asked, partition=partition, lsn=lsn)
    return (yield from _at_owner(topic, whole, partition))


def _at_owner(
    topic: SharedTopic, asked: st.Park | st.Release | st.Discard, partition: int
) -> Waiting[Result | None]:
    """Execute a statement about a partition at its owner, if that is another node."""
    if partition >= topic.stream.partitions or topic.owners.of(partition) == topic.owners.local:
        return None
    node = topic.owners.of(partition)
    topic.refuse_block({node: [partition]}, "set aside events")
    whole = replace(asked, stream=topic.name, group=topic.text(asked.group))
    # It is not sent twice: a second one would be refused because of the first.
    share = Share(whole, Part(topic.owners.epoch), [partition], changes=True)
    yield from run_shares(topic, {node: share}, "changed")
    return Result.command(st.tag_of(asked))


# Members.


def leave_group(topic: SharedTopic, asked: st.LeaveGroup) -> Waiting[Result]:
    """LEAVE CONSUMER GROUP, executed by the topic's home."""
    group, name = topic.group(asked.group), topic.text(asked.member)
    if topic.session.block.begun:
        raise NotSupported(
            f'LEAVE CONSUMER GROUP of topic "{topic.stream.name}" in a transaction block is not supported: '
            "other nodes have some of its partitions",
            hint="Run it by itself, in autocommit.",
        )
    if not (yield from topic.home(group).leave(name)):
        topic.session.notices.add(
            f'{literal(name)} is not a member of consumer group "{group.name}", skipping'
        )
    return Result.command(st.tag_of(asked))


def show_read_position(topic: SharedTopic, asked: st.ShowReadPosition) -> Waiting[Result | None]:
    """SHOW READ POSITION of a member, or of the session."""
    if asked.member is None:
        return None
    group = topic.group(asked.group)
    lsns = yield from topic.home(group).position(topic.text(asked.member))
    return run_text.text_rows([("position", "JSON")], [[format_positions(lsns)]], st.tag_of(asked))


def show_offsets(topic: SharedTopic, asked: st.ShowOffsets) -> Waiting[Result]:
    """SHOW OFFSETS: each owner's rows, and the members that the home knows."""
    group = topic.group(asked.group, use=False)
    columns, rows = yield from _by_partition(topic, replace(asked, group=group.name))
    _, members = yield from topic.home(group).everybody()
    place, partition = _place(columns, "member"), _place(columns, "partition")
    found = [(*row[:place], members[int(str(row[partition]))], *row[place + 1 :]) for row in rows]
    return rows_result(columns, found, st.tag_of(asked))


def show_members(topic: SharedTopic, asked: st.ShowMembers) -> Waiting[Result]:
    """SHOW MEMBERS: the members that the home knows, with the lags from the owners."""
    group = topic.group(asked.group, use=False)
    members, _ = yield from topic.home(group).everybody()
    offsets = st.ShowOffsets(asked.stream, group.name)
    columns, shown = yield from _by_partition(topic, offsets)
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
    whole = replace(asked, stream=topic.name, group=group.name)
    here = yield from ask_node(topic.session, topic.owners.local, topic.share(whole))
    return rows_result(here.columns, rows, st.tag_of(asked))


# What owners show.


def show_by_partition(topic: SharedTopic, asked: st.Statement) -> Waiting[Result]:
    """A SHOW with a row for each partition."""
    if (name := getattr(asked, "group", None)) is not None:
        group = topic.group(name, use=False)
        asked = replace(asked, group=group.name)  # type: ignore[call-arg]
    return rows_result(*(yield from _by_partition(topic, asked)), st.tag_of(asked))


def _by_partition(topic: SharedTopic, asked: st.Statement) -> Waiting[tuple[Columns, list[Row]]]:
    """Collect the answers of the owners of a topic's partitions, in the order of partitions."""
    whole = replace(asked, stream=topic.name)  # type: ignore[call-arg]
    answers = yield from _shown(topic, whole)
    columns = next(iter(answers.values())).columns
    place = _place(columns, "partition")
    rows = [
        row
        for node, answer in answers.items()
        for row in answer.rows
        if row[place] in topic.owners.partitions[node]
    ]
    return columns, sorted(rows, key=lambda row: int(str(row[place])))


def _shown(topic: SharedTopic, asked: st.Statement) -> Waiting[dict[str, Answer]]:
    """The answers of all owners of a topic's partitions: node -> answer."""
    share = topic.share(asked, again=True)
    outcomes = yield from ask_nodes(topic.session, dict.fromkeys(topic.owners.partitions, share))
    found: dict[str, Answer] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, DucktailError) and node != topic.owners.local:
            raise away(topic.stream.name, node, topic.owners.partitions[node], outcome) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        found[node] = outcome
    return found


def show_checkpoints(topic: SharedTopic, asked: st.ShowCheckpoints) -> Waiting[Result]:
    """SHOW CHECKPOINTS ON a topic, from the answers of its owners.

    The position of a group in each partition is that of the partition's owner; its time is that of the latest
    commit.
    """
    answers = yield from _shown(topic, replace(asked, stream=topic.name))
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
                int(p): lsn
                for p, lsn in json.loads(str(row[position])).items()
                if topic.owners.of(int(p)) == node
            }
        whole = list(told[0][1])
        whole[position] = format_positions(dict(sorted(lsns.items())))
        whole[age] = min((float(str(row[age])) for _, row in told if row[age] is not None), default=None)
        rows.append(tuple(whole))
    return rows_result(columns, rows, st.tag_of(asked))


# Bookmarks.


def create_bookmark(topic: SharedTopic, made: st.CreateBookmark) -> Waiting[Result]:
    """CREATE BOOKMARK, on every node.

    Raises:
        DucktailError: the error of a node; it names the nodes that have executed the statement.
    """
    at = None if made.at is None else parse_positions(topic.text(made.at))
    topic.refuse_any_block("CREATE BOOKMARK")
    lsns = yield from _lsns(topic, made, at)
    statement = st.CreateBookmark(made.name, topic.name, at=format_positions(lsns))
    yield from _on_nodes(topic, made.name, all_nodes(topic.session), statement)
    return Result.command(st.tag_of(made))


def _lsns(topic: SharedTopic, made: st.CreateBookmark, at: dict[int, int] | None) -> Waiting[dict[int, int]]:
    """The LSNs of a bookmark on partitions of several nodes."""
    name = topic.name
    if made.group is not None:
        group = topic.session.access.group(topic.stream, topic.text(made.group), None)
        offsets = st.ShowOffsets(name, group.name)
        return (yield from _column(topic, offsets, "committed_lsn"))
    ends = yield from _column(topic, st.ShowPartitions(name), "last_lsn")
    if at is None:
        return ends
    # Before anything is made: what one owner would refuse is then not there on the others.
    for partition, lsn in at.items():
        if partition < topic.stream.partitions:
            end_lsn = max(ends[p] for p in topic.owners.partitions[topic.owners.of(partition)])
            if lsn > end_lsn:
                raise InvalidParameterValue(
                    f'LSN {lsn} of partition {partition} is past the end of topic "{topic.stream.name}" on '
                    f'node "{topic.owners.of(partition)}", {end_lsn}'
                )
    return at


def _column(
    topic: SharedTopic, asked: st.ShowPartitions | st.ShowOffsets, name: str
) -> Waiting[dict[int, int]]:
    """The values of a column: partition -> value."""
    columns, rows = yield from _by_partition(topic, asked)
    partition, place = _place(columns, "partition"), _place(columns, name)
    return {int(str(row[partition])): int(str(row[place] or 0)) for row in rows}


def drop_bookmark(topic: SharedTopic, dropped: st.DropBookmark) -> Waiting[Result | None]:
    """DROP BOOKMARK, on every node that has it; if none has, the answer is that of this node."""
    topic.refuse_any_block("DROP BOOKMARK")
    answers = yield from _bookmarks(topic, all_nodes(topic.session))
    nodes = []
    for node, shown in answers.items():
        place = _place(shown.columns, "bookmark_name")
        if any(fold(str(row[place])) == fold(dropped.name) for row in shown.rows):
            nodes.append(node)
    if not nodes:
        return None
    statement = st.DropBookmark(dropped.name, topic.name)
    yield from _on_nodes(topic, dropped.name, nodes, statement)
    return Result.command(st.tag_of(dropped))


def _on_nodes(topic: SharedTopic, name: str, nodes: Sequence[str], statement: st.Statement) -> Waiting[None]:
    share = topic.share(statement)
    yield from do_on_nodes(topic.session, f'bookmark "{name}"', nodes, topic.owners.home, share, DONE_HINT)


def _bookmarks(topic: SharedTopic, nodes: Sequence[str]) -> Waiting[dict[str, Answer]]:
    """The bookmarks of a topic on all nodes."""
    share = topic.share(st.ShowBookmarks(topic.name))
    outcomes = yield from ask_nodes(topic.session, dict.fromkeys(nodes, share), ended=True)
    found: dict[str, Answer] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise named(outcome, f'node "{node}": {outcome}', getattr(outcome, "detail", None)) from outcome
        found[node] = outcome
    return found


def show_bookmarks(topic: SharedTopic, asked: st.ShowBookmarks) -> Waiting[Result]:
    """SHOW BOOKMARKS, from the answers of all owners."""
    answers = yield from _bookmarks(topic, list(topic.owners.partitions))
    columns = next(iter(answers.values())).columns
    return rows_result(columns, _merged(columns, answers), st.tag_of(asked))


def _merged(columns: Columns, answers: Mapping[str, Answer]) -> list[Row]:
    """One row for each bookmark, from the owners' answers about their own partitions."""
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


# Offsets.


def run_shares(
    topic: SharedTopic,
    shares: Mapping[str, Share],
    done: str,
    standing: list[int] | None = None,
) -> Waiting[dict[str, Answer]]:
    """Execute the shares of all owners.

    Args:
        done: the participle for the partitions of an executed share, such as "committed".
        standing: receives the partitions of the executed shares, even if others have failed.

    Returns:
        Node -> its answer.

    Raises:
        DucktailError: the error of the first failed owner; it lists the partitions of the executed shares.
    """
    found = yield from ask_nodes(topic.session, shares, ended=True)
    failed = {node: e for node, e in found.items() if isinstance(e, Exception)}
    if standing is not None:
        standing += [p for node, share in shares.items() if node not in failed for p in share.partitions]
    if not failed:
        return {node: answer for node, answer in found.items() if isinstance(answer, Answer)}
    node, error = first_failure(failed)
    if not isinstance(error, DucktailError):
        raise error
    unknown = {n for n, e in failed.items() if is_unknown(e, here=n == topic.owners.local)}
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
        f'topic "{topic.stream.name}", partitions {listed(shares[node].partitions)} on node "{node}": '
        f"{error.message}",
        detail=" ".join(told),
        hint=error.hint,
    ) from error


def commit_offsets(topic: SharedTopic, asked: st.CommitOffset | st.CommitOffsets) -> Waiting[Result]:
    """COMMIT OFFSET and COMMIT OFFSETS; in a transaction block for this node's own partitions only."""
    session = topic.session
    lsns: dict[int, int] | None = None
    if isinstance(asked, st.CommitOffset):
        partition = topic.number(asked.partition, "PARTITION")
        lsns = {partition: topic.number(asked.lsn, "AT")}
    elif asked.at is not None:
        lsns = parse_positions(topic.text(asked.at))
    home, member = topic.home(topic.group(asked.group)), None
    if asked.member is not None:
        member = topic.text(asked.member)
    if lsns is not None:
        check_partitions(topic.stream, lsns)
    if session.block.begun:
        with own_share(session, (yield from _facts_in_block(topic, home, member, lsns))):
            return (yield from session.handle(asked, topic.parameters))
    if member is None:
        yield from _commit_unassigned(topic, home, lsns)
    else:
        yield from _commit_as_member(topic, home, member, lsns)
    return Result.command(st.tag_of(asked))


def _own_position(home: Home) -> Mapping[int, int]:
    """The session's read position in all owners' partitions, since its last commit."""
    seeks = home.session.database.offsets.seeks(home.group.group_id)
    key = (home.stream.stream_id, home.group.group_id)
    return home.session.positions.get(key, home.group.name, seeks).left().lsns


def _facts_in_block(
    topic: SharedTopic, home: Home, member: str | None, lsns: dict[int, int] | None
) -> Waiting[Part]:
    """The facts that permit a transaction to commit this node's own partitions."""
    group_id, position = home.group.group_id, lsns
    if member is None:
        found = _own_position(home) if position is None else position
        _check_own(topic, [p for p, lsn in found.items() if lsn or lsns is not None])
        asks = bool(home.session.database.member_epochs.of(group_id))
        return Part(home.owners.epoch, nobody=(yield from home.nobody()) if asks else 0)
    if position is None:
        key = (home.stream.stream_id, group_id)
        seeks = home.session.database.offsets.seeks(group_id)
        mine = home.session.positions.of_transaction(key, member, home.group.name, seeks)
        if mine is not None:
            position = {partition: lsn for partition, lsn in mine.lsns.items() if lsn}
    claimed = yield from home.commit(member, position)
    # The home holds nothing for it: what the transaction has read it holds by that.
    yield from home.committed(claimed, {})
    _check_own(topic, list(claimed.lsns))
    epochs = dict(claimed.epochs)
    through = dict(claimed.lsns) if position is None else None
    return Part(home.owners.epoch, epochs=epochs, through=through)


def _commit_unassigned(topic: SharedTopic, home: Home, lsns: dict[int, int] | None) -> Waiting[None]:
    """Commit without MEMBER; if an owner knows of members, the home is asked whether any remain."""
    position = _own_position(home) if lsns is None else lsns
    key = (home.stream.stream_id, home.group.group_id)
    given = None if lsns is None else home.session.positions.lsns(key)
    nobody = 0
    committed: list[int] = []
    while True:
        left = {partition: lsn for partition, lsn in position.items() if partition not in committed}
        facts = Part(home.owners.epoch, nobody=nobody)
        shares = _commit_shares(topic, home, left, facts, given=given)
        try:
            yield from run_shares(topic, shares, "committed", committed)
            home.session.positions.committed(key, None, position)
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
    topic: SharedTopic, home: Home, member: str, lsns: dict[int, int] | None
) -> Waiting[None]:
    """Commit as a member: the home admits the commit, and receives a report of its durable part."""
    claimed = yield from home.commit(member, lsns)
    committed: list[int] = []
    try:
        facts = Part(home.owners.epoch, epochs=dict(claimed.epochs))
        given = None if lsns is None else claimed.given
        shares = _commit_shares(topic, home, claimed.lsns, facts, given=given, member=member)
        yield from run_shares(topic, shares, "committed", committed)
    except BaseException:
        home.tell("committed", hold=claimed.number, lsns={p: claimed.lsns[p] for p in committed})
        raise
    yield from home.committed(claimed, claimed.lsns)
    key = (home.stream.stream_id, home.group.group_id)
    home.session.positions.committed(key, member, claimed.lsns)


def _check_own(topic: SharedTopic, partitions: Sequence[int]) -> None:
    """Refuse a transaction block's commit on other nodes."""
    topic.refuse_block(by_owner(topic.owners, sorted(partitions)), "commit the offset")


def _commit_shares(
    topic: SharedTopic,
    home: Home,
    lsns: Mapping[int, int],
    facts: Part,
    *,
    given: Mapping[int, int] | None,
    member: str | None = None,
) -> dict[str, Share]:
    """The shares of the owners in a commit.

    Args:
        facts: the facts that permit the commit.
        given: partition -> the last LSN that the committing session or member has received; None for a commit
            of the read position itself.
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
            part = replace(facts, epochs={p: facts.epochs[p] for p in partitions})
        at = None if read else format_positions(part_lsns)
        if given is None:
            part = replace(part, through=part_lsns)
        else:
            part = replace(part, given={p: given[p] for p in partitions if p in given})
        statement = st.CommitOffsets(topic.name, home.group.name, at, member)
        # A new connection knows no read position: a second commit of one would be refused.
        shares[node] = Share(statement, part, partitions, again=not read, changes=True)
    return shares

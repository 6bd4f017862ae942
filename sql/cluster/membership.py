"""Members of groups on topics of several nodes: requests to the topic's home, its answers, owners' shares.

The home determines the members and their partitions, by the rules of a single node
(`engine/groups/members.py`). The entry node reports each read and each commit to it, before and after; it
reads and commits at the owners of the partitions with the epochs that the home has issued. An owner refuses
an epoch older than one that it has seen.

A request to another node is SHOW MEMBERS as a share, with the request among its facts; the answer is one JSON
value. Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from ...engine.catalog.streams import Group, Stream
from ...engine.errors import (
    CannotConnect,
    ConnectionLost,
    DucktailError,
    ProtocolViolation,
    SerializationFailure,
)
from ...engine.groups.member import MemberHold, Shown
from ...engine.groups.members import Members
from ...engine.quoting import ident
from ...engine.waiting import Wait, Waiting
from ..peers.owners import Owners
from ..peers.requests import Part
from ..results.results import Result, ResultColumn, table_result
from ..session_state.context import Context
from ..session_state.positions import MemberRead
from .gathering import away
from .shares import ask_there, check_owned, own_share, tell_there

ANSWER = (ResultColumn("answer", "VARCHAR"),)
Facts = Mapping[str, Any]
Lsns = Mapping[int, int]


# At the home.


def answer(session: Context, stream: Stream, group: Group) -> Result:
    """Answer another node's request to the home."""
    assert session.part is not None and session.part.asked is not None
    found = json.dumps(answered(session, stream, group, session.part.asked))
    table = pa.table({"answer": [found]})
    return table_result(ANSWER, table, lambda _: "SHOW MEMBERS")


def answered(session: Context, stream: Stream, group: Group, asked: Facts) -> Facts:
    """The answer to a request as values.

    Args:
        asked: `do`, the name of an operation, and its arguments.

    Raises:
        SerializationFailure: this node is not the topic's home.
    """
    placement = session.database.cluster.placement
    home = placement.home(stream.schema, stream.name).name
    if home != placement.local.name:
        raise SerializationFailure(
            f'node "{placement.local.name}" is not the home of topic "{stream.name}"',
            detail=f'Node "{home}" is.',
        )
    session.database.members.under(group, stream.partitions, placement.epoch)
    arguments = {name: value for name, value in asked.items() if name != "do"}
    # What a transaction of this session has changed of the group is its own.
    return OPERATIONS[asked["do"]](Operations(session, stream, group), **arguments)


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of the home on the members of a group; their arguments and results are JSON values."""

    session: Context
    stream: Stream
    group: Group

    @property
    def members(self) -> Members:
        """The members of all groups on this node."""
        return self.session.database.members

    def read(self, member: str, wanted: Sequence[int], gives: bool, joins: bool) -> Facts:
        """Begin a member's read."""
        hold = self._begin_read(member, wanted, gives, joins)
        if gives:
            self.members.reading(hold, self.session.holds)
        return {"hold": self.session.holds.add(hold), "epochs": hold.epochs, "read": hold.read}

    def _begin_read(self, member: str, wanted: Sequence[int], gives: bool, joins: bool) -> MemberHold:
        return self.members.begin_read(
            self.group,
            self.stream.partitions,
            member,
            self.session.user,
            wanted,
            gives=gives,
            joins=joins,
            home=True,
        )

    def look(self, member: str, wanted: Sequence[int], joins: bool) -> Facts:
        """Record a heartbeat of a waiting member; it holds nothing."""
        there = self.members.has(self.group, self.stream.partitions, member)
        hold = self._begin_read(member, wanted, True, joins)
        self.members.end(hold)
        return {"epochs": hold.epochs, "left": not there and not joins}

    def told(
        self,
        hold: int,
        lsns: Mapping[Any, int] = MappingProxyType({}),
        position: bool = False,
        void: str | None = None,
        over: bool = False,
    ) -> Facts:
        """Record the outcome of a read."""
        found = self.session.holds.get(hold)
        if found is not None:
            given = _numbered(lsns)
            began = dict.fromkeys(given, 0)
            if void is not None:
                self.members.void(found[0], void)
            elif position:
                self.members.set_position(found[0], given, began, 0, {})
            elif given:
                self.members.gave(found[0], given, began)
            self.members.told(found[0])
            if over:
                self.session.holds.end(hold)
        return {}

    def commit(self, member: str, lsns: Mapping[Any, int] | None, read: int | None) -> Facts:
        """Admit a member's commit."""
        count, numbered = self.stream.partitions, None if lsns is None else _numbered(lsns)
        if numbered is None:
            self.members.check_told(self.group, count, member, read)
        commit = self.members.begin_commit(
            self.group, count, member, self.session.user, numbered, 0, {}, home=True
        )
        assert commit.hold is not None
        epochs = {partition: claim.epoch for partition, claim in commit.claims.items()}
        given = self.members.given(commit.hold)
        number = self.session.holds.add(commit.hold, commit)
        return {"hold": number, "lsns": dict(commit.lsns), "epochs": epochs, "given": given}

    def committed(self, hold: int, lsns: Mapping[Any, int]) -> Facts:
        """Record the durable part of a commit."""
        found = self.session.holds.get(hold)
        if found is not None and found[1] is not None:
            self.members.is_committed(found[1], _numbered(lsns))
        self.session.holds.end(hold)
        return {}

    def nobody(self) -> Facts:
        """Return the epoch under which the group has no members."""
        return {"epoch": self.members.nobody(self.group, self.stream.partitions)}

    def passed(self, epoch: int) -> Facts:
        """Record a later epoch that an owner knows."""
        self.members.passed(self.group, self.stream.partitions, epoch)
        return {}

    def leave(self, member: str) -> Facts:
        """Remove a member."""
        there = self.members.has(self.group, self.stream.partitions, member)
        if there:
            self.members.remove(self.group.group_id, member)
        return {"there": there}

    def everybody(self) -> Facts:
        """Show the members, and the member of each partition."""
        members = self.members.shown(self.group, self.stream.partitions)
        owners = self.members.owners(self.group, self.stream.partitions)
        return {"members": [asdict(member) for member in members], "owners": owners}

    def position(self, member: str) -> Facts:
        """Show a member's read position."""
        count = self.stream.partitions
        return {"lsns": self.members.position(self.group, count, member, 0, home=True).lsns}


OPERATIONS: dict[str, Callable[..., Facts]] = {
    name: operation
    for name, operation in vars(Operations).items()
    if callable(operation) and not name.startswith("_")
}


def _numbered(lsns: Mapping[Any, int]) -> dict[int, int]:
    """Convert partition numbers back from JSON, whose member names are texts."""
    return {int(partition): lsn for partition, lsn in lsns.items()}


# At the nodes that ask it.


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a waiting member.

    Args:
        left: True if the member was removed from the group.
    """

    partitions: frozenset[int]
    left: bool


@dataclass(frozen=True, slots=True)
class Claimed:
    """A commit that the home has admitted.

    Args:
        number: the number of the hold for this commit.
        epochs: partition -> the epoch under which the member owns it.
        given: partition -> the last LSN that the member has received.
    """

    number: int
    lsns: Lsns
    epochs: Lsns
    given: Lsns


@dataclass(frozen=True, slots=True)
class Home:
    """The home of a topic on several nodes, for requests about one of its groups."""

    session: Context
    stream: Stream
    group: Group
    owners: Owners

    @property
    def here(self) -> bool:
        """True if this node is the home."""
        return self.owners.home == self.owners.local

    def read(self, member: str, wanted: Sequence[int], *, gives: bool, joins: bool) -> Waiting[MemberRead]:
        """Begin a member's read."""
        # What was lost of an earlier read comes again with this one.
        self.session.told[:] = [one for one in self.session.told if not one.done()]
        found = yield from self._ask("read", member=member, wanted=list(wanted), gives=gives, joins=joins)
        return MemberRead(member, found["hold"], _numbered(found["epochs"]), found["read"], self.tell)

    def look(self, member: str, wanted: Sequence[int], *, joins: bool) -> Waiting[Look]:
        """Send a waiting member's heartbeat."""
        found = yield from self._ask("look", member=member, wanted=list(wanted), joins=joins)
        return Look(frozenset(_numbered(found["epochs"])), found["left"])

    def commit(self, member: str, lsns: Lsns | None) -> Waiting[Claimed]:
        """Begin a member's commit of these LSNs, or of its read position (None).

        Raises:
            SerializationFailure: the name is not a member, or does not own all of the partitions.
            WrongState: the home refuses the read position.
        """
        latest = self.session.positions.latest((self.stream.stream_id, self.group.group_id), member)
        own = None if latest is None else latest.read
        found = yield from self._ask("commit", member=member, lsns=lsns, read=own)
        lsns, epochs, given = (_numbered(found[name]) for name in ("lsns", "epochs", "given"))
        return Claimed(found["hold"], lsns, epochs, given)

    def committed(self, claimed: Claimed, lsns: Lsns) -> Waiting[None]:
        """Report the durable part of a commit; the rest is not durable, or unknown."""
        # The commit stands, whatever has become of the home; where that is away, or another node is it by
        # now, it knows of no read either.
        with suppress(CannotConnect, ConnectionLost, SerializationFailure):
            yield from self._ask("committed", hold=claimed.number, lsns=lsns)

    def nobody(self) -> Waiting[int]:
        """The epoch under which the group has no members.

        Raises:
            WrongState: the group has members.
        """
        return int((yield from self._ask("nobody"))["epoch"])

    def passed(self, epoch: int) -> Waiting[None]:
        """Report a later epoch that an owner knows."""
        yield from self._ask("passed", epoch=epoch)

    def leave(self, member: str) -> Waiting[bool]:
        """Remove a member; returns True if it was one."""
        return bool((yield from self._ask("leave", member=member))["there"])

    def everybody(self) -> Waiting[tuple[list[Shown], list[str | None]]]:
        """The members, and the member of each partition."""
        found = yield from self._ask("everybody")
        members = [Shown(**{**one, "partitions": tuple(one["partitions"])}) for one in found["members"]]
        return members, found["owners"]

    def position(self, member: str) -> Waiting[Lsns]:
        """A member's read position.

        Raises:
            WrongState: the member has no read position.
        """
        return _numbered((yield from self._ask("position", member=member))["lsns"])

    def tell(self, do: str, **arguments: object) -> None:
        """Send the home a report without waiting for its answer; later requests arrive after it."""
        # A home that is none any more, or cannot be told, knows nothing of it: its members' time ends there.
        with suppress(DucktailError):
            if self.here:
                answered(self.session, self.stream, self.group, {"do": do, **arguments})
            else:
                future = tell_there(self.session, self.owners.home, self._text(do, arguments))
                told = self.session.told
                # An answer that is taken in parts asks nobody to wait.
                told[:] = [one for one in [*told, future] if one is not None and _matters(one)]

    def _ask(self, do: str, **arguments: object) -> Waiting[Any]:
        if self.here:
            with own_share(self.session, Part(self.owners.epoch)):
                return answered(self.session, self.stream, self.group, {"do": do, **arguments})
        try:
            text = self._text(do, arguments)
            answer = yield from ask_there(self.session, self.owners.home, text, again=True)
        except (CannotConnect, ConnectionLost) as error:
            raise _home_away(self.stream, self.owners, error) from error
        if not answer.rows:
            raise ProtocolViolation("the home of a topic has not answered")
        return json.loads(str(answer.rows[0][0]))

    def _text(self, do: str, arguments: Facts) -> str:
        on = f"{ident(self.stream.schema)}.{ident(self.stream.name)} CONSUMER GROUP {ident(self.group.name)}"
        return Part(self.owners.epoch, asked={"do": do, **arguments}).text(f"SHOW MEMBERS ON {on}")


def _matters(told: Future[Any]) -> bool:
    """True if a report of an outcome has not arrived yet, or is lost."""
    return not told.done() or told.exception() is not None


def _home_away(stream: Stream, owners: Owners, error: DucktailError) -> DucktailError:
    found = away(stream.name, owners.home, owners.partitions[owners.home], error)
    found.detail = "The topic's home says which partitions are whose member's." + (
        f" {error.detail}" if error.detail else ""
    )
    return found


def settled(session: Context) -> Waiting[None]:
    """Wait until the homes have received this session's reports, so that another connection may continue from
    there.

    Raises:
        ConnectionLost: a report was lost.
    """
    told: list[Future[Any]] = session.told
    lost: BaseException | None = None
    while told:
        future = told.pop(0)
        if not future.done():
            yield Wait(future)
        if isinstance(error := future.exception(), ConnectionLost):
            lost = error
    if lost is not None:
        # Its client is not told that it has been given what nobody knows of.
        raise lost


# How soon it is looked again whether commits under older epochs are written: one takes about a millisecond.
PAUSE_S = 0.002


def take_over(session: Context, part: Part, stream: Stream, group: Group, member: str) -> Waiting[None]:
    """Admit a member to its assigned partitions; later epochs are made durable.

    Raises:
        SerializationFailure: one of its epochs is not the latest, or a partition is no longer on this node.
    """
    database, group_id = session.database, group.group_id
    kept = database.member_epochs.of(group_id)
    later = database.members.take_over(
        group, stream.partitions, member, session.user, part.epochs or {}, kept
    )
    if later:
        # From now on nobody is let in with an older one: those that were before are few and soon over.
        while database.members.is_pinned(group_id, later):
            never: Future[None] = Future()
            yield Wait(never, PAUSE_S)
        database.member_epochs.keep(group_id, later)
    # Of a partition that was given meanwhile the epoch of before may have been told.
    check_owned(session, stream, list(part.epochs or {}))


def begin_read(
    session: Context, part: Part, stream: Stream, group: Group, member: str
) -> Waiting[MemberHold]:
    """Begin a member's read of its assigned partitions.

    Raises:
        SerializationFailure.
    """
    yield from take_over(session, part, stream, group, member)
    return session.database.members.begin_assigned(group, stream.partitions, member, part.epochs or {})


def begin_unassigned(
    session: Context, part: Part, stream: Stream, group: Group, partitions: Iterable[int]
) -> None:
    """Begin a commit without MEMBER.

    Raises:
        SerializationFailure: the group has had members since the home was asked.
    """
    kept = session.database.member_epochs.of(group.group_id)
    session.database.members.begin_unassigned(group, stream.partitions, partitions, part.nobody, kept)

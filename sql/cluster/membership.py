"""Members of groups on topics of several nodes: questions to the topic's home, its answers, owners' shares.

The home says who is a member and has which partitions, by the rules of one node
(`engine/groups/coordination.py`). It is told of a read before and after it, of a commit before and after it;
the owners of the partitions are read and committed by the node that was asked, with the epochs that the home
has given out. An owner lets nobody in under an older epoch than it has seen.

A question to another node is SHOW MEMBERS as a share, with what is asked among its facts, and its answer one
value of JSON. Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from ...engine.quoting import ident
from ...engine.waiting import Wait, Waiting
from ..peers.owners import Owners
from ..peers.requests import Part
from ..results.results import Result, ResultColumn, table_result
from ..session_state.context import Context
from .gathering import away
from .shares import ask_there, check_owned, own_share, peers

ANSWER = (ResultColumn("answer", "VARCHAR"),)
Facts = Mapping[str, Any]
Lsns = Mapping[int, int]


# What the home does.


def answer(session: Context, stream: Stream, group: Group) -> Result:
    """Answer another node's request to the home."""
    assert session.part is not None and session.part.asked is not None
    found = json.dumps(member_request(session, stream, group, session.part.asked))
    table = pa.table({"answer": [found]})
    return table_result(ANSWER, table, lambda _: "SHOW MEMBERS")


def member_request(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    """The same as values.

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
    session.database.members.coordinator.under(group, stream.partitions, placement.epoch)
    # What a transaction of this session has changed of the group is its own.
    return _DOING[asked["do"]](session, stream, group, asked)


def _read(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    members = session.database.members.coordinator
    hold = members.begin_read(
        group,
        stream.partitions,
        asked["member"],
        session.user,
        asked["wanted"],
        gives=asked["gives"],
        joins=asked["joins"],
    )
    if asked["gives"]:
        members.reading(hold, session.holds)
    return {"hold": session.holds.add(hold), "epochs": hold.epochs, "read": hold.read}


def _look(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    """A member that waits is heard from, and holds nothing."""
    members, name = session.database.members.coordinator, asked["member"]
    there = members.has(group, stream.partitions, name)
    hold = members.begin_read(
        group, stream.partitions, name, session.user, asked["wanted"], gives=True, joins=asked["joins"]
    )
    members.end(hold)
    return {"epochs": hold.epochs, "left": not there and not asked["joins"]}


def _told(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    """The known outcome of a read."""
    members, found = session.database.members.coordinator, session.holds.get(asked["hold"])
    if found is not None:
        hold, _ = found
        lsns = _numbered(asked.get("lsns", {}))
        began = dict.fromkeys(lsns, 0)
        if "void" in asked:
            members.void(hold, asked["void"])
        elif asked.get("position"):
            members.set_position(hold, lsns, began, 0, {})
        elif lsns:
            members.gave(hold, lsns, began)
        members.told(hold)
        if asked.get("over"):
            session.holds.end(asked["hold"])
    return {}


def _commit(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    members, count = session.database.members.coordinator, stream.partitions
    lsns = None if asked["lsns"] is None else _numbered(asked["lsns"])
    if lsns is None:
        members.check_told(group, count, asked["member"], asked["read"])
    commit = members.begin_commit(group, count, asked["member"], session.user, lsns, 0, {})
    assert commit.hold is not None
    epochs = {partition: claim.epoch for partition, claim in commit.claims.items()}
    given = members.given(group.group_id, asked["member"])
    number = session.holds.add(commit.hold, commit)
    return {"hold": number, "lsns": dict(commit.lsns), "epochs": epochs, "given": given}


def _committed(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    found = session.holds.get(asked["hold"])
    if found is not None and found[1] is not None:
        session.database.members.coordinator.is_committed(group.group_id, found[1], _numbered(asked["lsns"]))
    session.holds.end(asked["hold"])
    return {}


def _nobody(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    return {"epoch": session.database.members.coordinator.nobody(group, stream.partitions)}


def _passed(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    session.database.members.coordinator.passed(group, stream.partitions, asked["epoch"])
    return {}


def _leave(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    members, name = session.database.members.coordinator, asked["member"]
    there = members.has(group, stream.partitions, name)
    if there:
        members.remove(group.group_id, name)
    return {"there": there}


def _everybody(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    members, owners = session.database.members.coordinator.everybody(group, stream.partitions)
    return {"members": [asdict(member) for member in members], "owners": owners}


def _position(session: Context, stream: Stream, group: Group, asked: Facts) -> dict[str, Any]:
    members = session.database.members.coordinator
    return {"lsns": members.position(group, stream.partitions, asked["member"], 0).lsns}


_DOING: dict[str, Callable[[Context, Stream, Group, Facts], dict[str, Any]]] = {
    "read": _read,
    "look": _look,
    "told": _told,
    "commit": _commit,
    "committed": _committed,
    "nobody": _nobody,
    "passed": _passed,
    "leave": _leave,
    "everybody": _everybody,
    "position": _position,
}


def _numbered(lsns: Mapping[Any, int]) -> dict[int, int]:
    """JSON's names of members are texts."""
    return {int(partition): lsn for partition, lsn in lsns.items()}


# What is asked of it.


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a waiting member.

    Args:
        left: it has been taken out of the group.
    """

    partitions: frozenset[int]
    left: bool


@dataclass(frozen=True, slots=True)
class Claimed:
    """A commit that the home lets pass.

    Args:
        number: of what the member holds for it.
        epochs: partition -> the epoch under which it is the member's.
        given: partition -> how far the member has been given events.
    """

    number: int
    lsns: Lsns
    epochs: Lsns
    given: Lsns


@dataclass(frozen=True, slots=True)
class Home:
    """The home of a spread topic, asked about one of its groups."""

    session: Context
    stream: Stream
    group: Group
    owners: Owners

    @property
    def here(self) -> bool:
        """True if it is this node."""
        return self.owners.home == self.owners.local

    def read(self, member: str, wanted: Sequence[int], *, gives: bool, joins: bool) -> Waiting[MemberRead]:
        """A member reads."""
        # What was lost of an earlier read comes again with this one.
        self.session.told[:] = [one for one in self.session.told if not one.done()]
        facts = {"do": "read", "member": member, "wanted": list(wanted), "gives": gives, "joins": joins}
        found = yield from self._ask(facts)
        return MemberRead(self, member, found["hold"], _numbered(found["epochs"]), found["read"])

    def look(self, member: str, wanted: Sequence[int], *, joins: bool) -> Waiting[Look]:
        """A member waits."""
        facts = {"do": "look", "member": member, "wanted": list(wanted), "joins": joins}
        found = yield from self._ask(facts)
        return Look(frozenset(_numbered(found["epochs"])), found["left"])

    def commit(self, member: str, lsns: Lsns | None) -> Waiting[Claimed]:
        """A member commits these, or its read position (None).

        Raises:
            SerializationFailure: it is no member, or has not all of it. WrongState.
        """
        latest = self.session.positions.latest((self.stream.stream_id, self.group.group_id), member)
        own = None if latest is None else latest.read
        facts = {"do": "commit", "member": member, "lsns": lsns, "read": own}
        found = yield from self._ask(facts)
        lsns, epochs, given = (_numbered(found[name]) for name in ("lsns", "epochs", "given"))
        return Claimed(found["hold"], lsns, epochs, given)

    def committed(self, claimed: Claimed, lsns: Lsns) -> Waiting[None]:
        """This much of a commit is durable; of the rest it is not known, or it is not."""
        # The commit stands, whatever has become of the home; where that is away, or another node is it by
        # now, it knows of no read either.
        with suppress(CannotConnect, ConnectionLost, SerializationFailure):
            yield from self._ask({"do": "committed", "hold": claimed.number, "lsns": lsns})

    def nobody(self) -> Waiting[int]:
        """The epoch under which the group has no members.

        Raises:
            WrongState: it has some.
        """
        return int((yield from self._ask({"do": "nobody"}))["epoch"])

    def passed(self, epoch: int) -> Waiting[None]:
        """An owner knows of a later epoch."""
        yield from self._ask({"do": "passed", "epoch": epoch})

    def leave(self, member: str) -> Waiting[bool]:
        """A member leaves; whether it was one."""
        return bool((yield from self._ask({"do": "leave", "member": member}))["there"])

    def everybody(self) -> Waiting[tuple[list[Shown], list[str | None]]]:
        """The members, and the member of each partition."""
        found = yield from self._ask({"do": "everybody"})
        members = [Shown(**{**one, "partitions": tuple(one["partitions"])}) for one in found["members"]]
        return members, found["owners"]

    def position(self, member: str) -> Waiting[Lsns]:
        """A member's read position.

        Raises:
            WrongState: there is none.
        """
        return _numbered((yield from self._ask({"do": "position", "member": member}))["lsns"])

    def tell(self, facts: dict[str, Any]) -> None:
        """Send it a report without waiting for the answer; later requests follow it."""
        # A home that is none any more, or cannot be told, knows nothing of it: its members' time ends there.
        with suppress(DucktailError):
            if self.here:
                member_request(self.session, self.stream, self.group, facts)
            else:
                future = peers(self.session).later(self.owners.home, self._text(facts))
                told = self.session.told
                # An answer that is taken in parts asks nobody to wait.
                told[:] = [one for one in [*told, future] if one is not None and _matters(one)]

    def _ask(self, facts: dict[str, Any]) -> Waiting[Any]:
        if self.here:
            with own_share(self.session, Part(self.owners.epoch)):
                return member_request(self.session, self.stream, self.group, facts)
        try:
            answer = yield from ask_there(self.session, self.owners.home, self._text(facts), (), again=True)
        except (CannotConnect, ConnectionLost) as error:
            raise _home_away(self.stream, self.owners, error) from error
        if not answer.rows:
            raise ProtocolViolation("the home of a topic has not answered")
        return json.loads(str(answer.rows[0][0]))

    def _text(self, facts: dict[str, Any]) -> str:
        on = f"{ident(self.stream.schema)}.{ident(self.stream.name)} CONSUMER GROUP {ident(self.group.name)}"
        return Part(self.owners.epoch, asked=facts).text(f"SHOW MEMBERS ON {on}")


def _matters(told: Future[Any]) -> bool:
    """True if the outcome reported to a node is still on its way, or is lost."""
    return not told.done() or told.exception() is not None


def _home_away(stream: Stream, owners: Owners, error: DucktailError) -> DucktailError:
    found = away(stream.name, owners.home, owners.partitions[owners.home], error)
    found.detail = "The topic's home says which partitions are whose member's." + (
        f" {error.detail}" if error.detail else ""
    )
    return found


@dataclass(slots=True, eq=False)
class MemberRead:
    """A member's read of partitions of several nodes, under way.

    Args:
        name: the member's.
        number: of what it holds at the home.
        epochs: partition -> the epoch under which it is the member's.
        read: its number among the member's reads, which rise.
    """

    home: Home
    name: str
    number: int
    epochs: Lsns
    read: int
    over: bool = False

    def set(self, lsns: Lsns) -> None:
        """It has given everything up to these: the member's read position."""
        self._tell({"lsns": lsns, "position": True})

    def gave(self, lsns: Lsns) -> None:
        """It has given events up to these, or fewer, and leaves no position."""
        self._tell({"lsns": lsns})

    def void(self, reason: str) -> None:
        """It leaves no position."""
        self._tell({"void": reason})

    def end(self) -> None:
        """It is over; a second time does nothing."""
        if not self.over:
            self._tell({"over": True})
            self.over = True

    def _tell(self, facts: dict[str, Any]) -> None:
        if not self.over:
            self.home.tell({"do": "told", "hold": self.number, **facts})


def settled(session: Context) -> Waiting[None]:
    """Wait until homes have their reports, so that another connection may continue from there.

    Raises:
        ConnectionLost: one was lost on the way.
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
    """Admit a member to its assigned partitions: later epochs are made durable.

    Raises:
        SerializationFailure: one of its epochs is not the latest; or a partition is not here any more.
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
    """A member reads the partitions that are assigned to it.

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
        SerializationFailure: there have been members since the home was asked.
    """
    kept = session.database.member_epochs.of(group.group_id)
    session.database.members.begin_unassigned(group, stream.partitions, partitions, part.nobody, kept)

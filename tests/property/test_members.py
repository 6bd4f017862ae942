"""Members of a group under any sequence of joins, reads, commits, leaves, time-outs: promise 10's half.

`assign` is held against its formula and, for small numbers, against every assignment there is; the
registry against a model that knows who was given what.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import hypothesis.strategies as some
from hands import SECOND_US, Hands
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ducktail.engine.catalog.streams import Group
from ducktail.engine.errors import DucktailError, SerializationFailure, WrongState
from ducktail.engine.groups.assignment import assign
from ducktail.engine.groups.member import Claim, MemberHold
from ducktail.engine.groups.members import Members

NAMES = ("a", "b", "c", "d", "e")
TIMEOUT_S = 30

owners = some.dictionaries(some.integers(0, 40), some.sampled_from((*NAMES, "gone")))


def moves(before: dict[int, str], after: dict[int, str]) -> int:
    """How many partitions get another owner than they have."""
    return sum(before.get(partition) != name for partition, name in after.items())


def spread(after: dict[int, str], members: list[str]) -> int:
    """The largest count less the smallest."""
    counts = [list(after.values()).count(name) for name in members]
    return max(counts) - min(counts)


def fewest(partitions: int, before: dict[int, str], members: list[str]) -> int:
    """The formula: P - sum(min(held, q)) - min(r, #{held > q})."""
    held = [sum(before.get(p) == name for p in range(partitions)) for name in members]
    quota, rest = divmod(partitions, len(members))
    return (
        partitions
        - sum(min(count, quota) for count in held)
        - min(rest, sum(count > quota for count in held))
    )


@given(some.integers(1, 40), owners, some.sets(some.sampled_from(NAMES), min_size=1))
def test_an_assignment_is_balanced_and_moves_no_more_than_it_must(
    partitions: int, before: dict[int, str], members: set[str]
) -> None:
    after = assign(partitions, before, members)
    assert sorted(after) == list(range(partitions)) and set(after.values()) <= members
    assert spread(after, sorted(members)) <= 1
    assert moves(before, after) == fewest(partitions, before, sorted(members))
    assert assign(partitions, after, members) == after
    turned = dict(reversed(list(before.items())))
    assert assign(partitions, turned, sorted(members, reverse=True)) == after


@settings(max_examples=40)
@given(some.integers(1, 6), owners, some.sets(some.sampled_from(NAMES[:3]), min_size=1))
def test_no_balanced_assignment_moves_fewer(
    partitions: int, before: dict[int, str], members: set[str]
) -> None:
    names = sorted(members)
    every = (dict(enumerate(chosen)) for chosen in itertools.product(names, repeat=partitions))
    best = min(moves(before, after) for after in every if spread(after, names) <= 1)
    assert moves(before, assign(partitions, before, members)) == best


def test_nobody_gets_anything_where_there_is_nobody() -> None:
    assert assign(8, {0: "a"}, set()) == {}


@dataclass(slots=True)
class Session:
    """What the model knows of one transaction or read that is open: its claims."""

    hold: MemberHold
    name: str
    partitions: dict[int, int] = field(default_factory=dict)  # partition -> last LSN given; 0 is nothing


class Registry(RuleBasedStateMachine):
    """Reads and commits of five names; `given` is what a member was given and has not committed."""

    @initialize(partitions=some.integers(1, 9))
    def begin(self, partitions: int) -> None:
        self.clock = Hands()
        self.members = Members(self.clock)
        self.partitions = partitions
        self.group = Group(7, 1, "g", "earliest", 0, session_timeout_ms=TIMEOUT_S * 1000)
        self.lsn = 0
        self.committed = dict.fromkeys(range(partitions), 0)
        self.heard: dict[str, float] = {}
        self.given: dict[tuple[str, int], int] = {}
        self.reads: list[Session] = []
        self.tenures: dict[tuple[int, int], str] = {}
        self.last_epochs = [0] * partitions

    def _expire(self) -> None:
        now = self.clock.monotonic_s()
        for name in [n for n, at in self.heard.items() if at <= now - TIMEOUT_S]:
            self._gone(name)

    def _gone(self, name: str) -> None:
        self.heard.pop(name, None)
        self.reads = [read for read in self.reads if read.name != name]
        for key in [key for key in self.given if key[0] == name]:
            del self.given[key]

    def _keeps(self, name: str, partition: int) -> bool:
        return (name, partition) in self.given or any(
            read.name == name and partition in read.hold.epochs for read in self.reads
        )

    @rule(name=some.sampled_from(NAMES), wanted=some.sets(some.integers(0, 8)), gives=some.booleans())
    def read(self, name: str, wanted: set[int], gives: bool) -> None:
        self._expire()
        chosen = sorted(p for p in wanted if p < self.partitions) or list(range(self.partitions))
        before = self.members.owners(self.group, self.partitions)
        kept = {p for p in range(self.partitions) if before[p] == name and self._keeps_from_others(name, p)}
        hold = self.members.begin_read(self.group, self.partitions, name, "u", chosen, gives=gives)
        self.heard[name] = self.clock.monotonic_s()
        if gives:
            for partition in chosen:
                if not any(r.name == name and partition in r.hold.epochs for r in self.reads):
                    self.given.pop((name, partition), None)
        assert kept & set(chosen) <= hold.epochs.keys(), "what an open read holds is not taken away"
        self.reads.append(Session(hold, name))

    def _keeps_from_others(self, name: str, partition: int) -> bool:
        return any(r.name == name and partition in r.hold.epochs for r in self.reads)

    @rule(data=some.data(), outcome=some.sampled_from(("given", "nothing", "failed")))
    def end_read(self, data: some.DataObject, outcome: str) -> None:
        if not self.reads:
            return
        read = self.reads.pop(data.draw(some.integers(0, len(self.reads) - 1)))
        if outcome == "given" and read.name in self.heard:
            self.lsn += 10
            lsns = dict.fromkeys(read.hold.epochs, self.lsn)
            began = {p: self.committed[p] for p in lsns}
            self.members.set_position(read.hold, lsns, began, 0, {})
            self.given.update({(read.name, p): lsn for p, lsn in lsns.items()})
        elif outcome == "failed":
            self.members.void(read.hold, "it failed")
        self.members.end(read.hold)
        if read.name in self.heard:
            self.heard[read.name] = self.clock.monotonic_s()

    @rule(name=some.sampled_from(NAMES), through=some.booleans())
    def commit(self, name: str, through: bool) -> None:
        self._expire()
        owned = [p for p, o in enumerate(self.members.owners(self.group, self.partitions)) if o == name]
        wanted = {p: self.given.get((name, p), self.committed[p]) - (0 if through else 5) for p in owned}
        wanted = {p: max(lsn, self.committed[p]) for p, lsn in wanted.items()}
        if name not in self.heard:
            try:
                self.members.begin_commit(self.group, self.partitions, name, "u", {0: 1}, 0, {})
                raise AssertionError("a commit of nobody")
            except SerializationFailure:
                return
        commit = self.members.begin_commit(self.group, self.partitions, name, "u", wanted, 0, {})
        self.heard[name] = self.clock.monotonic_s()
        pin = self.members.pin(self.group.group_id, commit.claims)
        self.committed.update(wanted)
        self.members.unpin(pin, wanted)
        assert commit.hold is not None
        self.members.end(commit.hold)
        for partition, lsn in wanted.items():
            if self.given.get((name, partition), lsn + 1) <= lsn:
                del self.given[name, partition]

    @rule(name=some.sampled_from(NAMES), other=some.sampled_from(NAMES))
    def leave_while_a_commit_is_written(self, name: str, other: str) -> None:
        """Nobody gets its partitions before it is."""
        self._expire()
        owned = [p for p, o in enumerate(self.members.owners(self.group, self.partitions)) if o == name]
        if name not in self.heard or name == other:
            return
        wanted = {partition: self.committed[partition] for partition in owned}
        commit = self.members.begin_commit(self.group, self.partitions, name, "u", wanted, 0, {})
        pin = self.members.pin(self.group.group_id, commit.claims)
        self.members.remove(self.group.group_id, name)
        self._gone(name)
        self.read(other, set(), gives=True)
        now = self.members.owners(self.group, self.partitions)
        assert all(now[partition] is None for partition in wanted), "given away under a commit"
        self.members.unpin(pin, wanted)
        assert None not in self.members.owners(self.group, self.partitions)

    @rule(name=some.sampled_from(NAMES), partition=some.integers(0, 8))
    def commit_of_others(self, name: str, partition: int) -> None:
        """A partition that is not a member's own, and a commit without one: refused, nothing moves."""
        self._expire()
        owners_now = self.members.owners(self.group, self.partitions)
        if partition < self.partitions and owners_now[partition] != name:
            wanted = {p: self.lsn for p, owner in enumerate(owners_now) if owner == name} | {
                partition: self.lsn
            }
            try:
                self.members.begin_commit(self.group, self.partitions, name, "u", wanted, 0, {})
                raise AssertionError("a commit of another's partition")
            except SerializationFailure:
                pass
            if name in self.heard:
                self.heard[name] = self.clock.monotonic_s()
        if self.heard:
            try:
                self.members.check_none(self.group, self.partitions)
                raise AssertionError("a commit without MEMBER beside members")
            except WrongState:
                pass

    @rule(name=some.sampled_from(NAMES))
    def lost_and_regained(self, name: str) -> None:
        """Claims from before a leave do not hold after it, whoever has the partition now."""
        self._expire()
        if name not in self.heard:
            return
        hold = self.members.begin_read(
            self.group, self.partitions, name, "u", range(self.partitions), gives=False
        )
        old = {p: Claim(name, epoch) for p, epoch in hold.epochs.items()}
        self.members.end(hold)
        self.members.remove(self.group.group_id, name)
        self._gone(name)
        for partition, claim in old.items():
            try:
                self.members.pin(self.group.group_id, {partition: claim})
                raise AssertionError("a stale epoch was accepted")
            except DucktailError as error:
                assert error.sqlstate == "40001"
        self.read(name, set(), gives=False)
        for partition, claim in old.items():
            try:
                self.members.pin(self.group.group_id, {partition: claim})
                raise AssertionError("a stale epoch was accepted")
            except DucktailError as error:
                assert error.sqlstate == "40001"

    @rule(name=some.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        self._expire()
        self.members.remove(self.group.group_id, name)
        self._gone(name)

    @rule(seconds=some.integers(1, TIMEOUT_S + 5))
    def time_goes_by(self, seconds: int) -> None:
        self.clock.us += seconds * SECOND_US

    @rule()
    def everybody_reads_again(self) -> None:
        """With nothing held, all have what they are to have."""
        for read in list(self.reads):
            self.members.end(read.hold)
            if read.name in self.heard:
                self.heard[read.name] = self.clock.monotonic_s()
        self.reads.clear()
        self._expire()
        for _ in range(2):
            for name in sorted(self.heard):
                every = range(self.partitions)
                self.members.end(
                    self.members.begin_read(self.group, self.partitions, name, "u", every, gives=True)
                )
                self.heard[name] = self.clock.monotonic_s()
        self.given.clear()
        found = self.members.owners(self.group, self.partitions)
        if self.heard:
            assert None not in found
            counts = [found.count(name) for name in self.heard]
            assert max(counts) - min(counts) <= 1
            assert {shown.state for shown in self.members.shown(self.group, self.partitions)} == {"stable"}

    @invariant()
    def owners_and_epochs(self) -> None:
        if not hasattr(self, "members"):
            return
        self._expire()
        found = self.members.owners(self.group, self.partitions)
        shown = {member.name: member for member in self.members.shown(self.group, self.partitions)}
        assert shown.keys() == self.heard.keys()
        assert None not in found or not shown, "nobody's, while there are members"
        shared = self.members._groups[self.group.group_id]
        for partition, owner in enumerate(found):
            epoch = shared.epochs[partition]
            assert epoch >= self.last_epochs[partition]
            self.last_epochs[partition] = epoch
            if owner is not None:
                assert self.tenures.setdefault((partition, epoch), owner) == owner, "two owners in one epoch"
        for name, partition in self.given:
            assert found[partition] == name, "taken from a member before it had committed"


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

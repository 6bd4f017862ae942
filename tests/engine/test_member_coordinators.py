"""The coordinator of a group's members changes: this node alone, the topic's home, and a home elsewhere."""

from __future__ import annotations

import pytest
from hands import SECOND_US, Hands

from ducktail.engine.catalog.streams import Group
from ducktail.engine.errors import SerializationFailure
from ducktail.engine.groups.member import MemberHold
from ducktail.engine.groups.members import Members

GROUP = Group(7, 1, "g", "earliest", 0, session_timeout_ms=30_000)
PARTITIONS = 2


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def members(clock: Hands) -> Members:
    return Members(clock)


def read(members: Members, name: str, *, home: bool = False) -> MemberHold:
    hold = members.begin_read(GROUP, PARTITIONS, name, "u", range(PARTITIONS), gives=True, home=home)
    members.end(hold)
    return hold


def take_over(members: Members, name: str, epochs: dict[int, int]) -> None:
    members.take_over(GROUP, PARTITIONS, name, "u", epochs, {})


def test_a_home_and_an_owner_on_one_node(members: Members, clock: Hands) -> None:
    members.under(GROUP, PARTITIONS, 3)
    epochs = read(members, "a", home=True).epochs
    take_over(members, "a", {0: epochs[0]})
    members.begin_commit(GROUP, PARTITIONS, "a", "u", {1: 1}, 0, {}, home=True)
    with pytest.raises(SerializationFailure, match="does not own"):
        members.begin_commit(GROUP, PARTITIONS, "a", "u", {1: 1}, 0, {})
    # The home takes a silent member out; the owner lets it in until the next one comes.
    clock.us += 31 * SECOND_US
    assert not members.shown(GROUP, PARTITIONS) and not members.glimpse(GROUP.group_id)
    commit = members.begin_commit(GROUP, PARTITIONS, "a", "u", {0: 1}, 0, {})
    take_over(members, "b", {0: read(members, "b", home=True).epochs[0]})
    with pytest.raises(SerializationFailure, match="not a member"):
        members.pin(GROUP.group_id, commit.claims)


def test_all_partitions_come_to_a_node(members: Members, clock: Hands) -> None:
    ahead = clock.now_us() // 1000 + 100_000
    take_over(members, "a", {0: ahead})
    commit = members.begin_commit(GROUP, PARTITIONS, "a", "u", {0: 1}, 0, {})
    pin = members.pin(GROUP.group_id, commit.claims)
    # A commit under way keeps its partition, whoever assigns it.
    assert set(read(members, "b").epochs) == {1}
    members.unpin(pin, {0: 1})
    epochs = read(members, "b").epochs
    assert min(epochs.values()) > ahead
    with pytest.raises(SerializationFailure, match="not a member"):
        members.pin(GROUP.group_id, commit.claims)


def test_a_topic_gets_a_home(members: Members) -> None:
    hold = read(members, "a")
    commit = members.begin_commit(GROUP, PARTITIONS, "a", "u", {0: 1}, 0, {})
    pin = members.pin(GROUP.group_id, commit.claims)
    members.under(GROUP, PARTITIONS, 1)
    assert not members.shown(GROUP, PARTITIONS)
    members.unpin(pin, None)
    epochs = read(members, "b", home=True).epochs
    assert min(epochs.values()) > max(hold.epochs.values())
    take_over(members, "b", epochs)
    with pytest.raises(SerializationFailure, match="not a member"):
        members.begin_commit(GROUP, PARTITIONS, "a", "u", {0: 1}, 0, {})
    # And is this node's alone once more.
    assert min(read(members, "c").epochs.values()) > max(epochs.values())
    assert [member.name for member in members.shown(GROUP, PARTITIONS)] == ["c"]


def test_a_commit_under_way_is_waited_for(members: Members, clock: Hands) -> None:
    read(members, "a")
    commit = members.begin_commit(GROUP, PARTITIONS, "a", "u", {0: 1}, 0, {})
    pin = members.pin(GROUP.group_id, commit.claims)
    take_over(members, "b", {0: clock.now_us() // 1000 + 5})
    assert members.is_pinned(GROUP.group_id, [0]) and not members.is_pinned(GROUP.group_id, [1])
    members.unpin(pin, {0: 1})
    assert not members.is_pinned(GROUP.group_id, [0])

"""The plan of a placement: balanced, sticky, no more moves than needed, the same whatever the order."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ducktail.engine.errors import InvalidParameterValue
from ducktail.engine.placement.cluster_file import ClusterFile
from ducktail.engine.placement.placement import Node, Rule
from ducktail.engine.placement.placement_plan import PlacementPlan, balanced, plan

NAMES = ("a", "b", "c", "d", "e")


def node(name: str) -> Node:
    """A node of this name."""
    return Node(name, "h", 1 + ord(name[-1]))


@some.composite
def rules(draw: some.DrawFn, names: tuple[str, ...] = NAMES, most: int = 12, count: int = 5) -> list[Rule]:
    """Rules with owners of these names."""
    owners = some.lists(some.sampled_from(names), min_size=1, max_size=most)
    found = draw(some.lists(owners, min_size=0, max_size=count))
    return [Rule(f"main.t{number}", tuple(of)) for number, of in enumerate(found)]


LIVE = some.sets(some.sampled_from(("b", "c", "d", "e", "f")), min_size=1)


def spread(counts: list[int]) -> int:
    """How far counts are apart."""
    return max(counts) - min(counts)


def moved(before: list[Rule], after: tuple[Rule, ...]) -> int:
    """How many places have another owner."""
    return sum(
        old != new
        for one, other in zip(before, after, strict=True)
        for old, new in zip(one.owners, other.owners, strict=True)
    )


def is_balanced(after: list[tuple[str, ...]], live: list[str]) -> bool:
    """Within each rule and over all of them counts differ by at most one, and nobody else has any."""
    if any(set(owners) - set(live) for owners in after):
        return False
    total = Counter(owner for owners in after for owner in owners)
    each = [[owners.count(name) for name in live] for owners in after]
    return all(spread(counts) <= 1 for counts in [*each, [total[name] for name in live]])


@given(rules(), LIVE)
def test_it_is_balanced_and_its_own_answer(before: list[Rule], live: set[str]) -> None:
    after = balanced(before, live)
    assert is_balanced([rule.owners for rule in after], sorted(live))
    assert [rule.name for rule in after] == [rule.name for rule in before]
    assert balanced(after, live) == after


@given(rules(), LIVE, some.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_count(before: list[Rule], live: set[str], dice: object) -> None:
    shuffled, names = list(before), sorted(live, reverse=True)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = balanced(before, live), balanced(shuffled, names)
    assert {rule.name: rule for rule in one} == {rule.name: rule for rule in other}


@settings(deadline=None)
@given(rules(NAMES[:3], 3, 2), some.sets(some.sampled_from(("a", "b", "d")), min_size=1))
def test_nothing_balanced_has_fewer_moves(before: list[Rule], live: set[str]) -> None:
    names = sorted(live)
    every = itertools.product(*(itertools.product(names, repeat=len(rule.owners)) for rule in before))
    least = min(
        sum(
            old != new
            for rule, owners in zip(before, after, strict=True)
            for old, new in zip(rule.owners, owners, strict=True)
        )
        for after in every
        if is_balanced(list(after), names)
    )
    assert moved(before, balanced(before, live)) == least


@settings(deadline=None)
@given(rules(NAMES, 1, 6), LIVE)
def test_nor_where_only_the_whole_can_be_balanced(before: list[Rule], live: set[str]) -> None:
    """Rules of one place: which node has one is all there is to choose."""
    names = sorted(live)
    least = min(
        sum(rule.owners[0] != owner for rule, owner in zip(before, after, strict=True))
        for after in itertools.product(names, repeat=len(before))
        if spread([after.count(name) for name in names]) <= 1
    )
    assert moved(before, balanced(before, live)) == least


@given(rules(count=1), LIVE)
def test_of_one_rule_only_who_comes_gets_and_only_who_goes_gives(before: list[Rule], live: set[str]) -> None:
    settled = balanced(before, live)
    joined = balanced(settled, live | {"x"})
    left = balanced(joined, live)
    for old, new in zip(settled, joined, strict=True):
        assert {b for a, b in zip(old.owners, new.owners, strict=True) if a != b} <= {"x"}
    for old, new in zip(joined, left, strict=True):
        assert {a for a, b in zip(old.owners, new.owners, strict=True) if a != b} <= {"x"}


def file(owners: str = "aabb") -> ClusterFile:
    """Nodes a and b."""
    return ClusterFile("c", 4, (node("a"), node("b")), (Rule("*", tuple(owners)),))


def test_a_plan_has_the_next_epoch_and_says_the_moves() -> None:
    made = plan(file(), [node("c")])
    assert made.file.epoch == 5
    assert made.added == ("c",)
    assert [(move.partition, move.source, move.target) for move in made.moves] == [(3, "b", "c")]
    back = plan(made.file, remove=["b"])
    assert (back.file.epoch, back.removed) == (6, ("b",))
    assert {move.source for move in back.moves} == {"b"}


def test_a_lost_node_is_removed_and_remembered() -> None:
    made = plan(file(), [node("c")], lost=["b"])
    assert (made.removed, made.lost, made.file.lost, made.file.epoch) == (("b",), ("b",), ("b",), 5)
    # One that was removed while it was thought to come back.
    again = plan(made.file, lost=["z"])
    assert (again.removed, again.file.lost, again.file.epoch) == ((), ("b", "z"), 6)
    assert plan(again.file, lost=["b", "z"], idempotent=True).empty
    with pytest.raises(InvalidParameterValue, match='node "b" is lost'):
        plan(made.file, [node("b")])


def test_where_nothing_changes_the_epoch_stays() -> None:
    assert plan(file()) == PlacementPlan(file(), (), (), ())
    assert plan(file(), [node("a")], ["z"], idempotent=True).empty


@pytest.mark.parametrize(
    ("add", "remove", "told"),
    [
        ("a", "", 'node "a" is in the cluster already'),
        ("", "z", 'no node "z" in the cluster'),
        ("", "ab", "is the last one"),
        ("c", "c", "to be added and removed"),
    ],
)
def test_what_is_an_error(add: str, remove: str, told: str) -> None:
    with pytest.raises(InvalidParameterValue, match=told):
        plan(file(), [node(name) for name in add], list(remove), idempotent=(add == remove))


def test_the_last_node_stays_with_idempotent_too() -> None:
    with pytest.raises(InvalidParameterValue, match="is the last one"):
        plan(file(), remove=["a", "b"], idempotent=True)


def test_two_nodes_cannot_be_at_one_place() -> None:
    with pytest.raises(InvalidParameterValue, match="are both at H:98"):
        plan(file(), [Node("c", "H", node("a").port)])

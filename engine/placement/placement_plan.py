"""The plan of a placement when nodes are added or removed: balanced, sticky, and equal on every machine.

Each of n nodes gets P // n of a rule's P partitions, and P % n nodes get one more: within a rule the counts
differ by at most one. The nodes that get one more are chosen over all rules at once, so that total counts
differ by at most one as well, and so that the most partitions stay on their nodes. `assignment.place` chooses
the partitions that a node keeps and gets.

The choice is a flow problem: each rule assigns P % n units to as many nodes, a unit at a node that already
has more than P // n partitions of that rule saves a move, and a node has at least R // n of all R units and
at most one more. The algorithm begins with the choice that saves the most moves, and applies the cheapest
chain of exchanges (a gives a unit of one rule to b, b one of another rule to c ...) as long as one brings the
totals nearer to the bounds. Chains of shortest paths leave no cheaper choice with the same totals, so the
result has the fewest moves (Ahuja, Magnanti, Orlin, "Network Flows", section 9.7). Inputs are sorted first,
so that their order has no effect.
Source: docs/design/cluster.md, "The plan".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..errors import InvalidParameterValue
from ..groups.assignment import place
from ..quoting import fold
from .cluster_file import ClusterFile, PartitionMove, partition_moves
from .placement import Node, Rule

# More than the cost of all moves: a total out of its bounds is worse than any moves.
_OUT_OF_BOUNDS = 1 << 40


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """A new file, and its differences from the old one."""

    file: ClusterFile
    moves: tuple[PartitionMove, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """True without differences."""
        return not (self.moves or self.added or self.removed or self.lost)


def plan(
    file: ClusterFile,
    add: Sequence[Node] = (),
    remove: Collection[str] = (),
    *,
    lost: Collection[str] = (),
    idempotent: bool = False,
) -> PlacementPlan:
    """The file after the addition and removal of nodes, with every rule balanced; its epoch is one higher.

    Args:
        add: new nodes.
        remove: names of nodes to remove.
        lost: names of nodes whose files are lost; they are removed if they are still in the file.
        idempotent: a node that is already added or removed is not an error.

    Raises:
        InvalidParameterValue: an added node exists, a removed node does not, or it is the last one.
    """
    known = {node.name for node in file.nodes}
    new = {node.name: node for node in add}
    gone = frozenset(remove)
    if not idempotent:
        for name in sorted(new.keys() & known):
            raise InvalidParameterValue(f'node "{name}" is in the cluster already')
        for name in sorted(gone - known):
            raise InvalidParameterValue(
                f'no node "{name}" in the cluster', hint=f"Its nodes: {', '.join(sorted(known))}."
            )
    gone |= known & frozenset(lost)
    for name in sorted(new.keys() & {*file.lost, *lost}):
        raise InvalidParameterValue(
            f'node "{name}" is lost', hint="A node that takes its place wants another name."
        )
    for name in sorted(new.keys() & gone):
        raise InvalidParameterValue(f'node "{name}" is to be added and removed')
    added, removed = sorted(new.keys() - known), sorted(gone & known)
    nodes = [node for node in file.nodes if node.name not in gone] + [new[name] for name in added]
    if not nodes:
        raise InvalidParameterValue(f'node "{removed[-1]}" is the last one of the cluster')
    _check_ends(nodes)
    rules = balanced(file.rules, [node.name for node in nodes])
    by_name = tuple(sorted(nodes, key=lambda node: node.name))
    newly = tuple(sorted(frozenset(lost) - frozenset(file.lost)))
    found = replace(file, nodes=by_name, rules=rules, lost=tuple(sorted({*file.lost, *lost})))
    result = PlacementPlan(
        found, tuple(partition_moves(file.rules, rules)), tuple(added), tuple(removed), newly
    )
    return result if result.empty else replace(result, file=replace(found, epoch=file.epoch + 1))


def _check_ends(nodes: Sequence[Node]) -> None:
    """Refuse two nodes with the same address."""
    ends: dict[tuple[str, int], str] = {}
    for node in nodes:
        other = ends.setdefault((node.host.lower(), node.port), node.name)
        if other != node.name:
            raise InvalidParameterValue(
                f'nodes "{other}" and "{node.name}" are both at {node.host}:{node.port}'
            )


def balanced(rules: Sequence[Rule], nodes: Collection[str]) -> tuple[Rule, ...]:
    """The rules, in their order, with partitions balanced over these nodes only."""
    names = sorted(nodes)
    ordered = sorted(rules, key=lambda rule: fold(rule.name))
    held = [{name: rule.owners.count(name) for name in names} for rule in ordered]
    extras = _extras([len(rule.owners) for rule in ordered], held, names)
    done = {}
    for rule, more in zip(ordered, extras, strict=True):
        least = len(rule.owners) // len(names)
        quotas = {name: least + (name in more) for name in names}
        owners = place(len(rule.owners), dict(enumerate(rule.owners)), quotas)
        done[fold(rule.name)] = replace(rule, owners=tuple(owners[n] for n in range(len(rule.owners))))
    return tuple(done[fold(rule.name)] for rule in rules)


def _extras(sizes: Sequence[int], held: Sequence[Mapping[str, int]], names: Sequence[str]) -> list[set[str]]:
    """The nodes that get one more partition, for each rule."""
    saves = [
        {name for name in names if of[name] > size // len(names)}
        for size, of in zip(sizes, held, strict=True)
    ]
    chosen: list[set[str]] = []
    totals = dict.fromkeys(names, 0)
    for size, saving in zip(sizes, saves, strict=True):
        # First the nodes that keep a partition by it, then those with the fewest units so far.
        first = sorted(names, key=lambda name: (name not in saving, totals[name], name))
        more = set(first[: size % len(names)])
        chosen.append(more)
        for name in more:
            totals[name] += 1
    low, rest = divmod(sum(totals.values()), len(names))
    high = low + bool(rest)
    while (path := _best_chain(chosen, saves, totals, names, low, high)) is not None:
        for source, target in pairwise(path):
            rule = _cheapest(chosen, saves, source, target)
            assert rule is not None, "each link of a chain is an exchange"
            chosen[rule].remove(source)
            chosen[rule].add(target)
        totals[path[0]] -= 1
        totals[path[-1]] += 1
    return chosen


def _best_chain(
    chosen: Sequence[set[str]],
    saves: Sequence[set[str]],
    totals: Mapping[str, int],
    names: Sequence[str],
    low: int,
    high: int,
) -> list[str] | None:
    """The chain of exchanges with the greatest improvement, or None."""
    links = {}
    for source in names:
        for target in names:
            rule = _cheapest(chosen, saves, source, target)
            if source != target and rule is not None:
                links[source, target] = (source in saves[rule]) - (target in saves[rule])
    best: tuple[int, list[str]] | None = None
    for source in names:
        given = _OUT_OF_BOUNDS * ((totals[source] <= low) - (totals[source] > high))
        for target, (cost, path) in _shortest(links, names, source).items():
            got = _OUT_OF_BOUNDS * ((totals[target] >= high) - (totals[target] < low))
            if given + cost + got < min(0, 0 if best is None else best[0]):
                best = (given + cost + got, path)
    return None if best is None else best[1]


def _cheapest(chosen: Sequence[set[str]], saves: Sequence[set[str]], source: str, target: str) -> int | None:
    """The rule whose unit moves from `source` to `target` at the least cost, or None."""
    best: tuple[int, int] | None = None
    for rule, more in enumerate(chosen):
        if source in more and target not in more:
            cost = (source in saves[rule]) - (target in saves[rule])
            if best is None or (cost, rule) < best:
                best = (cost, rule)
    return None if best is None else best[1]


def _shortest(
    links: Mapping[tuple[str, str], int], names: Sequence[str], source: str
) -> dict[str, tuple[int, list[str]]]:
    """The cheapest chain from a node to each other one (Bellman-Ford, because links may save moves)."""
    found: dict[str, tuple[int, list[str]]] = {source: (0, [source])}
    for _ in names:
        before = dict(found)
        for (start, end), cost in links.items():
            if start in before:
                total, path = before[start]
                if end not in path and (end not in found or total + cost < found[end][0]):
                    found[end] = (total + cost, [*path, end])
        if found == before:
            break
    del found[source]
    return found

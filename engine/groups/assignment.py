"""The assignment of a consumer group's partitions to its members: cooperative and sticky.

It is a function of its inputs alone. The members' counts differ by at most one, and no assignment with such
counts moves fewer partitions: of P partitions and n members, each member keeps up to q = P // n of its own
partitions, and up to P % n members keep one more. The number of moves is therefore
P - sum(min(held, q)) - min(P % n, members that hold more than q), the minimum.
Source: docs/design/engine.md, "Members".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping


def assign(partitions: int, owners: Mapping[int, str], members: Collection[str]) -> dict[int, str]:
    """The target assignment of a group.

    It depends on the contents of the inputs, not on their order. An assignment that is passed in as `owners`
    is returned unchanged.

    Args:
        partitions: number of partitions; they are numbered 0 to partitions - 1.
        owners: partition -> present owner; a partition that is missing, or whose owner is not a member, has
            no owner.
        members: the members that share the partitions.

    Returns:
        partition -> member, for every partition; empty without members.
    """
    names = sorted(members)
    if not names:
        return {}
    counts = Counter(owner for partition, owner in owners.items() if partition < partitions)
    return place(partitions, owners, _quotas(partitions, {name: counts[name] for name in names}))


def place(partitions: int, owners: Mapping[int, str], quotas: Mapping[str, int]) -> dict[int, str]:
    """Assign partitions by quotas.

    Each member keeps its own lowest partitions up to its quota, and the free partitions fill the rest.

    Args:
        quotas: member -> number of partitions; they add up to `partitions`.

    Returns:
        partition -> member, for every partition.
    """
    assert sum(quotas.values()) == partitions
    names = sorted(quotas)
    held: dict[str, list[int]] = {name: [] for name in names}
    for partition in range(partitions):
        owner = owners.get(partition)
        if owner in held:
            held[owner].append(partition)
    assigned = {partition: name for name in names for partition in held[name][: quotas[name]]}
    free = (partition for partition in range(partitions) if partition not in assigned)
    for name in names:
        for _ in range(quotas[name] - len(held[name])):
            assigned[next(free)] = name
    return assigned


def _quotas(partitions: int, held: Mapping[str, int]) -> dict[str, int]:
    """Member -> number of partitions.

    The larger quotas go to the members that hold more than the smaller quota already, then by name.
    """
    least, more = divmod(partitions, len(held))
    ahead = sorted(held, key=lambda name: (held[name] <= least, name))
    return {name: least + (turn < more) for turn, name in enumerate(ahead)}

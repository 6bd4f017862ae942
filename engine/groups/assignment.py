"""Which member of a consumer group gets which partition: cooperative, sticky, from nothing but its inputs.

Counts differ by at most one, and no assignment with such counts takes fewer partitions from who has them:
of P partitions and n members each keeps up to q = P // n of what it has, and as many as there are left
over keep one more. So the moves are P - sum(min(held, q)) - min(P % n, how many hold more than q), which
is the least there can be. Source: docs/design/engine.md, "Members".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping


def assign(partitions: int, owners: Mapping[int, str], members: Collection[str]) -> dict[int, str]:
    """The assignment that members should come to.

    It depends on the inputs' contents alone, not on their order, and given back as `owners` it is its own
    answer.

    Args:
        partitions: how many there are, 0 to partitions - 1.
        owners: who has a partition now; one that is not a member, or a partition that is missing, is
            nobody's.
        members: who is to have them.

    Returns:
        partition -> member, for every partition; empty where there is no member.
    """
    names = sorted(members)
    if not names:
        return {}
    counts = Counter(owner for partition, owner in owners.items() if partition < partitions)
    return place(partitions, owners, _quotas(partitions, {name: counts[name] for name in names}))


def place(partitions: int, owners: Mapping[int, str], quotas: Mapping[str, int]) -> dict[int, str]:
    """Each member keeps the first partitions of its own up to its quota, and gets of the others up to it.

    Args:
        quotas: how many each is to have; together as many as there are.

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
    """How many each gets: one more than others are those who hold more already, then the first by name."""
    least, more = divmod(partitions, len(held))
    ahead = sorted(held, key=lambda name: (held[name] <= least, name))
    return {name: least + (turn < more) for turn, name in enumerate(ahead)}

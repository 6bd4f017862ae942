"""What clients of a cluster were told (cluster_clients.py), held against what is stored in the end."""

from __future__ import annotations

import gc
import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from cluster_clients import NODES, Attempt, Member, Publisher, Reader, World
from cluster_processes import ClusterProcesses

# Partition, LSN and number of an event.
Event = tuple[int, int, int]

# How long sessions may take to be gone.
GONE_S = 30.0
# What a server may have of threads beside its `worker_threads`: DuckDB's, the engine's, the encoders'.
THREADS_MAX = 16 + 24
# A session of another node that is kept for later, for each user and none: IDLE_MAX of peers.py.
IDLE_MAX = 2 * 8


def stored(nodes: ClusterProcesses, node: str, source: str) -> list[Event]:
    """Partition, LSN and event of all that is stored."""
    with nodes[node].connect() as session:
        rows = session.execute(f"SELECT partition, lsn, after FROM {source}").fetchall()
    return sorted((p, lsn, after["id"] if isinstance(after, dict) else after) for p, lsn, after in rows)


def acknowledged(attempts: Sequence[Attempt], events: Sequence[Event]) -> dict[tuple[int, int], float]:
    """(partition, LSN) -> when it was acknowledged."""
    times_s = {
        id_: attempt.acknowledged_s
        for attempt in attempts
        if attempt.acknowledged_s is not None
        for id_ in attempt.ids
    }
    return {(partition, lsn): times_s[id_] for partition, lsn, id_ in events if id_ in times_s}


def check_written(world: World, name: str, attempts: Sequence[Attempt], events: Sequence[Event]) -> None:
    """What was told of each attempt, against what is stored."""
    times = Counter(id_ for _, _, id_ in events)
    for attempt in attempts:
        for id_, partition in attempt.ids.items():
            count = times.pop(id_, 0)
            if count > 1:
                world.fault(f"{name}: event {id_} is stored {count} times")
            elif attempt.acknowledged_s is not None and not count:
                world.fault(f"{name}: event {id_} was acknowledged and is lost")
            elif partition in attempt.stored and not count:
                world.fault(f"{name}: event {id_} of partition {partition} is said to be stored")
            elif partition in attempt.lost and count:
                world.fault(f"{name}: event {id_} of partition {partition} is said not to be stored")
            elif attempt.failed and count:
                world.fault(f"{name}: event {id_} is stored, and {attempt.failed} did not say so")


def check_reads(
    world: World,
    reader: Reader,
    events: Sequence[Event],
    acknowledged_s: Mapping[tuple[int, int], float],
) -> None:
    """Each answer of a reader, against what is stored."""
    log: dict[int, list[int]] = {partition: [] for partition in reader.partitions}
    # Of what was acknowledged: when, and LSN.
    known: dict[int, list[tuple[float, int]]] = {partition: [] for partition in reader.partitions}
    for partition, lsn, _ in events:
        if partition in log:
            log[partition].append(lsn)
            if (partition, lsn) in acknowledged_s:
                known[partition].append((acknowledged_s[partition, lsn], lsn))
    for number, read in enumerate(reader.reads):
        for partition, lsns in log.items():
            got = read.lsns.get(partition, [])
            words = f"{reader.name}, answer {number}, partition {partition}"
            if got:
                place = bisect_left(lsns, got[0])
                before = lsns[place - 1] if place else 0
                if lsns[place : place + len(got)] != got:
                    world.fault(f"{words}: {got[:5]}... is not one after the other")
                if before not in read.starts[partition]:
                    world.fault(f"{words}: begins after {before} and not {sorted(read.starts[partition])}")
            if not read.cut:
                end = got[-1] if got else max(read.starts[partition])
                missing = [lsn for at_s, lsn in known[partition] if at_s < read.began_s and lsn > end]
                if missing:
                    world.fault(f"{words}: acknowledged before it began, and not in it: {missing[:5]}")


def check_seen(
    world: World,
    name: str,
    events: Sequence[Event],
    seen: Sequence[set[Event]],
) -> None:
    """Every event was given to the group, and nothing else."""
    everything = set().union(*seen)
    if missed := set(events) - everything:
        world.fault(f"{name}: {len(missed)} events were never given to the group: {sorted(missed)[:5]}")
    if strange := everything - set(events):
        world.fault(f"{name}: {len(strange)} events were given and are not stored: {sorted(strange)[:5]}")


def check_topic(
    world: World, publishers: Sequence[Publisher], readers: Sequence[Reader], events: Sequence[Event]
) -> None:
    """What was published to the topic, and read of it."""
    attempts = [attempt for publisher in publishers for attempt in publisher.attempts]
    check_written(world, "topic t", attempts, events)
    places = {id_: (partition, lsn) for partition, lsn, id_ in events}
    for publisher in publishers:
        for id_, place in publisher.placed.items():
            if places.get(id_) != place:
                world.fault(f"event {id_} was told to be at {place}, and is at {places.get(id_)}")
    times_s = acknowledged(attempts, events)
    for reader in readers:
        check_reads(world, reader, events, times_s)
    check_seen(world, "topic t", events, [reader.seen for reader in readers])


def check_members(world: World, members: Sequence[Member], events: Sequence[Event]) -> None:
    """No event is in two batches whose commits were acknowledged, and each is in one that may have been."""
    committed: Counter[tuple[int, int]] = Counter()
    for member in members:
        committed.update(member.committed)
    twice = [event for event, count in committed.items() if count > 1]
    if twice:
        world.fault(f"committed twice: (partition, lsn) {sorted(twice)[:5]}")
    maybe = set().union(*(member.maybe for member in members))
    passed = {(partition, lsn) for partition, lsn, _ in events} - maybe - committed.keys()
    if passed:
        world.fault(f"passed over by commits: (partition, lsn) {sorted(passed)[:5]} of {len(passed)}")


def check_left_over(world: World) -> None:
    """No session and no socket of the clients is left on the nodes."""
    # psycopg leaves a connection that it has given up, as it took too long to make, to the garbage collector.
    gc.collect()
    for name in NODES:
        ends_s = time.monotonic() + GONE_S
        with world.nodes[name].connect() as session:
            while True:
                text = "SELECT node, state, application_name FROM ducktail.sessions"
                rows = session.execute(text).fetchall()
                users = [row for row in rows if row[0] is None]
                peers = Counter(node for node, *_ in rows if node is not None)
                if len(users) == 1 and all(count <= IDLE_MAX for count in peers.values()):
                    break
                if time.monotonic() > ends_s:
                    world.fault(f"{name} still has sessions {rows}")
                    break
                threading.Event().wait(0.1)
            pid = world.nodes[name].process.pid
            sockets = sum(
                "socket" in os.readlink(f"/proc/{pid}/fd/{one}") for one in os.listdir(f"/proc/{pid}/fd")
            )
            if sockets > len(rows) + 2 * IDLE_MAX + 6:
                world.fault(f"{name} has {sockets} sockets, and {len(rows)} sessions")
            threads = len(os.listdir(f"/proc/{pid}/task"))
            if threads > THREADS_MAX:
                world.fault(f"{name} has {threads} threads")
            world.left.append((len(rows), sockets, threads))

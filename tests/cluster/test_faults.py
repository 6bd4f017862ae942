"""Promises of a cluster whose nodes are killed, stopped, cut off and started again while clients go on.

Writers publish to a topic that is spread over three server processes, and insert into a table on each of
them; readers read and commit through any node, of the topic each its own partitions, and members of a group
what is assigned to them, of all owners. On an error a client does what a user would: it tries again, often on
another node. What each was told is held against what is stored in the end:

- what was acknowledged is stored, once; so is what was repeated under one producer and sequence, twenty times
  and through any nodes; what was
  not acknowledged is stored at most once an attempt, and is or is not where the error says so;
- a group gets in each partition one event after the other, from where it has committed: none is left out;
- an answer that is not cut by its LIMIT has all that was acknowledged before it was asked for, whichever
  owner is away: where one cannot be asked it is an error;
- committed LSNs never go back, no two members commit the same event, and none is passed over;
- a repeat is answered as the first time, and an event's partition and LSN stay what they were, whichever
  nodes have had its partition: placements come into force meanwhile, on one node after the other;
- a statement ends when its time is over, whichever other node is away;
- errors have the SQLSTATEs that they may have, nothing hangs, and nothing is left over on the nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from amounts import amount, seed_of
from cluster_clients import KEYS, NODES, Client, Inserter, Member, Monitor, Publisher, Reader, World
from cluster_faults import Fates
from cluster_judge import (
    acknowledged,
    check_left_over,
    check_members,
    check_reads,
    check_seen,
    check_topic,
    check_written,
    stored,
)
from cluster_processes import ClusterProcesses
from cluster_proxies import Proxies

SECONDS = amount("DUCKTAIL_CLUSTER_SECONDS", 7.0, 120.0)
SEED = seed_of("DUCKTAIL_CLUSTER_SEED")
SPREAD = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3", n2 = "4-7", n3 = "8-1023" }\n'
TOPIC_PARTITIONS, TABLE_PARTITIONS = 12, 4
# How long a node is left alone.
UP_S = (0.5, min(30.0, SECONDS / 4))
# How long the rest may take once nobody is hindered any more.
CATCH_UP_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ClusterProcesses, Proxies]]:
    """Three nodes, each of which the others reach through its proxy."""
    started = ClusterProcesses(tmp_path, len(NODES), SPREAD, start=False, guests=1)
    with Proxies(started.ports) as between, started:
        started.reached = between.ports
        for name in NODES:
            started.file(name).write_text(started.text())
            started.start(name)
        with started["n1"].connect() as session:
            session.execute(f"CREATE TOPIC t WITH (partitions = {TOPIC_PARTITIONS})")
            session.execute("CREATE CONSUMER GROUP g ON t")
            session.execute("CREATE CONSUMER GROUP m ON t WITH (session_timeout = '3 s')")
        for name in NODES:
            with started[name].connect() as session:
                session.execute(f"CREATE TABLE r_{name} (id BIGINT PRIMARY KEY)")
                session.execute(f"CREATE STREAM s_{name} ON r_{name} WITH (partitions = {TABLE_PARTITIONS})")
                session.execute(f"CREATE CONSUMER GROUP g ON s_{name} WITH (session_timeout = '3 s')")
        yield started, between


def partitions_of_keys(nodes: ClusterProcesses) -> list[int]:
    with nodes["n1"].connect() as session:
        rows = session.execute(
            f"SELECT ducktail.partition_of('t', i::VARCHAR) FROM range({KEYS}) r(i) ORDER BY i"
        ).fetchall()
    return [partition for (partition,) in rows]


def begun(clients: Sequence[Client], world: World) -> list[threading.Thread]:
    """Each at work in a thread of its own; what they raise is a fault."""

    def guarded(client: Client) -> None:
        try:
            client.work()
        except Exception as error:
            world.fault(f"{client.name}: {type(error).__name__}: {error}")
        finally:
            client.leave()

    threads = [threading.Thread(target=guarded, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    return threads


def monitors(world: World, name: str) -> list[Monitor]:
    """One for each group."""
    groups = [("t", "g"), ("t", "m"), *((f"s_{node}", "g") for node in NODES)]
    return [Monitor(world, f"{name} of {group} of {stream}", stream, group) for stream, group in groups]


def run(world: World, writers: Sequence[Client], readers: Sequence[Client]) -> None:
    """Let them work for SECONDS among troubles, and then to the end."""
    writing = begun(writers, world)
    reading = begun([*readers, *monitors(world, "monitor")], world)
    pace = threading.Event()
    world.fates.begin()
    try:
        pace.wait(SECONDS)
        world.fates.end()
        world.writing_over.set()
        for thread in writing:
            thread.join()
        last, ends_s = monitors(world, "last look"), time.monotonic() + CATCH_UP_S
        while any(one.lag() != 0 for one in last):
            if time.monotonic() > ends_s:
                world.fault("the groups do not come to the end")
                break
            pace.wait(0.2)
        for one in last:
            one.leave()
    finally:
        world.fates.end()
        world.writing_over.set()
        world.reading_over.set()
        for thread in (*writing, *reading):
            thread.join()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_nodes_that_are_killed_stopped_and_cut_off(cluster: tuple[ClusterProcesses, Proxies]) -> None:
    nodes, between = cluster
    world = World(nodes, Fates(nodes, SEED, UP_S), SEED, partitions_of_keys(nodes))
    owners = {p: NODES[min(p // 4, 2)] for p in range(TOPIC_PARTITIONS)}
    world.fates.moving("main.t", owners, SEED)
    world.fates.cutting(between, SEED)
    publishers = [Publisher(world, f"p{number}") for number in range(6)]
    inserters = [Inserter(world, name) for name in NODES]
    topic_readers = [
        Reader(world, f"reader {n} of t", "TOPIC t", "g", range(n, TOPIC_PARTITIONS, 3)) for n in range(3)
    ]
    table_readers = {
        name: Reader(world, f"reader of {name}", f"STREAM s_{name}", "g", range(TABLE_PARTITIONS))
        for name in ("n1", "n2")
    }
    members = [Member(world, f"m{number}", "STREAM s_n3", "g") for number in range(2)]
    topic_members = [Member(world, f"t{number}", "TOPIC t", "m") for number in range(3)]
    readers = [*topic_readers, *table_readers.values(), *members, *topic_members]
    run(world, [*publishers, *inserters], readers)
    assert not world.fates.failed, world.fates.failed
    check_left_over(world)
    events = [stored(nodes, "n2", source) for source in ("TOPIC t", *(f"STREAM s_{name}" for name in NODES))]
    assert events[0] == stored(nodes, "n1", "TOPIC t")
    check_topic(world, publishers, topic_readers, events[0])
    check_seen(world, "members of topic t", events[0], [member.seen for member in topic_members])
    check_members(world, topic_members, events[0])
    for inserter, log in zip(inserters, events[1:], strict=True):
        stream = f"stream s_{inserter.node}"
        check_written(world, stream, inserter.attempts, log)
        if inserter.node in table_readers:
            reader = table_readers[inserter.node]
            check_reads(world, reader, log, acknowledged(inserter.attempts, log))
            check_seen(world, stream, log, [reader.seen])
        else:
            check_seen(world, stream, log, [member.seen for member in members])
            check_members(world, members, log)
    count = sum(map(len, events))
    fates = f"{dict(world.fates.counts)}, {world.fates.moves} moves, {world.fates.visits} visits"
    print("cuts", dict(world.fates.cuts), f"slowest leave {world.fates.slowest_leave_s:.0f} s")
    print(f"seed {SEED}, {SECONDS:.0f} s: {fates}, {count} events, {dict(world.done)}")
    print("errors", {f"{what} {code}": n for (what, code), n in sorted(world.errors.items())})
    print("longest overrun of a time-out: {:.1f} s, {}".format(*world.overrun))
    print("sessions, sockets, threads in the end", world.left)
    print("slowest", {what: round(took_s, 1) for what, took_s in sorted(world.slowest_s.items())})
    told = "\n".join([f"{len(world.faults)} faults:", *world.faults[:20]])
    assert not world.faults, told

"""What goes from node to node with a partition: its events in pieces, and what is kept of them afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hands import DAY_US, Hands
from nodes_in_process import Cluster, nodes_in_process

from ducktail.engine.catalog.segments import EVENTS
from ducktail.engine.catalog.streams import Stream
from ducktail.engine.cluster import send_partition
from ducktail.engine.cluster.receive_partition import Came, PartitionReceiver
from ducktail.engine.database import Database
from ducktail.engine.waiting import drive

MIB = 1 << 20


@pytest.fixture
def clock() -> Hands:
    """The test's clock."""
    return Hands()


@pytest.fixture
def cluster(clock: Hands) -> Iterator[Cluster]:
    """Three nodes, and topic t of three partitions, which go round with each placement."""
    with nodes_in_process(clock) as nodes:
        client = nodes.client("n1")
        client("CREATE TOPIC t WITH (partitions = 3)")
        client.close()
        yield nodes


def of(database: Database) -> Stream:
    return database.catalog.streams["main", "t"]


def published(cluster: Cluster, node: str, *events: tuple[int, int]) -> None:
    """Publish events of a partition's own: so many of so many bytes."""
    client = cluster.client(node)
    for count, size in events:
        keys = client("SELECT i FROM range(1000) r(i) WHERE ducktail.partition_of('t', i) = 0 LIMIT 1")
        client(
            f"INSERT INTO t (key, payload) SELECT {keys[0][0]}, repeat('x', {size}) FROM range({count}) r(i)"
        )
    client.close()


def pieces(database: Database) -> list[tuple[int, int]]:
    """Of each piece of partition 0 how many events and bytes it has; they go on where the last one ended."""
    found, after = [], 0
    drive(database.publisher.wait_published(database.commits.last_lsn))
    while (piece := send_partition.piece(database, of(database), 0, after)).num_rows:
        lsns = piece.column("lsn").to_pylist()
        assert lsns == sorted(lsns) and lsns[0] > after
        after = lsns[-1]
        found.append((piece.num_rows, piece.column("event").nbytes))
    return found


def move(cluster: Cluster, partition: int, source: str, target: str) -> None:
    """Bring a partition from node to node by the placement in force."""
    giver, taker = cluster.databases[source], cluster.databases[target]
    facts = drive(
        send_partition.give(giver, giver.sessions.new_id(), of(giver), [partition], target, force=False)
    )
    taking = PartitionReceiver(taker, taker.sessions.new_id(), of(taker), taker.placement.epoch)
    after = 0
    while (piece := send_partition.piece(giver, of(giver), partition, after)).num_rows:
        taking.put(partition, piece)
        after = piece.column("lsn")[-1].as_py()
    taking.finish({partition: Came(facts[partition], source, *taking.counted(partition))})
    taking.close()


def test_a_piece_is_bounded_by_its_bytes(cluster: Cluster) -> None:
    published(cluster, "n1", (20, MIB), (5000, 10))
    first, *others = pieces(cluster.databases["n1"])
    assert sum(count for count, _ in (first, *others)) == 5020
    assert all(
        size < 2 * send_partition.PIECE_BYTES and count <= send_partition.PIECE_ROWS
        for count, size in (first, *others)
    )
    assert first[0] == send_partition.FIRST_ROWS


def test_what_was_given_on_is_let_go_of_by_retention(cluster: Cluster, clock: Hands) -> None:
    published(cluster, "n1", (50, 10))
    moves = (("n1", "n2"), ("n2", "n3"))
    for epoch, (source, target) in enumerate(moves, 2):
        cluster.place(epoch)
        move(cluster, 0, source, target)
    second, third = (cluster.databases[name] for name in ("n2", "n3"))

    def left(database: Database) -> int:
        cursor = database.cursor()
        (count,) = cursor.execute(f"SELECT count(*) FROM {EVENTS}").fetchone() or (None,)
        cursor.close()
        return int(count)

    assert (left(second), left(third)) == (50, 50)
    second.retention.look()
    assert left(second) == 50
    cluster.place(5)
    clock.us += 8 * DAY_US
    # By the placement the partition is to come back: what it is counted by must not change meanwhile.
    second.retention.look()
    assert left(second) == 50
    cluster.place(6)
    second.retention.look()
    assert left(second) == 0

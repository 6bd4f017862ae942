"""Events published on any node of a cluster are stored by the owners of their partitions, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from nodes_in_process import Client, Cluster, RoundRobin, nodes_in_process

from ducktail.engine.errors import (
    CannotConnect,
    ConnectionLost,
    DucktailError,
    NotSupported,
    SerializationFailure,
)
from ducktail.engine.waiting import drive
from ducktail.sql.peer_requests import partition_moves

pytestmark = pytest.mark.slow

PARTITIONS = 12
FIVE = "PUBLISH TO t VALUES ('a', 'k1'), ('b', 'k2'), ('c', 'k3'), ('d', 'k4'), ('e', 'k5')"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes with a topic."""
    with nodes_in_process() as nodes:
        client = nodes.client("n1")
        client(f"CREATE TOPIC t WITH (partitions = {PARTITIONS})")
        client.close()
        yield nodes


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[dict[str, Client]]:
    """A client of each."""
    made = {node: cluster.client(node) for node in cluster.databases}
    yield made
    for client in made.values():
        client.close()


def stored(cluster: Cluster) -> list[tuple[str, object, object, object]]:
    """Node, partition, key and payload of each event, as each node has them itself."""
    found = []
    for node, database in cluster.databases.items():
        cursor = database.cursor()
        # The view is the node's own; users are refused it, as it is not all of the topic.
        rows = cursor.execute("SELECT partition, key, after FROM t").fetchall()
        found += [(node, *row) for row in rows]
        cursor.close()
    return found


def owner(partition: object) -> str:
    assert isinstance(partition, int)
    return f"n{partition % 3 + 1}"


@pytest.mark.parametrize("entry", ["n1", "n2", "n3"])
def test_each_event_is_its_owners(cluster: Cluster, clients: dict[str, Client], entry: str) -> None:
    client = clients[entry]
    rows = client("PUBLISH TO t KEY q.payload SELECT i FROM range(100) r(i)")
    assert len(rows) == 100
    for partition, lsn, node, local in rows:
        assert (node, local) == (owner(partition), owner(partition) == entry) and isinstance(lsn, int)
    found = stored(cluster)
    assert sorted(int(str(after)) for *_, after in found) == list(range(100))
    assert all(node == owner(partition) for node, partition, *_ in found)
    there = client("SELECT ducktail.partition_of('t', i) FROM range(100) r(i)")
    of = {str(key): partition for _, partition, key, _ in found}
    assert [of[str(i)] for i in range(100)] == [row[0] for row in there]


def test_what_has_no_key_goes_round(cluster: Cluster, clients: dict[str, Client]) -> None:
    for place in range(2 * PARTITIONS):
        clients["n2"]("PUBLISH TO t $1", f"event {place}")
    assert set(Counter(partition for _, partition, *_ in stored(cluster)).values()) == {2}


def test_an_insert_is_a_publish(cluster: Cluster, clients: dict[str, Client]) -> None:
    clients["n3"]("INSERT INTO t (payload, key) SELECT i, i FROM range(30) r(i)")
    clients["n3"]("INSERT INTO t (key, payload) VALUES ('k', '{\"a\": 1}')")
    assert len(stored(cluster)) == 31
    rows = clients["n3"](
        "INSERT INTO t AS e (payload, key) SELECT i, i FROM range(30) r(i) "
        "RETURNING lsn, e.partition AS p, key, payload, upper(payload::VARCHAR)"
    )
    assert [row[2:4] for row in rows] == [(str(i), str(i)) for i in range(30)]
    assert {row[1:3] for row in rows} <= {row[1:3] for row in stored(cluster)}
    assert clients["n1"]("INSERT INTO t (payload) VALUES ('x') RETURNING payload") == [('"x"',)]


def test_copied_rows_are_shared_out_at_the_end(cluster: Cluster, clients: dict[str, Client]) -> None:
    session = clients["n1"].session
    statement = drive(session.parse("COPY t (payload, key) FROM STDIN"))
    result = drive(session.execute(statement, ()))
    assert result.copy_in is not None
    for start in range(0, 300, 100):
        lines = b"".join(b"%d\tk%d\n" % (i, i) for i in range(start, start + 100))
        drive(session.copy_data(result.copy_in, lines))
    assert not stored(cluster)
    assert drive(session.copy_done(result.copy_in)).tag == "COPY 300"
    found = stored(cluster)
    assert len(found) == 300 and all(node == owner(partition) for node, partition, *_ in found)


@pytest.mark.parametrize("losses", [1, 2])
def test_a_share_whose_answer_is_lost_is_stored_once(
    cluster: Cluster, clients: dict[str, Client], losses: int
) -> None:
    cluster.deaf["n2"] = losses
    rows = clients["n1"](FIVE)
    assert cluster.deaf["n2"] == 0
    assert len(rows) == 5 and len(stored(cluster)) == 5
    clients["n1"](FIVE)
    assert len(stored(cluster)) == 10
    assert clients["n1"].notices == []


def test_a_repeat_of_ones_own_is_stored_once(cluster: Cluster, clients: dict[str, Client]) -> None:
    statement = (
        "PUBLISH TO t VALUES ('a', 'k1'), ('b', 'k2'), ('c', NULL), ('d', NULL) "
        "WITH (producer = 'p', sequence = 1)"
    )
    first = clients["n1"](statement)
    again = clients["n2"](statement)
    assert [row[:3] for row in first] == [row[:3] for row in again] and len(stored(cluster)) == 4
    assert any("has been published" in notice for notice in clients["n2"].notices)


def test_an_owner_that_is_away_is_told_with_what_stands(
    cluster: Cluster, clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducktail.sql.cluster.topic_publishing.AGAIN_S", 0.0)
    cluster.away.add("n3")
    with pytest.raises(CannotConnect, match=r'topic "t", partitions .* on node "n3"') as raised:
        clients["n1"]("INSERT INTO t (payload, key) SELECT i, i FROM range(100) r(i)")
    assert raised.value.detail is not None
    assert "are stored. Those of partitions 2, 5, 8 and 11 are not." in raised.value.detail
    assert {node for node, *_ in stored(cluster)} == {"n1", "n2"}
    cluster.away.clear()
    cluster.deaf["n3"] = 100
    with pytest.raises(ConnectionLost) as lost:
        clients["n1"]("INSERT INTO t (payload, key) SELECT i, i FROM range(100) r(i)")
    assert lost.value.detail is not None and "2, 5, 8 and 11 are is unknown." in lost.value.detail


def test_what_was_sent_and_then_refused_may_be_stored(cluster: Cluster, clients: dict[str, Client]) -> None:
    cluster.deaf["n3"] = 1

    def newer() -> None:
        local = cluster.databases["n3"].placement.local
        cluster.databases["n3"].install_placement(RoundRobin(local, 2))

    cluster.on_loss = newer
    with pytest.raises(ConnectionLost) as lost:
        clients["n1"]("INSERT INTO t (payload, key) SELECT i, i FROM range(100) r(i)")
    assert lost.value.detail is not None and "2, 5, 8 and 11 are is unknown." in lost.value.detail
    assert {node for node, *_ in stored(cluster)} == {"n1", "n2", "n3"}


def test_a_share_of_ones_own_by_a_placement_that_is_over_is_not_stored(
    cluster: Cluster, clients: dict[str, Client]
) -> None:
    assert clients["n3"]("SELECT count(*) FROM TOPIC t") == [(0,)]
    cluster.deaf["n1"] = 1
    # While the first owner is asked, before this node's own share is stored.
    cluster.on_loss = lambda: cluster.place(2)
    with pytest.raises(ConnectionLost) as raised:
        clients["n3"]("INSERT INTO t (payload, key) SELECT i, i FROM range(100) r(i)")
    assert raised.value.detail is not None and "2, 4, 5, 7, 8, 10 and 11 are not" in raised.value.detail
    # Its partitions may have been given: what it stored then would be acknowledged and lost.
    assert {node for node, *_ in stored(cluster)} == {"n1"}


def test_a_transaction_publishes_to_its_own_partitions_only(
    cluster: Cluster, clients: dict[str, Client]
) -> None:
    client = clients["n2"]
    client("BEGIN")
    rows = client("PUBLISH TO t VALUES ('a'), ('b'), ('c')")
    assert {row[2] for row in rows} == {"n2"}
    with pytest.raises(NotSupported, match="a transaction block cannot publish to it"):
        client("INSERT INTO t (payload, key) SELECT i, i FROM range(100) r(i)")
    client("ROLLBACK")
    assert not stored(cluster)
    client("BEGIN")
    client("PUBLISH TO t VALUES ('a'), ('b'), ('c')")
    client("COMMIT")
    assert {(node, owner(partition)) for node, partition, *_ in stored(cluster)} == {("n2", "n2")}


def test_nothing_is_stored_by_a_placement_that_is_over(
    cluster: Cluster, clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody brings the partitions that are on their way.
    monkeypatch.setattr(partition_moves, "ARRIVE_S", 0.1)
    client = clients["n2"]
    client("BEGIN")
    client("PUBLISH TO t VALUES ('a')")
    here = cluster.databases["n2"]
    here.install_placement(RoundRobin(here.placement.local, 2))
    with pytest.raises(SerializationFailure, match="placement 2 took the place of 1"):
        client("COMMIT")
    for entry in ("n1", "n2"):
        with pytest.raises(DucktailError) as raised:
            clients[entry]("INSERT INTO t (payload, key) SELECT i, i FROM range(100) r(i)")
        assert raised.value.sqlstate == "40001"

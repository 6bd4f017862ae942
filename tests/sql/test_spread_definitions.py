"""Topics and groups of a cluster are defined on every node, as one thing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from nodes_in_process import Client, Cluster, RoundRobin, nodes_in_process

from ducktail.engine.errors import (
    CannotConnect,
    DependentObjects,
    DuplicateObject,
    InvalidParameterValue,
    LockNotAvailable,
    NotSupported,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ducktail.engine.placement.peer import Peer
from ducktail.sql.peer_requests import partition_moves

pytestmark = pytest.mark.slow

CREATE = "CREATE TOPIC t WITH (partitions = 12, retention = '90 minutes')"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes."""
    with nodes_in_process() as nodes:
        yield nodes


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[dict[str, Client]]:
    """A client of each."""
    made = {node: cluster.client(node) for node in cluster.databases}
    yield made
    for client in made.values():
        client.close()


def facts(client: Client, statement: str, *names: str) -> dict[object, object]:
    rows = {row[0]: row[1] for row in client(statement)}
    return {name: rows[name] for name in names}


@pytest.mark.parametrize("entry", ["n1", "n2", "n3"])
def test_a_topic_is_one_thing_on_all_nodes(clients: dict[str, Client], entry: str) -> None:
    clients[entry](CREATE)
    clients[entry]("CREATE CONSUMER GROUP g ON t START LATEST WITH (session_timeout = '5 s')")
    for statement in ("DESCRIBE STREAM t", "DESCRIBE CONSUMER GROUP g ON t"):
        found = [facts(client, statement, "identity") for client in clients.values()]
        assert found[0] == found[1] == found[2]
    with pytest.raises(DuplicateObject):
        clients["n2"]("CREATE TOPIC t")
    with pytest.raises(DuplicateObject):
        clients["n2"]("CREATE CONSUMER GROUP g ON t")
    clients["n3"]("CREATE TOPIC IF NOT EXISTS t")
    assert clients["n3"].notices == ['topic "t" already exists, skipping']
    clients["n1"]("ALTER TOPIC t SET (compaction = 'none')")
    for text in ("CREATE TOPIC kept WITH (compaction = 'key')", "ALTER TOPIC t SET (compaction_lag = '1 h')"):
        with pytest.raises(NotSupported, match="in a cluster"):
            clients[entry](text)
    for client in clients.values():
        with pytest.raises(UndefinedObject):
            client("DESCRIBE STREAM kept")


def test_a_node_that_is_away_stops_a_definition_before_it_is_made(
    cluster: Cluster, clients: dict[str, Client]
) -> None:
    cluster.away.add("n1")  # The home.
    with pytest.raises(CannotConnect, match='topic "t" is unchanged: node "n1"'):
        clients["n2"](CREATE)
    for node in ("n2", "n3"):
        with pytest.raises(UndefinedObject):
            clients[node]("DESCRIBE STREAM t")
    cluster.away.clear()
    clients["n2"](CREATE)
    cluster.away.add("n3")
    for text in ("CREATE CONSUMER GROUP g ON t", "DROP TOPIC t"):
        with pytest.raises(CannotConnect, match="is unchanged"):
            clients["n2"](text)
    assert clients["n1"]("DESCRIBE STREAM t")


def test_a_topic_is_made_without_a_node_that_is_away(cluster: Cluster, clients: dict[str, Client]) -> None:
    cluster.away.add("n3")
    clients["n2"](CREATE)
    assert clients["n2"].notices == ['topic "t" is not on node "n3" yet, which is away']
    cluster.away.clear()
    # Whoever has made it tells it, once.
    for node in ("n1", "n2"):
        owing = cluster.databases[node].cluster
        assert (owing.owes("n3"), owing.owes("n3"), owing.owes("n1")) == (True, False, False)


@pytest.mark.parametrize("exists", ["", "IF NOT EXISTS "])
def test_the_same_definition_again_gives_it_to_a_node_that_lacks_it(
    cluster: Cluster, clients: dict[str, Client], exists: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody brings the partitions that the node lacks.
    monkeypatch.setattr(partition_moves, "ARRIVE_S", 0.1)
    clients["n1"](CREATE)
    lacking = cluster.databases["n3"]
    drop_here(cluster, "n3", "DROP TOPIC t CASCADE")
    assert not lacking.catalog.streams
    with pytest.raises(WrongState, match='node "n3" does not have topic "t", which node "n1" has'):
        clients["n2"]("ALTER TOPIC t SET (retention = '1 day')")
    clients["n2"](f"CREATE TOPIC {exists}t WITH (partitions = 12, retention = '90 minutes')")
    names = ("identity", "partitions", "retention", "buffer_bytes")
    assert len({str(facts(client, "DESCRIBE STREAM t", *names)) for client in clients.values()}) == 1


def drop_here(cluster: Cluster, node: str, statement: str) -> None:
    """Do a statement on one node alone, as no client can."""
    client = cluster.client(node)
    client.session.peer = Peer("n9", "test", 1)
    client(statement)
    client.close()


def test_two_topics_of_one_name_are_told(cluster: Cluster, clients: dict[str, Client]) -> None:
    drop_here(cluster, "n1", "CREATE TOPIC t")
    drop_here(cluster, "n2", "CREATE TOPIC t")
    with pytest.raises(WrongState, match='nodes "n1" and "n2" disagree about topic "t"'):
        clients["n3"]("CREATE TOPIC IF NOT EXISTS t")
    clients["n3"]("DROP TOPIC t CASCADE")
    clients["n3"]("CREATE TOPIC t")


def test_altered_and_dropped_everywhere(clients: dict[str, Client]) -> None:
    clients["n1"](CREATE)
    clients["n2"]("ALTER TOPIC t SET (retention = '2 days', retention_bytes = '1 GB')")
    clients["n3"]("CREATE CONSUMER GROUP g ON t")
    clients["n1"]("ALTER CONSUMER GROUP g ON t SET (on_gap = 'earliest')")
    found = [facts(c, "DESCRIBE STREAM t", "retention", "retention_bytes") for c in clients.values()]
    assert found == [{"retention": "2 days", "retention_bytes": "1000000000"}] * 3
    for client in clients.values():
        assert facts(client, "DESCRIBE CONSUMER GROUP g ON t", "on_gap") == {"on_gap": "earliest"}
    clients["n2"]("DROP CONSUMER GROUP g ON t")
    for client in clients.values():
        with pytest.raises(UndefinedObject):
            client("DESCRIBE CONSUMER GROUP g ON t")
    with pytest.raises(UndefinedObject):
        clients["n2"]("DROP CONSUMER GROUP g ON t")
    clients["n3"]("DROP TOPIC t")
    for client in clients.values():
        with pytest.raises(UndefinedObject):
            client("DESCRIBE STREAM t")
    clients["n3"]("DROP TOPIC IF EXISTS t")
    with pytest.raises(UndefinedObject):
        clients["n3"]("DROP TOPIC t")


def test_what_a_spread_topic_cannot_have(clients: dict[str, Client]) -> None:
    client = clients["n1"]
    client(CREATE)
    with pytest.raises(InvalidParameterValue, match="START AFTER has no meaning"):
        client("CREATE CONSUMER GROUP g ON t START AFTER 0")
    with pytest.raises(NotSupported, match="that name has other owners"):
        client("ALTER TOPIC t RENAME TO alone")
    client("ALTER TOPIC t RENAME TO u")
    assert clients["n3"]("DESCRIBE STREAM u")
    client("BEGIN")
    with pytest.raises(NotSupported, match="in a transaction block"):
        client("CREATE CONSUMER GROUP g ON u")
    client("ROLLBACK")


def test_a_topic_with_unread_events_is_kept(cluster: Cluster, clients: dict[str, Client]) -> None:
    clients["n1"](CREATE)
    clients["n1"]("CREATE CONSUMER GROUP g ON t")
    clients["n1"]("PUBLISH TO t SELECT i FROM range(12) r(i)")
    with pytest.raises(DependentObjects, match='has 4 unread events on node "n1"'):
        clients["n3"]("DROP TOPIC t")
    clients["n3"]("DROP TOPIC t CASCADE")


def test_lists_are_of_all_nodes_that_answer(cluster: Cluster, clients: dict[str, Client]) -> None:
    clients["n1"]("CREATE TOPIC t WITH (partitions = 3)")
    clients["n1"]("CREATE CONSUMER GROUP g ON t")
    clients["n2"]("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    clients["n2"]("CREATE STREAM s ON orders WITH (partitions = 1)")
    clients["n1"]("PUBLISH TO t SELECT i FROM range(6) r(i)")
    for client in clients.values():
        assert [(row[1], row[-1]) for row in client("SHOW STREAMS")] == [("s", "n2")]
        assert [(row[1], row[4], row[-1]) for row in client("SHOW TOPICS LIKE 't%'")] == [
            ("t", 2, "n1"), ("t", 2, "n2"), ("t", 2, "n3")
        ]  # fmt: skip
        assert [(row[2], row[-1]) for row in client("SHOW CONSUMER GROUPS")] == [
            ("g", "n1"), ("g", "n2"), ("g", "n3")
        ]  # fmt: skip
        assert client.notices == []
    cluster.away.add("n2")
    assert clients["n1"]("SHOW STREAMS") == []
    assert clients["n1"].notices == ['what node "n2" has is not in the answer: node "n2" cannot be reached']


def test_a_stream_wants_a_name_that_no_other_node_has(cluster: Cluster, clients: dict[str, Client]) -> None:
    for client in (clients["n1"], clients["n2"]):
        client("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    clients["n2"]("CREATE STREAM s ON orders")
    for text in ("CREATE STREAM s ON orders", "CREATE STREAM IF NOT EXISTS s ON orders"):
        with pytest.raises(DuplicateObject) as told:
            clients["n1"](text)
        assert told.value.detail == 'It is on node "n2".'
    clients["n1"]("CREATE STREAM u ON orders")
    with pytest.raises(DuplicateObject):
        clients["n1"]("ALTER STREAM u RENAME TO s")
    clients["n1"]("ALTER STREAM u RENAME TO w")
    clients["n2"]("CREATE STREAM IF NOT EXISTS s ON orders")
    cluster.away.add("n2")
    clients["n1"].notices.clear()
    clients["n1"]("CREATE STREAM v ON orders")
    assert any('cannot tell whether node "n2" has a stream "v"' in n for n in clients["n1"].notices)


def test_listen_tells_of_whom_it_does_not_hear(clients: dict[str, Client]) -> None:
    clients["n1"]("CREATE TOPIC t WITH (partitions = 6)")
    clients["n1"]("CREATE TOPIC alone")
    clients["n1"]("LISTEN t")
    assert clients["n1"].notices == [
        'of topic "t" only the partitions of this node are told: others are of nodes "n2" and "n3"'
    ]
    with pytest.raises(NotSupported, match='its partitions are of node "n3"'):
        clients["n1"]("LISTEN alone")
    clients["n3"]("LISTEN alone")


def test_a_share_of_another_placement_is_refused(cluster: Cluster, clients: dict[str, Client]) -> None:
    clients["n1"](CREATE)
    there = cluster.databases["n3"]
    there.install_placement(RoundRobin(there.placement.local, 2))
    with pytest.raises(SerializationFailure, match='node "n1" comes with epoch 1, which is over'):
        clients["n1"]("DROP TOPIC t")


def test_two_nodes_that_make_one_name_at_one_moment(cluster: Cluster, clients: dict[str, Client]) -> None:
    """The later node gives up at once, the other waits for it: one of them makes the stream."""
    for client in clients.values():
        client("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    for busy, node in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
        with cluster.databases[busy].cluster.making(("main", "s")):
            with pytest.raises(DuplicateObject, match=f'is being made on node "{busy}"'):
                clients[node]("CREATE STREAM s ON t")
            with pytest.raises(LockNotAvailable):
                clients[node]("CREATE TOPIC s WITH (partitions = 3)")
    clients["n1"]("SET lock_timeout = '1 s'")
    third = cluster.databases["n3"].cluster
    with third.making(("main", "s")), pytest.raises(LockNotAvailable, match='is being made on node "n3"'):
        clients["n1"]("CREATE STREAM s ON t")
    with ThreadPoolExecutor(3) as threads:
        made = [threads.submit(client, "CREATE STREAM s ON t") for client in clients.values()]
        failed = [one.exception() for one in made]
    assert failed.count(None) == 1
    assert all(error is None or isinstance(error, DuplicateObject) for error in failed), failed
    with pytest.raises(DuplicateObject):
        clients["n2"]("CREATE STREAM s ON t")


FORKING = """
import os
from ducktail.sql.cluster.topic_publishing import ProducerNames
producer_names, names = ProducerNames(), os.pipe()
with producer_names.reserved("n1"):
    pass
if os.fork():
    os.wait()
    with producer_names.reserved("n1") as ours:
        assert os.read(names[0], 200).decode() != ours.producer
else:
    with producer_names.reserved("n1") as theirs:
        os.write(names[1], theirs.producer.encode())
"""


def test_a_forked_process_lends_names_of_its_own() -> None:
    """Under another process's name and sequence its events would be taken for repeated ones."""
    subprocess.run([sys.executable, "-c", FORKING], check=True)

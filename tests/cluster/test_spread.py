"""A topic of 12 partitions spread over three server processes: any node takes any statement about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses

NODES = ("n1", "n2", "n3")
SPREAD = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3", n2 = "4-7", n3 = "8-1023" }\n'
Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes, and topic t, made on the second."""
    with ClusterProcesses(tmp_path_factory.mktemp("c"), 3, SPREAD) as nodes:
        with nodes["n2"].connect() as session:
            session.execute("CREATE TOPIC t WITH (partitions = 12)")
        yield nodes


@pytest.fixture(params=NODES)
def entry(cluster: ClusterProcesses, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A session on each of the nodes in turn."""
    with cluster[request.param].connect() as session:
        yield session


def owner(partition: int) -> str:
    return NODES[min(partition // 4, 2)]


def test_a_topic_is_defined_on_every_node(entry: Connection) -> None:
    facts = dict(entry.execute("DESCRIBE STREAM t").fetchall())
    assert facts["partitions"] == "12" and facts["identity"]
    name = f"made_on_{entry.info.port}"
    entry.execute(f"CREATE TOPIC {name} WITH (partitions = 12)")
    entry.execute(f"CREATE CONSUMER GROUP g ON {name} START LATEST")
    with pytest.raises(psycopg.errors.DuplicateObject):
        entry.execute(f"CREATE TOPIC {name}")
    entry.execute(f"ALTER TOPIC {name} SET (retention = '1 day')")
    entry.execute(f"DROP CONSUMER GROUP g ON {name}")
    entry.execute(f"DROP TOPIC {name}")
    with pytest.raises(psycopg.errors.UndefinedObject):
        entry.execute(f"DROP TOPIC {name}")


def test_each_event_is_stored_by_its_owner(entry: Connection) -> None:
    rows = entry.execute("PUBLISH TO t KEY q.payload SELECT i FROM range(40) r(i)").fetchall()
    assert len(rows) == 40 and {row[2] for row in rows} == set(NODES)
    assert all(node == owner(partition) for partition, _, node, _ in rows)
    with entry.cursor() as cursor:
        cursor.executemany("INSERT INTO t (key, payload) VALUES (%s, %s)", [(i, f"m{i}") for i in range(20)])
        with cursor.copy("COPY t (payload, key) FROM STDIN") as copy:
            for i in range(50):
                copy.write_row((f"c{i}", f"k{i}"))
        assert cursor.statusmessage == "COPY 50"
    with entry.transaction(), pytest.raises(psycopg.errors.FeatureNotSupported):
        entry.execute("PUBLISH TO t KEY q.payload SELECT i FROM range(40) r(i)")

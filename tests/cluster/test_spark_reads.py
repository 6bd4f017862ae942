"""The Spark connector in a cluster: given any node, it reads all, each partition from its owner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from spark_reads import options_of, read, rows_of, streaming

from ducktail.spark_connector.connection import Owner
from ducktail.spark_connector.data_source import DucktailSource
from ducktail.spark_connector.errors import ConnectorError, OptionError
from ducktail.spark_connector.source.stream_reader import shared_out

SPREAD = '[[topics]]\nname = "*"\npartitions = { n1 = "0, 3", n2 = "1, 4", n3 = "2, 5-1023" }\n'
MOVED = '[[topics]]\nname = "*"\npartitions = { n1 = "1, 2", n2 = "0, 4", n3 = "3, 5" }\n'
Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes: topic t of six partitions with 300 events, and stream s on a table of the second."""
    with ClusterProcesses(tmp_path_factory.mktemp("c"), 3, SPREAD) as nodes:
        with nodes["n2"].connect() as session:
            session.execute("CREATE TOPIC t WITH (partitions = 6)")
            session.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
            session.execute("CREATE STREAM s ON orders WITH (partitions = 2)")
            session.execute("INSERT INTO orders SELECT i, 'i' || i FROM range(50) r(i)")
            for first in range(0, 300, 50):
                publish(session, first, first + 50)
        yield nodes


def publish(session: Connection, first: int, last: int) -> None:
    session.execute(
        "INSERT INTO t (key, payload) SELECT i::VARCHAR, i::VARCHAR FROM range(%s, %s) r(i)", (first, last)
    )


def payloads(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["after"]) for row in rows)


@pytest.mark.parametrize("given", ["n1", "n2", "n3"])
def test_a_batch_reads_all_of_it_from_any_node(cluster: ClusterProcesses, given: str) -> None:
    rows = read(cluster[given], stream="t", endingTimestamp="2999-01-01 00:00:00+00")
    assert payloads(rows)[:300] == list(range(300)) and {row["partition"] for row in rows} == set(range(6))
    changes = read(cluster[given], stream="s")
    assert sorted(row["id"] for row in changes) == list(range(50))


@pytest.mark.parametrize("given", ["n1", "n2", "n3"])
def test_a_driver_knows_columns_and_topics_of_other_nodes(cluster: ClusterProcesses, given: str) -> None:
    wrong, value = StructType().add("nope", "string"), StructType().add("value", "string")
    for stream in ("s", "t"):
        source = DucktailSource(options_of(cluster[given], stream=stream))
        with pytest.raises(ConnectorError, match=f'stream "{stream}" has no column "nope"'):
            source.reader(wrong).partitions()
    DucktailSource(options_of(cluster[given], topic="t")).writer(value, False)
    with pytest.raises(ConnectorError, match='topic "nope" does not exist'):
        DucktailSource(options_of(cluster[given], topic="nope")).writer(value, False)


def test_tasks_read_from_the_owners(cluster: ClusterProcesses) -> None:
    assert payloads(read(cluster["n1"], stream="t", minPartitions=12))[:300] == list(range(300))
    assert {row["op"] for row in read(cluster["n1"], stream="s", envelope="json")} == {"insert"}
    source = DucktailSource(options_of(cluster["n1"], stream="t"))
    tasks = source.reader(source.schema()).partitions()
    ports = {name: node.port for name, node in cluster.nodes.items()}
    found = {task.partition: (task.owner.node, task.owner.port) for task in tasks}  # type: ignore[attr-defined]
    # What the given node has is read as it was given.
    assert found[0] == found[3] == ("", 0)
    assert found[1] == found[4] == ("n2", ports["n2"]) and found[2] == found[5] == ("n3", ports["n3"])


def test_times_are_looked_up_at_each_owner(cluster: ClusterProcesses) -> None:
    with cluster["n3"].connect() as session:
        moment = session.execute("SELECT now()::TEXT").fetchone()
        assert moment is not None
        publish(session, 1000, 1030)
        before = read(cluster["n1"], stream="t", endingTimestamp=moment[0])
        since = read(cluster["n1"], stream="t", startingTimestamp=moment[0])
        assert max(payloads(before)) < 1000 and payloads(since) == list(range(1000, 1030))
        for option in ("startingLsn", "endingLsn"):
            with pytest.raises(OptionError, match=f'option {option} cannot be of topic "t".*on 3 nodes'):
                read(cluster["n1"], stream="t", **{option: 5})


def test_micro_batches_follow_each_other_without_a_hole(cluster: ClusterProcesses) -> None:
    with cluster["n1"].connect() as session, streaming(cluster["n2"], stream="t", consumerGroup="g") as one:
        first = len(read(cluster["n2"], stream="t"))
        start, seen, sizes = one.initialOffset(), [], []
        while (end := one.latestOffset(start, ReadMaxRows(100))) != start:
            rows = rows_of(one, start, end)
            seen += rows
            sizes.append(len(rows))
            start = end
        assert sizes[:-1] == [100] * (len(sizes) - 1) and sum(sizes) == first
        places = [(row["partition"], row["lsn"]) for row in seen]
        assert len(set(places)) == len(places)
        publish(session, 2000, 2020)
        end = one.latestOffset(start, ReadAllAvailable())
        assert payloads(rows_of(one, start, end)) == list(range(2000, 2020))
        one.latestOffset(end, ReadAllAvailable())
        offsets = session.execute("SHOW OFFSETS ON t CONSUMER GROUP g").fetchall()
        assert {str(row[0]): row[1] for row in offsets} == {k: v for k, v in end.items() if k != "stream"}
        # Partitions move between two batches, and behind the back of one that is planned.
        publish(session, 3000, 3040)
        start, end = end, one.latestOffset(end, ReadAllAvailable())
        tasks = one.partitions(start, end)
        moved = cluster.text(2, MOVED)
        for name in cluster.nodes:
            with cluster[name].connect() as node:
                node.execute("INSTALL PLACEMENT '" + moved.replace("'", "''") + "'")
        rows = [row for task in tasks for batch in one.read(task) for row in batch.to_pylist()]
        assert payloads(rows) == list(range(3000, 3040))
        publish(session, 4000, 4040)
        assert payloads(rows_of(one, start, end)) == list(range(3000, 3040))
        start, end = end, one.latestOffset(end, ReadMaxRows(39))
        assert len(rows_of(one, start, end)) == 39
        start, end = end, one.latestOffset(end, ReadMaxRows(39))
        assert len(rows_of(one, start, end)) == 1
        assert len(read(cluster["n3"], stream="t")) == first + 100
        one.latestOffset(end, ReadAllAvailable())
    # Another node knows the same stream and group, as after a restart of the query.
    with streaming(cluster["n3"], stream="t", consumerGroup="g", pollTimeout="10 ms") as other:
        assert other.initialOffset() == end == other.latestOffset(end, ReadAllAvailable())
    position = json.dumps({"1": 1 << 60})
    past = "LSN 1152921504606846976 of partition 1 is past the end"
    with (
        streaming(cluster["n1"], stream="t", startingOffsets=position) as other,
        pytest.raises(OptionError, match=past),
    ):
        other.initialOffset()
    with (
        streaming(cluster["n1"], stream="t", wholeTransactions="true") as other,
        pytest.raises(OptionError, match="option wholeTransactions"),
    ):
        other.latestOffset(other.initialOffset(), ReadAllAvailable())


def test_a_whole_copy_of_another_nodes_table(cluster: ClusterProcesses) -> None:
    """Begun on one node and gone on with on another; neither has the stream."""
    options = {"stream": "s", "consumerGroup": "copied", "startingOffsets": "snapshot"}
    with streaming(cluster["n1"], **options) as one:
        start = one.initialOffset()
        end = one.latestOffset(start, ReadMaxRows(20))
        first = rows_of(one, start, end)
    with streaming(cluster["n3"], **options) as other:
        assert rows_of(other, start, end) == first
        last = other.latestOffset(end, ReadMaxRows(100))
        rows = first + rows_of(other, end, last)
        assert other.latestOffset(last, ReadMaxRows(100)) == last
    assert len(first) == 20 and {row["_change_type"] for row in rows} == {"snapshot"}
    assert sorted(row["id"] for row in rows) == list(range(50))
    with cluster["n2"].connect() as owner:
        assert owner.execute("SELECT rows_left FROM ducktail.copies").fetchall() == [(0,)]


def test_a_stream_on_a_table_of_another_node(cluster: ClusterProcesses) -> None:
    with streaming(cluster["n1"], stream="s", consumerGroup="g", wholeTransactions="true") as one:
        start = one.initialOffset()
        end = one.latestOffset(start, ReadMaxRows(7))
        assert len(rows_of(one, start, end)) == 50
        assert one.latestOffset(end, ReadMaxRows(7)) == end
    with cluster["n2"].connect() as owner:
        committed = owner.execute("SHOW OFFSETS ON s CONSUMER GROUP g").fetchall()
        assert {str(row[0]): row[1] for row in committed} == {k: v for k, v in end.items() if k != "stream"}
    with pytest.raises(ConnectorError, match='option stream: stream "nowhere" does not exist'):
        read(cluster["n1"], stream="nowhere")


def test_shares_are_even_and_the_first_come_first() -> None:
    a, b, c = (Owner(name, "h", 1) for name in "abc")
    assert shared_out({a: 5, b: 100, c: 100}, 45) == {a: 5, b: 20, c: 20}
    assert shared_out({b: 9, a: 9, c: 9}, 2) == {b: 1, a: 1, c: 0}
    assert shared_out({a: 1, b: 2}, 10) == {a: 1, b: 2}


def test_an_owner_that_is_away_is_an_error_that_names_it(cluster: ClusterProcesses) -> None:
    """The last test of the file: it kills the third node."""
    source = DucktailSource(options_of(cluster["n1"], stream="t"))
    batch = source.reader(source.schema())
    tasks = batch.partitions()
    with streaming(cluster["n1"], stream="t") as one:
        start = one.initialOffset()
        cluster["n3"].kill()
        for call in (
            lambda: one.latestOffset(start, ReadAllAvailable()),
            lambda: batch.partitions(),
            lambda: [list(batch.read(task)) for task in tasks],
        ):
            with pytest.raises(ConnectorError, match='node "n3"') as caught:
                call()
            assert caught.value.retryable, caught.value
        cluster.start("n3")
        end = one.latestOffset(start, ReadAllAvailable())
        assert payloads(rows_of(one, start, end))[:300] == list(range(300))

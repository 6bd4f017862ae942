"""A topic of 12 partitions spread over three server processes: any node takes any statement about it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import SOAK, chosen
from cluster_processes import ClusterProcesses
from psycopg import pq

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


@pytest.fixture(params=chosen(NODES, 1, "entries of a spread topic"))
def entry(cluster: ClusterProcesses, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A session on each of the nodes in turn; in the gate on one, another one with each commit."""
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


def test_a_stream_of_another_node_is_no_topic(cluster: ClusterProcesses, entry: Connection) -> None:
    with cluster["n1"].connect() as owner:
        owner.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
        owner.execute("CREATE STREAM IF NOT EXISTS orders_stream ON orders")
    for statement, error in (
        ("CREATE TOPIC orders_stream", psycopg.errors.DuplicateObject),
        ("CREATE TOPIC IF NOT EXISTS orders_stream", psycopg.errors.DuplicateObject),
        ("DROP TOPIC orders_stream", psycopg.errors.WrongObjectType),
    ):
        with pytest.raises(error, match="orders_stream"):
            entry.execute(statement)


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


# Where a message between nodes fills libpq's buffer of 8 KiB: its Sync comes in a piece of its own.
SIZES = range(5_000, 5_350)
EVERY_SIZE = range(4_000, 10_200)


@pytest.mark.timeout(600)
def test_an_event_of_any_size_reaches_its_owner(cluster: ClusterProcesses) -> None:
    sizes = EVERY_SIZE if SOAK or "DUCKTAIL_EVERY_SIZE" in os.environ else SIZES
    with cluster["n1"].connect() as entry, cluster["n3"].connect() as there:
        entry.execute("CREATE TOPIC sized WITH (partitions = 12)")
        (key,) = entry.execute(
            "SELECT k FROM (SELECT 'k' || i AS k FROM range(100) r(i)) "
            "WHERE ducktail.partition_of('sized', k) = 9 ORDER BY k LIMIT 1"
        ).fetchone() or ("",)
        for size in sizes:
            entry.execute("PUBLISH TO sized KEY %s %s", (key, "x" * size))
        stored = there.execute("SELECT after->>'$' AS x FROM TOPIC sized PARTITION 9 ORDER BY lsn").fetchall()
        assert [len(row[0]) for row in stored] == list(sizes)


def test_any_node_reads_and_commits(cluster: ClusterProcesses, entry: Connection) -> None:
    name, group = f"read_on_{entry.info.port}", f"g{entry.info.port}"
    entry.execute(f"CREATE TOPIC {name} WITH (partitions = 12)")
    entry.execute(f"CREATE CONSUMER GROUP {group} ON {name}")
    with entry.cursor() as cursor:
        cursor.execute(f"INSERT INTO {name} (key, payload) SELECT i, i FROM range(100) r(i)")
    answers = []
    for node in NODES:
        with cluster[node].connect() as session:
            answers.append(session.execute(f"SELECT * FROM TOPIC {name}").fetchall())
            cursor = session.cursor(binary=True)
            binary = cursor.execute(f"SELECT lsn, partition FROM TOPIC {name}").fetchall()
            assert binary == [row[:2] for row in answers[-1]]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 100
    seen: list[Any] = []
    poll = f"SELECT after FROM TOPIC {name} CONSUMER GROUP {group} WAIT '50 ms' LIMIT 30"
    while rows := entry.execute(poll).fetchall():
        seen += [row[0] for row in rows]
        entry.execute(f"COMMIT OFFSETS ON {name} CONSUMER GROUP {group}")
    assert sorted(map(int, seen)) == list(range(100))
    with cluster["n3"].connect() as session:
        offsets = session.execute(f"SHOW OFFSETS ON {name} CONSUMER GROUP {group}").fetchall()
        assert len(offsets) == 12 and {row[3] for row in offsets} == {0}
    moved = entry.execute(f"ALTER CONSUMER GROUP {group} ON {name} SEEK TO EARLIEST").fetchall()
    assert sum(row[3] for row in moved) == 100
    with entry.transaction(), pytest.raises(psycopg.errors.FeatureNotSupported):
        entry.execute(f"SELECT * FROM TOPIC {name} CONSUMER GROUP {group}")
        entry.execute(f"COMMIT OFFSETS ON {name} CONSUMER GROUP {group}")


def test_a_wait_ends_with_an_event_of_another_node(cluster: ClusterProcesses) -> None:
    with cluster["n1"].connect() as reader, cluster["n2"].connect() as writer:
        writer.execute("CREATE TOPIC waited WITH (partitions = 12)")
        for partition in (0, 5, 11):
            ends = reader.execute("SELECT partition, max(lsn) FROM TOPIC waited GROUP BY 1").fetchall()
            after = {str(p): lsn for p, lsn in ends}
            text = f"SELECT partition FROM TOPIC waited AFTER '{json.dumps(after)}' WAIT '30 s'"
            with ThreadPoolExecutor(1) as other:
                waiting = other.submit(lambda t: reader.execute(t).fetchall(), text)
                key = next(k for k in range(1000) if of(writer, k) == partition)
                writer.execute("INSERT INTO waited (key, payload) VALUES (%s, 'x')", [key])
                assert waiting.result(20) == [(partition,)]


def of(session: Connection, key: int) -> int:
    """The partition of a key."""
    row = session.execute("SELECT ducktail.partition_of('waited', %s::BIGINT)", [key]).fetchone()
    assert row is not None
    return int(row[0])


def test_the_rest_of_what_a_topic_can_do(cluster: ClusterProcesses, entry: Connection) -> None:
    name = f"rest_on_{entry.info.port}"
    entry.execute(f"CREATE TOPIC {name} WITH (partitions = 12)")
    entry.execute(f"CREATE CONSUMER GROUP g ON {name}")
    with entry.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {name} (key, payload) SELECT i, i FROM range(24) r(i) "
            "RETURNING partition, lsn, payload"
        )
        stored = cursor.fetchall()
    assert [row[2] for row in stored] == list(range(24))
    read = entry.execute(f"SELECT partition, lsn, after FROM TOPIC {name} WAIT '20 s' FOR 24").fetchall()
    assert sorted(read) == sorted(stored)
    entry.execute(f"CREATE BOOKMARK b ON {name}")
    entry.execute(f"INSERT INTO {name} (payload) VALUES ('later')")
    three = f"SELECT txid, tx_last FROM TOPIC {name} CONSUMER GROUP g LIMIT 3 TRANSACTIONS"
    assert len(entry.execute(three).fetchall()) == 24
    with cluster["n2"].connect() as other:
        shown = other.execute(f"SHOW BOOKMARKS ON {name}").fetchall()
        assert [(row[2], row[4], row[5]) for row in shown] == [("b", True, 1)]
        other.execute(f"ALTER CONSUMER GROUP g ON {name} SEEK TO BOOKMARK b")
    assert len(entry.execute(three).fetchall()) == 1
    entry.execute(f"DROP BOOKMARK b ON {name}")


def test_members_on_all_nodes_share_a_topic(cluster: ClusterProcesses) -> None:
    with (
        cluster["n1"].connect() as first,
        cluster["n2"].connect() as second,
        cluster["n3"].connect() as third,
    ):
        first.execute("CREATE TOPIC shared WITH (partitions = 12)")
        first.execute("CREATE CONSUMER GROUP g ON shared")
        second.execute("INSERT INTO shared (key, payload) SELECT i, i FROM range(300) r(i)")
        seen: list[int] = []
        entries = [first, second, third]
        for turn in range(60):
            as_member = f"CONSUMER GROUP g MEMBER 'm{turn % 3}'"
            poll = f"SELECT after, partition FROM TOPIC shared {as_member} WAIT '50 ms' FOR 2 LIMIT 20"
            # Another connection, at another node, commits what this one has read.
            rows = entries[turn % 2].execute(poll).fetchall()
            entries[(turn + 1) % 3].execute(f"COMMIT OFFSETS ON shared {as_member}")
            seen += [int(row[0]) for row in rows]
            if len(seen) == 300:
                break
        assert sorted(seen) == list(range(300))
        show = "SELECT member_name, partitions FROM ducktail.members WHERE stream_name = 'shared'"
        shares = dict(first.execute(show).fetchall())
        assert sorted(map(len, shares.values())) == [4, 4, 4]
        for entry in entries:
            rows = entry.execute("SHOW MEMBERS ON shared CONSUMER GROUP g").fetchall()
            assert {row[0]: row[2] for row in rows} == shares
        third.execute("LEAVE CONSUMER GROUP g ON shared MEMBER 'm0'")
        with pytest.raises(psycopg.errors.SerializationFailure, match="not a member"):
            second.execute("COMMIT OFFSETS ON shared CONSUMER GROUP g MEMBER 'm0'")


def test_a_member_is_heard_from_while_another_scan_of_its_statement_waits(cluster: ClusterProcesses) -> None:
    as_member = "TOPIC heard CONSUMER GROUP g MEMBER 'm'"
    waits = {
        "STREAM quiet_stream": "INSERT INTO quiet VALUES (1)",
        "TOPIC silent": "INSERT INTO silent (payload) VALUES ('x')",
    }
    with cluster["n1"].connect() as reader, cluster["n1"].connect() as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("CREATE TOPIC heard WITH (partitions = 12)")
        writer.execute("CREATE TOPIC silent WITH (partitions = 12)")
        writer.execute("CREATE CONSUMER GROUP g ON heard WITH (session_timeout = '1 s')")
        writer.execute("CREATE TABLE quiet (id INT)")
        writer.execute("CREATE STREAM quiet_stream ON quiet")
        for scan, ends in waits.items():
            text = f"SELECT 1 FROM {as_member} UNION ALL SELECT 2 FROM {scan} WAIT '30 s'"
            read = pool.submit(lambda text=text: reader.execute(text).fetchall())
            shown = "SHOW MEMBERS ON heard CONSUMER GROUP g"
            while not read.done() and not writer.execute(shown).fetchall():
                pass
            since = time.monotonic()
            while time.monotonic() < since + 1.5:  # Longer than who is not heard from is a member.
                assert writer.execute(shown).fetchall() and not read.done()
            writer.execute(ends)
            assert read.result(20) == [(2,)]
            writer.execute("LEAVE CONSUMER GROUP g ON heard MEMBER 'm'")


def test_an_owner_that_is_away_is_told(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, SPREAD) as nodes, nodes["n1"].connect() as session:
        session.execute("CREATE TOPIC t WITH (partitions = 12)")
        session.execute("CREATE CONSUMER GROUP g ON t")
        session.execute("INSERT INTO t (key, payload) SELECT i, i FROM range(100) r(i)")
        rows = session.execute("SELECT * FROM TOPIC t CONSUMER GROUP g").fetchall()
        assert len(rows) == 100
        nodes["n3"].kill()
        for text in (
            "SELECT * FROM TOPIC t",
            "SELECT count(*) FROM TOPIC t CONSUMER GROUP g",
            "COMMIT OFFSETS AT '{\"9\": 1}' ON t CONSUMER GROUP g",
            "SHOW OFFSETS ON t CONSUMER GROUP g",
            "SELECT * FROM TOPIC t PARTITION 9 WAIT '1 s'",
        ):
            with pytest.raises(psycopg.OperationalError, match="n3") as raised:
                session.execute(text)
            assert raised.value.sqlstate in ("08001", "08006"), text
        own = session.execute("SELECT count(*) FROM TOPIC t PARTITION (0, 1, 2, 3)").fetchone()
        assert own is not None and own[0] > 0


def test_one_node_that_is_away_holds_up_what_concerns_it_alone(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, SPREAD) as nodes, nodes["n1"].connect() as session:
        notices: list[str] = []
        session.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        there = nodes["n3"].connect()  # A session that nothing is asked of meanwhile.
        with nodes["n2"].connect() as second:
            second.execute("CREATE TABLE o (id INTEGER PRIMARY KEY)")
            second.execute("CREATE STREAM os ON o")
        nodes["n3"].process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert session.execute("SELECT count(*) FROM STREAM os").fetchone() == (0,)
        assert time.monotonic() < began_s + 3
        session.execute("CREATE TOPIC t WITH (partitions = 12)")
        assert [one for one in notices if 'topic "t" is not on node "n3" yet' in one]
        of = {
            owner(partition): key
            for key, partition in session.execute(
                "SELECT i, ducktail.partition_of('t', i) FROM range(200) r(i)"
            ).fetchall()
        }
        for node in ("n1", "n2"):
            session.execute("INSERT INTO t (key, payload) VALUES (%s, 'x')", (of[node],))
        own = "SELECT count(*) FROM TOPIC t PARTITION (0, 1, 2, 3, 4, 5, 6, 7)"
        assert session.execute(own).fetchone() == (2,)
        nodes["n3"].process.send_signal(signal.SIGCONT)
        # It was not restarted, and nobody has told it: it asks.
        assert there.execute("SELECT count(*) FROM TOPIC t").fetchone() == (2,)
        session.execute("INSERT INTO t (key, payload) VALUES (%s, 'x')", (of["n3"],))
        assert there.execute("SELECT count(*) FROM TOPIC t").fetchone() == (3,)
        there.close()
        # One that is started again asks as well; what is named by another node's share, too.
        nodes["n3"].kill()
        session.execute("CREATE TOPIC u WITH (partitions = 12)")
        with pytest.raises(psycopg.OperationalError):
            session.execute("INSERT INTO u (key, payload) VALUES (%s, 'x')", (of["n3"],))
        nodes.start("n3")
        session.execute("INSERT INTO u (key, payload) VALUES (%s, 'x')", (of["n3"],))
        assert session.execute("SELECT count(*) FROM TOPIC u").fetchone() == (1,)
        nodes["n1"].kill()
        with nodes["n2"].connect() as second, pytest.raises(psycopg.OperationalError, match="n1"):
            second.execute("CREATE TOPIC v WITH (partitions = 12)")  # Its home is away.


def test_a_commit_whose_owner_stands_still_may_be_done(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, SPREAD) as nodes, nodes["n1"].connect() as session:
        session.execute("CREATE TOPIC t WITH (partitions = 12)")
        session.execute("CREATE CONSUMER GROUP g ON t")
        session.execute("INSERT INTO t (key, payload) SELECT i, i FROM range(100) r(i)")
        rows = session.execute("SELECT partition, lsn FROM TOPIC t CONSUMER GROUP g").fetchall()
        ends = {str(p): max(lsn for q, lsn in rows if q == p) for p in (1, 9)}
        nodes["n3"].process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(psycopg.OperationalError) as raised:
                session.execute(f"COMMIT OFFSETS AT '{json.dumps(ends)}' ON t CONSUMER GROUP g")
        finally:
            nodes["n3"].process.send_signal(signal.SIGCONT)
        detail = raised.value.diag.message_detail or ""
        assert raised.value.sqlstate == "08006"
        assert "Partitions 1 are committed." in detail and "Partitions 9 may be committed, or not." in detail
        # n3 finds the commit in its socket, and that nobody waits for it: which is first, nobody can say.
        session.execute(f"COMMIT OFFSETS AT '{json.dumps(ends)}' ON t CONSUMER GROUP g")
        offsets = dict(row[:2] for row in session.execute("SHOW OFFSETS ON t CONSUMER GROUP g").fetchall())
        assert offsets[1] == ends["1"] and offsets[9] == ends["9"]


@pytest.mark.parametrize("ended", ["by its time-out", "by a cancel"])
def test_what_is_ended_says_what_of_it_stands(tmp_path: Path, ended: str) -> None:
    with ClusterProcesses(tmp_path, 3, SPREAD) as nodes, nodes["n1"].connect() as session:
        session.execute("CREATE TOPIC t WITH (partitions = 12)")
        session.execute("CREATE CONSUMER GROUP g ON t")
        publish = "INSERT INTO t (key, payload) SELECT i, i FROM range(100) r(i)"
        session.execute(publish)
        ends = dict(session.execute("SELECT partition, max(lsn) FROM TOPIC t GROUP BY 1").fetchall())
        nodes["n3"].process.send_signal(signal.SIGSTOP)
        try:
            for text, stand, unknown in (
                (publish, "The events of partitions 0, 1, 2, 3, 4, 5, 6 and 7 are stored.", "is unknown"),
                (
                    f"COMMIT OFFSETS AT '{json.dumps(ends)}' ON t CONSUMER GROUP g",
                    "Partitions 0, 1, 2, 3, 4, 5, 6 and 7 are committed.",
                    "Partitions 8, 9, 10 and 11 may be committed, or not.",
                ),
            ):
                if ended == "by a cancel":
                    threading.Timer(1.0, session.cancel_safe).start()
                else:
                    session.execute("SET statement_timeout = '1 s'")
                with pytest.raises(psycopg.errors.QueryCanceled) as caught:
                    session.execute(text)
                told = caught.value.diag
                assert told.message_detail is not None and stand in told.message_detail, told.message_detail
                assert unknown in told.message_detail, told.message_detail
            rows = session.execute("SELECT after FROM TOPIC t PARTITION (0, 1, 2, 3, 4, 5, 6, 7)").fetchall()
            assert set(Counter(row[0] for row in rows).values()) == {2}
        finally:
            nodes["n3"].process.send_signal(signal.SIGCONT)


def test_the_end_of_a_members_read_keeps_to_its_time_out(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, SPREAD) as nodes, nodes["n2"].connect() as session:
        session.execute("CREATE TOPIC t WITH (partitions = 12)")
        session.execute("CREATE CONSUMER GROUP g ON t")
        # More than lies between the node and its client.
        session.execute("INSERT INTO t (key, payload) SELECT i, repeat('x', 65536) FROM range(400) r(i)")
        session.execute("SET statement_timeout = '2 s'")
        rows = session.cursor().stream("SELECT lsn, after FROM TOPIC t CONSUMER GROUP g MEMBER 'm'")
        next(rows)
        nodes["n1"].process.send_signal(signal.SIGSTOP)  # The home.
        began_s = time.monotonic()
        try:
            with pytest.raises(psycopg.errors.QueryCanceled):
                for _ in rows:
                    pass
        finally:
            nodes["n1"].process.send_signal(signal.SIGCONT)
        assert time.monotonic() < began_s + 2 + 1
        assert len(session.execute("SELECT lsn FROM TOPIC t CONSUMER GROUP g MEMBER 'm'").fetchall()) == 400


def test_an_error_of_returning_says_that_all_is_stored(entry: Connection) -> None:
    name = f"returned_on_{entry.info.port}"
    entry.execute(f"CREATE TOPIC {name} WITH (partitions = 12)")
    with pytest.raises(psycopg.Error) as caught:
        entry.execute(
            f"INSERT INTO {name} (payload, key) SELECT i, i FROM range(30) r(i) RETURNING error('no')"
        )
    assert caught.value.diag.message_detail == "All events are stored."
    assert entry.execute(f"SELECT count(*) FROM TOPIC {name}").fetchone() == (30,)


def test_a_topic_wants_a_name_that_no_other_node_has_for_a_stream(cluster: ClusterProcesses) -> None:
    with cluster["n1"].connect() as first, cluster["n2"].connect() as second:
        first.execute("CREATE TABLE of_first (i INTEGER PRIMARY KEY)")
        first.execute("CREATE STREAM taken ON of_first")
        with pytest.raises(psycopg.errors.DuplicateObject, match='of node "n1"'):
            second.execute("CREATE TOPIC taken")


def test_a_node_that_joins_gets_the_definitions_that_there_are(tmp_path: Path) -> None:
    alone = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3" }\n'
    both = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1", n2 = "2-3" }\n'
    with ClusterProcesses(tmp_path, 2, both, start=False) as cluster:
        whole = cluster.text(epoch=2)
        cluster.file("n1").write_text(cluster.text(topics=alone, without="n2"))
        cluster.file("n2").write_text(whole)
        cluster.start("n1")
        with cluster["n1"].connect() as first:
            first.execute("CREATE TOPIC t WITH (partitions = 4)")
            options = "on_gap = 'earliest', session_timeout = '7 s'"
            first.execute(f"CREATE CONSUMER GROUP g ON t START LATEST WITH ({options})")
            first.execute("PUBLISH TO t SELECT i FROM range(8) r(i)")
            cluster.start("n2")
            # Nobody has told it yet: it asks when it is asked, and is told that it is ahead.
            with cluster["n2"].connect() as second, pytest.raises(psycopg.errors.SerializationFailure):
                second.execute("SELECT * FROM TOPIC t")
            first.execute("INSTALL PLACEMENT '" + whole.replace("'", "''") + "'")
            # As the owner of some partitions, and as the node of a client.
            text = "SELECT partition FROM TOPIC t CONSUMER GROUP g"
            assert first.execute(text).fetchall() == [(p,) for p in (0, 0, 1, 1, 2, 2, 3, 3)]
            with cluster["n2"].connect() as second:
                assert second.execute(text).fetchall() == [(p,) for p in (0, 0, 1, 1, 2, 2, 3, 3)]
                told = [
                    dict(session.execute("DESCRIBE CONSUMER GROUP g ON t").fetchall())
                    for session in (first, second)
                ]
                for name in ("identity", "start", "on_gap", "on_park", "session_timeout"):
                    assert told[0][name] == told[1][name], name
                # One that has gone and comes back lacks what was made meanwhile.
                cluster.file("n2").write_text(cluster.text(epoch=4))
                smaller = cluster.text(epoch=3, topics=alone, without="n2")
                first.execute("INSTALL PLACEMENT '" + smaller.replace("'", "''") + "'")
                first.execute("CREATE TOPIC later WITH (partitions = 4)")
                with pytest.raises(psycopg.Error, match=r"n1|over"):
                    second.execute("SELECT * FROM TOPIC later")
                for session in (first, second):
                    session.execute("INSTALL PLACEMENT '" + cluster.text(epoch=4).replace("'", "''") + "'")
                shown = second.execute("SHOW TOPICS").fetchall()
                assert {row[1] for row in shown} == {"later", "t"}


def test_a_group_that_was_made_without_a_node_is_there_when_it_is_back(tmp_path: Path) -> None:
    both = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1", n2 = "2-3" }\n'
    alone = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3" }\n'
    with ClusterProcesses(tmp_path, 2, both) as cluster, cluster["n1"].connect() as first:
        first.execute("CREATE TOPIC t WITH (partitions = 4)")
        whole = cluster.text(epoch=3)
        smaller = cluster.text(epoch=2, topics=alone, without="n2")
        cluster["n2"].stop()
        first.execute("INSTALL PLACEMENT %s", (smaller,))
        first.execute("CREATE CONSUMER GROUP g ON t")
        cluster.file("n2").write_text(whole)
        cluster.start("n2")
        # It has the topic already; nobody has told it of the group.
        with cluster["n2"].connect() as second:
            for text in ("SELECT * FROM TOPIC t CONSUMER GROUP g", "SHOW OFFSETS ON t CONSUMER GROUP g"):
                with pytest.raises(psycopg.errors.SerializationFailure):
                    second.execute(text)  # The other node has an older placement.
            first.execute("INSTALL PLACEMENT %s", (whole,))
            with second.transaction(), pytest.raises(psycopg.errors.SerializationFailure):
                second.execute("SELECT * FROM TOPIC t CONSUMER GROUP g")
            assert len(second.execute("SHOW OFFSETS ON t CONSUMER GROUP g").fetchall()) == 4
            with pytest.raises(psycopg.errors.UndefinedObject):
                second.execute("SHOW OFFSETS ON t CONSUMER GROUP none")


def test_a_node_that_has_left_does_not_say_what_there_is(tmp_path: Path) -> None:
    both = '[[topics]]\nname = "*"\npartitions = { n2 = "0", n1 = "1-3" }\n'
    alone = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3" }\n'
    with ClusterProcesses(tmp_path, 2, both) as cluster:
        smaller = cluster.text(epoch=2, topics=alone, without="n2")
        with cluster["n1"].connect() as stays, cluster["n2"].connect() as leaves:
            stays.execute("CREATE TOPIC t WITH (partitions = 4)")
            for session in (stays, leaves):
                session.execute("INSTALL PLACEMENT %s", (smaller,))
            stays.execute("CREATE CONSUMER GROUP g ON t")
            for text in (
                "SELECT * FROM TOPIC t CONSUMER GROUP g",
                "SELECT * FROM TOPIC t CONSUMER GROUP g MEMBER 'm' WAIT '500 ms'",
                "SHOW OFFSETS ON t CONSUMER GROUP g",
            ):
                with pytest.raises(psycopg.OperationalError) as told:
                    leaves.execute(text)
                assert told.value.sqlstate == "08004", text


def test_a_statement_whose_node_leaves_meanwhile_is_told_to_try_again(tmp_path: Path) -> None:
    both = '[[topics]]\nname = "*"\npartitions = { n2 = "0", n1 = "1-3" }\n'
    alone = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3" }\n'
    with ClusterProcesses(tmp_path, 2, both) as cluster:
        smaller = cluster.text(epoch=2, topics=alone, without="n2")
        with cluster["n1"].connect() as reader, cluster["n1"].connect() as operator:
            reader.execute("CREATE TOPIC t WITH (partitions = 4)")
            reader.execute("CREATE CONSUMER GROUP g ON t")
            # A member that waits asks the home again and again.
            reader.pgconn.send_query(b"SELECT * FROM TOPIC t CONSUMER GROUP g MEMBER 'm' WAIT '30 s'")
            members = "SHOW MEMBERS ON t CONSUMER GROUP g"
            while not operator.execute(members).fetchall():
                pass
            operator.execute("INSTALL PLACEMENT %s", (smaller,))
            answer = reader.pgconn.get_result()
            assert answer is not None
            assert answer.error_field(pq.DiagnosticField.SQLSTATE) == b"40001", answer.error_message
            assert reader.pgconn.get_result() is None


def test_the_view_of_a_topic_is_no_part_of_it(cluster: ClusterProcesses, entry: Connection) -> None:
    """Whoever forgets TOPIC is not told a node's part as the whole."""
    entry.execute("PREPARE echo AS SELECT $1 AS x")
    entry.execute("CREATE TEMP TABLE merged (lsn BIGINT)")
    for text in (
        "SELECT * FROM t",
        "SELECT count(*) FROM main.t AS x JOIN range(3) r(i) ON x.partition = r.i",
        "SELECT * FROM TOPIC t WHERE lsn IN (SELECT lsn FROM t)",
        "COPY t TO STDOUT",
        "COPY (SELECT payload FROM (SELECT after AS payload FROM t)) TO STDOUT",
        "CREATE TEMP TABLE x AS SELECT * FROM t",
        "CREATE VIEW x AS SELECT * FROM t",
        "INSERT INTO t (payload) SELECT after FROM t",
        "MERGE INTO merged USING t ON merged.lsn = t.lsn WHEN NOT MATCHED THEN INSERT VALUES (t.lsn)",
        "EXECUTE echo((SELECT count(*) FROM t))",
    ):
        with pytest.raises(psycopg.Error, match="only what this node has stored") as raised:
            entry.execute(text)
            pytest.fail(text)
        assert raised.value.diag.message_hint == "SELECT ... FROM TOPIC t reads all of it.", text
    # The name stands for other things too.
    entry.execute("SELECT t.after, t FROM TOPIC t LIMIT 1").fetchall()
    assert entry.execute("WITH t AS (SELECT 1 AS t) SELECT t FROM t").fetchall() == [(1,)]

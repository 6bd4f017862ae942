"""Owners that are away, stopped, killed or of another cluster: errors that say so, never an empty answer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses

ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1023" }\n'
READ = "SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 5"
AS_MEMBER = "SELECT lsn FROM STREAM s CONSUMER GROUP h MEMBER 'm' LIMIT 5"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Two nodes; n1 has stream s and group g."""
    with ClusterProcesses(tmp_path, 2, ALL) as nodes:
        with nodes["n1"].connect() as owner:
            owner.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
            owner.execute("CREATE STREAM s ON t WITH (partitions = 2)")
            owner.execute("CREATE CONSUMER GROUP g ON s")
            owner.execute("CREATE CONSUMER GROUP h ON s")
            owner.execute("INSERT INTO t SELECT i FROM range(50) r(i)")
        yield nodes


def failure(session: psycopg.Connection[Any], text: str) -> tuple[str | None, str]:
    """SQLSTATE and words of the error that a statement must give."""
    with pytest.raises(psycopg.Error) as caught:
        session.execute(text).fetchall()
    told = caught.value.diag
    return caught.value.sqlstate, f"{told.message_primary} {told.message_detail}"


def test_an_owner_that_is_killed_and_comes_back(cluster: ClusterProcesses) -> None:
    with cluster["n2"].connect() as entry, cluster["n2"].connect() as second:
        first = entry.execute(READ).fetchall()
        assert len(first) == 5
        waiting: list[tuple[str | None, str]] = []
        waiter = threading.Thread(
            target=lambda: waiting.append(failure(second, "SELECT * FROM STREAM s AFTER 900 WAIT '100 s'"))
        )
        waiter.start()
        with cluster["n1"].connect() as owner:
            while owner.execute(
                "SELECT count(*) FROM ducktail.sessions WHERE node = 'n2' AND state = 'active'"
            ).fetchone() != (1,):
                pass
        cluster["n1"].kill()
        waiter.join(30)
        sqlstate, words = waiting[0]
        assert sqlstate == "08006" and "n1" in words and '"s"' in words
        # The link is known to be lost, so that this is a new connection.
        for text in (READ, "COMMIT OFFSETS ON s CONSUMER GROUP g", "SHOW OFFSETS ON s CONSUMER GROUP g"):
            sqlstate, words = failure(entry, text)
            assert sqlstate == "08001" and "n1" in words and '"s"' in words
        # A name that n1 may have is not said to be nowhere.
        sqlstate, words = failure(entry, "SELECT * FROM STREAM elsewhere")
        assert sqlstate == "08001" and "elsewhere" in words
        counted = entry.execute("SELECT * FROM ducktail.nodes WHERE node = 'n1'").fetchone()
        assert counted is not None
        cluster["n1"].start()
        # What was read before is not committed by a session that has not read it.
        assert failure(entry, "COMMIT OFFSETS ON s CONSUMER GROUP g")[0] == "55000"
        assert entry.execute(READ).fetchall() == first
        entry.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
        assert entry.execute(READ).fetchall() != first


def test_an_owner_that_stands_still(cluster: ClusterProcesses) -> None:
    with cluster["n2"].connect() as entry:
        assert len(entry.execute(READ).fetchall()) == 5
        owner = cluster["n1"].process
        member = cluster["n2"].connect()
        assert len(member.execute(AS_MEMBER).fetchall()) == 5
        owner.send_signal(signal.SIGSTOP)
        lost: list[tuple[str | None, str]] = []
        reads = threading.Thread(target=lambda: lost.append(failure(member, AS_MEMBER)))
        reads.start()
        try:
            sqlstate, words = failure(entry, "COMMIT OFFSETS ON s CONSUMER GROUP g")
            assert sqlstate == "08006" and "does not answer" in words
            reads.join()
            assert lost[0][0] == "08006"
            sqlstate, words = failure(entry, READ)
            assert sqlstate == "08001" and "within 5 seconds" in words
        finally:
            owner.send_signal(signal.SIGCONT)
        assert len(entry.execute(READ).fetchall()) == 5
        # The owner may have done the read, and its client has not got it.
        commit = "COMMIT OFFSETS ON s CONSUMER GROUP h MEMBER 'm'"
        assert failure(member, commit)[0] == "55000"
        assert len(member.execute(AS_MEMBER).fetchall()) == 5
        member.execute(commit)
        member.close()


def test_a_node_of_another_cluster_and_a_newer_placement(cluster: ClusterProcesses) -> None:
    cluster["n2"].stop()
    text = cluster.text().replace('cluster = "shop"', 'cluster = "store"')
    cluster.folder.joinpath("other").mkdir()
    cluster.file("n2").write_text(text)
    cluster.nodes["n2"] = type(cluster["n1"])(
        cluster.folder / "other" / "n2.duckdb", ("--node", "n2", "--cluster", str(cluster.file("n2")))
    )
    with cluster["n2"].connect() as entry:
        sqlstate, words = failure(entry, READ)
        assert sqlstate == "08004" and "n1" in words and "store" in words
    cluster["n2"].stop()
    cluster.file("n2").write_text(cluster.text())
    cluster.start("n2")
    with cluster["n2"].connect() as entry:
        assert len(entry.execute(READ).fetchall()) == 5
        cluster.reload("n1", cluster.text(epoch=2))
        with cluster["n1"].connect() as owner:
            while owner.execute("SELECT max(epoch) FROM ducktail.partitions").fetchone() != (2,):
                pass
        assert failure(entry, READ)[0] == "40001"
        cluster.reload("n2", cluster.text(epoch=2))
        with cluster["n2"].connect() as again:
            while again.execute("SELECT max(epoch) FROM ducktail.nodes").fetchone() != (2,):
                pass
        assert len(entry.execute(READ).fetchall()) == 5


def test_a_stream_that_moves_is_found_again(cluster: ClusterProcesses) -> None:
    with cluster["n1"].connect() as owner, cluster["n2"].connect() as entry:
        assert len(entry.execute(READ).fetchall()) == 5
        owner.execute("ALTER STREAM s RENAME TO gone")
        assert failure(entry, READ)[0] == "42704"
        owner.execute("ALTER STREAM gone RENAME TO s")
        assert len(entry.execute(READ).fetchall()) == 5
        # A stream here goes before one elsewhere; it is made while the other node cannot be asked.
        entry.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        assert failure(entry, "CREATE STREAM s ON t")[0] == "42710"
        cluster["n1"].kill()
        told: list[str] = []
        entry.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        entry.execute("CREATE STREAM s ON t")
        assert 'whether node "n1" has a stream "s"' in told[0]
        assert failure(entry, READ)[0] == "42704"

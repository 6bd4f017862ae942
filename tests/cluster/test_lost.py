"""Databases that are lost: an empty one under a known name, a node that is alive though it is given up."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses, free_ports

from ducktail.__main__ import main

SPREAD = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1", n2 = "2-1023" }\n'
# Until a node that is reached again has been told of a placement.
TOLD_S = 10.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Two nodes, and a topic of four partitions with a group."""
    with ClusterProcesses(tmp_path, 2, SPREAD) as started:
        with started["n1"].connect() as session:
            session.execute("CREATE TOPIC t WITH (partitions = 4)")
            session.execute("CREATE CONSUMER GROUP g ON t")
            session.execute("INSERT INTO t (key, payload) SELECT i, i FROM range(100) r(i)")
            assert len(session.execute("SELECT * FROM TOPIC t CONSUMER GROUP g").fetchall()) == 100
            session.execute("COMMIT OFFSETS ON t CONSUMER GROUP g")
        yield started


def key_of(session: psycopg.Connection[Any], partition: int) -> str:
    row = session.execute(
        "SELECT k FROM (SELECT 'k' || i AS k FROM range(200) r(i)) "
        f"WHERE ducktail.partition_of('t', k) = {partition} LIMIT 1"
    ).fetchone()
    assert row is not None
    return str(row[0])


def lost(nodes: ClusterProcesses, *more: str) -> None:
    """Declare n2 lost."""
    file, new = nodes.folder / "before.toml", nodes.folder / "after.toml"
    file.write_text(nodes.file("n1").read_text())
    assert main(["cluster", "plan", str(file), "--lost", "n2", *more, "--output", str(new)]) == 0
    main(["cluster", "apply", str(new)])


def test_an_empty_database_does_not_pass_for_the_one_that_was_there(nodes: ClusterProcesses) -> None:
    nodes["n2"].kill()
    for file in nodes.file("n2").parent.glob("n2.duckdb*"):
        file.unlink()
    nodes.start("n2")
    with nodes["n1"].connect() as first, nodes["n2"].connect() as empty:
        for session, text in (
            (first, "SELECT * FROM TOPIC t CONSUMER GROUP g"),
            (first, "SHOW OFFSETS ON t CONSUMER GROUP g"),
            (first, "INSERT INTO t (key, payload) SELECT i, i FROM range(20) r(i)"),
            (first, "CREATE TOPIC u"),
            (empty, "SELECT * FROM TOPIC t"),
            (empty, "CREATE TOPIC u"),
        ):
            with pytest.raises(psycopg.Error, match="n2") as caught:
                session.execute(text)
            assert caught.value.sqlstate == "08004", (text, caught.value)
            assert "DETAIL" not in (caught.value.diag.message_detail or "")
        assert "another database than before" in str(caught.value)
        # The operator says that the file is lost, and gives the new node a name of its own.
        [port] = free_ports(1)
        lost(nodes, "--add", "n3", "--host", "127.0.0.1", "--port", str(port))
        (nodes.folder / "n3").mkdir()
        nodes.file("n3").write_text((nodes.folder / "after.toml").read_text())
        nodes.start("n3")
        with pytest.raises(psycopg.DatabaseError, match="is lost") as caught:
            first.execute("SELECT * FROM TOPIC t CONSUMER GROUP g")
        assert caught.value.sqlstate == "72000"
        first.execute("ALTER CONSUMER GROUP g ON t SEEK TO LATEST")
        first.execute("INSERT INTO t (key, payload) SELECT i, i FROM range(20) r(i)")
        assert len(first.execute("SELECT * FROM TOPIC t CONSUMER GROUP g").fetchall()) == 20


@pytest.mark.parametrize("state", ["runs", "stands still", "was ended"])
def test_a_node_that_is_given_up_and_alive_acknowledges_nothing(
    nodes: ClusterProcesses, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = nodes["n2"].connect()
    key = key_of(client, 2)
    publish = f"PUBLISH TO t KEY '{key}' 'late'"
    client.execute(publish)
    if state == "stands still":
        nodes["n2"].process.send_signal(signal.SIGSTOP)
    if state == "was ended":
        nodes["n2"].stop()
    lost(nodes)
    assert ("n2 is alive" in capsys.readouterr().out) == (state == "runs")
    with nodes["n1"].connect() as first:
        assert first.execute(publish).fetchone() is not None  # It begins anew.
        nodes["n2"].process.send_signal(signal.SIGCONT)
        if state == "was ended":
            client.close()
            client = nodes.start("n2").connect()
        since_s = time.monotonic()
        with pytest.raises(psycopg.Error) as caught:
            while time.monotonic() < since_s + TOLD_S:
                client.execute(publish)
                assert state == "stands still"  # It has to be told first.
        assert caught.value.sqlstate in ("40001", "08004"), caught.value
        client.close()

"""TLS and SCRAM between nodes: for statements that are forwarded, and for `ducktail cluster apply`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import certificates
import psycopg
import pytest
from cluster_processes import ClusterProcesses

from ducktail.__main__ import main

Connection = psycopg.Connection[Any]
ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0", n2 = "1" }\n'


def test_nodes_prove_to_each_other_who_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certificates.make(tmp_path)
    users, password = tmp_path / "users.toml", tmp_path / "node.password"
    for name, more in (("node", ["--superuser"]), ("ann", [])):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"of {name}\n"))
        assert main(["cluster", "user", str(users), name, *more]) == 0
    password.write_text("of node\n")
    more = f'users = "{users}"\n[defaults]\nuser = "node"\ntls = "verify-full"\n'
    more += f'ca = "{files.certificate}"\npassword_file = "{password}"\n'
    with ClusterProcesses(tmp_path, 2, ALL, more, options=files.options) as cluster:
        n1, n2 = cluster["n1"], cluster["n2"]
        node = {"user": "node", "password": "of node"}
        with n1.connect(**node) as client:
            client.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
            client.execute("CREATE STREAM s ON t")
            client.execute("INSERT INTO t VALUES (1)")
            client.execute("GRANT SELECT ON s TO ann")
        with n2.connect(user="ann", password="of ann") as ann, n1.connect(**node) as client:
            assert ann.execute("SELECT count(*) FROM STREAM s").fetchone() == (1,)
            there = "SELECT node, trace IS NOT NULL FROM ducktail.sessions WHERE user_name = 'ann'"
            assert client.execute(there).fetchall() == [("n2", True)]
            with n2.connect(**node) as here:
                rows = here.execute("SELECT node, connected FROM ducktail.nodes ORDER BY ALL").fetchall()
                assert rows == [("n1", True), ("n2", None)]
        ann = n2.connect(user="ann", password="of ann")
        with n1.connect(**node) as first, n2.connect(**node) as second, ann:
            check_rights_on_topics(first, second, ann)
        opened = [line for line in n1.lines if "node=n2" in line]
        assert opened and all("tls=True" in line for line in opened)

        new = tmp_path / "new.toml"
        new.write_text(cluster.text(epoch=2))
        assert main(["cluster", "apply", str(new)]) == 0
        # A peer whose password is wrong is away, and is told with its name.
        password.write_text("wrong\n")
        with n2.connect(user="ann", password="of ann") as ann:
            with pytest.raises(psycopg.Error, match="n1") as caught:
                ann.execute("SELECT count(*) FROM STREAM s")
            assert caught.value.sqlstate == "08001"
        assert main(["cluster", "apply", str(new)]) == 1


def check_rights_on_topics(first: Connection, second: Connection, ann: Connection) -> None:
    """Each owner looks at the user's rights by its own grants; `ann` is on the second node."""
    first.execute("CREATE TOPIC news WITH (partitions = 4)")
    first.execute("CREATE CONSUMER GROUP g ON news")
    first.execute("PUBLISH TO news SELECT i FROM range(8) r(i)")
    read, publish = "SELECT count(*) FROM TOPIC news", "PUBLISH TO news SELECT i FROM range(8) r(i)"
    commit = 'COMMIT OFFSETS AT \'{"0": 1, "1": 1}\' ON news CONSUMER GROUP g'
    for text in (read, publish, commit, "DROP TOPIC news", "SHOW PARTITIONS ON news"):
        with pytest.raises(psycopg.errors.UndefinedObject):
            ann.execute(text)
    # What it may here it may not there.
    second.execute("GRANT SELECT, PUBLISH ON news TO ann")
    for text in (read, publish):
        with pytest.raises(psycopg.Error, match='on node "n1"') as told:
            ann.execute(text)
        assert "GRANT" in (told.value.diag.message_hint or "")
    first.execute("GRANT SELECT ON news TO ann")
    before = ann.execute(read).fetchone()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match='on node "n1"'):
        ann.execute(publish)
    first.execute("GRANT PUBLISH ON news TO ann")
    ann.execute(publish)
    # What the second node stored of the one that the first refused stands, as the error has said.
    assert before is not None and ann.execute(read).fetchone() == (before[0] + 4 + 8,)
    with pytest.raises(psycopg.errors.UndefinedObject):
        ann.execute(commit)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ann.execute("ALTER TOPIC news SET (retention = '1 day')")
    # What is his own is his own on all nodes.
    for session in (first, second):
        session.execute("GRANT CREATE ON SCHEMA main TO ann")
    ann.execute("CREATE TOPIC of_ann WITH (partitions = 4)")
    ann.execute("CREATE CONSUMER GROUP g ON of_ann")
    ann.execute("PUBLISH TO of_ann SELECT i FROM range(8) r(i)")
    assert len(ann.execute("SELECT * FROM TOPIC of_ann CONSUMER GROUP g").fetchall()) == 8
    ann.execute("COMMIT OFFSETS ON of_ann CONSUMER GROUP g")
    assert {row[-1] for row in ann.execute("SHOW TOPICS LIKE 'of_ann'")} == {"n1", "n2"}
    ann.execute("DROP TOPIC of_ann")


def test_another_node_than_the_one_that_was_meant_is_08004(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, ALL, start=False) as cluster:
        swapped = cluster.text()
        two, three = (f"port = {cluster.ports[name]}" for name in ("n2", "n3"))
        swapped = swapped.replace(two, "port = x").replace(three, two).replace("port = x", three)
        cluster.file("n1").write_text(swapped)
        for name in ("n1", "n2", "n3"):
            cluster.start(name)
        with cluster["n1"].connect() as client:
            with pytest.raises(psycopg.Error) as caught:
                client.execute("SELECT * FROM STREAM nowhere")
            assert caught.value.sqlstate == "08004"
            assert "is not at 127.0.0.1:" in str(caught.value)
        # The others have the right file, and n1 has another of the same epoch.
        with cluster["n2"].connect() as client:
            with pytest.raises(psycopg.errors.InvalidParameterValue) as differ:
                client.execute("SELECT * FROM STREAM nowhere")
            assert 'nodes "n2" and "n1" have two placements of epoch 1' in str(differ.value)


def test_each_node_knows_the_epoch_of_those_it_has_talked_to(tmp_path: Path) -> None:
    text = "SELECT node, epoch FROM ducktail.nodes ORDER BY ALL"
    with ClusterProcesses(tmp_path, 2, ALL, start=False) as cluster:
        with cluster.start("n1").connect() as client:
            assert client.execute(text).fetchall() == [("n1", 1), ("n2", None)]
            # One that starts talks to the others before it takes clients.
            cluster.start("n2")
            assert client.execute(text).fetchall() == [("n1", 1), ("n2", 1)]
        with cluster["n2"].connect() as client:
            assert client.execute(text).fetchall() == [("n1", 1), ("n2", 1)]

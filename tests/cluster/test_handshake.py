"""What a node says when it connects to another, who may say it, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses
from server_process import ServerProcess

from ducktail.engine.placement.peer import epoch_told

ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0", n2 = "1" }\n'


def options(node: str = "n2", cluster: str = "shop", epoch: int = 3, end_user: str = "") -> str:
    """The options of a node's connection."""
    said = {"node": node, "cluster": cluster, "epoch": epoch, "trace": "t-7", "end_user": end_user}
    return " ".join(f"-c ducktail.{name}={value}" for name, value in said.items() if value)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Node n1 of two, by a placement of epoch 3; n2 does not run. It has users."""
    folder, user = tmp_path_factory.mktemp("c"), 'defaults = { user = "peer" }'
    few = ("--peer-connections-max", "3")
    with ClusterProcesses(folder, 2, ALL, user, start=False, options=few) as all_:
        all_.file("n1").write_text(all_.text(epoch=3))
        server = all_.start("n1")
        with server.connect() as first:
            first.execute("CREATE USER root PASSWORD 'r' SUPERUSER")
            first.execute("CREATE USER peer PASSWORD 'p'")
            first.execute("CREATE USER ann PASSWORD 'a'")
        yield server


def come(node: ServerProcess, said: str, user: str = "peer", password: str = "p") -> psycopg.Connection[Any]:
    """A connection with these options."""
    return node.connect(options=said, user=user, password=password)


def test_a_node_acts_for_its_end_user(node: ServerProcess) -> None:
    with come(node, options(end_user="ann")) as peer, come(node, "", "root", "r") as root:
        assert peer.execute("SELECT current_user").fetchone() == ("ann",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            peer.execute("CREATE USER x PASSWORD 'x'")
        rows = root.execute("SELECT user_name, node, trace FROM ducktail.sessions ORDER BY ALL").fetchall()
        assert rows == [("ann", "n2", "t-7"), ("root", None, None)]
    assert any("node=n2 trace=t-7" in line for line in node.lines)


def test_it_is_told_which_node_it_has_reached(node: ServerProcess) -> None:
    with come(node, options()) as peer:
        told = [peer.info.parameter_status(f"ducktail.{name}") for name in ("node", "cluster", "epoch")]
        assert told == ["n1", "shop", "3"]
        assert len(peer.info.parameter_status("ducktail.digest") or "") == 64


def test_a_superuser_may_speak_for_others_and_nobody_else(node: ServerProcess) -> None:
    with come(node, options(end_user="peer"), "root", "r") as peer:
        assert peer.execute("SELECT current_user").fetchone() == ("peer",)
    with pytest.raises(psycopg.OperationalError, match="permission denied to connect as a node"):
        come(node, options(end_user="root"), "ann", "a")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (options(cluster="store"), 'node "n2" is of cluster "store", and this node is of cluster "shop"'),
        (options(epoch=2), 'node "n2" comes with epoch 2, which is over'),
        (options(node="n9"), 'cluster "shop" has no node "n9"'),
        (options(end_user="bob"), 'user "bob" of node "n2" does not exist on node "n1"'),
        ("-c ducktail.node=n2", "says ducktail.cluster, ducktail.epoch as well"),
        ("-c ducktail.node=n2 -c ducktail.cluster=shop -c ducktail.epoch=x", "wants a whole number"),
    ],
)
def test_who_is_refused(node: ServerProcess, said: str, told: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=told) as caught:
        come(node, said)
    if "over" in told:
        assert epoch_told(str(caught.value)) == 3


def test_what_only_nodes_say(node: ServerProcess) -> None:
    where = '{"op": "where", "more": {"keys": []}}'
    with come(node, options()) as peer, come(node, "", "root", "r") as root:
        assert len(peer.execute("FORWARD %s", (where.encode(),)).fetchall()) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="FORWARD"):
            root.execute("FORWARD %s", (where.encode(),))
        with pytest.raises(psycopg.errors.SyntaxError):
            root.execute("PART '{\"epoch\": 3}' SHOW TOPICS")
        assert peer.execute("PART '{\"epoch\": 3}' SHOW TOPICS").fetchall() == []


def test_one_node_does_not_take_all_connections(node: ServerProcess) -> None:
    peers: list[psycopg.Connection[Any]] = []
    with pytest.raises(psycopg.OperationalError, match='node "n2" has 3 connections here already'):
        while len(peers) < 4:
            peers.append(come(node, options()))
    for peer in peers:
        peer.close()


def test_a_server_without_a_cluster_is_no_node(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "a.duckdb")
    with server, pytest.raises(psycopg.OperationalError, match="this server is of none"):
        server.connect(options=options())


def test_a_connection_of_an_older_placement_is_over_with_the_newer_one(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 2, ALL, start=False) as cluster:
        server = cluster.start("n1")
        peer, ahead = (server.connect(options=options(epoch=epoch)) for epoch in (1, 2))
        with peer, ahead:
            # A file that is wrong changes nothing.
            cluster.reload("n1", cluster.text(epoch=2).replace("epoch", "epoc"))
            while not any("the placement of epoch 1 stays" in line for line in server.lines):
                assert peer.execute("SELECT 1").fetchone() == (1,)
            cluster.reload("n1", cluster.text(epoch=2))
            with pytest.raises(psycopg.errors.SerializationFailure) as caught:
                while True:
                    peer.execute("SELECT 1")
            assert epoch_told(caught.value.diag.message_detail) == 2
            assert ahead.execute("SELECT 1").fetchone() == (1,)

"""`ducktail cluster plan` and `apply`, over real servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from cluster_processes import ClusterProcesses, free_ports

from ducktail.__main__ import main
from ducktail.engine.placement.cluster_file import read_cluster_file

ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0, 2, 4", n2 = "1, 3, 5" }\n'


@dataclass(frozen=True, slots=True)
class Done:
    """What the command answered."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def cluster_command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`ducktail cluster WORDS`, in this process: starting Python costs more than all it does."""

    def run(*words: str | Path) -> Done:
        code = main(["cluster", *map(str, words)])
        return Done(code, *capsys.readouterr())

    return run


def epochs(cluster: ClusterProcesses) -> dict[str, int]:
    """What nodes that run say of themselves."""
    found = {}
    for name, node in cluster.nodes.items():
        if node.process.poll() is None:
            with node.connect() as client:
                row = client.execute("SELECT epoch FROM ducktail.nodes WHERE local").fetchone()
                assert row is not None
                found[name] = row[0]
    return found


def test_a_third_node_comes_and_a_dead_one_goes(tmp_path: Path, cluster_command: Command) -> None:
    with ClusterProcesses(tmp_path, 2, ALL) as cluster:
        [port] = free_ports(1)
        new = tmp_path / "new.toml"
        add = ("--add", "n3", "--host", "127.0.0.1", "--port", str(port))
        planned = cluster_command("plan", cluster.file("n1"), *add, "--output", new)
        assert planned.stdout.splitlines() == [
            "add n3", "move * partition 4: n1 -> n3", "move * partition 5: n2 -> n3",
            "2 moves, epoch 1 -> 2",
        ]  # fmt: skip
        # The new node is not there yet: it loses nothing, so the others are told.
        done = cluster_command("apply", new)
        assert done.returncode == 1
        assert done.stdout.splitlines() == [
            "n1: epoch 2, 2 moves", "n2: epoch 2, 2 moves", "2 partitions moved by epoch 2",
            f"{new} is in force on n1, n2, each of which has written it as its cluster.toml: "
            "the next plan begins with it",
        ]  # fmt: skip
        assert "not on n3" in done.stderr
        (tmp_path / "n3").mkdir()
        cluster.file("n3").write_text(new.read_text())
        cluster.start("n3")
        done = cluster_command("apply", new)
        assert (done.returncode, done.stderr) == (0, "")
        assert epochs(cluster) == {"n1": 2, "n2": 2, "n3": 2}
        with cluster["n1"].connect() as client:
            rows = client.execute("SHOW PLACEMENT").fetchall()
            assert [row[3:6] for row in rows] == [
                ("n1", True, "0, 2"), ("n2", False, "1, 3"), ("n3", False, "4-5")
            ]  # fmt: skip
            counts = "placements_installed, moves, nodes_joined"
            row = client.execute(f"SELECT {counts} FROM ducktail.nodes WHERE local").fetchone()
            assert row == (2, 2, 1)
        assert cluster.file("n2").read_text() == new.read_text()

        cluster["n2"].kill()
        smaller = tmp_path / "smaller.toml"
        planned = cluster_command("plan", new, "--remove", "n2", "--output", smaller)
        *_, warned, last = planned.stdout.splitlines()
        assert last == "2 moves, epoch 2 -> 3"
        assert warned.startswith("events come from n2: it must run until")
        # Nobody says whether it has tables.
        assert planned.returncode == 1 and "n2: it is not known whether it still has tables" in planned.stderr
        # It may be alive, and then its partitions would have two owners.
        done = cluster_command("apply", smaller)
        assert done.returncode == 1
        assert "--without n2" in done.stderr
        assert epochs(cluster) == {"n1": 2, "n3": 2}
        done = cluster_command("apply", smaller, "--without", "n2")
        assert done.returncode == 0
        assert epochs(cluster) == {"n1": 3, "n3": 3}
        # It comes back with its old file, and is given the new one.
        cluster.start("n2")
        with cluster["n2"].connect() as client:
            client.execute("INSTALL PLACEMENT %s", (smaller.read_text(),))
            rows = client.execute("SHOW NODES").fetchall()
            assert [(row[0], row[3]) for row in rows] == [("n1", False), ("n3", False), ("n2", True)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--add", "n1", "--host", "h", "--port", "1"), 'node "n1" is in the cluster already'),
        (("--add", "n3"), "--add wants --host and --port"),
        (("--add", "n 3", "--host", "h", "--port", "1"), "not a name"),
        (("--remove", "n7"), 'no node "n7" in the cluster'),
        (("--remove", "n1", "--remove", "n2"), "is the last one"),
        ((), "--add, --remove or --lost says what changes"),
    ],
)
def test_what_a_plan_refuses(
    tmp_path: Path, cluster_command: Command, words: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        'cluster = "c"\nepoch = 1\n[nodes.n1]\nhost = "a"\nport = 1\n[nodes.n2]\nhost = "a"\nport = 2\n' + ALL
    )
    done = cluster_command("plan", file, *words)
    assert done.returncode == 1
    assert told in done.stderr


def test_a_node_that_still_has_tables_is_told_before_it_goes(
    tmp_path: Path, cluster_command: Command
) -> None:
    with ClusterProcesses(tmp_path, 2, ALL) as cluster, cluster["n2"].connect() as client:
        new = tmp_path / "new.toml"
        remove = ("plan", cluster.file("n1"), "--remove", "n2", "--output", new)
        client.execute("CREATE TOPIC spread")
        assert cluster_command(*remove).returncode == 0
        client.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        client.execute("CREATE TABLE u (id INTEGER)")
        client.execute("CREATE STREAM s ON t")
        done = cluster_command(*remove)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "n2 still has 2 tables, which do not move: main.t, main.u",
            "n2 still has 1 stream, which does not move: main.s",
        ]
        assert read_cluster_file(new).epoch == 2
        assert cluster_command("plan", cluster.file("n1"), "--lost", "n2", "--output", new).returncode == 0


def test_an_empty_plan_is_the_same_file(tmp_path: Path, cluster_command: Command) -> None:
    file, output = tmp_path / "cluster.toml", tmp_path / "new.toml"
    file.write_text('cluster = "c"\nepoch = 1\n[nodes.n1]\nhost = "a"\nport = 1\n')
    done = cluster_command("plan", file, "--add", "n1", "--idempotent", "--output", output)
    assert (done.returncode, done.stdout) == (0, "nothing to do\n")
    assert read_cluster_file(output) == read_cluster_file(file)


def test_what_a_node_refuses_changes_nothing(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 1, ALL.replace(', n2 = "1, 3, 5"', "").replace("2, 4", "1")) as cluster:
        kept = cluster.file("n1").read_text()
        with cluster["n1"].connect() as client:
            wrong = {
                kept.replace("epoch = 1", "epoch = 0"): "22023",
                kept.replace('"shop"', '"store"').replace("epoch = 1", "epoch = 2"): "08004",
                kept.replace('name = "*"', 'name = "a"'): "22023",
            }
            for text, sqlstate in wrong.items():
                with pytest.raises(psycopg.Error) as caught:
                    client.execute("INSTALL PLACEMENT %s", (text,))
                assert caught.value.sqlstate == sqlstate
            client.execute("BEGIN")
            with pytest.raises(psycopg.errors.ActiveSqlTransaction):
                client.execute("INSTALL PLACEMENT %s", (kept,))
            client.execute("ROLLBACK")
            assert client.execute("INSTALL PLACEMENT %s", (kept,)).fetchone() == ("n1", 1, 0, False)
            row = client.execute("SELECT epoch, placements_refused FROM ducktail.nodes").fetchone()
            assert row == (1, 3)
        assert cluster.file("n1").read_text() == kept

"""`ducktail serve --node n1 --cluster cluster.toml`: where it listens, and which files it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_processes import ClusterProcesses
from server_process import ServerProcess

ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0" }\n'


def test_it_listens_where_the_file_says(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 1, ALL) as cluster:
        assert cluster["n1"].port == cluster.ports["n1"]
        with cluster["n1"].connect() as client:
            rows = client.execute("SELECT name, setting, place FROM ducktail.settings").fetchall()
        shown = {name: (setting, place) for name, setting, place in rows}
        assert shown["port"] == (str(cluster.ports["n1"]), f'{cluster.file("n1")}, node "n1"')
        assert shown["node"] == ("n1", "--node")


def test_an_older_file_is_refused_at_the_next_start(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 1, ALL, start=False) as cluster:
        cluster.file("n1").write_text(cluster.text(epoch=2))
        cluster.start("n1").stop()
        cluster.file("n1").write_text(cluster.text(epoch=1))
        with pytest.raises(RuntimeError, match="epoch 1 is older than 2"):
            cluster.start("n1")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--node", "n1"), "--cluster and --node go together"),
        (("--node", "n7", "--cluster", "cluster.toml"), r"node .*n7.* is not in it; Its nodes: n1\."),
        (("--node", "n1", "--cluster", "none.toml"), "cannot read cluster file"),
    ],
)
def test_what_does_not_start(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    (tmp_path / "cluster.toml").write_text(
        'cluster = "c"\nepoch = 1\n[nodes.n1]\nhost = "127.0.0.1"\nport = 5\n'
    )
    words = tuple(str(tmp_path / word) if word.endswith(".toml") else word for word in options)
    with pytest.raises(RuntimeError, match=told):
        ServerProcess(tmp_path / "a.duckdb", words)
    assert not (tmp_path / "a.duckdb").exists()

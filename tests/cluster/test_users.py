"""users.toml: one file of users for all nodes, `ducktail cluster user`, and what it makes of a node's own."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import psycopg
import pytest
from cluster_processes import ClusterProcesses

from ducktail.__main__ import main
from ducktail.engine.catalog.passwords import make_verifier
from ducktail.engine.cluster.users import read_users, render_users
from ducktail.engine.errors import InvalidParameterValue

ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0" }\n'
VERIFIER = str(make_verifier("x", b"salt"))


def put(monkeypatch: pytest.MonkeyPatch, file: Path, name: str, password: str, *words: str) -> int:
    """`ducktail cluster user`."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
    return main(["cluster", "user", str(file), name, *words])


def test_the_file_is_the_nodes_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ClusterProcesses(tmp_path, 1, ALL, 'users = "users.toml"', start=False) as cluster:
        users = tmp_path / "n1" / "users.toml"
        assert put(monkeypatch, users, "Root", "r", "--superuser") == 0
        assert put(monkeypatch, users, "ann", "a") == 0
        assert "r" not in users.read_text().split('"')
        node = cluster.start("n1")
        with node.connect(user="root", password="r") as root, node.connect(user="ann", password="a") as ann:
            root.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
            root.execute("GRANT SELECT, CREATE ON SCHEMA main TO ann")
            ann.execute("CREATE TABLE of_ann (i INTEGER)")
            for statement in ("CREATE USER x PASSWORD 'x'", "ALTER USER root PASSWORD 'x'", "DROP USER ann"):
                with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
                    root.execute(statement)
                assert str(users) in str(caught.value.diag.message_hint)
            # A change holds for who is there; who is no more in the file is out.
            assert put(monkeypatch, users, "bob", "b") == 0
            assert put(monkeypatch, users, "ann", "", "--remove") == 0
            node.process.send_signal(signal.SIGHUP)
            with pytest.raises(psycopg.Error) as gone:
                while True:
                    ann.execute("SELECT count(*) FROM t")
            assert gone.value.sqlstate == "28000"
            with node.connect(user="bob", password="b") as bob:
                assert bob.execute("SELECT current_user").fetchone() == ("bob",)
            # What he owned is the superusers'.
            root.execute("DROP TABLE of_ann")
            # A wrong file changes nothing.
            users.write_text(users.read_text().replace("superuser = true", ""))
            node.process.send_signal(signal.SIGHUP)
            told = "no user is a superuser; the placement of epoch 1 stays"
            while not any(told in line for line in node.lines):
                root.execute("SELECT 1")
            assert root.execute("SHOW is_superuser").fetchone() == ("on",)
        node.stop()
        with pytest.raises(RuntimeError, match="no user is a superuser"):
            cluster.start("n1")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[user.ann]", ':1: unknown key "user"'),
        ("[users]\nann = 1", ':2: user "ann" wants a table'),
        ('[users.ann]\nverifier = "x"', ':2: user "ann" wants a verifier'),
        ("[users.ann]", ':1: user "ann" wants a verifier'),
        (f'[users.ann]\nverifier = "{VERIFIER}"\nsuper = true', ':3: unknown key "super" of user "ann"'),
        (f'[users.ann]\nverifier = "{VERIFIER}"\nsuperuser = 1', ':3: "superuser" of user "ann" wants true'),
        (f'[users.ann]\nverifier = "{VERIFIER}"', ": no user is a superuser"),
        (f'[users.a]\nverifier = "{VERIFIER.replace("4096", "9999999")}"', ':2: user "a": a verifier has'),
        (
            "".join(f'[users.{name}]\nverifier = "{VERIFIER}"\n' for name in ("ann", "Ann")),
            ':3: user "Ann" is there twice',
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "users.toml"
    file.write_text(text)
    with pytest.raises(InvalidParameterValue) as caught:
        read_users(file)
    assert caught.value.message.startswith(f"{file}{told}")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[users."o\'dd \\"x\\" ü"]\nverifier = "{VERIFIER}"\nsuperuser = true\n')
    users = read_users(file)
    file.write_text(render_users(users.values()))
    assert read_users(file) == users


def test_the_command_keeps_a_superuser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users.toml"
    assert put(monkeypatch, file, "ann", "a") == 1
    assert not file.exists()
    assert put(monkeypatch, file, "ann", "", "--superuser") == 1
    assert put(monkeypatch, file, "ann", "a", "--superuser") == 0
    assert put(monkeypatch, file, "ann", "", "--remove") == 1
    assert put(monkeypatch, file, "bob", "", "--remove") == 1

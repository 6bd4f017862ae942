"""Every statement of streams, groups, reading and committing, by psql, psycopg and pgjdbc, on three nodes.

About a stream of each, and about a topic that is spread over all, the answers are the same everywhere.
In a soak each driver goes to each node about each stream; in the gate two of them, to two nodes, about one.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from amounts import SOAK, chosen
from cluster_processes import ClusterProcesses
from every_statement import TABLE, TOPIC, Step, Told, walk
from java_programs import JAVA, JAVAC
from server_process import ServerProcess

NODES = ("n1", "n2", "n3")
SPREAD = '[[topics]]\nname = "*"\npartitions = { n1 = "0-3", n2 = "4-7", n3 = "8-1023" }\n'
DRIVER = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).parents[1] / "clients" / "java" / "Forwarded.java"
NULL = "(null)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes, each with a table and a stream on it, which is called as it is."""
    with ClusterProcesses(tmp_path_factory.mktemp("c"), 3, SPREAD) as nodes:
        for name in NODES:
            with nodes[name].connect() as session:
                session.execute(f"CREATE TABLE t_{name} (id INTEGER PRIMARY KEY, x VARCHAR)")
                session.execute(f"CREATE STREAM s_{name} ON t_{name} WITH (partitions = 3)")
                session.execute(f"INSERT INTO t_{name} SELECT i, 'x' || i FROM range(20) r(i)")
                session.execute(f"UPDATE t_{name} SET x = 'new' WHERE id = 3")
                session.execute(f"DELETE FROM t_{name} WHERE id = 4")
        yield nodes


def about_table(cluster: ClusterProcesses, owner: str) -> list[Step]:
    """The walk about a node's stream on a table."""
    with cluster[owner].connect() as session:
        row = session.execute(f"SELECT min(lsn) FROM STREAM s_{owner} PARTITION 0").fetchone()
    assert row is not None
    return walk(TABLE, f"s_{owner}", f"t_{owner}", f"0 AT {row[0]}")


def about_topic() -> list[Step]:
    """The walk about a topic that is spread over all nodes."""
    return walk(TOPIC, "walked", "walked", "")


def by_psycopg(node: ServerProcess, steps: Sequence[Step]) -> list[Told]:
    """A walk as psycopg goes it, each statement with its parameters, in its own connection."""
    told = []
    with node.connect(cursor_factory=psycopg.RawCursor) as session:
        for step in steps:
            cursor = session.cursor()
            try:
                cursor.execute(step.text, step.values or None)
            except psycopg.Error as error:
                said = error.diag
                primary = said.message_primary
                told.append(Told(error=(error.sqlstate, primary, said.message_detail, said.message_hint)))
                continue
            if cursor.description is None:
                told.append(Told((str(cursor.statusmessage),)))
                continue
            columns = tuple(column.name for column in cursor.description)
            rows = [
                tuple(None if value is None else str(value) for value in row) for row in cursor.fetchall()
            ]
            told.append(Told(columns, tuple(rows)))
    return told


MARK = "== step =="
ERROR = re.compile(r"(?:ERROR|FATAL):  (?:(\w{5}): )?(.*)")


def by_psql(node: ServerProcess, steps: Sequence[Step]) -> list[Told]:
    """A walk as psql goes it."""
    command = ["psql", "-XqA", "--csv", "-P", f"null={NULL}", "-v", "VERBOSITY=verbose", node.conninfo]
    for step in steps:
        command += ["-c", step.literal, "-c", f"\\echo '{MARK}'"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    *parts, _ = ended.stdout.split(f"{MARK}\n")
    assert len(parts) == len(steps)
    return [_told(part) for part in parts]


def _told(part: str) -> Told:
    lines = [line for line in part.splitlines() if not line.startswith(("NOTICE", "WARNING", "LOCATION"))]
    at = next((number for number, line in enumerate(lines) if ERROR.match(line)), None)
    if at is not None:
        found = ERROR.match(lines[at])
        assert found is not None
        more = {line[:6]: line.partition(":")[2].strip() for line in lines[at + 1 :]}
        return Told(error=(found[1], found[2], more.get("DETAIL"), more.get("HINT: ")))
    read = [row for row in csv.reader(io.StringIO("\n".join(lines))) if row]
    if not read:
        return Told()
    columns, *rows = read
    rows = [row for row in rows if len(row) == len(columns)]  # A notice's DETAIL stands between them.
    return Told(tuple(columns), tuple(tuple(None if v == NULL else v for v in row) for row in rows))


def lasting(told: Sequence[Told], steps: Sequence[Step]) -> list[tuple[str, Told]]:
    return [(step.text, one.lasting(step)) for one, step in zip(told, steps, strict=True)]


def tours(driver: int) -> Iterator[tuple[list[str], str | None]]:
    """Which nodes are asked, and whose stream they are asked about; None: the topic."""
    if SOAK:
        yield from ((list(NODES), owner) for owner in (*NODES, None))
        return
    nodes = [*NODES[driver:], *NODES[:driver]]
    yield nodes[:2], nodes[0]
    yield nodes[1:], None


def steps_about(cluster: ClusterProcesses, owner: str | None) -> list[Step]:
    return about_topic() if owner is None else about_table(cluster, owner)


# One of them in the gate, beside pgjdbc below.
WALKS = chosen([(0, by_psycopg), (1, by_psql)], 1, "every statement")


@pytest.mark.parametrize(("driver", "walk_by"), WALKS)
def test_by_drivers_of_their_own_process(
    cluster: ClusterProcesses, driver: int, walk_by: Callable[[ServerProcess, list[Step]], list[Told]]
) -> None:
    for nodes, owner in tours(driver):
        steps = steps_about(cluster, owner)
        first, *others = (lasting(walk_by(cluster[node], steps), steps) for node in nodes)
        for other in others:
            assert other == first


def test_a_stream_gets_no_name_that_another_node_has(cluster: ClusterProcesses) -> None:
    for entry in NODES:
        with cluster[entry].connect() as session, pytest.raises(psycopg.errors.DuplicateObject):
            session.execute("ALTER STREAM s_n1 RENAME TO s_n2")


@pytest.mark.jdbc
@pytest.mark.timeout(600)
def test_by_pgjdbc(cluster: ClusterProcesses, tmp_path: Path) -> None:
    subprocess.run([*JAVAC, "-cp", str(DRIVER), "-d", str(tmp_path), str(SOURCE)], check=True)
    command = [*JAVA, "-cp", f"{DRIVER}:{tmp_path}", "Forwarded"]
    wanted = []
    for number, (nodes, owner) in enumerate(tours(2)):
        steps, file = steps_about(cluster, owner), tmp_path / f"steps{number}"
        file.write_text("".join(f"{_line(step)}\n" for step in steps))
        for node in nodes:
            wanted.append((number, steps))
            command += [
                str(file),
                f"jdbc:postgresql://{cluster[node].host}:{cluster[node].port}/ducktail?user=ducktail",
            ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert not done.returncode, done.stderr
    *answers, _ = done.stdout.split("\x1c")
    told: dict[int, list[tuple[str, Told]]] = {}
    for (number, steps), answer in zip(wanted, answers, strict=True):
        found = lasting(list(map(_of_java, answer.split("\x1d")[:-1])), steps)
        assert told.setdefault(number, found) == found


def _line(step: Step) -> str:
    """A step as the program reads it: of which kind it is, its text, its values with their types."""
    values = [f"{'i' if isinstance(value, int) else 's'}{value}" for value in step.values]
    kind = "pure" if step.pure else "broken" if step.broken else ""
    return "\t".join([kind, re.sub(r"\$\d", "?", step.text), *values])


def _of_java(text: str) -> Told:
    kind, *rest = text.split("\x1e")
    if kind == "error":
        sqlstate, message, detail, hint = (part or None for part in rest[0].split("\x1f"))
        return Told(error=(sqlstate, message, detail, hint))
    if kind == "done":
        return Told()
    columns, *rows = (tuple(part.split("\x1f")) for part in rest)
    return Told(columns, tuple(tuple(None if v == NULL else v for v in row) for row in rows))

"""`ducktail pipeline` as users run it: processes of their own over a real server, ended and killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset
import pytest
from amounts import SOAK, amount, chosen
from server_process import COMMAND, ServerProcess
from spark_classes import java_options

pytestmark = pytest.mark.slow

# `pytest -s` shows what was done.
KILLS = amount("DUCKTAIL_SPARK_KILLS", 1, 10)
WORKER_KILLS = amount("DUCKTAIL_SPARK_WORKER_KILLS", 2, 10)
GATEWAY_KILLS = amount("DUCKTAIL_SPARK_GATEWAY_KILLS", 1, 3)
SECONDS = amount("DUCKTAIL_SPARK_SECONDS", 8.0, 120.0)
# The mirrors that are killed together: kinds of places with their types. The gate has one set of these.
SETS = ("table:1", "parquet:1", "delta:1", "table:2", "parquet:2", "delta:2")
PAIRS = ("table:1,parquet:2", "parquet:1,delta:2", "delta:1,table:2")
GIVEN = os.environ.get("DUCKTAIL_SPARK_TARGETS")
KILLED = [GIVEN] if GIVEN else PAIRS if SOAK else chosen(SETS, 1, "mirrors under kill")
# A run that ends by itself, on a machine that does ten other things.
LAST_S = 300.0
# Rows that no event is retained of: so many that a whole copy is not at its end when all kills in the middle
# of it are done, however slow they are.
COPIED = 10_000

FAST = f"""
[spark]
"spark.driver.memory" = "512m"
"spark.driver.extraJavaOptions" = "{java_options()}"
"spark.sql.shuffle.partitions" = 2
"""


def started(kind: str, config: Path, *words: str) -> subprocess.Popen[str]:
    """A pipeline, the leader of a session of its own: JVM and Python workers are in it."""
    return subprocess.Popen(
        [str(COMMAND), "pipeline", kind, "--config", str(config), "--master", "local[2,4]", *words],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def family(process: subprocess.Popen[str], *words: str) -> list[int]:
    """The processes of a pipeline's session whose command line has these words: Python's daemons have groups
    of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # It has ended meanwhile.
            continue
        if session == str(process.pid) and state != "Z" and all(word.encode() in command for word in words):
            found.append(int(entry.name))
    return found


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The Python workers that run tasks: children of the daemon that forks them."""
    daemons = family(process, "pyspark.daemon", "pyspark.worker")
    return [one for one in daemons if _parent(one) in daemons]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def killed(process: subprocess.Popen[str]) -> str:
    """SIGKILL to all that is left of a pipeline; what it had said."""
    while found := family(process):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert process.stdout is not None
    return "" if process.stdout.closed else process.communicate()[0]


def ran(kind: str, config: Path) -> str:
    """A run with --once that ends well; what it said."""
    process = started(kind, config, "--once")
    try:
        said, _ = process.communicate(timeout=LAST_S)
    except subprocess.TimeoutExpired:
        killed(process)
        raise
    assert process.returncode == 0, said
    return said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "shop.duckdb") as started:
        yield started


def config(tmp_path: Path, server: ServerProcess, name: str, text: str) -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\ncheckpoint = "{tmp_path}/checkpoints/{name}"\n'
        f'[gateway]\nhost = "{server.host}"\nport = {server.port}\n{text}\n{FAST}'
    )
    return path


# Three runs of the command, each with a JVM of its own: 43 s on an idle machine.
@pytest.mark.timeout(3 * LAST_S)
def test_mirror_once_and_again(server: ServerProcess, tmp_path: Path) -> None:
    path = config(
        tmp_path, server, "copy",
        '[source]\nstream = "orders_stream"\n[target]\nkind = "table"\ntable = "orders_copy"\n',
    )  # fmt: skip
    rows = "SELECT * FROM orders{} ORDER BY id"
    with server.connect() as look:
        look.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, st VARCHAR, amount DECIMAL(10,2))")
        look.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 2)")
        look.execute("INSERT INTO orders SELECT i, 'new', i / 4 FROM range(100) r(i)")
        look.execute("UPDATE orders SET st = 'paid' WHERE id % 2 = 0")
        look.execute("DELETE FROM orders WHERE id >= 90")
        said = ran("mirror", path)
        assert "copy: finished" in said and "0 events behind" in said
        assert look.execute(rows.format("_copy")).fetchall() == look.execute(rows.format("")).fetchall()
        [(status, batch, events, offsets)] = look.execute(
            "SELECT status, batch_id, events, offsets FROM ducktail.pipelines WHERE pipeline_name = 'copy'"
        ).fetchall()
        # An update is two rows of the envelope.
        assert (status, events) == ("finished", 100 + 2 * 50 + 10) and "orders_stream" in offsets
        lag = "SELECT sum(lag_events) FROM ducktail.offsets WHERE group_name = 'copy'"
        assert look.execute(lag).fetchone() == (0,)
        look.execute("INSERT INTO orders VALUES (1000, 'late', 1)")
    # It may be there before its gateway.
    server._options = ("--port", str(server.port))
    server.stop()
    process = started("mirror", path, "--once")
    assert process.stdout is not None
    assert any("options host, port: nobody answers" in line for line in process.stdout)
    server.start()
    said, _ = process.communicate(timeout=LAST_S)
    assert process.returncode == 0, said
    with server.connect() as look:
        assert look.execute(rows.format("_copy")).fetchall() == look.execute(rows.format("")).fetchall()
        [(later, events)] = look.execute("SELECT batch_id, events FROM ducktail.pipelines").fetchall()
        assert later > batch and events == 211
        assert look.execute("SELECT count(*) > 2 FROM ducktail.pipeline_history").fetchone() == (True,)


def test_what_is_wrong_is_one_line(server: ServerProcess, tmp_path: Path) -> None:
    path = config(
        tmp_path, server, "wrong",
        '[source]\nstream = "nowhere"\n[target]\nkind = "parquet"\npath = "x"\n',
    )  # fmt: skip
    process = started("mirror", path, "--once")
    said, _ = process.communicate(timeout=LAST_S)
    assert process.returncode == 1
    assert 'stream "nowhere"' in said.splitlines()[-1] and "Traceback" not in said


class Writer:
    """Random transactions on a table until it is told to stop; a gateway that is away is waited for."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.random = random.Random(11)
        self.ending = threading.Event()
        self.transactions = 0
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def stop(self) -> None:
        self.ending.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.ending.is_set():
            try:
                with self.server.connect() as connection:
                    while not self.ending.is_set():
                        with connection.transaction():
                            for _ in range(self.random.randint(1, 5)):
                                self._change(connection)
                        self.transactions += 1
                        self.ending.wait(0.03)
            except psycopg.Error:
                self.ending.wait(0.2)

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        key, value = self.random.randint(1, 60), self.random.randint(0, 10**6)
        old = 1000 + value % COPIED
        statement = self.random.choice(
            [
                f"INSERT INTO t VALUES ({key}, 'v{value}', {value}) ON CONFLICT (id) DO UPDATE "
                "SET v = excluded.v, n = excluded.n",
                f"DELETE FROM t WHERE id = {key}",
                f"UPDATE t SET n = n + 1 WHERE id % 7 = {key % 7} AND id < 1000",
                f"UPDATE t SET id = {key + 60} WHERE id = {key} AND NOT EXISTS "
                f"(SELECT 1 FROM t WHERE id = {key + 60})",
                f"UPDATE t SET n = n + 1 WHERE id BETWEEN {old} AND {old + 5}",
                f"DELETE FROM t WHERE id = {old}",
            ]
        )
        connection.execute(statement)


def versions(look: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """All that the table has been, by its stream."""
    changes = look.execute(
        "SELECT id, v, n, _change_type, _lsn FROM STREAM t_stream AFTER 0 ENVELOPE CHANGES"
    ).fetchall()
    now: dict[int, tuple[Any, ...]] = {}
    found = []
    for id_, v, n, kind, lsn in changes:
        if kind == "update_preimage":
            continue
        if id_ in now:
            found.append((*now.pop(id_), lsn))
        if kind != "delete":
            now[id_] = (id_, v, n, lsn)
    return sorted([*found, *((*row, None) for row in now.values())], key=lambda row: int(row[3]))


class Watch:
    """Sees that no group is ever ahead of what Spark has committed."""

    def __init__(self, server: ServerProcess, checkpoints: dict[str, Path]) -> None:
        self.server = server
        self.checkpoints = checkpoints
        self.ending = threading.Event()
        self.looks = 0
        self.ahead: list[str] = []
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def stop(self) -> None:
        self.ending.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.ending.wait(0.1):
            try:
                with self.server.connect() as look:
                    while not self.ending.wait(0.1):
                        for group, checkpoint in self.checkpoints.items():
                            self._look(look, group, checkpoint)
            except psycopg.Error:
                continue

    def _look(self, look: psycopg.Connection[Any], group: str, checkpoint: Path) -> None:
        query = "SELECT partition, committed_lsn FROM ducktail.offsets WHERE group_name = %s"
        standing = look.execute(query, (group,)).fetchall()
        # The checkpoint is looked at later, and only goes forward.
        commits = [int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdecimal()]
        if not commits:
            return
        offsets = json.loads((checkpoint / "offsets" / str(max(commits))).read_text().splitlines()[-1])
        self.looks += 1
        for partition, lsn in standing:
            if lsn > offsets[str(partition)]:
                self.ahead.append(f"{group}: {partition} at {lsn}, Spark at {offsets}")


def copied(look: psycopg.Connection[Any], group: str) -> tuple[int, int]:
    """How many rows of its whole copy a mirror has committed, and how many are left; 0 before it is there."""
    query = "SELECT rows - rows_left, rows_left FROM ducktail.copies WHERE group_name = %s"
    found = look.execute(query, (group,)).fetchone()
    return (0, 0) if found is None else (int(found[0]), int(found[1]))


def gone_on(server: ServerProcess, group: str, process: subprocess.Popen[str]) -> None:
    """Wait until a mirror has committed more of its copy: it works on the next part then."""
    with server.connect() as look:
        before, _ = copied(look, group)
        while copied(look, group)[0] == before:
            assert process.poll() is None, killed(process)
            time.sleep(0.02)


# Until the copy is under way, the drivers that are started again, and the two last runs.
@pytest.mark.timeout(2 * LAST_S + 2 * SECONDS + 2 * LAST_S)
@pytest.mark.parametrize("mirrored_to", KILLED)
def test_killed_at_random_the_mirrors_are_the_table(
    server: ServerProcess, tmp_path: Path, mirrored_to: str
) -> None:
    """Drivers with their workers, workers alone, and the gateway are killed while a writer writes.

    Mirrors of type 1 begin with a whole copy of the table, and one of each is killed in the middle of it.
    """
    targets = [(kind, int(scd)) for kind, _, scd in (one.partition(":") for one in mirrored_to.split(","))]
    port = server.port
    server.stop()
    server._options = ("--port", str(port))
    server.start()
    with server.connect() as look:
        look.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR, n BIGINT)")
        look.execute(f"INSERT INTO t SELECT i, 'old', 0 FROM range(1000, {1000 + COPIED}) AS r (i)")
        look.execute("CREATE STREAM t_stream ON t WITH (partitions = 2)")
    source = '[source]\nstream = "t_stream"\nmaxEventsPerTrigger = 200\n'
    copying = 'startingOffsets = "snapshot"\n'
    mirrors = {}
    for kind, scd in targets:
        name = f"{kind}_{scd}"
        where = f'table = "{name}"' if kind == "table" else f'path = "{tmp_path}/{name}"'
        target = f'[target]\nkind = "{kind}"\nscd = {scd}\n{where}\n'
        mirrors[name] = config(tmp_path, server, name, source + (copying if scd == 1 else "") + target)
        if scd == 1:
            # So the copy takes its time, whatever the machine.
            mirrors[name].write_text(f'trigger = "1 second"\n{mirrors[name].read_text()}')
    choice, writer = random.Random(5), Writer(server)
    watch = Watch(server, {name: tmp_path / "checkpoints" / name for name in mirrors})
    pipelines = {name: started("mirror", path) for name, path in mirrors.items()}
    done, ended = Counter[str](), {}

    def kill(what: str, name: str, among: list[subprocess.Popen[str]]) -> None:
        if what == "gateway":
            server.kill()
            server.start()
        elif what == "driver":
            has_ended = pipelines[name].poll() is not None
            said = killed(pipelines[name])
            if has_ended:
                ended[name] = said
            pipelines[name] = started("mirror", mirrors[name])
        else:
            # One alone: Spark does its task again in another. None is there while the pipelines start.
            while not (there := [one for process in among for one in workers(process)]):
                assert not all(one.poll() is not None for one in among), "all have ended"
                writer.ending.wait(0.1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(choice.choice(there), signal.SIGKILL)
        done[what] += 1

    try:
        kills = ["driver"] * KILLS + ["worker"] * WORKER_KILLS + ["gateway"] * GATEWAY_KILLS
        for name in (name for (_, scd), name in zip(targets, mirrors, strict=True) if scd == 1):
            for what in (one for one in ("worker", "gateway", "driver") if one in kills):
                gone_on(server, name, pipelines[name])
                kill(what, name, [pipelines[name]])
                kills.remove(what)
                with server.connect() as look:
                    part, rest = copied(look, name)
                assert part > 0 and rest > 0, f"{what}: {part} rows of the copy are committed, {rest} left"
        began = time.monotonic()
        choice.shuffle(kills)
        moments = sorted(choice.uniform(0.2, 1.0) * SECONDS for _ in kills)
        for at, (moment, what) in enumerate(zip(moments, kills, strict=True)):
            writer.ending.wait(max(0.0, began + moment - time.monotonic()))
            kill(what, list(mirrors)[at % len(mirrors)], list(pipelines.values()))
        ended |= {n: killed(one) for n, one in pipelines.items() if one.poll() is not None}
    finally:
        writer.stop()
        for process in pipelines.values():
            killed(process)
    print(f"{writer.transactions} transactions, killed: {dict(done)}")
    # Nothing but a kill of its driver ends a pipeline.
    assert ended == {} and done.total() == KILLS + WORKER_KILLS + GATEWAY_KILLS
    assert writer.transactions > 50
    for path in mirrors.values():
        # In a few large batches.
        path.write_text(path.read_text().replace("maxEventsPerTrigger = 200", "maxEventsPerTrigger = 5000"))
        ran("mirror", path)
    watch.stop()
    assert watch.looks > 10 and watch.ahead == []
    with server.connect() as look:
        rows = look.execute("SELECT id, v, n FROM t ORDER BY id").fetchall()
        wanted = versions(look)
        for (kind, scd), name in zip(targets, mirrors, strict=True):
            found = mirrored(look, kind, scd, name, tmp_path / name)
            assert found == (rows if scd == 1 else wanted), name
            if scd == 2:
                # It began with the first event: what none has changed is not in it.
                now, changed = sorted(row[:3] for row in found if row[4] is None), {row[0] for row in found}
                assert now == [row for row in rows if row[0] in changed]


def mirrored(
    look: psycopg.Connection[Any], kind: str, scd: int, name: str, path: Path
) -> list[tuple[Any, ...]]:
    """The mirror as any tool reads it."""
    names = ["id", "v", "n", "from_lsn", "to_lsn"][: 3 if scd == 1 else 5]
    if kind == "table":
        found = look.execute(f"SELECT {', '.join(names)} FROM {name}").fetchall()
    else:
        if kind == "delta":
            table = pytest.importorskip("deltalake").DeltaTable(str(path)).to_pyarrow_table()
        else:
            latest = json.loads((path / "_LATEST").read_text())["directory"]
            table = pyarrow.dataset.dataset(str(path / latest), format="parquet").to_table()
        found = list(zip(*(table.column(column).to_pylist() for column in names), strict=True))
    return sorted(found, key=lambda row: int(row[0 if scd == 1 else 3]))

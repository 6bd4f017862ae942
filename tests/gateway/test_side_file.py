"""A side file that cannot be written: nothing is committed that it should tell of, and it is seen outside."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import IoError
from ducktail.engine.storage.backup import look_through
from ducktail.engine.storage.side_file import SideFile, side_path
from ducktail.pgwire_gateway import Server, listen
from ducktail.pgwire_gateway.server.postmaster import ServerThread

ANSWER_TIMEOUT_S = 20.0
REFUSED = (
    "INSERT INTO t VALUES (10)",
    "INSERT INTO t SELECT i FROM range(20, 2000) r(i)",
    "PUBLISH TO p 'x'",
    "CREATE STREAM r ON u",
    "CREATE CONSUMER GROUP h ON s",
    "COMMIT OFFSET PARTITION 0 AT 2 ON s CONSUMER GROUP g",
    "ALTER STREAM s SET (retention = '1 day')",
    "DROP CONSUMER GROUP g ON s",
)
SHOWN = (
    "SELECT count(*) FROM t",
    "SELECT count(*) FROM TOPIC p AFTER 0",
    "SELECT list(stream_name ORDER BY 1) FROM ducktail.streams",
    "SELECT list(group_name || committed_lsn) FROM ducktail.offsets",
    "SELECT count(*) FROM STREAM s AFTER 0",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "shop.duckdb"


class Served:
    """A server in this process, whose side file can be made to fail."""

    def __init__(self, path: Path) -> None:
        self.database = Database.open(str(path))
        watched = listen("127.0.0.1", 0)
        self._port = watched.getsockname()[1]
        self._thread = ServerThread(Server(self.database, listen("127.0.0.1", 0), watched=watched))

    def close(self) -> None:
        """End it."""
        self._thread.close()
        self.database.close()

    def get(self, place: str) -> tuple[int, str]:
        """Status and body."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}{place}", timeout=ANSWER_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def errors(self) -> float:
        """What the metric says."""
        lines = self.get("/metrics")[1].splitlines()
        [line] = [line for line in lines if line.startswith("ducktail_side_file_errors_total")]
        return float(line.split()[1])

    @contextmanager
    def full(self) -> Iterator[None]:
        """Within, each write of the side file is the system's ENOSPC."""
        side = self.database.side
        assert side is not None
        kept, full = os.dup(side._descriptor), os.open("/dev/full", os.O_RDWR)
        try:
            os.dup2(full, side._descriptor)
            yield
        finally:
            os.dup2(kept, side._descriptor)
            os.close(kept)
            os.close(full)


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    """A server on a database with a stream, a topic and a group."""
    served = Served(path)
    yield served
    served.close()


def test_nothing_is_committed_that_could_not_be_told(
    served: Served, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = served._thread.address
    with psycopg.connect(host=host, port=port, dbname="shop", user="ann", autocommit=True) as client:
        for text in (
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "CREATE TABLE u (id INT PRIMARY KEY)",
            "CREATE STREAM s ON t WITH (partitions = 1)",
            "CREATE TOPIC p WITH (partitions = 1)",
            "CREATE CONSUMER GROUP g ON s",
            "INSERT INTO t VALUES (1), (2), (3)",
            "COMMIT OFFSET PARTITION 0 AT 1 ON s CONSUMER GROUP g",
        ):
            client.execute(text)

        def shown() -> list[Any]:
            return [client.execute(text).fetchall() for text in SHOWN]

        before = shown()
        assert served.get("/ready") == (200, "ready\n")
        assert served.errors() == 0
        caplog.clear()
        with served.full():
            for text in REFUSED:
                with pytest.raises(psycopg.errors.IoError) as found:
                    client.execute(text)
                assert "No space left" in (found.value.diag.message_detail or "")
            with pytest.raises(psycopg.errors.IoError), client.transaction():
                client.execute("INSERT INTO t VALUES (11)")
                client.execute("COMMIT OFFSET PARTITION 0 AT 2 ON s CONSUMER GROUP g")
            assert shown() == before
            assert served.get("/ready") == (503, "not ready\n")
            assert served.errors() >= len(REFUSED)
            client.execute("INSERT INTO u VALUES (1)")  # It has no stream, so nothing of it is acknowledged.
            told = [r.getMessage() for r in caplog.records if "side file" in r.getMessage()]
            assert len(told) == 1 and "cannot be written" in told[0]
        ends = time.monotonic() + ANSWER_TIMEOUT_S
        while served.get("/ready")[0] != 200:  # The watchdog tries it, though nobody commits.
            assert time.monotonic() < ends
            time.sleep(0.02)
        assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
            "the side file can be written again"
        ]
        for text in REFUSED:
            client.execute(text)
    shutil.copy(side_path(str(path)), f"{path}.kept")
    served.close()
    shutil.copy(f"{path}.kept", side_path(str(path)))
    about, wrong = look_through(str(path))
    assert wrong == [] and about[-1].startswith("acknowledged: transaction ")


def test_a_side_file_that_cannot_be_made_or_read(path: Path) -> None:
    Database.open(str(path)).close()
    side_path(str(path)).unlink()
    side_path(str(path)).mkdir()
    with pytest.raises(IoError) as found:
        Database.open(str(path))
    assert "Is a directory" in (found.value.detail or "")
    side_path(str(path)).rmdir()
    (path.parent / f"{path.name}.ducktail.new").mkdir()
    with pytest.raises(IoError) as found:
        Database.open(str(path))
    assert "Is a directory" in (found.value.detail or "")
    (path.parent / f"{path.name}.ducktail.new").rmdir()
    Database.open(str(path)).close()
    side = SideFile.open(side_path(str(path)))
    assert side is not None
    side.close()

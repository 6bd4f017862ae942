"""Standbys: they follow a copy, survive kills of either side, and take the primary's place.

DUCKTAIL_STANDBY_KILLS is how often a standby is killed, DUCKTAIL_PROMOTIONS how often a primary is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from acknowledged_load import TABLES, Acknowledged, has_everything
from amounts import amount, seed_of
from copied_load import OPTIONS, SETUP, Load, asker, await_copy, compare
from server_process import ServerProcess
from standby_process import StandbyProcess, promoted

from ducktail.engine.clock import SystemClock
from ducktail.engine.errors import DuplicateObject, IoError, ObjectInUse
from ducktail.engine.replication.fences import put_fence
from ducktail.engine.replication.generation_writer import DatabaseIdentity
from ducktail.engine.replication.standby import Standby

KILLS = amount("DUCKTAIL_STANDBY_KILLS", 3, 100)
PROMOTIONS = amount("DUCKTAIL_PROMOTIONS", 2, 200)
SEED = seed_of("DUCKTAIL_STANDBY_SEED")
FENCED = "a standby was promoted in place of this database"

Serve = Callable[..., ServerProcess]
Follow = Callable[..., StandbyProcess]


@pytest.fixture
def processes() -> Iterator[list[ServerProcess]]:
    started: list[ServerProcess] = []
    yield started
    for process in started:
        process.kill()


@pytest.fixture
def serve(tmp_path: Path, target: Path, processes: list[ServerProcess]) -> Serve:
    """Primaries that copy to the directory."""

    def start(*options: str) -> ServerProcess:
        server = ServerProcess(tmp_path / "shop.duckdb", ("--port", "0", "--copy-to", str(target), *options))
        processes.append(server)
        return server

    return start


@pytest.fixture
def follow(tmp_path: Path, target: Path, processes: list[ServerProcess]) -> Follow:
    """Standbys that follow the directory."""

    def start(name: str = "standby", *options: str) -> StandbyProcess:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        standby = StandbyProcess(place / "shop.duckdb", target, options)
        processes.append(standby)
        return standby

    return start


def test_a_promotion(serve: Serve, follow: Follow, target: Path, tmp_path: Path) -> None:
    """Refused clients, promotion, groups that go on, the old primary's end, and a new standby."""
    server = serve("--synchronous-copies", "1")
    standby = follow("standby", "--primary", "10.0.0.1:5480", "--copy-to", str(target))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        for number in range(1, 6):
            connection.execute("insert into t values (%s, 0)", (number,))
        connection.execute("select lsn from stream s consumer group g limit 2")
        connection.execute("commit offsets on s consumer group g")
        with pytest.raises(psycopg.OperationalError) as refused:
            standby.connect()
        assert "this server is a standby\nDETAIL:  The primary is 10.0.0.1:5480." in str(refused.value)
        said = standby.promote()
        assert said == "promoted: transaction 8, LSN 5, incarnation 1\n"
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into t values (99, 0)")  # 57R01, 57P01 or a closed connection
    server.process.wait(30)
    assert server.stop() == 1
    assert any(FENCED in line for line in server.lines)
    with pytest.raises(RuntimeError, match=FENCED):
        server.start()
    with standby.connect() as connection:
        rows = connection.execute("select lsn from stream s consumer group g").fetchall()
        assert [lsn for (lsn,) in rows] == [3, 4, 5]
        connection.execute("insert into t values (6, 0)")
        (lsn,) = connection.execute("select max(lsn) from stream s after 0").fetchone() or (0,)
        assert lsn == (1 << 40) + 1
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("select * from stream s after 7").fetchall()  # never assigned here
        await_copy(connection)
    again = promoted(standby.path)
    assert again.returncode == 1 and "is promoted already" in again.stderr
    # It serves again after a restart, with the same words.
    standby.kill()
    serving = ServerProcess.start
    standby._await_listening = lambda: ServerProcess._await_listening(standby)  # type: ignore[method-assign]
    serving(standby)
    with standby.connect() as connection:
        assert connection.execute("select count(*) from t").fetchone() == (6,)
        # A new standby follows it, in place of the old primary.
        second = follow("second")
        second.await_lsn(lsn)
        assert second.position is not None and second.position.incarnation == 1
    standby.kill()
    assert second.promote().endswith("incarnation 2\n")


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * PROMOTIONS)
def test_primaries_are_killed(tmp_path: Path, processes: list[ServerProcess]) -> None:
    """kill -9 of the primary under a mixed load, and promotion: the standby is the primary as of a
    transaction, with all that was confirmed."""
    chance = random.Random(SEED)
    for number in range(PROMOTIONS):
        target = _new(tmp_path / f"copy_{number}")
        server = ServerProcess(
            tmp_path / f"shop_{number}.duckdb",
            (*OPTIONS, "--copy-to", str(target)),
        )
        processes.append(server)
        with server.connect() as connection:
            for text in SETUP:
                connection.execute(text)
            place = _new(tmp_path / f"standby_{number}")
            standby = StandbyProcess(place / "shop.duckdb", target)
            processes.append(standby)
            load = Load(server, SEED + number)
            confirmed, ends = 0, time.monotonic() + chance.uniform(1.0, 5.0)
            while time.monotonic() < ends:
                row = connection.execute("select copied_lsn from ducktail.continuous_copies").fetchone()
                confirmed = row[0] if row is not None and row[0] is not None else confirmed
        server.kill()
        load.stop()
        assert load.errors == []
        standby.promote()
        position = standby.position
        assert position is not None and position.lsn >= confirmed
        standby.kill()
        _is_primary(server, standby, position.lsn)


def _new(place: Path) -> Path:
    place.mkdir()
    return place


def _is_primary(server: ServerProcess, standby: StandbyProcess, lsn: int) -> None:
    """Compare a promoted database with its old primary, which serves for that without copies."""
    old = ServerProcess(server.path)
    try:
        with old.connect() as connection:
            compare(standby.path, asker(connection), lsn)
    finally:
        old.kill()


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
def test_standbys_are_killed(serve: Serve, follow: Follow, tmp_path: Path) -> None:
    """kill -9 of the standby while it applies logs, blocks and checkpoints, and while it is promoted."""
    chance = random.Random(SEED)
    server = serve(*OPTIONS[2:], "--copy-generation-ms", "3000")
    with server.connect() as connection:
        for text in SETUP:
            connection.execute(text)
    load = Load(server, SEED)
    standby = follow()
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.1, 1.5))
        standby.kill()
        standby.start()
    load.stop()
    assert load.errors == []
    with server.connect() as connection:
        (lsn,) = connection.execute("select max(last_lsn) from ducktail.commits").fetchone() or (0,)
        await_copy(connection)
    standby.await_lsn(lsn)
    server.kill()
    promoting = threading.Thread(target=promoted, args=(standby.path, "--timeout", "2"))
    promoting.start()
    time.sleep(chance.uniform(0.3, 1.5))
    standby.kill()
    promoting.join()
    position = standby.position
    assert position is not None
    if position.promoted:
        # It is completed at the next start, which serves.
        standby._await_listening = lambda: ServerProcess._await_listening(standby)  # type: ignore[method-assign]
        standby.start()
    else:
        standby.start()
        standby.promote()
    standby.kill()
    _is_primary(server, standby, lsn)


@pytest.mark.timeout(180)
def test_promotion_beside_a_living_primary(serve: Serve, follow: Follow, target: Path) -> None:
    """Synchronous: what the old primary acknowledged before its end is in the promoted database."""
    server = serve("--synchronous-copies", "1", "--copy-interval-ms", "200")
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
    standby = follow()
    load = Acknowledged(server, 0, SEED)
    while load.count < 200:
        assert load.errors == []
        time.sleep(0.01)
    standby.promote()
    server.process.wait(60)
    assert server.stop() == 1
    load.stop()
    assert all(getattr(error, "sqlstate", None) in ("57R01", "57P01", "57P03") for error in load.errors)
    standby.kill()
    has_everything(standby.path, load.kept)


def test_a_promotion_that_fails_behind_its_fence_is_repeated(
    serve: Serve, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory fails once the fence is there; the next attempt is the same promotion."""
    server = serve()
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("insert into t values (1, 1)")
        await_copy(connection)
    (tmp_path / "standby").mkdir()
    path, catch_up, calls = tmp_path / "standby" / "shop.duckdb", Standby.catch_up, []
    standby = Standby(path, target, SystemClock())
    while standby.catch_up():
        pass
    server.kill()

    def failing(standby: Standby) -> bool:
        calls.append(standby)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        return catch_up(standby)

    monkeypatch.setattr(Standby, "catch_up", failing)
    with pytest.raises(IoError, match="cannot be reached"):
        standby.promote(fenced=True)
    standby.close()
    standby = Standby(path, target, SystemClock())
    assert standby.promote(fenced=True).done
    standby.close()
    assert not list(path.parent.glob("*.promotion*"))
    has_everything(path, {"t": [1]})
    with pytest.raises(ObjectInUse, match="fence of another promotion"):
        put_fence(standby.target, DatabaseIdentity(standby.position.identity, 0), "another", 0)


def test_two_standbys(serve: Serve, follow: Follow) -> None:
    """Only one of two is promoted; the other then follows it."""
    server = serve()
    one, two = follow("one"), follow("two")
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("insert into t values (1, 1)")
        await_copy(connection)
    server.kill()
    one.await_lsn(1)
    two.await_lsn(1)
    one.promote()
    refused = promoted(two.path)
    assert refused.returncode == 1
    assert "has the fence of another promotion" in refused.stderr and "incarnation 1" in refused.stderr


def test_a_directory_that_is_gone(serve: Serve, follow: Follow, target: Path, tmp_path: Path) -> None:
    server = serve()
    standby = follow()
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("insert into t values (1, 1)")
        await_copy(connection)
    standby.await_lsn(1)
    server.kill()
    target.rename(tmp_path / "away")
    refused = promoted(standby.path)
    assert refused.returncode == 1 and "ducktail promote --unfenced" in refused.stderr
    standby.promote("--unfenced")
    with standby.connect() as connection:
        assert connection.execute("select id from t").fetchall() == [(1,)]


def test_refusals(serve: Serve, follow: Follow, target: Path, tmp_path: Path) -> None:
    missing = promoted(tmp_path / "nothing.duckdb")
    assert missing.returncode == 1 and "there is no standby" in missing.stderr
    server = serve()
    with server.connect() as connection:
        connection.execute("create table t (id int primary key)")
        await_copy(connection)
    with pytest.raises(DuplicateObject, match="already exists"):
        Standby(Path(server.path), target, SystemClock())
    standby = follow()
    standby.await_lsn(0)
    with pytest.raises(ObjectInUse, match="another process has the standby"):
        Standby(standby.path, target, SystemClock())
    standby.kill()
    stopped = promoted(standby.path)
    assert stopped.returncode == 1 and "no process follows with the standby" in stopped.stderr

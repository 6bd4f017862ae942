"""A copied server, killed (-9) at random points of a mixed load: the copy has what it had confirmed, and no
half.

The copy is restored after each kill and compared with the database that was killed. DUCKTAIL_COPY_KILLS
is how often it is killed, DUCKTAIL_COPY_SEED chooses what is done.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from amounts import amount, seed_of
from copied_load import OPTIONS, SETUP, Load, asker, compare
from server_process import ServerProcess

from ducktail.engine.replication.point_in_time import Moment, restore_copy

KILLS = amount("DUCKTAIL_COPY_KILLS", 3, 200)
SEED = seed_of("DUCKTAIL_COPY_SEED")


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * KILLS)
def test_a_copied_server_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    target = tmp_path / "copy"
    target.mkdir()
    server = ServerProcess(tmp_path / "shop.duckdb", (*OPTIONS, "--copy-to", str(target)))
    try:
        with server.connect() as connection:
            for text in SETUP:
                connection.execute(text)
        for number in range(KILLS):
            load = Load(server, SEED + number)
            confirmed, ends = 0, time.monotonic() + chance.uniform(0.3, 4.0)
            with server.connect() as connection:
                while time.monotonic() < ends:
                    row = connection.execute("select copied_lsn from ducktail.continuous_copies").fetchone()
                    confirmed = row[0] if row is not None and row[0] is not None else confirmed
            server.kill()
            load.stop()
            assert load.errors == []
            restored = tmp_path / f"restored_{number}.duckdb"
            _, copied = restore_copy(target, Moment(), restored)
            server.start()
            with server.connect() as connection:
                row = connection.execute("select max(last_lsn) from ducktail.commits").fetchone()
                assert row is not None and confirmed <= copied.counters.lsn <= row[0]
                compare(restored, asker(connection), copied.counters.lsn)
            for left in tmp_path.glob(f"{restored.name}*"):
                left.unlink()
    finally:
        server.kill()

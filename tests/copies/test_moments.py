"""Restores to random moments of a recorded history: tables, streams and offsets are those of the moment."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from amounts import amount, seed_of
from copied_load import CopiedServer, asker, compare
from preloaded import ran

from ducktail.engine.errors import InvalidParameterValue
from ducktail.engine.replication.generations import read_generations
from ducktail.engine.replication.point_in_time import Moment, restore_copy
from ducktail.engine.replication.targets import DirectoryTarget

MOMENTS = amount("DUCKTAIL_COPY_MOMENTS", 20, 500)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMMITS = (
    "select first_lsn, last_lsn, epoch_us(commit_time) from ducktail.commits "
    "where last_lsn >= first_lsn order by txid"
)


def microseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def is_between(target: Path, lsn: int) -> bool:
    """True if only a checkpoint, and no log, has an LSN."""
    (generation,) = read_generations(DirectoryTarget(target))
    for span, following in pairwise(generation.spans):
        before, behind = span.last, following.first
        if not following.checkpoint.facts["continues"] and before is not None:
            if before.last_lsn < lsn and (behind is None or lsn < behind.first_lsn):
                return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * MOMENTS)
def test_random_moments(copied: CopiedServer, tmp_path: Path) -> None:
    chance = random.Random(seed_of("DUCKTAIL_COPY_SEED", 2))
    with copied.server.connect() as connection:
        # Retention has deleted the rows of the earliest commits, which no stream has.
        commits = connection.execute(COMMITS).fetchall()
        aside = tmp_path / "aside.duckdb"
        for number in range(MOMENTS):
            place = chance.randrange(len(commits))
            first, last, us = commits[place]
            path = tmp_path / f"moment_{number}.duckdb"
            if number % 2:
                moment = Moment(lsn=chance.randint(first, last))
            else:
                later = commits[place + 1][2] if place + 1 < len(commits) else us + 1
                moment = Moment(at_us=chance.randint(us, max(us, later - 1)))
                last = max(end for _, end, at in commits if at <= moment.at_us)  # type: ignore[operator]
            try:
                _, made = restore_copy(copied.target, moment, path)
            except InvalidParameterValue:
                # Only the checkpoint has a bulk load that came just before it.
                assert is_between(copied.target, last), moment
                continue
            if made.counters.lsn != last:
                # One-row writes of several sessions may be one transaction of DuckDB.
                whole = made if moment.lsn else restore_copy(copied.target, Moment(lsn=last), aside)[1]
                assert whole.counters.lsn > last
                aside.unlink(missing_ok=True)
            compare(path, asker(connection), made.counters.lsn)
            for left in tmp_path.glob(f"{path.name}*"):
                left.unlink()


def test_the_command(copied: CopiedServer, tmp_path: Path) -> None:
    with copied.server.connect() as connection:
        commits = connection.execute(COMMITS).fetchall()
        us = commits[len(commits) // 2][2]
    time = (EPOCH + timedelta(microseconds=us)).replace(tzinfo=None)
    new = tmp_path / "new.duckdb"
    done = ran(["restore", "--at", str(time), str(copied.target), str(new)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"restored {new}: transaction ")
    assert f"committed at {time} UTC\nfrom generation " in done.stdout
    again = ran(["restore", str(copied.target), str(new)])
    assert again.returncode == 1 and "already exists" in again.stderr
    wrong = ran(["restore", "--lsn", str(1 << 50), str(copied.target), str(tmp_path / "x.duckdb")])
    assert wrong.returncode == 1 and f"the copy does not have LSN {1 << 50}" in wrong.stderr
    assert "It can restore: generation " in wrong.stderr
    backup = ran(["restore", "--lsn", "1", str(new), str(tmp_path / "x.duckdb")])
    assert backup.returncode == 1 and "--at and --lsn choose a moment of a continuous copy" in backup.stderr
    both = ran(["restore", "--lsn", "1", "--latest", str(copied.target), str(tmp_path / "x.duckdb")])
    assert both.returncode == 2
    untimely = ran(["restore", "--at", "noon", str(copied.target), str(tmp_path / "x.duckdb")])
    assert untimely.returncode == 1 and '"noon" is no time' in untimely.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = ran(["restore", str(empty), str(tmp_path / "x.duckdb")])
    assert nothing.returncode == 1 and "has no copy of a database" in nothing.stderr
    assert not (tmp_path / "x.duckdb").exists()


def test_times_outside_the_copy(copied: CopiedServer, tmp_path: Path) -> None:
    with copied.server.connect() as connection:
        row = connection.execute("select copied_at from ducktail.continuous_copies").fetchone()
    assert row is not None
    later, earlier = microseconds(row[0] + timedelta(hours=1)), microseconds(row[0] - timedelta(hours=1))
    for us in (later, earlier):
        with pytest.raises(InvalidParameterValue, match="the copy does not have"):
            restore_copy(copied.target, Moment(at_us=us), tmp_path / "x.duckdb")

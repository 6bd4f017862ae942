"""Passes of compaction: when one is due, in which steps it goes, what is damage behind it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import duckdb
import pytest
from compacting import Compacting, lsns
from hands import HOUR_US, SECOND_US
from local_client import raises

from ducktail.engine.buffers.buffer import RetainedBytes
from ducktail.engine.log import deleted_ranges
from ducktail.engine.log.deleted_ranges import Range
from ducktail.engine.retention import compaction
from ducktail.engine.retention.compaction import Superseded

pytestmark = pytest.mark.slow


def test_edits_past_ducktail_are_found(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("insert into t select i, 0 from range(10) r(i)")
    base("update t set v = 1")
    base.clock.us += 2 * HOUR_US
    base("update t set v = 2 where id < 5")
    base.look()
    assert base("check stream s") == []
    base.close()
    plain = duckdb.connect(str(base.path))
    plain.execute("UPDATE t SET v = 7 WHERE id IN (1, 8)")
    plain.execute("DELETE FROM t WHERE id = 9")
    plain.close()
    base._open()
    found = base("check stream s")
    assert sorted((row[0], json.loads(row[1])["id"]) for row in found) == [
        ("changed", 1),
        ("changed", 8),
        ("missing", 9),
    ]
    base.clock.us += 2 * HOUR_US
    base.look()  # Nothing is compacted until it is mended.
    assert base.one("select max(compacted_through_lsn) from ducktail.partitions") == 20
    base("alter stream s resync")
    assert base("check stream s") == []
    base.clock.us += 2 * HOUR_US
    base.look()
    assert len(lsns(base, "s")) == 10
    assert base("check stream s") == []


def test_rows_that_are_gone_besides_are_damage(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("insert into t select i, 0 from range(10) r(i)")
    base("update t set v = 1")
    base.clock.us += 2 * HOUR_US
    base.look()
    [log] = base.logs()
    base.close()
    plain = duckdb.connect(str(base.path))
    plain.execute(f'DELETE FROM ducktail."{log}" WHERE lsn = 15')
    plain.close()
    base._open()
    with raises("XX001") as error:
        base("select * from stream s")
    assert "10 were compacted" in str(error.value.detail)


def test_a_pass_that_took_long_rests(base: Compacting, monkeypatch: pytest.MonkeyPatch) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("insert into t select i, 0 from range(100) r(i)")
    base.clock.us += 2 * HOUR_US
    works_out = Superseded.work_out

    def work_out(superseded: Superseded) -> None:
        base.clock.us += HOUR_US // 10
        works_out(superseded)

    with monkeypatch.context() as patched:
        patched.setattr(Superseded, "work_out", work_out)
        base.look()
    base("update t set v = 1 where id = 1")
    base.clock.us += 4 * HOUR_US
    base.look()
    assert base.one("select count(*) from stream s") == 101
    base.clock.us += HOUR_US + SECOND_US
    base.look()
    assert base.one("select count(*) from stream s") == 100


def test_a_pass_is_not_repeated_for_little(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("insert into t select i, 0 from range(100) r(i)")
    base.clock.us += 2 * HOUR_US
    base.look()
    base("update t set v = 1 where id < 10")
    base.clock.us += HOUR_US
    base.look()
    assert base.one("select count(*) from stream s") == 100  # An hour is over since the last.
    base("update t set v = 2 where id < 10")
    base.clock.us += HOUR_US - SECOND_US
    base("update t set v = 3 where id < 10")
    base.clock.us += SECOND_US
    base.look()
    assert base.one("select count(*) from stream s") == 110
    base.clock.us += HOUR_US // 2
    base("update t set v = 4 where id < 30")
    base.look()
    assert base.one("select count(*) from stream s") == 140
    base.clock.us += HOUR_US
    base.look()
    assert base.one("select count(*) from stream s") == 100


def test_many_steps(base: Compacting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP_ROWS", 7)
    monkeypatch.setattr(compaction, "STEP_LSNS", 11)
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 4, retention = 'none', compaction = 'key')")
    base("insert into t select i, 0 from range(20) r(i)")
    base.clock.us += 2 * HOUR_US
    base.look()
    for v in range(3):
        base(f"update t set v = {v}")
    base("create consumer group g on s start after 30")
    base.clock.us += 2 * HOUR_US
    # A stream that is altered while it is under way ends the pass; the next one does the rest.
    steps, left = base.database.retention.steps, [10]
    transaction = steps.locked

    def locked() -> Any:
        left[0] -= 1
        if left[0] == 0:
            base("alter stream s set (buffer_bytes = '1 MiB')")
        return transaction()

    monkeypatch.setattr(steps, "locked", locked)
    base.look()
    assert 20 < len(lsns(base, "s")) < 80
    base.look()
    assert lsns(base, "s") == list(range(61, 81))
    assert base.one("select sum(lag_events) from ducktail.offsets") == 20
    assert base("check stream s") == []
    base.reopen()
    assert base.ask("SELECT sum(removed) FROM ducktail.compacted_ranges") == [(60,)]


def test_ranges() -> None:
    ranges = deleted_ranges.extended((), 10)
    assert ranges == (Range(1, 10),)
    assert deleted_ranges.expired_through(ranges, 10**18) == 0
    keep_us = 32 * 100
    ranges = deleted_ranges.finished(deleted_ranges.counted(ranges, [3]), 1000, keep_us)
    assert ranges == (Range(1, 10, 3, 1000),)
    assert deleted_ranges.extended(ranges, 10) == ranges
    for number, now_us in enumerate(range(1010, 20_000, 10), 2):
        ranges = deleted_ranges.finished(deleted_ranges.extended(ranges, number * 10), now_us, keep_us)
        assert ranges[0].first_lsn == 1 and deleted_ranges.through(ranges) == number * 10
        assert all(one.last_lsn + 1 == two.first_lsn for one, two in pairwise(ranges))
        assert len(ranges) <= deleted_ranges.SHARES + 2
        # What was compacted so long ago is known to be, a share of the time later at most.
        old = deleted_ranges.expired_through(ranges, now_us - keep_us)
        assert (now_us - keep_us - 100 - 1000) // 10 * 10 <= old or now_us < 1000 + keep_us + 110
    assert sum(one.removed for one in ranges) == 3


def test_retained_bytes_are_thinned() -> None:
    marks = RetainedBytes()
    for lsn in range(1, 101):
        marks.add(lsn, 10)
    marks.trim(20)
    marks.thin(60, 0.25)
    assert marks.total == 100 + 400
    assert marks.excess_through(450) == 40
    assert marks.excess_through(390) == 61
    marks.trim(60)
    assert marks.total == 400

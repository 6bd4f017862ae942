"""A random load with compaction beside it, held against all events that its streams ever showed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amounts import seeds
from compacting import Compacting, lsns
from hands import HOUR_US

from ducktail.engine.retention import compaction

pytestmark = pytest.mark.slow


OPTIONS = "partitions = 2, retention = 'none', compaction = 'key', tombstone_retention = '6 h'"
STREAMS = {
    "all_of_it": f"on t with ({OPTIONS})",
    "first": f"on t with ({OPTIONS}, snapshot = 'initial')",
    "small": f"on t (v) where v < 5 with ({OPTIONS}, before = 'key')",
    "written": f"on t operations insert, update with ({OPTIONS})",
    "born": f"on t operations insert with ({OPTIONS})",
    "own": "on t with (partitions = 3, partition_by = 'w', retention = '4 days', compaction = 'key')",
    "whole": "on t with (partitions = 1, retention = '5 hours')",
}
EVENT = "lsn, partition, op, key, after, commit_time"


def folded(events: list[Any]) -> dict[str, str]:
    """What a consumer that puts and deletes has."""
    rows: dict[str, str] = {}
    for _, _, op, key, after, _ in events:
        if op == "delete":
            rows.pop(key, None)
        else:
            rows[key] = after
    return rows


class Model:
    """A database under a random load, and all events that its streams ever showed."""

    def __init__(self, base: Compacting, seed: int) -> None:
        self.base, self.chance = base, random.Random(seed)
        self.seen: dict[str, dict[int, Any]] = {}
        self.readers: dict[str, tuple[int, dict[int, Any], int]] = {}
        base("create table t (id int primary key, v int, w int)")
        base("create stream all_of_it " + STREAMS["all_of_it"])

    def write(self) -> None:
        """A transaction."""
        chance, base = self.chance, self.base
        base("begin")
        for _ in range(chance.randint(1, 3)):
            n, v, w = chance.randrange(12), chance.randrange(10), chance.randrange(4)
            base(
                chance.choice(
                    (
                        f"insert into t (id, v, w) values ({n}, {v}, {w}) "
                        "on conflict (id) do update set v = excluded.v",
                        f"insert into t (id, v, w) select i, {v}, {w} from range({n}, {n + 3}) r(i) "
                        "on conflict do nothing",
                        f"update t set v = {v} where id % 3 = {n % 3}",
                        f"update t set w = {w} where id = {n}",
                        f"update t set id = id + 12 where id = {n} and id + 12 not in (select id from t)",
                        f"delete from t where id % 12 = {n}",
                    )
                )
            )
        base(chance.choice(("commit", "commit", "commit", "rollback")))

    def witness(self) -> None:
        """Keep what there is."""
        for name in self.base.database.catalog.streams.values():
            known = self.seen.setdefault(name.name, {})
            for row in self.base(f"select {EVENT} from stream {name.name}"):
                assert known.setdefault(row[0], row)[:5] == row[:5]

    def compact(self) -> None:
        """A pass, and what must hold of it."""
        self.witness()
        self.base.look()
        through = self.base.one("select coalesce(max(compacted_through_lsn), 0) from ducktail.partitions")
        for name, known in self.seen.items():
            left = self.base(f"select {EVENT} from stream {name}")
            assert set(lsns(self.base, name)) == {row[0] for row in left}
            self.judge(name, known, left, through)
            assert self.base(f"check stream {name}") == []

    def judge(self, name: str, known: dict[int, Any], left: list[Any], through: int) -> None:
        """What is left of a stream's events, against all that it ever had."""
        edge = self.base.database.buffers[self.stream(name).stream_id].edge_lsn
        every = [known[lsn] for lsn in sorted(known)]
        kept = {row[0] for row in left}
        assert {row[0] for row in every if row[0] > max(through, edge)} <= kept
        if name in ("whole",):
            assert kept == {row[0] for row in every if row[0] > edge}
            return
        last: dict[tuple[int, str], int] = {row[1:4:2]: row[0] for row in every if row[0] <= through}
        for lsn, partition, op, key, *_ in every:
            if lsn <= edge or lsn in kept:
                continue
            # It was superseded, or deletes what is not there any more.
            assert last[partition, key] > lsn or op == "delete"
        if not edge:
            assert folded(left) == folded(every)
            upto = [row for row in left if row[0] <= through]
            assert folded(upto) == folded([row for row in every if row[0] <= through])
        # A reader that is not further behind than deletes are kept.
        at_us, read, place = self.readers.get(name, (0, {}, 0))
        if self.base.clock.us - at_us <= 6 * HOUR_US:
            rows = [*read.values(), *(row for row in left if row[0] > place)]
            assert folded(rows) == folded(every)
            for number in range(3):
                mine = [row for row in rows if row[1] == number]
                assert folded(mine) == folded([row for row in every if row[1] == number])
        else:
            # One who has read all, or one who begins now and gets to some place.
            end = self.chance.choice([max(known, default=0), *known])
            given = every if end == max(known, default=0) else left
            self.readers[name] = self.base.clock.us, {row[0]: row for row in given if row[0] <= end}, end

    def stream(self, name: str) -> Any:
        """A stream."""
        return next(s for s in self.base.database.catalog.streams.values() if s.name == name)


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_COMPACTION_SEED", 1, 40))
def test_a_model(base: Compacting, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP_ROWS", 10)
    model = Model(base, seed)
    chance = model.chance
    wanted = [name for name in STREAMS if name != "all_of_it"]
    for turn in range(14):
        for _ in range(chance.randint(1, 4)):
            model.write()
        if wanted and turn % 2 == 1:
            name = wanted.pop(chance.randrange(len(wanted)))
            base(f"create stream {name} {STREAMS[name]}")
            base(f"create consumer group g on {name} start latest")
        base.clock.us += chance.choice((0, HOUR_US // 2, HOUR_US, 3 * HOUR_US))
        if chance.random() < 0.4:
            model.compact()
        if turn == 9:
            base("alter table t add column more int")
        if chance.random() < 0.1:
            model.witness()
            base.reopen()
    model.compact()
    lag = base("select stream_name, sum(lag_events) from ducktail.offsets group by 1 order by 1")
    for name, count in lag:
        where = f"where stream_name = '{name}'"
        lsn_of = dict(base(f"select partition, committed_lsn from ducktail.offsets {where}"))
        rows = base(f"select partition, lsn from stream {name}")
        assert count == sum(lsn > lsn_of[partition] for partition, lsn in rows), name
    assert all(base(f"check stream {name}") == [] for name in STREAMS)

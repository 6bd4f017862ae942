"""Delivery counts against a model: random poisonous events, consumers, reads, restarts.

A consumer reads in some way and processes the events in order. At a poisonous one it fails: its session ends,
it times out as a member, or its transaction is rolled back. The model knows how often each event was given.
Whatever happens, every other event is processed and committed once, exactly the poisonous ones are parked,
and none of them was given more often than `max_deliveries` says.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from amounts import seeds
from hands import SECOND_US, Hands
from local_client import Client
from reopening import QUIET

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError

SOURCE = "from stream s consumer group g"


class World:
    """A stream with poisonous events, and the consumers of its group."""

    def __init__(self, path: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path, self.clock = path, Hands()
        self.limit = self.chance.choice((1, 2, 3, 5, 8))
        self.given: Counter[int] = Counter()  # LSN -> deliveries
        self.done: list[int] = []
        self.members = self.chance.random() < 0.5
        self.names = 0
        self.open()
        partitions = self.chance.choice((1, 3))
        self.client("create table t (id int primary key, v varchar)")
        self.client(f"create stream s on t with (partitions = {partitions})")
        self.client(f"create consumer group g on s with (max_deliveries = {self.limit})")
        self.client("create table target (lsn bigint, v int)")
        self.count = self.chance.randrange(20, 100)
        self.poison = set(self.chance.sample(range(1, self.count + 1), self.chance.randrange(4)))
        self.client(
            "insert into t select i, case when list_contains($1::int[], i) then 'poison' else i::varchar end "
            f"from range(1, {self.count + 1}) r(i)",
            sorted(self.poison),
        )

    def open(self) -> None:
        """Open the database, as at a start of the server."""
        self.database = Database.open(self.path, QUIET, self.clock)
        self.client = Client(self.database)

    def close(self) -> None:
        """Close it, without a commit of what was read."""
        self.client.close()
        self.database.close()

    def restart(self) -> None:
        """Another server, or another session of the same."""
        if self.chance.random() < 0.2:
            self.close()
            self.open()
        else:
            self.client.close()
            self.client = Client(self.database)

    def turn(self) -> None:
        """One consumer: it reads once, processes what it gets, and commits or fails."""
        clause = ""
        if self.members:
            # The one before has timed out, or has committed all that it had.
            self.clock.us += 31 * SECOND_US
            self.names += 1
            clause = f"member 'm{self.names}'"
        way = self.chance.choice(("plain", "where", "changes", "insert"))
        size = self.chance.choice(("", "limit 7", "limit 40"))
        if way == "insert":
            self.insert(clause, size)
        else:
            self.read(way, clause, size)

    def read(self, way: str, clause: str, size: str) -> None:
        """Read rows, and process them here."""
        where = "where after->>'v' <> ''" if way == "where" else ""
        sql = f"select lsn, deliveries {SOURCE} {clause} with deliveries {where} {size}"
        if way == "changes":
            sql = f"select _lsn, null {SOURCE} {clause} envelope changes {size}"
        rows = self.client(sql)
        for lsn, deliveries in rows:
            self.given[lsn] += 1
            assert deliveries in (None, self.given[lsn])
            assert self.given[lsn] <= self.limit
        found = [lsn for lsn, _ in rows]
        if self.poison.intersection(found):
            self.restart()
            return
        self.client(f"commit offsets on s consumer group g {clause}")
        self.done += found

    def insert(self, clause: str, size: str) -> None:
        """Write rows into a table of the database, in one transaction with their commit."""
        before = len(self.client("select * from target"))
        self.client("begin")
        try:
            self.client(f"insert into target select lsn, (after->>'v')::int {SOURCE} {clause} {size}")
            self.client(f"commit offsets on s consumer group g {clause}")
            self.client("commit")
        except DucktailError as error:
            assert error.sqlstate == "22P02", error
            self.client("rollback")
            # It has been given to the statement, as many as it could have read at once.
            self.follow()
            return
        for (lsn,) in self.client(f"select lsn from target offset {before}"):
            self.given[lsn] += 1
            self.done.append(lsn)
        assert all(self.given[lsn] <= self.limit for lsn in self.done)

    def follow(self) -> None:
        """Take the counts of a failed statement over: its rows were not seen here."""
        parked = {lsn for (lsn,) in self.client("select lsn from ducktail.parked")}
        for partition, first, last, deliveries in self.client(
            "select partition, first_lsn, last_lsn, deliveries from ducktail.delivery_counts"
        ):
            own = "select lsn from stream s where partition = $1 and lsn between $2 and $3"
            for (lsn,) in self.client(own, partition, first, last):
                if lsn not in parked and lsn not in self.done:
                    assert self.given[lsn] <= deliveries <= self.given[lsn] + 1
                    self.given[lsn] = deliveries


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_DELIVERIES_SEED", 3, 300))
def test_only_what_is_poisonous_is_parked(seed: int, tmp_path: Path) -> None:
    world = World(str(tmp_path / "poison.duckdb"), seed)
    try:
        turns = 0
        # An empty answer is committed as well, and passes what is parked at the end.
        while world.client.one("select sum(lag_events)::int from ducktail.offsets"):
            world.turn()
            turns += 1
            assert turns < 3000, (seed, world.limit, world.poison)
        assert sorted(world.done) == [n for n in range(1, world.count + 1) if n not in world.poison]
        parked = world.client("select lsn, state, deliveries from ducktail.parked order by lsn")
        assert parked == [(lsn, "parked", world.limit) for lsn in sorted(world.poison)]
        assert world.client("select count(*) from ducktail.delivery_counts") == [(0,)]
    finally:
        world.close()

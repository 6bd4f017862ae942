"""Promise 10 with everything at once: members that share connections, and connections that share members.

Threads read, commit, leave, fail and disconnect as random members of three groups on two streams, in and
outside transactions. What went into a table with its offsets is there once, and afterwards nothing is
held: no partition stays with who is gone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from amounts import amount
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError

SECONDS = amount("DUCKTAIL_MEMBERS_SECONDS", 3.0, 60.0)
GROUPS = (("s", "g"), ("r", "g"), ("s", "h"))
# Another was there first; nothing was read; the query's own fault; another connection of it has gone on.
EXPECTED = {"40001", "55000", "22000", "22023"}


class Hand:
    """One thread's connection, and what it may do."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.rng = random.Random(seed)
        self.client = Client(database)
        self.unexpected: list[DucktailError] = []

    def run(self, until_s: float) -> None:
        """Do one thing after the other, each as a member of a group."""
        acts: tuple[Callable[[str, str, str], None], ...] = (
            *[self.transfer] * 4, self.read_and_commit, self.wait, self.leave, self.fail, self.fetch_some,
            self.come_back,
        )  # fmt: skip
        while time.monotonic() < until_s:
            stream, group = self.rng.choice(GROUPS)
            reader = f"stream {stream} consumer group {group} member '{self.rng.choice('abcde')}'"
            try:
                self.rng.choice(acts)(stream, reader, reader.removeprefix(f"stream {stream} "))
            except DucktailError as error:
                if error.sqlstate not in EXPECTED:
                    self.unexpected.append(error)
                self.client("rollback")
        self.client.close()

    def transfer(self, stream: str, reader: str, member: str) -> None:
        """Events into the table with their offset; those of group g on s alone are counted."""
        self.client("begin")
        query = f"select lsn from {reader} limit {self.rng.randint(1, 60)}"
        counted = (stream, "group g" in member) == ("s", True)
        self.client(f"insert into target {query}" if counted else query)
        self.client(f"commit offsets on {stream} {member}")
        self.client(self.rng.choice(("commit", "commit", "rollback")))

    def read_and_commit(self, stream: str, reader: str, member: str) -> None:
        """In autocommit; not of the group that is counted."""
        if (stream, "group g" in member) != ("s", True):
            self.client(f"select lsn from {reader} limit 30")
            self.client(f"commit offsets on {stream} {member}")

    def wait(self, stream: str, reader: str, member: str) -> None:
        """A long poll."""
        self.client(f"select count(*) from {reader} wait '100 ms'")

    def leave(self, stream: str, reader: str, member: str) -> None:
        """The member goes, whoever else is at work as it."""
        group, name = member.removeprefix("consumer group ").split(" member ")
        self.client(f"leave consumer group {group} on {stream} member {name}")

    def fail(self, stream: str, reader: str, member: str) -> None:
        """A read that fails, if there are events."""
        self.client(f"select 1 // (lsn - lsn) from {reader}")

    def fetch_some(self, stream: str, reader: str, member: str) -> None:
        """A cursor that is left in the middle."""
        self.client("begin")
        self.client(f"declare c cursor for select lsn from {reader}")
        self.client("fetch 3 from c")
        self.client(self.rng.choice(("commit", "rollback")))

    def come_back(self, stream: str, reader: str, member: str) -> None:
        """Another connection, the last one in the middle of a transaction."""
        self.client("begin")
        self.client(f"select lsn from {reader} limit 5")
        self.client.close()
        self.client = Client(self.database)


@pytest.mark.slow
def test_whatever_members_do_nothing_is_twice_and_nothing_stays_held(tmp_path: Path) -> None:
    database = Database.open(str(tmp_path / "shop.duckdb"))
    client = Client(database)
    client("create table t (id int primary key)")
    client("create table target (lsn bigint)")
    for stream in "rs":
        client(f"create stream {stream} on t with (partitions = 6)")
    for stream, group in GROUPS:
        client(f"create consumer group {group} on {stream} with (session_timeout = '1 s')")
    hands = [Hand(database, seed) for seed in range(6)]
    ends = time.monotonic() + SECONDS
    threads = [threading.Thread(target=hand.run, args=(ends,)) for hand in hands]
    for thread in threads:
        thread.start()
    first = 0
    while time.monotonic() < ends:
        client(f"insert into t select * from range({first}, {first + 20})")
        first += 20
    for thread in threads:
        thread.join()
    assert [error for hand in hands for error in hand.unexpected] == []
    for shared in database.members._groups.values():
        assert not +shared.pins
        assert not any(+member.open for member in shared.members.values())
    for name in "abcde":
        for stream, group in GROUPS:
            database.members.remove(database.catalog.groups[_key(database, stream, group)].group_id, name)
    client("insert into target select lsn from stream s consumer group g member 'last'")
    client("commit offsets on s consumer group g member 'last'")
    events = client("select lsn from stream s after 0 order by lsn")
    assert client("select lsn from target order by lsn") == events
    client.close()
    database.close()


def _key(database: Database, stream: str, group: str) -> tuple[int, str]:
    return (database.catalog.streams["main", stream].stream_id, group)

"""Consumers of the mixed load of mixed_child, and what is held against each when the file is opened again.

A crew shares a group as its members; a sorter parks events, by their keys, and releases them; a late one
comes rarely, behind retention, and gets a whole copy each time. All move what they read in the transaction of
its offsets, so that what they have, and where their groups are, never part.
"""

from __future__ import annotations

import json
import random
import threading
from contextlib import suppress

from local_client import Client, state_of
from mixed_model import Journal

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError, Gap, LockNotAvailable, SerializationFailure

SETUP = (
    "create consumer group crew on s_b with (session_timeout = '1 s')",
    "create table crewed (lsn bigint)",
    "create consumer group sorter on s_a with (on_park = 'key')",
    "create table sorted (lsn bigint)",
    "create consumer group late on s_brief with (on_gap = 'snapshot')",
    "create table late (id int, v bigint, lsn bigint)",
)
MEMBERS = ("m1", "m2", "m3")
# Longer than retention of the stream that it reads.
LATE_S = 1.5
PARKED = "select partition, lsn from ducktail.parked where group_name = 'sorter' and state = 'parked'"
# What others do may have taken a partition, an event, or the lock.
MET = (SerializationFailure, LockNotAvailable, Gap)


def _moved(client: Client, table: str, source: str, on: str) -> bool:
    """Move a batch's LSNs into a table with their offsets, in one transaction; whether there was one."""
    try:
        client("begin")
        client(f"insert into {table} select lsn from (select lsn from stream {source} limit 20)")
        moved = client.tag != "INSERT 0 0"
        if moved:
            client(f"commit offsets on {on}")
        client("commit")
    except MET:
        with suppress(DucktailError):
            client("rollback")
        return False
    return moved


def work(database: Database, journal: Journal, seed: int, name: str) -> None:
    """A member of the crew, which leaves now and then."""
    client, chance = Client(database), random.Random(seed)
    source = f"s_b consumer group crew member '{name}'"
    while True:
        client(f"select lsn from stream {source} wait '50 ms' limit 1")
        if _moved(client, "crewed", source, source):
            journal.write("crew", "worked")
        if chance.random() < 0.1:
            client(f"leave consumer group crew on s_b member '{name}'")


def sort(database: Database, journal: Journal, seed: int) -> None:
    """Read on, and set some of it aside, which is given again later."""
    client, chance = Client(database), random.Random(seed)
    while True:
        rows = client("select partition, lsn, op from stream s_a consumer group sorter wait '50 ms' limit 20")
        if rows and chance.random() < 0.3:
            partition, lsn, op = chance.choice(rows)
            state = state_of(
                client, f"alter consumer group sorter on s_a park partition {partition} at {lsn}"
            )
            assert state in ("0A000" if op == "schema" else "ok", "55P03", "40001"), state
            journal.write("sorter", f"park: {state}")
        if chance.random() < 0.2 and (parked := client(PARKED)):
            partition, lsn = chance.choice(parked)
            at = chance.choice(["", f"at {lsn}"])
            state = state_of(client, f"alter consumer group sorter on s_a release partition {partition} {at}")
            assert state in ("ok", "55000", "55P03", "40001"), state
            journal.write("sorter", f"release: {state}")
        _moved(client, "sorted", "s_a consumer group sorter", "s_a consumer group sorter")


def come_late(database: Database, journal: Journal, seed: int) -> None:
    """Follow a table by events that are not kept for long."""
    client, chance = Client(database), random.Random(seed)
    while True:
        while follow(client, journal):
            pass
        # Nobody waits for it: it is to be behind.
        threading.Event().wait(chance.uniform(0, LATE_S))


def follow(client: Client, journal: Journal) -> bool:
    """Take a batch into the copy of the table, and away what a whole copy has not; whether there was any."""
    try:
        client("begin")
        rows = client("select lsn, op, key, after from stream s_brief consumer group late limit 20")
        for lsn, op, key, after in rows:
            if op != "schema":
                number = json.loads(key)["id"]
                client(f"delete from late where id = {number}")
                if after is not None:
                    client(f"insert into late values ({number}, {json.loads(after)['v']}, {lsn})")
        if rows:
            client("commit offsets on s_brief consumer group late")
        client("commit")
        if any(op == "snapshot" for _, op, _, _ in rows):
            journal.write("late", "whole copy")
        client(
            "delete from late where lsn < (select max(first_lsn) from ducktail.copies "
            "where stream_name = 's_brief' and group_name = 'late' and rows_left = 0)"
        )
    except MET:
        with suppress(DucktailError):
            client("rollback")
        return True
    return bool(rows)


def check(client: Client, journal: Journal) -> None:
    """What each has, and what its group is through with, are the same; and it comes to the end from there."""
    # Nobody is a member after a restart.
    while _moved(client, "crewed", "s_b consumer group crew", "s_b consumer group crew"):
        pass
    assert client("from crewed order by lsn") == client("select lsn from stream s_b")
    for partition in range(3):
        client(f"alter consumer group sorter on s_a release partition {partition}")
    while _moved(client, "sorted", "s_a consumer group sorter", "s_a consumer group sorter"):
        pass
    assert client("from sorted order by lsn") == client("select lsn from stream s_a")
    assert client("select * from ducktail.parked") == []
    while follow(client, journal):
        pass
    assert sorted(client("select id, v from late")) == sorted(client("select id, v from brief"))

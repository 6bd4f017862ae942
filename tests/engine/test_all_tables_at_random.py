"""Tables of a schema that are made, swapped, renamed and dropped at random: copies kept from the events of a
stream on all of them are the tables, always."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from amounts import amount, seed_of
from local_client import Client, state_of
from reopening import QUIET

from ducktail.engine.database import Database

TURNS = amount("DUCKTAIL_ALL_TABLES", 20, 400)
SEED = seed_of("DUCKTAIL_ALL_TABLES_SEED")
NAMES = ("a", "b", "c")
# Columns that a table may have beside `id`.
COLUMNS = ("v INT", "w DOUBLE", "t VARCHAR")

Rows = Counter[str]


class Copies:
    """What a consumer makes of the events: the rows of each table, by its name."""

    def __init__(self) -> None:
        self.lsn = 0
        self.tables: dict[str, Rows] = {}

    @property
    def rows(self) -> dict[str, Rows]:
        """The tables that have some."""
        return {name: +rows for name, rows in self.tables.items() if +rows}

    def follow(self, client: Client) -> None:
        """Take what is new."""
        events = client(
            "select lsn, op, table_name, before::varchar, after::varchar, txid, tx_last "
            f"from stream s where lsn > {self.lsn}"
        )
        for place, (lsn, op, name, before, after, txid, last) in enumerate(events):
            assert lsn > self.lsn
            assert last == (place + 1 == len(events) or events[place + 1][5] != txid)
            self.lsn = lsn
            if op == "schema":
                self._schema(name, json.loads(after))
                continue
            rows = self.tables.setdefault(name, Counter())
            if before is not None:
                assert rows[before], (name, before)
                rows[before] -= 1
            if after is not None:
                rows[after] += 1

    def _schema(self, name: str, told: dict[str, object]) -> None:
        if "dropped" in told:
            assert not self.tables.pop(name, Counter()).total(), name
            return
        rows = self.tables.pop(str(told.get("renamed_from", name)), Counter())
        columns = [column["name"] for column in told["columns"]]  # type: ignore[attr-defined]
        now: Rows = Counter()
        for text, times in rows.items():
            row = json.loads(text)
            now[_text({c: row.get(c) for c in columns})] += times
        self.tables[name] = now


def _text(row: dict[str, object]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def tables_of(client: Client) -> dict[str, Rows]:
    """The tables of the schema that have rows, as events have these; but not those whose places others have
    taken."""
    aside = client.session.database.catalog.is_aside
    names = [
        name
        for (name,) in client("select table_name from duckdb_tables() where schema_name = 'n' order by 1")
        if not aside(("n", name))
    ]
    rows = {name: client(f"select to_json(whole)::varchar from n.{name} as whole") for name in names}
    return {f"n.{n}": Counter(_text(json.loads(text)) for (text,) in r) for n, r in rows.items() if r}


def query(chance: random.Random) -> str:
    """Contents of a table, with ids of their own."""
    values = {"v": "i // 3", "w": "i / 2", "t": "'x' || (i // 2)"}
    listed = [f"({values[c[0]]})::{c[2:]} as {c[0]}" for c in chance.sample(COLUMNS, chance.randrange(3))]
    first, last = sorted(chance.sample(range(8), 2))
    return f"select {', '.join(['i::int as id', *listed])} from range({first}, {last}) as r(i)"


def act(chance: random.Random) -> list[str]:
    """What a transaction does, or tries: a statement or some."""
    name, other = (f"n.{chance.choice(NAMES)}" for _ in range(2))
    key = chance.choice(["", " primary key"])
    listed = ", ".join([f"id int{key}", *chance.sample(COLUMNS, chance.randrange(3))])
    away, tmp = f"{name[2:]}__backup", f"{name}__tmp"
    swap = [
        f"create table {tmp} as {query(chance)}",
        f"alter table {name} rename to {away}",
        f"alter table {tmp} rename to {name[2:]}",
    ]
    more = f"insert into {name} (id) select coalesce(max(id), 0) + 1 from {name}"
    ways = [
        [f"create table {name} ({listed})"],
        [f"create table if not exists {name} as {query(chance)}"],
        [f"create or replace table {name} ({listed})"],
        [f"create or replace table {name} as {query(chance)}"],
        [f"drop table {name}"],
        [f"drop table {name}", f"create table {name} as {query(chance)}"],
        [f"alter table {name} rename to {other[2:]}"],
        [f"alter table {name} add column {chance.choice(COLUMNS)}"],
        [f"alter table {name} drop column {chance.choice('vwt')}"],
        [more],
        [f"update {name} set id = id + 100 where id % 2 = 0", more],
        [f"delete from {name} where id % 3 = 0"],
        swap,
        [*swap, f"drop table n.{away}"],
        [f"drop table if exists n.{away} cascade"],
        [f"alter table n.{away} rename to {other[2:]}"],
    ]
    return chance.choice(ways)


def turn(chance: random.Random, client: Client) -> bool:
    """One transaction; whether it was committed."""
    texts = [text for _ in range(chance.choice([1, 1, 1, 2, 3])) for text in act(chance)]
    if len(texts) > 1:
        texts = ["begin", *texts, chance.choice(["commit", "commit", "commit", "rollback"])]
    for text in texts:
        state = state_of(client, text)
        if state != "ok":
            assert not state.startswith(("XX", "58")), (texts, text, state)
            state_of(client, "rollback")
            return False
    return texts[-1] != "rollback"


def test_copies_are_the_tables(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    path = str(tmp_path / "all.duckdb")
    database = Database.open(path, QUIET)
    client = Client(database)
    client("create schema n")
    client("create table n.a as select 1 as id")
    client("create stream s on all tables in schema n with (partitions = 1, snapshot = 'initial')")
    copies, committed, turns = Copies(), 0, 0
    # Some of the turns must have committed something.
    while turns < TURNS or (committed <= TURNS / 10 and turns < 10 * TURNS):
        turns += 1
        committed += turn(chance, client)
        copies.follow(client)
        assert copies.rows == tables_of(client)
        assert client("check stream s") == []
    assert committed > TURNS / 10
    events = client("select * from stream s")
    assert events == client("select * from s order by lsn")
    client.close()
    database.close()
    database = Database.open(path, QUIET)
    client = Client(database)
    assert not database.damage and not database.catalog.behind
    assert client("select * from stream s") == events
    for _ in range(TURNS // 4):
        turn(chance, client)
        copies.follow(client)
    assert copies.rows == tables_of(client)
    assert client("check stream s") == []
    client.close()
    database.close()

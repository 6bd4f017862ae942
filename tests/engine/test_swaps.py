"""Tables that are built anew and swapped in, at random: a copy kept from the events is the table, always."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from amounts import amount, seed_of
from local_client import Client
from reopening import QUIET

from ducktail.engine.database import Database

SWAPS = amount("DUCKTAIL_SWAPS", 7, 100)
SEED = seed_of("DUCKTAIL_SWAPS_SEED")
KEYS = 8
# Columns that a table may have beside its key; of one name they may be of two types.
COLUMNS = ("v INT", "v VARCHAR", "w DOUBLE", "x INT[]", "p VARCHAR")

Rows = dict[int, dict[str, Any]]


class Copy:
    """What a consumer makes of the events: the table, by its key."""

    def __init__(self, client: Client) -> None:
        self.client, self.lsn = client, 0
        self.rows: Rows = {}
        self.columns: list[str] = []

    def follow(self) -> int:
        """Take what is new; gives how many changes of rows that was."""
        events = self.client(
            f"select lsn, op, key::varchar, after::varchar, txid, tx_last from stream s after {self.lsn}"
        )
        changes = 0
        for place, (lsn, op, key, after, txid, last) in enumerate(events):
            assert lsn > self.lsn
            assert last == (place + 1 == len(events) or events[place + 1][4] != txid)
            self.lsn = lsn
            if op == "schema":
                self._take_columns({c["name"]: c["type"] for c in json.loads(after)["columns"]})
                continue
            changes += 1
            number = json.loads(key)["id"]
            if op == "delete":
                del self.rows[number]
            else:
                assert (op == "insert") == (number not in self.rows)
                self.rows[number] = json.loads(after)
        return changes

    def _take_columns(self, types: dict[str, str]) -> None:
        """Follow a schema event: old values are cast, which changes no row."""
        self.columns = list(types)
        self.rows = {k: {c: cast(row.get(c), types[c]) for c in types} for k, row in self.rows.items()}


def cast(value: Any, type_: str) -> Any:
    """An old value in the type its column has now: of one name, columns here are VARCHAR or INTEGER."""
    convert = {"VARCHAR": str, "INTEGER": int}.get(type_)
    return value if value is None or convert is None else convert(value)


def table_of(client: Client) -> Rows:
    """The table, as events have its rows."""
    rows = [json.loads(text) for (text,) in client("select to_json(t)::varchar from t")]
    return {row["id"]: row for row in rows}


def query(chance: random.Random, columns: list[str]) -> str:
    """New contents: rows of the given columns."""
    values = {"INT": "i // 3", "VARCHAR": "(i // 2)", "DOUBLE": "i / 2", "INT[]": "[i, NULL]"}
    shown = [f"({values[c.split()[1]]})::{c.split()[1]} AS {c.split()[0]}" for c in columns]
    first, last = sorted(chance.sample(range(KEYS + 1), 2))
    # Other values of some of the rows.
    shift = chance.choice(["i", "i + i % 2", "i + 3"])
    items = ", ".join(["i::INT AS id", *(text.replace("i ", f"({shift}) ") for text in shown)])
    return f"SELECT {items} FROM range({first}, {last}) AS r(i)"


def swap(chance: random.Random, client: Client, columns: list[str]) -> bool:
    """One way of putting other contents in the table's place; whether that is all that it writes."""
    new = query(chance, columns)
    listed, away = ", ".join(["id INT", *columns]), "alter table t rename to old"
    build, built = f"create table built as {new}", "alter table built rename to t"
    replaced, made = f"create or replace table t as {new}", f"insert into t {new}"
    ways = [
        [replaced],
        ["begin", replaced, "delete from t where id % 3 = 0", "commit"],
        ["begin", "delete from t where id = 2", "drop table t", f"create table t ({listed})", made, "commit"],
        [build, "begin", away, built, "delete from t where id = 1", "commit", "drop table old"],
        ["begin", build, away, built, "drop table old", "commit"],
        ["begin", f"create or replace table t ({listed}, primary key (id))", made, "commit"],
    ]
    chosen = chance.choice(ways)
    for text in chosen:
        client(text)
    return not any("delete" in text for text in chosen)


def test_a_copy_is_the_table(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    path = str(tmp_path / "swaps.duckdb")
    database = Database.open(path, QUIET)
    client = Client(database)
    client("create table t (id int primary key, v int, p varchar)")
    client("create stream s on t with (partitions = 1, retention = '1 day')")
    client("create stream wide on t with (partitions = 3)")
    copy, columns = Copy(client), ["v INT", "p VARCHAR"]
    copy.columns = ["id", "v", "p"]
    for turn in range(SWAPS):
        if chance.random() < 0.5:
            names = dict(zip((c.split()[0] for c in COLUMNS), COLUMNS, strict=False))
            names["v"] = chance.choice(COLUMNS[:2])
            columns = [names[name] for name in chance.sample(sorted(names), chance.randrange(1, 4))]
        client("begin")
        client(f"create or replace table t as {query(chance, columns)}")
        client("rollback")
        before, were = dict(copy.rows), copy.columns
        alone = swap(chance, client, columns)
        changes = copy.follow()
        assert copy.rows == table_of(client), turn
        if alone and copy.columns is were:
            keys = before.keys() | copy.rows.keys()
            assert changes == len([key for key in keys if before.get(key) != copy.rows.get(key)])
        if chance.random() < 0.3:
            client(f"insert into t (id) values ({KEYS + turn})")
            client("delete from t where id >= 8")
            copy.follow()
            assert copy.rows == table_of(client)
        assert client("check stream s") == []
    events = client("select * from stream wide")
    assert events == client("select * from wide order by lsn")
    assert client("select count(*) from wide_changes")[0][0] >= len(events) / 2
    client.close()
    database.close()
    database = Database.open(path, QUIET)
    client = Client(database)
    assert not database.damage
    assert client("select * from stream wide") == events
    assert client("check stream s") == []
    client("insert into t (id) values (99)")
    copy.client = client
    copy.follow()
    assert copy.rows == table_of(client)
    client.close()
    database.close()

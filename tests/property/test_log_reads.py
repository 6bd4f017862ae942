"""A read gives the same rows from the buffer, from the log, and from the stream's view.

Pairs of streams with one definition over one random history: the buffer of the first holds every event, that
of the second the newest few. Every form of read asks both, in one transaction, so that a writer beside it
changes nothing of what it can see.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from amounts import amount, chosen, seeds
from local_client import Client, Row

from ducktail.engine.database import Database
from ducktail.engine.log.events import projected
from ducktail.engine.waiting import drive
from ducktail.sql.results.results import EventBatch, LogBatch

STREAMS = {
    "plain": "ON t WITH (partitions = 3",
    "keyed": "ON t WHERE v < 60 WITH (partitions = 8, before = 'key', compaction = 'key', "
    "compaction_lag = '0 s'",
    "by_value": "ON t (id, v) OPERATIONS INSERT, UPDATE WITH (partitions = 4, partition_by = (v)",
    "both": "ON t, other WITH (partitions = 2",
}
TYPED = ("plain", "keyed", "by_value")
ZONES = ("UTC", "Asia/Kolkata")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of few rows, so that a read has several, and reads them ahead."""
    for name, value in (("FIRST_ROWS", 32), ("AHEAD_ROWS", 32), ("BLOCK_LSNS", 16)):
        monkeypatch.setattr(f"ducktail.engine.buffers.scan.{name}", value)


def history(client: Client, chance: random.Random, steps: int, first: int = 0) -> None:
    """Some transactions over the tables, with now and then another column."""
    fat = "repeat('x', 1500)"
    for number in range(first, first + steps):
        low = chance.randrange(60)
        some = f"where id between {low} and {low + chance.randrange(12)}"
        if chance.random() < 0.1:
            client(f"alter table t add column c{number} {chance.choice(('int', 'text', 'decimal(9, 3)'))}")
        client("begin")
        for statement in range(chance.randrange(1, 5)):
            client(
                chance.choice(
                    (
                        f"insert into t (id, v, fat) select i, i % 100, {fat} "
                        f"from range({low}, {low + 9}) r(i) on conflict do nothing",
                        f"update t set v = v + {chance.randrange(1, 40)} {some}",
                        f"update t set id = id + {number * 10_000 + statement * 1000} {some}",
                        f"delete from t {some}",
                        f"insert into other values ({number * 10 + statement}, now())",
                    )
                )
            )
        client("rollback" if chance.random() < 0.1 else "commit")


def wire_bytes(client: Client, text: str, zone: str) -> tuple[bytes, bytes, int]:
    """The rows of a query as a client of the wire gets them: as text, and numbers and times in binary."""
    statement = drive(client.session.parse(text))
    result = drive(client.session.execute(statement))
    assert result.columns is not None
    types = [column.type for column in result.columns]
    binary = [int(type_ in ("BIGINT", "INTEGER", "TIMESTAMP WITH TIME ZONE")) for type_ in types]
    texts, numbers, count = [], [], 0
    while (batch := result.fetch(None)) is not None:
        texts.append(bytes(batch.datarows(types, [0] * len(types), zone)))
        numbers.append(bytes(batch.datarows(types, binary, zone)))
        count += batch.row_count
    return b"".join(texts), b"".join(numbers), count


def events_of(client: Client, text: str) -> tuple[list[bytes], list[int]]:
    """The rows of a query in the form in which a node sends them to another, shown in its columns."""
    result = drive(client.session.execute(drive(client.session.parse(text))))
    rows, lsns = [], []
    while (batch := result.fetch(None)) is not None:
        batch = batch.ready() if isinstance(batch, LogBatch) else batch
        assert isinstance(batch, EventBatch)
        rows += batch.rows if batch.columns is None else projected(batch.rows, batch.columns)
        lsns += batch.lsns
    return rows, lsns


def forms(chance: random.Random, lsns: list[int], partitions: int) -> Iterator[tuple[str, str, str, bool]]:
    """Queries of a scan: columns, clauses of the scan, the rest of the query, and if a view can answer."""
    low, high = sorted(chance.choices(lsns or [0], k=2))
    number, limit = chance.randrange(partitions), chance.randrange(1, 40)
    after = ", ".join(f'"{n}": {chance.choice(lsns or [0])}' for n in range(partitions))
    yield "*", "", "", True
    yield "lsn, tx_last, headers", "", f"where partition = {number}", True
    yield "after, commit_time, lsn", "", f"where lsn between {low} and {high}", True
    yield "count(*), max(lsn), min(txid)", "", "", True
    yield "op, count(key), max(tx_seq)", "", f"where lsn > {low} group by op order by op", True
    yield "lsn, after->>'v'", "", "where op = 'update' and before is not null", True
    yield "lsn", "", "where key = '{\"id\":7}' or commit_time is null or schema_version > 1", True
    yield "max(lsn)", "", f"where table_name like '%other' or partition in ({number}, 0)", True
    yield "*", f"partition {number}", f"limit {limit}", False
    yield "lsn, partition, tx_last", f"after {low}", f"limit {limit}", False
    yield "*", f"after '{{{after}}}'", "", False
    yield "lsn, op", f"after '{{{after}}}'", f"where op <> 'delete' limit {limit}", False
    yield "*", "", f"limit {1 + limit % 5} transactions", False


def same(client: Client, kind: str, chance: random.Random, quiet: bool) -> None:
    """Ask every form of both streams, and of the view."""
    client("begin")
    partitions = 2 if kind == "both" else 4 if kind == "by_value" else 8 if kind == "keyed" else 3
    hot, cold = f"{kind}_hot", f"{kind}_cold"
    lsns = [lsn for (lsn,) in client(f"select lsn from {hot}")]
    for columns, clauses, rest, has_view in forms(chance, lsns, partitions):
        asked = [f"select {columns} from stream {name} {clauses} {rest}" for name in (hot, cold)]
        rows = client(asked[0])
        assert client(asked[1]) == rows, asked[1]
        if has_view:
            ordered = "" if "count" in columns or "max" in columns else " order by lsn"
            view = f"select {columns} from {cold} {rest}{ordered}"
            assert client(view) == rows, view
        if not quiet:
            continue
        assert cursor_rows(client, asked[1], chance) == rows, asked[1]
    if kind in TYPED:
        ours = ("_lsn, _change_type", "count(*)", "_lsn, id", "count(*), max(_lsn)")
        if quiet:
            ours = ("*", *ours)  # Beside others the second of a pair may have a new column.
        for columns in ours:
            for clauses in ("", f"after {chance.choice(lsns or [0])}"):
                asked = [f"select {columns} from stream {n} envelope changes {clauses}" for n in (hot, cold)]
                assert client(asked[0]) == client(asked[1]), asked
        limit = chance.randrange(1, 20)
        asked = [f"select * from stream {n} envelope changes limit {limit}" for n in (hot, cold)]
        assert client(asked[0]) == client(asked[1]), asked
    client("commit")


def cursor_rows(client: Client, query: str, chance: random.Random) -> list[Row]:
    """The rows of a query through a cursor, some at a time."""
    client(f"declare c cursor for {query}")
    rows: list[Row] = []
    while found := client(f"fetch {chance.randrange(1, 30)} from c"):
        rows += found
    client("close c")
    return rows


def by_group(client: Client, stream: str, chance: random.Random) -> list[Row]:
    """All that a group reads and commits, in steps of any size, of some partitions or all."""
    rows: list[Row] = []
    partitions = client.one(f"select partitions from ducktail.streams where stream_name = '{stream}'")
    while True:
        some = f"partition {chance.randrange(partitions)}" if chance.random() < 0.3 else ""
        unit = chance.choice(("", " transactions"))
        columns = chance.choice(("*", "lsn, op"))
        scan = f"stream {stream} consumer group g {some}"
        found = client(f"select {columns} from {scan} limit {chance.randrange(1, 60)}{unit}")
        if not found and not some:
            return rows
        client(f"commit offsets on {stream} consumer group g")
        rows += [row[:1] for row in found]


@contextmanager
def writing(database: Database, chance: random.Random, first: int) -> Iterator[None]:
    """Somebody writes, and retention and compaction run, while the block runs."""
    stop, errors = threading.Event(), []

    def write() -> None:
        client, number = Client(database), first
        try:
            while not stop.is_set():
                history(client, chance, 1, number)
                number += 1
                database.retention.look()
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            client.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors


def opened(tmp_path: Path) -> tuple[Database, Client]:
    """A database with the streams."""
    database = Database.open(str(tmp_path / "test.duckdb"))
    client = Client(database)
    client("create table t (id int primary key, v int, fat text)")
    client("create table other (id int primary key, seen timestamptz)")
    client("insert into t select i, i, 'seed' from range(20) r(i)")
    for name, what in STREAMS.items():
        for kind, size in (("hot", "1 GiB"), ("cold", "64 KiB")):
            client(f"create stream {name}_{kind} {what}, buffer_bytes = '{size}')")
            client(f"create consumer group g on {name}_{kind}")
    return database, client


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_LOG_READS_SEED", 1, 20))
def test_buffer_log_and_view(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    database, client = opened(tmp_path)
    history(client, chance, amount("DUCKTAIL_LOG_READS_STEPS", 6, 60))
    kinds = chosen(list(STREAMS), 1, "test_buffer_log_and_view")
    for kind in kinds:
        same(client, kind, chance, quiet=True)
        rows = {}
        for stream in (f"{kind}_hot", f"{kind}_cold"):
            everything = client(f"select lsn from stream {stream}")
            assert sorted(by_group(client, stream, chance)) == everything
            rows[stream] = everything
        assert rows[f"{kind}_hot"] == rows[f"{kind}_cold"]
    client.close()
    wire = Client(database, wire=True)
    for zone in ZONES:
        wire(f"set timezone = '{zone}'")
        for kind in kinds:
            for columns in ("*", "lsn, partition, op, commit_time, after"):
                found: list[Any] = [
                    wire_bytes(wire, f"select {columns} from stream {kind}_{place}", zone)
                    for place in ("hot", "cold")
                ]
                assert found[0] == found[1]
                text = f"select {columns} from stream {kind}_{{}} where partition = 1"
                hot, cold = (events_of(wire, text.format(place)) for place in ("hot", "cold"))
                assert hot == cold
    wire.close()
    database.close()


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_LOG_READS_SEED", 1, 20))
def test_while_others_write(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    database, client = opened(tmp_path)
    history(client, chance, 4)
    with writing(database, random.Random(seed + 1), 100):
        for _ in range(amount("DUCKTAIL_LOG_READS_ROUNDS", 1, 30)):
            for kind in chosen([kind for kind in STREAMS if kind != "keyed"], 1, "test_while_others_write"):
                same(client, kind, chance, quiet=False)
            by_group(client, "keyed_cold", chance)
    client.close()
    database.close()

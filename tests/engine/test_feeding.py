"""Changes of a database outside as a feed stores them: events, rows and positions, against a model."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from amounts import seeds
from compacting import Compacting
from hands import Hands
from local_client import Client, raises

from ducktail.engine.catalog.feeds import POSTGRES, Selection
from ducktail.engine.catalog.source_tables import (
    DEFINE,
    DELETE,
    INSERT,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    Commit,
    Piece,
    SourceColumn,
    SourceTable,
)
from ducktail.engine.definitions.create import create_stream
from ducktail.engine.definitions.stream_spec import FeedSpec, StreamSpec
from ducktail.engine.errors import CommitNotConfirmed
from ducktail.engine.settings import Settings
from ducktail.engine.table_changes import feeding
from ducktail.engine.table_changes.feed_tables import add_tables
from ducktail.engine.table_changes.feeding import Feeder
from ducktail.engine.waiting import drive


def columns(*named: tuple[str, str]) -> tuple[SourceColumn, ...]:
    return tuple(SourceColumn(name, type_, number=at) for at, (name, type_) in enumerate(named, 1))


ORDERS = SourceTable(
    "public",
    "orders",
    columns(("id", "BIGINT"), ("sku", "VARCHAR"), ("qty", "INTEGER"), ("tags", "VARCHAR")),
    ("id",),
    (True, False, False, False),
)
LINES = SourceTable(
    "public",
    "lines",
    columns(("order_id", "BIGINT"), ("line", "INTEGER"), ("price", "DECIMAL(10,2)")),
    ("order_id", "line"),
    (True, True, False),
)
NOTES = SourceTable("public", "notes", columns(("who", "VARCHAR"), ("what", "VARCHAR")), (), (True, True))


class Source:
    """A database outside: tables in memory, and its transactions as pieces."""

    def __init__(self, base: Compacting, *tables: SourceTable, snapshot: str = "initial") -> None:
        self.client = base
        self.tables = tables

        self.positions = count(1)
        self.last = ""
        self.session_id = base.database.sessions.new_id()
        feed = FeedSpec(
            POSTGRES, "host=there", "there", Selection("tables", ()), {"snapshot": snapshot}, tables, "a/b"
        )
        spec = StreamSpec("main", "s", (), snapshot=snapshot, feed=feed)
        stream = drive(create_stream(base.database, self.session_id, base.database.cursor(), spec, 1000))
        self.stream_id = stream.stream_id
        self.begin()

    def begin(self) -> None:
        database = self.client.database
        self.feeder = Feeder(database, self.stream_id, self.session_id, database.cursor(utc=True))

    def commit(self, *changes: Change) -> Piece:
        self.last = f"0/{next(self.positions):X}"
        return Piece(changes, Commit(self.last, 1_700_000_000_000_000, "7"))

    def write(self, *pieces: Piece) -> int:
        return self.feeder.write(pieces)

    def here(self, table: SourceTable) -> Counter[tuple[object, ...]]:
        place = self.tables.index(table) if table in self.tables else 0
        name = f'ducktail."source {self.stream_id}.{place} {table.shown}"'
        cast = ", ".join(f'"{c.name}"::VARCHAR' for c in table.columns)
        with_cursor = self.client.database.cursor()
        return Counter(with_cursor.execute(f"SELECT {cast} FROM {name}").fetchall())

    def folded(self, table: SourceTable) -> Counter[tuple[object, ...]]:
        """The rows that a consumer of the events has."""
        rows: Counter[str] = Counter()
        events = self.client(
            "SELECT op, before::VARCHAR, after::VARCHAR FROM STREAM s "
            f"WHERE table_name = '{table.shown}' AND op <> 'schema' ORDER BY lsn"
        )
        for op, before, after in events:
            if op in ("update", "delete"):
                assert rows[before] > 0, (op, before)
                rows[before] -= 1
            if op in ("update", "insert", "snapshot"):
                rows[after] += 1
        found: Counter[tuple[object, ...]] = Counter()
        for text, times in rows.items():
            if times:
                found[
                    tuple(None if v is None else str(v) for v in json.loads(text, parse_float=str).values())
                ] += times
        return found


def ins(table: SourceTable, *row: object) -> Change:
    return Change(INSERT, table.key_in_source, None, row)


def upd(table: SourceTable, old: tuple[object, ...] | None, *row: object) -> Change:
    return Change(UPDATE, table.key_in_source, old, row)


def rem(table: SourceTable, *old: object) -> Change:
    return Change(DELETE, table.key_in_source, old, None)


def test_a_source_that_sends_keys_only_gives_whole_rows(base: Compacting) -> None:
    source = Source(base, ORDERS)
    source.write(source.commit(ins(ORDERS, "1", "tea", "2", "long"), ins(ORDERS, "2", "cup", "1", None)))
    source.write(
        source.commit(upd(ORDERS, None, "1", "tea", "3", UNCHANGED)),
        source.commit(
            upd(ORDERS, None, "1", "tea", "4", UNCHANGED),
            upd(ORDERS, ("1", UNCHANGED, UNCHANGED, UNCHANGED), "7", "tea", "5", UNCHANGED),
            upd(ORDERS, None, "7", "tea", "6", UNCHANGED),
        ),
        source.commit(rem(ORDERS, "2", UNCHANGED, UNCHANGED, UNCHANGED)),
    )
    events = base(
        "SELECT lsn, op, key::VARCHAR, before::VARCHAR, after::VARCHAR, txid, tx_seq, tx_last, "
        "headers->>'source' FROM STREAM s ORDER BY lsn"
    )
    first = events[0][5]
    told = [(e[0], e[1], e[3], e[4], e[5] - first, e[6], e[7]) for e in events]

    def row(number: int, qty: int) -> str:
        return f'{{"id":{number},"sku":"tea","qty":{qty},"tags":"long"}}'

    cup = '{"id":2,"sku":"cup","qty":1,"tags":null}'
    at = events[0][0]
    assert told == [
        (at, "insert", None, row(1, 2), 0, 0, False),
        (at + 1, "insert", None, cup, 0, 1, True),
        (at + 2, "update", row(1, 2), row(1, 3), 1, 0, True),
        (at + 3, "update", row(1, 3), row(1, 4), 2, 0, False),
        (at + 4, "delete", row(1, 4), None, 2, 1, False),
        (at + 5, "insert", None, row(7, 5), 2, 2, False),
        (at + 6, "update", row(7, 5), row(7, 6), 2, 3, True),
        (at + 7, "delete", cup, None, 3, 0, True),
    ]
    assert json.loads(events[-1][8]) == {
        "position": source.last,
        "txid": "7",
        "commit_time": "2023-11-14T22:13:20+00:00",
    }
    pairs = base(
        "SELECT (headers->>'key_change')::INT FROM STREAM s WHERE headers->>'key_change' IS NOT NULL"
    )
    assert pairs == [(1,), (1,)]
    assert source.here(ORDERS) == Counter([("7", "tea", "6", "long")])
    assert base("check stream s") == []
    assert base.database.catalog.feeds[source.stream_id].position == source.last


def test_a_truncate_is_a_delete_of_each_row_in_its_place(base: Compacting) -> None:
    source = Source(base, ORDERS, NOTES)
    source.write(
        source.commit(ins(ORDERS, "1", "a", "1", None), ins(NOTES, "ann", "x"), ins(NOTES, "ann", "x"))
    )
    source.write(
        source.commit(
            ins(ORDERS, "2", "b", "1", None),
            Change(TRUNCATE, ORDERS.key_in_source, None, None),
            ins(ORDERS, "1", "again", "1", None),
            rem(NOTES, "ann", "x"),
        )
    )
    assert base(
        "SELECT op, after->>'sku', tx_seq, tx_last FROM STREAM s WHERE txid > 1 ORDER BY lsn OFFSET 3"
    ) == [
        ("insert", "b", 0, False),
        ("delete", None, 1, False),
        ("delete", None, 2, False),
        ("insert", "again", 3, False),
        ("delete", None, 4, True),
    ]
    assert source.here(ORDERS) == Counter([("1", "again", "1", None)])
    assert source.here(NOTES) == Counter([("ann", "x")])
    assert base("check stream s") == []


def test_a_large_transaction_comes_in_pieces_and_is_one(base: Compacting) -> None:
    source = Source(base, ORDERS)
    source.write(source.commit(ins(ORDERS, "0", "z", "0", None)))
    for start in range(0, 3000, 1000):
        piece = [ins(ORDERS, str(i + 1), "t", "1", None) for i in range(start, start + 1000)]
        assert source.write(Piece(piece, None)) == 0
        assert base.one("SELECT count(*) FROM STREAM s") == 1
    # A crash here loses all of it, and the source sends it again.
    source.feeder.abandon()
    for start in range(0, 3000, 1000):
        source.write(
            Piece([ins(ORDERS, str(i + 1), "t", "1", None) for i in range(start, start + 1000)], None)
        )
    assert source.write(source.commit(upd(ORDERS, None, "5", "u", "2", UNCHANGED))) == 3001
    assert base("SELECT count(*), count(DISTINCT txid), max(tx_seq) FROM STREAM s WHERE txid > 2") == [
        (3001, 1, 3000)
    ]
    assert base("check stream s") == []


def test_definitions_follow_and_values_stay(base: Compacting) -> None:
    source = Source(base, ORDERS, LINES)
    source.write(source.commit(ins(ORDERS, "1", "tea", "2", "long")))
    changed = SourceTable(
        "public",
        "orders",
        (
            *columns(("id", "BIGINT")),
            SourceColumn("article", "VARCHAR", number=2),
            SourceColumn("qty", "BIGINT", number=3),
            SourceColumn("state", "VARCHAR", number=5, fill="'new'"),
        ),
        ("id",),
        (True, False, False, False),
    )
    source.write(
        source.commit(
            ins(ORDERS, "2", "cup", "1", None),
            Change(DEFINE, ORDERS.key_in_source, None, changed),
            upd(changed, None, "2", "mug", "5000000000", "open"),
        ),
        source.commit(ins(changed, "3", "pot", "1", None)),
    )
    assert source.here(changed) == Counter(
        [("1", "tea", "2", "new"), ("2", "mug", "5000000000", "open"), ("3", "pot", "1", None)]
    )
    assert base("SELECT count(DISTINCT txid) FROM STREAM s WHERE op = 'schema'") == [(1,)]
    assert base("SELECT before::VARCHAR, after::VARCHAR FROM STREAM s WHERE op = 'update'") == [
        (
            '{"id":2,"article":"cup","qty":1,"state":"new"}',
            '{"id":2,"article":"mug","qty":5000000000,"state":"open"}',
        )
    ]
    base.reopen()
    source.begin()
    source.write(source.commit(rem(changed, "1", UNCHANGED, UNCHANGED, UNCHANGED)))
    assert source.here(changed).total() == 2
    assert base("check stream s") == []


def test_columns_exchange_their_names_and_stand_in_another_order(base: Compacting) -> None:
    source = Source(base, ORDERS)
    source.write(source.commit(ins(ORDERS, "1", "tea", "2", "long")))
    turned = SourceTable(
        "public",
        "orders",
        (
            SourceColumn("added$1", "VARCHAR", number=9),
            SourceColumn("tags", "VARCHAR", number=2),
            SourceColumn("id", "BIGINT", number=1),
            SourceColumn("qty", "INTEGER", number=3),
            SourceColumn("sku", "VARCHAR", number=4),
        ),
        ("id",),
        (False, False, True, False, False),
    )
    source.write(
        source.commit(
            Change(DEFINE, ORDERS.key_in_source, None, turned),
            ins(turned, "{x}", "cup", "2", "5", "short"),
            upd(turned, None, "$2", UNCHANGED, "2", "6", UNCHANGED),
        )
    )
    rows = base("SELECT after::VARCHAR FROM STREAM s WHERE op = 'update'")
    assert rows == [('{"id":2,"tags":"cup","qty":6,"sku":"short","added$1":"$2"}',)]
    assert source.here(turned) == Counter([(None, "tea", "1", "2", "long"), ("$2", "cup", "2", "6", "short")])
    source.begin()
    source.feeder.stage(turned, [("a", "t", "7", "8", "s")], first=True)
    source.feeder.copied("0/99")
    assert source.here(turned)[("a", "t", "7", "8", "s")] == 1
    other = SourceTable("public", "orders", turned.columns[:2] + turned.columns[3:], ("tags",), (False,) * 4)
    with raises("55000"):
        source.write(source.commit(Change(DEFINE, ORDERS.key_in_source, None, other)))
    assert base("check stream s") == []


def test_the_initial_copy_is_snapshot_events_as_of_a_position(base: Compacting) -> None:
    source = Source(base, ORDERS, NOTES, snapshot="initial")
    source.feeder.stage(ORDERS, [("1", "tea", "2", None), ("2", "cup", "1", None)], first=True)
    source.feeder.stage(ORDERS, [("3", "pot", "1", None)], first=False)
    source.feeder.stage(NOTES, [], first=True)
    assert base.one("SELECT count(*) FROM STREAM s") == 0
    assert source.feeder.copied("0/5") == 3
    source.positions = count(6)
    source.write(source.commit(upd(ORDERS, None, "3", "pot", "9", UNCHANGED), ins(NOTES, "ann", "x")))
    assert base("SELECT op, after->>'qty' FROM STREAM s WHERE table_name = 'public.orders' ORDER BY lsn") == [
        ("snapshot", "2"),
        ("snapshot", "1"),
        ("snapshot", "1"),
        ("update", "9"),
    ]
    assert base("check stream s") == []
    feed = base.database.catalog.feeds[source.stream_id]
    assert [(t.copied_at, t.rows) for t in feed.tables] == [("0/5", 3), ("0/5", 0)]
    base.reopen()
    assert base.database.catalog.feeds[source.stream_id] == feed
    base("drop stream s cascade")
    assert base.database.cursor().execute(
        "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'ducktail' AND "
        "(table_name LIKE 'source%' OR table_name LIKE 'log%')"
    ).fetchall() == [(0,)]


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_FEEDING_SEED", 2, 40))
def test_folded_events_and_rows_are_those_of_the_source(
    base: Compacting, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    source = Source(base, ORDERS, LINES, NOTES)
    for table in (ORDERS, LINES, NOTES):
        base(f"create table {table.name} mirror of stream s table {table.name}")
    rows: dict[SourceTable, list[tuple[object, ...]]] = {ORDERS: [], LINES: [], NOTES: []}

    def text(bound: int) -> str:
        return str(chance.randrange(bound))

    def fresh(table: SourceTable) -> tuple[object, ...]:
        if table is ORDERS:
            return (text(30), chance.choice("abc"), text(9), chance.choice(("long" * 9, None, "x")))
        if table is LINES:
            return (text(6), text(4), f"{chance.randrange(99)}.50")
        return (chance.choice("ab"), chance.choice("xyz"))

    def key(table: SourceTable, row: tuple[object, ...]) -> object:
        return row[: len(table.key)] if table.key else object()

    def image(table: SourceTable, row: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(v if sent else UNCHANGED for v, sent in zip(row, table.identity, strict=True))

    def change() -> Change | None:
        table = chance.choice((ORDERS, ORDERS, LINES, NOTES))
        there = rows[table]
        what = chance.randrange(40)
        if what == 0:
            there.clear()
            return Change(TRUNCATE, table.key_in_source, None, None)
        if what < 14 or not there:
            row = fresh(table)
            if any(key(table, row) == key(table, other) for other in there):
                return None
            there.append(row)
            return ins(table, *row)
        place = chance.randrange(len(there))
        old = there[place]
        if what < 22:
            del there[place]
            return rem(table, *image(table, old))
        new = fresh(table)
        if table.key and what < 34:
            new = (*old[: len(table.key)], *new[len(table.key) :])
        elif any(key(table, new) == key(table, other) for i, other in enumerate(there) if i != place):
            return None
        moves = key(table, new) != key(table, old)
        there[place] = new
        sent = list(new)
        if table is ORDERS and chance.random() < 0.5:
            there[place] = (*new[:3], old[3])
            sent[3] = UNCHANGED
        return upd(table, image(table, old) if moves or not table.key else None, *sent)

    for _ in range(25):
        pieces = []
        for _ in range(chance.randrange(1, 6)):
            found = [c for c in (change() for _ in range(chance.randrange(0, 12))) if c is not None]
            # Some in two pieces, the second of which may change rows of the first.
            first = chance.randrange(1, 12) if chance.random() < 0.2 else 0
            if found[:first]:
                pieces.append(Piece(found[:first], None))
            pieces.append(source.commit(*found[len(found[:first]) :]))
        # Some as lists, and some as Arrow.
        monkeypatch.setattr(feeding, "FEW_ROWS", chance.choice((0, 4, 100)))
        source.write(*pieces)
        if chance.random() < 0.1:
            base.reopen()
            source.begin()
    for table, there in rows.items():
        expected = Counter(tuple(None if v is None else str(v) for v in row) for row in there)
        assert source.here(table) == expected, table.name
        assert source.folded(table) == expected, table.name
        cast = ", ".join(f"{column.name}::varchar" for column in table.columns)
        assert Counter(base(f"select {cast} from {table.name}")) == expected, table.name
    assert base("check stream s") == []
    transactions = base(
        "SELECT txid, count(*), min(tx_seq), max(tx_seq), count(*) FILTER (WHERE tx_last), "
        "count(DISTINCT headers->'source'->>'position') FROM STREAM s GROUP BY txid"
    )
    assert all(row[1] == row[3] + 1 and row[2] == 0 and row[4] == 1 and row[5] == 1 for row in transactions)


def test_mirrors_have_the_rows_of_the_events(base: Compacting) -> None:
    source = Source(base, ORDERS, NOTES, snapshot="initial")
    base("create table before mirror of stream s table orders")
    source.feeder.stage(ORDERS, [("1", "tea", "2", None), ("2", "cup", "1", None)], first=True)
    source.feeder.stage(NOTES, [("ann", "x"), ("ann", "x")], first=True)
    source.feeder.copied("0/5")
    source.positions = count(6)
    base("create table n mirror of stream s table public.notes")
    base("create table if not exists n mirror of stream s table public.notes")
    source.write(
        source.commit(
            upd(ORDERS, None, "1", "tea", "9", UNCHANGED),
            ins(ORDERS, "3", "pot", "1", None),
            rem(NOTES, "ann", "x"),
        )
    )
    assert base("select * from before order by id") == [
        (1, "tea", 9, None),
        (2, "cup", 1, None),
        (3, "pot", 1, None),
    ]
    assert base("select * from n") == [("ann", "x")]
    base("create table own2 (id bigint)")
    for text in (
        "insert into before values (9, 'a', 1, null)",
        "update before set qty = 1",
        "delete from before",
        "truncate before",
        "merge into before using (select 9 as id) u on u.id = before.id when matched then delete",
        "alter table before add column x int",
        "alter table before rename to after",
        "create or replace table before (id int)",
        "create stream t on before",
        "comment on table before is 'x'",
        "comment on column before.sku is 'x'",
        "create index i on before (sku)",
        "create table child (id bigint references before (id))",
        "with x as (insert into before (id) values (9) returning id) insert into own2 select * from x",
        "with x as (delete from before returning id) insert into own2 select * from x",
    ):
        with raises("55000"):
            base(text)
    base("create schema sc")
    base("create table sc.m mirror of stream s table notes")
    with raises("2BP01"):
        base("drop schema sc cascade")
    base("drop table sc.m cascade")
    base("drop schema sc")
    with raises("42P07"):
        base("create table n mirror of stream s table public.notes")
    with raises("42P01"):
        base("create table m mirror of stream s table nothing")
    with raises("0A000"):
        base("create trigger tr after insert on own2 for each statement insert into before (id) values (1)")
    with raises("55000"):
        base("create trigger tr after insert on before for each statement insert into own2 values (1)")
    base("begin")
    with raises("25001"):
        base("drop table before")
    base("rollback")
    base("create temp table hides (id int)")
    with raises("0A000"):
        base("create table hides mirror of stream s table notes")
    base("create table own (id int)")
    base("create stream o on own")
    with raises("42809"):
        base("create table m mirror of stream o table own")
    base.reopen()
    source.begin()
    with raises("55000"):
        base("delete from before")
    source.write(source.commit(Change(TRUNCATE, ORDERS.key_in_source, None, None), ins(NOTES, "bob", "y")))
    assert base("select count(*) from before") == [(0,)]
    assert base("select * from n order by all") == [("ann", "x"), ("bob", "y")]
    base("drop table before")
    source.write(source.commit(ins(ORDERS, "4", "jug", "1", None)))
    base("create table before mirror of stream s table orders")
    assert base("select id from before") == [(4,)]
    base("drop stream s cascade")
    base("insert into n values ('mine', 'now')")
    assert base.one("select count(*) from n") == 3


def test_a_source_is_told_what_the_copies_have(tmp_path: Path) -> None:
    """With synchronous copies a source may forget a change only when they have it."""
    target = tmp_path / "copy"
    target.mkdir()
    settings = Settings(copy_to=(str(target),), synchronous_copies=1, synchronous_copies_timeout_ms=200)
    base = Compacting(tmp_path / "shop.duckdb", Hands(), settings)
    try:
        source = Source(base, ORDERS)
        assert source.write(source.commit(ins(ORDERS, "1", "tea", "2", None))) == 1
        target.rename(tmp_path / "away")
        with pytest.raises(CommitNotConfirmed):
            source.write(source.commit(ins(ORDERS, "2", "cup", "1", None)))
        # It stands, and the next attempt, which would tell the source its position, waits for the copies too.
        assert source.here(ORDERS) == Counter({("1", "tea", "2", None): 1, ("2", "cup", "1", None): 1})
        with pytest.raises(CommitNotConfirmed):
            source.feeder.begin()
        (tmp_path / "away").rename(target)
        while True:
            with suppress(CommitNotConfirmed):
                assert source.feeder.begin().position == source.last
                break
    finally:
        base.close()


def add(source: Source, *tables: SourceTable) -> None:
    """ALTER STREAM ... ADD TABLE, of tables that a connector has described."""
    database = source.client.database
    stream = database.catalog.stream_by_id(source.stream_id)
    assert stream is not None
    cursor = database.cursor()
    drive(add_tables(database, source.session_id, cursor, stream, tables, 1000, lambda: None))
    source.tables = (*source.tables, *tables)


def edit(base: Compacting, text: str) -> None:
    """Write past the language, which lets nobody write the tables of a source."""
    cursor = base.database.cursor()
    cursor.execute(text)
    cursor.close()


def told(base: Compacting, table: SourceTable, after_lsn: int) -> list[tuple[object, ...]]:
    return base(
        "SELECT op, before::VARCHAR, after::VARCHAR FROM STREAM s "
        f"WHERE table_name = '{table.shown}' AND lsn > {after_lsn} ORDER BY lsn"
    )


def test_a_repeated_copy_puts_right_what_differs(base: Compacting) -> None:
    source = Source(base, LINES, NOTES)
    source.feeder.stage(LINES, [("1", "1", "1.00"), ("1", "2", "2.00"), ("1", "3", "3.00")], first=True)
    source.feeder.stage(NOTES, [("ann", "x")], first=True)
    source.feeder.copied("0/5")
    base("create table m mirror of stream s table lines")
    source.positions = count(6)
    source.write(source.commit(upd(LINES, None, "1", "2", "2.50")))
    edit(base, f'DELETE FROM ducktail."source {source.stream_id}.0 public.lines" WHERE line = 3')
    assert base("check stream s") != []
    base("alter stream s snapshot table lines")
    before = base.database.commits.last_lsn
    copied = [("1", "1", "1.00"), ("1", "2", "9.00"), ("1", "3", "3.00")]
    source.begin()
    source.feeder.stage(LINES, copied, first=True)
    assert base.one("select count(*) from m") == 3  # Nothing is seen before it is stored.
    assert source.feeder.copied("0/8") == 3
    # The row that was lost here, the row that differs, and then all of them.
    row = '{{"order_id":1,"line":{},"price":{}}}'.format
    assert sorted(told(base, LINES, before), key=str) == sorted(
        [
            ("update", row(2, "2.50"), row(2, "9.00")),
            ("insert", None, row(3, "3.00")),
            ("snapshot", None, row(1, "1.00")),
            ("snapshot", None, row(2, "9.00")),
            ("snapshot", None, row(3, "3.00")),
        ],
        key=str,
    )
    assert source.here(LINES) == Counter(copied)
    assert base("select line, price::varchar from m order by line") == [
        (1, "1.00"),
        (2, "9.00"),
        (3, "3.00"),
    ]
    assert base("check stream s") == []
    feed = base.database.catalog.feeds[source.stream_id]
    assert feed.position == "0/8" and [t.asked for t in feed.tables] == [None, None]
    source.write(source.commit(rem(LINES, "1", "1", UNCHANGED)))
    base.reopen()
    assert base.database.catalog.feeds[source.stream_id].tables[0].rows == 3
    assert base("check stream s") == []


def test_rows_that_are_not_in_a_copy_are_deleted_unless_it_has_a_condition(base: Compacting) -> None:
    source = Source(base, ORDERS)
    source.feeder.stage(ORDERS, [(str(i), "tea", "1", None) for i in range(4)], first=True)
    source.feeder.copied("0/5")
    with raises("42703"):
        base("alter stream s snapshot where nothing > 1")
    with raises("0A000"):
        base("alter stream s snapshot where id in (select 1)")
    base("alter stream s snapshot table orders where orders.id >= 2")
    with raises("55006"):
        base("alter stream s snapshot where id = 3")
    base.reopen()
    source.begin()
    before = base.database.commits.last_lsn
    there = [("0", "other", "1", None), ("2", "cup", "1", None), ("5", "pot", "1", None)]
    source.feeder.stage(ORDERS, there, first=True)
    assert source.feeder.copied("0/6") == 2
    assert [(op, after and json.loads(after)["id"]) for op, _, after in told(base, ORDERS, before)] == [
        ("update", 2),
        ("insert", 5),
        ("snapshot", 2),
        ("snapshot", 5),
    ]
    kept = [(str(i), "tea", "1", None) for i in (0, 1, 3)]
    assert source.here(ORDERS) == Counter([*kept, *there[1:]])
    assert base("check stream s") == []
    # A copy of all rows takes the place of one that has a condition and was not taken.
    base("alter stream s snapshot where id = 3")
    base("alter stream s snapshot")
    before = base.database.commits.last_lsn
    source.begin()
    source.feeder.stage(ORDERS, there, first=True)
    assert source.feeder.copied("0/7") == 3
    assert [op for op, _, _ in told(base, ORDERS, before)] == ["delete"] * 2 + ["update"] + ["snapshot"] * 3
    assert source.here(ORDERS) == Counter(there)
    assert base("check stream s") == []


def test_without_a_key_a_repeated_copy_comes_in_the_place_of_all_rows(base: Compacting) -> None:
    source = Source(base, NOTES)
    source.feeder.stage(NOTES, [("ann", "x"), ("ann", "x"), ("bob", "y")], first=True)
    source.feeder.copied("0/5")
    with raises("0A000"):
        base("alter stream s snapshot where who = 'ann'")
    base("alter stream s snapshot")
    source.begin()
    source.feeder.stage(NOTES, [("ann", "x"), ("eve", "z")], first=True)
    assert source.feeder.copied("0/6") == 2
    assert source.here(NOTES) == source.folded(NOTES) == Counter([("ann", "x"), ("eve", "z")])
    assert base("check stream s") == []


def test_a_copy_that_is_asked_for_while_one_is_taken_is_taken_next(base: Compacting) -> None:
    source = Source(base, ORDERS, NOTES)
    for table in (ORDERS, NOTES):
        source.feeder.stage(table, [], first=True)
    source.feeder.copied("0/5")
    base("alter stream s snapshot table orders")
    source.begin()
    source.feeder.stage(ORDERS, [("1", "tea", "1", None)], first=True)
    base("alter stream s drop table notes")
    source.tables = (ORDERS,)
    add(source, LINES)
    source.feeder.copied("0/6")
    tables = base.database.catalog.feeds[source.stream_id].tables
    assert [(t.table.name, t.asked is None, t.joins) for t in tables] == [
        ("orders", True, False),
        ("lines", False, True),
    ]


def test_a_table_is_added_with_its_rows_and_then_its_changes(base: Compacting) -> None:
    source = Source(base, ORDERS, NOTES)
    for table in (ORDERS, NOTES):
        source.feeder.stage(table, [], first=True)
    source.feeder.copied("0/5")
    base("create consumer group g on s")
    source.positions = count(6)
    source.write(source.commit(ins(ORDERS, "1", "tea", "1", None)))
    add(source, LINES)
    base("create table m mirror of stream s table lines")
    # Before its copy is stored nothing of it is.
    source.write(source.commit(ins(ORDERS, "2", "cup", "1", None), ins(LINES, "1", "1", "1.00")))
    base.reopen()
    source.begin()
    altered = SourceTable(
        "public",
        "lines",
        (*LINES.columns[:2], SourceColumn("cost", "DOUBLE", number=3)),
        LINES.key,
        (True,) * 3,
    )
    source.feeder.stage(altered, [("1", "1", "1.5")], first=True)
    assert source.feeder.copied("0/9") == 1
    source.positions = count(10)
    source.write(source.commit(upd(altered, None, "1", "1", "2.5"), ins(NOTES, "ann", "x")))
    assert base("select op, table_name from stream s consumer group g where op <> 'schema'") == [
        ("insert", "public.orders"),
        ("insert", "public.orders"),
        ("snapshot", "public.lines"),
        ("update", "public.lines"),
        ("insert", "public.notes"),
    ]
    assert base("select * from m") == [(1, 1, 2.5)]
    assert base("check stream s") == []
    with raises("42710"):
        add(source, LINES)
    [(_, made)] = base("show create stream s")
    assert 'TABLE "public"."orders", "public"."notes", "public"."lines"' in made


def test_a_stream_on_one_table_gets_another(base: Compacting) -> None:
    source = Source(base, ORDERS)
    source.feeder.stage(ORDERS, [("1", "tea", "1", None)], first=True)
    source.feeder.copied("0/5")
    base("comment on stream s is 'the shop'")
    base("create consumer group g on s")
    assert base("select op from stream s consumer group g") == [("snapshot",)]
    base("commit offsets on s consumer group g")
    assert base("select id from s_changes") == base("select id from stream s envelope changes") == [(1,)]
    readers = [Client(base.database) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        events = pool.submit(readers[0], "select table_name from stream s consumer group g wait '20 s' for 2")
        base("create consumer group h on s start latest")
        changes = pool.submit(
            readers[1], "select id from stream s consumer group h envelope changes wait '20 s'"
        )
        while base.database.polls.count < 2:
            assert not events.done() and not changes.done()
        add(source, LINES)
        source.begin()
        source.feeder.stage(LINES, [("1", "1", "1.00")], first=True)
        source.feeder.copied("0/6")
        source.positions = count(7)
        source.write(source.commit(ins(ORDERS, "2", "cup", "1", None)))
        assert events.result(30) == [("public.lines",), ("public.orders",)]
        # Its columns were those of one table.
        with raises("0A000"):
            changes.result(30)
    for reader in readers:
        reader.close()
    with raises("42P01"):
        base("select id from s_changes")
    with raises("0A000"):
        base("select * from stream s envelope changes")
    told = [("public.orders", "snapshot"), ("public.lines", "snapshot"), ("public.orders", "insert")]
    assert base("select table_name, op from stream s") == told
    assert base("select table_name, op from s order by lsn") == told
    base.reopen()
    source.begin()
    source.write(source.commit(ins(LINES, "2", "1", "1.00")))
    told.append(("public.lines", "insert"))
    assert base("select table_name, op from stream s") == told
    assert base("select comment from ducktail.streams where stream_name = 's'") == [("the shop",)]
    assert [name for (name,) in base("select table_name from stream s consumer group g")] == [
        "public.lines",
        "public.orders",
        "public.lines",
    ]
    assert base("check stream s") == []


@pytest.mark.parametrize("has", ["(on_park = 'key')", "(on_gap = 'snapshot')"])
def test_a_stream_on_one_table_keeps_what_only_that_can_have(base: Compacting, has: str) -> None:
    source = Source(base, ORDERS)
    base(f"create consumer group g on s with {has}")
    with raises("0A000"):
        add(source, LINES)
    base("drop consumer group g on s")
    add(source, LINES)


def test_a_dropped_table_leaves_its_events_until_retention(base: Compacting) -> None:
    source = Source(base, ORDERS, NOTES)
    source.feeder.stage(ORDERS, [("1", "tea", "1", None)], first=True)
    source.feeder.stage(NOTES, [("ann", "x")], first=True)
    source.feeder.copied("0/5")
    base("create table m mirror of stream s table orders")
    with raises("2BP01"):
        base("alter stream s drop table orders")
    base("drop table m")
    with raises("42P01"):
        base("alter stream s drop table nothing")
    with raises("55000"):
        base("alter stream s drop table orders, notes")
    base("begin")
    with raises("25001"):
        base("alter stream s drop table orders")
    base("rollback")
    base("alter stream s drop table public.orders")
    source.positions = count(6)
    source.write(source.commit(ins(ORDERS, "2", "cup", "1", None), ins(NOTES, "bob", "y")))
    events = base("select op, table_name, after::varchar from stream s where partition = 0 or op <> 'schema'")
    assert [event[:2] for event in events] == [
        ("snapshot", "public.orders"),
        ("snapshot", "public.notes"),
        ("schema", "public.orders"),
        ("insert", "public.notes"),
    ]
    assert json.loads(events[2][2]) == {"table": "public.orders", "dropped": True}
    with raises("42P01"):
        base("create table m mirror of stream s table orders")
    with raises("55000"):
        base("alter stream s drop table notes")
    base.reopen()
    source.begin()
    assert base("check stream s") == []
    # It may come again, as another table.
    source.tables = (NOTES,)
    add(source, ORDERS)
    source.feeder.stage(ORDERS, [("7", "pot", "1", None)], first=True)
    source.feeder.copied("0/9")
    assert base(
        "select after->>'id' from stream s where table_name = 'public.orders' and op = 'snapshot'"
    ) == [
        ("1",),
        ("7",),
    ]
    base("alter stream s set (retention_bytes = 1)")
    base.look()
    base.look()
    names = base.ask("select table_name from duckdb_tables() where table_name like '%public.orders'")
    assert [name for (name,) in names] == [f"source {source.stream_id}.2 public.orders"]
    assert base("check stream s") == []
    base("drop stream s cascade")
    assert base.ask("select count(*) from ducktail.feed_copies") == [(0,)]

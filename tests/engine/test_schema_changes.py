"""Versions of a captured table: hot, cold and view over them, restarts, retention, parking, damage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import duckdb
import pytest
from amounts import seeds
from hands import DAY_US, HOUR_US, Hands
from local_client import Client, raises
from reopening import Reopening

from ducktail.engine.buffers import scan
from ducktail.engine.catalog.rights import relation
from ducktail.engine.storage.audit import audit
from ducktail.engine.table_changes import table_versions
from ducktail.engine.waiting import Waiting
from ducktail.sql.reading import open_scan
from ducktail.sql.session_state.context import Context

# What changes a table and changes it back, in turns.
TURNS = (
    "alter table t alter v set default 1",
    "alter table t alter v set not null",
    "alter table t rename to u",
    "alter table u rename to t",
    "alter table t alter v drop not null",
    "alter table t alter v drop default",
)
LOGS = "SELECT table_name FROM duckdb_tables() WHERE table_name SIMILAR TO '(log|parked)_[0-9]+_[0-9]+'"


@pytest.fixture
def clock() -> Hands:
    """The test's clock."""
    return Hands()


@pytest.fixture
def reopen(tmp_path: Path, clock: Hands) -> Iterator[Callable[[], Client]]:
    """Opens the test's file (again); a session on it."""
    with Reopening(tmp_path / "versions.duckdb", clock) as again:
        yield again


@pytest.fixture
def client(reopen: Callable[[], Client]) -> Client:
    """A session on a database with a captured table."""
    client = reopen()
    client("create table t (id int primary key, v int)")
    client("create stream s on t with (partitions = 2, retention = '2 hours')")
    return client


def logs(client: Client) -> list[str]:
    """The logs that are there, and the side logs."""
    return sorted(name for (name,) in client.session.database.cursor().execute(LOGS).fetchall())


def views_of(client: Client, stream: str = "s") -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """All events of a stream and all changes: scan and view have the same, and so has the log."""
    database = client.session.database
    events = client(f"select * from stream {stream}")
    changes = client(f"select * from stream {stream} envelope changes")
    assert events == client(f"select * from {stream} order by lsn")
    columns = "order by _lsn, _change_type desc"
    assert changes == client(f"select * from {stream}_changes {columns}")
    [buffer] = [database.buffers[s.stream_id] for s in database.catalog.streams.values() if s.name == stream]
    with buffer.mutex:
        buffer._clear()  # What is in memory goes: the log is read.
    buffer.drop_changes()
    assert events == client(f"select * from stream {stream}")
    assert changes == client(f"select * from stream {stream} envelope changes")
    return events, changes


def test_many_versions_are_one_stream(client: Client, reopen: Callable[[], Client]) -> None:
    for turn, ddl in enumerate(TURNS):
        table = ddl.split()[2]
        client(f"insert into {table} select {turn} * 10 + i, 5 from range(3) r(i)")
        client(f"update {table} set v = {turn} where id = {turn} * 10")
        client(ddl)
    events, changes = views_of(client)
    lsns = [row[0] for row in events]
    assert lsns == list(range(1, 6 * 6 + 1)), "dense over all versions"
    assert sorted({row[11] for row in events}) == list(range(1, 8))
    # As many as there are partitions, in the order of those, before all else of their version.
    told = [(row[11], row[1]) for row in events if row[2] == "schema"]
    assert told == [(version, number) for version in range(2, 8) for number in (0, 1)]
    assert [row[0] for row in changes].count(None) == 0
    assert len(changes) == 6 * 5
    client = reopen()
    assert views_of(client) == (events, changes)
    versions = "select schema_version, since_lsn, columns from ducktail.schema_versions order by 1"
    before = client(versions)
    assert len(before) == 7
    assert client.session.database.catalog.tables["main", "t"].versions[0].first_lsn == 0
    client = reopen()
    assert client(versions) == before
    client("alter table t alter v set default 3")
    client("insert into t (id) values (-1)")
    assert views_of(client)[1][-1][:2] == (-1, 3)


def test_emptied_versions_are_dropped(client: Client, clock: Hands, reopen: Callable[[], Client]) -> None:
    client("create stream short on t with (partitions = 1, retention = '1 hour')")
    client("create consumer group g on s")
    for turn, ddl in enumerate(TURNS[:4]):
        client(f"insert into {ddl.split()[2]} values ({turn}, 0)")
        client(ddl)
    assert len(logs(client)) == 5
    clock.us += HOUR_US + HOUR_US // 2
    client("insert into t values (10, 0)")
    client.session.database.retention.look()
    assert len(logs(client)) == 5, "the other stream still has them"
    assert client("select op, schema_version from stream short") == [("insert", 5)]
    clock.us += HOUR_US
    client.session.database.retention.look()
    assert len(logs(client)) == 1
    assert client("select schema_version from ducktail.schema_versions where stream_name = 's'") == [(5,)]
    events, _ = views_of(client)
    assert [(row[2], row[11]) for row in events] == [("insert", 5)]
    with raises("72000"):
        client("select * from stream s consumer group g")
    client = reopen()
    assert views_of(client)[0] == events
    assert not audit(client.session.database.cursor(), client.session.database.catalog)
    client("alter table t alter v set default 3")
    assert len(logs(client)) == 2
    assert views_of(client)[0][-1][11] == 6


def test_a_scan_under_way_outlives_a_version(
    client: Client, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it has read ahead it gives.
    for constant, value in (("FIRST_ROWS", 1), ("NARROW_REACH", 10)):
        monkeypatch.setattr(scan, constant, value)
    client("insert into t select i, 0 from range(3000) r(i)")
    client("alter table t alter v set default 1")
    client("insert into t select i, 0 from range(3000, 6000) r(i)")
    [buffer] = list(client.session.database.buffers)
    with buffer.mutex:
        buffer._clear()
    client("begin")
    client("declare c cursor for select lsn from stream s")
    first = client("fetch 10 from c")
    client.session.database.retention.trim(client.session.database.catalog.streams["main", "s"], 3000)
    assert len(logs(client)) == 1
    assert first == [(lsn,) for lsn in range(1, 11)]
    with raises("72000"):
        client("fetch 5000 from c")
    client("rollback")
    assert client("select min(lsn), count(*) from stream s") == [(3001, 3002)]


def test_what_an_older_format_was_taken_for_stays(client: Client, reopen: Callable[[], Client]) -> None:
    client("create stream listed on t (id) with (partitions = 1)")
    client("insert into t values (1, 1)")
    client.session.database.cursor().execute("update ducktail.stream_catalog set all_columns = null")
    client = reopen()
    client("alter table t drop column v")
    client = reopen()
    client("alter table t add column w int default 5")
    client("insert into t values (2, 2)")
    images = "select after::varchar from stream {} where op = 'insert'"
    assert client(images.format("listed")) == [('{"id":1}',), ('{"id":2}',)]
    assert client(images.format("s")) == [('{"id":1,"v":1}',), ('{"id":2,"w":2}',)]


def test_columns_lost_past_ducktail_hit_no_other_stream(
    client: Client, reopen: Callable[[], Client], tmp_path: Path
) -> None:
    client("create table other (id int primary key)")
    client("create stream others on other with (partitions = 1)")
    client("alter table t add column w int")
    database = client.session.database
    client.close()
    database.close()
    with duckdb.connect(str(tmp_path / "versions.duckdb")) as plain:
        plain.execute("drop view s_changes")
        plain.execute("alter table t rename v to x")
    client = reopen()
    client("begin")
    client("insert into t (id) values (1)")
    client("insert into other values (1)")
    client("commit")
    assert client("select after::varchar from stream others") == [('{"id":1}',)]
    with raises("55000"):
        client("select * from stream s")
    [(kind, *_, detail, _)] = client("check stream s")
    assert (kind, detail) == ("columns", 'the table has no column "v", which stream "s" carries')
    with raises("55000"):
        client("select * from stream s")


def test_schema_events_are_not_parked(client: Client) -> None:
    client("create consumer group g on s")
    client("alter table t add column w int")
    with raises("0A000"):
        client("alter consumer group g on s park partition 1 at 2")
    other = Client(client.session.database)
    other("begin")
    other("select * from t")
    client("alter table t add column x int")
    client("insert into t values (1, 1, 1, 1)")
    [place] = client("select partition, lsn from stream s where op = 'insert'")
    with raises("40001"):  # It does not see the log that has the event.
        other("alter consumer group g on s park partition {} at {}".format(*place))
    other("rollback")
    other.close()


def test_versions_are_bounded_and_read_in_parts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_versions, "VERSIONS_MAX", 5)
    monkeypatch.setattr(scan, "VERSIONS_AT_ONCE", 2)
    for turn in range(4):
        client(f"insert into t values ({turn}, 0)")
        client(f"alter table t alter v set default {turn}")
    client("insert into t (id) values (4)")
    with raises("54000"):
        client("alter table t add column w int")
    client("alter table t alter v set default 3")  # It changes nothing.
    events, changes = views_of(client)
    assert [row[0] for row in events] == list(range(1, 4 * 3 + 2))
    assert len(changes) == 5
    assert client("select lsn from stream s limit 3 transactions") == [(1,), (2,), (3,), (4,)]
    database = client.session.database
    database.retention.trim(database.catalog.streams["main", "s"], 1)
    client("alter table t add column w int")
    assert views_of(client)[0][-1][11] == 6


def test_parked_events_of_several_versions(client: Client, clock: Hands) -> None:
    client("create consumer group g on s with (on_park = 'key')")
    client("insert into t values (1, 1)")
    client("alter table t alter v set default 1")
    client("update t set v = 2")
    client("alter table t alter v drop default")
    client("update t set v = 3")
    place, lsns = client("select partition, lsn from stream s where op <> 'schema'")[0][0], [1, 4, 7]
    assert [lsn for (lsn,) in client("select lsn from stream s where op <> 'schema'")] == lsns
    client(f"alter consumer group g on s park partition {place} at 1")
    assert client("select lsn, behind from ducktail.parked") == [(1, 2)]
    read = "select lsn from stream s consumer group g where op <> 'schema'"
    assert client(read) == []
    schema = client("select lsn, op from stream s consumer group g")
    assert schema == [(lsn, "schema") for lsn in (2, 3, 5, 6)], "what has no key stands behind none"
    client("commit offsets on s consumer group g")
    clock.us += DAY_US
    client("insert into t values (2, 2)")
    client.session.database.retention.look()
    # What is parked keeps its version; the log itself is empty.
    assert len([name for name in logs(client) if name.startswith("log")]) == 3
    assert client("select lsn, behind, after::varchar from ducktail.parked") == [(1, 2, '{"id":1,"v":1}')]
    client(f"alter consumer group g on s release partition {place}")
    given = client("select lsn, after::varchar, schema_version from stream s consumer group g where lsn < 8")
    assert given == [(1, '{"id":1,"v":1}', 1), (4, '{"id":1,"v":2}', 2), (7, '{"id":1,"v":3}', 3)]
    typed = client("select _lsn, v from stream s consumer group g envelope changes where _lsn < 8")
    assert typed == [(1, 1), (4, 1), (4, 2), (7, 2), (7, 3)]
    client("select * from stream s consumer group g")
    client("commit offsets on s consumer group g")
    client.session.database.retention.look()
    assert len(logs(client)) == 2, "the present version's, with its side log"


def test_schema_events_that_retention_passes(client: Client, clock: Hands) -> None:
    """Also of a stream that is wider than another, and where nothing else was ever written."""
    client("create stream wide on t with (partitions = 5, retention = '1 hour')")
    client("alter table t alter v set default 1")
    client("alter table t alter v set default 2")
    assert client("select count(*), max(lsn) from stream wide") == [(10, 10)]
    assert client("select count(*), max(lsn) from stream s") == [(4, 7)]
    client.session.database.retention.look()
    assert len(logs(client)) == 2, "the first version's log has never had anything"
    clock.us += HOUR_US + 1
    client("insert into t values (1, 1)")
    client.session.database.retention.look()
    assert client("select count(*) from stream wide") == [(1,)]
    assert client("select count(*) from stream s") == [(5,)]
    trimmed = "select sum(trimmed_events), sum(events) from ducktail.partitions where stream_name = 'wide'"
    assert client(trimmed) == [(10, 1)]


def test_a_log_with_another_versions_row_is_damage(client: Client) -> None:
    client("insert into t values (1, 1)")
    client("alter table t alter v set default 1")
    client("insert into t values (2, 2)")
    database = client.session.database
    old, new = logs(client)
    cursor = database.cursor()
    assert not audit(cursor, database.catalog)
    cursor.execute(f"INSERT INTO ducktail.{old} SELECT * FROM ducktail.{new} WHERE op = 'i'")
    cursor.execute(f"DELETE FROM ducktail.{new} WHERE op = 'i'")
    [found] = audit(cursor, database.catalog)
    assert "are not all of version 1" in found.text


def test_a_write_and_a_change_beside_each_other(client: Client) -> None:
    other = Client(client.session.database, lock_timeout="1")
    client("begin")
    client("insert into t values (1, 1)")
    with raises("55P03"):
        other("alter table t alter v set default 1")
    client("commit")
    other("alter table t alter v set default 1")
    assert client("select count(*), max(schema_version) from stream s") == [(3, 2)]
    other.close()


MOVE = "insert into moved select lsn, schema_version, after from stream s"


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has another session run statements within the next scan: its stream is found, its query not made.

    They come before the scan's end is fixed, or behind that.
    """

    def armed(other: Client, *texts: str, behind: bool = False) -> None:
        end_lsn = open_scan._end_lsn

        def meeting(session: Context) -> Waiting[int]:
            monkeypatch.setattr(open_scan, "_end_lsn", end_lsn)
            if behind:
                last_lsn = yield from end_lsn(session)
            for text in texts:
                other(text)
            return last_lsn if behind else (yield from end_lsn(session))

        monkeypatch.setattr(open_scan, "_end_lsn", meeting)

    return armed


@pytest.mark.parametrize(
    "change", ["drop column w", "rename column w to x", "add column x int default 7", "alter w type bigint"]
)
def test_a_read_and_a_change_of_columns_beside_each_other(
    client: Client, meet: Callable[..., None], change: str
) -> None:
    other = Client(client.session.database)
    client("insert into t values (-1, -1)")
    client("alter table t add column w int")
    client("insert into t select i, i, i from range(10) r(i)")
    client("create consumer group g on s start earliest")
    client("create table moved (lsn bigint, schema_version int, after json)")
    before = client("select lsn, schema_version, after from stream s")
    texts = (f"alter table t {change}", "insert into t (id, v) values (10, 10)")
    # What a transaction reads is as of its snapshot, in the versions that it has events of.
    client("begin")
    meet(other, *texts, behind=True)
    client(f"{MOVE} consumer group g member 'm'")
    client("commit offsets on s consumer group g member 'm'")
    client("commit")
    assert client("select * from moved order by lsn") == before
    client("delete from moved")
    # Any other read is up to what is there when it begins: with the columns of that.
    meet(other, "alter table t add column y int default 8", "insert into t (id, v) values (11, 11)")
    client(MOVE)
    events = client("select lsn, schema_version, after from stream s")
    assert client("select * from moved order by lsn") == events
    assert json.loads(str(events[-1][2]))["y"] == 8
    other.close()


@pytest.mark.parametrize("tables", ["t", "t, u"])
def test_a_read_and_the_drop_of_its_stream_beside_each_other(
    client: Client, meet: Callable[..., None], tables: str
) -> None:
    other = Client(client.session.database)
    client("create table u (id int primary key)")
    client("create stream kept on t, u")
    client(f"create stream going on {tables}")
    meet(other, "drop stream going", "alter table t drop column v")
    with raises("42704"):
        client("select lsn from stream going where op <> 'schema'")
    other.close()


def test_checks_and_sums_go_on_over_versions(client: Client, clock: Hands) -> None:
    client("insert into t select i, i from range(6) r(i)")
    client("alter table t alter v set default 1")
    client("update t set v = 9 where id = 1")
    client("alter table t alter v set not null")
    client("delete from t where id = 2")
    assert client("check stream s") == []
    clock.us += DAY_US
    client("insert into t values (7, 7)")
    client.session.database.retention.look()
    assert len(logs(client)) == 1
    assert client("check stream s") == [], "the rows of the logs that are gone are in the kept sum"
    client("alter table t alter v drop not null")
    client("update t set v = 8 where id = 7")
    client.session.database.cursor().execute("update t set v = 100 where id in (0, 7)")
    found = client("check stream s")
    assert len(found) == 2, "one has retained events, of the other is known that it differs"
    client("alter stream s resync")
    assert client("check stream s") == []
    assert client("select max(schema_version) from stream s") == [(4,)]


def test_transactions_over_versions_of_several_tables(client: Client) -> None:
    client("create table b (id int primary key)")
    client("create stream wide on t, b with (partitions = 2)")
    for text in (
        *("begin", "insert into t values (1, 1)", "alter table t add column w int"),
        *("insert into b values (1)", "commit", "begin", "drop table t", "create table t (id int)"),
        "insert into t values (1), (2)",
        *("insert into b values (2)", "alter table b rename to c", "insert into c values (3)", "commit"),
    ):
        client(text)
    query = "select op, table_name, tx_last from {}"
    events = client(query.format("stream wide"))
    assert [row[:2] for row in events] == [
        *(("insert", "main.t"), *[("schema", "main.t")] * 2, ("insert", "main.b")),
        *(("insert", "main.b"), ("insert", "main.b"), *[("schema", "main.t")] * 2, ("insert", "main.t")),
        *[("schema", "main.c")] * 2,
    ]
    assert [place for place, row in enumerate(events) if row[2]] == [3, len(events) - 1]
    assert events == client(query.format("wide") + " order by lsn")
    assert client("check stream wide") == client("check stream s") == []


def test_rights_go_with_a_renamed_table(client: Client, reopen: Callable[[], Client]) -> None:
    client("create user alice password 'secret' superuser")
    client("create user bob password 'secret'")
    client("grant select on t to bob")
    client("alter table t rename to u")
    for found in (client, reopen()):
        rights = found.session.database.rights
        assert rights.privileges("bob", relation("main", "u")) == {"select"}
        assert not rights.privileges("bob", relation("main", "t"))


class Model:
    """A table whose columns come and are called otherwise, and every event that it must have had.

    A row is a dict by column number; `names` are the columns as they are called now.
    """

    def __init__(self, client: Client, dice: random.Random) -> None:
        self.client, self.dice = client, dice
        self.names, self.rows = {0: "id", 1: "v"}, dict[int, dict[int, int | None]]()
        self.version, self.numbers = 1, 2
        self.types: dict[int, str] = {}
        self.json: list[tuple[str, int, dict[str, Any] | None, dict[str, Any] | None]] = []
        self.typed: list[tuple[dict[int, int | None], str]] = []

    def step(self) -> None:
        """One statement."""
        dice, made = self.dice, self.dice.randrange(100)
        acts = [self.insert, self.insert, self.update, self.delete, self.add, self.rename]
        acts += [self.drop, self.retype] if len(self.names) > 2 else []
        dice.choice(acts if self.rows else acts[:2])(made)

    def block(self, steps: int) -> None:
        """So many statements in one transaction, which may be rolled back."""
        kept = {name: deepcopy(x) for name, x in vars(self).items() if name not in ("client", "dice")}
        self.client("begin")
        for _ in range(steps):
            self.step()
        if self.dice.random() < 0.3:
            self.client("rollback")
            vars(self).update(kept)
        else:
            self.client("commit")

    def _told(self, op: str, old: dict[int, int | None] | None, new: dict[int, int | None] | None) -> None:
        images = [None if row is None else {self.names[i]: x for i, x in row.items()} for row in (old, new)]
        self.json.append((op, self.version, images[0], images[1]))
        if op == "update":
            assert old is not None and new is not None
            self.typed += [(old, "update_preimage"), (new, "update_postimage")]
        else:
            row = old if new is None else new
            assert row is not None
            self.typed.append((row, op))

    def insert(self, made: int) -> None:
        number = len(self.json) + 1
        row: dict[int, int | None] = {i: made + i for i in self.names} | {0: number}
        self.client(f"insert into t values ({', '.join(map(str, row.values()))})")
        self.rows[number] = row
        self._told("insert", None, row)

    def update(self, made: int) -> None:
        number, column = self.dice.choice(list(self.rows)), self.dice.choice([i for i in self.names if i])
        old, new = self.rows[number], {**self.rows[number], column: made}
        self.client(f"update t set {self.names[column]} = {made} where {self.names[0]} = {number}")
        self.rows[number] = new
        self._told("update", old, new)

    def delete(self, _: int) -> None:
        number = self.dice.choice(list(self.rows))
        self.client(f"delete from t where {self.names[0]} = {number}")
        self._told("delete", self.rows.pop(number), None)

    def add(self, made: int) -> None:
        number, self.numbers = self.numbers, self.numbers + 1
        # Names of columns that were called otherwise since come again.
        name = self.dice.choice([f"c{i}" for i in range(9) if f"c{i}" not in self.names.values()])
        default = self.dice.choice([None, made])
        self.client(f"alter table t add column {name} int" + (f" default {default}" if default else ""))
        self.names[number] = name
        self.rows = {key: {**row, number: default or None} for key, row in self.rows.items()}
        self._altered()

    def rename(self, _: int) -> None:
        number = self.dice.choice(list(self.names))
        name = self.dice.choice([f"c{i}" for i in range(9) if f"c{i}" not in self.names.values()])
        self.client(f"alter table t rename column {self.names[number]} to {name}")
        self.names[number] = name
        self._altered()

    def drop(self, _: int) -> None:
        number = self.dice.choice([i for i in self.names if i])
        self.client(f"alter table t drop column {self.names.pop(number)}")
        self.rows = {
            key: {i: value for i, value in row.items() if i != number} for key, row in self.rows.items()
        }
        self._altered()

    def retype(self, _: int) -> None:
        number = self.dice.choice([i for i in self.names if i])
        self.types[number] = "int" if self.types.get(number) == "bigint" else "bigint"
        self.client(f"alter table t alter {self.names[number]} type {self.types[number]}")
        self._altered()

    def _altered(self) -> None:
        self.version += 1
        self.json += [("schema", self.version, None, {})] * 2

    def check(self) -> None:
        """Scan, view and log, in both envelopes."""
        events, changes = views_of(self.client)
        found = [
            (row[2], row[11], *(None if x is None else json.loads(x) for x in (row[5], row[6])))
            for row in events
        ]
        schemas = [row[3] for row in found if row[0] == "schema"]
        assert [(*row[:3], {}) if row[0] == "schema" else row for row in found] == self.json
        if schemas:
            assert [c["name"] for c in schemas[-1]["columns"]] == list(self.names.values())
        wanted = [(*(row.get(i) for i in self.names), change) for row, change in self.typed]
        assert [row[: len(self.names) + 1] for row in changes] == wanted
        assert self.client("check stream s") == []
        transactions: dict[object, list[tuple[object, ...]]] = {}
        for row in events:
            transactions.setdefault(row[8], []).append(row[9:11])
        for places in transactions.values():
            assert places == [(place, place == len(places) - 1) for place in range(len(places))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("DUCKTAIL_SCHEMA_SEED", 1, 20))
def test_random_columns(client: Client, reopen: Callable[[], Client], seed: int) -> None:
    model = Model(client, random.Random(seed))
    for _ in range(3):
        for _ in range(4):
            model.step()
        model.block(6)
        model.check()
    model.client = reopen()
    model.check()
    model.insert(7)
    model.check()


@pytest.mark.parametrize(
    ("text", "left"),
    [("drop table p", []), ("alter table p add z int", ["id", "z"]), ("alter table p rename to r", [])],
)
def test_a_table_that_comes_before_it_on_the_search_path_keeps_its_stream(
    client: Client, text: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB would find it by the name, and change it past its stream: it gets the table's full name."""
    client("create table p (id int)")
    client("create schema before")
    client("set search_path = 'before, main'")
    block, other = client.session.block, Client(client.session.database)
    enter = block.enter_plain

    def late(key: tuple[str, ...], **how: bool) -> Waiting[bool]:
        monkeypatch.setattr(block, "enter_plain", enter)
        other("create table before.p (id int)")
        other("create stream q on before.p")
        return (yield from enter(key, **how))

    monkeypatch.setattr(block, "enter_plain", late)
    client(text)
    other("insert into before.p values (1)")
    assert other("select op, after from stream q") == [("insert", '{"id":1}')]
    assert client("select * from before.p") == [(1,)]
    columns = "select column_name from duckdb_columns() where schema_name = 'main' and table_name = 'p'"
    assert client(columns) == [(name,) for name in left]
    other.close()
    # It is found first now, and drops as what has a stream.
    with raises("2BP01"):
        client("drop table before.p")

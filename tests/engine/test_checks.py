"""CHECK STREAM and RESYNC: a table edited while ducktail was absent, and a copy made of its events."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hands import HOUR_US, Hands
from local_client import Client, raises
from reopening import Editable

from ducktail.engine.checks import check, row_sums
from ducktail.engine.table_changes import resync

TABLE = (
    "id int primary key, v text collate nocase, f double, l int[], s struct(a int, b text), b blob, "
    "i interval"
)
ROW = "{0}, 'v{0}', 'nan'::double, [{0}, null], {{'a': {0}, 'b': null}}, '\\xAA'::blob, interval '1 month'"

# Ten ways, with what CHECK says of each: the kind and the row's number.
EDITS = (
    ("update t set f = 1.5 where id = 1", [("changed", 1)]),
    # The column takes them for one text; they are two.
    ("update t set v = 'V2' where id = 2", [("changed", 2)]),
    ("update t set l = [3] where id = 3", [("changed", 3)]),
    ("update t set b = null where id = 4", [("changed", 4)]),
    ("delete from t where id = 5", [("missing", 5)]),
    # A row that no event names: what all of them add up to tells, once for the two.
    ("insert into t values (" + ROW.format(106) + ")", [("unknown", None)]),
    ("update t set id = 107 where id = 7", [("missing", 7)]),
    ("insert into t values (" + ROW.format(50) + ")", [("unexpected", 50)]),
    (
        "update t set v = case id when 8 then 'v9' else 'v8' end where id in (8, 9)",
        [("changed", 8), ("changed", 9)],
    ),
    # A captured write goes over it before anybody looks.
    ("update t set f = 2.5 where id = 11", [("overwritten", 11)]),
)
# It compares equal, which is no difference: what CHECK cannot find.
EQUAL = "update t set i = interval '30 days' where id = 10"


class Base(Editable):
    """A database that is served, or written by plain DuckDB."""

    def behind(self, *texts: str) -> None:
        """Write while ducktail is absent."""
        self.again(*texts)

    def refuses(self, state: str, text: str) -> None:
        """It is answered with an error of this SQLSTATE."""
        with raises(state):
            self(text)

    def found(self, stream: str = "s") -> list[tuple[str, object]]:
        """What CHECK STREAM says: kind and number of the row."""
        return [
            (str(row[0]), None if row[1] is None else json.loads(str(row[1]))["id"])
            for row in self(f"check stream {stream}")
        ]

    def copy_is_equal(self) -> bool:
        """Whether a copy made of the events is the table."""
        rows: dict[str, str] = {}
        for op, key, after in self("select op, key, after from stream s"):
            if op == "delete":
                del rows[str(key)]
            else:
                rows[str(key)] = str(after)
        self("create stream again on t with (snapshot = 'initial', partitions = 1)")
        present = {str(text) for (text,) in self("select after from stream again where op = 'snapshot'")}
        self("drop stream again")
        return present == set(rows.values())


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    """A table with rows 1 to 12, of which each has an event, and 50, which was deleted."""
    base = Base(tmp_path / "b.duckdb", Hands())
    base(f"create table t ({TABLE})")
    base("create stream s on t with (retention = '1 hour')")
    for number in (*range(1, 13), 50):
        base(f"insert into t values ({ROW.format(number)})")
    base("delete from t where id = 50")
    yield base
    base.close()


def test_ten_ways_past_ducktail_and_back(base: Base) -> None:
    assert base.found() == []
    base.behind(*(text for text, _ in EDITS))
    base("update t set v = 'over' where id = 11")
    assert set(base.found()) == {one for _, told in EDITS for one in told}
    base.refuses("55000", "select * from stream s")
    base.refuses("55000", "select * from stream s wait '10 s'")
    base.refuses("55000", "select * from stream s envelope changes")
    base.refuses("55000", "show changes for t")
    base("alter stream s resync")
    assert base.copy_is_equal()
    assert base.found() == []


def test_what_compares_equal_is_not_found(base: Base) -> None:
    base.behind(EQUAL)
    assert base.found() == []


def test_what_was_found_stays_known(base: Base) -> None:
    base("create stream other on t (id)")
    base("create consumer group g on s")
    base.behind("delete from t where id = 3")
    # The opening has seen that something is wrong, and CHECK says what.
    base.refuses("55000", "select * from stream s")
    assert base.found("other") == [("missing", 3)]
    base.behind()
    base.refuses("55000", "select * from stream s consumer group g")
    base.refuses("55000", "select * from stream other")
    base("insert into t values (" + ROW.format(60) + ")")
    assert base.found() == [("missing", 3)]
    base("alter stream other resync")
    assert base("select op, key from stream s after 15") == [("delete", '{"id":3}')]
    assert base("select op, key from stream other") == [("insert", '{"id":60}'), ("delete", '{"id":3}')]
    base.behind()
    assert base.copy_is_equal()
    assert base.found("other") == []


def test_rows_without_retained_events(base: Base) -> None:
    clock = base.database.clock
    assert isinstance(clock, Hands)
    base("update t set v = 'kept' where id <= 2")
    clock.us += 2 * HOUR_US
    base("update t set v = 'newest' where id <= 1")
    base.database.retention.look()
    assert len(base("select * from stream s")) == 1
    # The sum has taken in what retention has deleted.
    assert base.found() == []
    base.behind()
    assert base.found() == []
    base.behind("update t set f = 7 where id = 4", "delete from t where id in (5, 6)")
    assert base.found() == [("unknown", None)]
    assert "2 fewer rows" in str(base("check stream s")[0][5])
    base.client.session.notices.take()
    base("alter stream s resync")
    told = [notice.message for notice in base.client.session.notices.take()]
    assert told[1:] == [
        "9 rows without retained events are given again, as snapshot events",
        "at least 2 rows without retained events are gone and cannot be named",
    ]
    assert [op for (op,) in base("select op from stream s")] == ["update", *["snapshot"] * 9]
    assert base.found() == []


def test_a_null_is_not_what_is_empty(tmp_path: Path) -> None:
    """DuckDB hashes them alike, and no event says what was there."""
    base = Base(tmp_path / "n.duckdb", Hands())
    base("create table t (id int primary key, l int[], m map(text, int), s struct(a int))")
    base("insert into t values (1, null, null, null)")
    base("create stream s on t")
    for edit in ("l = []", "l = [null]", "l = [null, null]", "m = map {}", "s = {'a': null}"):
        base.behind(f"update t set {edit}")
        assert base.found() == [("unknown", None)], edit
        base("drop stream s")
        base("create stream s on t")
    base.close()


def test_a_sum_that_another_duckdb_took_or_none(base: Base) -> None:
    base.behind(
        "update ducktail.row_sums set duckdb_version = 'v0', hash_sum = 7", "delete from t where id = 3"
    )
    assert base.found() == [("missing", 3)]
    told = base.client.session.notices.take()[0]
    assert "another version of DuckDB" in str(told.detail)
    base("alter stream s resync")
    base.behind("delete from ducktail.row_sums")
    assert base.found() == []
    assert "first opened" in str(base.client.session.notices.take()[0].detail)


def test_resync_is_of_all_streams(base: Base) -> None:
    """A stream whose snapshot has the edit already is no reason to keep it from the others."""
    base.behind("update t set f = 1.5 where id = 1", "delete from t where id = 2")
    base("create stream late on t with (snapshot = 'initial')")
    assert base.found("late") == [("missing", 2), ("overwritten", 1)]
    base("alter stream late resync")
    assert base.found() == []
    assert base.copy_is_equal()


def test_what_differs_is_mended_before_the_columns_change(base: Base) -> None:
    base.behind("update t set f = 1.5 where id = 1")
    assert base.found() == [("changed", 1)]
    base.refuses("55000", "alter table t add column more int")
    base("alter table t alter f set default 1")
    assert base.found() == [("changed", 1)]
    base("alter stream s resync")
    base("alter table t add column more int")
    assert base.found() == []


def test_a_check_beside_an_alter_that_is_not_shown_yet(base: Base) -> None:
    """It is committed before the streams have its columns: no column is another because of that."""
    database = base.database
    stream = next(iter(database.catalog.streams.values()))
    cursor, watch, other = database.cursor(), database.cursor(), Client(database)
    other("begin")
    other("alter table t add column more int")
    thread = threading.Thread(target=other, args=("commit",), daemon=True)
    base("select * from stream s")  # All is published, which the mutex is wanted for.
    with database.catalog.mutex:
        thread.start()
        while "more" not in str(watch.execute("describe t").fetchall()):
            pass
        check = resync.check_stream(database, 1_000_000, cursor, stream, 10_000)
        waits = next(check)
    assert waits.future.result(10) is None
    with pytest.raises(StopIteration) as ended:
        check.send(True)
    assert ended.value.value[0].agrees
    thread.join()
    other.close()


def test_columns_that_were_changed(base: Base) -> None:
    base.behind("alter table t add column more int")
    base.refuses("55000", "select * from stream s")
    assert base.found() == [("columns", None)]
    with raises("55000") as told:  # After a check as before it.
        base("select * from stream s")
    assert "the table has columns of types" in str(told.value.detail)
    base.refuses("0A000", "alter stream s resync")


def test_columns_that_have_changed_their_names_or_places(tmp_path: Path) -> None:
    swapped = [f"alter table t rename {old} to {new}" for old, new in (("a", "x"), ("b", "a"), ("x", "b"))]
    moved = ["alter table t drop a", "alter table t add column a int"]
    for edits in (swapped, moved):
        base = Base(tmp_path / f"{len(edits)}.duckdb", Hands())
        base("create table t (id int primary key, a int, b int)")
        base("create stream s on t")
        base("insert into t values (1, 10, 20)")
        base.behind(*edits)
        base.refuses("55000", "select * from stream s")
        ((kind, *_, detail, _),) = base("check stream s")
        assert (kind, detail) == (
            "columns",
            'stream "s" carries columns id, a, b, which the table has as id, b, a',
        )
        base.refuses("0A000", "alter stream s resync")
        base.close()


def test_a_trigger_made_past_ducktail_writes_nothing(base: Base) -> None:
    base("create table plain (id int)")
    base("create table other (id int)")
    make = "create trigger {0} after insert on {0} for each statement insert into {1} (id) values (60)"
    base.behind(make.format("plain", "t"))
    base.refuses("0A000", "insert into plain values (1)")
    base.behind("drop trigger plain on plain", make.format("t", "other"))
    for text in ("insert into t (id) values (61)", "update t set v = 'x'"):
        base.refuses("0A000", text)
    assert base.found() == []
    base.behind("drop trigger t on t")
    base("insert into plain values (1)")
    base("insert into t (id) values (61)")
    assert base.found() == []


def test_a_table_that_was_dropped_and_made_again(base: Base) -> None:
    base.behind("drop table t", f"create table t ({TABLE})", f"insert into t values ({ROW.format(4)})")
    with raises("55000") as told:
        base("select * from stream s")
    fewer = "there are 11 fewer rows than there should be"
    assert told.value.detail == f"The table was written past ducktail: {fewer}."
    base("alter stream s resync")
    assert base.copy_is_equal()
    # As many rows, and others; and then the same ones, which nothing tells apart any more.
    base.behind("create table again as from t", "drop table t", f"create table t ({TABLE})",
        "insert into t select * replace (5.0 as f) from again", "drop table again")  # fmt: skip
    base.refuses("55000", "select * from stream s")
    base("alter stream s resync")
    base.behind("create or replace table t as from t")
    base.refuses("55000", "select * from stream s")
    [(kind, *_, detail, _)] = base("check stream s")
    assert (kind, detail) == ("columns", "the table has another primary key than its events")


def test_a_table_that_was_dropped(base: Base) -> None:
    base.behind("drop table t")
    for text in ("select * from stream s", "check stream s", "drop stream s"):
        with raises("42704") as told:
            base(text)
        assert told.value.message == 'stream "s" is not served: table main.t does not exist any more'
    assert len(base("select * from s")) == 14
    base("create table t (id int)")
    base.behind()
    base.refuses("55000", "select * from stream s")
    base("drop stream s")
    base("create stream s on t")


def test_an_opening_looks_only_where_it_must_and_can(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("ducktail.engine.database.mark_unlike", lambda *_: pytest.fail("nobody has written"))
        base.behind()
    monkeypatch.setattr(check, "SUMMED_ROWS_MAX", 24)
    base.behind("update t set f = 1.5 where id = 1")
    assert len(base("select * from stream s")) == 14  # Too many rows to be read, with those of the log.
    assert base.found() == [("changed", 1)]
    base("alter stream s resync")
    base.behind("delete from t where id = 2")
    base.refuses("55000", "select * from stream s")


def test_an_opening_reads_no_more_bytes_than_it_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Base(tmp_path / "w.duckdb", Hands())
    for table, length in (("wide", 100_000), ("narrow", 1)):
        base(f"create table {table} (id int primary key, l text[])")
        base(f"insert into {table} select i, [repeat('x', {length})] from range(3) as r(i)")
        base(f"create stream of_{table} on {table}")
    monkeypatch.setattr(check, "SUMMED_BYTES_MAX", 150_000)
    base.behind("update wide set l = ['y'] where id = 1", "update narrow set l = ['y'] where id = 1")
    assert base("select * from stream of_wide") == []
    base.refuses("55000", "select * from stream of_narrow")
    base.close()


def test_a_file_that_is_read_yet_is_not_opened_at_its_close(base: Base, tmp_path: Path) -> None:
    """To close a descriptor of it lets go of DuckDB's lock: another process would open it as well."""
    held = base.database.cursor().sql("select * from t, range(100000)").to_arrow_reader(1)
    base("insert into t values (" + ROW.format(60) + ")")
    base.close()
    text = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = [sys.executable, "-S", "-c", text, str(tmp_path / "b.duckdb")]
    assert subprocess.run(other, stderr=subprocess.DEVNULL, check=False).returncode
    del held
    base.behind()
    assert len(base("select * from stream s")) == 15


def test_without_a_primary_key(tmp_path: Path) -> None:
    base = Base(tmp_path / "n.duckdb", Hands())
    base("create table t (v int)")
    base("insert into t values (1), (1)")
    base("create stream s on t")
    base("insert into t values (2), (null)")
    base("update t set v = 3 where v = 1")
    assert base.found() == []
    base.behind("insert into t values (5)")
    assert base.found() == [("unknown", None)]
    base.refuses("0A000", "alter stream s resync")
    base.refuses("55000", "select * from stream s")
    base("create stream other on t")
    with raises("55000") as told:
        base("select * from stream other")
    assert "DROP STREAM all that are on the table" in str(told.value.hint)
    base("drop stream s")
    base("drop stream other")
    base("create stream s on t")
    assert base("select * from stream s") == []
    assert base.database.unlike == {}
    base.close()


def test_a_table_without_a_primary_key_leaves_a_stream_on_all(tmp_path: Path) -> None:
    base = Base(tmp_path / "d.duckdb", Hands())
    base("create table k (i int)")
    base("create table t (i int primary key)")
    base("create stream s on all tables in schema main")
    base("insert into k values (1), (2)")
    base.behind("update k set i = 20 where i = 2")
    base.refuses("55000", "select * from stream s")
    base.refuses("0A000", "alter stream s resync")
    base("drop table k")
    told = base("select op, after ->> 'dropped' from stream s where table_name = 'main.k' and lsn > 2")
    assert told[:2] == [("delete", None), ("delete", None)]
    assert set(told[2:]) == {("schema", "true")}
    base("create table k as select 7 as i")
    base("insert into t values (1)")
    assert base("select table_name, after from stream s where op = 'insert' and lsn > 2") == [
        ("main.k", '{"i":7}'),
        ("main.t", '{"i":1}'),
    ]
    assert base("check stream s") == []
    assert base.database.unlike == {}
    base.close()


def test_the_kept_sum_is_the_tables(base: Base) -> None:
    captured = next(iter(base.database.catalog.tables.values()))
    cursor = base.database.cursor()
    kept = row_sums.read_kept(cursor, captured.table_id)
    assert kept is not None and kept.sum == row_sums.NOTHING
    present = row_sums.table_sum(cursor, captured.shape)
    assert present.rows == 12
    assert row_sums.change(cursor, captured, kept.lsn) == present

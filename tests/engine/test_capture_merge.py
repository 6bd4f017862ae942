"""MERGE by hand: which shape it gets, what its log rows are, what of it is computed once."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from ducktail.engine.capture import capture
from ducktail.engine.capture.capture import CapturedTable, Outcome, Plan, read_views
from ducktail.engine.duck.binding import bind
from ducktail.engine.duck.table_shape import read_shape
from ducktail.engine.errors import NotSupported
from ducktail.engine.partitioning import hash_of
from ducktail.sql.dml.dml import slice_dml
from ducktail.sql.language.classify import classify

SOURCE = "(values (1, 5), (9, 6)) as s(id, v)"


class Sandbox:
    """A captured table t with the rows 1 to 3, a plain one u."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        for text in (
            "create table t(id int primary key, v int default 7, f double)",
            "insert into t select i, i * 10, -0.0::double from range(1, 4) r(i)",
            "create table u(id int, v int)",
            "create view w as select id, random() as v from u",
            "create schema ducktail",
            "create table ducktail.log_1(lsn bigint, txid bigint, op varchar, stream_id int, rid bigint, "
            "key_hash uinteger, key_change int, o1 int, o2 int, o3 double, n1 int, n2 int, n3 double)",
        ):
            connection.execute(text)
        self.table = CapturedTable(read_shape(connection, "main", "t"), "ducktail.log_1", frozenset({"id"}))

    def plan(self, text: str) -> Plan:
        dml = slice_dml(classify(text), "main", lambda query: bind(self.connection, query).names)
        return capture.plan(dml, self.table, views=lambda: read_views(self.connection))

    def run(self, text: str) -> Outcome:
        plan = self.plan(text)
        self.connection.execute("begin")
        try:
            outcome = capture.execute(self.connection, plan, (), 0, 42)
        except BaseException:
            self.connection.execute("rollback")
            raise
        self.connection.execute("commit")
        return outcome

    def log(self) -> list[tuple[object, ...]]:
        query = "select op, o1, n1, n2, key_change from ducktail.log_1 order by lsn"
        return self.connection.execute(query).fetchall()


@pytest.fixture
def box() -> Iterator[Sandbox]:
    connection = duckdb.connect(":memory:")
    yield Sandbox(connection)
    connection.close()


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (f"merge into t using {SOURCE} on t.id = s.id when matched then update set v = s.v", "B"),
        ("merge into t using u on t.id = u.id when matched then delete", "B"),
        (
            "merge into t using (select id, v + 1 as v from u where v > 2) s on t.id = s.id "
            "when matched then update set v = s.v when not matched then insert (id) values (id)",
            "B",
        ),
        ("merge into t using u join u x on u.id = x.id on t.id = u.id when matched then delete", "B"),
        ("merge into t using (select 1 as id) s on t.id = s.id when not matched by source then delete", "B"),
        ("merge into t using ducktail.log_1 s on t.id = s.n1 when matched then delete", "C"),
        # A view may hide what is volatile, a group or a limit may come out otherwise.
        ("merge into t using w on t.id = w.id when matched then delete", "C"),
        ("merge into t using (select id from main.w) s on t.id = s.id when matched then delete", "C"),
        ("merge into t using (select id from u limit 1) s on t.id = s.id when matched then delete", "C"),
        ("merge into t using (select max(id) as id from u) s on t.id = s.id when matched then delete", "C"),
        ("with s as (select 1 as id) merge into t using s on t.id = s.id when matched then delete", "C"),
        ("merge into t using u on t.id = u.id and random() < 2 when matched then delete", "C"),
        ("merge into t using u on t.id = u.id when matched and t.v = (select 1) then delete", "C"),
        ("merge into t using u on t.id = u.id when matched then update set f = u.v", "C"),
    ],
)
def test_shapes(box: Sandbox, text: str, shape: str) -> None:
    assert box.plan(text).shape.value == shape


def test_events_come_deletes_updates_inserts(box: Sandbox) -> None:
    done = box.run(
        f"merge into t using {SOURCE} on t.id = s.id when not matched then insert (id, v) values (id, v) "
        "when matched then update set v = t.v + s.v when not matched by source and v > 20 then delete "
        "when not matched by source then do nothing"
    )
    assert (done.events, done.rows) == (3, 3)
    assert box.log() == [("d", 3, None, None, None), ("u", 1, 1, 15, None), ("i", None, 9, 6, None)]


def test_a_changed_key_is_a_delete_and_an_insert(box: Sandbox) -> None:
    done = box.run("merge into t using u on false when not matched by source then update set id = id + 1")
    assert (done.events, done.rows) == (6, 3)
    assert [row[0] for row in box.log()] == ["d", "d", "d", "i", "i", "i"]
    assert [row[4] for row in box.log()] == [1, 2, 3, 1, 2, 3]


def test_an_equal_value_is_logged_as_the_table_holds_it(box: Sandbox) -> None:
    """DuckDB skips an update in place by an equal value: the rows have -0.0, and keep it."""
    source = "(select id, 0.0::double as f from range(1, 3) r(id)) s"
    box.run(f"merge into t using {source} on t.id = s.id when matched then update set f = s.f")
    held = box.connection.execute("select id, f::varchar from t where id < 3 order by id").fetchall()
    logged = box.connection.execute("select n1, n3::varchar from ducktail.log_1 order by n1").fetchall()
    assert held == logged == [(1, "-0.0"), (2, "-0.0")]


def test_a_changed_keys_halves_have_each_their_own_partition(box: Sandbox) -> None:
    box.run(
        f"merge into t using {SOURCE} on t.id = s.id when matched then update set id = 50, v = s.v "
        "when not matched by source and id = 2 then delete when not matched then insert (id) values (id)"
    )
    query = "select op, case op when 'd' then o1 else n1 end, key_hash from ducktail.log_1 order by lsn"
    found = box.connection.execute(query).fetchall()
    assert [row[:2] for row in found] == [("d", 2), ("d", 1), ("i", 50), ("i", 9)]
    assert [row[2] for row in found] == [hash_of([key], ["INTEGER"]) for _, key, _ in found]


def test_a_deletes_partition_is_that_of_its_old_row(box: Sandbox) -> None:
    box.run(
        f"merge into t using {SOURCE} on t.id = s.id when matched then delete "
        "when not matched then insert (id) values (id)"
    )
    found = box.connection.execute("select coalesce(o1, n1), key_hash from ducktail.log_1").fetchall()
    assert [row[0] for row in found] == [1, 9]
    assert [row[1] for row in found] == [hash_of([key], ["INTEGER"]) for key, _ in found]


def test_a_volatile_condition_is_worked_out_once(box: Sandbox) -> None:
    box.connection.execute("insert into t select i, 0, 0 from range(10, 1000) r(i)")
    done = box.run(
        "merge into t using u on false when not matched by source and random() < 0.5 then update set v = 1 "
        "when not matched by source and random() < 0.5 then delete"
    )
    ids = [row[1] for row in box.log()]
    assert len(set(ids)) == len(ids) == done.rows
    left = box.connection.execute("select count(*) filter (v = 1), count(*) from t").fetchall()[0]
    ops = [row[0] for row in box.log()]
    assert left == (ops.count("u"), 993 - ops.count("d"))


def test_a_volatile_source_is_read_once(box: Sandbox) -> None:
    """Each source row has a match or has none: with two readings it could have both or neither."""
    box.connection.execute("insert into t select i, 0, 0 from range(10, 1000) r(i)")
    done = box.run(
        "merge into t using (select i as id, random() < 0.5 as hit from range(10, 1000) r(i)) s "
        "on t.id = s.id and s.hit when matched then delete "
        "when not matched then insert (id) values (s.id + 1000)"
    )
    deleted = {row[1] for row in box.log() if row[0] == "d"}
    inserted = {row[2] - 1000 for row in box.log() if row[0] == "i"}  # type: ignore[operator]
    assert deleted.isdisjoint(inserted)
    assert done.rows == len(deleted | inserted) == 990


def test_an_assignment_touches_its_own_columns_alone(box: Sandbox) -> None:
    """Two lists of columns are two UPDATEs: the first row is referred to, and its key is not set."""
    box.connection.execute("create table child(id int references t(id))")
    box.connection.execute("insert into child values (1)")
    done = box.run(
        f"merge into t using {SOURCE} on t.id = s.id when matched and random() < 2 then update set v = s.v "
        "when not matched by source and id = 2 then update set id = 20, v = 2"
    )
    assert done.rows == 2
    assert box.connection.execute("select id, v from t order by id").fetchall() == [(1, 5), (3, 30), (20, 2)]


@pytest.mark.parametrize("condition", ["", " and random() < 2", " and s.v > (select 0)"])
def test_two_matches_of_one_row(box: Sandbox, condition: str) -> None:
    with pytest.raises(duckdb.InvalidInputException, match="more than once"):
        box.run(
            "merge into t using (values (1, 5), (1, 6)) as s(id, v) on t.id = s.id "
            f"when matched{condition} then update set v = s.v"
        )
    assert box.log() == []


@pytest.mark.parametrize("condition", ["", " and random() < 2", " and s.v > (select 0)"])
def test_an_error_clause(box: Sandbox, condition: str) -> None:
    with pytest.raises(duckdb.ConstraintException, match=r"Merge error condition WHEN MATCHED.*: it's 1"):
        box.run(
            f"merge into t using {SOURCE} on t.id = s.id when matched{condition} then error 'it''s ' || t.id "
            "when not matched then insert by name"
        )
    assert box.log() == []


def test_an_error_clause_is_for_rows_of_its_match_alone(box: Sandbox) -> None:
    """DuckDB pushes a filter below an anti join, and would raise for rows that have a match."""
    done = box.run(
        "merge into t using (select distinct i as id from range(1, 4) r(i)) as s on t.id = s.id "
        "when not matched by source and t.v = 10 then error when matched then delete"
    )
    assert done.rows == 3


@pytest.mark.parametrize(
    "text",
    [
        "merge into t using t on true when not matched by source then delete",
        'merge into t as "X" using u as x on true when matched then delete',
        "merge into t using (select random() as r) on t.id = r when matched then delete "
        "when not matched by source then delete",
        "merge into t using u on t.id = u.id and random() < 2 when matched then delete "
        "when not matched by source then delete",
        "merge into t using (select 1 as a, 3 as b, 0) on t.id = b when not matched then insert",
    ],
)
def test_what_cannot_be_read_once_is_refused(box: Sandbox, text: str) -> None:
    with pytest.raises(NotSupported) as caught:
        box.plan(text)
    assert caught.value.hint

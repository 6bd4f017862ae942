"""Capture by hand: which shape a statement gets, what its log rows and its outcome are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import duckdb
import pytest
from amounts import chosen

from ducktail.engine.capture import capture
from ducktail.engine.capture.capture import CapturedTable, Outcome, Plan
from ducktail.engine.duck.determinism import BY_NAMES, consistent_functions, is_constant, is_deterministic
from ducktail.engine.duck.table_shape import read_shape
from ducktail.engine.errors import CharacterNotInRepertoire, InternalError, NotSupported
from ducktail.engine.partitioning import hash_of
from ducktail.sql.dml.dml import slice_dml
from ducktail.sql.language.classify import classify


class Sandbox:
    """One captured table in a database in memory; its log is ducktail.log_1."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self.base_lsn = 100
        self.plan: Plan | None = None

    def make(self, *ddl: str, split_on: Sequence[str] = ()) -> None:
        """Make a table called t and capture it."""
        for text in ddl:
            self.connection.execute(text)
        shape = read_shape(self.connection, "main", "t")
        self.table = CapturedTable(shape, "ducktail.log_1", frozenset(shape.primary_key).union(split_on))
        images = ", ".join(f"{side}{i} {c.type}" for side in "on" for i, c in enumerate(shape.stored, 1))
        self.connection.execute("create schema ducktail")
        self.connection.execute(
            "create table ducktail.log_1(lsn bigint, txid bigint, op varchar, stream_id int, rid bigint, "
            f"key_hash uinteger, key_change int, {images})"
        )

    def run(
        self,
        text: str,
        *parameters: object,
        macros: frozenset[str] = frozenset(),
        repeatable: bool = False,
    ) -> Outcome:
        """Run one statement in a transaction of its own; an error rolls it back."""
        dml = replace(slice_dml(classify(text), "main"), repeatable=repeatable)
        self.plan = capture.plan(dml, self.table, macros)
        self.connection.execute("begin")
        try:
            outcome = capture.execute(self.connection, self.plan, parameters, self.base_lsn, 42)
        except BaseException:
            self.connection.execute("rollback")
            raise
        self.connection.execute("commit")
        self.base_lsn += outcome.events
        return outcome

    def shape_of(self, text: str) -> str:
        return capture.plan(slice_dml(classify(text), "main"), self.table).shape.value

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self.connection.execute(query).fetchall()

    def log(self, columns: str = "op, o1, n1") -> list[tuple[object, ...]]:
        return self.rows(f"select {columns} from ducktail.log_1 order by lsn")

    def hashes(self, *keys: object) -> set[object]:
        return {self.connection.execute("select hash($1::int)", [key]).fetchall()[0][0] for key in keys}


@pytest.fixture
def box() -> Iterator[Sandbox]:
    connection = duckdb.connect(":memory:")
    yield Sandbox(connection)
    connection.close()


ORDERS = (
    "create table t(id int primary key, v int default 7, s varchar default 'd', f double, "
    "g int generated always as (v * 2))",
    "insert into t select i, i * 10, 's' || i, i from range(1, 6) r(i)",
)


@pytest.fixture
def orders(box: Sandbox) -> Sandbox:
    box.make(*ORDERS)
    return box


SHAPES = {
    "A": [
        "insert into t(id) values (9)",
        "insert into t by name select 9 as id",
        "insert into t default values",
        "insert or ignore into t(id) values (9)",
        "insert into t(id) values (9) on conflict do nothing",
        "insert into t(id, v) select id + 10, random() from t",
        "with q as (select 1) delete from t using q",
        "delete from t where random() < 2",
        "truncate t",
    ],
    "B": [
        "update t set v = v + 1",
        "update t x set v = abs(x.v) + $1, s = upper(s) || 'é' where id in (1, 2) and s like 'a%'",
        "update t set (v, s) = (1, default) where case when v is distinct from 3 then true end",
        "update t set id = id + 1",
        "update t set v = extract(year from now())",
        "update t set v = getvariable('x')",
    ],
    "C": [
        "update t set v = (random() * 10)::int",
        "update t set s = uuid() where id = 1",
        "update t set v = nextval('sq')",
        "update t set f = 1",
        "update t set v = q.a from (values (1)) q(a)",
        "update t set v = (select max(v) from t)",
        "with q as (select 1) update t set v = 1",
        "update t set v = my_macro(1)",
        "insert into t(id) values (1) on conflict (id) do update set v = 1",
        "insert or replace into t(id) values (1)",
    ],
}


@pytest.mark.parametrize(
    ("shape", "text"), [(shape, text) for shape, texts in SHAPES.items() for text in texts]
)
def test_shape(orders: Sandbox, shape: str, text: str) -> None:
    assert orders.shape_of(text) == shape


def test_an_upsert_is_logged_first_where_no_value_is_inexact(box: Sandbox) -> None:
    box.make("create table t(id int primary key, v int, e int unique, w int default (random() * 10)::int)")
    upsert = "insert into t(id, v, w) values (1, 2, 3) on conflict (id) do update set v = excluded.v"
    assert box.shape_of(upsert) == "C"
    box.connection.execute("drop schema ducktail cascade; drop table t")
    box.make("create table t(id int primary key, v int, e int unique)")
    assert box.shape_of("insert into t(id) values (1) on conflict (ID) do update set v = excluded.v") == "B"
    assert box.shape_of("insert into t(id) values (1) on conflict (e) do update set v = excluded.v") == "C"
    assert box.shape_of("insert into t(id) select 1 on conflict (id) do update set v = excluded.v") == "C"
    assert box.shape_of("insert into t(id) values (random()) on conflict (id) do update set v = 1") == "C"


def test_insert(orders: Sandbox) -> None:
    outcome = orders.run("insert into t(id, v) values (8, 1), (9, null)")
    assert (outcome.events, outcome.rows, outcome.returning) == (2, 2, None)
    assert outcome.keys == orders.hashes(8, 9)
    columns = "lsn, txid, op, stream_id, key_hash, key_change, o1, n1, n2, n3"
    assert orders.log(columns) == [
        (101, 42, "i", None, hash_of([8], ["INTEGER"]), None, None, 8, 1, "d"),
        (102, 42, "i", None, hash_of([9], ["INTEGER"]), None, None, 9, None, "d"),
    ]


def test_update_and_delete(orders: Sandbox) -> None:
    updated = orders.run("update t set v = v + 1 where id <= 2")
    deleted = orders.run("delete from t where id = 1")
    assert (updated.events, updated.rows, deleted.events, deleted.rows) == (2, 2, 1, 1)
    assert updated.keys == orders.hashes(1, 2)
    assert deleted.keys == orders.hashes(1)
    assert orders.log("lsn, op, o1, o2, n1, n2") == [
        (101, "u", 1, 10, 1, 11),
        (102, "u", 2, 20, 2, 21),
        (103, "d", 1, 11, None, None),
    ]
    hashes = [hash_of([key], ["INTEGER"]) for key in (1, 2, 1)]
    assert orders.log("key_hash") == [(each,) for each in hashes]


def test_nothing_to_do(orders: Sandbox) -> None:
    for text in (
        "update t set v = 1 where id = 99",
        "update t set f = 1 where id = 99",
        "delete from t where v > 1000",
        "insert into t(id) values (1) on conflict do nothing",
        "insert into t(id) select 1 where false",
    ):
        assert orders.run(text) == Outcome(0, 0, frozenset(), None)
    nothing = orders.run("update t set v = 1 where id = 99 returning id").returning
    assert nothing.num_rows == 0 and nothing.column_names == ["id"]
    assert orders.log() == []


@pytest.mark.parametrize("volatile", ["", " + (random() * 0)::int"])
def test_a_changed_key_is_a_delete_and_an_insert(orders: Sandbox, volatile: str) -> None:
    """A swap and an update that keeps its key: deletes, updates, inserts; pairs are numbered."""
    swap = f"update t set id = case id when 1 then 2 when 2 then 1 else id end{volatile} where id <= 3"
    outcome = orders.run(swap)
    assert (outcome.events, outcome.rows) == (5, 3)
    assert outcome.keys == orders.hashes(1, 2, 3)
    assert [op for op, *_ in orders.log("op")] == ["d", "d", "u", "i", "i"]
    pairs = orders.rows(
        "select d.o1, i.n1, d.o2 = i.n2 from ducktail.log_1 d join ducktail.log_1 i using (key_change) "
        "where d.op = 'd' and i.op = 'i' order by key_change"
    )
    assert sorted(pairs) == [(1, 2, True), (2, 1, True)]
    assert {pair for (pair,) in orders.log("key_change")} == {1, 2, None}
    for op, key_hash, key in orders.log("op, key_hash, case op when 'd' then o1 else n1 end"):
        assert key_hash == hash_of([key], ["INTEGER"]), op
    assert orders.rows("select id, v from t order by id")[:3] == [(1, 20), (2, 10), (3, 30)]


def test_shifting_every_key_folds(orders: Sandbox) -> None:
    outcome = orders.run("update t set id = id + 1 returning id, v")
    assert (outcome.events, outcome.rows, outcome.returning.num_rows) == (10, 5, 5)
    assert [op for (op,) in orders.log("op")] == ["d"] * 5 + ["i"] * 5


def test_a_partition_column_splits_too(box: Sandbox) -> None:
    """Without a primary key the whole old row is the key of a conflict."""
    box.make(
        "create table t(a int, region varchar)",
        "insert into t values (1, 'x'), (2, 'y')",
        split_on=["region"],
    )
    outcome = box.run("update t set region = 'y'")
    assert (outcome.events, outcome.rows) == (3, 2)
    assert box.log("op, o1, o2, n1, n2, key_hash, key_change") == [
        ("d", 1, "x", 1, "y", None, 1),
        ("u", 2, "y", 2, "y", None, None),
        ("i", 1, "x", 1, "y", None, 1),
    ]
    old = {box.rows(f"select hash({a}, '{region}')")[0][0] for a, region in ((1, "x"), (2, "y"))}
    assert outcome.keys == old
    assert box.run("insert into t values (5, 'z')").keys == frozenset()


def test_volatile_values_are_the_same_in_log_and_table(orders: Sandbox) -> None:
    orders.run("insert into t(id, s) select 10 + range, uuid() from range(50)")
    orders.run("update t set s = uuid(), f = random() where random() < 0.5")
    orders.run(
        "insert into t(id, s) values (1, uuid()), (99, uuid()) on conflict (id) do update set s = uuid()"
    )
    last = "qualify row_number() over (partition by n1 order by lsn desc) = 1"
    assert sorted(orders.rows(f"select n1, n3, n4 from ducktail.log_1 {last}")) == sorted(
        orders.rows("select id, s, f from t where id in (select n1 from ducktail.log_1)")
    )


def test_an_equal_value_is_not_a_change_of_form(orders: Sandbox) -> None:
    """DuckDB skips an update in place by an equal value: the log must say what the table holds."""
    orders.run("update t set f = 0.0 where id = 1")
    orders.run("update t set f = -0.0::double where id = 1")
    (logged,) = orders.log("n4::varchar")[-1]
    assert orders.rows("select f::varchar from t where id = 1") == [(logged,)]


def test_an_equal_value_where_the_plain_update_is_in_place(box: Sandbox) -> None:
    box.make(
        "create table t(id int primary key, f double, iv interval)",
        "insert into t values (1, 0.0, interval 1 month)",
    )
    box.run("update t set f = -0.0::double, iv = interval 30 day")
    assert box.log("n2::varchar, n3::varchar") == box.rows("select f::varchar, iv::varchar from t")
    assert box.log("n2::varchar, n3::varchar") == [("0.0", "1 month")]


def test_upsert(orders: Sandbox) -> None:
    text = (
        "insert into t as z (id, v) values (1, 5), (50, 6), (1, 9) on conflict (id) "
        "do update set v = z.v + excluded.v, s = default returning z.id, v, g, s"
    )
    outcome = orders.run(text)
    assert (outcome.events, outcome.rows) == (2, 2)
    assert outcome.keys == orders.hashes(1, 50)
    assert orders.log("op, o1, o2, n1, n2, n3") == [("u", 1, 10, 1, 15, "d"), ("i", None, None, 50, 6, "d")]
    assert outcome.returning.to_pylist() == [
        {"id": 1, "v": 15, "g": 30, "s": "d"},
        {"id": 50, "v": 6, "g": 12, "s": "d"},
    ]
    refused = orders.run(
        "insert into t(id, v) values (1, 0) on conflict do update set v = 0 where excluded.v > 3"
    )
    assert refused == Outcome(0, 0, frozenset(), None)


def test_or_replace_keeps_what_is_not_listed(orders: Sandbox) -> None:
    outcome = orders.run("insert or replace into t(id, v) values (1, 77), (60, 1)")
    assert (outcome.events, outcome.rows) == (2, 2)
    assert orders.rows("select id, v, s from t where id in (1, 60) order by id") == [
        (1, 77, "s1"),
        (60, 1, "d"),
    ]
    assert orders.log("op, n1, n2, n3") == [("u", 1, 77, "s1"), ("i", 60, 1, "d")]


@pytest.mark.parametrize(
    "text",
    [
        "insert into t(id) values (9) returning *, g + 1 as more, main.t.id",
        "insert into t(id) select range from range(10, 13) returning id, s || 'x' as sx, f",
        "delete from t where id > 3 returning *",
        "delete from t as q where q.id > 3 returning q.*, g",
        "update t set v = 1 where id < 3 returning id, *, t.v::double as d",
        "update t as q set f = 1 where id < 3 returning case when f = 1 then 'one' end as c, q.*",
        "update t set v = q.b from (values (1, 5)) q(a, b) where t.id = q.a returning t.*",
        "insert or replace into t(id, v) values (1, 77), (60, 1) returning id, v, g, s",
    ],
)
def test_returning_is_that_of_the_plain_statement(orders: Sandbox, text: str) -> None:
    connection = orders.connection
    connection.execute("begin")
    plain = connection.execute(text)
    names, rows = [column[0] for column in plain.description], plain.fetchall()
    types = [str(column[1]) for column in plain.description]
    connection.execute("rollback")
    returned = orders.run(text).returning
    assert returned.column_names == names
    assert sorted(map(str, zip(*(column.to_pylist() for column in returned.columns), strict=True))) == sorted(
        map(str, rows)
    )
    connection.register("returned", returned)
    assert [str(column[1]) for column in connection.execute("from returned").description] == types


def test_parameters_go_to_the_steps_that_name_them(orders: Sandbox) -> None:
    text = "update t set v = v + $3 where id = $1 returning id, $2 as given"
    assert orders.run(text, 1, "x", 5).returning.to_pylist() == [{"id": 1, "given": "x"}]
    assert orders.plan is not None and orders.plan.shape.value == "B"
    assert orders.rows("select v from t where id = 1") == [(15,)]
    orders.run(
        "update t set f = $1 where id = $2", duckdb.Value("2.5", "VARCHAR"), duckdb.Value("1", "VARCHAR")
    )
    assert orders.rows("select f from t where id = 1") == [(2.5,)]
    orders.run("insert into t(id, s) values ($2, $1) on conflict (id) do update set s = $1", "it's $1", 1)
    assert orders.log("n1, n3")[-1] == (1, "it's $1")
    orders.run("delete from t where id = $1", 1)
    assert orders.rows("select count(*) from t where id = 1") == [(0,)]


def test_many_rows(orders: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above KEYS_MAX no key is told; above SLICE_ROWS_MAX the log is applied in goes."""
    monkeypatch.setattr(capture, "KEYS_MAX", 3)
    monkeypatch.setattr(capture, "SLICE_ROWS_MAX", 2)
    assert orders.run("insert into t(id) select range from range(10, 20)").keys is None
    updated = orders.run("update t set f = id * 2 returning f")
    assert (updated.events, updated.rows, updated.keys, updated.returning.num_rows) == (15, 15, None, 15)
    assert orders.rows("select count(*) from t where f = id * 2") == [(15,)]
    shifted = orders.run("update t set id = id + 100, f = 0")
    assert (shifted.events, shifted.rows, shifted.keys) == (30, 15, None)
    merged = orders.run(
        "insert into t(id) select id + 1 from t on conflict (id) do update set f = excluded.id"
    )
    assert (merged.events, merged.rows, merged.keys) == (15, 15, None)
    assert orders.rows("select count(*) from t") == [(17,)]
    assert orders.run("delete from t where v is not null").keys is None
    assert orders.rows("select count(*), min(lsn), max(lsn) from ducktail.log_1") == [(87, 101, 187)]


def test_an_error_is_plain_duckdbs(orders: Sandbox) -> None:
    for text in (
        "insert into t(id) values (1)",
        "update t set id = 1 where id in (2, 3)",
        "update t set f = s::double",
        "insert into t(id, v) values (1, 2) on conflict (id) do update set id = 2",
    ):
        with pytest.raises((duckdb.ConstraintException, duckdb.ConversionException)):
            orders.run(text)
    assert orders.log() == []


def test_log_and_table_must_agree(orders: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape B counts: a statement that was taken for deterministic and is not keeps nothing."""
    orders.connection.execute("create sequence numbers")
    monkeypatch.setattr(capture, "is_deterministic", lambda calls, macros: True)
    with pytest.raises(InternalError, match="its log has"):
        orders.run("update t set v = 1 where nextval('numbers') <= 2")
    assert orders.rows("select count(*) from ducktail.log_1 where op = 'u'") == [(0,)]
    assert orders.rows("select count(*) from t where v = 1") == [(0,)]


def test_an_insert_of_a_table_is_logged_first(orders: Sandbox) -> None:
    """In bulk that is a third faster; what it reads must be a table, which the caller knows."""
    orders.connection.execute("create table source as select i as id, i * 2 as v from range(10, 13) r(i)")
    orders.run("insert into t(id, v) select id, v + 1 from source where id > 10", repeatable=True)
    assert orders.plan is not None and orders.plan.shape.value == "B"
    assert orders.log("op, n1, n2, n3") == [("i", 11, 23, "d"), ("i", 12, 25, "d")]
    assert orders.rows("select id, v, s from t where id > 10 order by id") == [(11, 23, "d"), (12, 25, "d")]
    orders.run("insert into t(id, v) select id + 10, random() from source", repeatable=True)
    assert orders.plan.shape.value == "A"


def test_a_macro_may_hide_a_function(orders: Sandbox) -> None:
    orders.connection.execute("create macro abs(x) as (random() * 100)::int")
    macros = capture.read_macros(orders.connection)
    assert macros == {"abs"}
    orders.run("update t set v = abs(v)", macros=macros)
    assert orders.plan is not None and orders.plan.shape.value == "C"
    assert orders.rows("select count(*) from t join ducktail.log_1 on id = n1 and v = n2") == [(5,)]


def test_what_is_consistent() -> None:
    assert is_deterministic({"abs", "now", "lower", "coalesce", "current_setting"}, ())
    assert not is_deterministic({"abs"}, {"abs"})
    for name in ("random", "uuid", "nextval", "currval", "gen_random_uuid", "no_such_function", "sum"):
        assert not is_deterministic({name}, ()), name
    assert len(consistent_functions()) > 500


def test_a_statement_may_read_its_own_log(orders: Sandbox) -> None:
    orders.run("update t set v = 0 where id <= 2")
    orders.connection.execute("create view events as select lsn, n1 as id from ducktail.log_1")
    inserted = orders.run("insert into t(id) select 1000 + lsn from events")
    updated = orders.run("update t set v = (select count(*) from events) where id = 5")
    assert (inserted.rows, updated.rows) == (2, 1)
    assert orders.rows("select v from t where id = 5") == [(4,)]


def test_the_character_zero_is_refused(orders: Sandbox) -> None:
    with pytest.raises(CharacterNotInRepertoire):
        orders.run("update t set s = '\0b'")


def test_columns_called_as_ours(box: Sandbox) -> None:
    names = ("op", "o1", "n2", "excluded", "rid", "place", "phase", "changed", "pair", "t")
    box.make(
        f"create table t(lsn int primary key, {' int, '.join(names)} int)",
        "insert into t values (1,2,3,4,5,6,7,8,9,10,11)",
    )
    box.run("update t set n2 = o1 + rid + pair, place = random() * 0 + 3")
    box.run("update t set lsn = lsn + 1, op = changed")
    sets = "excluded = excluded.excluded + t"
    box.run(f"insert into t(lsn, excluded) values (2, 9) on conflict (lsn) do update set {sets}")
    returned = box.run("update t set pair = 1 returning *").returning
    assert returned.to_pylist() == [
        {"lsn": 2, "op": 9, "o1": 3, "n2": 19, "excluded": 20, "rid": 6, "place": 3, "phase": 8}
        | {"changed": 9, "pair": 1, "t": 11}
    ]


def test_a_collation_hides_no_change_of_key(box: Sandbox) -> None:
    box.make("create table t(id varchar collate nocase primary key, v int)", "insert into t values ('a', 1)")
    outcome = box.run("update t set id = upper(id)")
    assert (outcome.events, outcome.rows) == (2, 1)
    assert box.log() == [("d", "a", "A"), ("i", "a", "A")]


# Values that depend on how an expression's parts are called, or on where they stand.

NAMED_SETS = [
    "s = to_json(struct_pack(excluded.v))",
    "s = struct_keys(struct_pack(excluded.v, t.id))::varchar",
    "s = typeof(struct_pack(v, EXCLUDED.s))",
    "s = alias(excluded.v)",
    "s = alias(v) || alias(t.v + 1) || alias(upper(excluded.s))",
    "s = to_json(called(excluded.v)), v = t.v + excluded.v",
    "(s, v) = (alias(excluded.v), default)",
    "id = excluded.id + 100, s = alias(excluded.v)",
    "s = upper(excluded.s) || struct_extract(struct_pack(excluded.v), 'v')",
]


@pytest.mark.parametrize("inexact", [False, True])
@pytest.mark.parametrize("where", ["", " where alias(excluded.v) = 'v' and v < 30"])
@pytest.mark.parametrize("sets", NAMED_SETS)
def test_an_upsert_by_names_is_as_plain_duckdb_has_it(
    box: Sandbox, sets: str, where: str, inexact: bool
) -> None:
    made = [
        f"create table {{}}(id int primary key, v int default 7, s varchar{', f double' * inexact})",
        "insert into {} by name select i as id, i * 10 as v, 's' || i as s from range(1, 6) r(i)",
    ]
    text = "insert into {} as t (id, v, s) values (1, 5, 'x'), (4, 6, 'y'), (50, 7, 'z') on conflict (id) "
    text += f"do update set {sets}{where}"
    box.connection.execute("create macro called(x) as struct_pack(x)")
    for one in (*made, text):
        box.connection.execute(one.format("plain"))
    box.make(*(one.format("t") for one in made))
    box.run(text.format("main.t"), macros=frozenset({"called"}))
    assert box.rows("from t order by id") == box.rows("from plain order by id")
    changed = "select id, v, s from t except select i, i * 10, 's' || i from range(1, 6) r(i)"
    logged = "select n1, n2, n3 from ducktail.log_1 where op <> 'd'"
    assert box.rows(f"{logged} except ({changed})") == box.rows(f"({changed}) except {logged}") == []


@pytest.mark.parametrize(
    "text",
    [
        "insert into t(id, s) values (1, alias(2 + 3)) on conflict (id) do update set s = excluded.s",
        "insert or replace into t(id, s) values (9, alias(2 + 3)), (2, to_json(struct_pack(a := 1)))",
        "insert into t(id, s) select id, alias(v) from t on conflict (id) do update set s = excluded.s",
        "merge into t using (select 1 as id, 5 as n) as q on t.id = q.id "
        "when matched then update set s = alias(q.n) || alias(v) || to_json(struct_pack(q.n, v))",
        "merge into t using (values (1, 5), (70, 6)) as q(id, n) on t.id = q.id "
        "when matched then update set s = alias(q.n + 1) when not matched then insert (id, s) "
        "values (q.id, alias(q.n) || typeof(struct_pack(q.n)))",
        "merge into t using (values (1, 5), (70, 6)) as q(id, n) on t.id = q.id "
        "when matched and random() < 2 then update set s = alias(q.n) when matched then delete "
        "when not matched then insert (id, s) values (q.id, alias(q.n))",
        "update t set s = alias(v) where alias(v) = 'v'",
        "update t set s = alias(v)",
        "update t set s = alias(t.v + 1), v = v + 1",
        "update t as q set s = alias(q.v) || struct_keys(struct_pack(q.v, id))[1]",
        "update t set s = alias(v), f = 1",
        "update t set s = alias(q.a) from (values (1), (2)) q(a) where q.a = t.id",
        "update t set id = id + 10, s = alias(v)",
        "update t set s = #3 || #1 where #1 < 3",
        "update t set s = to_json(t)",
    ],
)
def test_an_update_by_names_is_as_plain_duckdb_has_it(orders: Sandbox, text: str) -> None:
    plain = orders.connection.cursor()
    plain.execute("create schema apart; set search_path = 'apart'")
    for one in (*ORDERS, text):
        plain.execute(one)
    wanted = plain.execute("select id, v, s, f from apart.t order by id").fetchall()
    plain.execute("drop schema apart cascade")
    orders.run(text)
    assert orders.rows("select id, v, s, f from t order by id") == wanted
    for row in orders.log("n1, n2, n3, n4"):
        assert row in wanted or row == (None, None, None, None)


@pytest.mark.parametrize("value", ["alias(t.v)", "alias(q.n)", "typeof(struct_pack(t.v))"])
@pytest.mark.parametrize("condition", [" and t.v > 0", " and random() < 2"])
def test_a_merge_by_names_is_as_plain_duckdb_has_it(box: Sandbox, value: str, condition: str) -> None:
    box.make(
        "create table t(id int primary key, v int, s varchar)",
        "insert into t values (1, 2, 'a'), (2, 3, 'b')",
    )
    source = "merge into t using (values (1, 5), (2, 6)) as q(id, n) on t.id = q.id"
    box.run(f"{source} when matched{condition} then update set s = {value} when matched then delete")
    [wanted] = {row[0] for row in box.rows(f"select {value} from t, (select 5 as n) q")}
    assert box.log("op, n1, n2, n3") == [("u", 1, 2, wanted), ("u", 2, 3, wanted)]
    assert box.rows("from t order by id") == [(1, 2, wanted), (2, 3, wanted)]


@pytest.mark.parametrize(
    "text",
    [
        "insert into t(id, v, s) values (1, 2, 'x') on conflict do update set s = #2",
        "insert into t(id, v, s) select 1, 2, 'x' on conflict (id) do update set v = 1 where #1 = 1",
        "merge into t using (select 1 as id) as n on t.id = n.id when matched then update set s = #2",
        "merge into t using (select 1 as id) as n on t.id = n.id when matched and #1 = 1 then delete",
        "update t set s = #2 from (select 1 as a) q where q.a = t.id",
    ],
)
def test_positions_are_refused_where_they_mean_another_column(orders: Sandbox, text: str) -> None:
    with pytest.raises(NotSupported, match="#"):
        orders.run(text)


def test_positions_in_a_source_are_its_own(orders: Sandbox) -> None:
    orders.run(
        "insert into t(id, v, s) select #2, #1, 'x' from (values (5, 1)) q on conflict (id) "
        "do update set v = excluded.v"
    )
    assert orders.rows("select id, v from t where id = 1") == [(1, 5)]
    assert orders.log("n1, n2") == [(1, 5)]


# Of DuckDB's functions so many are tried in the gate, and those that are known.
FUNCTIONS_IN_GATE = 150


@pytest.mark.slow
def test_no_other_function_goes_by_the_names_of_its_arguments() -> None:
    """Capture computes an expression in a text in which other names stand around it."""
    with duckdb.connect(":memory:") as connection:
        query = "select distinct function_name from duckdb_functions() where function_type <> 'table'"
        names = [name for (name,) in connection.execute(query).fetchall() if name.isidentifier()]
        found = set()
        others = sorted(set(names) - BY_NAMES - {"sleep_ms", "write_log"})
        assert set(names) >= BY_NAMES
        for name in (*sorted(BY_NAMES), *chosen(others, FUNCTIONS_IN_GATE, "names of arguments")):
            for given in ("{0}", "{0}, {0}", "{{'q': 1}}, {0}", "{0}, 1", "[{0}]", "{0} + 1", "x := {0}"):

                def told(c: str, name: str = name, given: str = given) -> str:
                    return answer(connection, f"select {name}({given.format(c)}) from (values (5)) q({c})")

                # Where the first two differ, it may be one that answers otherwise each time.
                if (first := told("a")) != told("b") and told("a") == first:
                    found.add(name)
    assert found == BY_NAMES


def answer(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """The rows, or that there are none."""
    try:
        return str(connection.execute(text).fetchall())
    except duckdb.Error:
        return "error"


@pytest.mark.parametrize(
    ("default", "constant"),
    [
        ("5", True), ("'now()'", True), ("NULL", True), ("(1 + 1)", True), ("upper('x')", True),
        ("list_value(1, 2)", True), ("CAST('2026-01-01' AS DATE)", True), ("CAST('a' AS DECIMAL(6,2))", True),
        ("random()", False), ("uuid()", False), ("now()", False), ("current_timestamp", False),
        ("current_date", False), ("localtimestamp", False), ("nextval('s')", False), ("current_user", False),
        ("mine(1)", False), ("(CAST(now() AS VARCHAR) || 'x')", False),
    ],
)  # fmt: skip
def test_a_default_is_the_same_everywhere_or_not(default: str, constant: bool) -> None:
    assert is_constant(default) == constant

"""Cutting DML: each piece is the user's own text, and what cannot be cut is refused."""

from __future__ import annotations

import pytest

from ducktail.engine.capture.capture import Conflict, Dml, Verb
from ducktail.engine.errors import NotSupported, SyntaxError_
from ducktail.sql.dml.dml import slice_dml
from ducktail.sql.language.classify import classify


def cut(text: str, schema: str = "main") -> Dml:
    return slice_dml(classify(text), schema)


def test_insert() -> None:
    text = (
        'insert into s."T x" (a, "B c") values (1, \'x\'), (default, f(2, 3)) returning *, a + 1 as b -- end'
    )
    dml = cut(text, "s")
    assert dml.verb is Verb.INSERT
    assert dml.text == 'insert into s."T x" (a, "B c") values (1, \'x\'), (default, f(2, 3))'
    assert (dml.target, dml.relation, dml.returning) == ('s."T x"', '"T x"', "*, a + 1 as b")
    assert (dml.columns, dml.row_count, dml.conflict) == (("a", "B c"), 2, None)


@pytest.mark.parametrize(
    ("text", "row_count"),
    [
        ("insert into t values (1)", 1),
        ("insert into t values (1), ((2))", 2),
        ("insert into t default values", 1),
        ("insert into t select 1", None),
        ("insert into t (select 1)", None),
        ("insert into t (values (1))", None),
        ("insert into t values (1) union all select 2", None),
        ("insert into t values (1) union values (2), (3)", None),
        ("insert into t values (1), (2) limit 1", None),
        ("insert into t values (1), (2) order by 1", None),
        ("insert into t with q as (values (1), (2)) select * from q", None),
        ("with q as (select 1) insert into t values (1)", 1),
        ("insert into t table u", None),
        ("insert into t from u", None),
        ("insert or ignore into t values (1)", 1),
        ("insert into t values (1) on conflict do nothing", 1),
    ],
)
def test_rows_that_are_counted(text: str, row_count: int | None) -> None:
    assert cut(text).row_count == row_count


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("insert into t (a) (select 1)", ("a",)),
        ("insert into t (select 1)", None),
        ("insert into t (from u)", None),
        ("insert into t ((select 1))", None),
        ("insert into t (with q as (select 1) select * from q)", None),
        ("insert into t (describe, show) values (1, 2)", ("describe", "show")),
        ('insert into t ("select") values (1)', ("select",)),
    ],
)
def test_column_list_or_query(text: str, columns: tuple[str, ...] | None) -> None:
    assert cut(text).columns == columns


def test_with_stays_the_users() -> None:
    dml = cut(
        "WITH /* x */ a AS (select 1 returning_), b(c) AS (select 2)  UPDATE t SET v = (select c from b)"
    )
    assert dml.with_text == "WITH /* x */ a AS (select 1 returning_), b(c) AS (select 2)"
    assert dml.text.startswith("WITH /* x */ a")
    assert dml.has_subquery


def test_upsert() -> None:
    dml = cut(
        'insert into t as z (id, v) values ($1, (1 + 2)), (default, null) on conflict ("id") do update '
        'set v = excluded.v + EXCLUDED."W w" + z.v, (a, b) = (default, excluded.a) where excluded.v > z.v'
    )
    s = "__ducktail_s"
    assert dml.rows == (("$1", "(1 + 2)"), (None, "null"))
    assert dml.relation == "z"
    assert dml.conflict == Conflict(
        target=("id",),
        sets=(
            ("v", f'{s}."__ducktail_x_v" + {s}."__ducktail_x_W w" + z.v'),
            ("a", None),
            ("b", f'{s}."__ducktail_x_a"'),
        ),
        where=f'{s}."__ducktail_x_v" > z.v',
        replaces=False,
        sets_as_written=(("v", 'excluded.v + EXCLUDED."W w" + z.v'), ("a", None), ("b", "excluded.a")),
        where_as_written="excluded.v > z.v",
    )


def test_or_replace_and_defaults() -> None:
    replace = cut("insert or replace into t default values")
    assert replace.conflict == Conflict(None, (), None, True)
    assert (replace.rows, replace.row_count) == (((),), 1)
    query = cut("insert into t select * from u on conflict do update set v = 1")
    assert (query.query, query.rows) == ("select * from u", None)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("v = default", (("v", None),)),
        ("v = (default)", (("v", None),)),
        ("v = w = 1, b = 'x, y'", (("v", "w = 1"), ("b", "'x, y'"))),
        ("(a, b) = (x, f(y, z))", (("a", "x"), ("b", "f(y, z)"))),
        ("(a, b) = row(x, default)", (("a", "x"), ("b", None))),
        ("(a, b) = ((x, y))", (("a", "x"), ("b", "y"))),
        ("(a) = (7)", (("a", "(7)"),)),
        ("(a, b) = q.pair", (("a", "q.pair"), ("b", "q.pair"))),
        (
            "v = case when a is distinct from b then 1 end",
            (("v", "case when a is distinct from b then 1 end"),),
        ),
        ("v = {'a': 1, 'b': [1, 2]}", (("v", "{'a': 1, 'b': [1, 2]}"),)),
        ("v = list_transform(l, x -> x + 1)", (("v", "list_transform(l, x -> x + 1)"),)),
    ],
)
def test_assignments(sets: str, expected: object) -> None:
    assert cut(f"update t set {sets} where true").sets == expected


def test_update_parts() -> None:
    dml = cut(
        'update s.t as "x y" set v = u.w from u join k on (u.a = k.a) '
        'where "x y".id = u.id and a is not distinct from b returning "x y".*'
    )
    assert (dml.target, dml.alias, dml.relation) == ("s.t", '"x y"', '"x y"')
    assert dml.source == "u join k on (u.a = k.a)"
    assert dml.where == '"x y".id = u.id and a is not distinct from b'
    assert dml.returning == '"x y".*'
    distinct = cut("update t set v = 1 where a is distinct from b")
    assert (distinct.source, distinct.where) == (None, "a is distinct from b")


def test_delete_and_truncate() -> None:
    delete = cut("delete from t x using u where x.id = u.id returning id")
    assert delete.text == "delete from t x using u where x.id = u.id"
    assert (delete.verb, delete.alias, delete.returning) == (Verb.DELETE, "x", "id")
    truncate = cut('truncate table s."T x"')
    assert (truncate.verb, truncate.text) == (Verb.DELETE, 'DELETE FROM s."T x"')


@pytest.mark.parametrize(
    ("returning", "expected"),
    [
        ("s.t.a", "t.a"),
        ("db.s.t.a, S.T.*", "t.a, T.*"),
        ("t.s.t.a", "t.a"),
        ("t.s, s.t", "t.s, s.t"),
        ("case when s.t.a = 1 then 's.t.a' end as x", "case when t.a = 1 then 's.t.a' end as x"),
        ("* exclude (a)", "* exclude (a)"),
    ],
)
def test_returning_loses_the_tables_schema(returning: str, expected: str) -> None:
    assert cut(f"update t set a = 1 returning {returning}", "s").returning == expected


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("id = 1", {"id"}),
        ("t.ID = $1 and b in (1, 2)", {"id", "b"}),
        ("id = 1 or a = 2", set()),
        ("(id = 1)", set()),
        ("id > 1", set()),
    ],
)
def test_equal_columns(where: str, columns: set[str]) -> None:
    assert cut(f"delete from t where {where}").equal_columns == columns


def test_calls_leave_returning_out() -> None:
    dml = cut('update t set v = abs(w), s = "Upper"(s), u = s.lower() where f (1) > 2 returning random()')
    assert dml.calls == {"abs", "upper", "lower", "f"}
    insert = cut("insert into t (a) values (g(1)) on conflict (a) do update set a = h(2)")
    assert {"g", "h"} <= insert.calls
    assert "t" not in insert.calls and "conflict" not in insert.calls


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("(select 1)", True),
        ("exists (from u)", True),
        ("a in (values (1))", True),
        ("((with q as (select 1) select 1))", True),
        ("(a + 1)", False),
        ("extract(year from d)", False),
        ("'(select 1)'", False),
    ],
)
def test_subqueries(expression: str, found: bool) -> None:
    assert cut(f"update t set v = {expression}").has_subquery is found


@pytest.mark.parametrize(
    "text",
    [
        "merge into t using u on true when not matched then insert",
        "with a as (insert into t values (1) returning *) select * from a",
        "create table u as with a as (delete from t returning *) select * from a",
        "copy t from stdin",
        "insert into t by name select 1 as a on conflict (a) do update set b = 2",
    ],
)
def test_what_is_not_captured_says_what_to_write(text: str) -> None:
    with pytest.raises(NotSupported) as caught:
        cut(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["update t set (a, b) = (1, 2, 3)", "insert into t values (1) returning"])
def test_malformed(text: str) -> None:
    with pytest.raises(SyntaxError_) as caught:
        cut(text)
    assert caught.value.position


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("select * from source", ("source",)),
        ("select upper(b) from main.source as s where a > 3 and b is distinct from 'x'", ("main", "source")),
        ('select * from "Odd name" s', ("Odd name",)),
        ("select a from db.s.source s where a in (1, 2)", ("db", "s", "source")),
        ("select distinct a from source", ()),
        ("select a from source limit 1", ()),
        ("select a from source order by a", ()),
        ("select a from source using sample 10", ()),
        ("select a from source tablesample 10%", ()),
        ("select a from source, other", ()),
        ("select a from source join other using (a)", ()),
        ("select a from source where a = (select max(a) from source)", ()),
        ("select row_number() over () from source", ()),
        ("select a from source group by a", ()),
        ("select a from source union all select a from source", ()),
        ("select a from source where a > 1 union from source", ()),
        ("select a from range(10)", ()),
        ("from source", ()),
        ("select 1", ()),
        ("with s as (select 1) select * from s", ()),
    ],
)
def test_a_query_that_reads_one_table_row_by_row(query: str, name: tuple[str, ...]) -> None:
    dml = slice_dml(classify(f"insert into t {query}"), "main")
    assert dml.query_from == name
    assert dml.query == (query if name else None)
    assert not dml.repeatable

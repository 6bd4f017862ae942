"""PostgreSQL's functions in FROM and rows in a select list: the answers are those of PostgreSQL 15."""

from __future__ import annotations

from typing import Any

import pytest

from ducktail.pgwire_gateway.catalog.query_forms import fill_lists, respell_forms

ANSWERS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("SELECT * FROM unnest(ARRAY[1, 2, 3], ARRAY['a', 'b'])", [(1, "a"), (2, "b"), (3, None)]),
    ("SELECT b, a FROM unnest(ARRAY[1, 2], ARRAY['a', 'b']) AS x(a, b)", [("a", 1), ("b", 2)]),
    ("SELECT * FROM unnest(ARRAY[1], ARRAY['a', 'b']) WITH ORDINALITY AS x(a, b, n)",
     [(1, "a", 1), (None, "b", 2)]),
    ("SELECT upper FROM upper('abc')", [("ABC",)]),
    ("SELECT u FROM upper('abc') AS u", [("ABC",)]),
    ("SELECT u.a FROM upper('abc') u(a)", [("ABC",)]),
    ("SELECT * FROM upper('abc') WITH ORDINALITY", [("ABC", 1)]),
    ("SELECT 1 FROM now() AS n WHERE n IS NOT NULL", [(1,)]),
    ("SELECT x FROM (VALUES (1), (2)) AS t(i) CROSS JOIN LATERAL abs(-t.i) AS x ORDER BY 1", [(1,), (2,)]),
    ("SELECT trim(both FROM lower(' A ')), 1 IS DISTINCT FROM abs(-1)", [("a", False)]),
    ("SELECT generate_series(1, 3)", [(1,), (2,), (3,)]),
    ("SELECT i, generate_series(1, 2) AS g FROM (VALUES (7)) AS t(i)", [(7, 1), (7, 2)]),
    ("SELECT generate_series(1, 10, 4), generate_series(1, 2) AS two", [(1, 1), (5, 2), (9, None)]),
    ("SELECT generate_series(1, 3) + 1", [(2,), (3,), (4,)]),
    ("SELECT count(*) FROM (SELECT generate_series(1, 3)) AS x", [(3,)]),
    ("SELECT EXISTS (SELECT FROM pg_class), EXISTS (SELECT FROM (VALUES (1)) AS v WHERE false)",
     [(True, False)]),
    ("SELECT count(*) FROM generate_series(1, 3) AS g", [(3,)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rows"), ANSWERS)
def test_the_answer_is_postgresqls(shared_home: Any, text: str, rows: list[tuple[Any, ...]]) -> None:
    assert shared_home.ask(text) == rows


@pytest.mark.parametrize(
    "text",
    [
        "SELECT len(generate_series(1, 3))",
        "SELECT generate_series(1, 3)[2]",
        "SELECT generate_series(1, 3)::INT[]",
        "SELECT range(3)",
        "SELECT 1 WHERE 2 = ANY(generate_series(1, 3))",
        "SELECT * FROM unnest([1, 2])",
        "SELECT * FROM generate_series(1, 3)",
        "SELECT * FROM read_csv('x')",
        "SELECT extract(year FROM now())",
        "CREATE VIEW v AS SELECT generate_series(1, 3)",
        "CREATE TABLE x (a INT DEFAULT extract(year FROM now()), CHECK (trim(both FROM lower(b)) > ''))",
        "SELECT 'FROM now()'",
        "SELECT FROM t",
    ],
)
def test_duckdbs_forms_stay(text: str) -> None:
    assert respell_forms(text) == text


def test_a_table_made_from_a_series_has_its_rows() -> None:
    made = respell_forms("CREATE TEMP TABLE x AS SELECT generate_series(1, 3), 2 AS b")
    assert made == "CREATE TEMP TABLE x AS SELECT unnest(generate_series(1, 3)) AS generate_series, 2 AS b"


def test_a_column_is_named_after_its_function(shared_home: Any) -> None:
    assert shared_home.names("SELECT generate_series(1, 2)") == ["generate_series"]
    assert shared_home.names("SELECT * FROM upper('a')") == ["upper"]


@pytest.mark.parametrize(
    "text",
    [
        "WITH x AS (SELECT 1) INSERT INTO t SELECT FROM x",
        "EXPLAIN INSERT INTO t SELECT FROM x",
        "SELECT a AS select FROM t",
        "CREATE VIEW v AS SELECT FROM t",
    ],
)
def test_only_rows_for_a_client_have_no_columns(text: str) -> None:
    assert fill_lists(text) == text

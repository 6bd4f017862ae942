"""A backslash in a pattern of LIKE escapes over the wire, as in PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from ducktail.pgwire_gateway.catalog.casts import respell_literals

ESCAPE = r" ESCAPE '\'"
ESCAPED = [
    "SELECT a[1] NOT LIKE b[2]{} ORDER BY 1",
    "SELECT * FROM t WHERE a ILIKE $1{} OR b LIKE lower($2)::varchar(3){} AND c",
    r"SELECT * FROM t WHERE UPPER(a::text) LIKE UPPER('%a\_%'){} AND b",
    "SELECT * FROM t WHERE a LIKE '%' || replace(s.b, '%', 'x')::character varying(9) || '%'{} GROUP BY 1",
    r"SELECT CASE WHEN a LIKE CASE WHEN b THEN '\_' ELSE c END{} THEN 1 END",
    "CREATE VIEW v AS SELECT * FROM t WHERE a LIKE b{}",
    r"CREATE TABLE t (a TEXT CHECK (a LIKE E'\\_%'{}))",
    "SELECT * FROM t WHERE a LIKE (SELECT b FROM s){}",
]
OPERATORS = {
    r"SELECT a ~~ 'x\_y', b !~~* $1 FROM t": r"SELECT a  LIKE  'x\_y'{}, b  NOT ILIKE  $1{} FROM t",
    "SELECT a !~~ b, a ~~* lower(b) FROM t": "SELECT a  NOT LIKE  b{}, a  ILIKE  lower(b){} FROM t",
}
UNCHANGED = [
    r"SELECT a ~~~ 'x\_', a ~~ 'x%', a ~~ b || c, a ~ b FROM t",
    "SELECT x LIKE 'a%b', y LIKE 'it''s %', UPPER(a::text) LIKE UPPER('%a%') FROM t",
    r"SELECT a LIKE 'x\_y' ESCAPE '\', a LIKE $1 ESCAPE '!'",
    "SELECT a LIKE ANY(ARRAY['b'])",
    "CREATE TABLE a (LIKE b)",
    "CREATE TABLE a LIKE b",
    r"SELECT * LIKE '\_%' FROM t",
    "SELECT a LIKE ($1",
    r"SELECT a LIKE '\_' +",
]


@pytest.mark.parametrize("text", ESCAPED)
def test_a_pattern_that_may_contain_a_backslash(text: str) -> None:
    assert respell_literals(text.replace("{}", "")) == text.replace("{}", ESCAPE)


@pytest.mark.parametrize("text", OPERATORS)
def test_the_operators(text: str) -> None:
    assert respell_literals(text) == OPERATORS[text].replace("{}", ESCAPE)


@pytest.mark.parametrize("text", UNCHANGED)
def test_other_patterns_stay(text: str) -> None:
    assert respell_literals(text) == text


def test_parameters_and_columns(shared_home: Any) -> None:
    """Patterns of values: a parameter's, a column's, and one that ends with the escape."""
    ask = shared_home.ask
    assert ask(r"SELECT a FROM (VALUES ('a_c', 'a\_c'), ('abc', 'a\_c')) AS t(a, p) WHERE a LIKE p") == [
        ("a_c",)
    ]
    assert ask(r"SELECT 'a_c' ~~ 'a\_c', 'abc' ~~ p, 'abc' !~~ p FROM (VALUES ('a\_c')) AS t(p)") == [
        (True, False, True)
    ]

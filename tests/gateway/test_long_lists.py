"""Long lists as parameters come back as they were given, of each type, in queries and in captured writes."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

from ducktail.sql.pipeline import long_lists
from ducktail.sql.text import tokens

LISTS: dict[str, list[Any]] = {
    "text": ["a", "", " x ", 'q"u\\o', "null", "NULL", "é\U0001f600", "1", "{a,b}", "new\nline", None],
    "int": [1, -(2**31), 2**31 - 1, None],
    "bigint": [1, -(2**63), 2**63 - 1],
    "smallint": [1, -(2**15), None],
    "bool": [True, False, None],
    "float8": [0.1, 1e300, -0.0, None],
    "numeric(12,3)": [Decimal("1.500"), Decimal("-123456789.001"), None],
    "date": [datetime.date(2026, 1, 2), datetime.date(1, 1, 1), None],
    "uuid": [uuid.UUID(int=7), None],
    "timestamp": [datetime.datetime(2026, 1, 2, 3, 4, 5, 6)],
    "bytea": [b"\x00\xff", None],
}


@pytest.fixture
def client(serve: Callable[..., ServerProcess]) -> Iterator[psycopg.Connection[Any]]:
    with serve().connect() as connection:
        yield connection


def test_a_long_list_is_what_was_given(client: psycopg.Connection[Any]) -> None:
    for type_, values in LISTS.items():
        given = values * (long_lists.ELEMENTS_MAX // len(values) + 1)
        asked = f"SELECT x, count(*) FROM unnest(%s::{type_}[]) AS u (x) GROUP BY x"
        found = dict(client.execute(asked, (given,)).fetchall())
        assert found == {value: given.count(value) for value in values}, type_


@pytest.mark.parametrize(
    "values",
    [
        ["0.123456789012345", "-7"],
        ["12345678901234567890123456789012345.678"],
        ["1E+5", "0.001"],
        ["0", None],
    ],
    ids=["places", "digits", "exponents", "zeros"],
)
def test_long_lists_of_numeric_lose_no_digits(client: psycopg.Connection[Any], values: list[Any]) -> None:
    """A numeric without a scale has as many places as its values want."""
    wanted = [None if value is None else Decimal(value) for value in values]
    given = wanted * (long_lists.ELEMENTS_MAX // len(values) + 1)
    found = client.execute("SELECT DISTINCT x FROM unnest(%s) AS u (x)", (given,)).fetchall()
    assert {value for (value,) in found} == set(wanted)


def test_a_long_list_is_written_and_captured(client: psycopg.Connection[Any]) -> None:
    client.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT[])")
    client.execute("CREATE STREAM s ON t")
    given = ["a"] * (long_lists.ELEMENTS_MAX + 1)
    client.execute("INSERT INTO t VALUES (%s, %s::text[])", (1, given))
    client.execute(
        "UPDATE t SET v = %s::text[] WHERE id = ANY(%s)", ([*given[1:], "b"], list(range(len(given))))
    )
    assert client.execute("SELECT v = %s::text[] FROM t", ([*given[1:], "b"],)).fetchone() == (True,)
    assert client.execute("SELECT count(*) FROM STREAM s AFTER 0").fetchone() == (2,)


def test_an_error_stands_where_it_is_in_the_clients_text(client: psycopg.Connection[Any]) -> None:
    text = "SELECT len(%s::text[]), nothing"
    places = []
    for count in (1, long_lists.ELEMENTS_MAX + 1):
        with pytest.raises(psycopg.errors.UndefinedColumn) as told:
            client.execute(text, (["a"] * count,))
        places.append(told.value.diag.statement_position)
    assert places[0] == places[1]


@pytest.mark.parametrize(
    "text",
    ["'{}'", "E'{}'", '"{}"', "`{}`", "{}1"],
    ids=["string", "escapes", "quoted", "back-quoted", "comments"],
)
def test_tokens_of_any_length_are_cut(text: str) -> None:
    """What repeats is taken piece by piece: at the border of two nothing is lost."""
    opening = "E'" if text[0] == "E" else text[0]
    repeated = "-- a\n " if text == "{}1" else r"\'''" if text[0] == "E" else 2 * opening
    for count in (1, 9_999, 10_000, 10_001, 20_000, 20_001):
        whole = text.replace("{}", repeated * count)
        found = tokens.tokenize(whole + " x")
        assert [token.text for token in found] == ["1" if text == "{}1" else whole, "x"]

"""The scanner: kinds, places, depths; and that DuckDB cuts the same texts the same way."""

from __future__ import annotations

import doctest

import duckdb
import pytest

from ducktail.engine.errors import SyntaxError_
from ducktail.sql.text import tokens
from ducktail.sql.text.tokens import (
    NUMBER,
    PARAMETER,
    QUOTED,
    STRING,
    number_question_marks,
    split_pieces,
    split_statements,
    tokenize,
)


def kinds(text: str) -> list[str]:
    return [token.kind for token in tokenize(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("-- only\n/* a /* nested */ comment */", []),
        ("select 1", ["SELECT", NUMBER]),
        ("select$1,$2", ["SELECT$1", ",", PARAMETER]),
        ("values($1,$2)", ["VALUES", "(", PARAMETER, ",", PARAMETER, ")"]),
        (
            "a=$ 1 or b=$name or c=?",
            ["A", "=", PARAMETER, "OR", "B", "=", PARAMETER, "OR", "C", "=", PARAMETER],
        ),
        ("explain analyze insert into t", ["EXPLAIN", "ANALYZE", "INSERT", "INTO", "T"]),
        ("prepare p as update t", ["PREPARE", "P", "AS", "UPDATE", "T"]),
        ("execute p(1,'x')", ["EXECUTE", "P", "(", NUMBER, ",", STRING, ")"]),
        ("$$a'b$$ $q$ $$ $q$", [STRING, STRING]),
        ("e'it\\'s' 'it''s' x'41'", [STRING, STRING, STRING]),
        ('"a""b" `c d`', [QUOTED, QUOTED]),
        ("a::int[] - -1.5e3 .5 1_000", ["A", "::", "INT", "[", "]", "-", "-", NUMBER, NUMBER, NUMBER]),
        ("a->>'b'||c<>d", ["A", "->>", STRING, "||", "C", "<>", "D"]),
        ("1 -- \r+2", [NUMBER, "+", NUMBER]),
        ("1\u00a0+\u30001", [NUMBER, "+", NUMBER]),
        ("ſelect ß", ["ſelect", "ß"]),
        ("/*;*/ ';' \";\" $$;$$", [STRING, QUOTED, STRING]),
    ],
)
def test_kinds(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


def test_places_and_depths() -> None:
    text = "f(a, [case when (b) then 1 end])"
    found = tokenize(text)
    assert all(text[t.start : t.end] == t.text for t in found)
    assert [(t.text, t.depth) for t in found if t.kind in ("(", ")", "[", "]", "F", "B")] == [
        ("f", 0),
        ("(", 0),
        ("[", 1),
        ("(", 2),
        ("b", 3),
        (")", 2),
        ("]", 1),
        (")", 0),
    ]
    assert {t.text: t.cases for t in found if t.is_word} == {
        "f": 0,
        "a": 0,
        "case": 0,
        "when": 1,
        "b": 1,
        "then": 1,
        "end": 0,
    }


def test_end_and_case_as_names_open_nothing() -> None:
    assert {t.cases for t in tokenize("select t.case, 1 as end, 2 as case from t")} == {0}


def test_names_and_values() -> None:
    assert [t.name for t in tokenize('A "b""c" `d`')] == ["A", 'b"c', "d"]
    assert [t.value for t in tokenize("'it''s' e'a\\tb\\x41\\u00e9\\101' $q$x$q$ 12")] == [
        "it's",
        "a\tbAéA",
        "x",
        "12",
    ]


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("select 'a", 8, "unterminated quoted string"),
        ('select "a', 8, "unterminated quoted identifier"),
        ("select 1 /* /* */", 10, "unterminated /* comment"),
        ("select $a$ $b$", 8, "unterminated dollar-quoted string"),
        ("select \\", 8, "syntax error"),
        ("select \0", 8, "syntax error"),
    ],
)
def test_errors_have_a_position(text: str, position: int, words: str) -> None:
    with pytest.raises(SyntaxError_, match=words.replace("*", r"\*")) as caught:
        tokenize(text)
    assert caught.value.position == position


def test_statements_and_their_places() -> None:
    text = " select ';' -- ;\n;; /* ; */ ;\n insert into t values ($$;$$) ; "
    assert split_statements(text) == ["select ';'", "insert into t values ($$;$$)"]
    assert [text[p.offset :].startswith(p.text) for p in split_pieces(text)] == [True, True]
    assert split_statements(" ; -- x") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select ?, '?', \"?\", ? -- ?", "select $1, '?', \"?\", $2 -- ?"),
        ("select ?2, ?1", "select $2, $1"),
        ("values(?,?)", "values($1,$2)"),
        ("select ?a", "select $1 a"),
        ("select $1, ?", "select $1, ?"),
        ("select 1", "select 1"),
    ],
)
def test_question_marks(text: str, expected: str) -> None:
    assert number_question_marks(text) == expected


# Texts that DuckDB and the scanner must cut alike: each is one value, given beside it.
SAME_AS_DUCKDB = {
    "select /* a /* b */ 'x' */ 1": 1,
    "select 1 -- x\r+ 1": 2,
    "select $a$x'y$a$": "x'y",
    "select $$ ; $$": " ; ",
    "select e'\\';'": "';",
    "select '\\'": "\\",
    "select 'a' -- b\n 'c'": "ac",
    'select "a;""" from (select 5 as "a;""")': 5,
    "select `a;b` from (select 5 as `a;b`)": 5,
    "select a$b from (select 7 as a$b)": 7,
    "select 1\u00a0+\u2003+\ufeff1": 2,
    "select case when true then 1 end as end": 1,
    "select 'é' || 'ß'": "éß",
}


@pytest.mark.parametrize("text", SAME_AS_DUCKDB)
def test_duckdb_cuts_alike(text: str) -> None:
    assert len(split_statements(text)) == 1
    with duckdb.connect(":memory:") as connection:
        assert len(connection.extract_statements(text)) == 1
        assert connection.execute(text).fetchall() == [(SAME_AS_DUCKDB[text],)]
        # Spaces alone between the tokens change nothing: no token's edge is misplaced.
        spaced = "\n".join(token.text for token in tokenize(text))
        assert connection.execute(spaced).fetchall() == [(SAME_AS_DUCKDB[text],)]


def test_the_spaces_are_duckdbs() -> None:
    codes = [*range(1, 0x21), *range(0x7F, 0x300), 0x1680, 0x180E, *range(0x2000, 0x2070), 0x3000, 0xFEFF]
    with duckdb.connect(":memory:") as connection:
        for code in codes:
            text = f"select 1{chr(code)}+1"
            try:
                parts = connection.execute(text).fetchall() == [(2,)]
            except duckdb.Error:
                parts = False
            try:
                ours = kinds(text) == ["SELECT", NUMBER, "+", NUMBER]
            except SyntaxError_:
                ours = False
            assert parts == ours, hex(code)


def test_examples() -> None:
    assert doctest.testmod(tokens).failed == 0

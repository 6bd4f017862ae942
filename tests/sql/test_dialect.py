"""The dialect: what DuckDB parses still parses, our language round-trips, the word lists are DuckDB's."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from ducktail.sql.language.dialect import Ducktail, scan_of, statement_of
from ducktail.sql.language.parse import has_scan
from ducktail.sql.language.statements import CreateStream
from ducktail.sql.read_shape.columns import AGGREGATES
from ducktail.sql.text.tokens import RESERVED, TYPE_OR_FUNCTION

# Statements of DuckDB, among them tables and columns called as our words are.
PLAIN = [
    "SELECT 1",
    "SELECT * FROM stream",
    "SELECT * FROM stream AS s WHERE s.partition = 1",
    "SELECT stream, topic, partition, lsn, consumer, after, wait FROM t GROUP BY ALL",
    'SELECT "group", "limit", s.limit FROM topic AS s',
    "SELECT a.stream, b.topic FROM stream AS a JOIN topic AS b ON a.id = b.id",
    "FROM stream SELECT lsn",
    "FROM stream",
    "CREATE TABLE stream (id INT PRIMARY KEY, topic TEXT, partition INT, consumer TEXT)",
    "CREATE OR REPLACE TABLE topic AS SELECT * FROM stream",
    "CREATE VIEW streams AS SELECT 1",
    "INSERT INTO stream (partition, after) VALUES (1, 2)",
    "INSERT INTO topic SELECT * FROM stream",
    "UPDATE stream SET topic = 'x' WHERE partition = 1",
    "DELETE FROM topic WHERE stream = 1",
    "DROP TABLE stream",
    "ALTER TABLE stream ADD COLUMN member TEXT",
    "WITH stream AS (SELECT 1 AS x) SELECT * FROM stream",
    "SELECT x: 1, y: 2 FROM z: t",
    "SELECT * EXCLUDE (a) FROM t QUALIFY ROW_NUMBER() OVER (ORDER BY b) = 1",
    "SELECT LIST_TRANSFORM(a, x -> x + 1) FROM t",
    "PIVOT stream ON topic USING SUM(partition)",
    "SELECT * FROM t LIMIT 5 OFFSET 2",
    "COMMIT",
    "SHOW TABLES",
    "DESCRIBE stream",
    "SELECT 1 AS commit, 2 AS offset_, 3 AS show_",
    "SELECT a FROM t WHERE b IN (SELECT topic FROM stream) ORDER BY stream DESC",
]


@pytest.mark.parametrize("text", PLAIN)
def test_what_duckdb_parses_still_parses(text: str) -> None:
    ours = sqlglot.parse_one(text, dialect="ducktail")
    theirs = sqlglot.parse_one(text, dialect="duckdb")
    assert ours == theirs
    assert ours.sql(dialect="ducktail") == theirs.sql(dialect="duckdb")


def test_the_dialect_is_registered() -> None:
    (entry,) = entry_points(group="sqlglot.dialects", name="ducktail")
    assert entry.load() is Ducktail
    assert sqlglot.Dialect.get("ducktail") is Ducktail


@pytest.mark.parametrize(
    "text",
    [
        'SELECT * FROM STREAM "s"',
        'SELECT op FROM STREAM "a"."s" PARTITION 2 CONSUMER GROUP "g" MEMBER "m" AFTER 3 AS "x" LIMIT $1',
        'SELECT * FROM STREAM "s" PARTITION (1, $2) CONSUMER GROUP $3 AFTER \'{"0": 1}\'',
        'SELECT * FROM STREAM "s" ENVELOPE CHANGES WAIT \'5 s\' FOR 10 AS "x"("a", "b")',
        'SELECT * FROM STREAM "s" CONSUMER GROUP "g" COMMIT WAIT \'5 s\' LIMIT 10',
        'SELECT * FROM t JOIN STREAM "s" ON TRUE',
        'SELECT * FROM (STREAM "s" CROSS JOIN t)',
        'WITH c AS (SELECT * FROM TOPIC "s") SELECT * FROM c',
        'SELECT * FROM STREAM "s" LIMIT 5 TRANSACTIONS',
        'INSERT INTO t SELECT * FROM STREAM "s" CONSUMER GROUP "g" LIMIT 10',
        'CREATE STREAM "s" ON "t" WITH (partitions = 4)',
        'COMMIT OFFSETS ON "s" CONSUMER GROUP "g"',
        "PUBLISH TO \"s\" 'x'",
        "SHOW STREAMS",
    ],
)
def test_our_texts_round_trip(text: str) -> None:
    assert sqlglot.parse_one(text, dialect="ducktail").sql(dialect="ducktail") == text


def test_nodes() -> None:
    tree = sqlglot.parse_one("SELECT x.lsn FROM STREAM s CONSUMER GROUP g x", dialect="ducktail")
    (table,) = tree.find_all(exp.Table)
    scan = scan_of(table)
    assert scan is not None
    assert (scan.stream.last, table.alias, scan.group) == ("s", "x", "g")
    assert tree.copy().sql(dialect="ducktail") == tree.sql(dialect="ducktail")
    statement = sqlglot.parse_one("CREATE STREAM s ON t", dialect="ducktail")
    assert isinstance(statement_of(statement), CreateStream)


def test_several_statements_in_one_text() -> None:
    trees = sqlglot.parse("SHOW STREAMS; SELECT * FROM STREAM s; COMMIT", dialect="ducktail")
    assert [type(tree) for tree in trees] == [exp.Command, exp.Select, exp.Commit]
    assert [statement_of(tree) is not None for tree in trees if tree is not None] == [True, False, False]


def test_the_word_lists_are_duckdbs() -> None:
    connection = duckdb.connect()
    words: dict[str, set[str]] = {}
    for word, category in connection.execute(
        "SELECT upper(keyword_name), keyword_category FROM duckdb_keywords()"
    ).fetchall():
        words.setdefault(category, set()).add(word)
    assert words["reserved"] == RESERVED
    # Some may name a table all the same: they are in another list too, or DuckDB lets them.
    names = words["type_function"] - words["column_name"] - words["unreserved"] - {"MAP"}
    assert names == TYPE_OR_FUNCTION
    with pytest.raises(duckdb.CatalogException):
        connection.execute("SELECT * FROM map")


def test_the_aggregates_are_duckdbs() -> None:
    connection = duckdb.connect()
    found = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
    ).fetchall()
    macros = connection.execute(
        "SELECT DISTINCT function_name, macro_definition FROM duckdb_functions() "
        "WHERE function_type = 'macro'"
    ).fetchall()
    plain = {name for (name,) in found if name.isidentifier()}
    folding = {name for name, text in macros if _called(text or "") & AGGREGATES}
    assert plain | folding == AGGREGATES


def _called(text: str) -> set[str]:
    return set(re.findall(r"(\w+)\(", text.lower().replace('"', "")))


def test_the_pre_check_costs_nothing() -> None:
    assert not has_scan("SELECT * FROM orders WHERE id = 1" * 100)

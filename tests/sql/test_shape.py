"""Each row of the read-position table of docs/sql.md, and what is carried through a query for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import pytest

from ducktail.sql.language.parse import Query, parse
from ducktail.sql.language.statements import Parameter, Scan
from ducktail.sql.read_shape.pruning import chosen_partitions
from ducktail.sql.read_shape.shape import HIDDEN_LSN, Edit, ReadKind, Shape, bound, shapes_of
from ducktail.sql.text.tokens import tokenize

P = Parameter
G = "STREAM s CONSUMER GROUP g"


def query_of(text: str) -> Query:
    query = parse(text.replace("{G}", G))
    assert isinstance(query, Query)
    assert query.problem is None, query.problem
    return query


def shape_of(text: str) -> Shape:
    (shape,) = shapes_of(query_of(text))
    return shape


def edited(text: str, edits: tuple[Edit, ...]) -> str:
    for edit in reversed(edits):
        text = text[: edit.offset] + edit.text + text[edit.offset :]
    return text


# The scan through selects and filters. Text with `^` where the hidden column is put.
ROWWISE = [
    "SELECT * FROM {G}",
    "FROM {G}",
    "SELECT * FROM {G} LIMIT 100",
    "SELECT * FROM {G} LIMIT $1",
    "SELECT * FROM {G} LIMIT ?",
    "SELECT * FROM {G} LIMIT (5::BIGINT)",
    "SELECT * FROM {G} LIMIT '5'",
    "SELECT * FROM {G} LIMIT ALL",
    "SELECT * FROM {G} LIMIT NULL",
    "SELECT * FROM {G} FETCH FIRST 5 ROWS ONLY",
    "SELECT * FROM {G} OFFSET 0",
    "SELECT * FROM {G} x WHERE x.op = 'insert' ORDER BY x.lsn LIMIT 5",
    "SELECT * FROM {G} ORDER BY lsn ASC NULLS FIRST, op DESC",
    "SELECT * FROM {G} ORDER BY 1 LIMIT 10",
    "SELECT op^ FROM {G}",
    "SELECT op^ /* the list */ -- ends\n FROM {G} WHERE true",
    "SELECT op AS limit, 'FROM' AS \"from\"^ FROM {G}",
    "FROM {G} SELECT op^ LIMIT 3",
    "SELECT upper(op), (SELECT max(x) FROM t)^ FROM {G} LIMIT 3",
    "SELECT (SELECT count(*) FROM t WHERE t.id = x.lsn)^ FROM {G} x LIMIT 3",
    "SELECT lsn AS n, op^ FROM {G} ORDER BY n LIMIT 3",
    "SELECT op, lsn^ FROM {G} ORDER BY 2 LIMIT 3",
    "SELECT * EXCLUDE (key) REPLACE (upper(op) AS op) FROM {G} LIMIT 3",
    "SELECT *, op AS again FROM {G} LIMIT 3",
    "SELECT s.* FROM {G} LIMIT 3",
    "SELECT *, * FROM {G}".replace(", *", ""),
    "SELECT op^ FROM (SELECT * FROM {G}) LIMIT 3",
    "SELECT op^ FROM ((SELECT op, key^ FROM {G} WHERE lsn > 2)) AS x LIMIT 3",
    "SELECT a^ FROM (SELECT op, key^ FROM {G}) AS x(a, b) WHERE b IS NOT NULL LIMIT 3",
    "SELECT * FROM (SELECT * FROM (SELECT * FROM {G} LIMIT 9) a LIMIT 5) b",
    "WITH c AS (SELECT * FROM {G}) SELECT op^ FROM c LIMIT 3",
    "WITH c(a) AS MATERIALIZED (SELECT op^ FROM {G}), d AS (SELECT 1) SELECT a^ FROM c AS e LIMIT 3",
    "WITH c AS (WITH d AS (FROM {G}) SELECT * FROM d) SELECT op^ FROM c WHERE op = 'x'",
    "SELECT * FROM {G} AS e(l, p) WHERE p = 1 ORDER BY l LIMIT 3",
    "SELECT 1^ FROM {G} WHERE lsn IN (SELECT x FROM t) LIMIT 3",
    "SELECT * FROM ({G}) LIMIT 3",
    "(SELECT * FROM {G} LIMIT 3)",
    "SELECT x.lsn^ FROM x: {G} LIMIT 3",
    'SELECT "lsn"^ FROM STREAM "My.S" CONSUMER GROUP $1 "Al ias" WHERE "Al ias"."lsn" > $2',
    "SELECT op^, FROM {G} LIMIT 3",
    "SELECT to_json(after)^ FROM {G} AS after LIMIT 3",
]


@pytest.mark.parametrize("marked", ROWWISE)
def test_rowwise(marked: str) -> None:
    text = marked.replace("{G}", G).replace("^", "")
    shape = shape_of(text)
    assert shape.kind is ReadKind.ROWWISE, shape.reason
    assert shape.hidden
    shape = replace(shape, edits=tuple(edit for edit in shape.edits if "ORDER" not in edit.text))
    comma = "" if "^," in marked else ","
    wanted = marked.replace("{G}", G).replace("^,", "^").replace("^", f"{comma} {HIDDEN_LSN}")
    if comma:
        assert edited(text, shape.edits) == wanted
    else:
        assert f", {HIDDEN_LSN} FROM" in edited(text, shape.edits)


# All that the scan gave; `[...]` is the unit, where an inner query with a LIMIT is one.
WHOLE = [
    "SELECT count(*) FROM {G}",
    "SELECT op, count(*) FROM {G} GROUP BY op",
    "SELECT op FROM {G} GROUP BY ALL HAVING count(*) > 1",
    "SELECT histogram(op) FROM {G}",
    "SELECT json_group_array(op) FROM {G}",
    "SELECT sum(lsn) FILTER (op = 'x') FROM {G} WHERE partition = 1",
    "SELECT * FROM {G} a JOIN t ON t.id = a.lsn",
    "SELECT * FROM t LEFT JOIN {G} a ON t.id = a.lsn ORDER BY a.op",
    "SELECT * FROM t, {G}",
    "SELECT * FROM ({G} CROSS JOIN t)",
    "SELECT * FROM {G} a, STREAM s CONSUMER GROUP h b WHERE a.lsn = b.lsn",
    "SELECT * FROM {G} ORDER BY lsn DESC",
    "SELECT * FROM {G} ORDER BY op, lsn",
    "SELECT lsn + 1 AS lsn FROM {G} ORDER BY lsn",
    "SELECT *, op FROM {G} ORDER BY 14",
    "SELECT * FROM (SELECT * FROM {G} ORDER BY op) x",
    "INSERT INTO t SELECT * FROM {G}",
    "INSERT INTO t SELECT op, count(*) FROM {G} GROUP BY op ON CONFLICT DO NOTHING",
    "CREATE TABLE t AS SELECT * FROM {G}",
    "COPY (SELECT * FROM {G}) TO STDOUT (FORMAT csv, HEADER)",
    "SELECT to_json(x) FROM {G} x",
    "SELECT COLUMNS('l.*') FROM {G}",
    "WITH c AS (SELECT * FROM {G}) SELECT count(*) FROM c",
    "INSERT INTO t [SELECT op^, lsn FROM {G} LIMIT 1000] RETURNING *".replace("^, lsn", ", lsn^"),
    "INSERT INTO t (a) [SELECT op^ FROM {G} LIMIT $1] ON CONFLICT (a) DO UPDATE SET a = 1",
    "INSERT INTO t [WITH c AS (SELECT * FROM {G}) SELECT op^ FROM c LIMIT 5]",
    "INSERT INTO t WITH c AS ([SELECT * FROM {G} LIMIT 5]) SELECT op FROM c",
    "CREATE TABLE t AS [SELECT op, op^ FROM {G} LIMIT 5]",
    "CREATE OR REPLACE TEMP TABLE t AS [FROM {G} LIMIT 5] WITH NO DATA",
    "COPY ([SELECT * FROM {G} LIMIT 5]) TO STDOUT",
    "SELECT op, count(*) FROM ([SELECT * FROM {G} LIMIT 10]) GROUP BY op",
    "SELECT count(*) FROM ((([SELECT op^ FROM (SELECT * FROM {G}) a WHERE op > 'a' LIMIT 10]))) b",
    "SELECT * FROM ([SELECT * FROM {G} LIMIT 10]) a JOIN t USING (lsn) ORDER BY op",
    "SELECT sum(n) FROM (SELECT count(*) AS n FROM ([SELECT * FROM {G} LIMIT 10]) GROUP BY op)",
    "SELECT * FROM ([SELECT * FROM {G} LIMIT 1000]) t WHERE op = 'delete'",
    "SELECT count(*) FROM (SELECT upper(op) FROM ([SELECT * FROM {G} LIMIT 9]) a) b",
]


@pytest.mark.parametrize("marked", WHOLE)
def test_whole(marked: str) -> None:
    plain = marked.replace("{G}", G)
    text = "".join(c for c in plain if c not in "[]^")
    shape = shapes_of(query_of(text))[0]
    assert shape.kind is ReadKind.WHOLE, shape.reason
    assert shape.plain is None
    assert shape.hidden == ("[" in marked)
    if "[" not in marked:
        assert shape.unit is None
        return
    assert shape.unit is not None
    unit = plain[plain.index("[") + 1 : plain.index("]")]
    assert text[shape.unit.start : shape.unit.end] == unit.replace("^", "")
    wanted = plain.replace("[", "").replace("]", "").replace("^", f", {HIDDEN_LSN}")
    assert edited(text, shape.unit.edits) == wanted
    assert len(shape.unit.limits) == 1


UNCHANGED = [
    "SELECT * FROM STREAM s",
    "SELECT count(*) FROM STREAM s",
    "SELECT DISTINCT op FROM STREAM s OFFSET 5",
    "SELECT * FROM {G} AFTER 5",
    "SELECT * FROM (SELECT * FROM {G} LIMIT 1000) t WHERE 1=0",
    "SELECT * FROM {G} WHERE false",
    "SELECT * FROM {G} WHERE 0",
    "SELECT * FROM {G} WHERE op = 'x' AND (NULL)",
    "SELECT count(*) FROM {G} WHERE NOT (1 = 1 OR op = 'x')",
    "SELECT * FROM {G} a JOIN t ON true WHERE 2 < 1",
    "SELECT * FROM (SELECT DISTINCT op FROM {G}) x WHERE 1 = 0",
    "SELECT * FROM {G} LIMIT 0",
    "SELECT count(*) FROM (SELECT * FROM {G} LIMIT 0) x",
    "SELECT * FROM (SELECT count(*) FROM {G}) x LIMIT 0",
    "SELECT (SELECT max(lsn) FROM {G}) FROM t WHERE 1 = 0",
    "EXPLAIN SELECT * FROM {G}",
    "EXPLAIN ANALYZE SELECT count(*) FROM {G}",
    "EXPLAIN (ANALYZE, FORMAT json) SELECT * FROM {G} LIMIT 5",
    "DESCRIBE SELECT * FROM {G}",
]


@pytest.mark.parametrize("text", UNCHANGED)
def test_unchanged(text: str) -> None:
    shape = shape_of(text)
    assert shape.kind is ReadKind.UNCHANGED
    assert shape.edits == ()
    assert not shape.hidden


# Queries that DuckDB runs as joins; `^` is where the order is restored.
DISTURBED = [
    "SELECT * FROM {G} WHERE lsn IN (SELECT l FROM p)^ LIMIT 50",
    "SELECT op FROM {G} WHERE lsn NOT IN (1, 2, 3, 4, 5, 6, 7, 8)^ FETCH FIRST 50 ROWS ONLY",
    "SELECT op AS limit FROM {G} WHERE op NOT IN ('a', 'b', 'c', 'd', 'e')^",
    "SELECT lsn, (SELECT count(*) FROM p WHERE l = e.lsn LIMIT 1) FROM {G} e^ LIMIT 50",
    "SELECT * FROM {G} WHERE EXISTS (SELECT 1 FROM p WHERE l = lsn)^ -- the end",
    "SELECT * FROM {G} WHERE lsn = ANY([1, 2, 3]) OR lsn > 5^ LIMIT 50 OFFSET 0",
    "SELECT * FROM {G} WHERE small(lsn)^ LIMIT 50",
    "SELECT upper(op) FROM (SELECT * FROM {G} WHERE lsn IN (SELECT l FROM p)^) x^ LIMIT 50",
    "WITH c AS (FROM {G}) SELECT * FROM c WHERE lsn IN (SELECT l FROM p LIMIT 99)^ LIMIT 50",
    "FROM {G} SELECT op WHERE lsn IN (SELECT l FROM p)^",
]


@pytest.mark.parametrize("marked", DISTURBED)
def test_order_is_restored_where_duckdb_makes_a_join(marked: str) -> None:
    wanted = marked.replace("{G}", G).replace("^", f" ORDER BY {HIDDEN_LSN}")
    text = marked.replace("^", "").replace("{G}", G)
    for group, kind in ((G, ReadKind.ROWWISE), ("STREAM s", ReadKind.UNCHANGED)):
        shape = shape_of(text.replace(G, group))
        edits = [edit for edit in shape.edits if "ORDER" in edit.text]
        assert edited(text.replace(G, group), tuple(edits)) == wanted.replace(G, group)
        assert shape.kind is kind
        assert shape.hidden
    assert not shape_of("SELECT * FROM {G} WHERE partition IN (1, 2, 3)").edits


def test_an_explicit_order_is_enough() -> None:
    shape = shape_of("SELECT * FROM {G} WHERE lsn IN (SELECT l FROM p) ORDER BY lsn LIMIT 50")
    assert shape.kind is ReadKind.ROWWISE
    assert shape.edits == ()


NONE = {
    "SELECT count(*) FROM {G} LIMIT 1": "a LIMIT stands over",
    "SELECT * FROM {G} ORDER BY lsn DESC LIMIT 1": "a LIMIT stands over",
    "SELECT lsn + 1 AS lsn FROM {G} ORDER BY lsn LIMIT 1": "a LIMIT stands over",
    "SELECT *, op FROM {G} ORDER BY 14 LIMIT 1": "a LIMIT stands over",
    "SELECT * FROM {G} a JOIN t ON true LIMIT 5": "a LIMIT stands over",
    "SELECT * FROM (SELECT * FROM {G} ORDER BY op) x LIMIT 5": "a LIMIT stands over",
    "SELECT * FROM (SELECT * FROM {G} LIMIT 9) x WHERE op = 'a' LIMIT 5": "a LIMIT stands over",
    "COPY (SELECT count(*) FROM {G} LIMIT 5) TO STDOUT": "a LIMIT stands over",
    "INSERT INTO t SELECT count(*) FROM {G} LIMIT 5": "a LIMIT stands over",
    "SELECT DISTINCT op FROM {G}": "DISTINCT",
    "SELECT DISTINCT ON (op) * FROM {G}": "DISTINCT",
    "SELECT row_number() OVER () FROM {G}": "window",
    "SELECT sum(lsn) OVER w FROM {G} WINDOW w AS (ORDER BY lsn)": "window",
    "SELECT * FROM {G} QUALIFY row_number() OVER () = 1": "window",
    "SELECT unnest([1, 2]) FROM {G}": "UNNEST",
    "SELECT generate_subscripts([1], 1) FROM {G}": "UNNEST",
    "SELECT * FROM {G} OFFSET 5": "OFFSET",
    "SELECT * FROM {G} LIMIT 5 OFFSET $1": "OFFSET",
    "SELECT count(*) FROM (SELECT * FROM {G} OFFSET 5) x": "OFFSET",
    "SELECT * FROM {G} TABLESAMPLE 10%": "SAMPLE",
    "SELECT * FROM {G} USING SAMPLE 3": "SAMPLE",
    "PIVOT {G} ON op USING count(*)": "PIVOT",
    "SUMMARIZE SELECT * FROM {G}": "SUMMARIZE",
    "SELECT * FROM {G} UNION ALL SELECT * FROM x": "UNION",
    "SELECT op FROM x EXCEPT (SELECT op FROM {G} LIMIT 5)": "EXCEPT",
    "SELECT * FROM (SELECT op FROM {G} INTERSECT SELECT 'a') x LIMIT 5": "INTERSECT",
    "SELECT * FROM t WHERE EXISTS (FROM {G})": "subquery",
    "SELECT * FROM t WHERE id IN (SELECT lsn FROM {G} LIMIT 5)": "subquery",
    "SELECT (SELECT max(lsn) FROM {G})": "subquery",
    "INSERT INTO t VALUES ((SELECT max(lsn) FROM {G}))": "subquery",
    "WITH x AS (SELECT * FROM {G}) SELECT 1": "is not read",
    "WITH x AS (SELECT * FROM {G}) SELECT * FROM x a, x b": "read more than once",
    "WITH x AS (SELECT * FROM {G}), y AS (SELECT * FROM x) SELECT * FROM x, y": "read more than once",
    "WITH RECURSIVE x AS (SELECT lsn FROM {G} UNION ALL SELECT lsn FROM x) SELECT * FROM x": "UNION",
    "SELECT * FROM t, LATERAL (SELECT * FROM {G}) x": "LATERAL",
    "UPDATE t SET a = 1 FROM {G}": "UPDATE",
    "DELETE FROM t USING {G} WHERE t.id = s.lsn": "DELETE",
    "MERGE INTO t USING {G} ON t.id = s.lsn WHEN MATCHED THEN DELETE": "MERGE",
    "SELECT * FROM {G} LIMIT 10%": "percentage",
    "SELECT * FROM {G} LIMIT (SELECT 5)": "neither a number",
    "SELECT * FROM {G} LIMIT 2 + 3": "neither a number",
    "(SELECT * FROM {G} LIMIT 5) LIMIT 3": "in brackets",
    "SELECT to_json(x) FROM {G} x LIMIT 5": "cannot be told",
    "SELECT COLUMNS('l.*') FROM {G} LIMIT 5": "cannot be told",
    "SELECT *, * FROM {G} LIMIT 5": "cannot be told",
    "SELECT struct_pack(*) FROM {G} LIMIT 5": "",
    "SELECT * FROM (SELECT op AS a, key AS A FROM {G}) x LIMIT 5": "cannot be told",
    "SELECT * FROM (SELECT *, 1 AS one FROM {G}) x(a) LIMIT 5": "cannot be told",
    "WITH a AS (SELECT * FROM {G}) SELECT count(*) FROM (SELECT * FROM a LIMIT 9)": "cannot be told",
    "SELECT max(op) FROM (SELECT to_json(x) AS op FROM {G} x LIMIT 9)": "cannot be told",
}


@pytest.mark.parametrize("text", NONE)
def test_none_and_why(text: str) -> None:
    query = parse(text.replace("{G}", G))
    assert isinstance(query, Query)
    (shape,) = shapes_of(query)
    assert shape.kind is ReadKind.NONE
    assert NONE[text] in shape.reason
    assert shape.reason and not shape.reason.endswith(".")
    assert not shape.hidden


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM {G} a JOIN {G} b USING (lsn)",
        "SELECT * FROM {G} a, STREAM main.S CONSUMER GROUP G b",
        "SELECT * FROM STREAM s CONSUMER GROUP $1 a, STREAM s CONSUMER GROUP $1 b",
        "WITH x AS (FROM {G}) SELECT count(*) FROM x, {G} WHERE true",
    ],
)
def test_a_group_read_twice_has_no_position(text: str) -> None:
    shapes = shapes_of(query_of(text))
    assert [shape.kind for shape in shapes] == [ReadKind.NONE, ReadKind.NONE]
    assert {shape.reason for shape in shapes} == {"the query reads the group twice"}


def test_two_scans_each_have_their_shape() -> None:
    text = "SELECT * FROM {G} WHERE key IN (SELECT key FROM STREAM o CONSUMER GROUP h) LIMIT 5"
    first, second = shapes_of(query_of(text))
    assert (first.kind, second.kind) == (ReadKind.ROWWISE, ReadKind.NONE)
    first, second = shapes_of(query_of("SELECT count(*) FROM {G} a JOIN STREAM o b ON a.lsn = b.lsn"))
    assert (first.kind, second.kind) == (ReadKind.WHOLE, ReadKind.UNCHANGED)


def test_a_query_that_sqlglot_does_not_know_has_no_position() -> None:
    query = parse(f"SELECT * FROM {G} WHERE #!")
    assert isinstance(query, Query)
    (shape,) = shapes_of(query)
    assert shape.kind is ReadKind.NONE


def test_a_limit_of_zero_is_known_when_it_is_bound() -> None:
    shape = shape_of("SELECT * FROM {G} LIMIT $2")
    assert shape.limits == (P(2),)
    assert bound([shape], [7, 0])[0].kind is ReadKind.UNCHANGED
    assert bound([shape], [0, "0"])[0].kind is ReadKind.UNCHANGED
    assert bound([shape], [0, 5]) == (shape,)
    assert bound([shape_of("SELECT count(*) FROM (FROM {G} LIMIT $1) x")], [0])[0].unit is None


# Ready rows.


@pytest.mark.parametrize(
    ("text", "columns", "limit"),
    [
        ("SELECT * FROM {G}", None, None),
        ("FROM {G} LIMIT 10", None, 10),
        ("SELECT * FROM STREAM s AFTER 3 LIMIT $1", None, P(1)),
        ("SELECT s.* FROM {G} WHERE partition IN (1, $2) ORDER BY lsn LIMIT ?", None, P(1)),
        ("SELECT LSN, key FROM {G}", (("lsn", "lsn"), ("key", "key")), None),
        ('SELECT lsn AS "Id", op FROM {G} e', (("lsn", "Id"), ("op", "op")), None),
        ("SELECT o, l FROM (SELECT lsn AS l, op AS o FROM {G} LIMIT 5) x", (("op", "o"), ("lsn", "l")), 5),
        ("WITH c AS (FROM {G} WHERE partition = 3) SELECT * FROM c LIMIT 7", None, 7),
    ],
)
def test_plain(text: str, columns: tuple[tuple[str, str], ...] | None, limit: object) -> None:
    plain = shape_of(text.replace("?", "$1")).plain
    assert plain is not None
    assert plain.columns == columns
    assert plain.limit == limit


@pytest.mark.parametrize(
    "text",
    [
        "SELECT upper(op) FROM {G}",
        "SELECT * FROM {G} WHERE op = 'x'",
        "SELECT * FROM {G} WHERE lsn > 5",
        "SELECT * FROM {G} WHERE partition = 1 OR op = 'x'",
        "SELECT * FROM {G} ORDER BY op",
        "SELECT * FROM (FROM {G} LIMIT 5) LIMIT 3",
        "SELECT * FROM {G} OFFSET 1",
        "SELECT DISTINCT op FROM STREAM s",
        "SELECT * FROM {G}, t",
        "COPY (SELECT * FROM STREAM s) TO STDOUT",
        "EXPLAIN SELECT * FROM STREAM s",
        "INSERT INTO t SELECT * FROM STREAM s",
        "SELECT * FROM STREAM s USING SAMPLE 5",
        "SELECT lsn::VARCHAR FROM STREAM s",
        "SELECT * FROM STREAM s WHERE partition = 1.5",
        "SELECT * FROM STREAM s WHERE partition = random()",
    ],
)
def test_not_plain(text: str) -> None:
    assert shape_of(text).plain is None


# Pruning.


def facts(text: str) -> list[tuple[str, str, tuple[object, ...]]]:
    return [(fact.column, fact.operator, fact.values) for fact in shape_of(text).facts]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("partition = 2", [("partition", "=", (2,))]),
        ("2 = partition", [("partition", "=", (2,))]),
        ("x.partition IN (0, $1)", [("partition", "in", (0, P(1)))]),
        ("partition NOT IN (1)", [("partition", "not in", (1,))]),
        ("partition = 1 OR (partition = 2 OR partition IN (3))", [("partition", "in", (1, 2, 3))]),
        ('("partition" < 1 or "partition" is null) AND op IS NOT NULL', [("partition", "<", (1,))]),
        ("lsn IS NULL OR lsn < 5", [("lsn", "<", (5,))]),
        ("partition BETWEEN 1 AND 2", [("partition", ">=", (1,)), ("partition", "<=", (2,))]),
        ("3 > partition AND partition <> 0", [("partition", "<", (3,)), ("partition", "<>", (0,))]),
        ("lsn > $1::BIGINT AND op = 'x'", [("lsn", ">", (P(1),))]),
        ("\"Partition\" = '2'::INT", [("partition", "=", (2,))]),
        ("partition = -1", [("partition", "=", (-1,))]),
        ("commit_time >= '2024-01-01'", [("commit_time", ">=", ("2024-01-01",))]),
        ("commit_time < TIMESTAMPTZ '2024-01-01'", [("commit_time", "<", ("2024-01-01",))]),
        ("partition = 1 OR lsn = 5", []),
        ("partition = 1 OR lsn IS NULL", []),
        ("partition = 1 OR partition IS NOT NULL", []),
        ("commit_time < '2024-01-01' OR commit_time IS NULL", []),
        ("NOT (partition = 1)", []),
        ("partition + 1 = 2", []),
        ("partition = lsn", []),
        ("partition = random()", []),
        ("partition IN (SELECT 1)", []),
        ("partition IN (1, lsn)", []),
        ("partition = 1.5", []),
        ("commit_time > DATE '2024-01-01'", []),
        ("commit_time > now()", []),
        ("op = 'x'", []),
    ],
)
def test_facts(where: str, wanted: list[object]) -> None:
    assert facts(f"SELECT * FROM {{G}} x WHERE {where}") == wanted
    assert facts(f"SELECT count(*) FROM {{G}} AS x WHERE {where}") == wanted
    assert facts(f"SELECT op FROM (SELECT * FROM {{G}}) AS x WHERE {where} LIMIT 5") == wanted


def test_facts_only_where_they_surely_apply() -> None:
    one = [("partition", "=", (1,))]
    assert facts("SELECT * FROM {G} a JOIN t ON t.id = a.lsn WHERE a.partition = 1 AND partition = 2") == one
    assert facts("SELECT * FROM t LEFT JOIN {G} a USING (lsn) WHERE a.partition = 1") == one
    assert facts("SELECT DISTINCT op FROM {G} WHERE partition = 1") == one
    assert facts("SELECT * FROM {G} AS e(lsn_, partition) WHERE partition = 1") == one
    assert facts("WITH c AS (SELECT partition AS p FROM {G}) SELECT count(*) FROM c WHERE p = 1") == one
    for text in (
        "SELECT * FROM (SELECT * FROM {G} LIMIT 5) x WHERE partition = 1",
        "SELECT * FROM (SELECT * FROM {G} OFFSET 5) x WHERE partition = 1",
        "SELECT * FROM (SELECT lsn AS partition FROM {G}) x WHERE partition = 1 AND lsn = 1",
        "SELECT * FROM (SELECT lsn AS partition FROM {G}) x WHERE x.op = 1",
        "SELECT * FROM {G} USING SAMPLE 5",
        "SELECT * FROM {G} TABLESAMPLE 5 ROWS WHERE partition = 1",
        "SELECT * FROM t ASOF JOIN {G} a ON t.ts >= a.lsn WHERE a.partition = 1",
        "SELECT * FROM {G} a POSITIONAL JOIN t WHERE a.partition = 1",
        "SELECT * FROM {G} AS e(partition, lsn) WHERE e.x = 1",
        "SELECT * FROM t LEFT JOIN {G} a ON t.id = a.lsn WHERE a.partition = 1 OR a.partition IS NULL",
        "SELECT op, count(*) FROM {G} GROUP BY op HAVING max(partition) = 1",
        "SELECT * REPLACE (1 AS partition) FROM {G}",
        "SELECT * FROM (SELECT * REPLACE (1 AS partition) FROM {G}) WHERE partition = 1",
    ):
        assert [fact for fact in facts(text) if fact[0] == "partition"] == [], text
    assert facts("SELECT * FROM {G} AS e(partition, lsn) WHERE partition = 1") == [("lsn", "=", (1,))]


def test_chosen_partitions() -> None:
    def chosen(where: str, *values: object) -> tuple[int, ...] | None:
        shape = shape_of(f"SELECT * FROM STREAM s WHERE {where}")
        return chosen_partitions(shape.facts, range(4), lambda parameter: values[parameter.index - 1])

    assert chosen("true") == (0, 1, 2, 3)
    assert chosen("partition = 2 AND lsn > 5") == (2,)
    assert chosen("partition IN (3, $1, 9)", 0) == (0, 3)
    assert chosen("partition = $1", "2") == (2,)
    assert chosen("partition = $1", None) == ()
    assert chosen("partition NOT IN (1, $1)", None) == ()
    assert chosen("partition NOT IN (1, $1)", 2) == (0, 3)
    assert chosen("partition >= 1 AND partition < $1", 3) == (1, 2)
    assert chosen("partition <> 0") == (1, 2, 3)
    assert chosen("partition = -1") == ()
    assert chosen("partition = $1", 2.5) is None
    assert chosen("partition = $1", True) is None


# The edits hold in DuckDB: the answer is the same but for the hidden column, which names its events.

EVENTS = """
    SELECT range AS lsn, (range % 3)::INTEGER AS partition, ['insert', 'delete'][1 + range % 2] AS op,
        'main.t' AS table_name, '{}'::JSON AS key, NULL::JSON AS before, '{}'::JSON AS after,
        TIMESTAMPTZ '2024-01-01 00:00:00Z' + to_days(range::INTEGER) AS commit_time, range AS txid,
        0 AS tx_seq, true AS tx_last, 1 AS schema_version, NULL::JSON AS headers
    FROM range(1, 30)
"""


@pytest.fixture(scope="module")
def duck() -> Any:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE TABLE shown AS {EVENTS}")
    connection.execute(f"CREATE TABLE hidden AS SELECT *, lsn AS {HIDDEN_LSN} FROM ({EVENTS})")
    connection.execute("CREATE TABLE t AS SELECT range AS id, range AS x FROM range(5)")
    return connection


def over(text: str, table: str, scan: Scan, edits: tuple[Edit, ...]) -> str:
    columns = f"({', '.join(scan.columns)})" if scan.columns else ""
    pieces = [(edit.offset, edit.offset, edit.text) for edit in edits]
    pieces.append((scan.start, scan.end, f'{table} AS "{scan.visible_name}"{columns}'))
    for start, end, put in sorted(pieces, reverse=True):
        text = text[:start] + put + text[end:]
    return text


def values_for(text: str) -> list[int] | None:
    count = len({token.text for token in tokenize(text) if token.kind == "<parameter>"})
    return [4] * count or None


@pytest.mark.parametrize("marked", ROWWISE)
def test_edits_hold_in_duckdb(duck: Any, marked: str) -> None:
    text = marked.replace("{G}", G).replace("^", "").replace("$2", "$1").replace("CONSUMER GROUP $1", "")
    shape = shape_of(text if "CONSUMER" in text else marked.replace("{G}", G).replace("^", ""))
    scan = shape.scan
    if "CONSUMER" not in text:  # The parameter of the group is gone with the clause.
        text = marked.replace("^", "")
        text = text.replace("$2", "$1")
    plain = over(text, "shown", scan, ())
    carried = over(text, "hidden", scan, shape.edits)
    wanted = duck.execute(plain, values_for(plain)).fetchall()
    names = [column[0] for column in duck.description]
    found = duck.execute(carried, values_for(carried)).fetchall()
    place = [column[0] for column in duck.description].index(HIDDEN_LSN)
    assert [row[:place] + row[place + 1 :] for row in found] == wanted
    assert [row[place] for row in found] == sorted(row[place] for row in found)
    if "lsn" in names:
        at = names.index("lsn")
        assert [row[at] for row in wanted] == [row[place] for row in found]


@pytest.mark.parametrize("marked", DISTURBED)
def test_restored_order_holds_in_duckdb(marked: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET threads = 4")
    connection.execute(
        f"CREATE TABLE hidden AS SELECT range AS lsn, 'x' || range % 9 AS op, range AS {HIDDEN_LSN} "
        "FROM range(300000)"
    )
    connection.execute("CREATE TABLE p AS SELECT range * 7 AS l FROM range(20000)")
    connection.execute("CREATE MACRO small(x) AS x IN (SELECT l FROM p)")
    shape = shape_of(marked.replace("^", ""))
    text = over(marked.replace("^", "").replace("{G}", G), "hidden", shape.scan, shape.edits)
    found = connection.execute(text).fetchall()
    place = [column[0] for column in connection.description].index(HIDDEN_LSN)
    lsns = [row[place] for row in found]
    assert lsns == sorted(lsns)
    if "50" in marked:
        # No event before the last one passes the filter and was not given.
        whole = text[: text.rindex(" FETCH" if "FETCH" in text else " LIMIT 50")]
        everything = sorted(row[place] for row in connection.execute(whole).fetchall())
        assert lsns == everything[:50]


@pytest.mark.parametrize("text", [text for text in ROWWISE if "IN (SELECT" not in text])
def test_duckdb_keeps_the_order_of_the_rest(duck: Any, text: str) -> None:
    marked = text.replace("^", "").replace("$2", "1").replace("$1", "g").replace("?", "9")
    shape = shape_of(marked.replace("LIMIT g", "LIMIT 9"))
    if any("ORDER" in edit.text for edit in shape.edits):
        return
    query = over(marked.replace("{G}", G).replace("LIMIT g", "LIMIT 9"), "hidden", shape.scan, shape.edits)
    (plan,) = [row[1] for row in duck.execute(f"EXPLAIN {query}").fetchall()]
    assert not any(word in plan for word in ("JOIN", "MARK", "CROSS_PRODUCT", "UNNEST"))


def test_short_lists_are_no_joins_in_duckdb(duck: Any) -> None:
    for values in ("1, 2, 3", "'a', 'b', 'c'"):
        for word in ("IN", "NOT IN"):
            plan = duck.execute(f"EXPLAIN SELECT * FROM shown WHERE op {word} ({values})").fetchall()[0][1]
            assert "JOIN" not in plan
            assert "MARK" not in plan

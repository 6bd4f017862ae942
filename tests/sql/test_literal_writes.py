"""One-row writes whose values are literals: in a batch they do what they do alone."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest
from amounts import amount, seed_of
from local_client import Row
from write_batches import Scene, Sent

from ducktail.engine.database import Database
from ducktail.engine.duck.binding import bind
from ducktail.sql.dml.group_writes import elements, listed
from ducktail.sql.dml.literals import form_of
from ducktail.sql.text.tokens import tokenize

TYPES = {
    "i": "INT",
    "b": "BIGINT",
    "n": "SMALLINT",
    "d": "DOUBLE",
    "f": "REAL",
    "p": "DECIMAL(10, 2)",
    "v": "VARCHAR",
    "j": "JSON",
    "u": "UUID",
    "t": "BOOLEAN",
    "day": "DATE",
    "at": "TIMESTAMP",
    "zoned": "TIMESTAMPTZ",
    "raw": "BLOB",
}


def _divided(text: str) -> list[str]:
    """The literals of a text, which stand between bars or line ends."""
    return [part.strip() for part in text.replace("\n", "|").split("|") if part.strip()]


NUMBERS = _divided("""
    0 | -0 | 7 | -1 | 007 | 127 | 32767 | 32768 | -32768 | 2147483647 | 2147483648 | -2147483648
    9223372036854775807 | 9223372036854775808 | -9223372036854775808 | -9223372036854775809
    170141183460469231731687303715884105728 | 9.99 | -9.99 | 0.1 | -0.0 | .5 | 5. | 1_000 | 12345678.90
    123456789.01 | 0.005 | -0.005 | 123456789012345.678 | 0.30000000000000004 | 90071992547409.93
    123456789012345678 | 1234567890123456789.1 | 1e3 | -1.5E-3 | 1e400 | -1e400 | 1e-400 | 5e-324 | 1e308
    1e22 | 0e0 | -0e0 | 16777217 | 1.6 | 2.5
""")
STRINGS = _divided(r"""
    'x' | '' | 'it''s' | 'a\b' | 'a\\b' | E'a\\b' | E'a\nb\t' | E'a\'b' | E'it''s' | E'\\''x' | E'\x41'
    E'\101' | e'plain' | 'é ü 漢字 😀' | 'a; b -- c /* d */' | '%s $1 ?' | $$x$$ | $tag$it's$tag$ | x'41'
    N'x' | 'a' 'b' | ' 5' | '5 ' | '+5' | '1e2' | '5.5' | '1_000' | '7' | '-7' | '007' | '9.99' | '-0.0'
    'abc' | '1e400' | 'nan' | 'inf' | '0.1' | '12345678901' | 'true' | 't' | 'F' | 'yes' | '1' | 'null'
    'NULL' | '{"a": [1, null]}' | '{a,b}' | '[1' | '"text"' | ' 1.50 ' | '2026-01-02' | '2026-02-30'
    '2026-1-2' | '0001-01-01' | '9999-12-31' | 'infinity' | 'epoch' | '2026-01-02 03:04:05'
    '2026-01-02T03:04:05.678' | '2026-01-02 03:04:05.678901' | '2026-01-02 25:00:00'
    '2026-01-02 03:04:05+01' | '2026-01-02 03:04:05.5-05:30' | '2026-01-02T03:04:05Z'
    '2026-01-02 03:04:05 +01:00' | '2026-01-02 03:04:05.1234567' | '2026-01-02 24:00:00' | '\x00ff' | '\xAA'
    '00000000-0000-0000-0000-000000000001' | '{00000000-0000-0000-0000-000000000001}'
    'ABCDEFAB-cdef-0000-0000-000000000001' | '00000000000000000000000000000001'
""")
# DuckDB makes another DOUBLE of a HUGEINT than the nearest one.
LARGE = _divided("-24011646611366982931 | 34633323269813938197 | 304938295467499968955483748735378590")
WORDS = _divided("""
    NULL | TRUE | false | DEFAULT | '2026-01-02'::date | '2026-01-02 03:04:05'::timestamp | -7::int
    5::bigint | '5'::int | 'x'::text | DATE '2026-01-02' | 1 + 1 | (7) | +7 | - 7 | /* c */ 7 | - -7
    '2026-01-02 03:04:05+02'::timestamptz | '9.99'::numeric | upper('x') | NULL::int | (SELECT 1) | true::int
""")
VALUES = [*NUMBERS, *STRINGS, *WORDS, "'" + "long " * 7000 + "'"]


def test_each_value_is_the_one_that_duckdb_makes_of_its_literal() -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    rng = random.Random(seed_of("DUCKTAIL_LITERAL_SEED"))
    fractions = [f"{rng.choice(['', '-'])}{rng.randrange(10**9)}.{rng.randrange(10**8)}" for _ in range(200)]
    literals = [
        *NUMBERS,
        *LARGE,
        *STRINGS,
        *WORDS,
        *map(str, (rng.uniform(-9, 9) for _ in range(200))),
        *fractions,
    ]
    forms = {text: form for text in literals if (form := form_of(tokenize(f"INSERT ( {text} )"))) is not None}
    certain = Counter[str]()
    for name, type_ in TYPES.items():
        connection.execute(
            f"CREATE TABLE a_{name} (n INT, x {type_}); CREATE TABLE b_{name} (n INT, x {type_})"
        )
        (parameter,) = bind(connection, f"INSERT INTO a_{name} (x) VALUES ($1)").parameters.values()
        found: dict[int, object] = {}
        for number, (text, form) in enumerate(forms.items()):
            if form.text != "INSERT ( $1 )" or (values := form.values([parameter])) is None:
                continue
            try:
                connection.execute(f"INSERT INTO a_{name} VALUES ({number}, {text})")
            except duckdb.ConversionException:
                assert type_ == "JSON", text  # A batch with it fails, and its writes run alone.
                continue
            (found[number],) = values
        certain[type_] = len(found)
        if not found:
            continue
        given = [list(found), elements(list(found.values()), parameter)]
        columns = f"unnest($1::INT[]), {listed(2, parameter)}"
        connection.execute(f"INSERT INTO b_{name} SELECT {columns}", given)
        rows = [
            connection.execute(f"SELECT n, x::VARCHAR FROM {table}_{name} ORDER BY n").fetchall()
            for table in "ab"
        ]
        for (number, alone), (_, listed_) in zip(*rows, strict=True):
            assert alone == listed_, (type_, list(forms)[number])
    assert min(certain[type_] for type_ in TYPES.values() if type_ not in ("BLOB", "REAL")) > 2, certain


def test_the_width_of_a_type_is_no_value() -> None:
    assert form_of(tokenize("INSERT ( 1, 'x'::varchar(1) )")) is None
    assert form_of(tokenize("INSERT ( '9.9'::numeric(9, 2), 1 )")) is None


TABLES = ("together", "apart")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A database with a table of each type, whose writes with literals have plans."""
    database = Database.open(str(tmp_path / "literals.duckdb"))
    made = Scene(database)
    columns = ", ".join(f'"{name}" {type_}' for name, type_ in TYPES.items())
    for table in TABLES:
        made.owner(f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        made.owner(f"CREATE STREAM s_{table} ON {table}")
    yield made
    assert made.owner("CHECK STREAM s_together") == []
    database.close()


def _texts(verb: str, key: int, name: str, value: str) -> str:
    if verb == "INSERT":
        # Python has no infinite days.
        returned = "id" if name in ("day", "at", "zoned") else f'id, "{name}"'
        return f'INSERT INTO {{0}} (id, "{name}") VALUES ({key}, {value}) RETURNING {returned}'
    return f'UPDATE {{0}} SET "{name}" = {value} WHERE id = {key}'


def _outcome(one: Sent, table: str) -> tuple[object, ...]:
    """The answer of a write with all that its client is told, apart from the name of the table."""
    error = one.error
    if error is None:
        return one.outcome, repr(one.rows)
    place = error.position and error.position - len(table)
    told = [part and part.replace(table, "t") for part in (error.message, error.detail, error.hint)]
    return one.outcome, told, place


def _compare(scene: Scene, texts: Sequence[str]) -> int:
    """Run texts in batches and one by one; returns the number of writes that a batch has taken."""
    writes = scene.commit.writes
    clients = [scene.client(TimeZone="Asia/Tokyo") for _ in range(14)]
    for first in range(0, len(texts), len(clients)):
        part = texts[first : first + len(clients)]
        sent = {
            table: [
                Sent(client, text.replace("{0}", table), ())
                for client, text in zip(clients, part, strict=False)
            ]
            for table in TABLES
        }
        scene.together(sent["together"], offered=None)
        scene.commit.enabled = False
        for one in sent["apart"]:
            one.run()
        scene.commit.enabled = True
        for text, one, other in zip(part, sent["together"], sent["apart"], strict=True):
            assert _outcome(one, "together") == _outcome(other, "apart"), text[:300]
    for client in clients:
        client.close()
    return scene.commit.writes - writes


def _stored(scene: Scene, table: str) -> tuple[list[Row], list[str]]:
    """The rows of a table, and its events."""
    columns = ", ".join(f'encode("{name}"::VARCHAR)' for name in TYPES)
    events = scene.owner(f"SELECT op, partition, key, before, after FROM STREAM s_{table} AFTER 0")
    return scene.owner(f"SELECT id, {columns} FROM {table} ORDER BY id"), sorted(map(json.dumps, events))


def _chosen(rng: random.Random, type_: str) -> list[str]:
    """Literals for a column of a type, half of them such as its values are usually written."""
    known = str(duckdb.sqltype(type_))
    forms = {value: form_of(tokenize(f"INSERT ( {value} )")) for value in VALUES}
    usual = [value for value, form in forms.items() if form is not None and form.values([known]) is not None]
    share = min(amount("DUCKTAIL_LITERALS", 2, len(VALUES)), len(VALUES))
    return [*rng.sample(usual, min(share, len(usual))), *rng.sample(VALUES, share)]


@pytest.mark.parametrize("verb", ["INSERT", "UPDATE"])
def test_writes_with_literals_do_the_same_in_a_batch_and_alone(scene: Scene, verb: str) -> None:
    rng = random.Random(seed_of("DUCKTAIL_LITERAL_SEED"))
    texts, firsts = [], []
    for number, (name, type_) in enumerate(TYPES.items()):
        key = 1000 * number
        firsts += [_texts(verb, key + at, name, "NULL") for at in (998, 999)]
        texts += [_texts(verb, key + at, name, value) for at, value in enumerate(_chosen(rng, type_))]
    rng.shuffle(texts)
    # Violations, which end a batch: a key that exists, or a missing row.
    texts += [_texts(verb, key, "v", value) for key, value in ((999, "'x'"), (900, "'y'"))]
    if verb == "UPDATE":
        rows = f"SELECT i FROM range({1000 * len(TYPES)}) r(i) WHERE i % 1000 < 300 OR i % 1000 > 990"
        for table in TABLES:
            scene.owner(f"INSERT INTO {table} (id) {rows}")
    owner = scene.client()
    for text in firsts:
        for table in TABLES:
            owner(text.replace("{0}", table))
    assert _compare(scene, texts) > len(TYPES) // 4  # A value that a batch refuses ends it.
    assert _stored(scene, "together") == _stored(scene, "apart")


@pytest.mark.parametrize(
    "publish", ["PUBLISH TO p KEY {} {}", "INSERT INTO p (key, payload) VALUES ({}, {})"]
)
def test_published_literals_are_one_batch(scene: Scene, publish: str) -> None:
    for _ in range(2):
        scene.owner(publish.format("'k'", "'warm'"))
    payloads = ["'it''s'", "'{\"a\": 1}'", "'3'", "' {a}'"]
    sent = [
        Sent(scene.client(), publish.format(f"'k{n}'", payload), ()) for n, payload in enumerate(payloads)
    ]
    batches, lsn = scene.commit.batches, scene.database.commits.last_lsn
    tag = "PUBLISH 1" if publish.startswith("PUBLISH") else "INSERT 0 1"
    assert scene.together(sent) == [tag] * len(sent)
    assert scene.commit.batches == batches + 1
    for one in sent:
        scene.owner(one.text)
    events = scene.owner(f"SELECT partition, key, after::VARCHAR FROM TOPIC p AFTER {lsn} ORDER BY lsn")
    assert events[: len(sent)] == events[len(sent) :]


ALONE = [
    "INSERT INTO t VALUES ({}, upper('v'))",
    "INSERT INTO t VALUES ({}, 'v'), (-{}, 'v')",
    "INSERT INTO t VALUES ({}, 'v') ON CONFLICT (id) DO UPDATE SET v = 'w'",
    "INSERT INTO t VALUES ({}, DEFAULT)",
    "INSERT INTO t SELECT {}, 'v'",
    "INSERT INTO t VALUES ({} + 0, 'v')",
    "INSERT INTO t VALUES ({}, $$v$$)",
    "INSERT INTO t VALUES ({}, 'v' || 'w')",
    "INSERT INTO t VALUES ({}, 'v') RETURNING id + 1",
    "INSERT INTO t VALUES ({}, DATE '2026-01-02')",
    "UPDATE t SET v = 'w' WHERE id >= {}",
    "UPDATE t SET v = v || 'w' WHERE id = {}",
    "UPDATE t SET id = {} + 1000 WHERE id = {}",
    "DELETE FROM t WHERE id IN ({}, 0)",
]


def test_texts_that_run_alone(scene: Scene) -> None:
    client, writes = scene.client(), scene.commit.writes
    for number, text in enumerate(ALONE):
        for key in range(10 * number + 10, 10 * number + 13):
            client(text.replace("{}", str(key)))
        assert scene.commit.writes == writes, text


def test_a_changed_table_and_comments(scene: Scene) -> None:
    """The form of a text has neither comments nor spaces; its plan ends with its table's definition."""
    client, writes = scene.client(), scene.commit.writes
    for key in (1, 2):
        client(f"INSERT INTO t VALUES ({key}, 'v')")
    client("INSERT /* a trace */ INTO t\nVALUES (3,'v') -- end")
    assert scene.commit.writes == writes + 1
    scene.owner("ALTER TABLE t ADD COLUMN w INT DEFAULT 5")
    client("INSERT INTO t VALUES (4, 'v')")
    client("INSERT INTO t VALUES (5, 'v', 6)")
    client("DELETE FROM t WHERE id = 5")
    assert scene.owner("SELECT id, w FROM t WHERE id < 10 ORDER BY id") == [(n, 5) for n in range(1, 5)]
    assert scene.commit.writes == writes + 1

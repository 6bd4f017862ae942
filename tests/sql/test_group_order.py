"""A group's read gives each event once and in order, whatever plan DuckDB makes of the query around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from amounts import chosen
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.sql.reading import row_order

EVENTS = 100_000
# `x` is 0 to 39, so that every filter below keeps a part of the events.
VALUES = 40
LIMIT = 9_000


def numbers(count: int) -> list[int]:
    """So many constants of which the first five are values of `x`."""
    return [*range(1, min(5, count) + 1), *range(1000, 1000 + count - 5)]


def listed(count: int) -> str:
    return ", ".join(map(str, numbers(count)))


X = "(after ->> '$.x')::INTEGER"
# What keeps the values 1 to 5, by how many constants it has.
FILTERS = {
    "in": lambda n: f"{X} IN ({listed(n)})",
    "list_contains": lambda n: f"list_contains([{listed(n)}], {X})",
    "contains": lambda n: f"contains([{listed(n)}], {X})",
    "array_contains": lambda n: f"array_contains([{listed(n)}], {X})",
    "list_has": lambda n: f"list_has([{listed(n)}], {X})",
    "any": lambda n: f"{X} = ANY([{listed(n)}])",
    "or": lambda n: " OR ".join(f"{X} = {one}" for one in numbers(n)),
    "in list": lambda n: f"{X} IN [{listed(n)}]",
    "not in": lambda n: f"NOT ({X} NOT IN ({listed(n)}))",
    "not contains": lambda n: f"NOT NOT list_contains([{listed(n)}], {X})",
    "not all": lambda n: f"NOT ({X} <> ALL([{listed(n)}]))",
    "split": lambda n: f"after ->> '$.x' IN string_split('{listed(n)}', ', ')",
    "case": lambda n: f"CASE WHEN {X} IN ({listed(n)}) THEN true ELSE false END",
    "subquery": lambda n: f"{X} IN (SELECT unnest([{listed(n)}]))",
    "values": lambda n: f"{X} IN (VALUES {', '.join(f'({one})' for one in numbers(n))})",
    "exists": lambda n: f"EXISTS (SELECT 1 FROM unnest([{listed(n)}]) u(one) WHERE one = {X})",
    "macro": lambda n: f"small{n}({X})",
    "lambda": lambda n: f"len(list_filter([{listed(n)}], lambda one: one = {X})) > 0",
    "range": lambda n: f"{X} IN range(1, 6)",
    "between": lambda n: f"{X} BETWEEN 1 AND 5",
    "concat": lambda n: f"concat(after ->> '$.x', '') IN ({', '.join(map(repr, map(str, numbers(n))))})",
    "regexp": lambda n: "regexp_matches(after ->> '$.x', '^[1-5]$')",
    "try": lambda n: f"try({X}) < 6 AND try({X}) > 0",
}
COUNTS = (5, 60, 2000)
# Of the cases so many run in the gate: each filter comes with one of its counts at least in six commits.
CASES_IN_GATE = 12
# Two thousand of these are slow in DuckDB itself.
SLOW = {"or", "lambda"}
CASES = [
    (name, count)
    for name in FILTERS
    for count in COUNTS
    if not (count == max(COUNTS) and name in SLOW)
    and (count == COUNTS[0] or FILTERS[name](5) != FILTERS[name](count))
]
THREADS = (1, 2, 4)


def opened_with(threads: int, path: Path) -> Database:
    """A database of so many of DuckDB's threads, with the events."""
    connect = duckdb.connect

    def connected(*arguments: Any, config: dict[str, Any], **more: Any) -> duckdb.DuckDBPyConnection:
        return connect(*arguments, config={**config, "threads": threads}, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb, "connect", connected)
        opened = Database.open(str(path))
    client = Client(opened)
    assert client("SELECT current_setting('threads')") == [(threads,)]
    client("CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)")
    client("CREATE STREAM s ON t WITH (partitions = 4)")
    for count in COUNTS:
        client(f"CREATE MACRO small{count}(a) AS a IN ({listed(count)})")
    client("CREATE MACRO twice(a) AS unnest([a, a])")
    client("CREATE MACRO larger(a) AS a + 1")
    client(f"INSERT INTO t SELECT i, i % {VALUES} FROM range({EVENTS}) r(i)")
    client.close()
    return opened


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Database]]:
    """By their number of threads."""
    directory = tmp_path_factory.mktemp("order")
    opened = {threads: opened_with(threads, directory / f"order_{threads}.duckdb") for threads in THREADS}
    yield opened
    for database in opened.values():
        database.close()


@pytest.fixture(scope="module")
def database(databases: dict[int, Database]) -> Database:
    return databases[2]


def grouped(database: Database) -> Iterator[Client]:
    made = Client(database)
    made("CREATE CONSUMER GROUP g ON s")
    yield made
    made("DROP CONSUMER GROUP g ON s")
    made.close()


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    yield from grouped(database)


@pytest.fixture(scope="module")
def wanted(database: Database) -> list[int]:
    """The LSNs of the events with x from 1 to 5."""
    client = Client(database)
    found = [row[0] for row in client(f"SELECT lsn FROM s WHERE {X} BETWEEN 1 AND 5 ORDER BY lsn")]
    client.close()
    assert len(found) == EVENTS * 5 // VALUES
    return found


def looped(client: Client, text: str) -> list[int]:
    """Read and commit until nothing more comes."""
    given: list[int] = []
    while rows := client(text):
        given += [row[0] for row in rows]
        client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    return given


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), chosen(CASES, CASES_IN_GATE, "group order"))
def test_a_loop_of_reads_and_commits_gives_each_event_once(
    databases: dict[int, Database], wanted: list[int], name: str, count: int
) -> None:
    threads = THREADS[CASES.index((name, count)) % len(THREADS)]
    where = FILTERS[name](count)
    for client in grouped(databases[threads]):
        assert (
            looped(client, f"SELECT lsn FROM STREAM s CONSUMER GROUP g WHERE {where} LIMIT {LIMIT}") == wanted
        )


# What stands in the select list, or in queries around the read.
LISTS = [
    "SELECT lsn, list_contains([1, 2, 3, 4, 5], {x}) FROM {g} WHERE {x} BETWEEN 1 AND 5 LIMIT {n}",
    "SELECT lsn, {x} IN (SELECT unnest([1, 2, 3])) FROM {g} WHERE {x} BETWEEN 1 AND 5 LIMIT {n}",
    "SELECT * EXCLUDE (headers) REPLACE (lsn AS lsn) FROM (SELECT lsn, headers FROM {g} "
    "WHERE list_contains([1, 2, 3, 4, 5], {x})) q LIMIT {n}",
    "WITH c AS (SELECT * FROM {g}) SELECT lsn FROM c WHERE contains([1, 2, 3, 4, 5], {x}) LIMIT {n}",
    "SELECT lsn, larger({x}) FROM {g} WHERE larger({x}) BETWEEN 2 AND 6 LIMIT {n}",
    "SELECT lsn FROM {g} WHERE {x} IN range(1, 6) ORDER BY lsn LIMIT {n}",
    "SELECT lsn FROM (SELECT * FROM {g} WHERE list_contains([1, 2, 3, 4, 5], {x}) LIMIT {n}) q",
]


@pytest.mark.parametrize("text", LISTS)
def test_wherever_the_function_stands(client: Client, wanted: list[int], text: str) -> None:
    filled = text.replace("{g}", "STREAM s CONSUMER GROUP g").replace("{x}", X).replace("{n}", str(LIMIT))
    assert looped(client, filled) == wanted


JOINED = ["list_contains", "in", "not contains", "macro"]


@pytest.mark.parametrize("name", JOINED)
def test_a_cursor_gives_each_event_once(client: Client, wanted: list[int], name: str) -> None:
    given: list[int] = []
    while True:
        client("BEGIN")
        client(f"DECLARE c CURSOR FOR SELECT lsn FROM STREAM s CONSUMER GROUP g WHERE {FILTERS[name](60)}")
        rows = client(f"FETCH {LIMIT // 2} FROM c")
        client("CLOSE c")
        client("COMMIT OFFSETS ON s CONSUMER GROUP g")
        client("COMMIT")
        if not rows:
            break
        given += [row[0] for row in rows]
    assert given == wanted


@pytest.mark.parametrize("name", JOINED)
def test_what_is_stored_in_one_transaction_is_stored_once(
    client: Client, wanted: list[int], name: str
) -> None:
    client("CREATE TABLE sink (lsn BIGINT)")
    try:
        while True:
            client("BEGIN")
            client(
                "INSERT INTO sink SELECT lsn FROM STREAM s CONSUMER GROUP g "
                f"WHERE {FILTERS[name](60)} LIMIT {LIMIT}"
            )
            count = client.tag
            client("COMMIT OFFSETS ON s CONSUMER GROUP g")
            client("COMMIT")
            if count == "INSERT 0 0":
                break
        assert [row[0] for row in client("SELECT lsn FROM sink ORDER BY rowid")] == wanted
    finally:
        client("DROP TABLE sink")


@pytest.mark.parametrize("name", JOINED)
def test_a_read_without_a_group_goes_on_where_it_ended(client: Client, wanted: list[int], name: str) -> None:
    given: list[int] = []
    while True:
        after = given[-1] if given else 0
        rows = client(f"SELECT lsn FROM STREAM s AFTER {after} WHERE {FILTERS[name](60)} LIMIT {LIMIT}")
        if not rows:
            break
        given += [row[0] for row in rows]
    assert given == wanted


def test_a_limit_still_ends_the_scan_where_the_plan_keeps_the_order(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[row_order.Order] = []
    real = row_order.order_of

    def noted(*arguments: object) -> row_order.Order:
        seen.append(real(*arguments))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(row_order, "order_of", noted)
    for text, found in (
        (f"larger({X}) = 3", [row_order.Order.KEPT]),
        (f"list_contains([1, 2, 3, 4, 5], {X})", [row_order.Order.LOST]),
        (f"{X} = 3 AND op IN ('insert', 'update') OR key IS NULL", []),
    ):
        seen.clear()
        assert len(client(f"SELECT lsn FROM STREAM s CONSUMER GROUP g WHERE {text} LIMIT 3")) == 3
        assert seen == found, text


# Macros that make several rows of an event are like UNNEST: how far they were given cannot be told.
MAKING = [
    "regexp_split_to_table('a,b,c', ',')",
    "twice(op)",
    "generate_subscripts([1, 2], 1)",
    "unnest([1, 2])",
]


@pytest.mark.parametrize("value", MAKING)
@pytest.mark.parametrize("limit", ["", " LIMIT 2"])
def test_rows_that_a_macro_makes_set_no_position(client: Client, value: str, limit: str) -> None:
    rows = client(f"SELECT lsn, {value} FROM STREAM s CONSUMER GROUP g{limit or ' WHERE lsn < 100'}")
    assert len(rows) == (2 if limit else len({row[0] for row in rows}) * (3 if "split" in value else 2))
    with raises("55000") as found:
        client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    assert "UNNEST" in f"{found.value.message} {found.value.detail}"


def test_what_comes_out_of_order_is_an_error_and_moves_nothing(
    databases: dict[int, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were DuckDB to give rows in another order than its plan says, no event is passed over."""
    monkeypatch.setattr(row_order, "order_of", lambda *arguments: row_order.Order.KEPT)
    read = f"SELECT lsn FROM STREAM s CONSUMER GROUP g WHERE {FILTERS['values'](60)} LIMIT {LIMIT}"
    for client in grouped(databases[1]):
        for text in (read, f"CREATE TABLE taken AS {read}", f"INSERT INTO t SELECT -lsn, 1 FROM ({read}) q"):
            with raises("XX000") as found:
                client(text)
            assert "out of the order" in found.value.message
            with raises("55000"):
                client("COMMIT OFFSETS ON s CONSUMER GROUP g")


NOTHING_STORED: Sequence[str] = [
    "CREATE TABLE IF NOT EXISTS kept AS SELECT lsn FROM STREAM s CONSUMER GROUP g",
    "CREATE TEMP TABLE IF NOT EXISTS kept_here AS SELECT lsn FROM STREAM s CONSUMER GROUP g",
    "CREATE TABLE other AS SELECT lsn FROM STREAM s CONSUMER GROUP g WITH NO DATA",
]


@pytest.mark.parametrize("text", NOTHING_STORED)
def test_what_is_stored_nowhere_is_not_read(client: Client, text: str) -> None:
    client("CREATE TABLE kept (lsn BIGINT)")
    client("CREATE TEMP TABLE kept_here (lsn BIGINT)")
    try:
        client(text)
        with raises("55000"):
            client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    finally:
        client("DROP TABLE kept")
        client("DROP TABLE kept_here")
        client("DROP TABLE IF EXISTS other")


def test_a_new_table_is_read(client: Client) -> None:
    client("CREATE TABLE IF NOT EXISTS made AS SELECT lsn FROM STREAM s CONSUMER GROUP g")
    assert client.one("SELECT count(*) FROM made") == EVENTS
    client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    assert client("SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 1") == []
    client("DROP TABLE made")


@pytest.mark.parametrize("fetched", [50, 0])
def test_a_cursor_that_is_closed_later_sets_nothing_again(client: Client, fetched: int) -> None:
    client("BEGIN")
    client("DECLARE c CURSOR FOR SELECT lsn FROM STREAM s CONSUMER GROUP g")
    if fetched:
        client(f"FETCH {fetched} FROM c")
    last = [row[0] for row in client("SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 3")][-1]
    client("CLOSE c")
    client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    client("COMMIT")
    assert client("SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 1") == [(last + 1,)]


def test_the_end_of_a_block_sets_nothing_again(client: Client) -> None:
    client("BEGIN")
    client("DECLARE c CURSOR WITH HOLD FOR SELECT lsn FROM STREAM s CONSUMER GROUP g")
    client("FETCH 50 FROM c")
    last = [row[0] for row in client("SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 3")][-1]
    client("COMMIT")
    client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    assert client("SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 1") == [(last + 1,)]
    client("CLOSE c")
    client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    assert client("SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 1") == [(last + 2,)]


def test_a_closed_cursor_holds_no_members_partition(client: Client) -> None:
    client("BEGIN")
    client("DECLARE c CURSOR WITH HOLD FOR SELECT lsn FROM STREAM s CONSUMER GROUP g MEMBER 'a'")
    client("FETCH 50 FROM c")
    client("COMMIT")
    client("COMMIT OFFSETS ON s CONSUMER GROUP g MEMBER 'a'")
    other = Client(client.session.database)
    other("SELECT lsn FROM STREAM s CONSUMER GROUP g MEMBER 'b' LIMIT 1")
    client("CLOSE c")
    members = other("SHOW MEMBERS ON s CONSUMER GROUP g")
    states = [(name, state, len(partitions)) for name, _, partitions, state, *_ in members]
    assert states == [("a", "stable", 2), ("b", "stable", 2)]
    assert other("SELECT lsn FROM STREAM s CONSUMER GROUP g MEMBER 'b' LIMIT 1")
    other.close()


def test_returning_what_a_stream_gave(client: Client) -> None:
    client("CREATE TABLE sink (lsn BIGINT)")
    rows = client("INSERT INTO sink SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 3 RETURNING lsn")
    assert len(rows) == 3
    client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    rows += client("INSERT INTO sink SELECT lsn FROM STREAM s WHERE lsn < 100 RETURNING lsn")
    assert client.one("SELECT count(*) FROM sink") == len(rows) > 3
    client("DROP TABLE sink")


TWICE = "SELECT count(*) FROM STREAM s CONSUMER GROUP $1 a JOIN STREAM s CONSUMER GROUP $2 b USING (lsn)"


def test_a_group_that_two_parameters_name_is_read_twice(client: Client) -> None:
    client(TWICE, "g", "G")
    with raises("55000"):
        client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    client("CREATE CONSUMER GROUP h ON s")
    client(TWICE, "g", "h")
    client("COMMIT OFFSETS ON s CONSUMER GROUP g")
    client("DROP CONSUMER GROUP h ON s")


@pytest.mark.parametrize(
    "limit", ["3::BOOLEAN", "'3'::VARCHAR::BOOLEAN", "CAST(3 AS DATE)", "2.5", "2::DECIMAL(1, 0)"]
)
def test_a_limit_in_other_words_sets_no_position(client: Client, limit: str) -> None:
    try:
        client(f"SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT {limit}")
    except DucktailError:
        pass  # DuckDB may refuse it.
    with raises("55000"):
        client("COMMIT OFFSETS ON s CONSUMER GROUP g")

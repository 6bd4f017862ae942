"""What capture costs: DML on a captured table until readable, beside plain DuckDB and PostgreSQL.

    plain       the same statements on the same table in a DuckDB file of its own, in process
    bare        the DuckDB statements of capture's own shape (BEGIN, the shape, the line in `commits`,
                COMMIT) on a cursor in process, each told as a text; `bare, told` with the SELECT of the
                events that they make, which readers need
    PostgreSQL  the same rows in a table with a trigger outbox (statement triggers with transition
                tables, jsonb images), durable commits

All in one run and in turns; the figure is the median of the turns. A captured statement counts until
its events are readable; of single rows, all of a run's.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import postgres
import psycopg

from ducktail.engine.capture import capture
from ducktail.engine.capture.plan import CapturedTable, numbers
from ducktail.engine.catalog.captured_tables import Captured
from ducktail.engine.catalog.streams import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_PARTITIONS_WITH_KEY,
    OPERATIONS,
    Stream,
)
from ducktail.engine.database import Database
from ducktail.engine.duck.binding import Parsed
from ducktail.engine.duck.cursors import arrow_batches
from ducktail.engine.duck.table_shape import read_shape
from ducktail.engine.log.log import Commit, create_log_sql
from ducktail.engine.log.queries import EventQuery
from ducktail.engine.waiting import drive
from ducktail.sql.dml.dml import slice_dml
from ducktail.sql.language.classify import classify
from ducktail.sql.session import Session
from ducktail.sql.session_state.statement import ParsedStatement

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, quantity INTEGER, price DECIMAL(12, 2), "
    "currency VARCHAR, placed TIMESTAMP, shipped BOOLEAN, city VARCHAR, note VARCHAR"
)
ROWS = (
    "SELECT i, i % 10007, 'item ' || i % 997, i % 9 + 1, (i % 100000) / 100.0, 'EUR', "
    "TIMESTAMP '2024-01-01' + i * INTERVAL '1 second', i % 3 = 0, 'city ' || i % 211, "
    "repeat('n', (i % 80) :: INTEGER) FROM {series}"
)
OUTBOX = """
    CREATE TABLE outbox (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, op TEXT, before JSONB, after JSONB,
        at TIMESTAMPTZ DEFAULT now(), txid BIGINT DEFAULT txid_current());
    CREATE FUNCTION inserted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO outbox (op, after) SELECT 'insert', to_jsonb(n) FROM new_rows AS n; RETURN NULL; END $$;
    CREATE FUNCTION updated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO outbox (op, before, after) SELECT 'update', to_jsonb(o), to_jsonb(n)
        FROM old_rows AS o JOIN new_rows AS n USING (id); RETURN NULL; END $$;
    CREATE FUNCTION deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO outbox (op, before) SELECT 'delete', to_jsonb(o) FROM old_rows AS o; RETURN NULL; END $$;
    CREATE TRIGGER i AFTER INSERT ON orders REFERENCING NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION inserted();
    CREATE TRIGGER u AFTER UPDATE ON orders REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION updated();
    CREATE TRIGGER d AFTER DELETE ON orders REFERENCING OLD TABLE AS old_rows
        FOR EACH STATEMENT EXECUTE FUNCTION deleted();
"""
BARE_COMMITS = "CREATE TABLE commits (txid BIGINT, first_lsn BIGINT, last_lsn BIGINT, at_time TIMESTAMPTZ)"

# The statements; $1 is where a run of single rows has its number.
BULK_INSERT = "INSERT INTO orders SELECT * FROM source{condition}"
BULK_UPDATE = "UPDATE orders SET price = price * 2, note = 'changed'{condition}"
BULK_DELETE = "DELETE FROM orders{condition}"
VALUES = (
    "INSERT INTO orders VALUES ($1, 7, 'item', 3, 12.5, 'EUR', TIMESTAMP '2024-01-01', true, 'city', 'note')"
)
ONE_ROW = {
    "insert": VALUES,
    "update": "UPDATE orders SET price = price + 1, note = 'changed' WHERE id = $1",
    "upsert": f"{VALUES} ON CONFLICT (id) DO UPDATE SET price = excluded.price, note = 'upserted'",
    "delete": "DELETE FROM orders WHERE id = $1",
}
# Where the single rows' numbers begin: behind every row of the bulk statements.
ONE_ROW_FROM = 100_000_000
WARM_UP_ROWS = 20
# Statements of 1,000 rows a turn.
TURNS_OF_THOUSAND = 5
WHO = ("ducktail", "plain", "PostgreSQL")
BARE, TOLD = "bare", "bare, told"

THOUSAND = "1,000 rows"

# Most times plain DuckDB, least times PostgreSQL; and for one row most times the bare statements.
BULK_BARS = {"insert": (2.5, 4.0), "update": (6.0, 2.0), "delete": (None, 2.0)}
THOUSAND_BAR = 3.0
ONE_ROW_BARS = {"insert": 3.5, "update": 5.0, "upsert": 3.5, "delete": 4.5}
BARE_BAR = 1.25


@dataclass
class Times:
    """Seconds of each turn by (work, statement, who)."""

    found: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)

    def add(self, work: str, statement: str, who: str, seconds: float) -> None:
        """One turn."""
        self.found.setdefault((work, statement, who), []).append(seconds)

    def median(self, work: str, statement: str, who: str) -> float:
        """The median of the turns, in seconds."""
        return statistics.median(self.found[work, statement, who])


Run = Callable[[str, Sequence[object]], None]


@contextmanager
def ducktail_runner(path: Path) -> Iterator[tuple[Run, Callable[[], None]]]:
    """A session in process: what runs one statement, and what waits until all is readable."""
    database = Database.open(str(path))
    session = Session(database)
    kept: dict[str, ParsedStatement] = {}

    def execute(text: str, parameters: Sequence[object]) -> None:
        statement = kept.get(text)
        if statement is None:
            statement = kept[text] = drive(session.parse(text))
        result = drive(session.execute(statement, tuple(parameters)))
        while result.fetch(None) is not None:
            pass

    try:
        yield execute, lambda: drive(database.publisher.wait_published(database.commits.last_lsn))
    finally:
        drive(session.close())
        database.close()


def plain_runner(cursor: duckdb.DuckDBPyConnection) -> Run:
    """Plain DuckDB in autocommit."""

    def execute(text: str, parameters: Sequence[object]) -> None:
        cursor.execute(text, list(parameters) or None).fetchall()

    return execute


class Bare:
    """Capture's own statements without an engine around them: the floor under one captured row."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.cursor = cursor
        self.lsn = self.txid = 0
        cursor.execute("CREATE SCHEMA ducktail")
        shape = read_shape(cursor, "main", "orders")
        cursor.execute(create_log_sql("ducktail.log_1", shape))
        cursor.execute(BARE_COMMITS)
        self.table = CapturedTable(shape, "ducktail.log_1", frozenset(shape.primary_key))
        self.plans: dict[str, capture.Plan] = {}
        self.told_lsn = 0
        stream = Stream(
            stream_id=1,
            schema="main",
            name="orders_stream",
            table_id=1,
            operations=frozenset(OPERATIONS),
            columns=tuple(column.name for column in shape.stored),
            filter=None,
            partitions=DEFAULT_PARTITIONS_WITH_KEY,
            partition_by=shape.primary_key,
            snapshot="none",
            before="full",
            buffer_bytes=DEFAULT_BUFFER_BYTES,
            created_lsn=0,
        )
        self.events = EventQuery(stream, Captured(1, 1, self.table))

    def execute(self, text: str, parameters: Sequence[object]) -> None:
        """One statement as capture runs it."""
        plan = self.plans.get(text)
        if plan is None:
            dml = slice_dml(classify(text), "main")
            # As the session plans an INSERT ... SELECT of one table.
            dml = replace(dml, repeatable=bool(dml.query_from))
            plan = self.plans[text] = capture.plan(dml, self.table)
        self.told_lsn = self.lsn
        self.txid += 1
        self.cursor.execute("BEGIN")
        values = {str(place): value for place, value in enumerate(parameters, 1)}
        values |= numbers(self.lsn, self.txid)
        rows = Parsed(plan.log).run(self.cursor, values).fetchall()
        if plan.verbatim is not None:
            self.cursor.execute(plan.verbatim, list(parameters)).fetchall()
        first, self.lsn = self.lsn + 1, self.lsn + (len(rows) if plan.lists_entries else rows[0][0])
        self.cursor.execute(
            f"INSERT INTO commits VALUES ({self.txid}, {first}, {self.lsn}, make_timestamptz(1))"
        )
        self.cursor.execute("COMMIT")

    def tell(self) -> None:
        """The events of the last statement, as a publisher asks for them."""
        where = f"lsn BETWEEN {self.told_lsn + 1} AND {self.lsn}"
        sql = self.events.sql(where, "NULL::BOOLEAN", Commit(self.told_lsn + 1, 1))
        for _ in arrow_batches(self.cursor, f"{sql} ORDER BY lsn", 8192):
            pass


def postgres_runner(connection: psycopg.Connection) -> Run:
    """PostgreSQL, prepared, in autocommit."""

    def execute(text: str, parameters: Sequence[object]) -> None:
        connection.execute(text.replace("$1", "%s"), parameters or None, prepare=True)

    return execute


def timed(runner: Run, text: str, runs: Sequence[Sequence[object]], wait: Callable[[], None] | None) -> float:
    """Seconds of a statement run with each of these parameters, and of what is waited for then."""
    start = time.perf_counter()
    for parameters in runs:
        runner(text, parameters)
    if wait is not None:
        wait()
    return time.perf_counter() - start


def bulk(
    times: Times,
    work: str,
    rows: int,
    runners: dict[str, Run],
    readable: Callable[[], None],
    bare: Bare | None = None,
) -> None:
    """One turn of one statement over many rows: inserted, updated, deleted again."""
    condition = f" WHERE id < {rows}"
    for statement, text in (("insert", BULK_INSERT), ("update", BULK_UPDATE), ("delete", BULK_DELETE)):
        for who, runner in runners.items():
            wait = readable if who == "ducktail" else None
            times.add(work, statement, who, timed(runner, text.format(condition=condition), [()], wait))
        if bare is not None:
            seconds = timed(bare.execute, text.format(condition=condition), [()], None)
            times.add(work, statement, BARE, seconds)
            if work == THOUSAND:
                times.add(work, statement, TOLD, seconds + timed(bare.execute, "", [], bare.tell))


def single(times: Times, turn: int, rows: int, runners: dict[str, Run], readable: Callable[[], None]) -> None:
    """One turn of statements of one row each: seconds of one."""
    first = ONE_ROW_FROM + turn * 2 * rows
    for statement, text in ONE_ROW.items():
        # An upsert meets a row as often as not.
        start = first + rows // 2 if statement == "upsert" else first
        numbers = [(number,) for number in range(start, start + rows)]
        for who, runner in runners.items():
            for number in range(WARM_UP_ROWS):
                runner(ONE_ROW["insert"], [-1 - number])
                runner(ONE_ROW["delete"], [-1 - number])
            wait = readable if who == "ducktail" else None
            times.add("one row", statement, who, timed(runner, text, numbers, wait) / rows)


def prepare(runners: dict[str, Run], rows: int) -> None:
    """The table and its source everywhere, with some rows that stay."""
    for who, runner in runners.items():
        series = f"generate_series(0, {rows - 1}) AS numbers (i)"
        runner(f"CREATE TABLE source ({COLUMNS})", ())
        runner(f"INSERT INTO source {ROWS.format(series=series)}", ())
        runner(f"CREATE TABLE orders ({COLUMNS})", ())
        kept = f"generate_series({2 * ONE_ROW_FROM}, {2 * ONE_ROW_FROM + 199_999}) AS numbers (i)"
        runner(f"INSERT INTO orders {ROWS.format(series=kept)}", ())
        if who == "ducktail":
            runner("CREATE STREAM orders_stream ON orders", ())


def measure(rows: int, turns: int, single_rows: int, directory: Path) -> tuple[Times, str]:
    """The whole benchmark; the times, and PostgreSQL's name."""
    times = Times()
    with (
        postgres.server() as conninfo,
        psycopg.connect(conninfo, autocommit=True) as peer,
        ducktail_runner(directory / "ducktail.duckdb") as (own, readable),
        duckdb.connect(str(directory / "plain.duckdb")) as plain,
        duckdb.connect(str(directory / "bare.duckdb")) as bare,
    ):
        runners = {"ducktail": own, "plain": plain_runner(plain), "PostgreSQL": postgres_runner(peer)}
        prepare({**runners, "bare": plain_runner(bare)}, rows)
        peer.execute(OUTBOX)
        peer.execute("SET jit = off")  # it compiles 0.1 s at an update of one row
        peer.execute("VACUUM ANALYZE")
        floor = Bare(bare)
        lone: dict[str, Run] = {"ducktail": own, "plain": runners["plain"], BARE: floor.execute}
        for turn in range(turns):
            bulk(times, f"{rows:,} rows", rows, runners, readable, floor)
            for _ in range(TURNS_OF_THOUSAND):
                bulk(times, THOUSAND, 1000, runners, readable, floor)
            single(times, turn, single_rows, lone, readable)
            print(f"turn {turn + 1} of {turns}", flush=True)
        version = peer.info.parameter_status("server_version")
    return times, f"PostgreSQL {version}"


def page(times: Times, rows: int, peer: str, turns: int) -> str:
    """The result as Markdown."""
    lines = [
        "# What capture costs",
        "",
        f"A table of 10 columns with a primary key and one stream; median of {turns} turns (1,000 rows: "
        f"{TURNS_OF_THOUSAND * turns}); DuckDB {duckdb.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. {peer} with a trigger outbox of the same rows.",
        "",
        f"| work | statement | ducktail | plain DuckDB | times plain | bar | {peer} | times as fast | bar |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for work, bars in ((f"{rows:,} rows", BULK_BARS), (THOUSAND, None)):
        for statement in BULK_BARS:
            own, plain, theirs = (times.median(work, statement, who) for who in WHO)
            most, least = bars[statement] if bars else (THOUSAND_BAR, None)
            cells = (work, statement, _ms(own), _ms(plain), f"{own / plain:.2f}", _bar("≤", most))
            lines.append(_line(*cells, _ms(theirs), f"{theirs / own:.2f}", _bar("≥", least)))
    bulk_work = f"{rows:,} rows"
    lines += [
        "",
        "The bare statements, a floor for what stands around DuckDB (times plain DuckDB): "
        f"{bulk_work}: {'; '.join(_floor(times, bulk_work, name) for name in BULK_BARS)}. "
        f"{THOUSAND}, and with the SELECT of their events: "
        f"{'; '.join(_floor(times, THOUSAND, name, TOLD) for name in BULK_BARS)}.",
        "",
        "| one row, autocommit | ducktail | bare | times bare | bar | plain DuckDB | times plain | bar |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for statement, most in ONE_ROW_BARS.items():
        own, plain, bare = (times.median("one row", statement, who) for who in ("ducktail", "plain", BARE))
        floor = (statement, _ms(own), _ms(bare), f"{own / bare:.2f}", _bar("≤", BARE_BAR))
        lines.append(_line(*floor, _ms(plain), f"{own / plain:.2f}", _bar("≤", most)))
    return "\n".join([*lines, ""])


def _floor(times: Times, work: str, statement: str, *more: str) -> str:
    plain = times.median(work, statement, "plain")
    found = [times.median(work, statement, who) for who in (BARE, *more)]
    return f"{statement} {', '.join(f'{_ms(seconds)} ({seconds / plain:.2f})' for seconds in found)}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _bar(sign: str, bound: float | None) -> str:
    return "" if bound is None else f"{sign} {bound:g}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--single-rows", type=int, default=200)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "capture_cost.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        times, peer = measure(arguments.rows, arguments.turns, arguments.single_rows, Path(directory))
    text = page(times, arguments.rows, peer, arguments.turns)
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()

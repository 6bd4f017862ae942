"""What a full refresh costs of a captured table, of which a thousandth of the rows differs.

    plain       the same refresh of the same table in plain DuckDB, in process: its rows are written anew
    ducktail    the same statements with a stream on the table, until its events are readable: those of
                'all' and 'replace' with one event a row that differs, 'none' with one a row gone or come

All in one run and in turns; the figure is the median of the turns, and CPU time is the process's.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive
from ducktail.sql.session import Session

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, quantity INTEGER, price DECIMAL(12, 2), "
    "currency VARCHAR, placed TIMESTAMP, shipped BOOLEAN, city VARCHAR, note VARCHAR"
)
ROWS = (
    "INSERT INTO {table} SELECT i, i % 10007, 'item ' || i % 997, i % 9 + 1, (i % 100000) / 100.0, 'EUR', "
    "TIMESTAMP '2024-01-01' + i * INTERVAL '1 second', i % 3 = 0, 'city ' || i % 211, "
    "repeat('n', (i % 80) :: INTEGER) FROM range({rows}) AS numbers (i)"
)
# One row in so many differs from what is there.
EVERY = 1000
REPLACE = ("CREATE OR REPLACE TABLE orders AS SELECT * FROM built",)
TRUNCATE = ("BEGIN", "TRUNCATE orders", "INSERT INTO orders SELECT * FROM built", "COMMIT")
# What is done, and the option under which a stream has it.
WORKS = {
    ("CREATE OR REPLACE TABLE ... AS", "replace"): REPLACE,
    ("CREATE OR REPLACE TABLE ... AS", "none"): REPLACE,
    ("TRUNCATE, INSERT", "all"): TRUNCATE,
    ("TRUNCATE, INSERT", "replace"): TRUNCATE,
}
Execute = Callable[[str], None]


def timed(execute: Execute, texts: Sequence[str], wait: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and seconds of CPU time, of these statements and of what is waited for then."""
    start, cpu = time.perf_counter(), time.process_time()
    for text in texts:
        execute(text)
    wait()
    return time.perf_counter() - start, time.process_time() - cpu


def differ(execute: Execute, turn: int) -> None:
    """The new contents: what is there, with other rows that differ at each turn."""
    execute("DROP TABLE IF EXISTS built")
    note = f"CASE WHEN id % {EVERY} = {turn} THEN 'turn {turn}' ELSE note END AS note"
    execute(f"CREATE TABLE built AS SELECT * REPLACE ({note}) FROM orders")


def measure(rows: int, turns: int, directory: Path) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """Times by statement, option and who; `plain` has them under the same option."""
    times: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (name, option), texts in WORKS.items():
        database = Database.open(str(directory / f"{option}{len(times)}.duckdb"))
        session = Session(database)

        def own(text: str, session: Session = session) -> None:
            drive(session.execute(drive(session.parse(text)))).fetch(None)

        def readable(database: Database = database) -> None:
            drive(database.publisher.wait_published(database.commits.last_lsn))

        with duckdb.connect(str(directory / f"plain{option}{len(times)}.duckdb")) as plain:

            def bare(text: str, plain: duckdb.DuckDBPyConnection = plain) -> None:
                plain.execute(text).fetchall()

            for execute in (own, bare):
                execute(f"CREATE TABLE orders ({COLUMNS})")
                execute(ROWS.format(table="orders", rows=rows))
            own(f"CREATE STREAM s ON orders WITH (minimal_changes = '{option}')")
            for turn in range(turns):
                before = database.commits.last_lsn
                for who, execute, wait in (("ducktail", own, readable), ("plain", bare, lambda: None)):
                    differ(execute, turn)
                    execute("CHECKPOINT")
                    times.setdefault((name, option, who), []).append(timed(execute, texts, wait))
                events = database.commits.last_lsn - before
                whole = option == "none" or (texts is TRUNCATE and option != "all")
                assert events == (2 * rows if whole else rows // EVERY), events
        drive(session.close())
        database.close()
        print(f"{name}, {option}", flush=True)
    return times


def page(times: dict[tuple[str, str, str], list[tuple[float, float]]], rows: int, turns: int) -> str:
    """The result as Markdown."""
    lines = [
        "# What a refresh costs",
        "",
        f"A table of 10 columns and {rows:,} rows with a primary key and one stream, of which "
        f"{rows // EVERY:,} rows differ at each refresh; median of {turns} turns; "
        f"DuckDB {duckdb.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| refresh | minimal_changes | events | ducktail | plain DuckDB | times plain | CPU, ducktail "
        "| CPU, plain |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, option in WORKS:
        (own, own_cpu), (plain, plain_cpu) = (
            [statistics.median(turn[i] for turn in times[name, option, who]) for i in (0, 1)]
            for who in ("ducktail", "plain")
        )
        whole = option == "none" or (name.startswith("TRUNCATE") and option != "all")
        lines.append(
            f"| {name} | {option} | {2 * rows if whole else rows // EVERY:,} | {own:.2f} s | {plain:.2f} s | "
            f"{own / plain:.2f} | {own_cpu:.2f} s | {plain_cpu:.2f} s |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Run it and write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--out", type=Path, default=HERE / "results" / "refreshes.md")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        times = measure(given.rows, given.turns, Path(directory))
    text = page(times, given.rows, given.turns)
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

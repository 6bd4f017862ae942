"""A year of New York's flights through a change stream: `make demo`.

Starts a server on an empty file, replays the 336,776 flights of 2013 as they happened (about a
million changes), while two programs follow the stream over the wire, each at its own pace:
averages.py keeps the average delay per airport and hour, mirror.py rebuilds the table in a file of
its own. At the end the rebuilt table is compared with the original, row by row, both ways. Where Spark is
installed, two pipelines then do their part: spark_delays.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import spark_delays
from flights import TABLE, happenings
from replay import replay

HERE = Path(__file__).resolve().parent
PYTHON = Path(sys.executable)
DUCKTAIL = PYTHON.with_name("ducktail")
CONNINFO = "host=127.0.0.1 port={} dbname=flights"
SETUP = (
    TABLE,
    "CREATE STREAM flights_stream ON flights",
    "CREATE CONSUMER GROUP averages ON flights_stream",
    "CREATE CONSUMER GROUP mirror ON flights_stream",
)
SERVE = ("--port", "0", "--http", "127.0.0.1:0", "--log-level", "warning")
GROUPS = ("averages", "mirror")
# A read moves nothing, so looking for what a group has not committed disturbs nobody.
UNREAD = "SELECT lsn FROM STREAM flights_stream CONSUMER GROUP {} LIMIT 1"
LAG = "SELECT group_name, sum(lag_events) :: BIGINT FROM ducktail.offsets GROUP BY group_name"
WORST = """
    SELECT origin, hour, flights, round(minutes / flights, 1) AS average
    FROM delays WHERE flights >= 100 ORDER BY average DESC LIMIT 8
"""
# Progress is shown in place on a terminal, as lines elsewhere, and not more often than this.
IN_PLACE = sys.stdout.isatty()
PROGRESS_S = 0.5 if IN_PLACE else 5.0
# Longest wait for the two programs to catch up once the replay is over.
CATCH_UP_S = 180.0


@contextlib.contextmanager
def started(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own, ended with the block."""
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def port_of(server: subprocess.Popen[str]) -> int:
    """The port that a server says it listens on; the console's address is shown."""
    assert server.stdout
    for line in server.stdout:
        if line.startswith("console at "):
            print(f"{line.strip()}: the streams, while this runs\n")
        if line.startswith("listening on "):
            return int(line.partition(",")[0].rpartition(":")[2])
    raise SystemExit("the server did not start")


class Progress:
    """One line that says how far the replay and the two groups are."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._start = time.monotonic()
        self._shown = self._start
        self.written = 0
        self.finished: dict[str, float] = {}

    def elapsed(self) -> float:
        """Seconds since the replay began."""
        return time.monotonic() - self._start

    def show(self, moment: str) -> None:
        """Show the line when it is time to."""
        if time.monotonic() - self._shown < PROGRESS_S:
            return
        self._shown = time.monotonic()
        lags: dict[str, int] = dict(self._connection.execute(LAG).fetchall())
        read = "   ".join(f"{group} {self.written - lag:>9,}" for group, lag in sorted(lags.items()))
        rate = self.written / self.elapsed()
        line = f"{moment:<16}   written {self.written:>9,} ({rate:>7,.0f}/s)   {read}"
        print(*(("\r", line) if IN_PLACE else (line, "\n")), sep="", end="", flush=True)

    def all_read(self) -> bool:
        """Whether no group has anything left to read; notes when each of them came to the end."""
        for group in GROUPS:
            if group not in self.finished and not self._connection.execute(UNREAD.format(group)).fetchall():
                self.finished[group] = self.elapsed()
        return len(self.finished) == len(GROUPS)


def compare(original: Path, rebuilt: Path) -> tuple[int, int, int]:
    """Rows of the original, rows that only it has, rows that only the rebuilt table has."""
    con = duckdb.connect()
    con.execute(f"ATTACH '{original}' AS original (READ_ONLY); ATTACH '{rebuilt}' AS rebuilt (READ_ONLY)")
    counts = con.execute(
        """
        SELECT (SELECT count(*) FROM original.flights),
            (SELECT count(*) FROM (FROM original.flights EXCEPT FROM rebuilt.flights)),
            (SELECT count(*) FROM (FROM rebuilt.flights EXCEPT FROM original.flights))
        """
    ).fetchone()
    assert counts is not None
    return counts[0], counts[1], counts[2]


def run(directory: Path, limit: int | None, hours: int, on_spark: bool) -> bool:
    """The whole demonstration; True when all that was made of the stream is what the table says."""
    original, rebuilt = directory / "flights.duckdb", directory / "mirror.duckdb"
    with (
        started(DUCKTAIL, "serve", original, *SERVE) as server,
        psycopg.connect(CONNINFO.format(port_of(server)), autocommit=True) as connection,
    ):
        conninfo = connection.info.dsn
        for statement in SETUP:
            connection.execute(statement)
            print(statement)
        print()
        with (
            started(PYTHON, HERE / "averages.py", conninfo),
            started(PYTHON, HERE / "mirror.py", conninfo, rebuilt),
        ):
            progress = Progress(connection)
            for step in replay(connection, happenings(limit, hours, directory)):
                progress.written += step.events
                progress.show(step.until)
            replayed_s = progress.elapsed()
            while not progress.all_read():
                progress.show("all replayed")
                if progress.elapsed() - replayed_s > CATCH_UP_S:
                    raise SystemExit("a group did not catch up; is its program alive?")
                time.sleep(0.1)
        report(connection, progress, replayed_s)
        same_on_spark = not on_spark or spark_end(connection, directory / "spark")
    rows, missing, extra = compare(original, rebuilt)
    print(f"\nThe table has {rows:,} rows. Rebuilt from the stream alone it lacks {missing} of them")
    print(f"and has {extra} others.  {'They are the same.' if missing == extra == 0 else 'THEY DIFFER.'}")
    return missing == extra == 0 and same_on_spark


def spark_end(connection: psycopg.Connection, directory: Path) -> bool:
    """The pipelines on Spark, where it is installed; whether they agree with the table."""
    if importlib.util.find_spec("pyspark") is None:
        print("\nWith Spark (pip install 'ducktail[spark]') two pipelines would follow.")
        return True
    print("\nThe same stream on Spark:")
    return spark_delays.show(connection, directory.resolve())


def report(connection: psycopg.Connection, progress: Progress, replayed_s: float) -> None:
    """The rates and the worst hours."""
    events = progress.written
    print(f"\n\n{events:,} changes written in {replayed_s:.1f} s: {events / replayed_s:,.0f} a second")
    for group, seconds in sorted(progress.finished.items()):
        print(f"group {group:<9} had read and committed all of them after {seconds:.1f} s")
    print("\nThe worst hours of 2013\n\n  airport  hour   flights  average delay")
    for origin, hour, flights, average in connection.execute(WORST):
        print(f"  {origin:<7}  {hour:02d}:00 {flights:>8,}  {average:>6} minutes")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", type=int, help="only the first so many flights")
    parser.add_argument("--hours", type=int, default=24, help="hours that one transaction replays (24)")
    parser.add_argument("--directory", type=Path, default=Path("build/demo"), help="made anew; files stay")
    parser.add_argument("--no-spark", action="store_true", help="leave out the pipelines on Spark")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.directory, ignore_errors=True)
    arguments.directory.mkdir(parents=True)
    same = run(arguments.directory, arguments.limit, arguments.hours, not arguments.no_spark)
    print(
        f"\nLook for yourself:\n"
        f"  make serve DB={arguments.directory / 'flights.duckdb'} ARGS='--http 127.0.0.1:5481'\n"
        '  psql "host=127.0.0.1 port=5480 dbname=flights" -c "SELECT * FROM STREAM flights_stream LIMIT 5"\n'
        "  the console: http://127.0.0.1:5481/"
    )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()

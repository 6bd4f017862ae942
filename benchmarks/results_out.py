"""Ordinary results to ordinary clients, beside PostgreSQL serving the same rows: `make bench`.

One table of ten columns, the same rows in both, asked for in turns by the same clients. `socket` is a
client that looks at nothing: its figure is the server's own, others' are bounded by the client as well.
Every time counts from connecting to the last row. CPU is that of the whole server process (of all
PostgreSQL's processes); memory the most that the server held resident while the answer went out, beyond
what it held before (Linux only).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import asyncpg
import duckdb
import memory
import postgres
import psycopg
from result_readers import COPIES, Reader, first_row, query, raw, raw_many, readers, spread

HERE = Path(__file__).resolve().parent
OURS, THEIRS = "ducktail", "PostgreSQL"
BAR, FIRST_ROW_BAR_MS = 1.2, 50
COLUMNS = (
    "id BIGINT, quantity INTEGER, code VARCHAR, note VARCHAR, weight DOUBLE PRECISION, price DECIMAL(12, 2), "
    "made TIMESTAMP, seen TIMESTAMPTZ, due DATE, paid BOOLEAN"
)
ROWS = """
    SELECT i, (i * 7919 % 10007)::INTEGER, 'C' || i % 9973,
        CASE WHEN i % 7 > 0 THEN 'The quick brown fox number ' || i || ' jumps over ' || i * 31 % 65537
            || ' lazy dogs and does not look back' END,
        sqrt(i), (i * 37 % 10000000) / 100.0, TIMESTAMP '2024-01-01' + to_microseconds(i * 1234567),
        CASE WHEN i % 11 > 0 THEN (TIMESTAMP '2020-01-01' + to_microseconds(i * 765432))::TIMESTAMPTZ END,
        DATE '2000-01-01' + (i % 9000)::INTEGER, CASE WHEN i % 5 > 0 THEN i % 3 = 0 END
    FROM range({first}, {last}) AS numbers (i)
"""
# Rows of one INSERT, and how often the first row is waited for in a turn.
LOAD = 500_000
FIRST_ROWS = 5
CONNECTIONS = 16
SETTLED_S = 0.2
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A server under measurement: where it is, and the processes that it is made of.

    Args:
        pid: the process, or the parent of all of them.
    """

    name: str
    conninfo: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds that it has used, its children's too."""
        mine = self._stat(self.pid)
        # utime, stime, and those of children that have ended; then the children that live.
        ticks = sum(map(int, mine[11:15]))
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = self._stat(int(entry.name))
                except OSError:
                    continue
                if int(stat[1]) == self.pid:
                    ticks += sum(map(int, stat[11:13]))
        return ticks / TICKS

    @staticmethod
    def _stat(pid: int) -> list[str]:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

    def resident_mib(self, what: str) -> float:
        """VmRSS, or VmHWM: the most since `forget_peak`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(what))
        return int(line.split()[1]) / 1024

    def forget_peak(self) -> None:
        """Count the most resident memory from now on."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@dataclass(slots=True)
class Found:
    """What was measured of one piece of work on one server, a turn each."""

    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    grown_mib: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Rows a second, the median."""
        return statistics.median(self.rates)


@dataclass(slots=True)
class Findings:
    """All that was measured, by (work, server)."""

    reads: dict[tuple[str, str], Found] = field(default_factory=dict)
    first_ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def read(self, work: str, server: Server, reading: Callable[[], tuple[int, Sequence[float]]]) -> None:
        """Measure one reading."""
        found = self.reads.setdefault((work, server.name), Found())
        server.forget_peak()
        before, cpu, start = server.resident_mib("VmRSS"), server.cpu_s(), time.perf_counter()
        rows, each = reading()
        seconds = time.perf_counter() - start
        # PostgreSQL's processes end with their connections, and count once the first of them has seen it.
        time.sleep(SETTLED_S)
        found.rates.append(rows / seconds)
        found.cpu_s.append((server.cpu_s() - cpu) / rows * 1_000_000)
        found.grown_mib.append(max(0.0, server.resident_mib("VmHWM") - before))
        if each:
            found.spreads.append(spread(each))
        print(
            f"{work:<28} {server.name:<10} {found.rates[-1]:>10,.0f} rows/s {found.cpu_s[-1]:6.2f} s CPU/M "
            f"{found.grown_mib[-1]:6.1f} MiB" + (f"  spread {found.spreads[-1]:.2f}" if each else ""),
            flush=True,
        )

    def first(self, work: str, server: Server, sql: str) -> None:
        """Wait for the first row of an answer, some times."""
        found = [first_row(query(sql), server.conninfo) * 1000 for _ in range(FIRST_ROWS)]
        self.first_ms.setdefault((work, server.name), []).extend(found)
        times = " ".join(f"{ms:.1f}" for ms in found)
        print(f"first row, {work:<17} {server.name:<10} {times} ms", flush=True)


def fill(own: psycopg.Connection, peer: psycopg.Connection, rows: int, large: int) -> None:
    """The table in both, a part of it for many connections, and in ours a larger one."""
    for table, count in (("ordinary", rows), ("part", rows // 8), ("large", large)):
        own.execute(f"CREATE TABLE {table} ({COLUMNS})")
        for first in range(0, count, LOAD):
            text = ROWS.format(first=first, last=min(first + LOAD, count))
            own.execute(f"INSERT INTO {table} {text}")
        if table == "large":
            continue
        peer.execute(f"CREATE TABLE {table} ({COLUMNS})")
        with (
            own.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)") as taken,
            peer.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)") as given,
        ):
            for piece in taken:
                given.write(piece)
    own.execute("CHECKPOINT")
    peer.execute("VACUUM ANALYZE")
    peer.execute("CHECKPOINT")


def measure(
    servers: Sequence[Server], chosen: dict[str, Reader], turns: int, rows: int, large: int
) -> Findings:
    """All turns."""
    findings = Findings()
    for _ in range(turns):
        for work, sql in first_rows(rows, large).items():
            for server in servers:
                if server.name == OURS or "large" not in sql:
                    findings.first(work, server, sql)
        for name, reader in chosen.items():
            for server in servers:
                findings.read(name, server, partial(_counted, reader, server.conninfo, rows))
        many = partial(raw_many, query("SELECT * FROM part"), CONNECTIONS)
        for server in servers:
            findings.read(f"socket x {CONNECTIONS}, text", server, partial(many, server.conninfo))
        if large:
            reader = partial(raw, query("SELECT * FROM large"))
            work = f"socket, text, {large:,} rows"
            findings.read(work, servers[0], partial(_counted, reader, servers[0].conninfo, large))
    return findings


def first_rows(rows: int, large: int) -> dict[str, str]:
    """Answers of some sizes, by their number of rows."""
    found = {"1,000 rows": "SELECT * FROM ordinary LIMIT 1000", f"{rows:,} rows": "SELECT * FROM ordinary"}
    return found | ({f"{large:,} rows": "SELECT * FROM large"} if large else {})


def _counted(reader: Reader, conninfo: str, rows: int) -> tuple[int, Sequence[float]]:
    count = reader(conninfo)
    assert count == rows, f"{count} rows of {rows}"
    return count, ()


def compare(own: psycopg.Connection, peer: psycopg.Connection) -> None:
    """Both must say the same, byte for byte."""
    for options in COPIES.values():
        digests = []
        for connection in (own, peer):
            digest = hashlib.sha256()
            with connection.cursor().copy(
                f"COPY (SELECT * FROM part ORDER BY id) TO STDOUT{options}"
            ) as copy:
                for piece in copy:
                    digest.update(piece)
            digests.append(digest.digest())
        assert digests[0] == digests[1], f"COPY{options} differs"


def run(rows: int, large: int, turns: int, only: str, directory: Path) -> str:
    """The whole benchmark; the result as a Markdown page."""
    own = memory.Server(directory / "bench.duckdb", *memory.QUIET)
    try:
        with postgres.server() as conninfo, psycopg.connect(conninfo, autocommit=True) as peer:
            print(f"filling both with the same {rows:,} rows ...", flush=True)
            fill(own.connection, peer, rows, large)
            compare(own.connection, peer)
            data = peer.execute("SHOW data_directory").fetchone() or ("",)
            parent = int((Path(data[0]) / "postmaster.pid").read_text().split()[0])
            servers = Server(OURS, own.conninfo, own.process.pid), Server(THEIRS, conninfo, parent)
            chosen = readers("SELECT * FROM ordinary", "ordinary", rows)
            chosen = {name: reader for name, reader in chosen.items() if re.search(only, name)}
            findings = measure(servers, chosen, turns, rows, large)
            version = peer.info.parameter_status("server_version")
    finally:
        own.close()
    return page(findings, rows, turns, f"PostgreSQL {version}")


def page(findings: Findings, rows: int, turns: int, peer: str) -> str:
    """The result as Markdown."""
    lines = [
        "# Ordinary results",
        "",
        f"{rows:,} rows of 10 columns; median of {turns} turns; DuckDB {duckdb.__version__}, "
        f"psycopg {psycopg.__version__}, asyncpg {asyncpg.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. {peer} serves the same rows. `socket` looks at nothing. "
        f"Bar: {BAR} times PostgreSQL's rows a second. CPU: the server's seconds a million rows. "
        "Memory: the most that ducktail grew by while the answer went out.",
        "",
        f"| reader | ducktail, rows/s | {peer} | ratio | CPU | {THEIRS}'s CPU | memory |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for work in dict.fromkeys(work for work, _ in findings.reads):
        own, theirs = (findings.reads.get((work, name)) for name in (OURS, THEIRS))
        assert own is not None
        grown = f"{max(own.grown_mib):.0f} MiB"
        cells = [work, f"{own.rate:,.0f}", "", "", f"{statistics.median(own.cpu_s):.2f}", "", grown]
        if theirs is not None:
            cells[2:4] = f"{theirs.rate:,.0f}", f"{own.rate / theirs.rate:.2f}"
            cells[5] = f"{statistics.median(theirs.cpu_s):.2f}"
        lines.append(_line(*cells))
    for (work, name), found in findings.reads.items():
        if found.spreads:
            worst = max(found.spreads)
            lines += ["", f"{work}, {name}: the last of them ended after {worst:.2f} times the first's time."]
    lines += [
        "",
        f"| first row of | ducktail, median | longest | {peer}, median | bar |",
        "|---|---:|---:|---:|---:|",
    ]
    for work in dict.fromkeys(work for work, _ in findings.first_ms):
        ours, other = findings.first_ms[work, OURS], findings.first_ms.get((work, THEIRS))
        median = f"{statistics.median(other):.1f} ms" if other else ""
        longest = f"{max(ours):.1f} ms"
        lines.append(
            _line(work, f"{statistics.median(ours):.1f} ms", longest, median, f"≤ {FIRST_ROW_BAR_MS} ms")
        )
    return "\n".join([*lines, ""])


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--large-rows", type=int, default=10_000_000, help="of the largest answer; 0: none")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn of 100,000 rows")
    parser.add_argument("--only", default="", help="readers whose names match this pattern")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "results_out.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.large_rows, arguments.turns = 100_000, 0, 1
    # What libpq's clients print and read times in; the others ask for it themselves or read binary.
    os.environ["PGTZ"] = "UTC"
    with tempfile.TemporaryDirectory() as directory:
        text = run(arguments.rows, arguments.large_rows, arguments.turns, arguments.only, Path(directory))
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()

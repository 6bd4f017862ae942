"""What five streams on a table cost its writers, beside one: `python benchmarks/shared_log.py`.

The log is the table's, not the stream's: a commit writes the same however many streams are on it.
What grows with the streams is making the events readable, behind the commit. Two databases, in turns,
in one run; medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from capture_cost import ONE_ROW, ONE_ROW_FROM, ducktail_runner, prepare, timed

STREAMS = (1, 5)
INSERT = "INSERT INTO orders SELECT * FROM source"
EMPTY = "DELETE FROM orders WHERE id < {rows}"
SINGLE_ROWS = 50


def measure(rows: int, turns: int) -> dict[tuple[str, int], list[float]]:
    """Seconds of each turn by (what, number of streams)."""
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        runners = {}
        for count in STREAMS:
            path = Path(directory) / f"{count}.duckdb"
            runners[count] = stack.enter_context(ducktail_runner(path))
            run, _ = runners[count]
            prepare({"ducktail": run}, rows)
            for number in range(1, count):
                run(f"CREATE STREAM more_{number} ON orders WITH (partitions = {number + 1})", ())
        for turn in range(-1, turns):
            for count, (run, readable) in runners.items():
                first = ONE_ROW_FROM + (turn + 1) * SINGLE_ROWS
                numbers = [(number,) for number in range(first, first + SINGLE_ROWS)]
                times = {
                    "committed": timed(run, INSERT, [()], None),
                    "then readable": timed(run, "", [], readable),
                    "one row committed": timed(run, ONE_ROW["insert"], numbers, None) / SINGLE_ROWS,
                }
                run(EMPTY.format(rows=rows), ())
                readable()
                if turn >= 0:  # the first one warms up
                    for what, seconds in times.items():
                        found.setdefault((what, count), []).append(seconds)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    found = measure(arguments.rows, arguments.turns)
    for what in dict.fromkeys(what for what, _ in found):
        one, five = (statistics.median(found[what, count]) * 1000 for count in STREAMS)
        print(f"{what}: {one:,.2f} ms with one stream, {five:,.2f} ms with five ({five / one:.2f})")


if __name__ == "__main__":
    main()

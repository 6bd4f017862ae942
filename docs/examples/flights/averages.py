"""Keeps the average delay per airport and hour of the day, in a table beside the flights.

    python averages.py "host=127.0.0.1 port=5480"

What an event changes and how far the group has come are written in one transaction, so each event
counts exactly once, wherever this program is stopped, killed or started again.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import psycopg

TABLE = """
    CREATE TABLE IF NOT EXISTS delays (
        origin VARCHAR, hour INTEGER, flights BIGINT, minutes BIGINT, PRIMARY KEY (origin, hour)
    )
"""
READ = "SELECT before, after FROM STREAM flights_stream CONSUMER GROUP averages LIMIT 5000"
COMMIT = "COMMIT OFFSETS ON flights_stream CONSUMER GROUP averages"
SHAPE = '[{"origin": "VARCHAR", "hour": "INTEGER", "flights": "BIGINT", "minutes": "BIGINT"}]'
ADD = f"""
    INSERT INTO delays SELECT unnest(from_json(%s, '{SHAPE}'), recursive := true)
    ON CONFLICT DO UPDATE SET flights = flights + excluded.flights, minutes = minutes + excluded.minutes
"""
# How long to rest when there is nothing new.
PAUSE_S = 0.1

Change = Counter[tuple[str, int]]


def count(row: dict[str, Any] | None, sign: int, flights: Change, minutes: Change) -> None:
    """Add what one version of a flight says (sign +1), or take it back (-1)."""
    if row is not None and row["dep_delay"] is not None:
        place = row["origin"], int(row["scheduled"][11:13])
        flights[place] += sign
        minutes[place] += sign * row["dep_delay"]


def step(connection: psycopg.Connection) -> int:
    """Read a batch, write what it changes and commit both; how many events there were."""
    flights, minutes = Change(), Change()
    with connection.transaction():
        events = connection.execute(READ).fetchall()
        if not events:
            return 0
        for before, after in events:
            count(before, -1, flights, minutes)
            count(after, +1, flights, minutes)
        changes = [
            {"origin": origin, "hour": hour, "flights": number, "minutes": minutes[origin, hour]}
            for (origin, hour), number in flights.items()
        ]
        connection.execute(ADD, [json.dumps(changes)])
        connection.execute(COMMIT)
    return len(events)


def main() -> None:
    """Follow the stream until stopped."""
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        connection.execute(TABLE)
        while True:
            if step(connection) == 0:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()

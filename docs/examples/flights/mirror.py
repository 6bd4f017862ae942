"""Rebuilds the table `flights` in a DuckDB file of its own, from nothing but the stream.

    python mirror.py "host=127.0.0.1 port=5480" mirror.duckdb

Only the newest version of each flight in a batch is written, and writing it again would change
nothing: so it is enough that the offset is committed after the batch. Killed in between, the next
run reads the batch once more and comes to the same table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import duckdb
import psycopg
from flights import COLUMNS, TABLE, shape
from psycopg.types.string import TextLoader

READ = "SELECT * FROM STREAM flights_stream CONSUMER GROUP mirror LIMIT 10000"
COMMIT = "COMMIT OFFSETS ON flights_stream CONSUMER GROUP mirror"
KEY, AFTER = 4, 6  # columns of an event
WRITE = f"""
    INSERT OR REPLACE INTO flights BY NAME
    SELECT unnest(from_json($1, '{shape(tuple(COLUMNS))}'), recursive := true)
"""
DELETE = """DELETE FROM flights WHERE id IN (SELECT unnest(from_json($1, '[{"id": "INTEGER"}]')).id)"""
# How long to rest when there is nothing new.
PAUSE_S = 0.1


def step(source: psycopg.Connection, target: duckdb.DuckDBPyConnection) -> int:
    """Read a batch, write it, then commit the offset; how many events there were."""
    events = source.execute(READ).fetchall()
    if not events:
        return 0
    newest = {event[KEY]: event[AFTER] for event in events}
    target.begin()
    target.execute(DELETE, [array(key for key, after in newest.items() if after is None)])
    target.execute(WRITE, [array(after for after in newest.values() if after is not None)])
    target.commit()
    source.execute(COMMIT)
    return len(events)


def array(values: Iterable[str]) -> str:
    """A JSON array of values that are JSON already."""
    return "[" + ",".join(values) + "]"


def main() -> None:
    """Follow the stream until stopped."""
    with psycopg.connect(sys.argv[1], autocommit=True) as source, duckdb.connect(sys.argv[2]) as target:
        # The images stay text: DuckDB reads them, and decoding them here would take most of the time.
        source.adapters.register_loader("jsonb", TextLoader)
        target.execute(TABLE.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
        while True:
            if step(source, target) == 0:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()

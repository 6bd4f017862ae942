"""Replays the flights of 2013 into the table `flights` of a running server, as they happened.

python replay.py "host=127.0.0.1 port=5480" [--limit 20000] [--hours 24]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from flights import DEPARTED, LANDED, SCHEDULED, Hours, happenings, shape

INSERT = f"""
    INSERT INTO flights ({", ".join(SCHEDULED)})
    SELECT unnest(from_json(%s, '{shape(SCHEDULED)}'), recursive := true)
"""
UPDATE = """
    UPDATE flights SET {time} = batch.{time}, {delay} = batch.{delay}
    FROM (SELECT unnest(from_json(%s, '{shape}'), recursive := true)) AS batch
    WHERE flights.id = batch.id
"""
DEPART = UPDATE.format(time="departed", delay="dep_delay", shape=shape(DEPARTED))
LAND = UPDATE.format(time="landed", delay="arr_delay", shape=shape(LANDED))
CANCEL = """DELETE FROM flights WHERE id IN (SELECT unnest(from_json(%s, '["INTEGER"]')))"""


def replay(connection: psycopg.Connection, steps: Iterator[Hours]) -> Iterator[Hours]:
    """Write step after step, each in one transaction; gives each step once it is committed."""
    for step in steps:
        happened = (
            (INSERT, step.scheduled),
            (DEPART, step.departed),
            (LAND, step.landed),
            (CANCEL, step.cancelled),
        )
        with connection.transaction():
            for statement, rows in happened:
                if rows != "[]":
                    connection.execute(statement, [rows])
        yield step


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("conninfo")
    parser.add_argument("--limit", type=int, help="only the first so many flights")
    parser.add_argument("--hours", type=int, default=24, help="hours a transaction (24)")
    arguments = parser.parse_args()
    with (
        psycopg.connect(arguments.conninfo, autocommit=True) as connection,
        tempfile.TemporaryDirectory() as scratch,
    ):
        steps = happenings(arguments.limit, arguments.hours, Path(scratch))
        for step in replay(connection, steps):
            print(step.until, step.events, flush=True)


if __name__ == "__main__":
    main()

"""Keeps a table equal to a stream's, in SQLite: from a whole copy on, and from a new one after a gap.

    python whole_copy.py "host=127.0.0.1 port=5480 dbname=shop" orders_stream mirror mirror.sqlite

Rows and events are written first, and the offset is committed behind them. Killed in between it gets the
same events in the same order again, which end in the same rows. A copy has no deletes: once it is read,
what has an LSN before it is no more in the table.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import time

import psycopg
from psycopg import sql

BATCH = 500

stopping = False


def stop(number: int, frame: object) -> None:
    """SIGTERM or Ctrl-C: finish the batch."""
    global stopping
    stopping = True


MAKE = "CREATE CONSUMER GROUP IF NOT EXISTS {group} ON {stream} START SNAPSHOT WITH (on_gap = 'snapshot')"
READ = """SELECT lsn, op, key::VARCHAR, after::VARCHAR
          FROM STREAM {stream} CONSUMER GROUP {group} WAIT '1 s' LIMIT {batch}"""
COMMIT = "COMMIT OFFSETS ON {stream} CONSUMER GROUP {group}"
DESCRIBE = "DESCRIBE CONSUMER GROUP {group} ON {stream}"


def apply(mirror: sqlite3.Connection, events: list[tuple[int, str, str, str]]) -> None:
    """One batch, in one transaction."""
    with mirror:
        for lsn, op, key, after in events:
            if op == "delete":
                mirror.execute("DELETE FROM mirror WHERE key = ?", (key,))
            elif op != "schema":
                mirror.execute("INSERT OR REPLACE INTO mirror VALUES (?, ?, ?)", (key, after, lsn))


def work(arguments: argparse.Namespace, mirror: sqlite3.Connection) -> None:
    """Read, apply and commit until SIGTERM."""
    names = {
        "stream": sql.Identifier(arguments.stream),
        "group": sql.Identifier(arguments.group),
        "batch": sql.Literal(BATCH),
    }
    make, read, commit, describe = (sql.SQL(text).format(**names) for text in (MAKE, READ, COMMIT, DESCRIBE))
    with psycopg.connect(arguments.conninfo, autocommit=True) as connection:
        connection.execute(make)
        while not stopping:
            events = connection.execute(read).fetchall()
            apply(mirror, events)
            connection.execute(commit)
            group: dict[str, str] = dict(connection.execute(describe).fetchall())
            if group.get("copy_rows_left") == "0":
                with mirror:
                    mirror.execute("DELETE FROM mirror WHERE lsn < ?", (int(group["copy_first_lsn"]),))


def main() -> None:
    """Work, and connect again where the connection is lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("conninfo", "stream", "group", "mirror"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    mirror = sqlite3.connect(arguments.mirror)
    mirror.execute("CREATE TABLE IF NOT EXISTS mirror (key TEXT PRIMARY KEY, row TEXT, lsn INTEGER)")
    while not stopping:
        try:
            work(arguments, mirror)
        except psycopg.OperationalError as error:
            print(error, flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    main()

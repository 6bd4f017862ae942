"""A worker that shares a consumer group and writes into the same database: every event exactly once.

    python exactly_once.py "host=127.0.0.1 port=5480 dbname=shop" orders_stream billing worker-1 billed

What it writes and how far it is commit in one transaction, or neither does: killed at any moment, it
has done all of a batch or nothing. Where another member has its partitions meanwhile, COMMIT is refused
and nothing is written. The target is a table: CREATE TABLE billed (lsn BIGINT, partition INT, key VARCHAR,
member VARCHAR).
"""

from __future__ import annotations

import argparse
import signal
import time

import psycopg
from psycopg import sql

BATCH = 200

stopping = False


def stop(number: int, frame: object) -> None:
    """SIGTERM or Ctrl-C: finish the batch."""
    global stopping
    stopping = True


APPLY = """INSERT INTO {target} SELECT lsn, partition, key::VARCHAR, {member}
           FROM STREAM {stream} CONSUMER GROUP {group} MEMBER {member} WAIT '1 s' LIMIT {batch}"""
COMMIT = "COMMIT OFFSETS ON {stream} CONSUMER GROUP {group} MEMBER {member}"
LEAVE = "LEAVE CONSUMER GROUP {group} ON {stream} MEMBER {member}"


def work(arguments: argparse.Namespace) -> None:
    """A batch a transaction, until SIGTERM."""
    names = {
        "target": sql.Identifier(arguments.target),
        "stream": sql.Identifier(arguments.stream),
        "group": sql.Identifier(arguments.group),
        "member": sql.Literal(arguments.member),
        "batch": sql.Literal(BATCH),
    }
    apply, commit, leave = (sql.SQL(text).format(**names) for text in (APPLY, COMMIT, LEAVE))
    with psycopg.connect(arguments.conninfo, autocommit=True) as connection:
        while not stopping:
            try:
                with connection.transaction():
                    # It waits for events first, and takes the transaction's snapshot then.
                    connection.execute(apply)
                    time.sleep(arguments.work)
                    connection.execute(commit)
            except psycopg.errors.SerializationFailure:
                # Rolled back as a whole: another has done it, or will. Read again.
                print(f"{arguments.member}: refused", flush=True)
        connection.execute(leave)


def main() -> None:
    """Work, and connect again where the connection is lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("conninfo", "stream", "group", "member", "target"):
        parser.add_argument(name)
    parser.add_argument("--work", type=float, default=0, help="seconds that a batch takes besides")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while not stopping:
        try:
            work(arguments)
        except psycopg.OperationalError as error:
            # Whether the last COMMIT took effect does not matter: the offset tells.
            print(f"{arguments.member}: {error}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main()

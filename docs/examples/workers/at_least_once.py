"""A worker that shares a consumer group and writes elsewhere: every event at least once.

    python at_least_once.py "host=127.0.0.1 port=5480 dbname=shop" orders_stream billing worker-1 out.txt

It reads as a member, processes, and commits afterwards. Killed in between, its events come again, to it or
to who has its partitions then; so what it does with an event must do no harm when done twice. Here an
event is a line of a file. SIGTERM ends it, and its partitions go to the others at once.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

BATCH = 200

stopping = False


def stop(number: int, frame: object) -> None:
    """SIGTERM or Ctrl-C: finish the batch."""
    global stopping
    stopping = True


def statement(text: str, stream: str, group: str, member: str) -> sql.Composed:
    """One of the statements below, with its names."""
    names = {"stream": sql.Identifier(stream), "group": sql.Identifier(group), "member": sql.Literal(member)}
    return sql.SQL(text).format(**names, batch=sql.Literal(BATCH))


READ = """SELECT partition, lsn, key::VARCHAR FROM STREAM {stream}
          CONSUMER GROUP {group} MEMBER {member} WAIT '1 s' LIMIT {batch}"""
COMMIT = "COMMIT OFFSETS ON {stream} CONSUMER GROUP {group} MEMBER {member}"
LEAVE = "LEAVE CONSUMER GROUP {group} ON {stream} MEMBER {member}"


def process(rows: list[tuple[Any, ...]], output: Path) -> None:
    """What is to be done with events: durable before they are committed."""
    with output.open("a") as file:
        file.writelines(f"event {partition} {lsn} {key}\n" for partition, lsn, key in rows)


def note(text: str, output: Path) -> None:
    """What has become of the commit; for who wants to know."""
    with output.open("a") as file:
        file.write(f"{text}\n")


def work(arguments: argparse.Namespace) -> None:
    """Read, process, commit, until SIGTERM."""
    names = (arguments.stream, arguments.group, arguments.member)
    read, commit, leave = (statement(text, *names) for text in (READ, COMMIT, LEAVE))
    # Autocommit: inside a transaction a read would see nothing new.
    with psycopg.connect(arguments.conninfo, autocommit=True) as connection:
        while not stopping:
            rows = connection.execute(read).fetchall()
            if not rows:
                continue  # The read has waited for some: that is no busy loop.
            process(rows, arguments.output)
            time.sleep(arguments.work)
            try:
                connection.execute(commit)
                note("committed", arguments.output)
            except psycopg.errors.SerializationFailure:
                # It took too long, and others have its partitions: what they read is not its any more.
                note("fenced", arguments.output)
        connection.execute(leave)


def main() -> None:
    """Work, and connect again where the connection is lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("conninfo", "stream", "group", "member"):
        parser.add_argument(name)
    parser.add_argument("output", type=Path)
    parser.add_argument("--work", type=float, default=0, help="seconds that a batch takes besides")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while not stopping:
        try:
            work(arguments)
        except psycopg.OperationalError as error:
            print(f"{arguments.member}: {error}", flush=True)
            note("lost", arguments.output)
            time.sleep(1)


if __name__ == "__main__":
    main()

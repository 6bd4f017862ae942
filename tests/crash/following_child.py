"""A program that follows a stream while writers of the same process write, until it is killed.

`python following_child.py FILE NOTES GROUP INTERVAL`: two threads insert into the stream's table, each id
once. An event is processed by a line in NOTES; how many were is printed after each batch. GROUP "-" is none.
"""

from __future__ import annotations

import os
import sys
import threading

import ducktail

WRITERS = 2


def write(con: ducktail.Connection, place: int, start: int) -> None:
    """Insert rows with ids of its own, in transactions of 1 to 7."""
    number = start
    while True:
        size = 1 + number % 7
        values = ", ".join(f"({(number + i) * WRITERS + place}, 'x')" for i in range(size))
        con.execute(f"INSERT INTO t VALUES {values}")
        number += size


def main(path: str, notes: str, group: str | None, interval: int) -> None:
    """Follow until the end, which comes from outside."""
    con = ducktail.connect(path)
    [(start,)] = con.execute(f"SELECT coalesce(max(id), 0) // {WRITERS} + 1 FROM t").fetchall()
    for place in range(WRITERS):
        threading.Thread(target=write, args=(con.duplicate(), place, start), daemon=True).start()
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for batch in con.streams.open("s").follow(
        "reader", group, batch_size=20, buffer_size=100, checkpoint_every=interval
    ):
        # What is written to the kernel stays, though the process is killed.
        os.write(out, "".join(f"{event.lsn} {event.key}\n" for event in batch).encode())
        print(len(batch), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], None if sys.argv[3] == "-" else sys.argv[3], int(sys.argv[4]))

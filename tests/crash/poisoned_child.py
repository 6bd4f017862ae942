"""A worker that a poisonous event kills: `python poisoned_child.py CONNINFO MEMBER FILE POISON`.

It reads group g as a member, writes the id of each event to FILE, and commits each batch. An event whose id
is in POISON, numbers with commas between them, ends it by SIGKILL. It ends by itself once the group has
nothing left for it.
"""

from __future__ import annotations

import os
import signal
import sys

import psycopg


def main(conninfo: str, member: str, path: str, poison: set[int]) -> None:
    """Work until there is nothing to do."""
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        left = "select sum(lag_events)::bigint from ducktail.offsets"
        while (row := connection.execute(left).fetchone()) is not None and row[0]:
            found = connection.execute(
                "select (key->>'id')::int from stream s consumer group g member %s wait '200 ms' limit 40",
                (member,),
            ).fetchall()
            for (number,) in found:
                if number in poison:
                    os.kill(os.getpid(), signal.SIGKILL)
                # What is written to the kernel stays, though the process is killed.
                os.write(out, f"{number}\n".encode())
            try:
                connection.execute(f"commit offsets on s consumer group g member '{member}'")
            except psycopg.errors.SerializationFailure:
                continue


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], {int(part) for part in sys.argv[4].split(",")})

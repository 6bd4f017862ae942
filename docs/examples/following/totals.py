"""Follows a stream in process and keeps a file of totals: sales by customer, each event counted once.

    python totals.py shop.duckdb totals.json

The file says up to which LSN it counts, and is replaced as a whole; so it needs no luck when the program is
killed: what comes again after that has been counted, and is passed over. Ctrl-C ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import ducktail


def read(path: Path) -> tuple[int, dict[str, int]]:
    """The last LSN that is counted, and the totals."""
    if not path.exists():
        return 0, {}
    kept = json.loads(path.read_text())
    return kept["lsn"], kept["totals"]


def write(path: Path, lsn: int, totals: dict[str, int]) -> None:
    """Replace the file, durably."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump({"lsn": lsn, "totals": totals}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def main(database: str, target: Path) -> None:
    """Follow until Ctrl-C."""
    lsn, totals = read(target)
    with ducktail.connect(database) as con:
        orders = con.streams.open("orders_stream")
        signal.signal(signal.SIGINT, lambda number, frame: orders.stop())
        for batch in orders.follow("totals"):
            for event in batch:
                if event.lsn <= lsn or event.op == "schema":
                    continue
                for image, sign in ((event.before, -1), (event.after, 1)):
                    if image is not None:
                        row = json.loads(image)
                        totals[row["customer"]] = totals.get(row["customer"], 0) + sign * row["amount"]
            lsn = max(lsn, batch.last_lsn)
            write(target, lsn, totals)
            print(f"{len(batch)} events, counted up to LSN {lsn}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""A program that follows a stream is killed (-9), again and again, while it writes and reads.

Checked at the end: each committed event was processed at least once and none was passed over; after each
kill at most one checkpoint interval of events came again; the position never went back.
DUCKTAIL_KILLS says how often (20 for all of them).
"""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
from amounts import amount
from preloaded import Forked

import ducktail

HERE = Path(__file__).resolve().parent
INTERVAL = 50
KILLS = amount("DUCKTAIL_KILLS", 2, 20)
# A run is killed when it has processed about so many events.
EVENTS_MIN, EVENTS_MAX = 30, 600


def run_until_killed(path: Path, notes: Path, group: str, events: int) -> None:
    """One life of the program."""
    child = Forked([str(path), str(notes), group, str(INTERVAL)], program=HERE / "following_child.py")
    assert child.stdout is not None
    seen = 0
    while seen < events:
        line = child.stdout.readline()
        assert line, "the program ended by itself"
        seen += int(line)
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait()


def processed(notes: Path) -> list[tuple[int, int]]:
    """LSN and id of each event that was processed, in the order in which it was."""
    pairs = []
    for line in notes.read_text().splitlines():
        lsn, key = line.split(" ", 1)
        pairs.append((int(lsn), json.loads(key)["id"]))
    return pairs


@pytest.mark.slow
@pytest.mark.timeout(300 + 15 * KILLS)
@pytest.mark.parametrize("group", ["-", "g"])
def test_each_event_is_processed_and_one_interval_comes_again(tmp_path: Path, group: str) -> None:
    path, notes = tmp_path / "shop.duckdb", tmp_path / "notes"
    chance = random.Random(f"{group} {KILLS}")
    with ducktail.connect(path) as con:
        con.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
        con.execute("CREATE STREAM s ON t WITH (partitions = 4)")
        con.execute("CREATE CONSUMER GROUP g ON s")
        con.execute("INSERT INTO t SELECT -i, 'before' FROM range(1, 200) r(i)")
    lives = []
    positions: dict[int, int] = {}
    for _ in range(KILLS):
        done = len(processed(notes)) if notes.exists() else 0
        run_until_killed(path, notes, group, chance.randint(EVENTS_MIN, EVENTS_MAX))
        lives.append(processed(notes)[done:])
        with ducktail.connect(path) as con:
            found = con.streams.get_checkpoint("s", "reader", None if group == "-" else group)
            reached = {} if found is None else dict(found.position)
            assert all(reached[partition] >= lsn for partition, lsn in positions.items())
            positions = reached
            # And events that are written between the lives.
            con.execute("INSERT INTO t SELECT min(id) - 1, 'between' FROM t")
    # A last life, which ends where the stream does.
    with ducktail.connect(path) as con:
        events = con.execute("SELECT lsn, (key->>'id')::INT FROM STREAM s").fetchall()
        stream = con.streams.open("s")
        last = []
        for batch in stream.follow("reader", None if group == "-" else group, checkpoint_every=INTERVAL):
            last += [(event.lsn, json.loads(event.key or "")["id"]) for event in batch]
            if batch.last_lsn == events[-1][0]:
                stream.stop()
        lives.append(last)

    assert all(lives)
    before: set[tuple[int, int]] = set()
    for life in lives:
        again = before.intersection(life)
        assert len(again) <= INTERVAL, f"{len(again)} events came again"
        assert len(set(life)) == len(life), "in one life none comes twice"
        before.update(life)
        # What comes again comes first: nothing behind it was passed over.
        assert again == set(life[: len(again)])
    assert before == set(events)

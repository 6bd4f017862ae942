"""Promises 1 to 5 and 7: schema changes, refreshes, checks and moved rows, killed (-9) at random points.

mixed_child.py is the load, and what holds the file against what was acknowledged: each table is in its last
acknowledged state or in the one under way, its events are there once and fold to it over all its versions,
and the stream over two tables has those of both; transactions that write three tables and alter one of them
are whole, and moved with their offsets once; compaction has left the last event of each key, retention a
part without holes; CHECK STREAM finds nothing but what was written past ducktail, and RESYNC mends that; no
group goes back, and one that began with a whole copy, or comes to one behind a gap, comes to the table as it
is; what members share, and what is parked and released, is processed once.
DUCKTAIL_MIXED_KILLS is how often it is killed, DUCKTAIL_MIXED_SEED chooses what is done.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amounts import amount, seed_of
from preloaded import ran

HERE = Path(__file__).resolve().parent
KILLS = amount("DUCKTAIL_MIXED_KILLS", 2, 50)
SEED = str(seed_of("DUCKTAIL_MIXED_SEED"))


@pytest.mark.slow
@pytest.mark.timeout(100 * KILLS)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_mixed_load_is_killed(tmp_path: Path) -> None:
    done = ran([str(tmp_path), str(KILLS), SEED], program=HERE / "mixed_child.py", timeout=100 * KILLS)
    print(done.stdout)
    assert done.returncode == 0, done.stderr

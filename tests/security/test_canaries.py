"""Random statements in a database full of canaries: none is ever told to who may not hear it.

`DUCKTAIL_CANARY_STATEMENTS` says how many a seed has, `DUCKTAIL_CANARY_SEEDS` how many seeds there are, or
which ones (`7-7`, `0-99`, `3,5`); without it four change with the commit. A failure shows its seed and what
was said last;
`DUCKTAIL_CANARY_ONLY=12,40-60` says just these of a seed's statements again, in turns, and with
`DUCKTAIL_CANARY_SHRINK=1` a failure tells a few that it takes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amounts import SOAK, amount, seed_of
from canaries import Play, Singing, shrunk

STATEMENTS = amount("DUCKTAIL_CANARY_STATEMENTS", 150, 2000)
SEEDS = os.environ.get("DUCKTAIL_CANARY_SEEDS", "100" if SOAK else "")
ONLY = os.environ.get("DUCKTAIL_CANARY_ONLY", "")
SHRINK = "DUCKTAIL_CANARY_SHRINK" in os.environ
# Each fourth seed races.
RACING = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if SHRINK or STATEMENTS > 5_000 else 600)]


def numbers(text: str) -> list[int]:
    """Those of a text such as '3,7-9'."""
    parts = [part.partition("-") for part in text.split(",") if part]
    return [n for first, _, last in parts for n in range(int(first), int(last or first) + 1)]


def seeds() -> list[int]:
    """A bare number is how many; without any, some of this run, one of which races."""
    if not SEEDS:
        first = seed_of("DUCKTAIL_CANARY_SEEDS") % 1_000_000 * RACING
        return list(range(first, first + RACING))
    return list(range(int(SEEDS))) if SEEDS.isdigit() else numbers(SEEDS)


def play(seed: int, file: Path | None) -> None:
    """Play a seed; without a file there are no users."""
    only = frozenset(numbers(ONLY)) if ONLY else None
    racing = seed % RACING == RACING - 1 and only is None
    made = Play(seed, STATEMENTS, file, users=file is not None, racing=racing, only=only)
    try:
        made()
    except Singing as error:
        few = f"; enough are {','.join(map(str, shrunk(made)))}" if SHRINK else ""
        pytest.fail(f"{error}{few}", pytrace=False)


@pytest.mark.parametrize("seed", seeds())
def test_no_canary_is_told(seed: int, tmp_path: Path) -> None:
    """Limited users with two sessions each, which take turns, or race."""
    file = tmp_path / "allowed" / "secret.csv"
    file.parent.mkdir()
    file.write_text("id,s\n1,cnry_file_1\n")
    play(seed, file)


@pytest.mark.parametrize("seed", seeds())
def test_every_write_is_captured(seed: int) -> None:
    """The same statements without any users: streams tell what tables are."""
    play(seed, None)

"""Random statements in a database full of canaries: none is ever told to who may not hear it.

`DUCKTAIL_CANARY_STATEMENTS` says how many a seed has, `DUCKTAIL_CANARY_SEEDS` how many seeds there are, or
which ones (`7-7`, `0-99`, `3,5`). A failure shows its seed and what was said last;
`DUCKTAIL_CANARY_ONLY=12,40-60` says just these of a seed's statements again, to find those that it takes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from canaries import Play

STATEMENTS = int(os.environ.get("DUCKTAIL_CANARY_STATEMENTS", "1200"))
# Each fourth seed races.
SEEDS = os.environ.get("DUCKTAIL_CANARY_SEEDS", "4")
ONLY = os.environ.get("DUCKTAIL_CANARY_ONLY", "")


def numbers(text: str) -> list[int]:
    """Those of a text such as '3,7-9'."""
    parts = [part.partition("-") for part in text.split(",") if part]
    return [n for first, _, last in parts for n in range(int(first), int(last or first) + 1)]


def seeds() -> list[int]:
    """A bare number is how many."""
    return list(range(int(SEEDS))) if SEEDS.isdigit() else numbers(SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(0 if STATEMENTS > 5_000 else 120)
@pytest.mark.parametrize("seed", seeds())
def test_no_canary_is_told(seed: int, tmp_path: Path) -> None:
    """Limited users with two sessions each, which take turns, or race."""
    file = tmp_path / "allowed" / "secret.csv"
    file.parent.mkdir()
    file.write_text("id,s\n1,cnry_file_1\n")
    only = frozenset(numbers(ONLY)) if ONLY else None
    Play(seed, STATEMENTS, file, racing=seed % 4 == 3, only=only)()


@pytest.mark.slow
@pytest.mark.timeout(0 if STATEMENTS > 5_000 else 120)
@pytest.mark.parametrize("seed", seeds())
def test_every_write_is_captured(seed: int) -> None:
    """The same statements without any users: streams tell what tables are."""
    only = frozenset(numbers(ONLY)) if ONLY else None
    Play(seed, STATEMENTS, users=False, racing=seed % 4 == 3, only=only)()

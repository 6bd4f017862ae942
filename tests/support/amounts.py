"""The size of a run: the gate (`make test`) tries less of what both try, a soak (`make soak`) more.

A test that repeats itself asks here how often: `amount` is a count, `chosen` a share of many cases, `seed_of`
the number from which a random test begins. Seeds and shares of the gate follow the commit: each commit tries
others, and the same commit the same again; those of a soak are new each time. The head of a run prints the
number from which they come, and DUCKTAIL_SEED repeats it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

SOAK = os.environ.get("DUCKTAIL_SOAK") == "1"
SEED_VARIABLE = "DUCKTAIL_SEED"

Number = TypeVar("Number", int, float)
Case = TypeVar("Case")


def run_seed() -> int:
    """The number that all of a run's choices come from; kept in the environment for workers and children."""
    if SEED_VARIABLE not in os.environ:
        os.environ[SEED_VARIABLE] = str(int(time.time()) if SOAK else _commit())
    return int(os.environ[SEED_VARIABLE])


def amount(variable: str, gate: Number, soak: Number) -> Number:
    """How many times or seconds: the environment variable where it is set, else by the kind of run."""
    return type(gate)(os.environ.get(variable) or (soak if SOAK else gate))


def seed_of(variable: str, number: int = 0) -> int:
    """The seed of a random test: the variable where it is set, plus `number`; else one of this run's."""
    if variable in os.environ:
        return int(os.environ[variable]) + number
    return _drawn(f"{variable} {number}") % 2**31


def seeds(variable: str, gate: int, soak: int) -> list[int]:
    """The seeds of so many runs of a random test; the variable sets the first of them."""
    return [seed_of(variable, number) for number in range(soak if SOAK else gate)]


def chosen(cases: Sequence[Case], count: int, what: str) -> list[Case]:
    """So many of the cases in the gate, others with each commit; all of them in a soak.

    Args:
        what: the test's name, so that two tests choose apart.
    """
    if SOAK:
        return list(cases)
    drawn = sorted(range(len(cases)), key=lambda place: _drawn(f"{what} {place}"))
    return [cases[place] for place in sorted(drawn[:count])]


def paired(cases: Sequence[Case], partners: int, what: str) -> list[tuple[Case, Case]]:
    """Pairs of the cases: in the gate each stands first and second with so many partners, others with each
    commit; in a soak with all.
    """
    places = range(len(cases))
    steps = chosen(places, partners, what)
    return [(cases[one], cases[(one + step) % len(cases)]) for one in places for step in steps]


def by_name(name: str, ways: Sequence[Case]) -> Sequence[Case]:
    """One of the ways in the gate, always the same for a name; all of them in a soak."""
    if SOAK:
        return ways
    return [ways[hashlib.sha256(name.encode()).digest()[0] % len(ways)]]


def _commit() -> int:
    """The first digits of the commit's hash; 0 where there is none, as in a source archive."""
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        asked = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(asked.stdout.strip()[:8], 16)


def _drawn(what: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{run_seed()} {what}".encode()).digest()[:8])

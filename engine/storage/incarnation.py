"""Incarnations: the rule that an LSN assigned to one event is never assigned to another.

A database that is restored, or opened in spite of lost commits, goes back in time, but clients may hold
positions of the lost events. Therefore its incarnation is raised, and LSNs continue from incarnation x 2^40.
The range between the last remaining event and that LSN is a hole; a position in a hole is an error (22023)
instead of other events. Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from ..duck.cursors import ask, in_one_transaction
from ..schema import SCHEMA

# Number of LSNs of one incarnation: a trillion.
BITS = 40


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of LSNs, after `after` through `through`, that belong to no event."""

    after: int
    through: int

    def has(self, lsn: int) -> bool:
        """True if a position is inside the hole; the hole's two ends are valid positions."""
        return self.after < lsn < self.through


def incarnation_of(lsn: int) -> int:
    """The incarnation in which an event was written."""
    return (lsn - 1) >> BITS


def incarnation_base(incarnation: int) -> int:
    """The LSN before an incarnation's first event."""
    return incarnation << BITS


def raise_incarnation(cursor: duckdb.DuckDBPyConnection, *, at_least: int = 0, txid: int = 0) -> int:
    """Begin a new incarnation, in one transaction; the cursor must not be in one.

    Args:
        at_least: the least number of the new incarnation.
        txid: the number after which transactions continue.

    Returns:
        The new incarnation.
    """
    with in_one_transaction(cursor):
        (present,) = ask(cursor, f"SELECT value::BIGINT FROM {SCHEMA}.meta WHERE name = 'incarnation'")
        (last_lsn,) = ask(cursor, f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.commits")
        raised = max(present + 1, at_least)
        last_lsn = max(last_lsn, incarnation_base(present))
        for name, value in (
            ("hole", f"{last_lsn} {incarnation_base(raised)}"),
            ("txid", str(txid)),
        ):
            cursor.execute(f"INSERT INTO {SCHEMA}.meta VALUES ('{name}', '{value}')").fetchall()
        cursor.execute(f"UPDATE {SCHEMA}.meta SET value = '{raised}' WHERE name = 'incarnation'").fetchall()
    return int(raised)


def read_holes(cursor: duckdb.DuckDBPyConnection) -> tuple[Hole, ...]:
    """The holes in a database's LSNs, in order."""
    rows = cursor.execute(f"SELECT value FROM {SCHEMA}.meta WHERE name = 'hole'").fetchall()
    return tuple(sorted((Hole(*map(int, value.split())) for (value,) in rows), key=lambda hole: hole.after))

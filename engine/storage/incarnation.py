"""Incarnations: why an LSN that was given to an event is never given to another one.

A database that is restored, or opened without commits that it had lost, goes back in time. Somebody may
hold positions from the time that is gone. Its incarnation is raised then, and LSNs go on from
incarnation x 2^40: what lies between the last event that stands and there is a hole, and a position in
a hole is an error (22023) and not other events. Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from ..duck.cursors import ask, in_one_transaction
from ..schema import SCHEMA

# LSNs of one incarnation: a trillion.
BITS = 40


@dataclass(frozen=True, slots=True)
class Hole:
    """LSNs after `after` up to and with `through` are of no event."""

    after: int
    through: int

    def has(self, lsn: int) -> bool:
        """True if a position is of a time that is gone; the hole's two ends are fine."""
        return self.after < lsn < self.through


def incarnation_base(incarnation: int) -> int:
    """The LSN before an incarnation's first event."""
    return incarnation << BITS


def raise_incarnation(cursor: duckdb.DuckDBPyConnection, *, at_least: int = 0, txid: int = 0) -> int:
    """Begin a new incarnation, in one transaction; the cursor is in none.

    Args:
        at_least: the least that it may be.
        txid: transactions go on after this number.

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

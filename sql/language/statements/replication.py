"""Statements about the copies of the whole database. Source: docs/sql.md, "Continuous copies"."""

from __future__ import annotations

from dataclasses import dataclass

from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class ShowContinuousCopies(Statement):
    """SHOW CONTINUOUS COPIES."""


ROWS = (
    Row(
        ShowContinuousCopies,
        "SHOW CONTINUOUS COPIES",
        Right.SUPERUSER,
        Effect.READS,
        InCluster.ENTRY_NODE,
        view=View(
            "continuous_copies",
            "target, state, generation, copied_lsn, copied_at, lag_seconds, lag_bytes, lag_transactions, "
            "error, retry_at, verified_at, verification",
        ),
    ),
)

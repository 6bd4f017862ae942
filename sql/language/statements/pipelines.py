"""Statements about pipelines and the checkpoints of consumers. Source: docs/sql.md, "Pipelines"."""

from __future__ import annotations

from dataclasses import dataclass

from .. import clauses
from ..clauses import Name, Text, scalar_sql
from ..grammar import Grammar
from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class ReportPipeline(Statement):
    """REPORT PIPELINE name AS state, a JSON object as text."""

    pipeline: Text
    state: Text


@dataclass(frozen=True, slots=True)
class ShowCheckpoints(Statement):
    """SHOW CHECKPOINTS; `stream` None is all streams."""

    stream: Name | None = None


def report_pipeline(g: Grammar) -> Statement:
    """REPORT PIPELINE 'name' AS '{...}'"""
    name = g.string("the name of the pipeline")
    g.expect("AS")
    return ReportPipeline(name, g.string("a JSON object"))


def show_checkpoints(g: Grammar) -> Statement:
    """SHOW CHECKPOINTS [ON s]"""
    return ShowCheckpoints(g.perhaps_on_stream())


ROWS = (
    Row(
        ReportPipeline,
        "REPORT PIPELINE",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        report_pipeline,
        "REPORT PIPELINE 'name' AS '{...}'",
        lambda s: f"REPORT PIPELINE {scalar_sql(s.pipeline)} AS {scalar_sql(s.state)}",
    ),
    Row(
        ShowCheckpoints,
        "SHOW CHECKPOINTS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        show_checkpoints,
        "SHOW CHECKPOINTS [ON s]",
        lambda s: clauses.perhaps_on("SHOW CHECKPOINTS", s.stream),
        View(
            "checkpoints",
            "schema_name, stream_name, consumer_name, group_name, position_type, position, "
            "sequence, watermark, event_count, age_seconds",
        ),
    ),
)

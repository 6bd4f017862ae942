"""Statements about the nodes of a cluster. Source: docs/sql.md, "Nodes"."""

from __future__ import annotations

from dataclasses import dataclass

from ..clauses import Text, scalar_sql
from ..grammar import Grammar
from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class ShowNodes(Statement):
    """SHOW NODES."""


@dataclass(frozen=True, slots=True)
class ShowPlacement(Statement):
    """SHOW PLACEMENT."""


@dataclass(frozen=True, slots=True)
class InstallPlacement(Statement):
    """INSTALL PLACEMENT text, that of a cluster.toml."""

    text: Text


def install_placement(g: Grammar) -> Statement:
    """INSTALL PLACEMENT 'the text of cluster.toml'"""
    return InstallPlacement(g.string("the text of cluster.toml"))


ROWS = (
    Row(
        ShowNodes,
        "SHOW NODES",
        Right.SUPERUSER,
        Effect.READS,
        InCluster.ENTRY_NODE,
        view=View("nodes", "node, host, port, local, epoch, connected"),
    ),
    Row(
        ShowPlacement,
        "SHOW PLACEMENT",
        Right.SUPERUSER,
        Effect.READS,
        InCluster.ENTRY_NODE,
        view=View("placement", "cluster, epoch, topics, node, local, partitions, places"),
    ),
    Row(
        InstallPlacement,
        "INSTALL PLACEMENT",
        Right.SUPERUSER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        install_placement,
        "INSTALL PLACEMENT '...'",
        lambda s: f"INSTALL PLACEMENT {scalar_sql(s.text)}",
    ),
)

"""The rows of ducktail.nodes and ducktail.placement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .membership import FAILED, OWN_COUNTS, PEER_COUNTS, Membership
from .rules import ranges_text

Row = dict[str, Any]


def nodes(cluster: Membership) -> Iterator[Row]:
    """ducktail.nodes: a node a row, with what this one has counted: for itself, and of each peer."""
    placement, counts = cluster.placement, cluster.counts()
    here = placement.local
    shown = placement.nodes if here in placement.nodes else (*placement.nodes, here)
    for node in shown:
        local = node.name == here.name
        connections = cluster.connections(node.name)
        own = {what: counts[what, "", ""] if local else None for what in OWN_COUNTS}
        of_peer = {what: None if local else counts[what, node.name, ""] for what in PEER_COUNTS}
        failed = {
            cause: count
            for (what, peer, cause), count in sorted(counts.items())
            if what == FAILED and peer == node.name
        }
        yield {
            "node": node.name,
            "host": node.host or None,
            "port": node.port or None,
            "local": local,
            "epoch": placement.epoch if local else cluster.heard_from(node.name),
            "connected": None if local else connections > 0,
            **own,
            **of_peer,
            "failed": None if local else json.dumps(failed),
        }


def placement(cluster: Membership) -> Iterator[Row]:
    """ducktail.placement: a row for each rule and node that it places partitions on."""
    found = cluster.placement
    for number, rule in enumerate(found.rules, 1):
        for name in sorted(set(rule.owners)):
            yield {
                "cluster": found.cluster or None,
                "epoch": found.epoch,
                "rule": number,
                "topics": rule.name,
                "node": name,
                "local": name == found.local.name,
                "partitions": ranges_text(rule.partitions_of(name)),
                "places": len(rule.owners),
            }

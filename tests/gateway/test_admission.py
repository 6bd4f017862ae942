"""Who gets a session where they are few: clients, and the other nodes of the cluster."""

from __future__ import annotations

import pytest

from ducktail.engine.errors import TooManyConnections
from ducktail.engine.settings import Settings
from ducktail.pgwire_gateway.server.admission import Admission

OTHERS = ("n2", "n3")
SETTINGS = Settings(max_connections=10, peer_connections_reserved=4, peer_connections_max=5)


def filled(admission: Admission, node: str | None) -> tuple[int, str]:
    """How many more get in, and what the next one is told."""
    for count in range(100):
        try:
            admission.enter(node, OTHERS)
        except TooManyConnections as error:
            return count, error.message
    raise AssertionError("there is no bound")


def test_clients_leave_what_is_reserved_to_each_node() -> None:
    admission = Admission(SETTINGS)
    count, told = filled(admission, None)
    assert count == 6 and "reserved for the nodes" in told
    assert filled(admission, "n2")[0] == 2 and filled(admission, "n3")[0] == 2
    assert filled(admission, None) == (0, "sorry, too many clients already")
    admission.leave("n2")
    assert filled(admission, None)[0] == 0 and filled(admission, "n2")[0] == 1


def test_one_node_takes_neither_all_nor_what_is_anothers() -> None:
    admission = Admission(SETTINGS)
    assert filled(admission, "n2") == (5, 'node "n2" has 5 connections here already')
    assert filled(admission, None)[0] == 3
    assert filled(admission, "n3")[0] == 2
    assert filled(admission, "n9")[0] == 0
    for _ in range(5):
        admission.leave("n2")
    assert filled(admission, "n3")[0] == 3 and admission.count == 8


def test_without_other_nodes_all_are_the_clients() -> None:
    admission = Admission(SETTINGS)
    for _ in range(10):
        admission.enter(None, ())
    with pytest.raises(TooManyConnections, match="too many clients"):
        admission.enter(None, ())

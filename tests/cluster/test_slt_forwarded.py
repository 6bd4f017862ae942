"""The .slt corpus of streams, groups and topics once more, by way of a node that owns nothing.

Tables, streams and topics are made on the owner; reads, commits, publishes and what is about groups are sent
to the other node, and must be answered as the files say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from amounts import SOAK, chosen
from slt_run import run_file
from slt_ways import Forwarded, Host, Spread

CORPUS = Path(__file__).parents[1] / "slt"
FILES = sorted(
    path.relative_to(CORPUS).as_posix()
    for folder in ("errors", "groups", "streams", "topics")
    for path in (CORPUS / folder).rglob("*.slt")
)
# File -> why it cannot be split over two nodes.
LEFT_OUT = {
    "errors/beside_others.slt": "makes topics of names that tables of the owner have",
    "groups/commit_and_read_in_transactions.slt": "as the next ones",
    "groups/commit_and_read_members.slt": "as the next one",
    "groups/committed_in_part.slt": "a transaction counts on what another session here has read before it",
    "streams/names.slt": "reads tables called stream and topic, which are the owner's",
    "topics/publish.slt": "counts on one node's turn of partitions for events without a key",
    "topics/create.slt": "shows the epoch of the placement",
    "topics/view.slt": "a topic's view is of what the node itself has stored, and refused elsewhere",
}
# Of these both protocols, of the others the one that drivers speak: a file takes two seconds.
SIMPLE = ("groups/read_and_commit.slt", "groups/members.slt", "streams/scans.slt", "topics/producers.slt")
# Of the others so many in the gate, other ones with each commit.
FILES_IN_GATE = 8
# What has the same answers where three nodes share each topic's partitions: it names no LSNs over all of
# them, no node of an event, and no bare AFTER.
SHARED = ("topics/anywhere.slt", "topics/payloads.slt", "topics/producers.slt")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """The process of both nodes."""
    process = Host("slt_cluster_host.py")
    yield process
    process.end()


def ways() -> Iterator[tuple[str, str]]:
    """Files, each with the protocols by which it runs."""
    others = [file for file in FILES if file not in LEFT_OUT and file not in SIMPLE]
    for file in (*SIMPLE, *chosen(others, FILES_IN_GATE, "forwarded")):
        yield file, "extended"
        if file in SIMPLE or SOAK:
            yield file, "simple"


@pytest.mark.parametrize(("file", "way"), list(ways()))
def test_slt(file: str, way: str, tmp_path: Path, host: Host) -> None:
    run_file(CORPUS / file, way, Forwarded(host, way == "extended"), tmp_path / "test.duckdb")


@pytest.mark.parametrize("file", SHARED)
def test_slt_over_a_spread_topic(file: str, tmp_path: Path, host: Host) -> None:
    run_file(CORPUS / file, "extended", Spread(host, True), tmp_path / "test.duckdb")

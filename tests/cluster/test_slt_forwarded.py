"""The .slt corpus of streams, groups and topics once more, by way of a node that owns nothing.

Tables, streams and topics are made on the owner; reads, commits, publishes and what is about groups are sent
to the other node, and must be answered as the files say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slt_run import run_file
from slt_ways import Forwarded, Host

CORPUS = Path(__file__).parents[1] / "slt"
FILES = sorted(
    path.relative_to(CORPUS).as_posix()
    for folder in ("errors", "groups", "streams", "topics")
    for path in (CORPUS / folder).rglob("*.slt")
)
# File -> why it cannot be split over two nodes.
LEFT_OUT = {
    "topics/create.slt": "shows the epoch of the placement",
}


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """The process of both nodes."""
    process = Host("slt_cluster_host.py")
    yield process
    process.end()


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
@pytest.mark.parametrize("file", [file for file in FILES if file not in LEFT_OUT])
def test_slt(file: str, extended: bool, tmp_path: Path, host: Host) -> None:
    way = "extended" if extended else "simple"
    run_file(CORPUS / file, way, Forwarded(host, extended), tmp_path / "test.duckdb")

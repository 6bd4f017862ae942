"""Every file of tests/slt, three ways. `pytest tests/test_slt.py --slt-rewrite` writes the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slt_file import WAYS
from slt_run import run_file
from slt_ways import Host, InProcess, Way, Wire

CORPUS = Path(__file__).parent / "slt"
FILES = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.slt"))


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """The server process of both wire ways, started when the first of them runs."""
    process = Host()
    yield process
    process.end()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", FILES)
def test_slt(file: str, way: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    runner: Way
    if way == "in_process":
        runner = InProcess()
    else:
        runner = Wire(request.getfixturevalue("host"), extended=way == "extended")
    rewriting = way == "in_process" and request.config.getoption("--slt-rewrite")
    run_file(CORPUS / file, way, runner, tmp_path / "test.duckdb", rewriting)

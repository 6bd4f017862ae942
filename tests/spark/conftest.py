"""A gateway for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for the tests of a file."""
    path: Path = tmp_path_factory.mktemp("gateway") / "ducktail.duckdb"
    with ServerProcess(path) as started:
        yield started

"""Every file of tests/duckdb_files beside DuckDB: without streams, with one on each table, and one on all."""

from __future__ import annotations

from pathlib import Path

import pytest
from duckdb_file import WAYS, Replay

FILES = sorted((Path(__file__).parent / "duckdb_files").glob("*.test"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_as_duckdb_does(file: Path, way: str) -> None:
    Replay(file, way).run()

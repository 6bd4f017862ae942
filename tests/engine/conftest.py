"""What the tests of compaction begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from compacting import Compacting
from hands import Hands


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Compacting]:
    """An empty database."""
    made = Compacting(tmp_path / "kept.duckdb", Hands())
    yield made
    made.close()

"""A database with acknowledged commits whose process was killed; a test may damage its copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from database_files import Files, make_killed


@pytest.fixture(scope="session")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files of a process that was killed after its last acknowledgement."""
    return make_killed(tmp_path_factory.mktemp("killed") / "shop.duckdb")


@pytest.fixture
def killed(killed_once: Files, tmp_path: Path) -> Files:
    """A copy of them for the test."""
    return killed_once.copy_to(tmp_path / "files")

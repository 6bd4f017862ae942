"""MariaDB servers for the tests of MySQL and MariaDB as a source; a data directory is made once a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mariadb_process import MariadbServer


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a new server."""
    home = tmp_path_factory.mktemp("installed")
    MariadbServer(home).install()
    return home


@pytest.fixture(scope="module")
def server(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """One server for tests that do not end it."""
    home = shutil.copytree(installed, tmp_path_factory.mktemp("mariadb") / "shared")
    with MariadbServer(home) as running:
        yield running


@pytest.fixture
def own_server(installed: Path, tmp_path: Path) -> Iterator[MariadbServer]:
    """A server for a test that ends it or changes its settings."""
    with MariadbServer(shutil.copytree(installed, tmp_path / "mariadb")) as running:
        yield running

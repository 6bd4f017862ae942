"""A directory for copies, and the copy of a server under a mixed load, made once; a test may damage it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from amounts import seed_of
from copied_load import OPTIONS, SETUP, CopiedServer, Load, await_copy
from server_process import ServerProcess

CHECKPOINTS = 4


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CopiedServer]:
    """The copy of a load with several checkpoints."""
    place = tmp_path_factory.mktemp("copied")
    target = place / "copy"
    target.mkdir()
    with ServerProcess(place / "shop.duckdb", (*OPTIONS, "--copy-to", str(target))) as server:
        with server.connect() as connection:
            for text in SETUP:
                connection.execute(text)
            load = Load(server, seed_of("DUCKTAIL_COPY_SEED", 1))
            await_copy(connection, f"checkpoint >= {CHECKPOINTS}")
            load.stop()
            assert load.errors == []
            await_copy(connection)
        yield CopiedServer(server, target)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory for copies."""
    place = tmp_path / "copy"
    place.mkdir()
    return place

"""What the security tests share: certificates, and bare connections."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certificates
import psycopg
import pytest
from heard import World
from server_process import ServerProcess


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    """One certificate for all tests that only want some."""
    return certificates.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, certificate: certificates.Files
) -> Iterator[ServerProcess]:
    """One server with TLS for the tests of a file that leave nothing behind for each other."""
    path = tmp_path_factory.mktemp("secure") / "ducktail.duckdb"
    with ServerProcess(path, ("--port", "0", *certificate.options)) as server:
        yield server


@pytest.fixture
def key_with_passphrase(tmp_path: Path) -> certificates.Files:
    """A key that cannot be read without asking somebody."""
    files = certificates.make(tmp_path, "locked", "rsa")
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", str(files.key)]
    subprocess.run([*command, "-out", str(files.key)], check=True, capture_output=True, timeout=60)
    return files


@pytest.fixture
def ann(server: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    """Ann, with the password of all users of a test's server."""
    with server.connect(user="ann", password="x") as connection:
        yield connection


@pytest.fixture
def bob(server: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    """Bob, with the password of all users of a test's server."""
    with server.connect(user="bob", password="x") as connection:
        yield connection


@pytest.fixture
def eve(server: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    """Eve, with the password of all users of a test's server."""
    with server.connect(user="eve", password="x") as connection:
        yield connection


@pytest.fixture
def world() -> Iterator[World]:
    """A database in memory with a superuser ann, and with bob and eve, who have CREATE on a schema each."""
    made = World(["ann"], ["bob", "eve"], {"bob": "bobs", "eve": "eves"})
    yield made
    made.close()

"""A PostgreSQL of a test's own, to hold ours against."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running() -> Iterator[str]:
    """A new PostgreSQL in a directory of its own, listening there; how to connect to it."""
    # Not among pytest's directories, which are root's alone where root runs the tests.
    with tempfile.TemporaryDirectory(prefix="ducktail-postgres-") as home:
        yield from _running(Path(home))


def _running(home: Path) -> Iterator[str]:
    found = shutil.which("initdb") or str(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1])
    programs = Path(found).resolve().parent
    prefix: list[str] = []
    if getpass.getuser() == "root":  # PostgreSQL refuses to run as root.
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(home, "postgres", "postgres")

    def run(*words: str) -> None:
        command = [*prefix, str(programs / words[0]), *words[1:]]
        subprocess.run(command, check=True, capture_output=True, cwd=home)

    data = str(home / "data")
    run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync")
    options = f"-k {home} -c listen_addresses= -c fsync=off"
    run("pg_ctl", "-D", data, "-l", str(home / "log"), "-o", options, "-w", "start")
    try:
        yield f"host={home} user=postgres dbname=postgres"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")

"""A PostgreSQL of a test's own, for what both must answer alike."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path


def programs() -> Path:
    """The directory of initdb and postgres; tests that want it are marked `postgres`."""
    found = shutil.which("initdb")
    places = [Path(found)] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].resolve().parent


@contextlib.contextmanager
def postgres(home: Path, *options: str) -> Iterator[str]:
    """A running server with its data under `home`; gives its conninfo.

    Args:
        options: settings, as `log_statement=all`.
    """
    # PostgreSQL refuses to run as root.
    prefix: list[str] = []
    if getpass.getuser() == "root":
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(home, "postgres", "postgres")
        for above in home.parents[: len(home.parents) - 2]:
            above.chmod(above.stat().st_mode | 0o011)

    def run(program: str, *words: str) -> None:
        command = [*prefix, str(programs() / program), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=home)

    data = str(home / "data")
    run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={home}", "fsync=off", *options]
    words = " ".join([f"-p {port}", *(f"-c {setting}" for setting in settings)])
    run("pg_ctl", "-D", data, "-w", "-o", words, "-l", str(home / "log"), "start")
    try:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    finally:
        run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")

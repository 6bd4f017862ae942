"""A PostgreSQL server of our own for a benchmark: made in a scratch directory, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Who runs it where we are root: initdb and postgres refuse to.
USERS = ("postgres", "nobody")


def programs() -> Path:
    """The directory of initdb and postgres.

    Raises:
        SystemExit: there are none; says what to install.
    """
    found = shutil.which("initdb")
    places = [Path(found).resolve()] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not places:
        raise SystemExit("The benchmark wants PostgreSQL's programs: make deps")
    return places[-1].parent


def unprivileged() -> pwd.struct_passwd | None:
    """Who runs the server where we are root; None where we may ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in USERS if name in known)


def free_port() -> int:
    """A port on loopback that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def server(*settings: str) -> Iterator[str]:
    """A running server with its default settings (durable commits), and these; gives its conninfo."""
    directory = tempfile.mkdtemp(prefix="ducktail-bench-")
    identity = unprivileged()
    if identity is not None:
        os.chown(directory, identity.pw_uid, identity.pw_gid)
    data, port = f"{directory}/data", free_port()

    def run(program: str, *words: str) -> None:
        subprocess.run(
            [str(programs() / program), *words],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=directory,
            umask=0o077,
            user=None if identity is None else identity.pw_uid,
            group=None if identity is None else identity.pw_gid,
        )

    try:
        run("initdb", "-D", data, "-U", "bench", "--auth=trust", "--locale=C", "--encoding=UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory}"
        options += "".join(f" -c {setting}" for setting in settings)
        run("pg_ctl", "-D", data, "-w", "-o", options, "-l", f"{directory}/log", "start")
        try:
            yield f"host=127.0.0.1 port={port} user=bench dbname=postgres"
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)

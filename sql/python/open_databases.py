"""The databases that this process has open, each shared by its connections.

A process opens a file once: DuckDB cannot share it between two owners. A second `connect` on a path
therefore joins the open database. The last connection to close stops the servers that were started on the
database and closes it. The end of the process closes all open databases.
"""

from __future__ import annotations

import atexit
import difflib
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...engine.database import Database
from ...engine.errors import InvalidParameterValue, ObjectInUse
from ...engine.settings import Settings, numbers
from .follower import Following

IN_MEMORY = ":memory:"


class Server(Protocol):
    """A gateway that runs in this process."""

    @property
    def host(self) -> str:
        """The address that it listens on."""

    @property
    def port(self) -> int:
        """The port that it listens on."""

    def stop(self) -> None:
        """End its connections and its thread; may be called twice."""


@dataclass(slots=True, eq=False)
class OpenDatabase:
    """One open database, with the number of its connections and the registry of its follows."""

    key: str
    database: Database
    settings: Settings
    holders: int = 0
    servers: list[Server] = field(default_factory=list)
    following: Following = field(default_factory=Following)


_lock = threading.Lock()
_opened: dict[str, OpenDatabase] = {}  # guarded by _lock
_not_ours: list[OpenDatabase] = []  # databases of the process from which this one was forked


def join(path: str | os.PathLike[str], settings: Settings) -> OpenDatabase:
    """Open a database, or join the one that this process has open at that path.

    Args:
        path: the database's file, or ":memory:" for a new database that ends with its last connection.

    Raises:
        ObjectInUse: the file is open in this process with other settings.
    """
    with _lock:
        key = IN_MEMORY if path == IN_MEMORY else os.path.realpath(path)
        opened = _opened.get(key)
        if opened is None:
            database = Database.open(IN_MEMORY if path == IN_MEMORY else str(Path(path)), settings)
            if path == IN_MEMORY:
                key = f"{IN_MEMORY}{id(database)}"
            opened = _opened[key] = OpenDatabase(key, database, settings)
        elif opened.settings != settings:
            raise ObjectInUse(
                f'database "{opened.database.name}" is open in this process with other settings',
                hint="Give the same settings, or none and use Connection.duplicate().",
            )
        opened.holders += 1
        return opened


def join_again(opened: OpenDatabase) -> None:
    """Count one more connection of an open database."""
    with _lock:
        opened.holders += 1


def leave(opened: OpenDatabase) -> None:
    """A connection is closed; the last one closes the database."""
    with _lock:
        if opened in _not_ours:
            return
        opened.holders -= 1
        if opened.holders == 0:
            del _opened[opened.key]
            _close(opened)


def is_ours(opened: OpenDatabase) -> bool:
    """True if this process has opened it, and not the process from which it was forked."""
    return opened not in _not_ours


def settings_named(
    values: Mapping[str, int],
    allowed_directories: Iterable[str | os.PathLike[str]] = (),
    allowed_networks: Iterable[str] = (),
) -> Settings:
    """The settings of docs/settings.md from keyword arguments.

    Raises:
        InvalidParameterValue: a name is unknown, or a value is outside its bounds.
    """
    known = [item.name for item in numbers()]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]}?" if near else f"The settings are {', '.join(known)}."
            raise InvalidParameterValue(f'unknown setting "{name}"', hint=hint)
    if isinstance(allowed_directories, str):
        raise InvalidParameterValue('setting "allowed_directories" wants a list of directories')
    if isinstance(allowed_networks, str):
        raise InvalidParameterValue('setting "allowed_networks" wants a list of networks')
    directories = tuple(os.fspath(item) for item in allowed_directories)
    return Settings(
        allowed_directories=directories, allowed_networks=tuple(allowed_networks), copy_to=(), **values
    )


def _close(opened: OpenDatabase) -> None:
    with ExitStack() as last_first:  # Each step runs, even if the one before it has raised.
        last_first.callback(opened.database.close)
        for server in opened.servers:
            last_first.callback(server.stop)
        last_first.callback(opened.following.close)


def _forked() -> None:
    """Forget the databases in a forked process: they belong to the parent, which continues to use them.

    DuckDB's threads do not exist there, so closing one would wait forever, or write into a file that the
    parent also writes. They are held until the process ends.
    """
    _not_ours.extend(_opened.values())
    _opened.clear()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
os.register_at_fork(after_in_child=_forked)


@atexit.register
def _close_all() -> None:
    with _lock:
        while _opened:
            _close(_opened.popitem()[1])

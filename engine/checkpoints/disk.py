"""What is done to files and directories for checkpoints, one system call or so each.

Whoever wants to know what happens where one of them is the last gives another `Disk`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """The steps. All raise OSError."""

    def make_directory(self, path: Path) -> None:
        """Make a directory; nothing where it is there."""

    def names(self, path: Path) -> list[str]:
        """What is in a directory; nothing where it is not there."""

    def read(self, path: Path, bytes_max: int) -> bytes | None:
        """A file's bytes, one more than `bytes_max` where it is longer; None where it is not there."""

    def write(self, path: Path, data: bytes) -> None:
        """Make a new file; it is not synced."""

    def sync(self, path: Path) -> None:
        """Bring a file's bytes to the disk."""

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name, in the place of what has it."""

    def remove(self, path: Path) -> bool:
        """Take a file away; False where it is not there."""

    def sync_directory(self, path: Path) -> None:
        """Bring a directory's names to the disk."""


class SystemDisk:
    """The machine's own."""

    def make_directory(self, path: Path) -> None:
        """Make a directory, for this user alone."""
        path.mkdir(mode=0o700, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """What is in a directory."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def read(self, path: Path, bytes_max: int) -> bytes | None:
        """A regular file's bytes: a link is not followed, a pipe not waited for."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is no regular file")
            return file.read(bytes_max + 1)

    def write(self, path: Path, data: bytes) -> None:
        """Make a new file, for this user alone."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """Bring a file's bytes to the disk."""
        _sync(path, os.O_RDONLY)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name."""
        path.replace(target)

    def remove(self, path: Path) -> bool:
        """Take a file away."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def sync_directory(self, path: Path) -> None:
        """Bring a directory's names to the disk."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The target of a continuous copy: a place for whole objects.

Its verbs are those of an object store: put a whole object, read a range, list names, delete. An object
appears with all of its bytes or not at all, and is durable when `put` returns. Nothing is appended to, and
only names that are put with `replace` are ever overwritten. Names are relative, with "/" between their
parts. Source: docs/design/replication.md, "Targets".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..storage.side_file import sync_directory

PARTIAL = ".partial"
# File systems without hard links: the name is looked up before the rename instead.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class DirectoryTarget:
    """A directory, which must exist: a missing one may be a disk that is not mounted.

    Args:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def put(self, name: str, pieces: Iterable[bytes], *, replace: bool = False) -> None:
        """Store an object under a name that does not exist, or in place of another with `replace`.

        Raises:
            FileExistsError: the name exists.
            OSError: it could not be stored.
        """
        path = self.root / name
        self._make_folder(path.parent)
        partial = path.with_name(f"{path.name}{PARTIAL}")
        try:
            with partial.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                partial.replace(path)
            else:
                _name(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)

    def _make_folder(self, folder: Path) -> None:
        if folder != self.root and not folder.is_dir():
            folder.mkdir()  # Not its parents: the root must exist.
            sync_directory(self.root)

    def size(self, name: str) -> int:
        """The bytes of an object.

        Raises:
            FileNotFoundError: it does not exist.
        """
        return (self.root / name).stat().st_size

    def read(self, name: str, start: int, count: int) -> bytes:
        """A range of an object's bytes; fewer at its end.

        Raises:
            FileNotFoundError: it does not exist.
            OSError: it cannot be read.
        """
        with (self.root / name).open("rb") as file:
            file.seek(start)
            return file.read(count)

    def folders(self) -> list[str]:
        """The first parts of names, in order.

        Raises:
            OSError: the directory cannot be read.
        """
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())

    def names(self, folder: str) -> list[str]:
        """The names of all objects of a folder, in order.

        Raises:
            OSError: the directory cannot be read.
        """
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            if not self.root.is_dir():
                raise
            return []
        return sorted(f"{folder}/{name}" for name in found if not name.endswith(PARTIAL))

    def delete(self, name: str) -> None:
        """Delete an object, if it exists.

        Raises:
            OSError: it cannot be deleted.
        """
        (self.root / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Delete what is left of a folder: unfinished objects, and the folder itself.

        Raises:
            OSError: it cannot be deleted.
        """
        place = self.root / folder
        for entry in place.iterdir():
            entry.unlink(missing_ok=True)
        place.rmdir()


def _name(partial: Path, path: Path) -> None:
    """Give a finished file its name, which must not exist."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        partial.rename(path)
        return
    partial.unlink()

"""Checkpoints as files: `ROOT/KEY/SEQUENCE.json`, one for each state, which people can read.

A state is written under a temporary name, synced, renamed, and its directory synced: at any instant, even
after a power failure, a name refers to a complete state or does not exist. The next save of a key removes
files that a killed process has left under temporary names. Files are removed one by one, and then the
directory is synced.

One writer at a time: `ROOT/.lock` is locked (flock) during a call that makes changes, so several processes
may share a directory on one machine. Readers take no lock, and list again if files are removed while they
read. All operations on files go through `Disk`, so that a test can stop at each of them. Source:
docs/design/checkpoints.md, "In files".
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DataCorrupted, DucktailError, IoError
from .backend import KEEP, Backend, CheckpointStore, Report, check_place, damaged_at, report_to_log
from .encodings import FILE_BYTES_MAX, damaged, from_json, to_json
from .state import INT64_MAX, CheckpointState, check_key

LOCK = ".lock"
TEMPORARY = ".partial"
# As wide as the highest sequence, so that names are in the order of their numbers.
_DIGITS = len(str(INT64_MAX))
_NAME = re.compile(rf"([0-9]{{{_DIGITS}}})\.json")
# A lack of resources of the process does not concern the file, which may be readable later.
_RUN_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_LEFT = re.compile(_NAME.pattern + re.escape(TEMPORARY))


class FileBackend(Backend):
    """Checkpoints as files of a directory; implements `Backend`.

    Args:
        root: the directory; created, for this user only, if it does not exist.
        fsync: False to sync nothing. A killed process then loses nothing, but a power cut may lose any
            checkpoints and leave damaged files in place of the newest: `save` is not durable.

    Raises:
        IoError: the directory cannot be created.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        keep: int = KEEP,
        report: Report = report_to_log,
        fsync: bool = True,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(keep, report)
        self._root = Path(root).absolute()
        self._mutex = threading.Lock()
        self._files = _Files(self._root, disk or Disk(), fsync)
        with _translated(self._root):
            self._files.make(self._root)

    @contextmanager
    def _reading(self) -> Iterator[CheckpointStore]:
        with _translated(self._root):
            yield self._files

    @contextmanager
    def _writing(self) -> Iterator[CheckpointStore]:
        with _translated(self._root), self._mutex:
            descriptor = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield self._files
            finally:
                os.close(descriptor)


@contextmanager
def _translated(root: Path) -> Iterator[None]:
    """Raise IoError for an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise IoError(f'checkpoints in directory "{root}" cannot be reached', detail=f"{error}.") from error


class _Files(CheckpointStore):
    """The files of the directory, without its lock."""

    def __init__(self, root: Path, disk: Disk, fsync: bool) -> None:
        self._root = root
        self._disk = disk
        self._fsync = fsync
        self._made: set[Path] = set()

    def make(self, path: Path) -> None:
        """Create a directory and sync its name: the process that created it may have died before that."""
        if path not in self._made:
            for directory in (*reversed(path.parents), path):
                if not directory.is_dir():
                    self._disk.make_directory(directory)
                    self._synced(self._disk.sync_directory, directory.parent)
            self._synced(self._disk.sync_directory, path.parent)
            self._made.add(path)

    def streams(self) -> Sequence[str]:
        names = [name for name in self._disk.names(self._root) if _is_key(name)]
        return sorted(name for name in names if (self._root / name).is_dir() and self.sequences(name))

    def sequences(self, stream: str) -> Sequence[int]:
        found = map(_NAME.fullmatch, self._disk.names(self._root / stream))
        return sorted(int(match[1]) for match in found if match and int(match[1]) <= INT64_MAX)

    def read(self, stream: str, sequence: int) -> CheckpointState | None:
        try:
            data = self._read(self._path(stream, sequence))
            return None if data is None else check_place(from_json(data), stream, sequence)
        except DataCorrupted as damage:
            raise damaged_at(stream, sequence, damage) from damage

    def _read(self, path: Path) -> bytes | None:
        try:
            data = self._disk.read(path, FILE_BYTES_MAX)
        except OSError as error:
            if error.errno in _RUN_OUT:
                raise
            raise damaged(f"Its file cannot be read: {error}.") from error
        if data is not None and len(data) > FILE_BYTES_MAX:
            raise damaged(f"Its file has more than {FILE_BYTES_MAX} bytes.")
        return data

    def put(self, state: CheckpointState, gone: Sequence[int]) -> None:
        data, path = to_json(state), self._path(state.stream, state.sequence)
        self.make(path.parent)
        for name in self._disk.names(path.parent):
            if _LEFT.fullmatch(name):
                self._disk.remove(path.parent / name)
        temporary = path.with_name(path.name + TEMPORARY)
        try:
            self._disk.write(temporary, data)
            self._synced(self._disk.sync, temporary)
            self._disk.rename(temporary, path)
        except OSError:
            # The disk may be full: removing the partial file frees its space.
            with suppress(OSError):
                self._disk.remove(temporary)
            raise
        self._synced(self._disk.sync_directory, path.parent)
        self.remove(state.stream, gone)

    def remove(self, stream: str, sequences: Sequence[int]) -> int:
        directory = self._root / stream
        count = sum(self._disk.remove(self._path(stream, sequence)) for sequence in sequences)
        if count:
            self._synced(self._disk.sync_directory, directory)
        return count

    def _path(self, stream: str, sequence: int) -> Path:
        return self._root / stream / f"{sequence:0{_DIGITS}}.json"

    def _synced(self, sync: Callable[[Path], None], path: Path) -> None:
        if self._fsync:
            sync(path)


def _is_key(name: str) -> bool:
    try:
        check_key(name)
    except DucktailError:
        return False
    return True


class Disk:
    """The operations on files and directories, about one system call each; a test replaces them."""

    def make_directory(self, path: Path) -> None:
        """Create a directory for this user only."""
        path.mkdir(mode=0o700, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """The names in a directory."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def read(self, path: Path, bytes_max: int) -> bytes | None:
        """A regular file's bytes; links are not followed, and pipes not awaited."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is no regular file")
            return file.read(bytes_max + 1)

    def write(self, path: Path, data: bytes) -> None:
        """Create a file for this user only."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """Sync a file's bytes to the disk."""
        _sync(path, os.O_RDONLY)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file."""
        path.replace(target)

    def remove(self, path: Path) -> bool:
        """Remove a file."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def sync_directory(self, path: Path) -> None:
        """Sync a directory's names to the disk."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

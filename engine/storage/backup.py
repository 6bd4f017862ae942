"""Copying a database's files so that the copy shows one instant, while writers continue.

DuckDB only appends to its log, and only a checkpoint rewrites its file; between checkpoints new blocks may be
added to the file, for rows whose commit is later in the log. So:

1. the log's end after its last whole commit is noted: everything acknowledged is before it;
2. the file is copied: it has the blocks to which the log refers up to that end;
3. the log is copied up to the noted end;
4. the file's headers must be unchanged: no checkpoint has run. Otherwise the copy starts again.

An open write transaction keeps DuckDB from checkpointing (CHECKPOINT is refused, automatic ones are skipped,
FORCE CHECKPOINT waits): a copy of a live database needs one, and step 4 verifies it.

The process that has the database open must not use this: closing any descriptor of the file would release
DuckDB's lock on it. Source: docs/design/engine.md, "Backup".
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from .. import schema
from ..errors import DataCorrupted, DucktailError, DuplicateObject, IoError, ObjectInUse, UndefinedObject
from ..settings import Settings
from . import wal_chain
from .audit import Finding, audit, read_everything
from .duckdb_file import DuckdbFile
from .incarnation import incarnation_base, raise_incarnation
from .loading import Counters, read_catalog, read_counters
from .opening import LISTED, READ, damaged_log, loss_of, own_tables
from .side_file import DamagedSideFile, SideFile, move_aside, side_path, sync_directory

# DuckDB's main header and its two database headers, one of which every checkpoint rewrites.
HEADERS_BYTES = 3 * 4096
BLOCK = 1 << 20
ATTEMPTS_MAX = 20
PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished copy.

    Args:
        counters: the last commit in the copy.
        incarnation: the incarnation of the copied database.
        begins_lsn: for a restored database, the first LSN that it will assign.
    """

    path: Path
    counters: Counters
    incarnation: int
    begins_lsn: int | None = None

    def __str__(self) -> str:
        begins = "" if self.begins_lsn is None else f", whose LSNs begin at {self.begins_lsn}"
        return (
            f"{self.path}: transaction {self.counters.txid}, LSN {self.counters.lsn}, "
            f"incarnation {self.incarnation}{begins}"
        )


class _Moved(Exception):
    """The error for a checkpoint that ran during a copy."""


@contextmanager
def closed_database(path: str) -> Iterator[int | None]:
    """A descriptor of a closed database file, which nobody can open meanwhile; None if it is open.

    Raises:
        UndefinedObject: the file does not exist.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UndefinedObject(f'there is no database file "{path}"') from None
    except OSError as error:
        raise IoError(f'database file "{path}" cannot be opened', detail=str(error)) from error
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)


def copy_closed(path: str, descriptor: int, target: Path) -> None:
    """Copy the files of a database held by `closed_database`, including its logs.

    Raises:
        IoError: a file cannot be copied.
        DataCorrupted: the log is damaged.
    """
    try:
        _copy(descriptor, target, None)
        for log, copy in zip(wal_chain.wal_paths(path), wal_chain.wal_paths(str(target)), strict=True):
            _whole(path, wal_chain.read_chain(log))
            if log.exists():
                with log.open("rb") as file:
                    _copy(file.fileno(), copy, None)
    except OSError as error:
        raise IoError(f'database file "{path}" cannot be copied', detail=str(error)) from error


def copy_live(path: str, target: Path) -> None:
    """Copy the files of a database that another process has open with checkpoints held back.

    Raises:
        IoError: a file cannot be copied.
        DataCorrupted: the log is damaged.
        ObjectInUse: checkpoints were not held back.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for _ in range(ATTEMPTS_MAX):
                try:
                    _copy_once(path, descriptor, target)
                    return
                except _Moved:
                    time.sleep(PAUSE_S)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise IoError(f'database file "{path}" cannot be copied', detail=str(error)) from error
    raise ObjectInUse(
        f'database "{path}" was checkpointed while it was copied, {ATTEMPTS_MAX} times',
        hint="Was the backup's session ended? See wal_bytes_max.",
    )


def finish(temporary: Path, target: Path) -> Copied:
    """Verify a copy, fold its log into it, and rename it to its final name.

    Raises:
        DataCorrupted: the copy is inconsistent; it keeps its temporary name.
    """
    copied = verified(temporary)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.rename(target)
    sync_directory(target.parent)
    return Copied(target, copied.counters, copied.incarnation)


def verified(path: Path, settings: Settings | None = None) -> Copied:
    """Open a copy, read every row, audit it, and fold its log into the file.

    Raises:
        DataCorrupted: the copy is inconsistent.
    """
    file = DuckdbFile.connect(str(path), settings)
    try:
        cursor = file.cursor(utc=True)
        facts = schema.migrate(cursor)
        findings = audit(cursor, read_catalog(cursor)) + read_everything(cursor, file.catalog_name)
        if findings:
            raise _damaged(path, findings)
        return Copied(path, read_counters(cursor), facts.incarnation)
    finally:
        file.close()


def restore(backup: Path, target: Path) -> Copied:
    """Make a database from a backup, with a new incarnation.

    Raises:
        UndefinedObject: the backup does not exist.
        DuplicateObject: the target exists.
        ObjectInUse: the backup is open.
        DataCorrupted: the backup is damaged.
    """
    refuse_existing(target)
    temporary = new_temporary(target)
    with closed_database(str(backup)) as descriptor:
        if descriptor is None:
            raise ObjectInUse(f'backup "{backup}" is open in another process')
        copy_closed(str(backup), descriptor, temporary)
    verified(temporary)
    return begin_incarnation(temporary, target)


def refuse_existing(target: Path) -> None:
    """Refuse to restore over a file.

    Raises:
        DuplicateObject: the target, or a log beside it, exists.
    """
    for path in (target, *wal_chain.wal_paths(str(target))):
        if path.exists():
            raise DuplicateObject(
                f'"{path}" already exists', hint="Restore writes over nothing: move it away first."
            )


def begin_incarnation(temporary: Path, target: Path) -> Copied:
    """Give a verified database a new incarnation, and then its final name.

    Raises:
        IoError: the database cannot be opened.
    """
    side, least = side_path(str(target)), 0
    file = DuckdbFile.connect(str(temporary))
    try:
        cursor = file.cursor(utc=True)
        facts = schema.read_facts(cursor)
        assert facts is not None
        try:
            old = SideFile.open(side)
        except DamagedSideFile:
            old = None
            move_aside(side)
        if old is not None:
            # The lost database's counters: its numbers must not be assigned again.
            if old.identity == facts.identity:
                least = old.incarnation + 1
            old.close()
        incarnation = raise_incarnation(cursor, at_least=least, txid=0 if old is None else old.mark.txid)
        counters = read_counters(cursor)
    finally:
        file.close()
    temporary.rename(target)
    sync_directory(target.parent)
    # Not earlier: until the new incarnation is stored, the side file records which ones are used.
    side.unlink(missing_ok=True)
    return Copied(target, counters, incarnation, incarnation_base(incarnation) + 1)


def new_temporary(target: Path) -> Path:
    """The temporary name of a copy; the remains of an earlier attempt are deleted.

    Raises:
        IoError: the directory does not exist.
    """
    if not target.parent.is_dir():
        raise IoError(f'there is no directory "{target.parent}"')
    temporary = target.with_name(f"{target.name}.partial")
    for path in (temporary, *wal_chain.wal_paths(str(temporary))):
        path.unlink(missing_ok=True)
    return temporary


def look_through(path: str) -> tuple[list[str], list[str]]:
    """Examine a closed database file without changing it.

    Returns:
        Descriptions of the file, and of its damage.
    """
    about, wrong = [], []
    for log in wal_chain.wal_paths(path):
        chain = wal_chain.read_chain(log)
        if chain is None:
            continue
        if not chain.readable:
            about.append(f"{log.name}: {chain.size} bytes of a version that is not read here")
        elif chain.damaged:
            error = damaged_log(path, chain, None)
            wrong.append(f"{error.message}: {error.detail}")
        else:
            torn = "" if chain.broken_at is None else f", then {chain.size - chain.end} bytes never committed"
            about.append(f"{log.name}: {chain.commits} commits{torn}")
    try:
        file = DuckdbFile.connect(path, read_only=True)
    except DucktailError as error:
        return about, [*wrong, f"{error.message}{': ' + error.detail if error.detail else ''}"]
    try:
        more, found = _look_inside(path, file)
    finally:
        file.close()
    return about + more, wrong + found


def _look_inside(path: str, file: DuckdbFile) -> tuple[list[str], list[str]]:
    cursor = file.cursor(utc=True)
    facts = schema.read_facts(cursor)
    if facts is None:
        more, lost = _against_side(cursor, path, None)
        about = ["a DuckDB database without streams", *more]
        return about, [finding.text for finding in read_everything(cursor, file.catalog_name)] + lost
    gone = sorted((READ | LISTED) - own_tables(cursor))
    if gone:
        more, lost = _against_side(cursor, path, facts)
        return more, [*(f"table {schema.SCHEMA}.{name} is not there" for name in gone), *lost]
    counters = read_counters(cursor)
    about = [
        f"format {facts.format}, incarnation {facts.incarnation}: "
        f"transaction {counters.txid}, LSN {counters.lsn}"
    ]
    wrong = []
    if facts.format == schema.FORMAT_VERSION:
        catalog = read_catalog(cursor)
        tables = sum(not captured.ours for captured in catalog.tables.values())
        about.append(f"{len(catalog.streams)} streams on {tables} tables")
        wrong += [finding.text for finding in audit(cursor, catalog)]
    else:
        about.append(f"ducktail serve brings it to format {schema.FORMAT_VERSION}; its logs are read then")
    wrong += [finding.text for finding in read_everything(cursor, file.catalog_name)]
    more, lost = _against_side(cursor, path, facts)
    return about + more, wrong + lost


def _against_side(
    cursor: duckdb.DuckDBPyConnection, path: str, facts: schema.Facts | None
) -> tuple[list[str], list[str]]:
    """Descriptions of the side file, and of acknowledged commits that are missing."""
    try:
        side = SideFile.open(side_path(path))
    except DamagedSideFile as damage:
        return [], [f"{side_path(path)} cannot be believed: {damage}"]
    if side is None:
        return ["no side file: whether commits are missing cannot be told"] if facts else [], []
    side.close()
    if facts is not None and side.identity != facts.identity:
        return ["the side file is of another database"], []
    loss = loss_of(cursor, facts, side)
    lost = [] if loss is None else [f"commits that were acknowledged are missing: {loss}"]
    return [f"acknowledged: transaction {side.mark.txid}, LSN {side.mark.lsn}"], lost


def _copy_once(path: str, descriptor: int, target: Path) -> None:
    log, other = wal_chain.wal_paths(path)
    before = os.pread(descriptor, HEADERS_BYTES, 0)
    chain = wal_chain.read_chain(log)
    _whole(path, chain)
    if other.exists() or (chain is not None and chain.checkpointing):
        raise _Moved
    _copy(descriptor, target, None)
    if chain is not None and chain.commits:
        with log.open("rb") as file:
            _copy(file.fileno(), wal_chain.wal_paths(str(target))[0], chain.end)
    if os.pread(descriptor, HEADERS_BYTES, 0) != before or other.exists():
        raise _Moved


def _whole(path: str, chain: wal_chain.WalChain | None) -> None:
    if chain is not None and chain.damaged:
        raise damaged_log(path, chain, None)


def _copy(descriptor: int, target: Path, size: int | None) -> None:
    """Copy the first `size` bytes of an open file, or all of it for None."""
    at = 0
    with target.open("wb") as copy:
        while size is None or at < size:
            wanted = BLOCK if size is None else min(BLOCK, size - at)
            data = os.pread(descriptor, wanted, at)
            if not data:
                break
            copy.write(data)
            at += len(data)
        copy.flush()
        os.fsync(copy.fileno())
    if size is not None and at < size:
        raise _Moved


def _damaged(path: Path, findings: list[Finding]) -> DataCorrupted:
    return DataCorrupted(f'"{path}" is damaged', detail=". ".join(finding.text for finding in findings) + ".")

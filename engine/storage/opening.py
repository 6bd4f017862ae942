"""Opening a database so that nothing acknowledged is silently missing.

The steps, in this order; the file is not written before the last one:

1. neither another process nor this one has the file open;
2. the frame chain of DuckDB's log is read: a torn tail is cut, damage is refused (`wal_chain.py`);
3. DuckDB opens the file;
4. the file is compared with the acknowledged commits (`side_file.py`): a file behind them is refused;
5. the schema is installed or migrated, and the side file rewritten if needed.

`accept_loss` opens a refused file: it reports the loss and raises the incarnation, so that the LSNs of lost
events are never assigned to other events.

The file's stamp shows if another program has written the file since ducktail closed it. DuckDB numbers each
checkpoint, and stores the number in one of the two headers of the file with the position of the checkpoint's
catalog; later commits are in the log beside the file. So the headers and the log's length change with any
commit, and are equal in a copy. The stamp is read only while DuckDB does not have the file open, because
closing a descriptor would release its lock. Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

import duckdb

from .. import schema
from ..catalog.catalog import Catalog
from ..duck.cursors import ask
from ..errors import DataCorrupted, DucktailError, IoError, ObjectInUse
from ..settings import Settings
from . import wal_chain
from .audit import NO_TABLE, WITHOUT_TABLE, audit, worst
from .duckdb_file import MEMORY, DuckdbFile
from .incarnation import Hole, incarnation_base, raise_incarnation, read_holes
from .loading import Counters, read_counters, read_objects
from .side_file import STAMP_BYTES, CatalogCounts, DamagedSideFile, Mark, SideFile, move_aside, side_path
from .wal_chain import wal_paths

logger = logging.getLogger(__name__)

ACCEPT_HINT = "Restore a backup, or open it with --accept-loss: it is served without what is lost."
ANOTHER_HINT = f"{ACCEPT_HINT} Where another database was put in its place, move its side file away."
# The tables of commits and of the catalog's objects.
READ = {"commits", "offset_log"}
LISTED = {"stream_catalog", "group_catalog"}
ON_TABLES = {"stream_catalog", "stream_tables", "table_catalog"}

_open_lock = threading.Lock()
_open_files: set[tuple[int, int]] = set()  # device and inode of each file that this process has open
# The main header and the two of checkpoints, 4,096 bytes each.
HEADER_BYTES = 3 * 4096


@dataclass(frozen=True, slots=True)
class Loss:
    """The acknowledged commits that are missing from the file.

    Args:
        stored, acknowledged: the last commits of the file and of the side file.
        older: True if the file's incarnation is before the acknowledged one.
        objects: the counts of acknowledged and of existing streams and groups, if they differ.
        gone: True if the schema of the engine's own tables is missing.
    """

    stored: Mark
    acknowledged: Mark
    older: bool = False
    objects: tuple[CatalogCounts, CatalogCounts] | None = None
    gone: bool = False

    def __str__(self) -> str:
        had, has = self.acknowledged, self.stored
        parts = []
        if self.gone:
            parts.append(f"schema {schema.SCHEMA}, with all streams and groups")
        if self.older:
            parts.append("the file is older than the restore or the accepted loss that came after it")
        if had.txid > has.txid:
            parts.append(f"transactions {has.txid + 1} to {had.txid}")
        if had.lsn > has.lsn:
            parts.append(f"events with LSN {has.lsn + 1} to {had.lsn}")
        if had.seq > has.seq:
            parts.append(f"commits of offsets, those numbered {has.seq + 1} to {had.seq}")
        if self.objects is not None:
            before, there = self.objects
            parts.append(
                f"streams or consumer groups: {before.streams} and {before.groups} were acknowledged, "
                f"{there.streams} and {there.groups} of them at most are there"
            )
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Looked:
    """The findings before any write.

    Args:
        is_new: True if ducktail has not written the database yet.
    """

    side: SideFile | None
    loss: Loss | None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The numbers of an opened database.

    Args:
        side: the database's side file; None in memory.
        holes: ranges of LSNs that belong to no event of this database in its present state.
    """

    side: SideFile | None
    counters: Counters
    incarnation: int
    holes: tuple[Hole, ...]


def claim(path: str) -> tuple[int, int] | None:
    """Record that this process opens the file; None if the file does not exist or is in memory.

    POSIX locks belong to the process: closing any descriptor of the file releases DuckDB's lock. Therefore a
    file is opened here only while DuckDB does not have it open, and a second engine on it is refused.

    Raises:
        ObjectInUse: this process has the file open.
        IoError: another process has the file open.
    """
    if path == MEMORY:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    key = (status.st_dev, status.st_ino)
    with _open_lock:
        if key in _open_files:
            raise ObjectInUse(f'database file "{path}" is open in this process')
        if not lock_is_free(path):
            raise IoError(f'database file "{path}" is in use by another process')
        _open_files.add(key)
    return key


def claim_new(path: str) -> tuple[int, int] | None:
    """Record that this process has opened a file that DuckDB has just created."""
    if path == MEMORY:
        return None
    status = os.stat(path)
    key = (status.st_dev, status.st_ino)
    with _open_lock:
        _open_files.add(key)
    return key


def release(key: tuple[int, int] | None) -> None:
    """Record that this process has closed the file."""
    with _open_lock:
        _open_files.discard(key or (0, 0))


def lock_is_free(path: str) -> bool:
    """True if no other process has a database file open; only valid if this process does not have it open."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True  # It cannot be opened at all: DuckDB reports the reason.
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def check_logs(path: str, *, accept_loss: bool) -> None:
    """Read the frame chains of DuckDB's logs before DuckDB does.

    Raises:
        DataCorrupted: a log is damaged; it was copied aside.
    """
    for log in wal_chain.wal_paths(path):
        chain = wal_chain.read_chain(log)
        if chain is None or not chain.readable or chain.broken_at is None:
            continue
        if chain.damaged:
            copy = wal_chain.copy_aside(log)
            error = damaged_log(path, chain, copy)
            if not accept_loss:
                raise error
            logger.error("%s: %s", error.message, error.detail)
        elif chain.fits:
            # DuckDB would refuse a last frame with its full length and a wrong checksum: a torn page.
            copy = wal_chain.copy_aside(log)
            logger.warning(
                "the last, unfinished transaction in %s is torn: cut at byte %d; a copy is %s",
                log, chain.end, copy,
            )  # fmt: skip
        else:
            continue
        wal_chain.cut(log, chain.end)


def connect(path: str, settings: Settings, *, accept_loss: bool) -> DuckdbFile:
    """Let DuckDB open the file; with `accept_loss`, logs that it refuses are moved aside.

    Raises:
        IoError: the file cannot be opened.
        DataCorrupted: DuckDB finds the file or its log damaged.
    """
    try:
        return DuckdbFile.connect(path, settings)
    except DataCorrupted as refused:
        logs = [log for log in wal_chain.wal_paths(path) if log.exists()]
        if not accept_loss or not logs:
            raise
        for log in logs:
            logger.error("%s: the log is moved aside to %s", refused.message, wal_chain.copy_aside(log))
            log.unlink()
        return DuckdbFile.connect(path, settings)


def damaged_log(path: str, chain: wal_chain.WalChain, copy: Path | None) -> DataCorrupted:
    """The error for a log with commits behind a break."""
    kept = f" The log as it was is copied to {copy}." if copy else ""
    return DataCorrupted(
        f'the write-ahead log of database "{path}" is damaged at byte {chain.broken_at} of {chain.size}',
        detail=f"The {chain.commits} commits before that byte can be read; "
        f"at byte {chain.resumes_at} another one stands behind it.{kept}",
        hint=ACCEPT_HINT,
    )


def look(cursor: duckdb.DuckDBPyConnection, path: str, *, accept_loss: bool) -> Looked:
    """Compare the file with the acknowledged commits, without changing it.

    Raises:
        DataCorrupted: commits or parts of the catalog are missing, or the format is newer.
    """
    stored = schema.read_facts(cursor)
    if path == MEMORY:
        return Looked(None, None, stored is None)
    side = _side_of(path, None if stored is None else stored.identity)
    if side is None:
        if stored is not None and stored.identity is not None:
            logger.warning(
                'database "%s" has no side file: a copy, or one that was moved. '
                "Whether commits are missing cannot be told.", path,
            )  # fmt: skip
        return Looked(side, None, stored is None)
    try:
        loss = loss_of(cursor, stored, side)
        if loss is None and not accept_loss and own_tables(cursor) >= ON_TABLES:
            if ask(cursor, WITHOUT_TABLE)[0]:
                # Such a stream cannot be served, so that its readers could not be informed.
                raise DataCorrupted(
                    f'the catalog of database "{path}" is damaged',
                    detail=f"{NO_TABLE[0].upper()}{NO_TABLE[1:]}.",
                    hint=ACCEPT_HINT,
                )
        if loss is None:
            return Looked(side, None)
        if not accept_loss:
            raise DataCorrupted(
                f'database "{path}" has lost commits that were acknowledged', detail=f"Lost: {loss}.",
                hint=ANOTHER_HINT if loss.gone else ACCEPT_HINT,
            )  # fmt: skip
    except BaseException:
        side.close()
        raise
    logger.error('database "%s" is served without commits that were acknowledged. Lost: %s.', path, loss)
    return Looked(side, loss, stored is None)


def settle(cursor: duckdb.DuckDBPyConnection, path: str, looked: Looked) -> Settled:
    """Install or migrate the schema, raise the incarnation if commits were lost, write the side file.

    Raises:
        IoError: the side file cannot be written.
    """
    schema.install(cursor)
    if looked.loss is not None:
        lost, side = looked.loss.acknowledged, looked.side
        assert side is not None
        raise_incarnation(cursor, at_least=side.incarnation + 1, txid=lost.txid)
    facts = schema.read_facts(cursor)
    assert facts is not None and facts.identity is not None
    counters = _raised(cursor, read_counters(cursor), facts.incarnation)
    holes = read_holes(cursor)
    side = looked.side
    if path != MEMORY and (side is None or side.incarnation != facts.incarnation):
        if side is not None:
            side.close()
        mark = _stored_mark(cursor, facts.incarnation)
        side = SideFile.create(side_path(path), facts.identity, facts.incarnation, mark)
    return Settled(side, counters, facts.incarnation, holes)


def loss_of(cursor: duckdb.DuckDBPyConnection, stored: schema.Facts | None, side: SideFile) -> Loss | None:
    """The commits that the side file acknowledges and the database lacks, or None.

    Args:
        stored: the facts stored in the database; None if it has none.
    """
    if stored is None:
        return None if side.mark == Mark() else Loss(Mark(), side.mark, gone=True)
    if side.incarnation < stored.incarnation:
        return None  # The incarnation was raised, and the side file not yet written: it has no marks for it.
    there = own_tables(cursor)
    mark = _stored_mark(cursor, stored.incarnation) if there >= READ else Mark()
    objects = None
    # A mark before the last commit that defined an object does not describe the present objects.
    if side.objects is not None and mark.txid == side.mark.txid:
        found = read_objects(cursor) if there >= LISTED else CatalogCounts()
        objects = (side.objects, found) if found != side.objects else None
    loss = Loss(mark, side.mark, side.incarnation > stored.incarnation, objects)
    return loss if str(loss) else None


def own_tables(cursor: duckdb.DuckDBPyConnection) -> set[str]:
    """The names of the engine's own tables that exist."""
    rows = cursor.execute(
        "SELECT table_name FROM system.main.duckdb_tables() "
        f"WHERE database_name = current_database() AND schema_name = '{schema.SCHEMA}'"
    ).fetchall()
    return {name for (name,) in rows}


def find_damage(
    cursor: duckdb.DuckDBPyConnection, catalog: Catalog, last_lsn: int, *, accept_loss: bool
) -> dict[int, DucktailError]:
    """Audit logs, commits and catalog.

    Returns:
        Stream id -> the error for its readers; the other streams are served.
    """
    findings = audit(cursor, catalog)
    for finding in findings:
        logger.error("damage: %s", finding.text)
    if not findings:
        return {}
    if accept_loss:
        for sql in (
            f"DELETE FROM {schema.SCHEMA}.meta WHERE name = 'accepted'",
            f"INSERT INTO {schema.SCHEMA}.meta VALUES ('accepted', '{last_lsn}')",
        ):
            cursor.execute(sql).fetchall()
        return {}
    damage: dict[int, DucktailError] = {}
    for stream in catalog.streams.values():
        found = worst(findings, stream)
        if found is not None:
            damage[stream.stream_id] = found.error(stream)
    return damage


def set_aside(path: str) -> None:
    """Move aside the side file of a former database before a new file is created at its path."""
    side = side_path(path)
    if path != MEMORY and side.exists():
        logger.warning("%s has lost its database: moved aside to %s", side, move_aside(side))


def _side_of(path: str, identity: uuid.UUID | None) -> SideFile | None:
    """The side file, if it belongs to this database; another one is moved aside.

    If the database has no facts of its own and the side file has acknowledged commits, it counts as this
    database's.
    """
    place = side_path(path)
    try:
        side = SideFile.open(place)
    except DamagedSideFile as damage:
        logger.warning("%s cannot be believed (%s): moved aside to %s", place, damage, move_aside(place))
        return None
    if side is None or side.identity == identity or (identity is None and side.mark != Mark()):
        return side
    side.close()
    logger.warning("%s is of another database: moved aside to %s", place, move_aside(place))
    return None


def _raised(cursor: duckdb.DuckDBPyConnection, found: Counters, incarnation: int) -> Counters:
    """The counters with which a raised incarnation starts, before its first commit stores them."""
    (txid,) = ask(
        cursor, f"SELECT coalesce(max(value::BIGINT), 0) FROM {schema.SCHEMA}.meta WHERE name = 'txid'"
    )
    return Counters(max(found.txid, txid), max(found.lsn, incarnation_base(incarnation)), found.commit_us)


def _stored_mark(cursor: duckdb.DuckDBPyConnection, incarnation: int) -> Mark:
    counters = read_counters(cursor)
    (seq,) = ask(cursor, f"SELECT coalesce(max(seq), 0) FROM {schema.SCHEMA}.offset_log")
    return Mark(counters.txid, max(counters.lsn, incarnation_base(incarnation)), seq)


def read_stamp(path: str) -> bytes | None:
    """The stamp of a database file that this process does not have open; None without a file."""
    if path == MEMORY:
        return None
    try:
        with open(path, "rb") as file:
            found = hashlib.blake2b(file.read(HEADER_BYTES), digest_size=STAMP_BYTES)
        sizes = [log.stat().st_size if log.exists() else 0 for log in wal_paths(path)]
    except OSError:
        return None
    found.update(repr(sizes).encode())
    return found.digest()


def stamp_left(path: str) -> bytes | None:
    """The stamp of a file just closed; None if DuckDB's log still exists.

    In that case DuckDB's instance is still open (for a result that was not read to its end) and will write
    the log into the file; opening the file here would release the instance's lock.
    """
    return None if any(log.exists() for log in wal_paths(path)) else read_stamp(path)

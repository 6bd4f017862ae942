"""A standby: a second database file that follows the continuous copy of another.

It keeps three files beside the path at which it is to serve:

    PATH.standby        the database as of a checkpoint
    PATH.standby.wal    DuckDB's log behind it, up to a whole commit
    PATH.standby.json   the position: which object was applied last, and how much of the log is whole
    PATH.standby.promotion  the name of the promotion that was begun, until it is complete

Objects are applied in the order of their generation. A log is appended, after the blocks to which it refers
are written to places that are free in the checkpoint. A checkpoint is applied as one step: the blocks that
differ are put into PATH.standby.applying, a whole object, and then written; after a crash they are written
again. So the files are a state of the primary at any time, and a promotion needs nothing else: DuckDB replays
the log, the incarnation is raised, and the file gets its name. Source: docs/design/replication.md, "Standby".
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..clock import Clock
from ..errors import AdminShutdown, DataCorrupted, DuplicateObject, IoError, ObjectInUse, UndefinedObject
from ..storage import backup, wal_chain
from ..storage.side_file import sync_directory
from .database_blocks import BLOCKS_AT, SUM, CheckpointHeader, read_header
from .fences import put_fence
from .generation_writer import DatabaseIdentity, generation_names, is_whole
from .generations import Generation, Span
from .log_tail import CopiedTransaction
from .objects import (
    BLOCKS,
    CHECKPOINT,
    LOG,
    TAIL,
    CopiedObject,
    body_pieces,
    chained_name,
    damaged,
    read_head,
    tail_name,
    verified_body,
    write_object,
)
from .targets import DirectoryTarget

logger = logging.getLogger(__name__)

APPLYING = "applying"
# A checkpoint that differs in more blocks is applied without a journal: the standby begins anew.
JOURNAL_BLOCKS_MAX = 50_000


@dataclass(frozen=True, slots=True)
class StandbyPosition:
    """The position of a standby.

    Args:
        identity, incarnation: of the primary.
        number, digest: the last applied object of the generation's chain.
        iteration: the checkpoint that the file has.
        end: the end of the whole commits in the log behind it.
        txid, lsn, commit_us: the last captured transaction; 0 if it is not known.
        promoted: the name of the promotion that was begun; "" without one.
        done: True if that promotion is complete.
    """

    identity: str
    incarnation: int
    generation: str
    number: int
    digest: str
    iteration: int
    end: int
    txid: int = 0
    lsn: int = 0
    commit_us: int = 0
    promoted: str = ""
    done: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """Positions of one database are ordered by this."""
        return self.incarnation, self.iteration, self.end


class _OtherCommits(Exception):
    """The error for a log that is not the one that was copied before."""


class Standby:
    """The files of a standby, held by one process.

    Args:
        path: the path at which it is to serve; it must not exist.
        directory: the target that the primary copies to.

    Attributes:
        position: the state; None before the first copy is complete.

    Raises:
        ObjectInUse: another process has them.
        DuplicateObject: the path has a database that was no standby.
        IoError: a file cannot be read or written.
    """

    def __init__(self, path: Path, directory: Path, clock: Clock) -> None:
        self.path = path
        self.target = DirectoryTarget(directory)
        self._clock = clock
        self.file_path = standby_path(path)
        self._log_path = wal_chain.wal_paths(str(self.file_path))[0]
        self._own = DirectoryTarget(path.parent)
        self._journal = f"{self.file_path.name}.{APPLYING}"
        self._lock = _locked(path)
        self.position: StandbyPosition | None = None
        self._pending: list[CopiedObject] = []  # blocks behind the position, for the next log
        # True while blocks of the file may have been written in part: their checksums alone tell nothing.
        self._unsure = True
        self.stopping = False  # set by another thread: `catch_up` ends at its next step
        try:
            self._recover()
            if path.exists() and not (self.position is not None and self.position.promoted):
                raise DuplicateObject(
                    f'"{path}" already exists', hint="A standby begins with no file: move it away first."
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the files up."""
        self._lock.close()

    # Following.

    def catch_up(self) -> bool:
        """Apply what the target has; True if that was anything.

        Raises:
            UndefinedObject: the target has no copy.
            DataCorrupted: the copy is damaged.
            OSError: the target, or a file here, failed.
        """
        before = self.position
        assert before is None or not before.promoted
        self._complete_checkpoint()
        self._choose_generation()
        try:
            while self._apply_next():
                self._check_stopping()
            while self._apply_tail():
                pass
        except _OtherCommits as error:
            # The primary's disk has lost them, and it has gone on without them.
            logger.error("%s; the standby follows the primary", error)
            assert self.position is not None
            generation = self._read(self.position.generation)
            if generation.spans[-1].iteration == self.position.iteration:
                self._restart_log(generation.spans[-1])
            else:
                self._apply_checkpoint(generation, generation.spans[-1])
        return self.position != before

    def _choose_generation(self) -> None:
        """Change to a newer generation that is as far, or to any in place of one that was deleted."""
        names = generation_names(self.target)
        position = self.position
        if position is not None and position.generation in names:
            names = [name for name in names if name > position.generation]
        whole = [name for name in names if is_whole(self.target, name)]
        if not whole:
            if position is None:
                raise UndefinedObject(f'"{self.target}" has no copy of a database')
            return
        generation = self._read(whole[-1])
        span = generation.spans[-1]
        facts = span.checkpoint.facts
        if position is not None:
            if facts["identity"] != position.identity:
                raise ObjectInUse(f'"{self.target}" has copies of another database')
            if (facts["incarnation"], span.iteration, span.end) < position.order:
                return  # It is being begun.
        self._apply_checkpoint(generation, span)

    def _check_stopping(self) -> None:
        if self.stopping:
            raise AdminShutdown("the standby is being ended")

    def _apply_next(self) -> bool:
        position = self.position
        assert position is not None
        number = self._pending[-1].number + 1 if self._pending else position.number + 1
        digest = self._pending[-1].digest.hex() if self._pending else position.digest
        for kind in (LOG, BLOCKS, CHECKPOINT):
            try:
                found = read_head(self.target, chained_name(position.generation, number, kind))
                break
            except FileNotFoundError:
                pass
        else:
            return False
        if found.previous.hex() != digest:
            raise damaged(found.name, "it does not follow the object before it")
        if kind == BLOCKS:
            self._pending.append(found)
        elif kind == LOG:
            self._write_pending()
            self._append(found, replace(position, number=number, digest=found.digest.hex()))
        else:
            generation = self._read(position.generation)
            self._apply_checkpoint(generation, generation.spans[-1])
        return True

    def _read(self, name: str) -> Generation:
        generation = Generation(self.target, name)
        if not generation.spans:
            raise DataCorrupted(f"generation {name} is damaged", detail=f"{'; '.join(generation.faults)}.")
        return generation

    def _apply_tail(self) -> bool:
        position = self.position
        assert position is not None
        # Tails refer to no blocks, so that they do not wait for those that are pending.
        name = tail_name(position.generation, position.iteration, position.end)
        try:
            found = read_head(self.target, name)
            self._append(found, position)
        except FileNotFoundError:
            return False
        return True

    def _append(self, found: CopiedObject, position: StandbyPosition) -> None:
        """Append the commits of a log object or a tail; those that are here already are compared."""
        facts = found.facts
        if found.kind not in (LOG, TAIL) or facts["iteration"] != position.iteration:
            raise damaged(found.name, "it does not continue the log")
        if facts["start"] > position.end:
            raise damaged(found.name, f"the log before it is missing, from byte {position.end} on")
        at = int(facts["start"])
        descriptor = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for piece in body_pieces(self.target, found):
                here = max(0, min(len(piece), position.end - at))
                if os.pread(descriptor, here, at) != piece[:here]:
                    raise _OtherCommits(f"{found.name} has other commits than were copied before")
                _write_all(descriptor, piece[here:], at + here)
                at += len(piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if at >= position.end:
            position = _behind(replace(position, end=at), facts["last"])
        self._save(position)

    def _restart_log(self, span: Span) -> None:
        """Forget the log, and begin with the checkpoint of the file again."""
        position = self.position
        assert position is not None
        number, digest = span.checkpoint.number, span.checkpoint.digest.hex()
        again = replace(position, number=number, digest=digest, end=0, txid=0, lsn=0, commit_us=0)
        self._pending.clear()
        self._save(_behind(again, span.checkpoint.facts["last"]))
        self._log_path.unlink(missing_ok=True)

    def _write_pending(self) -> None:
        """Write the blocks to which the next log refers; the checkpoint does not use their places."""
        if not self._pending:
            return
        for one in self._pending:
            blocks = _cut(body_pieces(self.target, one), b"", one.facts["block_bytes"])
            self._write_blocks(zip(one.facts["blocks"], blocks, strict=True), one.name)
        self._pending.clear()

    def _write_blocks(self, blocks: Iterable[tuple[int, bytes]], name: str) -> None:
        """Write blocks that are free in the checkpoint of the file."""
        unsure, self._unsure = self._unsure, True
        with self.file_path.open("r+b") as file:
            for block, data in blocks:
                _write_block(file, name, block, data)
            file.flush()
            os.fsync(file.fileno())
        self._unsure = unsure

    # Checkpoints.

    def _apply_checkpoint(self, generation: Generation, span: Span) -> None:
        """Let the file be as of a checkpoint."""
        header, places = generation.places(span)
        facts = span.checkpoint.facts
        wanted = np.frombuffer(verified_body(self.target, span.checkpoint)[BLOCKS_AT:], dtype=np.uint64)
        position = StandbyPosition(
            facts["identity"],
            facts["incarnation"],
            generation.name,
            span.checkpoint.number,
            span.checkpoint.digest.hex(),
            span.iteration,
            0,
        )
        position = _behind(position, facts["last"])
        before = self.position
        self._pending.clear()
        present = None if before is None else self._headers()
        changed: list[int] = []
        size = header.block_bytes
        if before is not None:
            with self.file_path.open("rb") as file:
                changed = [block for block in places if self._sum(file, block, size) != int(wanted[block])]
        if before is not None and present == header.data and before.incarnation == position.incarnation:
            # The same checkpoint in a new generation: the log goes on, and is compared. The blocks that
            # differ are free in the checkpoint; those to which later commits refer are among them.
            self._write_blocks(self._fetched(changed, places, size), self.file_path.name)
            position = replace(position, end=before.end)
            self._save(replace(position, txid=before.txid, lsn=before.lsn, commit_us=before.commit_us))
            return
        if before is None or len(changed) > JOURNAL_BLOCKS_MAX:
            self._state_path.unlink(missing_ok=True)
            self.position = None
            changed = sorted(places)
            self._write_checkpoint(header, self._fetched(changed, places, header.block_bytes))
            self._save(position)
            self._unsure = False
            return
        about = {"kind": APPLYING, "number": -1, "position": asdict(position), "blocks": changed}
        length = len(header.data) + len(changed) * header.block_bytes
        bodies = self._fetched(changed, places, header.block_bytes)

        def pieces() -> Iterator[bytes]:
            yield header.data
            for _, data in bodies:
                yield data

        write_object(self._own, self._journal, about, pieces(), length, replace=True)
        self._redo()
        self._unsure = False

    def _redo(self) -> None:
        """Write the blocks of the journal, and delete it."""
        found = read_head(self._own, self._journal)
        pieces, data = body_pieces(self._own, found), b""
        while len(data) < BLOCKS_AT and (piece := next(pieces, b"")):
            data += piece
        header = read_header(data[:BLOCKS_AT])
        if header is None:
            raise damaged(found.name, "its headers are damaged")
        bodies = _cut(pieces, data[BLOCKS_AT:], header.block_bytes)
        self._write_checkpoint(header, zip(found.facts["blocks"], bodies, strict=True))
        self._save(StandbyPosition(**found.facts["position"]))
        self._own.delete(self._journal)

    def _write_checkpoint(self, header: CheckpointHeader, blocks: Iterable[tuple[int, bytes]]) -> None:
        with self.file_path.open("r+b" if self.file_path.exists() else "w+b") as file:
            for block, data in blocks:
                _write_block(file, self.file_path.name, block, data)
            file.seek(0)
            file.write(header.data)
            file.truncate(BLOCKS_AT + header.block_count * header.block_bytes)
            file.flush()
            os.fsync(file.fileno())
        self._log_path.unlink(missing_ok=True)
        sync_directory(self.path.parent)

    def _fetched(
        self, wanted: list[int], places: dict[int, tuple[CopiedObject, int]], size: int
    ) -> Iterator[tuple[int, bytes]]:
        """The blocks of a checkpoint, from their objects, which are read in order; in the order wanted."""
        for block in wanted:
            self._check_stopping()
            one, place = places[block]
            data = self.target.read(one.name, one.body_at + place * size, size)
            if len(data) != size or SUM.unpack_from(data)[0] != wal_chain.checksum(data[SUM.size :]):
                raise damaged(one.name, f"block {block} has a wrong checksum")
            yield block, data

    def _headers(self) -> bytes:
        with self.file_path.open("rb") as file:
            return file.read(BLOCKS_AT)

    def _sum(self, file: IO[bytes], block: int, size: int) -> int:
        """The checksum of a block of the file; 0 for one that is not whole."""
        file.seek(BLOCKS_AT + block * size)
        data = file.read(size if self._unsure else SUM.size)
        if len(data) < SUM.size:
            return 0
        found = int(SUM.unpack_from(data)[0])
        return 0 if self._unsure and found != wal_chain.checksum(data[SUM.size :]) else found

    # The position.

    @property
    def _state_path(self) -> Path:
        return state_path(self.path)

    def _save(self, position: StandbyPosition) -> None:
        """Store a position whose files are synced."""
        partial = self._state_path.with_name(f"{self._state_path.name}.partial")
        with partial.open("w") as file:
            json.dump({"directory": str(self.target), **asdict(position)}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._state_path)
        sync_directory(self.path.parent)
        self.position = position

    def _recover(self) -> None:
        """Read the position, and complete or cut what a crash has left."""
        self.position = read_position(self.path)
        position = self.position
        if position is None or position.promoted:
            return
        self._complete_checkpoint()
        assert self.position is not None
        self._cut_log(self.position)

    def _complete_checkpoint(self) -> None:
        """Write the blocks of a checkpoint again, if a crash or an error came between."""
        if (self.path.parent / self._journal).exists():
            self._redo()

    def _cut_log(self, position: StandbyPosition) -> None:
        """Cut the log behind its whole commits: an object may have been appended in part."""
        log = self._log_path
        size = log.stat().st_size if log.exists() else 0
        if size < position.end:
            raise DataCorrupted(f'"{log}" is shorter than its standby has noted')
        if size > position.end:
            os.truncate(log, position.end)
        chain = wal_chain.read_chain(log)
        if position.end and (chain is None or chain.broken_at is not None or chain.end != position.end):
            raise DataCorrupted(f'"{log}" is damaged', hint="Delete the standby's files, and begin anew.")

    # Promotion.

    def promote(self, *, fenced: bool) -> StandbyPosition:
        """Take the last objects, raise the incarnation, and give the file its name; after a crash, again.

        Args:
            fenced: put a fence into the target, so that the old primary cannot go on. Without one the
                target is not needed.

        Raises:
            UndefinedObject: the first copy is not complete.
            ObjectInUse: another standby was promoted.
            IoError: the target or a file failed.
            DataCorrupted: the copy is damaged.
        """
        position = self.position
        if position is None:
            raise UndefinedObject("the standby has no complete copy yet")
        if not position.promoted:
            promoted = self._promotion()
            if fenced:
                identity = DatabaseIdentity(position.identity, position.incarnation)
                try:
                    put_fence(self.target, identity, promoted, self._clock.now_us())
                    while self.catch_up():
                        pass
                except OSError as error:
                    raise IoError(
                        f'the copy in "{self.target}" cannot be reached',
                        detail=str(error),
                        hint="If the old primary and its copy are lost: ducktail promote --unfenced.",
                    ) from error
            self._complete_checkpoint()
            assert self.position is not None
            position = self.position
            self._cut_log(position)
            position = replace(position, promoted=promoted)
            self._save(position)
        if self.file_path.exists():
            backup.refuse_existing(self.path)
            copied = backup.begin_incarnation(self.file_path, self.path)
            position = replace(
                position,
                incarnation=copied.incarnation,
                txid=copied.counters.txid,
                lsn=copied.counters.lsn,
            )
        position = replace(position, done=True)
        self._save(position)
        self._promotion_path.unlink(missing_ok=True)
        return position

    @property
    def _promotion_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.standby.promotion")

    def _promotion(self) -> str:
        """The name of the promotion, stored before its fence: after an error or a crash it is the same."""
        place = self._promotion_path
        with suppress(FileNotFoundError):
            return place.read_text()
        name, partial = uuid.uuid4().hex, place.with_name(f"{place.name}.partial")
        with partial.open("w") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(place)
        sync_directory(self.path.parent)
        return name


def standby_path(path: Path) -> Path:
    """The database file of a standby."""
    return path.with_name(f"{path.name}.standby")


def state_path(path: Path) -> Path:
    """The file with the position of a standby."""
    return path.with_name(f"{path.name}.standby.json")


def read_position(path: Path) -> StandbyPosition | None:
    """The stored position of a standby; None if its first copy is not complete.

    Raises:
        DataCorrupted: it cannot be read.
    """
    try:
        facts: dict[str, Any] = json.loads(state_path(path).read_text())
        facts.pop("directory")
        return StandbyPosition(**facts)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(f'"{state_path(path)}" cannot be read', detail=str(error)) from error


def _locked(path: Path) -> IO[bytes]:
    """The lock of a standby's files."""
    place = path.with_name(f"{path.name}.standby.lock")
    try:
        file = place.open("ab")
    except OSError as error:
        raise IoError(f'"{place}" cannot be opened', detail=str(error)) from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ObjectInUse(f'another process has the standby "{path}"') from None
    return file


def is_held(path: Path) -> bool:
    """True if a process has the standby's files."""
    try:
        _locked(path).close()
    except ObjectInUse:
        return True
    return False


def _behind(position: StandbyPosition, last: list[int] | None) -> StandbyPosition:
    """A position behind a captured transaction, if one is known."""
    if last is None:
        return position
    one = CopiedTransaction(*last)
    return replace(position, txid=one.txid, lsn=one.last_lsn, commit_us=one.commit_us)


def _cut(pieces: Iterator[bytes], data: bytes, size: int) -> Iterator[bytes]:
    """The blocks in the pieces of a body, behind the bytes that were read already."""
    while True:
        while len(data) >= size:
            yield data[:size]
            data = data[size:]
        if not (piece := next(pieces, b"")):
            return
        data += piece


def _write_block(file: IO[bytes], name: str, block: int, data: bytes) -> None:
    if SUM.unpack_from(data)[0] != wal_chain.checksum(data[SUM.size :]):
        raise damaged(name, f"block {block} has a wrong checksum")
    file.seek(BLOCKS_AT + len(data) * block)
    file.write(data)


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count

"""Restoring a database from a continuous copy, as of a moment.

The moment is the end of a transaction of DuckDB. It is found in the facts of the log objects and then in
the log itself; the file is put together from blocks, DuckDB replays the log up to it, and the counters of
the database that results must be those of the moment. Source: docs/design/replication.md, "Restore".
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataCorrupted, InvalidParameterValue, IoError
from ..settings import Settings
from ..storage import backup, wal_chain
from .database_blocks import BLOCKS_AT, SUM
from .generations import (
    READS_MAX,
    Generation,
    Span,
    read_generations,
    shown_fault,
    shown_states,
    shown_time,
)
from .log_tail import CopiedTransaction, scan
from .objects import CopiedObject, body_pieces, damaged
from .targets import DirectoryTarget

# Memory of a verification, which runs beside the server.
CHECK_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Moment:
    """The wanted moment: an LSN, a time in microseconds since 1970, or neither for the latest."""

    lsn: int | None = None
    at_us: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A state that can be restored.

    Args:
        logs: the log objects that are replayed.
        end: the end of the replayed log.
        last: its last transaction; None if it is that of a checkpoint and not known.
    """

    generation: Generation
    span: Span
    logs: tuple[CopiedObject, ...]
    end: int
    last: CopiedTransaction | None


def restore_copy(directory: Path, moment: Moment, target: Path) -> tuple[State, backup.Copied]:
    """Create a database from a continuous copy, with a new incarnation.

    Returns:
        The state, and the database.

    Raises:
        UndefinedObject: the directory has no copy.
        InvalidParameterValue: the copy does not have the moment.
        DuplicateObject: the target exists.
        DataCorrupted: the copy is damaged.
        IoError: a file cannot be read or written.
    """
    backup.refuse_existing(target)
    temporary = backup.new_temporary(target)
    source = DirectoryTarget(directory)
    try:
        state = _written(source, moment, temporary)
    except DataCorrupted as error:
        error.hint = error.hint or f'"ducktail check {directory}" tells what can be restored.'
        raise
    except OSError as error:
        raise IoError(f'the copy in "{directory}" cannot be restored', detail=str(error)) from error
    copied = backup.verified(temporary)
    prove(state, copied)
    return state, backup.begin_incarnation(temporary, target)


def _written(source: DirectoryTarget, moment: Moment, path: Path) -> State:
    """Write the files of a moment; a copy from which tails are deleted meanwhile is read again."""
    for left in reversed(range(READS_MAX)):
        try:
            state = find_state(source, read_generations(source), moment)
            write_files(source, state, path)
            break
        except FileNotFoundError:
            if not left:
                raise
    return state


def prove(state: State, copied: backup.Copied) -> None:
    """Compare a restored database with the state that was wanted.

    Raises:
        DataCorrupted: it has another last transaction.
    """
    wanted = state.last
    if wanted is not None and copied.counters.txid != wanted.txid:
        raise DataCorrupted(
            "the restored database is not as of the wanted moment",
            detail=f"Its last transaction is {copied.counters.txid}, and not {wanted.txid}.",
        )


def find_state(source: DirectoryTarget, generations: list[Generation], moment: Moment) -> State:
    """The state of a moment.

    Raises:
        InvalidParameterValue: the copy does not have it.
        DataCorrupted: damage has taken it.
        OSError: the target failed.
    """
    if moment.lsn is not None:
        found = _of_lsn(source, generations, moment.lsn)
    elif moment.at_us is not None:
        found = _of_time(source, generations, moment.at_us)
    else:
        return _latest(generations)
    if found is not None:
        return found
    wanted = f"LSN {moment.lsn}" if moment.at_us is None else shown_time(moment.at_us)
    faults = [fault for generation in generations for fault in generation.faults]
    if faults:
        raise DataCorrupted(
            f"{wanted} cannot be restored from the damaged copy",
            detail=f"{'; '.join(faults)}.",
            hint=_hint(generations),
        )
    raise InvalidParameterValue(f"the copy does not have {wanted}", hint=_hint(generations))


def _hint(generations: list[Generation]) -> str:
    return f"It can restore: {'; '.join(shown_states(generations)) or 'nothing'}."


def _latest(generations: list[Generation]) -> State:
    # While a new generation is begun, commits are copied to the one before.
    furthest = max(
        (one for one in generations if _history(one) == _history(generations[0])),
        key=lambda one: (one.spans[-1].iteration, one.spans[-1].end),
    )
    for one in (generations[0], furthest):
        span = one.spans[-1]
        faults = [fault for fault in (span.fault, one.fault_of(span)) if fault is not None]
        if one.is_broken_behind(span):
            faults = one.faults
        if faults:
            raise DataCorrupted(
                "the end of the copy is damaged",
                detail=f"{'; '.join(faults)}.",
                hint=f"{_hint(generations)} Choose one with --lsn or --at.",
            )
    return State(furthest, span, tuple(span.logs), span.end, span.last)


def _history(generation: Generation) -> tuple[str, int]:
    """The database and the incarnation that a generation has; their positions are ordered."""
    facts = generation.spans[-1].checkpoint.facts
    return facts["identity"], facts["incarnation"]


def _of_lsn(source: DirectoryTarget, generations: list[Generation], lsn: int) -> State | None:
    for generation in generations:
        for span in reversed(generation.spans):
            before = span.before
            for place, log in enumerate(span.logs):
                first, last = log.facts["first"], log.facts["last"]
                if first is None or not first[1] <= lsn <= last[2]:
                    continue
                for end, transactions in _commits(source, log):
                    if any(one.first_lsn <= lsn <= one.last_lsn for one in transactions):
                        if generation.is_restorable(span):
                            return State(
                                generation, span, tuple(span.logs[: place + 1]), end, transactions[-1]
                            )
            if before is not None and before.last_lsn == lsn and generation.is_restorable(span):
                return State(generation, span, (), 0, before)
    return None


def _of_time(source: DirectoryTarget, generations: list[Generation], at_us: int) -> State | None:
    for generation in generations:
        for span in reversed(generation.spans):
            first = span.first
            begins = span.taken_us if first is None else min(span.taken_us, first.commit_us)
            if begins > at_us:
                continue
            state = _until(source, generation, span, at_us)
            if state.end == span.end and not generation.is_known_until(span, at_us):
                return None
            return state if generation.is_restorable(span) else None
    return None


def _until(source: DirectoryTarget, generation: Generation, span: Span, at_us: int) -> State:
    """The state of a span at a time: the last commits that are known to be at or before it."""
    count, end, last = 0, 0, span.before
    for number, log in enumerate(span.logs, 1):
        latest = log.facts["last"]
        if log.facts["cut_us"] <= at_us and (latest is None or latest[3] <= at_us):
            count, end = number, log.facts["end"]
            last = CopiedTransaction(*latest) if latest is not None else last
            continue
        for commit_end, transactions in _commits(source, log):
            if transactions and transactions[-1].commit_us > at_us:
                return State(generation, span, tuple(span.logs[:count]), end, last)
            if transactions:
                # Commits without a time are restored with the one behind them.
                count, end, last = number, commit_end, transactions[-1]
    return State(generation, span, tuple(span.logs[:count]), end, last)


def _commits(
    source: DirectoryTarget, log: CopiedObject
) -> Iterator[tuple[int, tuple[CopiedTransaction, ...]]]:
    """The commits in a log object: their ends in the whole log, and their transactions."""
    start = log.facts["start"]
    with tempfile.TemporaryFile() as file:
        for piece in body_pieces(source, log):
            file.write(piece)
        file.flush()
        first = 0
        if start == 0:
            found = wal_chain.log_header(os.pread(file.fileno(), wal_chain.HEADER_BYTES_MAX, 0))
            if found is None:
                raise damaged(log.name, "it does not begin as a log")
            first = found[0]
        part = scan(file.fileno(), first, first, log.body_bytes)
    yield from ((start + end, transactions) for end, transactions in part.commits)


def write_files(source: DirectoryTarget, state: State, path: Path) -> None:
    """Write the database file of a state, and its log.

    Raises:
        DataCorrupted: an object is damaged.
        OSError: a file cannot be read or written.
    """
    generation, span = state.generation, state.span
    header, places = generation.places(span)
    end = state.logs[-1].number if state.logs else span.checkpoint.number
    # Blocks to which the log refers: free ones at the checkpoint.
    for one in generation.blocks(span.checkpoint.number, end):
        for place, block in enumerate(one.facts["blocks"]):
            places[block] = (one, place)
    wanted: dict[int, dict[int, int]] = {}
    objects: dict[int, CopiedObject] = {}
    for block, (one, place) in places.items():
        wanted.setdefault(one.number, {})[place] = block
        objects[one.number] = one
    size = header.block_bytes
    _write_log(source, state, wal_chain.wal_paths(str(path))[0])
    with path.open("wb") as file:
        file.write(header.data)
        file.truncate(BLOCKS_AT + size * max(header.block_count, max(places, default=-1) + 1))
        for number, blocks in sorted(wanted.items()):
            for place, data in enumerate(_whole_blocks(source, objects[number], size)):
                if place in blocks:
                    if SUM.unpack_from(data)[0] != wal_chain.checksum(data[SUM.size :]):
                        raise damaged(objects[number].name, f"block {blocks[place]} has a wrong checksum")
                    file.seek(BLOCKS_AT + size * blocks[place])
                    file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_log(source: DirectoryTarget, state: State, log_path: Path) -> None:
    """Write DuckDB's log of a state."""
    log_path.unlink(missing_ok=True)
    if not state.end:
        return
    with log_path.open("wb") as file:
        for log in state.logs:
            for piece in body_pieces(source, log):
                file.write(piece)
        file.truncate(state.end)
        file.flush()
        os.fsync(file.fileno())
    chain = wal_chain.read_chain(log_path)
    if chain is not None and (chain.broken_at is not None or chain.end != state.end):
        raise DataCorrupted(
            "the log of the copy is damaged", detail=f"At byte {chain.broken_at} of {chain.size}."
        )


def _whole_blocks(source: DirectoryTarget, one: CopiedObject, size: int) -> Iterator[bytes]:
    data = b""
    for piece in body_pieces(source, one):
        data += piece
        while len(data) >= size:
            yield data[:size]
            data = data[size:]


def check_copy(directory: Path, temporary: Path | None) -> tuple[list[str], list[str]]:
    """Read every object of a copy, and restore its latest state to a temporary file, with all checks.

    Args:
        temporary: the directory of the temporary file.

    Returns:
        Descriptions of the copy, and of its damage.

    Raises:
        UndefinedObject: the directory has no copy.
        IoError: a file cannot be read or written.
    """
    source = DirectoryTarget(directory)
    try:
        generations = read_generations(source)
        for generation in generations:
            generation.verify()
        about = [f"restorable: {line}" for line in shown_states(generations)]
        wrong = [fault for generation in generations for fault in generation.faults]
        with tempfile.TemporaryDirectory(prefix="ducktail-check-", dir=temporary) as place:
            path = Path(place) / "copy.duckdb"
            try:
                state = _written(source, Moment(), path)
                settings = Settings(memory_limit_bytes=CHECK_MEMORY_BYTES)
                copied = backup.verified(path, settings)
                prove(state, copied)
            except DataCorrupted as error:
                wrong.append(shown_fault(error))
            else:
                about.append(
                    f"restored and checked: transaction {copied.counters.txid}, LSN {copied.counters.lsn}"
                )
    except OSError as error:
        raise IoError(f'the copy in "{directory}" cannot be read', detail=str(error)) from error
    return about, wrong


def restore_report(state: State, copied: backup.Copied) -> list[str]:
    """Lines about a restored database."""
    last = state.last
    at = "" if last is None else f", committed at {shown_time(last.commit_us)}"
    place = f"checkpoint {state.span.iteration}, log byte {state.end}"
    return [f"restored {copied}{at}", f"from generation {state.generation.name}, {place}"]

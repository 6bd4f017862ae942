"""Reading a continuous copy: its generations, their damage, and the states that can be restored from them.

A generation consists of spans: a checkpoint, and the log behind it up to the next one. A state of the
database is a span with a part of its log. A damaged or missing object ends the log that it belongs to; it
takes a later span with it only if that span's checkpoint needs its blocks, which the checkpoint's own
checksums show. Source: docs/design/replication.md, "Restore".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from ..errors import DataCorrupted, UndefinedObject
from .database_blocks import BLOCKS_AT, SUM, CheckpointHeader, read_header
from .generation_writer import generation_names, head_name
from .log_tail import CopiedTransaction
from .objects import (
    BLOCKS,
    CHAINED,
    CHECKPOINT,
    LOG,
    NOTHING,
    TAIL,
    CopiedObject,
    body_pieces,
    damaged,
    read_head,
    verified_body,
)
from .targets import DirectoryTarget

_NUMBER = re.compile(r"/([0-9]{10})\.")
_PLACE = re.compile(r"/([0-9]{10})-([0-9]{15})\.")
# A generation whose tails are put into its chain while it is read is read again, this often.
READS_MAX = 10


@dataclass(frozen=True, slots=True)
class _Tail:
    """A tail in the target.

    Args:
        iteration, start: its place, by its name.
        found: its facts; None if it is damaged.
        fault: the damage.
    """

    iteration: int
    start: int
    found: CopiedObject | None
    fault: str = ""


@dataclass(slots=True)
class Span:
    """A checkpoint, and the whole log objects that follow it.

    Args:
        fault: the damage that ends its log; None if the next checkpoint or the end of the copy does.
    """

    checkpoint: CopiedObject
    logs: list[CopiedObject] = field(default_factory=list)
    fault: str | None = None

    @property
    def iteration(self) -> int:
        """The number of the checkpoint."""
        return int(self.checkpoint.facts["iteration"])

    @property
    def end(self) -> int:
        """The end of its log."""
        return int(self.logs[-1].facts["end"]) if self.logs else 0

    @property
    def taken_us(self) -> int:
        """A time after all commits of its checkpoint."""
        return int(self.checkpoint.facts["taken_us"])

    @property
    def before(self) -> CopiedTransaction | None:
        """The last transaction of its checkpoint; None if it is not known."""
        return transaction_of(self.checkpoint.facts["last"])

    @property
    def first(self) -> CopiedTransaction | None:
        """The first transaction of its log."""
        found = (transaction_of(log.facts["first"]) for log in self.logs)
        return next((one for one in found if one is not None), None)

    @property
    def last(self) -> CopiedTransaction | None:
        """The last known transaction."""
        found = (transaction_of(log.facts["last"]) for log in reversed(self.logs))
        return next((one for one in found if one is not None), self.before)


def transaction_of(numbers: list[int] | None) -> CopiedTransaction | None:
    """A transaction in an object's facts."""
    return None if numbers is None else CopiedTransaction(*numbers)


class Generation:
    """A generation that was read: the facts of its objects, not their bodies.

    Attributes:
        faults: descriptions of damaged or missing objects.
        copied_us: a time up to which all commits are copied; 0 if it is not known.
        spans: its spans, in order.
    """

    def __init__(self, target: DirectoryTarget, name: str) -> None:
        self._target = target
        self.name = name
        self.faults: list[str] = []
        self.copied_us = 0
        self._objects: dict[int, CopiedObject] = {}
        self._broken: dict[int, str] = {}
        self._tails: list[_Tail] = []
        for left in reversed(range(READS_MAX)):
            names = target.names(name)
            try:
                self._tails = list(self._read_tails([one for one in names if one.endswith(f".{TAIL}")]))
                break
            except FileNotFoundError:  # Its commits are in the chain now.
                if not left:
                    raise
        self._read_objects([one for one in names if one.rpartition(".")[2] in CHAINED])
        self.spans = list(self._spans())

    def _read_tails(self, names: list[str]) -> Iterator[_Tail]:
        for name in names:
            match = _PLACE.search(name)
            if match is None:
                continue
            iteration, start = int(match[1]), int(match[2])
            try:
                found = read_head(self._target, name)
                if found.facts.get("generation") != self.name or found.kind != TAIL:
                    raise damaged(name, "it is another object than its name says")
                if found.facts["iteration"] != iteration or found.facts["start"] != start:
                    raise damaged(name, "it is another object than its name says")
            except DataCorrupted as error:
                yield _Tail(iteration, start, None, shown_fault(error))
            else:
                yield _Tail(iteration, start, found)

    def _read_objects(self, chained: list[str]) -> None:
        names: dict[int, str] = {int(match[1]): name for name in chained if (match := _NUMBER.search(name))}
        last, digest = max(names, default=-1), None
        try:
            head = read_head(self._target, head_name(self.name))
            last, digest = max(last, head.number), (head.number, bytes.fromhex(head.facts["digest"]))
            self.copied_us = int(head.facts["copied_us"])
        except FileNotFoundError:
            self.faults.append(f"{head_name(self.name)} is missing")
        except (DataCorrupted, ValueError, KeyError):
            self.faults.append(f"{head_name(self.name)} is damaged")
        before: bytes | None = NOTHING
        for number in range(last + 1):
            try:
                found = self._read(number, names.get(number))
                if before is not None and found.previous != before:
                    raise damaged(found.name, "it does not follow the object before it")
            except DataCorrupted as error:
                self._break(number, error)
                before = None
                continue
            self._objects[number], before = found, found.digest
            if digest is not None and digest[0] == number and digest[1] != found.digest:
                self._break(number, damaged(found.name, "it is another object than the copy's head names"))

    def _break(self, number: int, error: DataCorrupted) -> None:
        self._objects.pop(number, None)
        self._broken[number] = shown_fault(error)
        self.faults.append(self._broken[number])

    def _read(self, number: int, name: str | None) -> CopiedObject:
        if name is None:
            raise DataCorrupted(
                f"object {number} of generation {self.name} is missing", detail="No file has it."
            )
        found = read_head(self._target, name)
        if found.facts.get("generation") != self.name or found.number != number:
            raise damaged(name, "it is another object than its name says")
        if found.kind != name.rpartition(".")[2]:
            raise damaged(name, "it is of another kind than its name says")
        return found

    def verify(self) -> None:
        """Read every object, and compare it with its digest; damage is added to `faults`.

        Raises:
            OSError: the target failed.
        """
        for number, found in list(self._objects.items()):
            try:
                for _ in body_pieces(self._target, found):
                    pass
            except DataCorrupted as error:
                self._break(number, error)
        for place, tail in enumerate(self._tails):
            try:
                # One that is missing now is in the chain.
                with suppress(FileNotFoundError):
                    for _ in body_pieces(self._target, tail.found) if tail.found is not None else ():
                        pass
            except DataCorrupted as error:
                self._tails[place] = replace(tail, found=None, fault=shown_fault(error))
        self.spans = list(self._spans())

    def _spans(self) -> Iterator[Span]:
        span: Span | None = None
        for number in range(max([*self._objects, *self._broken], default=-1) + 1):
            found = self._objects.get(number)
            if found is None:
                if span is not None and span.fault is None:
                    span.fault = self._broken[number]
            elif found.kind == CHECKPOINT:
                if span is not None:
                    yield span
                span = Span(found)
            elif found.kind == LOG and span is not None and span.fault is None:
                if found.facts["start"] != span.end or found.facts["iteration"] != span.iteration:
                    span.fault = f"{found.name} does not continue the log"
                else:
                    span.logs.append(found)
        if span is not None:
            self._continue(span)
            yield span

    def _continue(self, span: Span) -> None:
        """Append the tails that continue the last log; those whose commits it has are being deleted."""
        for tail in self._tails:
            if span.fault is not None:
                return
            if tail.iteration != span.iteration or tail.start < span.end:
                continue
            if tail.found is None:
                span.fault = tail.fault
            elif tail.start > span.end:
                span.fault = f"the log before {tail.found.name} is missing, from byte {span.end} on"
            else:
                span.logs.append(tail.found)
                continue
            if span.fault not in self.faults:
                self.faults.append(span.fault)

    def blocks(self, first: int, end: int) -> Iterator[CopiedObject]:
        """The intact objects of blocks whose numbers are in the half-open range."""
        for number in range(first, end):
            found = self._objects.get(number)
            if found is not None and found.kind == BLOCKS:
                yield found

    def places(self, span: Span) -> tuple[CheckpointHeader, dict[int, tuple[CopiedObject, int]]]:
        """The headers of a span's checkpoint, and the object and place of each of its blocks.

        Raises:
            DataCorrupted: the checkpoint is damaged, or a block of it is in no intact object.
            OSError: the target failed.
        """
        body = verified_body(self._target, span.checkpoint)
        header = read_header(body[:BLOCKS_AT])
        if header is None:
            raise damaged(span.checkpoint.name, "its headers are damaged")
        table = np.frombuffer(body[BLOCKS_AT:], dtype=np.uint64)
        found: dict[int, tuple[CopiedObject, int]] = {}
        for one in self.blocks(0, span.checkpoint.number):
            for place, block in enumerate(one.facts["blocks"]):
                found[block] = (one, place)
        places = {}
        for block, wanted in enumerate(table.tolist()):
            if not wanted:
                continue
            if block not in found or self._sum(*found[block], header.block_bytes) != wanted:
                missing = "; ".join(
                    text for number, text in self._broken.items() if number < span.checkpoint.number
                )
                raise DataCorrupted(
                    f'block {block} of checkpoint "{span.checkpoint.name}" is in no object',
                    detail=f"{missing}." if missing else None,
                )
            places[block] = found[block]
        return header, places

    def _sum(self, one: CopiedObject, place: int, block_bytes: int) -> int:
        data = self._target.read(one.name, one.body_at + place * block_bytes, SUM.size)
        return int.from_bytes(data, "little")

    def is_known_until(self, span: Span, at_us: int) -> bool:
        """True if no commit behind a span's log, and not in the next checkpoint, can be before a time."""
        known_us = span.logs[-1].facts["cut_us"] if span.logs else span.taken_us
        if at_us <= known_us:
            return True
        if span.fault is not None:
            return False
        following = self.spans[self.spans.index(span) + 1 :]
        return following[0].checkpoint.facts["continues"] if following else at_us <= self.copied_us

    def is_broken_behind(self, span: Span) -> bool:
        """True if an object of the chain behind a span's log is damaged or missing."""
        chained = [log.number for log in span.logs if log.kind == LOG]
        return any(broken > max(chained, default=span.checkpoint.number) for broken in self._broken)

    def fault_of(self, span: Span) -> str | None:
        """The damage because of which a span's checkpoint cannot be restored; None if it can."""
        try:
            self.places(span)
        except DataCorrupted as error:
            return shown_fault(error)
        return None

    def is_restorable(self, span: Span) -> bool:
        """True if all blocks of a span's checkpoint are there."""
        return self.fault_of(span) is None


def shown_fault(error: DataCorrupted) -> str:
    """An error about damage, as one text."""
    return error.message if error.detail is None else f"{error.message}: {error.detail.rstrip('.')}"


def read_generations(target: DirectoryTarget) -> list[Generation]:
    """The generations of a copy that have a checkpoint, the newest first.

    Raises:
        UndefinedObject: the directory has no copy.
        OSError: the target failed.
    """
    found = [Generation(target, name) for name in reversed(generation_names(target))]
    # One without a head or a checkpoint is being begun or deleted.
    whole = [one for one in found if one.spans]
    if not whole:
        raise UndefinedObject(f'"{target}" has no copy of a database')
    return whole


def shown_time(us: int) -> str:
    """A time in UTC, to the microsecond."""
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(sep=" ").replace("+00:00", " UTC")


def shown_states(generations: list[Generation]) -> list[str]:
    """The states that can be restored, as lines, the newest first."""
    lines = []
    for generation in generations:
        for span in reversed(generation.spans):
            if not generation.is_restorable(span):
                continue
            first, last = span.before or span.first, span.last
            begins = (
                f"LSN {first.last_lsn} ({shown_time(first.commit_us)})"
                if first
                else shown_time(span.taken_us)
            )
            if last is None:
                ends = "the checkpoint alone" if not span.logs else shown_time(span.logs[-1].facts["cut_us"])
            else:
                ends = f"LSN {last.last_lsn} ({shown_time(last.commit_us)})"
            if span is generation.spans[-1] and span.fault is None and generation.copied_us:
                ends += f", nothing more until {shown_time(generation.copied_us)}"
            lines.append(f"generation {generation.name}, checkpoint {span.iteration}: {begins} to {ends}")
    return lines

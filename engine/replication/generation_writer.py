"""The writing end of a generation: the chain of its objects, and what it has of the database.

A generation begins with the blocks of one checkpoint of the database file and continues with DuckDB's log,
and after each later checkpoint with the blocks that it changed. Source: docs/design/replication.md, "Format".
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..errors import DataCorrupted, ObjectInUse
from .database_blocks import BLOCKS_AT, SUM, CheckpointHeader, Sums
from .log_tail import CopiedTransaction, LogPart, LogTail
from .objects import (
    BLOCKS,
    CHAINED,
    CHECKPOINT,
    HEAD,
    LOG,
    NOTHING,
    TAIL,
    CopiedObject,
    chained_name,
    damaged,
    read_head,
    tail_name,
    verified_body,
    write_object,
)
from .targets import DirectoryTarget


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The identity of a database in its present state: its uuid, and how often it went back in time."""

    uuid: str
    incarnation: int


# A generation's name: the time at which it began, in microseconds, and a random number.
GENERATION = re.compile(r"[0-9]{16}-[0-9a-f]{8}")


class OtherLog(Exception):
    """The error for a log that is not the one that was copied: a new generation must begin."""


def generation_names(target: DirectoryTarget) -> list[str]:
    """The names of all generations, the oldest first.

    Raises:
        OSError: the target failed.
    """
    return [name for name in target.folders() if GENERATION.fullmatch(name)]


def began_us_of(generation: str) -> int:
    """The time at which a generation began."""
    return int(generation.partition("-")[0])


def is_whole(target: DirectoryTarget, generation: str) -> bool:
    """True if a generation has a checkpoint, from which a database can be restored.

    Raises:
        OSError: the target failed.
    """
    return any(name.endswith(f".{CHECKPOINT}") for name in chained_names(target, generation))


def head_name(generation: str) -> str:
    """The name of the object that names a generation's last one."""
    return f"{generation}/head"


def chained_names(target: DirectoryTarget, generation: str) -> list[str]:
    """The names of the objects of a chain, in order.

    Raises:
        OSError: the target failed.
    """
    return [name for name in target.names(generation) if name.rpartition(".")[2] in CHAINED]


def tail_names(target: DirectoryTarget, generation: str) -> list[str]:
    """The names of a generation's tails, in order.

    Raises:
        OSError: the target failed.
    """
    return [name for name in target.names(generation) if name.rpartition(".")[2] == TAIL]


class GenerationWriter:
    """A generation that is being written; used by one thread.

    Attributes:
        name: its name; names of later generations are greater.
        began_us: the time at which it began.
        checkpoint: the headers of the last copied checkpoint; None before the first.
        iteration: the number of that checkpoint.
        offset: the end of the part of the log that follows it and is in the chain.
        copied_end: the end of the copied part of that log, with that in tails.
        last: the last copied transaction; None if none is known.
        bytes_written: the bytes of the objects that this process has put.
        unheaded: True if objects were put that the head does not name.
        headed_us: the time up to which all commits are copied, in the head.
    """

    def __init__(self, target: DirectoryTarget, name: str, identity: DatabaseIdentity, began_us: int) -> None:
        self._target = target
        self.name = name
        self._identity = identity
        self.began_us = began_us
        self._number, self._previous = 0, NOTHING
        self._known: Sums = np.zeros(0, dtype=np.uint64)
        self.checkpoint: bytes | None = None
        self.iteration = -1
        self.offset = self.copied_end = 0
        self._tails: list[str] = []  # all of this generation's
        self.last: CopiedTransaction | None = None
        self.bytes_written = 0
        self.unheaded = False
        self.headed_us = 0

    @classmethod
    def begin(cls, target: DirectoryTarget, identity: DatabaseIdentity, now_us: int) -> Self:
        """A new generation, which has nothing yet."""
        return cls(target, f"{now_us:016d}-{uuid.uuid4().hex[:8]}", identity, now_us)

    @classmethod
    def resume(cls, target: DirectoryTarget, name: str, identity: DatabaseIdentity) -> Self | None:
        """An existing generation; None if the database went back in time since.

        Raises:
            ObjectInUse: it is of another database.
            DataCorrupted: it has no checkpoint, or its end is damaged.
            OSError: the target failed.
        """
        heads: list[CopiedObject] = []
        for place in reversed(chained_names(target, name)):
            heads.append(read_head(target, place))
            if heads[-1].kind == CHECKPOINT:
                break
        else:
            raise DataCorrupted(f"generation {name} has no checkpoint")
        heads.reverse()
        facts = heads[0].facts
        if facts["identity"] != identity.uuid:
            raise ObjectInUse(
                f'"{target}" has copies of another database',
                hint="Each database needs a directory of its own.",
            )
        if facts["incarnation"] != identity.incarnation:
            return None
        made = cls(target, name, identity, facts["began_us"])
        body = verified_body(target, heads[0])
        made.checkpoint, made.iteration = body[:BLOCKS_AT], facts["iteration"]
        made._known = np.frombuffer(body[BLOCKS_AT:], dtype=np.uint64).copy()
        made.last = None if facts["last"] is None else CopiedTransaction(*facts["last"])
        made._number, made._previous = heads[0].number + 1, heads[0].digest
        for head in heads[1:]:
            made._resume_object(head)
        made._resume_tails()
        return made

    def _resume_tails(self) -> None:
        self._tails = tail_names(self._target, self.name)
        self.copied_end = self.offset
        for name in self._tails:
            facts = read_head(self._target, name).facts
            if facts["iteration"] == self.iteration and facts["start"] == self.copied_end:
                self.copied_end = facts["end"]
                if facts["last"] is not None:
                    self.last = CopiedTransaction(*facts["last"])

    def _resume_object(self, head: CopiedObject) -> None:
        if head.number != self._number or head.previous != self._previous:
            raise damaged(head.name, "it does not follow the object before it")
        if head.kind == BLOCKS:
            size = head.facts["block_bytes"]
            for place, number in enumerate(head.facts["blocks"]):
                data = self._target.read(head.name, head.body_at + place * size, SUM.size)
                self._set_known(number, SUM.unpack(data)[0])
        else:
            self.offset = head.facts["end"]
            if head.facts["last"] is not None:
                self.last = CopiedTransaction(*head.facts["last"])
        self._number, self._previous = head.number + 1, head.digest

    def check_log(self, tail: LogTail) -> None:
        """Compare a log with its copied part.

        Raises:
            OtherLog: they differ, or the log is shorter.
            DataCorrupted: an object is damaged.
            OSError: the target failed.
        """
        for name in self._tails:
            head = read_head(self._target, name)
            if head.facts["iteration"] == self.iteration and head.facts["end"] <= self.copied_end:
                self._check_part(tail, head)
        for name in reversed(chained_names(self._target, self.name)):
            head = read_head(self._target, name)
            if head.kind == CHECKPOINT:
                return
            if head.kind == LOG:
                self._check_part(tail, head)

    def _check_part(self, tail: LogTail, head: CopiedObject) -> None:
        body = verified_body(self._target, head)
        start, end = head.facts["start"], head.facts["end"]
        if tail.size() < end or b"".join(tail.pieces(start, end)) != body:
            raise OtherLog("the log is another one than was copied")

    def known(self, count: int) -> Sums:
        """The checksums of the first `count` copied blocks; 0 for blocks that are not copied."""
        if len(self._known) < count:
            self._known = np.concatenate([self._known, np.zeros(count - len(self._known), dtype=np.uint64)])
        return self._known[:count]

    def _set_known(self, number: int, value: int) -> None:
        self.known(number + 1)[number] = value

    def put_blocks(self, blocks: Sequence[tuple[int, bytes]], block_bytes: int) -> None:
        """Put blocks of the file.

        Raises:
            OSError: the target failed.
        """
        facts = {"block_bytes": block_bytes, "blocks": [number for number, _ in blocks]}
        self._put(BLOCKS, facts, (data for _, data in blocks), block_bytes * len(blocks))
        for number, data in blocks:
            self._set_known(number, SUM.unpack_from(data)[0])

    def put_checkpoint(self, header: CheckpointHeader, sums: Sums, *, continues: bool, now_us: int) -> None:
        """Put a checkpoint whose blocks are put.

        Args:
            sums: the checksums of its blocks in the file.
            continues: True if the log before it is copied to its end.

        Raises:
            OSError: the target failed.
        """
        if not continues:
            self.last = None  # It has transactions that no copied log has.
        table = np.where(self.known(len(sums)) == sums, sums, np.uint64(0)).tobytes()
        facts = {
            "identity": self._identity.uuid,
            "incarnation": self._identity.incarnation,
            "began_us": self.began_us,
            "iteration": header.iteration,
            "block_bytes": header.block_bytes,
            "block_count": header.block_count,
            "continues": continues,
            "last": _numbers(self.last),
            "taken_us": now_us,
        }
        self._put(CHECKPOINT, facts, (header.data, table), len(header.data) + len(table))
        self.checkpoint, self.iteration, self.offset, self.copied_end = header.data, header.iteration, 0, 0

    def put_log(self, tail: LogTail, part: LogPart, now_us: int) -> None:
        """Put whole commits of the log.

        Args:
            now_us: a time at which the last one was committed.

        Raises:
            OSError: the target failed.
        """
        self._put(
            LOG, self._log_facts(part, now_us), tail.pieces(part.start, part.end), part.end - part.start
        )
        self.offset = tail.offset = part.end
        self._copied(part)

    def put_tail(self, tail: LogTail, part: LogPart, now_us: int) -> None:
        """Put whole commits of the log, behind all that are copied, outside the chain.

        A later `put_log` begins where the chain ends, and has them too.

        Args:
            now_us: a time at which the last one was committed.

        Raises:
            OSError: the target failed.
        """
        name, length = tail_name(self.name, self.iteration, part.start), part.end - part.start
        about = {"kind": TAIL, "generation": self.name, "number": self._number}
        facts = {**about, **self._log_facts(part, now_us)}
        write_object(self._target, name, facts, tail.pieces(part.start, part.end), length)
        self._tails.append(name)
        self.bytes_written += length
        self._copied(part)

    def delete_tails(self) -> None:
        """Delete the tails, if the chain has all that is in them.

        Raises:
            OSError: the target failed.
        """
        if self.copied_end == self.offset:
            while self._tails:
                self._target.delete(self._tails[-1])
                self._tails.pop()

    def _log_facts(self, part: LogPart, now_us: int) -> dict[str, Any]:
        transactions = part.transactions
        return {
            "iteration": self.iteration,
            "start": part.start,
            "end": part.end,
            "commits": len(part.commits),
            "first": _numbers(transactions[0]) if transactions else None,
            "last": _numbers(transactions[-1]) if transactions else None,
            "cut_us": now_us,
        }

    def _copied(self, part: LogPart) -> None:
        self.copied_end = max(self.copied_end, part.end)
        if part.transactions:
            self.last = part.transactions[-1]

    def put_head(self, copied_us: int) -> None:
        """Name the last object.

        Args:
            copied_us: a time up to which all commits are copied.

        Raises:
            OSError: the target failed.
        """
        facts = {
            "kind": HEAD,
            "generation": self.name,
            "number": self._number - 1,
            "digest": self._previous.hex(),
            "copied_us": copied_us,
        }
        write_object(self._target, head_name(self.name), facts, (), 0, replace=True)
        self.headed_us = copied_us
        self.unheaded = False

    def _put(self, kind: str, facts: dict[str, Any], body: Iterable[bytes], body_bytes: int) -> None:
        name = chained_name(self.name, self._number, kind)
        about = {"kind": kind, "generation": self.name, "number": self._number, **facts}
        self._previous = write_object(self._target, name, about, body, body_bytes, previous=self._previous)
        self._number += 1
        self.bytes_written += body_bytes
        self.unheaded = True


def _numbers(one: CopiedTransaction | None) -> list[int] | None:
    return None if one is None else [one.txid, one.first_lsn, one.last_lsn, one.commit_us]

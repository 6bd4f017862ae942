"""The objects of a continuous copy: whole, immutable, chained by hash.

A generation is a chain of objects, numbered from 0, each with the digest of the one before it. An object is
written once and never changed, so that a target may be anything that stores whole objects.

    offset  size  field
    0       8     "DUCKCOPY"
    8       4     format, 1
    12      4     length of the facts
    16      8     length of the body
    24      32    digest of the previous object of the generation; zeros in the first
    56      n     the facts, as JSON in UTF-8: kind, generation, number, and those of the kind
    56+n    m     the body
    56+n+m  32    BLAKE2b-256 digest of all bytes before

    kind        body
    blocks      blocks of the database file, one after the other; their numbers are in the facts
    checkpoint  the file's three headers (12,288 bytes), then the checksum of each block (u64, 0: not copied)
    log         bytes of DuckDB's log, from one whole commit's end to another's
    tail        as log: the commits behind the last log, for synchronous copies. Outside the chain: a later
                log has the same bytes, and then the tail is deleted
    fence       none; the facts are those of a promotion (fences.py). At the root of the target
    head        none; the facts name the last object of the generation. The only one that is replaced
    verified    none; the facts are the result of the last verification. Outside the chain, replaced

Integers are little-endian. Source: docs/design/replication.md, "Format".
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import DataCorrupted
from .targets import DirectoryTarget

MAGIC = b"DUCKCOPY"
FORMAT = 1
START = struct.Struct("<8sIIQ32s")
DIGEST_BYTES = 32
NOTHING = bytes(DIGEST_BYTES)
# A checkpoint's and a log's facts take some hundred bytes; a blocks object lists up to BATCH_BLOCKS numbers.
FACTS_BYTES_MAX = 1 << 20
PIECE_BYTES = 1 << 20

BLOCKS, CHECKPOINT, LOG, TAIL = "blocks", "checkpoint", "log", "tail"
HEAD, VERIFIED = "head", "verified"
CHAINED = (BLOCKS, CHECKPOINT, LOG)


@dataclass(frozen=True, slots=True)
class CopiedObject:
    """The head of an object that was read.

    Args:
        name: its name in the target.
        body_at: the offset of its body.
        digest: the stored digest; verified only by `read_whole` and `verified_body`.
    """

    name: str
    facts: dict[str, Any]
    previous: bytes
    body_at: int
    body_bytes: int
    digest: bytes

    @property
    def kind(self) -> str:
        """The kind of the object."""
        return str(self.facts["kind"])

    @property
    def number(self) -> int:
        """Its place in the generation."""
        return int(self.facts["number"])


def chained_name(generation: str, number: int, kind: str) -> str:
    """The name of an object of a chain."""
    return f"{generation}/{number:010d}.{kind}"


def tail_name(generation: str, iteration: int, start: int) -> str:
    """The name of the tail that continues a checkpoint's log at a byte; names are in the order of commits."""
    return f"{generation}/{iteration:010d}-{start:015d}.{TAIL}"


def write_object(
    target: DirectoryTarget,
    name: str,
    facts: dict[str, Any],
    body: Iterable[bytes],
    body_bytes: int,
    *,
    previous: bytes = NOTHING,
    replace: bool = False,
) -> bytes:
    """Write an object; it is durable when this returns.

    Args:
        body: its pieces, `body_bytes` together.

    Returns:
        Its digest.

    Raises:
        OSError: the target failed; the object may exist or not.
        FileExistsError: an object of this name exists.
    """
    about = json.dumps(facts, separators=(",", ":")).encode()
    assert len(about) <= FACTS_BYTES_MAX
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def pieces() -> Iterator[bytes]:
        left = body_bytes
        for piece in (START.pack(MAGIC, FORMAT, len(about), body_bytes, previous), about):
            digest.update(piece)
            yield piece
        for piece in body:
            left -= len(piece)
            digest.update(piece)
            yield piece
        assert left == 0, "the length of a body is known before it is written"
        yield digest.digest()

    target.put(name, pieces(), replace=replace)
    return digest.digest()


def read_head(target: DirectoryTarget, name: str) -> CopiedObject:
    """Read an object's facts, without its body.

    Raises:
        DataCorrupted: it is no object, or cut.
        OSError: the target failed.
    """
    size = target.size(name)
    data = target.read(name, 0, START.size)
    if len(data) < START.size or data[:8] != MAGIC:
        raise damaged(name, "it does not begin as an object of a copy")
    _, form, about, body_bytes, previous = START.unpack(data)
    if form != FORMAT:
        raise damaged(name, f"its format is {form}, and this ducktail reads {FORMAT}")
    if about > FACTS_BYTES_MAX or size != START.size + about + body_bytes + DIGEST_BYTES:
        raise damaged(name, f"it has {size} bytes and not those that it states")
    try:
        facts = json.loads(target.read(name, START.size, about))
        kind, number = facts["kind"], facts["number"]
    except (ValueError, KeyError, TypeError):
        raise damaged(name, "its facts cannot be read") from None
    if not isinstance(kind, str) or not isinstance(number, int):
        raise damaged(name, "its facts cannot be read")
    digest = target.read(name, size - DIGEST_BYTES, DIGEST_BYTES)
    return CopiedObject(name, facts, previous, START.size + about, body_bytes, digest)


def body_pieces(target: DirectoryTarget, found: CopiedObject) -> Iterator[bytes]:
    """The body in pieces; the digest is compared behind the last one.

    Raises:
        DataCorrupted: the object is not what was written.
        OSError: the target failed.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(target.read(found.name, 0, found.body_at))
    at, end = found.body_at, found.body_at + found.body_bytes
    while at < end:
        piece = target.read(found.name, at, min(PIECE_BYTES, end - at))
        if not piece:
            raise damaged(found.name, "it is cut")
        digest.update(piece)
        at += len(piece)
        yield piece
    if digest.digest() != found.digest:
        raise damaged(found.name, "its digest does not fit its content")


def verified_body(target: DirectoryTarget, found: CopiedObject) -> bytes:
    """The whole body, with the digest verified.

    Raises:
        DataCorrupted: the object is not what was written.
        OSError: the target failed.
    """
    return b"".join(body_pieces(target, found))


def damaged(name: str, reason: str) -> DataCorrupted:
    """The error for an object that is not what was written."""
    return DataCorrupted(
        f'object "{name}" of the copy is damaged', detail=f"{reason[0].upper()}{reason[1:]}."
    )

"""Random checkpoint states, random damage to their forms, and what must be said of it."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ducktail.engine.checkpoints import encodings
from ducktail.engine.checkpoints.positions import parse_position
from ducktail.engine.checkpoints.state import TIME_US_MAX, UINT64_MAX, Checkpoint, CheckpointState
from ducktail.engine.errors import DataCorrupted

Form = tuple[str, Callable[[CheckpointState], bytes], Callable[[bytes], CheckpointState]]
FORMS: tuple[Form, ...] = (
    ("binary", encodings.to_bytes, encodings.from_bytes),
    ("json", encodings.to_json, encodings.from_json),
)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
LETTERS = ["a", "é", "東", "\n", '"', "\\", "'", "\x7f", "😀", " ", "{", "\u2028"]


def random_text(rng: random.Random, most: int = 12) -> str:
    """A text of odd characters, perhaps empty."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(most)))


def random_number(rng: random.Random, most: int) -> int:
    """A number from 0; the ends often."""
    return rng.choice([0, 1, most, most - 1, rng.randrange(most), rng.randrange(256)])


def random_checkpoint(rng: random.Random) -> Checkpoint | None:
    """A typed position of each type, or none."""
    number = random_number(rng, UINT64_MAX)
    lsns = ", ".join(f'"{p}": {random_number(rng, 2**63 - 1)}' for p in range(rng.randrange(4)))
    source, kind, text = rng.choice(
        [
            ("postgresql", "postgres_lsn", f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"),
            ("mysql", "binlog", f"mysql-bin.{rng.randrange(10**6):06}:{number}"),
            ("mysql", "mysql_gtid", f"{UUID}:1-{rng.randrange(1, 9)}:11-{rng.randrange(11, 99)}"),
            ("mariadb", "mariadb_gtid", f"0-1-{number},{rng.randrange(1, 9)}-2-3"),
            ("ducktail", "ducktail", f"{{{lsns}}}"),
            ("custom", "custom", random_text(rng)),
        ]
    )
    if rng.random() < 0.2:
        return None
    transaction = rng.choice([None, random_text(rng)])
    at_us = random_number(rng, TIME_US_MAX)
    return Checkpoint(source, parse_position(kind, text), at_us, transaction, random_metadata(rng))


def random_metadata(rng: random.Random) -> dict[str, str]:
    """Some notes."""
    return {random_text(rng): random_text(rng, 30) for _ in range(rng.randrange(4))}


def random_state(rng: random.Random) -> CheckpointState:
    """A state; small, so that each of its bytes is met."""
    values: dict[str, Any] = {
        "operator_states": {
            random_text(rng): rng.randbytes(rng.choice([0, 1, 40])) for _ in range(rng.randrange(4))
        },
        "source_offsets": {random_text(rng): random_number(rng, UINT64_MAX) for _ in range(rng.randrange(4))},
        "watermark_ns": rng.choice([None, -1, 0, -(2**63), 2**63 - 1]),
        "event_count": random_number(rng, 2**63 - 1),
        "metadata": random_metadata(rng),
        "checkpoint": random_checkpoint(rng),
    }
    key = rng.choice(["s", "main.orders", "東京"])
    return CheckpointState(key, random_number(rng, 2**63 - 1), random_number(rng, TIME_US_MAX), **values)


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Damage of one kind."""
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice([1, 2, 4, 8, 32]))
    changed = bytearray(data)
    kind = rng.randrange(7)
    if kind == 0:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        del changed[at:end]
    elif kind == 3:
        changed[at:at] = rng.randbytes(end - at)
    elif kind == 4:
        changed[at:end] = rng.choice([bytes(end - at), b"\xff" * (end - at), rng.randbytes(end - at)])
    elif kind == 5:
        length = rng.choice([0, 1, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1])
        changed[at : at + 4] = struct.pack("<I", length)
    else:
        place = rng.randrange(len(other))
        changed[at:end] = other[place : place + rng.randrange(40)]
    return bytes(changed)


def sealed(name: str, data: bytes) -> bytes:
    """Damaged bytes with a checksum, and a length, that are right: what a forger would write."""
    if name == "binary":
        start = struct.pack("<4sHHI", b"DTCK", 1, 0, max(len(data), 28))
        body = data[28:]
        return start + encodings.digest(start, body) + body
    rest = data.split(b"\n", 2)[-1]
    return b'{\n  "checksum": "%s",\n' % encodings.digest(rest).hex().encode() + rest


def fuzz_once(rng: random.Random, counts: Counter[str]) -> None:
    """One state, in both forms: read back; damaged, and told; forged, and told or a state like any other."""
    state, other = random_state(rng), random_state(rng)
    for name, write, read in FORMS:
        data, spare = write(state), write(other)
        assert read(data) == state
        counts[f"{name}: read back"] += 1
        for _ in range(20):
            damaged = mutated(rng, data, spare)
            if damaged != data:
                told = is_told(read, damaged)
                assert told, (name, damaged)
                counts[f"{name}: damaged, told"] += 1
        for _ in range(20):
            forged = sealed(name, mutated(rng, data, spare))
            if is_told(read, forged):
                counts[f"{name}: forged, told"] += 1
                continue
            found = read(forged)
            again = write(found)
            assert read(again) == found
            # One state has one binary form.
            assert name != "binary" or again == forged, forged
            counts[f"{name}: forged, a state"] += 1


def is_told(read: Callable[[bytes], CheckpointState], data: bytes) -> bool:
    """Whether a form is refused as damaged; any other error is a fault."""
    try:
        read(data)
    except DataCorrupted as error:
        assert error.sqlstate == "XX001" and error.detail
        return True
    return False


def fuzz(seed: int, *, rounds: int | None = None, seconds: float = 0) -> Counter[str]:
    """So many rounds, or for so long; what was done."""
    rng, counts = random.Random(seed), Counter[str]()
    end, done = time.monotonic() + seconds, 0
    while done < rounds if rounds is not None else time.monotonic() < end:
        fuzz_once(rng, counts)
        done += 1
    counts["rounds"] = done
    return counts

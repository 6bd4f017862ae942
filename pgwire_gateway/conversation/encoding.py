"""Encoding of rows on as many threads as there are cores, and on no more.

Nearly all of it is done by Arrow and numpy, which let go of Python's lock: two threads encode the two
halves of a batch in half the time. More threads than cores only take the lock from each other, and
each keeps memory of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .needs import Batch, Result

CORES = len(os.sched_getaffinity(0))
# Rows that a client gets ahead of the rest of their batch, for whom the first row is urgent.
FIRST_ROWS = 1024

Encode = Callable[[Batch], bytes | memoryview]

_encoders = ThreadPoolExecutor(CORES, thread_name_prefix="ducktail-encoder")


def rows_wanted(result: Result, limit: int | None) -> int | None:
    """How many rows to fetch of a result, None for as many as come: the first ones in a small batch."""
    if result.row_count or (limit is not None and limit <= FIRST_ROWS):
        return limit
    return FIRST_ROWS


def encoded(batch: Batch, encode: Encode) -> Sequence[bytes | memoryview]:
    """The bytes of a batch's rows, in pieces one after the other.

    Waits for the encoders where the batch has parts for them: those of inline results have none.

    Raises:
        DucktailError: what `encode` raises.
    """
    parts = batch.parts()
    if not parts:
        return (encode(batch),)
    return [piece.result() for piece in [_encoders.submit(encode, part) for part in parts]]

"""One byte bound over the buffers of all streams: the oldest events leave first.

Each stream's buffers keep their own bound (`buffer_bytes`); this one holds what they come to together.
The log has what leaves. Source: docs/design/engine.md, "Memory".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from .buffer import StreamBuffer

# Above the bound more is dropped than must be, a sixty-fourth of it, so that the work of finding the
# oldest is not done for each commit.
SLACK = 64
# Events that one stream drops at a time: where several streams lie on one table, its events
# alternate between them.
STEP_EVENTS = 64


def hold(buffers: Iterable[StreamBuffer], bytes_max: int) -> None:
    """Drop the oldest events of all these buffers until they fit. Called by one thread at a time."""
    buffers = list(buffers)
    total = sum(buffer.bytes for buffer in buffers)
    if total <= bytes_max:
        return
    excess = total - bytes_max + bytes_max // SLACK
    oldest = [(lsn, place) for place, buffer in enumerate(buffers) if (lsn := buffer.oldest_lsn) is not None]
    heapq.heapify(oldest)
    while excess > 0 and oldest:
        _, place = heapq.heappop(oldest)
        until = oldest[0][0] if oldest else None
        excess -= buffers[place].drop(excess, until, STEP_EVENTS)
        left = buffers[place].oldest_lsn
        if left is not None:
            heapq.heappush(oldest, (left, place))

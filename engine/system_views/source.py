"""What the rows of live views are made from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..buffers.buffer import StreamBuffer
from ..catalog.streams import Stream
from ..log.log import EVENT_NAMES
from ..parts import Parts
from ..quoting import shown_name

Row = dict[str, Any]


COMMIT_TIME = EVENT_NAMES.index("commit_time")


def time_text(us: int | None) -> str | None:
    return None if not us else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()


def names_text(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown_name, names))


def buffered_streams(database: Parts) -> list[tuple[Stream, StreamBuffer]]:
    with database.catalog.mutex:
        streams = sorted(database.catalog.streams.values(), key=lambda s: s.key)
        return [(s, database.buffers[s.stream_id]) for s in streams]

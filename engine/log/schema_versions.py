"""ducktail.schema_versions: which columns the events of a stream have, by their schema_version.

A captured table has a version for each change of its columns, from the oldest one that its log still has.
Source: docs/schema_changes.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from ..quoting import shown_name
from ..streams.captured import Captured
from ..streams.catalog import Catalog
from ..streams.streams import Stream
from .schema_json import columns_told, shown_table
from .several_logs import query_over
from .table_query import EventQuery


class HasCatalog(Protocol):
    """What the view needs of an open database."""

    catalog: Catalog


def schema_versions(database: HasCatalog) -> Iterator[dict[str, Any]]:
    """The rows, a version of a stream each: topics have none, as their payloads have no columns."""
    with database.catalog.mutex:
        found: Sequence[tuple[Captured, Stream]] = [
            (captured, stream)
            for captured in database.catalog.tables.values()
            for stream in captured.streams
            if captured.was_dropped or not captured.ours
        ]
    for captured, stream in sorted(found, key=lambda item: item[1].key):
        for part in query_over(captured, stream).parts:
            assert isinstance(part, EventQuery)
            yield _row(part.captured, part.stream)


def _row(captured: Captured, stream: Stream) -> dict[str, Any]:
    """One version, which the stream has events of or may get some of."""
    shape = captured.shape
    # It is the stream's from when both were there.
    newer = captured.first_lsn > stream.created_lsn
    since_us = captured.since_us if newer else stream.created_at_us
    return {
        "schema_name": stream.schema,
        "stream_name": stream.name,
        "table_name": shown_table(shape),
        "schema_version": captured.version,
        "since_lsn": captured.first_lsn if newer else stream.created_lsn + 1,
        "since": datetime.fromtimestamp(since_us / 1_000_000, UTC).isoformat(),
        "primary_key": ", ".join(map(shown_name, shape.primary_key)) or None,
        "columns": json.dumps(columns_told(shape, stream.columns), ensure_ascii=False),
    }

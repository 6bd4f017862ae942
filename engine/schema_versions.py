"""ducktail.schema_versions: which columns the events of a stream have, by their schema_version.

A captured table has one version until its columns can change while it has a stream.
Source: docs/design/schema_changes.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from .log import shown_name
from .streams import Captured, Catalog, Stream


class HasCatalog(Protocol):
    """What the view needs of an open database."""

    catalog: Catalog


def schema_versions(database: HasCatalog) -> Iterator[dict[str, Any]]:
    """The rows, a version of a stream each: topics have none, as their payloads have no columns."""
    with database.catalog.mutex:
        found: Sequence[tuple[Captured, Stream]] = [
            (captured, stream) for captured in database.catalog.tables.values() for stream in captured.streams
        ]
    for captured, stream in sorted(found, key=lambda item: item[1].key):
        shape = captured.shape
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "table_name": f"{shown_name(shape.schema)}.{shown_name(shape.name)}",
            "schema_version": captured.version,
            "since_lsn": stream.created_lsn + 1,
            "since": datetime.fromtimestamp(stream.created_at_us / 1_000_000, UTC).isoformat(),
            "primary_key": ", ".join(map(shown_name, shape.primary_key)) or None,
            "columns": json.dumps(
                [
                    {"name": column.name, "type": column.type, "not_null": column.not_null}
                    for column in shape.stored
                    if column.name in stream.columns
                ],
                ensure_ascii=False,
            ),
        }

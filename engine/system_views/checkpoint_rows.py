"""The rows of `ducktail.checkpoints`: the places from which consumers resume, whoever keeps them.

Three kinds stand beside one another, each from where it is kept and nowhere else: the newest checkpoint of
each consumer and job (`checkpoint_states`), the committed position of each consumer group (`offset_log`),
and what pipelines report of theirs (`pipeline_reports`). Parts: docs/checkpoints.md, "SHOW CHECKPOINTS".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ..catalog.streams import Stream
from ..checkpoints.duckdb_backend import TABLE
from ..checkpoints.positions import PartitionLsns
from ..parts import Parts
from .pipelines import rows as reported

Row = dict[str, Any]
# The type of what a pipeline reports: a text of the pipeline's own.
PIPELINE = "pipeline"
SECOND_US = 1_000_000

_NEWEST = (
    "SELECT stream_id, group_id, key, position_type, position, sequence, watermark_ns, event_count, "
    f"epoch_us(created_at) FROM {TABLE} "
    "QUALIFY row_number() OVER (PARTITION BY stream_id, group_id, key ORDER BY sequence DESC) = 1 "
    "ORDER BY stream_id, group_id, key"
)


def checkpoints(database: Parts) -> Iterator[Row]:
    """ducktail.checkpoints."""
    now_us = database.clock.now_us()
    cursor = database.cursor(utc=True)
    try:
        states = cursor.execute(_NEWEST).fetchall()
        reports = reported(cursor, history=False)
    finally:
        cursor.close()
    with database.catalog.mutex:
        streams = {stream.stream_id: stream for stream in database.catalog.streams.values()}
        groups = {group.group_id: group for group in database.catalog.groups.values()}
    for stream_id, group_id, key, *state in states:
        stream, group = streams.get(stream_id), groups.get(group_id)
        # What was dropped since it was read is not shown.
        if (stream is not None or not stream_id) and (group is not None or not group_id):
            yield _row(now_us, stream, key, None if group is None else group.name, *state)
    for group in sorted(groups.values(), key=lambda one: one.group_id):
        stream = streams.get(group.stream_id)
        positions = database.offsets.positions(group.group_id)
        if stream is not None and positions:
            at_us = max(place.committed_at_us for place in positions.values())
            lsns = PartitionLsns({partition: place.lsn for partition, place in positions.items()})
            yield _row(now_us, stream, None, group.name, lsns.kind, str(lsns), None, None, None, at_us)
    for report in reports:
        yield _of_pipeline(now_us, report)


def _row(
    now_us: int,
    stream: Stream | None,
    consumer: str | None,
    group: str | None,
    position_type: str | None,
    position: str | None,
    sequence: int | None,
    watermark_ns: int | None,
    event_count: int | None,
    created_us: int,
) -> Row:
    return {
        "schema_name": None if stream is None else stream.schema,
        "stream_name": None if stream is None else stream.name,
        "consumer_name": consumer,
        "group_name": group,
        "position_type": position_type,
        "position": position,
        "sequence": sequence,
        "watermark": None if watermark_ns is None else _time(watermark_ns // 1000),
        "event_count": event_count,
        "created_at": _time(created_us) if created_us else None,
        "age_seconds": max(0.0, (now_us - created_us) / SECOND_US) if created_us else None,
    }


def _of_pipeline(now_us: int, report: Row) -> Row:
    at_us = round(datetime.fromisoformat(report["reported_at"]).timestamp() * SECOND_US)
    offsets = report["offsets"]
    shown = _row(
        now_us,
        None,
        report["pipeline_name"],
        None,
        PIPELINE,
        None if offsets is None else json.dumps(json.loads(offsets)),
        report["batch_id"],
        None,
        report["events"],
        at_us,
    )
    return shown | {"watermark": report["watermark"]}


def _time(us: int) -> str | None:
    """A time as the views have it; None for one that Python cannot hold."""
    try:
        return datetime.fromtimestamp(us / SECOND_US, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None

"""The rows of the live views about sinks: definitions with their state, and recent deliveries."""

from __future__ import annotations

from collections.abc import Iterator

from ..catalog.rights import group_item
from ..catalog.sinks import Sink
from ..catalog.streams import Group, Stream
from ..parts import Parts
from .group_rows import WHERE_DROPPED, Row, groups_of_streams, lag_events, rows_left, time_text


def _sinks(database: Parts) -> Iterator[tuple[Stream, Group, Sink, int]]:
    """All sinks with their streams and groups, and the numbers of events that they have not delivered."""
    for stream, buffer, group in groups_of_streams(database):
        sink = database.catalog.sinks.get(group.group_id)
        if sink is None:
            continue
        with WHERE_DROPPED:
            lag = sum(
                lag_events(database, stream, number, buffer.partitions[number], position.lsn)
                + rows_left(database.catalog.copies.get(group.group_id), number, position.lsn)
                for number, position in database.offsets.positions(group.group_id).items()
            )
            yield stream, group, sink, lag


def sinks(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.sinks."""
    for stream, group, sink, lag in _sinks(database):
        counts = database.sink_activity.counts(group.group_id)
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "sink_name": group.name,
            "kind": sink.kind,
            "target": sink.shown_target,
            "state": sink.state,
            "reason": sink.reason,
            "lag_events": lag,
            "in_flight": counts.in_flight,
            "delivered_events": counts.delivered_events,
            "parked_events": counts.parked_events,
            "failed_requests": sum(counts.requests.values()) - counts.requests.get("delivered", 0),
            "last_delivered_at": time_text(counts.delivered_us),
            "fault": counts.fault,
            "fault_at": time_text(counts.fault_us),
            "changed_at": time_text(sink.changed_us),
            "owner": database.rights.owners.get(group_item(stream.schema, stream.name, group.name)),
            "options": sink.options_text(),
        }


def deliveries(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.deliveries: the last ones of each sink, the oldest first."""
    for stream, _, group in groups_of_streams(database):
        if group.group_id not in database.catalog.sinks:
            continue
        for one in database.sink_activity.deliveries(group.group_id):
            yield {
                "schema_name": stream.schema,
                "stream_name": stream.name,
                "sink_name": group.name,
                "partition": one.partition,
                "first_lsn": one.first_lsn,
                "last_lsn": one.last_lsn,
                "events": one.events,
                "delivery_id": one.delivery_id,
                "attempt": one.attempt,
                "outcome": one.outcome,
                "status": one.status,
                "detail": one.detail,
                "started_at": time_text(one.started_us),
                "duration_ms": one.duration_ms,
            }

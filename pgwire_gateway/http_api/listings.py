"""GET /v1/streams and /v1/groups: what the user may see, from the views of schema `ducktail`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .failures import json_answer
from .json_rows import RowObjects
from .requests import check_known

if TYPE_CHECKING:
    from .http_port import HttpPort
    from .sessions import Answer

STREAMS = """\
SELECT s.stream_name AS name, s.schema_name AS schema, if(s.tables IS NULL, 'topic', 'stream') AS kind,
    coalesce(s.tables, []) AS tables, s.operations, s.filter, s.partitions,
    (SELECT min(p.first_lsn) FROM ducktail.partitions AS p
        WHERE p.schema_name = s.schema_name AND p.stream_name = s.stream_name) AS first_lsn,
    s.end_lsn AS last_lsn, s.events, s.bytes, s.retention, s.retention_bytes, s.compaction, s.last_event_at,
    s.unpublished_events, s.unpublished_seconds, s.created_at, s.comment
FROM ducktail.streams AS s ORDER BY s.schema_name, s.stream_name"""

GROUPS = """\
SELECT schema_name AS schema, stream_name AS stream, group_name AS "group", start, on_gap, session_timeout,
    created_at, lag_events, members, parked_events AS parked, released_events AS released
FROM ducktail.consumer_groups ORDER BY schema_name, stream_name, group_name"""

OFFSETS = """\
SELECT schema_name AS schema, stream_name AS stream, group_name AS "group", partition, committed_lsn,
    end_lsn AS last_lsn, lag_events, lag_seconds, lag_bytes, headroom_events, headroom_seconds,
    trimmed_unread, member, committed_at, last_read_at
FROM ducktail.offsets ORDER BY schema_name, stream_name, group_name, partition"""

Row = dict[str, Any]
# The columns that name a group, in OFFSETS.
OF_GROUP = ("schema", "stream", "group")


async def list_streams(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/streams: the streams and topics that the user may see."""
    check_known(request, ())
    client = await port.client(request)
    async with port.sessions.borrowed(client) as session:
        found = await session.statement(STREAMS)
    return json_answer({"streams": _rows(found)})


async def list_groups(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/groups: the consumer groups that the user may see, with their lag by partition."""
    check_known(request, ())
    client = await port.client(request)
    async with port.sessions.borrowed(client) as session:
        groups = _rows(await session.statement(GROUPS))
        offsets = _rows(await session.statement(OFFSETS))
    by_group: dict[tuple[str, ...], list[Row]] = {}
    for row in offsets:
        key = tuple(row.pop(name) for name in OF_GROUP)
        by_group.setdefault(key, []).append(row)
    for group in groups:
        partitions = by_group.get(tuple(group[name] for name in OF_GROUP), [])
        lags = [row["lag_seconds"] for row in partitions if row["lag_seconds"] is not None]
        group["lag_seconds"] = max(lags, default=None)
        group["partitions"] = partitions
    return json_answer({"groups": groups})


def _rows(answer: Answer) -> list[Row]:
    """Few rows as values of JSON."""
    objects = RowObjects(answer.names, answer.types)
    return [json.loads(objects.of(row)) for row in answer.rows()]

"""GET /v1/streams/{s}/poll and POST /v1/streams/{s}/commit: reads for clients that ask, and their commits.

A poll is one read of the language, which may wait for events. Its answer has the position up to which it has
read: a client without a group passes it back as `after`. A group's read position belongs to its member, so a
commit without LSNs wants the member; without a member each request may run in another session.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from aiohttp import web

from ...engine.errors import InvalidParameterValue, ProgramLimitExceeded, WrongState
from ...sql.language.clauses import name_sql
from .failures import JSON, failure, json_answer
from .positions import Position
from .reads import (
    PARAMETERS,
    Target,
    end_of,
    moved,
    partitions_after,
    place_columns,
    read_of,
    read_position,
    target_of,
)
from .requests import (
    NDJSON,
    body_in,
    check_known,
    json_text,
    member_of,
    name_in,
    number_in,
    object_of,
    text_in,
)
from .sessions import Answer, HttpSession

if TYPE_CHECKING:
    from .http_port import HttpPort

EVENTS_DEFAULT, EVENTS_MAX = 500, 10_000
# The size of an answer's events: a read stops there, and its position is that of the last returned event.
ANSWER_BYTES_MAX = 16 << 20
WAIT_S_MAX = 60
ARROW = "application/vnd.apache.arrow.stream"
FORMS = (JSON, NDJSON, ARROW)
# Clients accept headers of some kilobytes; a map of many partitions is in the body alone.
HEADER_CHARS_MAX = 2048
POSITION_HEADER = "Ducktail-Position"
# Each piece of a COPY's data has its message's head.
COPY_HEAD_BYTES = 5
COPY_DATA = ord("d")
COMMIT_MEMBERS = ("group", "member", "offsets")


async def poll(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/streams/{s}/poll: the next events, at once or as soon as there are any."""
    check_known(request, (*PARAMETERS, "limit", "wait"))
    client = await port.client(request)
    form = accepted_form(request)
    read = read_of(request)
    limit = number_in(request, "limit", EVENTS_DEFAULT, 1, EVENTS_MAX)
    wait_ms = 1000 * number_in(request, "wait", 0, 0, WAIT_S_MAX)
    start = Position.parse(text_in(request, "after") or "0")
    async with port.sessions.borrowed(client) as session:
        target = await target_of(session, read)
        start.check(target.partitions)
        end = await end_of(session, target) if read.group is None else Position()
        after = None if read.group is not None else start.text(target.partitions)
        text, values = read.statement(limit, after=after, wait_ms=wait_ms, literals=form == ARROW)
        reading = asyncio.ensure_future(_read(session, text, values, arrow=form == ARROW))
        try:
            await port.until_ending(reading)
            answer = await reading
        except ProgramLimitExceeded as error:
            return failure(error, 429)
        if form == ARROW:
            body, answer = _arrow(answer, target)
        if read.group is None:
            position = moved(start, target, answer, Position() if answer.row_count >= limit else end)
        else:
            position = await _position_in_group(session, target)
        partitions = await partitions_after(session, target, position)
        if form != ARROW:
            body = await port.encoded(lambda: _rendered(answer, target, form), answer.row_count)
    shown = position.text(target.partitions)
    if form == JSON:
        rest = json.dumps({"partitions": partitions, "position": shown, "truncated": answer.truncated})
        body = b'{"events":[%s],%s' % (body, rest.encode()[1:])
    elif form == NDJSON:
        body += json.dumps({"partitions": partitions}).encode() + b"\n"
    headers = {"Content-Type": form}
    if len(shown) <= HEADER_CHARS_MAX:
        headers[POSITION_HEADER] = shown
    return web.Response(body=body, headers=headers)


def accepted_form(request: web.Request) -> str:
    """The form of the answer that Accept asks for; JSON without one.

    Raises:
        InvalidParameterValue: none of the forms is accepted.
    """
    wanted = request.headers.get("Accept", "*/*")
    for part in wanted.lower().split(","):
        kind = part.partition(";")[0].strip()
        if kind in ("*/*", "application/*"):
            return JSON
        if kind in FORMS:
            return kind
    raise InvalidParameterValue(f"Accept asks for none of {', '.join(FORMS)}")


async def _read(session: HttpSession, text: str, values: tuple[object, ...], *, arrow: bool) -> Answer:
    if arrow:
        return await session.statement(f"COPY ({text}) TO STDOUT (FORMAT arrow)", values, copies=True)
    return await session.statement(text, values, bytes_max=ANSWER_BYTES_MAX, suspends=True)


async def _position_in_group(session: HttpSession, target: Target) -> Position:
    try:
        return await read_position(session, target)
    except WrongState:
        return Position()  # Nothing was read: the member has no partition.


def _arrow(answer: Answer, target: Target) -> tuple[bytes, Answer]:
    """An Arrow IPC stream of a COPY's messages, and LSN and partition of its rows."""
    stream = bytearray()
    for piece in answer.copied:
        view, place = memoryview(piece), 0
        while place < len(view):
            end = place + 1 + int.from_bytes(view[place + 1 : place + COPY_HEAD_BYTES], "big")
            if view[place] == COPY_DATA:
                stream += view[place + COPY_HEAD_BYTES : end]
            place = end
    body = bytes(stream)
    table = pa.ipc.open_stream(body).read_all()
    return body, Answer(None, row_count=table.num_rows, events=_places(table, target))


def _places(table: pa.Table, target: Target) -> list[tuple[int, int]]:
    lsn_at, partition_at = place_columns(target.read, target.names)
    lsns, partitions = table.column(lsn_at).to_pylist(), table.column(partition_at).to_pylist()
    return list(zip(lsns, partitions, strict=True))


def _rendered(answer: Answer, target: Target, form: str) -> bytes:
    objects = target.encoder()
    if form == NDJSON:
        return b"".join([objects.of(row) + b"\n" for row in answer.rows()])
    return b",".join([objects.of(row) for row in answer.rows()])


async def commit(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """POST /v1/streams/{s}/commit: {"group": "g", "member": "m", "offsets": {"0": 17}}."""
    check_known(request, ())
    client = await port.client(request)
    stream = name_in(request.match_info["stream"], "the name of a stream")
    body = object_of(await body_in(request), COMMIT_MEMBERS)
    group, member = member_of(body, "group", str, None), member_of(body, "member", str, None)
    offsets: dict[str, Any] | None = member_of(body, "offsets", dict, None)
    if not group:
        raise InvalidParameterValue('a commit wants the member "group"')
    if offsets is None and member is None:
        raise InvalidParameterValue(
            'a commit wants "offsets" or "member"',
            hint="The position of a read without a member is known to its session alone.",
        )
    values: list[object] = [group]
    words = ["COMMIT OFFSETS"]
    if offsets is not None:
        values.append(json_text(offsets))
        words.append("AT $2")
    words.append(f"ON {name_sql(stream)} CONSUMER GROUP $1")
    if member is not None:
        values.append(member)
        words.append(f"MEMBER ${len(values)}")
    async with port.sessions.borrowed(client) as session:
        await session.statement(" ".join(words), values)
    port.committed()
    return json_answer({"committed": True})

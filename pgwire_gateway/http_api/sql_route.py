"""POST /v1/sql: one statement in a session of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from ...engine.errors import InvalidParameterValue
from .failures import JSON
from .json_rows import as_array, turn_of
from .requests import body_in, check_known, json_text, member_of, object_of
from .sessions import Answer, HttpSession

if TYPE_CHECKING:
    from .http_port import HttpPort

ROWS_DEFAULT, ROWS_MAX = 1000, 100_000
# The size of an answer's rows beyond which it is truncated.
ANSWER_BYTES_MAX = 32 << 20
TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX = 30_000, 600_000
PARAMETERS_MAX = 65_535
MEMBERS = ("sql", "parameters", "limit", "timeout_ms")


async def run_statement(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """POST /v1/sql: {"sql": "...", "parameters": [...], "limit": 1000, "timeout_ms": 30000}."""
    check_known(request, ())
    client = await port.client(request)
    body = object_of(await body_in(request), MEMBERS)
    text = member_of(body, "sql", str, "")
    parameters = [_text_of(value) for value in member_of(body, "parameters", list, [])]
    limit = _within(member_of(body, "limit", int, ROWS_DEFAULT), "limit", ROWS_MAX)
    timeout_ms = _within(member_of(body, "timeout_ms", int, TIMEOUT_MS_DEFAULT), "timeout_ms", TIMEOUT_MS_MAX)
    if len(parameters) > PARAMETERS_MAX:
        raise InvalidParameterValue(f"a statement has at most {PARAMETERS_MAX} parameters")
    async with port.sessions.own(client, {"statement_timeout": str(timeout_ms)}) as session:
        answer = await session.statement(
            text, parameters, rows_max=limit, bytes_max=ANSWER_BYTES_MAX, foreign=True
        )
        return await port.encoded(lambda: rendered(session, answer), answer.row_count)


def _within(value: int, name: str, most: int) -> int:
    if not 1 <= value <= most:
        raise InvalidParameterValue(f'member "{name}" is not a whole number from 1 to {most}')
    return value


def _text_of(value: Any) -> str | None:
    """A JSON value as the wire's text of a parameter; an array or object stays JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_text(value)


def rendered(session: HttpSession, answer: Answer) -> web.Response:
    """The answer of a statement as JSON: columns, rows, command, truncated, notices."""
    columns = [
        {"name": column.name, "type": type_}
        for column, type_ in zip(answer.columns or (), answer.types, strict=True)
    ]
    turns = [turn_of(type_) for type_ in answer.types]
    rows = b",".join([as_array(row, turns) for row in answer.rows()])
    notices = [
        {"severity": one.severity, "sqlstate": one.sqlstate, "message": one.message, "detail": one.detail}
        for one in session.notices
    ]
    rest = {
        "command": answer.tag or f"SELECT {answer.row_count}",
        "truncated": answer.truncated,
        "notices": notices,
    }
    body = b'{"columns":%s,"rows":[%s],%s' % (
        json.dumps(columns, ensure_ascii=False).encode(),
        rows,
        json.dumps(rest, ensure_ascii=False).encode()[1:],
    )
    return web.Response(body=body, content_type=JSON)

"""Errors as HTTP answers: a status for each SQLSTATE, and one form of the body.

    {"error": {"sqlstate": "42501", "message": "...", "detail": null, "hint": null, "position": null}}

Source: docs/http.md, "Errors".
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from ...engine.errors import DucktailError

JSON = "application/json"
# SQLSTATE -> status, where its class does not decide.
OF_STATE = {
    "08P01": 400,
    "28000": 401,
    "28P01": 401,
    "40001": 409,
    "42501": 403,
    "42704": 404,
    "42P01": 404,
    "3D000": 404,
    "3F000": 404,
    "54000": 413,
    "55000": 409,
    "55006": 409,
    "55P03": 503,
    "72000": 410,
    "42710": 409,
    "42P07": 409,
}
# Class of SQLSTATEs -> status.
OF_CLASS = {
    "08": 503,
    "0A": 400,
    "21": 400,
    "22": 400,
    "23": 409,
    "25": 400,
    "26": 400,
    "2B": 409,
    "34": 400,
    "3B": 400,
    "42": 400,
    "53": 503,
    "55": 409,
    "57": 503,
    "58": 503,
    "P0": 400,
}
# The challenge of a 401: browsers ask for user and password, and send them with EventSource too.
CHALLENGE = 'Basic realm="ducktail", charset="UTF-8"'
# The time after which a client tries again that found the server busy.
RETRY_AFTER_S = "1"


def json_answer(value: object) -> web.Response:
    """An answer with a JSON value."""
    return web.Response(body=json.dumps(value, ensure_ascii=False).encode(), content_type=JSON)


def status_of(error: DucktailError) -> int:
    """The HTTP status of an error.

    >>> status_of(DucktailError("unexpected"))
    500
    """
    return OF_STATE.get(error.sqlstate) or OF_CLASS.get(error.sqlstate[:2], 500)


def described(error: DucktailError) -> dict[str, Any]:
    """The members of an error, for `error` in a body or for the data of an `failure` event."""
    return {
        "sqlstate": error.sqlstate,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "position": error.position,
    }


def body_of(error: DucktailError) -> bytes:
    """The body of an error's answer."""
    return json.dumps({"error": described(error)}, ensure_ascii=False).encode()


def failure(error: DucktailError, status: int | None = None) -> web.Response:
    """The answer for an error.

    Args:
        status: the status, if it is not that of the SQLSTATE.
    """
    status = status or status_of(error)
    answer = web.Response(status=status, body=body_of(error), content_type=JSON)
    if status == 401:
        answer.headers["WWW-Authenticate"] = CHALLENGE
    if status in (429, 503):
        answer.headers["Retry-After"] = RETRY_AFTER_S
    return answer

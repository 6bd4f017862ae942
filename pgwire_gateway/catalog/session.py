"""How the catalog knows whose session asks: DuckDB variables on the session's cursors, and its settings.

current_setting and pg_settings answer from the session itself, through a function of ours in Python,
so they follow every SET. The registry holds no session alive.
"""

from __future__ import annotations

import json
from weakref import WeakValueDictionary

import duckdb
from duckdb.func import FunctionNullHandling

from ...engine.errors import AdminShutdown
from ...engine.quoting import literal
from ...engine.settings import numbers
from ...sql.rights.answers import answer
from ...sql.rights.visible import SEPARATOR
from ...sql.runners.settings_statements import of_the_server
from ...sql.session import Session
from .functions import (
    CHANNELS_FUNCTION,
    CURSOR_COLUMNS,
    CURSORS_FUNCTION,
    MAY_FUNCTION,
    PID_VARIABLE,
    SERVER_COLUMNS,
    SERVER_FUNCTION,
    SETTING_FUNCTION,
    SIGNAL_FUNCTION,
    USER_VARIABLE,
)

_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()


def attach(session: Session) -> None:
    """Tell the catalog of a session that begins: its number, its user and its settings."""
    _sessions[session.id] = session
    for cursor in (session.cursor, session.meta):
        cursor.execute(f"SET VARIABLE {PID_VARIABLE} = {session.id}")
        cursor.execute(f"SET VARIABLE {USER_VARIABLE} = {literal(session.user)}")


def register(cursor: duckdb.DuckDBPyConnection) -> None:
    """Make the functions that ask sessions, and tell them."""
    cursor.create_function(
        SIGNAL_FUNCTION, _signal, ["INTEGER", "INTEGER", "VARCHAR"], "BOOLEAN",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip
    cursor.create_function(
        MAY_FUNCTION, _may, ["INTEGER", "VARCHAR", "VARCHAR", "VARCHAR", "VARCHAR"], "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip
    cursor.create_function(
        SETTING_FUNCTION, _setting, ["INTEGER", "VARCHAR"], "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip
    told = {CURSORS_FUNCTION: _cursors, CHANNELS_FUNCTION: _channels, SERVER_FUNCTION: _server}
    for name, function in told.items():
        cursor.create_function(
            name, function, ["INTEGER"], "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
        )  # fmt: skip


def _cursors(pid: int | None) -> str:
    """The cursors and named portals of a session."""
    session = _sessions.get(pid or 0)
    if session is None:
        return "[]"
    rows = []
    for name, portal in session.portals:
        if name:
            text = portal.text or portal.statement.text
            rows.append((name, text, portal.hold, portal.binary, portal.scroll, portal.made_us))
    return json.dumps([dict(zip(CURSOR_COLUMNS, row, strict=True)) for row in rows])


def _channels(pid: int | None) -> str:
    """What a session listens to."""
    session = _sessions.get(pid or 0)
    return json.dumps([] if session is None else session.listening.channels)


def _server(pid: int | None) -> str:
    """The server's settings."""
    session = _sessions.get(pid or 0)
    found = () if session is None else of_the_server(session)
    rows = [
        (item.name, item.setting, item.source, item.about, "integer" if item.name in _NUMBERS else "string")
        for item in found
    ]
    return json.dumps([dict(zip(SERVER_COLUMNS, row, strict=True)) for row in rows])


_NUMBERS = frozenset(item.name for item in numbers())


def _may(
    pid: int | None, user: str | None, kind: str | None, place: str | None, asked: str | None
) -> str | None:
    """What a session's rights say; None where there is nothing to ask about."""
    session = _sessions.get(pid or 0)
    if session is None or kind is None or place is None or asked is None:
        return None
    schema, _, name = place.rpartition(SEPARATOR)
    found = answer(session.access, user, kind, (schema, name), asked)
    return found if isinstance(found, str) else str(found).lower()


def _setting(pid: int | None, name: str | None) -> str | None:
    session = None if pid is None or name is None else _sessions.get(pid)
    if session is None:
        return None
    own = session.variables.values.get(name or "")
    if own is not None:
        return own
    return next((item.setting for item in of_the_server(session) if item.name == name), None)


def _signal(pid: int | None, other: int | None, what: str | None) -> bool | None:
    """Cancel what another session does, or end it: a user's own, or anybody's for a superuser."""
    if other is None:
        return None
    asking, told = _sessions.get(pid or 0), _sessions.get(other)
    if asking is None or told is None or told.on_ended is None or told.guard.closed:
        return False
    if not asking.access.superuser and told.access.user != asking.access.user:
        return False
    if what == "terminate":
        told.on_ended(AdminShutdown("terminating connection due to administrator command"))
    # At once: a session that cancels itself does not get to the end of that statement.
    told.cancel()
    told.on_cancelled()
    return True

"""How the catalog knows whose session asks: DuckDB variables on the session's cursors, and its settings.

current_setting and pg_settings answer from the session itself, through a function of ours in Python,
so they follow every SET. The registry holds no session alive.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import duckdb
from duckdb.func import FunctionNullHandling

from ...engine.errors import AdminShutdown
from ...engine.quoting import literal
from ...sql.session import Session
from .functions import PID_VARIABLE, SETTING_FUNCTION, SIGNAL_FUNCTION, USER_VARIABLE

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
        SETTING_FUNCTION, _setting, ["INTEGER", "VARCHAR"], "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip


def _setting(pid: int | None, name: str | None) -> str | None:
    session = None if pid is None or name is None else _sessions.get(pid)
    return None if session is None else session.variables.values.get(name or "")


def _signal(pid: int | None, other: int | None, what: str | None) -> bool | None:
    """Cancel what another session does, or end it: a user's own, or anybody's for a superuser."""
    if other is None:
        return None
    asking, told = _sessions.get(pid or 0), _sessions.get(other)
    if asking is None or told is None or told.on_ended is None or told.guard.closed:
        return False
    if not asking.access.superuser and told.user != asking.user:
        return False
    if what == "terminate":
        told.on_ended(AdminShutdown("terminating connection due to administrator command"))
    told.cancel()
    return True

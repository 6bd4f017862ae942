"""How the catalog knows whose session asks: DuckDB variables on the session's cursors, and its settings.

current_setting and pg_settings answer from the session itself, through a function of ours in Python,
so they follow every SET. The registry holds no session alive.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import duckdb
from duckdb.func import FunctionNullHandling

from ...engine.quoting import literal
from ...sql.session import Session
from .functions import PID_VARIABLE, SETTING_FUNCTION, USER_VARIABLE

_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()


def attach(session: Session) -> None:
    """Tell the catalog of a session that begins: its number, its user and its settings."""
    _sessions[session.id] = session
    for cursor in (session.cursor, session.meta):
        cursor.execute(f"SET VARIABLE {PID_VARIABLE} = {session.id}")
        cursor.execute(f"SET VARIABLE {USER_VARIABLE} = {literal(session.user)}")


def register(cursor: duckdb.DuckDBPyConnection) -> None:
    """Make the function that answers a session's setting."""
    cursor.create_function(
        SETTING_FUNCTION, _setting, ["INTEGER", "VARCHAR"], "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip


def _setting(pid: int | None, name: str | None) -> str | None:
    session = None if pid is None or name is None else _sessions.get(pid)
    return None if session is None else session.variables.values.get(name or "")

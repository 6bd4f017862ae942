"""Installation of the catalog beside an open database, and the session functions of its queries.

The catalog's tables and macros are created once for each database, in a separate DuckDB database (oids.py).

DuckDB's lists of objects are restricted to those that the session may see. The restriction is in macros, so
that no user's query can read the unrestricted lists: a user can name nothing in the catalog's database, and
DuckDB's own lists are refused to a user who may not see everything (sql/rights). The visible objects are in
variables of the session's cursors (sql/rights/visibility.py); a session without them is the database owner's,
or a superuser's.

current_setting and pg_settings read the session itself, through a Python function, so they follow every SET.
The registry of sessions keeps none of them alive.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from functools import cache
from weakref import WeakValueDictionary

import duckdb
from duckdb.func import FunctionNullHandling

from ...engine.clock import SystemClock
from ...engine.database import Database
from ...engine.duck.constraint_names import listed_sql
from ...engine.duck.cursors import in_one_transaction, run_known
from ...engine.errors import AdminShutdown
from ...engine.quoting import literal
from ...engine.settings import numbers
from ...engine.values import value_types
from ...engine.values.duckdb_types import read_type
from ...engine.version import VERSION
from ...sql.pipeline import user_types
from ...sql.rights.visibility import LIMITED, OWNED, SCHEMAS, SEEN, WHOLE, answer
from ...sql.rights.visibility import SEPARATOR as PLACE_SEPARATOR
from ...sql.session import Session
from ...sql.settings import SERVER_VERSION
from ...sql.statements.set_and_show import extend_path, of_the_server
from . import constant_relations, functions, postgres_functions
from .functions import (
    ACTIVITY_COLUMNS,
    ACTIVITY_FUNCTION,
    CHANNELS_FUNCTION,
    COMPOSITE_FIELD,
    COMPOSITES_FUNCTION,
    CURSOR_COLUMNS,
    CURSORS_FUNCTION,
    MAY_FUNCTION,
    PID_VARIABLE,
    PREPARED_COLUMNS,
    PREPARED_FUNCTION,
    SERVER_COLUMNS,
    SERVER_FUNCTION,
    SETTING_FUNCTION,
    SIGNAL_FUNCTION,
    TYPE_FUNCTION,
    USER_VARIABLE,
)
from .oids import CATALOG, HOME, OUR_SCHEMA, SEPARATOR
from .query_rewrite import rewrite
from .system_catalogs import TYPES

_LIMITED = f"coalesce(getvariable('{LIMITED}')::BOOLEAN, false)"


def _in(variable: str, what: str) -> str:
    return f"list_contains(getvariable('{variable}')::VARCHAR[], {what})"


_SCHEMA = f"{HOME}.folded(z_schema)"
_NAME = f"{_SCHEMA} || {SEPARATOR} || {HOME}.folded(z_name)"
_EVERYBODYS = f"z_database <> {HOME}.duck_database() OR z_schema = '{OUR_SCHEMA}'"

# Macro -> body. Scalar macros come first, because the lists use them.
SCALARS = {
    "told_all()": f"NOT {_LIMITED}",
    "told_schema(z_database, z_schema)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(SCHEMAS, _SCHEMA)}",
    "told(z_database, z_schema, z_name)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(SEEN, _NAME)} "
    f"OR {_in(WHOLE, _SCHEMA)} OR {_in(WHOLE, repr('*'))}",
    "told_text(z_database, z_schema, z_name)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(OWNED, _NAME)}",
}


def _list(source: str, name: str | None = None) -> str:
    told = f"{HOME}.told_schema(database_name, schema_name)"
    if name is not None:
        told = f"{HOME}.told(database_name, schema_name, {name})"
    return f"SELECT * FROM system.main.duckdb_{source}() WHERE {told}"


LISTS = {
    "tables": _list("tables", "table_name"),
    # A view's definition names the relations under it.
    "views": "SELECT * REPLACE (if("
    f"{HOME}.told_text(database_name, schema_name, view_name), sql, 'CREATE VIEW v AS SELECT NULL;') AS sql) "
    f"FROM system.main.duckdb_views() WHERE {HOME}.told(database_name, schema_name, view_name)",
    "columns": _list("columns", "table_name"),
    "indexes": _list("indexes", "table_name"),
    "constraints": _list("constraints", "table_name"),
    "named_constraints": listed_sql(f"{HOME}.constraints()"),
    "sequences": _list("sequences", "sequence_name"),
    "schemas": _list("schemas"),
    "types": _list("types"),
    # A macro's definition names the relations that it reads.
    "functions": f"SELECT * FROM system.main.duckdb_functions() WHERE internal OR NOT {_LIMITED}",
}


def visibility_macros() -> list[str]:
    """The CREATE MACRO statements of the lists above."""
    scalars = [f"CREATE MACRO {HOME}.{head} AS ({body})" for head, body in SCALARS.items()]
    return scalars + [f"CREATE MACRO {HOME}.{name}() AS TABLE {body}" for name, body in LISTS.items()]


_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()


def attach(session: Session) -> None:
    """Register a new session with the catalog: its number, its user and its settings."""
    _sessions[session.id] = session
    for cursor in (session.cursor, session.meta):
        cursor.execute(f"SET VARIABLE {PID_VARIABLE} = {session.id}")
        cursor.execute(f"SET VARIABLE {USER_VARIABLE} = {literal(session.user)}")
    extend_path(session, postgres_functions.PLACE, postgres_functions.names())


def register(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create the functions that query sessions, and register them."""
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
    cursor.create_function(
        TYPE_FUNCTION, _type, ["INTEGER", "VARCHAR"], "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip
    told = {
        CURSORS_FUNCTION: _cursors,
        CHANNELS_FUNCTION: _channels,
        SERVER_FUNCTION: _server,
        PREPARED_FUNCTION: _prepared,
        ACTIVITY_FUNCTION: _activity,
        COMPOSITES_FUNCTION: _composites,
    }
    for name, function in told.items():
        cursor.create_function(
            name, function, ["INTEGER"], "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
        )  # fmt: skip

    cursor.create_function(
        SLEEP_FUNCTION, _sleep, ["INTEGER", "DOUBLE"], "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL, side_effects=True,
    )  # fmt: skip
    postgres_functions.register(cursor)


# Python function: (pid, seconds) -> an empty text, after that time.
SLEEP_FUNCTION = "__ducktail_sleep"
# The interval at which pg_sleep looks whether its statement has been ended.
SLEEP_SECONDS = 0.02


def _sleep(pid: int | None, seconds: float | None) -> str | None:
    """Wait on the statement's thread; a cancel and statement_timeout end it."""
    if seconds is None:
        return None
    clock = SystemClock()
    until = clock.monotonic_s() + seconds
    while (left := until - clock.monotonic_s()) > 0:
        if _ended(pid or 0):
            return ""  # The interrupted statement fails.
        time.sleep(min(left, SLEEP_SECONDS))
    return ""


def _ended(pid: int) -> bool:
    """End a Python function whose statement has been cancelled, or whose time is over."""
    session = _sessions.get(pid)
    if session is None:
        return True
    ends = session.guard.ends_s
    if not session.guard.cancelled and (ends is None or session.database.clock.monotonic_s() < ends):
        return False
    session.cursors.interrupt()
    return True


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


def _prepared(pid: int | None) -> str:
    """The prepared statements of a session: those of PREPARE, and the protocol's."""
    session = _sessions.get(pid or 0)
    if session is None:
        return "[]"
    rows: list[tuple[object, ...]] = []
    for name, each in list(session.prepared.items()):
        types = [*each.types, *["text"] * (each.count - len(each.types))]
        rows.append((name, each.text, each.made_us, types, True))
    for name, text, made_us, oids in session.bound_statements():
        types = [_TYPES_SHOWN.get(oid, "text") for oid in oids]
        rows.append((name, text, made_us, types, False))
    return json.dumps([dict(zip(PREPARED_COLUMNS, row, strict=True)) for row in rows])


def _user_types(pid: int | None) -> user_types.UserTypes | None:
    """The types of users for a session."""
    session = _sessions.get(pid or 0)
    if session is None or session.object_oid is None:
        return None
    # The session's own cursors run this query.
    cursor = session.database.cursor()
    try:
        return user_types.known(session, cursor)
    finally:
        cursor.close()


def _type(pid: int | None, text: str | None) -> str | None:
    """Schema and name of the user's type with DuckDB's text of a type, and `[]` for a list of it."""
    types = _user_types(pid)
    if types is None or text is None:
        return None
    oid = value_types.pg_type(types.shown(text)).oid
    found = types.of(oid) if oid >= value_types.USER_OID_FIRST else None
    return None if found is None else json.dumps([found.schema, found.name, "" if found.oid == oid else "[]"])


def _composites(pid: int | None) -> str:
    """The composite types of a session."""
    types = _user_types(pid)
    if types is None:
        return "[]"
    rows = [
        {"oid": one.oid, "text": one.text, "fields": _fields(types, one)}
        for one in types.types.values()
        if one.text.startswith(user_types.STRUCT)
    ]
    return json.dumps(rows)


def _fields(types: user_types.UserTypes, composite: user_types.UserType) -> list[dict[str, object]]:
    """The attributes of a composite type."""
    read = read_type(composite.text)
    found: list[dict[str, object]] = []
    for name, child in zip(read.fields, read.children, strict=True):
        told = value_types.pg_type(types.shown(child.text))
        own = types.of(told.oid)
        row = (
            name,
            told.oid,
            told.modifier,
            told.length,
            *(("", "") if own is None else (own.schema, own.name)),
        )
        found.append(dict(zip(COMPOSITE_FIELD, (*row, own is not None and own.oid != told.oid), strict=True)))
    return found


_TYPES_SHOWN = {found.oid: found.shown for found in TYPES}
# PostgreSQL's answer for the statement of another user's session, and the length of the statements shown.
HIDDEN_TEXT = "<insufficient privilege>"
ACTIVITY_CHARS_MAX = 1024
# A statement with a password, or with a sink's keys, is shown by its first words alone.
_PASSWORD = re.compile(r"\bpassword\b|\b(?:create|alter)\s+sink\b", re.IGNORECASE)


def _activity(pid: int | None) -> str:
    """The sessions of the database; of another user's a limited session is told that they exist."""
    asking = _sessions.get(pid or 0)
    if asking is None:
        return "[]"
    database = asking.database
    waiting = database.transactions.writer_lock.waiting() | database.group_commit.waiting()
    rows = []
    for session in sorted(_sessions.values(), key=lambda found: found.id):
        if session.database is not asking.database or session.guard.closed:
            continue
        entry = session.entry
        told = asking.access.superuser or session.access.user == asking.access.user
        row: list[object] = [session.id, session.user, entry.application_name]
        if told:
            text = session.last_text()[:ACTIVITY_CHARS_MAX]
            if found := _PASSWORD.search(text):
                text = text[: found.end()] + " ..."
            row += [entry.state, text, session.begun_us, entry.since_us, entry.transaction_us]
            row += [session.id in waiting]
        else:
            row += [None, HIDDEN_TEXT, None, None, None, None]
        rows.append(dict(zip(ACTIVITY_COLUMNS, row, strict=True)))
    return json.dumps(rows)


def _channels(pid: int | None) -> str:
    """The channels that a session listens to."""
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
    """The answer from a session's rights; None if the object does not exist."""
    session = _sessions.get(pid or 0)
    if session is None or kind is None or place is None or asked is None:
        return None
    schema, _, name = place.rpartition(PLACE_SEPARATOR)
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
    """Cancel another session's statement, or end that session: a user's own, or any for a superuser."""
    if other is None:
        return None
    asking, told = _sessions.get(pid or 0), _sessions.get(other)
    if asking is None or told is None or told.on_ended is None or told.guard.closed:
        return False
    if not asking.access.superuser and told.access.user != asking.access.user:
        return False
    if what == "terminate":
        told.on_ended(AdminShutdown("terminating connection due to administrator command"))
    # Send it at once: a session that cancels itself does not reach the end of that statement.
    told.cancel()
    told.on_cancelled()
    return True


_lock = threading.Lock()

# Read once at the start, so that the first client does not wait for the preparation of these tables.
WARMING = "SELECT c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c"


def install(database: Database) -> None:
    """Create the catalog of a database, unless another server of it has done so."""
    cursor = database.cursor()
    try:
        with _lock:
            found = cursor.execute(
                "SELECT count(*) FROM system.main.duckdb_databases() WHERE database_name = $1", [CATALOG]
            ).fetchall()
            if found == [(0,)]:
                _make(cursor, database)
    finally:
        cursor.close()


def _make(cursor: duckdb.DuckDBPyConnection, database: Database) -> None:
    register(cursor)
    cursor.execute(f"ATTACH ':memory:' AS {CATALOG}")
    cursor.execute(f"CREATE SCHEMA {HOME}")
    version = f"PostgreSQL {SERVER_VERSION} (ducktail {VERSION}, DuckDB {duckdb.__version__})"
    own = functions.database_macros(database.catalog_name, database.name, version, SystemClock().now_us())
    with in_one_transaction(cursor):
        constant_relations.make(cursor)
        for statement in _macro_statements(own):
            cursor.execute(statement)
        run_known(cursor, _statements())
    rewrite(WARMING)


@cache
def _statements() -> str:
    """The statements that are the same for each database."""
    macros = _macro_statements(functions.macros())
    return ";".join([*macros, *visibility_macros(), *postgres_functions.statements()])


def _macro_statements(macros: dict[str, str]) -> Iterator[str]:
    """One CREATE MACRO for each name, with all its forms, in the order of first occurrence."""
    forms: dict[str, list[str]] = {}
    for head, body in macros.items():
        name, _, parameters = head.partition("(")
        forms.setdefault(name, []).append(f"({parameters} AS ({body})")
    for name, found in forms.items():
        yield f"CREATE MACRO {HOME}.{name}{', '.join(found)}"

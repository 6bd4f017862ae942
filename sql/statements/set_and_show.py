"""SET, RESET, SHOW and DISCARD of settings. Source: docs/settings.md, "Of a session"."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from ...engine.duck.cursors import ask_maybe
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.objects import DEFAULT_SCHEMA, TABLE, TEMPORARY
from ...engine.duck.table_shape import RELATIONS, RESERVED_PREFIX
from ...engine.errors import (
    ActiveTransaction,
    CantChangeRuntimeParam,
    DucktailError,
    InsufficientPrivilege,
    InvalidSchemaName,
    NotSupported,
    UndefinedObject,
)
from ...engine.quoting import fold, folded_sql, ident, literal
from ...engine.settings import ShownSetting, told_everybody
from ...engine.values.date_styles import read_datestyle
from ...engine.values.dates_times import duckdb_zone
from ...engine.waiting import Waiting
from ..results.results import Result, ResultColumn, table_result
from ..session_state import run_text
from ..session_state.context import Context
from ..session_state.names import OURS
from ..session_state.run_text import query_result, text_rows
from ..session_state.statement import ParsedStatement
from ..settings import DATESTYLE, MODES, ROLE, VARIABLES, Variable, is_setting, variable
from ..text.classified import SettingFacts

TEXT = "VARCHAR"
# Settings that decide where names are looked up.
PATHS = frozenset({"search_path", "schema"})
# PostgreSQL's first schema; schemas that are on every path, and the user's own, which does not exist.
PUBLIC = "public"
UNSEEN = frozenset({"pg_catalog", "$user"})
# The columns of SHOW ALL: PostgreSQL's, and the source of the value.
ALL_COLUMNS = ("name", "setting", "description", "source")


def set_variable(session: Context, name: str, values: tuple[str, ...] | None, *, local: bool) -> None:
    """Set a setting's value; None sets its default.

    Raises:
        UndefinedObject: there is no such setting.
        InvalidParameterValue: the value is invalid.
        CantChangeRuntimeParam: the setting cannot be changed.
    """
    try:
        found = variable(name)
    except UndefinedObject as error:
        if _duckdb_setting(session, name) is not None:
            raise InsufficientPrivilege(
                f'setting "{name}" cannot be changed', hint="SHOW ALL lists the settings of a session."
            ) from error
        if any(item.name == name.lower() for item in of_the_server(session)):
            raise CantChangeRuntimeParam(
                f'setting "{name}" cannot be changed now', hint="It is set where the server is started."
            ) from error
        raise
    key = found.name.lower()
    if values is None:
        value = session.variables.default(key)
    else:
        value = found.read(found.name, values)
    if key == ROLE:
        value = _role(session, value)
    elif key == DATESTYLE and values is not None:
        value = read_datestyle(values, session.variables.values[key])
    elif found.duckdb == "TimeZone" and duckdb_zone(value) != value and not session.wire:
        raise NotSupported(
            f'"{value}" is not supported as a time zone in process: an offset must be in whole hours',
            hint="Name the zone, such as 'Asia/Kolkata'.",
        )
    if found.unused and value != found.default:
        session.notices.add(f'setting "{found.name}" has {found.about}')
    if key in MODES.values():
        run_text.choose(session, key, value)
    else:
        apply_value(session, key, value, local=local)


def _role(session: Context, value: str) -> str:
    """The role of SET ROLE, which can only be the user of the session."""
    if value.lower() != "none" and value != session.user:
        raise NotSupported(
            f'SET ROLE is not supported: role "{value}"',
            detail="A session has the rights of its user, and users are not members of each other.",
            hint="Connect as the other user.",
        )
    return "none" if value.lower() == "none" else value


def _duckdb_setting(session: Context, name: str) -> str | None:
    """The value of a setting of DuckDB's own; None if DuckDB has no such setting."""
    sql = "SELECT value FROM system.main.duckdb_settings() WHERE name = $1"
    row = ask_maybe(session.meta, sql, [name.lower()])
    return None if row is None else str(row[0])


def apply_value(session: Context, key: str, value: str, *, local: bool) -> None:
    """Store a parsed value, and pass it to DuckDB for a setting that DuckDB shares.

    Raises:
        DucktailError: DuckDB refuses it.
    """
    found = variable(key)
    path = _existing(session, value) if key in PATHS else None
    if found.duckdb is not None:
        _set_in_duckdb(session, found, value if path is None else path.written)
    session.changed(key, value, report=found.report, local=local)
    if path is not None:
        session.names.path, session.names.awaited = path.schemas, path.awaited
        other = "schema" if key == "search_path" else "search_path"
        shown = session.names.path[0] if other == "schema" else value
        session.changed(other, shown, report=False, local=local)


def renew_path(session: Context) -> None:
    """Add the schemas of the search path that have been created since it was set."""
    if any(map(session.names.has_schema, session.names.awaited)):
        apply_value(session, "search_path", session.variables["search_path"], local=False)


def extend_path(session: Context, schema: str, functions: frozenset[str]) -> None:
    """Look functions up in a schema of another database too, after the session's own schemas.

    The session's setting does not show it.

    Args:
        functions: the names of the schema's functions, in small letters.
    """
    session.path_end, session.path_functions = schema, functions
    _set_in_duckdb(session, VARIABLES["search_path"], session.variables.values["search_path"])


def renew_values(session: Context) -> None:
    """Apply the session's settings to new cursors of DuckDB's, whose own settings have their defaults."""
    for key, found in VARIABLES.items():
        value = session.variables.values[key]
        if found.duckdb is not None and value != found.default:
            path = _existing(session, value) if key in PATHS else None
            _set_in_duckdb(session, found, value if path is None else path.written)


def restore_values(session: Context, values: Mapping[str, str]) -> None:
    """Restore settings to earlier values."""
    for key, value in values.items():
        if session.variables.values.get(key) != value:
            # A schema of an older search path may be gone.
            with suppress(DucktailError):
                apply_value(session, key, value, local=False)


def carried(session: Context, name: str, value: str) -> str:
    """Another node's value of a setting, adapted to this node: of a search path, the schemas that exist
    here."""
    if name not in PATHS or value == "main":
        return value
    rows = session.meta.execute(
        "SELECT schema_name FROM system.main.duckdb_schemas() WHERE database_name = $1",
        [session.database.catalog_name],
    ).fetchall()
    schemas = {fold(schema) for (schema,) in rows}
    names = [part.rpartition(".")[2].strip('"') for part in _path(value)]
    seen = [name for name in names if fold(name) in schemas and session.access.sees_schema(name)]
    return ",".join(map(ident, seen)) or "main"


def _path(value: str) -> tuple[str, ...]:
    return tuple(part.strip().strip('"') for part in value.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class _SearchPath:
    """The part of a search path that exists.

    Args:
        schemas: its schemas; there is at least one.
        awaited: the schemas that do not exist, in small letters.
    """

    schemas: tuple[str, ...]
    awaited: frozenset[str]

    @property
    def written(self) -> str:
        """The path as DuckDB reads it."""
        return ",".join(self.schemas)


def _existing(session: Context, value: str) -> _SearchPath:
    """The schemas of a search path, without those that do not exist.

    `public` is `main` where no schema has that name. A path of missing schemas alone is refused: DuckDB looks
    into `main` after the path, where PostgreSQL finds nothing.
    """
    found, missing = [], []
    for part in _path(value):
        _check_part(session, part)
        schema = part.rpartition(".")[2].strip('"')
        if schema in UNSEEN:
            continue
        if session.names.has_schema(schema) and session.access.sees_schema(schema):
            found.append(part)
            continue
        missing.append(fold(schema))
        if missing[-1] == PUBLIC:
            found.append(DEFAULT_SCHEMA)
    if missing and not found:
        names = ", ".join(f'"{name}"' for name in missing)
        raise InvalidSchemaName(
            f"no schema of the search path exists: {names}",
            detail=f"Names without a schema would be those of schema {DEFAULT_SCHEMA}.",
        )
    return _SearchPath(tuple(found) or (DEFAULT_SCHEMA,), frozenset(missing))


def _check_part(session: Context, part: str) -> None:
    """Refuse the reserved schema on a search path, and a schema of another database."""
    catalog, _, schema = part.rpartition(".")
    ours = fold(schema) == OURS or fold(schema).startswith(RESERVED_PREFIX)
    if ours or fold(catalog.strip('"')) not in ("", fold(session.database.catalog_name)):
        raise InsufficientPrivilege(
            f'"{part}" cannot be on the search path',
            hint=f"Name what is in schema {OURS} with it: {OURS}.streams.",
        )
    # To DuckDB a database's name means its schema main, and the next name is looked up there.
    database = not catalog and fold(schema) in (TEMPORARY, "system", fold(session.database.catalog_name))
    if database and not session.names.has_schema(schema):
        raise InvalidSchemaName(f'schema "{schema}" does not exist')


def _set_in_duckdb(session: Context, found: Variable, value: str) -> None:
    if found.duckdb == "TimeZone":
        value = duckdb_zone(value)
    name, text = found.duckdb, {"on": "true", "off": "false"}.get(value) or literal(value)
    if session.path_end and name in PATHS:
        first = value if name == "search_path" else ident(value.strip('"'))
        name, text = "search_path", literal(f"{first},{session.path_end}")
    try:
        for cursor in (session.cursor, session.meta):
            # Without SESSION some settings of DuckDB change for every cursor of the process.
            cursor.execute(f"SET SESSION {name} = {text}")
    except duckdb.Error as error:
        raise translated(error) from error


def _set(session: Context, facts: SettingFacts) -> Result:
    local = facts.scope == "LOCAL"
    if local and not session.block.begun:
        session.notices.add(
            "SET LOCAL can only be used in transaction blocks", severity="WARNING", sqlstate="25P01"
        )
        return Result.command("SET")
    set_variable(session, facts.name, facts.values, local=local)
    return Result.command("SET")


def _reset(session: Context, facts: SettingFacts) -> Result:
    if facts.name == "all":
        for key, value in list(session.variables.values.items()):
            default = session.variables.default(key)
            if value != default and key not in MODES.values():
                apply_value(session, key, default, local=False)
    else:
        set_variable(session, facts.name, None, local=False)
    return Result.command("RESET")


def _show(session: Context, facts: SettingFacts) -> Result:
    if facts.name == "all":
        found = [(v.name, session.variables.shown(v.name), v.about, session.variables.source(v.name))
                 for v in VARIABLES.values()]  # fmt: skip
        found += [(item.name, item.setting, item.about, item.source) for item in of_the_server(session)]
        found.sort(key=lambda row: row[0].lower())
        table = pa.table(dict(zip(ALL_COLUMNS, zip(*found, strict=True), strict=True)))
        return table_result([ResultColumn(name, TEXT) for name in ALL_COLUMNS], table, lambda _: "SHOW")
    name, value = _shown(session, facts.name)
    return text_rows([(name, TEXT)], [(value,)], "SHOW")


def _shown(session: Context, asked: str) -> tuple[str, str]:
    """Name and value of a setting: a session's, the server's, or one of DuckDB's."""
    try:
        found = variable(asked)
    except UndefinedObject:
        served = [item.setting for item in of_the_server(session) if item.name == asked.lower()]
        value = served[0] if served else _duckdb_setting(session, asked)
        if value is None:
            raise
        return asked, value
    return found.name, session.variables.shown(found.name)


def of_the_server(session: Context) -> tuple[ShownSetting, ...]:
    """The server's settings that are visible to the session."""
    rows = session.database.shown_settings
    return rows if session.access.superuser else told_everybody(rows)


def _discard(session: Context, facts: SettingFacts) -> Result:
    """DISCARD ALL | PLANS | SEQUENCES | TEMP, which a connection pool sends between two users."""
    if facts.name == "all":
        if session.block.begun and not session.block.implicit:
            raise ActiveTransaction("DISCARD ALL cannot run inside a transaction block")
        session.prepared.clear()
        session.positions.clear()
        session.portals.clear()
        session.listening.close()
        _reset(session, SettingFacts(None, "all", None))
    if facts.name in ("all", "temp", "temporary"):
        if session.block.begun and session.names.temporary:
            session.block.touched()
        # Objects registered by a program belong to it, and remain until it unregisters them.
        for name in sorted(name for name in session.names.temporary if name not in session.frames):
            _drop_temporary(session, name)
            session.names.temporary.discard(name)
    return Result.command(f"DISCARD {facts.name.upper()}")


def _drop_temporary(session: Context, name: str) -> None:
    """Drop the session's temporary table or view of a name, if it exists."""
    kinds = session.cursor.execute(
        f"SELECT kind FROM {RELATIONS} WHERE database_name = 'temp' AND {folded_sql('table_name')} = $1",
        [fold(name)],
    ).fetchall()
    for (kind,) in kinds:
        session.cursor.execute(f"DROP {kind} temp.main.{ident(name)}")


def _set_variable(session: Context, statement: ParsedStatement) -> Result:
    """SET VARIABLE: a variable of DuckDB's own, for one session."""
    facts = statement.classified.setting
    if facts is not None and fold(facts.name).startswith(RESERVED_PREFIX):
        raise InsufficientPrivilege(f'names that begin with "{RESERVED_PREFIX}" are ducktail\'s own')
    try:
        session.cursor.execute(statement.text).fetchall()
    except duckdb.Error as error:
        raise translated(error, statement.text) from error
    return Result.command("SET")


VERBS = {
    "SET": _set,
    "RESET": _reset,
    "SHOW": _show,
    "DISCARD": _discard,
}


def shows_table(session: Context, statement: ParsedStatement) -> bool:
    """True if SHOW names a table and no setting; DuckDB then describes the table."""
    facts = statement.classified.setting
    if statement.classified.verb != "SHOW" or facts is None or is_setting(facts.name):
        return False
    return session.names.is_table(facts.name)


def run_setting(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run SET, RESET, SHOW or DISCARD."""
    facts = statement.classified.setting
    assert facts is not None
    if shows_table(session, statement):
        if session.block.begun:
            session.block.touched()
        found = session.names.find(TABLE, (facts.name,))
        text = statement.text if found is None else f"DESCRIBE {found.in_full}"
        return query_result(session, text, parameters, statement.text if found is None else None)
    if statement.classified.verb == "SET VARIABLE":
        if session.block.begun:
            session.block.touched()
        return _set_variable(session, statement)
    return VERBS[statement.classified.verb](session, facts)
    yield


def is_inline(statement: ParsedStatement) -> bool:
    """True if it takes no DuckDB work: SHOW and SET of the session's own settings."""
    facts = statement.classified.setting
    found = None if facts is None else VARIABLES.get(fold(facts.name))
    if found is None:
        return False
    own = found.duckdb is None and found.name.lower() not in PATHS
    return statement.classified.verb == "SHOW" or (own and statement.classified.verb in ("SET", "RESET"))


def shown_columns(session: Context, statement: ParsedStatement) -> tuple[ResultColumn, ...] | None:
    """The columns of SHOW, before it runs.

    Raises:
        UndefinedObject: there is no such setting.
    """
    facts = statement.classified.setting
    if statement.classified.verb != "SHOW" or facts is None:
        return None
    if facts.name == "all":
        return tuple(ResultColumn(name, TEXT) for name in ALL_COLUMNS)
    return (ResultColumn(_shown(session, facts.name)[0], TEXT),)

"""Names in errors: a session does not learn the name of a hidden object from an error.

Errors of the catalog name the object that prevents a statement: the table that depends on a sequence, the
stream in a schema, the relations of a view. Such a name is omitted unless the user wrote it in the statement,
or an object of that name is visible to the user. The existence of a hidden object with the name is not
checked: otherwise the omission itself would reveal it. Source: docs/security.md, "Visibility of objects".
"""

from __future__ import annotations

import re

import duckdb

from ...engine import errors as e
from ...engine.database import Database
from ...engine.errors import DucktailError, SyntaxError_
from ...engine.quoting import fold, folded_sql
from ...engine.schema import LIVE_VIEWS, SCHEMA
from ..session_state.access import Access
from ..settings import VARIABLES
from ..text.tokens import STRING, occurs, tokenize
from .functions import FUNCTIONS

# Errors about objects of the catalog. Other errors contain values, which the user may see.
_OF_THINGS = (
    *(e.DependentObjects, e.InsufficientPrivilege, e.NotSupported, e.WrongObjectType, e.WrongState),
    *(e.LockNotAvailable, e.ObjectInUse, e.ActiveTransaction, e.SerializationFailure),
    *(e.DuplicateObject, e.DuplicateTable, e.InvalidSchemaName),
    *(e.UndefinedTable, e.UndefinedColumn, e.UndefinedObject, e.AmbiguousColumn),
)
LEFT_OUT = "..."
# The places of names in errors of ducktail and DuckDB: quoted, listed in brackets, and after "with name".
_NAMES = re.compile(
    r'"(?P<quoted>[^"]+)"'
    r"|(?<=has streams \()(?P<listed>[^)]+)"
    r'|(?<=with name )(?P<named>[^"].*?)(?= does not exist| already exists|\Z)',
    re.DOTALL,
)
# Names that everybody knows.
_COMMON = frozenset({"main", "temp", SCHEMA, "pg_catalog", "information_schema"}) | FUNCTIONS | set(VARIABLES)


def without_hidden_names(access: Access, database: Database, error: e.DucktailError) -> e.DucktailError:
    """An error of a limited session without the names of hidden objects.

    In the message a hidden name becomes three dots. DETAIL and HINT are removed if they or the message
    contain one.
    """
    if access.account is None or access.of_node or not isinstance(error, _OF_THINGS):
        return error  # Another node receives the whole error: the user's own session is there.
    user = access.rights.users.get(access.user)
    if user is None or user.superuser:
        return error  # A dropped user receives only the error that says so.
    names = {name for text in (error.message, error.detail, error.hint) for name in _names_in(text)}
    written = _written(access)
    unknown = {n for n in names - _COMMON if n not in written and not written >= _parts(n) - _COMMON}
    if unknown:
        unknown -= _told_of(access, database, unknown)
    if not unknown:
        return error

    def shown(found: re.Match[str]) -> str:
        whole, name = found.group(), found[found.lastgroup or 0]
        return whole if unknown.isdisjoint(_of_place(found)) else whole.replace(name, LEFT_OUT)

    if not unknown.isdisjoint(_names_in(error.message)):
        error.message = _NAMES.sub(shown, error.message)
        error.detail = error.hint = None
    if not unknown.isdisjoint(_names_in(error.detail)):
        error.detail = None
    if not unknown.isdisjoint(_names_in(error.hint)):
        error.hint = None
    return error


def _names_in(text: str | None) -> set[str]:
    """The names in a text, in small letters."""
    return {name for found in _NAMES.finditer(text or "") for name in _of_place(found)}


def _of_place(found: re.Match[str]) -> set[str]:
    """The name or the listed names at one place of a text."""
    text = fold(found[found.lastgroup or 0])
    return {name.strip(' "') for name in text.split(",")} if found["listed"] else {text}


def _parts(name: str) -> set[str]:
    """The parts of a qualified name."""
    return set(name.split("."))


def _written(access: Access) -> set[str]:
    """The words and strings that the session has sent with its statement, in small letters."""
    found: set[str] = set()
    for text, parameters in access.said:
        try:
            tokens = tokenize(text)
            found |= {token.value if token.kind == STRING else token.name for token in tokens}
        except e.DucktailError:
            found |= set(re.findall(r"\w+", text))
        found |= {value for value in parameters if isinstance(value, str)}
    return {fold(name) for name in found}


def _told_of(access: Access, database: Database, names: set[str]) -> set[str]:
    """The subset of some names that belong to visible objects."""
    rights, catalog = access.rights, database.catalog
    found = {fold(database.catalog_name), *rights.users, *(node.name for node in database.placement.nodes)}
    found |= {item.name for item, owner in rights.owners.items() if owner == access.user}
    found |= {name for name in names if access.sees_schema(name)}
    for stream in list(catalog.streams.values()):
        if access.sees(stream.key):
            found |= {stream.name, *stream.views}
            found |= {
                group.name
                for group in catalog.groups_of(stream.stream_id)
                if access.sees_group(stream, group)
            }
    found |= _in_duckdb(access, database, names)
    return {fold(name) for name in found} & names


_THINGS = " UNION ALL ".join(
    f"SELECT database_name, {folded_sql('schema_name')}, {folded_sql(relation)}, {folded_sql(name)} "
    f"FROM system.main.duckdb_{listed}()"
    for relation, name, listed in (
        ("table_name", "table_name", "tables"),
        ("view_name", "view_name", "views"),
        ("table_name", "column_name", "columns"),
        ("table_name", "index_name", "indexes"),
    )
)
# Finds tables, views and their columns and indexes, by name.
_FIND = (
    f"SELECT DISTINCT schema, relation, name FROM ({_THINGS}) AS things(catalog, schema, relation, name) "
    "WHERE catalog = $1 AND system.main.list_contains($2, name)"
)


def _in_duckdb(access: Access, database: Database, names: set[str]) -> set[str]:
    """The subset of some names that belong to visible tables, views, columns or indexes."""
    try:
        cursor = database.cursor()
        try:
            rows = cursor.execute(_FIND, [database.catalog_name, sorted(names)]).fetchall()
        finally:
            cursor.close()
    except duckdb.Error:
        return set()  # The database has been invalidated, and no catalog can be read.
    return {name for schema, table, name in rows if access.sees((schema, table))}


_PASSWORD = "syntax error in a statement that holds a password"
_KEY = "syntax error in a statement that holds a key"
_SECRET = re.compile(r"\b(?:create|alter)\s+(?:user|role)\b|\bpassword\b", re.IGNORECASE)
_SINK = re.compile(r"\b(?:create|alter)\s+sink\b", re.IGNORECASE)
# Words in DuckDB's hints before names of objects.
_NAMED = ' of the table "'
_QUOTED = re.compile(r'"([^"]+)"')
# Internal tables: logs, parked events and whole copies (engine/schema.py).
_NUMBERED = re.compile(r"(?:log|topic|parked|parked_topic|copy)(?:_\d+){1,2}")
_GUESSES = ("Did you mean", "Candidate", "candidate")


def as_told(access: Access, error: DucktailError) -> DucktailError:
    """An error as a session may see it, without DuckDB's guesses, which name other users' objects.

    The name of a table whose foreign key prevents a statement is also removed. Internal tables are removed
    from guesses for everybody.
    """
    if error.hint is not None and _names_ours(error.hint):
        error.hint = None
    guess = error.hint is not None and any(word in error.hint for word in _GUESSES)
    named = error.message.find(_NAMED) if error.message.endswith('"') else -1
    if access.account is None or not (guess or named >= 0):
        return error
    # Not `access.superuser`, which raises for a dropped user, whose error this is.
    user = access.rights.users.get(access.user)
    if user is None or not user.superuser:
        error.hint = None if guess else error.hint
        error.message = error.message if named < 0 else error.message[:named]
    return error


def _names_ours(hint: str) -> bool:
    """True if a suggestion of DuckDB names a table that only the engine reads."""
    if not any(word in hint for word in _GUESSES):
        return False
    parted = [name.rpartition(".") for name in _QUOTED.findall(hint)]
    return any(
        _NUMBERED.fullmatch(name) is not None or (schema == SCHEMA and name not in LIVE_VIEWS)
        for schema, _, name in parted
    )


def without_password(text: str, error: DucktailError) -> DucktailError:
    """A syntax error without the word at its position, if that may be a password, or a sink's key."""
    if isinstance(error, SyntaxError_) and occurs(_SECRET, text):
        return SyntaxError_(_PASSWORD, hint=error.hint, position=error.position)
    if isinstance(error, SyntaxError_) and occurs(_SINK, text):
        return SyntaxError_(_KEY, hint=error.hint, position=error.position)
    return error

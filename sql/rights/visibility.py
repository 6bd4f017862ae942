"""The visible part of the catalog: variables that filter its relations, and the answers about privileges.

The catalog for clients (pgwire_gateway/catalog) and the system views of schema `ducktail` are the same SQL
for all users; DuckDB variables identify the user for whom it runs. No user can set them: SET VARIABLE refuses
names that begin with two underscores and `ducktail`. A session without an account has no such variables, and
sees everything.

`has_table_privilege` and related functions are answered with PostgreSQL's privileges. The caller has looked
the objects up in the catalog that the session sees, so hidden objects never arrive here. Source:
docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...engine.catalog.catalog import Catalog
from ...engine.catalog.rights import (
    DATABASE,
    INHERITED,
    RELATION,
    SCHEMA,
    SEQUENCE,
    THE_DATABASE,
    Item,
    Rights,
    relation,
    schema_item,
)
from ...engine.quoting import literal
from ...engine.schema import ACCOUNT_VARIABLE, LIVE_VIEWS
from ..session_state.access import MAIN, OURS, TEMPORARY, Access
from ..session_state.context import Context
from .functions import is_refused

# Separates a schema's name from a relation's: no typed name contains it.
SEPARATOR = "\x1f"
# The variables: true for a limited session; visible schemas; schemas whose relations are all visible; visible
# relations and sequences; the session's own relations and sequences.
LIMITED, SCHEMAS, WHOLE, SEEN, OWNED = (
    "__ducktail_limited", "__ducktail_schemas", "__ducktail_whole", "__ducktail_seen", "__ducktail_owned",
)  # fmt: skip


def attach(session: Context) -> None:
    """Set the variables on a session's new cursors."""
    session.access.told = None
    tell(session)


def tell(session: Context) -> None:
    """Set the variables to the session's present rights."""
    access = session.access
    if access.account is None:
        return
    rights = access.rights
    if access.told is rights:
        return
    values = {
        ACCOUNT_VARIABLE: literal(access.user),
        LIMITED: "false" if access.superuser else "true",
        **({} if access.superuser else _values(rights, access.user, session.database.catalog)),
    }
    for cursor in (session.cursor, session.meta):
        for name, value in values.items():
            cursor.execute(f"SET VARIABLE {name} = {value}").fetchall()
    access.told = rights


def _values(rights: Rights, user: str, catalog: Catalog) -> dict[str, str]:
    """The variables of a limited user, as SQL."""
    owned = {item for item, owner in rights.owners.items() if owner == user}
    given = {item: privileges for (key, item), privileges in rights.grants.items() if key == user}
    whole = {item.schema for item, some in given.items() if item.kind == SCHEMA and some & INHERITED}
    if given.get(THE_DATABASE, frozenset()) & INHERITED:
        whole.add("*")
    told = owned | given.keys()
    relations = {item for item in told if item.kind in (RELATION, SEQUENCE)}
    for stream in list(catalog.streams.values()):
        if relation(*stream.key) in relations:
            relations |= {relation(stream.schema, view) for view in stream.views}
    return {
        SCHEMAS: _list({"main", "ducktail", *(item.schema for item in told if item.kind != DATABASE)}),
        WHOLE: _list(whole),
        SEEN: _list(item.schema + SEPARATOR + item.name for item in relations),
        OWNED: _list(item.schema + SEPARATOR + item.name for item in relations if item in owned),
    }


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(literal, sorted(texts)))}]::VARCHAR[]"


# The owner of objects without a user; no session can use this name once there are users.
OWNER = "ducktail"
# Answers that need no right of ducktail: superusers only, or everybody who sees the object.
_NOBODY, _EVERYBODY = "", "*"
# Kind of object -> privilege that a client asks for -> the right that answers it.
ASKED: dict[str, dict[str, str]] = {
    "table": {
        "select": "select", "insert": "insert", "update": "update", "delete": "delete",
        "truncate": "delete", "references": "select", "trigger": _NOBODY,
    },
    "column": {"select": "select", "insert": "insert", "update": "update", "references": "select"},
    "sequence": dict.fromkeys(("usage", "select", "update"), _EVERYBODY),
    "schema": {"usage": _EVERYBODY, "create": "create"},
    "database": {"connect": _EVERYBODY, "temporary": _EVERYBODY, "temp": _EVERYBODY, "create": "create"},
    "function": {"execute": _EVERYBODY},
    "role": dict.fromkeys(("usage", "member", "set"), _EVERYBODY),
}  # fmt: skip
# Functions that the catalog for clients replaces by its own, which show each user only visible objects.
_FOR_CLIENTS = frozenset(
    {"pg_get_viewdef", "pg_get_constraintdef", "pg_get_expr", "format_type", "current_setting"}
    | {"obj_description", "col_description", "shobj_description"}
)
_OPTIONS = (" with grant option", " with admin option")
_TEMPORARY = frozenset({TEMPORARY, "pg_temp"})
_SYSTEM = frozenset({"pg_catalog", "information_schema", OURS})

Place = tuple[str, str]


def answer(access: Access, user: str | None, kind: str, place: Place, asked: str) -> bool | str:
    """Answer whether a user has one of several privileges on an object.

    Args:
        access: the rights of the asking session.
        user: the user in question: the session's own (None), the owner of everything, or, for a superuser,
            any user.
        kind: a key of ASKED.
        place: schema and name of the object, in small letters; only its name if it has no schema.
        asked: comma-separated privileges in PostgreSQL's words.

    Returns:
        True or False; an error message if there is no such user or privilege.
    """
    words = [word.strip().lower() for word in asked.split(",")]
    plain = [next((w.removesuffix(o) for o in _OPTIONS if w.endswith(o)), w) for w in words]
    for word in plain:
        if word not in ASKED[kind]:
            return f'unrecognized privilege type: "{word}"'
    name = access.user if user is None else user.lower()
    known = access.rights.users.get(name)
    if name == access.user:
        everything = access.superuser
    elif known is None or not access.superuser:
        if name != OWNER:
            return f'role "{user}" does not exist'
        everything = True
    else:
        everything = known.superuser
    return everything or any(
        _may(access, name, kind, place, ASKED[kind][word], gives=word != whole)
        for word, whole in zip(plain, words, strict=True)
    )


def _may(access: Access, user: str, kind: str, place: Place, right: str, *, gives: bool) -> bool:
    """True if a user who is not a superuser has a right; with `gives`, if the user may grant it."""
    rights, (schema, name) = access.rights, place
    if kind == "role":
        return name == user and not gives
    if kind == "function":
        return not gives and (name in _FOR_CLIENTS or not is_refused(name))
    if kind == "sequence":
        return schema in _TEMPORARY or rights.owners.get(Item(SEQUENCE, schema, name)) == user
    if kind == "database":
        return not gives and (right == _EVERYBODY or rights.has(user, right, THE_DATABASE))
    if kind == "schema":
        return _in_schema(access, user, name, right, gives=gives)
    if schema in _SYSTEM:
        return right == "select" and not gives and (schema != OURS or name in LIVE_VIEWS)
    item = access.item_of((schema, name))
    owned = schema in _TEMPORARY or rights.owners.get(item) == user
    return right != _NOBODY and (owned or (not gives and rights.has(user, right, item)))


def _in_schema(access: Access, user: str, name: str, right: str, *, gives: bool) -> bool:
    rights, item = access.rights, schema_item(name)
    if name in _TEMPORARY or rights.owners.get(item) == user:
        return True
    if right == _EVERYBODY:
        return not gives and (name in _SYSTEM or name == MAIN or rights.sees(user, item))
    return not gives and rights.has(user, right, item)

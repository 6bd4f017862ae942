"""The answers of has_table_privilege and related functions, with PostgreSQL's privileges.

Objects that are hidden from the session never arrive here: the caller has looked them up in the catalog
that the session sees (pgwire_gateway/catalog). Source: docs/security.md.
"""

from __future__ import annotations

from ...engine.catalog.rights import SEQUENCE, THE_DATABASE, Item, schema_item
from ...engine.schema import LIVE_VIEWS
from ..session_state.access import MAIN, OURS, TEMPORARY, Access
from .functions import is_refused

# Whoever made what nobody made: it owns everything, and nobody is let in by its name once there are users.
OWNER = "ducktail"
# Rights that are none of ours: what only superusers have, and what everybody has who is told of the thing.
_NOBODY, _EVERYBODY = "", "*"
# What a client may ask of each kind of thing, and the right that answers it.
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
# Functions that the catalog for clients has in a form of its own, which tells each what is his.
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
        access: of the session that asks.
        user: about whom: the session's own (None), everything's owner, or anybody for a superuser.
        kind: of ASKED.
        place: schema and name of the thing, in small letters; its name alone where it has no schema.
        asked: privileges in PostgreSQL's words, with commas between.

    Returns:
        The error, where there is no such user or privilege.
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

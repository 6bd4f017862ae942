"""The visibility of objects for a session: DuckDB variables that filter the catalog's relations.

The catalog for clients (pgwire_gateway/catalog) and the system views of schema `ducktail` are the same SQL
for all users; these variables hold the user for whom it runs. No user can set them: SET VARIABLE refuses
names that begin with two underscores and `ducktail`. A session without an account has none of them, and
sees everything.
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
    Rights,
    relation,
)
from ...engine.quoting import literal
from ...engine.schema import ACCOUNT_VARIABLE
from ..session_state.context import Context

# Parts a schema's name from a relation's: no name that a person types has it.
SEPARATOR = "\x1f"
# Whether there are bounds at all; the schemas that are told of; those of which all relations are; relations
# (and sequences) that are; and those that are the session's own.
LIMITED, SCHEMAS, WHOLE, SEEN, OWNED = (
    "__ducktail_limited", "__ducktail_schemas", "__ducktail_whole", "__ducktail_seen", "__ducktail_owned",
)  # fmt: skip


def attach(session: Context) -> None:
    """Tell new cursors of a session whose they are."""
    session.access.told = None
    tell(session)


def tell(session: Context) -> None:
    """Let the variables say what the session's rights are now."""
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
    """The variables of a user who is no superuser, as SQL."""
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

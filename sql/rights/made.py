"""CREATE, ALTER, DROP and COMMENT of DuckDB's own objects: who may, and whose they are then.

What is made belongs to who made it, as a row of the same transaction. Source: docs/security.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb

from ...engine import rights_changes as edit
from ...engine.duckdb_errors import translated
from ...engine.errors import (
    InsufficientPrivilege,
    InvalidSchemaName,
    NotSupported,
    UndefinedObject,
    UndefinedTable,
)
from ...engine.rights import rights as r
from ...engine.waiting import Waiting
from .. import reserved_names
from ..context import Context, Runner
from ..names import OURS, TEMPORARY, Key
from ..results.results import Result
from ..runners.ddl import alters_captured, drops_captured, replaced_captured
from ..running import atomically
from ..statement import Statement
from ..text.classified import Classified, DdlFacts, Name
from .reach import Reach, no_table
from .words import enum_of, named_in_words, named_types

# What shares the names of tables.
_RELATIONS = frozenset({"TABLE", "VIEW"})
_KINDS = {"SEQUENCE": r.SEQUENCE, "TYPE": r.TYPE, "MACRO": r.MACRO}


# Who may.


def check(session: Context, classified: Classified) -> None:
    """Refuse what the session may not define.

    Raises:
        InsufficientPrivilege: 42501. UndefinedTable: 42P01. InvalidSchemaName: 3F000.
    """
    facts = classified.ddl
    assert facts is not None
    if skips(session, facts):
        return
    reserved_names.refuse_relations(session, facts)
    _CHECKS[facts.verb](session, facts)
    _check_schemas(session, classified)
    _check_calls(session, classified)


def skips(session: Context, facts: DdlFacts) -> bool:
    """Whether a DROP or ALTER ... IF EXISTS names what the session may not know of: there is nothing."""
    if not facts.if_exists or facts.object_type == "SCHEMA" or session.access.superuser:
        return False
    return all(not _sees(session, facts, name) for name in facts.names)


def _sees(session: Context, facts: DdlFacts, name: Name) -> bool:
    item = _item(session, facts, name)
    return item is None or session.access.rights.sees(session.access.user, item)


def _create(session: Context, facts: DdlFacts) -> None:
    access = session.access
    if facts.object_type == "SCHEMA":
        if not access.may_create_schemas():
            raise InsufficientPrivilege(
                "permission denied to create schemas", hint="It wants CREATE ON DATABASE."
            )
        return
    if facts.object_type == "MACRO":
        access.require_superuser("create macros")
    if facts.object_type == "INDEX":
        assert facts.table is not None
        _own_table(session, facts.table)
        return
    if facts.temporary:
        return
    for name in facts.names:
        schema, made = session.names.made_key(name)
        _may_create(session, schema)
        if facts.or_replace and session.names.kind_of((schema, made)) is not None:
            _own(session, access.item_of((schema, made)), f'table "{name[-1]}"')


def _may_create(session: Context, schema: str) -> None:
    access = session.access
    if schema in (TEMPORARY, OURS):
        return  # The one is the session's own, the other refused for everybody, in its own words.
    if not access.sees_schema(schema):
        raise InvalidSchemaName(f'schema "{schema}" does not exist')
    if not access.may_create_in(schema):
        raise no_create(schema)


def no_create(schema: str) -> InsufficientPrivilege:
    """The error of somebody who may not make things in a schema."""
    return InsufficientPrivilege(f'permission denied for schema "{schema}"', detail="It wants CREATE on it.")


def _change(session: Context, facts: DdlFacts) -> None:
    """ALTER, DROP and COMMENT are the owner's."""
    for name in facts.names:
        whole = name[:-1] if facts.object_type == "COLUMN" else name
        if facts.object_type == "INDEX":
            _own_index(session, whole)
            continue
        if facts.object_type == "COLUMN" or facts.object_type in _RELATIONS:
            _own_table(session, whole, facts)
            continue
        item = _item(session, facts, whole)
        if item is None:
            continue
        if not session.access.rights.sees(session.access.user, item):
            missing = InvalidSchemaName if item.kind == r.SCHEMA else UndefinedObject
            raise missing(f'{facts.object_type.lower()} "{".".join(whole)}" does not exist')
        _own(session, item, f'{facts.object_type.lower()} "{whole[-1]}"')


def _own_index(session: Context, name: Name) -> None:
    """An index is its table's."""
    table = _table_of_index(session, name)
    if table is None or not session.access.sees(session.names.table_key(table)):
        raise UndefinedObject(f'index "{".".join(name)}" does not exist')
    _own(session, session.access.item_of(session.names.table_key(table)), f'index "{name[-1]}"')


def _own_table(session: Context, name: Name, facts: DdlFacts | None = None) -> None:
    key = session.names.table_key(name)
    if key[0] in (TEMPORARY, OURS):
        return  # The one is the session's own, the other refused for everybody, in its own words.
    if not session.access.sees(key) or session.names.kind_of(key) is None:
        raise no_table(name, None)
    item = session.access.item_of(key)
    if facts is not None and facts.verb == "DROP" and session.access.owns(r.schema_item(key[0])):
        return
    _own(session, item, f'table "{name[-1]}"')


def _own(session: Context, item: r.Item, what: str) -> None:
    if not session.access.owns(item):
        raise InsufficientPrivilege(f"must be owner of {what}")


def _table_of_index(session: Context, name: Name) -> Name | None:
    """The table that an index is on; None for one that is not there."""
    schema, index = session.names.made_key(name)
    row = (
        session.names.cursor()
        .execute(
            "SELECT schema_name, table_name FROM duckdb_indexes() WHERE database_name = $1 "
            "AND lower(schema_name) = $2 AND lower(index_name) = $3",
            [session.database.catalog_name, schema, index],
        )
        .fetchone()
    )
    return None if row is None else (row[0], row[1])


def _item(session: Context, facts: DdlFacts, name: Name) -> r.Item | None:
    """What rights on an object are on; None for what is temporary."""
    if facts.object_type == "SCHEMA":
        return r.schema_item(name[-1])
    if facts.object_type == "INDEX":
        table = _table_of_index(session, name)
        return r.Item(r.RELATION) if table is None else session.access.item_of(session.names.table_key(table))
    if facts.object_type in _RELATIONS:
        key = session.names.table_key(name)
        return None if key[0] == TEMPORARY else session.access.item_of(key)
    schema, made = session.names.made_key(name)
    return None if schema == TEMPORARY else r.Item(_KINDS[facts.object_type], schema, made)


_CHECKS: dict[str, Callable[[Context, DdlFacts], None]] = {
    "CREATE": _create,
    "ALTER": _change,
    "DROP": _change,
    "COMMENT": _change,
}


def _check_schemas(session: Context, classified: Classified) -> None:
    """No name of a schema that the session may not know of stands in a type.

    Raises:
        UndefinedObject: 42704, as where there is no such schema. UndefinedTable: 42P01.
    """
    tokens = classified.tokens
    for first, path in named_types(tokens[: _before_query(classified)]):
        # The database's own name may stand before the schema's.
        for name in path[:-1][:2]:
            if session.names.has_schema(name) and not session.access.sees_schema(name):
                raise UndefinedObject(
                    f"type with name {path[-1]} does not exist", position=tokens[first].start + 1
                )
    for at, token in enumerate(tokens[:-1]):
        if token.kind == "REFERENCES" and tokens[at + 1].is_name:
            _check_referenced(session, classified, at + 1)


def _before_query(classified: Classified) -> int:
    """How many tokens stand before the query, which is looked at on its own."""
    facts, tokens = classified.ddl, classified.tokens
    assert facts is not None
    if facts.verb == "CREATE" and facts.object_type == "VIEW":
        return 0
    start = facts.query_offset
    return next((at for at, token in enumerate(tokens) if token.start == start), len(tokens))


def _check_referenced(session: Context, classified: Classified, at: int) -> None:
    """A foreign key tells of the rows of the table that it refers to."""
    tokens, name = classified.tokens, [classified.tokens[at].name]
    while at + 2 < len(tokens) and tokens[at + 1].kind == ".":
        at += 2
        name.append(tokens[at].name)
    key = session.names.table_key(tuple(name))
    if key[0] != TEMPORARY and classified.ddl is not None and classified.ddl.table is not None:
        if session.names.table_key(classified.ddl.table) == key and session.names.kind_of(key) is None:
            return  # The table that is being made.
    if not session.access.sees(key) or session.names.kind_of(key) is None:
        raise UndefinedTable(f"table with name {'.'.join(name)} does not exist")
    if not session.access.may("select", key):
        raise InsufficientPrivilege(
            f'permission denied for table "{name[-1]}"', detail="It wants SELECT on it."
        )


def _check_calls(session: Context, classified: Classified) -> None:
    """Judge the calls in defaults, checks, generated columns and indexes: they run later, for others too."""
    facts, end = classified.ddl, _before_query(classified)
    assert facts is not None
    if facts.object_type == "VIEW":
        return  # It holds a query and nothing else.
    if facts.object_type == "TYPE":
        labels = enum_of(classified.tokens)
        end = end if labels is None else labels
    names = facts.verb == "CREATE" and facts.object_type in ("TABLE", "INDEX")
    Reach(session, definition=True).take(named_in_words(classified.tokens[:end], 1 if names else 0))


# Whose it is.


def owning(plain: Runner) -> Runner:
    """The runner of DDL, with what it makes and takes away in the rights as well."""

    def run(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
        facts = statement.classified.ddl
        assert facts is not None
        if not session.database.rights.users:
            return (yield from plain(session, statement, parameters))
        if skips(session, facts):
            return Result.command(f"{facts.verb} {facts.object_type}")
        # The one sees to the rights itself, the other leaves the table as it is.
        stays = drops_captured(session, facts) or replaced_captured(session, facts) is not None
        changes = () if stays else _changes(session, statement.classified)
        if not changes or alters_captured(session, facts):
            return (yield from plain(session, statement, parameters))

        def whole() -> Waiting[Result]:
            result = yield from plain(session, statement, parameters)
            transaction = session.block.opened()
            try:
                for change in changes:
                    edit.add(session.database, transaction, change)
            except duckdb.Error as error:
                raise translated(error) from error
            return result

        return (yield from atomically(session, whole))

    return run


def _changes(session: Context, classified: Classified) -> Sequence[edit.Change]:
    """What a DDL statement changes of the rights, once it has run."""
    facts = classified.ddl
    assert facts is not None
    if facts.temporary or facts.object_type in ("INDEX", "COLUMN") or facts.verb == "COMMENT":
        return ()
    if facts.verb == "CREATE":
        for name in facts.names:
            _one_case(name[-1])
        return _made(session, facts)
    if session.block.begun:
        session.block.touched()
    if facts.verb == "DROP":
        return [change for name in facts.names for change in _gone(session, facts, name)]
    return _renamed(session, classified, facts)


def _one_case(name: str) -> None:
    """Refuse a name that DuckDB tells from its small letters, and rights do not.

    DuckDB ignores the case of ASCII alone: beside somebody's "été" an "ÉTÉ" would be another table, with
    the same owner and the same rights.

    Raises:
        NotSupported: 0A000.
    """
    if name.lower() != "".join(char.lower() if char.isascii() else char for char in name):
        raise NotSupported(
            f'name "{name}" is not supported: it has a capital letter beyond ASCII',
            hint=f'Call it "{name.lower()}": rights are found by names in small letters.',
        )


def _made(session: Context, facts: DdlFacts) -> Sequence[edit.Change]:
    owner = session.access.owner
    if facts.object_type == "SCHEMA":
        item = r.schema_item(facts.names[0][-1])
        there = session.names.has_schema(facts.names[0][-1])
    elif facts.object_type in _RELATIONS:
        key: Key = session.names.made_key(facts.names[0])
        item = r.relation(*key)
        there = key[0] == TEMPORARY or session.names.kind_of(key) is not None
    else:
        item = r.Item(_KINDS[facts.object_type], *session.names.made_key(facts.names[0]))
        there = facts.if_not_exists and item in session.access.rights.owners
    if there:
        return ()  # IF NOT EXISTS makes nothing, OR REPLACE keeps owner and rights.
    rights = session.access.rights
    if owner is not None:
        return [edit.PutOwner(item, owner)]
    known = item in rights.owners or any(item == one for _, one in rights.grants)
    return [edit.Forget(item)] if known else ()


def _gone(session: Context, facts: DdlFacts, name: Name) -> list[edit.Change]:
    rights = session.access.rights
    if facts.object_type == "SCHEMA":
        return [edit.Forget(item) for item in rights.below(name[-1])]
    item = _item(session, facts, name)
    if item is None:
        return []
    kinds = {item.kind, r.GROUP, r.BOOKMARK} if item.kind == r.RELATION else {item.kind}
    return [edit.Forget(one) for one in rights.about(item.schema, item.name) if one.kind in kinds]


def _renamed(session: Context, classified: Classified, facts: DdlFacts) -> list[edit.Change]:
    """ALTER ... RENAME TO; a column's renaming changes nothing here."""
    tokens = classified.tokens
    at = next((i for i, t in enumerate(tokens) if t.kind == "RENAME" and not t.depth), None)
    if at is None or at + 2 >= len(tokens) or tokens[at + 1].kind != "TO":
        return []
    item = _item(session, facts, facts.names[0])
    if item is None:
        return []
    _one_case(tokens[at + 2].name)
    new = tokens[at + 2].name.lower()
    if item.kind == r.SCHEMA:
        below = session.access.rights.below(item.schema)
        return [edit.Rename(one, r.Item(one.kind, new, one.name, one.group)) for one in below]
    return [edit.Rename(item, r.Item(item.kind, item.schema, new))]

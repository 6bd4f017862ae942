"""CREATE, ALTER, DROP and COMMENT of DuckDB's own objects: the required rights, and the resulting owners.

Rights belong to objects and not to names: the catalog is listed before and after a definition, in its
transaction. A new object belongs to the session's user, a renamed one keeps its rights, and a dropped one
loses them. A user who is not a superuser may change or drop only own objects, including those that the
statement reaches indirectly (CASCADE, OWNED BY). Source: docs/security.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb

from ...engine import rights_changes as edit
from ...engine.catalog import rights as r
from ...engine.catalog.streams import key_of
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.objects import (
    INDEX,
    RELATIONS,
    SCHEMA,
    SEQUENCE,
    TABLE,
    TEMPORARY,
    TYPE,
    Object,
    Objects,
    group_of,
    read_objects,
)
from ...engine.duck.table_shape import RESERVED_PREFIX
from ...engine.errors import (
    DependentObjects,
    InsufficientPrivilege,
    InvalidSchemaName,
    UndefinedObject,
    UndefinedTable,
)
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..ddl import reserved_names
from ..ddl.ddl import alters_captured, drops_captured, replaced_captured
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.names import OURS
from ..session_state.run_text import atomically
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, DdlFacts, Name
from ..text.spans import enum_of
from .analysis import named_in_words, named_types
from .reach import Reach, no_table

# Kinds that share the namespace of tables.
_RELATIONS = frozenset({"TABLE", "VIEW"})
# DDL's word for a kind of object -> the kind under which the catalog finds it.
_OBJECTS = {
    "TABLE": TABLE, "VIEW": TABLE, "SEQUENCE": SEQUENCE, "TYPE": TYPE, "INDEX": INDEX, "CONSTRAINT": TABLE,
}  # fmt: skip
_SUPERUSERS = "Only superusers may."


# Permission.


def check(session: Context, classified: Classified) -> None:
    """Refuse a definition that the session may not run.

    Raises:
        InsufficientPrivilege: the session lacks a right.
        UndefinedTable: the table does not exist or is hidden.
        InvalidSchemaName: the schema does not exist or is hidden.
    """
    facts = classified.ddl
    assert facts is not None
    if skips(session, facts):
        return
    reserved_names.refuse_relations(session, facts)
    _CHECKS[facts.verb](session, facts)
    _check_owned_by(session, classified)
    _check_schemas(session, classified)
    _check_calls(session, classified)


def skips(session: Context, facts: DdlFacts) -> bool:
    """True if a DROP or ALTER ... IF EXISTS names an object that is hidden from the session."""
    if not facts.if_exists or facts.object_type == "SCHEMA" or session.access.superuser:
        return False
    return all(not _sees(session, facts, name) for name in facts.names)


def _sees(session: Context, facts: DdlFacts, name: Name) -> bool:
    kind = _OBJECTS.get(facts.object_type)
    return kind is None or session.names.find(kind, name) is not None


def _create(session: Context, facts: DdlFacts) -> None:
    access = session.access
    if facts.object_type == "SCHEMA":
        if not access.may_create_in_database():
            raise InsufficientPrivilege(
                "permission denied to create schemas", hint="It wants CREATE ON DATABASE."
            )
        return
    if facts.object_type in ("MACRO", "TRIGGER"):
        access.require_superuser(f"create {facts.object_type.lower()}s")
    if facts.object_type == "INDEX":
        assert facts.table is not None
        _own_table(session, facts.table)
        return
    if facts.temporary or (facts.names and fold(facts.names[0][0]) == TEMPORARY):
        if facts.object_type not in _RELATIONS:
            # It would hide an object of its name that a view or a default of another user names.
            raise InsufficientPrivilege(
                f"permission denied to create a temporary {facts.object_type.lower()}", hint=_SUPERUSERS
            )
        return
    for name in facts.names:
        schema, made = session.names.made_key(name)
        _may_create(session, schema)
        there = session.names.objects().get(_OBJECTS[facts.object_type], schema, made)
        if facts.or_replace and there is not None:
            _own(session, _item_of(session, there), f'{there.kind} "{name[-1]}"')


def _may_create(session: Context, schema: str) -> None:
    access = session.access
    if schema in (TEMPORARY, OURS):
        return  # TEMPORARY is the session's own; OURS is refused for everybody, with another message.
    if not access.sees_schema(schema):
        raise InvalidSchemaName(f'schema "{schema}" does not exist')
    if not access.may_create_in(schema):
        raise no_create(schema)


def no_create(schema: str) -> InsufficientPrivilege:
    """The error for a user who may not create objects in a schema."""
    return InsufficientPrivilege(f'permission denied for schema "{schema}"', detail="It wants CREATE on it.")


def _change(session: Context, facts: DdlFacts) -> None:
    """Require ownership for ALTER, DROP and COMMENT."""
    if facts.object_type == "TRIGGER":
        session.access.require_superuser(f"{facts.verb.lower()} triggers")
    for name in facts.names:
        whole = name[:-1] if facts.object_type == "COLUMN" else name
        what = facts.object_type.lower()
        if facts.object_type in ("COLUMN", "CONSTRAINT") or facts.object_type in _RELATIONS:
            _own_table(session, whole, facts)
        elif facts.object_type == "MACRO":
            session.access.require_superuser(f"{facts.verb.lower()} macros")
        elif facts.object_type == "SCHEMA":
            if not session.access.rights.sees(session.access.user, r.schema_item(whole[-1])):
                raise InvalidSchemaName(f'schema "{".".join(whole)}" does not exist')
            _own(session, r.schema_item(whole[-1]), f'schema "{whole[-1]}"')
        else:
            found = session.names.find(_OBJECTS[facts.object_type], whole)
            if found is None:
                raise UndefinedObject(f'{what} "{".".join(whole)}" does not exist')
            if not found.temporary:
                _own(session, _item_of(session, found), f'{what} "{whole[-1]}"')


def _own_table(session: Context, name: Name, facts: DdlFacts | None = None) -> None:
    key = session.names.table_key(name)
    if key[0] in (TEMPORARY, OURS):
        return  # TEMPORARY is the session's own; OURS is refused for everybody, with another message.
    if not session.access.sees(key) or session.names.kind_of(key) is None:
        raise no_table(name, None)
    item = session.access.item_of(key)
    if facts is not None and facts.verb == "DROP" and session.access.owns(r.schema_item(key[0])):
        return
    _own(session, item, f'table "{name[-1]}"')


def _own(session: Context, item: r.Item, what: str) -> None:
    if not session.access.owns(item):
        raise InsufficientPrivilege(f"must be owner of {what}")


def _check_owned_by(session: Context, classified: Classified) -> None:
    """Require ownership of the table in ALTER SEQUENCE ... OWNED BY: dropping it drops the sequence."""
    tokens = classified.tokens
    for at in range(1, len(tokens) - 1):
        if tokens[at].kind == "BY" and tokens[at - 1].kind == "OWNED" and tokens[at + 1].kind != "NONE":
            parts = tuple(token.name for token in tokens[at + 1 :] if token.is_name)
            if session.names.table_key(parts)[0] in (TEMPORARY, OURS):
                raise no_table(parts, None)
            _own_table(session, parts)


def _item_of(session: Context, found: Object) -> r.Item:
    """The item that an object's rights are on: for an index its table, for a stream's view the stream."""
    if found.kind == SCHEMA:
        return r.schema_item(found.name)
    if found.kind == INDEX:
        return session.access.item_of(key_of(found.schema, found.definition))
    if found.kind in RELATIONS:
        return session.access.item_of(found.key)
    return r.Item(found.kind, *found.key)


_CHECKS: dict[str, Callable[[Context, DdlFacts], None]] = {
    "CREATE": _create,
    "ALTER": _change,
    "DROP": _change,
    "COMMENT": _change,
}


def _check_schemas(session: Context, classified: Classified) -> None:
    """Refuse types of hidden schemas, and foreign keys to tables that the session may not read."""
    tokens = classified.tokens
    for first, path in named_types(tokens[: _before_query(classified)]):
        # The schema's name may follow the database's own name.
        for name in path[:-1][:2]:
            if session.names.has_schema(name) and not session.access.sees_schema(name):
                raise UndefinedObject(
                    f"type with name {path[-1]} does not exist", position=tokens[first].start + 1
                )
    for at, token in enumerate(tokens[:-1]):
        if token.kind == "REFERENCES" and tokens[at + 1].is_name:
            _check_referenced(session, classified, at + 1)


def _before_query(classified: Classified) -> int:
    """The number of tokens before the query, which is analysed separately."""
    facts, tokens = classified.ddl, classified.tokens
    assert facts is not None
    if facts.verb == "CREATE" and facts.object_type == "VIEW":
        return 0
    start = facts.query_offset
    return next((at for at, token in enumerate(tokens) if token.start == start), len(tokens))


def _check_referenced(session: Context, classified: Classified, at: int) -> None:
    """Require rights on a foreign key's table, because the key reveals its rows."""
    tokens, name = classified.tokens, [classified.tokens[at].name]
    while at + 2 < len(tokens) and tokens[at + 1].kind == ".":
        at += 2
        name.append(tokens[at].name)
    key = session.names.table_key(tuple(name))
    if key[0] != TEMPORARY and classified.ddl is not None and classified.ddl.table is not None:
        if session.names.table_key(classified.ddl.table) == key and session.names.kind_of(key) is None:
            return  # The new table refers to itself.
    if not session.access.sees(key) or session.names.kind_of(key) is None:
        raise UndefinedTable(f'relation "{".".join(name)}" does not exist')
    if not session.access.may("select", key):
        raise InsufficientPrivilege(
            f'permission denied for table "{name[-1]}"', detail="It wants SELECT on it."
        )


def _check_calls(session: Context, classified: Classified) -> None:
    """Check the calls in defaults, checks, generated columns and indexes, which run later for other users
    too."""
    facts, end = classified.ddl, _before_query(classified)
    assert facts is not None
    if facts.object_type == "VIEW":
        return  # The statement contains a query and nothing else.
    if facts.object_type == "TYPE":
        labels = enum_of(classified.tokens)
        end = end if labels is None else labels
    names = facts.verb == "CREATE" and facts.object_type in ("TABLE", "INDEX")
    named = named_in_words(classified.tokens[:end], 1 if names else 0)
    if named.sequences and facts.temporary:
        # No dependency keeps the sequence, and no owner is known at the time of an INSERT.
        raise InsufficientPrivilege("permission denied for a sequence in a temporary table", hint=_SUPERUSERS)
    Reach(session, definition=True).take(named)


# Ownership.


def with_owners(
    session: Context, statement: ParsedStatement, run: Callable[[], Waiting[Result]]
) -> Waiting[Result]:
    """Run DDL, and update the rights of the objects that it creates, renames and drops."""
    facts = statement.classified.ddl
    assert facts is not None
    if not session.database.rights.users:
        return (yield from run())
    if skips(session, facts):
        return Result.command(f"{facts.verb} {facts.object_type}")
    # A captured table's DROP sets the rights itself; the other two keep the table and its name.
    stays = drops_captured(session, facts) or replaced_captured(session, facts) is not None
    # A comment changes no rights. A limited user's comment is still checked in the snapshot in which it runs:
    # another table may have taken the name meanwhile.
    plainly = facts.verb == "COMMENT" and not session.access.limited
    if stays or alters_captured(session, facts) or plainly:
        return (yield from run())

    def whole() -> Waiting[Result]:
        session.block.touched()
        before = session.names.objects()
        if session.access.limited:
            # Check in the snapshot in which the statement runs.
            check(session, statement.classified)
        result = yield from run()
        transaction = session.block.opened()
        after = read_objects(transaction.cursor, session.database.catalog_name)
        transaction.objects = after
        try:
            for change in [*_followed(session, before, after), *_macros_gone(facts, session)]:
                edit.add(session.database, transaction, change)
        except duckdb.Error as error:
            raise translated(error) from error
        return result

    return (yield from atomically(session, whole))


def _followed(session: Context, before: Objects, after: Objects) -> Iterator[edit.Change]:
    """The changes of rights that follow from a definition."""
    rights, owner = session.access.rights, session.access.owner
    old, new = _by_identity(before), _by_identity(after)
    gone = [one for identity, one in old.items() if identity not in new]
    come = [one for identity, one in new.items() if identity not in old]
    changed = [(one, new[i]) for i, one in old.items() if i in new and _differ(one, new[i])]
    if session.access.limited:
        _refuse_others(session, [*gone, *(one for one, _ in changed)])
    replaced = {(one.kind in RELATIONS, one.key) for one in come}
    for one in gone:
        if (one.kind in RELATIONS, one.key) not in replaced:
            yield from map(edit.Forget, _items_at(rights, one))
    known = {(one.kind in RELATIONS, one.key) for one in gone}
    for one in come:
        # An object that replaces another in one statement takes its owner and rights.
        if (one.kind in RELATIONS, one.key) in known:
            continue
        item = _own_item(one)
        if owner is not None:
            yield edit.PutOwner(item, owner)
        elif item in rights.owners or any(item == given for _, given in rights.grants):
            yield edit.Forget(item)
    for one, now in changed:
        if one.key != now.key:
            for item in _items_at(rights, one):
                yield edit.Rename(item, r.Item(item.kind, *_named(item, now), item.group))


def _by_identity(objects: Objects) -> dict[tuple[str, int], Object]:
    """All objects by kind and oid, except the engine's own, which any statement may create or drop.

    A captured table that was renamed to an internal name counts as dropped (engine/table_changes/renames.py).
    """
    return {(group_of(one.kind), one.oid): one for one in objects if not _ours(one)}


def _ours(one: Object) -> bool:
    return one.key[0] == OURS or one.key[1].startswith(RESERVED_PREFIX)


def _differ(one: Object, other: Object) -> bool:
    return one.key != other.key or one.definition != other.definition


def _named(item: r.Item, now: Object) -> tuple[str, str]:
    return (fold(now.name), "") if item.kind == r.SCHEMA else (now.key[0], now.key[1])


def _own_item(one: Object) -> r.Item:
    """The item to which an object's own rights apply."""
    if one.kind == SCHEMA:
        return r.schema_item(one.name)
    return r.relation(*one.key) if one.kind in RELATIONS else r.Item(one.kind, *one.key)


def _items_at(rights: r.Rights, one: Object) -> list[r.Item]:
    """The items with rights under an object's name; for a relation also its groups and bookmarks."""
    if one.kind == SCHEMA:
        return rights.below(one.name)
    kinds = {r.RELATION, r.GROUP, r.BOOKMARK} if one.kind in RELATIONS else {one.kind}
    return [item for item in rights.about(*one.key) if item.kind in kinds]


def _macros_gone(facts: DdlFacts, session: Context) -> Iterator[edit.Change]:
    """Forget the rights of dropped macros, which the listing lacks: their overloads share a name, and only
    superusers create and drop them."""
    if facts.verb == "DROP" and facts.object_type == "MACRO":
        for name in facts.names:
            yield edit.Forget(r.Item(r.MACRO, *session.names.made_key(name)))


def _refuse_others(session: Context, touched: Sequence[Object]) -> None:
    """Refuse a definition that changes objects of other users."""
    access = session.access
    for one in touched:
        # A schema's owner may drop the objects in it.
        mine = access.owns(_item_of(session, one)) or access.owns(r.schema_item(one.schema))
        if not mine:
            raise DependentObjects(
                "cannot change or drop it because other objects depend on it",
                detail="They are not yours.",
            )

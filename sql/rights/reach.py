"""The objects that a text reaches through its names, and the session's rights on them.

A view runs with the rights of its owner, as in PostgreSQL: a reader needs no right on the underlying
objects, but the owner does, each time. A macro runs with the caller's rights. An object without an owner,
or of a superuser, reaches everything. A relation that is hidden from the session is reported as nonexistent.
Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ...engine.catalog import rights as r
from ...engine.catalog.rights import Item
from ...engine.duck.objects import DEFAULT_SCHEMA, EMPTY, SEQUENCE, TABLE, VIEW, Object, everything
from ...engine.errors import (
    InsufficientPrivilege,
    InvalidSchemaName,
    NotSupported,
    ProgramLimitExceeded,
    SyntaxError_,
    UndefinedTable,
)
from ...engine.quoting import fold
from ...engine.schema import LIVE_VIEWS
from ..session_state.access import OURS, TEMPORARY, Key
from ..session_state.context import Context
from ..text.spans import query_of_view
from ..text.tokens import tokenize
from .analysis import Named, NotAnalysed, Path, QueryPart, Table, named_in_query
from .functions import no_function, refuse, refuse_in_from

# The catalog for PostgreSQL's clients: a user's text cannot name it, only its rewritten form can.
TRUSTED = "__ducktail_pg"
# The maximum depth of nested views.
DEPTH_MAX = 64
# Privileges whose use fires triggers.
WRITING = frozenset({"insert", "update", "delete"})

Principal = str | None
Tables = frozenset[Key]


@dataclass(slots=True)
class Reach:
    """One check of a text; `tables` collects the relations that it reaches.

    Args:
        definition: the text runs later, in the sessions of others.
    """

    session: Context
    tables: set[Key] = field(default_factory=set)
    definition: bool = False
    _seen: set[tuple[Key, Principal]] = field(default_factory=set)

    def read(self, part: QueryPart) -> None:
        """Check the names in a query of the session's statement.

        Raises:
            InsufficientPrivilege: the session lacks a right.
            UndefinedTable: a relation does not exist or is hidden.
            SyntaxError_: the text is not SQL.
        """
        try:
            named = part.named(self.session.names.cursor())
        except NotAnalysed as error:
            if error.syntax:
                raise SyntaxError_(str(error)) from None
            raise cannot_tell() from None
        self.take(named)
        if part.target is not None:
            key = self.session.names.table_key(part.target.path)
            self.require(key, part.target)
            self.tables.add(key)

    def take(self, named: Named) -> None:
        """Check the names in a text of the session.

        Raises:
            InsufficientPrivilege: the session lacks a right.
            UndefinedTable: a relation does not exist or is hidden.
        """
        if named.files:
            raise InsufficientPrivilege("permission denied to write files", hint="Only superusers may.")
        for special in named.special:
            _refuse_special(special)
        for path in named.types:
            self._check_type(path)
        for sequence in named.sequences:
            self.check_sequence(sequence, self.session.access.user)
        for table in named.tables:
            if fold(table.path[0]) != TRUSTED:
                self._take_table(table)
        self._take_functions(named, self.session.access.user, self.session.names.path, 0)

    # Relations.

    def _take_table(self, table: Table) -> None:
        key = self.session.names.table_key(table.path)
        self.require(key, table)
        if len(table.path) < 3 and not self._means_one(table.path):
            # The parser reported no position in the text, so the name was not qualified.
            raise cannot_tell()
        self._follow(key, 0)

    def _means_one(self, path: Path) -> bool:
        """True if an unqualified name means the same object for every reader: a temporary one."""
        return len(path) == 2 and fold(path[0]) == TEMPORARY

    def require(self, key: Key, table: Table) -> None:
        """Refuse a use of a relation for which the session lacks a privilege.

        Raises:
            UndefinedTable: the relation does not exist or is hidden.
            InsufficientPrivilege: the session lacks a privilege.
        """
        access = self.session.access
        place = None if table.place is None else table.place + 1
        if key[0] == OURS:
            # Views that show each user only visible rows (engine/system_views/rows.py).
            if key[1] in LIVE_VIEWS and table.privileges == {"select"}:
                return
            raise no_table(table.path, place)
        if not access.sees(key) or self.session.names.kind_of(key) is None:
            raise no_table(table.path, place)
        for privilege in sorted(table.privileges):
            if not access.may(privilege, key):
                wanted = access.wanted(privilege, key)
                raise InsufficientPrivilege(
                    f'permission denied for {"topic" if wanted == "publish" else "table"} "{table.path[-1]}"',
                    detail=f"It wants {wanted.upper()} on it.",
                    position=place,
                )
        if table.privileges & WRITING and self.session.database.catalog.triggers.on(key):
            raise InsufficientPrivilege(
                f'permission denied for table "{table.path[-1]}"',
                detail="It has a trigger, which would write what the writer's search path makes of its text.",
                hint="Only superusers may.",
                position=place,
            )

    def _follow(self, key: Key, depth: int) -> None:
        """Follow a readable relation: for a view, check what its owner may read."""
        if depth > DEPTH_MAX:
            raise ProgramLimitExceeded(f"more than {DEPTH_MAX} views upon each other")
        self.tables.add(key)
        found = self._definition(key)
        if found is None:
            return
        schema, sql = found
        owner = self._owner(key)
        # A view of the session's own resolves names as the session does.
        own = key[0] == TEMPORARY
        if (key, owner) in self._seen:
            return
        self._seen.add((key, owner))
        named = self._named(sql[query_of_view(tokenize(sql)) :])
        for table in named.tables:
            under = self._under(table.path, schema, None if own else key)
            if under is None:
                if owner is None:
                    continue  # A view of DuckDB's own, or a view that does not bind.
                raise _not_shown(key)
            self._require_of(owner, under, key)
            self._follow(under, depth + 1)
        for sequence in named.sequences:
            self._take_sequence(sequence, owner, schema, None if own else key)
        self._take_functions(named, owner, (schema, "main"), depth + 1, None if own else key)

    def _owner(self, key: Key) -> Principal:
        """The user with whose rights a view runs; None means unlimited rights."""
        access = self.session.access
        if key[0] == TEMPORARY:
            return access.user
        owner = access.rights.owners.get(access.item_of(key))
        user = access.rights.users.get(owner or "")
        # A stream's views read its log, which no other view reads.
        stream = self.session.database.catalog.stream_of_view(key)
        return None if user is None or user.superuser or stream is not None or key[0] == OURS else owner

    def _require_of(self, owner: Principal, key: Key, view: Key) -> None:
        """Refuse a view whose owner may not, or may no longer, read the relations under it."""
        if owner is None or key[0] == TEMPORARY:
            return
        rights, item = self.session.access.rights, self.session.access.item_of(key)
        live = key[0] == OURS and key[1] in LIVE_VIEWS
        replaced = (TABLE, key) in self.session.access.replaced()
        if not live and (key[0] == OURS or replaced or not rights.has(owner, "select", item)):
            raise _not_shown(view)

    def _under(self, path: Path, schema: str, view: Key | None) -> Key | None:
        """The relation that the text of a view or macro names.

        DuckDB resolves the name anew for each reader: first the reader's temporary objects, then the view's
        schema, then the reader's search path.

        Args:
            view: the view in which the name must mean the same for every reader; None if it may differ.

        Returns:
            The relation's key; None if the database has no such relation.
        """
        found, everybodys = self._both(TABLE, path, schema)
        if view is not None and found != everybodys:
            raise _hidden(view, path)
        return None if found is None else found.key

    def _both(self, kind: str, path: Path, schema: str) -> tuple[Object | None, Object | None]:
        """The meanings of a name in a schema's view: for the session, and for a session without own
        objects."""
        mine = replace(self.session.names.resolver, sees=everything)
        # A temporary view's schema is that of the session's temporary objects, which come first anyway.
        here = replace(mine, path=(schema, *mine.path) if schema != TEMPORARY else mine.path).find(kind, path)
        return here, replace(mine, path=(schema,), temporary=EMPTY).find(kind, path)

    def _take_sequence(self, name: str | None, owner: Principal, schema: str, view: Key | None) -> None:
        """Check a sequence that a view or its functions use.

        It must belong to the view's owner, unless that owner's rights are unlimited.

        Args:
            view: the view, see `_under`.
        """
        if name is None:
            if owner is None:
                return
            raise cannot_tell()
        path = sequence_parts(name)
        found, everybodys = self._both(SEQUENCE, path, schema)
        if view is not None and found != everybodys:
            raise _hidden(view, path)
        if owner is not None and not self._owns_sequence(found, owner):
            raise UndefinedTable(f'sequence "{name}" does not exist')

    def _owns_sequence(self, found: Object | None, user: str) -> bool:
        if found is None or found.temporary:
            return found is not None
        access = self.session.access
        owned = access.rights.owners.get(Item(r.SEQUENCE, *found.key)) == user
        return owned and (SEQUENCE, found.key) not in access.replaced()

    def _definition(self, key: Key) -> tuple[str, str] | None:
        """Schema and text of a view; None for a table."""
        names = self.session.names
        within = names.temporary_objects() if key[0] == TEMPORARY else names.objects()
        found = within.get(TABLE, DEFAULT_SCHEMA if key[0] == TEMPORARY else key[0], key[-1])
        return None if found is None or found.kind != VIEW else (key[0], found.definition)

    def _named(self, text: str) -> Named:
        try:
            return named_in_query(self.session.names.cursor(), text)
        except NotAnalysed:
            raise cannot_tell() from None

    # Functions, types, sequences.

    def _take_functions(
        self, named: Named, user: Principal, path: tuple[str, ...], depth: int, view: Key | None = None
    ) -> None:
        """Check calls; the text of a macro is checked with the caller's rights.

        Args:
            view: the view with the calls, whose meaning must not depend on its reader.
        """
        for structure in named.type_texts if user is not None else ():
            _check_type_text(structure)
        calls = {one for one in named.functions | named.table_functions if not _is_ours(one)}
        macros = self._macros({fold(one[-1]) for one in calls})
        for one in sorted(calls):
            name = fold(one[-1])
            if name in macros:
                for text in macros[name]:
                    self._take_macro(one, text, user, path, depth, view)
            if name in macros or user is None:
                continue
            if one in named.table_functions:
                refuse_in_from(one)
            if one in named.functions:
                refuse(self.session.names.cursor(), one, definition=self.definition)

    def _take_macro(
        self, name: Path, text: str, user: Principal, path: tuple[str, ...], depth: int, view: Key | None
    ) -> None:
        key: Key = ("macro", text, *(view or ()))
        if (key, user) in self._seen:
            return
        self._seen.add((key, user))
        if depth > DEPTH_MAX:
            raise ProgramLimitExceeded(f"more than {DEPTH_MAX} macros upon each other")
        named = self._named(text)
        rights, item_of = self.session.access.rights, self.session.access.item_of
        for sequence in named.sequences:
            self._take_sequence(sequence, user, path[0], view)
        for table in named.tables:
            under = self._under(table.path, path[0], view)
            if under is None:
                if user is None:
                    continue
                raise no_function(name)
            live = under[0] == OURS and under[1] in LIVE_VIEWS
            free = user is None or live or under[0] == TEMPORARY
            if not free and (TABLE, under) in self.session.access.replaced():
                raise no_function(name)
            if not free and (under[0] == OURS or not rights.has(user or "", "select", item_of(under))):
                # Omit the name of the relation that the macro reads.
                raise no_function(name)
            self._follow(under, depth + 1)
        self._take_functions(named, user, path, depth + 1, view)

    def _macros(self, names: set[str]) -> dict[str, list[str]]:
        """The texts of the macros with these names, as queries."""
        if not names:
            return {}
        found: dict[str, list[str]] = {}
        for macro in self.session.names.macros():
            if macro.name in names and macro.definition is not None and macro.catalog != TRUSTED:
                found.setdefault(macro.name, []).append(macro.query)
        return found

    def _check_type(self, path: Path) -> None:
        """Refuse a type of a hidden schema."""
        if len(path) > 1 and not self.session.access.sees_schema(path[-2]):
            if fold(path[-2]) not in ("pg_catalog", fold(self.session.database.catalog_name)):
                raise InvalidSchemaName(f'schema "{path[-2]}" does not exist')

    def check_sequence(self, name: str | None, user: str) -> None:
        """Refuse a sequence that is not the user's own.

        Raises:
            UndefinedTable: the sequence is another user's; the error is that of a missing one.
        """
        if name is None:
            raise cannot_tell()
        # Resolve it as DuckDB does, including hidden sequences.
        resolver = replace(self.session.names.resolver, sees=everything)
        found = resolver.find(SEQUENCE, sequence_parts(name))
        if not self._owns_sequence(found, user):
            raise UndefinedTable(f'sequence "{name}" does not exist')


# A name in a string that DuckDB divides into the same parts.
_IN_STRING = re.compile(r'(?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))*')


def sequence_parts(name: str) -> Path:
    """The parts of a sequence's name in a string.

    Raises:
        InsufficientPrivilege: the string is no plain name.
    """
    if _IN_STRING.fullmatch(name) is None:
        raise cannot_tell()
    return tuple(token.name for token in tokenize(name) if token.kind != ".")


def no_table(path: Path, place: int | None) -> UndefinedTable:
    """The error for a relation that does not exist or is hidden from this session."""
    return UndefinedTable(f'relation "{".".join(path)}" does not exist', position=place)


def _not_shown(view: Key) -> InsufficientPrivilege:
    return InsufficientPrivilege(
        f'permission denied for view "{view[-1]}"', detail="Its owner may not read what it shows."
    )


def _hidden(view: Key, path: Path) -> NotSupported:
    """The error for a view in which a name means another object for this session than for others."""
    return NotSupported(
        f'view "{view[-1]}" cannot be read: in this session "{path[-1]}" in it means another object',
        hint="Drop or rename the temporary object of this name, or take its schema off search_path.",
    )


def _is_ours(path: Path) -> bool:
    """True if a function is ducktail's own and shows each user only the user's objects."""
    return fold(path[0]) == TRUSTED or tuple(map(fold, path[-2:])) == (OURS, "partition_of")


def _check_type_text(text: str | None) -> None:
    """Refuse names of types in a string, which may be of a hidden schema."""
    if text is None or "." in text or "\\" in text:
        raise InsufficientPrivilege(
            "permission denied: it cannot be told which types this statement names",
            hint="Write a structure as one string, and in it types without a schema.",
        )


def cannot_tell() -> InsufficientPrivilege:
    """The error for a text whose reach cannot be determined."""
    return InsufficientPrivilege(
        "permission denied: it cannot be told which tables this statement reads",
        hint="Only superusers may run it. PIVOT is told as FROM t PIVOT (...).",
    )


def _refuse_special(name: str) -> None:
    raise InsufficientPrivilege(
        f"permission denied for SHOW {name.strip(chr(34)).upper()}",
        hint="SELECT * FROM information_schema.tables shows what you may see.",
    )

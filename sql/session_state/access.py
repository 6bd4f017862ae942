"""The rights of one session: its user's rights in the snapshot of its transaction.

A session without an account belongs to the database's owner: it runs in process, or was accepted by trust
while no user existed. Every other session has an account, whose rights are looked up for each statement, so
that a REVOKE also holds for sessions that are already open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.catalog.rights import (
    THE_DATABASE,
    Item,
    Rights,
    User,
    bookmark_item,
    group_item,
    relation,
    schema_item,
)
from ...engine.catalog.streams import Bookmark, Group, Stream
from ...engine.database import Database
from ...engine.definitions.bookmarks import find_bookmark, missing_bookmark
from ...engine.definitions.groups import find_group, missing_group
from ...engine.duck.objects import INDEX, RELATIONS, SCHEMA, TABLE, Object
from ...engine.errors import InsufficientPrivilege, InvalidAuthorization, SerializationFailure
from ...engine.quoting import fold
from ...engine.rights_changes import seen_by
from ...engine.schema import LIVE_VIEWS
from ...engine.transactions.transaction import Transaction

Key = tuple[str, ...]
TEMPORARY = "temp"
OURS = "ducktail"
# The schema that everybody sees: a new session starts in it.
MAIN = "main"
# The key of a dropped user: no typed name equals it.
GONE = "\x1f"


class Access:
    """The rights of a session.

    Args:
        account: the user's name; None is the owner of the database.
        transaction: returns the session's open transaction.
    """

    def __init__(
        self, database: Database, account: str | None, transaction: Callable[[], Transaction | None]
    ) -> None:
        self.account = account
        found = None if account is None else seen_by(database, transaction()).users.get(account.lower())
        self._number = 0 if found is None else found.number
        # The rights that were last set on the session's cursors (visible.py).
        self.told: Rights | None = None
        # The running text with its parameters, and a text run within it; they decide which names errors may
        # mention.
        self.said: list[tuple[str, Sequence[object]]] = []
        # Kind and key of each name that means another object now than in the session's snapshot (names.py).
        self.replaced: Callable[[], frozenset[tuple[str, Key]]] = frozenset
        # True if the client is another node, which asks for the user.
        self.of_node = False
        # True if the client has authenticated by a token.
        self.by_token = False
        self._database = database
        self._transaction = transaction

    @property
    def rights(self) -> Rights:
        """The rights of the session's user in its snapshot."""
        return seen_by(self._database, self._transaction())

    @property
    def user(self) -> str:
        """The user's key; empty for the database's owner."""
        if self.account is None:
            return ""
        found = self._found()
        return GONE if found is None else found.key

    def _found(self) -> User | None:
        """The session's user, by account and not by name: another user with the same name is not accepted."""
        assert self.account is not None
        users = self.rights.users
        found = users.get(self.account.lower())
        if found is None or found.number != self._number:
            found = next((user for user in users.values() if user.number == self._number), None)
        return found

    @property
    def known(self) -> User | None:
        """The user of the account in the present catalog.

        Raises:
            InvalidAuthorization: the user has been dropped.
        """
        if self.account is None:
            return None
        found = self._found()
        if found is None:
            raise InvalidAuthorization(f'user "{self.account}" does not exist any more')
        return found

    @property
    def superuser(self) -> bool:
        """True if everything is allowed.

        Raises:
            InvalidAuthorization: the user has been dropped.
        """
        user = self.known
        return user is None or user.superuser

    @property
    def owner(self) -> str | None:
        """The owner of new objects; None leaves them to the superusers."""
        return None if self.account is None else self.user

    @property
    def limited(self) -> bool:
        """True if some operation is not allowed."""
        return self.account is not None and not self.superuser

    def require_superuser(self, what: str) -> None:
        """Refuse an operation to everybody but superusers.

        Raises:
            InsufficientPrivilege: the user is no superuser.
        """
        if not self.superuser:
            raise InsufficientPrivilege(f"permission denied to {what}", hint="Only superusers may.")

    # Relations.

    def item_of(self, key: Key) -> Item:
        """The item that a relation's rights are on: for a stream's second view, the stream."""
        stream = self._database.catalog.stream_of_view(key)
        return relation(*key) if stream is None else relation(*stream.key)

    def sees(self, key: Key) -> bool:
        """True if a relation of this name exists and is visible to the session."""
        if self.superuser or key[0] == TEMPORARY:
            return True
        seen = key[0] != OURS and self.rights.sees(self.user, self.item_of(key))
        return seen and self._is_it(TABLE, key)

    def _is_it(self, kind: str, key: Key) -> bool:
        """True if the visible object of this name is the one that the snapshot has under it."""
        if (kind, key) in self.replaced():
            raise SerializationFailure(
                f'"{key[-1]}" was dropped or made anew after this transaction began to read',
                hint="Roll back and try again.",
            )
        return True

    def sees_object(self, found: Object) -> bool:
        """True if this object of DuckDB's catalog exists and is visible to the session."""
        if self.account is None or found.temporary or found.kind == SCHEMA or self.superuser:
            return True
        if found.kind in RELATIONS:
            return found.key[1] in LIVE_VIEWS if found.key[0] == OURS else self.sees(found.key)
        if found.kind == INDEX:  # An index has its table's visibility.
            return self.sees((found.key[0], fold(found.definition)))
        seen = self.rights.sees(self.user, Item(found.kind, *found.key))
        return seen and self._is_it(found.kind, found.key)

    def may(self, privilege: str, key: Key) -> bool:
        """True if the session has this privilege on a relation."""
        if self.superuser or key[0] == TEMPORARY:
            return True
        return key[0] != OURS and self.rights.has(self.user, self.wanted(privilege, key), self.item_of(key))

    def wanted(self, privilege: str, key: Key) -> str:
        """The privilege that an operation needs: an INSERT into a topic needs PUBLISH."""
        stream = self._database.catalog.streams.get(key)
        return "publish" if privilege == "insert" and stream is not None and stream.topic else privilege

    def owns(self, item: Item) -> bool:
        """True if an object belongs to the session's user, or the user is a superuser."""
        return self.superuser or self.rights.owners.get(item) == self.user

    # Streams and groups.

    def hears(self, stream: Stream) -> bool:
        """True if the session may continue to listen to a stream; false once its user has been dropped."""
        return (self.account is None or self._found() is not None) and self.sees(stream.key)

    def may_use_group(self, stream: Stream, group: Group | str) -> bool:
        """True if the session may read, commit and change a group: its user's own, or a granted one."""
        if self.superuser:
            return True
        rights, name = self.rights, group if isinstance(group, str) else group.name
        item = group_item(stream.schema, stream.name, name)
        mine = rights.owners.get(item) == self.user or "consume" in rights.privileges(self.user, item)
        return mine and rights.has(self.user, "consume", relation(*stream.key))

    def sees_group(self, stream: Stream, group: Group) -> bool:
        """True if this group exists and is visible to the session: the stream's owner sees it too."""
        return self.may_use_group(stream, group) or self.owns(relation(*stream.key))

    def group(self, stream: Stream, name: str, transaction: Transaction | None, *, use: bool = True) -> Group:
        """A stream's group by name, for a session that may use it, or only see it.

        Raises:
            UndefinedObject: no group of this name is visible to the session.
            InsufficientPrivilege: the group is another user's.
        """
        group = find_group(self._database.catalog, stream, name, transaction)
        if not self.limited or self.may_use_group(stream, group):
            return group
        if not self.sees_group(stream, group):
            raise missing_group(stream, name)
        if use:
            raise InsufficientPrivilege(
                f'permission denied for consumer group "{group.name}"',
                hint="Its owner can grant CONSUME ON CONSUMER GROUP.",
            )
        return group

    def bookmark(
        self, stream: Stream, name: str, transaction: Transaction | None, *, drops: bool = False
    ) -> Bookmark:
        """A stream's bookmark by name: the user's own; the stream's owner may seek to any of them.

        Args:
            drops: the bookmark will be dropped, which only its own owner may do.

        Raises:
            UndefinedObject: no bookmark of this name is visible to the session.
            InsufficientPrivilege: the bookmark is another user's.
        """
        bookmark = find_bookmark(self._database.catalog, stream, name, transaction)
        if not self.limited:
            return bookmark
        item = bookmark_item(stream.schema, stream.name, bookmark.name)
        mine = self.owns(item) and self.rights.has(self.user, "consume", relation(*stream.key))
        if not mine and not self.owns(relation(*stream.key)):
            raise missing_bookmark(stream, name)
        if drops and not mine:
            raise InsufficientPrivilege(f'must be owner of bookmark "{bookmark.name}"')
        return bookmark

    # Schemas.

    def sees_schema(self, schema: str) -> bool:
        """True if this schema exists and is visible to the session."""
        if self.superuser or fold(schema) in (MAIN, TEMPORARY, OURS):
            return True
        return self.rights.sees(self.user, schema_item(schema))

    def may_create_in(self, schema: str) -> bool:
        """True if the session may create objects in a schema."""
        if self.superuser or fold(schema) == TEMPORARY:
            return True
        return self.rights.has(self.user, "create", schema_item(schema))

    def owned_group(self, stream: Stream, name: str, transaction: Transaction | None) -> Group:
        """A stream's group by name, for a session whose user owns it.

        Raises:
            UndefinedObject: no group of this name is visible to the session.
            InsufficientPrivilege: the group is another user's.
        """
        group = self.group(stream, name, transaction, use=False)
        if not self.owns(group_item(stream.schema, stream.name, group.name)):
            raise InsufficientPrivilege(f'must be owner of consumer group "{group.name}"')
        return group

    def may_create_in_database(self) -> bool:
        """True if the session may create what belongs to the database as a whole: schemas and sinks."""
        return self.superuser or self.rights.has(self.user, "create", THE_DATABASE)

"""Users, owners and grants: one immutable value in memory, and the changes that lead to the next one.

The tables `__ducktail_users`, `owner_catalog` and `grant_catalog` hold the same; a change is a row of theirs
written within a transaction, and the value follows after its COMMIT (`add`). While there is no user there
are no rights: whoever is let in may do everything. Names are found whatever their case.
Source: docs/security.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import duckdb

from .asking import ask_maybe
from .quoting import literal
from .scram import Verifier, read_verifier
from .storage.schema import SCHEMA as OURS
from .storage.schema import USERS
from .transaction import Transaction

# What a right can be on. A stream and its views are the relation of the stream's name.
RELATION, SCHEMA, DATABASE, GROUP, SEQUENCE, TYPE, MACRO = (
    "relation", "schema", "database", "group", "sequence", "type", "macro",
)  # fmt: skip
PRIVILEGES = ("select", "insert", "update", "delete", "consume", "publish", "create")
# What of these a right on a schema or the database gives for the relations in it.
INHERITED = frozenset({"select", "insert", "update", "delete", "consume"})

NONCE = "authentication_nonce"
TABLE = f"{OURS}.{USERS}"


@dataclass(frozen=True, slots=True)
class Item:
    """Something that has an owner, or that rights are given on; all parts in small letters.

    Args:
        schema: empty for the database.
        name: within the schema; empty for a schema.
        group: of a stream's consumer group.
    """

    kind: str
    schema: str = ""
    name: str = ""
    group: str = ""

    @property
    def where(self) -> str:
        """The condition of its rows."""
        parts = (("kind", self.kind), ("schema_name", self.schema), ("object_name", self.name))
        both = (*parts, ("part", self.group))
        return " AND ".join(f"{column} = {literal(value)}" for column, value in both)

    @property
    def values(self) -> str:
        """Its columns, as SQL."""
        return ", ".join(map(literal, (self.kind, self.schema, self.name, self.group)))


def relation(schema: str, name: str) -> Item:
    """A table, view or stream."""
    return Item(RELATION, schema.lower(), name.lower())


def schema_item(schema: str) -> Item:
    """A schema."""
    return Item(SCHEMA, schema.lower())


def group_item(schema: str, stream: str, group: str) -> Item:
    """A consumer group."""
    return Item(GROUP, schema.lower(), stream.lower(), group.lower())


THE_DATABASE = Item(DATABASE)


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may come in."""

    name: str
    verifier: Verifier = field(repr=False)
    superuser: bool = False

    @property
    def key(self) -> str:
        """Under which he is found."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Rights:
    """Who there is, who owns what, and who was given what.

    Args:
        users: by their names in small letters.
        owners: the name (in small letters) of who made a thing; what has none is the superusers'.
        grants: privileges by user (in small letters) and thing.
        nonce: a secret of this database; empty until it has its first user.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    owners: Mapping[Item, str] = field(default_factory=dict)
    grants: Mapping[tuple[str, Item], frozenset[str]] = field(default_factory=dict)
    nonce: bytes = field(default=b"", repr=False)

    def privileges(self, user: str, item: Item) -> frozenset[str]:
        """What was given to a user on exactly this thing."""
        return self.grants.get((user, item), frozenset())

    def has(self, user: str, privilege: str, item: Item) -> bool:
        """Whether a user may do this with a relation, schema or the database: as owner, or by a grant."""
        if self.owners.get(item) == user or privilege in self.privileges(user, item):
            return True
        if item.kind != RELATION or privilege not in INHERITED:
            return False
        above = (schema_item(item.schema), THE_DATABASE)
        return any(privilege in self.privileges(user, one) for one in above)

    def sees(self, user: str, item: Item) -> bool:
        """Whether a user may know of a thing: it is his, or he has any right on it."""
        if self.owners.get(item) == user or self.privileges(user, item):
            return True
        if item.kind == RELATION:
            above = (schema_item(item.schema), THE_DATABASE)
            return any(self.privileges(user, one) & INHERITED for one in above)
        if item.kind == SCHEMA:
            return self._sees_inside(user, item.schema)
        return False

    def _sees_inside(self, user: str, schema: str) -> bool:
        """Whether a user has anything in a schema, or a right on all relations."""
        if self.privileges(user, THE_DATABASE) & INHERITED:
            return True
        owned = any(owner == user and item.schema == schema for item, owner in self.owners.items())
        return owned or any(key == user and item.schema == schema for key, item in self.grants)

    def belongings(self, user: str) -> list[Item]:
        """What a user owns or was given rights on."""
        owned = [item for item, owner in self.owners.items() if owner == user]
        return owned + [item for key, item in self.grants if key == user]

    def below(self, schema: str) -> list[Item]:
        """What has an owner or rights in a schema, itself included."""
        items = {*self.owners, *(item for _, item in self.grants)}
        return [item for item in items if item.schema == schema.lower()]

    def about(self, schema: str, name: str) -> list[Item]:
        """Entries of a name in a schema: the thing itself, and a stream's groups."""
        return [item for item in self.below(schema) if item.name == name.lower()]


class Change(Protocol):
    """A step from one value of the rights to the next."""

    def statements(self) -> Iterable[str]:
        """What writes it."""

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""


@dataclass(frozen=True, slots=True)
class PutUser:
    """A user is there, as he is now."""

    user: User

    def statements(self) -> Iterable[str]:
        """What writes it."""
        yield f"DELETE FROM {TABLE} WHERE lower(user_name) = {literal(self.user.key)}"
        values = f"{literal(self.user.name)}, {literal(str(self.user.verifier))}, {self.user.superuser}"
        yield f"INSERT INTO {TABLE} (user_name, verifier, superuser) VALUES ({values})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""
        return replace(rights, users={**rights.users, self.user.key: self.user})


@dataclass(frozen=True, slots=True)
class DropUser:
    """A user is gone; he had nothing any more."""

    user: User

    def statements(self) -> Iterable[str]:
        """What writes it."""
        yield f"DELETE FROM {TABLE} WHERE lower(user_name) = {literal(self.user.key)}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""
        return replace(rights, users={k: u for k, u in rights.users.items() if k != self.user.key})


@dataclass(frozen=True, slots=True)
class PutNonce:
    """The database's secret for mock salts."""

    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def statements(self) -> Iterable[str]:
        """What writes it."""
        yield f"INSERT INTO ducktail.meta VALUES ({literal(NONCE)}, {literal(self.nonce.hex())})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""
        return replace(rights, nonce=self.nonce)


@dataclass(frozen=True, slots=True)
class PutOwner:
    """A thing has been made: this user owns it, and what was granted on an older one is void."""

    item: Item
    owner: str

    def statements(self) -> Iterable[str]:
        """What writes it."""
        yield from Forget(self.item).statements()
        yield f"INSERT INTO ducktail.owner_catalog VALUES ({self.item.values}, {literal(self.owner)})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""
        rights = Forget(self.item).apply(rights)
        return replace(rights, owners={**rights.owners, self.item: self.owner})


@dataclass(frozen=True, slots=True)
class Forget:
    """A thing is gone, with its owner and all rights on it."""

    item: Item

    def statements(self) -> Iterable[str]:
        """What writes it."""
        for table in ("owner_catalog", "grant_catalog"):
            yield f"DELETE FROM ducktail.{table} WHERE {self.item.where}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""
        owners = {item: owner for item, owner in rights.owners.items() if item != self.item}
        grants = {key: given for key, given in rights.grants.items() if key[1] != self.item}
        return replace(rights, owners=owners, grants=grants)


@dataclass(frozen=True, slots=True)
class Rename:
    """A thing is called otherwise; owner and rights stay."""

    item: Item
    to: Item

    def statements(self) -> Iterable[str]:
        """What writes it."""
        to = f"schema_name = {literal(self.to.schema)}, object_name = {literal(self.to.name)}"
        for table in ("owner_catalog", "grant_catalog"):
            yield f"UPDATE ducktail.{table} SET {to}, part = {literal(self.to.group)} WHERE {self.item.where}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""

        def now(item: Item) -> Item:
            return self.to if item == self.item else item

        owners = {now(item): owner for item, owner in rights.owners.items()}
        grants = {(user, now(item)): given for (user, item), given in rights.grants.items()}
        return replace(rights, owners=owners, grants=grants)


@dataclass(frozen=True, slots=True)
class SetGrants:
    """What a user has on a thing, all of it."""

    user: str
    item: Item
    privileges: frozenset[str]

    def statements(self) -> Iterable[str]:
        """What writes it."""
        who = f"user_name = {literal(self.user)}"
        yield f"DELETE FROM ducktail.grant_catalog WHERE {who} AND {self.item.where}"
        for privilege in sorted(self.privileges):
            values = f"{literal(self.user)}, {literal(privilege)}, {self.item.values}"
            yield f"INSERT INTO ducktail.grant_catalog VALUES ({values})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after it."""
        grants = {key: given for key, given in rights.grants.items() if key != (self.user, self.item)}
        if self.privileges:
            grants[self.user, self.item] = self.privileges
        return replace(rights, grants=grants)


class RightsHolder(Protocol):
    """What has the rights of an open database (`database.Database`)."""

    rights: Rights


def add(holder: RightsHolder, transaction: Transaction, change: Change) -> None:
    """Write a change within a transaction: it sees it at once, everybody else after COMMIT.

    Raises:
        duckdb.Error: another transaction has changed the same.
    """
    for statement in change.statements():
        transaction.cursor.execute(statement).fetchall()
    transaction.rights_changes.append(change.apply)

    def follow() -> None:
        holder.rights = change.apply(holder.rights)

    transaction.on_commit.append(follow)


def seen_by(holder: RightsHolder, transaction: Transaction | None) -> Rights:
    """The rights as a transaction sees them: with its own changes."""
    rights = holder.rights
    changes: Iterable[Callable[[Rights], Rights]] = transaction.rights_changes if transaction else ()
    for change in changes:
        rights = change(rights)
    return rights


def read_rights(cursor: duckdb.DuckDBPyConnection) -> Rights:
    """The rights that a database's tables hold."""
    nonce = ask_maybe(cursor, f"SELECT value FROM ducktail.meta WHERE name = {literal(NONCE)}")
    secret = b"" if nonce is None else bytes.fromhex(nonce[0])
    users = {}
    rows = cursor.execute(f"SELECT user_name, verifier, superuser FROM {TABLE}").fetchall()
    for name, text, superuser in rows:
        verifier = read_verifier(text)
        assert verifier is not None, "what was written was a verifier"
        users[name.lower()] = User(name, verifier, superuser)
    columns = "kind, schema_name, object_name, part"
    owners = {
        Item(*row[:4]): row[4]
        for row in cursor.execute(f"SELECT {columns}, owner FROM ducktail.owner_catalog").fetchall()
    }
    grants: dict[tuple[str, Item], frozenset[str]] = {}
    given = f"SELECT {columns}, user_name, privilege FROM ducktail.grant_catalog"
    for row in cursor.execute(given).fetchall():
        key = (row[4], Item(*row[:4]))
        grants[key] = grants.get(key, frozenset()) | {row[5]}
    return Rights(users, owners, grants, secret)

"""The changes of users, owners and grants: each writes rows of tables and computes the next value.

The tables `__ducktail_users`, `__ducktail_users_tokens`, `owner_catalog` and `grant_catalog` store the
contents of `rights.Rights`. A change is written within a transaction, and the value in memory is replaced
after its COMMIT (`add`). Source: docs/security.md.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import duckdb

from .catalog.passwords import read_verifier
from .catalog.rights import Item, Rights, Token, User
from .duck.cursors import ask_maybe
from .parts import Parts
from .quoting import literal
from .schema import SCHEMA as OURS
from .schema import TOKENS, USERS
from .transactions.transaction import CommitStep, Transaction

NONCE = "authentication_nonce"
TABLE = f"{OURS}.{USERS}"
TOKEN_TABLE = f"{OURS}.{TOKENS}"


class Change(ABC):
    """A change from one value of the rights to the next."""

    __slots__ = ()

    @abstractmethod
    def statements(self) -> Iterable[str]:
        """The statements that write the change."""

    @abstractmethod
    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""


@dataclass(frozen=True, slots=True)
class PutUser(Change):
    """The present state of a new or changed user."""

    user: User

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        yield f"DELETE FROM {TABLE} WHERE lower(user_name) = {literal(self.user.key)}"
        values = f"{literal(self.user.name)}, {literal(str(self.user.verifier))}, {self.user.superuser}"
        yield f"INSERT INTO {TABLE} (user_name, verifier, superuser) VALUES ({values})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        return replace(rights, users={**rights.users, self.user.key: self.user})


@dataclass(frozen=True, slots=True)
class DropUser(Change):
    """The removal of a user who owns nothing any more, and of the user's tokens."""

    user: User

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        yield f"DELETE FROM {TABLE} WHERE lower(user_name) = {literal(self.user.key)}"
        yield f"DELETE FROM {TOKEN_TABLE} WHERE user_name = {literal(self.user.key)}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        return replace(
            rights,
            users={k: u for k, u in rights.users.items() if k != self.user.key},
            tokens={d: t for d, t in rights.tokens.items() if t.user != self.user.key},
        )


@dataclass(frozen=True, slots=True)
class RenameUser(Change):
    """The renaming of a user, who keeps owned objects."""

    user: User
    name: str

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        old, new = literal(self.user.key), literal(self.name.lower())
        yield f"UPDATE {TABLE} SET user_name = {literal(self.name)} WHERE lower(user_name) = {old}"
        yield f"UPDATE ducktail.owner_catalog SET owner = {new} WHERE owner = {old}"
        yield f"UPDATE ducktail.grant_catalog SET user_name = {new} WHERE user_name = {old}"
        yield f"UPDATE {TOKEN_TABLE} SET user_name = {new} WHERE user_name = {old}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        old, renamed = self.user.key, replace(rights.users[self.user.key], name=self.name)

        def now(key: str) -> str:
            return renamed.key if key == old else key

        return replace(
            rights,
            users={**{key: user for key, user in rights.users.items() if key != old}, renamed.key: renamed},
            owners={item: now(owner) for item, owner in rights.owners.items()},
            grants={(now(user), item): given for (user, item), given in rights.grants.items()},
            tokens={digest: replace(token, user=now(token.user)) for digest, token in rights.tokens.items()},
        )


@dataclass(frozen=True, slots=True)
class PutToken(Change):
    """A new token."""

    token: Token

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        token = self.token
        until = "NULL" if token.valid_until_us is None else str(token.valid_until_us)
        texts = ", ".join(map(literal, (token.name, token.user, token.digest)))
        yield f"INSERT INTO {TOKEN_TABLE} VALUES ({texts}, {token.created_at_us}, {until})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        return replace(rights, tokens={**rights.tokens, self.token.digest: self.token})


@dataclass(frozen=True, slots=True)
class DropToken(Change):
    """The removal of a token."""

    token: Token

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        yield f"DELETE FROM {TOKEN_TABLE} WHERE hash = {literal(self.token.digest)}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        tokens = {digest: token for digest, token in rights.tokens.items() if digest != self.token.digest}
        return replace(rights, tokens=tokens)


@dataclass(frozen=True, slots=True)
class PutNonce(Change):
    """The database's secret for mock salts."""

    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        yield f"INSERT INTO ducktail.meta VALUES ({literal(NONCE)}, {literal(self.nonce.hex())})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        return replace(rights, nonce=self.nonce)


@dataclass(frozen=True, slots=True)
class PutOwner(Change):
    """The owner of a new object; grants on an older object of its name are void."""

    item: Item
    owner: str

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        yield from Forget(self.item).statements()
        yield f"INSERT INTO ducktail.owner_catalog VALUES ({self.item.values}, {literal(self.owner)})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        rights = Forget(self.item).apply(rights)
        return replace(rights, owners={**rights.owners, self.item: self.owner})


@dataclass(frozen=True, slots=True)
class Forget(Change):
    """The removal of an object with its owner and all rights on it."""

    item: Item

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        for table in ("owner_catalog", "grant_catalog"):
            yield f"DELETE FROM ducktail.{table} WHERE {self.item.where}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        owners = {item: owner for item, owner in rights.owners.items() if item != self.item}
        grants = {key: given for key, given in rights.grants.items() if key[1] != self.item}
        return replace(rights, owners=owners, grants=grants)


@dataclass(frozen=True, slots=True)
class Rename(Change):
    """The renaming of an object, which keeps owner and rights."""

    item: Item
    to: Item

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        to = f"schema_name = {literal(self.to.schema)}, object_name = {literal(self.to.name)}"
        for table in ("owner_catalog", "grant_catalog"):
            yield f"UPDATE ducktail.{table} SET {to}, part = {literal(self.to.group)} WHERE {self.item.where}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""

        def now(item: Item) -> Item:
            return self.to if item == self.item else item

        owners = {now(item): owner for item, owner in rights.owners.items()}
        grants = {(user, now(item)): given for (user, item), given in rights.grants.items()}
        return replace(rights, owners=owners, grants=grants)


@dataclass(frozen=True, slots=True)
class SetGrants(Change):
    """All privileges of a user on an object."""

    user: str
    item: Item
    privileges: frozenset[str]

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        who = f"user_name = {literal(self.user)}"
        yield f"DELETE FROM ducktail.grant_catalog WHERE {who} AND {self.item.where}"
        for privilege in sorted(self.privileges):
            values = f"{literal(self.user)}, {literal(privilege)}, {self.item.values}"
            yield f"INSERT INTO ducktail.grant_catalog VALUES ({values})"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        grants = {key: given for key, given in rights.grants.items() if key != (self.user, self.item)}
        if self.privileges:
            grants[self.user, self.item] = self.privileges
        return replace(rights, grants=grants)


def add(holder: Parts, transaction: Transaction, change: Change) -> None:
    """Write a change within a transaction, which sees it at once; other sessions see it after COMMIT.

    Raises:
        duckdb.Error: another transaction has changed the same rows.
    """
    for statement in change.statements():
        transaction.cursor.execute(statement).fetchall()
    transaction.rights_changes.append(change.apply)

    def follow() -> None:
        holder.rights = change.apply(holder.rights)

    transaction.at(CommitStep.MEMORY, follow)


def statements_of(changes: Iterable[Change]) -> list[str]:
    """The statements that write these changes, in a transaction of the engine itself."""
    return [statement for change in changes for statement in change.statements()]


def after(rights: Rights, changes: Iterable[Change]) -> Rights:
    """The rights after these changes."""
    for change in changes:
        rights = change.apply(rights)
    return rights


def seen_by(holder: Parts, transaction: Transaction | None) -> Rights:
    """The rights visible in a transaction, including its own changes."""
    rights = holder.rights
    changes: Iterable[Callable[[Rights], Rights]] = transaction.rights_changes if transaction else ()
    for change in changes:
        rights = change(rights)
    return rights


def read_rights(cursor: duckdb.DuckDBPyConnection, known: Rights | None = None) -> Rights:
    """The rights stored in a database's tables.

    Args:
        known: the rights before the database was reopened, so that users keep their numbers.
    """
    nonce = ask_maybe(cursor, f"SELECT value FROM ducktail.meta WHERE name = {literal(NONCE)}")
    secret = b"" if nonce is None else bytes.fromhex(nonce[0])
    users = {}
    rows = cursor.execute(f"SELECT user_name, verifier, superuser FROM {TABLE}").fetchall()
    for name, text, superuser in rows:
        verifier = read_verifier(text)
        assert verifier is not None, "what was written was a verifier"
        user, before = User(name, verifier, superuser), (known or Rights()).users.get(name.lower())
        users[user.key] = user if before is None else replace(user, number=before.number)
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
    stored = cursor.execute(
        f"SELECT token_name, user_name, hash, created_at_us, valid_until_us FROM {TOKEN_TABLE}"
    ).fetchall()
    tokens = {row[2]: Token(*row) for row in stored}
    return Rights(users, owners, grants, secret, tokens)

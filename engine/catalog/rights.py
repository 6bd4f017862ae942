"""Users, owners and grants: one immutable value in memory.

Without users there are no rights: every connected session may do everything. Names are case-insensitive.
rights_changes.py has the changes from one value to the next. Source: docs/security.md.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..quoting import fold, literal
from .passwords import Verifier

# Kinds of objects with rights. A stream and its views are the relation of the stream's name.
RELATION, SCHEMA, DATABASE, GROUP, BOOKMARK, PIPELINE, SEQUENCE, TYPE, MACRO = (
    "relation", "schema", "database", "group", "bookmark", "pipeline", "sequence", "type", "macro",
)  # fmt: skip
PRIVILEGES = ("select", "insert", "update", "delete", "consume", "publish", "create")
# Privileges on a schema or the database that apply to the relations in it.
INHERITED = frozenset({"select", "insert", "update", "delete", "consume", "publish"})


@dataclass(frozen=True, slots=True)
class Item:
    """An object with an owner or grants; all parts in lower case.

    Args:
        schema: empty for the database and for pipelines.
        name: within the schema; empty for a schema.
        group: the name of a stream's consumer group or bookmark.
    """

    kind: str
    schema: str = ""
    name: str = ""
    group: str = ""

    @property
    def where(self) -> str:
        """The SQL condition that selects its rows."""
        parts = (("kind", self.kind), ("schema_name", self.schema), ("object_name", self.name))
        both = (*parts, ("part", self.group))
        return " AND ".join(f"{column} = {literal(value)}" for column, value in both)

    @property
    def values(self) -> str:
        """The SQL of its columns."""
        return ", ".join(map(literal, (self.kind, self.schema, self.name, self.group)))


def relation(schema: str, name: str) -> Item:
    """The item of a table, view or stream."""
    return Item(RELATION, fold(schema), fold(name))


def schema_item(schema: str) -> Item:
    """The item of a schema."""
    return Item(SCHEMA, fold(schema))


def group_item(schema: str, stream: str, group: str) -> Item:
    """The item of a consumer group."""
    return Item(GROUP, fold(schema), fold(stream), group.lower())


def bookmark_item(schema: str, stream: str, bookmark: str) -> Item:
    """The item of a bookmark."""
    return Item(BOOKMARK, fold(schema), fold(stream), bookmark.lower())


def pipeline_item(pipeline: str) -> Item:
    """The item of a pipeline."""
    return Item(PIPELINE, name=pipeline.lower())


THE_DATABASE = Item(DATABASE)


# The beginning of each token, by which a scanner of published sources recognizes one.
TOKEN_PREFIX = "ducktail_"
# The tokens of a database.
TOKENS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token, which authenticates a user of the HTTP API.

    Args:
        name: its name, unique in the database.
        user: the user's key.
        digest: `digest_of` its text, which is not stored.
        created_at_us, valid_until_us: times in microseconds since 1970; None is valid until it is dropped.
    """

    name: str
    user: str
    digest: str
    created_at_us: int
    valid_until_us: int | None = None

    @property
    def key(self) -> str:
        """The token's name in lower case."""
        return self.name.lower()

    def is_valid(self, now_us: int) -> bool:
        """True if the token is accepted at a time."""
        return self.valid_until_us is None or now_us < self.valid_until_us


def digest_of(token: str) -> str:
    """The stored form of a token: its text is random, so that one round of a hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class User:
    """A user who may connect.

    Args:
        number: the user's number for the life of this process, independent of renames: two successive users
            of one name have different numbers. A session identifies its user by it.
    """

    name: str
    verifier: Verifier = field(repr=False)
    superuser: bool = False
    number: int = field(default_factory=itertools.count(1).__next__, compare=False)

    @property
    def key(self) -> str:
        """The user's name in lower case."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Rights:
    """The users, the owners of objects, and the granted privileges.

    Args:
        users: the users by name in lower case.
        owners: object -> its creator's name in lower case; objects without an entry belong to the superusers.
        grants: privileges by user (in lower case) and object.
        nonce: a secret of this database; empty until it has its first user.
        tokens: the tokens by digest.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    owners: Mapping[Item, str] = field(default_factory=dict)
    grants: Mapping[tuple[str, Item], frozenset[str]] = field(default_factory=dict)
    nonce: bytes = field(default=b"", repr=False)
    tokens: Mapping[str, Token] = field(default_factory=dict, repr=False)

    def privileges(self, user: str, item: Item) -> frozenset[str]:
        """The privileges of a user on exactly this object."""
        return self.grants.get((user, item), frozenset())

    def has(self, user: str, privilege: str, item: Item) -> bool:
        """True if a user has a privilege on a relation, schema or the database: as owner, or by a grant."""
        if self.owners.get(item) == user or privilege in self.privileges(user, item):
            return True
        if item.kind != RELATION or privilege not in INHERITED:
            return False
        above = (schema_item(item.schema), THE_DATABASE)
        return any(privilege in self.privileges(user, one) for one in above)

    def sees(self, user: str, item: Item) -> bool:
        """True if a user may see an object: the user owns it or has any privilege on it."""
        if self.owners.get(item) == user or self.privileges(user, item):
            return True
        if item.kind == RELATION:
            above = (schema_item(item.schema), THE_DATABASE)
            return any(self.privileges(user, one) & INHERITED for one in above)
        if item.kind == SCHEMA:
            return self._sees_inside(user, item.schema)
        return False

    def _sees_inside(self, user: str, schema: str) -> bool:
        """True if a user owns or has rights on anything in a schema, or a privilege on all relations."""
        if self.privileges(user, THE_DATABASE) & INHERITED:
            return True
        owned = any(owner == user and item.schema == schema for item, owner in self.owners.items())
        return owned or any(key == user and item.schema == schema for key, item in self.grants)

    def token(self, name: str) -> Token | None:
        """The token of this name; None without one."""
        return next((token for token in self.tokens.values() if token.key == name.lower()), None)

    def belongings(self, user: str) -> list[Item]:
        """The objects that a user owns or has privileges on."""
        owned = [item for item, owner in self.owners.items() if owner == user]
        return owned + [item for key, item in self.grants if key == user]

    def below(self, schema: str) -> list[Item]:
        """The objects of a schema with an owner or privileges, including the schema."""
        items = {*self.owners, *(item for _, item in self.grants)}
        return [item for item in items if item.schema == fold(schema)]

    def about(self, schema: str, name: str) -> list[Item]:
        """The entries of a name in a schema: the object itself, and a stream's groups and bookmarks."""
        return [item for item in self.below(schema) if item.name == fold(name)]

    def of_stream(self, schema: str, name: str) -> list[Item]:
        """The entries of a stream, its groups and bookmarks; a sequence or type may have the same name."""
        return [item for item in self.about(schema, name) if item.kind in (RELATION, GROUP, BOOKMARK)]

"""users.toml: the users of all nodes of a cluster, and their transfer to a node.

    [users.ann]
    verifier = "SCRAM-SHA-256$4096:..."
    superuser = true

A node makes its users equal to the file: new users are created, changed ones altered, and users not in the
file dropped with their grants; their objects then belong to the superusers. The user of an open session stays
the same.
Source: docs/cluster.md, "Users".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..catalog.passwords import read_verifier
from ..catalog.rights import Rights, User
from ..database import Database
from ..definitions.catalog_rows import run_numbered
from ..errors import InvalidParameterValue
from ..quoting import literal
from ..rights_changes import Change, DropUser, PutNonce, PutUser
from ..toml_file import did_you_mean, line_of, parse, read_text
from ..waiting import Waiting

WHAT = "users file"
USER_NAME_CHARS_MAX = 128
# Time for which a node waits for a writer before it changes its users.
LOCK_WAIT_MS = 60_000
_KEYS = {"verifier": str, "superuser": bool}
_KINDS = {str: "a string", bool: "true or false"}


def read_users(path: Path) -> dict[str, User]:
    """The users in a file by their names in lower case.

    Raises:
        InvalidParameterValue: the file is invalid, with file and line.
        IoError: the file cannot be read.
    """
    text = read_text(path, WHAT)
    values = parse(text, str(path), WHAT)

    def wrong(what: str, *place: str, hint: str | None = None) -> InvalidParameterValue:
        return InvalidParameterValue(f"{path}{line_of(text, *place)}: {what}", hint=hint)

    for key in values:
        if key != "users":
            raise wrong(f'unknown key "{key}"', key, hint="Users are tables: [users.ann].")
    named = values.get("users", {})
    if not isinstance(named, dict):
        raise wrong("users are tables: [users.ann]", "users")
    users: dict[str, User] = {}
    for name, said in named.items():
        place = ("users", name)
        if not 0 < len(name) <= USER_NAME_CHARS_MAX:
            raise wrong(f"a user's name has 1 to {USER_NAME_CHARS_MAX} characters", *place)
        if not isinstance(said, dict):
            raise wrong(f'user "{name}" wants a table', *place)
        for key, value in said.items():
            if key not in _KEYS:
                hint = did_you_mean(key, _KEYS, "Known are")
                raise wrong(f'unknown key "{key}" of user "{name}"', *place, key, hint=hint)
            if not isinstance(value, _KEYS[key]):
                raise wrong(f'"{key}" of user "{name}" wants {_KINDS[_KEYS[key]]}', *place, key)
        try:
            verifier = read_verifier(said.get("verifier", ""))
        except InvalidParameterValue as error:
            raise wrong(f'user "{name}": {error.message}', *place, "verifier") from None
        if verifier is None:
            raise wrong(
                f'user "{name}" wants a verifier, SCRAM-SHA-256$...', *place, "verifier",
                hint="`ducktail cluster user` writes one.",
            )  # fmt: skip
        user = User(name, verifier, said.get("superuser", False))
        if user.key in users:
            raise wrong(f'user "{name}" is there twice', *place)
        users[user.key] = user
    if not any(user.superuser for user in users.values()):
        raise wrong("no user is a superuser")
    return users


def render_users(users: Iterable[User]) -> str:
    """The text of a users.toml with these users."""
    lines = []
    for user in sorted(users, key=lambda user: user.key):
        lines.append(f"[users.{json.dumps(user.name, ensure_ascii=False)}]")
        lines.append(f'verifier = "{user.verifier}"')
        if user.superuser:
            lines.append("superuser = true")
        lines.append("")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DropBelongings(Change):
    """The end of a user's ownership: the user's objects have no owner, and the user's grants are void."""

    user: User

    def statements(self) -> Iterable[str]:
        """The statements that write the change."""
        yield f"DELETE FROM ducktail.owner_catalog WHERE owner = {literal(self.user.key)}"
        yield f"DELETE FROM ducktail.grant_catalog WHERE user_name = {literal(self.user.key)}"

    def apply(self, rights: Rights) -> Rights:
        """The rights after the change."""
        return replace(
            rights,
            owners={item: owner for item, owner in rights.owners.items() if owner != self.user.key},
            grants={key: given for key, given in rights.grants.items() if key[0] != self.user.key},
        )


def changes_to(rights: Rights, wanted: Mapping[str, User]) -> list[Change]:
    """The changes that make a node's users equal to these."""
    changes: list[Change] = [] if rights.nonce else [PutNonce()]
    for key, user in sorted(wanted.items()):
        known = rights.users.get(key)
        if known is None or (known.name, str(known.verifier), known.superuser) != (
            user.name, str(user.verifier), user.superuser,
        ):  # fmt: skip
            changes.append(PutUser(user if known is None else replace(user, number=known.number)))
    for key, user in sorted(rights.users.items()):
        if key not in wanted:
            changes += [DropBelongings(user), DropUser(user)]
    return changes


def make_equal(database: Database, wanted: Mapping[str, User]) -> Waiting[None]:
    """Make a node's users equal to these, all of them or none.

    Raises:
        LockNotAvailable: another session writes for too long.
    """
    owner, cursor = database.sessions.new_id(), database.cursor(utc=True)
    try:
        yield from database.transactions.lock_writer(owner, LOCK_WAIT_MS)
        try:
            changes = changes_to(database.rights, wanted)
            if changes:
                run_numbered(database, owner, cursor, [], lambda: None, changes)
        finally:
            database.transactions.writer_lock.release(owner)
    finally:
        cursor.close()

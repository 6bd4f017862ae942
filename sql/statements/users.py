"""CREATE, ALTER and DROP USER, tokens, GRANT and REVOKE. Source: docs/security.md.

Each is part of its transaction, under the writer lock: of two transactions that each remove one of the last
two superusers, the second one is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import duckdb

from ...engine import rights_changes as edit
from ...engine.catalog import rights as r
from ...engine.catalog.passwords import SALT_BYTES, verifier_of
from ...engine.cluster.users import USER_NAME_CHARS_MAX
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.objects import DEFAULT_SCHEMA, SCHEMA, TABLE
from ...engine.errors import (
    DependentObjects,
    DuplicateObject,
    InsufficientPrivilege,
    InvalidParameterValue,
    InvalidSchemaName,
    NotSupported,
    ObjectInUse,
    ProgramLimitExceeded,
    SerializationFailure,
    UndefinedObject,
    UndefinedTable,
    WrongState,
)
from ...engine.quoting import fold
from ...engine.transactions.transaction import CommitStep, Transaction
from ...engine.values.temporal_input import read_timestamptz
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.statements import PRIVILEGES
from ..results.results import Result
from ..session_state.context import Context
from .runners import answer, runs
from .set_and_show import PUBLIC

Values = tuple[object, ...]
# The privileges on each kind of object.
ON_TABLE = frozenset({"select", "insert", "update", "delete"})
ON_STREAM = frozenset({"select", "consume"})
ON_TOPIC = ON_STREAM | {"publish"}
ON_ALL = r.INHERITED | {"create"}
ON_GROUP = frozenset({"consume"})
# The random bytes of a token.
TOKEN_BYTES = 32
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _write(
    session: Context,
    work: Callable[[r.Rights], list[edit.Change]],
    last: Callable[[], None] = lambda: None,
) -> Waiting[None]:
    """Write changes of the rights; `work` computes them from the present rights under the writer lock.

    Args:
        last: checks before the COMMIT that they may still be made.
    """

    def locked(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        changes = work(session.access.rights)
        try:
            for change in changes:
                edit.add(session.database, transaction, change)
                transaction.at(CommitStep.CHECKS, last)
        except duckdb.Error as error:
            raise translated(error) from error

    yield from session.block.unit(locked)


def _own_users(session: Context, what: str) -> None:
    """Refuse the statement if a file defines the users."""
    file = session.database.placement.users
    if file is not None:
        raise NotSupported(
            f"{what} is not supported on a node whose users stand in a file",
            hint=f"Change {file} on all nodes, with `ducktail cluster user`, and send them SIGHUP.",
        )


def _credentials(session: Context, what: str) -> None:
    """Refuse the statement to the holder of a token, who would get access that outlives the token."""
    if session.access.by_token:
        raise InsufficientPrivilege(
            f"{what} is not permitted with a token", hint="Authenticate with user and password."
        )


def _user(rights: r.Rights, name: str) -> r.User:
    """The user of this name."""
    user = rights.users.get(name.lower())
    if user is None:
        raise UndefinedObject(f'user "{name}" does not exist')
    return user


@runs(st.CreateUser)
def create_user(session: Context, made: st.CreateUser, parameters: Values) -> Waiting[Result]:
    """CREATE USER u PASSWORD '...' [SUPERUSER]."""
    session.access.require_superuser("create a user")
    _credentials(session, "CREATE USER")
    _own_users(session, "CREATE USER")
    _check_name(made.name)
    user = r.User(made.name, verifier_of(made.password, secrets.token_bytes(SALT_BYTES)), made.superuser)

    def changes(rights: r.Rights) -> list[edit.Change]:
        if user.key in rights.users:
            raise DuplicateObject(f'user "{made.name}" already exists')
        if not rights.users and not user.superuser:
            raise WrongState(
                "the first user must be a superuser",
                detail="Once there is a user, whoever connects needs a password: nobody could make another.",
                hint="CREATE USER u PASSWORD '...' SUPERUSER",
            )
        return [edit.PutUser(user)] if rights.nonce else [edit.PutNonce(), edit.PutUser(user)]

    first = not session.access.rights.users
    yield from _write(session, changes)
    if first:
        session.notices.add("from now on every connection needs a user and a password")
    return Result.command(st.tag_of(made))


@runs(st.AlterUser)
def alter_user(session: Context, asked: st.AlterUser, parameters: Values) -> Waiting[Result]:
    """ALTER USER u [PASSWORD '...'] [SUPERUSER | NOSUPERUSER], or RENAME TO; users may set their own
    passwords."""
    _own_users(session, "ALTER USER")
    _credentials(session, "ALTER USER")
    if asked.new is not None:
        return (yield from _rename_user(session, asked.name, asked.new))
    own = asked.superuser is None and session.access.user == asked.name.lower()
    if not own:
        session.access.require_superuser("alter users")

    def changes(rights: r.Rights) -> list[edit.Change]:
        user = _user(rights, asked.name)
        verifier, superuser = user.verifier, user.superuser
        if asked.password is not None:
            verifier = verifier_of(asked.password, secrets.token_bytes(SALT_BYTES))
        if asked.superuser is not None:
            superuser = asked.superuser
        if user.superuser and not superuser:
            _keep_one(rights, user)
        return [edit.PutUser(replace(user, verifier=verifier, superuser=superuser))]

    yield from _write(session, changes)
    return Result.command(st.tag_of(asked))


def _rename_user(session: Context, name: str, new: str) -> Waiting[Result]:
    session.access.require_superuser("rename users")
    _check_name(new)

    def changes(rights: r.Rights) -> list[edit.Change]:
        user = _user(rights, name)
        if user.key == session.access.user:
            raise ObjectInUse("the current user cannot be renamed")
        if new.lower() != user.key and new.lower() in rights.users:
            raise DuplicateObject(f'user "{new}" already exists')
        return [edit.RenameUser(user, new)]

    yield from _write(session, changes)
    return Result.command("ALTER USER")


def _check_name(name: str) -> None:
    if len(name) > USER_NAME_CHARS_MAX:
        raise InvalidParameterValue(f"a user's name has at most {USER_NAME_CHARS_MAX} characters")


def _keep_one(rights: r.Rights, user: r.User) -> None:
    """Refuse to remove the last superuser, because nobody could create another."""
    if not any(other.superuser for other in rights.users.values() if other.key != user.key):
        raise WrongState(f'user "{user.name}" is the last superuser')


@runs(st.DropUser)
def drop_user(session: Context, dropped: st.DropUser, parameters: Values) -> Waiting[Result]:
    """DROP USER [IF EXISTS] u."""
    session.access.require_superuser("drop users")
    _own_users(session, "DROP USER")

    def changes(rights: r.Rights) -> list[edit.Change]:
        if dropped.if_exists and dropped.name.lower() not in rights.users:
            session.notices.add(f'user "{dropped.name}" does not exist, skipping')
            return []
        user = _user(rights, dropped.name)
        if user.key == session.access.user:
            raise ObjectInUse("the current user cannot be dropped")
        belongings = rights.belongings(user.key)
        # Nothing depends on a pipeline's reports: the superusers keep them.
        reported = [item for item in belongings if item.kind == r.PIPELINE]
        has = [item for item in belongings if item.kind != r.PIPELINE]
        if has:
            raise DependentObjects(
                f'user "{user.name}" cannot be dropped because some objects depend on him',
                detail=f"He owns, or has rights on, {', '.join(sorted(set(map(_shown, has))))}.",
                hint="DROP what he owns, and REVOKE ALL ON what he was given FROM him.",
            )
        if user.superuser and len(rights.users) > 1:
            _keep_one(rights, user)
        if len(rights.users) == 1:
            session.notices.add("there is no user any more: whoever is on this machine may come in")
        return [*map(edit.Forget, reported), edit.DropUser(user)]

    yield from _write(session, changes)
    return Result.command(st.tag_of(dropped))


TOKEN_COLUMNS = (("token_name", "VARCHAR"), ("token", "VARCHAR"), ("valid_until", "TIMESTAMP WITH TIME ZONE"))
TOKENS_COLUMNS = (
    ("token_name", "VARCHAR"),
    ("user_name", "VARCHAR"),
    ("created_at", "TIMESTAMP WITH TIME ZONE"),
    ("valid_until", "TIMESTAMP WITH TIME ZONE"),
    ("valid", "BOOLEAN"),
)


@runs(st.CreateToken, TOKEN_COLUMNS)
def create_token(session: Context, asked: st.CreateToken, parameters: Values) -> Waiting[Result]:
    """CREATE TOKEN t FOR USER u [VALID UNTIL '...']; users may create tokens of their own."""
    _credentials(session, "CREATE TOKEN")
    if session.access.user != asked.user.lower():
        session.access.require_superuser("create tokens of other users")
    _check_name(asked.name)
    until_us = None if asked.valid_until is None else _moment_us(session, asked.valid_until)
    text, now_us = r.TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES), session.database.clock.now_us()
    if until_us is not None and until_us <= now_us:
        raise InvalidParameterValue(f'"{asked.valid_until}" in VALID UNTIL is over')

    def changes(rights: r.Rights) -> list[edit.Change]:
        user = _user(rights, asked.user)
        if rights.token(asked.name) is not None:
            raise DuplicateObject(f'token "{asked.name}" already exists')
        if len(rights.tokens) >= r.TOKENS_MAX:
            raise ProgramLimitExceeded(
                f"a database has at most {r.TOKENS_MAX} tokens", hint="DROP TOKEN removes one."
            )
        return [edit.PutToken(r.Token(asked.name, user.key, r.digest_of(text), now_us, until_us))]

    yield from _write(session, changes)
    session.notices.add("the token is shown this once: only a hash of it is stored")
    return answer(asked, [[asked.name, text, until_us]])


def _moment_us(session: Context, text: str) -> int:
    """A timestamp in microseconds since 1970; without an offset it is in the session's TimeZone."""
    found = read_timestamptz(text, session.variables["TimeZone"])
    if not isinstance(found, datetime):
        raise InvalidParameterValue(f'VALID UNTIL takes a timestamp of the years 1 to 9999, not "{text}"')
    return (found - EPOCH) // timedelta(microseconds=1)


@runs(st.DropToken)
def drop_token(session: Context, dropped: st.DropToken, parameters: Values) -> Waiting[Result]:
    """DROP TOKEN [IF EXISTS] t; users may drop their own."""

    def changes(rights: r.Rights) -> list[edit.Change]:
        token = rights.token(dropped.name)
        if token is not None and session.access.limited and token.user != session.access.user:
            token = None  # As if it did not exist: names of others' tokens are hidden.
        if token is None and dropped.if_exists:
            session.notices.add(f'token "{dropped.name}" does not exist, skipping')
            return []
        if token is None:
            raise UndefinedObject(f'token "{dropped.name}" does not exist')
        return [edit.DropToken(token)]

    yield from _write(session, changes)
    return Result.command(st.tag_of(dropped))


@runs(st.ShowTokens, TOKENS_COLUMNS)
def show_tokens(session: Context, asked: st.ShowTokens, parameters: Values) -> Waiting[Result]:
    """SHOW TOKENS: the user's own; superusers see all."""
    rights, now_us = session.access.rights, session.database.clock.now_us()
    rows = [
        [
            token.name,
            rights.users[token.user].name if token.user in rights.users else token.user,
            token.created_at_us,
            token.valid_until_us,
            token.is_valid(now_us),
        ]
        for token in sorted(rights.tokens.values(), key=lambda token: token.key)
        if not session.access.limited or token.user == session.access.user
    ]
    return answer(asked, rows)
    yield


def _shown(item: r.Item) -> str:
    """An item, as text for a message."""
    if item.kind == r.DATABASE:
        return "the database"
    if item.kind == r.GROUP:
        return f'consumer group "{item.group}" on "{item.schema}.{item.name}"'
    if item.kind == r.BOOKMARK:
        return f'bookmark "{item.group}" on "{item.schema}.{item.name}"'
    if item.kind == r.SCHEMA:
        return f'schema "{item.schema}"'
    return f'"{item.schema}.{item.name}"'


@runs(st.Grant)
def grant(session: Context, asked: st.Grant, parameters: Values) -> Waiting[Result]:
    """GRANT privileges ON object TO u."""
    yield from _change(session, asked, lambda present, given: present | given)
    return Result.command(st.tag_of(asked))


@runs(st.Revoke)
def revoke(session: Context, asked: st.Revoke, parameters: Values) -> Waiting[Result]:
    """REVOKE privileges ON object FROM u."""
    yield from _change(session, asked, lambda present, given: present - given)
    return Result.command(st.tag_of(asked))


def _change(
    session: Context, asked: st.Grant, new: Callable[[frozenset[str], frozenset[str]], frozenset[str]]
) -> Waiting[None]:
    if session.block.begun:
        session.block.touched()
    judged = _judged(session, asked)

    def changes(rights: r.Rights) -> list[edit.Change]:
        # Another object may have got the name during the wait for the lock.
        if _judged(session, asked) != judged:
            raise SerializationFailure(f'"{asked.on}" has become another object', hint="Try again.")
        item, given, _ = judged
        user = _user(rights, asked.user)
        return [edit.SetGrants(user.key, item, new(rights.privileges(user.key, item), given))]

    def last() -> None:
        """Refuse an object that others have replaced meanwhile, which a block's snapshot does not show."""
        kind, item = (SCHEMA if judged[0].kind == r.SCHEMA else TABLE), judged[0]
        made_here = session.block.ddl or judged[2] == 0 or item.kind not in (r.SCHEMA, r.RELATION)
        if made_here or (item.schema, item.name) in session.database.catalog.streams:
            return
        there = session.database.objects.now(session.meta)[1].get(kind, item.schema, item.name or item.schema)
        if there is None or there.oid != judged[2]:
            raise SerializationFailure(f'"{asked.on}" has become another object', hint="Try again.")

    yield from _write(session, changes, last)


def _judged(session: Context, asked: st.Grant) -> tuple[r.Item, frozenset[str], int]:
    """The item, the privileges granted on it, and its identity (0 for an object that is not DuckDB's)."""
    item, possible = _target(session, asked)
    if not session.access.owns(item):
        raise InsufficientPrivilege(
            f"must be owner of {_shown(item)}", hint="A superuser may give rights on it as well."
        )
    given = frozenset(asked.privileges)
    if asked.privileges == PRIVILEGES:
        given = possible
    elif given - possible:
        raise InvalidParameterValue(
            f"privilege {', '.join(sorted(given - possible)).upper()} cannot be given on {_shown(item)}",
            hint=f"On it there is {', '.join(sorted(possible)).upper()}.",
        )
    kind, name = (SCHEMA, item.schema) if item.kind == r.SCHEMA else (TABLE, item.name)
    stream = session.database.catalog.streams.get((item.schema, item.name))
    if stream is not None:
        # Its view is recreated at each change of its columns.
        return item, given, stream.stream_id
    found = session.names.objects().get(kind, item.schema, name)
    return item, given, 0 if found is None else found.oid


def _target(session: Context, asked: st.Grant) -> tuple[r.Item, frozenset[str]]:
    """The item of a GRANT or REVOKE, and the privileges that exist on it."""
    if asked.kind == "database":
        if asked.on is not None and fold(str(asked.on)) != fold(session.database.name):
            session.database.check_name(fold(str(asked.on)))
        return r.THE_DATABASE, ON_ALL
    assert asked.on is not None
    if asked.kind == "schema":
        return _schema(session, asked.on), ON_ALL
    if asked.kind == "group":
        assert asked.group is not None
        stream = session.names.stream(asked.on.parts, asked.on.position)
        group = session.access.group(stream, asked.group, session.block.transaction, use=False)
        return r.group_item(stream.schema, stream.name, group.name), ON_GROUP
    key = session.names.table_key(asked.on.parts)
    if not session.names.kind_of(key) or not session.access.sees(key) or key[0] == "ducktail":
        raise UndefinedTable(f'relation "{asked.on}" does not exist', position=asked.on.position or None)
    if key[0] == "temp":
        raise InvalidParameterValue(f'"{asked.on}" is temporary: it is its session\'s alone')
    found = session.database.catalog.stream_of_view(key)
    possible = ON_TABLE if found is None else ON_TOPIC if found.topic else ON_STREAM
    return session.access.item_of(key), possible


def _schema(session: Context, name: st.Name) -> r.Item:
    if len(name.parts) > 1 or fold(name.last) == "ducktail":
        raise InvalidParameterValue(f'no rights can be given on schema "{name}"')
    # PostgreSQL's first schema is `main` here, where none has its name.
    is_main = fold(name.last) == PUBLIC and not session.names.has_schema(PUBLIC)
    schema = DEFAULT_SCHEMA if is_main else name.last
    if not session.names.has_schema(schema) or not session.access.sees_schema(schema):
        raise InvalidSchemaName(f'schema "{name.last}" does not exist')
    return r.schema_item(schema)

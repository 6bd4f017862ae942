"""Statements about users and their rights. Source: docs/sql.md, "Users"."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....engine.errors import InvalidTextRepresentation
from ....engine.quoting import fold, ident, literal
from .. import clauses
from ..clauses import Name, name_sql
from ..grammar import Grammar
from .row import Effect, InCluster, Right, Row, Statement


@dataclass(frozen=True, slots=True)
class CreateUser(Statement):
    """CREATE USER name PASSWORD password."""

    name: str
    password: str = field(repr=False)
    superuser: bool = False


@dataclass(frozen=True, slots=True)
class AlterUser(Statement):
    """ALTER USER name; None leaves a property unchanged.

    Args:
        new: the new name in RENAME TO, which excludes other changes.
    """

    name: str
    password: str | None = field(default=None, repr=False)
    superuser: bool | None = None
    new: str | None = None


@dataclass(frozen=True, slots=True)
class DropUser(Statement):
    """DROP USER name."""

    name: str
    if_exists: bool = False


PRIVILEGES = ("select", "insert", "update", "delete", "consume", "publish", "create")


@dataclass(frozen=True, slots=True)
class Grant(Statement):
    """GRANT privileges ON object TO user.

    Args:
        kind: 'relation' (a table, stream or topic), 'schema', 'database' or 'group'.
        on: the object; None for an unnamed database; for a group its stream.
        group: the consumer group.
    """

    privileges: tuple[str, ...]
    kind: str
    on: Name | None
    user: str
    group: str | None = None

    def __post_init__(self) -> None:
        assert self.privileges and set(self.privileges) <= set(PRIVILEGES)
        assert self.kind in ("relation", "schema", "database", "group")
        assert (self.group is None) == (self.kind != "group")
        assert self.on is not None or self.kind == "database"


@dataclass(frozen=True, slots=True)
class Revoke(Grant):
    """REVOKE privileges ON object FROM user."""


@dataclass(frozen=True, slots=True)
class CreateToken(Statement):
    """CREATE TOKEN name FOR USER user; `valid_until` is a timestamp's text."""

    name: str
    user: str
    valid_until: str | None = None


@dataclass(frozen=True, slots=True)
class DropToken(Statement):
    """DROP TOKEN name."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTokens(Statement):
    """SHOW TOKENS."""


def _superuser(g: Grammar) -> bool | None:
    word = g.accept_one("SUPERUSER", "NOSUPERUSER")
    return None if word is None else word == "SUPERUSER"


def _password(g: Grammar) -> str:
    position = g.position
    password = g.literal("the password")
    if not password:
        raise InvalidTextRepresentation("the password is empty", position=position)
    return password


def create_user(g: Grammar) -> Statement:
    """CREATE USER u [WITH] PASSWORD '...' [SUPERUSER]"""
    name = g.simple_name("the name of the user")
    g.accept("WITH")
    g.expect("PASSWORD")
    password = _password(g)
    return CreateUser(name, password, bool(_superuser(g)))


def alter_user(g: Grammar) -> Statement:
    """ALTER USER u { [WITH] [PASSWORD '...'] [SUPERUSER | NOSUPERUSER] | RENAME TO v }"""
    name = g.simple_name("the name of the user")
    if g.accept("RENAME", "TO"):
        return AlterUser(name, new=g.simple_name("the new name of the user"))
    g.accept("WITH")
    password = _password(g) if g.accept("PASSWORD") else None
    superuser = _superuser(g)
    if password is None and superuser is None:
        raise g.expected("PASSWORD '...', SUPERUSER, NOSUPERUSER or RENAME TO")
    return AlterUser(name, password, superuser)


def drop_user(g: Grammar) -> Statement:
    """DROP USER [IF EXISTS] u"""
    exists = g.accept("IF", "EXISTS")
    return DropUser(g.simple_name("the name of the user"), exists)


_PRIVILEGE_WORDS = tuple(word.upper() for word in PRIVILEGES)


def _privileges(g: Grammar) -> tuple[str, ...]:
    if g.accept("ALL"):
        g.accept("PRIVILEGES")
        return PRIVILEGES

    def privilege() -> str:
        word = g.accept_one(*_PRIVILEGE_WORDS)
        if word is None:
            raise g.expected(f"one of {', '.join(_PRIVILEGE_WORDS)}")
        return fold(word)

    given = g.listed(privilege)
    return tuple(word for word in PRIVILEGES if word in given)


def _object(g: Grammar) -> tuple[str, Name | None, str | None]:
    """ON object: its kind, its name, and the consumer group."""
    g.expect("ON")
    if g.peek() == "DATABASE" and (g.peek(1) in ("TO", "FROM") or g.is_name_ahead(1)):
        g.take()
        named = g.peek() not in ("TO", "FROM")
        return "database", g.full_name("the name of a database") if named else None, None
    if g.peek() == "SCHEMA" and g.is_name_ahead(1):
        g.take()
        return "schema", g.full_name("the name of a schema"), None
    if g.accept("CONSUMER", "GROUP"):
        group = g.simple_name("the name of a consumer group")
        g.expect("ON")
        return "group", g.full_name("the name of a stream"), group
    if g.peek() in ("TABLE", "STREAM", "TOPIC") and g.is_name_ahead(1):
        g.take()
    return "relation", g.full_name("the name of a table, a stream or a topic"), None


def grant(g: Grammar) -> Statement:
    """GRANT privilege, ... ON object TO u"""
    privileges = _privileges(g)
    kind, on, group = _object(g)
    g.expect("TO")
    return Grant(privileges, kind, on, g.simple_name("the name of a user"), group)


def revoke(g: Grammar) -> Statement:
    """REVOKE privilege, ... ON object FROM u"""
    privileges = _privileges(g)
    kind, on, group = _object(g)
    g.expect("FROM")
    return Revoke(privileges, kind, on, g.simple_name("the name of a user"), group)


def create_token(g: Grammar) -> Statement:
    """CREATE TOKEN t FOR USER u [VALID UNTIL '...']"""
    name = g.simple_name("the name of the token")
    g.expect("FOR", "USER")
    user = g.simple_name("the name of a user")
    until = g.literal("a timestamp") if g.accept("VALID", "UNTIL") else None
    return CreateToken(name, user, until)


def drop_token(g: Grammar) -> Statement:
    """DROP TOKEN [IF EXISTS] t"""
    exists = g.accept("IF", "EXISTS")
    return DropToken(g.simple_name("the name of the token"), exists)


def _create_token_sql(s: CreateToken) -> str:
    verb = f"CREATE TOKEN {ident(s.name)} FOR USER {ident(s.user)}"
    return clauses.words(verb, clauses.clause("VALID UNTIL", s.valid_until))


def _create_user_sql(s: CreateUser) -> str:
    verb = f"CREATE USER {ident(s.name)} PASSWORD {literal(s.password)}"
    return clauses.words(verb, clauses.when(s.superuser, "SUPERUSER"))


def _alter_user_sql(s: AlterUser) -> str:
    superuser = {True: "SUPERUSER", False: "NOSUPERUSER", None: ""}[s.superuser]
    renamed = "" if s.new is None else f"RENAME TO {ident(s.new)}"
    password = clauses.clause("PASSWORD", s.password)
    return clauses.words(f"ALTER USER {ident(s.name)}", password, superuser, renamed)


def _grant_sql(s: Grant) -> str:
    verb, word = ("REVOKE", "FROM") if isinstance(s, Revoke) else ("GRANT", "TO")
    kind = {"relation": "", "schema": "SCHEMA", "database": "DATABASE"}[s.kind]
    on = clauses.words(kind, "" if s.on is None else name_sql(s.on))
    return f"{verb} {', '.join(s.privileges).upper()} ON {on} {word} {ident(s.user)}"


ROWS = (
    Row(
        CreateUser,
        "CREATE USER, CREATE ROLE",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        create_user,
        "CREATE USER u PASSWORD '...' [SUPERUSER]",
        _create_user_sql,
    ),
    Row(
        AlterUser,
        "ALTER USER, ALTER ROLE",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        alter_user,
        "ALTER USER u [PASSWORD '...'] [SUPERUSER | NOSUPERUSER]",
        _alter_user_sql,
    ),
    Row(
        DropUser,
        "DROP USER, DROP ROLE",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        drop_user,
        "DROP USER [IF EXISTS] u",
        lambda s: clauses.drop("DROP USER", s.if_exists, ident(s.name)),
    ),
    Row(
        CreateToken,
        "CREATE TOKEN",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        create_token,
        "CREATE TOKEN t FOR USER u [VALID UNTIL '...']",
        _create_token_sql,
    ),
    Row(
        DropToken,
        "DROP TOKEN",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        drop_token,
        "DROP TOKEN [IF EXISTS] t",
        lambda s: clauses.drop("DROP TOKEN", s.if_exists, ident(s.name)),
    ),
    Row(
        ShowTokens,
        "SHOW TOKENS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ENTRY_NODE,
        lambda g: ShowTokens(),
    ),
    Row(
        Grant,
        "GRANT",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        grant,
        "GRANT privilege, ... ON { t | s | SCHEMA n | DATABASE } TO u",
        _grant_sql,
    ),
    Row(
        Revoke,
        "REVOKE",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        revoke,
        "REVOKE privilege, ... ON { t | s | SCHEMA n | DATABASE } FROM u",
        _grant_sql,
    ),
)

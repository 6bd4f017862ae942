"""The rest of our statements: publishing, pipelines, nodes, users and rights.

Each rule begins after its opening words. Source: docs/sql.md, "Streams", "Users".
"""

from __future__ import annotations

from ...engine.errors import InvalidParameterValue, InvalidTextRepresentation, SyntaxError_
from ...engine.quoting import fold
from ..text.tokens import PARAMETER, QUOTED
from .grammar import NUMBER, STRING, Grammar
from .options import Option
from .statements import (
    PRIVILEGES,
    AlterUser,
    CreateUser,
    DropUser,
    Fragment,
    Grant,
    InstallPlacement,
    Listen,
    Name,
    Notify,
    Number,
    Publish,
    ReportPipeline,
    Revoke,
    ShowCheckpoints,
    ShowNodes,
    ShowPlacement,
    Statement,
    Text,
    Unlisten,
)

_PRIVILEGE_WORDS = tuple(word.upper() for word in PRIVILEGES)


def publish(g: Grammar) -> Statement:
    """PUBLISH { TO | INTO } s [KEY expr] [HEADERS json] payload [WITH (...)]"""
    if g.accept_one("TO", "INTO") is None:
        raise g.expected("TO and the name of a topic")
    topic = g.full_name("the name of a topic")
    key = headers = None
    while g.peek() in ("KEY", "HEADERS"):
        if g.accept("KEY"):
            g.none_twice("KEY", key)
            key = _expression(g, "the key", "HEADERS")
        else:
            g.take()
            g.none_twice("HEADERS", headers)
            headers = _expression(g, "the headers", "KEY")
    form, payload = _payload(g)
    producer, sequence = _producer(g) if g.accept("WITH") else (None, None)
    return Publish(topic, payload, form, key, headers, producer, sequence)


def _producer(g: Grammar) -> tuple[Text | None, Number | None]:
    """( producer = 'name', sequence = n )"""
    position = g.position
    given: dict[str, Option] = {}
    g.expect("(")
    while True:
        option = _named_option(g)
        if option.name in given:
            raise SyntaxError_(f'option "{option.name}" is given twice', position=option.position)
        given[option.name] = option
        if not g.accept(","):
            break
    g.expect(")")
    if len(given) == 1:
        (known,) = given
        other = "sequence" if known == "producer" else "producer"
        raise InvalidParameterValue(
            f'option "{known}" wants "{other}" beside it',
            hint="WITH (producer = 'name', sequence = n) names what is published.",
            position=position,
        )
    return given["producer"].value, given["sequence"].value  # type: ignore[return-value]


def _named_option(g: Grammar) -> Option:
    """`name = value`, whose value may be a parameter."""
    name = g.word_ahead()
    if name is not None and g.peek(1) == "=" and g.peek(2) == PARAMETER and name.name.lower() in _PRODUCER:
        g.index += 2
        return Option(name.name.lower(), g.parameter(), name.start + 1)  # type: ignore[arg-type]
    return g.option("publish")


_OPERANDS = (STRING, PARAMETER, "NULL")
# What stands before an operand, besides operators: types (`KEY DATE '2026-01-01' 'payload'`) and some words.
_BEFORE_OPERANDS = frozenset(
    {"DATE", "TIME", "TIMETZ", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}
    | {"UUID", "BLOB", "INTERVAL"}
    | {"IS", "NOT", "LIKE", "ILIKE", "AND", "OR", "COLLATE", "FROM"}
)
_PRODUCER = ("producer", "sequence")
# What may end an expression, and has no bracket behind it within one.
_ENDS = frozenset({")", "]", *_OPERANDS, NUMBER})


def _expression(g: Grammar, what: str, other: str) -> Fragment:
    """An expression that ends where the payload or the other clause begins."""
    first = g.index
    if g.at_end:
        raise g.expected(what)
    g.take()
    depth = g.tokens[first].depth
    while not g.at_end:
        token = g.tokens[g.index]
        if token.depth == depth and token.kind in ("VALUES", "SELECT", "WITH", other, *_OPERANDS):
            # A string or a parameter is the payload unless it is an operand: `KEY 'a' || 'b'`.
            # Behind a cast, as in `KEY 'a'::UUID 'b'`, the type's word is no prefix of a literal.
            before = g.peek(-1)
            operand = _is_operator(before) or (before in _BEFORE_OPERANDS and g.peek(-2) != "::")
            if token.kind not in _OPERANDS or not operand:
                break
        if token.depth == depth and token.kind == ",":
            break
        if token.depth == depth and token.kind == "(" and g.peek(-1) in _ENDS:
            break  # No expression goes on so: it is a payload in brackets, as drivers put values in.
        g.index += 1
    return Fragment(g.cut(first, g.index), g.tokens[first].start + 1)


def _is_operator(kind: str) -> bool:
    return not (
        kind[:1].isalnum() or (kind[:1] in ("_", "<", ")", "]", "}") and kind not in ("<", "<=", "<>"))
    )


def _payload(g: Grammar) -> tuple[str, Fragment]:
    if g.at_end:
        raise g.expected("a payload: a string, VALUES or SELECT")
    first = g.peek()
    if first == "VALUES":
        return "values", g.fragment(("WITH",), "a payload")
    if first in ("SELECT", "FROM", "TABLE") or (first == "WITH" and g.peek(1) != "("):
        return "select", _query(g)
    return "value", g.fragment(("WITH", ","), "a payload: a string, VALUES or SELECT")


def _query(g: Grammar) -> Fragment:
    """A query, up to the options in brackets behind it."""
    tokens, first = g.tokens, g.index
    end, depth = len(tokens), tokens[first].depth
    for at in range(first + 1, end - 1):
        if tokens[at].kind == "WITH" and tokens[at + 1].kind == "(" and tokens[at].depth == depth:
            end = at
    g.index = end
    return Fragment(g.cut(first, end), tokens[first].start + 1)


def _channel(g: Grammar, what: str) -> str:
    """A channel's name: small letters unless it is quoted, as PostgreSQL has it."""
    quoted = g.peek() == QUOTED
    name = g.simple_name(what)
    return name if quoted else fold(name)


def listen(g: Grammar) -> Statement:
    """LISTEN channel"""
    return Listen(_channel(g, "the name of a stream or channel"))


def unlisten(g: Grammar) -> Statement:
    """UNLISTEN { channel | * }"""
    return Unlisten(None if g.accept("*") else _channel(g, "the name of a stream or channel, or *"))


def notify(g: Grammar) -> Statement:
    """NOTIFY channel [, 'payload']"""
    channel = _channel(g, "the name of a channel")
    if not g.accept(","):
        return Notify(channel, "")
    if g.peek() != STRING:
        raise g.expected("a payload: a string")
    return Notify(channel, g.take().value)


def show_checkpoints(g: Grammar) -> Statement:
    """SHOW CHECKPOINTS [ON s]"""
    return ShowCheckpoints(g.full_name("the name of a stream") if g.accept("ON") else None)


def show_nodes(g: Grammar) -> Statement:
    """SHOW NODES"""
    return ShowNodes()


def show_placement(g: Grammar) -> Statement:
    """SHOW PLACEMENT"""
    return ShowPlacement()


def install_placement(g: Grammar) -> Statement:
    """INSTALL PLACEMENT 'the text of cluster.toml'"""
    return InstallPlacement(g.string("the text of cluster.toml"))


def report_pipeline(g: Grammar) -> Statement:
    """REPORT PIPELINE 'name' AS '{...}'"""
    name = g.string("the name of the pipeline")
    g.expect("AS")
    return ReportPipeline(name, g.string("a JSON object"))


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


def _privileges(g: Grammar) -> tuple[str, ...]:
    if g.accept("ALL"):
        g.accept("PRIVILEGES")
        return PRIVILEGES

    def privilege() -> str:
        word = g.accept_one(*_PRIVILEGE_WORDS)
        if word is None:
            raise g.expected(f"one of {', '.join(_PRIVILEGE_WORDS)}")
        return word.lower()

    given = g.listed(privilege)
    return tuple(word for word in PRIVILEGES if word in given)


def _object(g: Grammar) -> tuple[str, Name | None, str | None]:
    """What stands behind ON: its kind, its name, and the consumer group."""
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

"""PUBLISH, and the INSERT that runs it: the user's own pieces with other words around them.

    PUBLISH TO s KEY k 'payload'        INSERT INTO s (key, payload) VALUES ((k), ('payload'))
    PUBLISH TO s KEY k SELECT ...       INSERT INTO s (key, payload)
                                        SELECT (k), q.payload FROM (SELECT ...) AS q(payload)
    PUBLISH TO s VALUES (...)           INSERT INTO s VALUES (...)

The user's pieces keep their order, so that positions in one text can be converted to the other.
Source: docs/sql.md, "PUBLISH".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ....engine.errors import DucktailError, InvalidParameterValue, SyntaxError_
from ....engine.quoting import fold
from ...text.spans import AS_THEY_ARE, Replacement, cut, user_position
from ...text.tokens import PARAMETER, Token, tokenize
from .. import clauses
from ..clauses import Fragment, Name, Number, Option, Text, name_sql, scalar_sql
from ..grammar import NUMBER, STRING, Grammar
from .row import Effect, InCluster, Right, Row, Statement


@dataclass(frozen=True, slots=True)
class Publish(Statement):
    """PUBLISH TO topic.

    Args:
        key, headers: texts of expressions, or None.
        payload: the text of the payload, the rows or the query.
        form: 'value' (one expression), 'values' or 'select'.
        producer, sequence: the values of WITH, both or none; they identify the statement, so that a retry
            publishes nothing twice.
    """

    topic: Name
    payload: Fragment
    form: str = "value"
    key: Fragment | None = None
    headers: Fragment | None = None
    producer: Text | None = None
    sequence: Number | None = None

    def __post_init__(self) -> None:
        assert self.form in ("value", "values", "select")
        assert (self.producer is None) == (self.sequence is None)


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
    if name is not None and g.peek(1) == "=" and g.peek(2) == PARAMETER and fold(name.name) in _PRODUCER:
        g.index += 2
        return Option(fold(name.name), g.parameter(), name.start + 1)  # type: ignore[arg-type]
    return g.option("publish")


_OPERANDS = (STRING, PARAMETER, "NULL")


# Tokens that may precede an operand, besides operators: types (`KEY DATE '2026-01-01' 'payload'`) and some
# words.
_BEFORE_OPERANDS = frozenset(
    {"DATE", "TIME", "TIMETZ", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}
    | {"UUID", "BLOB", "INTERVAL"}
    | {"IS", "NOT", "LIKE", "ILIKE", "AND", "OR", "COLLATE", "FROM"}
)


_PRODUCER = ("producer", "sequence")


# Tokens that may end an expression, and that no parenthesis follows within one.
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
            # After a cast, as in `KEY 'a'::UUID 'b'`, the type's word is no prefix of a literal.
            before = g.peek(-1)
            operand = _is_operator(before) or (before in _BEFORE_OPERANDS and g.peek(-2) != "::")
            if token.kind not in _OPERANDS or not operand:
                break
        if token.depth == depth and token.kind == ",":
            break
        if token.depth == depth and token.kind == "(" and g.peek(-1) in _ENDS:
            break  # A payload in parentheses, as drivers insert values.
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
    """A query, up to the options in parentheses after it."""
    tokens, first = g.tokens, g.index
    end, depth = len(tokens), tokens[first].depth
    for at in range(first + 1, end - 1):
        if tokens[at].kind == "WITH" and tokens[at + 1].kind == "(" and tokens[at].depth == depth:
            end = at
    g.index = end
    return Fragment(g.cut(first, end), tokens[first].start + 1)


@dataclass(frozen=True, slots=True)
class Published:
    """The parts of a PUBLISH that are not in its INSERT.

    Args:
        pieces: the replacements that make the INSERT of the user's text.
        producer, sequence: the values of WITH; both or none.
    """

    pieces: tuple[Replacement, ...]
    producer: Text | None
    sequence: Number | None

    def users(self, position: int | None) -> int | None:
        """The position in the user's text of a position (from 1) in the INSERT."""
        return None if position is None else user_position(position, self.pieces)


def as_insert(text: str, node: Publish) -> tuple[str, Published]:
    """Rewrite a PUBLISH as an INSERT; returns its text and the parts that it does not contain."""
    given = (("key", node.key), ("headers", node.headers))
    clauses = [(name, part) for name, part in given if part is not None]
    clauses.sort(key=lambda clause: clause[1].position)
    tokens = tokenize(text)
    start, end = _name_span(tokens, node.topic.position - 1)
    parts = [part for _, part in clauses]
    columns = f" ({', '.join([name for name, _ in clauses] + ['payload'])}) " if clauses else " "
    if node.form == "value":
        marks = [f"{columns}VALUES (", *["), ("] * len(parts), "))"]
        marks[0] += "("
    elif clauses:
        marks = [f"{columns}SELECT (", *["), ("] * (len(parts) - 1)]
        # KEY and HEADERS may name other columns of a query; those of VALUES would be lost.
        published = "*" if node.form == "values" else "payload"
        marks += [f"), q.{published} FROM (", "\n) AS q(payload)"]
    else:
        marks = [columns, ""]
    spans = [(end, end), *((_begin(part), _end(part)) for part in (*parts, node.payload))]
    spans.append((len(text), len(text)))
    between = zip(spans[:-1], spans[1:], marks, strict=True)
    pieces = [Replacement(tokens[0].start, start, "INSERT INTO ")]
    pieces += [Replacement(left[1], right[0], mark) for left, right, mark in between]
    return cut(text, pieces), Published(tuple(pieces), node.producer, node.sequence)


def _begin(part: Fragment) -> int:
    return part.position - 1


def _end(part: Fragment) -> int:
    return part.position - 1 + len(part.text)


def _name_span(tokens: tuple[Token, ...], start: int) -> tuple[int, int]:
    """The start and end of the topic's name."""
    at = next(index for index, token in enumerate(tokens) if token.start == start)
    while tokens[at + 1].kind == ".":
        at += 2
    return start, tokens[at].end


def _publish_sql(s: Publish) -> str:
    def part(word: str, fragment: Fragment | None) -> str:
        return "" if fragment is None else f"{word} {fragment.text}"

    producer = ""
    if s.producer is not None and s.sequence is not None:
        producer = f"WITH (producer = {scalar_sql(s.producer)}, sequence = {scalar_sql(s.sequence)})"
    topic = f"PUBLISH TO {name_sql(s.topic)}"
    return clauses.words(topic, part("KEY", s.key), part("HEADERS", s.headers), s.payload.text, producer)


ROWS = (
    Row(
        Publish,
        "PUBLISH",
        Right.PUBLISH,
        Effect.WRITES,
        InCluster.ENTRY_NODE_FOR_TOPICS,
        publish,
        "PUBLISH TO s [KEY expr] [HEADERS json] { 'payload' | VALUES (...) | SELECT ... } [WITH (...)]",
        _publish_sql,
    ),
)


def published_positions(published: Published | None) -> AbstractContextManager[None]:
    """Context in which error positions refer to the PUBLISH, and not to its INSERT."""
    return AS_THEY_ARE if published is None else _positions(published)


@contextmanager
def _positions(published: Published) -> Iterator[None]:
    try:
        yield
    except DucktailError as error:
        error.position = published.users(error.position)
        raise

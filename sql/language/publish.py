"""PUBLISH as the INSERT that it is: the same text with other words around the user's own.

    PUBLISH TO s KEY k 'payload'        INSERT INTO s (key, payload) VALUES ((k), ('payload'))
    PUBLISH TO s KEY k SELECT ...       INSERT INTO s (key, payload)
                                        SELECT (k), q.payload FROM (SELECT ...) AS q(payload)
    PUBLISH TO s VALUES (...)           INSERT INTO s VALUES (...)

The user's pieces stay in their order, so that places in the one text are places in the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..text.spans import Replacement, cut, user_position
from ..text.tokens import Token, tokenize
from .statements import Fragment, Number, Publish, Text


@dataclass(frozen=True, slots=True)
class Published:
    """What a PUBLISH has beside its INSERT.

    Args:
        pieces: what makes the INSERT of the user's text.
        producer, sequence: of WITH; both or none.
    """

    pieces: tuple[Replacement, ...]
    producer: Text | None
    sequence: Number | None

    def users(self, position: int | None) -> int | None:
        """A place in the INSERT, from 1, as a place in the user's text."""
        return None if position is None else user_position(position, self.pieces)


def as_insert(text: str, node: Publish) -> tuple[str, Published]:
    """The INSERT of a PUBLISH, and what it has besides."""
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
        # KEY and HEADERS may name further columns of a query; those of VALUES would be lost.
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
    """Where the topic's name begins and ends."""
    at = next(index for index, token in enumerate(tokens) if token.start == start)
    while tokens[at + 1].kind == ".":
        at += 2
    return start, tokens[at].end

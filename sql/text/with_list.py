"""The common table expressions of a statement that writes in some of them, found by tokens.

DuckDB lets a common table expression write only at the top of a statement: behind brackets, CREATE
TABLE ... AS, COPY ( and EXPLAIN at most. So this list is all that can write besides the statement
itself. Places are characters of the text, from 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...engine.quoting import fold
from .classified import Classified, Kind, Reader
from .classify import classify, take_cte_head
from .tokens import tokenize


@dataclass(frozen=True, slots=True)
class Part:
    """One common table expression.

    Args:
        name: as written, unquoted.
        columns: how many names its column list has, 0 without one.
        head: its text up to and with the opening bracket.
        start, end: where what stands in its brackets begins and ends.
        body: that text, classified.
    """

    name: str
    columns: int
    head: str
    start: int
    end: int
    body: Classified

    @property
    def writes(self) -> bool:
        """Whether it is an INSERT, UPDATE, DELETE or TRUNCATE."""
        return self.body.kind is Kind.DML


def with_list(statement: Classified) -> tuple[Part, ...]:
    """The common table expressions at the top of a statement, in order; () where it has none."""
    reader = Reader(statement.text, statement.tokens, _begins(statement))
    while reader.accept("("):
        pass
    if not reader.accept("WITH"):
        return ()
    reader.accept("RECURSIVE")
    parts = []
    while True:
        first = reader.index
        name, columns = take_cte_head(reader)
        opening = reader.index
        _, closing = reader.brackets()
        start, end = reader.tokens[opening].end, reader.tokens[closing].start
        head = reader.text[reader.tokens[first].start : start]
        # What no statement may be (COPY to a file, say) is DuckDB's to judge: it writes no table.
        body = classify(reader.text[start:end])
        parts.append(Part(name, columns, head, start, end, body))
        if not reader.accept(","):
            return tuple(parts)


def _begins(statement: Classified) -> int:
    """Index of the token that the query begins with, brackets before it included."""
    offset = 0
    if statement.ddl is not None:
        offset = statement.ddl.query_offset or 0
    elif statement.copy is not None:
        offset = statement.copy.query_offset or 0
    return next((i for i, token in enumerate(statement.tokens) if token.start >= offset), 0)


def words(text: str) -> frozenset[str]:
    """Every name in a text, in small letters, wherever it stands."""
    return frozenset(fold(token.name) for token in tokenize(text) if token.is_name)


def needed(parts: Iterable[Part], named: Collection[str]) -> list[Part]:
    """Which of the parts a text with these words needs, those that they need in turn included."""
    wanted = set(named)
    found = []
    for part in reversed(tuple(parts)):
        if fold(part.name) in wanted:
            found.append(part)
            wanted |= words(part.body.text)
    return found[::-1]

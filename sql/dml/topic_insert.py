"""Splitting of an INSERT into a topic: the query with the published rows, and RETURNING."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.capture.capture import Verb
from ...engine.errors import InvalidParameterValue, NotSupported, UndefinedColumn
from ...engine.log.topic_rows import COLUMNS
from ...engine.quoting import fold
from ..text.classified import Classified
from ..text.spans import Replacement, cut
from ..text.tokens import PARAMETER, STRING, Token, closing
from .cut import Cut
from .dml import column_list, conflict_at


@dataclass(frozen=True, slots=True)
class TopicInsert:
    """An INSERT into a topic.

    Args:
        query: the text of what is inserted, with the WITH before the statement.
        pieces: what makes it of the statement's text.
        columns: which columns of the topic the query's are; None for all, or as many as it has.
        by_name: the query's columns are found by their names.
        relation: the name by which RETURNING knows the topic.
        returning: its select list, or None.
        row: where the query is one row of parameters (their numbers, from 1) and strings, that row.
    """

    query: str
    pieces: tuple[Replacement, ...]
    columns: tuple[str, ...] | None
    by_name: bool
    relation: str
    returning: str | None
    row: tuple[int | str, ...] | None = None

    def named(self, names: tuple[str, ...]) -> tuple[str | None, ...]:
        """The role of each of the query's columns, given their names.

        Raises:
            InvalidParameterValue: they are too many or too few. UndefinedColumn.
        """
        given: tuple[str, ...] = names if self.by_name else self.columns or COLUMNS[: len(names)]
        found = tuple(fold(name) for name in given)
        unknown = next((name for name, low in zip(given, found, strict=True) if low not in COLUMNS), None)
        if unknown is not None:
            raise UndefinedColumn(f'column "{unknown}" of a topic does not exist', hint=_HINT)
        if len(found) != len(names):
            few = "fewer" if len(names) < len(found) else "more"
            raise InvalidParameterValue(f"{few} values than columns are published", hint=_HINT)
        if len(set(found)) < len(found):
            raise InvalidParameterValue("a column of the topic is named twice")
        if "payload" not in found:
            raise InvalidParameterValue("there is no payload", hint=_HINT)
        return found


_HINT = "A topic's columns are payload, key and headers."


def cut_insert(statement: Classified, schema: str) -> TopicInsert:
    """Cut an INSERT into a topic.

    Raises:
        NotSupported: a form that an append cannot have.
    """
    facts = statement.dml
    assert facts is not None
    cutting = Cut(statement, facts, schema)
    reader = cutting.reader
    if cutting.head("INTO") is not None:
        raise NotSupported("INSERT OR ... into a topic is not supported", hint="A topic has no unique key.")
    columns = column_list(cutting)
    if reader.accept("OVERRIDING"):
        raise NotSupported("OVERRIDING is not supported on a topic")
    by_name = reader.accept("BY", "NAME")
    reader.accept("BY", "POSITION")
    first, end = reader.index, min(cutting.returning_at, cutting.end)
    if conflict_at(cutting, first, end) < end:
        raise NotSupported(
            "ON CONFLICT is not supported on a topic",
            hint="WITH (producer = 'name', sequence = n) of PUBLISH stores a repeated event once.",
        )
    if reader.peek() == "DEFAULT":
        raise NotSupported("DEFAULT VALUES is not supported on a topic", hint=_HINT)
    tokens, text = cutting.tokens, statement.text
    if first >= end:
        raise reader.unexpected()
    pieces = (
        Replacement(tokens[facts.main].start, tokens[first].start, ""),
        Replacement(tokens[end - 1].end, len(text), ""),
    )
    found = cutting.dml(Verb.INSERT)
    row = None if by_name or cutting.with_text else _row(tokens[first:end])
    return TopicInsert(cut(text, pieces), pieces, columns, by_name, found.relation, found.returning, row)


def _row(tokens: Sequence[Token]) -> tuple[int | str, ...] | None:
    """The parameters and strings of `VALUES (a, b)`, each perhaps in brackets of its own."""
    if len(tokens) < 4 or tokens[0].kind != "VALUES" or tokens[1].kind != "(":
        return None
    last = closing(tokens, 1)
    if last != len(tokens) - 1:
        return None
    row: list[int | str] = []
    wanted = True
    at = 2
    while at < last:
        bracketed = tokens[at].kind == "("
        at += bracketed
        token = tokens[at]
        digits = token.text[1:]
        if not wanted:
            if token.kind != "," or bracketed:
                return None
        elif token.kind == STRING and token.text[0] == "'":
            row.append(token.value)
        elif token.kind == PARAMETER and token.text[0] == "$" and digits.isascii() and digits.isdigit():
            row.append(int(digits))
        else:
            return None
        wanted = not wanted
        at += 1
        if bracketed:
            if tokens[at].kind != ")":
                return None
            at += 1
    return tuple(row) if not wanted else None

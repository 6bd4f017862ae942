"""Spans of the user's text replaced by other text, and places told back in the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .tokens import tokenize


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of the user's text and what stands there instead."""

    start: int
    end: int
    text: str


def cut(text: str, pieces: Sequence[Piece]) -> str:
    """The text with some spans replaced; insertions are spans without length."""
    parts, last = [], 0
    for piece in sorted(pieces, key=lambda p: (p.start, p.end)):
        parts += [text[last : piece.start], piece.text]
        last = piece.end
    return "".join(parts) + text[last:]


def user_position(position: int, pieces: Sequence[Piece]) -> int:
    """The place in the user's text of a place (from 1) in the text that `cut` made."""
    shift = 0
    for piece in sorted(pieces, key=lambda p: (p.start, p.end)):
        begins = piece.start + shift
        if position - 1 < begins:
            break
        if position - 1 < begins + len(piece.text):
            return piece.start + 1
        shift += len(piece.text) - (piece.end - piece.start)
    return position - shift


def numbered(text: str, parameters: Sequence[object]) -> tuple[str, list[object]]:
    """The text with its parameters numbered from 1 without gaps, and their values.

    A parameter of our own clauses is not in DuckDB's text any more, and DuckDB wants exactly those
    that are.
    """
    if not parameters:
        return text, []
    order: dict[int, int] = {}
    parts, last = [], 0
    for token in tokenize(text):
        if token.text.startswith("$") and token.text[1:].isdigit():
            place = order.setdefault(int(token.text[1:]), len(order) + 1)
            parts += [text[last : token.start], f"${place}"]
            last = token.end
    values = [parameters[index - 1] if index <= len(parameters) else None for index in order]
    return "".join(parts) + text[last:], values

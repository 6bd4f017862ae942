"""A statement without its values, for logs: what stands between quotes and every number is `?`.

Whoever reads a log is told what was slow, not what was in it: a literal may be a password, a name, a
card's number, and drivers that put parameters into the text make each of them a literal.
"""

from __future__ import annotations

from ...engine.errors import SyntaxError_
from .tokens import NUMBER, STRING, tokenize

MASK = "?"
# As much of a statement as a line of a log has room for.
SHOWN_CHARS_MAX = 1000


def masked(text: str) -> str:
    """The tokens of a statement, one space between them, without literals and comments; cut where it is long.

    A text that has no tokens, because a quote in it is not closed, is not shown at all.
    """
    try:
        tokens = tokenize(text)
    except SyntaxError_:
        return MASK
    words: list[str] = []
    size = 0
    for token in tokens:
        word = MASK if token.kind in (STRING, NUMBER) else token.text
        if size + len(word) > SHOWN_CHARS_MAX:
            words.append("...")
            break
        words.append(word)
        size += len(word) + 1
    return " ".join(words)

"""sqlglot's tree of a query that holds stream scans.

The tree is only looked at, to find what shape a query has; what DuckDB runs is the user's own text.
Where sqlglot does not understand what DuckDB might, there is no tree, and DuckDB is the judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from ...engine.errors import SyntaxError_
from .dialect import Ducktail, DucktailParser
from .statements import Scan

# sqlglot's parser recurses; a statement nested deeper than Python's stack is given up, not crashed on.
_GIVEN_UP = (SqlglotError, RecursionError, KeyError, AttributeError, TypeError, ValueError, AssertionError)


def parse_tree(text: str, start: int, end: int, scans: Sequence[Scan]) -> exp.Expr | SyntaxError_:
    """The tree of the characters [start, end) of a text; its nodes have places in the whole text.

    Args:
        scans: the stream scans of the text, which the parser takes where they stand.

    Returns:
        The tree, or the error with which sqlglot gave up.
    """
    dialect = Ducktail()
    parser = dialect.parser(error_level=ErrorLevel.IMMEDIATE)
    assert isinstance(parser, DucktailParser)
    parser.scans = {scan.start: scan for scan in scans}
    try:
        trees = parser.parse(dialect.tokenize(" " * start + text[start:end]), text)
    except _GIVEN_UP:
        token = parser.failed_at
        if token is None:
            return SyntaxError_("syntax error at end of input", position=len(text) + 1)
        near = text[token.start : token.end + 1]
        return SyntaxError_(f'syntax error at or near "{near}"', position=token.start + 1)
    found = [tree for tree in trees if tree is not None]
    return found[0] if len(found) == 1 else SyntaxError_("syntax error", position=start + 1)

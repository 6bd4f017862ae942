"""sqlglot's tree of a query that holds stream scans.

The tree is only looked at, to find what shape a query has; what DuckDB runs is the user's own text.
Where sqlglot does not understand what DuckDB might, there is no tree, and DuckDB is the judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.tokenizer_core import Token

from ...engine.errors import SyntaxError_
from .dialect import Ducktail, in_duckdbs_words, put_list_ends, put_ours_in, quiet, with_places
from .scan import Scan

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
    known = {scan.start: scan for scan in scans}
    tokens: list[Token] = []
    try:
        tokens = with_places(in_duckdbs_words(dialect.tokenize(" " * start + text[start:end]), known))
        with quiet():
            trees = parser.parse(tokens, text)
    except _GIVEN_UP as error:
        token = _failed_at(error, tokens if parser._curr else tokens[:-1])
        if token is None:
            return SyntaxError_("syntax error at end of input", position=len(text) + 1)
        near = text[token.start : token.end + 1]
        return SyntaxError_(f'syntax error at or near "{near}"', position=token.start + 1)
    found = [tree for tree in trees if tree is not None]
    if len(found) != 1:
        return SyntaxError_("syntax error", position=start + 1)
    put_ours_in(found[0], known)
    put_list_ends(found[0], tokens)
    return found[0]


def _failed_at(error: Exception, tokens: Sequence[Token]) -> Token | None:
    """The token at which the parser gave up; None at the end of the text.

    Args:
        tokens: without the last one, which the parser tells of, where it stands behind it.
    """
    if not isinstance(error, ParseError):
        return None
    places = {(told.get("line"), told.get("col")) for told in error.errors}
    return next((token for token in tokens if (token.line, token.col) in places), None)

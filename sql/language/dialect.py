"""The sqlglot dialect: ducktail's tokens are replaced by DuckDB's before the parser reads them.

sqlglot's compiled build (`sqlglot[c]`) allows no subclass of its parser, generator or nodes in Python, so
DuckDB's parser is used unchanged. It sees a stream scan as the name of a table and LIMIT n TRANSACTIONS as
a limit with options that DuckDB does not have; it does not see ducktail's own statements at all. Their
values are in the `meta` of the nodes. The keywords carry positions that trees lack, such as the end of a
select list, through the parser as comments.

The nodes that represent ducktail's additions are sqlglot's own classes: a statement of ducktail is a
`Command`, a stream scan a `Table`, so that code which walks a tree for tables and scopes finds it as a
source. The dataclass in their `meta` is authoritative; their text is in ducktail's language, and DuckDB's
generator writes it.

The dialect is registered through the entry point `sqlglot.dialects`, so that `sqlglot.parse_one(text,
dialect="ducktail")` reads the language and `.sql("ducktail")` writes it. The session calls `parse_tree`:
the tree is only inspected, to find the shape of a query, and DuckDB runs the user's own text. If sqlglot
does not understand a text there is no tree, and DuckDB decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from ...engine.errors import SyntaxError_
from ..text.tokens import tokenize
from .grammar import Grammar
from .scan import Scan, find_scans, render_scan
from .statements.row import Statement
from .statements.table import find_opening, render_statement

# The end of a Select's select list in the text, from 0, for edits of the user's text.
LIST_END = "ducktail_list_end"
_STATEMENT, _SCAN, _TRANSACTIONS = "ducktail_statement", "ducktail_scan", " TRANSACTIONS"


def statement_node(statement: Statement) -> exp.Command:
    """The node of a statement of ducktail."""
    verb, _, rest = render_statement(statement).partition(" ")
    node = exp.Command(this=verb, expression=f" {rest}" if rest else None)
    node.meta[_STATEMENT] = statement
    return node


def statement_of(node: exp.Expr) -> Statement | None:
    """The statement of ducktail that a node represents; None for another node."""
    statement: Statement | None = node.meta.get(_STATEMENT)
    return statement


def become_scan(table: exp.Expr, scan: Scan) -> None:
    """Turn a table into a stream scan; the later nodes of the tree are unchanged."""
    table.set("this", exp.Var(this=render_scan(scan)))
    table.meta[_SCAN] = scan


def scan_of(node: exp.Expr) -> Scan | None:
    """The stream scan that a node represents: its clauses and its span in the text."""
    scan: Scan | None = node.meta.get(_SCAN)
    return scan


def become_transactions(limit: exp.Expr) -> None:
    """Mark a limit as one of transactions."""
    limit.set("limit_options", exp.Var(this=_TRANSACTIONS))


def counts_transactions(limit: exp.Expr) -> bool:
    """True if a limit counts transactions."""
    options = limit.args.get("limit_options")
    return isinstance(options, exp.Var) and options.name == _TRANSACTIONS


# The prefix of data that a token carries through the parser; a text has no such character.
_MARK = "\0"
_QUIET: ContextVar[bool] = ContextVar("ducktail_quiet", default=False)
# Tokens that end a select list after FROM ... SELECT.
_BEHIND_LIST = frozenset(
    {TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.WINDOW, TokenType.QUALIFY}
    | {TokenType.ORDER_BY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH, TokenType.UNION}
    | {TokenType.INTERSECT, TokenType.EXCEPT, TokenType.TABLE_SAMPLE, TokenType.USING, TokenType.SEMICOLON}
)
_NAMED = frozenset({TokenType.DOT, TokenType.ALIAS})
_ENDS_NUMBER = frozenset(
    {TokenType.NUMBER, TokenType.STRING, TokenType.R_PAREN, TokenType.VAR, TokenType.NULL}
    | {TokenType.PLACEHOLDER}
)
# sqlglot's parser recurses; on a statement nested deeper than Python's stack it gives up and does not crash.
_GIVEN_UP = (SqlglotError, RecursionError, KeyError, AttributeError, TypeError, ValueError, AssertionError)
_OPEN = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSE = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})


class Ducktail(DuckDB):
    """The sqlglot dialect of ducktail; its parser and generator are DuckDB's."""

    def parse(self, sql: str, **opts: Any) -> list[exp.Expr | None]:
        """The trees of the statements of a text."""
        scans = {scan.start: scan for scan in find_scans(tokenize(sql), sql, lambda name: False)}
        found: list[exp.Expr | None] = []
        for tokens in _statements(self.tokenize(sql)):
            ours = _ours(sql, tokens)
            if ours is not None:
                found.append(ours)
                continue
            with quiet():
                trees = self.parser(**opts).parse(in_duckdbs_words(tokens, scans), sql)
            for tree in trees:
                if tree is not None:
                    put_ours_in(tree, scans)
            found += trees
        return found


@contextmanager
def quiet() -> Iterator[None]:
    """Context in which sqlglot logs nothing, because the user's text must not be in the log.

    DuckDB decides on texts that sqlglot does not know.
    """
    before = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(before)


logging.getLogger("sqlglot").addFilter(lambda record: not _QUIET.get())


def _statements(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The tokens of each statement of a text."""
    statement: list[Token] = []
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            yield statement
            statement = []
        else:
            statement.append(token)
    if statement:
        yield statement


def _ours(text: str, tokens: Sequence[Token]) -> exp.Expr | None:
    """The node of a statement of ducktail; None for another statement."""
    if not tokens:
        return None
    start, end = tokens[0].start, tokens[-1].end + 1
    grammar = Grammar(text[:end], [token for token in tokenize(text[:end]) if token.start >= start])
    row = find_opening(grammar)
    if row is None:
        return None
    statement = row.parse(grammar)
    grammar.expect_end()
    return statement_node(statement)


def in_duckdbs_words(tokens: Sequence[Token], scans: Mapping[int, Scan]) -> list[Token]:
    """The tokens of a text with its scans as tables, and LIMIT n TRANSACTIONS as options of a limit.

    The n-th `?` of a text becomes the parameter `$n`.

    Args:
        scans: the scans by the index of their first token.
    """
    found: list[Token] = []
    behind = marks = 0  # The end of the last scan; the number of `?` so far.
    for token in tokens:
        if token.start < behind:
            continue
        scan = scans.get(token.start)
        if scan is not None:
            behind = scan.end
            found += _as_table(scan, token)
        elif _is_transactions(token, found):
            found += [_like(token, TokenType.VAR, word) for word in ("ROWS", "WITH", "TIES")]
        elif token.token_type is TokenType.PLACEHOLDER:
            marks += 1
            found.append(_like(token, TokenType.PARAMETER, "$"))
            found.append(_like(token, TokenType.NUMBER, str(marks)))
        else:
            found.append(token)
    return found


def _as_table(scan: Scan, at: Token) -> Iterator[Token]:
    """A name and an alias: the scan's, or one that keeps the parser from taking the next word for it."""
    yield _like(at, TokenType.IDENTIFIER, f"{_MARK}{scan.start}")
    yield _like(at, TokenType.ALIAS, "AS")
    yield _like(at, TokenType.IDENTIFIER, _MARK if scan.alias is None else scan.alias)
    before = TokenType.L_PAREN
    for column in scan.columns:
        yield _like(at, before, "(" if before is TokenType.L_PAREN else ",")
        yield _like(at, TokenType.IDENTIFIER, column)
        before = TokenType.COMMA
    if scan.columns:
        yield _like(at, TokenType.R_PAREN, ")")


def _is_transactions(token: Token, before: Sequence[Token]) -> bool:
    """True if a token is the word after LIMIT n, and not a name."""
    if token.text.upper() != "TRANSACTIONS" or token.token_type is not TokenType.VAR:
        return False
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        kind = before[place].token_type
        if kind in _CLOSE:
            depth += 1
        elif kind in _OPEN:
            depth -= 1
        elif depth == 0 and kind is TokenType.LIMIT:
            return place < len(before) - 1 and before[-1].token_type in _ENDS_NUMBER
        elif depth == 0 and kind in _BEHIND_LIST | {TokenType.FROM, TokenType.SELECT, TokenType.COMMA}:
            return False
        if depth < 0:
            return False
    return False


def with_places(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, in which FROM and SELECT carry their own index."""
    found = list(tokens)
    for place, token in enumerate(tokens):
        if token.token_type in (TokenType.FROM, TokenType.SELECT):
            found[place] = _like(token, token.token_type, token.text, [f"{_MARK}{place}"])
    return found


def put_list_ends(tree: exp.Expr, tokens: Sequence[Token]) -> None:
    """Note in each select of a tree that begins with FROM the end of its list in the text.

    Args:
        tokens: the tokens of `with_places`, from which the tree was made.
    """
    for select in tree.find_all(exp.Select):
        from_ = select.args.get("from_")
        from_place, select_place = _place(from_), _place(select)
        if from_place is None or select_place is None:
            continue  # There is FROM alone.
        last = from_place - 1 if from_place > select_place else _end_of_list(tokens, select_place)
        select.meta[LIST_END] = tokens[last].end + 1


def _place(node: exp.Expr | None) -> int | None:
    comments = (node.comments if node is not None else None) or ()
    marks = [comment for comment in comments if comment.startswith(_MARK)]
    return int(marks[-1][1:]) if marks else None


def _end_of_list(tokens: Sequence[Token], place: int) -> int:
    """The last token of the select list after SELECT, if FROM preceded it."""
    depth = 0
    for index in range(place + 1, len(tokens)):
        kind = tokens[index].token_type
        if kind in _OPEN:
            depth += 1
        elif kind in _CLOSE:
            depth -= 1
        ends = depth == 0 and kind in _BEHIND_LIST and tokens[index - 1].token_type not in _NAMED
        if ends or depth < 0:
            return index - 1
    return len(tokens) - 1


def put_ours_in(tree: exp.Expr, scans: Mapping[int, Scan]) -> None:
    """Convert the nodes of a tree that represent ducktail's additions."""
    for node in list(tree.find_all(exp.Table, exp.Limit)):
        if isinstance(node, exp.Limit):
            options = node.args.get("limit_options")
            if options is not None and options.args.get("rows") and options.args.get("with_ties"):
                become_transactions(node)
        elif node.name.startswith(_MARK):
            scan = scans[int(node.name[1:])]
            become_scan(node, scan)
            if scan.alias is None:
                node.set("alias", None)


def _like(token: Token, kind: TokenType, text: str, comments: list[str] | None = None) -> Token:
    """Another token at the same place."""
    return Token(kind, text, token.line, token.col, token.start, token.end, comments)


def parse_tree(text: str, start: int, end: int, scans: Sequence[Scan]) -> exp.Expr | SyntaxError_:
    """The tree of the characters [start, end) of a text; its nodes have positions in the whole text.

    Args:
        scans: the stream scans of the text, which the parser sees as tables.

    Returns:
        The tree, or the error of sqlglot's parser.
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
        tokens: all tokens but the last, which the parser reports for an error after it.
    """
    if not isinstance(error, ParseError):
        return None
    places = {(told.get("line"), told.get("col")) for told in error.errors}
    return next((token for token in tokens if (token.line, token.col) in places), None)

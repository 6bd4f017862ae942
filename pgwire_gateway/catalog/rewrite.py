"""Turns a client's catalog query, written for PostgreSQL, into one that DuckDB answers over our views.

Three steps, each for fewer texts: a regular expression lets ordinary SQL go untouched; a pass over
the tokens takes off what names PostgreSQL's own schema and renames the functions that are ours;
and a query that reads the catalog is parsed by sqlglot and respelt as a tree (spelling.py). Only
queries are touched: in DML our names would reach the capture's look at a statement, in DDL they
would be kept in the user's file. Source: docs/design/catalog.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from sqlglot.errors import SqlglotError

from ...engine.errors import DucktailError, InsufficientPrivilege
from ...engine.quoting import fold
from ...sql.runners import session_calls
from ...sql.text.occurs import occurs
from ...sql.text.tokens import Token, tokenize
from . import functions
from .literals import cast_parameters, respell_literals
from .places import CATALOG, HOME, MARK, TEMPORARY_SCHEMA, TYPE_MARK
from .shapes import INFORMATION_SCHEMA, PG_CATALOG, PG_SHAPES
from .spelling import Respelt, respell

# A client's catalog query is a few thousand characters; what is longer carries a user's data.
TEXT_MAX = 64 * 1024
# Texts kept rewritten, and the longest of them. A client sends the same ones again; a text is a few
# kilobytes.
TEXTS_KEPT = 512
KEPT_CHARS_MAX = 8 * 1024

_HINTS = re.compile(
    r"pg_|information_schema|\b(?:to_)?reg[a-z]+\b|current_|session_user|\bversion\s*\(|_description\s*\("
    r"|_privilege\s*\(|\bquote_|\bformat_type\b|set_config|getdatabaseencoding|operator\s*\(|\binet_"
    r"|txid_|array_|row_security",
    re.IGNORECASE,
)
_OUR_NAME = re.compile(CATALOG, re.IGNORECASE | re.ASCII)
_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})
_BEFORE_A_QUERY = frozenset({"EXPLAIN", "ANALYZE", "VERBOSE"})
_WRITING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "INTO"})
# Types that DuckDB does not know.
_TYPES = frozenset(
    {"regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole", "regoper", "regoperator"}
    | {"name", "xid", "cid"}
)
_OID_TYPES = frozenset(name.upper() for name in _TYPES - {"name"}) | {"OID"}
# DuckDB's own functions of the same names; PostgreSQL's are meant only where the catalog is read.
_NATIVE = frozenset({"array_to_string", "array_length", "string_to_array"})
# Functions that PostgreSQL calls without brackets, and ours for them.
_BARE = {
    "CURRENT_USER": "current_user", "SESSION_USER": "session_user", "CURRENT_ROLE": "current_user",
    "CURRENT_CATALOG": "current_catalog",
}  # fmt: skip
_CLAUSES = frozenset({"SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "VALUES", "WITH"})
# Keywords that PostgreSQL takes for a column's name after AS, and what may follow there.
_LABELS = _WRITING | {"SELECT", "TABLE", "WITH", "USER", "ORDER", "GROUP"}
_AFTER_A_LABEL = frozenset({"", ",", ")", ";", "FROM", "WHERE", "UNION", "ORDER", "LIMIT", "GROUP"})
_AFTER_A_COLUMN = frozenset({"", ",", ";", "FROM", "WHERE", "UNION", "ORDER", "LIMIT"})
_OURS = functions.names()
_LOOKUPS = frozenset(head.partition("(")[0] for head in functions.lookups()) | functions.ROWS


class Piece(NamedTuple):
    """A token of the new text: what it says, and where it stood (start == end: nowhere)."""

    text: str
    token: Token


def rewrite(text: str) -> str:
    """The text as DuckDB understands it; one that has nothing of PostgreSQL's catalog as it is.

    Raises:
        InsufficientPrivilege: as `respelt`.
    """
    return respelt(text).text


def respelt(text: str) -> Respelt:
    """The text as DuckDB understands it, and the types of its columns where the catalog knows them.

    Raises:
        InsufficientPrivilege: 42501, the text itself names our database: what is made, dropped or
            replaced there would be so for every session.
    """
    text = respell_literals(text)
    if occurs(_OUR_NAME, text):
        _refuse_our_name(text)
    if len(text) > TEXT_MAX or _HINTS.search(text) is None:
        return Respelt(text, parameters=cast_parameters(text))
    if session_calls.read(text):
        return Respelt(text)  # The session does what they say.
    found = (_kept_rewritten if len(text) <= KEPT_CHARS_MAX else _rewritten)(text)
    return found if found.parameters else replace(found, parameters=cast_parameters(text))


def _refuse_our_name(text: str) -> None:
    try:
        tokens = tokenize(text)
    except DucktailError:
        return  # The session will say what is wrong with it.
    for token in tokens:
        if token.is_name and fold(token.name) == CATALOG:
            raise InsufficientPrivilege(
                f'permission denied for database "{CATALOG}"',
                hint="It is ducktail's own; what it holds is in pg_catalog and information_schema.",
                position=token.start + 1,
            )


def _rewritten(text: str) -> Respelt:
    try:
        tokens = tokenize(text)
    except DucktailError:
        return Respelt(text)  # The session will say what is wrong with it.
    first = next((at for at, token in enumerate(tokens) if token.kind not in _BEFORE_A_QUERY), None)
    if first is None or tokens[first].kind not in _QUERIES or _writes(tokens):
        return Respelt(text)
    if any(token.kind == ";" for token in tokens[:-1]):
        return Respelt(text)  # Several statements: the session refuses them, or splits them and comes again.
    pieces = _plain(tokens)
    reads = _reads_catalog(tokens)
    if reads or _asks_the_session(tokens, pieces):
        try:
            begin = tokens[first].start
            query = respell(" ".join(piece.text for piece in pieces if piece.token.start >= begin))
        except SqlglotError:
            pass  # Not PostgreSQL's grammar; its names alone can still be put right.
        else:
            types = query.types if first == 0 else ()
            return Respelt(text[: tokens[first].start] + query.text, types, query.parameters, reads)
    return Respelt(_spliced(text, pieces), reads_catalog=reads)


_kept_rewritten = lru_cache(TEXTS_KEPT)(_rewritten)


def _writes(tokens: Sequence[Token]) -> bool:
    return any(token.kind in _WRITING and not _is_label(tokens, at) for at, token in enumerate(tokens))


def _is_label(tokens: Sequence[Token], at: int) -> bool:
    """Whether a keyword is a column's name: after AS, or after a table's name."""
    before = tokens[at - 1].kind if at else ""
    # What AS gives ends its item; a query after AS (of CREATE TABLE) does not.
    following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
    return before == "." or (before == "AS" and following in _AFTER_A_LABEL)


def _reads_catalog(tokens: Sequence[Token]) -> bool:
    """Whether it names a relation of the catalog, or a function or type that must look into it."""
    for at, token in enumerate(tokens):
        following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
        if not token.is_name:
            continue
        name = fold(token.name)
        if name in PG_SHAPES and following not in ("(", "."):
            return True
        if name in _LOOKUPS and following == "(":
            return True
        if (name, following) in ((INFORMATION_SCHEMA, "."), ("operator", "(")):
            return True
        before = tokens[at - 1].kind if at else ""
        if name in _TYPES and before in ("::", "AS", "."):
            return True
    return False


def _asks_the_session(tokens: Sequence[Token], pieces: Sequence[Piece]) -> bool:
    """Whether it has no FROM and calls a function of ours: it is told as PostgreSQL would, types and all."""
    if any(token.kind == "FROM" for token in tokens):
        return False
    return any(piece.text.startswith(MARK) or piece.token.kind == "CURRENT_SCHEMA" for piece in pieces)


def _plain(tokens: Sequence[Token]) -> list[Piece]:
    """The tokens without what only says that PostgreSQL's own is meant.

    `pg_catalog.f(...)`, `OPERATOR(pg_catalog.~)`, `COLLATE pg_catalog.default`; and calls of functions
    that are ours with their marked names.
    """
    pieces: list[Piece] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        kinds = tuple(found.kind for found in tokens[at : at + 6])
        if _is_prefix(token, kinds):
            at += 2
            pieces += _named(tokens, at, qualified=True)
            at += 1
        elif kinds[:2] == ("OPERATOR", "("):
            closing = next((i for i in range(at, len(tokens)) if tokens[i].kind == ")"), len(tokens) - 1)
            operator = "".join(found.text for found in tokens[at + 2 : closing])
            pieces.append(Piece(operator.rpartition(".")[2], _joined(tokens[at], tokens[closing])))
            at = closing + 1
        elif token.kind == "COLLATE":
            at += 4 if kinds[2:3] == (".",) else 2
        else:
            pieces += _named(tokens, at, qualified=False)
            at += 1
    return pieces


def _is_prefix(token: Token, kinds: tuple[str, ...]) -> bool:
    """Whether the token names PostgreSQL's own schema before a thing that is not a relation of it."""
    if not token.is_name or kinds[1:2] != (".",):
        return False
    name = fold(token.name)
    return name == PG_CATALOG or (name == INFORMATION_SCHEMA and kinds[2:3] == ("_PG_EXPANDARRAY",))


def _joined(first: Token, last: Token) -> Token:
    return first._replace(end=last.end)


def _named(tokens: Sequence[Token], at: int, *, qualified: bool) -> list[Piece]:
    """The token at `at` as it stays, or marked where it calls a function of ours."""
    if at >= len(tokens):
        return []
    token = tokens[at]
    before = tokens[at - 1].kind if at and not qualified else ""
    following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
    place = _joined(tokens[at - 2], token) if qualified else token
    if token.kind in _LABELS and _is_label(tokens, at):
        return [Piece(f'"{fold(token.text)}"', place)]  # sqlglot reads no such keyword as a name.
    if before == "." or not token.is_name:
        return [Piece(token.text, place)]
    name = fold(token.name)
    if following == "[" and token.kind in _OID_TYPES and before in ("::", "AS"):
        return [Piece(TYPE_MARK + name, place)]  # sqlglot reads no array of these.
    if following == "(" and name in _OURS:
        return [Piece(MARK + name, place)]
    if following not in ("(", ".") and before != "AS" and token.kind in _BARE:
        return [Piece(f"{MARK}{_BARE[token.kind]}()", place)]
    return [Piece(token.text, place)]


def _spliced(text: str, pieces: Sequence[Piece]) -> str:
    """The text with our functions named in full, and everything else as it was."""
    parts: list[str] = []
    last = 0
    for piece, name in zip(pieces, _names(pieces), strict=True):
        new = piece.text
        if new.startswith(MARK):
            function = new.removeprefix(MARK)
            new = function if function in _NATIVE else f"{HOME}.{function}"
        elif fold(new) == TEMPORARY_SCHEMA:
            new = "temp"
        if name:
            new += f' AS "{name}"'
        if new != text[piece.token.start : piece.token.end]:
            parts += [text[last : piece.token.start], new]
            last = piece.token.end
    return "".join(parts) + text[last:] if parts else text


def _names(pieces: Sequence[Piece]) -> list[str]:
    """For each piece that ends a column which is nothing but a call of ours, PostgreSQL's name of it."""
    names = [""] * len(pieces)
    clause = ""
    for at, piece in enumerate(pieces):
        kind = piece.token.kind
        if piece.token.depth == 0 and kind in _CLAUSES:
            clause = kind
        begins = at > 0 and pieces[at - 1].text.upper() in ("SELECT", ",")
        if piece.token.depth or clause != "SELECT" or not begins or not piece.text.startswith(MARK):
            continue
        end = at if piece.text.endswith("()") else _closing(pieces, at + 1)
        following = pieces[end + 1].text.upper() if end + 1 < len(pieces) else ""
        if following in _AFTER_A_COLUMN and piece.text.removeprefix(MARK) not in _NATIVE:
            names[end] = piece.text.removeprefix(MARK).removesuffix("()")
    return names


def _closing(pieces: Sequence[Piece], opening: int) -> int:
    """The place of the bracket that closes the one at `opening`."""
    depth = pieces[opening].token.depth
    found = (at for at in range(opening + 1, len(pieces)) if pieces[at].token.depth == depth)
    return next((at for at in found if pieces[at].text == ")"), len(pieces) - 1)

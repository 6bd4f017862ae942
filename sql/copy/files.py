"""The check of the files that a statement names, before DuckDB sees the statement.

A file's name is an argument of a function that reads files, follows COPY's FROM or TO, or is a string in the
place of a table. It must be a string, a list of strings or a parameter, never an expression, because a
computed name cannot be checked beforehand. The text in `query('...')` is checked too. Source:
docs/operations.md, "Files".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...engine.duck.allowed_files import (
    DATA_NAME,
    file_functions,
    is_reachable,
    leads_to_own,
    looks_like_data,
)
from ...engine.duck.duckdb_errors import FILES_HINT
from ...engine.errors import DucktailError, InsufficientPrivilege, NotSupported, SyntaxError_
from ...engine.quoting import fold
from ..session_state.context import Context
from ..text.classified import Classified
from ..text.tokens import PARAMETER, QUOTED, STRING, Token, occurs, tokenize

_SECRETS = frozenset({"duckdb_secrets", "which_secret"})
_BEFORE_TABLE = frozenset({"FROM", "JOIN", "TABLE", ",", "(", "USING", "DESCRIBE", "DESC", "SUMMARIZE"})
_OUTSIDE_HINT = "Nothing outside the database can be reached through SQL."
_DATA_NAME = re.compile(DATA_NAME)
# Texts up to this length are remembered.
SHORT_CHARS = 1024
_LITERAL_HINT = "Write the name as a string, or give it as a parameter."


class _File(NamedTuple):
    """A file's name: a string's value, or the number of its parameter."""

    token: Token
    name: str | int


def check_named(session: Context, classified: Classified) -> None:
    """Check the file names in a statement against the allowed directories.

    Raises:
        InsufficientPrivilege: a file is outside the allowed directories, or the statement reads secrets.
        NotSupported: a name is an expression.
    """
    if _may_name(classified.text):
        _check(session, classified.tokens, in_query=False)


def check_given(session: Context, classified: Classified, parameters: Sequence[object]) -> None:
    """Check the file names in parameters against the allowed directories.

    Raises:
        InsufficientPrivilege: a file is outside the allowed directories.
    """
    named = _named(classified.tokens) if _may_name(classified.text) else ()
    for file in named:
        if isinstance(file.name, int):
            given = parameters[file.name - 1] if file.name <= len(parameters) else None
            for name in given if isinstance(given, list | tuple) else [given]:
                require(session, str(name), file.token)


@functools.cache
def _words() -> tuple[str, ...]:
    return tuple(sorted(file_functions() | _SECRETS | {"query", "\\"}))


def _may_name(text: str) -> bool:
    """True if the tokens need to be examined; a quick test, because that is slow for a long INSERT."""
    return _may_name_of_short(text) if len(text) <= SHORT_CHARS else _has_words(text)


def _has_words(text: str) -> bool:
    lowered = fold(text)
    return any(word in lowered for word in _words()) or occurs(_DATA_NAME, lowered)


# A prepared statement asks again at each execution.
_may_name_of_short = functools.lru_cache(1024)(_has_words)


def require(session: Context, name: str, token: Token) -> None:
    """Refuse a file outside the allowed directories.

    Raises:
        InsufficientPrivilege: the file is outside them.
    """
    directories = session.database.settings.allowed_directories
    if not directories:
        raise InsufficientPrivilege("files cannot be read or written", hint=FILES_HINT)
    if not is_reachable(name, directories, session.database.path):
        raise InsufficientPrivilege(
            f'file "{name}" is not under an allowed directory', hint=FILES_HINT, position=token.start + 1
        )


def parameter_number(tokens: Sequence[Token], index: int) -> int:
    """The number, from 1, of the parameter at `index`; 0 for a named parameter."""
    digits = tokens[index].text[1:].strip()
    if tokens[index].text[0] == "?" and not digits:
        return sum(token.kind == PARAMETER for token in tokens[: index + 1])
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


def _check(session: Context, tokens: Sequence[Token], in_query: bool) -> None:
    for file in _named(tokens):
        if isinstance(file.name, str):
            require(session, file.name, file.token)
        elif in_query:
            raise _not_a_literal(file.token)
    for index, token in enumerate(tokens):
        name = fold(token.name) if token.is_name else ""
        if name in _SECRETS:
            position = None if in_query else token.start + 1
            raise InsufficientPrivilege("secrets are not allowed", hint=_OUTSIDE_HINT, position=position)
        if name == "query" and _opens(tokens, index):
            _check_query(session, tokens, index)
        elif _may_be_file(tokens, index) and leads_to_own(_value(token), session.database.path):
            raise InsufficientPrivilege(
                f'file "{_value(token)}" is one of the database', hint=FILES_HINT, position=token.start + 1
            )


def _check_query(session: Context, tokens: Sequence[Token], index: int) -> None:
    """Check that the text of query('...') is a literal, and then check it as a statement."""
    text = tokens[index + 2] if index + 2 < len(tokens) else None
    if text is None or not _is_whole(tokens, index + 2):
        raise NotSupported(
            "query() wants its text as a string",
            hint="Write the query itself.",
            position=tokens[index].start + 1,
        )
    try:
        inner = tokenize(_value(text))
    except SyntaxError_:
        return  # DuckDB reports its error.
    _check(session, inner, in_query=True)


def _named(tokens: Sequence[Token]) -> Iterator[_File]:
    """The file names in the arguments of functions that read files."""
    for index, token in enumerate(tokens):
        if not token.is_name or not _opens(tokens, index) or fold(token.name) not in file_functions():
            continue
        place, many = index + 2, False
        if place < len(tokens) and tokens[place].kind == "[":
            place, many = place + 1, True
        while True:
            yield _file(tokens, place, token)
            place += 1
            if not many or tokens[place].kind != ",":
                break
            place += 1
        if many and not _ends(tokens, place + 1):
            raise _not_a_literal(token)


def _opens(tokens: Sequence[Token], index: int) -> bool:
    return index + 1 < len(tokens) and tokens[index + 1].kind == "("


def _file(tokens: Sequence[Token], index: int, function: Token) -> _File:
    if _is_whole(tokens, index):
        return _File(tokens[index], _value(tokens[index]))
    if index < len(tokens) and tokens[index].kind == PARAMETER and _ends(tokens, index + 1):
        number = parameter_number(tokens, index)
        if number:
            return _File(tokens[index], number)
    raise _not_a_literal(function)


def _is_whole(tokens: Sequence[Token], index: int) -> bool:
    """True if a plain string is at `index`, and nothing after it changes it."""
    if index >= len(tokens) or tokens[index].kind != STRING or tokens[index].text[0] in "xXbBnN":
        return False
    return _ends(tokens, index + 1)


def _ends(tokens: Sequence[Token], index: int) -> bool:
    return index >= len(tokens) or tokens[index].kind in (",", ")", "]")


def _value(token: Token) -> str:
    return token.value if token.kind == STRING else token.name


def _may_be_file(tokens: Sequence[Token], index: int) -> bool:
    """True if DuckDB may read a file in place of this table name."""
    token = tokens[index]
    if token.kind not in (STRING, QUOTED) or not index or tokens[index - 1].kind not in _BEFORE_TABLE:
        return False
    return looks_like_data(_value(token))


def _not_a_literal(function: Token) -> DucktailError:
    return NotSupported(
        f"{function.name} wants the names of its files as strings",
        hint=_LITERAL_HINT,
        position=function.start + 1,
    )

"""SELECT set_config(...) and SELECT pg_notify(...): functions with the effect of a statement.

DuckDB may run a function at any time and any number of times, so these calls are no functions to it. A SELECT
of such calls alone, whose arguments are literals and parameters, is a statement of ducktail: the arguments
are evaluated, then the calls run in their order. Source: docs/sql.md, "set_config and pg_notify".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb

from ...engine.duck.cursors import ask_maybe
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import DucktailError, InvalidParameterValue
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..language.statements import Notify
from ..results.results import Result, ResultColumn
from ..session_state.context import Context
from ..session_state.run_text import text_rows
from ..session_state.statement import Description, ParsedStatement
from ..text.classified import TokenReader
from ..text.tokens import PARAMETER, tokenize
from .listen import notify
from .set_and_show import set_variable

Values = Sequence[object]

_OPENING = re.compile(r"\s*select\s+(?:pg_catalog\s*\.\s*)?(?:set_config|pg_notify)\s*\(", re.IGNORECASE)
# The types that the arguments of each function are cast to.
_ARGUMENTS = {"set_config": ("VARCHAR", "VARCHAR", "BOOLEAN"), "pg_notify": ("VARCHAR", "VARCHAR")}
_TEXT_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Args:
        name: a key of `_ARGUMENTS`.
        column: the name of its column.
        arguments: the texts of the arguments.
        parameters: for each argument that is a parameter, its number; else 0.
    """

    name: str
    column: str
    arguments: tuple[str, ...]
    parameters: tuple[int, ...]


def read(text: str) -> tuple[Call, ...]:
    """The calls of a SELECT of such calls alone; () for any other text.

    >>> [call.column for call in read("SELECT set_config('a', $1, true), pg_notify('b', 'c') AS told;")]
    ['set_config', 'told']
    >>> read("SELECT set_config('a', b, true) FROM t")
    ()
    """
    if len(text) > _TEXT_MAX or _OPENING.match(text) is None:
        return ()
    try:
        tokens = tokenize(text)
        while tokens and tokens[-1].kind == ";":
            tokens = tokens[:-1]
        slices = TokenReader(text, tokens, 1).slices(1, len(tokens))
        found = [_call(TokenReader(text, tokens[:end], start), end) for start, end in slices]
    except DucktailError:
        return ()
    return tuple(call for call in found if call is not None) if all(found) else ()


def _call(reader: TokenReader, end: int) -> Call | None:
    name = reader.qualified()
    kinds = None if name[:-1] not in ((), ("pg_catalog",)) else _ARGUMENTS.get(fold(name[-1]))
    opening = reader.index
    if kinds is None or reader.peek() != "(":
        return None
    closing = next((at for at in range(opening + 1, end) if reader.tokens[at].kind == ")"), None)
    if closing is None:
        return None
    slices = reader.slices(opening + 1, closing)
    inside = reader.tokens[opening + 1 : closing]
    # A parenthesis or a name would be a query, a column or another function.
    if len(slices) != len(kinds) or any(token.kind == "(" or token.kind == "SELECT" for token in inside):
        return None
    reader.index = closing + 1
    reader.accept("AS")
    column = fold(name[-1]) if reader.at_end else reader.identifier()
    if not reader.at_end:
        return None
    numbers = []
    for start, until in slices:
        token = reader.tokens[start]
        if token.is_name and token.kind not in ("TRUE", "FALSE", "NULL"):
            return None
        is_parameter = until - start == 1 and token.kind == PARAMETER and token.text[1:].isdigit()
        numbers.append(int(token.text[1:]) if is_parameter else 0)
    texts = tuple(reader.cut(start, until) for start, until in slices)
    return Call(fold(name[-1]), column, texts, tuple(numbers))


def describe(session: Context, statement: ParsedStatement) -> Description:
    """The parameters' types, and a text column for each call."""
    types: dict[int, str] = dict(enumerate(statement.parameter_types_given, 1))
    for call in _calls(statement):
        for number, kind in zip(call.parameters, _ARGUMENTS[call.name], strict=True):
            if number:
                types[number] = types.get(number) or kind
    for token in statement.classified.tokens:
        if token.kind == PARAMETER and token.text[1:].isdigit():
            types.setdefault(int(token.text[1:]), "VARCHAR")
    columns = tuple(ResultColumn(call.column, "VARCHAR") for call in _calls(statement))
    return Description(tuple(types.get(n) or "VARCHAR" for n in range(1, max(types, default=0) + 1)), columns)


def run_call(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run the calls, one after the other."""
    calls = _calls(statement)
    items = [
        f"({argument})::{kind}"
        for call in calls
        for argument, kind in zip(call.arguments, _ARGUMENTS[call.name], strict=True)
    ]
    try:
        values = ask_maybe(session.meta, f"SELECT {', '.join(items)}", list(parameters) or None) or ()
    except duckdb.Error as error:
        raise translated(error) from error
    answers, at = [], 0
    for call in calls:
        count = len(call.arguments)
        answers.append((yield from _DONE[call.name](session, values[at : at + count])))
        at += count
    result = text_rows([(call.column, "VARCHAR") for call in calls], [answers], "SELECT 1")
    return result


def _calls(statement: ParsedStatement) -> tuple[Call, ...]:
    assert isinstance(statement.node, tuple)
    return statement.node


def notifies(statement: ParsedStatement) -> bool:
    """True if one of the calls sends a notification."""
    return any(call.name == "pg_notify" for call in _calls(statement))


def _set_config(session: Context, arguments: Values) -> Waiting[str]:
    """Change a setting, NULL to its default, and return its value. Outside a transaction a local change ends
    at once."""
    name, value, local = arguments
    if name is None or local is None:
        raise InvalidParameterValue("set_config wants the name of a setting, and whether it is local")
    if local and not session.block.begun:
        session.variables.check(str(name), None if value is None else (str(value),))
        return "" if value is None else str(value)
    set_variable(session, str(name), None if value is None else (str(value),), local=bool(local))
    return session.variables.shown(str(name))
    yield


def _pg_notify(session: Context, arguments: Values) -> Waiting[str]:
    """Send a notification when the transaction is committed, and return an empty text."""
    channel, payload = arguments
    if not channel:
        raise InvalidParameterValue("channel name cannot be empty")
    yield from notify(session, Notify(str(channel), "" if payload is None else str(payload)), ())
    return ""


_DONE: dict[str, Callable[[Context, Values], Waiting[str]]] = {
    "set_config": _set_config,
    "pg_notify": _pg_notify,
}

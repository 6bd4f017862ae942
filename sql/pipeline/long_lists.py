"""Long lists as parameters: passed to DuckDB as JSON, and cast to their type in the text.

DuckDB's client converts each element of a Python list with Python's lock held, twice: 2,500,000 elements
stop all other threads for some two seconds. A text is passed without conversion, and DuckDB's work on it
during the statement blocks no thread; it is also faster. Source: docs/design/values.md, "Long lists".
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal

from ...engine.values.parameters import DECIMAL_DIGITS_MAX
from ...engine.values.strings import typed
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from ..text.spans import Replacement, cut
from ..text.tokens import PARAMETER, tokenize

# The number of elements that DuckDB's client converts in a twentieth of a second.
ELEMENTS_MAX = 50_000
# The number of elements that are written at once: json holds Python's lock as well.
AT_A_TIME = 50_000

# Python's type of an element -> its form in JSON, and the types that restore the same value from it.
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})
_FORMS: dict[type, tuple[Callable[[object], object] | None, frozenset[str]]] = {
    str: (None, frozenset({"VARCHAR"})),
    int: (None, _INTEGERS),
    bool: (None, frozenset({"BOOLEAN"})),
    float: (None, frozenset({"FLOAT", "DOUBLE"})),
    Decimal: ("{:f}".format, frozenset({"DECIMAL"})),
    uuid.UUID: (str, frozenset({"UUID"})),
    datetime.date: (str, frozenset({"DATE"})),
}


def as_json(
    statement: ParsedStatement, parameters: Sequence[object]
) -> tuple[str, list[Replacement], tuple[object, ...]] | None:
    """The statement's text and parameters with long lists as JSON; None if there are no long lists.

    Returns:
        The text, the insertions into it, and the parameters.
    """
    if statement.node is not None or statement.away is not None or not statement.is_described:
        # A statement that was not described runs with the types of its values: a description now would make a
        # list text in a place where any type is possible.
        return None
    if statement.classified.kind not in (Kind.READ, Kind.DML):
        return None
    long = [at for at, v in enumerate(parameters) if isinstance(v, list) and len(v) > ELEMENTS_MAX]
    if not long:
        return None
    types, given = statement.parameter_types, list(parameters)
    casts: dict[str, str] = {}
    for at in long:
        type_ = types[at] if at < len(types) else ""
        value = given[at]
        assert isinstance(value, list), "it was one above"
        cast = _exact(value) if type_.startswith("DECIMAL") else type_
        if cast is not None and (text := _written(value, type_)) is not None:
            given[at] = typed(text, "JSON")
            casts[f"${at + 1}"] = cast
    pieces = [
        Replacement(token.start, token.end, f"({token.text}::{casts[token.text]})")
        for token in tokenize(statement.text)
        if token.kind == PARAMETER and token.text in casts
    ]
    return (cut(statement.text, pieces), pieces, tuple(given)) if pieces else None


def _exact(values: list[object]) -> str | None:
    """A list type that represents all decimals exactly; None if there is none.

    The parameter's own type has a fixed scale if it is a numeric without one; DuckDB also chooses the type of
    a list of decimals by its values.
    """
    whole = places = 0
    for value in values:
        if isinstance(value, Decimal):
            if not value.is_finite():
                return None
            places = max(places, -int(value.as_tuple().exponent))
            whole = max(whole, value.adjusted() + 1)
    width = max(whole + places, 1)
    return f"DECIMAL({width},{places})[]" if width <= DECIMAL_DIGITS_MAX else None


def _written(values: list[object], type_: str) -> str | None:
    """A list as JSON; None if reading it back would not restore it."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) != 1 or not type_.endswith("[]"):
        return None
    form, elements = _FORMS.get(kinds.pop(), (None, frozenset()))
    if type_.removesuffix("[]").partition("(")[0] not in elements:
        return None
    parts = []
    for start in range(0, len(values), AT_A_TIME):
        piece: list[object] = values[start : start + AT_A_TIME]
        if form is not None:
            piece = [None if value is None else form(value) for value in piece]
        try:
            parts.append(json.dumps(piece, ensure_ascii=False, allow_nan=False)[1:-1])
        except ValueError:
            return None  # NaN or an infinity, which JSON cannot represent.
    return f"[{','.join(parts)}]"

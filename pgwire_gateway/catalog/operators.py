"""PostgreSQL's operators of json, and functions that are named or written differently in DuckDB.

DuckDB's parser reads no operator with `#` or `?`, and finds every other one by its name: each of PostgreSQL's
gets the name of a macro of data/functions.sql. `@>`, `<@` and `||` are DuckDB's own for lists and texts; they
mean json where the text itself shows it, by a cast or by a literal. Aggregates of json are DuckDB's `list`,
so that ORDER BY, DISTINCT and FILTER may stand in them. A few regular words in one pass over the tokens find
all of it: the work grows with the text, not with its square.
Source: PostgreSQL 15 documentation, "JSON Functions and Operators".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ...engine.errors import DucktailError
from ...engine.quoting import fold, literal
from ...engine.values.arrays import read_array
from ...sql.text.spans import Replacement, cut
from ...sql.text.tokens import NUMBER, PARAMETER, QUOTED, STRING, Token, occurs, tokenize

_HINT = re.compile(
    r"#>|#-|[\w)\]\"]\s*#\s*[\w(\"$-]|\?\s*[|&]|\?\s*e?'|\?\s*\$|\?\s*array\b|jsonb?_agg|\bevery\s*\(|->|::\s*jsonb?\b|@>|<@"
    r"|\b(?:encode|decode|to_timestamp|[gs]et_bit)\s*\(|\bformat\s*\(\s*e?'[^']*%|jsonb?_(?:array_elements|object_keys)|string_to_table",
    re.IGNORECASE,
)
_HINT_WORDS = (
    "#",
    "?",
    "_agg",
    "every",
    "->",
    "json",
    "@",
    "code",
    "to_timestamp",
    "_to_table",
    "format",
    "et_bit",
)
TEXT_MAX = 64 * 1024
# PostgreSQL's operator, in the characters of a text -> the macro's name.
_OPERATORS = {"#>>": "@->>", "#>": "@->", "#-": "@-!"}
_WITH_PATH = frozenset({"@->>", "@->", "@-!", "@|", "@&"})
_XOR = "#"
_BITS = re.compile(r"&|<<|>>|\|(?!\|)")
_NO_OPERANDS = frozenset(
    {"SELECT", "BY", "DISTINCT", "ALL", "ON", "WHERE", "HAVING", "AND", "OR", "NOT", "WHEN", "THEN", "ELSE"}
    | {"CASE", "RETURNING", "IN", "BETWEEN", "LIMIT", "OFFSET", "IS", "LIKE", "USING", "AS", "SET"}
)
_MARKS = {"?": "@!", "?|": "@|", "?&": "@&"}
_ARROW = re.compile(r"->>?(?![-+*/<>=~!@#%^&|?])")
_RUN = re.compile(r"[-+*/<>=~!@#%^&|?]++")
_AGGREGATES = frozenset({"json_agg", "jsonb_agg"})
_WITH_FORMAT = {"encode": "encode_bytes", "decode": "decode_text", "to_timestamp": "text_to_timestamp"}
# DuckDB's functions of bits, which PostgreSQL has for bytes too. A view keeps DuckDB's.
_OF_BITS = {"get_bit": "bit_of", "set_bit": "with_bit"}
# Functions in FROM with one column: the alias of such a call names the value in PostgreSQL.
_OF_VALUES = frozenset(
    {"json_array_elements", "jsonb_array_elements", "json_array_elements_text", "jsonb_array_elements_text"}
    | {"json_object_keys", "jsonb_object_keys", "string_to_table", "regexp_split_to_table"}
)
# The kind of a placeholder in a template of format; "" for a `%` at its end.
_PLACEHOLDER = re.compile("%(.?)", re.DOTALL)
# Kind -> what is written before and after its argument.
_NO_NAME = "error('null values cannot be formatted as an SQL identifier')::VARCHAR"
_ARGUMENTS = {
    "s": ("coalesce((", ")::VARCHAR, '')"),
    "I": ("coalesce(quote_ident((", f")::VARCHAR), {_NO_NAME})"),
    "L": ("quote_nullable((", ")::VARCHAR)"),
}
_JSON = frozenset({"JSON", "JSONB"})
_ON_JSON = {"@>": "@>&", "<@": "<@&", "||": "@||", "-": "@-"}
# The name before a parenthesis is that of a table or a query behind these, not of a function.
_DEFINING = frozenset({".", "TABLE", "INTO", "VIEW", "WITH", "RECURSIVE", "REFERENCES", "EXECUTE", "PREPARE"})
# What binds tighter than DuckDB's `->`, which takes it all for its right side.
_AFTER_AN_ARROW = frozenset({"IS", "IN", "LIKE", "ILIKE", "::"})


def respell_operators(text: str) -> str:
    """The text with the operators and functions in a form that DuckDB parses.

    >>> respell_operators("SELECT a #>> '{x}', json_agg(b ORDER BY c) FILTER (WHERE d) FROM t WHERE a ? 'k'")
    "SELECT a @->> '{x}', to_json(list(b ORDER BY c) FILTER (WHERE d)) FROM t WHERE a @! 'k'"
    """
    if len(text) > TEXT_MAX or not occurs(_HINT, text, _HINT_WORDS):
        return text
    try:
        tokens = tokenize(text)
    except DucktailError:
        return text  # The session reports the error in it.
    edits = sorted(_edits(text, tokens), key=lambda edit: (edit.start, edit.end))
    return cut(text, edits) if edits else text


def _edits(text: str, tokens: Sequence[Token]) -> Iterator[Replacement]:
    closing = _closings(tokens)
    values = _values_of(tokens)
    # In a query of the catalog, format is PostgreSQL's already.
    catalog = any(token.kind.startswith("PG_") for token in tokens)
    # The end of each chain of arrows, by its operators: a chain is walked once.
    chains: dict[int, int] = {}
    # These bind tighter than a macro in DuckDB, and as `#` in PostgreSQL: the parser then refuses `#`.
    bits = "#" in text and any(_BITS.match(text, token.start) for token in tokens)
    skip = 0
    for at, token in enumerate(tokens):
        if token.start < skip:
            continue
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        if at and (run := _RUN.match(text, token.start)) is not None:
            skip, operator = run.end(), run[0]
            right = at + 1
            while right < len(tokens) and tokens[right].start < skip:
                right += 1
            if operator == _XOR and bits:
                continue
            new = _operator(text, tokens, at, right, operator, chains)
            if new:
                yield Replacement(token.start, skip, new)
            if new in _WITH_PATH and right < len(tokens):
                yield from _path(tokens[right])
        elif following is not None and following.kind == "(" and token.is_word:
            if not _is_defined(tokens, at, closing) and not (catalog and token.kind == "FORMAT"):
                yield from _call(tokens, at, closing, values)


def _operator(
    text: str, tokens: Sequence[Token], at: int, right: int, operator: str, chains: dict[int, int]
) -> str | None:
    """The macro's name for an operator; None where DuckDB's own is meant.

    DuckDB's `->` takes a comparison after its right side as a part of it. Only there it is replaced, so that
    other views hold what DuckDB alone can read.

    Args:
        right: the index of the operator's right side.
    """
    if operator == _XOR:
        # `#1` is DuckDB's first column.
        left = tokens[at - 1]
        operand = left.kind == NUMBER or (_is_value(left) and left.kind not in _NO_OPERANDS)
        return "@^" if operand else None
    if operator in _OPERATORS or not _is_value(tokens[at - 1]):
        return _OPERATORS.get(operator)
    following = tokens[right] if right < len(tokens) else None
    if following is None:
        return None
    if operator in _MARKS:
        # A `?` alone may be a parameter.
        return _MARKS[operator] if operator != "?" or following.kind in (STRING, PARAMETER) else None
    if operator in _ON_JSON and _is_json(tokens, at, right, operator):
        return _ON_JSON[operator]
    if operator == "->" and following.kind in (STRING, NUMBER, PARAMETER) and right + 1 < len(tokens):
        end = _chain_end(text, tokens, right + 1, chains)
        if end >= len(tokens):
            return None
        after = tokens[end]
        if after.kind in _AFTER_AN_ARROW or after.text[0] in "=<>!|@":
            return "@>>"
    return None


def _chain_end(text: str, tokens: Sequence[Token], at: int, chains: dict[int, int]) -> int:
    """The index behind the chain of arrows that goes on at a token."""
    passed, end = [], at
    while end + 1 < len(tokens) and (step := _ARROW.match(text, tokens[end].start)) is not None:
        if end in chains:
            end = chains[end]
            break
        passed.append(end)
        end += 1
        while end < len(tokens) and tokens[end].start < step.end():
            end += 1
        end += 1
    chains.update(dict.fromkeys(passed, end))
    return end


def _path(token: Token) -> Iterator[Replacement]:
    """A literal of several keys as a list, if quotes in it may contain commas."""
    if token.kind == STRING and '"' in token.value:
        try:
            keys = read_array(token.value, str)
        except DucktailError:
            return  # The macro reports it.
        if all(isinstance(key, str) for key in keys):
            yield Replacement(token.start, token.end, f"[{', '.join(map(literal, keys))}]")


def _call(
    tokens: Sequence[Token], at: int, closing: dict[int, int], values: frozenset[str]
) -> Iterator[Replacement]:
    token, name = tokens[at], fold(tokens[at].text)
    end = closing.get(at + 1)
    if end is None:
        return
    if name in _AGGREGATES:
        yield Replacement(token.start, token.end, "to_json(list")
        last = end
        for word in ("FILTER", "OVER"):
            if last + 2 < len(tokens) and tokens[last + 1].kind == word and tokens[last + 2].kind == "(":
                last = closing.get(last + 2, last)
        yield Replacement(tokens[last].end, tokens[last].end, ")")
    elif name == "every":
        yield Replacement(token.start, token.end, "bool_and")
    elif name in _WITH_FORMAT:
        depth = tokens[at + 1].depth + 1
        if any(one.kind == "," and one.depth == depth for one in tokens[at + 2 : end]):
            yield Replacement(token.start, token.end, _WITH_FORMAT[name])
    elif name in _OF_BITS and tokens[0].kind != "CREATE":
        yield Replacement(token.start, token.end, _OF_BITS[name])
    elif name == "format" and tokens[at + 2].kind == STRING and tokens[at - 1].kind != ".":
        yield from _format(tokens, at, end)
    elif name in _OF_VALUES and _is_in_from(tokens, at):
        place = end + 2 if end + 1 < len(tokens) and tokens[end + 1].kind == "AS" else end + 1
        alias = tokens[place] if place < len(tokens) and place > end + 1 else None
        after = tokens[place + 1].kind if place + 1 < len(tokens) else ""
        if alias is not None and alias.is_name and after not in ("(", ".") and fold(alias.name) not in values:
            yield Replacement(alias.end, alias.end, f"({alias.text})")


def _format(tokens: Sequence[Token], at: int, end: int) -> Iterator[Replacement]:
    """The replacements of `format('%s of %I', a, b)`, whose template is PostgreSQL's; of `{}` none."""
    template = tokens[at + 2]
    if "%" not in template.value or "{" in template.value:
        return
    kinds = [kind for kind in _PLACEHOLDER.findall(template.value) if kind != "%"]
    commas = [
        one for one in range(at + 3, end) if tokens[one].kind == "," and tokens[one].depth == template.depth
    ]
    known = _ARGUMENTS.keys() >= set(kinds)
    if not known or (commas and commas[0] != at + 3) or (not commas and end != at + 3):
        told = "format with another placeholder than %s, %I and %L is not supported here: use || or {}"
        yield Replacement(tokens[at].start, tokens[end].end, f"error({literal(told)})::VARCHAR")
        return
    written = _PLACEHOLDER.sub(lambda part: "%" if part[1] == "%" else "{}", template.value)
    yield Replacement(template.start, template.end, literal(written))
    for comma, behind, kind in zip_longest(commas, [*commas[1:], end][: len(commas)], kinds[: len(commas)]):
        before, after = _ARGUMENTS[kind or "s"]
        yield Replacement(tokens[comma].end, tokens[comma].end, f" {before}")
        yield Replacement(tokens[behind].start, tokens[behind].start, after)


def _is_in_from(tokens: Sequence[Token], at: int) -> bool:
    """True if a call is a source of a query, not an item of its list."""
    if not at or tokens[at - 1].kind != ",":
        return at > 0 and tokens[at - 1].kind in ("FROM", "JOIN", "LATERAL")
    depth = tokens[at].depth
    for before in range(at - 1, -1, -1):
        if tokens[before].depth < depth:
            return False
        if tokens[before].depth == depth and tokens[before].kind in ("FROM", "SELECT", "BY", "RETURNING"):
            return tokens[before].kind == "FROM"
    return False


def _is_defined(tokens: Sequence[Token], at: int, closing: dict[int, int]) -> bool:
    """True if a name before a parenthesis is that of a table, a query or an alias, not of a function."""
    before = tokens[at - 1] if at else None
    if before is None:
        return False
    creates = tokens[0].kind == "CREATE"
    if before.kind in _DEFINING or before.kind == ("EXISTS" if creates else "AS"):
        return True
    if before.kind in ("MACRO", "FUNCTION"):
        # A macro of such a name would never be called: its creation stays an error.
        return fold(tokens[at].text) in _WITH_FORMAT
    if before.kind == "ON" and creates:
        return any(token.kind == "INDEX" for token in tokens[1:4])
    end = closing.get(at + 1, len(tokens))
    return [token.kind for token in tokens[end + 1 : end + 3]] == ["AS", "("]


def _closings(tokens: Sequence[Token]) -> dict[int, int]:
    """The index of the closing parenthesis of each opening one."""
    open_: list[int] = []
    found: dict[int, int] = {}
    for at, token in enumerate(tokens):
        if token.kind == "(":
            open_.append(at)
        elif token.kind == ")" and open_:
            found[open_.pop()] = at
    return found


def _values_of(tokens: Sequence[Token]) -> frozenset[str]:
    """The names before `.value` and the like: an alias of these is used for its column."""
    return frozenset(
        fold(tokens[at - 1].name)
        for at, token in enumerate(tokens)
        if at and token.kind == "." and tokens[at - 1].is_name
    )


def _is_value(token: Token) -> bool:
    """True if an operand may end with this token."""
    return token.kind in (STRING, QUOTED, PARAMETER, ")", "]") or token.is_word


def _is_json(tokens: Sequence[Token], at: int, right: int, operator: str) -> bool:
    """True if an operand of the operator is cast to json, or is a literal that only json can be."""
    if at >= 2 and tokens[at - 1].kind in _JSON and tokens[at - 2].kind == "::":
        return True
    following = tokens[right]
    if operator == "-" or following.kind not in (STRING, PARAMETER):
        return False
    if right + 2 < len(tokens) and tokens[right + 1].kind == "::" and tokens[right + 2].kind in _JSON:
        return True
    value = following.value.lstrip() if following.kind == STRING else ""
    return operator != "||" and value.startswith(('{"', "[", "{}"))

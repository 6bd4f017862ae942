"""The select list of RETURNING, made fit to stand over a subquery of the rows that were written.

A table's schema is left out, for the table will be a subquery's name. DuckDB's virtual columns
(merge_action of MERGE, rowid of DELETE) become a column of that subquery, which no `*` shows.
"""

from __future__ import annotations

from ...engine.capture.capture import HIDDEN
from ...engine.errors import NotSupported, SyntaxError_
from ...engine.quoting import fold
from ..text.tokens import Token

# A piece of the text to be replaced: where it starts and ends, and what stands there instead.
_Edit = tuple[int, int, str]


def returning_list(
    text: str, tokens: tuple[Token, ...], first: int, table: str, schema: str, virtual: str
) -> tuple[str, bool]:
    """Cut the list that begins at token `first` and goes to the end.

    Args:
        table, schema: the target's own names.
        virtual: the virtual column that this statement's RETURNING has, '' where it has none.

    Returns:
        The list's text, and whether it names the virtual column.

    Raises:
        SyntaxError_: 42601, nothing stands there.
        NotSupported: 0A000, COLUMNS() chooses columns by a pattern beside the virtual column.
    """
    if first >= len(tokens):
        raise SyntaxError_("syntax error at end of input", position=len(text) + 1)
    edits: list[_Edit] = []
    for index in range(first, len(tokens)):
        skipped = _qualifiers_before(tokens, index, table, schema)
        if skipped:
            edits.append((tokens[index - skipped].start, tokens[index].start, ""))
    named = [t for t in tokens[first:] if virtual and t.is_name and fold(t.name) == virtual]
    if named:
        edits += [(token.start, token.end, HIDDEN) for token in named]
        for index in range(first, len(tokens)):
            edits += _without_hidden(tokens, index, first)
    return _edited(text, tokens[first].start, tokens[-1].end, sorted(edits)), bool(named)


def _edited(text: str, start: int, end: int, edits: list[_Edit]) -> str:
    parts: list[str] = []
    for first, last, instead in edits:
        parts += [text[start:first], instead]
        start = last
    return "".join([*parts, text[start:end]])


def _kind(tokens: tuple[Token, ...], index: int) -> str:
    return tokens[index].kind if 0 <= index < len(tokens) else ""


def _names(tokens: tuple[Token, ...], index: int, name: str) -> bool:
    return index >= 0 and tokens[index].is_name and fold(tokens[index].name) == fold(name)


def _qualifiers_before(tokens: tuple[Token, ...], index: int, table: str, schema: str) -> int:
    """How many tokens of `db.schema.` or `schema.` stand before this table name of ours."""
    dots = _kind(tokens, index + 1) == "." and _kind(tokens, index - 1) == "."
    if not (dots and _names(tokens, index, table) and _names(tokens, index - 2, schema)):
        return 0
    return 4 if _kind(tokens, index - 3) == "." and tokens[index - 4].is_name else 2


def _without_hidden(tokens: tuple[Token, ...], index: int, first: int) -> list[_Edit]:
    """Leave the hidden column out where this token is a star that stands for columns."""
    token = tokens[index]
    following = _kind(tokens, index + 1)
    if token.kind == "COLUMNS" and following == "(" and not _is_star(tokens, index + 2):
        raise NotSupported(
            "COLUMNS with a pattern or a list is not supported beside a virtual column in RETURNING",
            hint="Name the columns, or use *.",
        )
    before = "," if index == first else _kind(tokens, index - 1)
    if token.kind != "*" or before not in (",", "(", ".") or following == "COLUMNS":
        return []
    if following not in ("EXCLUDE", "EXCEPT"):
        return [(token.end, token.end, f" EXCLUDE ({HIDDEN})")]
    listed = tokens[index + 2]
    if listed.kind == "(":
        return [(listed.end, listed.end, f"{HIDDEN},")]
    last = index + 2
    while _kind(tokens, last + 1) == ".":
        last += 2
    return [(listed.start, listed.start, f"({HIDDEN},"), (tokens[last].end, tokens[last].end, ")")]


def _is_star(tokens: tuple[Token, ...], index: int) -> bool:
    while _kind(tokens, index + 1) == ".":
        index += 2
    return _kind(tokens, index) == "*"

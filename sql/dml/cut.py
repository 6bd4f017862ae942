"""One DML statement, divided by its tokens into the pieces that capture needs.

The pieces are slices of the user's own text: DML that is regenerated from a syntax tree changes its
meaning (`SET v = default` becomes a column).

The module also rewrites the select list of RETURNING, so that it can select from a subquery of the written
rows. A table's schema is removed from names, because the subquery has the table's name. DuckDB's virtual
columns (merge_action of MERGE, rowid of DELETE) become a column of that subquery, which no `*` shows.
"""

from __future__ import annotations

from collections.abc import Callable

from ...engine.capture.capture import HIDDEN, PROPOSED, PROPOSED_PREFIX, Assignment, Dml, Verb
from ...engine.errors import NotSupported, SyntaxError_
from ...engine.quoting import fold, ident
from ..text.classified import Classified, DmlFacts, TokenReader
from ..text.tokens import Token

# Returns the names of a query's columns, as DuckDB binds it.
ColumnsOf = Callable[[str], tuple[str, ...]]

# Words after `(` that begin a query.
QUERY_WORDS = frozenset(
    {"SELECT", "FROM", "VALUES", "WITH", "TABLE", "PIVOT", "UNPIVOT", "DESCRIBE", "SHOW", "SUMMARIZE"}
)


class Cut:
    """One statement under division: the reader is after the verb and the target's alias."""

    def __init__(self, statement: Classified, facts: DmlFacts, schema: str) -> None:
        tokens = statement.tokens
        self.text = statement.text
        self.tokens = tokens
        self.reader = TokenReader(self.text, tokens, facts.main)
        self.end = len(tokens)
        self.with_text = self.text[tokens[0].start : tokens[facts.main].start] if facts.has_with else ""
        self.returning_at = self.find("RETURNING", facts.main)
        self.alias: str | None = None
        self.target = ""
        self.table = facts.target[-1]
        self._schema = schema
        self._facts = facts

    def find(self, kind: str, first: int, end: int | None = None) -> int:
        """Index of the first token of this kind outside brackets and CASE, or the end of the range."""
        end = self.end if end is None else end
        for index in range(first, end):
            token = self.tokens[index]
            outside = token.depth == 0 and token.cases == 0
            if outside and token.kind == kind and not self.is_distinct_from(index):
                return index
        return end

    def is_distinct_from(self, index: int) -> bool:
        """True if this token is the FROM of IS DISTINCT FROM."""
        return self._is(index, "FROM") and self._is(index - 1, "DISTINCT")

    def head(self, *words: str) -> str | None:
        """Read the verb, the words before the target (any of them) and the target; return the word after
        OR."""
        reader = self.reader
        reader.take()
        choice = None
        if reader.accept("OR"):
            choice = reader.take().kind
        for word in words:
            reader.accept(word)
        first = reader.index
        reader.qualified()
        self.target = reader.cut(first, reader.index)
        first = reader.index
        if self._facts.alias is not None:
            if reader.accept("AS"):
                first = reader.index
            reader.take()
            self.alias = reader.cut(first, reader.index)
        return choice

    def cut(self, first: int, end: int) -> str | None:
        """The text of [first, end), or None if it is empty."""
        return self.reader.cut(first, end) if first < end else None

    @property
    def text_without_returning(self) -> str:
        """The whole statement without its RETURNING."""
        return self.text[: self.tokens[self.returning_at - 1].end] if self.returning_at > 0 else self.text

    def relation(self, by_alias: bool = True) -> str:
        """The name under which the statement knows the table."""
        return self.alias if by_alias and self.alias is not None else ident(self.table)

    def dml(self, verb: Verb, *, virtual: str = "", by_alias: bool = True) -> Dml:
        """The common part of every statement, to which its own pieces are added.

        Args:
            virtual: the virtual column that RETURNING may name.
            by_alias: RETURNING knows the table by its alias.
        """
        returning, names_hidden = self._returning(virtual)
        return Dml(
            verb=verb,
            text=self.text_without_returning,
            with_text=self.with_text.strip(),
            target=self.target,
            relation=self.relation(by_alias),
            alias=self.alias,
            returning=returning,
            names_hidden=names_hidden,
        )

    def _returning(self, virtual: str) -> tuple[str | None, bool]:
        """The select list of RETURNING, or None; and True if it names the virtual column."""
        if self.returning_at >= self.end:
            return None, False
        first = self.returning_at + 1
        return returning_list(self.text, self.tokens, first, self.table, self._schema, virtual)

    def _names(self, index: int, name: str) -> bool:
        return self.tokens[index].is_name and fold(self.tokens[index].name) == fold(name)

    def _is(self, index: int, kind: str) -> bool:
        return 0 <= index < self.end and self.tokens[index].kind == kind

    def calls(self, first: int, end: int) -> frozenset[str]:
        """Names before a parenthesis in [first, end), in lower case, except aliases: `) s(a, b)`."""
        tokens = self.tokens
        return frozenset(
            fold(tokens[i].name)
            for i in range(first, end - 1)
            if tokens[i].is_name and tokens[i + 1].kind == "(" and tokens[i - 1].kind not in (")", "AS")
        )

    def refuse_positions(self, first: int, end: int) -> None:
        """Refuse `#2` in [first, end): capture's texts have other columns at these positions.

        Raises:
            NotSupported: the range has such a column number.
        """
        at = next((i for i in range(first, end) if self._is(i, "#")), None)
        if at is not None:
            raise NotSupported(
                "positional references (#1, #2, ...) are not supported here on a table with a stream",
                hint="Name the column.",
                position=self.tokens[at].start + 1,
            )

    def has_subquery(self, first: int, end: int) -> bool:
        """True if a parenthesis in [first, end) begins a query."""
        tokens = self.tokens
        return any(
            tokens[i].kind == "SELECT" or (tokens[i].kind in QUERY_WORDS and tokens[i - 1].kind == "(")
            for i in range(first, end)
        )

    def assignments(self, first: int, end: int, proposed: bool) -> tuple[Assignment, ...]:
        """Divide `a = x, (b, c) = (y, z)`; with `proposed`, `excluded.c` gets the name that capture uses."""
        found: list[Assignment] = []
        for start, stop in self.reader.slices(first, end):
            found += self._assignment(start, stop, proposed)
        return tuple(found)

    def _assignment(self, first: int, end: int, proposed: bool) -> list[Assignment]:
        tokens = self.tokens
        equals = next((i for i in range(first, end) if tokens[i].kind == "=" and tokens[i].depth == 0), end)
        if equals + 1 >= end:
            raise SyntaxError_('SET wants "column = expression"', position=tokens[first].start + 1)
        if tokens[first].kind != "(":
            if equals != first + 1:
                raise NotSupported("qualified column names in SET are not supported")
            return [(tokens[first].name, self.value(equals + 1, end, proposed))]
        columns = [tokens[a].name for a, _ in self.reader.slices(first + 1, equals - 1)]
        values = self._row(equals + 1, end)
        if len(columns) == 1 or values is None:
            # DuckDB assigns an expression that is no row to every column.
            value = self.value(equals + 1, end, proposed)
            return [(column, value) for column in columns]
        if len(columns) != len(values):
            raise SyntaxError_(
                f"{len(columns)} columns are assigned {len(values)} values", position=tokens[first].start + 1
            )
        return [(c, self.value(a, b, proposed)) for c, (a, b) in zip(columns, values, strict=True)]

    def _row(self, first: int, end: int) -> list[tuple[int, int]] | None:
        """The elements of `(x, y)` or `ROW(x, y)`, also in parentheses; None for another expression."""
        first, end = self._bare(first, end)
        tokens = self.tokens
        is_row = tokens[first].kind == "ROW" and first + 1 < end and tokens[first + 1].kind == "("
        if is_row and self.closes(first + 1, end):
            return self.reader.slices(first + 2, end - 1)
        parts = self.reader.slices(first, end)
        return parts if len(parts) > 1 else None

    def _bare(self, first: int, end: int) -> tuple[int, int]:
        """The range without parentheses around all of it."""
        while end - first > 2 and self.tokens[first].kind == "(" and self.closes(first, end):
            first, end = first + 1, end - 1
        return first, end

    def closes(self, opening: int, end: int) -> bool:
        """True if the parenthesis at `opening` closes with the last token of the range."""
        depth = self.tokens[opening].depth
        closed = (i for i in range(opening + 1, end) if self.tokens[i].depth == depth and self._is(i, ")"))
        return next(closed, -1) == end - 1

    def value(self, first: int, end: int, proposed: bool) -> str | None:
        """An assigned expression, None for DEFAULT."""
        bare, stop = self._bare(first, end)
        if stop - bare == 1 and self.tokens[bare].kind == "DEFAULT":
            return None
        return self.expression(first, end, proposed)

    def expression(self, first: int, end: int, proposed: bool) -> str:
        """The text of an expression; with `proposed`, `excluded.c` is renamed."""
        if not proposed:
            return self.reader.cut(first, end)
        tokens = self.tokens
        parts: list[str] = []
        place = tokens[first].start
        for i in range(first, end - 2):
            if not self._names(i, "excluded") or not self._is(i + 1, ".") or self._is(i - 1, "."):
                continue
            parts.append(self.text[place : tokens[i].start])
            parts.append(f"{PROPOSED}.{ident(PROPOSED_PREFIX + tokens[i + 2].name)}")
            place = tokens[i + 2].end
        parts.append(self.text[place : tokens[end - 1].end])
        return "".join(parts)


# A replacement: start and end in the text, and the new text.
_Edit = tuple[int, int, str]


def returning_list(
    text: str, tokens: tuple[Token, ...], first: int, table: str, schema: str, virtual: str
) -> tuple[str, bool]:
    """Divide the list that begins at token `first` and extends to the end.

    Args:
        table, schema: the target's own names.
        virtual: the virtual column of this statement's RETURNING; '' if it has none.

    Returns:
        The list's text, and True if it names the virtual column.

    Raises:
        SyntaxError_: the list is empty.
        NotSupported: COLUMNS() chooses columns by a pattern beside the virtual column.
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
    """The number of tokens of `db.schema.` or `schema.` before this table name."""
    dots = _kind(tokens, index + 1) == "." and _kind(tokens, index - 1) == "."
    if not (dots and _names(tokens, index, table) and _names(tokens, index - 2, schema)):
        return 0
    return 4 if _kind(tokens, index - 3) == "." and tokens[index - 4].is_name else 2


def _without_hidden(tokens: tuple[Token, ...], index: int, first: int) -> list[_Edit]:
    """Exclude the hidden column if this token is a star that expands to columns."""
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

"""Cuts the user's DML into the description that engine.capture takes.

The pieces are slices of the user's own text: DML that is regenerated from a syntax tree changes its
meaning (`SET v = default` becomes a column). DuckDB has bound the text before, so a form that is
not known here is a form that capture does not support, and the answer is 0A000, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.capture import PROPOSED, PROPOSED_PREFIX, Assignment, Conflict, Dml, Verb
from ..engine.errors import NotSupported, SyntaxError_
from ..engine.quoting import ident
from .classified import Classified, DmlFacts, Kind, Reader
from .tokens import Token

# Words behind a `(` that begin a query.
_QUERY_WORDS = frozenset(
    {"SELECT", "FROM", "VALUES", "WITH", "TABLE", "PIVOT", "UNPIVOT", "DESCRIBE", "SHOW", "SUMMARIZE"}
)
# Words that make a query pick, group, number or order its rows, wherever they stand in it.
_PICKING_WORDS = frozenset(
    {"DISTINCT", "GROUP", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "FETCH", "ORDER", "UNION", "INTERSECT"}
    | {"EXCEPT", "SAMPLE", "TABLESAMPLE", "OVER", "WINDOW", "PIVOT", "UNPIVOT"}
)


def slice_dml(statement: Classified, schema: str) -> Dml:
    """Cut one INSERT, UPDATE, DELETE or TRUNCATE on a captured table.

    Args:
        statement: what `classify` said of it; any kind that writes a captured table may be given.
        schema: the schema that the target's name resolves to, for RETURNING schema.table.column.

    Raises:
        NotSupported: 0A000 for what capture does not support, with what to write instead.
        SyntaxError_: 42601 where the text is not what DuckDB's parser lets through.
    """
    _refuse_what_is_not_captured(statement)
    assert statement.dml is not None
    cut = _Cut(statement, statement.dml, schema)
    return _CUTTERS[statement.verb](cut)


def _refuse_what_is_not_captured(statement: Classified) -> None:
    if statement.verb == "MERGE":
        raise NotSupported(
            "MERGE on a table with a stream is not supported",
            hint="INSERT ... ON CONFLICT DO UPDATE, UPDATE ... FROM and DELETE ... USING do the same.",
        )
    if statement.kind is not Kind.DML:
        raise NotSupported(
            f"{statement.verb} cannot write a table with a stream",
            hint="INSERT, UPDATE, DELETE and TRUNCATE can.",
        )


class _Cut:
    """One statement while it is cut: the reader stands behind the verb and the target's alias."""

    def __init__(self, statement: Classified, facts: DmlFacts, schema: str) -> None:
        tokens = statement.tokens
        self.text = statement.text
        self.tokens = tokens
        self.reader = Reader(self.text, tokens, facts.main)
        self.end = len(tokens)
        self.with_text = self.text[tokens[0].start : tokens[facts.main].start] if facts.has_with else ""
        self.returning_at = self.find("RETURNING", facts.main)
        self.alias: str | None = None
        self.target = ""
        self.table = facts.target[-1]
        self._schema = schema
        self._facts = facts

    def find(self, kind: str, first: int, end: int | None = None) -> int:
        """Index of the first top-level token of this kind, or the end of the range."""
        end = self.end if end is None else end
        for index in range(first, end):
            token = self.tokens[index]
            if token.kind == kind and token.depth == 0 and not self.is_distinct_from(index):
                return index
        return end

    def is_distinct_from(self, index: int) -> bool:
        """Whether this token is the FROM of IS DISTINCT FROM."""
        return self._is(index, "FROM") and self._is(index - 1, "DISTINCT")

    def head(self, *words: str) -> str | None:
        """Take the verb, the words before the target (any of them) and the target; gives OR's word."""
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
        """The text of [first, end), None where that is empty."""
        return self.reader.cut(first, end) if first < end else None

    @property
    def text_without_returning(self) -> str:
        """The whole statement without its RETURNING."""
        return self.text[: self.tokens[self.returning_at - 1].end] if self.returning_at > 0 else self.text

    def relation(self, by_alias: bool = True) -> str:
        """The name that the table is known by."""
        return self.alias if by_alias and self.alias is not None else ident(self.table)

    def returning(self) -> str | None:
        """The select list of RETURNING, a table's schema left out: it will be a subquery's name."""
        first = self.returning_at + 1
        if self.returning_at >= self.end:
            return None
        if first >= self.end:
            raise SyntaxError_("syntax error at end of input", position=len(self.text) + 1)
        parts: list[str] = []
        place = self.tokens[first].start
        for index in range(first, self.end):
            skipped = self._qualifiers_before(index)
            if skipped:
                start = self.tokens[index - skipped].start
                parts.append(self.text[place:start])
                place = self.tokens[index].start
        parts.append(self.text[place : self.tokens[self.end - 1].end])
        return "".join(parts)

    def _qualifiers_before(self, index: int) -> int:
        """How many tokens of `db.schema.` or `schema.` stand before this table name of ours."""
        tokens = self.tokens
        if not (self._names(index, self.table) and self._is(index + 1, ".") and self._is(index - 1, ".")):
            return 0
        if not self._names(index - 2, self._schema):
            return 0
        return 4 if self._is(index - 3, ".") and tokens[index - 4].is_name else 2

    def _names(self, index: int, name: str) -> bool:
        return self.tokens[index].is_name and self.tokens[index].name.lower() == name.lower()

    def _is(self, index: int, kind: str) -> bool:
        return 0 <= index < self.end and self.tokens[index].kind == kind

    def calls(self, first: int, end: int) -> frozenset[str]:
        """Lower-case names that a bracket follows in [first, end)."""
        tokens = self.tokens
        return frozenset(
            tokens[i].name.lower()
            for i in range(first, end - 1)
            if tokens[i].is_name and tokens[i + 1].kind == "("
        )

    def has_subquery(self, first: int, end: int) -> bool:
        """Whether a bracket in [first, end) opens with a query."""
        tokens = self.tokens
        return any(
            tokens[i].kind == "SELECT" or (tokens[i].kind in _QUERY_WORDS and tokens[i - 1].kind == "(")
            for i in range(first, end)
        )

    def assignments(self, first: int, end: int, proposed: bool) -> tuple[Assignment, ...]:
        """Cut `a = x, (b, c) = (y, z)`; with `proposed`, `excluded.c` is renamed as capture wants it."""
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
            # DuckDB gives every column the whole of an expression that is not a row.
            value = self.value(equals + 1, end, proposed)
            return [(column, value) for column in columns]
        if len(columns) != len(values):
            raise SyntaxError_(
                f"{len(columns)} columns are assigned {len(values)} values", position=tokens[first].start + 1
            )
        return [(c, self.value(a, b, proposed)) for c, (a, b) in zip(columns, values, strict=True)]

    def _row(self, first: int, end: int) -> list[tuple[int, int]] | None:
        """The parts of `(x, y)` or `ROW(x, y)`, brackets around it taken off; None for another one."""
        first, end = self._bare(first, end)
        tokens = self.tokens
        is_row = tokens[first].kind == "ROW" and first + 1 < end and tokens[first + 1].kind == "("
        if is_row and self.closes(first + 1, end):
            return self.reader.slices(first + 2, end - 1)
        parts = self.reader.slices(first, end)
        return parts if len(parts) > 1 else None

    def _bare(self, first: int, end: int) -> tuple[int, int]:
        """The range without the brackets that stand around all of it."""
        while end - first > 2 and self.tokens[first].kind == "(" and self.closes(first, end):
            first, end = first + 1, end - 1
        return first, end

    def closes(self, opening: int, end: int) -> bool:
        """Whether the bracket at `opening` closes with the last token of the range."""
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
        """The text of an expression, with `excluded.c` renamed where that is asked."""
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


def _insert(cut: _Cut) -> Dml:
    choice = cut.head("INTO")
    reader = cut.reader
    columns = _column_list(cut)
    if reader.accept("OVERRIDING"):
        raise NotSupported("OVERRIDING is not supported on a table with a stream")
    by_name = reader.accept("BY", "NAME")
    reader.accept("BY", "POSITION")
    end = min(cut.returning_at, cut.end)
    first = reader.index
    conflict_at = _conflict_at(cut, first, end)
    conflict = _conflict(cut, conflict_at, end)
    if choice == "REPLACE":
        conflict = Conflict(target=None, sets=(), where=None, replaces=True)
    ranges = _row_ranges(cut, first, conflict_at)
    rows: tuple[tuple[str | None, ...], ...] | None = None
    query: str | None = None
    query_from: tuple[str, ...] = ()
    if conflict is None and conflict_at == end and choice is None and not cut.with_text:
        query_from = _query_from(cut, first, end)
        query = cut.cut(first, end) if query_from else None
    if conflict is not None:
        if ranges is not None:
            rows = tuple(_row(cut, *each) for each in ranges)
        else:
            query = cut.cut(first, conflict_at)
            _require_known_columns(by_name)
    return Dml(
        verb=Verb.INSERT,
        text=cut.text_without_returning,
        with_text=cut.with_text.strip(),
        target=cut.target,
        relation=cut.relation(by_alias=conflict is not None),
        alias=cut.alias,
        returning=cut.returning(),
        columns=columns,
        by_name=by_name,
        row_count=None if ranges is None else len(ranges),
        rows=rows,
        query=query,
        query_from=query_from,
        conflict=conflict,
        calls=cut.calls(first, end) - {"conflict"},
        has_subquery=cut.has_subquery(first + 1, end),
    )


def _query_from(cut: _Cut, first: int, end: int) -> tuple[str, ...]:
    """The table of `SELECT ... FROM table [AS alias] [WHERE ...]`; () where the query is more than that.

    Whatever could give other rows the second time, by picking or ordering them, is more.
    """
    tokens = cut.tokens
    if first >= end or tokens[first].kind != "SELECT" or cut.has_subquery(first + 1, end):
        return ()
    picking = (index for index in range(first, end) if tokens[index].kind in _PICKING_WORDS)
    if any(not cut.is_distinct_from(index + 1) for index in picking):
        return ()
    from_at = cut.find("FROM", first, end)
    where_at = cut.find("WHERE", from_at, end)
    at = from_at + 1
    name: list[str] = []
    while at < where_at and tokens[at].is_name:
        name.append(tokens[at].name)
        at += 2 if at + 1 < where_at and tokens[at + 1].kind == "." else 1
        if tokens[at - 1].kind != ".":
            break
    if at < where_at and tokens[at].kind == "AS":
        at += 1
    if at == where_at - 1 and tokens[at].is_name:
        at += 1
    return tuple(name) if name and at == where_at else ()


def _require_known_columns(by_name: bool) -> None:
    if by_name:
        raise NotSupported(
            "INSERT BY NAME with ON CONFLICT DO UPDATE is not supported on a table with a stream",
            hint="Name the columns: INSERT INTO t (a, b) SELECT ...",
        )


def _column_list(cut: _Cut) -> tuple[str, ...] | None:
    """Take the column list, if the bracket that comes next is one and not a query."""
    reader = cut.reader
    if reader.peek() != "(":
        return None
    inside = reader.index + 1
    while cut.tokens[inside].kind == "(" and inside + 1 < cut.end:
        inside += 1
    follows = cut.tokens[inside + 1].kind if inside + 1 < cut.end else ""
    if cut.tokens[inside].kind in _QUERY_WORDS and follows not in (",", ")"):
        return None
    first, last = reader.brackets()
    return tuple(cut.tokens[a].name for a, _ in reader.slices(first, last))


def _conflict_at(cut: _Cut, first: int, end: int) -> int:
    """Index of the ON of ON CONFLICT, or the end."""
    at = cut.find("ON", first, end)
    while at < end and cut.tokens[at + 1].kind != "CONFLICT":
        at = cut.find("ON", at + 1, end)
    return at


def _row_ranges(cut: _Cut, first: int, end: int) -> list[tuple[int, int]] | None:
    """The token ranges of the rows of VALUES, of DEFAULT VALUES an empty one.

    None where a query is the source, or where more than rows stands there (ORDER BY, UNION, ...).
    """
    kind = cut.tokens[first].kind if first < end else ""
    if kind == "DEFAULT":
        return [(first, first)]
    if kind != "VALUES":
        return None
    ranges = cut.reader.slices(first + 1, end)
    are_rows = all(a < b and cut.tokens[a].kind == "(" and cut.closes(a, b) for a, b in ranges)
    return ranges if are_rows else None


def _row(cut: _Cut, first: int, end: int) -> tuple[str | None, ...]:
    parts = cut.reader.slices(first + 1, end - 1) if first < end else []
    return tuple(cut.value(a, b, proposed=False) for a, b in parts)


def _conflict(cut: _Cut, at: int, end: int) -> Conflict | None:
    """Cut ON CONFLICT; DO NOTHING gives None, for nothing is updated."""
    if at >= end:
        return None
    reader = cut.reader
    reader.index = at + 2
    target: tuple[str, ...] | None = None
    if reader.peek() == "(":
        first, last = reader.brackets()
        target = tuple(cut.tokens[a].name for a, _ in reader.slices(first, last))
    if not reader.accept("DO"):
        raise NotSupported("this form of ON CONFLICT is not supported on a table with a stream")
    if reader.accept("NOTHING"):
        return None
    if not reader.accept("UPDATE", "SET"):
        raise reader.unexpected()
    where_at = cut.find("WHERE", reader.index, end)
    sets = cut.assignments(reader.index, where_at, proposed=True)
    where = cut.expression(where_at + 1, end, proposed=True) if where_at < end else None
    return Conflict(target=target, sets=sets, where=where, replaces=False)


def _update(cut: _Cut) -> Dml:
    cut.head()
    reader = cut.reader
    if not reader.accept("SET"):
        raise reader.unexpected()
    first = reader.index
    end = min(cut.returning_at, cut.end)
    where_at = cut.find("WHERE", first, end)
    from_at = cut.find("FROM", first, where_at)
    return Dml(
        verb=Verb.UPDATE,
        text=cut.text_without_returning,
        with_text=cut.with_text.strip(),
        target=cut.target,
        relation=cut.relation(),
        alias=cut.alias,
        returning=cut.returning(),
        sets=cut.assignments(first, from_at, proposed=False),
        source=cut.cut(from_at + 1, where_at),
        where=cut.cut(where_at + 1, end),
        equal_columns=_equal_columns(cut.tokens, where_at + 1, end),
        calls=cut.calls(first, end),
        has_subquery=cut.has_subquery(first, end),
    )


def _delete(cut: _Cut) -> Dml:
    cut.head("FROM")
    end = min(cut.returning_at, cut.end)
    where_at = cut.find("WHERE", cut.reader.index, end)
    return Dml(
        verb=Verb.DELETE,
        text=cut.text_without_returning,
        with_text=cut.with_text.strip(),
        target=cut.target,
        relation=cut.relation(),
        alias=cut.alias,
        returning=cut.returning(),
        where=cut.cut(where_at + 1, end),
        equal_columns=_equal_columns(cut.tokens, where_at + 1, end),
    )


def _truncate(cut: _Cut) -> Dml:
    cut.head("TABLE")
    cut.reader.expect_end()
    text = f"DELETE FROM {cut.target}"
    return Dml(
        verb=Verb.DELETE, text=text, with_text="", target=cut.target, relation=cut.relation(), alias=None
    )


def _equal_columns(tokens: Sequence[Token], first: int, end: int) -> frozenset[str]:
    """Lower-case names before a top-level `=` or IN; none where a top-level OR widens the predicate."""
    top = [i for i in range(first, end) if tokens[i].depth == 0]
    if any(tokens[i].kind == "OR" for i in top):
        return frozenset()
    return frozenset(
        tokens[i - 1].name.lower() for i in top if tokens[i].kind in ("=", "IN") and tokens[i - 1].is_name
    )


_CUTTERS = {"INSERT": _insert, "UPDATE": _update, "DELETE": _delete, "TRUNCATE": _truncate}

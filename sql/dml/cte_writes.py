"""Statements that write in common table expressions and name a captured table.

DuckDB gives the parts of such a statement no order and no common snapshot. Here each writing part runs first,
as a statement of its own and in the order of the text; the rest of the statement then reads the rows of its
RETURNING in its place. All of it is one transaction. A result that would depend on the order is refused: two
parts that write one table, and a part that reads a table that an earlier one has written. At most one part
may write a captured table.

DuckDB lets a common table expression write only at the top of a statement: only parentheses, CREATE TABLE ...
AS, COPY ( and EXPLAIN may precede it. So this list and the statement itself hold all writes. Positions are
characters of the text, from 0.

Source: docs/design/sql.md, "Writing in a common table expression".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa

from ...engine.errors import NotSupported
from ...engine.quoting import fold, folded_sql, ident
from ...engine.waiting import Waiting
from ..ddl import ddl
from ..language.classify import classify, take_cte_head
from ..results.results import Result, ResultColumn
from ..session_state import queries
from ..session_state.context import Context
from ..session_state.names import Key
from ..session_state.run_text import (
    atomically,
    bound,
    in_duckdb_arrow_types,
    result_columns,
    rows_of,
    with_casts,
)
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, Kind, TokenReader
from ..text.spans import Replacement, cut, numbered
from ..text.tokens import tokenize
from . import topic_writes, writes

Values = tuple[object, ...]
# Runs the rest of the statement: its text, classified, and its parameters.
Rest = Callable[[Classified, Values], Waiting[Result]]

# DuckDB's columns for a writing part without RETURNING.
COUNT = (ResultColumn("Count", "BIGINT"),)
_SPLIT = "Write the statements one after the other, in one transaction."
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CteDefinition:
    """One common table expression.

    Args:
        name: the name as written, unquoted.
        columns: the number of names in its column list; 0 without a list.
        head: its text up to and including the opening parenthesis.
        start, end: the position of the text in its parentheses.
        body: the classified text in the parentheses.
    """

    name: str
    columns: int
    head: str
    start: int
    end: int
    body: Classified

    @property
    def writes(self) -> bool:
        """True if it is an INSERT, UPDATE, DELETE or TRUNCATE."""
        return self.body.kind is Kind.DML


def with_list(statement: Classified) -> tuple[CteDefinition, ...]:
    """The common table expressions at the top of a statement, in order; empty if it has none."""
    reader = TokenReader(statement.text, statement.tokens, _begins(statement))
    while reader.accept("("):
        pass
    if not reader.accept("WITH"):
        return ()
    reader.accept("RECURSIVE")
    parts = []
    while True:
        first = reader.index
        name, columns = take_cte_head(reader)
        opening = reader.index
        _, closing = reader.brackets()
        start, end = reader.tokens[opening].end, reader.tokens[closing].start
        head = reader.text[reader.tokens[first].start : start]
        # DuckDB refuses statements that are not allowed here (COPY to a file, say): they write no table.
        body = classify(reader.text[start:end])
        parts.append(CteDefinition(name, columns, head, start, end, body))
        if not reader.accept(","):
            return tuple(parts)


def _begins(statement: Classified) -> int:
    """Index of the token that begins the query, including parentheses before it."""
    offset = 0
    if statement.ddl is not None:
        offset = statement.ddl.query_offset or 0
    elif statement.copy is not None:
        offset = statement.copy.query_offset or 0
    return next((i for i, token in enumerate(statement.tokens) if token.start >= offset), 0)


def words(text: str) -> frozenset[str]:
    """All names in a text, in lower case."""
    return frozenset(fold(token.name) for token in tokenize(text) if token.is_name)


def needed(parts: Iterable[CteDefinition], named: Collection[str]) -> list[CteDefinition]:
    """The parts that a text with these words needs, directly or through other parts."""
    wanted = set(named)
    found = []
    for part in reversed(tuple(parts)):
        if fold(part.name) in wanted:
            found.append(part)
            wanted |= words(part.body.text)
    return found[::-1]


def run_read(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run a query that reads no stream."""
    if not concerns(session, statement.classified):
        return (yield from queries.run_query(session, statement, parameters))

    def rest(left: Classified, values: Values) -> Waiting[Result]:
        return queries.run_whole(session, left.text, values)

    return (yield from run_cte_writes(session, statement, statement.classified, parameters, rest))


def run_write(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run a DML statement that reads no stream."""
    return (yield from write(session, statement, statement.classified, parameters))


def write(
    session: Context, statement: ParsedStatement, classified: Classified, parameters: Values
) -> Waiting[Result]:
    """Run a DML text: the statement's own, or the same with its stream scans replaced."""

    def rest(left: Classified, values: Values) -> Waiting[Result]:
        return writes.write(session, statement, left, values)

    if concerns(session, classified):
        return (yield from run_cte_writes(session, statement, classified, parameters, rest))
    return (yield from rest(classified, parameters))


def run_definition(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run a DDL statement that reads no stream."""
    return (yield from define(session, statement, statement.classified, parameters))


def define(
    session: Context, statement: ParsedStatement, classified: Classified, parameters: Values
) -> Waiting[Result]:
    """Run a DDL text: the statement's own, or the same with its stream scans replaced."""

    def rest(left: Classified, values: Values) -> Waiting[Result]:
        return ddl.define(session, left, values)

    if classified.ddl is not None and classified.ddl.as_select and concerns(session, classified):
        return (yield from run_cte_writes(session, statement, classified, parameters, rest))
    return (yield from rest(classified, parameters))


def explain_analyze(
    session: Context, statement: ParsedStatement, parameters: Values, explain: str
) -> Waiting[list[str]]:
    """Run EXPLAIN ANALYZE of a statement that writes, and return the plan's lines; its writes are captured.

    Args:
        statement: the explained statement.
        explain: the words before it, options included.
    """
    lines: list[str] = []

    def rest(left: Classified, values: Values) -> Waiting[Result]:
        if left.dml is None:
            _, table = rows_of(session, f"{explain} {left.text}", values)
        else:
            how = writes.WriteMode(explain=explain)
            rows = yield from writes.write_rows(session, statement, left, values, how)
            assert rows.table is not None, "a plan has lines"
            table = rows.table
        for text in table.column(table.num_columns - 1).to_pylist():
            lines.extend(text.splitlines())
        return Result.command("EXPLAIN")

    classified = statement.classified
    if classified.cte_writes:
        yield from run_cte_writes(session, statement, classified, parameters, rest)
    else:
        yield from rest(classified, parameters)
    return lines


def concerns(session: Context, classified: Classified) -> bool:
    """True if a statement writes in a common table expression and names a captured table."""
    if not classified.cte_writes:
        return False
    topic_writes.refuse_in_with(session, classified.text)
    if topic_writes.target(session, classified) is not None:
        return True
    named = words(classified.text)
    return any(key[-1] in named for key in session.block.tables)


def run_cte_writes(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: Values,
    rest: Rest,
) -> Waiting[Result]:
    """Run a statement that writes in common table expressions: its writing parts, then the rest with `rest`.

    Raises:
        NotSupported: the answer would depend on the order of the parts.
    """
    text = classified.text
    # The error for an unknown name has its position in the user's text.
    if topic_writes.target(session, classified) is None:
        _ = bound(session, text)
    if statement.casts is not None:
        text = with_casts(text, statement.casts.of(parameters))
    classified = classify(text)
    parts = with_list(classified)
    _refuse_disorder(session, classified, parts)

    def work() -> Waiting[Result]:
        with _staging(session, statement, text, parts, parameters) as stage:
            yield from stage.run()
            left, values = numbered(stage.left(), parameters)
            return (yield from rest(classify(left), tuple(values)))

    return (yield from atomically(session, work))


def _refuse_disorder(session: Context, classified: Classified, parts: Sequence[CteDefinition]) -> None:
    """Refuse statements whose result depends on the order, or which this method cannot run."""
    table_key = session.names.table_key
    targets: list[Key] = [table_key(part.body.dml.target) for part in parts if part.body.dml is not None]
    main = [] if classified.dml is None else [table_key(classified.dml.target)]
    captured = [key for key in (*targets, *main) if key in session.block.tables]
    if len(captured) > 1:
        raise NotSupported("a statement can write one table with a stream at most", hint=_SPLIT)
    for key in targets:
        if (*targets, *main).count(key) > 1:
            raise NotSupported(f'table "{key[-1]}" is written twice in one statement', hint=_SPLIT)
    for part in parts:
        if not part.writes and (part.body.cte_writes or part.body.kind is not Kind.READ):
            raise NotSupported("this common table expression cannot be captured", hint=_SPLIT)
    written: list[Key] = []
    for part in parts:
        if part.body.dml is not None:
            before = needed(parts[: parts.index(part)], words(part.body.text))
            texts = [part.body.text, *(p.body.text for p in before if not p.writes)]
            _refuse_reading(session, written, texts)
            written.append(table_key(part.body.dml.target))
    _refuse_reading(session, written, [_outside(classified.text, parts), *_read_last(classified.text, parts)])


def _outside(text: str, parts: Sequence[CteDefinition]) -> str:
    """The text outside of the common table expressions."""
    return cut(text, [Replacement(part.start, part.end, "") for part in parts])


def _read_last(text: str, parts: Sequence[CteDefinition]) -> Iterator[str]:
    """The texts of the common table expressions that are evaluated after all writes."""
    users = [words(part.body.text) for part in parts if part.writes]
    used = {part.name for named in users for part in needed(parts, named)}
    for part in needed(parts, _main_words(text, parts)):
        if not part.writes and part.name not in used:
            yield part.body.text


def _main_words(text: str, parts: Sequence[CteDefinition]) -> frozenset[str]:
    return words(text[parts[-1].end :]) if parts else words(text)


def _refuse_reading(session: Context, written: Sequence[Key], texts: Sequence[str]) -> None:
    """Refuse texts that name a table that is written before they are evaluated, or a view of it."""
    if not written:
        return
    named = _with_definitions(session, frozenset().union(*map(words, texts)))
    for key in written:
        captured = session.block.tables.get(key)
        names = {key[-1]}
        if captured is not None:
            names |= {fold(stream.name) for stream in captured.streams}
            names |= words(captured.table.log) - {"ducktail"}
        if names & named:
            raise NotSupported(
                f'table "{key[-1]}" is read and written in one statement, whose parts have no order',
                hint=_SPLIT,
            )


def _with_definitions(session: Context, named: frozenset[str]) -> frozenset[str]:
    """The words, and the words in the views and macros that they name, directly or through others."""
    definitions = dict(
        session.meta.execute(
            f"SELECT {folded_sql('view_name')}, sql FROM system.main.duckdb_views() WHERE NOT internal "
            f"UNION ALL SELECT {folded_sql('function_name')}, macro_definition "
            "FROM system.main.duckdb_functions() "
            "WHERE NOT internal AND macro_definition IS NOT NULL"
        ).fetchall()
    )
    found, new = named, named
    while new:
        texts = [definitions[name] for name in new if name in definitions]
        new = frozenset().union(*map(words, texts)) - found
        found |= new
    return found


@dataclass(slots=True)
class _Staging:
    """The executed parts of one execution, and the relations that replace them."""

    session: Context
    statement: ParsedStatement
    text: str
    parts: Sequence[CteDefinition]
    parameters: Values
    relations: dict[str, str] = field(default_factory=dict)
    registered: list[str] = field(default_factory=list)

    def run(self) -> Waiting[None]:
        """Run the writing parts in textual order, preceded by the parts that several readers need."""
        shared = self._shared()
        for part in self.parts:
            if part.body.dml is not None:
                columns, table = yield from self._write(part)
                self._keep(part, columns, table)
            elif part.name in shared:
                text, values = numbered(self._alone(part), self.parameters)
                if self.session.block.begun:
                    self.session.block.touched()
                with in_duckdb_arrow_types(self.session, ()):
                    columns, table = rows_of(self.session, text, values)
                self._keep(part, columns, table)

    def left(self) -> str:
        """The text with the executed parts replaced by their rows."""
        read = {part.name for part in needed(self.parts, _main_words(self.text, self.parts))}
        pieces = []
        for part in self.parts:
            if part.name in self.relations:
                pieces.append(Replacement(part.start, part.end, self.relations[part.name]))
            elif part.name not in read:
                # Only a writing part reads it: it must not be evaluated again.
                nulls = ",".join(["NULL"] * (part.columns or 1))
                pieces.append(Replacement(part.start, part.end, f"SELECT {nulls}"))
        return cut(self.text, pieces)

    def _shared(self) -> set[str]:
        """Names of the reading parts that have several readers, one of them a writing part."""
        readers = [needed(self.parts, words(part.body.text)) for part in self.parts if part.writes]
        used = [part.name for reader in readers for part in reader]
        main = {part.name for part in needed(self.parts, _main_words(self.text, self.parts))}
        return {name for name in used if name in main or used.count(name) > 1}

    def _write(self, part: CteDefinition) -> Waiting[tuple[Sequence[ResultColumn], pa.Table]]:
        """Run a writing part; without RETURNING its row count is its only row."""
        text, values = numbered(self._alone(part), self.parameters)
        body = classify(text)
        how = writes.WriteMode(keeping=in_duckdb_arrow_types)
        rows = yield from writes.write_rows(self.session, self.statement, body, tuple(values), how)
        if rows.table is None:
            return COUNT, pa.table({"Count": pa.array([rows.count], pa.int64())})
        return result_columns(rows.names, rows.types), rows.table

    def _alone(self, part: CteDefinition) -> str:
        """A part as a statement of its own, with the earlier parts that it needs."""
        place = self.parts.index(part)
        before = needed(self.parts[:place], words(part.body.text))
        heads = [f"{p.head}{self.relations.get(p.name, p.body.text)})" for p in before]
        if not heads:
            return part.body.text
        text = part.body.text
        tokens = part.body.tokens
        if tokens[0].kind == "WITH":
            # The part's own list follows: DuckDB reports a name that is in both.
            return f"WITH {', '.join(heads)}, {text[tokens[0].end :]}"
        return f"WITH {', '.join(heads)} {text}"

    def _keep(self, part: CteDefinition, columns: Sequence[ResultColumn], table: pa.Table) -> None:
        name = f"__ducktail_part_{next(_numbers)}"
        self.session.cursor.register(name, table.rename_columns([f"c{i}" for i in range(len(columns))]))
        self.registered.append(name)
        # Arrow has no form of DuckDB's enums; all other types are restored exactly.
        listed = ",".join(
            f"c{i}{f'::{column.type}' if 'ENUM' in column.type else ''} AS {ident(column.name)}"
            for i, column in enumerate(columns)
        )
        self.relations[part.name] = f"SELECT {listed} FROM {name}"


@contextmanager
def _staging(
    session: Context,
    statement: ParsedStatement,
    text: str,
    parts: Sequence[CteDefinition],
    parameters: Values,
) -> Iterator[_Staging]:
    """Context in which the rows of the parts are on the session's cursor."""
    stage = _Staging(session, statement, text, parts, parameters)
    try:
        yield stage
    finally:
        for name in stage.registered:
            # In a failed transaction DuckDB has already unregistered it.
            with suppress(duckdb.Error):
                session.cursor.unregister(name)

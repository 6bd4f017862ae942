"""PREPARE, EXECUTE, DEALLOCATE and EXPLAIN: statements about another statement.

DuckDB's own PREPARE would bypass capture, so prepared statements are the session's. EXPLAIN never runs its
statement; EXPLAIN ANALYZE runs it, and its writes are captured.
Source: docs/sql.md.
"""

from __future__ import annotations

import datetime
from contextlib import AbstractContextManager, nullcontext

import duckdb

from ...engine.duck.cursors import ask
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    DucktailError,
    NotSupported,
    ProgramLimitExceeded,
    WrongState,
)
from ...engine.quoting import fold
from ...engine.values.strings import typed
from ...engine.waiting import Waiting
from ..dml import cte_writes, topic_writes
from ..language.classify import classify
from ..language.parse import Query
from ..reading.explained import Explained, explained
from ..results.results import Result
from ..rights import permission
from ..session_state.context import Context
from ..session_state.run_text import text_rows
from ..session_state.statement import ParsedStatement, PreparedStatement, check_described, find_prepared
from ..text.classified import Kind
from ..text.spans import Replacement, cut
from ..text.tokens import PARAMETER, number_question_marks, tokenize
from . import checks
from .description import check_bound
from .resolve import in_full

# Types whose values survive the way through Python and back to DuckDB unchanged.
_AS_PYTHON = frozenset({"BOOLEAN", "DOUBLE", "VARCHAR", "BLOB", "UUID"})
_MOMENTS = frozenset({"DATE", "TIMESTAMP"})
# Python's values for the infinities.
_ENDS = frozenset({datetime.date.min, datetime.date.max, datetime.datetime.min, datetime.datetime.max})
# Types whose texts are not their values.
_UNTOLD = frozenset({"VARIANT", "GEOMETRY"})


def prepare(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """PREPARE name [(types)] AS statement: replaces a prepared statement of the name, as in DuckDB."""
    facts = statement.classified.prepare
    assert facts is not None
    statements_max = session.database.settings.statements_max
    if facts.name not in session.prepared and len(session.prepared) >= statements_max:
        raise ProgramLimitExceeded(
            f"a session cannot keep more than {statements_max} prepared statements",
            hint="DEALLOCATE those that are no longer needed.",
        )
    text, names, count = _numbered(facts.inner)
    spelling = session.spell(text)
    try:
        inner = yield from session.parse(spelling.rewritten, told=False)
        if inner.classified.kind not in (Kind.READ, Kind.DML, Kind.OURS, Kind.CALL):
            raise NotSupported(f"{inner.classified.verb} cannot be prepared")
        inner = inner.declared(())
        check_bound(session, inner)
    except DucktailError as error:
        place = spelling.position(error.position) if text == facts.inner else None
        error.position = None if place is None else place + facts.offset
        raise
    session.prepared[facts.name] = PreparedStatement(
        inner, count, names, tuple(facts.types), spelling, statement.text, session.database.clock.now_us()
    )
    return Result.command("PREPARE")


def _numbered(text: str) -> tuple[str, tuple[str, ...], int]:
    """A statement with parameters $1, $2 and so on; their former names, and the highest number."""
    text = number_question_marks(text)
    marks = [token for token in tokenize(text) if token.kind == PARAMETER]
    numbers = [int(mark.text[1:]) for mark in marks if mark.text[1:].isdecimal()]
    if len(numbers) == len(marks):
        return text, (), max(numbers, default=0)
    if numbers:
        raise NotSupported("a statement cannot have parameters with names and with numbers")
    names = tuple(dict.fromkeys(fold(mark.text[1:]) for mark in marks))
    pieces = [Replacement(mark.start, mark.end, f"${names.index(fold(mark.text[1:])) + 1}") for mark in marks]
    return cut(text, pieces), names, len(names)


def execute_prepared(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """EXECUTE name [(arguments)]."""
    facts = statement.classified.execute
    assert facts is not None
    prepared = find_prepared(session.prepared, facts)
    values: tuple[object, ...] = ()
    if asked := prepared.arguments(facts):
        # It is a query as any other: its rights are checked, and it sees what the session sees.
        names = [f"a{place}" for place, _ in enumerate(asked, 1)]
        made = ", ".join(f"{argument} AS {name}" for argument, name in zip(asked, names, strict=True))
        told = ", ".join(f"typeof({name}), {name}, {name}::VARCHAR" for name in names)
        query = f"WITH arguments AS MATERIALIZED (SELECT {made}) SELECT {told} FROM arguments"
        found = yield from _evaluated(session, query, parameters)
        values = tuple(map(_value, found[::3], found[1::3], found[2::3]))
    result = yield from session.execute_within(prepared.statement, values)
    if (shown := prepared.spelling.columns(result.columns)) is not None:
        result.columns = tuple(shown)
    if None not in values:  # A NULL has lost its type once it is a value.
        check_described(statement, result)
    return result


def _evaluated(session: Context, text: str, parameters: tuple[object, ...]) -> Waiting[tuple[object, ...]]:
    """The values of the only row of a query."""
    rows: list[tuple[object, ...]] = []

    def run(session: Context, full: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        if isinstance(full.node, Query):
            raise NotSupported("an argument of EXECUTE cannot read a stream")
        if session.block.begun:
            session.block.touched()
        try:
            rows.append(ask(session.cursor, full.text, parameters))
        except duckdb.Error as error:
            raise translated(error) from error
        return Result.command("SELECT 1")
        yield

    yield from session.execute_within((yield from session.parse(text)), parameters, run)
    return rows[-1]


def _value(type_: object, value: object, text: object) -> object:
    """An argument as a parameter's value with its type.

    Args:
        type_: DuckDB's name of the type.
        value: the value in Python.
        text: the value in DuckDB's text form.
    """
    if value is None or type_ in _AS_PYTHON:
        return value
    if type_ in _UNTOLD:
        raise NotSupported(f"an argument of EXECUTE cannot be a {type_}")
    if isinstance(value, int):
        # Python's integer has no type: DuckDB takes a small BIGINT for an INTEGER.
        return value if type_ == _natural(value) else typed(value, str(type_))
    if isinstance(value, datetime.date) and type_ in _MOMENTS and value not in _ENDS:
        return value
    return typed(text, str(type_))


def _natural(value: int) -> str:
    """DuckDB's type of a Python integer."""
    if -(2**31) <= value < 2**31:
        return "INTEGER"
    return "BIGINT" if -(2**63) <= value < 2**63 else "HUGEINT"


def deallocate(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """DEALLOCATE { name | ALL }; an unknown name is no error, as in DuckDB."""
    name = statement.classified.name
    if name is None:
        session.prepared.clear()
        return Result.command("DEALLOCATE ALL")
    session.prepared.pop(name, None)
    return Result.command("DEALLOCATE")
    yield


def plan_rows(lines: list[str], *, as_json: bool = False) -> Result:
    """The rows of an EXPLAIN; FORMAT json has one row."""
    if as_json:
        return text_rows([("QUERY PLAN", "JSON")], [["\n".join(lines)]], "EXPLAIN")
    return text_rows([("QUERY PLAN", "VARCHAR")], [[line] for line in lines], "EXPLAIN")


def _analyze_writing(
    session: Context, inner: ParsedStatement, parameters: tuple[object, ...], word: str
) -> Waiting[list[str]]:
    """EXPLAIN ANALYZE of a statement that may write: it runs as usual, and its writes are captured."""
    classified = inner.classified
    if classified.kind is Kind.DDL or isinstance(inner.node, Query):
        raise NotSupported(
            f"EXPLAIN ANALYZE cannot run this {classified.verb}",
            hint="EXPLAIN shows the plan without running it.",
        )
    return (yield from cte_writes.explain_analyze(session, inner, parameters, word))


def explain(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """EXPLAIN [ANALYZE] statement."""
    facts = statement.classified.explain
    assert facts is not None
    inner = yield from session.parse(facts.inner)
    if inner.away is not None:
        raise WrongState("the streams have been moved to another node meanwhile", hint="Try it again.")
    inner = in_full(session, inner)
    permission.check(session, inner, parameters, permission.CheckMode(explains=True))
    kind = inner.classified.kind
    if kind is Kind.OURS:
        _ = inner.description
        return plan_rows([inner.classified.verb])
    if facts.options.get("FORMAT") == "xml":
        raise NotSupported("EXPLAIN (FORMAT xml) is not supported", hint="Write FORMAT json.")
    if facts.analyze and inner.classified.locking:
        raise NotSupported(f"EXPLAIN ANALYZE cannot run FOR {inner.classified.locking[0].strength}")
    if kind is Kind.REFUSED:
        assert inner.classified.error is not None
        raise inner.classified.error
    if kind not in (Kind.READ, Kind.DML, Kind.DDL):
        raise NotSupported(f"{inner.classified.verb} cannot be explained")
    as_json = facts.options.get("FORMAT") == "json"
    options = [f"{name} {value}".strip() for name, value in facts.options.items() if name != "ANALYZE"]
    words = ["ANALYZE"] * facts.analyze + options
    word = f"EXPLAIN ({', '.join(words)})" if options else " ".join(["EXPLAIN", *words])
    if facts.analyze:
        checks.check_read_only(session, inner)
    if facts.analyze and (kind is not Kind.READ or inner.classified.may_write):
        found = yield from _analyze_writing(session, inner, parameters, word)
        return plan_rows(found, as_json=as_json)
    if facts.analyze and isinstance(inner.node, Query) and (scan := inner.node.commits) is not None:
        raise NotSupported(
            "COMMIT of a stream scan is not supported in EXPLAIN ANALYZE",
            hint="EXPLAIN shows the plan without running it.",
            position=facts.offset + scan.start + 1,
        )
    if facts.analyze and isinstance(inner.node, Query) and any(scan.away for scan in inner.node.scans):
        raise NotSupported(
            "EXPLAIN ANALYZE cannot run a query that fetches from another node",
            hint="EXPLAIN shows the plan without running it.",
        )
    if session.block.begun:
        session.block.touched()
    scans: AbstractContextManager[Explained]
    if isinstance(inner.node, Query):
        scans = explained(session, inner, inner.node, parameters, runs=facts.analyze)
    else:
        scans = nullcontext(Explained(inner.text, []))
    with scans as shown:
        text = shown.text
        if topic_writes.target(session, inner.classified) is not None:
            text = topic_writes.query_of(session, classify(text)).query
        try:
            cursor = session.cursor.execute(f"{word} {text}", list(parameters) or None)
            rows = cursor.fetchall()
        except duckdb.Error as error:
            raise translated(error) from error
    lines = [line for row in rows for line in str(row[-1]).splitlines()]
    return plan_rows(lines if as_json else lines + shown.lines, as_json=as_json)

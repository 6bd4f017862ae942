"""PREPARE, EXECUTE, DEALLOCATE and EXPLAIN: statements about another statement.

DuckDB's own PREPARE would take a write past the capture, so prepared statements are the session's.
EXPLAIN never runs what it explains; EXPLAIN ANALYZE runs it, and a write of it is captured.
Source: docs/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from ..engine.duckdb_errors import translated
from ..engine.errors import (
    DuplicatePreparedStatement,
    InvalidStatementName,
    NotSupported,
    ProgramLimitExceeded,
    UndefinedParameter,
    WrongState,
)
from ..engine.waiting import Waiting
from . import read_only, staged
from .context import Context, Runner
from .language.parse import Query
from .results.results import Result, ResultColumn
from .rights import permission
from .runners import topics
from .running import text_rows
from .scans.scan_texts import explainable
from .statement import Statement
from .text.classified import Kind
from .text.classify import classify

# The values of the one row that a query answers, which is a statement like any other.
Evaluate = Callable[[Context, str, tuple[object, ...]], Waiting[tuple[object, ...]]]
PLAN_COLUMNS = (ResultColumn("QUERY PLAN", "VARCHAR"),)


def prepare(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """PREPARE name [(types)] AS statement."""
    facts = statement.classified.prepare
    assert facts is not None
    if facts.name in session.prepared:
        raise DuplicatePreparedStatement(f'prepared statement "{facts.name}" already exists')
    statements_max = session.database.settings.statements_max
    if len(session.prepared) >= statements_max:
        raise ProgramLimitExceeded(
            f"a session cannot keep more than {statements_max} prepared statements",
            hint="DEALLOCATE those that are no longer needed.",
        )
    inner = yield from session.parse(facts.inner)
    if inner.classified.kind not in (Kind.READ, Kind.DML, Kind.OURS, Kind.CALL):
        raise NotSupported(f"{inner.classified.verb} cannot be prepared")
    inner = inner.declared(tuple(facts.types))
    _ = inner.parameter_types  # Binds it: what is wrong is told now.
    session.prepared[facts.name] = inner
    return Result.command("PREPARE")


def executed(session: Context, statement: Statement) -> Statement:
    """The statement that an EXECUTE names.

    Raises:
        InvalidStatementName: 26000, there is none.
    """
    facts = statement.classified.execute
    assert facts is not None
    inner = session.prepared.get(facts.name)
    if inner is None:
        raise InvalidStatementName(f'prepared statement "{facts.name}" does not exist')
    return inner


def execute_with(runners: dict[Kind, Runner], evaluate: Evaluate) -> Runner:
    """EXECUTE name [(arguments)], with the runners of the statements that can be prepared.

    Args:
        evaluate: gives the values of the arguments.
    """

    def run(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
        facts = statement.classified.execute
        assert facts is not None
        inner = executed(session, statement)
        types = inner.parameter_types
        if len(types) != len(facts.arguments):
            raise UndefinedParameter(
                f'wrong number of parameters for prepared statement "{facts.name}"',
                detail=f"Expected {len(types)} parameters but got {len(facts.arguments)}.",
            )
        values: tuple[object, ...] = ()
        if types:
            wanted = ", ".join(
                f"({argument})::{type_}" for argument, type_ in zip(facts.arguments, types, strict=True)
            )
            # A query like any other: it is judged, and it sees what the session sees.
            values = yield from evaluate(session, f"SELECT {wanted}", parameters)
        return (yield from runners[inner.classified.kind](session, inner, values))

    return run


def deallocate(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """DEALLOCATE { name | ALL }"""
    name = statement.classified.name
    if name is None:
        session.prepared.clear()
        return Result.command("DEALLOCATE ALL")
    if session.prepared.pop(name, None) is None:
        raise InvalidStatementName(f'prepared statement "{name}" does not exist')
    return Result.command("DEALLOCATE")
    yield


def plan_rows(lines: list[str]) -> Result:
    """An EXPLAIN's answer."""
    return text_rows([("QUERY PLAN", "VARCHAR")], [[line] for line in lines], "EXPLAIN")


def _analyze_writing(
    session: Context, inner: Statement, parameters: tuple[object, ...], word: str
) -> Waiting[list[str]]:
    """EXPLAIN ANALYZE of what may write: it is run as it would be without, and captured.

    Raises:
        NotSupported: 0A000, it is DDL, or it writes what a stream gives.
    """
    classified = inner.classified
    if classified.kind is Kind.DDL or isinstance(inner.node, Query):
        raise NotSupported(
            f"EXPLAIN ANALYZE cannot run this {classified.verb}",
            hint="EXPLAIN shows the plan without running it.",
        )
    return (yield from staged.explain_analyze(session, inner, parameters, word))


def explain_with(in_full: Callable[[Context, Statement], Statement]) -> Runner:
    """EXPLAIN [ANALYZE] statement, with what writes the names of a statement in full."""

    def run(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
        return (yield from _explain(session, statement, parameters, in_full))

    return run


def _explain(
    session: Context,
    statement: Statement,
    parameters: tuple[object, ...],
    in_full: Callable[[Context, Statement], Statement],
) -> Waiting[Result]:
    facts = statement.classified.explain
    assert facts is not None
    inner = yield from session.parse(facts.inner)
    if inner.away is not None:
        raise WrongState("the streams have been moved to another node meanwhile", hint="Try it again.")
    inner = in_full(session, inner)
    permission.check(session, inner, parameters, permission.How(explains=True))
    kind = inner.classified.kind
    if kind is Kind.OURS:
        _ = inner.description
        return plan_rows([inner.classified.verb])
    if kind is Kind.REFUSED:
        assert inner.classified.error is not None
        raise inner.classified.error
    if kind not in (Kind.READ, Kind.DML, Kind.DDL):
        raise NotSupported(f"{inner.classified.verb} cannot be explained")
    options = [f"{name} {value}".strip() for name, value in facts.options.items() if name != "ANALYZE"]
    words = ["ANALYZE"] * facts.analyze + options
    word = f"EXPLAIN ({', '.join(words)})" if options else " ".join(["EXPLAIN", *words])
    if facts.analyze:
        read_only.check(session, inner)
    if facts.analyze and (kind is not Kind.READ or inner.classified.may_write):
        return plan_rows((yield from _analyze_writing(session, inner, parameters, word)))
    if facts.analyze and isinstance(inner.node, Query) and any(scan.away for scan in inner.node.scans):
        raise NotSupported(
            "EXPLAIN ANALYZE cannot run a query that fetches from another node",
            hint="EXPLAIN shows the plan without running it.",
        )
    if session.block.begun:
        session.block.touched()
    text = inner.text if not isinstance(inner.node, Query) else explainable(session, inner.node)
    if topics.target(session, inner.classified) is not None:
        text = topics.query_of(session, classify(text)).query
    try:
        cursor = session.cursor.execute(f"{word} {text}", list(parameters) or None)
        rows = cursor.fetchall()
    except duckdb.Error as error:
        raise translated(error) from error
    return plan_rows([line for row in rows for line in str(row[-1]).splitlines()])

"""The description of a statement for its client, before it runs: parameter types and columns.

A description belongs to a state of the catalog (`state_of`), and is computed again in another one.
Source: docs/design/schema_changes.md; docs/design/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ...engine.errors import DucktailError, UndefinedParameter
from ..cluster import relay
from ..dml import topic_writes, writes
from ..language import statements as st
from ..language.classify import classify
from ..language.grammar import PARAMETERS_MAX
from ..language.parse import Query, parameter_types
from ..language.statements.publishing import published_positions
from ..peer_requests import serving
from ..reading import scan_relation
from ..reading.scan_relation import HIDDEN_LSN
from ..results.results import ResultColumn
from ..rights import permission
from ..session_state.context import Context
from ..session_state.run_text import bound, bound_with_types
from ..session_state.state_of import state_of
from ..session_state.statement import Description, ParsedStatement, find_prepared
from ..statements import cursor_statements, session_calls, set_and_show, show
from ..text.classified import Classified, Kind
from ..text.spans import original_positions, user_position
from . import column_origins, user_types
from .parsing import prepare
from .resolve import in_full

PLAN_COLUMNS = (ResultColumn("QUERY PLAN", "VARCHAR"),)
PLAN_COLUMNS_JSON = (ResultColumn("QUERY PLAN", "JSON"),)


def describe(session: Context, statement: ParsedStatement) -> Description:
    """Describe a statement before it runs, with DuckDB's binder.

    Raises:
        DucktailError: the statement is invalid.
    """
    if statement.away is not None and not relay.describes_itself(statement):
        return relay.describe_now(session, statement)
    if statement.away is not None:
        with session.looking(), published_positions(statement.published):
            session.block.check_sound()
            return DESCRIBERS.get(statement.classified.kind, _nothing)(session, statement)
    with _looked_at(session, statement) as full:
        state = state_of(session)
        found = DESCRIBERS.get(full.classified.kind, _nothing)(session, full)
        found = replace(
            found,
            columns=column_origins.with_origins(session, full, found.columns),
            types_shown=user_types.of_parameters(session, found.parameter_types),
        )
        if full is not statement:
            full.tell(found)
        # If the catalog was changed meanwhile, the description may mix the states before and after.
        lasts = state == state_of(session) and full.classified.kind not in NAMING and not _of_rows(full)
        statement.described_in = state if lasts else None
        return found


def _of_rows(statement: ParsedStatement) -> bool:
    """True if the columns may depend on the rows."""
    return any(token.kind in PIVOTS for token in statement.classified.tokens)


def is_stale(session: Context, statement: ParsedStatement) -> bool:
    """True if the described columns of a statement may have changed."""
    if statement.described is None or statement.away is not None or statement.told_there:
        return False
    return statement.described_in is None or statement.described_in != state_of(session)


@contextmanager
def _looked_at(session: Context, statement: ParsedStatement) -> Iterator[ParsedStatement]:
    """Context in which names are looked up and texts bound; it yields the statement with qualified names."""
    with session.looking(), published_positions(statement.published):
        if statement.classified.kind not in UNBOUND:
            session.block.check_sound()
        full = in_full(session, statement)
        with original_positions(full.pieces):
            permission.check(session, full, (), permission.CheckMode(runs=False))
            yield full


def check_bound(session: Context, statement: ParsedStatement) -> None:
    """Check a statement for errors that do not depend on its parameters."""
    if statement.away is not None:
        _ = statement.description  # Its node describes it.
        return
    with _looked_at(session, statement) as full:
        kind = full.classified.kind
        topic = topic_writes.target(session, full.classified) if kind is Kind.DML else None
        if kind is Kind.DML:
            writes.refuse_target(session, full)
        if kind in (Kind.READ, Kind.DML) and topic is None:
            with _user_places(session, full) as text:
                bound(session, text)
        else:
            DESCRIBERS.get(kind, _nothing)(session, full)


@contextmanager
def _user_places(session: Context, statement: ParsedStatement) -> Iterator[str]:
    """Context with a text that DuckDB can bind; error positions refer to the user's text."""
    if not isinstance(statement.node, Query):
        yield statement.text
        return
    text = scan_relation.bindable(session, statement.node)
    try:
        yield text
    except DucktailError as error:
        if error.position is not None:
            error.position = user_position(error.position, scan_relation.empty_scans(session, statement.node))
        raise


def _nothing(session: Context, statement: ParsedStatement) -> Description:
    return Description((), None)


def _described_query(session: Context, statement: ParsedStatement) -> Description:
    given = statement.parameter_types_given
    if isinstance(statement.node, Query):
        ours = parameter_types(statement.node)
        count = max([len(given), *ours], default=0)
        given = tuple(
            (given[n - 1] if n <= len(given) else "") or ours.get(n, "") for n in range(1, count + 1)
        )
    with _user_places(session, statement) as text:
        if statement.classified.cte_writes:
            topic_writes.refuse_in_with(session, text)
        found, casts = bound_with_types(session, text, given)
    types = {int(name): type_ for name, type_ in found.parameters.items()}
    for place, type_ in enumerate(given, 1):
        types.setdefault(place, type_ or "VARCHAR")
    count = max(types, default=0)
    if count > PARAMETERS_MAX:
        raise UndefinedParameter(f"there is no parameter ${count}")
    columns = None
    if found.returns_rows or _returns(statement.classified):
        columns = tuple(
            ResultColumn(name, type_)
            for name, type_ in zip(found.names, found.types, strict=True)
            if name != HIDDEN_LSN
        )
    return Description(tuple(types.get(n, "VARCHAR") for n in range(1, count + 1)), columns, casts)


def _returns(classified: Classified) -> bool:
    """True if the statement returns rows, even if DuckDB's binder reports a count."""
    if classified.dml is None:
        return classified.kind is Kind.READ and classified.cte_writes
    return classified.dml.has_returning


def _described_dml(session: Context, statement: ParsedStatement) -> Description:
    writes.refuse_target(session, statement)
    topic = topic_writes.target(session, statement.classified)
    if topic is not None:
        classified = statement.classified
        if isinstance(statement.node, Query):
            classified = classify(scan_relation.bindable(session, statement.node))
        return topic_writes.describe(session, statement, classified, topic)
    described = _described_query(session, statement)
    if _returns(statement.classified):
        return described
    return Description(described.parameter_types, None)


def _described_ours(session: Context, statement: ParsedStatement) -> Description:
    assert isinstance(statement.node, st.Statement)
    types = parameter_types(statement.node)
    given = statement.parameter_types_given
    count = max([*types, len(given)], default=0)
    found = tuple(
        (given[n - 1] if n <= len(given) else "") or types.get(n, "VARCHAR") for n in range(1, count + 1)
    )
    return Description(found, show.shown_columns(statement.node, session))


def _described_setting(session: Context, statement: ParsedStatement) -> Description:
    if set_and_show.shows_table(session, statement):
        return _described_query(session, statement)
    return Description((), set_and_show.shown_columns(session, statement))


def _described_explain(session: Context, statement: ParsedStatement) -> Description:
    assert statement.classified.explain is not None
    inner = prepare(session, statement.classified.explain.inner, ())
    types: tuple[str, ...] = ()
    if inner.classified.kind in (Kind.READ, Kind.DML):
        types = inner.declared(statement.parameter_types_given).parameter_types
    facts = statement.classified.explain
    as_json = facts.options.get("FORMAT") == "json" and inner.classified.kind is not Kind.OURS
    return Description(types, PLAN_COLUMNS_JSON if as_json else PLAN_COLUMNS)


def _described_cursor(session: Context, statement: ParsedStatement) -> Description:
    facts = statement.classified.cursor
    assert facts is not None
    if facts.inner:
        inner = prepare(session, session.spell(facts.inner).rewritten, ())
        if inner.classified.kind is not Kind.READ:
            return Description((), None)
        return Description(inner.declared(statement.parameter_types_given).parameter_types, None)
    portal = cursor_statements.named(session, statement)
    fetches = portal is not None and statement.classified.verb == "FETCH"
    return Description((), tuple(portal.columns) if fetches and portal is not None else None)


def _described_execute(session: Context, statement: ParsedStatement) -> Description:
    facts = statement.classified.execute
    assert facts is not None
    found = find_prepared(session.prepared, facts)
    types: tuple[str, ...] = ()
    if asked := found.arguments(facts):
        with _looked_at(session, prepare(session, f"SELECT {', '.join(asked)}", ())) as full:
            types = bound(session, full.text).types
    columns = found.spelling.columns(found.statement.declared(types).columns)
    return Description((), None if columns is None else tuple(columns))


def _described_forward(session: Context, statement: ParsedStatement) -> Description:
    return Description(("BLOB",), serving.FRAME)


PIVOTS = frozenset({"PIVOT", "PIVOT_WIDER"})
# Statements with the columns of an object that the session has under a name.
NAMING = frozenset({Kind.CURSOR, Kind.EXECUTE})
# Described without a lookup, so that it is possible in a failed transaction.
UNBOUND = frozenset({Kind.EMPTY, Kind.TRANSACTION})
DESCRIBERS: dict[Kind, Callable[[Context, ParsedStatement], Description]] = {
    Kind.READ: _described_query,
    Kind.DML: _described_dml,
    Kind.DDL: _nothing,
    Kind.OURS: _described_ours,
    Kind.SETTING: _described_setting,
    Kind.EXPLAIN: _described_explain,
    Kind.EXECUTE: _described_execute,
    Kind.CURSOR: _described_cursor,
    Kind.CALL: session_calls.describe,
    Kind.FORWARD: _described_forward,
}

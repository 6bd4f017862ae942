"""The check of rights before a statement is described or runs.

Nothing is checked while there is no user; superusers are only denied access to password verifiers. For all
others a kind of statement without a rule here is refused, and so is one whose reach cannot be determined.
First the names in the text are checked, by DuckDB's own parser and with nothing bound, so that no error
reveals a hidden object; then, before the statement runs, everything that DuckDB's plan reads must have been
checked. Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

import duckdb

from ...engine.capture.plan import Dml
from ...engine.catalog.rights import relation
from ...engine.catalog.streams import Stream
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.objects import TABLE
from ...engine.errors import (
    DucktailError,
    InsufficientPrivilege,
    InvalidSchemaName,
    SyntaxError_,
    UndefinedObject,
)
from ...engine.quoting import fold
from ..ddl import reserved_names
from ..dml import topic_writes, writes
from ..dml.dml import slice_dml
from ..language import statements as st
from ..language.classify import classify
from ..language.parse import Query
from ..reading import scan_relation
from ..session_state.access import Key
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..settings import VARIABLES
from ..text.classified import Classified, Kind
from ..text.spans import defining_query_span, numbered, user_position, variable_value
from . import ddl_permission
from .analysis import (
    WRAPPED_AT,
    Named,
    NotAnalysed,
    Table,
    named_in_dml,
    named_in_expression,
    named_in_query,
)
from .hidden_names import as_told
from .plan import may_compute, plan_tables, refuse_computed
from .reach import TRUSTED, Reach, cannot_tell, no_table
from .visible import tell

Values = Sequence[object]

# Kinds whose texts DuckDB reads tables for.
_READING = frozenset({Kind.READ, Kind.DML, Kind.DDL, Kind.COPY, Kind.SETTING, Kind.EXPLAIN})
# Under which a statement keeps what it was found to reach.
_KEPT = "permitted"
_PRAGMAS = frozenset({"version", "platform", "user_agent", "collations"})


@dataclass(frozen=True, slots=True)
class CheckMode:
    """The extent of a check.

    Args:
        runs: the statement is about to run, with these parameters; else it is only described.
        explains: its plan will be shown: what is under views must be the session's as well.
    """

    runs: bool = True
    explains: bool = False


def check(
    session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode = CheckMode()
) -> None:
    """Refuse what the session may not do.

    Raises:
        InsufficientPrivilege. InvalidAuthorization: its user has been dropped.
        UndefinedTable: and the like: what it may not know of is not there.
    """
    access = session.access
    if access.account is None and not session.database.rights.users:
        return
    if not access.limited:
        tell(session)
        if how.runs and statement.classified.kind in _READING and not statement.inline:
            text = _planned(session, statement)
            if text is not None and may_compute(session, statement.classified):
                refuse_computed(session, *numbered(text, parameters))
        return
    access.said[1:] = [(statement.classified.text, ())]
    rule = _RULES.get(statement.classified.kind)
    if rule is None:
        raise InsufficientPrivilege(f"permission denied for {statement.classified.verb}", hint=_SUPERUSERS)
    if rule is _nothing:
        return
    if session.block.whole and (how.runs or not statement.waits):
        # What waits for events takes its snapshot when it has waited.
        session.block.touched()
    session.cursors.settle()
    tell(session)
    reserved_names.refuse_inside(session, statement.classified.tokens)
    rule(session, statement, parameters, how)


def _planned(session: Context, statement: ParsedStatement) -> str | None:
    """The text that DuckDB plans when a statement runs: the statement or its query; None for nothing."""
    classified = statement.classified
    if isinstance(statement.node, Query):
        classified = classify(scan_relation.bindable(session, statement.node))
    if classified.verb == "SET VARIABLE":
        start = variable_value(classified.tokens)
        return None if start is None else f"SELECT {classified.text[start:]}"
    if classified.kind is Kind.DDL:
        span = defining_query_span(classified)
        return None if span is None else classified.text[span[0] : span[1]]
    if topic_writes.target(session, classified) is not None:
        return topic_writes.query_of(session, classified).query
    return classified.text


_SUPERUSERS = "Only superusers may."


def _nothing(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """It reaches nothing."""


# Queries and DML.


def _query(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    classified = statement.classified
    if classified.verb == "PRAGMA":
        if classified.name not in _PRAGMAS:
            raise InsufficientPrivilege(
                f"permission denied for PRAGMA {classified.name}", hint="DESCRIBE t shows a table's columns."
            )
        return
    _judged(session, statement, parameters, how, classified)


def _dml(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    if statement.published is not None:
        writes.refuse_target(session, statement)
    _judged(session, statement, parameters, how, statement.classified)


def _judged(
    session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode, classified: Classified
) -> None:
    """Judge a text that DuckDB runs, once for each state of catalog, rights and search path."""
    access = session.access
    if isinstance(statement.node, Query):
        _scans(session, statement.node, parameters)
    names = session.names
    # Each is another value after each change: whether it is the same one is all that is asked.
    same = (access.rights, names.objects(), names.temporary_objects())
    state = (session.database.catalog.version, names.path, how)
    kept = statement.plans.get(_KEPT)
    if isinstance(kept, tuple) and kept[1] == state and all(map(is_, kept[0], same)):
        return
    text, reach = _reached(session, statement.node, classified)
    topic = topic_writes.target(session, classified)
    if topic is not None:
        # What is published is a query to DuckDB.
        text = topic_writes.query_of(session, classify(text)).query
    # TRUNCATE has no plan, and names one table.
    if how.runs and classified.verb != "TRUNCATE":
        _hold_against_plan(session, text, parameters, reach, how)
    statement.plans[_KEPT] = (same, state)


def _reached(session: Context, node: object, classified: Classified) -> tuple[str, Reach]:
    """The text for the plan, and what its names reach."""
    text, query = classified.text, node if isinstance(node, Query) else None
    if query is not None:
        text = scan_relation.bindable(session, query)
    reach = Reach(session)
    try:
        if classified.verb == "MERGE":
            _merge(session, classify(text), reach)
        elif classified.kind is Kind.DML:
            reach.take(_named(lambda: named_in_dml(session.names.cursor(), text)), WRAPPED_AT)
        else:
            reach.take(_named(lambda: named_in_query(session.names.cursor(), text)))
    except DucktailError as error:
        if query is not None and error.position is not None:
            error.position = user_position(error.position, scan_relation.empty_scans(session, query))
        raise
    return text, reach


def _named(work: Callable[[], Named]) -> Named:
    try:
        return work()
    except NotAnalysed as error:
        if error.syntax:
            raise SyntaxError_(str(error)) from None
        raise cannot_tell() from None


def _merge(session: Context, classified: Classified, reach: Reach) -> None:
    """MERGE: its source is a FROM, its target wants what its clauses do; the rest must be expressions."""
    assert classified.dml is not None
    cut = slice_dml(classified, session.names.schema, lambda _: ("column",))
    if cut.merge is None or cut.has_subquery:
        raise InsufficientPrivilege(
            "permission denied: MERGE with a subquery in ON or WHEN",
            hint="Put it into the source: USING (SELECT ...).",
        )
    verbs = {clause.action.value.split()[0].lower() for clause in cut.merge.clauses}
    privileges = frozenset({"select"}) | (verbs & {"insert", "update", "delete"})
    source = f"{cut.with_text} SELECT * FROM {cut.merge.source}\n"
    reach.take(_named(lambda: named_in_query(session.names.cursor(), source)))
    key = session.names.table_key(classified.dml.target)
    reach.require(key, privileges, Table(classified.dml.target, privileges), 0)
    reach.tables.add(key)
    reach.take(_named(lambda: named_in_expression(session.names.cursor(), _expressions(cut))))


def _expressions(cut: Dml) -> str:
    """All the expressions of a MERGE, with commas between."""
    assert cut.merge is not None
    on = cut.merge.on
    found = [on[2:]] if on[:2].upper() == "ON" else []
    for clause in cut.merge.clauses:
        sets = (value for _, value in clause.sets)
        found += [text for text in (clause.condition, *sets, *clause.values, clause.message) if text]
    listed = [f"({text}\n)" for text in found]
    return ", ".join(listed if cut.returning is None else [*listed, cut.returning]) or "NULL"


def _hold_against_plan(session: Context, text: str, parameters: Values, reach: Reach, how: CheckMode) -> None:
    """Check that everything that DuckDB's plan reads has been checked."""
    try:
        # Parameters of our own clauses are not in DuckDB's text.
        tables = plan_tables(session, *numbered(text, parameters))
    except duckdb.Error as error:
        raise as_told(session.access, translated(error)) from error
    catalog = fold(session.database.catalog_name)
    for parts in tables:
        database, key = parts[0], tuple(parts[-2:])
        if database in (TRUSTED, "temp", "system"):
            continue
        if database != catalog or len(parts) != 3 or key not in reach.tables:
            raise cannot_tell()
        if how.explains and key[0] != "ducktail" and not session.access.may("select", key):
            raise InsufficientPrivilege(
                "permission denied: the plan would show what is under a view",
                hint="Its owner can look at it.",
            )


def _scans(session: Context, query: Query, parameters: Values) -> None:
    """SELECT reads a stream, CONSUME reads it with a group; whose group it is, is asked when it opens."""
    for scan in query.scans:
        if scan.away is not None:
            continue  # Its own node asks.
        stream = session.names.scanned(scan.stream.parts, scan.stream.position, scan.kind)
        privilege = "select" if scan.group is None else "consume"
        _stream_right(session, stream, privilege, scan.stream.position)


def _stream_right(session: Context, stream: Stream, privilege: str, position: int = 0) -> None:
    if not session.access.may(privilege, stream.key):
        raise InsufficientPrivilege(
            f'permission denied for {stream.kind} "{stream.name}"',
            detail=f"It wants {privilege.upper()} on it.",
            position=position or None,
        )


# Definitions.


def _ddl(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    classified = statement.classified
    facts = classified.ddl
    assert facts is not None
    ddl_permission.check(session, classified)
    if isinstance(statement.node, Query):
        _scans(session, statement.node, parameters)
        classified = classify(scan_relation.bindable(session, statement.node))
    span = defining_query_span(classified)
    if span is None:
        if how.explains:
            raise InsufficientPrivilege(f"permission denied to explain {classified.verb}", hint=_SUPERUSERS)
        return
    start, end = span
    text = classified.text[start:end]
    reach = Reach(session)
    try:
        reach.take(_named(lambda: named_in_query(session.names.cursor(), text)))
    except DucktailError as error:
        error.position = None if error.position is None else error.position + start
        raise
    if how.runs:
        _hold_against_plan(session, text, parameters, reach, how)


def _copy(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """COPY of a table; a query that is copied to the client is looked at on its own (copy/stdout.py)."""
    facts = statement.classified.copy
    assert facts is not None
    if not facts.client:
        raise InsufficientPrivilege("permission denied to read or write files", hint=_SUPERUSERS)
    if facts.table is not None:
        privileges = frozenset({"insert" if facts.reads else "select"})
        Reach(session).take(Named(tables=[Table(facts.table, privileges, facts.table_position)]))


# Settings and utilities.


def _setting(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    classified = statement.classified
    facts = classified.setting
    assert facts is not None
    if classified.verb == "SET VARIABLE":
        start = variable_value(classified.tokens)
        if start is None:
            raise cannot_tell()
        value, reach = classified.text[start:], Reach(session)
        reach.take(_named(lambda: named_in_expression(session.names.cursor(), value)))
        if how.runs:
            _hold_against_plan(session, f"SELECT {value}", parameters, reach, how)
    elif classified.verb == "SHOW" and facts.name != "all" and facts.name.lower() not in VARIABLES:
        if not session.names.is_table(facts.name):
            raise UndefinedObject(f'unrecognized configuration parameter "{facts.name}"')
        found = session.names.find(TABLE, (facts.name,))
        path = (facts.name,) if found is None else (found.catalog, found.schema, found.name)
        Reach(session).take(Named(tables=[Table(path, frozenset({"select"}))]))


def _see_schema(session: Context, name: str) -> None:
    if not session.access.sees_schema(name):
        raise InvalidSchemaName(f'schema "{name}" does not exist')


def _utility(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    classified = statement.classified
    if classified.verb != "USE":
        raise InsufficientPrivilege(f"permission denied for {classified.verb}", hint=_SUPERUSERS)


def _prepare(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """Types of parameters; what is prepared is looked at on its own."""
    facts = statement.classified.prepare
    assert facts is not None
    _look_at(session, [f"NULL::{type_}" for type_ in facts.types])


def _look_at(session: Context, texts: Sequence[str]) -> None:
    """Look at what expressions name."""
    if texts:
        listed = ", ".join(texts)
        Reach(session).take(_named(lambda: named_in_expression(session.names.cursor(), listed)))


# Statements of ours.


def _ours(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    node = statement.node
    row = st.row_of(node)
    rule = None if row is None else _RIGHTS.get(row.right)
    if rule is None:
        raise InsufficientPrivilege(f"permission denied for {statement.classified.verb}", hint=_SUPERUSERS)
    reserved_names.refuse_stream(session, node)
    rule(session, node)


def _by_itself(session: Context, node: st.Statement) -> None:
    """Its runner looks up streams and groups for the session, or checks the right itself."""


def judge(session: Context, asked: ParsedStatement | Classified | st.CreateStream) -> None:
    """Ask once more, where a statement has had to wait before it could do what it was judged for.

    Raises:
        InsufficientPrivilege. UndefinedTable: and the like.
    """
    if not session.access.limited:
        return
    if isinstance(asked, st.CreateStream):
        _create_stream(session, asked)
    elif isinstance(asked, Classified):
        ddl_permission.check(session, asked)
    else:
        check(session, asked, ())


def _create_stream(session: Context, node: st.CreateStream) -> None:
    if node.all_in_schema is not None:
        raise InsufficientPrivilege("permission denied for ALL TABLES IN SCHEMA", hint=_SUPERUSERS)
    access = session.access
    for table in node.tables:
        key: Key = session.names.table_key(table.parts)
        if not access.sees(key) or session.names.kind_of(key) is None:
            raise no_table(table.parts, table.position or None)
        if key[0] != "temp" and not access.owns(access.item_of(key)):
            raise InsufficientPrivilege(f'must be owner of table "{table.last}"')
    schema, _ = session.names.made_key(node.name.parts)
    _see_schema(session, schema)
    if not access.may_create_in(schema):
        raise ddl_permission.no_create(schema)
    if node.where is not None:
        where = node.where.text
        reach = Reach(session, definition=True)
        reach.take(_named(lambda: named_in_expression(session.names.cursor(), f"({where}\n)")))


def _create_topic(session: Context, node: st.CreateTopic) -> None:
    schema, _ = session.names.made_key(node.name.parts)
    _see_schema(session, schema)
    if not session.access.may_create_in(schema):
        raise ddl_permission.no_create(schema)


def _own_stream(
    session: Context,
    node: st.SetStream
    | st.RenameStream
    | st.CommentOnStream
    | st.DropStream
    | st.CheckStream
    | st.ResyncStream,
) -> None:
    name = node.stream if isinstance(node, st.CheckStream) else node.name
    stream = session.names.find_stream(name.parts)
    if stream is not None and not session.access.owns(relation(*stream.key)):
        raise InsufficientPrivilege(f'must be owner of {stream.kind} "{stream.name}"')


def _consume(session: Context, node: st.CreateGroup | st.CreateBookmark) -> None:
    stream = session.names.stream(node.stream.parts, node.stream.position)
    _stream_right(session, stream, "consume", node.stream.position)


# Only superusers may run a statement whose right has no rule; a PUBLISH gets here as the INSERT that it is.
_RIGHTS: dict[st.Right, Callable[..., None]] = {
    st.Right.CHECKED_BY_RUNNER: _by_itself,
    st.Right.CREATE_STREAM: _create_stream,
    st.Right.CREATE_TOPIC: _create_topic,
    st.Right.OWNER: _own_stream,
    st.Right.CONSUME: _consume,
}

_RULES: dict[Kind, Callable[[Context, ParsedStatement, Values, CheckMode], None]] = {
    Kind.EMPTY: _nothing,
    Kind.TRANSACTION: _nothing,
    Kind.DEALLOCATE: _nothing,
    # What stands in them is looked at on its own; a refused statement says why itself.
    Kind.EXPLAIN: _nothing,
    Kind.CURSOR: _nothing,
    Kind.EXECUTE: _nothing,
    Kind.REFUSED: _nothing,
    # Literals and parameters, for the session's own settings, and for NOTIFY.
    Kind.CALL: _nothing,
    # What another node sends for a user is looked at on its own.
    Kind.FORWARD: _nothing,
    Kind.READ: _query,
    Kind.DML: _dml,
    Kind.DDL: _ddl,
    Kind.COPY: _copy,
    Kind.SETTING: _setting,
    Kind.UTILITY: _utility,
    Kind.PREPARE: _prepare,
    Kind.OURS: _ours,
}

"""The check of rights before a statement is described or runs.

Nothing is checked while there is no user; superusers are only denied access to password verifiers. For all
others, a statement is refused if its kind has no rule here or if its reach cannot be determined. First the
names in the text are checked, by DuckDB's own parser and without binding, so that no error reveals a hidden
object; then, before the statement runs, everything that DuckDB's plan reads must have been checked. Source:
docs/security.md, "Enforcement".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

from ...engine.catalog.rights import relation
from ...engine.catalog.streams import Stream
from ...engine.duck.objects import TABLE
from ...engine.errors import InsufficientPrivilege, InvalidSchemaName, UndefinedObject
from ..ddl import reserved_names
from ..dml import writes
from ..language import statements as st
from ..language.parse import Query
from ..session_state.access import Key
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..settings import is_setting
from ..text.classified import Classified, Kind
from ..text.spans import defining_query_span, variable_value
from . import ddl_permission, plan
from .analysis import Named, Table, expression, parts_of
from .reach import Reach, cannot_tell, no_table
from .visibility import tell

Values = Sequence[object]

# Kinds for which DuckDB reads tables.
_READING = frozenset({Kind.READ, Kind.DML, Kind.DDL, Kind.COPY, Kind.SETTING, Kind.EXPLAIN})
# The key under which a statement keeps the outcome of its check.
_KEPT = "permitted"
_PRAGMAS = frozenset({"version", "platform", "user_agent", "collations"})


@dataclass(frozen=True, slots=True)
class CheckMode:
    """The extent of a check.

    Args:
        runs: the statement is about to run, with these parameters; else it is only described.
        explains: its plan will be shown, so the session needs rights on the relations under views as well.
    """

    runs: bool = True
    explains: bool = False


def check(
    session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode = CheckMode()
) -> None:
    """Refuse a statement that the session may not run.

    Raises:
        InsufficientPrivilege: the session lacks a right.
        InvalidAuthorization: the session's user has been dropped.
        UndefinedTable: a relation does not exist or is hidden; other kinds of objects have their own classes.
    """
    access = session.access
    if access.account is None and not session.database.rights.users:
        return
    if not access.limited:
        tell(session)
        if how.runs and statement.classified.kind in _READING and not statement.inline:
            plan.refuse_computed(session, statement, parameters)
        return
    access.said[1:] = [(statement.classified.text, ())]
    rule = _RULES.get(statement.classified.kind)
    if rule is None:
        raise InsufficientPrivilege(f"permission denied for {statement.classified.verb}", hint=_SUPERUSERS)
    if rule is _nothing:
        return
    if session.block.whole and (how.runs or not statement.waits):
        # A statement that waits for events takes its snapshot after the wait.
        session.block.touched()
    session.cursors.settle()
    tell(session)
    reserved_names.refuse_inside(session, statement.classified.tokens)
    rule(session, statement, parameters, how)


_SUPERUSERS = "Only superusers may."


def _nothing(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """Accept a statement that reaches no object."""


# Queries and DML.


def _query(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    classified = statement.classified
    if classified.verb == "PRAGMA":
        if classified.name not in _PRAGMAS:
            raise InsufficientPrivilege(
                f"permission denied for PRAGMA {classified.name}", hint="DESCRIBE t shows a table's columns."
            )
        return
    _judged(session, statement, parameters, how)


def _dml(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    if statement.published is not None:
        writes.refuse_target(session, statement)
    _judged(session, statement, parameters, how)


def _judged(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """Check the queries that DuckDB runs, once for each state of catalog, rights and search path."""
    if isinstance(statement.node, Query):
        _scans(session, statement.node, parameters)
    access, names = session.access, session.names
    # Each of them is replaced at each change, so that a comparison by identity suffices.
    same = (access.rights, names.objects(), names.temporary_objects())
    state = (session.database.catalog.version, names.path, how)
    kept = statement.plans.get(_KEPT)
    if isinstance(kept, tuple) and kept[1] == state and all(map(is_, kept[0], same)):
        return
    reach, parts = Reach(session), parts_of(session, statement)
    if not parts:
        raise cannot_tell()
    for part in parts:
        reach.read(part)
    # TRUNCATE has no plan, and names one table.
    if how.runs and statement.classified.verb != "TRUNCATE":
        plan.check(session, statement, parameters, reach.tables, explains=how.explains)
    statement.plans[_KEPT] = (same, state)


def _scans(session: Context, query: Query, parameters: Values) -> None:
    """Require SELECT on a stream, or CONSUME for a read with a group, whose owner is checked at opening."""
    for scan in query.scans:
        if scan.away is not None:
            continue  # The stream's own node checks the right.
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
    if defining_query_span(classified) is not None:
        _judged(session, statement, parameters, how)
    elif how.explains:
        raise InsufficientPrivilege(f"permission denied to explain {classified.verb}", hint=_SUPERUSERS)


def _copy(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """Check a COPY of a table; a query copied to the client is checked separately (copy/copying.py)."""
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
        if variable_value(classified.tokens) is None:
            raise cannot_tell()
        _judged(session, statement, parameters, how)
    elif classified.verb == "SHOW" and facts.name != "all" and not is_setting(facts.name):
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
    if classified.verb not in ("USE", "LOCK TABLE"):  # A lock reads its tables, as the session may.
        raise InsufficientPrivilege(f"permission denied for {classified.verb}", hint=_SUPERUSERS)


def _prepare(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    """Check the types of parameters; the prepared statement is checked separately."""
    facts = statement.classified.prepare
    assert facts is not None
    if facts.types:
        Reach(session).read(expression(", ".join(f"NULL::{type_}" for type_ in facts.types)))


# ducktail's statements.


def _ours(session: Context, statement: ParsedStatement, parameters: Values, how: CheckMode) -> None:
    node = statement.node
    row = st.row_of(node)
    rule = None if row is None else _RIGHTS.get(row.right)
    if rule is None:
        raise InsufficientPrivilege(f"permission denied for {statement.classified.verb}", hint=_SUPERUSERS)
    reserved_names.refuse_stream(session, node)
    rule(session, node)


def _by_itself(session: Context, node: st.Statement) -> None:
    """Accept a statement whose runner checks the right, or looks up streams and groups for the session."""


def judge(
    session: Context, asked: ParsedStatement | Classified | st.CreateStream | st.AddSourceTables
) -> None:
    """Check a statement again after it has had to wait.

    Raises:
        InsufficientPrivilege: the session lacks a right.
        UndefinedTable: a relation does not exist or is hidden; other kinds of objects have their own classes.
    """
    if not session.access.limited:
        return
    if isinstance(asked, st.CreateStream):
        _create_stream(session, asked)
    elif isinstance(asked, st.AddSourceTables):
        _own_stream(session, asked)
    elif isinstance(asked, Classified):
        ddl_permission.check(session, asked)
    else:
        check(session, asked, ())


def _create_stream(session: Context, node: st.CreateStream) -> None:
    if node.all_in_schema is not None:
        raise InsufficientPrivilege("permission denied for ALL TABLES IN SCHEMA", hint=_SUPERUSERS)
    if node.source is not None:
        raise InsufficientPrivilege("permission denied for CREATE STREAM ... FROM", hint=_SUPERUSERS)
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
        Reach(session, definition=True).read(expression(f"({node.where.text}\n)"))


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
    | st.ResyncStream
    | st.AddSourceTables
    | st.DropSourceTables
    | st.SnapshotStream
    | st.PauseStream
    | st.ResumeStream,
) -> None:
    name = node.stream if isinstance(node, st.CheckStream) else node.name
    stream = session.names.find_stream(name.parts)
    if stream is not None and not session.access.owns(relation(*stream.key)):
        raise InsufficientPrivilege(f'must be owner of {stream.kind} "{stream.name}"')


def _consume(session: Context, node: st.CreateGroup | st.CreateBookmark) -> None:
    stream = session.names.stream(node.stream.parts, node.stream.position)
    _stream_right(session, stream, "consume", node.stream.position)


def _create_mirror(session: Context, node: st.CreateMirror) -> None:
    stream = session.names.stream(node.stream.parts, node.stream.position)
    _stream_right(session, stream, "consume", node.stream.position)
    schema, _ = session.names.made_key(node.name.parts)
    _see_schema(session, schema)
    if not session.access.may_create_in(schema):
        raise ddl_permission.no_create(schema)


def _create_sink(session: Context, node: st.CreateSink | st.AlterSink | st.ResumeSink) -> None:
    stream = session.names.stream(node.stream.parts, node.stream.position)
    _stream_right(session, stream, "consume", node.stream.position)
    if not session.access.may_create_in_database():
        raise InsufficientPrivilege(
            "permission denied to let a sink send events",
            hint="GRANT CREATE ON DATABASE allows it, as it lets the server connect to other machines.",
        )


# A right without a rule is for superusers; a PUBLISH is checked as its INSERT.
_RIGHTS: dict[st.Right, Callable[..., None]] = {
    st.Right.CHECKED_BY_RUNNER: _by_itself,
    st.Right.CREATE_STREAM: _create_stream,
    st.Right.CREATE_TOPIC: _create_topic,
    st.Right.OWNER: _own_stream,
    st.Right.CONSUME: _consume,
    st.Right.CREATE_MIRROR: _create_mirror,
    st.Right.CREATE_SINK: _create_sink,
}

_RULES: dict[Kind, Callable[[Context, ParsedStatement, Values, CheckMode], None]] = {
    Kind.EMPTY: _nothing,
    Kind.TRANSACTION: _nothing,
    Kind.DEALLOCATE: _nothing,
    # The statements within them are checked separately; a refused statement has its own error.
    Kind.EXPLAIN: _nothing,
    Kind.CURSOR: _nothing,
    Kind.DO: _nothing,
    Kind.EXECUTE: _nothing,
    Kind.REFUSED: _nothing,
    Kind.EXPANDED: _nothing,
    # Literals and parameters, for the session's own settings, and for NOTIFY.
    Kind.CALL: _nothing,
    # A statement that another node sends for a user is checked separately.
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

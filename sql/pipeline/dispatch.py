"""The runner of each kind of statement, its parsed form and its description.

The table of the front end: a kind that is not in it cannot run. Source: docs/design/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import duckdb

from ...engine.duck.cursors import ask
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    DucktailError,
    InsufficientPrivilege,
    NotSupported,
    SyntaxError_,
    UndefinedParameter,
)
from ...engine.values import value_types
from ...engine.waiting import Waiting
from ..cluster import relay
from ..copy import copying, files
from ..dml import cte_writes, topic_writes, writes
from ..language import statements as st
from ..language.classify import classify
from ..language.grammar import PARAMETERS_MAX
from ..language.parse import Query, has_scan, parameter_types, parse
from ..language.statements.publishing import Published, as_insert
from ..peer_requests import serving
from ..peers.requests import Part, split
from ..reading import commit_offsets, scan_relation, scans, wait_for_events
from ..reading.scan_relation import HIDDEN_LSN
from ..results.results import Result, ResultColumn
from ..rights import permission
from ..rights.ddl_permission import owning
from ..rights.hidden_names import without_password
from ..rights.plan import refuse_passwords
from ..session_state import short_results
from ..session_state.context import Context, Runner
from ..session_state.run_text import bound, bound_with_types
from ..session_state.statement import NUMERIC, Description, ParsedStatement, check_described
from ..statements import (
    cursor_statements,
    runners,
    session_calls,
    set_and_show,
    show,
    transactions,
    utilities,
)
from ..text.classified import Classified, Kind
from ..text.spans import user_position
from . import pipeline, plain_views, prepared

# What has no DuckDB type of its own.
NUMERIC_OIDS = {value_types.NUMERIC: NUMERIC, value_types.ARRAY_OF[value_types.NUMERIC]: f"{NUMERIC}[]"}
# Verbs that are answered from the session's own state; the ends, where nothing has been done.
INLINE_VERBS = frozenset({"BEGIN", "SAVEPOINT", "RELEASE"})
INLINE_ENDS = frozenset({"COMMIT", "ROLLBACK"})

# Kinds whose text may hold a stream scan.
SCANNABLE = frozenset({Kind.READ, Kind.DML, Kind.DDL, Kind.COPY})


def prepare(session: Context, text: str, oids: tuple[int, ...]) -> ParsedStatement:
    """Parse a statement's text.

    Raises:
        SyntaxError_: with the position. NotSupported: not in this version.
        InsufficientPrivilege: it names a file that is out of reach, or is what only nodes send.
    """
    refuse_passwords(text)
    part: Part | None = None
    if session.peer is not None:
        part, text = split(text)
    published: Published | None = None
    try:
        classified, node = _read(session, text)
    except SyntaxError_ as error:
        raise without_password(text, error) from None
    if classified.kind is Kind.FORWARD and session.peer is None:
        raise InsufficientPrivilege(
            "permission denied to run FORWARD", detail="Nodes of a cluster send it to each other."
        )
    away, node = _placed(session, classified, node)
    if isinstance(node, st.Publish) and away is None:
        insert, published = as_insert(text, node)
        with told_at(published):
            classified, node = _read(session, insert)
    types = tuple(_declared(oid) for oid in oids)
    statement = ParsedStatement(
        classified,
        node,
        types,
        lambda wanted: describe(session, wanted),
        lambda wanted: is_inline(session, wanted),
        published,
        part,
    )
    statement.away, statement.epoch = away, session.database.cluster.placement.epoch
    return statement


def _placed(
    session: Context, classified: Classified, node: object
) -> tuple[relay.RemoteTarget | None, object]:
    """The node that runs a statement, if it is another one; and the statement, with remote scans marked."""
    if session.links is None:
        return None, node
    if classified.kind is Kind.EXPLAIN and classified.explain is not None:
        return _placed(session, *_read(session, classified.explain.inner))[0], node
    if classified.kind is Kind.CURSOR and classified.cursor is not None and classified.cursor.inner:
        # Where that is may have to be asked, which can be done now; it is said here in any case.
        _placed(session, *_read(session, classified.cursor.inner))
        return None, node
    return relay.placed(session, classified, node)


def again(session: Context, text: str, statement: ParsedStatement) -> ParsedStatement:
    """A statement with its names in full, of the text that has them so.

    Args:
        statement: the same as it was given.
    """
    classified, node = _read(session, text)
    away, node = _placed(session, classified, node)
    assert away is None, "what is another node's is resolved there"
    made = ParsedStatement(
        classified,
        node,
        statement.parameter_types_given,
        lambda wanted: describe(session, wanted),
        lambda wanted: is_inline(session, wanted),
        statement.published,
        statement.part,
    )
    made.arrow, made.epoch, made.lacks = statement.arrow, statement.epoch, statement.lacks
    if statement.described is not None or statement.casts is not None:
        made.tell(statement.description)
    return made


def told_at(published: Published | None) -> AbstractContextManager[None]:
    """Context in which error positions refer to a PUBLISH, and not to the INSERT as which it runs."""
    return AS_IT_IS if published is None else _told_at(published)


AS_IT_IS = nullcontext()


@contextmanager
def _told_at(published: Published) -> Iterator[None]:
    try:
        yield
    except DucktailError as error:
        error.position = published.users(error.position)
        raise


def _read(session: Context, text: str) -> tuple[Classified, object]:
    """Classify a text, and parse it if it is not DuckDB's."""
    classified = classify(text)
    files.check_named(session, classified)
    if classified.kind is Kind.READ and (calls := session_calls.read(text)):
        return replace(classified, kind=Kind.CALL), calls
    if classified.kind is Kind.OURS or (classified.kind in SCANNABLE and has_scan(text)):
        parsed = parse(text, session.names.is_table)
        if not isinstance(parsed, Query) or parsed.scans:
            return classified, parsed
    return classified, None


def is_inline(session: Context, statement: ParsedStatement) -> bool:
    """True if running the statement now needs no DuckDB work: BEGIN, SHOW, a plain read, a commit."""
    classified = statement.classified
    if session.cursors.has_open_result:
        return False  # Its rest has to be taken first.
    if statement.away is not None:
        return True
    if classified.kind is Kind.TRANSACTION:
        return classified.verb in INLINE_VERBS or (
            classified.verb in INLINE_ENDS and session.block.transaction is None
        )
    if classified.kind is Kind.EMPTY:
        return True
    if session.access.limited:
        return False  # What it may do is asked first.
    if classified.kind is Kind.SETTING:
        return set_and_show.is_inline(statement)
    if classified.kind is Kind.OURS:
        return commit_offsets.is_inline(session, statement.node)
    if classified.kind is not Kind.READ:
        return False
    if isinstance(statement.node, Query):
        return scans.is_inline(session, statement, statement.node)
    return short_results.is_ready(statement) and not session.block.begun


def _declared(oid: int) -> str:
    """The DuckDB type of a parameter's declared OID, "" where it is left open."""
    if oid in NUMERIC_OIDS:
        return NUMERIC_OIDS[oid]
    return (value_types.duckdb_type(oid) or "") if oid else ""


def describe(session: Context, statement: ParsedStatement) -> Description:
    """Describe a statement before it runs, with DuckDB's binder.

    Raises:
        DucktailError: what is wrong with it.
    """
    if statement.away is not None and not relay.describes_itself(statement):
        return relay.describe_now(session, statement)
    if statement.away is not None:
        with session.looking(), told_at(statement.published):
            session.block.check_sound()
            return DESCRIBERS.get(statement.classified.kind, _nothing)(session, statement)
    with _looked_at(session, statement) as full:
        state = state_of(session)
        found = DESCRIBERS.get(full.classified.kind, _nothing)(session, full)
        if full is not statement:
            full.tell(found)
        # Where the catalog was changed meanwhile, the description may be of before and of after.
        lasts = state == state_of(session) and full.classified.kind not in NAMING and not _of_rows(full)
        statement.described_in = state if lasts else None
        return found


def state_of(session: Context) -> object:
    """The state to which a description belongs: catalog, search path, and the meaning of `/`.

    None is a state that will not be again: the session's own changes of the catalog, which may be rolled
    back, or one that changes just now.
    """
    transaction = session.block.transaction
    if session.block.ddl:
        return None
    fixed = transaction is not None and transaction.snapshot_counter is not None
    generation = transaction.generation if transaction is not None and fixed else None
    if not fixed:
        generation = session.database.catalog.changes.stable
    if generation is None:
        return None
    return generation, session.names.path, session.variables.integer_division


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
    """Within, names are looked up and texts bound for a statement, which is given with its names in full."""
    with session.looking(), told_at(statement.published):
        if statement.classified.kind not in UNBOUND:
            session.block.check_sound()
        full = pipeline.in_full(session, statement, again)
        with pipeline.places_of(full):
            permission.check(session, full, (), permission.CheckMode(runs=False))
            yield full


def _check_bound(session: Context, statement: ParsedStatement) -> None:
    """Check a statement for errors that do not depend on its parameters."""
    if statement.away is not None:
        _ = statement.description  # Its node tells.
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
    return Description(types, prepared.PLAN_COLUMNS)


def _described_cursor(session: Context, statement: ParsedStatement) -> Description:
    facts = statement.classified.cursor
    assert facts is not None
    if facts.inner:
        inner = prepare(session, facts.inner, ())
        if inner.classified.kind is not Kind.READ:
            return Description((), None)
        return Description(inner.declared(statement.parameter_types_given).parameter_types, None)
    portal = cursor_statements.named(session, statement)
    fetches = portal is not None and statement.classified.verb == "FETCH"
    return Description((), tuple(portal.columns) if fetches and portal is not None else None)


def _described_execute(session: Context, statement: ParsedStatement) -> Description:
    found = prepared.executed(session, statement)
    types: tuple[str, ...] = ()
    if asked := prepared.arguments(session, statement):
        with _looked_at(session, prepare(session, f"SELECT {', '.join(asked)}", ())) as full:
            types = bound(session, full.text).types
    return Description((), found.statement.declared(types).columns)


def _described_forward(session: Context, statement: ParsedStatement) -> Description:
    return Description(("BLOB",), serving.FRAME)


PIVOTS = frozenset({"PIVOT", "PIVOT_WIDER"})
# Statements whose columns are those of something that the session has under a name.
NAMING = frozenset({Kind.CURSOR, Kind.EXECUTE})
# Described without a look at what there is: in a failed transaction too.
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


def _run_ours(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    if st.row_of(statement.node) is None:
        raise NotSupported(f"{statement.classified.verb} is not supported yet")
    assert isinstance(statement.node, st.Statement)
    return (yield from handle(session, statement.node, parameters))


def handle(session: Context, node: st.Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run one of ducktail's statements."""
    row = st.row_of(node)
    assert row is not None
    found = runners.RUNNERS.get(row.node) or show.runner(row)
    return (yield from found.start(session, node, parameters))


def _with_scans(plain: Runner, scanning: Runner) -> Runner:
    """The runner of a kind that may hold stream scans."""

    def run(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        chosen = scanning if isinstance(statement.node, Query) else plain
        return (yield from chosen(session, statement, parameters))

    return run


def _refused(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    assert statement.classified.error is not None
    raise statement.classified.error
    yield


def _empty(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    return Result.command("")
    yield


def _files_checked(runner: Runner) -> Runner:
    """The runner, behind a look at the files that parameters name."""

    def run(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        if parameters:
            files.check_given(session, statement.classified, parameters)
        return (yield from runner(session, statement, parameters))

    return run


def _of_one_node(runner: Runner) -> Runner:
    """The runner, for statements that must not take a node's part of a topic for the whole."""

    def run(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        plain_views.refuse(session, statement, lambda query: scan_relation.bindable(session, query))
        return (yield from runner(session, statement, parameters))

    return run


def _as_described(runner: Runner) -> Runner:
    """The runner, with a check that the rows have the described columns."""

    def run(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        result = yield from runner(session, statement, parameters)
        check_described(statement, result)
        return result

    return run


def _waiting(runner: Runner) -> Runner:
    """The runner, behind the wait for events that the statement asks for."""

    def run(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        if not statement.waits:
            return (yield from runner(session, statement, parameters))
        session.waited = yield from wait_for_events.wait(session, statement, parameters)
        session.names.waited = {} if session.waited is None else session.waited.streams
        try:
            # Meanwhile somebody may have taken its right away.
            permission.check(session, statement, parameters)
            return (yield from runner(session, statement, parameters))
        finally:
            session.waited, session.names.waited = None, {}

    return run


RUNNERS: dict[Kind, Runner] = {
    Kind.EMPTY: _empty,
    Kind.OURS: _run_ours,
    Kind.READ: _as_described(
        _files_checked(_of_one_node(_with_scans(cte_writes.run_read, _waiting(scans.run_query))))
    ),
    Kind.DML: _files_checked(_of_one_node(_with_scans(cte_writes.run_write, _waiting(scans.run_write)))),
    Kind.DDL: owning(
        _files_checked(_of_one_node(_with_scans(cte_writes.run_definition, _waiting(scans.run_definition))))
    ),
    Kind.TRANSACTION: transactions.run_transaction_statement,
    Kind.SETTING: set_and_show.run_setting,
    Kind.EXPLAIN: _files_checked(prepared.explain_with(lambda s, inner: pipeline.in_full(s, inner, again))),
    Kind.PREPARE: prepared.prepare_with(_check_bound),
    Kind.DEALLOCATE: prepared.deallocate,
    Kind.UTILITY: utilities.run_utility,
    Kind.CALL: session_calls.run_call,
    Kind.REFUSED: _refused,
}


def _permitted(runner: Runner) -> Runner:
    """The runner, after the resolution of names and the check of rights."""

    def run(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
        if relay.is_remote(session, statement):
            statement = yield from relay.as_now(session, statement)
            if statement.away is not None:
                return (yield from relay.execute(session, statement, parameters))

        def work(full: ParsedStatement) -> Waiting[Result]:
            return (yield from runner(session, full, parameters))

        return (yield from pipeline.execute(session, statement, parameters, again, work))

    return run


def _evaluated(session: Context, text: str, parameters: tuple[object, ...]) -> Waiting[tuple[object, ...]]:
    """The values of the one row that a query answers."""
    rows: list[tuple[object, ...]] = []

    def work(full: ParsedStatement) -> Waiting[Result]:
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

    yield from pipeline.execute(session, (yield from session.parse(text)), parameters, again, work)
    return rows[-1]


# For statements that stand in others: the session itself looks at those that come alone.
INNER = {kind: _permitted(runner) for kind, runner in RUNNERS.items()}
RUNNERS[Kind.EXECUTE] = prepared.execute_with(INNER, _evaluated)
RUNNERS[Kind.CURSOR] = cursor_statements.run_with(INNER)
RUNNERS[Kind.FORWARD] = serving.forward_with(INNER, told_at)
RUNNERS[Kind.COPY] = _files_checked(_of_one_node(copying.run_with(INNER, _waiting(scans.run_copy))))

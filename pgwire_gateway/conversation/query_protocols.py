"""The simple and the extended query protocol.

Simple: one text, any number of statements, one answer after the other. Several statements in one text share a
transaction, unless BEGIN and COMMIT among them delimit it.

Extended: prepared statements and portals. The statements up to a Sync are one transaction, unless BEGIN and
COMMIT delimit it. An Execute that a Sync follows at once runs as plain autocommit, which costs no BEGIN. The
first Execute after a Sync therefore begins when the next message has arrived: so the decision depends on the
client alone, and not on the division of its bytes by TCP. No client has to wait, as it gets no answer before
it has sent a Sync or a Flush. After an error all messages up to the Sync are skipped.

Batches: drivers send an executemany, or JDBC's executeBatch, as Bind, Describe and Execute of a prepared
statement for each set of parameters; psycopg prepares several of the same text, for integers of different
widths and for NULLs. The executions that have already arrived run as one statement where the session
supports it (sql/dml/batch_insert.py), each answered as if it had run alone. Later ones are not waited for.
Source: PostgreSQL documentation, "Simple Query", "Multiple Statements in a Simple Query", "Extended Query",
"Pipelining"; docs/design/pgwire_gateway.md, "Batches".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ...engine.errors import (
    DucktailError,
    DuplicatePreparedStatement,
    InFailedTransaction,
    InvalidCursorName,
    InvalidParameterValue,
    InvalidStatementName,
    ProgramLimitExceeded,
    ProtocolViolation,
    SyntaxError_,
    WrongState,
)
from ...engine.values import datarow, parameters, value_types
from ...engine.values.client_encodings import Encoding
from ...sql.dml.batch_insert import EXECUTIONS_MAX, agree, in_lists, kinds
from ...sql.results.results import Result, ResultColumn
from ...sql.session_state.portals import Portal as Taken
from ...sql.session_state.statement import ParsedStatement
from ...sql.text.tokens import StatementPiece
from ..codec import encode
from ..codec.backend import (
    BindComplete,
    CloseComplete,
    CommandComplete,
    EmptyQueryResponse,
    NoData,
    ParameterDescription,
    ParseComplete,
    PortalSuspended,
)
from ..codec.frontend import Bind, Close, Describe, Execute, Parse, Query, Sync
from .channel import Channel, Need, Steps
from .execution import Prepared, Work, check_width, placed, spread
from .statement_text import StatementText, are_long, are_many


class SimpleQuery:
    """Answers Query messages."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def query(self, message: Query) -> Steps[None]:
        """Run all statements of a Query; without ReadyForQuery, which also follows errors."""
        self._work.observed.reset(message.text)
        statements = self._work.pieces(message.text)
        if not statements:
            self._work.channel.send(EmptyQueryResponse())
        if len(statements) > 1:
            yield from self._check(statements)
        for number, (text, offset) in enumerate(statements, start=1):
            if len(statements) > 1:
                # Before each statement, because a COMMIT may have ended the transaction.
                yield from self._work.session.begin_implicit()
            yield from self._run(offset, text, last=1 < number == len(statements))
            # A description may be much longer than its statement.
            yield from self._work.channel.relieve()

    def _check(self, statements: Sequence[StatementPiece]) -> Steps[None]:
        """Parse all statements before the first runs: a COMMIT before a syntax error would take effect."""
        for text, offset in statements:
            try:
                yield from self._work.parse(text, offset, told=False)
            except SyntaxError_:
                raise
            except DucktailError:
                # An earlier statement may create its objects; the error is reported when the statement runs.
                pass

    def _run(self, offset: int, text: str, *, last: bool) -> Steps[None]:
        work = self._work
        work.observed.reset(text)
        source, statement = yield from work.parse(text, offset, told=False)
        work.observed.found(statement.classified.kind, text)
        if statement.empty:
            work.channel.send(EmptyQueryResponse())
            return
        result = yield from work.execute(source, statement, ())
        try:
            if result.columns is not None:
                work.describe(source, source.columns(result.columns) or (), result.formats)
            yield from work.send_rows(source, result, result.formats)
        except BaseException:
            # Cancelled, or the client is gone: the part of the answer that it received does not count.
            result.fail()
            raise
        if last:
            # The last of several statements is complete after the COMMIT of their common transaction.
            yield Need.WORKER
            yield from work.session.commit_implicit()
        work.complete(result)


Values = Sequence[object]


@dataclass(frozen=True, slots=True)
class Execution:
    """One of the following executions in a batch.

    Args:
        values: the values of its parameters.
        described: its portal is described before it is executed.
    """

    values: Values
    described: bool

    @property
    def messages(self) -> int:
        """The number of messages."""
        return 2 + self.described


def to_come(
    channel: Channel, first: Values, types: Sequence[str], decode: Callable[[Bind], Values | None]
) -> list[Execution]:
    """The executions in the unnamed portal that have arrived and can be combined with the present one.

    Args:
        first: the parameters of the present execution.
        types: DuckDB's types of the parameters.
        decode: returns the parameters of a Bind; None if it is for another statement.
    """
    found: list[Execution] = []
    known, last = kinds(first, types), tuple(map(type, first))
    at = 0
    while known is not None and len(found) < EXECUTIONS_MAX - 1:
        bind = channel.ahead(at)
        if not isinstance(bind, Bind) or bind.portal:
            break
        described = _is_of_portal(channel.ahead(at + 1))
        execute = channel.ahead(at + 1 + described)
        if not isinstance(execute, Execute) or execute.portal:
            break
        try:
            values = decode(bind)
        except DucktailError:
            break  # Its error is reported when it runs.
        if values is None:
            break
        if (shape := tuple(map(type, values))) != last:
            others = kinds(values, types)
            if others is None or not agree(known, others):
                break
            last = shape
        found.append(Execution(values, described))
        at += found[-1].messages
    return found


def _is_of_portal(message: object) -> bool:
    return isinstance(message, Describe) and message.kind == "P" and not message.name


# A text other than the client's last one: its errors have no position.
NOWHERE = StatementText(0, "", "", nowhere=True)
ONE_ROW = "INSERT 0 1"
ONE_EVENT = encode(CommandComplete("PUBLISH 1"))
# The answers to Bind and Execute of one row; to Bind, Describe and Execute.
ANSWERS = (
    encode(BindComplete()) + encode(CommandComplete(ONE_ROW)),
    encode(BindComplete()) + encode(NoData()) + encode(CommandComplete(ONE_ROW)),
)


@dataclass(slots=True)
class Portal:
    """A statement with its parameters; with a result once it has been executed.

    Args:
        source: the statement's position in the client's text.
        columns: the columns of its rows; None if it returns none.
        prepared: the statement that it was made of; None for a cursor that SQL has declared.
        taken: the session's portal, whose rows SQL may take too.
        batched: True for the unnamed portal, which a batch uses.
        complete: all its rows have been sent.
        long: its parameters are too long for the event loop.
    """

    source: StatementText
    columns: Sequence[ResultColumn] | None
    formats: Sequence[int]
    taken: Taken
    prepared: Prepared | None = None
    batched: bool = False
    complete: bool = False
    long: bool = False


class ExtendedQuery:
    """Answers Parse, Bind, Describe, Execute, Close and Sync."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._statements = work.prepared
        self._portals: dict[str, Portal] = {}
        self._executed = False
        # True if these statements are an implicit transaction, whose end needs DuckDB.
        self._shared = False

    @property
    def under_way(self) -> bool:
        """True if something has been executed since the last Sync."""
        return self._executed

    def parse(self, message: Parse) -> Steps[None]:
        """Create a prepared statement; the unnamed one replaces its predecessor."""
        self._work.observed.reset(message.text)
        if message.name in self._statements and message.name:
            raise DuplicatePreparedStatement(f'prepared statement "{message.name}" already exists')
        statements_max = self._work.channel.limits.statements_max
        if len(self._statements) >= statements_max:
            raise ProgramLimitExceeded(
                f"a session cannot keep more than {statements_max} prepared statements",
                hint="Close statements that are no longer needed.",
            )
        self._statements.pop(message.name, None)
        found = self._work.pieces(message.text)
        if len(found) > 1:
            raise SyntaxError_("cannot insert multiple commands into a prepared statement")
        text, offset = found[0] if found else ("", 0)
        source, statement = yield from self._work.parse(text, offset, message.oids, told=True)
        with placed(source):
            types, columns = statement.parameter_types, source.columns(statement.columns)
        check_width(columns)
        oids = _declared(source.declared(message.oids), statement.types_shown)
        made_us = self._work.session.portals.now_us() if message.name else 0
        self._statements[message.name] = Prepared(source, statement, types, oids, columns, made_us=made_us)
        self._work.channel.send(ParseComplete())

    def bind(self, message: Bind) -> Steps[None]:
        """Create a portal; the unnamed one replaces its predecessor."""
        prepared = self._statement(message.statement)
        if not message.portal:
            yield from self._drop("")
        yield from self._work.renew(prepared)
        if len(message.result_formats) == prepared.told_count:
            prepared.check_told(prepared.columns)
        formats = _formats(message.result_formats, len(prepared.columns or ()), "result")
        # The session's own object, by the interface of a conversation.
        statement = cast(Any, prepared.statement)
        values = _values(prepared, message, self._work.channel.encoding)
        taken = Taken(statement, values, declared=False, spelling=prepared.source)
        self._work.session.portals.add(message.portal, taken)
        long = are_long(message.parameters)
        portal = Portal(
            prepared.source, prepared.columns, formats, taken, prepared, batched=not message.portal, long=long
        )
        self._portals[message.portal] = portal
        self._work.channel.send(BindComplete())

    def describe(self, message: Describe) -> Steps[None]:
        """Describe the parameters and columns of a statement, or the columns of a portal."""
        columns: Sequence[ResultColumn] | None
        formats: Sequence[int]
        prepared: Prepared | None
        if message.kind == "S":
            prepared = self._statement(message.name)
            yield from self._work.renew(prepared)
            source, columns, formats = prepared.source, prepared.columns, ()
            self._work.channel.send(ParameterDescription(prepared.oids))
        else:
            portal = self._portal(message.name)
            source, columns, formats, prepared = (
                portal.source,
                portal.columns,
                portal.formats,
                portal.prepared,
            )
        if prepared is not None:
            prepared.tell(columns)
        if columns is None:
            self._work.channel.send(NoData())
            return
        if are_many(columns):
            yield Need.WORKER
        self._work.describe(source, columns, formats)

    def execute(self, message: Execute) -> Steps[None]:
        """Run a portal, or continue a suspended one."""
        portal = self._portal(message.portal)
        if portal.taken.statement.empty:
            self._work.channel.send(EmptyQueryResponse())
        elif portal.complete:
            self._repeat(message.portal, portal)
        elif (batch := (yield from self._batch(portal))) is not None:
            yield from self._run_batch(portal, *batch)
        else:
            yield from self._run(portal, message.max_rows if message.max_rows > 0 else None)

    def close(self, message: Close) -> Steps[None]:
        """Forget a statement or a portal; an unknown one is no error."""
        if message.kind == "S":
            self._statements.pop(message.name, None)
        else:
            yield from self._drop(message.name)
        self._work.channel.send(CloseComplete())

    def sync(self) -> Steps[None]:
        """End the transaction that the statements since the last Sync shared."""
        self._work.session.cycle_ended()
        if self._executed:
            self._executed = False
            if self._shared:
                self._shared = False
                yield Need.WORKER
            yield from self._work.session.commit_implicit()
        if self._work.session.transaction_status == "I":
            yield from self.drop_portals()

    def drop_portals(self) -> Steps[None]:
        """Close the portals at the end of their transaction."""
        for name in list(self._portals):
            yield from self._drop(name)

    def forget_unnamed(self) -> Steps[None]:
        """Forget the unnamed statement and portal, which a simple query replaces."""
        self._statements.pop("", None)
        yield from self._drop("")

    def _run(self, portal: Portal, limit: int | None) -> Steps[None]:
        work, taken = self._work, portal.taken
        kind = taken.statement.classified.kind
        work.observed.found(kind, portal.source.text, resumed=taken.result is not None)
        if taken.result is None:
            if portal.prepared is not None:
                portal.prepared.check_told(portal.columns)
            copy = taken.statement.classified.copy
            # A Sync after the Execute of a COPY FROM STDIN has no effect: another one follows.
            yield from self._begin(alone_may_be=copy is None or not copy.reads)
            begun = yield from work.execute(
                portal.source, taken.statement, taken.parameters, limit, long=portal.long
            )
            taken.result = cast(Any, begun)
        elif not (taken.statement.inline or taken.result.is_ready(limit)):
            yield Need.WORKER
        result = cast(Result | None, taken.result)
        assert result is not None, "it has been started"
        before = result.row_count
        portal.complete = yield from work.send_rows(portal.source, result, portal.formats, limit)
        taken.given += result.row_count - before
        if portal.complete:
            # The count of this Execute's rows, as in PostgreSQL.
            work.complete(result, before)
        else:
            result.suspend()
            work.channel.send(PortalSuspended())
            work.observed.end()

    def _begin(self, *, alone_may_be: bool) -> Steps[None]:
        """Begin a statement in the transaction of those up to the Sync, unless it is the only one."""
        alone = alone_may_be and not self._executed and self._work.session.transaction_status == "I"
        if alone:
            alone = isinstance((yield from self._work.channel.coming()), Sync)
        if not alone:
            yield from self._work.session.begin_implicit(piped=True)
            self._shared = True
        self._executed = True

    def _batch(self, portal: Portal) -> Steps[tuple[ParsedStatement, list[Execution]] | None]:
        """Further executions of a portal's statement that have arrived, and one statement for all of them."""
        channel, statement = self._work.channel, portal.taken.statement
        if not portal.batched or portal.taken.result is not None or not isinstance(channel.ahead(), Bind):
            return None
        if statement.classified.verb != "INSERT" or (portal.columns is not None and any(portal.formats)):
            return None
        yield Need.WORKER
        many = yield from self._work.session.many(statement)
        if many is None:
            return None
        decode = partial(self._values_of, portal.source.text, portal.columns is not None)
        executions = to_come(channel, portal.taken.parameters, many.element_types, decode)
        return (many.statement, executions) if executions else None

    def _values_of(self, text: str, gives_rows: bool, message: Bind) -> list[object] | None:
        """The parameters of a Bind, if it is for a statement with this text, and its rows are sent as
        text."""
        prepared = self._statements.get(message.statement)
        if prepared is None or prepared.source.text != text or (gives_rows and any(message.result_formats)):
            return None
        return _values(prepared, message, self._work.channel.encoding)

    def _run_batch(self, portal: Portal, many: ParsedStatement, executions: list[Execution]) -> Steps[None]:
        """Run a portal's statement and further executions of it as one; answer each."""
        work, source = self._work, portal.source
        channel, kind = work.channel, portal.taken.statement.classified.kind
        channel.skip(sum(execution.messages for execution in executions))
        work.observed.found(kind, source.text)
        yield from self._begin(alone_may_be=True)
        lists = in_lists([portal.taken.parameters, *(execution.values for execution in executions)])
        # Positions in the combined text have no meaning for its client.
        result = yield from work.execute(NOWHERE, many, lists)
        portal.complete = True
        if portal.columns is None:
            assert result.tag == f"INSERT 0 {1 + len(executions)}", "each execution inserts one row"
            channel.send(CommandComplete(ONE_ROW))
            channel.send_bytes(b"".join(ANSWERS[execution.described] for execution in executions))
        else:
            self._answer_places(portal, _rows_of(result), executions)
        work.observed.end(executions=1 + len(executions))

    def _answer_places(self, portal: Portal, rows: list[bytes], executions: list[Execution]) -> None:
        """Answer each PUBLISH of a batch with its row."""
        assert portal.columns is not None and len(rows) == 1 + len(executions), "each publishes one event"
        channel, encoding = self._work.channel, self._work.channel.encoding
        if encoding.codec:
            texts = encoding.columns([column.type for column in portal.columns], (0,) * len(portal.columns))
            rows = [encoding.rows(row, texts) for row in rows]
        channel.send_bytes(rows[0] + ONE_EVENT)
        for row, execution in zip(rows[1:], executions, strict=True):
            channel.send(BindComplete())
            if execution.described:
                self._work.describe(portal.source, portal.columns, portal.formats)
            channel.send_bytes(row + ONE_EVENT)

    def _repeat(self, name: str, portal: Portal) -> None:
        if portal.columns is None:
            raise WrongState(f'portal "{name}" cannot be run')
        self._work.channel.send(CommandComplete("SELECT 0"))

    def _drop(self, name: str) -> Steps[None]:
        portal = self._portals.pop(name, None)
        taken = self._work.session.portals.get(name)
        if taken is not None:
            if taken.result is not None and not (portal is not None and portal.complete):
                yield Need.WORKER
            self._work.session.portals.remove(name)

    def _statement(self, name: str) -> Prepared:
        prepared = self._statements.get(name)
        if prepared is None:
            called = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise InvalidStatementName(f"{called} does not exist")
        return prepared

    def _portal(self, name: str) -> Portal:
        """A driver's portal, or a cursor that SQL has declared."""
        taken = self._work.session.portals.get(name)
        if taken is None:
            if name and self._work.session.transaction_status == "E":
                # In PostgreSQL it lives until the end of the failed transaction.
                raise InFailedTransaction(
                    "current transaction is aborted, commands ignored until end of transaction block"
                )
            raise InvalidCursorName(f'portal "{name}" does not exist')
        if not taken.declared:
            return self._portals[name]
        # As text in any case: BINARY in DECLARE is for FETCH alone, as in PostgreSQL.
        ended = taken.result is None or taken.result.ended
        return Portal(NOWHERE, taken.columns, (), taken, complete=ended)


def _rows_of(result: Any) -> list[bytes]:
    """All remaining rows of a result, as DataRows of texts."""
    types, rows = [column.type for column in result.columns], []
    while (batch := result.fetch(None)) is not None:
        rows += datarow.messages(batch.record_batch(), types)
    return rows


def _declared(declared: Sequence[int], types: Sequence[str]) -> tuple[int, ...]:
    """The OID of each parameter: the client's declaration, or else the session's inference."""
    known = (*declared, *(0,) * len(types))
    return tuple(oid or value_types.pg_type(type).oid for oid, type in zip(known, types, strict=False))


def _values(prepared: Prepared, message: Bind, encoding: Encoding) -> list[object]:
    types, raw = prepared.types, message.parameters
    if len(raw) != len(types):
        raise ProtocolViolation(
            f'bind message supplies {len(raw)} parameters, but prepared statement "{message.statement}"'
            f" requires {len(types)}"
        )
    formats = _formats(message.parameter_formats, len(types), "parameter")
    if encoding.codec:
        raw = tuple(map(encoding.given, raw, formats, prepared.oids))
    values = [
        parameters.decode(value, format, oid, type)
        for value, format, oid, type in zip(raw, formats, prepared.oids, types, strict=True)
    ]
    for number in prepared.source.converted:
        values[number - 1] = parameters.as_numeric(values[number - 1], prepared.oids[number - 1])
    return values


def _formats(formats: Sequence[int], count: int, kind: str) -> Sequence[int]:
    if len(formats) > 1 and len(formats) != count:
        raise ProtocolViolation(f"bind message has {len(formats)} {kind} formats but {count} {kind}s")
    for format in formats:
        if format not in (0, 1):
            raise InvalidParameterValue(f"unsupported format code: {format}")
    return spread(formats, count)

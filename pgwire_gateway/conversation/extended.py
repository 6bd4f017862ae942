"""The extended protocol: prepared statements, portals, and what lies between two Syncs.

The statements up to a Sync are one transaction, unless BEGIN and COMMIT say otherwise. An Execute
that is all there is before its Sync runs as plain autocommit, which costs no BEGIN: that is known
where the Sync has arrived together with it, as with nearly every client. After an error everything
is skipped up to the Sync. Source: PostgreSQL documentation, "Extended Query", "Pipelining".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...engine.errors import (
    DuplicatePreparedStatement,
    InvalidCursorName,
    InvalidParameterValue,
    InvalidStatementName,
    ProgramLimitExceeded,
    ProtocolViolation,
    SyntaxError_,
    WrongState,
)
from ...engine.values import parameters, pgtypes
from ...sql.portals import Portal as Taken
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
from ..codec.frontend import Bind, Close, Describe, Execute, Parse, Sync
from .needs import Column, Result
from .positions import Source
from .steps import Need, Steps
from .work import Prepared, Work, is_inline, pieces, placed, spread

# A cursor's query stands in another statement.
NOWHERE = Source(0, "", "")


@dataclass(slots=True)
class Portal:
    """A statement with its parameters; with a result once it has been executed.

    Args:
        source: where the statement stands in the client's text.
        columns: of its rows; None where it gives none.
        taken: the portal as the session knows it, whose rows SQL may take too.
        complete: all its rows have been sent.
    """

    source: Source
    columns: Sequence[Column] | None
    formats: Sequence[int]
    taken: Taken
    complete: bool = False


class Extended:
    """Answers Parse, Bind, Describe, Execute, Close and Sync."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._statements = work.prepared
        self._portals: dict[str, Portal] = {}
        self._executed = False
        # Whether these statements are an implicit transaction, whose end asks DuckDB.
        self._shared = False

    @property
    def under_way(self) -> bool:
        """Whether something has been executed since the last Sync."""
        return self._executed

    def parse(self, message: Parse) -> Steps[None]:
        """Make a prepared statement; the unnamed one takes the place of the one before."""
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
        found = pieces(message.text)
        if len(found) > 1:
            raise SyntaxError_("cannot insert multiple commands into a prepared statement")
        text, offset = found[0] if found else ("", 0)
        source, statement = yield from self._work.parse(text, offset, message.oids)
        with placed(source):
            types, columns = statement.parameter_types, source.columns(statement.columns)
        oids = _declared(source.declared(message.oids), types)
        self._statements[message.name] = Prepared(source, statement, types, oids, columns)
        self._work.channel.send(ParseComplete())

    def bind(self, message: Bind) -> Steps[None]:
        """Make a portal; the unnamed one takes the place of the one before."""
        prepared = self._statement(message.statement)
        if not message.portal:
            yield from self._drop("")
        formats = _formats(message.result_formats, len(prepared.columns or ()), "result")
        # The session's own, seen through what a conversation needs of them.
        statement = cast(Any, prepared.statement)
        taken = Taken(statement, _values(prepared, message), declared=False)
        self._work.session.portals.add(message.portal, taken)
        self._portals[message.portal] = Portal(prepared.source, prepared.columns, formats, taken)
        self._work.channel.send(BindComplete())

    def describe(self, message: Describe) -> Steps[None]:
        """Say what a statement takes and gives, or what a portal gives."""
        yield from ()
        columns: Sequence[Column] | None
        formats: Sequence[int]
        if message.kind == "S":
            prepared = self._statement(message.name)
            columns, formats = prepared.columns, ()
            self._work.channel.send(ParameterDescription(prepared.oids))
        else:
            portal = self._portal(message.name)
            columns, formats = portal.columns, portal.formats
        if columns is None:
            self._work.channel.send(NoData())
        else:
            self._work.describe(columns, formats)

    def execute(self, message: Execute) -> Steps[None]:
        """Run a portal, or go on with one that was suspended."""
        portal = self._portal(message.portal)
        if portal.taken.statement.empty:
            self._work.channel.send(EmptyQueryResponse())
        elif portal.complete:
            self._repeat(message.portal, portal)
        else:
            yield from self._run(portal, message.max_rows if message.max_rows > 0 else None)

    def close(self, message: Close) -> Steps[None]:
        """Forget a statement or a portal; one that is not there is no error."""
        if message.kind == "S":
            self._statements.pop(message.name, None)
        else:
            yield from self._drop(message.name)
        self._work.channel.send(CloseComplete())

    def sync(self) -> Steps[None]:
        """End the transaction that the statements since the last Sync shared."""
        if self._executed:
            self._executed = False
            if self._shared:
                self._shared = False
                yield Need.WORKER
            yield from self._work.session.commit_implicit()
        if self._work.session.transaction_status == "I":
            yield from self.drop_portals()

    def drop_portals(self) -> Steps[None]:
        """No portal outlives its transaction."""
        for name in list(self._portals):
            yield from self._drop(name)

    def forget_unnamed(self) -> Steps[None]:
        """A simple query takes the place of the unnamed statement and portal."""
        self._statements.pop("", None)
        yield from self._drop("")

    def _run(self, portal: Portal, limit: int | None) -> Steps[None]:
        work, taken = self._work, portal.taken
        kind = taken.statement.classified.kind
        work.observed.found(kind, portal.source.text, resumed=taken.result is not None)
        if taken.result is None:
            alone = not self._executed and isinstance(work.channel.following(), Sync)
            if not alone:
                yield from work.session.begin_implicit()
                self._shared = True
            self._executed = True
            begun = yield from work.execute(portal.source, taken.statement, taken.parameters)
            taken.result = cast(Any, begun)
        elif not is_inline(taken.statement):
            yield Need.WORKER
        result = cast(Result | None, taken.result)
        assert result is not None, "it has been started"
        before = result.row_count
        portal.complete = yield from work.send_rows(portal.source, result, portal.formats, limit)
        taken.given += result.row_count - before
        if portal.complete:
            # As PostgreSQL counts them: the rows of this Execute.
            work.complete(result, before)
        else:
            work.channel.send(PortalSuspended())
            work.observed.end()

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
            raise InvalidCursorName(f'portal "{name}" does not exist')
        if not taken.declared:
            return self._portals[name]
        # In text whatever DECLARE said: BINARY is for FETCH alone, as with PostgreSQL.
        return Portal(NOWHERE, taken.columns, (), taken, taken.result is None or taken.result.ended)


def _declared(declared: Sequence[int], types: Sequence[str]) -> tuple[int, ...]:
    """The OID of each parameter: as the client declared it, else as the session inferred it."""
    known = (*declared, *(0,) * len(types))
    return tuple(oid or pgtypes.pg_type(type).oid for oid, type in zip(known, types, strict=False))


def _values(prepared: Prepared, message: Bind) -> list[object]:
    types, raw = prepared.types, message.parameters
    if len(raw) != len(types):
        raise ProtocolViolation(
            f'bind message supplies {len(raw)} parameters, but prepared statement "{message.statement}"'
            f" requires {len(types)}"
        )
    formats = _formats(message.parameter_formats, len(types), "parameter")
    return [
        parameters.decode(value, format, oid, type)
        for value, format, oid, type in zip(raw, formats, prepared.oids, types, strict=True)
    ]


def _formats(formats: Sequence[int], count: int, kind: str) -> Sequence[int]:
    if len(formats) > 1 and len(formats) != count:
        raise ProtocolViolation(f"bind message has {len(formats)} {kind} formats but {count} {kind}s")
    for format in formats:
        if format not in (0, 1):
            raise InvalidParameterValue(f"unsupported format code: {format}")
    return spread(formats, count)

"""The extended protocol: prepared statements, portals, and what lies between two Syncs.

The statements up to a Sync are one transaction, unless BEGIN and COMMIT say otherwise. An Execute
that is all there is before its Sync runs as plain autocommit, which costs no BEGIN: that is known
where the Sync has arrived together with it, as with nearly every client. After an error everything
is skipped up to the Sync. Source: PostgreSQL documentation, "Extended Query", "Pipelining".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.errors import (
    DuplicateCursor,
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
from .needs import Result
from .steps import Need, Steps
from .work import Prepared, Work, is_inline, pieces, placed, spread

# Named ones that a session may keep. Drivers keep a few hundred statements and close the rest; a
# client that only ever adds would take the memory of all.
STATEMENTS_MAX = 10_000
PORTALS_MAX = 1_000


@dataclass(slots=True)
class Portal:
    """A statement with its parameters; with a result once it has been executed.

    Args:
        complete: all its rows have been sent.
    """

    prepared: Prepared
    parameters: Sequence[object]
    formats: Sequence[int]
    result: Result | None = None
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

    def parse(self, message: Parse) -> Steps[None]:
        """Make a prepared statement; the unnamed one takes the place of the one before."""
        if message.name in self._statements and message.name:
            raise DuplicatePreparedStatement(f'prepared statement "{message.name}" already exists')
        if len(self._statements) >= STATEMENTS_MAX:
            raise ProgramLimitExceeded(
                f"a session cannot keep more than {STATEMENTS_MAX} prepared statements",
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
        if message.portal in self._portals:
            if message.portal:
                raise DuplicateCursor(f'cursor "{message.portal}" already exists')
            yield from self._drop(message.portal)
        if len(self._portals) >= PORTALS_MAX:
            raise ProgramLimitExceeded(
                f"a session cannot keep more than {PORTALS_MAX} portals",
                hint="Close portals that are no longer needed.",
            )
        formats = _formats(message.result_formats, len(prepared.columns or ()), "result")
        self._portals[message.portal] = Portal(prepared, _values(prepared, message), formats)
        self._work.channel.send(BindComplete())

    def describe(self, message: Describe) -> Steps[None]:
        """Say what a statement takes and gives, or what a portal gives."""
        yield from ()
        if message.kind == "S":
            prepared = self._statement(message.name)
            formats: Sequence[int] = ()
            self._work.channel.send(ParameterDescription(prepared.oids))
        else:
            portal = self._portal(message.name)
            prepared, formats = portal.prepared, portal.formats
        if prepared.columns is None:
            self._work.channel.send(NoData())
        else:
            self._work.describe(prepared.columns, formats)

    def execute(self, message: Execute) -> Steps[None]:
        """Run a portal, or go on with one that was suspended."""
        portal = self._portal(message.portal)
        if portal.prepared.statement.empty:
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
        work, prepared = self._work, portal.prepared
        if portal.result is None:
            alone = not self._executed and isinstance(work.channel.following(), Sync)
            if not alone:
                yield from work.session.begin_implicit()
                self._shared = True
            self._executed = True
            portal.result = yield from work.execute(prepared.source, prepared.statement, portal.parameters)
        elif not is_inline(prepared.statement):
            yield Need.WORKER
        portal.complete = yield from work.send_rows(
            prepared.source, portal.result, portal.formats, limit
        )
        if portal.complete:
            work.complete(portal.result)
        else:
            work.channel.send(PortalSuspended())

    def _repeat(self, name: str, portal: Portal) -> None:
        if portal.prepared.columns is None:
            raise WrongState(f'portal "{name}" cannot be run')
        self._work.channel.send(CommandComplete("SELECT 0"))

    def _drop(self, name: str) -> Steps[None]:
        portal = self._portals.pop(name, None)
        if portal is None or portal.result is None:
            return
        if not portal.complete:
            yield Need.WORKER
        portal.result.close()

    def _statement(self, name: str) -> Prepared:
        prepared = self._statements.get(name)
        if prepared is None:
            called = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise InvalidStatementName(f"{called} does not exist")
        return prepared

    def _portal(self, name: str) -> Portal:
        portal = self._portals.get(name)
        if portal is None:
            raise InvalidCursorName(f'portal "{name}" does not exist')
        return portal


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

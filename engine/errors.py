"""The catalogue of errors: one class for each condition, with its SQLSTATE in the class line.

Every error that leaves the package is one of these classes. The name of a class is the condition, PostgreSQL
clients branch on `sqlstate`, and `dbapi` is the PEP 249 class of the DB-API (a name in
ducktail.sql.python.errors).

A message is lower case, names the object's kind and name, and ends without a full stop;
`detail` and `hint` are whole sentences. Source: docs/errors.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class DucktailError(Exception):
    """The base class of all errors of ducktail.

    Args:
        message: the error, lower case, without a full stop.
        detail: a sentence with the facts, or None.
        hint: a sentence with advice, or None.
        position: position of the offending token in the statement's text, in characters, from 1.
        context: the place in loaded data: "COPY t, line 3"; or None.
    """

    sqlstate: str = "XX000"
    dbapi: ClassVar[str] = "InternalError"
    # PostgreSQL's source file and routine, if drivers depend on them.
    told_at: ClassVar[tuple[str, str] | None] = None

    def __init_subclass__(cls, sqlstate: str, dbapi: str = "OperationalError") -> None:
        cls.sqlstate = sqlstate
        cls.dbapi = dbapi

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
        context: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.position = position
        self.context = context


# Class 08: connection.
class CannotConnect(DucktailError, sqlstate="08001"): ...


class ConnectionRefused(DucktailError, sqlstate="08004"): ...


class ConnectionLost(DucktailError, sqlstate="08006"): ...


class SourceUnavailable(DucktailError, sqlstate="08006"):
    """A source of changes cannot be reached now; another attempt may succeed."""


class ProtocolViolation(DucktailError, sqlstate="08P01"): ...


# Class 0A: not supported.
class NotSupported(DucktailError, sqlstate="0A000", dbapi="NotSupportedError"): ...


class CachedPlanChanged(NotSupported, sqlstate="0A000", dbapi="NotSupportedError"):
    """The columns of a prepared statement have changed; drivers recognize the routine and prepare again."""

    told_at = ("plancache.c", "RevalidateCachedQuery")

    def __init__(self) -> None:
        super().__init__("cached plan must not change result type", hint="Prepare the statement again.")


# Class 22: data.
class DataError(DucktailError, sqlstate="22000", dbapi="DataError"): ...


class InvalidParameterValue(DucktailError, sqlstate="22023", dbapi="DataError"): ...


class NullValueNotAllowed(DucktailError, sqlstate="22004", dbapi="DataError"): ...


class InvalidTextRepresentation(DucktailError, sqlstate="22P02", dbapi="DataError"): ...


class NumericOutOfRange(DucktailError, sqlstate="22003", dbapi="DataError"): ...


class DivisionByZero(DucktailError, sqlstate="22012", dbapi="DataError"): ...


class InvalidBinaryRepresentation(DucktailError, sqlstate="22P03", dbapi="DataError"): ...


class BadCopyFileFormat(DucktailError, sqlstate="22P04", dbapi="DataError"): ...


class CharacterNotInRepertoire(DucktailError, sqlstate="22021", dbapi="DataError"): ...


class UntranslatableCharacter(DucktailError, sqlstate="22P05", dbapi="DataError"): ...


# Class 21: cardinality.
class CardinalityViolation(DucktailError, sqlstate="21000", dbapi="ProgrammingError"): ...


# Class 23: constraints.
@dataclass(frozen=True, slots=True)
class Violated:
    """The object of an integrity violation, as error fields name it; "" for an unknown part.

    Args:
        schema, table: the table with the constraint.
        column: the column that must not be NULL.
        constraint: the constraint or unique index, by its name in the catalog.
    """

    schema: str
    table: str
    column: str = ""
    constraint: str = ""


class IntegrityViolation(DucktailError, sqlstate="23000", dbapi="IntegrityError"):
    """A row violates a constraint; `violated` names it once the written table is known."""

    violated: Violated | None = None


class NotNullViolation(IntegrityViolation, sqlstate="23502", dbapi="IntegrityError"): ...


class ForeignKeyViolation(IntegrityViolation, sqlstate="23503", dbapi="IntegrityError"): ...


class UniqueViolation(IntegrityViolation, sqlstate="23505", dbapi="IntegrityError"): ...


class CheckViolation(IntegrityViolation, sqlstate="23514", dbapi="IntegrityError"): ...


# Class 25: transaction state.
class ActiveTransaction(DucktailError, sqlstate="25001"): ...


class ReadOnlyTransaction(DucktailError, sqlstate="25006"): ...


class NoActiveTransaction(DucktailError, sqlstate="25P01"): ...


class InFailedTransaction(DucktailError, sqlstate="25P02", dbapi="InternalError"): ...


class IdleInTransactionTimeout(DucktailError, sqlstate="25P03"): ...


# Class 26, 34: names of statements and portals.
class InvalidStatementName(DucktailError, sqlstate="26000", dbapi="ProgrammingError"): ...


class InvalidSavepoint(DucktailError, sqlstate="3B001", dbapi="ProgrammingError"): ...


class InvalidCursorName(DucktailError, sqlstate="34000", dbapi="ProgrammingError"): ...


# Class 28, 3D, 3F: connection and names.
class InvalidAuthorization(DucktailError, sqlstate="28000"): ...


class InvalidPassword(DucktailError, sqlstate="28P01"): ...


class UndefinedDatabase(DucktailError, sqlstate="3D000"): ...


class InvalidSchemaName(DucktailError, sqlstate="3F000", dbapi="ProgrammingError"): ...


# Class 2B: dependent objects.
class DependentObjects(DucktailError, sqlstate="2BP01", dbapi="ProgrammingError"): ...


# Class 40: transaction rollback.
class SerializationFailure(DucktailError, sqlstate="40001"): ...


# Class 42: syntax and names.
class SyntaxError_(DucktailError, sqlstate="42601", dbapi="ProgrammingError"): ...


class InsufficientPrivilege(DucktailError, sqlstate="42501", dbapi="ProgrammingError"): ...


class ReservedName(DucktailError, sqlstate="42939", dbapi="ProgrammingError"): ...


class UndefinedTable(DucktailError, sqlstate="42P01", dbapi="ProgrammingError"): ...


class UndefinedColumn(DucktailError, sqlstate="42703", dbapi="ProgrammingError"): ...


class UndefinedFunction(DucktailError, sqlstate="42883", dbapi="ProgrammingError"): ...


class UndefinedObject(DucktailError, sqlstate="42704", dbapi="ProgrammingError"): ...


class UndefinedGroup(UndefinedObject, sqlstate="42704", dbapi="ProgrammingError"):
    """No such consumer group on a local stream; in a cluster another node may have it."""


class UndefinedParameter(DucktailError, sqlstate="42P02", dbapi="ProgrammingError"): ...


class DuplicateObject(DucktailError, sqlstate="42710", dbapi="ProgrammingError"): ...


class DuplicateTable(DucktailError, sqlstate="42P07", dbapi="ProgrammingError"): ...


class InvalidTableDefinition(DucktailError, sqlstate="42P16", dbapi="ProgrammingError"): ...


class DuplicateSchema(DucktailError, sqlstate="42P06", dbapi="ProgrammingError"): ...


class DuplicateColumn(DucktailError, sqlstate="42701", dbapi="ProgrammingError"): ...


class DuplicatePreparedStatement(DucktailError, sqlstate="42P05", dbapi="ProgrammingError"): ...


class DuplicateCursor(DucktailError, sqlstate="42P03", dbapi="ProgrammingError"): ...


class AmbiguousColumn(DucktailError, sqlstate="42702", dbapi="ProgrammingError"): ...


class GroupingError(DucktailError, sqlstate="42803", dbapi="ProgrammingError"): ...


class DatatypeMismatch(DucktailError, sqlstate="42804", dbapi="ProgrammingError"): ...


class CannotCoerce(DucktailError, sqlstate="42846", dbapi="ProgrammingError"): ...


class IndeterminateDatatype(DucktailError, sqlstate="42P18", dbapi="ProgrammingError"): ...


class WrongObjectType(DucktailError, sqlstate="42809", dbapi="ProgrammingError"): ...


class GeneratedAlways(DucktailError, sqlstate="428C9", dbapi="ProgrammingError"): ...


# Class 53, 54: limits.
class OutOfMemory(DucktailError, sqlstate="53200"): ...


class TooManyConnections(DucktailError, sqlstate="53300"): ...


class ConfigurationLimit(DucktailError, sqlstate="53400"): ...


class ProgramLimitExceeded(DucktailError, sqlstate="54000"): ...


# Class 55: object state.
class WrongState(DucktailError, sqlstate="55000"): ...


class SourceLost(WrongState, sqlstate="55000"):
    """A source no longer has the changes after a position."""


class DatabaseReplaced(WrongState, sqlstate="55000"):
    """A standby was promoted in place of the database."""


class ObjectInUse(DucktailError, sqlstate="55006"): ...


class CantChangeRuntimeParam(DucktailError, sqlstate="55P02"): ...


class LockNotAvailable(DucktailError, sqlstate="55P03"): ...


# Class 57: operator intervention.
class QueryCanceled(DucktailError, sqlstate="57014"): ...


class AdminShutdown(DucktailError, sqlstate="57P01"): ...


class CannotConnectNow(DucktailError, sqlstate="57P03"): ...


class CommitNotConfirmed(DucktailError, sqlstate="57R01"):
    """A commit that stands here, and that too few synchronous copies have."""


class CopiesUnavailable(DucktailError, sqlstate="57R02"):
    """A statement that was not executed: it waits for commits that too few synchronous copies have."""


# Class 58: system.
class IoError(DucktailError, sqlstate="58030"): ...


# Class HV: foreign data.
class SourceError(DucktailError, sqlstate="HV000"):
    """An error of a source that no other class describes, with the source's own SQLSTATE.

    Args:
        sqlstate: the source's; five characters.
    """

    def __init__(
        self, sqlstate: str, message: str, *, detail: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.sqlstate = sqlstate


# Class P0: PL/pgSQL.
class RaisedException(DucktailError, sqlstate="P0001", dbapi="ProgrammingError"):
    """RAISE in a DO block, which may give an SQLSTATE of its own."""


# Class 72: snapshots.
class Gap(DucktailError, sqlstate="72000"): ...


# Class XX: internal errors and damage.
class InternalError(DucktailError, sqlstate="XX000", dbapi="InternalError"): ...


class DataCorrupted(DucktailError, sqlstate="XX001", dbapi="InternalError"): ...

"""PEP 249's exceptions, each with the error's SQLSTATE, detail and hint.

engine/errors.py assigns the class of an error (`dbapi` in the class); the SQLSTATE is finer and the same as
over the wire, so a program branches on that: `except Error as error: if error.sqlstate == "40001": ...`.
Source: PEP 249, "Exceptions"; docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...engine.duck.duckdb_errors import recognized
from ...engine.errors import DucktailError


class Warning(Exception):
    """Required by PEP 249 and never raised: warnings are notices (`Connection.notices`)."""


class Error(Exception):
    """Any error of this module.

    Args:
        message: the error, lower case, without a full stop.
        sqlstate: its five characters; 08003 and 24000 for errors of the module itself.
        detail: a sentence with the facts, or None.
        hint: a sentence with the remedy, or None.
        position: the position of the offending token in the statement, in characters from 1, or None.
    """

    def __init__(
        self,
        message: str,
        sqlstate: str = "XX000",
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        self.position = position

    def __str__(self) -> str:
        """The message, then DETAIL and HINT on lines of their own, as psql shows them."""
        parts = [self.message]
        parts += [f"DETAIL: {self.detail}"] if self.detail else []
        parts += [f"HINT: {self.hint}"] if self.hint else []
        return "\n".join(parts)


class InterfaceError(Error):
    """The module was used wrongly: a closed connection or cursor, a fetch without a result."""


class DatabaseError(Error):
    """Any error that the database answers with."""


class DataError(DatabaseError):
    """A value does not fit: class 22."""


class OperationalError(DatabaseError):
    """An error that may not occur at another time or place: locks, conflicts, limits, gaps, I/O."""


class IntegrityError(DatabaseError):
    """A constraint is violated: class 23."""


class InternalError(DatabaseError):
    """A failed transaction, damage, or an internal error."""


class ProgrammingError(DatabaseError):
    """The statement is wrong: syntax, names, rights: classes 42, 2B, 26, 34."""


class NotSupportedError(DatabaseError):
    """An unsupported operation (0A000); the hint names an alternative."""


CLASSES: dict[str, type[DatabaseError]] = {
    kind.__name__: kind
    for kind in (
        DataError,
        OperationalError,
        IntegrityError,
        InternalError,
        ProgrammingError,
        NotSupportedError,
    )
}


def from_engine(error: DucktailError) -> DatabaseError:
    """The PEP 249 exception for one of the engine's errors."""
    return CLASSES[error.dbapi](error.message, error.sqlstate, error.detail, error.hint, error.position)


@contextmanager
def translated() -> Iterator[None]:
    """Context in which errors of the engine and of DuckDB are raised as exceptions of this module."""
    try:
        yield
    except Exception as error:
        if (known := recognized(error)) is None:
            raise
        raise from_engine(known) from error

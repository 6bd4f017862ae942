"""What a peer tells, as what this node tells: its errors with all their fields."""

from __future__ import annotations

from psycopg import pq

from ...engine import errors
from ...engine.errors import DucktailError, InternalError

FIELD = pq.DiagnosticField


def _classes() -> dict[str, type[DucktailError]]:
    """The classes of errors by SQLSTATE; of several, the one that stands first in the catalogue."""
    found: dict[str, type[DucktailError]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, DucktailError) and value is not DucktailError:
            found.setdefault(value.sqlstate, value)
    return found


CLASSES = _classes()


def as_error(result: pq.abc.PGresult) -> DucktailError:
    """The error that a result is."""

    def text(field: pq.DiagnosticField) -> str | None:
        value = result.error_field(field)
        return None if value is None else value.decode("utf-8", "replace")

    position = text(FIELD.STATEMENT_POSITION)
    kind = CLASSES.get(text(FIELD.SQLSTATE) or "", InternalError)
    return kind(
        text(FIELD.MESSAGE_PRIMARY) or "",
        detail=text(FIELD.MESSAGE_DETAIL),
        hint=text(FIELD.MESSAGE_HINT),
        position=int(position) if position else None,
        context=text(FIELD.CONTEXT),
    )

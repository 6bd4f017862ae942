"""The look at each statement before it runs, or is described: may its session do this?

Nothing is asked while there is no user. Source: docs/security.md, "How it is enforced".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...engine.errors import DucktailError, InsufficientPrivilege, SyntaxError_
from ..context import Context
from ..language.statements_other import AlterUser
from ..statement import Statement
from ..text.classified import Kind
from .plan import refuse_computed

# Kinds whose texts DuckDB reads tables for.
_READING = frozenset({Kind.READ, Kind.DML, Kind.DDL, Kind.COPY, Kind.SETTING, Kind.EXPLAIN})
# What a cursor is over is looked at when it is started.
_HARMLESS = frozenset({Kind.EMPTY, Kind.TRANSACTION, Kind.DEALLOCATE, Kind.CURSOR})
_PASSWORD = "syntax error in a statement that holds a password"
_SECRET = re.compile(r"\b(?:create|alter)\s+(?:user|role)\b|\bpassword\b", re.IGNORECASE)


def check(session: Context, statement: Statement, parameters: Sequence[object]) -> None:
    """Refuse what the session may not do.

    Raises:
        InsufficientPrivilege: 42501. InvalidAuthorization: 28000, its user has been dropped.
    """
    if not session.database.rights.users:
        return
    if session.access.superuser:
        if statement.classified.kind in _READING and not statement.inline:
            refuse_computed(session, statement.classified, parameters)
        return
    if statement.classified.kind not in _HARMLESS and not isinstance(statement.node, AlterUser):
        raise InsufficientPrivilege("permission denied", hint="Only superusers may do more than come in yet.")


def without_password(text: str, error: DucktailError) -> DucktailError:
    """A syntax error that does not say the word at which it stands, where that may be a password."""
    if isinstance(error, SyntaxError_) and _SECRET.search(text):
        return SyntaxError_(_PASSWORD, hint=error.hint, position=error.position)
    return error

"""What errors say, and to whom."""

from __future__ import annotations

import re

from ...engine.errors import DucktailError, SyntaxError_
from ...engine.schema import LIVE_VIEWS, SCHEMA
from ..access import Access
from ..text.occurs import occurs

_PASSWORD = "syntax error in a statement that holds a password"
_SECRET = re.compile(r"\b(?:create|alter)\s+(?:user|role)\b|\bpassword\b", re.IGNORECASE)
# Words of DuckDB's hints that go on with names of things.
_NAMED = ' of the table "'
_QUOTED = re.compile(r'"([^"]+)"')
# Logs and what is kept of them, whole copies (engine/schema.py).
_NUMBERED = re.compile(r"(?:log|topic|parked|parked_topic|copy)(?:_\d+){1,2}")
_GUESSES = ("Did you mean", "Candidate", "candidate")


def as_told(access: Access, error: DucktailError) -> DucktailError:
    """An error as a session may hear it: DuckDB's guesses at what was meant name others' things.

    So does its word of the table whose foreign key is in the way. Our own tables are nobody's guess.
    """
    if error.hint is not None and _names_ours(error.hint):
        error.hint = None
    guess = error.hint is not None and any(word in error.hint for word in _GUESSES)
    named = error.message.find(_NAMED) if error.message.endswith('"') else -1
    if access.account is None or not (guess or named >= 0):
        return error
    # Not `access.superuser`: of a user who has been dropped this is the error to tell.
    user = access.rights.users.get(access.user)
    if user is None or not user.superuser:
        error.hint = None if guess else error.hint
        error.message = error.message if named < 0 else error.message[:named]
    return error


def _names_ours(hint: str) -> bool:
    """Whether a guess of DuckDB's names a table that only the engine reads."""
    if not any(word in hint for word in _GUESSES):
        return False
    parted = [name.rpartition(".") for name in _QUOTED.findall(hint)]
    return any(
        _NUMBERED.fullmatch(name) is not None or (schema == SCHEMA and name not in LIVE_VIEWS)
        for schema, _, name in parted
    )


def without_password(text: str, error: DucktailError) -> DucktailError:
    """A syntax error that does not say the word at which it stands, where that may be a password."""
    if isinstance(error, SyntaxError_) and occurs(_SECRET, text):
        return SyntaxError_(_PASSWORD, hint=error.hint, position=error.position)
    return error

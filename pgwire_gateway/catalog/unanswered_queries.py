"""Catalog queries that failed because the catalog lacks something: counted, and the first ones logged.

A tool that queries something missing often continues without it, and shows less than there is: the log
informs the operator. A client's spelling error in a query of its own tables does not count.
Source: docs/design/catalog.md, "Unanswered queries".
"""

from __future__ import annotations

import logging
import re

from ...engine.errors import (
    DucktailError,
    DuplicateCursor,
    DuplicatePreparedStatement,
    InsufficientPrivilege,
    UndefinedFunction,
    UndefinedObject,
    UndefinedTable,
)
from ...engine.quoting import fold
from .query_rewrite import respelt
from .system_catalogs import INFORMATION_SCHEMA, PG_CATALOG, PG_SHAPES

# The maximum number of logged texts, so that a tool's repeated queries do not fill the log.
LOGGED_MAX = 100
TEXT_CHARS_MAX = 500
# Classes of SQLSTATE for unknown or unsupported objects; other errors are the client's.
_NOT_KNOWN = ("42", "0A")
# A missing right, an unknown name of a type, a setting or a user, and a name in use are the client's errors.
_HIS = (InsufficientPrivilege, UndefinedObject, DuplicateCursor, DuplicatePreparedStatement)
_MISSING = re.compile(r'(?:name|relation|function) "?([^\s"]+)"? does not exist')
_OURS = ("pg_", "has_")
_QUALIFIED = re.compile(rf"\b(?:{PG_CATALOG}|{INFORMATION_SCHEMA})\s*\.\s*\"?(\w+)", re.IGNORECASE)
_RELATION = re.compile(r"\b(?:from|join)\s+(?:only\s+)?([\w$.\"]+)(?!\s*\()", re.IGNORECASE)

log = logging.getLogger("ducktail.catalog")


class Unanswered:
    """Counts of unanswered catalog queries since the server's start.

    Attributes:
        count: their total number.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def note(self, text: str, error: DucktailError) -> bool:
        """Note a failed statement; return True if it was a catalog query without an answer."""
        if not is_probe(text, error):
            return False
        self.count += 1
        if text not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(text)
            log.warning(
                "catalog query not answered: %s (%s): %s",
                error.message, error.sqlstate, " ".join(text.split())[:TEXT_CHARS_MAX],
            )  # fmt: skip
        return True


def is_probe(text: str, error: DucktailError) -> bool:
    """True if an error says that the catalog has no answer to a text.

    A missing table or function is the catalog's if its name shows it; any other error counts if the text
    queries only the catalog.

    >>> is_probe("SELECT * FROM pg_nothing", UndefinedTable('relation "pg_nothing" does not exist'))
    True
    >>> is_probe("SELECT * FROM pg_class, nothing", UndefinedTable('relation "nothing" does not exist'))
    False
    >>> is_probe("SELECT relname FROM pg_class", DuplicatePreparedStatement("statement exists"))
    False
    """
    if not error.sqlstate.startswith(_NOT_KNOWN) or isinstance(error, _HIS):
        return False
    if isinstance(error, UndefinedTable | UndefinedFunction):
        found = _MISSING.search(error.message)
        name = "" if found is None else fold(found[1]).rpartition(".")[2]
        if name.startswith(_OURS) or name in {fold(word) for word in _QUALIFIED.findall(text)}:
            return True
        if isinstance(error, UndefinedTable):
            return False
    try:
        reads = respelt(text).reads_catalog
    except DucktailError:
        return False
    return reads and all(map(_is_catalogs, _RELATION.findall(text)))


def _is_catalogs(name: str) -> bool:
    schema, _, last = fold(name).replace('"', "").rpartition(".")
    return schema in (PG_CATALOG, INFORMATION_SCHEMA) or last in PG_SHAPES


unanswered = Unanswered()

"""Catalog queries that failed because the catalog lacks something: counted, and the first ones logged.

A tool that asks for something missing often goes on without it, and shows less than there is: the log
tells the operator. A client's spelling error in a question about its own tables does not count.
Source: docs/design/catalog.md, "What is not answered".
"""

from __future__ import annotations

import logging
import re

from ...engine.errors import (
    DucktailError,
    InsufficientPrivilege,
    UndefinedFunction,
    UndefinedObject,
    UndefinedTable,
)
from ...engine.quoting import fold
from .query_rewrite import respelt
from .system_catalogs import INFORMATION_SCHEMA, PG_CATALOG, PG_SHAPES

# Texts that are logged, in all; a tool that asks again and again does not fill the log.
LOGGED_MAX = 100
TEXT_CHARS_MAX = 500
# Classes of SQLSTATE that say that something is not known or not supported; others are the client's.
_NOT_KNOWN = ("42", "0A")
# A right that he has not, or a name of a type, a setting or a user that is not there, is the client's too.
_HIS = (InsufficientPrivilege, UndefinedObject)
_MISSING = re.compile(r'(?:name|relation|function) "?([^\s"]+)"? does not exist')
_OURS = ("pg_", "has_")
_QUALIFIED = re.compile(rf"\b(?:{PG_CATALOG}|{INFORMATION_SCHEMA})\s*\.\s*\"?(\w+)", re.IGNORECASE)
_RELATION = re.compile(r"\b(?:from|join)\s+(?:only\s+)?([\w$.\"]+)(?!\s*\()", re.IGNORECASE)

log = logging.getLogger("ducktail.catalog")


class Unanswered:
    """Counts of unanswered catalog queries since the server's start.

    Attributes:
        count: of them all.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def note(self, text: str, error: DucktailError) -> bool:
        """A statement has failed; whether it was a catalog query that had no answer."""
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

    A missing table or function is the catalog's where its name says so; any other fault is where the
    text asks the catalog and nothing else.

    >>> is_probe("SELECT * FROM pg_nothing", UndefinedTable("table with name pg_nothing does not exist"))
    True
    >>> is_probe("SELECT * FROM pg_class, nothing", UndefinedTable("table with name nothing does not exist"))
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

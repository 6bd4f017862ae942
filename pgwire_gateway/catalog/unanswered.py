"""Catalog queries that had no answer: counted, and the first ones told to whoever runs the server.

A tool that asks what is not here often goes on without it, and shows less than there is: the log says
what was missing. Source: docs/design/catalog.md, "What is not answered".
"""

from __future__ import annotations

import logging

from ...engine.errors import DucktailError

# Texts that are logged, in all; a tool that asks again and again does not fill the log.
LOGGED_MAX = 100
TEXT_CHARS_MAX = 500
# Classes of SQLSTATE that say that something is not known or not supported; others are the client's.
_NOT_KNOWN = ("42", "0A")

log = logging.getLogger("ducktail.catalog")


class Unanswered:
    """How many there were since the server's start.

    Attributes:
        count: of them all.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def note(self, text: str, error: DucktailError) -> None:
        """A catalog query that could not be bound."""
        if not error.sqlstate.startswith(_NOT_KNOWN):
            return
        self.count += 1
        if text not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(text)
            log.warning(
                "catalog query not answered: %s (%s): %s",
                error.message, error.sqlstate, " ".join(text.split())[:TEXT_CHARS_MAX],
            )  # fmt: skip


unanswered = Unanswered()

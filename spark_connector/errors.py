"""The connector's exceptions: one sentence that names the option to check.

Spark shows an exception of a Python worker as text, so the sentence must be complete. Spark pickles an error
to carry it from a worker to the driver, so it holds only text.
"""

from __future__ import annotations

from collections.abc import Sequence

# The columns that a message lists: more would hide its beginning.
LISTED_MAX = 60


def listed(parts: Sequence[str]) -> str:
    """A list in a message, as far as a message has room."""
    more = len(parts) - LISTED_MAX
    return ", ".join(parts[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


class ConnectorError(Exception):
    """An error that ends a query.

    Args:
        message: lower case, no full stop; names the option, if one is the cause.
        sqlstate: the server's SQLSTATE, if it gave one.
        retryable: the same call may succeed a little later.
    """

    def __init__(self, message: str, sqlstate: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, sqlstate, retryable)
        self.message = message
        self.sqlstate = sqlstate
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.message} ({self.sqlstate})" if self.sqlstate else self.message


class OptionError(ConnectorError):
    """An option that is unknown, missing, or has an invalid value."""

"""What the connector raises: one sentence that names the option to look at.

Spark shows an exception of a Python worker as text, so the sentence says all. An error is pickled where
Spark carries it from a worker to the driver; it holds nothing but text.
"""

from __future__ import annotations


class ConnectorError(Exception):
    """What keeps a query from going on.

    Args:
        message: lower case, no full stop; names the option, where one is to blame.
        sqlstate: the server's, where it said one.
        retryable: whether the same call may succeed a little later.
    """

    def __init__(self, message: str, sqlstate: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, sqlstate, retryable)
        self.message = message
        self.sqlstate = sqlstate
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.message} ({self.sqlstate})" if self.sqlstate else self.message


class OptionError(ConnectorError):
    """An option that is not known, is missing, or has a value that cannot be."""

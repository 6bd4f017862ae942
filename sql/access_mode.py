"""Whether a transaction may write: READ ONLY and READ WRITE, of a block or of the session."""

from __future__ import annotations

from ..engine.errors import ActiveTransaction
from .context import Context
from .variables import READ_ONLY


def begun_read_only(session: Context) -> bool:
    """Whether what the session runs now is, or would be, in a read-only transaction."""
    return session.variables[READ_ONLY] == "on"


def choose(session: Context, *, read_only: bool) -> None:
    """Make the open transaction read-only, or one that writes; outside of one it means nothing.

    Raises:
        ActiveTransaction: 25001, a read-only one that has begun to read cannot write any more.
    """
    if not session.block.begun:
        return
    if begun_read_only(session) and not read_only and session.block.transaction is not None:
        raise ActiveTransaction("transaction read-write mode must be set before any query")
    session.changed(READ_ONLY, "on" if read_only else "off", report=False, local=False)

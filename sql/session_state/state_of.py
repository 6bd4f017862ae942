"""The state of the catalog to which a statement's description belongs."""

from __future__ import annotations

from .context import Context


def state_of(session: Context) -> object:
    """The state to which a description belongs: catalog, search path, and the meaning of `/`.

    None is a state that will not occur again: it contains the session's own changes of the catalog, which may
    be rolled back, or it is changing now.
    """
    transaction = session.block.transaction
    if session.block.ddl:
        return None
    fixed = transaction is not None and transaction.snapshot_counter is not None
    generation = transaction.generation if transaction is not None and fixed else None
    if not fixed:
        generation = session.database.catalog.changes.stable
    if generation is None:
        return None
    return generation, session.names.path, session.variables.integer_division

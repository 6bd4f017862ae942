"""CHECKPOINT, VACUUM, ANALYZE, USE: DuckDB's own housekeeping."""

from __future__ import annotations

import duckdb

from ...engine.duck.duckdb_errors import translated
from ...engine.duck.table_shape import RESERVED_PREFIX
from ...engine.errors import ActiveTransaction, InsufficientPrivilege, ObjectInUse
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..context import Context
from ..results.results import Result
from ..statement import Statement
from .settings_statements import set_variable


def run(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run one of them."""
    verb = statement.classified.verb
    if verb == "USE":
        assert statement.classified.name is not None
        if fold(statement.classified.name).startswith(RESERVED_PREFIX):
            raise InsufficientPrivilege(f'names that begin with "{RESERVED_PREFIX}" are ducktail\'s own')
        set_variable(session, "schema", (statement.classified.name,), local=False)
        return Result.command("USE")
    if session.block.begun and not session.block.implicit:
        raise ActiveTransaction(f"{verb} cannot run inside a transaction block")
    text, tokens = statement.text, statement.classified.tokens
    if tokens[0].kind == "FORCE":
        # DuckDB would wait until no other transaction is open, and let none begin meanwhile: who has written
        # and asks for something that begins another one then waits for it, and it for that, for ever.
        text = text[tokens[0].end :]
    try:
        session.cursor.execute(text).fetchall()
    except duckdb.TransactionException as error:
        raise ObjectInUse(
            f"{verb} has to wait for open transactions",
            hint="SELECT * FROM ducktail.sessions shows them.",
        ) from error
    except duckdb.Error as error:
        raise translated(error, text if text is statement.text else None) from error
    return Result.command(verb)
    yield

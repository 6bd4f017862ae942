"""BEGIN, COMMIT, ROLLBACK, savepoints, SET TRANSACTION and two-phase commit, as PostgreSQL answers them.

Isolation is DuckDB's snapshot isolation, which is stronger than READ COMMITTED: a level is reported as it was
asked for. DuckDB has no savepoints: ROLLBACK TO returns to one where nothing was changed since or before, and
fails the block otherwise (`session_state/block.py`). Two-phase commit is answered as by a PostgreSQL with
`max_prepared_transactions` = 0. Source: docs/sql.md, "Transactions".
"""

from __future__ import annotations

from collections.abc import Callable

from ...engine.errors import NoActiveTransaction, NotSupported, UndefinedObject, WrongState
from ...engine.waiting import Waiting
from ..results.results import Result
from ..session_state import run_text
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..settings import ISOLATION
from .set_and_show import set_variable


def _check_modes(statement: ParsedStatement) -> None:
    facts = statement.classified.transaction
    assert facts is not None
    if facts.modes.get(ISOLATION) == "serializable":
        raise NotSupported(
            "isolation level SERIALIZABLE is not supported",
            hint="Transactions run in snapshot isolation: REPEATABLE READ.",
        )
    if facts.chain:
        raise NotSupported("AND CHAIN is not supported", hint="Say BEGIN again.")


def _begin(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _check_modes(statement)
    if session.block.implicit:
        session.block.implicit = False
    elif session.block.begun:
        session.notices.add(
            "there is already a transaction in progress", severity="WARNING", sqlstate="25001"
        )
    else:
        session.block.begin()
    _take_mode(session, statement)
    return Result.command("BEGIN")
    yield


def _commit(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _check_modes(statement)
    if not session.block.begun or session.block.implicit:
        _no_transaction(session)
    if not session.block.begun:
        return Result.command("COMMIT")
    if session.block.broken:
        session.block.rollback()
        return Result.command("ROLLBACK")
    yield from session.block.commit()
    return Result.command("COMMIT")


def _rollback(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _check_modes(statement)
    if not session.block.begun or session.block.implicit:
        _no_transaction(session)
    if session.block.begun:
        session.block.rollback()
    return Result.command("ROLLBACK")
    yield


def _no_transaction(session: Context) -> None:
    session.notices.add("there is no transaction in progress", severity="WARNING", sqlstate="25P01")


def _in_block(session: Context, what: str) -> None:
    if not session.block.begun or session.block.implicit:
        raise NoActiveTransaction(f"{what} can only be used in transaction blocks")


def _name(statement: ParsedStatement) -> str:
    """The name of a savepoint: small letters unless quoted."""
    facts = statement.classified.transaction
    assert facts is not None and facts.savepoint is not None
    return facts.savepoint


def _savepoint(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _in_block(session, "SAVEPOINT")
    declared = frozenset(name for name, portal in session.portals if portal.declared)
    session.block.make_savepoint(_name(statement), declared)
    return Result.command("SAVEPOINT")
    yield


def _release(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _in_block(session, "RELEASE SAVEPOINT")
    session.block.release_savepoint(_name(statement))
    return Result.command("RELEASE")
    yield


def _rollback_to(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _in_block(session, "ROLLBACK TO SAVEPOINT")
    found = session.block.return_to(_name(statement))
    for name, portal in session.portals:
        if portal.declared and portal.ours and name not in found.portals:
            session.portals.remove(name)
    return Result.command("ROLLBACK")
    yield


def _take_mode(session: Context, statement: ParsedStatement) -> None:
    facts = statement.classified.transaction
    assert facts is not None
    for mode, value in facts.modes.items():
        run_text.choose(session, mode, value)


def _set(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _check_modes(statement)
    if not session.block.begun:
        session.notices.add(
            "SET TRANSACTION can only be used in transaction blocks", severity="WARNING", sqlstate="25P01"
        )
    _take_mode(session, statement)
    return Result.command("SET")
    yield


def _set_characteristics(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    _check_modes(statement)
    facts = statement.classified.transaction
    assert facts is not None
    for mode, value in facts.modes.items():
        set_variable(session, f"default_{mode}", (value,), local=False)
    return Result.command("SET")
    yield


def _prepare(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    """PREPARE TRANSACTION, which ends the transaction in any case: here by a rollback."""
    if not session.block.begun or session.block.implicit:
        _no_transaction(session)
    sound = session.block.whole
    if session.block.begun:
        session.block.rollback()
    if sound:
        raise WrongState(
            "prepared transactions are disabled",
            detail="There is no two-phase commit. The transaction was rolled back.",
            hint="COMMIT ends a transaction at once.",
        )
    return Result.command("ROLLBACK")
    yield


def _end_prepared(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    session.block.refuse_within(statement.classified.verb)
    facts = statement.classified.transaction
    assert facts is not None
    raise UndefinedObject(f'prepared transaction with identifier "{facts.identifier}" does not exist')
    yield


VERBS: dict[str, Callable[[Context, ParsedStatement], Waiting[Result]]] = {
    "BEGIN": _begin,
    "COMMIT": _commit,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _savepoint,
    "RELEASE": _release,
    "ROLLBACK TO": _rollback_to,
    "PREPARE TRANSACTION": _prepare,
    "COMMIT PREPARED": _end_prepared,
    "ROLLBACK PREPARED": _end_prepared,
    "SET TRANSACTION": _set,
    "SET SESSION CHARACTERISTICS": _set_characteristics,
}
# Statements allowed in a failed block.
ENDINGS = frozenset({"COMMIT", "ROLLBACK", "ROLLBACK TO", "PREPARE TRANSACTION"})


def run_transaction_statement(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run a statement that begins, changes or ends a transaction."""
    return (yield from VERBS[statement.classified.verb](session, statement))

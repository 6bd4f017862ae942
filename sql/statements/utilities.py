"""INSTALL PLACEMENT, REPORT PIPELINE, LOCK TABLE, and DuckDB's own CHECKPOINT, VACUUM, ANALYZE and USE.

REPORT PIPELINE is part of its transaction: others see it at COMMIT. Source: docs/cluster.md, "Apply";
docs/sql.md, "REPORT PIPELINE".
"""

from __future__ import annotations

from contextlib import nullcontext

import duckdb

from ...engine import rights_changes
from ...engine.catalog import rights
from ...engine.cluster.joining import install
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.table_shape import RESERVED_PREFIX
from ...engine.errors import (
    ActiveTransaction,
    DucktailError,
    InsufficientPrivilege,
    LockNotAvailable,
    NoActiveTransaction,
    ObjectInUse,
)
from ...engine.quoting import fold
from ...engine.system_views import pipelines
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Wait, Waiting
from ..language import statements as st
from ..language.classify import LOCK_TABLE
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, text
from ..session_state.statement import ParsedStatement
from .runners import answer, runs
from .set_and_show import set_variable

INSTALLED_COLUMNS = (("node", "VARCHAR"), ("epoch", "BIGINT"), ("moves", "BIGINT"), ("new", "BOOLEAN"))


@runs(st.InstallPlacement, INSTALLED_COLUMNS)
def install_placement(session: Context, asked: st.InstallPlacement, parameters: Values) -> Waiting[Result]:
    """INSTALL PLACEMENT 'text'."""
    session.access.require_superuser("install a placement")
    session.block.refuse_within("INSTALL PLACEMENT")
    done = yield from install(session.database, text(asked.text, parameters))
    if session.learn is not None and session.database.cluster.lacks:
        yield Wait(learning := session.learn())
        for told in learning.result().told():
            session.notices.add(told, severity="WARNING", sqlstate="01000")
    node = session.database.placement.local.name
    return answer(asked, [[node, done.epoch, done.moves, done.new]])


@runs(st.ReportPipeline)
def report_pipeline(session: Context, asked: st.ReportPipeline, parameters: Values) -> Waiting[Result]:
    """REPORT PIPELINE 'name' AS '{...}'."""
    report = pipelines.read_report(text(asked.pipeline, parameters), text(asked.state, parameters))

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        try:
            _store(session, transaction, report)
        except duckdb.Error as error:
            raise translated(error) from error

    yield from session.block.unit(work)
    return Result.command(st.tag_of(asked))


def _store(session: Context, transaction: Transaction, report: pipelines.Report) -> None:
    """Store a report; the pipeline must be new or the user's own."""
    cursor, now_us = transaction.cursor, session.database.clock.now_us()
    item, owner = rights.pipeline_item(report.name), session.access.owner
    if not pipelines.there_is(cursor, report.key):
        gone = pipelines.silent(cursor, now_us)
        pipelines.forget(cursor, gone)
        for key in gone:
            _forget(session, transaction, rights.pipeline_item(key))
        pipelines.check_room(cursor)
        if owner is not None:
            rights_changes.add(session.database, transaction, rights_changes.PutOwner(item, owner))
    elif not session.access.owns(item):
        raise InsufficientPrivilege(
            f'permission denied for pipeline "{report.name}"',
            hint="Another user reports under this name: take another one.",
        )
    pipelines.store(cursor, report, now_us, owner or "")


def _forget(session: Context, transaction: Transaction, item: rights.Item) -> None:
    if item in session.access.rights.owners:
        rights_changes.add(session.database, transaction, rights_changes.Forget(item))


def _lock(session: Context, tables: str) -> Waiting[Result]:
    """LOCK TABLE ... IN ACCESS SHARE MODE: from now on the transaction sees the tables as they are.

    No change of them by others, such as a DROP, can take that from it, as it reads a snapshot.
    """
    if not session.block.begun or session.block.implicit:
        raise NoActiveTransaction(f"{LOCK_TABLE} can only be used in transaction blocks")
    try:
        query = yield from session.parse(f"SELECT 1 FROM {tables} LIMIT 0", told=False)
        (yield from session.execute_within(query, ())).close()
    except DucktailError as error:
        error.position = None
        raise
    return Result.command(LOCK_TABLE)


def run_utility(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run CHECKPOINT, VACUUM, ANALYZE, USE or LOCK TABLE."""
    verb = statement.classified.verb
    if verb == LOCK_TABLE:
        return (yield from _lock(session, statement.classified.name or ""))
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
        # DuckDB would wait until no other transaction is open, and let none begin meanwhile: a transaction
        # that has written and asks for something that begins another one would then wait for it forever, and
        # it for that one.
        text = text[tokens[0].end :]
    copies = session.database.continuous_copies if verb == "CHECKPOINT" else None
    try:
        with nullcontext() if copies is None else copies.before_checkpoint():
            session.cursor.execute(text).fetchall()
    except (duckdb.TransactionException, LockNotAvailable) as error:
        raise ObjectInUse(
            f"{verb} has to wait for open transactions",
            hint="SELECT * FROM ducktail.sessions shows them.",
        ) from error
    except duckdb.Error as error:
        raise translated(error, text if text is statement.text else None) from error
    return Result.command(verb)
    yield

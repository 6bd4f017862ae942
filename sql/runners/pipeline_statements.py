"""REPORT PIPELINE. Source: docs/sql.md, "REPORT PIPELINE".

It is part of the transaction that it stands in: others see it at COMMIT.
"""

from __future__ import annotations

import duckdb

from ...engine import rights_changes
from ...engine.catalog import rights
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import InsufficientPrivilege
from ...engine.system_views import pipelines
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..arguments import Values, text
from ..context import Context
from ..language import statements_other as sto
from ..results.results import Result


def report_pipeline(session: Context, asked: sto.ReportPipeline, parameters: Values) -> Waiting[Result]:
    """REPORT PIPELINE 'name' AS '{...}'."""
    report = pipelines.read_report(text(asked.pipeline, parameters), text(asked.state, parameters))

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        try:
            _store(session, transaction, report)
        except duckdb.Error as error:
            raise translated(error) from error

    yield from session.block.unit(work)
    return Result.command("REPORT PIPELINE")


def _store(session: Context, transaction: Transaction, report: pipelines.Report) -> None:
    """Raises:
    InsufficientPrivilege: 42501, it is somebody else's pipeline. ProgramLimitExceeded: 54000.
    """
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

"""What the driver does with the stages of a batch: all of them into the target, in one transaction."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from ..connection import Connection, connect, failure, retrying
from ..options import Options
from .batch_marks import Batch, is_done, make_schema, mark, unmark
from .inserting import insert
from .stages import Stage, sweep
from .target import Target
from .upserting import together, upsert

# Brings a stage into a target, within a transaction.
Merge = Callable[[Connection, Target, sql.Identifier], None]


def publish(
    options: Options,
    target: Target,
    stages: Sequence[Stage],
    batch: Batch | None = None,
    merge: Merge | None = None,
) -> bool:
    """Bring what was staged into the target, in one transaction.

    Args:
        merge: brings one stage with all rows into the target; by itself, the target's mode says how.

    Returns:
        Whether it was done now; False: this batch had been written before.

    Raises:
        ConnectorError: nothing of it is there.
    """
    tables = [staged.table for staged in stages if staged.table is not None]
    # A job that is tried again here, where the answer to its COMMIT was lost, finds its own mark.
    marked = batch or Batch(f"job-{uuid.uuid4().hex}", 0)

    def work() -> bool:
        try:
            with connect(options) as connection:
                try:
                    done = _publish(connection, target, stages, marked, merge)
                except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                    # No task has had a row yet, so there are no marks.
                    make_schema(connection, target.schema)
                    done = _publish(connection, target, stages, marked, merge)
                # It is written, so nothing that follows may make Spark write it again: what cannot be
                # cleared away now is cleared by a later write.
                with contextlib.suppress(psycopg.Error):
                    sweep(connection, target.schema, tables, batch)
                    if batch is None:
                        unmark(connection, target.schema, marked)
                return done
        except psycopg.Error as error:
            raise failure(error, f"writing to {target}", target.kind) from None

    return retrying(work, options["retryTimeout"])


def _publish(
    connection: Connection,
    target: Target,
    stages: Sequence[Stage],
    batch: Batch,
    merge: Merge | None,
) -> bool:
    tables = [staged.table for staged in stages if staged.table is not None]
    with connection.transaction():
        if is_done(connection, target, batch):
            return False
        if target.mode == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(target.named))
        if tables and (merge is not None or target.mode == "upsert"):
            (merge or upsert)(connection, target, together(connection, target, tables))
        else:
            for table in tables:
                connection.execute(insert(connection, target, sql.Identifier(target.schema, table)))
        mark(connection, target, batch, sum(staged.rows for staged in stages))
    return True

"""A mirror in a Delta table, by delta-rs (`pip install deltalake`): no Spark package and no JAR is wanted.

The driver merges each batch in one commit of Delta's log, which carries the query and the batch as an
application transaction: a batch that comes again finds it and is done. What a batch changes is brought to the
driver, so bound it (option maxEventsPerTrigger).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from ..errors import ConnectorError
from . import changes
from .targets import Change, foreign, gone, other_query

if TYPE_CHECKING:
    import pyarrow as pa

_WHAT = "_what"
# The batch of which a table that has just been made has the mark.
_MADE = -1


@dataclass(frozen=True, slots=True)
class DeltaPlace:
    """A Delta table's path."""

    path: str

    def apply(self, change: Change) -> None:
        """See targets.py."""
        try:
            from deltalake import CommitProperties, DeltaTable, Transaction
            from deltalake.exceptions import TableNotFoundError
        except ImportError:
            raise ConnectorError(
                'a mirror in Delta wants the package deltalake: pip install "ducktail[delta]" (option kind)'
            ) from None
        rows = _arrow(change)
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            if change.batch.number > 0:
                raise gone(f"the Delta table at {self.path}", "path", change.batch) from None
            if os.path.isdir(self.path) and os.listdir(self.path):
                raise foreign(f"the directory {self.path}", "path") from None
            # Ours from its making on: a batch that is killed behind it finds the mark.
            mark = CommitProperties(app_transactions=[Transaction(change.batch.query, _MADE)])
            columns = rows.drop_columns([_WHAT]).schema
            table = DeltaTable.create(self.path, columns, commit_properties=mark)
        done = table.transaction_version(change.batch.query)
        if done is None:
            raise other_query(f"the Delta table at {self.path}", "path")
        if done is not None and done >= change.batch.number:
            return
        mark = CommitProperties(app_transactions=[Transaction(change.batch.query, change.batch.number)])
        _merge(table, rows, change, mark)


def _arrow(change: Change) -> pa.Table:
    """What is to be done, a row each: `_what` is put, delete, or (of type 2) open and end."""
    rows = change.rows
    if change.scd == 1:
        what = f.when(f.col(changes.DELETED), "delete").otherwise("put")
        return rows.select(*change.kept, what.alias(_WHAT)).toArrow()
    opened = rows.where(~f.col(changes.DELETED)).select(*change.kept, f.lit("open").alias(_WHAT))
    ended = rows.where(changes.FIRST).select(*change.kept, f.lit("end").alias(_WHAT))
    return opened.unionByName(ended).toArrow()


def _merge(table: Any, rows: pa.Table, change: Change, mark: Any) -> None:
    same = " AND ".join(f"m.`{key}` = s.`{key}`" for key in change.keys)
    values = {f"`{name}`": f"s.`{name}`" for name in change.kept}
    if change.scd == 1:
        merged = table.merge(rows, same, source_alias="s", target_alias="m", commit_properties=mark)
        merged = (
            merged.when_matched_delete(f"s.{_WHAT} = 'delete'")
            .when_matched_update(values)
            .when_not_matched_insert(values, f"s.{_WHAT} = 'put'")
        )
    else:
        on = f"s.{_WHAT} = 'end' AND m.is_current AND {same}"
        merged = table.merge(rows, on, source_alias="s", target_alias="m", commit_properties=mark)
        ends = {"valid_to": "s.valid_from", "is_current": "false", "to_lsn": "s.from_lsn"}
        merged = merged.when_matched_update(ends).when_not_matched_insert(values, f"s.{_WHAT} = 'open'")
    merged.execute()

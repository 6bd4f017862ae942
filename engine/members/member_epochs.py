"""The highest epoch under which a member has come with a partition, by group: kept over a restart.

Rows are only added, as they come seldom: one a partition that has come to another member. An opening leaves
the highest of each. Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import duckdb

from ..duckdb_errors import translated

TABLE = "ducktail.member_epochs"


class MemberEpochs:
    """See the head of the file; safe to use from several threads.

    Args:
        cursor: one of the engine's own; it is used here only.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._mutex = threading.Lock()
        self._kept: dict[int, dict[int, int]] = {}
        rows = cursor.execute(f"SELECT group_id, partition, epoch FROM {TABLE}").fetchall()
        for group_id, partition, epoch in rows:
            of_group = self._kept.setdefault(group_id, {})
            of_group[partition] = max(epoch, of_group.get(partition, 0))
        if len(rows) > sum(map(len, self._kept.values())):
            cursor.execute(
                f"DELETE FROM {TABLE} AS a WHERE EXISTS (FROM {TABLE} AS b WHERE b.group_id = a.group_id "
                "AND b.partition = a.partition AND b.epoch > a.epoch)"
            ).fetchall()

    def of(self, group_id: int) -> Mapping[int, int]:
        """Partition -> epoch."""
        with self._mutex:
            return dict(self._kept.get(group_id, {}))

    def keep(self, group_id: int, epochs: Mapping[int, int]) -> None:
        """Keep later ones; they are durable when this returns. Runs DuckDB.

        Raises:
            DucktailError: they cannot be written.
        """
        with self._mutex:
            rows = ", ".join(f"({group_id}, {partition}, {epoch})" for partition, epoch in epochs.items())
            try:
                self._cursor.execute(f"INSERT INTO {TABLE} VALUES {rows}").fetchall()
            except duckdb.Error as error:
                raise translated(error) from error
            kept = self._kept.setdefault(group_id, {})
            for partition, epoch in epochs.items():
                kept[partition] = max(epoch, kept.get(partition, 0))

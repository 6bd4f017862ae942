"""A consumer group that follows a query: its committed LSNs are where Spark's checkpoint is, never ahead.

Spark's checkpoint is the truth of what has been processed. The group tells the gateway of it, so that
SHOW OFFSETS and the lag views say how far Spark is. It also anchors a query that begins at the end of a
stream: Spark asks for the first offset more than once, and again after a crash before the first batch was
committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from .connection import Connection, failure
from .errors import ConnectorError
from .stream_state import StreamState

_NAME = "consumerGroup"
START = {word: sql.SQL(word.upper()) for word in ("earliest", "latest", "snapshot")}


class Following:
    """The group of one query.

    Args:
        name: option consumerGroup.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._told: dict[int, int] | None = None

    def ensure(self, connection: Connection, state: StreamState, start: str) -> None:
        """Make it where it is not there: `start` earliest, latest or snapshot."""
        text = sql.SQL("CREATE CONSUMER GROUP IF NOT EXISTS {} ON {} START {}")
        made = text.format(sql.Identifier(self.name), state.scan, START[start])
        self._run(connection, made, "making")

    def at_copy(
        self, connection: Connection, state: StreamState, look: Callable[[], StreamState]
    ) -> tuple[StreamState, dict[int, int]]:
        """The stream with its whole copy, and its committed LSNs, which are at the beginning of that.

        It is made with one where it is not there.

        Args:
            look: the stream as it is now.

        Raises:
            ConnectorError: it is there, and somewhere else.
        """
        self.ensure(connection, state, "snapshot")
        copied, committed = look(), self.committed(connection, state) or {}
        copy = copied.copy
        if copy is None or any(lsn != copy.base_lsn for lsn in committed.values()):
            raise ConnectorError(
                f'option startingOffsets = snapshot: group "{self.name}" on stream "{state.name}" is there '
                "already, and not at the beginning of a whole copy of its own: drop it, or name a group that "
                f"is not there yet (option {_NAME})"
            )
        return copied, committed

    def committed(self, connection: Connection, state: StreamState) -> dict[int, int] | None:
        """Its committed LSNs by partition; None where it is not there."""
        query = sql.SQL("SHOW OFFSETS ON {} CONSUMER GROUP {}").format(state.scan, sql.Identifier(self.name))
        rows = self._shown(connection, query)
        return None if rows is None else {row["partition"]: row["committed_lsn"] for row in rows}

    def follows_gaps(self, connection: Connection, state: StreamState) -> bool:
        """Whether its on_gap lets a read go on where events have been trimmed."""
        query = sql.SQL("DESCRIBE CONSUMER GROUP {} ON {}").format(sql.Identifier(self.name), state.scan)
        rows = self._shown(connection, query)
        return rows is not None and {"property": "on_gap", "value": "earliest"} in rows

    def follow(self, connection: Connection, state: StreamState, offsets: Mapping[int, int]) -> None:
        """Commit what Spark has in its commit log.

        Raises:
            ConnectorError: the group is ahead of it: somebody else commits in it, or the checkpoint is old.
        """
        if self._told == offsets:
            return
        if self._told is None:
            self.ensure(connection, state, "earliest")
        standing = self.committed(connection, state) or {}
        ahead = {number: lsn for number, lsn in standing.items() if lsn > offsets[number]}
        if ahead:
            number, lsn = min(ahead.items())
            raise ConnectorError(
                f'option {_NAME}: group "{self.name}" has committed LSN {lsn} in partition {number}, and '
                f"this query's checkpoint is at {offsets[number]}: somebody else commits in it, or the query "
                "begins anew. Give the query a group of its own, begin with startingOffsets = group, or "
                "ALTER CONSUMER GROUP ... SEEK"
            )
        if standing != dict(offsets):
            position = json.dumps({str(number): lsn for number, lsn in offsets.items()})
            text = sql.SQL("COMMIT OFFSETS AT {} ON {} CONSUMER GROUP {}").format(
                sql.Literal(position), state.scan, sql.Identifier(self.name)
            )
            self._run(connection, text, "committing the offsets of")
        self._told = dict(offsets)

    def _shown(self, connection: Connection, text: sql.Composed) -> list[dict[str, Any]] | None:
        """The rows of a statement about it, by the names of their columns; None where there is no group."""
        try:
            return connection.cursor(row_factory=dict_row).execute(text).fetchall()
        except psycopg.errors.UndefinedObject:
            return None
        except psycopg.Error as error:
            raise failure(error, f'looking up consumer group "{self.name}"', _NAME) from None

    def _run(self, connection: Connection, text: sql.Composed, doing: str) -> list[tuple[Any, ...]]:
        try:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise failure(error, f'{doing} consumer group "{self.name}"', _NAME) from None

"""Which definition of the cluster a topic or a group of this database is.

A topic and its groups are defined on every node. Where a definition was made first, its identity is that of
the database with the object's number there; the other nodes keep what they were told with the definition.
Two of one name whose identities differ are two things, and are told as such. Source: docs/design/cluster.md.
"""

from __future__ import annotations

import duckdb

from ..asking import ask
from ..quoting import literal

TABLE = "ducktail.cluster_identities"


class Identities:
    """See the head of the file; what it knows in memory follows the engine's commits.

    Args:
        cursor: one of the engine's own; it is used here only.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        (self._database,) = ask(cursor, "SELECT value FROM ducktail.meta WHERE name = 'identity'")
        rows = cursor.execute(f"SELECT object_id, uid FROM {TABLE}").fetchall()
        self._told: dict[int, str] = dict(rows)

    def of(self, object_id: int) -> str:
        """The identity of a topic or a group by its number here."""
        return self._told.get(object_id, f"{self._database}.{object_id}")

    def told(self, object_id: int, uid: str) -> None:
        """A definition that came from elsewhere has been committed."""
        self._told[object_id] = uid


def insert_sql(object_id: int, uid: str) -> str:
    """Keep the identity that came with a definition."""
    return f"INSERT INTO {TABLE} VALUES ({object_id}, {literal(uid)})"

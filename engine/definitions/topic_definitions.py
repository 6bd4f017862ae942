"""CREATE TOPIC: a log of its own, and the stream over it; its further life is a stream's (`definitions.py`).

Nobody has written a topic that is not there, so nothing is waited for but the writer lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from .. import rights_changes
from ..database import Database
from ..log.changes import view_statements
from ..log.topic_query import TopicQuery
from ..log.topic_rows import create_log_sql
from ..placement import holds, identities
from ..placement.holds import HELD, NONE, Hold
from ..rights import rights
from ..streams.streams import DEFAULT_PARTITIONS_WITH_KEY, PUBLISHED, Stream
from ..waiting import Waiting
from .catalog_rows import insert_stream_sql, new_id
from .creating import show_stream
from .free_names import check_names, check_no_stream
from .numbered import run_numbered
from .stream_spec import DEFAULT_KEEPING, Keeping


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What CREATE TOPIC asks for.

    Args:
        uid: which definition of the cluster it is, where another node made it first.
        fresh: of the cluster it is made new; else other nodes have it, and its events.
    """

    schema: str
    name: str
    partitions: int = DEFAULT_PARTITIONS_WITH_KEY
    keeping: Keeping = DEFAULT_KEEPING
    uid: str | None = None
    fresh: bool = False


def create_topic(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    spec: TopicSpec,
    timeout_ms: int,
    owner: str | None = None,
) -> Waiting[Stream]:
    """Make a topic; the session is in no transaction.

    Args:
        owner: the user whose it is, in small letters; None leaves it to the superusers.

    Raises:
        DuplicateObject: 42710, the name is taken. LockNotAvailable: 55P03.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        check_no_stream(database, spec.schema, spec.name)
        topic_id = new_id(cursor)
        topic = Stream(
            stream_id=topic_id,
            schema=spec.schema,
            name=spec.name,
            table_id=topic_id,
            operations=PUBLISHED,
            columns=(),
            filter=None,
            partitions=spec.partitions,
            partition_by=(),
            snapshot="none",
            before="none",
            buffer_bytes=spec.keeping.buffer_bytes,
            created_lsn=database.commits.last_lsn,
            created_counter=database.snapshots.next_counter,
            created_at_us=database.commits.now_us(),
            retention_us=spec.keeping.retention_us,
            retention_bytes=spec.keeping.retention_bytes,
            compaction=spec.keeping.compaction,
            compaction_lag_us=spec.keeping.compaction_lag_us,
            tombstone_retention_us=spec.keeping.tombstone_retention_us,
        )
        check_names(database, cursor, topic)
        statements = [
            create_log_sql(topic),
            insert_stream_sql(topic),
            *view_statements(TopicQuery(topic)),
        ]
        item = rights.relation(spec.schema, spec.name)
        # What an older stream of this name left behind is nobody's either way.
        changes = [rights_changes.Forget(item) if owner is None else rights_changes.PutOwner(item, owner)]
        if spec.uid is not None:
            statements.append(identities.insert_sql(topic_id, spec.uid))

        rows = _holds(database, topic, fresh=spec.fresh) if spec.uid is not None else {}
        statements += holds.rows_sql(topic_id, rows)

        def show() -> None:
            if rows:
                database.holds.put(topic_id, rows)
            if spec.uid is not None:
                database.identities.told(topic_id, spec.uid)
            show_stream(database, topic)
            database.arrivals.hurry()

        run_numbered(database, session_id, cursor, statements, show, changes)
        return topic
    finally:
        database.transactions.writer_lock.release(session_id)


def _holds(database: Database, topic: Stream, *, fresh: bool) -> dict[int, Hold]:
    """What this node has of a topic that it is given in a cluster: of a new one what it owns."""
    placement = database.cluster.placement
    own = holds.owned(placement, topic) if fresh else []
    held = Hold(HELD, placement.local.name, placement.epoch)
    return {**holds.whole(topic, Hold(NONE)), **dict.fromkeys(own, held)}

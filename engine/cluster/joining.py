"""Joining a cluster: a node adopts the placement and the users of its cluster's files.

The users are first, because a placement in force admits connections from other nodes. If either file is
invalid, both stay unchanged. Source: docs/cluster.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ..database import Database
from ..placement.cluster_file import ClusterSource, FilePlacement
from ..placement.membership import REFUSED, Installed
from ..waiting import Waiting, drive
from .send_partition import keep_all
from .users import make_equal, read_users

logger = logging.getLogger(__name__)

# Time for which a placement waits for a writing transaction.
LOCK_MS = 60_000


def join(database: Database, source: ClusterSource) -> None:
    """Make this a node of the cluster in its file.

    Raises:
        InvalidParameterValue: a file is invalid, or does not name this node.
        IoError: a file cannot be read.
        DucktailError: `Membership.install` refuses the placement.
    """
    drive(_take(database, source.load))
    database.cluster.join(source)


def reload(database: Database) -> bool:
    """Adopt the present contents of the files; False if this is not a node of a cluster.

    If this raises, the present placement and users stay in force.

    Raises:
        InvalidParameterValue, IoError, DucktailError: as in `join`.
    """
    cluster = database.cluster
    if not cluster.joined:
        return False
    drive(_take(database, lambda: cluster.source.load(cluster.placement.local)))
    return True


def install(database: Database, text: str) -> Waiting[Installed]:
    """Write a text to this node's file, and put its placement in force.

    Raises:
        WrongState: this is not a node of a cluster.
        IoError: the file cannot be written.
        DucktailError: an error of `join`.
    """
    cluster = database.cluster
    source = cluster.source
    return (
        yield from _take(
            database,
            lambda: source.read(text, "placement", cluster.placement.local),
            lambda: source.write(text),
        )
    )


def _take(
    database: Database, load: Callable[[], FilePlacement], before: Callable[[], None] = lambda: None
) -> Waiting[Installed]:
    cluster = database.cluster
    try:
        new = load()
        users = None if new.users is None else read_users(Path(new.users))
        cluster.check(new)
    except Exception:
        cluster.count(REFUSED)
        raise
    if users is not None:
        yield from make_equal(database, users)
    owner_id = database.sessions.new_id()
    yield from database.transactions.lock_writer(owner_id, LOCK_MS)
    try:
        if new.epoch > cluster.placement.epoch:
            keep_all(database, new)
        first, installed = not cluster.placement.epoch, cluster.install(new, before)
    finally:
        database.transactions.writer_lock.release(owner_id)
    if first:
        _tell_of_compacted(database)
    return installed


def _tell_of_compacted(database: Database) -> None:
    """Log that topics compacted before the node joined are no longer compacted, as partitions may move."""
    with database.catalog.mutex:
        streams = list(database.catalog.streams.values())
    for stream in streams:
        if stream.topic and stream.compaction != "none":
            logger.warning('topic "%s" is compacted no further: this is a node of a cluster', stream.name)

"""A node takes what its cluster's files say: the placement, and the users.

The users are first: a placement in force says who may come from other nodes. Where either file is wrong, both
stay as they were. Source: docs/cluster.md.
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

# How long a placement waits for a transaction that writes.
LOCK_MS = 60_000


def join(database: Database, source: ClusterSource) -> None:
    """Be a node of a cluster, as its file says now.

    Raises:
        InvalidParameterValue: a file is wrong, or does not name this node. IoError: one cannot
            be read. And what `Membership.install` raises.
    """
    drive(_take(database, source.load))
    database.cluster.join(source)


def reload(database: Database) -> bool:
    """Take what the files say now; False where this is no node of a cluster. What is in force stays where
    this raises.

    Raises:
        As `join`.
    """
    cluster = database.cluster
    if not cluster.joined:
        return False
    drive(_take(database, lambda: cluster.source.load(cluster.placement.local)))
    return True


def install(database: Database, text: str) -> Waiting[Installed]:
    """Write a text to this node's file, and put what it says in force.

    Raises:
        WrongState: this is no node of a cluster. IoError: the file cannot be written. And as
            `join`.
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
    """Topics that were compacted before this was a node are compacted no further: partitions may move."""
    with database.catalog.mutex:
        streams = list(database.catalog.streams.values())
    for stream in streams:
        if stream.topic and stream.compaction != "none":
            logger.warning('topic "%s" is compacted no further: this is a node of a cluster', stream.name)

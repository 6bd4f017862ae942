"""The checkpoints of a stream's consumers, in the stream's own database."""

from __future__ import annotations

from ..catalog.streams import Group, Stream
from ..checkpoints.backend import KEEP, Report, report_to_log
from ..checkpoints.duckdb_backend import DuckdbBackend, Scope
from ..database import Database


def checkpoints_of(
    database: Database,
    stream: Stream,
    group: Group | None = None,
    *,
    keep: int = KEEP,
    report: Report = report_to_log,
) -> DuckdbBackend:
    """Where the consumers of a stream, or of a group of it, keep their checkpoints: a key each.

    They go when the stream or the group is dropped; RENAME keeps them.
    """

    def stands() -> bool:
        if database.catalog.stream_by_id(stream.stream_id) is None:
            return False
        groups = database.catalog.groups_of(stream.stream_id)
        return group is None or any(group.group_id == one.group_id for one in groups)

    return DuckdbBackend(
        database.cursor,
        database.checkpoints,
        Scope(stream.stream_id, 0 if group is None else group.group_id),
        keep=keep,
        report=report,
        stands=stands,
        has_fallen=database.has_fallen,
    )


def checkpoints_of_jobs(
    database: Database, *, keep: int = KEEP, report: Report = report_to_log
) -> DuckdbBackend:
    """Where jobs that are on no stream of the database keep their checkpoints."""
    return DuckdbBackend(
        database.cursor,
        database.checkpoints,
        keep=keep,
        report=report,
        has_fallen=database.has_fallen,
    )

"""CHECK STREAM and ALTER STREAM ... RESYNC. Source: docs/checks.md."""

from __future__ import annotations

from ...engine.catalog.streams import Stream
from ...engine.checks.check import TOLD_MAX, Look
from ...engine.checks.row_sums import ALTERED, OPENED, VERSION
from ...engine.errors import WrongObjectType
from ...engine.table_changes import resync
from ...engine.waiting import Waiting
from ..language import statements as st
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values
from .runners import answer, runs

DIFFERENCE_COLUMNS = (
    ("difference", "VARCHAR"),
    ("key", "JSON"),
    ("lsn", "BIGINT"),
    ("expected", "JSON"),
    ("found", "JSON"),
    ("detail", "VARCHAR"),
    ("table_name", "VARCHAR"),
)


@runs(st.CheckStream, DIFFERENCE_COLUMNS)
def check_stream(session: Context, asked: st.CheckStream, parameters: Values) -> Waiting[Result]:
    """CHECK STREAM: a row for each difference between a stream and its table; none where they agree."""
    session.block.refuse_within("CHECK STREAM")
    stream = _on_table(session, asked.stream, "CHECK STREAM")
    looks = yield from resync.check_stream(
        session.database, session.id, session.cursor, stream, session.block.lock_timeout_ms
    )
    rows: list[list[object]] = []
    for look in looks:
        _tell(session, look)
        rows += [
            [one.kind, one.key, one.lsn, one.expected, one.found, one.detail, look.table] for one in look.told
        ]
    return answer(asked, rows)


@runs(st.ResyncStream)
def resync_stream(session: Context, asked: st.ResyncStream, parameters: Values) -> Waiting[Result]:
    """ALTER STREAM ... RESYNC: what differs between a stream and its table becomes events."""
    session.block.refuse_within("ALTER STREAM ... RESYNC")
    stream = _on_table(session, asked.name, "ALTER STREAM ... RESYNC")
    mended = yield from resync.resync_stream(
        session.database, session.id, session.cursor, stream, session.block.lock_timeout_ms
    )
    session.notices.add(f'{mended.events} events put right what differed from stream "{stream.name}"')
    if mended.again:
        session.notices.add(
            f"{mended.again} rows without retained events are given again, as snapshot events",
            detail="Some of them differed, and which cannot be told; no more can those that are gone, or "
            "that a filter lets pass no longer.",
        )
    if mended.gone:
        session.notices.add(
            f"at least {mended.gone} rows without retained events are gone and cannot be named",
            severity="WARNING",
            hint="A copy that is kept of the table has to be made again, or to be held against the table.",
        )
    return Result.command(st.tag_of(asked))


def _on_table(session: Context, name: st.Name, what: str) -> Stream:
    """The stream of this name."""
    stream = session.names.stream(name.parts, name.position)
    if stream.topic:
        raise WrongObjectType(
            f'"{name}" is a topic, and {what} wants a stream on a table',
            hint="A topic has no table that it could differ from.",
            position=name.position or None,
        )
    session.names.refuse_hidden_of(stream)
    session.database.refuse_lost(stream)
    return stream


def _tell(session: Context, look: Look) -> None:
    """Say what was held against what, beside the differences."""
    if "table" in look.counts:
        return  # It has no log yet.
    if look.kept is None:
        session.notices.add(
            f"the row-hash sum of {look.table} is not known: only keys with retained events were looked at",
            severity="WARNING",
        )
    else:
        session.notices.add(
            f"{look.table} was held against its log and the row-hash sum taken at {look.kept.taken_at}",
            detail=SINCE.get(look.kept.reason),
        )
    found = sum(look.counts.values())
    if found > TOLD_MAX:
        session.notices.add(f"the first {TOLD_MAX} of {found} differences are told")


SINCE = {
    OPENED: "It was taken when a ducktail that keeps such sums first opened the database: of what was "
    "written past an older one only keys with retained events tell.",
    ALTERED: "It was taken anew when the table got another column: of what was written past ducktail before "
    "that only keys with retained events tell.",
    VERSION: "It was taken anew as another version of DuckDB, or of ducktail, hashes otherwise: of what was "
    "written past ducktail before that only keys with retained events tell.",
}

"""SHOW CHANGES FOR a table: the table's events, without the name of a stream.

It is a plain read of the table's most complete stream. Source: docs/sql.md, "SHOW CHANGES".
"""

from __future__ import annotations

from ...engine.catalog.captured_tables import Captured
from ...engine.catalog.streams import Stream
from ...engine.errors import WrongObjectType, WrongState
from ...engine.log.log import EVENT_COLUMNS, shown_table
from ...engine.quoting import ident, literal
from ...engine.waiting import Waiting
from ..language import statements as st
from ..reading import scans
from ..reading.read_requests import lsn_before
from ..results.results import Result
from ..rights import permission
from ..rights.reach import no_table
from ..session_state.context import Context
from ..session_state.run_text import Values, number, value_of
from .groups import timestamp_us
from .runners import runs


@runs(st.ShowChanges, EVENT_COLUMNS)
def show_changes(session: Context, asked: st.ShowChanges, parameters: Values) -> Waiting[Result]:
    """SHOW CHANGES FOR t [SINCE ...] [LIMIT n]: the retained events of a table, oldest first."""
    captured, stream = _found(session, asked.table)
    text = f"SELECT * FROM STREAM {ident(stream.schema)}.{ident(stream.name)}"
    conditions = [_of_table(session, captured)] if stream.is_part else []
    limit = None if asked.limit is None else number(asked.limit, parameters, "LIMIT")
    if asked.since is not None:
        at_us = _since_us(session, asked.since, parameters)
        conditions.append(f"lsn > {lsn_before(session, at_us)}")
        if at_us > session.database.commits.now_us():
            limit = 0  # The position is in the future, whatever is committed until the read.
    if conditions:
        text += f" WHERE {' AND '.join(conditions)}"
    if limit is not None:
        text += f" LIMIT {limit}"
    statement = yield from session.parse(text)
    permission.check(session, statement, ())
    return (yield from scans.run_query(session, statement, ()))


def _of_table(session: Context, captured: Captured) -> str:
    """A predicate for one table's events in a stream over several tables, under all of the table's names.

    Another table may have had the name before, or since, and also in the session's transaction.
    """
    captured = session.database.catalog.table_by_id(captured.table_id)
    ends = [*(f" AND lsn < {version.first_lsn}" for version in captured.versions[1:]), ""]
    called = (
        f"table_name = {literal(shown_table(version.table.shape))} AND lsn >= {version.first_lsn}{end}"
        for version, end in zip(captured.versions, ends, strict=True)
    )
    return f"({' OR '.join(called)})"


def _since_us(session: Context, since: st.Scalar, parameters: Values) -> int:
    """A timestamp as text, or milliseconds since 1970, as microseconds since 1970 UTC."""
    value = value_of(since, parameters)
    digits = str(value).strip()
    if isinstance(value, int) or (digits.isascii() and digits.isdecimal()):
        return number(since, parameters, "SINCE") * 1000
    return timestamp_us(session, str(value))


def _found(session: Context, name: st.Name) -> tuple[Captured, Stream]:
    """The table, and the stream to read: one with every change of the table, and the most contents."""
    known = session.names.find_stream(name.parts)
    if known is not None:
        raise WrongObjectType(
            f'"{name}" is a {known.kind}, and SHOW CHANGES wants a table',
            hint=f"SELECT * FROM {known.kind.upper()} {name} reads it.",
            position=name.position or None,
        )
    key = session.names.table_key(name.parts)
    kind = session.names.kind_of(key)
    if not session.access.sees(key) or kind is None:
        raise no_table(name.parts, name.position or None)
    if kind == "view":
        raise WrongObjectType(
            f'"{name}" is a view, and SHOW CHANGES wants a table', position=name.position or None
        )
    captured = session.block.tables.get(key)
    streams = [] if captured is None else [s for s in captured.streams if s.shows_all]
    readable = [s for s in streams if session.access.may("select", s.key)]
    if captured is None or not readable:
        raise WrongState(
            f'table "{name.last}" has no stream of all its changes',
            hint="CREATE STREAM s ON t makes one; SHOW STREAMS lists what there is.",
        )
    return captured, max(readable, key=lambda stream: _breadth(session, stream))


def _breadth(session: Context, stream: Stream) -> tuple[bool, int, bool, int, int]:
    """The order of a table's streams by their contents; among equals the one that goes back further is read.

    A stream over several tables is read only if there is no other: the other tables' events are skipped.
    """
    begins = max(stream.created_lsn, session.database.buffers.of(stream).edge_lsn)
    return not stream.is_part, len(stream.columns), stream.before == "full", -begins, -stream.stream_id

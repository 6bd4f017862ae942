"""CREATE and DROP BOOKMARK. Source: docs/groups.md, "Bookmarks".

Each is part of its transaction: others see it at COMMIT.
"""

from __future__ import annotations

from ...engine import rights_changes
from ...engine.catalog import rights
from ...engine.catalog.streams import Stream
from ...engine.definitions import bookmarks
from ...engine.definitions.whole_copies import copy_of, present_stream
from ...engine.errors import UndefinedObject, WrongState
from ...engine.offset_commits import committed_lsns
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..cluster import topic_statements
from ..cluster.shares import own_partitions
from ..language import statements as st
from ..language.position_text import parse_positions
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, text
from .runners import runs


@runs(st.CreateBookmark, at_owners=topic_statements.create_bookmark)
def create_bookmark(session: Context, made: st.CreateBookmark, parameters: Values) -> Waiting[Result]:
    """CREATE BOOKMARK, of a group's committed LSNs, a map, or the stream's end."""
    stream = session.names.stream(made.stream.parts, made.stream.position)
    at = None if made.at is None else parse_positions(text(made.at, parameters))

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        # Events committed before this statement are readable, so they are before the bookmark.
        yield from session.database.commits.wait_readable()
        present = present_stream(session.database, stream)
        lsns = _lsns(session, present, made, at, parameters)
        own = list(range(present.partitions))
        if session.part is not None:
            own = own_partitions(session, present, own)
        bookmarks.create_bookmark(session.database, transaction, present, made.name, lsns, own)
        item, owner = rights.bookmark_item(present.schema, present.name, made.name), session.access.owner
        if owner is not None:
            rights_changes.add(session.database, transaction, rights_changes.PutOwner(item, owner))

    yield from session.block.unit(work)
    return Result.command(st.tag_of(made))


def _lsns(
    session: Context, stream: Stream, made: st.CreateBookmark, at: dict[int, int] | None, parameters: Values
) -> dict[int, int]:
    if at is not None:
        return at
    if made.group is None:
        return bookmarks.end_lsns(session.database, stream)
    group = session.access.group(stream, text(made.group, parameters), session.block.transaction)
    lsns = committed_lsns(session.database, session.block.transaction, group)
    copy = copy_of(session.database, session.block.transaction, group)
    if copy is not None and any(copy.left(number, lsn) for number, lsn in lsns.items()):
        raise WrongState(
            f'consumer group "{group.name}" is within its whole copy, which a bookmark does not keep',
            hint="Make the bookmark once the group has read the copy.",
        )
    # At the end of a copy there may be no event yet that is as late.
    end_lsn = session.database.buffers.of(stream).end_lsn
    return {number: min(lsn, end_lsn) for number, lsn in lsns.items()}


@runs(st.DropBookmark, at_owners=topic_statements.drop_bookmark)
def drop_bookmark(session: Context, dropped: st.DropBookmark, parameters: Values) -> Waiting[Result]:
    """DROP BOOKMARK."""
    stream = session.names.stream(dropped.stream.parts, dropped.stream.position)
    if dropped.if_exists and not _there_is(session, stream, dropped.name):
        session.notices.add(f'bookmark "{dropped.name}" does not exist, skipping')
        return Result.command(st.tag_of(dropped))

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        present = present_stream(session.database, stream)
        bookmark = session.access.bookmark(present, dropped.name, transaction, drops=True)
        bookmarks.drop_bookmark(session.database, transaction, bookmark)
        if session.database.rights.users:
            item = rights.bookmark_item(present.schema, present.name, bookmark.name)
            rights_changes.add(session.database, transaction, rights_changes.Forget(item))

    yield from session.block.unit(work)
    return Result.command(st.tag_of(dropped))


def _there_is(session: Context, stream: Stream, name: str) -> bool:
    try:
        session.access.bookmark(stream, name, session.block.transaction)
    except UndefinedObject:
        return False
    return True

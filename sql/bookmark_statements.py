"""CREATE and DROP BOOKMARK. Source: docs/groups.md, "Bookmarks".

Each is part of the transaction that it stands in: others see it at COMMIT.
"""

from __future__ import annotations

from ..engine import bookmarks, rights, rights_changes
from ..engine.errors import UndefinedObject
from ..engine.streams import Stream
from ..engine.transaction import Transaction
from ..engine.waiting import Waiting
from .context import Context
from .language import statements_other as sto
from .language.position_text import parse_positions
from .offset_statements import committed_lsns
from .results import Result
from .spread.offsets import refuse_bookmark
from .spread.shares import spread
from .stream_statements import Values, text


def create_bookmark(session: Context, made: sto.CreateBookmark, parameters: Values) -> Waiting[Result]:
    """CREATE BOOKMARK, of a group's committed LSNs, of a map, or of the stream's end."""
    stream = session.names.stream(made.stream.parts, made.stream.position)
    if spread(session, stream) is not None:
        raise refuse_bookmark(stream)
    at = None if made.at is None else parse_positions(text(made.at, parameters))

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        # What was committed before this statement is readable, so it is before the bookmark.
        yield from session.database.commits.wait_readable()
        present = _present(session, stream)
        lsns = _lsns(session, present, made, at, parameters)
        bookmarks.create_bookmark(session.database, transaction, present, made.name, lsns)
        item, owner = rights.bookmark_item(present.schema, present.name, made.name), session.access.owner
        if owner is not None:
            rights_changes.add(session.database, transaction, rights_changes.PutOwner(item, owner))

    yield from session.block.unit(work)
    return Result.command("CREATE BOOKMARK")


def _present(session: Context, stream: Stream) -> Stream:
    """The stream as it is under the writer lock: it may have got another name while this waited.

    Raises:
        UndefinedObject: 42704, it has been dropped.
    """
    found = session.database.catalog.stream_by_id(stream.stream_id)
    if found is None:
        raise UndefinedObject(f'stream "{stream.name}" does not exist')
    return found


def _lsns(
    session: Context, stream: Stream, made: sto.CreateBookmark, at: dict[int, int] | None, parameters: Values
) -> dict[int, int]:
    if at is not None:
        return at
    if made.group is None:
        return bookmarks.end_lsns(session.database, stream)
    group = session.access.group(stream, text(made.group, parameters), session.block.transaction)
    return committed_lsns(session, stream, group)


def drop_bookmark(session: Context, dropped: sto.DropBookmark, parameters: Values) -> Waiting[Result]:
    """DROP BOOKMARK."""
    stream = session.names.stream(dropped.stream.parts, dropped.stream.position)
    if dropped.if_exists and not _there_is(session, stream, dropped.name):
        session.notices.add(f'bookmark "{dropped.name}" does not exist, skipping')
        return Result.command("DROP BOOKMARK")

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        present = _present(session, stream)
        bookmark = session.access.bookmark(present, dropped.name, transaction, drops=True)
        bookmarks.drop_bookmark(session.database, transaction, bookmark)
        if session.database.rights.users:
            item = rights.bookmark_item(present.schema, present.name, bookmark.name)
            rights_changes.add(session.database, transaction, rights_changes.Forget(item))

    yield from session.block.unit(work)
    return Result.command("DROP BOOKMARK")


def _there_is(session: Context, stream: Stream, name: str) -> bool:
    try:
        session.access.bookmark(stream, name, session.block.transaction)
    except UndefinedObject:
        return False
    return True

"""CREATE and DROP BOOKMARK. Source: docs/groups.md, "Bookmarks".

Each is part of the transaction that it stands in: others see it at COMMIT.
"""

from __future__ import annotations

from ...engine import rights_changes
from ...engine.catalog import rights
from ...engine.catalog.streams import Stream
from ...engine.definitions import bookmarks
from ...engine.definitions.whole_copies import copy_of, present_stream
from ...engine.errors import InvalidParameterValue, UndefinedObject, WrongState
from ...engine.offset_commits import committed_lsns
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..cluster import offset_shares as spread_bookmarks
from ..cluster.shares import own_partitions, rows_of, spread
from ..language import statements as st
from ..language import statements as sto
from ..language.position_text import parse_positions
from ..peers.owners import Owners
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, text
from .show import few_rows, show, shown_columns


def create_bookmark(session: Context, made: sto.CreateBookmark, parameters: Values) -> Waiting[Result]:
    """CREATE BOOKMARK, of a group's committed LSNs, of a map, or of the stream's end."""
    stream = session.names.stream(made.stream.parts, made.stream.position)
    at = None if made.at is None else parse_positions(text(made.at, parameters))
    owners = spread(session, stream)
    if owners is not None:
        spread_bookmarks.refuse_in_block(session, "CREATE BOOKMARK")
        lsns = yield from _lsns_of_all(session, stream, owners, made, at, parameters)
        yield from spread_bookmarks.make(session, stream, owners, made.name, lsns)
        return Result.command("CREATE BOOKMARK")

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        # What was committed before this statement is readable, so it is before the bookmark.
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
    return Result.command("CREATE BOOKMARK")


def _lsns(
    session: Context, stream: Stream, made: sto.CreateBookmark, at: dict[int, int] | None, parameters: Values
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
    # Where it stands at the end of a copy there may be no event yet that is as late.
    end_lsn = session.database.buffers.of(stream).end_lsn
    return {number: min(lsn, end_lsn) for number, lsn in lsns.items()}


def _lsns_of_all(
    session: Context,
    stream: Stream,
    owners: Owners,
    made: sto.CreateBookmark,
    at: dict[int, int] | None,
    parameters: Values,
) -> Waiting[dict[int, int]]:
    """The LSNs of a bookmark on partitions of several nodes.

    Raises:
        InvalidParameterValue: 22023, one is past the end.
    """
    name = st.Name((stream.schema, stream.name))
    if made.group is not None:
        group = session.access.group(stream, text(made.group, parameters), None)
        shown = yield from show(session, st.ShowOffsets(name, group.name), ())
        return _column(shown, "committed_lsn")
    ends = _column((yield from show(session, st.ShowPartitions(name), ())), "last_lsn")
    if at is None:
        return ends
    # Before anything is made: what one owner would refuse is then not there on the others.
    for partition, lsn in at.items():
        if partition < stream.partitions:
            end_lsn = max(ends[p] for p in owners.partitions[owners.of(partition)])
            if lsn > end_lsn:
                raise InvalidParameterValue(
                    f'LSN {lsn} of partition {partition} is past the end of topic "{stream.name}" on node '
                    f'"{owners.of(partition)}", {end_lsn}'
                )
    return at


def _column(shown: Result, name: str) -> dict[int, int]:
    """Partition -> value of a column."""
    names = [column.name for column in shown.columns or ()]
    partition, place = names.index("partition"), names.index(name)
    return {int(str(row[partition])): int(str(row[place] or 0)) for row in rows_of(shown)}


def show_bookmarks(session: Context, asked: sto.ShowBookmarks, parameters: Values) -> Waiting[Result]:
    """SHOW BOOKMARKS; of a topic with partitions on several nodes, what all owners say of theirs."""
    if asked.stream is not None:
        stream = session.names.stream(asked.stream.parts, asked.stream.position)
        owners = spread(session, stream)
        if owners is not None:
            whole = sto.ShowBookmarks(st.Name((stream.schema, stream.name)))
            answers = yield from spread_bookmarks.asked(session, owners, whole, list(owners.partitions))
            columns = shown_columns(asked, session)
            assert columns is not None
            return few_rows(columns, spread_bookmarks.merged(answers), "SHOW BOOKMARKS")
    return (yield from show(session, asked, parameters))


def drop_bookmark(session: Context, dropped: sto.DropBookmark, parameters: Values) -> Waiting[Result]:
    """DROP BOOKMARK."""
    stream = session.names.stream(dropped.stream.parts, dropped.stream.position)
    owners = spread(session, stream)
    if owners is not None:
        spread_bookmarks.refuse_in_block(session, "DROP BOOKMARK")
        if (yield from spread_bookmarks.drop(session, stream, owners, dropped.name)):
            return Result.command("DROP BOOKMARK")
        # None has it: what this node says of that is the answer.
    if dropped.if_exists and not _there_is(session, stream, dropped.name):
        session.notices.add(f'bookmark "{dropped.name}" does not exist, skipping')
        return Result.command("DROP BOOKMARK")

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        present = present_stream(session.database, stream)
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

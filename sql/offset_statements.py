"""COMMIT OFFSET and COMMIT OFFSETS, outside a transaction and inside one.

Outside, the committer writes it with whatever else has come, and the answer waits until it is
durable. Inside, it is kept with the transaction and written by its COMMIT, as a compare-and-set: the
committed LSN must still be where the transaction (or the earlier read) found it.
Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

from concurrent.futures import Future

from ..engine.errors import SerializationFailure
from ..engine.offsets import Request, going_back
from ..engine.places import check_commit, check_lsns
from ..engine.streams import Group, Stream
from ..engine.transaction import PendingOffset, Transaction
from ..engine.waiting import Wait, Waiting
from .context import Context
from .language import statements as st
from .language.position_text import parse_positions
from .results import Result
from .stream_statements import Values, number, text


def commit_offset(session: Context, asked: st.CommitOffset, parameters: Values) -> Waiting[Result]:
    """COMMIT OFFSET PARTITION p AT lsn."""
    partition = number(asked.partition, parameters, "PARTITION")
    lsn = number(asked.lsn, parameters, "AT")
    yield from _commit(session, asked, text(asked.group, parameters), {partition: lsn})
    return Result.command("COMMIT OFFSET")


def commit_offsets(session: Context, asked: st.CommitOffsets, parameters: Values) -> Waiting[Result]:
    """COMMIT OFFSETS [AT map]."""
    at = None if asked.at is None else parse_positions(text(asked.at, parameters))
    yield from _commit(session, asked, text(asked.group, parameters), at)
    return Result.command("COMMIT OFFSETS")


def _commit(
    session: Context,
    asked: st.CommitOffset | st.CommitOffsets,
    group_name: str,
    lsns: dict[int, int] | None,
) -> Waiting[None]:
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    group = session.access.group(stream, group_name, session.block.transaction)
    began: dict[int, int] = {}
    seeks: int | None = None
    if lsns is None:
        seeks = session.database.offsets.seeks(group.group_id)
        position = session.positions.get((stream.stream_id, group.group_id), group.name, seeks)
        lsns, began = position.lsns, position.began
    else:
        # What was committed before this statement is readable, so it may be committed.
        yield from session.database.commits.wait_readable()
    if session.block.begun:
        transaction = session.block.opened()
        check_lsns(session.database, stream, lsns)
        _keep(session, transaction, group, dict(lsns), began)
        session.notices.add(
            "the offsets are committed when the transaction is", hint="COMMIT makes them durable."
        )
        return
    check_commit(session.database, stream, group, dict(lsns))
    yield from _submit(session, group, dict(lsns), seeks)


def _submit(session: Context, group: Group, lsns: dict[int, int], seeks: int | None) -> Waiting[None]:
    done: Future[None] = Future()
    request = Request(group.group_id, group.name, lsns, session.user, done, seeks)
    session.database.offsets.submit(request)
    if not done.done():
        yield Wait(done)
    done.result()


def _keep(
    session: Context,
    transaction: Transaction,
    group: Group,
    lsns: dict[int, int],
    began: dict[int, int],
) -> None:
    """Note in the transaction which committed LSNs its COMMIT is to move, and from where."""
    standing = session.database.offsets.positions(group.group_id)
    read = transaction.first_reads.get(group.group_id, {})
    pending = transaction.offsets.setdefault(group.group_id, {})
    for partition, lsn in lsns.items():
        earlier = pending.get(partition)
        if earlier is not None:
            if lsn < earlier.lsn:
                raise going_back(group.name, partition, lsn, earlier.lsn)
            earlier.lsn = lsn
            continue
        expected = read.get(partition, began.get(partition))
        made_here = transaction.new_positions.get(group.group_id, {})
        found = standing[partition].lsn if partition in standing else made_here.get(partition, 0)
        if expected is None:
            if lsn == found:
                raise SerializationFailure(
                    f"partition {partition} is already committed at LSN {lsn}",
                    hint="Another transaction has committed it: read again.",
                )
            expected = found
        if lsn < expected:
            raise going_back(group.name, partition, lsn, expected)
        if lsn > expected:
            pending[partition] = PendingOffset(expected, lsn)


def committed_lsns(session: Context, stream: Stream, group: Group) -> dict[int, int]:
    """Where a read of a group begins in each partition: what this transaction commits counts."""
    positions = session.database.offsets.positions(group.group_id)
    lsns = {partition: position.lsn for partition, position in positions.items()}
    transaction = session.block.transaction
    if transaction is None:
        return lsns
    lsns.update(transaction.new_positions.get(group.group_id, {}))
    for partition, pending in transaction.offsets.get(group.group_id, {}).items():
        lsns[partition] = pending.lsn
    return lsns

"""A read of a stream as a request asks for it: its checks, its statement, and the positions around it.

The statement is built from quoted names and parameters. A `where` is one expression of what a stream's own
WHERE may contain (`engine/catalog/filters.py`), over the columns of the read: the event's, or with the
envelope `changes` the table's. As in a stream's filter, a row on which it fails with an error does not match.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from ...engine import stream_reads
from ...engine.catalog.filters import check_words, expression_nodes
from ...engine.catalog.streams import Stream
from ...engine.database import Database
from ...engine.errors import InvalidParameterValue, UndefinedObject
from ...engine.system_views.group_rows import position_of
from ...sql.language.clauses import Name, name_sql, scalar_sql
from ..conversation import Need
from ..conversation.channel import Steps
from .json_rows import RowObjects
from .positions import Position
from .requests import name_in, text_in, word_in
from .sessions import Answer, HttpSession

ENVELOPES = ("json", "changes")
PARTITIONS_MAX = 1024
# The columns with an event's LSN and partition, by envelope.
PLACES = {"json": ("lsn", "partition"), "changes": ("_lsn", "_partition")}
# The parameters of a request that describe its read.
PARAMETERS = ("group", "member", "after", "partition", "where", "envelope")


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a stream.

    Args:
        stream: its name, as given.
        group, member: the consumer group, and its member, as which it reads.
        partitions: the only partitions that are read; () for all.
        where: the predicate's text.
        envelope: `json` or `changes`.
    """

    stream: Name
    group: str | None = None
    member: str | None = None
    partitions: tuple[int, ...] = ()
    where: str | None = None
    envelope: str = "json"

    def statement(
        self, limit: int, *, after: str | None = None, wait_ms: int = 0, literals: bool = False
    ) -> tuple[str, tuple[object, ...]]:
        """The statement and the values of its parameters.

        Args:
            literals: values are literals, for a COPY of it, which takes no parameters.
        """
        values: list[object] = []

        def value(given: str | int) -> str:
            if literals:
                return scalar_sql(given)
            values.append(given)
            return f"${len(values)}"

        words = [f"SELECT * FROM STREAM {name_sql(self.stream)}"]
        if self.partitions:
            words.append(f"PARTITION ({', '.join(map(str, self.partitions))})")
        if self.group is not None:
            words.append(f"CONSUMER GROUP {value(self.group)}")
        if self.member is not None:
            words.append(f"MEMBER {value(self.member)}")
        if after is not None:
            words.append(f"AFTER {value(int(after) if after.isdecimal() else after)}")
        if self.envelope != "json":
            words.append("ENVELOPE CHANGES")
        if wait_ms:
            words.append(f"WAIT {value(f'{wait_ms} ms')}")
        if self.where is not None:
            words.append(f"WHERE TRY(({self.where})::BOOLEAN)")
        words.append(f"LIMIT {value(limit)}")
        return " ".join(words), tuple(values)


def read_of(request: web.Request, *, group: bool = True) -> Read:
    """The read that a request describes.

    Args:
        group: True if it may read as a group.

    Raises:
        DucktailError: a part of it is malformed.
    """
    stream = name_in(request.match_info["stream"], "the name of a stream")
    envelope = word_in(request, "envelope", ENVELOPES, "json")
    name, member = text_in(request, "group"), text_in(request, "member")
    if member is not None and name is None:
        raise InvalidParameterValue('parameter "member" wants "group" beside it')
    if name is not None and (not group or text_in(request, "after") is not None):
        raise InvalidParameterValue('parameters "group" and "after" exclude each other')
    return Read(stream, name, member, _partitions(request), text_in(request, "where"), envelope)


def _partitions(request: web.Request) -> tuple[int, ...]:
    text = text_in(request, "partition")
    if text is None:
        return ()
    parts = text.split(",")
    if len(parts) > PARTITIONS_MAX or not all(
        part.isascii() and part.isdecimal() and len(part) < 10 for part in parts
    ):
        raise InvalidParameterValue('parameter "partition" wants whole numbers, separated by commas')
    return tuple(dict.fromkeys(map(int, parts)))


@dataclass(frozen=True, slots=True)
class Target:
    """The stream of a read, and the form of its rows.

    Args:
        stream: the stream, if this node has it alone: None for one of other nodes.
        partitions: the number of its partitions.
        names, types: the columns of the read.
    """

    read: Read
    stream: Stream | None
    partitions: int
    names: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """True if the events arrive in LSN order over all partitions."""
        return self.stream is not None

    @property
    def chosen(self) -> Sequence[int]:
        """The partitions that are read."""
        return self.read.partitions or range(self.partitions)

    def encoder(self) -> RowObjects:
        """The encoder of its rows."""
        return RowObjects(self.names, self.types)


async def target_of(session: HttpSession, read: Read) -> Target:
    """Check a read in a session of its user: the stream, the rights, the columns, the predicate.

    Raises:
        DucktailError: the read is not possible.
    """
    plain = Read(read.stream, read.group, None, read.partitions, None, read.envelope)
    text, values = plain.statement(0)
    answer = await session.statement(text, values)
    stream = await session.steps(_found(session, read))
    if read.where is not None:
        await session.steps(_checked_where(session, read.where, read.stream, answer.names))
    if stream is not None:
        own: Stream | None = stream
        partitions = stream.partitions
        placed = stream.topic and session.session.database.cluster.placement.epoch
        if placed or session.session.database.catalog.segments.of(stream.stream_id):
            own = None
    else:
        shown = await session.statement(f"SHOW PARTITIONS ON {name_sql(read.stream)}")
        partitions, own = shown.row_count, None
    return Target(read, own, partitions, tuple(answer.names), tuple(answer.types))


def _found(session: HttpSession, read: Read) -> Steps[Stream | None]:
    """The stream of this name on this node."""
    yield Need.WORKER
    with session.session.looking():
        return session.session.names.find_stream(read.stream.parts)


def _checked_where(session: HttpSession, where: str, stream: Name, columns: Sequence[str]) -> Steps[None]:
    yield Need.WORKER
    cursor = session.session.database.cursor(utc=True)
    try:
        check_words(expression_nodes(cursor, where), columns, stream.last)
    finally:
        cursor.close()


async def end_of(session: HttpSession, target: Target) -> Position:
    """The present end of a read's stream, once it is readable: events up to there are found by a read."""
    database = session.session.database
    if target.ordered:
        lsn = await session.steps(stream_reads.end_lsn(database, None))
        return Position(lsn)
    shown = await session.statement(f"SHOW PARTITIONS ON {name_sql(target.read.stream)}")
    return Position(0, {int(row["partition"] or 0): int(row["last_lsn"] or 0) for row in shown.texts()})


def moved(position: Position, target: Target, answer: Answer, end: Position) -> Position:
    """The position after a read that began at `position`.

    Args:
        end: the stream's end before the read; the read has seen all events up to there unless it is full.
    """
    after = position.copy()
    for lsn, partition in places_of(target.read, answer):
        if target.ordered:
            after.reach(lsn)
        else:
            after.reach_in(partition, lsn)
    if not answer.truncated:
        after.reach(end.base)
        for partition, lsn in end.ahead.items():
            after.reach_in(partition, lsn)
    return after


def places_of(read: Read, answer: Answer) -> list[tuple[int, int]]:
    """LSN and partition of each row of an answer."""
    if answer.events is not None:
        return answer.events
    lsn_at, partition_at = place_columns(read, answer.names)
    return [(int(row[lsn_at] or b"0"), int(row[partition_at] or b"0")) for row in answer.rows()]


def place_columns(read: Read, names: Sequence[str]) -> tuple[int, int]:
    """The places of LSN and partition among the columns of a read."""
    lsn, partition = PLACES[read.envelope]
    return names.index(lsn), names.index(partition)


def renamed(session: HttpSession, target: Target) -> Read:
    """The read, under the present name of its stream.

    Raises:
        UndefinedObject: the stream has been dropped.
    """
    if target.stream is None:
        return target.read
    present = session.session.database.catalog.present(target.stream)
    if present is None:
        raise UndefinedObject(f'stream "{target.stream.name}" does not exist', detail="It was dropped.")
    return replace(target.read, stream=Name((present.schema, present.name)))


def partition_rows(
    database: Database, stream: Stream, chosen: Sequence[int], position: Position
) -> list[dict[str, Any]]:
    """The retained events and the number of events ahead, by partition; may query the log."""
    buffer = database.buffers.of(stream)
    rows = []
    for number in chosen:
        lsn = position.of(number)
        partition = buffer.partitions[number]
        with buffer.mutex:
            events, first, last = partition.events, partition.first_lsn, partition.last_lsn
        ahead = 0 if lsn >= last else events - position_of(database, stream, number, buffer, lsn)
        rows.append(
            {
                "partition": number,
                "read_up_to": lsn,
                "first_retained": first,
                "last_lsn": last or None,
                "events_ahead": max(0, ahead),
            }
        )
    return rows


async def partitions_after(session: HttpSession, target: Target, position: Position) -> list[dict[str, Any]]:
    """For each partition that is read: the position, the retained events, and how many are ahead."""
    if target.stream is not None:
        stream, database = target.stream, session.session.database

        def work() -> Steps[list[dict[str, Any]]]:
            yield Need.WORKER
            return partition_rows(database, stream, target.chosen, position)

        return await session.steps(work())
    read = target.read
    shown = await session.statement(f"SHOW PARTITIONS ON {name_sql(read.stream)}")
    group = "" if read.group is None else "CONSUMER GROUP $2"
    counted = await session.statement(
        f"SELECT partition, count(*) AS events FROM STREAM {name_sql(read.stream)} {group} AFTER $1 "
        "GROUP BY partition",
        (position.text(target.partitions), *(() if read.group is None else (read.group,))),
    )
    ahead = {row["partition"]: int(row["events"] or 0) for row in counted.texts()}
    found = []
    for row in shown.texts():
        number = int(row["partition"] or 0)
        if number in target.chosen:
            first, last = row["first_lsn"], row["last_lsn"]
            found.append(
                {
                    "partition": number,
                    "read_up_to": position.of(number),
                    "first_retained": None if first is None else int(first),
                    "last_lsn": None if last is None else int(last),
                    "events_ahead": ahead.get(row["partition"], 0),
                }
            )
    return found


async def read_position(session: HttpSession, target: Target) -> Position:
    """The read position of the group's last read in a session, or of its member.

    A read without a position, such as one that its member did not own a partition for, is at 0.
    """
    read = target.read
    member = "" if read.member is None else "MEMBER $2"
    shown = await session.statement(
        f"SHOW READ POSITION ON {name_sql(read.stream)} CONSUMER GROUP $1 {member}",
        (read.group, *(() if read.member is None else (read.member,))),
    )
    texts = [next(iter(row.values())) for row in shown.texts()]
    lsns = json.loads(texts[0]) if texts and texts[0] else {}
    return Position(0, {int(partition): lsn for partition, lsn in lsns.items()})

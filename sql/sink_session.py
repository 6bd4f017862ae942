"""The session in which a sink reads its stream, commits and parks.

It is a session of the sink's owner, or one with all rights for a sink without an owner, so rights are checked
with each statement as they are then. A sink is the only member of its group, unless users add their own; its
statements are those of any consumer, except that its commits carry the number of the group's SEEKs: LSNs that
were read before a SEEK are not committed after it.

All methods that may wait are generators (engine/waiting.py); one at a time.
Source: docs/sinks.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from ..engine.catalog.rights import group_item
from ..engine.catalog.sinks import Sink
from ..engine.catalog.streams import Group, Stream
from ..engine.database import Database
from ..engine.errors import UndefinedObject
from ..engine.groups.parked import NOTHING, PARKED, RELEASED, same_key
from ..engine.log.events import Event
from ..engine.quoting import ident
from ..engine.server_log import facts
from ..engine.waiting import Waiting, drive
from .language import statements as st
from .python.feed import WAIT, Reads, position_text
from .results.notices import Notice
from .session import Session
from .statements import sinks

# The member as which a sink reads its group.
MEMBER = "sink"

log = logging.getLogger("ducktail.sinks")


class SinkSession:
    """The reads, commits and parked events of one sink.

    Raises:
        UndefinedObject: the sink, its group or its stream has been dropped.
    """

    def __init__(self, database: Database, sink: Sink) -> None:
        self._database = database
        self._group_id = sink.group_id
        stream, group = self._found()
        owner = database.rights.owners.get(group_item(stream.schema, stream.name, group.name))
        self.stream_name, self.group_name = stream.name, group.name
        self._reads = Reads(
            database, stream, owner or "ducktail", f"sink {group.name}", self._tell, account=owner
        )

    def _tell(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            told = facts(sink=self.group_name, stream=self.stream_name, sqlstate=notice.sqlstate)
            log.warning("%s", notice.message, extra=told)

    def _found(self) -> tuple[Stream, Group]:
        """The stream and the group in their present state."""
        catalog = self._database.catalog
        group = next((g for g in list(catalog.groups.values()) if g.group_id == self._group_id), None)
        stream = None if group is None else catalog.stream_by_id(group.stream_id)
        if group is None or stream is None:
            raise UndefinedObject("the sink does not exist any more")
        return stream, group

    @property
    def stream(self) -> Stream:
        """The stream in its present state."""
        return self._found()[0]

    @property
    def group(self) -> Group:
        """The group in its present state."""
        return self._found()[1]

    @property
    def seeks(self) -> int:
        """The group's number of SEEKs."""
        return self._database.offsets.seeks(self._group_id)

    def committed(self) -> dict[int, int]:
        """The group's committed LSNs by partition."""
        return {number: at.lsn for number, at in self._database.offsets.positions(self._group_id).items()}

    @property
    def releases(self) -> bool:
        """True if the group has released events: a commit covers all that the last read of their partition
        returned, delivered or not."""
        return self._group_id in self._database.parked.released

    def released(self, partition: int) -> frozenset[int]:
        """The LSNs of the partition's released events, which reads return again."""
        found = (self._database.parked.get(self._group_id) or NOTHING).of(RELEASED, partition)
        return frozenset(event.lsn for event in found)

    def not_parked(self, events: Sequence[Event]) -> list[Event]:
        """The events of one partition that are neither parked nor set aside behind a parked one of their key.

        They may have been parked since they were read, by a user too.
        """
        heads = (self._database.parked.get(self._group_id) or NOTHING).of(PARKED, events[0].partition)
        if not heads:
            return list(events)
        lsns, by_key = {head.lsn for head in heads}, [head for head in heads if head.by_key]
        return [
            event
            for event in events
            if event.lsn not in lsns
            and not any(head.lsn < event.lsn and same_key(event.key, head.key) for head in by_key)
        ]

    def read(
        self, partitions: Sequence[int] | None, count: int, bytes_max: int | None
    ) -> Waiting[list[Event]]:
        """Wait for events of these partitions (None: all), and return up to `count` of them.

        Args:
            bytes_max: the approximate maximum of their bytes; None for no limit.
        """
        which = "" if partitions is None else f"PARTITION ({', '.join(map(str, partitions))}) "
        member = f"CONSUMER GROUP {ident(self.group_name)} MEMBER $1"
        return self._reads.events(
            lambda stream: f"SELECT * FROM STREAM {stream} {which}{member} WAIT '{WAIT}' LIMIT $2",
            (MEMBER, count),
            bytes_max,
        )

    def heartbeat(self) -> Waiting[list[Event]]:
        """Tell the group that the member is alive; it releases nothing."""
        member = f"CONSUMER GROUP {ident(self.group_name)} MEMBER $1"
        return self._reads.events(lambda stream: f"SELECT * FROM STREAM {stream} {member} LIMIT 0", (MEMBER,))

    def commit(self, lsns: Mapping[int, int], seeks: int) -> Waiting[None]:
        """Commit LSNs by partition, with the released events that were read there.

        Args:
            seeks: `seeks` before the events were read.

        Raises:
            SerializationFailure: the member has lost a partition.
            WrongState: SEEK has moved the group since.
        """
        session, stream = self._reads.session, self.stream
        standing = self._database.offsets.positions(self._group_id)
        moved = {p: max(lsn, standing[p].lsn) for p, lsn in lsns.items() if p in standing}
        name = st.Name((stream.schema, stream.name))
        asked = st.CommitOffsets(name, self.group_name, position_text(moved), MEMBER, seeks=seeks)
        yield from session.calls.run(lambda: session.handle(asked))

    def park(self, partition: int, lsn: int, reason: str) -> Waiting[None]:
        """Park an event that the receiver does not accept."""
        stream = self._reads.stream_sql()
        return self._reads.running(
            f"ALTER CONSUMER GROUP {ident(self.group_name)} ON {stream} PARK PARTITION $1 AT $2 REASON $3",
            (partition, lsn, reason),
        )

    def leave(self) -> Waiting[None]:
        """Leave the group, so that other members need not wait for the sink."""
        stream = self._reads.stream_sql()
        return self._reads.running(
            f"LEAVE CONSUMER GROUP {ident(self.group_name)} ON {stream} MEMBER $1", (MEMBER,)
        )

    def cancel(self) -> None:
        """End the running call; from any thread."""
        self._reads.session.cancel()

    def close(self) -> None:
        """End the session."""
        self._reads.close()


def stop_sink(database: Database, sink: Sink, reason: str) -> Waiting[None]:
    """Store that a sink has stopped, in a session with all rights: its owner may have lost his."""
    session = Session(database, application_name="sinks")
    try:
        yield from session.calls.run(lambda: sinks.stop_sink(session, sink, reason))
    finally:
        drive(session.close())

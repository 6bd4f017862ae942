"""The readers of a session, and the read position that each read moves: the session's own or a member's.

The rules of read positions are in `engine/groups/read_positions.py`. A session has its own position for reads
without MEMBER; the positions of members belong to the engine (`engine/groups/members.py`), whichever session
reads or commits. A rollback voids the reads of its transaction. Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ...engine.buffers.buffer import StreamBuffer
from ...engine.groups.member import MemberHold
from ...engine.groups.members import Members
from ...engine.groups.offsets import moved_by_seek
from ...engine.groups.read_positions import MOVED, ReadPosition, ReadPositions

Key = tuple[int, int]  # stream id, group id
# The maximum number of answers with pending reads; how much of each counts is known once its client is
# answered.
PENDING_MAX = 256
# The maximum number of members elsewhere whose latest read is known: a connection reads as few.
LATEST_MAX = 64
# The maximum number of groups and members with reads that the session has not committed; of an older one
# COMMIT in a read commits nothing, and its events come again.
UNCOMMITTED_MAX = 1024

ROLLED_BACK = "the transaction that read was rolled back"
H = TypeVar("H", "MemberHold", "MemberRead")


@dataclass(slots=True, eq=False)
class MemberRead:
    """A running read of a member over partitions of several nodes; the topic's home keeps its read position.

    Args:
        name: the member's name.
        number: the number of its hold at the home.
        epochs: partition -> the epoch under which the member owns it.
        read: the number of the read among the member's reads, rising.
        tell: sends a report to the home.
    """

    name: str
    number: int
    epochs: Mapping[int, int]
    read: int
    tell: Callable[..., None]
    over: bool = False

    def set(self, lsns: Mapping[int, int]) -> None:
        """Note that the read has returned everything up to these LSNs: the member's read position."""
        self._tell(lsns=lsns, position=True)

    def gave(self, lsns: Mapping[int, int]) -> None:
        """Note that the read has returned events up to at most these LSNs, and leaves no position."""
        self._tell(lsns=lsns)

    def void(self, reason: str) -> None:
        """Note that the read leaves no position, because of `reason`."""
        self._tell(void=reason)

    def end(self) -> None:
        """End the read; a second call does nothing."""
        if not self.over:
            self._tell(over=True)
            self.over = True

    def _tell(self, **arguments: object) -> None:
        if not self.over:
            self.tell("told", hold=self.number, **arguments)


@dataclass(frozen=True, slots=True)
class Reader:
    """One read of a group.

    Args:
        read: number of the read among the session's reads without a member.
        hold: the member's hold for it; None without MEMBER.
        committed: partition -> committed LSN at which the read begins; its keys are the scanned partitions.
        seeks: the number of SEEKs of the group before the read.
        share: the read is this node's share of a read over several nodes.
    """

    key: Key
    read: int
    hold: MemberHold | MemberRead | None
    committed: Mapping[int, int]
    seeks: int
    share: bool = False

    @property
    def member(self) -> object:
        """The member that reads."""
        return self.hold.member if isinstance(self.hold, MemberHold) else self.hold


@dataclass(frozen=True, slots=True)
class PendingRead:
    """The result of a read before it is known how much of it counts (`Positions.answering`)."""

    reader: Reader
    lsns: Mapping[int, int]
    again: Mapping[int, frozenset[int]]

    def through(self, lsn: int, buffer: StreamBuffer) -> PendingRead:
        """The part of the read up to an LSN."""
        began = self.reader.committed
        last = buffer.last_lsns_at(lsn, self.lsns)
        lsns = {p: max(began[p], min(given, last[p])) for p, given in self.lsns.items()}
        again = {p: frozenset(one for one in given if one <= lsn) for p, given in self.again.items()}
        return PendingRead(self.reader, lsns, again)


class Positions:
    """The read positions that a session moves.

    Args:
        members: the members of all groups.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._own = ReadPositions()
        # By group and member. All reads of a transaction count, or none does.
        self._of_transaction: dict[tuple[Key, str | None], Reader] = {}
        self._holds: set[MemberHold | MemberRead] = set()
        # The latest reads whose read position another node keeps.
        self._latest: dict[tuple[Key, str], MemberRead] = {}
        # Reads of the open transaction that members hold at other nodes.
        self._kept: list[MemberRead] = []
        # The groups that the open transaction moves by SEEK.
        self._moved: set[Key] = set()
        # Group and member -> partition -> last LSN that the session has read and not committed; it stays when
        # the position is voided, so that COMMIT in a read reports that.
        self._uncommitted: dict[tuple[Key, str | None], dict[int, int]] = {}
        # The same from before the reads of the open transaction, which its ROLLBACK voids.
        self._read_before: dict[tuple[Key, str | None], dict[int, int]] = {}
        # The reads of each answer, by the answer's number; and the answer that is being taken.
        self._pending_reads: dict[int, list[PendingRead]] = {}
        self._taking: int | None = None
        # The answer to another node that is being taken; and, by number, the positions that each answer has
        # set.
        self._answering = 0
        self._answered: dict[int, dict[tuple[Key, str | None], Reader]] = {}

    # Reads.

    @contextmanager
    def answering(self, number: int, *, pending: bool) -> Iterator[None]:
        """A context whose reads answer the client of another node, which may not receive them (`unanswered`).

        Args:
            number: the number of the answer.
            pending: True if reads set no position. Their results are kept under the number, because that
                node's own statement may pass on only a part.
        """
        before = self._answering, self._taking
        self._answering, self._taking = number, number if pending else None
        try:
            yield
        finally:
            self._answering, self._taking = before

    def unanswered(self, number: int) -> None:
        """Void an answer that the client did not receive completely, although this node sent all of it."""
        kept = [one.reader for one in self.pending_reads(number, last=True)]
        for reader in [*kept, *self._answered.pop(number, {}).values()]:
            self.void(reader, "the latest read failed or was cancelled")

    def pending_reads(self, number: int, *, last: bool) -> list[PendingRead]:
        """The results that were kept under a number.

        Args:
            last: forget the results afterwards.
        """
        return self._pending_reads.pop(number, []) if last else self._pending_reads.get(number, [])

    def holding(self, hold: H) -> H:
        """Note that a member's read begins; it ends with the session at the latest."""
        self._holds.add(hold)
        return hold

    def keep(self, hold: MemberRead) -> None:
        """Keep the open transaction's reads with the member until the transaction ends."""
        self._kept.append(hold)

    def reader(
        self,
        key: Key,
        hold: MemberHold | MemberRead | None,
        committed: Mapping[int, int],
        seeks: int,
        *,
        transaction: bool,
        share: bool = False,
    ) -> Reader:
        """Begin a read whose committed LSNs are known."""
        member = name_of(hold)
        earlier = self._of_transaction.get((key, member))
        number = self._own.begin() if earlier is None else earlier.read
        reader = Reader(key, number, hold, committed, seeks, share)
        if hold is not None and not isinstance(hold, MemberHold):
            while len(self._latest) >= LATEST_MAX:
                self._latest.pop(next(iter(self._latest)))
            self._latest[key, hold.name] = hold
        if transaction and (earlier is None or earlier.member is not reader.member):
            self._of_transaction[key, member] = reader
        return reader

    def set(self, reader: Reader, lsns: Mapping[int, int], again: Mapping[int, frozenset[int]]) -> None:
        """Note that a read has returned everything up to `lsns` in the partitions that it scanned.

        Args:
            again: partition -> the released events that it returned.
        """
        if self._answering and self._taking is None:
            while len(self._answered) >= PENDING_MAX and self._answering not in self._answered:
                self._answered.pop(next(iter(self._answered)))
            readers = self._answered.setdefault(self._answering, {})
            readers[reader.key, name_of(reader.hold)] = reader
        if self._taking is not None:
            while len(self._pending_reads) >= PENDING_MAX and self._taking not in self._pending_reads:
                self._pending_reads.pop(next(iter(self._pending_reads)))
            self._pending_reads.setdefault(self._taking, []).append(PendingRead(reader, lsns, again))
            return
        self._read(reader, lsns, again)
        if reader.hold is None:
            self._own.set(reader.key, reader.read, lsns, reader.committed, reader.seeks, again)
        else:
            if isinstance(reader.hold, MemberHold):
                self._members.set_position(reader.hold, lsns, reader.committed, reader.seeks, again)
            else:
                reader.hold.set(lsns)
            own = (reader.key, name_of(reader.hold))
            if own in self._of_transaction:
                # Another connection of the member may read meanwhile, and must not use this transaction's
                # position.
                self._own.set(own, reader.read, lsns, reader.committed, reader.seeks, again)

    def _read(self, reader: Reader, lsns: Mapping[int, int], again: Mapping[int, frozenset[int]]) -> None:
        """Record the LSNs beyond the committed ones that a read has returned."""
        if reader.share:
            return
        of = (reader.key, name_of(reader.hold))
        read = self._uncommitted.pop(of, {})
        if read and of in self._of_transaction:
            self._read_before.setdefault(of, dict(read))
        for partition, lsn in lsns.items():
            if lsn > reader.committed.get(partition, 0) or again.get(partition):
                read[partition] = lsn
            else:
                read.pop(partition, None)
        if read:
            while len(self._uncommitted) >= UNCOMMITTED_MAX:
                self._uncommitted.pop(next(iter(self._uncommitted)))
            self._uncommitted[of] = read

    def uncommitted(self, key: Key, member: str | None) -> Mapping[int, int]:
        """Partition -> last LSN that the session has read of a group as a member, or as none, and not
        committed."""
        return self._uncommitted.get((key, member), {})

    def has(self, reader: Reader) -> bool:
        """True if the reader's group already has a position, where this node knows it."""
        if reader.hold is None:
            return bool(self._own.lsns(reader.key, reader.seeks))
        return not isinstance(reader.hold, MemberHold) or bool(self._members.given(reader.hold))

    def void(self, reader: Reader, reason: str) -> None:
        """Note that a read leaves no position, because of `reason`."""
        if reader.hold is None:
            self._own.void(reader.key, reason, reader.read)
        else:
            if isinstance(reader.hold, MemberHold):
                self._members.void(reader.hold, reason)
            else:
                reader.hold.void(reason)
            own = (reader.key, name_of(reader.hold))
            if own in self._of_transaction:
                self._own.void(own, reason, reader.read)

    def gave(self, reader: Reader, lsns: Mapping[int, int]) -> None:
        """Note that a read that leaves no position has returned events up to at most `lsns`."""
        self._read(reader, lsns, {})
        if isinstance(reader.hold, MemberHold):
            self._members.gave(reader.hold, lsns, reader.committed)
        elif reader.hold is not None:
            reader.hold.gave(lsns)

    def ended(self, hold: MemberHold | MemberRead | None) -> None:
        """Note that a member's read has ended."""
        if isinstance(hold, MemberHold):
            self._holds.discard(hold)
            self._members.end(hold)
        elif hold is not None and hold not in self._kept:
            self._holds.discard(hold)
            hold.end()

    # The session's own.

    def get(self, key: Key, group_name: str, seeks: int) -> ReadPosition:
        """The session's own position of a group.

        Raises:
            WrongState: the group has no position; the message states why.
        """
        return self._own.get(key, group_name, seeks)

    def latest(self, key: Key, member: str) -> MemberRead | None:
        """The session's latest read as a member whose position another node keeps, if known."""
        return self._latest.get((key, member))

    def lsns(self, key: Key) -> Mapping[int, int]:
        """The last LSNs that the session's own reads of a group have returned, where known."""
        return self._own.lsns(key)

    def committed(self, key: Key, member: str | None, lsns: Mapping[int, int]) -> None:
        """Note that the session has committed these LSNs of a group; a later commit covers later reads."""
        if member is None:
            self._own.committed(key, lsns)
        read = self._uncommitted.pop((key, member), {})
        left = {partition: lsn for partition, lsn in read.items() if lsns.get(partition, -1) < lsn}
        if left:
            self._uncommitted[key, member] = left

    def set_aside(self, key: Key, lsn: int) -> None:
        """Note that the session has parked an event: earlier reads of it no longer count."""
        self._own.set_aside(key, lsn)
        for of in self._of_transaction:
            if of[0] == key:
                self._own.set_aside(of, lsn)
        self._members.set_aside(key[1], lsn)

    def released(self, key: Key, member: str | None) -> dict[int, frozenset[int]]:
        """Partition -> the released events that the latest reads of a group as a member, or as none,
        returned."""
        if member is None:
            return self._own.released(key)
        if (key, member) in self._of_transaction:
            return self._own.released((key, member))
        return self._members.released(key[1], member)

    def of_transaction(self, key: Key, member: str, group_name: str, seeks: int) -> ReadPosition | None:
        """The position of the open transaction's own reads as a member; None if it has not read.

        Raises:
            WrongState: the transaction has read, and has no position.
        """
        if (key, member) not in self._of_transaction:
            if key in self._moved:
                raise moved_by_seek(group_name)
            return None
        return self._own.get((key, member), group_name, seeks)

    def seeking(self, key: Key, *, transaction: bool) -> None:
        """Void the session's reads of a group, as any member, because it moves the group by SEEK.

        Args:
            transaction: a transaction is open, so that the group moves for it alone until the COMMIT.
        """
        self._own.void(key, MOVED)
        for one in [one for one in self._uncommitted if one[0] == key]:
            del self._uncommitted[one]
        if transaction:
            self._moved.add(key)
        for of, member in self._of_transaction:
            if of == key and member is not None:
                self._own.void((key, member), MOVED)

    def seeked(self, key: Key, seeks: int) -> None:
        """Note a SEEK in this session's transaction: reads after it count."""
        self._own.seeked(key, seeks)
        for (of, member), reader in self._of_transaction.items():
            if of == key and isinstance(reader.hold, MemberHold):
                self._members.seeked(reader.hold, self._own.partitions((key, member)), seeks)

    def transaction_ended(self, *, committed: bool) -> None:
        """End a transaction; a rollback voids its reads."""
        readers, self._of_transaction = list(self._of_transaction.values()), {}
        kept, self._kept = self._kept, []
        self._moved.clear()
        before, self._read_before = self._read_before, {}
        if not committed:
            self._uncommitted.update(
                {of: read | self._uncommitted.get(of, {}) for of, read in before.items()}
            )
        for reader in readers:
            if not committed:
                self.void(reader, ROLLED_BACK)
            if reader.hold is not None:
                self._own.forget((reader.key, name_of(reader.hold)))
        for hold in kept:
            if not committed:
                hold.void(ROLLED_BACK)
            self.ended(hold)

    def clear(self) -> None:
        """Forget the session's own positions."""
        self._pending_reads.clear()
        self._answered.clear()
        self._latest.clear()
        self._uncommitted.clear()
        self._read_before.clear()
        self._own.clear()
        self._of_transaction.clear()
        self._moved.clear()

    def close(self) -> None:
        """End the session, and with it all reads that are still open."""
        self._kept.clear()
        for hold in list(self._holds):
            self.ended(hold)


def name_of(hold: MemberHold | MemberRead | None) -> str | None:
    """The name of the member that reads; None without a member."""
    return hold.member.name if isinstance(hold, MemberHold) else None if hold is None else hold.name

"""Read positions: what the latest read of a stream by a group has given in this session.

COMMIT OFFSETS without AT commits it. It is set when a read's answer is complete, voided by an error,
a cancel and the ROLLBACK of the transaction that read, and says per partition the last LSN that was
given and the committed LSN from which the read began. Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.errors import WrongState

Key = tuple[int, int]  # stream id, group id


@dataclass(slots=True)
class ReadPosition:
    """Where reads of one group stand.

    Args:
        lsns: partition -> last LSN given.
        began: partition -> committed LSN from which that read began.
        reason: why there is none, for the error; "" while there is one.
    """

    lsns: dict[int, int] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    reason: str = ""


class ReadPositions:
    """The read positions of a session."""

    def __init__(self) -> None:
        self._positions: dict[Key, ReadPosition] = {}
        self._of_transaction: set[Key] = set()

    def set(self, key: Key, lsns: dict[int, int], began: dict[int, int], *, transaction: bool) -> None:
        """A read has given everything up to `lsns` in the partitions that it scanned."""
        position = self._positions.get(key)
        if position is None or position.reason:
            position = self._positions[key] = ReadPosition()
        position.lsns.update(lsns)
        position.began.update(began)
        if transaction:
            self._of_transaction.add(key)

    def void(self, key: Key, reason: str) -> None:
        """There is none now, because of `reason`."""
        self._positions[key] = ReadPosition(reason=reason)

    def get(self, key: Key, group_name: str) -> ReadPosition:
        """The position of a group.

        Raises:
            WrongState: 55000, there is none, and why.
        """
        position = self._positions.get(key)
        if position is None or position.reason or not position.lsns:
            reason = position.reason if position and position.reason else "nothing has been read yet"
            raise WrongState(
                f'consumer group "{group_name}" has no read position in this session: {reason}',
                hint="Read with CONSUMER GROUP first, or give the positions: COMMIT OFFSETS AT '{...}'.",
            )
        return position

    def peek(self, key: Key) -> ReadPosition | None:
        """The position of a group, if there is one."""
        position = self._positions.get(key)
        return None if position is None or position.reason else position

    def transaction_ended(self, *, committed: bool) -> None:
        """Reads of a transaction that was rolled back have given nothing."""
        if not committed:
            for key in self._of_transaction:
                self.void(key, "the transaction that read was rolled back")
        self._of_transaction.clear()

    def clear(self) -> None:
        """Forget them all."""
        self._positions.clear()
        self._of_transaction.clear()

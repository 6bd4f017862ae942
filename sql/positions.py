"""Read positions: what the latest read of a stream by a group has given in this session.

COMMIT OFFSETS without AT commits it. It is set when a read's answer is complete, voided by an error,
a cancel and the ROLLBACK of the transaction that read, and says per partition the last LSN that was
given and the committed LSN from which the read began. Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.errors import WrongState
from ..engine.offsets import moved_by_seek

Key = tuple[int, int]  # stream id, group id


@dataclass(slots=True)
class ReadPosition:
    """Where reads of one group stand.

    Args:
        lsns: partition -> last LSN given.
        began: partition -> committed LSN from which that read began.
        seeks: how often SEEK had moved the group then.
        reason: why there is none, for the error; "" while there is one.
    """

    lsns: dict[int, int] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    seeks: int = 0
    reason: str = ""


class ReadPositions:
    """The read positions of a session."""

    def __init__(self) -> None:
        self._positions: dict[Key, ReadPosition] = {}
        self._of_transaction: set[Key] = set()

    def set(
        self, key: Key, lsns: dict[int, int], began: dict[int, int], seeks: int, *, transaction: bool
    ) -> None:
        """A read has given everything up to `lsns` in the partitions that it scanned."""
        position = self._positions.get(key)
        if position is None or position.reason or position.seeks != seeks:
            position = self._positions[key] = ReadPosition(seeks=seeks)
        position.lsns.update(lsns)
        position.began.update(began)
        if transaction:
            self._of_transaction.add(key)

    def void(self, key: Key, reason: str) -> None:
        """There is none now, because of `reason`."""
        self._positions[key] = ReadPosition(reason=reason)

    def get(self, key: Key, group_name: str, seeks: int) -> ReadPosition:
        """The position of a group.

        Args:
            seeks: how often SEEK has moved the group; what was read before the last one is void.

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
        if position.seeks != seeks:
            raise moved_by_seek(group_name)
        return position

    def seeked(self, key: Key, seeks: int) -> None:
        """SEEK has moved the group in this session's transaction: what was read after it stands."""
        position = self._positions.get(key)
        if position is not None:
            position.seeks = seeks

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

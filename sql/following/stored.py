"""How far a consumer without a group is: its checkpoints, among the others that the database keeps.

They are of the stream by its number, so that a stream which is made again under an old name begins anew,
and a new name changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...engine.checkpoints.backend import Backend
from ...engine.checkpoints.positions import PartitionLsns
from ...engine.checkpoints.state import Checkpoint, CheckpointState
from ...engine.clock import Clock

NS_A_US = 1000


@dataclass(slots=True)
class ConsumerStore:
    """The checkpoints of one consumer of a stream; for one thread at a time.

    Raises:
        InvalidParameterValue: 22023, the consumer's name cannot be a key.
    """

    backend: Backend
    clock: Clock
    consumer_id: str
    latest: CheckpointState | None = field(init=False)

    def __post_init__(self) -> None:
        self.latest = self.backend.latest(self.consumer_id)

    def save(
        self, position: Mapping[int, int], event_count: int, watermark_us: int, *, rewind: bool = False
    ) -> None:
        """Store a position durably; it goes back only where that is asked for."""
        now_us = self.clock.now_us()
        state = CheckpointState(
            self.consumer_id,
            0 if self.latest is None else self.latest.sequence + 1,
            now_us,
            watermark_ns=watermark_us * NS_A_US if watermark_us else None,
            event_count=event_count,
            checkpoint=Checkpoint("ducktail", PartitionLsns(dict(position)), now_us),
        )
        self.backend.save(state, rewind=rewind)
        self.latest = state

    def clear(self) -> None:
        """Take all away."""
        self.backend.clear(self.consumer_id)
        self.latest = None


def position_of(state: CheckpointState) -> dict[int, int]:
    """The position that a consumer's checkpoint says."""
    assert state.checkpoint is not None and isinstance(state.checkpoint.position, PartitionLsns)
    return dict(state.checkpoint.position.lsns)

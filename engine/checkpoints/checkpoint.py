"""A checkpoint: how far a source was read, when, and in which of its transactions.

Source: docs/design/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InvalidParameterValue, ProgramLimitExceeded
from .binlog import BinlogPosition
from .bounds import NAME_BYTES_MAX, TIME_US_MAX, check_number, check_text, metadata_of
from .gtid import MariadbGtids, MysqlGtids
from .kinds import CustomPosition
from .lsn import PartitionLsns, PostgresLsn
from .position import POSITION_CHARS_MAX, Position

# Source type -> the types of position that it has.
SOURCES: dict[str, tuple[type[Position], ...]] = {
    "ducktail": (PartitionLsns,),
    "postgresql": (PostgresLsn,),
    "mysql": (BinlogPosition, MysqlGtids),
    "mariadb": (BinlogPosition, MariadbGtids),
    "custom": (CustomPosition,),
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """See the head of the file. Ordered by `position` where its type has an order.

    Args:
        source_type: 'ducktail', 'postgresql', 'mysql', 'mariadb' or 'custom'.
        position: everything up to it, inclusive, has been processed.
        at_us: when that was so, microseconds since 1970.
        transaction_id: the source's own name of the transaction that ends there, or None.

    Raises:
        InvalidParameterValue: 22023, another source type, or one that has no such positions.
        ProgramLimitExceeded: 54000, the position's text is longer than what is read back.
    """

    source_type: str
    position: Position
    at_us: int
    transaction_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.source_type not in SOURCES:
            raise InvalidParameterValue(
                f'there are no sources of type "{self.source_type}"',
                hint=f"The types are {', '.join(SOURCES)}.",
            )
        if type(self.position) not in SOURCES[self.source_type]:
            kinds = " or ".join(kind.kind for kind in SOURCES[self.source_type])
            raise InvalidParameterValue(
                f'a source of type "{self.source_type}" has no positions of type "{self.position.kind}"',
                hint=f"Its positions are of type {kinds}.",
            )
        if len(str(self.position)) > POSITION_CHARS_MAX:
            raise ProgramLimitExceeded(
                f"the text of a checkpoint's position is longer than {POSITION_CHARS_MAX} characters"
            )
        check_number("the time", self.at_us, TIME_US_MAX)
        if self.transaction_id is not None:
            check_text("the transaction id", self.transaction_id, NAME_BYTES_MAX)
        object.__setattr__(self, "metadata", metadata_of(self.metadata))

    def age_us(self, now_us: int) -> int:
        """How old it is, microseconds; 0 where the clock has gone back behind it."""
        return max(0, now_us - self.at_us)

    def compare(self, other: Checkpoint) -> int | None:
        """The order of the positions, see `Position`; None also for two types of source or position."""
        same = self.source_type == other.source_type and type(self.position) is type(other.position)
        return self.position.compare(other.position) if same else None

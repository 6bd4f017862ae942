"""What a place where checkpoints are kept can do, and the rules that all of them follow.

- The newest `keep` of each stream are kept, by sequence.
- A sequence that is saved again replaces what was there.
- A position never goes back unasked: a new sequence below the newest, and a state whose position or
  offsets are behind those of the newest (or of what it replaces), are refused. Who asks for it
  (`rewind=True`) goes back: what has a higher sequence is gone then.
- What cannot be read is told to `report`, and passed over by `latest` and `all`; `load` of it is an error.
  It takes a place among the newest `keep` as any other.

Source: docs/design/checkpoints.md, "Backends".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import DataCorrupted, InvalidParameterValue
from .state import CheckpointState

logger = logging.getLogger(__name__)

# Several, so that damage to the newest costs one interval and not the job.
KEEP = 10
KEEP_MAX = 10_000

Report = Callable[[DataCorrupted], None]


class Backend(Protocol):
    """See the head of the file. Safe to use from several threads.

    All raise InvalidParameterValue (22023) for a key that `check_key` refuses, and IoError (58030) where
    the place itself fails.
    """

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Keep a state; it is durable once this returns, where the backend is.

        Raises:
            InvalidParameterValue: 22023, it would go back and `rewind` is not said.
        """

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state; None where there is none.

        Raises:
            DataCorrupted: XX001, it is damaged.
        """

    def latest(self, stream: str) -> CheckpointState | None:
        """The newest that is intact; None without any.

        Raises:
            SerializationFailure: 40001, savers let go of all that is listed, a thousand times over.
        """

    def list(self, stream: str) -> Sequence[int]:
        """The sequences that are there, lowest first, damaged ones among them."""

    def all(self, stream: str) -> Sequence[CheckpointState]:
        """All that are intact, lowest sequence first.

        Raises:
            SerializationFailure: 40001, as of `latest`.
        """

    def streams(self) -> Sequence[str]:
        """The keys of which there are checkpoints, in order."""

    def count(self, stream: str | None = None) -> int:
        """How many there are, of one stream or of all."""

    def delete(self, stream: str, sequence: int) -> bool:
        """Take one away; False where it was not there."""

    def delete_before(self, stream: str, sequence: int) -> int:
        """Take away those with a lower sequence; how many they were."""

    def clear(self, stream: str) -> int:
        """Take away all of a stream, so that it begins anew; how many they were."""


def report_to_log(damage: DataCorrupted) -> None:
    """Where damage is reported unless somebody else asks for it."""
    logger.error("%s: %s", damage.message, damage.detail)


def check_keep(keep: int) -> int:
    """How many a backend keeps of each stream.

    Raises:
        InvalidParameterValue: 22023.
    """
    if not 1 <= keep <= KEEP_MAX:
        raise InvalidParameterValue(f"a checkpoint backend keeps 1 to {KEEP_MAX} of each stream, not {keep}")
    return keep


def check_forward(
    state: CheckpointState,
    stored: Sequence[int],
    newest: CheckpointState | None,
    present: CheckpointState | None,
) -> None:
    """Refuse a state that would go back.

    Args:
        stored: the sequences that are there, damaged ones among them.
        newest: what is intact and has the highest sequence.
        present: what is intact and has the state's own sequence.

    Raises:
        InvalidParameterValue: 22023.
    """
    if stored and state.sequence < max(stored) and state.sequence not in stored:
        raise _back(state, f"Sequence {max(stored)} is there.")
    earlier = present or newest
    wrong = None if earlier is None else state.behind(earlier)
    if wrong is not None:
        raise _back(state, wrong)


def _back(state: CheckpointState, wrong: str) -> InvalidParameterValue:
    return InvalidParameterValue(
        f'checkpoint {state.sequence} of "{state.stream}" would go back',
        detail=wrong,
        hint="A checkpoint goes back only where that is asked for: rewind=True.",
    )

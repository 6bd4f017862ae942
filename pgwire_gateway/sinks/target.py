"""The interface of a receiver to the runner of a sink: one implementation for each kind.

The runner knows lanes, attempts, parking and commits; a target knows how events are sent, and what the
receiver's answer means for the events. Source: docs/design/pgwire_gateway.md, "Sinks".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...engine.catalog.sinks import Sink
from ...engine.catalog.streams import Stream
from ...engine.log.events import Event


class StopSink(Exception):
    """The sink must not continue before a user has looked at it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a request.

    Args:
        status: the receiver's status; None without an answer.
        detail: the beginning of its answer, or the error.
        accepted: the receiver has the events.
        refused: another attempt would have the same answer.
        reached: the request was sent. Otherwise the receiver has not seen the events.
        retry_after_s: the pause that the receiver asks for, in seconds; None without one.
        reason: the answer in words, for a parked event; None is the detail.
        kept: LSNs of a request that was not accepted as a whole which the receiver has nevertheless.
    """

    status: int | None
    detail: str
    accepted: bool = False
    refused: bool = False
    reached: bool = True
    retry_after_s: float | None = None
    reason: str | None = None
    kept: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert not (self.accepted and self.refused)


@dataclass(frozen=True, slots=True)
class Moment:
    """The circumstances of a request.

    Args:
        now_us: the time, microseconds since 1970.
        committed_lsn: the group's committed LSN in the partition of the events.
        begins: they are the first of those that were read together.
        released: LSNs of the partition's released events.
        seeks: the group's number of SEEKs when they were read.
    """

    now_us: int
    committed_lsn: int
    begins: bool
    released: frozenset[int]
    seeks: int


class Target(Protocol):
    """The connections to the receiver of one sink, in a running event loop."""

    # True if the receiver keeps positions: what is cancelled may have arrived, and `open` finds out.
    keeps_positions: bool

    def fits(self, sink: Sink) -> bool:
        """True if its connections are those of the sink's present definition."""

    async def open(self, committed: Mapping[int, int], seeks: int) -> Mapping[int, int]:
        """Connect to a receiver that keeps positions, and return them.

        Args:
            committed: the group's committed LSNs by partition.
            seeks: the group's number of SEEKs: a receiver's position from before one is out of date.

        Returns:
            The LSN by partition up to which the receiver has the events, where it is not the committed one.

        Raises:
            DucktailError: it cannot; the runner begins again later.
        """

    async def deliver(self, sink: Sink, stream: Stream, events: Sequence[Event], at: Moment) -> Answer:
        """Send events of one partition in their order, and return the receiver's answer, or the failure.

        Raises:
            StopSink: no event can be delivered before a user has looked at it.
        """

    async def close(self) -> None:
        """Close the connections within a bounded time."""

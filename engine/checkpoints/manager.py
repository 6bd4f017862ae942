"""The checkpoint manager: takes checkpoints of jobs by number of events or by time, and recovers from them.

A job reports each event, or batch, that it has processed; if a checkpoint is due, the state returned by
`snapshot()` is saved before the call returns. Each stream has its own counters and its own lock: a save of
one does not delay the others. There is no thread: a stream without events takes no checkpoints.

Source: docs/design/checkpoints.md, "The manager".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..clock import Clock
from ..errors import InvalidParameterValue, ProgramLimitExceeded
from .backend import Backend
from .positions import is_whole
from .state import INT64_MAX, Checkpoint, CheckpointState, check_key

EVERY_EVENTS = 1000
EVERY_MS = 10_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a job between two events; its fields are those of `CheckpointState`."""

    operator_states: Mapping[str, bytes] = field(default_factory=dict)
    source_offsets: Mapping[str, int] = field(default_factory=dict)
    watermark_ns: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None


@dataclass(slots=True)
class _Job:
    """A stream's counters, guarded by its lock."""

    begun_s: float
    mutex: threading.Lock = field(default_factory=threading.Lock)
    sequence: int | None = None  # of the last checkpoint; None until known
    events: int = 0
    pending: int = 0  # events since that checkpoint
    taken: int = 0


class CheckpointManager:
    """Takes and restores checkpoints. Safe to use from several threads.

    Args:
        backend: the store of checkpoints.
        snapshot: returns a stream's state; called on the thread that reported the event.
        every_events: number of events of a stream after which a checkpoint is due; None: not by events.
        every_ms: time since the last checkpoint after which one is due, if there are new events. It is
            checked at each event, and by `processed(stream, 0)`. None: not by time.

    Raises:
        InvalidParameterValue: neither bound is given, or one is below 1.
    """

    def __init__(
        self,
        backend: Backend,
        snapshot: Callable[[str], Snapshot],
        clock: Clock,
        *,
        every_events: int | None = EVERY_EVENTS,
        every_ms: int | None = EVERY_MS,
    ) -> None:
        if every_events is None and every_ms is None:
            raise InvalidParameterValue("a checkpoint manager wants a number of events, or of milliseconds")
        for what, bound in (("events", every_events), ("milliseconds", every_ms)):
            if bound is not None and bound < 1:
                raise InvalidParameterValue(f"checkpoints every {bound} {what} are too many")
        self._backend = backend
        self._snapshot = snapshot
        self._clock = clock
        self._every_events = every_events
        self._every_ms = every_ms
        self._mutex = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    def processed(self, stream: str, events: int = 1) -> CheckpointState | None:
        """Report processed events; returns the checkpoint that was due, if any.

        Raises:
            InvalidParameterValue: the key is invalid, the number is negative, or the state would go back.
            IoError: the checkpoint could not be saved, and is due again with the next event.
        """
        if not is_whole(events, 0, INT64_MAX):
            raise InvalidParameterValue(f'"{stream}" cannot have processed {events!r} events')
        job = self._job(stream)
        with job.mutex:
            self._know(stream, job)
            job.events += events
            job.pending += events
            return self._take(stream, job) if self._is_due(job) else None

    def take(self, stream: str) -> CheckpointState:
        """Take a checkpoint now, for example at a job's end.

        Raises:
            InvalidParameterValue: the state is refused.
            IoError: the state could not be saved.
        """
        job = self._job(stream)
        with job.mutex:
            self._know(stream, job)
            return self._take(stream, job)

    def recover(self, stream: str) -> CheckpointState | None:
        """The newest intact state, from which the job continues; None to begin anew.

        Damaged states are reported by the backend and skipped. Counters continue from the state.
        """
        job = self._job(stream)
        with job.mutex:
            return self._recover(stream, job)

    def taken(self, stream: str | None = None) -> int:
        """The number of snapshots that this manager has taken, of one stream or of all."""
        with self._mutex:
            if stream is None:
                return sum(job.taken for job in self._jobs.values())
            return self._jobs[stream].taken if stream in self._jobs else 0

    def pending(self, stream: str) -> int:
        """The number of a stream's events since its last checkpoint, which a crash would repeat."""
        with self._mutex:
            return self._jobs[stream].pending if stream in self._jobs else 0

    def _job(self, stream: str) -> _Job:
        check_key(stream)
        with self._mutex:
            if stream not in self._jobs:
                self._jobs[stream] = _Job(self._clock.monotonic_s())
            return self._jobs[stream]

    def _know(self, stream: str, job: _Job) -> None:
        """Load sequence and counts before the first checkpoint of a job that did not recover."""
        if job.sequence is None:
            self._recover(stream, job)

    def _recover(self, stream: str, job: _Job) -> CheckpointState | None:
        state = self._backend.latest(stream)
        job.sequence = max(self._backend.list(stream), default=-1)
        job.events = 0 if state is None else state.event_count
        job.pending = 0
        job.begun_s = self._clock.monotonic_s()
        return state

    def _is_due(self, job: _Job) -> bool:
        if self._every_events is not None and job.pending >= self._every_events:
            return True
        return (
            self._every_ms is not None
            and job.pending > 0
            and (self._clock.monotonic_s() - job.begun_s) * 1000 >= self._every_ms
        )

    def _take(self, stream: str, job: _Job) -> CheckpointState:
        found = self._snapshot(stream)
        assert job.sequence is not None, "it is known before one is taken"
        if job.sequence == INT64_MAX:
            raise ProgramLimitExceeded(
                f'the checkpoints of "{stream}" have come to their last number',
                hint="Clear them, and save the newest state under a lower number.",
            )
        state = CheckpointState(
            stream,
            job.sequence + 1,
            self._clock.now_us(),
            found.operator_states,
            found.source_offsets,
            found.watermark_ns,
            job.events,
            found.metadata,
            found.checkpoint,
        )
        self._backend.save(state)
        job.sequence, job.pending = state.sequence, 0
        job.begun_s = self._clock.monotonic_s()
        job.taken += 1
        return state

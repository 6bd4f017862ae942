"""The activity of sinks: recent deliveries and counts, in memory, since the opening of the database.

The runners of a server write it, the system views and metrics read it. It also reports changes of the
definitions to the runners. Source: docs/sinks.md, "Deliveries".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from secrets import token_hex

# The number of a sink's deliveries that are kept: a page of them to look at.
DELIVERIES_MAX = 200
# Characters of an answer or an error that are kept with a delivery.
DETAIL_CHARS_MAX = 1024

# Outcomes of a request.
DELIVERED, RETRIED, NARROWED, PARKED, STOPS = "delivered", "retried", "narrowed", "parked", "stopped"
OUTCOMES = (DELIVERED, RETRIED, NARROWED, PARKED, STOPS)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request of a sink, with its end.

    Args:
        delivery_id: the idempotency key that the receiver was given.
        attempt: the number of the attempt, from 1.
        outcome: one of OUTCOMES.
        status: the status of the answer; None without one.
        detail: the beginning of the answer's body, or the error; None for a delivered one.
        started_us: microseconds since 1970.
    """

    partition: int
    first_lsn: int
    last_lsn: int
    events: int
    delivery_id: str
    attempt: int
    outcome: str
    status: int | None
    detail: str | None
    started_us: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one sink.

    Args:
        requests: outcome -> number of requests.
        delivered_events: number of events of delivered requests, each as often as it was delivered.
        parked_events: number of events that the sink has parked.
        in_flight: number of requests that are under way.
        fault: the error that keeps the sink from delivering now; None without one.
        fault_us, delivered_us: times of the fault, and of the last delivery; 0 without one.
    """

    requests: dict[str, int] = field(default_factory=dict)
    delivered_events: int = 0
    parked_events: int = 0
    in_flight: int = 0
    fault: str | None = None
    fault_us: int = 0
    delivered_us: int = 0


@dataclass(slots=True)
class _OfSink:
    deliveries: deque[Delivery] = field(default_factory=lambda: deque(maxlen=DELIVERIES_MAX))
    counts: Counts = field(default_factory=Counts)


class SinkActivity:
    """The activity of all sinks by the numbers of their groups; for any thread.

    Attributes:
        on_change: called after each change of a definition, on any thread; a server sets it.
        opening: identifies this opening of the database for receivers that keep positions.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.opening = token_hex(8)
        self._mutex = threading.Lock()
        self._sinks: dict[int, _OfSink] = {}

    def changed(self) -> None:
        """Report that a sink was created, changed or dropped."""
        self.on_change()

    def forget(self, group_ids: Iterable[int]) -> None:
        """Forget dropped sinks."""
        with self._mutex:
            for group_id in group_ids:
                self._sinks.pop(group_id, None)

    def began(self, group_id: int) -> None:
        """Count a request that is sent."""
        self._count(group_id, lambda counts: replace(counts, in_flight=counts.in_flight + 1))

    def ended(self, group_id: int, delivery: Delivery) -> None:
        """Record the end of a request."""
        done = delivery.outcome == DELIVERED

        def count(counts: Counts) -> Counts:
            requests = {**counts.requests}
            requests[delivery.outcome] = requests.get(delivery.outcome, 0) + 1
            return replace(
                counts,
                requests=requests,
                in_flight=max(0, counts.in_flight - 1),
                delivered_events=counts.delivered_events + (delivery.events if done else 0),
                parked_events=counts.parked_events + (delivery.events if delivery.outcome == PARKED else 0),
                delivered_us=delivery.started_us if done else counts.delivered_us,
                fault=None if done else counts.fault,
                fault_us=0 if done else counts.fault_us,
            )

        self._count(group_id, count)
        with self._mutex:
            self._sinks.setdefault(group_id, _OfSink()).deliveries.append(delivery)

    def given_up(self, group_id: int) -> None:
        """Count a request that was cancelled, with an unknown end."""
        self._count(group_id, lambda counts: replace(counts, in_flight=max(0, counts.in_flight - 1)))

    def failed(self, group_id: int, fault: str | None, at_us: int) -> None:
        """Record the error that keeps a sink from delivering; None once there is none."""
        told = None if fault is None else fault[:DETAIL_CHARS_MAX]
        self._count(group_id, lambda counts: replace(counts, fault=told, fault_us=at_us if told else 0))

    def _count(self, group_id: int, change: Callable[[Counts], Counts]) -> None:
        with self._mutex:
            found = self._sinks.setdefault(group_id, _OfSink())
            found.counts = change(found.counts)

    def counts(self, group_id: int) -> Counts:
        """The counts of a sink."""
        with self._mutex:
            found = self._sinks.get(group_id)
            return Counts() if found is None else found.counts

    def deliveries(self, group_id: int) -> list[Delivery]:
        """The recent deliveries of a sink, the oldest first."""
        with self._mutex:
            found = self._sinks.get(group_id)
            return [] if found is None else list(found.deliveries)

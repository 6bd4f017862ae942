"""The runner of one sink: reads its group, delivers by partition, commits.

It keeps these rules:

- Events of a partition are sent one request after the other, in their order; partitions do not wait for each
  other. At most `max_in_flight` requests are under way.
- An LSN is committed once the receiver has accepted, or the group has parked, all events up to it that were
  read. A crash in between repeats deliveries, under the same ids.
- A partition is read again once its earlier events are committed. So what a read returns of it is new, and a
  commit by LSN covers no released event that is not delivered: while the group has released events, a read is
  taken as a whole, and its events are committed together.
- The events that are read and not delivered are bounded by `EVENTS_MAX` and `BYTES_MAX`.
- Errors that need a user stop the sink, and the stop is stored; after all others it begins again, from the
  group's committed LSNs.

The session is used by the runner's own task alone: the tasks of partitions (`_Lane`) ask it to park and to
commit. Source: docs/design/pgwire_gateway.md, "Sinks"; docs/sinks.md, "Attempts".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

from ...engine.catalog.sinks import KAFKA, KINDS, RABBITMQ, WEBHOOK, Sink
from ...engine.database import Database
from ...engine.errors import (
    DucktailError,
    Gap,
    NotSupported,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ...engine.groups.sink_activity import (
    DELIVERED,
    DETAIL_CHARS_MAX,
    NARROWED,
    PARKED,
    RETRIED,
    STOPS,
    Delivery,
)
from ...engine.log.events import Event
from ...engine.networks import networks_of
from ...engine.server_log import facts
from ...sql.python.feed import ReleasedReads
from ...sql.sink_session import SinkSession, stop_sink
from .driver import WorkDriver
from .payloads import delivery_id
from .target import Answer, Moment, StopSink, Target

# Events that are read and not delivered yet, and their bytes: some tens of megabytes as Python values.
EVENTS_MAX, BYTES_MAX = 10_000, 16 << 20
# Bytes of events in a request, which receivers bound as well; one event may have more.
REQUEST_BYTES_MAX = 1 << 20
# Characters of a reason of a parked event (engine/definitions/parking.py has the bound).
REASON_CHARS_MAX = 1000
# The time for requests under way to end before a pause or a shutdown; they are repeated otherwise.
GRACE_S = 5.0
# The pauses before a runner begins again after an error of the database.
AGAIN_S = (0.1, 30.0)
# The time after which a task that still works is cancelled once more.
CANCEL_S = 0.1
# The pause before events are read again that a change of the group has overtaken.
RESTART_S = 0.02
# Commits and reads that a change of the group has overtaken: the events are read again.
_OVERTAKEN = (SerializationFailure, WrongState)

log = logging.getLogger("ducktail.sinks")


class Restart(Exception):
    """The events that were read are no longer the group's next ones."""


class Ending(Exception):
    """The runner ends."""


@dataclass(slots=True)
class _Lane:
    """The events of one partition that were read and are not committed."""

    task: asyncio.Task[None]
    left: int
    left_bytes: int
    began: bool = False


@dataclass(slots=True)
class _ParkRequest:
    event: Event
    reason: str
    done: asyncio.Future[None] = field(repr=False)


class SinkRunner:
    """Delivers the events of one sink, until `stop`.

    Args:
        sink: its definition; `redefine` replaces it.
        loop: the running event loop.
        workers: the threads on which the session's work runs.
    """

    def __init__(
        self, database: Database, sink: Sink, loop: asyncio.AbstractEventLoop, workers: Executor
    ) -> None:
        self._database = database
        self._sink = sink
        self._loop = loop
        self._driver = WorkDriver(loop, workers)
        self._activity = database.sink_activity
        self._target: Target | None = None
        self._session: SinkSession | None = None
        self._ending = False
        self._attention = asyncio.Event()  # the runner's task has something to do
        self._changed = asyncio.Event()  # replaced at each change of the definition, and at the end
        self._lanes: dict[int, _Lane] = {}
        self._progress: dict[int, int] = {}  # partition -> LSN to commit
        self._parks: deque[_ParkRequest] = deque()
        self._seeks = 0
        self._flying = 0
        self._released_reads = ReleasedReads()
        self._full = False  # there is no room for another lane
        self._waiting = 0  # lanes between two attempts, which keep no other partition from being read
        self._landed = asyncio.Event()  # a request has ended
        self._quiet_until_s = 0.0  # a receiver has asked for a pause until then

    # The supervisor.

    def redefine(self, sink: Sink) -> None:
        """Use another definition from the next request on; waits before an attempt end.

        So does an ALTER SINK that changes no value: each one makes a definition.
        """
        if sink is not self._sink:
            self._sink = sink
            self._quiet_until_s = 0.0
            self._turn()

    def stop(self) -> None:
        """Send no further request; `work` returns once those under way have ended, or `GRACE_S` is over."""
        if not self._ending:
            self._ending = True
            self._turn()

    def cancel(self) -> None:
        """End the session's running call."""
        if self._session is not None:
            self._session.cancel()

    def _turn(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._landed.set()
        self._attention.set()

    async def work(self) -> None:
        """Deliver until `stop`, or until the sink has stopped itself."""
        failures = 0
        while not self._ending:
            try:
                began_s = self._loop.time()
                await self._serve()
            except (StopSink, DucktailError) as error:
                if self._database.catalog.sinks.get(self._sink.group_id) is None:
                    return
                told = error.message if isinstance(error, DucktailError) else str(error)
                if isinstance(error, UndefinedObject):
                    told += ", or the owner of the sink has lost a right"
                if _needs_user(error) and await self._stopped(told):
                    return
                lasted = self._loop.time() - began_s > AGAIN_S[1]
                failures = self._failed(told, 0 if lasted else failures)
            except Exception as error:
                log.exception("unexpected error in a sink")
                failures = self._failed(f"{type(error).__name__} (see the log)", failures)
            if not self._ending:
                await self._pause(min(AGAIN_S[1], AGAIN_S[0] * 2**failures))

    def _failed(self, fault: str, failures: int) -> int:
        self._activity.failed(self._sink.group_id, fault, self._database.clock.now_us())
        return min(failures + 1, 10)

    async def _stopped(self, reason: str) -> bool:
        """Store that the sink has stopped; False if that failed."""
        sink = self._sink
        try:
            await self._driver.drive(stop_sink(self._database, sink, reason))
        except DucktailError as error:
            log.warning("a sink cannot be stopped: %s", error.message, extra=facts(sink=sink.uid))
            return False
        if sink.group_id not in self._database.catalog.sinks:
            return True  # It was just being dropped.
        log.warning("a sink has stopped", extra=facts(sink=sink.uid, reason=reason))
        return True

    # The runner's own task.

    async def _serve(self) -> None:
        """Deliver in one session."""
        self._session = session = await self._driver.call(lambda: SinkSession(self._database, self._sink))
        try:
            self._activity.failed(self._sink.group_id, None, 0)
            while not self._ending:
                try:
                    await self._connect(session)
                    await self._turns(session)
                except Restart:
                    await self._drop_lanes()
                    if self._target is not None and self._target.keeps_positions:
                        await self._disconnect()
                    await self._pause(RESTART_S)
            await self._end_lanes(session)
        finally:
            await self._drop_lanes()
            await self._disconnect()
            if self._ending:
                with suppress(DucktailError):  # It has been dropped, or its owner has lost the right.
                    await self._driver.drive(session.leave())
            await self._driver.call(session.close)
            self._session = None

    async def _connect(self, session: SinkSession) -> None:
        """Make the connections to the receiver, and commit the LSNs up to which it has the events."""
        if self._target is not None and self._target.fits(self._sink):
            return
        await self._disconnect()
        self._target = _make_target(self._database, self._sink, self._loop)
        self._seeks = session.seeks
        positions = await self._target.open(session.committed(), self._seeks)
        if positions:
            await self._driver.drive(session.heartbeat())
            self._progress.update(positions)
            await self._commit(session)

    async def _disconnect(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            await target.close()

    async def _turns(self, session: SinkSession) -> None:
        while not self._ending:
            self._attention.clear()
            # Looked up once: a SEEK from here on makes the events void that are read below.
            seeks = session.seeks
            if self._lanes and seeks != self._seeks:
                raise Restart
            if self._target is None or not self._target.fits(self._sink):
                raise Restart
            await self._park(session)
            await self._commit(session)
            self._reap()
            partitions = session.stream.partitions
            free = [number for number in range(partitions) if number not in self._lanes]
            room = EVENTS_MAX - sum(lane.left for lane in self._lanes.values())
            room_bytes = BYTES_MAX - sum(lane.left_bytes for lane in self._lanes.values())
            more = self._sink.integer("max_in_flight") - (len(self._lanes) - self._waiting)
            if self._attention.is_set():
                continue
            self._full = not free or more <= 0 or room <= 0 or room_bytes <= 0
            if self._full:
                await self._rest(session)
                continue
            count = min(room, self._sink.integer("batch") * more)
            releases = session.releases
            if releases:
                count = self._released_reads.count(count)
            else:
                self._released_reads.ended()
            bytes_max = None if releases else room_bytes
            read = session.read(free if self._lanes else None, count, bytes_max)
            found = await self._driver.drive(read, self._attention)
            if found and not releases and session.releases:
                continue  # Events were released meanwhile, and the read may have left some of them out.
            if found:
                if releases:
                    self._released_reads.found(map(_bytes_of, found), BYTES_MAX)
                self._seeks = seeks
                self._begin_lanes(found, releases)

    async def _rest(self, session: SinkSession) -> None:
        """Wait for a lane, and tell the group meanwhile that the member is alive."""
        try:
            await asyncio.wait_for(self._attention.wait(), session.group.session_timeout_ms / 3000)
        except TimeoutError:
            await self._driver.drive(session.heartbeat())

    def _begin_lanes(self, events: Sequence[Event], releases: bool) -> None:
        by_partition: dict[int, list[Event]] = {}
        for event in events:
            by_partition.setdefault(event.partition, []).append(event)
        for number, found in by_partition.items():
            assert number not in self._lanes, "a partition is read again once it is committed"
            size = sum(map(_bytes_of, found))
            task = self._loop.create_task(self._deliver_all(number, found, releases))
            task.add_done_callback(lambda _: self._attention.set())
            self._lanes[number] = _Lane(task, len(found), size)

    def _reap(self) -> None:
        """Free the partitions whose events are committed, and raise the errors of their tasks."""
        for number, lane in list(self._lanes.items()):
            if lane.task.done() and number not in self._progress:
                lane.task.result()
                del self._lanes[number]

    async def _commit(self, session: SinkSession) -> None:
        moves, self._progress = self._progress, {}
        if not moves:
            return
        try:
            await self._driver.drive(session.commit(moves, self._seeks))
        except _OVERTAKEN as error:
            raise Restart from error

    async def _park(self, session: SinkSession) -> None:
        while self._parks:
            asked = self._parks.popleft()
            try:
                await self._driver.drive(
                    session.park(asked.event.partition, asked.event.lsn, asked.reason[:REASON_CHARS_MAX])
                )
            except DucktailError as error:
                if isinstance(error, _OVERTAKEN) or error.sqlstate in ("22023", "42710"):
                    # It is committed, parked or compacted away: the next read shows what is left.
                    raise Restart from error
                if error.sqlstate in ("54000", "0A000"):
                    raise StopSink(f"{error.message} ({asked.reason})") from error
                raise
            asked.done.set_result(None)

    async def _end_lanes(self, session: SinkSession) -> None:
        """Let requests under way end, and commit what was delivered."""
        ends_s = self._loop.time() + GRACE_S
        while self._lanes:
            left_s = ends_s - self._loop.time()
            self._attention.clear()
            if not any(lane.task.done() for lane in self._lanes.values()) and not self._parks and left_s > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._attention.wait(), left_s)
            try:
                await self._park(session)
                await self._commit(session)
            except Restart:
                return
            for number, lane in list(self._lanes.items()):
                if lane.task.done() and number not in self._progress:
                    del self._lanes[number]
            if left_s <= 0:
                return

    async def _drop_lanes(self) -> None:
        """Forget what was read: it is read again from the group's committed LSNs."""
        lanes, self._lanes = self._lanes, {}
        left = {lane.task for lane in lanes.values()}
        # Python 3.11's `wait_for` drops a cancellation that arrives when what it waits for has just ended.
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=CANCEL_S)
        await asyncio.gather(*(lane.task for lane in lanes.values()), return_exceptions=True)
        self._progress.clear()
        self._parks.clear()

    # The tasks of partitions.

    async def _deliver_all(self, partition: int, events: list[Event], releases: bool) -> None:
        """Deliver the events that were read of a partition.

        Args:
            releases: a commit may cover more than was delivered, so there is one, at the end.
        """
        try:
            for batch in self._batches(events):
                await self._deliver(partition, batch)
                lane = self._lanes.get(partition)
                if lane is not None:
                    lane.left -= len(batch)
                    lane.left_bytes -= sum(map(_bytes_of, batch))
                if not releases:
                    self._done(partition, batch[-1].lsn)
            if releases:
                self._done(partition, max(event.lsn for event in events))
        except Ending:
            pass

    def _done(self, partition: int, lsn: int) -> None:
        self._progress[partition] = lsn
        self._attention.set()

    def _batches(self, events: Sequence[Event]) -> Iterator[list[Event]]:
        """The events of each request; the definition may change between two of them."""
        place = 0
        while place < len(events):
            batch, size = [events[place]], _bytes_of(events[place])
            place += 1
            while place < len(events) and len(batch) < self._sink.integer("batch"):
                size += _bytes_of(events[place])
                if size > REQUEST_BYTES_MAX:
                    break
                batch.append(events[place])
                place += 1
            yield batch

    async def _deliver(self, partition: int, events: Sequence[Event]) -> None:
        """Deliver events in one request, or in several if the receiver does not accept them together.

        Events that are parked meanwhile, or set aside behind a parked one of their key, are left out.
        """
        session = self._session
        assert session is not None, "lanes end before their session"
        attempt, unreached = 0, 0
        while True:
            events = session.not_parked(events)
            if not events:
                return
            began_us = self._database.clock.now_us()
            answer, took_s = await self._send(events)
            attempt += answer.reached
            record = self._recorder(partition, events, max(attempt, 1), answer, began_us, took_s)
            if answer.accepted:
                record(DELIVERED)
                return
            unreached = 0 if answer.reached else unreached + 1
            events = [event for event in events if event.lsn not in answer.kept]
            if not answer.refused and (not answer.reached or attempt < self._sink.integer("attempts")):
                record(RETRIED)
                if not answer.reached:
                    self._activity.failed(self._sink.group_id, answer.detail, began_us)
                await self._wait(attempt - 1 if answer.reached else unreached - 1, answer)
                continue
            if len(events) > 1:
                record(NARROWED)
                return await self._narrow(partition, events, answer)
            if self._sink.text("on_failure") == "stop":
                record(STOPS)
                place = f"LSN {events[0].lsn} of partition {partition}"
                raise StopSink(f"{place} was not accepted: {answer.reason or answer.detail}")
            await self._set_aside(events[0], answer)
            record(PARKED)
            return

    async def _narrow(self, partition: int, events: Sequence[Event], answer: Answer) -> None:
        """Deliver events in smaller requests, to find those that the receiver does not accept.

        A refusal comes at once, so halves find them with the fewest requests. Where all attempts have failed,
        each request may cost as many again, and single events are fewest of those.
        """
        middle = len(events) // 2
        parts = [events[:middle], events[middle:]] if answer.refused else [[event] for event in events]
        for part in parts:
            await self._deliver(partition, part)

    async def _set_aside(self, event: Event, answer: Answer) -> None:
        asked = _ParkRequest(event, answer.reason or answer.detail, self._loop.create_future())
        self._parks.append(asked)
        self._attention.set()
        await asked.done

    async def _send(self, events: Sequence[Event]) -> tuple[Answer, float]:
        """Send a request once there is room for it; returns its answer and its duration in seconds."""
        while True:
            left_s = self._quiet_until_s - self._loop.time()
            if self._ending:
                raise Ending
            if left_s > 0:
                await self._pause(left_s)
            elif self._flying >= self._sink.integer("max_in_flight"):
                self._landed.clear()
                await self._landed.wait()
            else:
                break
        self._flying += 1
        try:
            return await self._post(events)
        finally:
            self._flying -= 1
            self._landed.set()

    async def _post(self, events: Sequence[Event]) -> tuple[Answer, float]:
        session, sink = self._session, self._sink
        assert session is not None, "lanes end before their session"
        target = self._target
        assert target is not None, "lanes end before their connections"
        number = events[0].partition
        lane = self._lanes.get(number)
        begins = lane is None or not lane.began
        if lane is not None:
            lane.began = True
        now_us = self._database.clock.now_us()
        at = Moment(now_us, session.committed().get(number, 0), begins, session.released(number), self._seeks)
        self._activity.began(sink.group_id)
        began_s, ended = self._loop.time(), False
        try:
            answer = await target.deliver(sink, session.stream, events, at)
            ended = True
        finally:
            if not ended:
                self._activity.given_up(sink.group_id)
        return answer, self._loop.time() - began_s

    def _recorder(
        self,
        partition: int,
        events: Sequence[Event],
        attempt: int,
        answer: Answer,
        began_us: int,
        took_s: float,
    ) -> Callable[[str], None]:
        """A function that records a request with its outcome."""

        def record(outcome: str) -> None:
            detail = None if outcome == DELIVERED else answer.detail[:DETAIL_CHARS_MAX]
            delivery = Delivery(
                partition, events[0].lsn, events[-1].lsn, len(events), delivery_id(self._sink, events),
                attempt, outcome, answer.status, detail, began_us, round(took_s * 1000, 3),
            )  # fmt: skip
            self._activity.ended(self._sink.group_id, delivery)

        return record

    async def _wait(self, failures: int, answer: Answer) -> None:
        """Wait before another attempt: exponentially longer, with jitter, as long as the receiver asks."""
        sink = self._sink
        longest_s = sink.integer("backoff_max") / 1000
        pause_s = min(longest_s, sink.integer("backoff") / 1000 * 2 ** min(failures, 30))
        # Half of it at random: the lanes of several sinks do not come back together.
        pause_s *= 0.5 + random.random() / 2
        if answer.retry_after_s is not None:
            # The receiver speaks of itself, not of one partition.
            self._quiet_until_s = max(self._quiet_until_s, self._loop.time() + answer.retry_after_s)
            pause_s = max(pause_s, answer.retry_after_s)
        self._waiting += 1
        if self._full:
            self._attention.set()
        try:
            await self._pause(pause_s)
        finally:
            self._waiting -= 1
        if self._ending:
            raise Ending

    async def _pause(self, seconds: float) -> None:
        """Wait, or until the definition changes or the runner ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


def _make_target(database: Database, sink: Sink, loop: asyncio.AbstractEventLoop) -> Target:
    """The target of a sink's present definition.

    The implementations are imported here, as each needs a package that a server without such a sink does not.
    """
    networks = networks_of(database.settings.allowed_networks)
    try:
        if sink.kind == WEBHOOK:
            from .webhook import Webhook

            return Webhook(sink.target, networks)
        if sink.kind == RABBITMQ:
            from .rabbitmq import RabbitmqTarget

            return RabbitmqTarget(database, sink, networks)
        assert sink.kind == KAFKA
        from .kafka import KafkaTarget
        from .kafka_transactions import TransactionalKafkaTarget

        if sink.text("transactional") == "true":
            incarnation = 0 if database.side is None else database.side.incarnation
            opening = database.sink_activity.opening
            return TransactionalKafkaTarget(sink, networks, loop, incarnation, opening)
        return KafkaTarget(sink, networks, loop)
    except ModuleNotFoundError as error:
        extra = KINDS[sink.kind].extra
        raise NotSupported(
            f"the package {error.name} is not installed: pip install 'ducktail[{extra}]'"
        ) from error


def _needs_user(error: Exception) -> bool:
    """True for a lost right, a gap, and a receiver that does not accept an event of a sink that stops."""
    if isinstance(error, StopSink | Gap):
        return True
    return isinstance(error, DucktailError) and error.sqlstate[:2] in ("28", "42")


def _bytes_of(event: Event) -> int:
    """The approximate size of an event in a request."""
    texts = (event.key, event.before, event.after, event.headers)
    return 200 + sum(len(text) for text in texts if text is not None)

"""Reading a topic with partitions on other nodes: all owners are asked at once, and their events merged.

Each owner reads its own partitions, from its own committed LSNs, as it would for a client of its own; this
node puts the events in the order of commit time, partition and LSN. LSNs of several nodes have no common
order, so each event has a running number here, by which it is known how far an answer has gone. The events
stay the ready rows that they are at their owners: of each only the commit time is read.
Source: docs/design/cluster.md, "Reading".
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...engine.buffers.buffer import Hot
from ...engine.buffers.scan import Scan, ScanRange
from ...engine.catalog import segments
from ...engine.catalog.streams import Stream
from ...engine.errors import (
    CannotConnect,
    ConnectionLost,
    DucktailError,
    InsufficientPrivilege,
    InvalidParameterValue,
    OutOfMemory,
    ProtocolViolation,
    UndefinedObject,
)
from ...engine.log.events import EVENT_SCHEMA, commit_times, event_batch, transactions_of
from ...engine.waiting import Waiting, all_of
from ..language import statements as st
from ..language.position_text import format_positions
from ..language.scan import render_scan
from ..peers.owners import Owners, ReadEstimate
from ..peers.peer_frames import PassedBatch
from ..peers.requests import Part
from ..results.results import EventBatch, LogBatch, ResultBatch
from ..session_state.context import Context
from .shares import ask_there, listed

# What one read may gather, of each node and of all: it is held in memory, as it is put in order.
GATHER_BYTES_MAX, GATHERED_BYTES_MAX = 256 << 20, 1 << 30
READ_ROWS, BATCH_ROWS = 8192, 4096
# What comes next is as the last part of an answer was, one of so many: a run of one owner's events goes on.
LATEST = 4
NUMBER = "number"

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The gathered events in order, each with a number from 1 on.

    Args:
        rows: the encoded DataRow messages, as an Arrow array of binary.
        whole: True if no owner has more events.
    """

    rows: pa.Array
    lsns: Numbers
    partitions: Numbers
    whole: bool

    def __len__(self) -> int:
        return len(self.lsns)

    def places(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """LSNs and partitions of the events with these numbers."""
        places = np.asarray(numbers, np.int64) - 1
        return self.lsns[places].tolist(), self.partitions[places].tolist()

    def ends(self) -> dict[int, int]:
        """The last LSN of each partition."""
        if not len(self):
            return {}
        last = np.zeros(int(self.partitions.max()) + 1, np.int64)
        np.maximum.at(last, self.partitions, self.lsns)
        return {partition: int(last[partition]) for partition in np.flatnonzero(last).tolist()}


class GatheredScan:
    """A scan of gathered events, with the interface of `engine.scan.Scan`."""

    hot = ready = True  # Its rows are in memory.

    def __init__(self, gathered: Gathered) -> None:
        self._gathered = gathered
        self._at = 0
        self.ends: Mapping[int, int] = {}

    @property
    def exhausted(self) -> bool:
        """True if all events have been returned, and no owner has more."""
        return self._at >= len(self._gathered) and self._gathered.whole

    def read(self, limit: int, ready: int | None = None) -> Hot:
        """The next events, at most `limit`, or `ready` if it is less: all are ready."""
        gathered, at = self._gathered, self._at
        size = min(limit if ready is None else ready, READ_ROWS)
        self._at = end = min(at + size, len(gathered))
        rows = gathered.rows.slice(at, end - at).to_pylist()
        return Hot(gathered.lsns[at:end].tolist(), gathered.partitions[at:end].tolist(), rows, self.exhausted)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All events as Arrow batches, in all columns, with their numbers in a last column."""
        count = len(self._gathered)
        for start in range(0, count, BATCH_ROWS):
            part = self._gathered.rows.slice(start, min(BATCH_ROWS, count - start))
            numbers = pa.array(range(start + 1, start + 1 + len(part)), pa.int64())
            yield event_batch(part.to_pylist()).append_column(NUMBER, numbers)

    def schema(self) -> pa.Schema:
        """The schema of `batches`."""
        return EVENT_SCHEMA.append(pa.field(NUMBER, pa.int64()))

    def interrupt(self) -> None:
        """Do nothing: all events have been gathered."""

    def leave(self) -> None:
        """Do nothing: the scan holds no log or buffer."""

    def close(self) -> None:
        """Do nothing: the events are freed with this object."""


@dataclass(slots=True)
class OwnerEvents:
    """The events of one owner, collected as they arrive.

    Args:
        asked: the maximum number that was requested; None for all.
    """

    asked: int | None
    rows: list[pa.Array] = field(default_factory=list)
    lsns: array[int] = field(default_factory=lambda: array("q"))
    partitions: array[int] = field(default_factory=lambda: array("i"))
    size: int = 0

    @property
    def count(self) -> int:
        """The number of events."""
        return len(self.lsns)

    @property
    def exhausted(self) -> bool:
        """True if the owner has no more events."""
        return self.asked is None or self.count < self.asked

    def take(self, batch: ResultBatch) -> None:
        """Add a batch.

        Raises:
            OutOfMemory: the events exceed the limit of one read.
        """
        if isinstance(batch, LogBatch):
            batch = batch.ready()
        if isinstance(batch, EventBatch):
            self.put(batch.rows, batch.lsns, batch.partitions)
            return
        if not isinstance(batch, PassedBatch):
            raise ProtocolViolation("a node has answered something else than events")
        self._keep(batch.size)
        ends = np.zeros(batch.count + 1, np.int32)
        np.cumsum(batch.sizes, out=ends[1:])
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(batch.data)]
        self.rows.append(pa.Array.from_buffers(pa.binary(), batch.count, buffers))
        self.lsns += batch.lsns
        self.partitions += batch.partitions

    def put(self, rows: list[bytes], lsns: Sequence[int], partitions: Sequence[int]) -> None:
        """Add single rows."""
        if rows:
            self._keep(sum(map(len, rows)))
            self.rows.append(pa.array(rows, pa.binary()))
            self.lsns.extend(lsns)
            self.partitions.extend(partitions)

    def _keep(self, size: int) -> None:
        self.size += size
        if self.size > GATHER_BYTES_MAX:
            raise OutOfMemory(
                f"a read of several nodes' partitions gathers at most {GATHER_BYTES_MAX} bytes of one node",
                hint=_LESS,
            )

    def txids(self) -> Numbers:
        """The transaction number of each event; the events of a transaction are adjacent."""
        found = [transactions_of(rows) for rows in self.rows]
        return np.concatenate(found) if found else np.empty(0, np.int64)


_LESS = "Read with a LIMIT, a group and its commits, or one PARTITION after the other."


def share_of(wanted: st.Scan, partitions: Sequence[int], after: Mapping[int, int] | None) -> st.Scan:
    """A scan's share of some partitions, with its values."""
    at = None
    if after is not None:
        # AFTER 0 is what is retained, in each partition that has it.
        at = format_positions({partition: after.get(partition, 0) for partition in partitions})
    return replace(wanted, partitions=tuple(partitions), after=at, commits=False, wait=None, wait_for=None)


def after_of(
    stream_name: str, owners: Owners, partitions: Sequence[int], parsed: int | dict[int, int] | None
) -> Mapping[int, int] | None:
    """The LSNs of AFTER: partition -> LSN.

    Raises:
        InvalidParameterValue: one number for partitions of several nodes.
    """
    if parsed is None:
        return None
    if not isinstance(parsed, int):
        return parsed
    if parsed and len({owners.of(partition) for partition in partitions}) > 1:
        raise bare_number(stream_name, "AFTER")
    return dict.fromkeys(partitions, parsed)


def bare_number(stream_name: str, clause: str) -> InvalidParameterValue:
    """The error for a single LSN in place of a map for partitions of several nodes."""
    return InvalidParameterValue(
        f'{clause} wants a map of LSNs by partition on topic "{stream_name}": its partitions are on several '
        "nodes, whose LSNs have no common order",
        hint=f"""Write {clause} '{{"0": 17, "1": 4}}', or name one PARTITION.""",
    )


def by_owner(owners: Owners, partitions: Sequence[int]) -> dict[str, list[int]]:
    """Group partitions by owner: node -> partitions."""
    found: dict[str, list[int]] = {}
    for partition in partitions:
        found.setdefault(owners.of(partition), []).append(partition)
    return found


# Asks an owner for so many events, or all.
AskOwner = Callable[[int | None], Waiting[OwnerEvents]]


@dataclass(frozen=True, slots=True)
class Bound:
    """The limit of a read: a number of events, or of transactions."""

    events: int | None
    transactions: int | None = None


def asks_there(session: Context, part: Part, node: str, share: st.Scan, transactions: int | None) -> AskOwner:
    """The request for another owner's events; its text is constant, so that it is parsed once there."""
    values: list[object] = [] if share.after is None else [share.after]
    if values:
        share = replace(share, after=st.Parameter(1))
    text = part.text(f"SELECT * FROM {render_scan(share)}")

    def ask(limit: int | None) -> Waiting[OwnerEvents]:
        events = OwnerEvents(limit)
        count, unit = (limit, "") if transactions is None else (transactions, " TRANSACTIONS")
        bound, more = ("", []) if count is None else (f" LIMIT ${len(values) + 1}{unit}", [count])
        yield from ask_there(session, node, text + bound, [*values, *more], events.take, again=True)
        return events

    return ask


def read_here(
    scan: Scan | GatheredScan, limit: int | None, given: Callable[[Sequence[int], Sequence[int]], None]
) -> OwnerEvents:
    """The events of this node's own partitions.

    Args:
        given: receives the LSNs and partitions of the events.
    """
    events = OwnerEvents(limit)
    try:
        while not scan.exhausted and (limit is None or events.count < limit):
            size = READ_ROWS if limit is None else min(READ_ROWS, limit - events.count)
            found = scan.read(size)
            events.put(found.rows, found.lsns, found.partitions)
            given(found.lsns, found.partitions)
    finally:
        scan.close()
    return events


# What is told with its node: that it is away, or has other rights.
_NAMED = (CannotConnect, ConnectionLost, UndefinedObject, InsufficientPrivilege)


def gather(
    session: Context,
    topic_name: str,
    shares: Mapping[str, Sequence[int]],
    asks: Mapping[str, AskOwner],
    bound: Bound,
    estimate: ReadEstimate,
) -> Waiting[Gathered]:
    """Merge the events of several owners into one order.

    With a LIMIT each owner is asked for about its share of the last answer. An owner that reaches this number
    may have further events within the LIMIT; it is asked again, for as many as the LIMIT can include. This
    node reads its own share while the others read theirs.

    Raises:
        CannotConnect, ConnectionLost: an owner is unavailable; the message names node and partitions.
        DucktailError: the error of an owner.
    """
    local = session.database.cluster.placement.local.name
    taken: dict[str, OwnerEvents] = {}
    times: dict[str, Numbers] = {}
    # LIMIT n TRANSACTIONS has the last word: each owner gives as many of its own, whole.
    limit = bound.events if bound.transactions is None else None
    in_turn = sorted(asks, key=lambda node: node == local)
    wanted = {node: None if limit is None else estimate.first(node, len(asks), limit) for node in in_turn}
    while wanted:
        works = [asks[node](count) for node, count in wanted.items()]
        outcomes = yield from all_of(works, session.database.clock.monotonic_s)
        for node, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, _NAMED) and node != local:
                raise away(topic_name, node, shares[node], outcome) from outcome
            if isinstance(outcome, Exception):
                raise outcome
            taken[node] = outcome
        times = _times(taken)
        wanted = {} if limit is None else _behind(taken, times, limit)
    if sum(events.size for events in taken.values()) > GATHERED_BYTES_MAX:
        raise OutOfMemory(
            f"a read of several nodes' partitions gathers at most {GATHERED_BYTES_MAX} bytes", hint=_LESS
        )
    found = _merged(taken, times, Bound(limit, bound.transactions))
    if limit is not None:
        estimate.gave(dict(zip(taken, found.latest, strict=True)), len(found.gathered), limit)
    return found.gathered


def merged(parts: Mapping[str, OwnerEvents], limit: int | None, transactions: int | None) -> Gathered:
    """Merge the events of a topic's own log and its segments into one order, up to a number of
    transactions."""
    bound = Bound(None if transactions is not None else limit, transactions)
    return _merged(parts, _times(parts), bound).gathered


def _times(taken: Mapping[str, OwnerEvents]) -> dict[str, Numbers]:
    """The commit times of each source's events, ascending; decoded together, because each source may have few
    events."""
    rows = [array_ for events in taken.values() for array_ in events.rows]
    every = commit_times(pa.concat_arrays(rows)) if rows else np.empty(0, np.int64)
    ends = np.cumsum([events.count for events in taken.values()])
    return dict(zip(taken, np.split(every, ends[:-1]), strict=True))


def _behind(
    taken: Mapping[str, OwnerEvents], times: Mapping[str, Numbers], limit: int
) -> dict[str, int | None]:
    """The owners whose next events may be among the first `limit` of all, with the number that can be."""
    more = [node for node, events in taken.items() if not events.exhausted and (events.asked or 0) < limit]
    if not more:
        return {}
    every = np.concatenate(list(times.values()))
    if len(every) >= limit:
        last = np.partition(every, limit - 1)[limit - 1]
        more = [node for node in more if times[node][-1] < last]
    found: dict[str, int | None] = {}
    for node in more:
        # What others had before its last event is before its next ones.
        at = times[node][-1]
        found[node] = limit - sum(
            int(np.searchsorted(of, at)) for other, of in times.items() if other != node
        )
    return found


@dataclass(frozen=True, slots=True)
class _Merged:
    """Events in order, and the number that each source has among the last of them (one in LATEST)."""

    gathered: Gathered
    latest: list[int]


def _merged(taken: Mapping[str, OwnerEvents], times: Mapping[str, Numbers], bound: Bound) -> _Merged:
    """The first events of all sources, in order."""
    rows = [array_ for events in taken.values() for array_ in events.rows]
    if not rows:
        nothing = np.empty(0, np.int64)
        return _Merged(Gathered(pa.array([], pa.binary()), nothing, nothing, True), [0] * len(taken))
    counts = [events.count for events in taken.values()]
    lsns = np.concatenate([np.asarray(events.lsns, np.int64) for events in taken.values()])
    partitions = np.concatenate([np.asarray(events.partitions, np.int64) for events in taken.values()])
    every, of = np.concatenate(list(times.values())), np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((lsns, partitions, every))
    if bound.transactions is not None:
        txids = np.concatenate([events.txids() for events in taken.values()])
        order = order[_of_first(every, of, txids, bound.transactions)[order]]
    order = order[: bound.events]
    whole = bound.transactions is not None or (
        len(order) == len(lsns) and all(events.exhausted for events in taken.values())
    )
    gathered = Gathered(pa.concat_arrays(rows).take(pa.array(order)), lsns[order], partitions[order], whole)
    latest = order[-max(1, len(order) // LATEST) :]
    return _Merged(gathered, np.bincount(of[latest], minlength=len(counts)).tolist())


def _of_first(times: Numbers, of: Numbers, txids: Numbers, transactions: int) -> np.ndarray[Any, Any]:
    """Select the events of the first transactions, by commit time.

    A transaction belongs to one source: the same number of another source is a different transaction.
    """
    order = np.lexsort((txids, of, times))
    begins = np.ones(len(order), bool)
    begins[1:] = (txids[order][1:] != txids[order][:-1]) | (of[order][1:] != of[order][:-1])
    found = np.zeros(len(order), bool)
    found[order[np.cumsum(begins) <= transactions]] = True
    return found


def read_segments(
    session: Context, stream: Stream, bounds: ScanRange, moved: Mapping[int, int], limit: int | None
) -> OwnerEvents:
    """The events that partitions brought from other nodes."""
    where = f" AND lsn >= {bounds.from_lsn}" if bounds.from_lsn else ""
    if bounds.to_lsn is not None:
        where += f" AND lsn <= {bounds.to_lsn}"
    after = {number: bounds.after[number] for number in moved}
    events, cursor = OwnerEvents(limit), session.database.cursor()
    try:
        rows = segments.read_rows(cursor, stream.stream_id, after, limit, where)
    finally:
        cursor.close()
    events.put([row.event for row in rows], [row.lsn for row in rows], [row.partition for row in rows])
    return events


def away(topic_name: str, node: str, partitions: Sequence[int], error: DucktailError) -> DucktailError:
    """An owner's error, with a message that names its partitions."""
    some = f"partition{'s' if len(partitions) > 1 else ''} {listed(partitions)}"
    message = f'topic "{topic_name}", {some} on node "{node}": {error.message}'
    return type(error)(message, detail=error.detail, hint=error.hint)

"""Reading a topic that other nodes have partitions of: all owners are asked at once, and their events merged.

Each owner reads its own partitions, from its own committed LSNs, as it would for a client of its own; this
node puts the events in the order of commit time, partition and LSN. LSNs of several nodes have no common
order, so each event has a running number here, by which it is known how far an answer has gone.
Source: docs/design/cluster.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ...engine import segments
from ...engine.buffer import Hot
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
from ...engine.event_rows import EVENT_SCHEMA, event_batch, time_us
from ...engine.log import EVENT_COLUMNS
from ...engine.scan import Scan, ScanRange
from ...engine.streams import Stream
from ...engine.values.datarow import columns as columns_of
from ...engine.waiting import Waiting, all_of
from ..context import Context
from ..language import statements as st
from ..language.position_text import format_positions
from ..language.render import render_scan
from ..results import Batch, EventBatch
from .shares import Owners, ask_there, listed

# What one read may gather: it is held in memory, as it is put in order.
GATHER_BYTES_MAX = 256 << 20
READ_ROWS, BATCH_ROWS = 8192, 4096
NUMBER = "number"
_NAMES = [name for name, _ in EVENT_COLUMNS]
_TIME, _TXID = _NAMES.index("commit_time"), _NAMES.index("txid")
_SCHEMA = pa.schema(
    [
        ("row", pa.binary()),
        ("lsn", pa.int64()),
        ("partition", pa.int32()),
        ("time", pa.int64()),
        ("txid", pa.binary()),
    ]
)
_GATHERED = _SCHEMA.append(pa.field("node", pa.string()))


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was gathered: events in order, each with a number from 1 on.

    Args:
        events: row, lsn and partition of each.
        whole: there are no more; else an owner may have more than its part of a LIMIT.
    """

    events: pa.Table
    whole: bool

    def places(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """LSNs and partitions of the events with these numbers."""
        rows = self.events.take(pa.array([number - 1 for number in numbers], pa.int64()))
        return rows.column("lsn").to_pylist(), rows.column("partition").to_pylist()

    def ends(self) -> dict[int, int]:
        """Partition -> its last LSN."""
        ends: dict[int, int] = {}
        partitions, lsns = (self.events.column(name).to_pylist() for name in ("partition", "lsn"))
        for partition, lsn in zip(partitions, lsns, strict=True):
            ends[partition] = max(lsn, ends.get(partition, 0))
        return ends


class GatheredScan:
    """A scan of what was gathered, with the interface of `engine.scan.Scan`."""

    hot = False  # Its rows are taken on a worker's thread.

    def __init__(self, gathered: Gathered) -> None:
        self._gathered = gathered
        self._at = 0
        self.ends: Mapping[int, int] = {}

    @property
    def exhausted(self) -> bool:
        """Whether all has been given, and no owner has more."""
        return self._at >= self._gathered.events.num_rows and self._gathered.whole

    def read(self, limit: int) -> Hot:
        """The next events, at most `limit`."""
        events = self._gathered.events.slice(self._at, min(limit, READ_ROWS))
        self._at += events.num_rows
        rows, lsns, partitions = (events.column(name).to_pylist() for name in ("row", "lsn", "partition"))
        return Hot(lsns, partitions, rows, self.exhausted)

    def batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """All events as Arrow batches, with their numbers in a last column."""
        events = self._gathered.events if limit is None else self._gathered.events.slice(0, limit)
        for start in range(0, events.num_rows, BATCH_ROWS):
            part = events.slice(start, BATCH_ROWS)
            batch = event_batch(part.column("row").to_pylist())
            numbers = pa.array(range(start + 1, start + 1 + part.num_rows), pa.int64())
            yield batch.append_column(NUMBER, numbers)

    def schema(self) -> pa.Schema:
        """Of what `batches` gives."""
        return EVENT_SCHEMA.append(pa.field(NUMBER, pa.int64()))

    def interrupt(self) -> None:
        """Nothing to end: it is all here."""

    def close(self) -> None:
        """Nothing to free before the gathered events are."""


@dataclass(slots=True)
class Taking:
    """The events of one owner, as they come."""

    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def take(self, batch: Batch) -> None:
        """Keep some.

        Raises:
            OutOfMemory: 53200, they are too many for one read.
        """
        if not isinstance(batch, EventBatch):
            raise ProtocolViolation("a node has answered something else than events")
        self.put(batch.rows, batch.lsns, batch.partitions)

    def put(self, rows: list[bytes], lsns: list[int], partitions: list[int]) -> None:
        """The same."""
        if not rows:
            return
        self.rows += len(rows)
        self.size += sum(map(len, rows))
        if self.size > GATHER_BYTES_MAX:
            raise OutOfMemory(
                f"a read of several nodes' partitions gathers at most {GATHER_BYTES_MAX} bytes of one node",
                hint="Read with a LIMIT, a group and its commits, or one PARTITION after the other.",
            )
        split = columns_of(rows, len(EVENT_COLUMNS))
        column, txids = (
            one if isinstance(one, pa.Array) else pa.array(one, pa.binary())
            for one in (split[_TIME], split[_TXID])
        )
        coded = column.dictionary_encode()
        times = pa.array([time_us(text) for text in coded.dictionary.to_pylist()], pa.int64())
        arrays = [
            pa.array(rows, pa.binary()),
            pa.array(lsns, pa.int64()),
            pa.array(partitions, pa.int32()),
            times.take(coded.indices),
            txids.cast(pa.binary()),
        ]
        self.tables.append(pa.Table.from_arrays(arrays, schema=_SCHEMA))


def share_of(wanted: st.Scan, partitions: Sequence[int], after: Mapping[int, int] | None) -> st.Scan:
    """A scan's share of some partitions; its values stand in it as they are."""
    at = None
    if after is not None:
        # AFTER 0 is what is retained, in each partition that has it.
        at = format_positions({partition: after.get(partition, 0) for partition in partitions})
    return replace(wanted, partitions=tuple(partitions), after=at, wait=None, wait_for=None)


def after_of(
    stream_name: str, owners: Owners, partitions: Sequence[int], parsed: int | dict[int, int] | None
) -> Mapping[int, int] | None:
    """Partition -> LSN of AFTER.

    Raises:
        InvalidParameterValue: 22023, one number for partitions of several nodes.
    """
    if parsed is None:
        return None
    if not isinstance(parsed, int):
        return parsed
    if parsed and len({owners.of(partition) for partition in partitions}) > 1:
        raise bare_number(stream_name, "AFTER")
    return dict.fromkeys(partitions, parsed)


def bare_number(stream_name: str, clause: str) -> InvalidParameterValue:
    """What is answered to one LSN for partitions of several nodes."""
    return InvalidParameterValue(
        f'{clause} wants a map of LSNs by partition on topic "{stream_name}": its partitions are on several '
        "nodes, whose LSNs have no common order",
        hint=f"""Write {clause} '{{"0": 17, "1": 4}}', or name one PARTITION.""",
    )


def by_owner(owners: Owners, partitions: Sequence[int]) -> dict[str, list[int]]:
    """Node -> those of the partitions that it owns."""
    found: dict[str, list[int]] = {}
    for partition in partitions:
        found.setdefault(owners.of(partition), []).append(partition)
    return found


def share_sql(share: st.Scan, limit: int | None, transactions: int | None) -> str:
    """The statement by which an owner reads its share."""
    bound = "" if limit is None else f" LIMIT {limit}"
    if transactions is not None:
        bound = f" LIMIT {transactions} TRANSACTIONS"
    return f"SELECT * FROM {render_scan(share)}{bound}"


def read_there(session: Context, node: str, text: str) -> Waiting[Taking]:
    """The events of another owner."""
    taking = Taking()
    yield from ask_there(session, node, text, (), taking.take, again=True)
    return taking


def read_here(
    scan: Scan | GatheredScan, limit: int | None, given: Callable[[Sequence[int], Sequence[int]], None]
) -> Taking:
    """The events of this node's own partitions.

    Args:
        given: told the LSNs and partitions of what is taken.
    """
    taking = Taking()
    try:
        while not scan.exhausted and (limit is None or taking.rows < limit):
            size = READ_ROWS if limit is None else min(READ_ROWS, limit - taking.rows)
            found = scan.read(size)
            taking.put(found.rows, found.lsns, found.partitions)
            given(found.lsns, found.partitions)
    finally:
        scan.close()
    return taking


# What is told with its node: that it is away, or has other rights.
_TOLD = (CannotConnect, ConnectionLost, UndefinedObject, InsufficientPrivilege)


def gather(
    session: Context,
    topic_name: str,
    shares: Mapping[str, Sequence[int]],
    works: Mapping[str, Waiting[Taking]],
    limit: int | None,
    transactions: int | None = None,
) -> Waiting[Gathered]:
    """What several owners give, in one order.

    Args:
        limit: how many events each was asked for.
        transactions: how many transactions it ends with; each owner was asked for as many of its own.

    Raises:
        CannotConnect: 08001, ConnectionLost: 08006, with node and partitions. DucktailError: an owner's own.
    """
    outcomes = yield from all_of(list(works.values()), session.database.clock.monotonic_s)
    local = session.database.cluster.placement.local.name
    tables, whole = [], True
    for node, outcome in zip(works, outcomes, strict=True):
        if isinstance(outcome, _TOLD) and node != local:
            raise away(topic_name, node, shares[node], outcome) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        # A transaction is one owner's: the same number elsewhere is another one.
        owner = pa.scalar(node, pa.string())
        tables += [table.append_column("node", pa.repeat(owner, len(table))) for table in outcome.tables]
        whole = whole and (limit is None or outcome.rows < limit)
    return _ordered(tables, whole, transactions)


def merged(parts: Mapping[str, Taking], limit: int | None, transactions: int | None) -> Gathered:
    """What a topic's own log and its segments give, in one order; arguments as of `gather`."""
    tables = [
        table.append_column("node", pa.repeat(pa.scalar(name, pa.string()), len(table)))
        for name, part in parts.items()
        for table in part.tables
    ]
    return _ordered(tables, all(limit is None or part.rows < limit for part in parts.values()), transactions)


def _ordered(tables: Sequence[pa.Table], whole: bool, transactions: int | None) -> Gathered:
    events = pa.concat_tables(tables) if tables else _GATHERED.empty_table()
    if transactions is not None:
        # The order of transactions is that of their commits; each is whole.
        named = events.group_by(["time", "node", "txid"]).aggregate([])
        order = [("time", "ascending"), ("node", "ascending")]
        chosen = named.sort_by(order).slice(0, transactions).select(["node", "txid"])
        events = events.join(chosen, ["node", "txid"], join_type="left semi")
    order = [("time", "ascending"), ("partition", "ascending"), ("lsn", "ascending")]
    return Gathered(events.sort_by(order).combine_chunks(), whole)


def read_segments(
    session: Context, stream: Stream, bounds: ScanRange, moved: Mapping[int, int], limit: int | None
) -> Taking:
    """The events that partitions brought from other nodes."""
    where = f" AND lsn >= {bounds.from_lsn}" if bounds.from_lsn else ""
    if bounds.to_lsn is not None:
        where += f" AND lsn <= {bounds.to_lsn}"
    after = {number: bounds.after[number] for number in moved}
    taking, cursor = Taking(), session.database.cursor()
    try:
        rows = segments.read_rows(cursor, stream.stream_id, after, limit, where)
    finally:
        cursor.close()
    taking.put([row.event for row in rows], [row.lsn for row in rows], [row.partition for row in rows])
    return taking


def away(topic_name: str, node: str, partitions: Sequence[int], error: DucktailError) -> DucktailError:
    """An owner's error, told with its partitions."""
    some = f"partition{'s' if len(partitions) > 1 else ''} {listed(partitions)}"
    message = f'topic "{topic_name}", {some} on node "{node}": {error.message}'
    return type(error)(message, detail=error.detail, hint=error.hint)

"""Scans of other nodes' streams in a query on this node: fetched from the owner, and read as a table.

The owner receives a query of the one scan, or the row-wise query with a LIMIT that contains it (`Unit`).
Rights, gaps, WAIT, members and parked events are therefore handled by the owner. The query has the columns
that the statement names, and the conditions on partition, LSN and commit time. All rows are fetched before
the query begins; they count as read at the owner once it is known how many the client has received. Source:
docs/design/cluster.md, "Statements that mix".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from ...engine.errors import CachedPlanChanged, DucktailError, NotSupported, OutOfMemory, WrongState
from ...engine.log.envelope_changes import CHANGE_COLUMNS, HIDDEN_PLACE
from ...engine.log.log import DELIVERIES, EVENT_COLUMNS
from ...engine.quoting import fold, ident, literal
from ...engine.values.arrow_types import copy_type
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.clauses import scalar_sql
from ..language.parse import Query
from ..language.scan import render_scan
from ..read_shape.pruning import Fact
from ..read_shape.shape_types import ReadKind, Shape
from ..results.results import ResultColumn
from ..session_state.context import Context
from ..text.spans import numbered
from . import relay, routing
from .relay import RowSource

# What the scans of one statement may give together: it is held in memory until the statement ends.
FETCHED_BYTES_MAX = 256 << 20
_LSN = {"json": "lsn", "changes": "_lsn"}
# By what the facts of WHERE are called in ENVELOPE CHANGES.
_CHANGES = {"lsn": "_lsn", "partition": "_partition", "commit_time": "_commit_timestamp"}
# In what stands for such a name all columns may be meant.
_ALL = (exp.Columns, exp.Pivot)


@dataclass(frozen=True, slots=True)
class Sent:
    """The query that is sent for a scan.

    Args:
        text: its text, with the parameters of the user's text.
        begins: the position of the scan in the user's text, from 0.
    """

    text: str
    begins: int


def sent_for(query: Query, found: Shape) -> Sent:
    """The query to send for a scan of another node's stream.

    Raises:
        NotSupported: LIMIT n TRANSACTIONS stands around the query with the scan's own LIMIT.
    """
    scan, unit, clause = found.scan, found.unit, query.transactions
    if unit is not None:
        if clause is not None and not unit.start <= clause.start < unit.end:
            raise NotSupported(
                "LIMIT ... TRANSACTIONS around another LIMIT is not supported over a stream of another node",
                position=clause.start + 1,
            )
        return Sent(query.text[unit.start : unit.end], unit.start)
    columns = columns_needed(query, found)
    where = " AND ".join(_fact_sql(scan, fact) for fact in found.facts)
    text = f"SELECT {', '.join(map(ident, columns)) or '*'} FROM {render_scan(scan)}"
    text += f" WHERE {where}" if where else ""
    if found.empty:
        text += " LIMIT 0"
    elif clause is not None and clause.limit is not None:
        text += f" LIMIT {scalar_sql(clause.limit)} TRANSACTIONS"
    return Sent(text, scan.start)


def columns_of(scan: st.Scan) -> tuple[tuple[str, str], ...]:
    """Name and type of each column of a scan of another node's stream."""
    if scan.envelope != "json":
        return scan.typed
    return (*EVENT_COLUMNS, DELIVERIES) if scan.deliveries else EVENT_COLUMNS


def empty_sql(scan: st.Scan) -> str:
    """A relation with a scan's columns and no rows."""
    items = ", ".join(f"NULL::{type_} AS {ident(name)}" for name, type_ in columns_of(scan))
    return f"(SELECT {items} WHERE false)"


def columns_needed(query: Query, found: Shape) -> list[str]:
    """The columns of a scan that the query names; empty if it may name all of them."""
    tree, scan = query.tree, found.scan
    if tree is None or scan.columns or found.hidden or any(tree.find(kind) for kind in _ALL):
        return []
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return []
    if any(join.args.get("method") for join in tree.find_all(exp.Join)):
        return []  # NATURAL: by whatever names there are.
    visible = fold(scan.visible_name)
    if any(fold(c.name) == visible and not c.table for c in tree.find_all(exp.Column)):
        return []  # The whole row.
    named = {fold(identifier.name) for identifier in tree.find_all(exp.Identifier)}
    columns = [name for name, _ in columns_of(scan) if fold(name) in named]
    return columns or [_LSN[scan.envelope]]


def _fact_sql(scan: st.Scan, fact: Fact) -> str:
    name = fact.column if scan.envelope == "json" else _CHANGES[fact.column]
    values = ", ".join(literal(v) if isinstance(v, str) else scalar_sql(v) for v in fact.values)
    if fact.operator in ("in", "not in"):
        return f"{name} {fact.operator.upper()} ({values})"
    return f"{name} {fact.operator} {values}"


class Fetched:
    """The fetched rows of a scan, with the part of the interface of `EventRelation` that a query's end uses.

    Attributes:
        rows: columns c0, c1, .., in their Arrow types.
    """

    error = None

    def __init__(self, source: RowSource, rows: pa.Table, columns: Sequence[ResultColumn]) -> None:
        self.source = source
        self.rows = rows
        self._columns = columns

    def relation_sql(self, relation: str, scan: st.Scan, *, hidden: bool) -> str:
        """The SQL that reads the rows, registered as `relation`, under their names and types."""
        items = [
            f"c{place}{'' if copy_type(column.type) is None else f'::{column.type}'} AS {ident(column.name)}"
            for place, column in enumerate(self._columns)
        ]
        if hidden:
            names = [column.name for column in self._columns]
            place = f"c{names.index(_LSN[scan.envelope])}"
            if scan.envelope != "json":
                change = f"c{len(names) - len(CHANGE_COLUMNS)}"
                place = f"2 * {place} + CASE WHEN {change} = 'update_preimage' THEN 0 ELSE 1 END"
            items.append(f"({place})::BIGINT AS {HIDDEN_PLACE}")
        return f"(SELECT {', '.join(items)} FROM {relation})"

    def interrupt(self) -> None:
        """Do nothing: all rows have been fetched."""

    def close(self) -> None:
        """Do nothing: the rows are freed with this object."""


class FetchedTracker:
    """The tracker of fetched rows, with the interface of `Tracker`: it reports to the owner which of them
    count as read."""

    def __init__(self, fetched: Fetched, shape: Shape) -> None:
        kind, reason = shape.kind, shape.reason
        self._source = fetched.source
        self._member = shape.scan.member is not None
        self._whole = kind is not ReadKind.ROWWISE
        self._reason = reason if kind is ReadKind.NONE else None
        self._through = 0
        self._told = False
        if self._reason is not None:
            self._tell(reason=self._reason)

    def note_through(self, lsn: int, buffer: object) -> None:
        """Note that rows up to `lsn` were delivered; `stopped` makes them the read position."""
        self._through = max(self._through, lsn)

    def complete(self) -> None:
        """Count all rows."""
        self._tell()

    def stopped(self) -> None:
        """Count the rows noted so far, because an answer is complete before the end of the scan."""
        self._tell(through=None if self._whole else self._through)

    def void(self, reason: str) -> None:
        """Leave the group without a read position."""
        self._tell(reason=reason)

    def untold(self) -> None:
        """End the read of a query that sets no position, which was reported at its beginning."""

    def failed(self) -> None:
        """Void the read, because the statement has failed or was cancelled."""
        self.void("the latest read failed or was cancelled")

    def ended(self) -> None:
        """End the read."""

    def _tell(self, *, through: int | None = None, reason: str | None = None) -> None:
        if self._reason is None or not self._told:
            self._told = True
            self._source.counts(through=through, reason=reason, member=self._member)


def fetch(session: Context, query: Query, found: Shape, parameters: Sequence[object]) -> Waiting[Fetched]:
    """Fetch the rows of a scan of another node's stream.

    Raises:
        OutOfMemory: the rows exceed the amount that a statement may gather.
        WrongState: the stream has been moved meanwhile.
        DucktailError: the owner's error, with its position in the user's text.
    """
    sent = sent_for(query, found)
    text, values = numbered(sent.text, parameters)
    try:
        statement = yield from session.parse(text, told=False)
        if statement.away is None:
            raise WrongState(f'stream "{found.scan.stream}" is being moved', hint="Try it again.")
        source = yield from relay.read_pending(session, statement, tuple(values))
    except DucktailError as error:
        if error.position is not None:
            error.position = sent.begins + 1
        raise
    node = statement.away.node
    columns = source.columns or ()
    if not _as_described(query, found, columns):
        source.close()
        _forget(session, found.scan)
        raise CachedPlanChanged
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        while True:
            yield from source.arrive(None)
            batch = source.next(None)
            if batch is None:
                break
            size += batch.size
            if size > FETCHED_BYTES_MAX:
                raise OutOfMemory(
                    f'stream "{found.scan.stream}" of node "{node.name}" gives more than '
                    f"{FETCHED_BYTES_MAX} bytes to a statement that runs here",
                    hint="Read it with a LIMIT, in a query of its own inside the statement.",
                )
            batches.append(batch.record_batch())
    except BaseException:
        source.close()
        source.counts(reason="the latest read failed or was cancelled")
        raise
    return Fetched(source, _table(batches, columns, source.schema), columns)


def _as_described(query: Query, found: Shape, columns: Sequence[ResultColumn]) -> bool:
    """True if a scan in ENVELOPE CHANGES still has the columns with which the statement was prepared."""
    if found.scan.envelope == "json" or found.unit is not None:
        return True
    needed = columns_needed(query, found)
    known = [column for column in found.scan.typed if not needed or column[0] in needed]
    return [(column.name, column.type) for column in columns] == known


def _forget(session: Context, scan: st.Scan) -> None:
    """Forget the known columns of a stream, so that its statements are prepared again."""
    assert session.links is not None, "what is away was found through links"
    for key in routing.keys_of_name(session, scan.stream):
        session.links.remote.forget(key)


def _table(
    batches: Sequence[pa.RecordBatch], columns: Sequence[ResultColumn], schema: pa.Schema | None
) -> pa.Table:
    names = [f"c{place}" for place in range(len(columns))]
    if batches:
        return pa.Table.from_batches(batches).rename_columns(names)
    if schema is not None:
        return pa.Table.from_batches([], schema=schema).rename_columns(names)
    raise WrongState("a node has answered rows without their types")

"""The entry node's end of forwarding: a statement that runs on another node, answered as if it ran here.

The answer is the owner's own: columns, rows, tag, notices, errors and the effect on read positions. Its rows
arrive one reply at a time; the next reply is requested when the client has taken the last one. In a
transaction block a
stream of another node can be read in its state at the moment of that read, because it is in no snapshot of
this node; operations that would have to be atomic with the block's own writes are refused. Source:
docs/design/cluster.md, "Forwarding".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...engine.errors import (
    CachedPlanChanged,
    CannotConnect,
    ConnectionLost,
    DucktailError,
    DuplicateObject,
    NotSupported,
    UndefinedObject,
    UndefinedTable,
    WrongState,
)
from ...engine.placement.membership import ROUTED
from ...engine.placement.placement import Node
from ...engine.quoting import fold, literal
from ...engine.values.value_types import pg_type
from ...engine.waiting import Waiting
from ...engine.waiting import drive as run_blocking
from ..language import statements as st
from ..language.classify import classify
from ..language.parse import Query
from ..peers.links import Links
from ..peers.peer_frames import batch_of, head_of, tail_of
from ..peers.requests import CLOSE, FAILED, FETCH, Request
from ..read_shape.shape import shapes_of
from ..results.results import ReadySource, Result, ResultBatch, ResultColumn
from ..session_state.context import Context
from ..session_state.run_text import text
from ..session_state.statement import Description, ParsedStatement, RemoteTarget
from ..text.classified import Classified, Kind
from . import routing
from .definitions import named_anew


def placed(session: Context, classified: Classified, node: object) -> tuple[RemoteTarget | None, object]:
    """The other node that runs a statement, if any, and the statement with the scans to fetch marked.

    Raises:
        routing.Ask, routing.Describe: other nodes must be asked first.
        NotSupported: the statement concerns several nodes.
    """
    place = routing.placed(session, classified, node)
    if place.scans:
        assert isinstance(node, Query)
        return None, routing.marked(session, node, place.scans)
    if place.home is None:
        return None, node
    names = tuple(str(name) for name in routing.names(session, classified, node))
    return RemoteTarget(place.home, names, session.database.catalog.version), node


def is_remote(session: Context, statement: ParsedStatement) -> bool:
    """True if the statement runs on another node or reads from one, or may have come to do so."""
    if session.links is None:
        return False
    if statement.away is not None or statement.lacks:
        return True
    if statement.epoch != session.database.cluster.placement.epoch:
        return True  # A topic may be another node's now, or no longer be one node's alone.
    return any(there is not None for there, _ in _scans_away(statement))


def as_now(session: Context, statement: ParsedStatement) -> Waiting[ParsedStatement]:
    """A prepared statement with the present locations of its streams: this node, another node, or none.

    Raises:
        CachedPlanChanged: the types of its rows differ from those described to the client.
        UndefinedObject: a stream no longer exists on any node.
    """
    away, epoch = statement.away, session.database.cluster.placement.epoch
    known = away is not None and away.catalog == session.database.catalog.version
    if known and statement.epoch == epoch:
        return statement
    oids = tuple(pg_type(type_).oid if type_ else 0 for type_ in statement.parameter_types_given)
    again = yield from session.parse(statement.text, oids, told=False)
    if again.away is not None:
        if again.told_there and statement.described is not None:
            again.tell(statement.description)
        return again.as_arrow() if statement.arrow else again
    if away is None and _scans_away(again) == _scans_away(statement):
        statement.epoch = epoch
        return statement
    if statement.described is not None and _oids(statement.described) != _oids(again.columns):
        statement.forget()
        raise CachedPlanChanged
    return again.as_arrow() if statement.arrow else again


def _scans_away(statement: ParsedStatement) -> list[tuple[str | None, tuple[tuple[str, str], ...]]]:
    """For each scan of another node's stream, the node and its known columns."""
    node = statement.node
    return [(scan.away, scan.typed) for scan in node.scans] if isinstance(node, Query) else []


def is_told_there(statement: ParsedStatement) -> bool:
    """True if another node determines the columns of the statement, or of a scan in it."""
    if statement.away is not None:
        return not describes_itself(statement)
    return any(typed for there, typed in _scans_away(statement) if there is not None)


def describes_itself(statement: ParsedStatement) -> bool:
    """True if the description of the statement is the same on every node."""
    node = statement.node
    if isinstance(node, Query):
        plain = len(node.scans) == 1 and node.scans[0].envelope == "json" and node.transactions is None
        return plain and shapes_of(node)[0].plain is not None
    return statement.classified.kind is Kind.OURS and not isinstance(node, st.Publish)


def execute(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run a statement where its streams are.

    Raises:
        NotSupported: the statement writes on the other node, in a transaction block.
        CannotConnect. ConnectionLost. DucktailError: the owner's.
    """
    away = statement.away
    assert away is not None
    if session.block.begun and not _reads(statement):
        raise _not_in_block(away, statement.classified.verb)
    if isinstance(statement.node, st.RenameStream):
        # That node asks no other: whether one has the name is asked from here.
        known = _links(session).remote.known
        keys = routing.keys_of_name(session, statement.node.name)
        schema = next((key[0] for key in keys if known(key) == away.node), session.names.path[0])
        if session.names.find_stream((schema, statement.node.new)) is not None:
            raise DuplicateObject(f'stream "{statement.node.new}" already exists')
        return (
            yield from named_anew(
                session, schema, statement.node.new, lambda: _executed(session, statement, parameters)
            )
        )
    return (yield from _executed(session, statement, parameters))


def _not_in_block(away: RemoteTarget, what: str) -> NotSupported:
    return NotSupported(
        f"{what} on node {away.node.name} cannot be part of a transaction here",
        detail=f"{_streams(away)} on another node, and two nodes cannot commit as one.",
        hint="Run it outside of a transaction block, or on that node.",
    )


def _executed(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run a statement on its node, after the checks of `execute`."""
    source = yield from _source(session, statement, parameters, session.first_rows)
    if source.columns is None:
        assert source.tag is not None, "a statement without rows is answered whole"
        return Result.command(source.tag)
    # Nearly all answers come in one reply: nothing of theirs is waited for, or can fail, any more.
    result = Result(source.columns, source.ready() or source, source.tag_of, on_fail=source.failed)
    result.arrow_schema = source.schema
    _check_types(statement, result)
    return result


def read_pending(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[RowSource]:
    """Run a query at the owner of its streams, for a statement of this node; its rows come as Arrow.

    The rows become the read position only with `RowSource.counts`.

    Raises:
        CannotConnect. ConnectionLost. DucktailError: the owner's.
    """
    return (yield from _source(session, statement.as_arrow(), parameters, None, pending=True))


def _source(
    session: Context,
    statement: ParsedStatement,
    parameters: tuple[object, ...],
    rows: int | None,
    *,
    pending: bool = False,
) -> Waiting[RowSource]:
    """Start the statement on the other node and return the source of its rows."""
    away = statement.away
    assert away is not None
    reads, commits = _reads(statement), _commits(statement)
    if commits and session.block.begun:
        raise _not_in_block(away, "COMMIT OFFSETS")
    request = Request(
        "execute",
        statement.text,
        statement.parameter_types_given,
        parameters,
        rows=rows,
        portal=_links(session).number(),
        arrow=statement.arrow,
        pending=pending,
    )
    node = away.node
    _check_sure(session, statement, parameters)
    session.database.cluster.count(ROUTED)
    try:
        # A new connection knows of no read: it would not commit what was read on the lost one.
        source = yield from _begun(session, away, node, request, again=reads and not commits)
    except ConnectionLost:
        if reads and not pending:
            _links(session).unsure |= _members(statement, parameters)
        raise
    except (UndefinedObject, UndefinedTable) as error:
        moved = yield from _moved(session, statement, away)
        if moved is None:
            raise _told(session, statement, away, error) from error
        node = moved
        source = yield from _begun(session, away, node, request, again=reads and not commits)
    if reads and not pending and (members := _members(statement, parameters)):
        _links(session).unsure -= members
        source.members = members
    if session.block.begun:
        _links(session).has_read(node)
    return source


def _members(statement: ParsedStatement, parameters: tuple[object, ...]) -> frozenset[tuple[str, str]]:
    """Group and member of the reads of a statement, or of the read position that it commits."""
    node = statement.node
    found: list[tuple[st.Text | None, st.Text | None]] = []
    if isinstance(node, Query):
        found = [(scan.group, scan.member) for scan in node.scans]
    elif isinstance(node, st.CommitOffsets) and node.at is None:
        found = [(node.group, node.member)]
    return frozenset(
        (fold(text(group, parameters)), text(member, parameters))
        for group, member in found
        if group is not None and member is not None
    )


def _check_sure(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> None:
    """Refuse to commit a member's read position if the answer of its latest read was lost."""
    unsure = _links(session).unsure
    if unsure and isinstance(statement.node, st.CommitOffsets):
        for group, member in unsure & _members(statement, parameters):
            raise WrongState(
                f'the answer to the latest read of group "{group}" by member {literal(member)} is lost',
                detail="Nothing was committed.",
                hint="Read again: what was not committed comes again.",
            )


def _check_types(statement: ParsedStatement, result: Result) -> None:
    """Check that the answer has the described types: the owner may have created the table anew."""
    if statement.described is not None and _oids(statement.described) != _oids(result.columns):
        result.fail()
        statement.forget()
        raise CachedPlanChanged


def _oids(columns: Sequence[ResultColumn] | None) -> list[int] | None:
    return None if columns is None else [pg_type(column.type).oid for column in columns]


def describe(session: Context, statement: ParsedStatement) -> Waiting[Description]:
    """Describe a statement by asking its owner."""
    away = statement.away
    assert away is not None
    request = Request("describe", statement.text, statement.parameter_types_given)
    try:
        reply = yield from _links(session).ask(away.node, request, again=True)
    except (CannotConnect, ConnectionLost) as error:
        raise _where(away, error) from error
    except (UndefinedObject, UndefinedTable) as error:
        moved = yield from _moved(session, statement, away)
        if moved is None:
            raise _told(session, statement, away, error) from error
        reply = yield from _links(session).ask(moved, request, again=True)
    head = head_of(reply.frames[0])
    return Description(head.parameters, head.columns)


def columns_of(session: Context, node: Node, text: str) -> Waiting[tuple[ResultColumn, ...]]:
    """The columns of a query, as described by its node."""
    reply = yield from _links(session).ask(node, Request("describe", text), again=True)
    return head_of(reply.frames[0]).columns or ()


def describe_now(session: Context, statement: ParsedStatement) -> Description:
    """Describe a statement inside another one; blocks the worker thread."""
    return run_blocking(session.within_call(statement.text, lambda: describe(session, statement)))


def _links(session: Context) -> Links:
    links = session.links
    assert links is not None, "what runs on another node was found through links"
    return links


def _reads(statement: ParsedStatement) -> bool:
    """True if the statement changes nothing at the owner but the read positions of its session there.

    Such a statement is sent again after a broken connection, and allowed in a transaction block.
    """
    classified, node = statement.classified, statement.node
    if classified.kind is Kind.EXPLAIN and classified.explain is not None:
        return classify(classified.explain.inner).kind is Kind.READ
    if isinstance(node, Query):
        return classified.kind is Kind.READ and not classified.cte_writes
    row = st.row_of(node)
    return row is not None and row.effect is st.Effect.READS


def _commits(statement: ParsedStatement) -> bool:
    """True if the statement first commits the read position of its session at the owner."""
    node = statement.node
    return isinstance(node, Query) and node.commits is not None


def _streams(away: RemoteTarget) -> str:
    names = ", ".join(f'"{name}"' for name in away.streams)
    return f"Stream{'s' * (len(away.streams) > 1)} {names} {'are' if len(away.streams) > 1 else 'is'}"


def _begun(
    session: Context, away: RemoteTarget, node: Node, request: Request, *, again: bool
) -> Waiting[RowSource]:
    try:
        reply = yield from _links(session).ask(node, request, again=again)
    except (CannotConnect, ConnectionLost) as error:
        raise _where(away, error) from error
    return RowSource(session, away, node, request, reply.frames)


def _where(away: RemoteTarget, error: DucktailError) -> DucktailError:
    """A connection's error, with the purpose of the connection."""
    streams = f"{_streams(away)} there."
    error.detail = streams if error.detail is None else f"{streams} {error.detail}"
    return error


def _moved(session: Context, statement: ParsedStatement, away: RemoteTarget) -> Waiting[Node | None]:
    """The node that has the streams of a statement, if the directory was wrong; None if it was right."""
    links = _links(session)
    keys = routing.keys_of(session, statement.classified, statement.node)
    for key in keys:
        links.remote.forget(key)
    found = yield from links.look_up(keys)
    others = {node.name: node for node in found.values()}
    if len(others) != 1:
        return None
    (node,) = others.values()
    return None if node.name == away.node.name else node


def _told(
    session: Context, statement: ParsedStatement, away: RemoteTarget, error: DucktailError
) -> DucktailError:
    """An owner's error about a name, with a hint if this node has a table of that name."""
    if isinstance(error, UndefinedTable):
        error.detail = error.detail or f"The statement runs on node {away.node.name}. {_streams(away)} there."
        error.hint = "None of its tables is on this node, so it sees those of the stream's own node."
    return error


class RowSource:
    """The rows of an answer, one reply at a time.

    Attributes:
        columns: None if the answer has no rows.
        tag: the command tag, once all rows have arrived.
        members: group and member of its reads.
    """

    detached = True  # Other statements of the session leave it alone.
    counts_asked = True  # The rows that are asked for are those that its owner takes for read.

    def __init__(
        self, session: Context, away: RemoteTarget, node: Node, asked: Request, frames: tuple[bytes, ...]
    ) -> None:
        head = head_of(frames[0])
        self.columns, self.schema = head.columns, head.schema
        self.tag: str | None = None
        self._session = session
        self._away = away
        self._node = node
        self._portal, self._pending = asked.portal, asked.pending
        self._waiting: deque[bytes] = deque()
        self._more = True
        self.members: frozenset[tuple[str, str]] = frozenset()
        _links(session).goes_on(node, asked.portal)
        self._take(frames[1:])

    def _take(self, frames: tuple[bytes, ...]) -> None:
        tail = tail_of(frames[-1])
        self.tag, self._more = tail.tag, tail.more
        self._waiting.extend(frames[:-1])
        if not self._more:
            _links(self._session).ended(self._node, self._portal)

    def tag_of(self, rows: int) -> str:
        """The owner's command tag."""
        assert self.tag is not None, "an answer that is complete has its tag"
        return self.tag

    def ready(self) -> ReadySource | None:
        """All rows, if they have arrived."""
        return None if self._more else ReadySource([batch_of(frame) for frame in self._waiting])

    @property
    def inline(self) -> bool:
        """True if the next rows are on this node, or there are none."""
        return bool(self._waiting) or not self._more

    def arrive(self, limit: int | None) -> Waiting[None]:
        """Wait for the next rows, at most `limit`.

        Raises:
            ConnectionLost: the node is lost.
            DucktailError: the statement failed there.
        """
        if self.inline:
            return
        links = _links(self._session)
        request = Request(FETCH, rows=limit, portal=self._portal, pending=self._pending)
        try:
            reply = yield from links.ask(self._node, request)
        except (CannotConnect, ConnectionLost) as error:
            self._more = False
            links.ended(self._node, self._portal)
            links.unsure |= self.members
            raise _where(self._away, error) from error
        self._take(reply.frames)

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next rows; blocks unless `arrive` has waited for them."""
        if not self.inline:
            run_blocking(self.arrive(limit))
        return batch_of(self._waiting.popleft()) if self._waiting else None

    def counts(self, *, through: int | None = None, reason: str | None = None, member: bool = False) -> None:
        """Turn the rows that were read as pending into the read position at the owner.

        Args:
            through: the LSN up to which rows count as read; None for all rows.
            reason: the reason for which it leaves no read position instead.
            member: True for a member's read, from which other connections may continue: the owner is informed
                before the client.
        """
        if self._session.links is not None:
            more = {"through": through, "reason": reason}
            told = Request("counts", portal=self._portal, more=more)
            if (future := self._session.links.later(self._node, told)) is not None and member:
                self._session.told.append(future)

    def failed(self) -> None:
        """Void the rows at the owner, because the client receives no more of them."""
        if self._session.links is not None:
            self._session.links.later(self._node, Request(FAILED, portal=self._portal))
            self._session.links.ended(self._node, self._portal)

    def close(self) -> None:
        """Discard the remaining rows."""
        if self._more and self._session.links is not None:
            self._session.links.later(self._node, Request(CLOSE, portal=self._portal))
            self._session.links.ended(self._node, self._portal)
        self._more = False
        self._waiting.clear()

"""The lists of all nodes (streams, topics, groups), and the warning of LISTEN about other nodes.

An unavailable node is named in a WARNING; its objects are not in the answer. Source:
docs/design/cluster.md, "Lists".
"""

from __future__ import annotations

from collections.abc import Callable

from ...engine.catalog.streams import key_of
from ...engine.errors import DucktailError, NotSupported
from ...engine.waiting import Waiting
from ..language import statements as st
from ..peers.requests import Part
from ..results.results import Result, ResultColumn
from ..session_state.context import Context
from ..session_state.run_text import Values
from .shares import Row, Share, all_nodes, ask_nodes, epoch, in_cluster, listed, owners_of
from .topic_statements import rows_result

Handler = Callable[[Context, st.Statement, Values], Waiting[Result]]

NODE = ResultColumn("node", "VARCHAR")


def show(session: Context, asked: st.Statement, parameters: Values, plain: Handler) -> Waiting[Result]:
    """SHOW STREAMS, TOPICS, CONSUMER GROUPS: the rows of all nodes that answer, in order of names."""
    if not is_of_all_nodes(session, asked):
        return (yield from plain(session, asked, parameters))
    share = Share(asked, Part(epoch(session)), again=True)
    outcomes = yield from ask_nodes(session, dict.fromkeys(all_nodes(session), share))
    local = session.database.cluster.placement.local.name
    rows: list[Row] = []
    columns: tuple[ResultColumn, ...] = ()
    for node, outcome in outcomes.items():
        if isinstance(outcome, DucktailError) and node != local:
            warn(session, f'what node "{node}" has is not in the answer: {outcome}', outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            columns = outcome.columns
            rows += [(*row, node) for row in outcome.rows]
    rows.sort(key=lambda row: (*map(str, row[:2]), str(row[2]), str(row[-1])))
    return rows_result((*columns, NODE), rows, st.tag_of(asked))


def is_of_all_nodes(session: Context, asked: st.Statement) -> bool:
    """True if a SHOW lists the objects of all nodes of the cluster."""
    row = st.row_of(asked)
    if row is None or row.in_cluster is not st.InCluster.ALL_NODES:
        return False
    return getattr(asked, "stream", None) is None and in_cluster(session)


def listen(session: Context, asked: st.Listen, parameters: Values, plain: Handler) -> Waiting[Result]:
    """LISTEN on a name that may be a stream of another node."""
    if session.wire:
        yield from _check_heard(session, asked.channel)
    return (yield from plain(session, asked, parameters))


def _check_heard(session: Context, channel: str) -> Waiting[None]:
    """Report partitions on other nodes, which LISTEN does not cover."""
    hint = "Connect to that node, or read with WAIT."
    stream = session.names.find_stream((channel,))
    if stream is not None:
        if not stream.topic:
            return
        owners = owners_of(session, stream.schema, stream.name, stream.partitions)
        others = sorted(owners.remote)
        if not others:
            return
        if owners.local not in owners.partitions:
            raise NotSupported(
                f'LISTEN to topic "{channel}" is not supported here: its partitions are of {_nodes(others)}',
                hint=hint,
            )
        session.notices.add(
            f'of topic "{channel}" only the partitions of this node are told: others are of {_nodes(others)}',
            severity="WARNING",
            sqlstate="01000",
            hint=hint,
        )
        return
    if session.links is None:
        return
    keys = [key_of(schema, channel) for schema in session.names.path]
    try:
        found = yield from session.links.look_up(keys)
    except DucktailError as error:
        warn(session, f'cannot tell whether "{channel}" is a stream of another node: {error}', error)
        return
    for node in found.values():
        raise NotSupported(f'LISTEN to stream "{channel}" of node "{node.name}" is not supported', hint=hint)


def _nodes(names: list[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"node{'s' if len(names) > 1 else ''} {listed(quoted)}"


def warn(session: Context, message: str, error: DucktailError, hint: str | None = None) -> None:
    session.notices.add(message, severity="WARNING", sqlstate=error.sqlstate, detail=error.detail, hint=hint)

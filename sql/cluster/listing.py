"""What is listed on all nodes: streams, topics and groups; and what LISTEN does not hear of.

A node that is away is told in a WARNING with its name: what it has is not in the answer.
Source: docs/design/cluster.md, "Lists".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ...engine.catalog.streams import key_of
from ...engine.errors import DucktailError, NotSupported
from ...engine.waiting import Waiting
from ..language import statements as st
from ..language.position_text import format_positions
from ..peers.owners import Owners
from ..peers.part import Part
from ..session_state.context import Context
from .shares import Row, Share, all_nodes, ask_nodes, epoch, listed, owners_of

# Places in a row of SHOW CHECKPOINTS.
CONSUMER, GROUP, POSITION, AGE = 2, 3, 5, 9


def everywhere(session: Context, asked: st.Statement) -> Waiting[list[Row]]:
    """The rows of a SHOW of all nodes that answer, each with its node's name behind it; in order of names."""
    share = Share(asked, Part(epoch(session)), again=True)
    outcomes = yield from ask_nodes(session, dict.fromkeys(all_nodes(session), share))
    local = session.database.cluster.placement.local.name
    rows: list[Row] = []
    for node, outcome in outcomes.items():
        if isinstance(outcome, DucktailError) and node != local:
            warn(session, f'what node "{node}" has is not in the answer: {outcome}', outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            rows += [(*row, node) for row in outcome.rows]
    return sorted(rows, key=lambda row: (*map(str, row[:2]), str(row[2]), str(row[-1])))


def checkpoints_of(answers: Mapping[str, Sequence[Row]], owners: Owners) -> list[Row]:
    """The rows of SHOW CHECKPOINTS ON a topic, of what its owners show.

    A group's position is in each partition what its owner says, and as old as the latest of its commits.
    """
    rows: list[Row] = []
    groups: dict[object, list[tuple[str, Row]]] = {}
    for node, shown in answers.items():
        for row in shown:
            if row[CONSUMER] is None:
                groups.setdefault(row[GROUP], []).append((node, row))
            else:
                rows.append(row)
    for _, told in sorted(groups.items(), key=lambda item: str(item[0])):
        lsns: dict[int, int] = {}
        for node, row in told:
            lsns |= {
                int(p): lsn for p, lsn in json.loads(str(row[POSITION])).items() if owners.of(int(p)) == node
            }
        whole = list(told[0][1])
        whole[POSITION] = format_positions(dict(sorted(lsns.items())))
        whole[AGE] = min((float(str(row[AGE])) for _, row in told if row[AGE] is not None), default=None)
        rows.append(tuple(whole))
    return rows


def check_heard(session: Context, channel: str) -> Waiting[None]:
    """LISTEN hears of this node's own partitions: what it would not hear of is told.

    Raises:
        NotSupported: 0A000, the channel is a stream of another node, or a topic of which it has nothing.
    """
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

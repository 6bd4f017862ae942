"""Bookmarks of a topic that other nodes have partitions of: one map of LSNs, which every node keeps.

Each owner goes by its own partitions of it: it checks their LSNs, counts their events, and moves a group
there. The home makes a bookmark first, so that of two statements with one name one is refused; what was done
on some nodes only stands, and the error says where. Source: docs/design/cluster.md, "Bookmarks".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from ...engine.catalog.streams import Stream
from ...engine.errors import DucktailError, NotSupported
from ...engine.quoting import fold
from ...engine.waiting import Waiting, all_of
from ..context import Context
from ..language import statements as st
from ..language import statements_other as sto
from ..language.position_text import format_positions
from ..language.render import render_statement
from ..peers.owners import Owners
from ..peers.part import Part
from ..results.results import ResultColumn
from .offsets import name_of
from .shares import Row, ask_rows, first_failure, listed, named, other_nodes, own_share

Here = Callable[[st.Statement], Waiting[list[Row]]]
HINT = "What is done stands: DROP BOOKMARK IF EXISTS takes it away wherever it is."


def refuse_block(session: Context, verb: str) -> None:
    """Refuse what nodes do each in a transaction of its own.

    Raises:
        NotSupported: 0A000.
    """
    if session.block.begun:
        raise NotSupported(
            f"{verb} in a transaction block is not supported on a topic of several nodes' partitions",
            detail="Each node does it in a transaction of its own.",
            hint="Run it by itself, in autocommit.",
        )


def make(
    session: Context, stream: Stream, owners: Owners, name: str, lsns: Mapping[int, int], here: Here
) -> Waiting[None]:
    """Make a bookmark on every node.

    Args:
        lsns: partition -> LSN.
        here: does this node's own share.

    Raises:
        DucktailError: a node's; it says where it is done.
    """
    statement = sto.CreateBookmark(name, name_of(stream), at=format_positions(lsns))
    local = owners.local
    yield from _on(session, owners, name, statement, [local, *other_nodes(session)], here)


def drop(
    session: Context, stream: Stream, owners: Owners, name: str, shown: sto.ShowBookmarks, here: Here
) -> Waiting[bool]:
    """Drop a bookmark on every node that has it.

    Args:
        shown: asks a node for its bookmarks of the topic, whose third column is the name.

    Returns:
        Whether one has it.
    """
    nodes = [owners.local, *other_nodes(session)]
    answers = yield from asked(session, owners, shown, nodes, here)
    there = [node for node, rows in answers.items() if any(fold(str(r[2])) == fold(name) for r in rows)]
    if there:
        yield from _on(session, owners, name, sto.DropBookmark(name, name_of(stream)), there, here)
    return bool(there)


def asked(
    session: Context, owners: Owners, statement: st.Statement, nodes: Sequence[str], here: Here
) -> Waiting[dict[str, list[Row]]]:
    """What nodes answer to a statement.

    Raises:
        DucktailError: the first one's that fails.
    """
    outcomes = yield from _outcomes(session, owners, statement, nodes, here)
    found: dict[str, list[Row]] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise named(outcome, f'node "{node}": {outcome}', getattr(outcome, "detail", None)) from outcome
        found[node] = outcome
    return found


def _outcomes(
    session: Context, owners: Owners, statement: st.Statement, nodes: Sequence[str], here: Here
) -> Waiting[dict[str, list[Row] | Exception]]:
    part = Part(owners.epoch)
    sql = part.text(render_statement(statement))

    def own() -> Waiting[list[Row]]:
        with own_share(session, part):
            return (yield from here(statement))

    works = [own() if node == owners.local else ask_rows(session, node, sql) for node in nodes]
    found = yield from all_of(works, session.database.clock.monotonic_s, told=True)
    return dict(zip(nodes, found, strict=True))


def _on(
    session: Context, owners: Owners, name: str, statement: st.Statement, nodes: Sequence[str], here: Here
) -> Waiting[None]:
    """Do it on these nodes, the home first."""
    done: list[str] = []
    first = [node for node in nodes if node == owners.home]
    for stage in (first, [node for node in nodes if node != owners.home]):
        outcomes = yield from _outcomes(session, owners, statement, stage, here)
        failed = {node: error for node, error in outcomes.items() if isinstance(error, Exception)}
        done += [node for node in stage if node not in failed]
        if failed:
            node, error = first_failure(failed)
            if not done and isinstance(error, DucktailError):
                raise error
            left = [one for one in nodes if one not in done]
            detail = f"It is done on {listed(done)} and not on {listed(left)}."
            raise named(error, f'bookmark "{name}": node "{node}": {error}', detail, HINT) from error


def merged(columns: Sequence[ResultColumn], answers: Mapping[str, Sequence[Row]]) -> list[Row]:
    """One row for each bookmark, of what owners say of their own partitions."""
    names = [column.name for column in columns]
    of: dict[str, list[dict[str, object]]] = {}
    for rows in answers.values():
        for row in rows:
            facts = dict(zip(names, row, strict=True))
            of.setdefault(fold(str(facts["bookmark_name"])), []).append(facts)
    found: list[Row] = []
    for _, parts in sorted(of.items()):
        trimmed: dict[str, int] = {}
        for part in parts:
            trimmed |= json.loads(str(part["trimmed"])) if part["trimmed"] else {}
        facts = parts[0] | {
            "whole": len(parts) == len(answers) and all(part["whole"] for part in parts),
            "events": sum(int(str(part["events"])) for part in parts),
            "trimmed_events": sum(int(str(part["trimmed_events"])) for part in parts),
            "trimmed": json.dumps(dict(sorted(trimmed.items(), key=lambda one: int(one[0]))))
            if trimmed
            else None,
        }
        found.append(tuple(facts[name] for name in names))
    return found

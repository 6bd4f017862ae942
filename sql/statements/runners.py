"""The functions that run the statements of the language, by node class.

`@runs(NodeClass)` registers a function as the runner of these statements. A SHOW whose row names a view needs
no runner of its own: `show.runner` makes it. Source: docs/design/sql.md, "A statement is one row".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...engine.waiting import Waiting
from ..cluster import shares, topic_statements
from ..cluster.topic_statements import SharedTopic
from ..language import statements as st
from ..reading import commit_offsets
from ..results.results import Result, ResultColumn
from ..session_state.context import Context
from ..session_state.run_text import Values, text_rows

Columns = Sequence[tuple[str, str]]
# Arguments: the session, the statement and the values of its parameters.
Run = Callable[..., Waiting[Result]]
# Arguments: the topic and the statement.
RunAtOwners = Callable[..., Waiting[Result | None]]
RunT = TypeVar("RunT", bound=Run)


@dataclass(frozen=True, slots=True)
class Runner:
    """The runner of a statement.

    Args:
        run: runs the statement on this node.
        columns: the columns of its answer, name and DuckDB type; None without rows.
        in_cluster: runs it in a cluster instead; receives `run` as an argument.
        at_owners: runs it on a topic with several owners; it returns None if only this node has to run it.
    """

    run: Run
    columns: Columns | None = None
    in_cluster: Run | None = None
    at_owners: RunAtOwners | None = None

    def start(self, session: Context, node: st.Statement, parameters: Values) -> Waiting[Result]:
        """Run a statement."""
        # On a standalone node only the runner looks the stream's name up.
        if not shares.in_cluster(session):
            return (yield from self.run(session, node, parameters))
        if self.in_cluster is not None:
            return (yield from self.in_cluster(session, node, parameters, self.run))
        if self.at_owners is not None and (name := getattr(node, "stream", None)) is not None:
            topic = session.names.find_stream(name.parts)
            if topic is not None and (owners := shares.remote_owners(session, topic)) is not None:
                shared = SharedTopic(session, topic, owners, parameters)
                if (done := (yield from self.at_owners(shared, node))) is not None:
                    return done
        return (yield from self.run(session, node, parameters))


# Commits of offsets run in `reading`, with the scans whose positions they commit.
RUNNERS: dict[type[st.Statement], Runner] = {
    st.CommitOffset: Runner(commit_offsets.commit_offset, at_owners=topic_statements.commit_offsets),
    st.CommitOffsets: Runner(commit_offsets.commit_offsets, at_owners=topic_statements.commit_offsets),
}


def runs(
    node: type[st.Statement],
    columns: Columns | None = None,
    in_cluster: Run | None = None,
    at_owners: RunAtOwners | None = None,
) -> Callable[[RunT], RunT]:
    """Make a function the runner of the statements of a node class."""

    def register(run: RunT) -> RunT:
        assert node not in RUNNERS, node
        RUNNERS[node] = Runner(run, columns, in_cluster, at_owners)
        return run

    return register


def answer(asked: st.Statement, rows: Sequence[Sequence[object]]) -> Result:
    """The rows of a statement as its result, under its columns and its command tag."""
    columns = RUNNERS[type(asked)].columns
    assert columns is not None
    return text_rows(columns, rows, st.tag_of(asked))


def columns_of(asked: st.Statement) -> tuple[ResultColumn, ...] | None:
    """The columns of a statement's answer; None without rows."""
    runner = RUNNERS.get(type(asked))
    columns = None if runner is None else runner.columns
    return None if columns is None else tuple(ResultColumn(*column) for column in columns)

"""The table of all statements of the language: by opening words, and by node class."""

from __future__ import annotations

from ..grammar import Grammar
from . import (
    bookmarks,
    cluster,
    groups,
    notifications,
    offsets,
    pipelines,
    publishing,
    replication,
    sinks,
    sources,
    streams,
    topics,
    users,
)
from .row import Row, Statement, has_behind_name

ROWS: tuple[Row, ...] = (
    *streams.ROWS,
    *topics.ROWS,
    *publishing.ROWS,
    *groups.ROWS,
    *offsets.ROWS,
    *bookmarks.ROWS,
    *sinks.ROWS,
    *sources.ROWS,
    *pipelines.ROWS,
    *users.ROWS,
    *cluster.ROWS,
    *replication.ROWS,
    *notifications.ROWS,
)

_BY_NODE: dict[type, Row] = {row.node: row for row in ROWS}
# Of several statements with the same opening words, the first row has the grammar.
OPENINGS: dict[tuple[str, ...], Row] = {words: row for row in reversed(ROWS) for words in row.openings}
# IF NOT EXISTS, a name with two qualifiers, and the words behind it.
NAME_TOKENS_MAX = 12
_WORDS_MAX = max(len(words) for words in OPENINGS)


def row_of(node: object) -> Row | None:
    """The row of a statement; None if the node is no statement of the language."""
    return _BY_NODE.get(type(node))


def render_statement(statement: Statement) -> str:
    """A statement as SQL: the text parses to the same value."""
    return _BY_NODE[type(statement)].render(statement)


def tag_of(statement: Statement) -> str:
    """The command tag of a statement."""
    return _BY_NODE[type(statement)].tag


def find_opening(g: Grammar) -> Row | None:
    """Read the opening words of a statement; None, with nothing read, if there are none.

    `DESCRIBE stream` alone describes a table of that name.
    """
    start = g.index
    kinds = [g.peek(ahead) for ahead in range(_WORDS_MAX)]
    for count in range(_WORDS_MAX, 0, -1):
        row = OPENINGS.get(tuple(kinds[:count]))
        if row is None:
            continue
        g.index += count
        if row.needs_name and not g.is_name_ahead():
            g.index = start
            continue
        if row.behind_name:
            ahead = [g.peek(place) for place in range(NAME_TOKENS_MAX)]
            if not has_behind_name(ahead, row.behind_name):
                g.index = start
                continue
        return row
    return None

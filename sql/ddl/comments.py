"""COMMENT ON objects; those on a table and on its constraints are one comment of the table to DuckDB.

Source: docs/sql.md, "Definitions in PostgreSQL's form"; engine/duck/constraint_comments.py.
"""

from __future__ import annotations

from ...engine.duck import constraint_comments
from ...engine.duck.objects import TABLE, Object
from ...engine.errors import UndefinedObject
from ...engine.quoting import fold, literal
from ..session_state.context import Context
from ..session_state.run_text import count_of
from ..text.classified import Classified
from ..text.spans import Replacement, cut
from ..text.tokens import STRING


def comment(session: Context, classified: Classified) -> int:
    """Set a comment in the caller's transaction; of those on a table and its constraints the others stay."""
    facts, cursor = classified.ddl, session.cursor
    assert facts is not None
    shared = facts.object_type in ("TABLE", "CONSTRAINT")
    table = session.names.resolver.find(TABLE, facts.table) if shared and facts.table else None
    if table is None or table.kind != TABLE:
        return count_of(session, _text(classified), ())  # DuckDB reports a missing one.
    own, others = constraint_comments.split(constraint_comments.read(cursor, table))
    name = None if facts.object_type == "TABLE" else _constraint(session, table, classified)
    count_of(session, _text(classified), ())
    given = constraint_comments.read(cursor, table)
    if name is None:
        own = given
    elif given:
        others[name] = given
    else:
        others.pop(name, None)
    comment = constraint_comments.joined(own, others)
    if comment != given:
        count_of(session, constraint_comments.statement(table, comment), ())
    return 0


def _text(classified: Classified) -> str:
    """The text in DuckDB's form, where a constraint's table has the comment.

    DuckDB takes the escapes in `E'...'` for the comment's own characters here.
    """
    facts, text = classified.ddl, classified.text
    assert facts is not None
    escaped = (token for token in classified.tokens if token.kind == STRING and token.text[0] in "eE")
    text = cut(text, [Replacement(token.start, token.end, literal(token.value)) for token in escaped])
    return text if facts.object_type != "CONSTRAINT" else f"COMMENT ON TABLE {text[facts.places[0] :]}"


def _constraint(session: Context, table: Object, classified: Classified) -> str:
    """The name of the constraint, as the catalog has it."""
    token = classified.tokens[3]
    for name in constraint_comments.names_of(session.cursor, table):
        if fold(name) == fold(token.name):
            return name
    raise UndefinedObject(
        f'constraint "{token.name}" for table "{table.name}" does not exist', position=token.start + 1
    )

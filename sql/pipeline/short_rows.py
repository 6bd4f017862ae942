"""INSERT of rows with fewer values than the table has columns: the rest take their defaults.

DuckDB requires a value for each column, or a list of columns, which is inserted. Source: PostgreSQL
documentation, "INSERT".
"""

from __future__ import annotations

from functools import lru_cache

from ...engine.duck.objects import TABLE
from ...engine.quoting import ident
from ..session_state.context import Context
from ..text.classified import Classified, Name
from ..text.spans import Replacement
from ..text.tokens import QUOTED, closing, tokenize

# The number of tables whose columns are remembered.
TABLES_KEPT = 256
_CONSTRAINTS = frozenset({"PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT"})


def column_list(session: Context, classified: Classified) -> Replacement | None:
    """The insertion of the list of columns that `INSERT INTO t VALUES ...` fills; None if it fills all."""
    facts, tokens = classified.dml, classified.tokens
    if facts is None or classified.verb != "INSERT":
        return None
    target = facts.main + 1
    while target < len(tokens) and tokens[target].start < facts.target_position:
        target += 1
    at = target + 2 * len(facts.target) - 1
    if facts.alias is not None:
        at += 2 if tokens[at].kind == "AS" else 1
    if [token.kind for token in tokens[at : at + 2]] != ["VALUES", "("]:
        return None
    last, depth = closing(tokens, at + 1), tokens[at + 1].depth + 1
    values = tokens[at + 2 : last]
    count = sum(token.kind == "," and token.depth == depth for token in values) + bool(values)
    columns = _of_table(session, facts.target)
    if columns is None or not 0 < count < len(columns):
        return None
    place = tokens[at].start
    return Replacement(place, place, f"({', '.join(map(ident, columns[:count]))}) ")


def _of_table(session: Context, name: Name) -> tuple[str, ...] | None:
    """As `_columns`; None for no table. Those of a captured table are known without a question to DuckDB."""
    if not session.block.ddl and len(name) < 3:
        captured = session.block.tables.get(session.names.table_key(name))
        if captured is not None:
            shape = captured.shape
            return None if shape.generated else tuple(column.name for column in shape.stored)
    table = session.names.resolver.find(TABLE, name)
    return _columns(table.definition) if table is not None and table.kind == TABLE else None


@lru_cache(TABLES_KEPT)
def _columns(definition: str) -> tuple[str, ...] | None:
    """The columns of a table, from DuckDB's text of it; None if some are generated, whose places count.

    >>> _columns('CREATE TABLE t(a INTEGER, "B c" VARCHAR, CHECK((a > 1)))')
    ('a', 'B c')
    """
    tokens = tokenize(definition)
    opening = next((at for at, token in enumerate(tokens) if token.kind == "("), None)
    if opening is None:
        return None
    end = closing(tokens, opening)
    starts = [opening + 1]
    starts += (i + 1 for i in range(opening, end) if tokens[i].kind == "," and tokens[i].depth == 1)
    found = []
    for first, until in zip(starts, [*(start - 1 for start in starts[1:]), end], strict=True):
        generated = any(token.kind == "GENERATED" and token.depth == 1 for token in tokens[first + 1 : until])
        if generated:
            return None
        if tokens[first].kind == QUOTED or tokens[first].kind not in _CONSTRAINTS:
            found.append(tokens[first].name)
    return tuple(found)

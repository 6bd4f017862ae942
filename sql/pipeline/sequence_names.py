"""Sequences that nextval, currval and setval name by their column or as a regclass, as clients do.

DuckDB takes the name of a sequence as a constant, when it binds a statement. So
`setval(pg_get_serial_sequence('t', 'id'), 5)` becomes `setval('"main"."t_id_seq"', 5)` before that, and
`nextval('s'::regclass)` loses its cast. Source: docs/sql.md, "SERIAL and IDENTITY".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.duck.identities import own_sequences
from ...engine.duck.objects import SEQUENCE, TABLE
from ...engine.errors import UndefinedColumn, UndefinedTable
from ...engine.quoting import fold, literal
from ..rights.analysis import SEQUENCES
from ..session_state.context import Context
from ..text.spans import Replacement
from ..text.tokens import STRING, Token, tokenize
from .postgres_schemas import parts_in_main

SERIAL_SEQUENCE = "pg_get_serial_sequence"


def may_name_sequence(folded: str) -> bool:
    """True if a folded text may name a sequence in one of these ways."""
    return SERIAL_SEQUENCE in folded or ("regclass" in folded and any(name in folded for name in SEQUENCES))


def named_sequences(session: Context, tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacements that make the names of sequences constants.

    Raises:
        UndefinedTable: the table of such a column does not exist.
        UndefinedColumn: the column does not exist, or has no sequence of its own.
    """
    for at, token in enumerate(tokens[:-3]):
        if not token.is_name or fold(token.name) not in SEQUENCES or tokens[at + 1].kind != "(":
            continue
        kinds = [found.kind for found in tokens[at + 2 : at + 12]]
        if kinds[:3] == [STRING, "::", "REGCLASS"]:
            yield Replacement(tokens[at + 2].end, tokens[at + 4].end, "")
            continue
        first = at + 4 if kinds[:2] == ["PG_CATALOG", "."] else at + 2
        call = [found.kind for found in tokens[first : first + 6]]
        if call == [SERIAL_SEQUENCE.upper(), "(", STRING, ",", STRING, ")"]:
            last = first + 5
            name = _sequence_of(session, tokens[first + 2], tokens[first + 4].value)
            if [found.kind for found in tokens[last + 1 : last + 3]] == ["::", "REGCLASS"]:
                last += 2
            yield Replacement(tokens[first].start, tokens[last].end, name)


# The columns of a sequence as a relation.
_COLUMNS = frozenset({"LAST_VALUE", "LOG_CNT", "IS_CALLED"})


def may_read_sequence(folded: str) -> bool:
    """True if a folded text may read a sequence as a relation."""
    return "last_value" in folded and "from" in folded


def read_sequences(session: Context, tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacement of the sequence in `SELECT last_value FROM s`, which is no relation in DuckDB."""
    kinds = [token.kind for token in tokens if token.kind != ";"]
    start = kinds.index("FROM") if "FROM" in kinds else 0
    listed, name = kinds[1:start:2], kinds[start + 1 :]
    if kinds[:1] != ["SELECT"] or not listed or not _COLUMNS.issuperset(listed):
        return
    if set(kinds[2:start:2]) - {","} or len(name) not in (1, 3) or name[1:2] not in ([], ["."]):
        return
    first, last = tokens[start + 1], tokens[start + len(name)]
    parts = tuple(token.name for token in tokens[start + 1 : start + len(name) + 1] if token.is_name)
    find, parts = session.names.resolver.find, parts_in_main(session, parts)
    found = find(SEQUENCE, parts) if find(TABLE, parts) is None else None
    if found is not None:
        relation = _AS_RELATION.format(literal(found.schema), literal(found.name))
        yield Replacement(first.start, last.end, relation)


# DuckDB shows no last value of a sequence that has given none since the file was opened.
_AS_RELATION = (
    "(SELECT coalesce(last_value, start_value) AS last_value, 0::BIGINT AS log_cnt, "
    "last_value IS NOT NULL AS is_called FROM system.main.duckdb_sequences() "
    "WHERE database_name = current_database() AND schema_name = {} AND sequence_name = {})"
)


def _sequence_of(session: Context, table: Token, column: str) -> str:
    """The literal name of a column's own sequence."""
    parts = tuple(token.name for token in tokenize(table.value) if token.kind != ".")
    found = session.names.resolver.find(TABLE, parts_in_main(session, parts))
    if found is None:
        raise UndefinedTable(f'relation "{table.value}" does not exist', position=table.start + 1)
    cursor = session.cursor if found.temporary else session.names.cursor()
    own = {fold(name): sequence for name, (_, sequence) in own_sequences(cursor, found).items()}
    if fold(column) not in own:
        raise UndefinedColumn(
            f'column "{column}" of relation "{found.name}" has no sequence of its own',
            position=table.start + 1,
        )
    return own[fold(column)]

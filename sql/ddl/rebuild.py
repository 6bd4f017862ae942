"""ALTER TABLE that DuckDB refuses because of keys and indexes: the table is created again with the change.

DuckDB drops no constraint, and no column before or in a key or an index; it changes no type of an indexed
column, adds neither CHECK nor FOREIGN KEY, and forgets the name of a key that it adds. In one transaction the
rows move to a temporary table, the table is dropped and created from DuckDB's own text of it with the change,
and everything that belonged to it is created again: sequences of its columns at the same next value, indexes,
comments. A constraint or an index that involves a dropped column goes with it, as in PostgreSQL.

A table with streams or triggers, and one to which foreign keys refer, is left to DuckDB, which refuses.
Source: docs/sql.md, "Clauses".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...engine.duck import constraint_comments, constraint_names
from ...engine.duck.cursors import ask_maybe
from ...engine.duck.identities import drop_statements, name_in, own_sequences
from ...engine.duck.objects import TABLE, Object
from ...engine.duck.table_shape import RESERVED_PREFIX, Index, indexes_of
from ...engine.errors import DuplicateObject
from ...engine.quoting import fold, folded_sql, ident, literal
from ..session_state.context import Context
from ..text.classified import Classified, TokenReader
from ..text.tokens import QUOTED, Token, tokenize

_ROWS = f"temp.main.{RESERVED_PREFIX}_rebuilt"
_HERE = "database_name = $1 AND schema_name = $2 AND table_name = $3"
# Words that end the type of a column in DuckDB's text of a table.
_AFTER_TYPE = frozenset(
    {"DEFAULT", "PRIMARY", "UNIQUE", "NOT", "NULL", "CHECK", "GENERATED", "COLLATE", "USING"}
)
_CONSTRAINTS = frozenset({"PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT"})


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of a table.

    Args:
        kind: PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK.
        name: its name.
        text: DuckDB's text of it, as it is in the table's definition if it is no part of a column's.
        columns: its columns.
    """

    kind: str
    name: str
    text: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a table that is created again.

    Args:
        drops: the column that goes, or None.
        retypes: a column, its new type and the expression of its values.
        adds: a constraint.
        removes: a constraint.
    """

    table: Object
    drops: str | None = None
    retypes: tuple[str, str, str] | None = None
    adds: str | None = None
    removes: Constraint | None = None


def change_of(session: Context, classified: Classified) -> Change | None:
    """The change for which DuckDB requires the table to be created again; None if it can alter the table."""
    facts = classified.ddl
    assert facts is not None
    if facts.verb != "ALTER" or facts.table is None or facts.action not in ("DROP COLUMN", "ALTER TYPE", ""):
        return None
    table = session.names.resolver.find(TABLE, facts.table)
    if table is None or table.kind != TABLE or table.temporary:
        return None
    change = _asked(session, classified, table)
    if change is None or not is_possible(session, table):
        return None
    column = change.drops or (change.retypes[0] if change.retypes else None)
    return change if column is None or _is_bound(session, table, column, after=bool(change.drops)) else None


def is_possible(session: Context, table: Object) -> bool:
    """True if a table without streams can be created again."""
    triggers = session.database.catalog.triggers
    return not (table.temporary or triggers.on(table.key) or _is_referenced(session, table))


def constraint_of(session: Context, table: Object, name: str) -> Constraint | None:
    """A constraint of a table by its name, or None; NOT NULL has none."""
    found = ask_maybe(
        session.cursor if table.temporary else session.names.cursor(),
        "SELECT constraint_type, constraint_text, constraint_column_names "
        f"FROM ({constraint_names.listed_sql('system.main.duckdb_constraints()')}) "
        f"WHERE {_HERE} AND constraint_name = $4 AND constraint_type <> 'NOT NULL' LIMIT 1",
        [*_place(table), name],
    )
    return None if found is None else Constraint(found[0], name, found[1], tuple(found[2]))


def _asked(session: Context, classified: Classified, table: Object) -> Change | None:
    """The change that the text of an ALTER TABLE asks for."""
    facts, tokens = classified.ddl, classified.tokens
    assert facts is not None and facts.table is not None
    at = next(i for i, token in enumerate(tokens) if token.start == facts.places[0])
    reader = TokenReader(classified.text, tokens, at + 2 * len(facts.table) - 1)
    if facts.action == "DROP COLUMN":
        reader.take()
        reader.accept("COLUMN")
        reader.accept("IF", "EXISTS")
        name = reader.qualified()
        return Change(table, drops=name[0]) if len(name) == 1 else None
    if facts.action == "ALTER TYPE":
        reader.take()
        reader.accept("COLUMN")
        name = reader.qualified()
        reader.accept("SET", "DATA")
        reader.take()
        first = reader.index
        using = next((i for i in range(first, len(tokens)) if tokens[i].kind == "USING"), len(tokens))
        type_ = reader.cut(first, using)
        value = reader.cut(using + 1, len(tokens)) or f"CAST({ident(name[0])} AS {type_})"
        return Change(table, retypes=(name[0], type_, value)) if len(name) == 1 else None
    if reader.accept("DROP", "CONSTRAINT"):
        constraint = constraint_of(session, table, reader.identifier())
        return None if constraint is None else Change(table, removes=constraint)
    return _added(session, reader, table) if reader.accept("ADD") else None


def _added(session: Context, reader: TokenReader, table: Object) -> Change | None:
    """The change for ADD of a constraint; None for a key without a name, which DuckDB adds."""
    name = reader.identifier() if reader.accept("CONSTRAINT") else None
    if name is not None and constraint_of(session, table, name) is not None:
        raise DuplicateObject(f'constraint "{name}" for relation "{table.name}" already exists')
    first = reader.index
    if reader.peek() == "CHECK":
        return Change(table, adds=reader.rest()[0])
    kind = next((kind for kind in constraint_names.KEYS if reader.accept(*kind.split())), None)
    if kind is None or reader.peek() != "(" or (name is None and kind != constraint_names.FOREIGN_KEY):
        return None
    columns = [reader.tokens[at].name for at, _ in reader.slices(*reader.brackets())]
    added = reader.cut(first, len(reader.tokens))
    named = "" if name is None else f", {constraint_names.key_check(kind, name, columns)}"
    return Change(table, adds=added + named)


def _place(table: Object) -> list[object]:
    return [table.catalog, table.schema, table.name]


def _is_referenced(session: Context, table: Object) -> bool:
    sql = (
        "SELECT 1 FROM system.main.duckdb_constraints() WHERE database_name = $1 AND schema_name = $2 "
        f"AND constraint_type = 'FOREIGN KEY' AND {folded_sql('referenced_table')} = $3 LIMIT 1"
    )
    given = [table.catalog, table.schema, fold(table.name)]
    return ask_maybe(session.names.cursor(), sql, given) is not None


def _is_bound(session: Context, table: Object, column: str, *, after: bool) -> bool:
    """True if the table has an index, or a key or CHECK of this column.

    Args:
        after: or one behind it, or the column has a sequence of its own, which goes with it.
    """
    cursor = session.names.cursor()
    places = cursor.execute(
        f"SELECT {folded_sql('column_name')} FROM system.main.duckdb_columns() WHERE {_HERE} "
        "ORDER BY column_index",
        _place(table),
    ).fetchall()
    names = [str(name) for (name,) in places]
    if fold(column) not in names or len(names) == 1:
        return False  # DuckDB reports it.
    own = own_sequences(cursor, table)
    if indexes_of(cursor, table.schema, table.name) or (after and any(fold(c) == fold(column) for c in own)):
        return True
    wanted = set(names[names.index(fold(column)) :] if after else [fold(column)])
    constraints = cursor.execute(
        f"SELECT constraint_column_names FROM system.main.duckdb_constraints() WHERE {_HERE} "
        "AND constraint_type <> 'NOT NULL'",
        _place(table),
    ).fetchall()
    return any(fold(name) in wanted for (found,) in constraints for name in found)


def _uses(index: Index, column: str) -> bool:
    """True if an index may use a column."""
    named = (token for element in index.expressions for token in tokenize(element))
    return any(token.is_name and fold(token.name) == fold(column) for token in named)


def statements(session: Context, change: Change) -> Iterator[str]:
    """The statements that create the table again; each runs before the next is asked for."""
    table, cursor = change.table, session.cursor
    own = own_sequences(cursor, table)
    stored = _stored(session, change)
    sequences = list(_sequences(session, table, own, change))
    indexes = [
        index
        for index in indexes_of(cursor, table.schema, table.name)
        if change.drops is None or not _uses(index, change.drops)
    ]
    on_table, on_constraints = constraint_comments.split(constraint_comments.read(cursor, table))
    on_columns = list(_comments(session, change))
    columns = ", ".join(map(ident, stored))
    values = columns
    if change.retypes is not None:
        name, _, new = change.retypes
        values = ", ".join(f"{new} AS {ident(c)}" if fold(c) == fold(name) else ident(c) for c in stored)
    definition = _definition(change)
    yield f"CREATE TEMP TABLE {_ROWS.rpartition('.')[2]} AS SELECT {values} FROM {table.in_full}"
    yield from drop_statements(cursor, table.schema, table.name)
    yield from (made for made, _, _ in sequences)
    yield f"CREATE TABLE {table.in_full} {definition}"
    yield f"INSERT INTO {table.in_full} ({columns}) FROM {_ROWS}"
    yield f"DROP TABLE {_ROWS}"
    for _, name, value in sequences:
        if value is not None:
            yield f"SELECT setval({literal(name)}, {value}, true)"
    for index in indexes:
        unique = "UNIQUE " if index.unique else ""
        elements = ", ".join(index.expressions)
        yield f"CREATE {unique}INDEX {ident(index.name)} ON {table.in_full} ({elements})"
    yield from on_columns
    remaining = constraint_comments.names_of(cursor, table) if on_constraints else ()
    kept = {name: text for name, text in on_constraints.items() if name in remaining}
    if (comment := constraint_comments.joined(on_table, kept)) is not None:
        yield constraint_comments.statement(table, comment)


def _stored(session: Context, change: Change) -> list[str]:
    """The stored columns that remain."""
    rows = session.cursor.execute(
        "SELECT column_name FROM system.main.duckdb_columns() "
        f"WHERE {_HERE} AND NOT is_generated ORDER BY column_index",
        _place(change.table),
    ).fetchall()
    return [str(name) for (name,) in rows if change.drops is None or fold(name) != fold(change.drops)]


def _sequences(
    session: Context, table: Object, own: dict[str, tuple[str, str]], change: Change
) -> Iterator[tuple[str, str, int | None]]:
    """The sequences of the columns that remain: CREATE, the name as SQL, and the last value."""
    for column, (_, name) in own.items():
        if change.drops is not None and fold(column) == fold(change.drops):
            continue
        *_, last = (token.name for token in tokenize(name_in(name)) if token.kind != ".")
        found = session.cursor.execute(
            "SELECT start_value, min_value, max_value, increment_by, cycle, last_value, schema_name, "
            "sequence_name FROM system.main.duckdb_sequences() WHERE database_name = $1 AND schema_name = $2 "
            f"AND {folded_sql('sequence_name')} = $3",
            [table.catalog, table.schema, fold(last)],
        ).fetchall()
        for start, low, high, step, cycle, value, schema, sequence in found:
            full = f"{ident(table.catalog)}.{ident(schema)}.{ident(sequence)}"
            options = f"START {start} MINVALUE {low} MAXVALUE {high} INCREMENT {step}"
            yield f"CREATE SEQUENCE {full} {options}{' CYCLE' if cycle else ''}", full, value


def _comments(session: Context, change: Change) -> Iterator[str]:
    """COMMENT ON the columns that remain."""
    table = change.table
    rows = session.cursor.execute(
        "SELECT column_name, comment FROM system.main.duckdb_columns() "
        f"WHERE {_HERE} AND comment IS NOT NULL",
        _place(table),
    ).fetchall()
    for column, comment in rows:
        if change.drops is None or fold(column) != fold(change.drops):
            yield f"COMMENT ON COLUMN {table.in_full}.{ident(column)} IS {literal(comment)}"


def _definition(change: Change) -> str:
    """The list of columns and constraints, from DuckDB's text of the table with the change."""
    text = change.table.definition
    tokens = tokenize(text)
    opening = next(i for i, token in enumerate(tokens) if token.kind == "(")
    reader = TokenReader(text, tokens, opening)
    first, last = reader.brackets()
    elements: list[str] = []
    is_removed = False
    for a, b in reader.slices(first, last):
        is_constraint = tokens[a].kind in _CONSTRAINTS
        if change.drops is not None and _goes(tokens[a:b], change.drops, is_constraint=is_constraint):
            continue
        element = reader.cut(a, b)
        if change.removes is not None:
            if _names(element, change.removes):
                continue
            # A second one may be equal to it. All columns of a PRIMARY KEY are changed.
            if not is_removed or change.removes.kind == constraint_names.PRIMARY_KEY:
                given, element = element, _without(element, change.removes)
                is_removed = element != given
            if not element:
                continue
        if change.retypes is not None and not is_constraint:
            name, type_, _ = change.retypes
            if fold(tokens[a].name) == fold(name):
                rest = _behind_type(tokens, a, b)
                element = f"{ident(name)} {type_} {reader.cut(rest, b)}"
        elements.append(element)
    if change.adds is not None:
        elements.append(change.adds)
    return f"({', '.join(elements)})"


def _names(element: str, constraint: Constraint) -> bool:
    """True if an element of a table's definition only names a constraint."""
    key = constraint_names.key_of(element.removeprefix("CHECK(").removesuffix(")"))
    return key == (constraint.kind, constraint.name, constraint.columns)


def _without(element: str, removed: Constraint) -> str:
    """An element of a table's definition without a constraint; empty if it is the constraint.

    The columns of a removed PRIMARY KEY stay NOT NULL, as in PostgreSQL.
    """
    tokens = tokenize(element)
    if tokens[0].kind in _CONSTRAINTS and tokens[0].kind != QUOTED:
        words = [token.text for token in tokens]
        return "" if words == [token.text for token in tokenize(removed.text)] else element
    if fold(tokens[0].name) not in map(fold, removed.columns):
        return element
    words = removed.kind.split() if len(removed.columns) == 1 else []
    kinds = [token.kind if token.depth == 0 else "" for token in tokens]
    at = next((i for i in range(1, len(kinds)) if words and kinds[i : i + len(words)] == words), None)
    if at is not None:
        element = element[: tokens[at].start] + element[tokens[at + len(words) - 1].end :]
    if removed.kind == constraint_names.PRIMARY_KEY and ("NOT", "NULL") not in pairwise(kinds):
        element += " NOT NULL"
    return element


def _behind_type(tokens: Sequence[Token], a: int, b: int) -> int:
    """The place behind the type of a column and its collation, which belongs to the type."""
    depth = tokens[a].depth
    ends = (i for i in range(a + 1, b) if tokens[i].depth == depth and tokens[i].kind in _AFTER_TYPE)
    at = next(ends, b)
    if at < b and tokens[at].kind == "COLLATE":
        at += 2
        while at < b and tokens[at].kind == ".":
            at += 2
    return at


def _goes(element: Sequence[Token], column: str, *, is_constraint: bool) -> bool:
    """True if an element is the dropped column, or a constraint that involves it."""
    if not is_constraint:
        return fold(element[0].name) == fold(column)
    named = element
    if element[0].kind == "FOREIGN":
        at = next((i for i, token in enumerate(element) if token.kind == "REFERENCES"), len(element))
        named = element[:at]
    return any(token.is_name and fold(token.name) == fold(column) for token in named)

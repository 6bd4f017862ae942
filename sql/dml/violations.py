"""The table, column and constraint of an integrity violation; its message and DETAIL in PostgreSQL's words.

DuckDB's message has the columns and values of the key, the expression of a CHECK, or the column that must not
be NULL, but not the constraint's name. The name is looked up among the constraints of the written table, on
a cursor of its own, because the failed transaction answers no query. It is left out if the message fits
several constraints, and if the table was created in the failed transaction, except for a named CHECK, whose
name is in its expression: the message is DuckDB's then, while PostgreSQL's, from which applications read the
name, has nothing else. A limited user receives no name
of a table that is hidden from him. Source: PostgreSQL documentation, "Error and Notice Message Fields".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import duckdb

from ...engine.duck import constraint_names
from ...engine.duck.objects import TEMPORARY
from ...engine.errors import DucktailError, IntegrityViolation, Violated
from ...engine.quoting import fold, folded_sql, ident
from ..session_state.context import Context
from ..session_state.names import Key

PRIMARY_KEY, UNIQUE, CHECK, FOREIGN_KEY = "PRIMARY KEY", "UNIQUE", "CHECK", "FOREIGN KEY"
SHOWN_TEMPORARY = "pg_temp"

# DuckDB's messages of violations.
# What stands around the key of a duplicate, and of a foreign key.
_DUPLICATE, _VIOLATES = 'duplicate key "', '" violates {} constraint'
_DUPLICATE_VALUES = 'constraint violation: duplicate key "'
_KEY = 'because key "'
_ABSENT, _REFERENCED = '" does not exist in the referenced table', '" is still referenced by a foreign key'
_NULL = "NOT NULL constraint failed: "
_CHECK, _NEW_ROW = "CHECK constraint failed on table ", 'new row for relation "'

_CONSTRAINTS = f"""
    SELECT constraint_type, {constraint_names.default_sql()}, schema_name, table_name,
           constraint_column_names, constraint_text, coalesce(referenced_table, ''),
           coalesce(referenced_column_names, [])
    FROM system.main.duckdb_constraints()
    WHERE database_name = $1 AND {folded_sql("schema_name")} = $2
      AND (coalesce({folded_sql("table_name")} = $3, false)
           OR coalesce({folded_sql("referenced_table")} = $3, false))
    ORDER BY table_name, constraint_index"""
_INDEXES = f"""
    SELECT '{UNIQUE}', index_name, schema_name, table_name, expressions::VARCHAR[], '', '', []::VARCHAR[]
    FROM system.main.duckdb_indexes()
    WHERE database_name = $1 AND {folded_sql("schema_name")} = $2 AND {folded_sql("table_name")} = $3
      AND is_unique
    ORDER BY index_name"""


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A constraint or unique index of the written table, or a foreign key that refers to it."""

    kind: str
    name: str
    schema: str
    table: str
    columns: tuple[str, ...]
    text: str
    referenced: str
    referenced_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """The violated constraint, with the DETAIL if its values are known."""

    constraint: _Constraint
    detail: str | None = None


def complete(session: Context, key: Key, error: IntegrityViolation) -> None:
    """Name the violated constraint in an error, unless an inner statement has done so.

    Args:
        key: the written table.
    """
    if error.violated is not None:
        return
    temporary = key[0] == TEMPORARY
    schema = SHOWN_TEMPORARY if temporary else key[0]
    null = _between(error.message, _NULL)
    constraints = _constraints(session, key)
    own = [one for one in constraints if fold(one.table) == key[1]]
    table = own[0].table if own else key[1]
    if not temporary and own:
        schema = own[0].schema
    if null is not None:
        # The message qualifies the column by the table, each in quotes if it needs some.
        column = _plain(null.removeprefix(f"{ident(table)}.").removeprefix(f"{table}."))
        error.violated = Violated(schema, table, column=column)
        error.message = f'null value in column "{column}" of relation "{table}" violates not-null constraint'
        return
    found = _found(error.message, own, [one for one in constraints if fold(one.referenced) == key[1]])
    if found is None:
        relation = _between(error.message, _NEW_ROW, f'" {constraint_names.VIOLATES}') or ""
        name = _between(error.message, constraint_names.VIOLATES, '"') if fold(relation) == key[1] else None
        error.violated = Violated(schema, relation if name else table, constraint=name or "")
        return
    one = found.constraint
    if not session.access.sees((fold(one.schema), fold(one.table))):
        error.violated = Violated(schema, table)
        error.message = f'update or delete on table "{table}" violates a foreign key constraint'
        return
    error.violated = Violated(schema, one.table, constraint=one.name)
    if not one.referenced or session.access.sees((fold(one.schema), fold(one.referenced))):
        error.message = _message(one, key)
        error.detail = error.detail or found.detail
    else:
        error.message = f'insert or update on table "{table}" violates a foreign key constraint'


def _message(violated: _Constraint, key: Key) -> str:
    """PostgreSQL's message.

    Args:
        key: the written table, to which a foreign key may refer.
    """
    table, name = violated.table, violated.name
    if violated.kind == CHECK:
        return f'new row for relation "{table}" violates check constraint "{name}"'
    if violated.kind != FOREIGN_KEY:
        return f'duplicate key value violates unique constraint "{name}"'
    if fold(violated.table) == key[1]:
        return f'insert or update on table "{table}" violates foreign key constraint "{name}"'
    refers = violated.referenced
    return f'update or delete on table "{refers}" violates foreign key constraint "{name}" on table "{table}"'


def _constraints(session: Context, key: Key) -> list[_Constraint]:
    """The constraints of a table, and the foreign keys that refer to it; empty if they cannot be listed."""
    schema, name = key
    temporary = schema == TEMPORARY
    parameters = [
        "temp" if temporary else session.database.catalog_name,
        "main" if temporary else schema,
        name,
    ]
    found: list[_Constraint] = []
    try:
        # Only the session's own cursor sees its temporary tables.
        cursor = session.cursor if temporary else session.database.cursor()
        try:
            for sql in (_CONSTRAINTS, _INDEXES):
                found += [
                    _Constraint(
                        kind,
                        name,
                        schema_,
                        table,
                        tuple(columns),
                        text,
                        referenced,
                        tuple(others),
                    )
                    for kind, name, schema_, table, columns, text, referenced, others in cursor.execute(
                        sql, parameters
                    ).fetchall()
                ]
        finally:
            if not temporary:
                cursor.close()
    except (duckdb.Error, DucktailError):
        pass  # The transaction has failed, or another one renames a table with indexes.
    return list(_named(found))


def _named(constraints: Sequence[_Constraint]) -> Iterator[_Constraint]:
    """The constraints with the names that users gave them."""
    keys = {}
    for one in constraints:
        if one.kind == CHECK and (key := constraint_names.key_of(_expression(one))):
            keys[one.table, key[0], key[2]] = key[1]
    for one in constraints:
        name = keys.get((one.table, one.kind, one.columns))
        if one.kind == CHECK and (found := constraint_names.split(_expression(one))):
            name = found[0]
        yield one if name is None else replace(one, name=name)


def _expression(one: _Constraint) -> str:
    return one.text.removeprefix("CHECK(").removesuffix(")")


def _found(message: str, own: Sequence[_Constraint], referring: Sequence[_Constraint]) -> _Found | None:
    """The constraint of a message; None if none fits, or several do."""
    unique = [one for one in own if one.kind in (PRIMARY_KEY, UNIQUE)]
    for kind, words in ((PRIMARY_KEY, "primary key"), (UNIQUE, "unique")):
        if (key := _between(message, _DUPLICATE, _VIOLATES.format(words))) is not None:
            return _by_key([one for one in unique if one.kind == kind], key)
    if (values := _between(message, _DUPLICATE_VALUES, '"')) is not None:
        if len(unique) > 1 and ", " not in values:
            unique = [one for one in unique if len(one.columns) == 1]
        if len(unique) == 1:
            return _Found(unique[0], _exists(unique[0].columns, values))
        return None
    if (failed := _between(message, _CHECK)) is not None:
        expression = failed.partition(" with expression ")[2]
        return next(
            map(_unsatisfied, (one for one in own if one.kind == CHECK and one.text == expression)), None
        )
    if (name := _between(message, constraint_names.VIOLATES, '"')) is not None:
        return next(map(_unsatisfied, (one for one in own if one.kind == CHECK and one.name == name)), None)
    for ending, constraints in ((_ABSENT, own), (_REFERENCED, referring)):
        if (key := _between(message, _KEY, ending)) is not None:
            foreign = [one for one in constraints if one.kind == FOREIGN_KEY]
            return _by_key(foreign, key, referenced=ending is _REFERENCED)
    return None


def _unsatisfied(check: _Constraint) -> _Found:
    expression = check.text.removeprefix("CHECK(").removesuffix(")")
    named = constraint_names.split(expression)
    return _Found(check, f"The condition is {expression if named is None else named[1]}.")


def _between(message: str, opening: str, ending: str = "") -> str | None:
    """The text between the first opening and the last ending, which values inside may contain too."""
    _, said, rest = message.partition(opening)
    if not said or not ending:
        return rest if said else None
    text, ends, _ = rest.rpartition(ending)
    return text if ends else None


def _by_key(constraints: Sequence[_Constraint], key: str, *, referenced: bool = False) -> _Found | None:
    """The constraint with the columns of a key: "a: 1, b: 2"; None if several foreign keys have them."""
    found = list(_fitting(constraints, key, referenced=referenced)) or _renamed(constraints, key)
    if not found:
        return None
    most = max(len(one.constraint.columns) for one in found)
    best = [one for one in found if len(one.constraint.columns) == most]
    foreign = best[0].constraint.kind == FOREIGN_KEY
    return None if foreign and len(best) > 1 else best[0]


def _fitting(constraints: Sequence[_Constraint], key: str, *, referenced: bool) -> Iterator[_Found]:
    for one in constraints:
        absent = one.kind == FOREIGN_KEY and not referenced
        # A key that does not exist is written with the columns of the referenced table.
        names = [_plain(name) for name in (one.referenced_columns if absent else one.columns)]
        values = _values(key, names)
        if values is None:
            continue
        shown = ", ".join(values)
        if absent:
            columns = ", ".join(one.columns)
            yield _Found(one, f'Key ({columns})=({shown}) is not present in table "{one.referenced}".')
        elif referenced:
            columns = ", ".join(one.referenced_columns)
            yield _Found(one, f'Key ({columns})=({shown}) is still referenced from table "{one.table}".')
        else:
            yield _Found(one, _exists(one.columns, shown))


def _renamed(constraints: Sequence[_Constraint], key: str) -> list[_Found]:
    """The only key with as many columns: DuckDB's messages have the names before a RENAME COLUMN.

    DuckDB renames no column of a foreign key.
    """
    found = []
    for one in constraints:
        pattern = ", ".join(["[^:]+: (.*)"] * len(one.columns))
        if one.kind != FOREIGN_KEY and (values := re.fullmatch(pattern, key, re.DOTALL)):
            found.append(_Found(one, _exists(one.columns, ", ".join(values.groups()))))
    most = max((len(one.constraint.columns) for one in found), default=0)
    widest = [one for one in found if len(one.constraint.columns) == most]
    return widest if len(widest) == 1 else []


def _values(key: str, names: Sequence[str]) -> list[str] | None:
    """The values of a key's text by the names of its columns; None if they are not the names of the text."""
    if not key.startswith(f"{names[0]}: "):
        return None
    values, rest = [], key.removeprefix(f"{names[0]}: ")
    for name in names[1:]:
        value, said, rest = rest.partition(f", {name}: ")
        if not said:
            return None
        values.append(value)
    return [*values, rest]


def _exists(columns: Sequence[str], values: str) -> str:
    return f"Key ({', '.join(map(_plain, columns))})=({values}) already exists."


def _plain(column: str) -> str:
    """A column or expression as DuckDB's messages have it: without the quotes or brackets of an index."""
    if column.startswith("(") and column.endswith(")"):
        return column[1:-1]
    return column[1:-1].replace('""', '"') if column.startswith('"') else column

"""The shape of a table in DuckDB's catalog: the facts that capture needs to log its rows.

Reading the catalog fixes the MVCC snapshot of an open transaction, as any query does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from ..errors import InternalError, NotSupported, UndefinedTable
from ..partitioning import has_form
from ..quoting import fold, folded_sql, ident
from .binding import Parsed
from .cursors import ask_maybe
from .objects import Object, read_indexes

# Our own name prefix in texts that are sent to DuckDB; a column of it could be mistaken for ours.
RESERVED_PREFIX = "__ducktail"


@dataclass(frozen=True, slots=True)
class Column:
    """A stored column.

    Args:
        name: as created, case kept.
        type: DuckDB's text of its type, valid behind `::`.
        default: SQL text of its default, or None.
        not_null: True if it refuses NULL (as a primary key's column does).
        collation: the collation that compares its texts; None for byte by byte.
    """

    name: str
    type: str
    default: str | None
    not_null: bool
    collation: str | None = None

    def collated(self, value: str) -> str:
        """SQL of a value with the column's collation, because the log stores only the bytes."""
        return value if self.collation is None else f"({value} COLLATE {self.collation})"


@dataclass(frozen=True, slots=True)
class TableShape:
    """A base table of the database.

    Args:
        stored: the stored columns, in the table's order.
        generated: name, type and expression text of each generated column.
        column_order: all names, stored and generated, in the order of `*`.
        primary_key: its columns, () without one.
        unique: the column sets of the primary key, UNIQUE constraints and unique indexes on columns.
        unique_expressions: True if a unique index has an expression, which may use any column.
    """

    schema: str
    name: str
    stored: tuple[Column, ...]
    generated: tuple[tuple[str, str, str], ...]
    column_order: tuple[str, ...]
    primary_key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...]
    unique_expressions: bool = False

    @property
    def qualified(self) -> str:
        """The name as SQL: quoted, with its schema."""
        return f"{ident(self.schema)}.{ident(self.name)}"

    def position(self, column: str) -> int | None:
        """The position of a stored column, from 0, or None; the case of names is ignored."""
        wanted = fold(column)
        return next((i for i, stored in enumerate(self.stored) if fold(stored.name) == wanted), None)

    def place(self, column: str) -> int:
        """The position, from 0, of a stored column that DuckDB has bound."""
        place = self.position(column)
        if place is None:
            raise InternalError(f'column "{column}" was bound but is not in the table')
        return place


# Tables and views with their kind. DuckDB's information_schema is not used: its views read `duckdb_views` by
# a name that a user's object can hide. A function qualified by catalog and schema is never hidden.
RELATIONS = """
    (SELECT database_name, schema_name, table_name, 'table' AS kind FROM system.main.duckdb_tables()
     UNION ALL
     SELECT database_name, schema_name, view_name, 'view' FROM system.main.duckdb_views())"""

_IN_SCHEMA = f"{folded_sql('schema_name')} = $1"
_TABLE = f"{_IN_SCHEMA} AND {folded_sql('table_name')} = $2"
_HERE = f"database_name = current_database() AND {_TABLE}"

# Their parameters are the schema's and the table's name, folded. A definition reads the shapes of its tables
# several times.
_TABLES = Parsed(
    f"""
    SELECT database_name, schema_name, table_name, sql, index_count
    FROM system.main.duckdb_tables() WHERE {_HERE}"""
)
# The columns of one table: `duckdb_columns()` computes those of all tables and of DuckDB's own views, and the
# first time in a database it binds these.
_COLUMNS = Parsed('SELECT name, type, dflt_value, "notnull", false FROM system.main.pragma_table_info($1)')
# They alone tell which are generated.
_WITH_GENERATED = Parsed(
    f"""
    SELECT column_name, data_type, column_default, NOT is_nullable, is_generated
    FROM system.main.duckdb_columns() WHERE {_HERE}
    ORDER BY column_index"""
)
_GENERATED = "GENERATED ALWAYS"
# What has the name, if no table of the database has.
_OTHER_KINDS = Parsed(
    f"""
    SELECT CASE WHEN temporary THEN 'temporary' ELSE 'attached' END FROM system.main.duckdb_tables()
    WHERE database_name <> current_database() AND {_TABLE}
    UNION ALL
    SELECT 'view' FROM system.main.duckdb_views() WHERE {_IN_SCHEMA} AND {folded_sql("view_name")} = $2"""
)
# Each of these constraints may have an index of its own.
_CONSTRAINTS = Parsed(
    f"""
    SELECT constraint_type, constraint_column_names FROM system.main.duckdb_constraints()
    WHERE {_HERE} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')
    ORDER BY constraint_index"""
)
# Indexes without those of constraints.
_HAS_INDEXES = Parsed(
    f"""
    SELECT index_count > (
        SELECT count(*) FROM system.main.duckdb_constraints()
        WHERE {_HERE} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')
    ) FROM system.main.duckdb_tables() WHERE {_HERE}"""
)
_INDEXES = f"""
    SELECT index_name, is_unique, expressions::VARCHAR[], sql FROM system.main.duckdb_indexes() WHERE {_HERE}
    ORDER BY index_name"""
# A column in DuckDB's text of a table, behind the bracket or a comma; and elements that look like one.
_COLLATION = re.compile(r'[(,] ?("(?:[^"]|"")*+"|\w++) VARCHAR COLLATE ([\w.]++)')
_STRING = re.compile(r"'(?:[^']|'')*+'")
_PLAIN = f"""
    SELECT 1 FROM system.main.duckdb_tables() WHERE {_HERE} AND NOT contains(sql, '{_GENERATED}')"""

_REFUSED = {
    "view": "A view has no rows of its own: make the stream on its table.",
    "temporary": "Only a table of the database file can be captured.",
    "attached": "Only a table of the served database can be captured.",
}


def tables_in(cursor: duckdb.DuckDBPyConnection, schema: str) -> list[tuple[str, str]]:
    """Schema and name of each table covered by a stream over a whole schema, oldest first."""
    return cursor.execute(
        "SELECT schema_name, table_name FROM system.main.duckdb_tables() "
        f"WHERE database_name = current_database() AND {_IN_SCHEMA} AND NOT temporary AND NOT internal "
        f"AND NOT starts_with({folded_sql('table_name')}, '{RESERVED_PREFIX}') ORDER BY table_oid",
        [fold(schema)],
    ).fetchall()


def read_shape(
    cursor: duckdb.DuckDBPyConnection, schema: str, name: str, *, is_captured: bool = False
) -> TableShape:
    """Read the shape of a base table of the current database.

    Args:
        cursor: a cursor of the database; the shape is that of its transaction.
        schema: the schema's name, unquoted; case is ignored.
        name: the table's name, unquoted; case is ignored.
        is_captured: True if it has streams already, so that its suitability is not checked.

    Raises:
        UndefinedTable: the table does not exist.
        NotSupported: the relation is a view or a temporary or attached table, a column's name hides
            DuckDB's rowid or has ducktail's prefix, or the primary key has no hash.
    """
    catalog, schema, name, text, index_count = _base_table(cursor, schema, name)
    key = [fold(schema), fold(name)]
    if _GENERATED in text:
        rows = _WITH_GENERATED.run(cursor, key).fetchall()
    else:
        try:
            rows = _COLUMNS.run(cursor, [".".join(map(ident, (catalog, schema, name)))]).fetchall()
        except duckdb.CatalogException:
            rows = []
    if not rows:  # In autocommit each query has its own snapshot.
        raise UndefinedTable(f'table "{schema}.{name}" does not exist')
    for column in rows:
        _require_usable_name(f"{schema}.{name}", column[0])
    collations = _collations(text)
    stored = tuple(
        Column(column, type_, default, not_null, collations.get(fold(column)))
        for column, type_, default, not_null, is_generated in rows
        if not is_generated
    )
    generated = tuple(column[:3] for column in rows if column[4])
    spelled = {fold(column.name): column.name for column in stored}
    primary_key, unique, by_expression = _unique_sets(cursor, key, index_count, spelled)
    if not is_captured:
        _require_usable_key(f"{schema}.{name}", stored, primary_key)
    return TableShape(
        schema=schema,
        name=name,
        stored=stored,
        generated=generated,
        column_order=tuple(column[0] for column in rows),
        primary_key=primary_key,
        unique=unique,
        unique_expressions=by_expression,
    )


def _collations(text: str) -> dict[str, str]:
    """The collation of each column that has one, by its name in lower case: only the table's text has it."""
    if " COLLATE " not in text:
        return {}
    columns = _COLLATION.finditer(_STRING.sub("''", text))
    return {fold(_unquoted(column[1])): column[2] for column in columns}


def is_plain_table(cursor: duckdb.DuckDBPyConnection, schema: str, name: str) -> bool:
    """True if the name is a base table of the current database with stored columns only."""
    return ask_maybe(cursor, _PLAIN, [fold(schema), fold(name)]) is not None


def _base_table(cursor: duckdb.DuckDBPyConnection, schema: str, name: str) -> tuple[str, str, str, str, int]:
    """The names of a base table's database, schema and itself, its text, and how many indexes it has."""
    key = [fold(schema), fold(name)]
    found = _TABLES.run(cursor, key).fetchall()
    if found:
        return found[0]
    kinds = [row[0] for row in _OTHER_KINDS.run(cursor, key).fetchall()]
    if not kinds:
        raise UndefinedTable(f'table "{schema}.{name}" does not exist')
    word = "a view" if kinds[0] == "view" else f"an {kinds[0]} table".replace("an temp", "a temp")
    raise NotSupported(f'"{schema}.{name}" is {word}, which cannot be captured', hint=_REFUSED[kinds[0]])


def _require_usable_name(table: str, column: str) -> None:
    if fold(column) == "rowid":
        raise NotSupported(
            f'table "{table}" has a column called "{column}", which hides the row id',
            hint="Rename the column before making a stream on the table.",
        )
    if fold(column).startswith(RESERVED_PREFIX):
        raise NotSupported(
            f'table "{table}" has a column called "{column}"',
            hint=f"Names that begin with {RESERVED_PREFIX} are ducktail's own: rename the column.",
        )


def _require_usable_key(table: str, stored: Sequence[Column], key: Sequence[str]) -> None:
    """Check that the primary key has a hash, which each event of the table includes."""
    column = unfit_key_column(stored, key)
    if column is not None:
        raise NotSupported(
            f'table "{table}" has a primary key with column "{column.name}" of type {column.type}, '
            "which cannot be captured",
            hint="A key is of numbers, text, dates, timestamps, UUID, BOOLEAN, ENUM, BLOB or BIT.",
        )


def unfit_key_column(stored: Sequence[Column], key: Sequence[str]) -> Column | None:
    """The first column of a key whose type has no hash, or None."""
    return next((c for c in stored if c.name in key and not has_form(c.type)), None)


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table that does not belong to a constraint, with its CREATE statement."""

    name: str
    unique: bool
    expressions: tuple[str, ...]
    sql: str


def indexes_of(cursor: duckdb.DuckDBPyConnection, schema: str, name: str) -> list[Index]:
    """The indexes of a table, without those of constraints, by name.

    Raises:
        LockNotAvailable: the table has indexes that cannot be listed now (`read_indexes`).
    """
    key = [fold(schema), fold(name)]
    if _HAS_INDEXES.run(cursor, key).fetchall() != [(True,)]:
        return []
    return _listed(cursor, key)


def _listed(cursor: duckdb.DuckDBPyConnection, key: Sequence[str]) -> list[Index]:
    return [Index(i, unique, tuple(e), sql) for i, unique, e, sql in read_indexes(cursor, _INDEXES, key)]


def key_and_columns(cursor: duckdb.DuckDBPyConnection, table: Object) -> tuple[set[str], set[str]]:
    """The folded names of the primary key's columns, none without a key, and of all columns of a table."""
    where = f"WHERE database_name = $3 AND {_TABLE}"
    sql = (
        "SELECT 'key', unnest(constraint_column_names) FROM system.main.duckdb_constraints() "
        f"{where} AND constraint_type = 'PRIMARY KEY' "
        f"UNION ALL SELECT 'column', column_name FROM system.main.duckdb_columns() {where}"
    )
    found: dict[str, set[str]] = {"key": set(), "column": set()}
    names = [fold(table.schema), fold(table.name), table.catalog]
    for kind, name in cursor.execute(sql, names).fetchall():
        found[kind].add(fold(name))
    return found["key"], found["column"]


def _unique_sets(
    cursor: duckdb.DuckDBPyConnection, key: Sequence[str], index_count: int, spelled: dict[str, str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], bool]:
    """The primary key, all unique column sets, and True if a unique index has an expression.

    Args:
        key: the folded names of the schema and the table.
        index_count: the number of its indexes with those of constraints.
        spelled: a column's name in lower case -> its name: an index keeps its creator's spelling.
    """
    primary_key: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = []
    constraints = _CONSTRAINTS.run(cursor, key).fetchall()
    for kind, columns in constraints:
        if kind == "FOREIGN KEY":
            continue
        # DuckDB writes a constraint's columns as in its text.
        columns = tuple(spelled[fold(column)] for column in columns)
        unique.append(columns)
        if kind == "PRIMARY KEY":
            primary_key = columns
    by_expression = False
    for index in _listed(cursor, key) if index_count > len(constraints) else ():
        if not index.unique:
            continue
        # DuckDB writes an expression in brackets, and a column's odd name in double quotes.
        expressions = index.expressions
        if any(expression.startswith("(") for expression in expressions):
            by_expression = True
        else:
            unique.append(tuple(spelled[fold(_unquoted(expression))] for expression in expressions))
    return primary_key, tuple(unique), by_expression


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name

"""The relations of the catalog that have rows: base views of DuckDB's objects, and the views made from them.

A base view has one kind of the user's objects as DuckDB lists them, each with its oid, restricted to the
served database and the session's temporary objects, without ducktail's own. It uses DuckDB's terms.

data/pg_catalog.sql and data/information_schema.sql list the source of each column of PostgreSQL's relations;
all other columns get the value for "nothing of that kind" (system_catalogs.py), and relations that are not
listed are empty.

Both become common table expressions of the query that names a relation. DuckDB would bind a view over views
again at each occurrence: a query of psql that names pg_class twice, pg_index and pg_constraint would bind the
list of tables seven times. So a query has each relation once, with only the columns that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ...engine.duck import constraint_comments
from ...engine.duck.identities import ALWAYS, BY_DEFAULT, SERIAL, stored_opening
from ...engine.quoting import literal
from ...engine.values import value_types
from ...engine.values.duckdb_types import NESTED
from .oids import (
    ARRAY,
    FIXED,
    HOME,
    INDEX,
    OTHER,
    OUR_PREFIX,
    OUR_SCHEMA,
    OWNER,
    OWNER_OID,
    RELATION,
    SEQUENCE,
    kind_of,
    namespace_sql,
    numbered,
    path_sql,
    place_sql,
)
from .system_catalogs import PG_CATALOG, Shape, SystemColumn, read_text

TEMPORARY = "(database_name = 'temp')"
# DuckDB's name of the served database.
SERVED = f"{HOME}.duck_database()"
# Separates a session's temporary objects from others with the same names in a path.
SPACE = f"if({TEMPORARY}, 'temp', '')"


# The kind of an object in pg_class by relkind: the last bits of its oid.
KIND = f"CASE kind WHEN 'i' THEN {INDEX} WHEN 'S' THEN {SEQUENCE} ELSE {RELATION} END"


def base_views(wanted: Container[str]) -> dict[str, str]:
    """The base views by name, each after those that it uses.

    Args:
        wanted: the names of columns that are needed; DuckDB would bind the others too.
    """
    here = f"database_name IN ({SERVED}, 'temp')"
    shown = (
        f"{here} AND schema_name <> {literal(OUR_SCHEMA)} AND NOT starts_with({{}}, {literal(OUR_PREFIX)})"
    )
    relations = [_tables(shown, wanted), _views(here, wanted)]
    keys = [_indexes(shown, wanted), _unique_constraints(shown, wanted)]
    sequences = _sequences(shown, wanted)
    return {
        "duck_schemas": f"""
            SELECT schema_name, comment, {namespace_sql("false")} AS oid
            FROM {HOME}.schemas()
            WHERE database_name = {SERVED} AND parent_schema IS NULL
              AND schema_name NOT IN ('pg_catalog', 'information_schema')""",
        "duck_objects": numbered(_objects([*relations, *keys, sequences]), KIND, "path, place_in_list"),
        "duck_relations": numbered(_objects(relations), str(RELATION)),
        "duck_columns": _columns(wanted),
        "duck_column_lists": f"""
            SELECT database_name, table_oid, list(column_name ORDER BY column_index) AS names
            FROM {HOME}.columns() WHERE NOT internal GROUP BY database_name, table_oid""",
        "duck_keys": numbered(_objects(keys), str(INDEX), "path, place_in_list"),
        "duck_indexes": f"""
            SELECT k.*, r.oid AS relation
            FROM {HOME}.duck_keys AS k
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = k.table_oid AND r.database_name = k.database_name""",
        "duck_checks": numbered(_checks(shown), order="path, constraint_index"),
        "duck_sequences": f"""
            SELECT o.*, s.start_value, s.min_value, s.max_value, s.increment_by, s.cycle, s.last_value
            FROM (SELECT * FROM ({numbered(_objects([sequences]), str(SEQUENCE))})) AS o
            JOIN {HOME}.sequences() AS s
              ON s.sequence_oid = o.table_oid AND s.database_name = o.database_name""",
        "duck_own_sequences": f"""
            SELECT s.oid, c.relation, c.number, c.identity
            FROM {HOME}.duck_columns AS c
            JOIN {HOME}.duck_sequences AS s
              ON {HOME}.folded(s.schema_name) = {HOME}.name_parts(c.own_sequence)[-2]
              AND {HOME}.folded(s.name) = {HOME}.name_parts(c.own_sequence)[-1]
              AND s.temporary = c.temporary
            WHERE c.own_sequence IS NOT NULL""",
        "duck_default_sequences": f"""
            SELECT s.oid, c.default_oid AS place
            FROM (SELECT default_oid, {HOME}.name_parts({_NEXTVAL}) AS parts FROM {HOME}.duck_columns
                  WHERE contains(column_default, 'nextval(')) AS c
            JOIN {HOME}.duck_sequences AS s
              ON {HOME}.folded(s.name) = c.parts[-1]
              AND coalesce(c.parts[-2], {HOME}.folded(s.schema_name)) = {HOME}.folded(s.schema_name)""",
        "duck_types": numbered(_types()),
        "duck_composites": f"""
            SELECT t.*, c.fields, c.text
            FROM {HOME}.duck_types AS t
            JOIN (SELECT c.oid, c.fields, c.text FROM (SELECT unnest({HOME}.composites()) AS c)) AS c
              ON c.oid = t.oid""",
        # DuckDB's text of a column's type has the labels of an enum or the fields of a composite type, and
        # not its name.
        "duck_own_types": f"""
            SELECT DISTINCT ON (head) * FROM (
                SELECT oid, schema_name, type_name, {HOME}.shown_name(false, schema_name, type_name) AS name,
                       'ENUM(' || array_to_string(list_transform(labels,
                           LAMBDA z_w: {HOME}.quote_literal(z_w)), ', ') || ')' AS head
                FROM {HOME}.duck_types WHERE logical_type = 'ENUM'
                UNION ALL
                SELECT oid, schema_name, type_name, {HOME}.shown_name(false, schema_name, type_name), text
                FROM {HOME}.duck_composites)
            ORDER BY head, schema_name <> 'main', schema_name, type_name""",
        "duck_roles": f"""
            SELECT {OWNER_OID} AS oid, {literal(OWNER)} AS name
            UNION ALL
            SELECT {HOME}.role_oid({HOME}.session_user()), {HOME}.session_user()
            WHERE {HOME}.session_user() <> {literal(OWNER)}""",
        "duck_macros": numbered(_macros(), order="path, parameters"),
        "duck_members": f"""
            SELECT 1259 AS class, oid FROM {HOME}.duck_relations
            WHERE schema_name = {literal(OUR_SCHEMA)} OR contains(definition, {literal(_OF_STREAMS)})
            UNION ALL
            SELECT 1255, oid FROM {HOME}.duck_macros
            UNION ALL
            SELECT 2615, oid FROM {HOME}.duck_schemas
            WHERE schema_name IN ('main', {literal(OUR_SCHEMA)})""",
    }


# The first sequence that a default names.
_NEXTVAL_PATTERN = literal("nextval[(]'((?:[^']|'')*)'")
_QUOTE, _QUOTES = literal("'"), literal("''")
_NEXTVAL = f"replace(regexp_extract(column_default, {_NEXTVAL_PATTERN}, 1), {_QUOTES}, {_QUOTE})"
# A part of the definitions of all streams' views, which no other view can have: the table is hidden.
_OF_STREAMS = f"{OUR_SCHEMA}.commits AS c "


def _columns(wanted: Container[str]) -> str:
    """The columns of tables and views, with the attributes of their types."""
    offered = {
        "relation": "r.oid", "number": "c.column_index::SMALLINT", "column_name": "c.column_name",
        "kind": "r.kind", "schema_name": "r.schema_name", "table_name": "r.name", "temporary": "r.temporary",
        "comment": "c.comment", "column_default": _default_shown(), "identity": _identity(),
        "own_sequence": "own.sequence", "own_shown": _sequence_shown(), "own_oid": _sequence_oid(),
        "default_oid": place_sql(OTHER, path_sql("r.oid", "c.column_name")),
        "is_nullable": "c.is_nullable", "data_type": "c.data_type", "is_generated": "c.is_generated",
        "generation_expression": _generation_shown(), "type_modifier": _modifier("c.data_type"),
        **{name: f"if(e.oid IS NULL, t.{name}, {sql})" for name, sql in _OF_OWN.items()},
        "type_schema": "coalesce(e.schema_name, 'pg_catalog')",
    }  # fmt: skip
    picked = {name: sql for name, sql in offered.items() if name in wanted or name in ("relation", "number")}
    derived, types = "", ""
    if any("own." in sql for sql in picked.values()):
        derived += f", {_own_sequence()} AS own"
    if not picked.keys().isdisjoint({*TYPE_ATTRIBUTES, "type_schema"}):
        derived += f", {HEAD} AS type_head, {_OWN_HEAD} AS own_head"
        types = f"""JOIN {HOME}.fixed_duck_types AS t ON t.head = c.type_head
            LEFT JOIN {HOME}.duck_own_types AS e ON e.head = c.own_head"""
    columns = ", ".join(f"{sql} AS {name}" for name, sql in picked.items())
    return f"""
            SELECT {columns}
            FROM (SELECT *{derived} FROM {HOME}.columns()) AS c
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = c.table_oid AND r.database_name = c.database_name
            {types} ORDER BY relation, number"""


def _generation_shown() -> str:
    """The expression of a generated column without the cast to its type that DuckDB adds."""
    text = "c.generation_expression"
    cast = "' AS ' || c.data_type || ')'"
    inner = f"{text}[6:len({text}) - len({cast})]"
    return f"if(starts_with({text}, 'CAST(') AND ends_with({text}, {cast}), {inner}, {text})"


def _own_sequence() -> str:
    """The kind of a column with a sequence of its own, and the sequence's name; NULLs for other columns."""
    kinds = "|".join((SERIAL, ALWAYS, BY_DEFAULT))
    opening, closing = (re.escape(part) for part in stored_opening("@").split("@"))
    pattern = literal(f"^{opening}({kinds}){closing}'(.*)'{re.escape(') END')}$")
    found = f"regexp_extract(column_default, {pattern}, ['kind', 'sequence'])"
    opens = literal(stored_opening("@").split("@")[0])
    return f"if(starts_with(column_default, {opens}), {found}, NULL)"


# The name of a column's own sequence, without its schema, which is the table's.
_SEQUENCE = f"""{HOME}.unquoted(regexp_extract(own.sequence, '("(?:[^"]|"")*"|[^."]+)$', 1))"""


def _sequence_shown() -> str:
    """The sequence's name as pg_get_serial_sequence gives it."""
    schema = f"{HOME}.quote_ident({HOME}.schema_shown(r.schema_name, r.temporary))"
    return f"if(coalesce(own.kind, '') <> '', {schema} || '.' || {HOME}.quote_ident({_SEQUENCE}), NULL)"


def _sequence_oid() -> str:
    """The sequence's oid, but for the rule for collisions."""
    path = path_sql("if(r.temporary, 'temp', '')", "r.schema_name", "''", _SEQUENCE)
    return f"if(coalesce(own.kind, '') <> '', {place_sql(SEQUENCE, path)}, NULL)"


def _identity() -> str:
    """pg_attribute.attidentity."""
    return f"CASE own.kind WHEN {literal(ALWAYS)} THEN 'a' WHEN {literal(BY_DEFAULT)} THEN 'd' ELSE '' END"


def _default_shown() -> str:
    """The default of a column as PostgreSQL shows it: nextval of a serial's sequence, none of an identity."""
    name = f"{HOME}.shown_name(r.temporary, r.schema_name, {_SEQUENCE})"
    shown = f"'nextval(''' || {name} || '''::regclass)'"
    return (
        f"CASE coalesce(own.kind, '') WHEN '' THEN c.column_default WHEN {literal(SERIAL)} THEN {shown} END"
    )


# The attributes of a column that are its type's (constant_relations.py).
TYPE_ATTRIBUTES = (
    "type_oid", "typname", "shown", "typlen", "typbyval", "typalign", "typstorage", "typcollation",
    "typcategory",
)  # fmt: skip

# The same of a column of a user's type, or of a list of them.
_OWN_HEAD = """CASE WHEN starts_with(data_type, 'ENUM(') OR starts_with(data_type, 'STRUCT(') THEN
    if(ends_with(data_type, '[]'), data_type[:len(data_type) - 2], data_type) END"""
_IS_LIST = "ends_with(c.data_type, ']')"
_IS_PLAIN_ENUM = f"(starts_with(e.head, 'E') AND NOT {_IS_LIST})"
_OF_OWN = {
    "type_oid": f"e.oid - if({_IS_LIST}, 2, 0)", "typname": f"if({_IS_LIST}, '_', '') || e.type_name",
    "shown": f"e.name || if({_IS_LIST}, '[]', '')", "typlen": f"if({_IS_PLAIN_ENUM}, 4, -1)",
    "typbyval": _IS_PLAIN_ENUM, "typalign": "if(starts_with(e.head, 'E'), 'i', 'd')",
    "typstorage": f"if({_IS_PLAIN_ENUM}, 'p', 'x')", "typcollation": "0",
    "typcategory": f"CASE WHEN {_IS_LIST} THEN 'A' WHEN starts_with(e.head, 'E') THEN 'E' ELSE 'C' END",
}  # fmt: skip

# The columns of a branch of `_objects`, with their values for branches without them.
_OBJECT = {
    "kind": "", "database_name": "database_name", "schema_name": "schema_name", "table_name": "''",
    "name": "", "table_oid": "table_oid", "comment": "comment",
    "on_constraints": "NULL::VARCHAR", "row_count": "0", "column_count": "0",
    "has_index": "false", "checks": "0", "definition": "''", "is_unique": "false", "is_primary": "false",
    "place_in_list": "NULL::BIGINT", "columns": "NULL::BIGINT[]", "keys": "NULL::VARCHAR[]",
}  # fmt: skip


def _objects(branches: Sequence[str]) -> str:
    """The rows of pg_class: tables, views, indexes, sequences."""
    return f"""
        SELECT *, {path_sql(SPACE, "schema_name", "table_name", "name")} AS path,
               {TEMPORARY} AS temporary, {namespace_sql(TEMPORARY)} AS namespace
        FROM ({" UNION ALL ".join(branches)})"""


# Those of them that only a few relations need.
_PRUNED = frozenset(
    {"comment", "on_constraints", "row_count", "column_count", "has_index", "checks", "definition",
     "is_unique", "is_primary", "columns", "keys"}
)  # fmt: skip


def _object_branch(source: str, wanted: Container[str], **values: str) -> str:
    offered = {**_OBJECT, **values}.items()
    columns = ", ".join(f"{sql} AS {name}" for name, sql in offered if name not in _PRUNED or name in wanted)
    return f"SELECT {columns} FROM {source}"


def _tables(shown: str, wanted: Container[str]) -> str:
    return _object_branch(
        f"{HOME}.tables() AS z_t WHERE {shown.format('table_name')}", wanted,
        kind="'r'", name="table_name", row_count="estimated_size", column_count="column_count",
        has_index="has_primary_key OR index_count > 0", checks=_CHECKS,
        comment=constraint_comments.own_sql("comment"),
        on_constraints=constraint_comments.on_constraints_sql("comment"),
    )  # fmt: skip


# The checks that a table has, without those that only keep the names of keys.
_CHECKS = f"""CASE WHEN check_constraint_count = 0 THEN 0 ELSE (
    SELECT count(*) FROM {HOME}.named_constraints() AS z_k
    WHERE z_k.table_oid = z_t.table_oid AND z_k.database_name = z_t.database_name
      AND z_k.constraint_type = 'CHECK') END"""


def _views(here: str, wanted: Container[str]) -> str:
    return _object_branch(
        f"{HOME}.views() WHERE {here} AND NOT internal AND NOT starts_with(view_name, {literal(OUR_PREFIX)})",
        wanted, kind="'v'", name="view_name", table_oid="view_oid", column_count="column_count",
        definition="sql",
    )  # fmt: skip


def _indexes(shown: str, wanted: Container[str]) -> str:
    """Created indexes; `keys` are texts of columns (as SQL quotes them) or of expressions."""
    return _object_branch(
        f"{HOME}.indexes() WHERE {shown.format('table_name')}", wanted,
        kind="'i'", table_name="table_name", name="index_name", is_unique="is_unique",
        keys="expressions::VARCHAR[]",
    )  # fmt: skip


def _unique_constraints(shown: str, wanted: Container[str]) -> str:
    """The indexes behind PRIMARY KEY and UNIQUE; `keys` are names of columns."""
    return _object_branch(
        f"{HOME}.named_constraints() WHERE {shown.format('table_name')} "
        "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
        wanted, kind="'i'", table_name="table_name", name="constraint_name", comment="NULL::VARCHAR",
        is_unique="true", is_primary="constraint_type = 'PRIMARY KEY'", place_in_list="constraint_index",
        columns="list_transform(constraint_column_indexes, LAMBDA z_at: z_at + 1)",
        keys="constraint_column_names",
    )  # fmt: skip


def _sequences(shown: str, wanted: Container[str]) -> str:
    return _object_branch(
        f"{HOME}.sequences() WHERE {shown.format('sequence_name')}", wanted,
        kind="'S'", name="sequence_name", table_oid="sequence_oid", row_count="1", column_count="3",
    )  # fmt: skip


def _checks(shown: str) -> str:
    """CHECK and FOREIGN KEY constraints."""
    path = path_sql(SPACE, "schema_name", "table_name", "constraint_name")
    return f"""
        SELECT database_name, schema_name, table_name, table_oid, constraint_name, constraint_index,
               constraint_type, expression, constraint_column_names AS names, referenced_table,
               referenced_column_names AS referenced_names,
               list_transform(constraint_column_indexes, LAMBDA z_at: z_at + 1) AS columns, {path} AS path,
               {namespace_sql(TEMPORARY)} AS namespace
        FROM {HOME}.named_constraints()
        WHERE {shown.format("table_name")} AND constraint_type IN ('CHECK', 'FOREIGN KEY')"""


def _types() -> str:
    """Types created by CREATE TYPE."""
    return f"""
        SELECT schema_name, type_name, logical_type, labels, comment,
               {path_sql("schema_name", "type_name")} AS path,
               {namespace_sql("false")} AS namespace
        FROM {HOME}.types() WHERE database_name = {SERVED} AND NOT internal"""


def _macros() -> str:
    """Macros created by the user."""
    return f"""
        SELECT schema_name, function_name, function_type, parameters, macro_definition, comment,
               {path_sql("schema_name", "function_name", "len(parameters)")} AS path,
               {namespace_sql("false")} AS namespace
        FROM {HOME}.functions() WHERE database_name = {SERVED} AND NOT internal"""


def _head(text: str) -> str:
    """SQL of the part that determines a DuckDB type's PostgreSQL type: one of `type_heads`.

    That is the name before any arguments, with `[]` for a list or array; an unknown type is text, and a list
    of lists has the type of a struct, as in engine/values/value_types.py.
    """
    element = rf"regexp_replace({text}, '\[\d*\]$', '')"
    name = f"split_part({element}, '(', 1)"
    known = ", ".join(map(literal, value_types.OIDS))
    return (
        f"CASE WHEN ends_with({element}, ']') THEN 'STRUCT' WHEN {name} NOT IN ({known}) THEN 'VARCHAR' "
        f"ELSE {name} END || if(ends_with({text}, ']') AND NOT ends_with({element}, ']'), '[]', '')"
    )


HEAD = _head("data_type")


def type_heads() -> dict[str, int]:
    """The oid of each head that `_head` can return."""
    lists = {
        f"{name}[]": value_types.pg_type(f"{name}[]").oid for name in value_types.OIDS if name not in NESTED
    }
    return (
        value_types.OIDS
        | lists
        | {f"{name}[]": value_types.JSON for name in NESTED & value_types.OIDS.keys()}
        | {"TUPLE": value_types.ANY_RECORD, "TUPLE[]": value_types.ARRAY_OF[value_types.ANY_RECORD]}
    )


def _modifier(text: str) -> str:
    """SQL of pg_attribute.atttypmod of a DuckDB type: DECIMAL(p,s) and two timestamps have one, and lists."""
    digits = " ".join(
        f"WHEN {text} IN ('{name}', '{name}[]') THEN {number}" for name, number in value_types.DIGITS.items()
    )
    return f"""
        CASE {digits} WHEN starts_with({text}, 'DECIMAL(') AND NOT contains({text}, '][') THEN
             (regexp_extract({text}, '(\\d+),', 1)::INTEGER << 16)
             + regexp_extract({text}, ',\\s*(\\d+)', 1)::INTEGER + {value_types.MODIFIER_OFFSET}
             ELSE {value_types.NO_MODIFIER} END"""


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows of a relation.

    Args:
        source: the FROM, with its WHERE.
        values: SQL by column.
        extra: SQL of the columns that only the wide form has.
        only: the values of a column here, if they are few; a query that requires others does not need this
            branch.
        never: values that a column cannot have here.
        kinds: the kinds of the oids (oids.py) in a column here; FIXED is PostgreSQL's own.
    """

    source: str
    values: dict[str, str]
    extra: dict[str, str] = field(default_factory=dict)
    only: dict[str, frozenset[str]] = field(default_factory=dict)
    never: dict[str, frozenset[str]] = field(default_factory=dict)
    kinds: dict[str, frozenset[int]] = field(default_factory=dict)

    def may_have(self, column: str, wanted: frozenset[str]) -> bool:
        """True if there can be rows where the column is one of the wanted values."""
        here = (self.only.get(column, wanted) & wanted) - self.never.get(column, frozenset())
        kinds = self.kinds.get(column)
        return any(kinds is None or kind_of(value) in kinds for value in here)


# Columns of a wide form that are computed once, around the branches, from others of them.
AROUND: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "pg_class": {
        "__visible": (f"{HOME}.in_search_path(__schema, __temporary)", ("__schema", "__temporary")),
        "__name": (
            f"{HOME}.shown_name(__temporary, __schema, relname)", ("__schema", "__temporary", "relname")
        ),
    },
}  # fmt: skip

# The kinds of oids by their words in the data files.
_KINDS = {
    "fixed": FIXED, "relation": RELATION, "index": INDEX, "sequence": SEQUENCE, "other": OTHER,
    "array": ARRAY,
}  # fmt: skip
_VIEW = re.compile(r"^CREATE VIEW (\w+) AS(?: TABLE (\w+);)?$")
_COMMENT = re.compile(r"^    -- (only|never|kinds) (\w+): (.+)$")
_ITEM_INDENT, _SELECT, _UNION, _FROM = " " * 8, "    SELECT", "    UNION ALL", "    FROM "


def read_views(text: str) -> dict[str, list[Branch]]:
    """The branches of each view in a file of views; the file's header describes its format."""
    text = text.replace("$home", HOME).replace("$type_head", HEAD)
    found: dict[str, list[Branch]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if view := _VIEW.match(line):
            name, same_as = view.groups()
            found[name] = found[same_as] if same_as else []
        elif line == _UNION or (line.endswith(";") and line.startswith(" ")):
            if line != _UNION:
                lines.append(line.removesuffix(";"))
            found[name].append(_view_branch(lines))
            lines = []
        elif line.startswith(" "):
            lines.append(line)
    assert not lines, "every view ends with a semicolon"
    return found


def _view_branch(lines: Sequence[str]) -> Branch:
    """One SELECT with the comments before it."""
    select = lines.index(_SELECT)
    source = next(at for at, line in enumerate(lines) if line.startswith(_FROM))
    bounds: dict[str, dict[str, frozenset[str]]] = {"only": {}, "never": {}, "kinds": {}}
    for line in lines[:select]:
        comment = _COMMENT.match(line)
        assert comment, f"no bound of a branch: {line}"
        bounds[comment[1]][comment[2]] = frozenset(comment[3].split(", "))
    items: list[str] = []
    for line in lines[select + 1 : source]:
        if line.startswith(_ITEM_INDENT + " "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    columns: dict[str, str] = {}
    for item in items:
        sql, _, name = item.removesuffix(",").rpartition(" AS ")
        columns[name] = sql or name
    return Branch(
        " ".join(line.strip() for line in lines[source:]).removeprefix("FROM "),
        {name: sql for name, sql in columns.items() if not name.startswith("__")},
        {name: sql for name, sql in columns.items() if name.startswith("__")},
        bounds["only"],
        bounds["never"],
        {column: frozenset(_KINDS[word] for word in words) for column, words in bounds["kinds"].items()},
    )


SYSTEM_VIEWS = read_views(read_text("pg_catalog.sql"))
INFORMATION_VIEWS = read_views(read_text("information_schema.sql"))

_BASE = re.compile(rf"{re.escape(HOME)}\.(duck_(?:{'|'.join(name[5:] for name in base_views(()))}))\b(?!\()")


def branches_of(shape: Shape) -> Sequence[Branch]:
    """The sources of a relation's rows; empty for an empty relation."""
    views = SYSTEM_VIEWS if shape.schema == PG_CATALOG else INFORMATION_VIEWS
    return views.get(shape.name, ())


def extra_of(shape: Shape) -> tuple[str, ...]:
    """The columns that only the relation's wide form has."""
    branches = branches_of(shape)
    own = branches[0].extra if branches else {}
    return tuple(dict.fromkeys([*own, *around(shape)]))


# The prefix of the second form of a column of schemas' names (public_schema.py).
MEANT = "__meant_"
_IS_PUBLIC = (
    f"NOT EXISTS (SELECT 1 FROM {HOME}.schemas() AS z_s "
    f"WHERE z_s.database_name = {SERVED} AND z_s.schema_name = 'public')"
)


def names_schema(column: str) -> bool:
    """True for a column of schemas' names."""
    return column in ("nspname", "schemaname", "schema_name") or column.endswith("_schema")


@lru_cache(None)
def around(shape: Shape) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The columns of a wide form that are computed around the branches."""
    meant = {
        MEANT + name: (f"if(\"{name}\" = 'main' AND {_IS_PUBLIC}, 'public', \"{name}\")", (name,))
        for name in shape.names
        if names_schema(name)
    }
    return meant | AROUND.get(shape.name, {})


def empty_sql(shape: Shape, wanted: Iterable[str]) -> str:
    """The SELECT of a relation's columns without a row."""
    types = {column.name: column.duckdb_type for column in shape.columns}
    columns = ", ".join(f'NULL::{types.get(name, "VARCHAR")} AS "{name}"' for name in wanted)
    return f"SELECT {columns} WHERE false"


def relation_sql(shape: Shape, branches: Sequence[Branch], wanted: Iterable[str]) -> str:
    """The SELECT of a relation's columns, including those of the wide form.

    Expressions that are equal in all branches are written once, around their UNION ALL.
    """
    wanted = list(wanted)
    types = {column.name: column for column in shape.columns}
    offered = around(shape)
    outside = {name: offered[name] for name in wanted if name in offered}
    inside = [name for name in wanted if name not in outside]
    inside += [name for _, needs in outside.values() for name in needs]
    varying = [name for name in dict.fromkeys(inside) if any(name in _values(branch) for branch in branches)]
    if not varying:
        varying = [next(iter(branches[0].values))]
    union = " UNION ALL ".join(
        f"SELECT {_picked(branch, varying, types)} FROM {branch.source}" for branch in branches
    )
    picked = []
    for name in wanted:
        if name in outside:
            sql = outside[name][0]
        elif name in varying:
            sql = f'"{name}"'
        else:
            sql = types[name].empty
        type_ = f"::{types[name].duckdb_type}" if name in types else ""
        picked.append(f'({sql}){type_} AS "{name}"')
    return f"SELECT {', '.join(picked)} FROM ({union}) AS z_u"


def _values(branch: Branch) -> dict[str, str]:
    return {**branch.values, **branch.extra}


def _picked(branch: Branch, names: Sequence[str], types: dict[str, SystemColumn]) -> str:
    values = _values(branch)
    return ", ".join(f'{values.get(name) or types[name].empty} AS "{name}"' for name in names)


# The words of all base views, of which a query needs those that it names.
_WORD = re.compile(r"\w+")
_OFFERED = frozenset(_OBJECT) | frozenset(
    {"relation", "number", "column_name", "kind", "schema_name", "table_name", "temporary", "comment",
     "column_default", "identity", "own_sequence", "own_shown", "own_oid", "is_nullable", "data_type",
     "is_generated", "generation_expression", "type_modifier", "type_schema", "default_oid", *TYPE_ATTRIBUTES}
)  # fmt: skip


@lru_cache(256)
def _bases(wanted: frozenset[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The base views as CTEs: SQL, and the names of the views that each uses."""
    return {name: _with_ctes(sql) for name, sql in base_views(wanted).items()}


def _with_ctes(sql: str) -> tuple[str, tuple[str, ...]]:
    used = tuple(dict.fromkeys(_BASE.findall(sql)))
    return _BASE.sub(lambda found: cte_name(found[1]), sql), used


def cte_name(name: str) -> str:
    """The name of a relation or base view in a query that contains it."""
    return f"{OUR_PREFIX}_{name}"


@dataclass(frozen=True, slots=True)
class Use:
    """A relation as a query uses it.

    Args:
        branches: the branches that can have rows for the query; empty for an empty relation.
    """

    shape: Shape
    branches: tuple[int, ...]

    @property
    def cte(self) -> str:
        """Its name in the query."""
        which = "".join(map(str, self.branches)) if self.branches else "none"
        return cte_name(f"{self.shape.key}_{which}")


def ctes(wanted: dict[Use, list[str]]) -> list[str]:
    """The common table expressions of a query.

    Args:
        wanted: the columns of each relation that the query uses.
    """
    relations: list[str] = []
    used: list[str] = []
    for use, names in wanted.items():
        if not use.branches:
            sql = empty_sql(use.shape, names)
        else:
            branches = branches_of(use.shape)
            picked = [branches[at] for at in use.branches]
            sql, found = _with_ctes(relation_sql(use.shape, picked, names))
            used += found
        relations.append(f"{use.cte} AS ({sql})")
    if not used:
        return relations
    words = frozenset(word for sql in relations for word in _WORD.findall(sql)) & _OFFERED
    for view, columns in _READ_BY_VIEWS.items():
        words |= columns if view in used else frozenset()
    bases = _bases(words)
    counts: dict[str, int] = {}
    _collect(used, bases, counts)
    return [
        f"{cte_name(name)} AS {'MATERIALIZED ' if count > 1 else ''}({bases[name][0]})"
        for name, count in counts.items()
    ] + relations


# The columns of other base views that a base view reads.
_READ_BY_VIEWS = {
    "duck_own_sequences": frozenset({"own_sequence", "relation", "number", "identity", "temporary"}),
    "duck_default_sequences": frozenset({"default_oid", "column_default"}),
    "duck_members": frozenset({"definition", "schema_name"}),
}


def _collect(
    names: Iterable[str], bases: Mapping[str, tuple[str, tuple[str, ...]]], counts: dict[str, int]
) -> None:
    """Count the uses of these base views, each after the views that it uses itself."""
    for name in names:
        if name not in counts:
            _collect(bases[name][1], bases, counts)
        counts[name] = counts.get(name, 0) + 1

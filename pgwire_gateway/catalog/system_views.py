"""The relations of pg_catalog that have rows: where each column comes from.

A relation is one or more branches, each a FROM over the base views (objects.py) or the fixed tables
(fixed_tables.py) with SQL for the columns that are known; all other columns get the value that says
"nothing of that kind" (shapes.py), and relations that are not here are empty.

`extra` are columns that only the wide form of a relation has: what functions such as
pg_get_constraintdef(oid) answer, kept beside the row, so that the rewriter can turn a function of a
row into a column of it. They cost nothing where nobody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.quoting import literal
from .objects import HEAD
from .pg_types import FUNCTION_COLUMNS
from .places import (
    DATABASE_OID,
    FIXED,
    HOME,
    INDEX,
    INDEX_METHOD,
    INDEX_METHOD_OID,
    INFORMATION_SCHEMA_OID,
    OTHER,
    OWNER,
    OWNER_OID,
    PG_CATALOG_OID,
    RELATION,
    SEQUENCE,
    TABLE_METHOD,
    TABLE_METHOD_OID,
    TABLESPACE_OID,
    TEMPORARY_OID,
    TEMPORARY_SCHEMA,
    kind_of,
    path_sql,
    place_sql,
)

PG_CLASS_OID, PG_NAMESPACE_OID, PG_TYPE_OID, PG_PROC_OID = 1259, 2615, 1247, 1255
INT8_OID, ANY_OID = 20, 2276
SQL_LANGUAGE_OID, INTERNAL_LANGUAGE_OID = 14, 12


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows of a relation.

    Args:
        source: the FROM that they are taken from, with its WHERE.
        values: SQL by column.
        extra: SQL of the columns that only the wide form has.
        only: the values that a column can have here, where they are few; a query that wants others
            need not make this branch.
        never: values that a column cannot have here.
        kinds: the kinds of the oids (places.py) in a column here; FIXED is PostgreSQL's own.
    """

    source: str
    values: dict[str, str]
    extra: dict[str, str] = field(default_factory=dict)
    only: dict[str, frozenset[str]] = field(default_factory=dict)
    never: dict[str, frozenset[str]] = field(default_factory=dict)
    kinds: dict[str, frozenset[int]] = field(default_factory=dict)

    def may_have(self, column: str, wanted: frozenset[str]) -> bool:
        """Whether there can be rows where the column is one of the wanted values."""
        here = (self.only.get(column, wanted) & wanted) - self.never.get(column, frozenset())
        kinds = self.kinds.get(column)
        return any(kinds is None or kind_of(value) in kinds for value in here)


def _same(*names: str) -> dict[str, str]:
    """Columns that are called the same where they come from."""
    return {name: name for name in names}


def _visible(temporary: str = "false") -> str:
    """SQL: whether the schema `schema_name` is in the search path."""
    return f"{HOME}.in_search_path(schema_name, {temporary})"


# SQL: whether a role is a superuser: the owner of everything is, and a session's user may be.
SUPERUSER = f"(name = {literal(OWNER)} OR {HOME}.told_all())"

# Every one of these has an owner; there is one.
OWNED = str(OWNER_OID)

# Columns of a wide form that are made once, around the branches, from others of them.
AROUND: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "pg_class": {
        "__visible": (f"{HOME}.in_search_path(__schema, __temporary)", ("__schema", "__temporary")),
        "__name": (
            f"{HOME}.shown_name(__temporary, __schema, relname)", ("__schema", "__temporary", "relname")
        ),
    },
}  # fmt: skip

CLASS = [
    Branch(
        f"{HOME}.duck_objects",
        {
            "oid": "oid", "relname": "name", "relnamespace": "namespace", "relowner": OWNED,
            "relkind": "kind",
            "relam": f"CASE kind WHEN 'r' THEN {TABLE_METHOD_OID} "
            f"WHEN 'i' THEN {INDEX_METHOD_OID} ELSE 0 END",
            "reltuples": "row_count", "relhasindex": "has_index", "relhasrules": "kind = 'v'",
            "relpersistence": "if(temporary, 't', 'p')", "relchecks": "checks",
            "relnatts": "if(kind = 'i', len(keys), column_count)", "relispopulated": "true",
            "relreplident": "if(kind = 'r', 'd', 'n')",
        },
        {
            "__schema": "schema_name", "__temporary": "temporary",
            "__definition": f"if(kind = 'v', {HOME}.view_text(definition), NULL)",
        },
        kinds={"oid": frozenset({RELATION, INDEX, SEQUENCE})},
    ),
    Branch(
        f"{HOME}.fixed_relations",
        {
            **_same("oid", "relname", "relnamespace", "relkind", "relnatts"),
            "relowner": OWNED, "relpersistence": "'p'", "relispopulated": "true", "relreplident": "'n'",
            "relhasrules": "relkind = 'v'", "relam": f"if(relkind = 'r', {TABLE_METHOD_OID}, 0)",
        },
        {
            "__schema": "schema_name", "__temporary": f"relnamespace = {PG_CATALOG_OID}",
            "__definition": "NULL",
        },
        kinds={"oid": frozenset({FIXED})},
    ),
]  # fmt: skip

NAMESPACE = [
    Branch(f"{HOME}.duck_schemas", {"oid": "oid", "nspname": "schema_name", "nspowner": OWNED}),
    Branch(
        f"(VALUES ({PG_CATALOG_OID}, 'pg_catalog'), ({INFORMATION_SCHEMA_OID}, 'information_schema'), "
        f"({TEMPORARY_OID}, {literal(TEMPORARY_SCHEMA)})) AS f(oid, nspname)",
        {"oid": "oid", "nspname": "nspname", "nspowner": OWNED},
    ),
]

_COLUMN_TYPE = {
    "atttypid": "type_oid", "attlen": "typlen", "attbyval": "typbyval", "attalign": "typalign",
    "attstorage": "typstorage", "attcollation": "typcollation",
    "attndims": "if(typcategory = 'A', 1, 0)", "attstattarget": "-1", "attcacheoff": "-1",
    "attislocal": "true",
}  # fmt: skip

# The columns of an index; the type of an expression is not known here.
_INDEX_COLUMNS = f"""
    (SELECT k.oid AS relation, unnest(k.keys) AS key, generate_subscripts(k.keys, 1) AS number,
            k.place_in_list IS NULL AS quoted, k.table_oid, k.database_name FROM {HOME}.duck_keys AS k) AS i
    LEFT JOIN (SELECT database_name, table_oid, column_name, {HEAD} AS head FROM {HOME}.columns()) AS d
      ON d.table_oid = i.table_oid AND d.database_name = i.database_name
         AND d.column_name = if(i.quoted, {HOME}.unquoted(i.key), i.key)
    LEFT JOIN {HOME}.fixed_duck_types AS t ON t.head = d.head"""

ATTRIBUTE = [
    Branch(
        f"{HOME}.duck_columns",
        {
            "attrelid": "relation", "attname": "column_name", "attnum": "number",
            "atttypmod": "type_modifier", "attnotnull": "NOT is_nullable",
            "atthasdef": "kind = 'r' AND column_default IS NOT NULL",
            "attgenerated": "if(is_generated, 's', '')", **_COLUMN_TYPE,
        },
        {"__description": "comment", "__type": f"{HOME}.shown_type(shown, type_oid, type_modifier)"},
        kinds={"attrelid": frozenset({RELATION})},
    ),
    Branch(
        _INDEX_COLUMNS,
        {
            "attrelid": "relation", "attname": "coalesce(d.column_name, 'expr')", "attnum": "number",
            "atttypmod": "-1", **_COLUMN_TYPE, "atttypid": "coalesce(type_oid, 0)",
        },
        {"__description": "NULL", "__type": "coalesce(shown, '-')"},
        kinds={"attrelid": frozenset({INDEX})},
    ),
    Branch(
        f"{HOME}.fixed_columns",
        {**_same("attrelid", "attname", "attnum", "attnotnull"), "atttypmod": "-1", **_COLUMN_TYPE},
        {"__description": "NULL", "__type": "shown"},
        kinds={"attrelid": frozenset({FIXED})},
    ),
]  # fmt: skip

ATTRDEF = [
    Branch(
        f"{HOME}.duck_columns WHERE kind = 'r' AND column_default IS NOT NULL",
        {
            "oid": place_sql(OTHER, path_sql("relation", "column_name")), "adrelid": "relation",
            "adnum": "number", "adbin": "coalesce(generation_expression, column_default)",
        },
    ),
]  # fmt: skip

TYPE = [
    Branch(
        f"{HOME}.fixed_types",
        {
            **_same(
                "oid", "typname", "typlen", "typbyval", "typtype", "typcategory", "typispreferred",
                "typsubscript", "typelem", "typarray", "typinput", "typoutput", "typreceive", "typsend",
                "typmodin", "typmodout", "typalign", "typstorage", "typcollation",
            ),
            "typnamespace": str(PG_CATALOG_OID), "typowner": OWNED, "typisdefined": "true",
            "typdelim": "','", "typtypmod": "-1",
        },
        {
            "__visible": "true", "__name": "shown", "__description": "NULL",
            **{f"__{column}": f"__{column}" for column in FUNCTION_COLUMNS},
        },
    ),
    Branch(
        f"{HOME}.duck_types",
        {
            "oid": "oid", "typname": "type_name", "typnamespace": "namespace", "typowner": OWNED,
            "typlen": "if(logical_type = 'ENUM', 4, -1)", "typbyval": "logical_type = 'ENUM'",
            "typtype": "if(logical_type = 'ENUM', 'e', 'b')",
            "typcategory": "if(logical_type = 'ENUM', 'E', 'U')",
            "typisdefined": "true", "typdelim": "','", "typalign": "'i'", "typstorage": "'p'",
            "typtypmod": "-1",
        },
        {
            "__visible": _visible(),
            "__name": f"{HOME}.shown_name(false, schema_name, type_name)",
            "__description": "comment",
            **dict.fromkeys((f"__{column}" for column in FUNCTION_COLUMNS), "'-'"),
        },
    ),
]  # fmt: skip

# A number that an enum's labels have in PostgreSQL; they are found by type and order here.
ENUM = [
    Branch(
        f"(SELECT oid AS type, unnest(labels) AS label, generate_subscripts(labels, 1) AS z_place "
        f"FROM {HOME}.duck_types WHERE logical_type = 'ENUM')",
        {
            "oid": place_sql(OTHER, path_sql("type", "label")), "enumtypid": "type",
            "enumsortorder": "z_place", "enumlabel": "label",
        },
    ),
]  # fmt: skip

CONSTRAINT = [
    Branch(
        f"{HOME}.duck_indexes WHERE place_in_list IS NOT NULL",
        {
            "oid": "oid", "conname": "name", "connamespace": "namespace",
            "contype": "if(is_primary, 'p', 'u')", "convalidated": "true", "conrelid": "relation",
            "conindid": "oid", "conislocal": "true", "connoinherit": "true", "conkey": "columns",
        },
        {"__definition": f"if(is_primary, 'PRIMARY KEY (', 'UNIQUE (') || {HOME}.quoted_list(keys) || ')'"},
        only={"contype": frozenset("pu")},
    ),
    Branch(
        f"""{HOME}.duck_checks AS c JOIN {HOME}.duck_relations AS r
              ON r.table_oid = c.table_oid AND r.database_name = c.database_name
            WHERE c.constraint_type = 'CHECK'""",
        {
            "oid": "c.oid", "conname": "constraint_name", "connamespace": "c.namespace", "contype": "'c'",
            "convalidated": "true", "conrelid": "r.oid", "conislocal": "true", "conkey": "c.columns",
            "conbin": "expression",
        },
        {
            "__definition": "'CHECK ' || "
            "if(starts_with(expression, '('), expression, '(' || expression || ')')"
        },
        only={"contype": frozenset("c")},
    ),
    Branch(
        f"""{HOME}.duck_checks AS c JOIN {HOME}.duck_relations AS r
              ON r.table_oid = c.table_oid AND r.database_name = c.database_name
            JOIN {HOME}.duck_relations AS f
              ON f.schema_name = c.schema_name AND f.database_name = c.database_name
                 AND {HOME}.folded(f.name) = {HOME}.folded(c.referenced_table)
            JOIN {HOME}.duck_column_lists AS l
              ON l.table_oid = f.table_oid AND l.database_name = f.database_name
            LEFT JOIN {HOME}.duck_keys AS k
              ON k.table_oid = f.table_oid AND k.database_name = f.database_name
                 AND k.place_in_list IS NOT NULL
                 AND k.keys = c.referenced_names
            WHERE c.constraint_type = 'FOREIGN KEY'""",
        {
            "oid": "c.oid", "conname": "constraint_name", "connamespace": "c.namespace", "contype": "'f'",
            "convalidated": "true", "conrelid": "r.oid", "conindid": "coalesce(k.oid, 0)",
            "confrelid": "f.oid", "confupdtype": "'a'", "confdeltype": "'a'", "confmatchtype": "'s'",
            "conislocal": "true", "connoinherit": "true", "conkey": "c.columns",
            "confkey": "list_transform(c.referenced_names, LAMBDA z_part: list_position(l.names, z_part))",
        },
        {
            "__definition": f"'FOREIGN KEY (' || {HOME}.quoted_list(c.names) || ') REFERENCES ' || "
            f"{HOME}.shown_name(f.temporary, f.schema_name, f.name) || '(' || "
            f"{HOME}.quoted_list(c.referenced_names) || ')'",
        },
        only={"contype": frozenset("f")},
    ),
]  # fmt: skip

_KEYS = f"if(place_in_list IS NULL, keys, {HOME}.quoted_items(keys))"
_INDEX_DEFINITION = (
    f"'CREATE ' || if(is_unique, 'UNIQUE ', '') || 'INDEX ' || {HOME}.quote_ident(name) || ' ON ' || "
    f"{HOME}.quote_ident(schema_name) || '.' || {HOME}.quote_ident(table_name) || "
    f"' USING {INDEX_METHOD} (' || array_to_string({_KEYS}, ', ') || ')'"
)
_ATTNUM = f"coalesce(list_position(l.names, if(place_in_list IS NULL, {HOME}.unquoted(z_part), z_part)), 0)"

INDEXES = [
    Branch(
        f"""{HOME}.duck_indexes AS i JOIN {HOME}.duck_column_lists AS l
              ON l.table_oid = i.table_oid AND l.database_name = i.database_name""",
        {
            "indexrelid": "i.oid", "indrelid": "i.relation", "indnatts": "len(keys)",
            "indnkeyatts": "len(keys)", "indisunique": "is_unique", "indisprimary": "is_primary",
            "indimmediate": "true", "indisvalid": "true", "indisready": "true", "indislive": "true",
            "indkey": f"list_transform(keys, LAMBDA z_part: {_ATTNUM})",
            "indcollation": "list_transform(keys, LAMBDA z_part: 0)",
            "indclass": "list_transform(keys, LAMBDA z_part: 0)",
            "indoption": "list_transform(keys, LAMBDA z_part: 0)",
        },
        {"__definition": _INDEX_DEFINITION, "__keys": _KEYS},
    ),
]  # fmt: skip

SEQUENCES = [
    Branch(
        f"{HOME}.duck_sequences",
        {
            "seqrelid": "oid", "seqtypid": str(INT8_OID), "seqstart": "start_value",
            "seqincrement": "increment_by", "seqmax": "max_value", "seqmin": "min_value",
            "seqcache": "1", "seqcycle": "cycle",
        },
    ),
]  # fmt: skip


def _comment(source: str, owner: str, catalog: int, number: str = "0") -> Branch:
    zero = frozenset("0")
    return Branch(
        f"{source} WHERE comment IS NOT NULL",
        {"objoid": owner, "classoid": str(catalog), "objsubid": number, "description": "comment"},
        only={"classoid": frozenset({str(catalog)}), **({"objsubid": zero} if number == "0" else {})},
        never={} if number == "0" else {"objsubid": zero},
    )


DESCRIPTION = [
    _comment(f"{HOME}.duck_objects", "oid", PG_CLASS_OID),
    _comment(f"{HOME}.duck_columns", "relation", PG_CLASS_OID, "number"),
    _comment(f"{HOME}.duck_schemas", "oid", PG_NAMESPACE_OID),
    _comment(f"{HOME}.duck_types", "oid", PG_TYPE_OID),
    _comment(f"{HOME}.duck_macros", "oid", PG_PROC_OID),
]

PROC = [
    Branch(
        f"{HOME}.duck_macros",
        {
            "oid": "oid", "proname": "function_name", "pronamespace": "namespace", "proowner": OWNED,
            "prolang": str(SQL_LANGUAGE_OID), "procost": "100", "prokind": "'f'", "provolatile": "'v'",
            "proparallel": "'s'", "proretset": "function_type = 'table_macro'",
            "prorows": "if(function_type = 'table_macro', 1000, 0)", "pronargs": "len(parameters)",
            "prorettype": str(ANY_OID), "proargnames": "parameters", "prosrc": "macro_definition",
            "proargtypes": f"list_transform(parameters, LAMBDA z_part: {ANY_OID})",
        },
        {
            "__visible": _visible(),
            "__name": f"{HOME}.shown_name(false, schema_name, function_name)",
            "__arguments": f"{HOME}.quoted_list(parameters)",
            "__result": "if(function_type = 'table_macro', 'TABLE', '\"any\"')",
            "__definition": f"'CREATE MACRO ' || {HOME}.quote_ident(schema_name) || '.' || "
            f"{HOME}.quote_ident(function_name) || '(' || {HOME}.quoted_list(parameters) || ') AS ' || "
            "if(function_type = 'table_macro', 'TABLE ', '') || macro_definition",
            "__description": "comment",
        },
    ),
    Branch(
        f"{HOME}.fixed_functions",
        {
            **_same("oid", "proname", "prokind", "provolatile", "proretset", "prorettype", "provariadic"),
            "pronamespace": str(PG_CATALOG_OID), "proowner": OWNED, "prolang": str(INTERNAL_LANGUAGE_OID),
            "procost": "1", "proparallel": "'s'", "pronargs": "len(argument_oids)",
            "proargtypes": "argument_oids", "prosrc": "proname",
        },
        {
            "__visible": "true", "__name": "proname", "__arguments": "arguments", "__result": "result",
            "__definition": "NULL", "__description": "description",
        },
    ),
]  # fmt: skip


def _roles(rolname: str, prefix: str, rest: dict[str, str]) -> list[Branch]:
    """The one role that owns everything, and the session's user where he is called something else."""
    flags = {f"{prefix}{flag}": SUPERUSER for flag in ("super", "createdb", "bypassrls")}
    return [
        Branch(f"{HOME}.duck_roles", {rolname: "name", **flags, **rest}),
    ]


_ROLE_REST = {
    "oid": "oid", "rolinherit": "true", "rolcreaterole": "true", "rolcanlogin": "true",
    "rolreplication": "true", "rolconnlimit": "-1",
}  # fmt: skip

TABLES = [
    Branch(
        f"{HOME}.duck_relations WHERE kind = 'r'",
        {
            "schemaname": f"{HOME}.schema_shown(schema_name, temporary)", "tablename": "name",
            "tableowner": literal(OWNER), "hasindexes": "has_index", "hasrules": "false",
            "hastriggers": "false", "rowsecurity": "false",
        },
    ),
]  # fmt: skip
VIEWS = [
    Branch(
        f"{HOME}.duck_relations WHERE kind = 'v'",
        {
            "schemaname": f"{HOME}.schema_shown(schema_name, temporary)", "viewname": "name",
            "viewowner": literal(OWNER), "definition": f"{HOME}.view_text(definition)",
        },
    ),
]  # fmt: skip
INDEX_VIEW = [
    Branch(
        f"{HOME}.duck_keys",
        {
            "schemaname": f"{HOME}.schema_shown(schema_name, temporary)", "tablename": "table_name",
            "indexname": "name", "indexdef": _INDEX_DEFINITION,
        },
    ),
]  # fmt: skip
SEQUENCE_VIEW = [
    Branch(
        f"{HOME}.duck_sequences",
        {
            "schemaname": f"{HOME}.schema_shown(schema_name, temporary)", "sequencename": "name",
            "sequenceowner": literal(OWNER), "data_type": str(INT8_OID), "start_value": "start_value",
            "min_value": "min_value", "max_value": "max_value", "increment_by": "increment_by",
            "cycle": "cycle", "cache_size": "1", "last_value": "last_value",
        },
    ),
]  # fmt: skip

_STATISTICS = {
    "relid": "oid", "schemaname": f"{HOME}.schema_shown(schema_name, temporary)", "relname": "name",
    "n_live_tup": "row_count",
}  # fmt: skip
STATISTICS = [Branch(f"{HOME}.duck_relations WHERE kind = 'r'", _STATISTICS)]

SYSTEM_VIEWS: dict[str, list[Branch]] = {
    "pg_class": CLASS,
    "pg_namespace": NAMESPACE,
    "pg_attribute": ATTRIBUTE,
    "pg_attrdef": ATTRDEF,
    "pg_type": TYPE,
    "pg_enum": ENUM,
    "pg_constraint": CONSTRAINT,
    "pg_index": INDEXES,
    "pg_sequence": SEQUENCES,
    "pg_description": DESCRIPTION,
    "pg_proc": PROC,
    "pg_roles": _roles("rolname", "rol", _ROLE_REST),
    "pg_authid": _roles("rolname", "rol", _ROLE_REST),
    "pg_user": [
        Branch(
            f"{HOME}.duck_roles",
            {"usename": "name", "usesysid": "oid", "usecreatedb": SUPERUSER, "usesuper": SUPERUSER,
             "userepl": "true", "usebypassrls": SUPERUSER},
        )
    ],
    "pg_shadow": [
        Branch(
            f"{HOME}.duck_roles",
            {"usename": "name", "usesysid": "oid", "usecreatedb": SUPERUSER, "usesuper": SUPERUSER,
             "userepl": "true", "usebypassrls": SUPERUSER},
        )
    ],
    "pg_database": [
        Branch(
            "(SELECT 1)",
            {
                "oid": str(DATABASE_OID), "datname": f"{HOME}.current_database()", "datdba": OWNED,
                "encoding": "6", "datlocprovider": "'c'", "datallowconn": "true", "datconnlimit": "-1",
                "dattablespace": str(TABLESPACE_OID), "datcollate": "'C'", "datctype": "'C'",
            },
        )
    ],
    "pg_tablespace": [
        Branch(
            "(SELECT 1)", {"oid": str(TABLESPACE_OID), "spcname": "'pg_default'", "spcowner": OWNED}
        )
    ],
    "pg_am": [
        Branch(
            f"(VALUES ({TABLE_METHOD_OID}, {literal(TABLE_METHOD)}, 't'), "
            f"({INDEX_METHOD_OID}, {literal(INDEX_METHOD)}, 'i')) AS f(oid, n, t)",
            {"oid": "oid", "amname": "n", "amtype": "t"},
        )
    ],
    "pg_language": [
        Branch(
            f"(VALUES ({INTERNAL_LANGUAGE_OID}, 'internal'), ({SQL_LANGUAGE_OID}, 'sql')) AS f(oid, n)",
            {"oid": "oid", "lanname": "n", "lanowner": OWNED, "lanpltrusted": "n = 'sql'"},
        )
    ],
    "pg_collation": [
        Branch(
            "(VALUES (100, 'default', 'd'), (950, 'C', 'c'), (951, 'POSIX', 'c')) AS f(oid, n, p)",
            {
                "oid": "oid", "collname": "n", "collnamespace": str(PG_CATALOG_OID), "collowner": OWNED,
                "collprovider": "p", "collisdeterministic": "true", "collencoding": "-1",
                "collcollate": "'C'", "collctype": "'C'",
            },
        )
    ],
    "pg_cursors": [
        Branch(
            f"(SELECT unnest({HOME}.cursors()) AS c) AS f",
            {
                "creation_time": "make_timestamptz(c.made_us)",
                **{n: f"c.{n}" for n in ("name", "statement", "is_holdable", "is_binary", "is_scrollable")},
            },
        )
    ],
    "pg_settings": [
        Branch(
            f"{HOME}.fixed_settings",
            {
                **_same("name", "category", "short_desc", "context", "vartype", "boot_val"),
                "setting": f"{HOME}.setting(name, boot_val)", "reset_val": "boot_val",
                "source": f"if({HOME}.setting(name, boot_val) = boot_val, 'default', 'session')",
                "pending_restart": "false",
            },
        ),
        Branch(
            f"(SELECT s.* FROM (SELECT unnest({HOME}.server_settings()) AS s) "
            f"WHERE s.name NOT IN (SELECT name FROM {HOME}.fixed_settings)) AS f",
            {
                **_same("name", "setting", "vartype", "source"),
                "short_desc": "about", "category": "'Server'", "context": "'postmaster'",
                "reset_val": "setting", "pending_restart": "false",
            },
        ),
    ],
    "pg_tables": TABLES,
    "pg_views": VIEWS,
    "pg_indexes": INDEX_VIEW,
    "pg_sequences": SEQUENCE_VIEW,
    "pg_stat_user_tables": STATISTICS,
    "pg_stat_all_tables": STATISTICS,
    "pg_timezone_names": [
        Branch("pg_timezone_names()", _same("name", "abbrev", "utc_offset", "is_dst"))
    ],
}  # fmt: skip

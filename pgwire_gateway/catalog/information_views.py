"""The relations of information_schema that have rows, as system_views.py has those of pg_catalog.

DuckDB has an information_schema of its own, whose types are DuckDB's words and whose udt_name is
NULL; clients want PostgreSQL's. Source: PostgreSQL documentation, "The Information Schema".
"""

from __future__ import annotations

from ...engine.quoting import literal
from .places import HOME, OWNER
from .system_views import Branch

DATABASE = f"{HOME}.current_database()"
SCHEMA = f"{HOME}.schema_shown(schema_name, temporary)"
# PostgreSQL's character_octet_length of text.
OCTETS_MAX = 1 << 30

# Types with a precision, by pg_type.oid: precision, radix, scale.
_NUMBERS = {21: (16, 2, "0"), 23: (32, 2, "0"), 20: (64, 2, "0"), 700: (24, 2, "NULL"), 701: (53, 2, "NULL")}
_NUMERIC_OID, _DATE_OID, _TEXT_OID = 1700, 1082, 25
_TIMES = "(1083, 1114, 1184, 1186, 1266)"


def _by_type(at: int, of_numeric: str) -> str:
    cases = " ".join(f"WHEN {oid} THEN {row[at]}" for oid, row in _NUMBERS.items())
    has_modifier = "type_modifier >= 4"
    return f"CASE type_oid {cases} WHEN {_NUMERIC_OID} THEN if({has_modifier}, {of_numeric}, NULL) END"


_COLUMN_TYPE = {
    "data_type": "if(typcategory = 'A', 'ARRAY', shown)",
    "character_octet_length": f"if(type_oid = {_TEXT_OID}, {OCTETS_MAX}, NULL)",
    "numeric_precision": _by_type(0, "(type_modifier - 4) >> 16"),
    "numeric_precision_radix": _by_type(1, "10"),
    "numeric_scale": _by_type(2, "(type_modifier - 4) & 65535"),
    "datetime_precision": f"CASE WHEN type_oid IN {_TIMES} THEN 6 WHEN type_oid = {_DATE_OID} THEN 0 END",
    "udt_catalog": DATABASE, "udt_schema": "'pg_catalog'", "udt_name": "typname",
}  # fmt: skip
_NEITHER = {"is_self_referencing": "'NO'", "is_identity": "'NO'", "identity_cycle": "'NO'"}

COLUMNS = [
    Branch(
        f"{HOME}.duck_columns",
        {
            "table_catalog": DATABASE, "table_schema": SCHEMA, "table_name": "table_name",
            "column_name": "column_name", "ordinal_position": "number",
            "column_default": "if(kind = 'r' AND NOT is_generated, column_default, NULL)",
            "is_nullable": "if(is_nullable, 'YES', 'NO')", **_COLUMN_TYPE, "dtd_identifier": "number",
            **_NEITHER, "is_generated": "if(is_generated, 'ALWAYS', 'NEVER')",
            "generation_expression": "generation_expression",
            "is_updatable": "if(kind = 'r' AND NOT is_generated, 'YES', 'NO')",
        },
    ),
    Branch(
        f"""(SELECT f.*, -1 AS type_modifier, r.relname, r.schema_name FROM {HOME}.fixed_columns AS f
             JOIN {HOME}.fixed_relations AS r ON r.oid = f.attrelid)""",
        {
            "table_catalog": DATABASE, "table_schema": "schema_name", "table_name": "relname",
            "column_name": "attname", "ordinal_position": "attnum",
            "is_nullable": "if(attnotnull, 'NO', 'YES')", **_COLUMN_TYPE, "dtd_identifier": "attnum",
            **_NEITHER, "is_generated": "'NEVER'", "is_updatable": "'NO'",
        },
    ),
]  # fmt: skip

TABLES = [
    Branch(
        f"{HOME}.duck_relations",
        {
            "table_catalog": DATABASE, "table_schema": SCHEMA, "table_name": "name",
            "table_type": "CASE WHEN kind = 'v' THEN 'VIEW' WHEN temporary THEN 'LOCAL TEMPORARY' "
            "ELSE 'BASE TABLE' END",
            "is_insertable_into": "if(kind = 'r', 'YES', 'NO')", "is_typed": "'NO'",
            "commit_action": "if(temporary AND kind = 'r', 'PRESERVE', NULL)",
        },
    ),
    Branch(
        f"{HOME}.fixed_relations",
        {
            "table_catalog": DATABASE, "table_schema": "schema_name", "table_name": "relname",
            "table_type": "if(relkind = 'v', 'VIEW', 'BASE TABLE')", "is_insertable_into": "'NO'",
            "is_typed": "'NO'",
        },
    ),
]  # fmt: skip

VIEWS = [
    Branch(
        f"{HOME}.duck_relations WHERE kind = 'v'",
        {
            "table_catalog": DATABASE, "table_schema": SCHEMA, "table_name": "name",
            "view_definition": f"{HOME}.view_text(definition)", "check_option": "'NONE'",
            "is_updatable": "'NO'", "is_insertable_into": "'NO'", "is_trigger_updatable": "'NO'",
            "is_trigger_deletable": "'NO'", "is_trigger_insertable_into": "'NO'",
        },
    ),
]  # fmt: skip

SCHEMATA = [
    Branch(
        f"{HOME}.duck_schemas",
        {"catalog_name": DATABASE, "schema_name": "schema_name", "schema_owner": literal(OWNER)},
    ),
    Branch(
        "(VALUES ('pg_catalog'), ('information_schema')) AS f(name)",
        {"catalog_name": DATABASE, "schema_name": "name", "schema_owner": literal(OWNER)},
    ),
]

# The constraints of tables: PRIMARY KEY and UNIQUE are kept with their indexes, the others apart.
_UNIQUE = f"{HOME}.duck_keys WHERE place_in_list IS NOT NULL"
_CHECKS = f"(SELECT *, database_name = 'temp' AS temporary FROM {HOME}.duck_checks)"
_OF_KEY = {
    "constraint_catalog": DATABASE, "constraint_schema": SCHEMA, "constraint_name": "name",
    "table_catalog": DATABASE, "table_schema": SCHEMA, "table_name": "table_name",
}  # fmt: skip
_OF_CHECK = {**_OF_KEY, "constraint_name": "constraint_name"}
_AT_ONCE = {"is_deferrable": "'NO'", "initially_deferred": "'NO'", "enforced": "'YES'"}

TABLE_CONSTRAINTS = [
    Branch(
        _UNIQUE,
        {**_OF_KEY, **_AT_ONCE, "constraint_type": "if(is_primary, 'PRIMARY KEY', 'UNIQUE')",
         "nulls_distinct": "if(is_primary, NULL, 'YES')"},
    ),
    Branch(_CHECKS, {**_OF_CHECK, **_AT_ONCE, "constraint_type": "constraint_type"}),
]  # fmt: skip

KEY_COLUMN_USAGE = [
    Branch(
        f"(SELECT *, unnest(keys) AS part, generate_subscripts(keys, 1) AS z_place FROM {_UNIQUE})",
        {**_OF_KEY, "column_name": "part", "ordinal_position": "z_place"},
    ),
    Branch(
        f"(SELECT *, unnest(names) AS part, generate_subscripts(names, 1) AS z_place FROM {_CHECKS} "
        "WHERE constraint_type = 'FOREIGN KEY')",
        {**_OF_CHECK, "column_name": "part", "ordinal_position": "z_place",
         "position_in_unique_constraint": "z_place"},
    ),
]  # fmt: skip

CONSTRAINT_COLUMN_USAGE = [
    Branch(f"(SELECT *, unnest(keys) AS part FROM {_UNIQUE})", {**_OF_KEY, "column_name": "part"}),
    Branch(
        f"(SELECT *, unnest(if(constraint_type = 'CHECK', names, referenced_names)) AS part FROM {_CHECKS})",
        {**_OF_CHECK, "table_name": "coalesce(referenced_table, table_name)", "column_name": "part"},
    ),
]

CHECK_CONSTRAINTS = [
    Branch(
        f"{_CHECKS} WHERE constraint_type = 'CHECK'",
        {"constraint_catalog": DATABASE, "constraint_schema": SCHEMA, "constraint_name": "constraint_name",
         "check_clause": "expression"},
    ),
]  # fmt: skip

REFERENTIAL_CONSTRAINTS = [
    Branch(
        f"""{_CHECKS} AS c LEFT JOIN (SELECT * FROM {_UNIQUE}) AS k
              ON k.schema_name = c.schema_name AND k.database_name = c.database_name
                 AND {HOME}.folded(k.table_name) = {HOME}.folded(c.referenced_table)
                 AND k.keys = c.referenced_names
            WHERE c.constraint_type = 'FOREIGN KEY'""",
        {
            "constraint_catalog": DATABASE,
            "constraint_schema": f"{HOME}.schema_shown(c.schema_name, c.temporary)",
            "constraint_name": "constraint_name", "unique_constraint_catalog": DATABASE,
            "unique_constraint_schema": f"{HOME}.schema_shown(c.schema_name, c.temporary)",
            "unique_constraint_name": "k.name", "match_option": "'NONE'", "update_rule": "'NO ACTION'",
            "delete_rule": "'NO ACTION'",
        },
    ),
]  # fmt: skip

SEQUENCES = [
    Branch(
        f"{HOME}.duck_sequences",
        {
            "sequence_catalog": DATABASE, "sequence_schema": SCHEMA, "sequence_name": "name",
            "data_type": "'bigint'", "numeric_precision": "64", "numeric_precision_radix": "2",
            "numeric_scale": "0", "start_value": "start_value", "minimum_value": "min_value",
            "maximum_value": "max_value", "increment": "increment_by",
            "cycle_option": "if(cycle, 'YES', 'NO')",
        },
    ),
]  # fmt: skip

ROUTINES = [
    Branch(
        f"{HOME}.duck_macros",
        {
            "specific_catalog": DATABASE, "specific_schema": "schema_name",
            "specific_name": "function_name || '_' || oid", "routine_catalog": DATABASE,
            "routine_schema": "schema_name", "routine_name": "function_name", "routine_type": "'FUNCTION'",
            "data_type": "'\"any\"'", "routine_body": "'SQL'", "routine_definition": "macro_definition",
            "external_language": "'SQL'", "security_type": "'INVOKER'",
        },
    ),
]  # fmt: skip

_PRIVILEGES = "'SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'"
TABLE_PRIVILEGES = [
    Branch(
        f"(SELECT *, unnest([{_PRIVILEGES}]) AS privilege FROM {HOME}.duck_relations)",
        {
            "grantor": literal(OWNER), "grantee": literal(OWNER), "table_catalog": DATABASE,
            "table_schema": SCHEMA, "table_name": "name", "privilege_type": "privilege",
            "is_grantable": "'YES'", "with_hierarchy": "if(privilege = 'SELECT', 'YES', 'NO')",
        },
    ),
]  # fmt: skip

INFORMATION_VIEWS: dict[str, list[Branch]] = {
    "information_schema_catalog_name": [Branch("(SELECT 1)", {"catalog_name": DATABASE})],
    "schemata": SCHEMATA,
    "tables": TABLES,
    "columns": COLUMNS,
    "views": VIEWS,
    "table_constraints": TABLE_CONSTRAINTS,
    "key_column_usage": KEY_COLUMN_USAGE,
    "constraint_column_usage": CONSTRAINT_COLUMN_USAGE,
    "check_constraints": CHECK_CONSTRAINTS,
    "referential_constraints": REFERENTIAL_CONSTRAINTS,
    "sequences": SEQUENCES,
    "routines": ROUTINES,
    "table_privileges": TABLE_PRIVILEGES,
    "role_table_grants": TABLE_PRIVILEGES,
    "enabled_roles": [Branch(f"{HOME}.duck_roles", {"role_name": "name"})],
    "character_sets": [
        Branch(
            "(SELECT 1)",
            {"character_set_name": "'UTF8'", "character_repertoire": "'UCS'", "form_of_use": "'UTF8'",
             "default_collate_catalog": DATABASE},
        )
    ],
}  # fmt: skip

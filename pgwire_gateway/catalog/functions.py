"""PostgreSQL's functions that clients call: DuckDB macros, and lookups that are inserted into the query.

A macro's parameters are inserted into its body as text, and a name in them is resolved among the body's own
tables first: so every table and parameter in a body has a name that no client uses (`z_...`). Functions about
the session (current_setting, pg_backend_pid) read the session's variables, which `installation.attach` sets.

has_table_privilege and related functions look their object up, and the session's rights decide. Each has a
form by name and one by oid, each with and without a preceding user: as in PostgreSQL an unknown name is an
error and an unknown oid returns NULL. An object that the session may not see counts as unknown.
Source: PostgreSQL documentation, "System Information Functions", "Access Privilege Inquiry Functions".
"""

from __future__ import annotations

import json

from ...engine.quoting import folded_sql, literal
from ...engine.version import VERSION
from .oids import (
    DATABASE_OID,
    HOME,
    MARK,
    OTHER,
    OUR_PREFIX,
    OWNER,
    OWNER_OID,
    SEPARATOR,
    TEMPORARY_OID,
    TEMPORARY_SCHEMA,
    place_sql,
)
from .system_catalogs import ALIASES, TYPES_BY_NAME

# Function -> number of arguments from the object on; a user may precede them.
PRIVILEGE_FUNCTIONS = {
    **{f"has_{kind}_privilege": 2 for kind in ("table", "any_column", "sequence", "schema", "function")},
    "has_database_privilege": 2,
    "has_column_privilege": 3,
    "pg_has_role": 2,
}
_OF_OID = "_of_oid"
# Function -> kind of object, as in sql/rights/visibility.py; the lookup of a place by oid, and of an oid by
# name.
_PRIVILEGE_LOOKUPS = {
    "has_table_privilege": ("table", "relation_place", "regclass_in"),
    "has_any_column_privilege": ("column", "relation_place", "regclass_in"),
    "has_column_privilege": ("column", "relation_place", "regclass_in"),
    "has_sequence_privilege": ("sequence", "relation_place", "regclass_in"),
    "has_schema_privilege": ("schema", "schema_place", "regnamespace_in"),
    "has_function_privilege": ("function", "function_place", "function_in"),
    "pg_has_role": ("role", "role_place", "regrole_in"),
    "has_database_privilege": ("database", "database_place", ""),
}
# Functions that only these bodies call.
PRIVILEGE_MACROS = frozenset(
    {"relation_place", "schema_place", "function_place", "role_place", "database_place", "relation_column",
     "function_in", "role_name"}
) | {name + _OF_OID for name in PRIVILEGE_FUNCTIONS}  # fmt: skip


def privilege_by_oid(name: str) -> str:
    """The form of a function with an oid as argument."""
    return name + _OF_OID


def privilege_lookups() -> dict[str, str]:
    """The functions: head -> body, with its tables as the catalog's own names."""
    found = _places()
    for name, (kind, place, reader) in _PRIVILEGE_LOOKUPS.items():
        for form in (name, privilege_by_oid(name)):
            oid = f"{MARK}{reader}(z_w::VARCHAR)" if reader and form == name else "z_w"
            column = "z_c, " if name == "has_column_privilege" else ""
            for user, who in (("", "NULL"), ("z_u, ", f"{MARK}role_name(z_u)")):
                body = f"{HOME}.may({who}, {literal(kind)}, {MARK}{place}({oid}), z_p)"
                if column:
                    body = f"if({MARK}relation_column({oid}, z_c) IS NULL, NULL, {body})"
                found[f"{form}({user}z_w, {column}z_p)"] = body
    return found


def _places() -> dict[str, str]:
    """Lookups of an object's name by its oid."""
    relation = (
        "SELECT z_n.oid AS z_key, "
        f"{HOME}.folded(z_s.nspname) || {SEPARATOR} || {HOME}.folded(z_n.relname) AS z_answer "
        "FROM pg_class AS z_n JOIN pg_namespace AS z_s ON z_s.oid = z_n.relnamespace"
    )
    column = (
        "SELECT z_a.attrelid AS z_key, z_a.attname AS z_answer, z_a.attnum::VARCHAR AS z_number "
        "FROM pg_attribute AS z_a"
    )
    return {
        "relation_place(z_o)": _answered(relation, "z_o"),
        "schema_place(z_o)": _answered(_keyed("pg_namespace", "oid", f"{HOME}.folded(z_i.nspname)"), "z_o"),
        "function_place(z_o)": _answered(_keyed("pg_proc", "oid", f"{HOME}.folded(z_i.proname)"), "z_o"),
        "role_place(z_o)": _answered(_keyed("pg_roles", "oid", "lower(z_i.rolname)"), "z_o"),
        "database_place(z_w)": f"CASE WHEN z_w::VARCHAR IN ({HOME}.current_database(), '{DATABASE_OID}') "
        "THEN 'database' WHEN TRY_CAST(z_w::VARCHAR AS BIGINT) IS NULL "
        "THEN error('database \"' || z_w::VARCHAR || '\" does not exist')::VARCHAR END",
        "role_name(z_u)": "coalesce("
        f"{_answered(_keyed('pg_roles', 'oid::VARCHAR', 'z_i.rolname'), 'z_u::VARCHAR')}, z_u::VARCHAR)",
        "function_in(z_w)": f"{MARK}regproc_in(regexp_replace(z_w, '\\(.*', ''))",
        "relation_column(z_o, z_c)": "coalesce((SELECT any_value(z_t.z_answer) "
        f"FROM ({column}) AS z_t WHERE z_t.z_key = z_o "
        "AND (z_t.z_answer = z_c::VARCHAR OR z_t.z_number = z_c::VARCHAR)), "
        "if(TRY_CAST(z_c::VARCHAR AS BIGINT) IS NULL, "
        "error('column \"' || z_c::VARCHAR || '\" does not exist')::VARCHAR, NULL))",
    }


def _keyed(relation: str, key: str, answer: str) -> str:
    return f"SELECT z_i.{key} AS z_key, {answer} AS z_answer FROM {relation} AS z_i"


def _answered(query: str, argument: str) -> str:
    return f"(SELECT any_value(z_t.z_answer) FROM ({query}) AS z_t WHERE z_t.z_key = {argument})"


# DuckDB's session variables on a session's cursors.
USER_VARIABLE, PID_VARIABLE = "__ducktail_user", "__ducktail_pid"
# Python function: (pid, name) -> the session's setting, or NULL.
SETTING_FUNCTION = "__ducktail_setting"
# Python function: (pid, pid of another session, 'cancel' or 'terminate') -> true if that session exists and
# was notified.
SIGNAL_FUNCTION = "__ducktail_signal"
# Python function: pid -> the session's cursors and named portals, as a JSON array of CURSOR_COLUMNS.
CURSORS_FUNCTION = "__ducktail_cursors"
CURSOR_COLUMNS = {
    "name": "VARCHAR", "statement": "VARCHAR", "is_holdable": "BOOLEAN", "is_binary": "BOOLEAN",
    "is_scrollable": "BOOLEAN", "made_us": "BIGINT",
}  # fmt: skip
# Python function: pid -> the session's prepared statements, as a JSON array of PREPARED_COLUMNS.
PREPARED_FUNCTION = "__ducktail_prepared"
PREPARED_COLUMNS = {
    "name": "VARCHAR", "statement": "VARCHAR", "made_us": "BIGINT", "types": "VARCHAR[]",
    "from_sql": "BOOLEAN",
}  # fmt: skip
# Python function: pid -> all sessions of the database, as a JSON array of ACTIVITY_COLUMNS.
ACTIVITY_FUNCTION = "__ducktail_activity"
ACTIVITY_COLUMNS = {
    "pid": "INTEGER", "usename": "VARCHAR", "application_name": "VARCHAR", "state": "VARCHAR",
    "query": "VARCHAR", "begun_us": "BIGINT", "since_us": "BIGINT", "transaction_us": "BIGINT",
    "waits": "BOOLEAN",
}  # fmt: skip
# Python function: pid -> the session's composite types, as a JSON array of COMPOSITE_COLUMNS.
COMPOSITES_FUNCTION = "__ducktail_composites"
COMPOSITE_FIELD = {
    "name": "VARCHAR", "type_oid": "INTEGER", "modifier": "INTEGER", "length": "INTEGER",
    "type_schema": "VARCHAR", "type_name": "VARCHAR", "is_list": "BOOLEAN",
}  # fmt: skip
COMPOSITE_COLUMNS = {"oid": "INTEGER", "text": "VARCHAR", "fields": [COMPOSITE_FIELD]}
# Python function: (pid, DuckDB's text of a type) -> schema, name and `[]` or an empty text of a user's type,
# as a JSON array; NULL for another type.
TYPE_FUNCTION = "__ducktail_type"
# Two Python functions, pid -> JSON: the session's channels; the server's settings that the session may see.
CHANNELS_FUNCTION, SERVER_FUNCTION = "__ducktail_channels", "__ducktail_server"
SERVER_COLUMNS = dict.fromkeys(("name", "setting", "source", "about", "vartype"), "VARCHAR")
# Python function: (pid, user, kind, place, privileges) -> 'true', 'false', an error, or NULL without a place.
MAY_FUNCTION = "__ducktail_may"

# Words reserved by PostgreSQL 15: quote_ident quotes them, and all names that are not in small letters.
RESERVED = """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate
    collation column concurrently constraint create cross current_catalog current_date current_role
    current_schema current_time current_timestamp current_user default deferrable desc distinct do else end
    except false fetch for foreign freeze from full grant group having ilike in initially inner intersect
    into is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null
    offset on only or order outer overlaps placing primary references returning right select session_user
    similar some symmetric table tablesample then to trailing true union unique user using variadic verbose
    when where window with between bigint bit boolean char character coalesce dec decimal exists extract
    float greatest grouping inout int integer interval least national nchar none normalize nullif numeric
    out overlay position precision real row setof smallint substring time timestamp treat trim values
    varchar xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot
    xmlserialize xmltable
"""

ENCODINGS = {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}


def _map(pairs: dict[int, str] | dict[str, str], default: str, key: str) -> str:
    """SQL of a lookup in a constant table."""
    entries = ", ".join(f"{literal(k) if isinstance(k, str) else k}: {v}" for k, v in pairs.items())
    return f"coalesce(MAP {{{entries}}}[{key}], {default})"


def _lookup(relation: str, key: str, answer: str, argument: str) -> str:
    """SQL that looks one column of a relation up by another.

    The relation's columns are renamed around it: an unqualified argument such as `oid` means a column of the
    client's query.
    """
    renamed = f"SELECT z_i.{key} AS z_key, z_i.{answer} AS z_answer FROM {relation} AS z_i"
    return f"(SELECT any_value(z_t.z_answer) FROM ({renamed}) AS z_t WHERE z_t.z_key = {argument})"


# Functions of a row: name -> (relation, key column, column of the relation's wide form). The rewriter
# replaces a call on a row of the query by the column; otherwise the row is looked up.
ROW_FUNCTIONS: dict[str, tuple[str, str, str]] = {
    "pg_table_is_visible": ("pg_class", "oid", "__visible"),
    "pg_type_is_visible": ("pg_type", "oid", "__visible"),
    "pg_function_is_visible": ("pg_proc", "oid", "__visible"),
    "pg_get_viewdef": ("pg_class", "oid", "__definition"),
    "pg_get_constraintdef": ("pg_constraint", "oid", "__definition"),
    "pg_get_indexdef": ("pg_index", "indexrelid", "__definition"),
    "pg_get_function_arguments": ("pg_proc", "oid", "__arguments"),
    "pg_get_function_identity_arguments": ("pg_proc", "oid", "__arguments"),
    "pg_get_function_result": ("pg_proc", "oid", "__result"),
    "pg_get_functiondef": ("pg_proc", "oid", "__definition"),
    "regclass_out": ("pg_class", "oid", "__name"),
    "regtype_out": ("pg_type", "oid", "__name"),
    "regproc_out": ("pg_proc", "oid", "__name"),
}  # fmt: skip

# Functions whose answer does not depend on their arguments: name -> (numbers of arguments, SQL).
CONSTANTS: dict[str, tuple[tuple[int, ...], str]] = {
    **{
        f"has_{what}_privilege": ((2, 3), "true")
        for what in ("type", "tablespace", "language", "foreign_data_wrapper", "server", "parameter")
    },
    **{
        f"pg_{what}_is_visible": ((1,), "true")
        for what in ("collation", "conversion", "opclass", "operator", "opfamily", "statistics_obj",
                     "ts_config", "ts_dict", "ts_parser", "ts_template")
    },
    **{
        name: (counts, "NULL::VARCHAR")
        for name, counts in {
            "pg_get_triggerdef": (1, 2), "pg_get_ruledef": (1, 2), "pg_get_partkeydef": (1,),
            "pg_get_statisticsobjdef_columns": (1,), "pg_get_statisticsobjdef": (1,),
            "pg_get_function_sqlbody": (1,), "pg_get_partition_constraintdef": (1,),
            "pg_get_function_arg_default": (2,), "pg_get_replica_identity_index": (1,),
            "pg_relation_filepath": (1,), "shobj_description": (2,),
            "inet_server_addr": (0,), "inet_client_addr": (0,), "pg_advisory_unlock_all": (0,),
        }.items()
    },
    "inet_server_port": ((0,), "NULL::INTEGER"),
    "inet_client_port": ((0,), "NULL::INTEGER"),
    "pg_tablespace_location": ((1,), "''"),
    # DuckDB records no size of a table that is available without reading it.
    "pg_table_size": ((1,), "NULL::BIGINT"),
    "pg_relation_size": ((1, 2), "NULL::BIGINT"),
    "pg_total_relation_size": ((1,), "NULL::BIGINT"),
    "pg_indexes_size": ((1,), "NULL::BIGINT"),
    "pg_is_in_recovery": ((0,), "false"),
    "pg_is_wal_replay_paused": ((0,), "false"),
    "pg_relation_is_publishable": ((1,), "false"),
    "pg_my_temp_schema": ((0,), f"{TEMPORARY_OID}::BIGINT"),
    "pg_is_other_temp_schema": ((1,), "false"),
    "pg_relation_is_updatable": ((2,), "28"),
    "pg_stat_get_numscans": ((1,), "0::BIGINT"),
    "getdatabaseencoding": ((0,), "'UTF8'"),
    "row_security_active": ((1,), "false"),
    "pg_sequence_last_value": ((1,), "NULL::BIGINT"),
    # Rights are ducktail's own (SHOW GRANTS), and no object has an access list.
    "acldefault": ((2,), "NULL::VARCHAR[]"),
}  # fmt: skip

# PostgreSQL's names for the types of DuckDB values, where they differ.
_TYPE_NAMES = {
    "TINYINT": "smallint", "HUGEINT": "numeric", "UTINYINT": "smallint", "USMALLINT": "integer",
    "UINTEGER": "bigint", "UBIGINT": "numeric", "FLOAT": "real", "DOUBLE": "double precision",
    "VARCHAR": "text", "BLOB": "bytea", "TIME": "time without time zone", '"NULL"': "unknown",
    "TIMESTAMP": "timestamp without time zone", "BIT": "bit varying", "JSON": "jsonb", "JSON[]": "jsonb[]",
}  # fmt: skip


def macros() -> dict[str, str]:
    """The macros that views may use: head -> body, each after those of `database_macros` and after those that
    it uses.
    """
    return {
        **_session_macros(),
        **_name_macros(),
        **_type_macros(),
        **_text_macros(),
        **dict(_constant_macros()),
    }


def database_macros(database: str, shown_database: str, version: str, started_us: int) -> dict[str, str]:
    """The macros of one database: head -> body.

    Args:
        database: DuckDB's name of the database.
        shown_database: the database's name for clients.
        version: the answer of version().
        started_us: the server's start, in microseconds since 1970 in UTC.
    """
    return {
        "duck_database()": literal(database),
        "version()": literal(version),
        "current_database()": literal(shown_database),
        "current_catalog()": literal(shown_database),
        "pg_postmaster_start_time()": f"make_timestamptz({started_us})",
        "pg_conf_load_time()": f"make_timestamptz({started_us})",
        "pg_database_size(z_d)": f"""(SELECT (z_s.total_blocks * z_s.block_size)::BIGINT
            FROM system.main.pragma_database_size() AS z_s WHERE z_s.database_name = {literal(database)})""",
    }


def lookups() -> dict[str, str]:
    """The functions that look objects up: head -> body, in which tables have the catalog's own names."""
    return {**_type_lookups(), **_lookup_macros(), **privilege_lookups()}


def _constant_macros() -> list[tuple[str, str]]:
    return [
        (f"{name}({', '.join(f'z_{at}' for at in range(count))})", body)
        for name, (counts, body) in CONSTANTS.items()
        for count in counts
    ]


def _session_macros() -> dict[str, str]:
    user = f"coalesce(getvariable('{USER_VARIABLE}')::VARCHAR, {literal(OWNER)})"
    pid = f"coalesce(getvariable('{PID_VARIABLE}')::INTEGER, 0)"
    own = f"list_filter(current_schemas(false), LAMBDA z_s: NOT starts_with(z_s, '{OUR_PREFIX}'))"
    path = f"if(len({own}) = 0, [current_schema()], {own})"
    setting = f"{SETTING_FUNCTION}({pid}, {{}})"
    return {
        "extension_version()": literal(VERSION),
        "session_user()": user,
        "current_user()": user,
        "current_role()": user,
        "user()": user,
        "pg_backend_pid()": pid,
        "pg_cancel_backend(z_p)": f"{SIGNAL_FUNCTION}({pid}, z_p::INTEGER, 'cancel')",
        "pg_terminate_backend(z_p)": f"{SIGNAL_FUNCTION}({pid}, z_p::INTEGER, 'terminate')",
        "pg_terminate_backend(z_p, z_t)": f"{SIGNAL_FUNCTION}({pid}, z_p::INTEGER, 'terminate')",
        # A list, so that it is evaluated once.
        "may(z_u, z_k, z_l, z_p)": f"list_transform([{MAY_FUNCTION}({pid}, z_u::VARCHAR, z_k, z_l, z_p)], "
        "LAMBDA z_r: CASE WHEN z_r IN ('true', 'false') THEN z_r = 'true' "
        "WHEN z_r IS NOT NULL THEN error(z_r)::VARCHAR::BOOLEAN END)[1]",
        "search_path_names()": path,
        "current_schemas(z_i)": f"if(z_i, list_concat(['pg_catalog'], {path}), {path})",
        "fixed_setting(z_n)": f"(SELECT any_value(z_s.boot_val) FROM {HOME}.fixed_settings AS z_s "
        "WHERE z_s.name = lower(z_n))",
        "cursors()": f"from_json({CURSORS_FUNCTION}({pid}), {literal(json.dumps([CURSOR_COLUMNS]))})",
        "prepared()": f"from_json({PREPARED_FUNCTION}({pid}), {literal(json.dumps([PREPARED_COLUMNS]))})",
        "activity()": f"from_json({ACTIVITY_FUNCTION}({pid}), {literal(json.dumps([ACTIVITY_COLUMNS]))})",
        "own_type_names(z_t)": f"from_json({TYPE_FUNCTION}({pid}, z_t), '[\"VARCHAR\"]')",
        "composites()": f"from_json({COMPOSITES_FUNCTION}({pid}), "
        f"{literal(json.dumps([COMPOSITE_COLUMNS]))})",
        "channels()": f"from_json({CHANNELS_FUNCTION}({pid}), '[\"VARCHAR\"]')",
        "server_settings()": f"from_json({SERVER_FUNCTION}({pid}), {literal(json.dumps([SERVER_COLUMNS]))})",
        "setting(z_n, z_d)": f"coalesce({setting.format('lower(z_n)')}, z_d)",
        "current_setting(z_n)": f"coalesce({setting.format('lower(z_n)')}, {HOME}.fixed_setting(z_n), "
        "error('unrecognized configuration parameter \"' || z_n || '\"'))",
        "current_setting(z_n, z_m)": f"coalesce({setting.format('lower(z_n)')}, {HOME}.fixed_setting(z_n))",
        "set_config(z_n, z_v, z_t)": f"if(coalesce({setting.format('lower(z_n)')}, "
        f"{HOME}.fixed_setting(z_n), error('unrecognized configuration parameter \"' || z_n || '\"')) = z_v, "
        "z_v, error('set_config cannot change \"' || z_n || '\": use SET'))",
        "txid_current_if_assigned()": "NULL::BIGINT",
        "pg_client_encoding()": setting.format("'client_encoding'"),
    }  # fmt: skip


def _name_macros() -> dict[str, str]:
    reserved = "|".join(RESERVED.split())
    plain = f"regexp_full_match(z_w, '[a-z_][a-z0-9_$]*') AND NOT regexp_full_match(z_w, '{reserved}')"
    return {
        "quote_ident(z_w)": f"if({plain}, z_w, '\"' || replace(z_w, '\"', '\"\"') || '\"')",
        "quote_literal(z_w)": "'''' || replace(z_w::VARCHAR, '''', '''''') || ''''",
        "quote_nullable(z_w)": "coalesce('''' || replace(z_w::VARCHAR, '''', '''''') || '''', 'NULL')",
        "quoted_items(z_l)": f"list_transform(z_l, LAMBDA z_p: {HOME}.quote_ident(z_p))",
        "quoted_list(z_l)": f"array_to_string({HOME}.quoted_items(z_l), ', ')",
        "folded(z_w)": folded_sql("z_w"),
        "name_parts(z_w)": "list_transform(list_transform("
        """regexp_extract_all(z_w, '"(?:[^"]|"")*"|[^\\s."]+'), """
        """LAMBDA z_p: if(starts_with(z_p, '"'), replace(z_p[2:-2], '""', '"'), z_p)), """
        f"LAMBDA z_p: {HOME}.folded(z_p))",
        "unquoted(z_w)": "if(starts_with(z_w, '\"'), replace(z_w[2:-2], '\"\"', '\"'), z_w)",
        "in_search_path(z_s, z_t)": "z_t OR z_s = current_schema() "
        "OR list_contains(current_schemas(false), z_s)",
        "schema_shown(z_w, z_t)": f"if(z_t, {literal(TEMPORARY_SCHEMA)}, z_w)",
        "shown_name(z_t, z_s, z_w)": f"if({HOME}.in_search_path(z_s, z_t), '', "
        f"{HOME}.quote_ident(z_s) || '.') || {HOME}.quote_ident(z_w)",
        # DuckDB keeps a view as CREATE VIEW name [(columns)] AS query;
        "view_text(z_w)": "' ' || regexp_replace(z_w, "
        """'^CREATE\\s+(OR\\s+REPLACE\\s+)?(TEMP(ORARY)?\\s+)?VIEW\\s+(IF\\s+NOT\\s+EXISTS\\s+)?"""
        """(("([^"]|"")*"|[^\\s."(]+)\\.?)+\\s*(\\([^)]*\\))?\\s*AS\\s+', '')""",
        "role_oid(z_w)": f"CASE z_w WHEN {literal(OWNER)} THEN {OWNER_OID} "
        f"ELSE {place_sql(OTHER, 'z_w')} END",
        "pg_get_userbyid(z_o)": f"CASE z_o WHEN {OWNER_OID} THEN {literal(OWNER)} "
        f"WHEN {HOME}.role_oid({HOME}.session_user()) THEN {HOME}.session_user() "
        "ELSE 'unknown (OID=' || z_o || ')' END",
    }


def _type_macros() -> dict[str, str]:
    numeric, numerics, varchar, bpchar, timestamp, timestamps = (
        TYPES_BY_NAME[name].oid
        for name in ("numeric", "_numeric", "varchar", "bpchar", "timestamp", "_timestamp")
    )
    shown = f"{HOME}.shown_name(false, z_r[1], z_r[2]) || z_r[3]"
    type_names = ", ".join(f"{literal(name)}: {literal(shown_)}" for name, shown_ in _TYPE_NAMES.items())
    return {
        "shown_type(z_s, z_o, z_m)": f"""CASE WHEN z_o IN ({timestamp}, {timestamps}) AND z_m BETWEEN 0 AND 6
                THEN 'timestamp(' || z_m || ')' || z_s[10:]
            WHEN coalesce(z_m, -1) < 4 THEN z_s
            WHEN z_o IN ({numeric}, {numerics}) THEN
                'numeric(' || ((z_m - 4) >> 16) || ',' || ((z_m - 4) & 65535) || ')' || z_s[8:]
            WHEN z_o IN ({varchar}, {bpchar}) THEN z_s || '(' || (z_m - 4) || ')' ELSE z_s END""",
        "catalog_in(z_w)": f"""coalesce((SELECT any_value(z_f.oid) FROM {HOME}.fixed_relations AS z_f
            WHERE z_f.relname = {HOME}.name_parts(z_w)[-1]), TRY_CAST(z_w AS BIGINT),
            error('relation "' || z_w || '" does not exist'))""",
        # A list, so that it is evaluated once.
        "own_type(z_t)": f"""CASE
            WHEN starts_with(z_t, 'TUPLE') THEN 'record' || if(ends_with(z_t, ']'), '[]', '')
            WHEN starts_with(z_t, 'ENUM(') OR starts_with(z_t, 'STRUCT(') THEN
                list_transform([{HOME}.own_type_names(z_t)], LAMBDA z_r: {shown})[1] END""",
        "pg_typeof(z_v)": f"coalesce({HOME}.own_type(typeof(z_v)), MAP {{{type_names}}}[typeof(z_v)], "
        "if(starts_with(typeof(z_v), 'DECIMAL'), 'numeric', lower(typeof(z_v))))",
    }


def _type_lookups() -> dict[str, str]:
    names: dict[str, str] = {name: str(oid) for name, oid in ALIASES.items()}
    name = _lookup("pg_type", "oid", "__name", "z_o")
    # Evaluate it once, in the subquery: a macro's argument replaces each of its occurrences in the body.
    shown = name.replace("any_value(z_t.z_answer)", f"any_value({HOME}.shown_type(z_t.z_answer, z_o, z_m))")
    bare = f"{HOME}.folded(replace(z_w::VARCHAR, 'pg_catalog.', ''))"
    return {
        "format_type(z_o, z_m)": f"""CASE WHEN z_o IS NULL THEN NULL WHEN z_o = 0 THEN '-'
            ELSE coalesce({shown}, '???') END""",
        "regtype_out(z_o)": f"coalesce({name}, if(z_o = 0, '-', z_o::VARCHAR))",
        "to_regtype(z_w)": f"coalesce({_map(names, 'NULL', bare)}, {_named('pg_type', 'typname', bare)})",
        "regtype_in(z_w)": f"coalesce({MARK}to_regtype(z_w), TRY_CAST(z_w AS BIGINT), "
        "error('type \"' || z_w || '\" does not exist'))",
    }


def _named(relation: str, column: str, argument: str) -> str:
    """SQL of the oid of the object that a text names, as regclass reads it: qualified and quoted or not.

    A text that is no qualified name may be a name as a whole, in the form of `__name`.
    """
    namespace = {"pg_class": "relnamespace", "pg_type": "typnamespace", "pg_proc": "pronamespace"}[relation]
    named = (
        f"SELECT z_c.oid AS z_oid, z_c.__visible AS z_visible, {HOME}.folded(z_c.{column}) AS z_name, "
        f"{HOME}.folded(z_n.nspname) AS z_schema, z_n.__meant_nspname AS z_meant, "
        f"{HOME}.folded(z_c.__name) AS z_shown "
        f"FROM {relation} AS z_c JOIN pg_namespace AS z_n ON z_n.oid = z_c.{namespace}"
    )
    parts = f"{HOME}.name_parts({argument})"
    return (
        f"(SELECT arg_max(z_t.z_oid, z_t.z_visible) FROM ({named}) AS z_t WHERE "
        f"if({parts}[-2] IS NULL, z_t.z_visible::BOOLEAN, {parts}[-2] IN (z_t.z_schema, z_t.z_meant)) "
        f"AND {parts}[-1] = z_t.z_name "
        f"OR z_t.z_shown = {HOME}.folded({argument}))"
    )


def _lookup_macros() -> dict[str, str]:
    found = {
        f"{name}(z_o)": f"coalesce({_lookup(relation, key, column, 'z_o')}, "
        "if(z_o = 0, '-', z_o::VARCHAR))" if name.endswith("_out") else
        _lookup(relation, key, column, "z_o")
        for name, (relation, key, column) in ROW_FUNCTIONS.items()
        if name != "regtype_out"
    }  # fmt: skip
    with_pretty = ("pg_get_viewdef", "pg_get_constraintdef")
    found |= {f"{name}(z_o, z_p)": _lookup(*ROW_FUNCTIONS[name], "z_o") for name in with_pretty}
    namespace = _lookup("pg_namespace", "oid", "nspname", "z_o")
    key = f"list_extract({_lookup('pg_index', 'indexrelid', '__keys', 'z_o')}, z_k)"
    definition = _lookup("pg_index", "indexrelid", "__definition", "z_o")
    described = (
        "(SELECT any_value(z_t.z_text) FROM (SELECT z_d.objoid AS z_of, "
        "z_d.objsubid AS z_sub, z_d.description AS z_text FROM pg_description AS z_d{}) AS z_t "
        "WHERE z_t.z_of = z_o"
    )
    of_object = described.format(" WHERE z_d.objsubid = 0")
    of_this_kind = described.format(" WHERE z_d.objsubid = 0 AND z_d.classoid = z_c")
    kinds = "CASE {} WHEN 'r' THEN 'table ' WHEN 'v' THEN 'view ' WHEN 'i' THEN 'index ' ELSE 'sequence ' END"
    kind = kinds.format(_lookup("pg_class", "oid", "relkind", "z_o"))
    return found | {
        "pg_describe_object(z_c, z_o, z_s)": f"CASE z_c WHEN 1259 THEN {kind} || "
        f"{_lookup('pg_class', 'oid', '__name', 'z_o')} "
        f"WHEN 1255 THEN 'function ' || {_lookup('pg_proc', 'oid', '__name', 'z_o')} "
        f"WHEN 2615 THEN 'schema ' || {namespace} END",
        "pg_get_indexdef(z_o, z_k, z_p)": f"if(z_k = 0, {definition}, {key})",
        "pg_get_expr(z_e, z_r)": "z_e::VARCHAR",
        "pg_get_expr(z_e, z_r, z_p)": "z_e::VARCHAR",
        "obj_description(z_o)": f"{of_object})",
        "obj_description(z_o, z_c)": f"{of_this_kind})",
        "col_description(z_o, z_n)": f"{described.format('')} AND z_t.z_sub = z_n AND z_t.z_sub <> 0)",
        "pg_get_serial_sequence(z_w, z_c)": "(SELECT any_value(z_t.z_sequence) FROM (SELECT z_a.attrelid "
        "AS z_relation, z_a.attname AS z_name, z_a.__sequence AS z_sequence FROM pg_attribute AS z_a) AS z_t "
        f"WHERE z_t.z_relation = {MARK}regclass_in(z_w) AND {HOME}.folded(z_t.z_name) = {HOME}.folded(z_c))",
        "to_regclass(z_w)": _named("pg_class", "relname", "z_w"),
        "regclass_in(z_w)": f"coalesce({_named('pg_class', 'relname', 'z_w')}, TRY_CAST(z_w AS BIGINT), "
        "error('relation \"' || z_w || '\" does not exist'))",
        "to_regproc(z_w)": _named("pg_proc", "proname", "z_w"),
        "regproc_in(z_w)": f"coalesce({_named('pg_proc', 'proname', 'z_w')}, TRY_CAST(z_w AS BIGINT), "
        "error('function \"' || z_w || '\" does not exist'))",
        "to_regnamespace(z_w)": "(SELECT arg_max(z_t.z_oid, z_t.z_name = z_t.z_asked) FROM (SELECT z_n.oid "
        "AS z_oid, z_n.nspname AS z_name, z_n.__meant_nspname AS z_meant, "
        f"{HOME}.unquoted(z_w) AS z_asked FROM pg_namespace AS z_n) AS z_t "
        "WHERE z_t.z_asked IN (z_t.z_name, z_t.z_meant))",
        "regnamespace_in(z_w)": f"coalesce({MARK}to_regnamespace(z_w), TRY_CAST(z_w AS BIGINT), "
        "error('schema \"' || z_w || '\" does not exist'))",
        "regnamespace_out(z_o)": f"coalesce({HOME}.quote_ident({namespace}), if(z_o = 0, '-', z_o::VARCHAR))",
        "to_regrole(z_w)": _lookup("pg_roles", "rolname", "oid", f"{HOME}.unquoted(z_w)"),
        "regrole_in(z_w)": f"coalesce({MARK}to_regrole(z_w), TRY_CAST(z_w AS BIGINT), "
        "error('role \"' || z_w || '\" does not exist'))",
        "regrole_out(z_o)": f"{HOME}.pg_get_userbyid(z_o)",
    }


def _text_macros() -> dict[str, str]:
    steps = ((10240 * 1024**3, 1024**4, "TB"), (10240 * 1024**2, 1024**3, "GB"),
             (10240 * 1024, 1024**2, "MB"), (10240, 1024, "kB"))  # fmt: skip
    sizes = " ".join(
        f"WHEN abs(z_b) >= {bound} THEN round(z_b / {unit})::BIGINT || ' {name}'"
        for bound, unit, name in steps
    )
    encodings = {number: literal(name) for number, name in ENCODINGS.items()}
    numbers: dict[str, str] = {name: str(number) for number, name in ENCODINGS.items()}
    return {
        "pg_size_pretty(z_b)": f"CASE {sizes} ELSE z_b || ' bytes' END",
        "pg_encoding_to_char(z_e)": _map(encodings, "''", "z_e"),
        "pg_char_to_encoding(z_w)": _map(numbers, "-1", "upper(z_w)"),
        "array_to_string(z_l, z_d)": "array_to_string(list_filter(z_l, LAMBDA z_x: z_x IS NOT NULL), z_d)",
        "array_to_string(z_l, z_d, z_n)":
            "array_to_string(list_transform(z_l, LAMBDA z_x: coalesce(z_x::VARCHAR, z_n)), z_d)",
        "array_upper(z_l, z_d)": "if(z_d = 1 AND len(z_l) > 0, len(z_l), NULL)",
        "array_lower(z_l, z_d)": "if(z_d = 1 AND len(z_l) > 0, 1, NULL)",
        "array_length(z_l, z_d)": "if(z_d = 1 AND len(z_l) > 0, len(z_l), NULL)",
        "array_ndims(z_l)": "if(len(z_l) > 0, 1, NULL)",
        "array_remove(z_l, z_v)": "list_filter(z_l, LAMBDA z_x: z_x IS DISTINCT FROM z_v)",
        "string_to_array(z_w, z_d)": "string_split(z_w, z_d)",
        "_pg_expandarray(z_l)": "list_transform(range(1, len(z_l) + 1), "
        "LAMBDA z_i: struct_pack(x := z_l[z_i], n := z_i))",
        # The type that PostgreSQL gives a sequence with these bounds.
        "sequence_type(z_i, z_a)": "CASE WHEN z_a = 2147483647 OR z_i = -2147483648 THEN 23 "
        "WHEN z_a = 32767 OR z_i = -32768 THEN 21 ELSE 20 END",
        "parse_ident(z_w)": f"list_transform(string_split(z_w, '.'), LAMBDA z_p: {HOME}.unquoted(z_p))",
    }  # fmt: skip


# Functions that return many rows, which the rewriter turns into queries.
ROWS = frozenset(
    {
        "pg_partition_ancestors",
        "pg_get_keywords",
        "_pg_expandarray",
        "pg_listening_channels",
        "pg_options_to_table",
    }
)


def names() -> frozenset[str]:
    """The names of the functions that clients may call; macros for views only are excluded."""
    heads = {**database_macros("", "", "", 0), **macros(), **lookups()}
    return frozenset(head.partition("(")[0] for head in heads) - _FOR_VIEWS | ROWS


_FOR_VIEWS = frozenset(
    {"duck_database", "search_path_names", "in_search_path", "shown_name", "schema_shown", "shown_type",
     "catalog_in",
     "view_text", "extension_version", "quoted_list", "quoted_items",
     "unquoted", "folded", "sequence_type", "name_parts", "cursors", "channels", "server_settings",
     "prepared", "activity", "composites", "own_type", "own_type_names",
     "setting", "fixed_setting", "role_oid", "may", *PRIVILEGE_MACROS}
)  # fmt: skip

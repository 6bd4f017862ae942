"""The PostgreSQL types of what functions answer: a line a type, then the functions.

Those of the catalog and the ordinary ones that clients use beside them; a function that is not here
is told with the type of DuckDB's answer. Source: PostgreSQL's pg_proc.dat.
"""

from __future__ import annotations

_BY_TYPE = {
    "text": """format_type pg_get_viewdef pg_get_constraintdef pg_get_indexdef pg_get_expr
        pg_get_function_arguments pg_get_function_identity_arguments pg_get_function_result
        pg_get_functiondef pg_get_triggerdef pg_get_ruledef pg_get_partkeydef pg_get_statisticsobjdef
        pg_get_statisticsobjdef_columns pg_get_function_sqlbody pg_get_partition_constraintdef
        pg_get_function_arg_default pg_get_serial_sequence pg_relation_filepath obj_description
        shobj_description col_description quote_ident quote_literal quote_nullable array_to_string
        current_setting set_config version pg_size_pretty pg_tablespace_location concat concat_ws lower upper
        initcap substring substr trim ltrim rtrim btrim replace split_part regexp_replace left right
        repeat md5 chr to_char string_agg group_concat format translate lpad rpad reverse""",
    "name": """current_user session_user current_role current_database current_catalog current_schema
        pg_get_userbyid pg_encoding_to_char getdatabaseencoding pg_client_encoding""",
    "_name": "current_schemas",
    "_text": "parse_ident string_to_array regexp_split_to_array",
    "bool": """has_table_privilege has_schema_privilege has_database_privilege has_function_privilege
        has_sequence_privilege has_type_privilege has_tablespace_privilege has_language_privilege
        has_foreign_data_wrapper_privilege has_server_privilege has_any_column_privilege
        has_parameter_privilege has_column_privilege pg_has_role pg_table_is_visible pg_type_is_visible
        pg_function_is_visible pg_collation_is_visible pg_conversion_is_visible pg_opclass_is_visible
        pg_operator_is_visible pg_opfamily_is_visible pg_statistics_obj_is_visible pg_ts_config_is_visible
        pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible pg_is_in_recovery
        pg_is_wal_replay_paused pg_relation_is_publishable pg_is_other_temp_schema row_security_active
        logical_and logical_or bool_and bool_or every starts_with regexp_like regexp_i_like
        pg_cancel_backend pg_terminate_backend""",
    "int4": """pg_backend_pid array_upper array_lower array_length array_ndims cardinality
        pg_char_to_encoding length char_length character_length octet_length str_position position strpos
        ascii generate_subscripts inet_server_port inet_client_port pg_relation_is_updatable
        exploding_generate_series generate_series""",
    "int8": """count pg_table_size pg_relation_size pg_total_relation_size pg_indexes_size pg_database_size
        pg_sequence_last_value pg_stat_get_numscans row_number rank dense_rank txid_current_if_assigned""",
    "oid": "pg_my_temp_schema",
    "regclass": "to_regclass pg_get_replica_identity_index",
    "regtype": "to_regtype pg_typeof",
    "regproc": "to_regproc",
    "regnamespace": "to_regnamespace",
    "regrole": "to_regrole",
    "inet": "inet_server_addr inet_client_addr",
    "timestamptz": "now current_timestamp pg_postmaster_start_time pg_conf_load_time",
    "date": "current_date",
    "numeric": "extract",
    "float8": "date_part",
    "expanded": "_pg_expandarray",
    "json": "json_build_object json_agg json_build_array to_json row_to_json",
}

FUNCTION_TYPES: dict[str, str] = {name: type_ for type_, names in _BY_TYPE.items() for name in names.split()}

"""The functions that everybody may call: a closed list of DuckDB 2.0's own, by subject.

Users who are not superusers may call no other function, so that a function of a new DuckDB release is refused
until somebody has examined it. A function is listed if its result depends only on its arguments, the clock,
chance, and the session itself. Functions are not listed if they read files, settings, secrets, the catalog,
the log or storage statistics, reveal other sessions, block a thread, or trust unchecked bytes: REFUSED has
those, with the reason. tests/security/test_functions.py compares both lists with the installed DuckDB.
Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

import duckdb

from ...engine.duck.cursors import ask
from ...engine.errors import InsufficientPrivilege, UndefinedFunction
from ...engine.quoting import fold, folded_sql


def _set(*texts: str) -> frozenset[str]:
    """The names in some texts, in small letters."""
    return frozenset(fold(name) for text in texts for name in text.split())


# Operators, and functions that the parser makes of special syntax: [1, 2], {'a': 1}, (1, 2), ANY, TRIM,
# INTERVAL.
_OPERATORS = """
!= !__postfix !~~ !~~* % & && * ** + - -> ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
count_star list_value map row struct_pack unnest
"""

_NUMBERS = """
abs acos acosh add asin asinh atan atan2 atanh bin binom bit_count cbrt ceil ceiling cos cosh cot
decimal_division degrees divide equi_width_bins even exp factorial fdiv floor fmod gamma gcd
greatest_common_divisor is_histogram_other_bin isfinite isinf isnan lcm least_common_multiple lgamma ln log
log10 log2 mod multiply nextafter pi pow power radians random round round_even roundbankers setseed sign
signbit sin sinh sqrt subtract tan tanh to_base to_binary to_hex trunc xor
"""

_TEXT = """
array_to_string array_to_string_comma_default ascii bar base64 bit_length bit_position bitstring
bitstring_byte_comparable char_length character_length chr concat concat_ws contains create_sort_key
damerau_levenshtein decode editdist3 encode ends_with format formatReadableDecimalSize formatReadableSize
format_bytes from_base64 from_binary from_hex get_bit hamming hash hex icu_sort_key ilike_escape instr
jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme len length length_grapheme
levenshtein like_escape lower lpad ltrim md5 md5_number md5_number_lower md5_number_upper mismatches
nfc_normalize not_ilike_escape not_like_escape octet_length ord overlay parse_formatted_bytes position
prefix printf regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches
regexp_replace regexp_split_to_array regexp_split_to_table repeat replace reverse right right_grapheme rpad
rtrim set_bit sha1 sha256 split split_part starts_with str_split str_split_regex string_split
string_split_regex string_to_array strip_accents strlen strpos substr substring substring_grapheme suffix
to_base64 translate trim ucase unbin unhex unicode upper url_decode url_encode
"""

# Functions of file names; they open no files.
_PATHS = "hive_partition_component parse_dirname parse_dirpath parse_filename parse_path path_join"

# Each name is a function `collate_x` and a function `icu_collate_x`, except the last.
_COLLATIONS = """
aa af am ar ar_sa as az bal be bg blo bn bo br bs ca ceb chr cs cu cy da de de_at dsb dz ee el en en_us eo
es et fa fa_af ff fi fil fo fr fr_ca fy ga gl gu ha haw he he_il hi hr hsb hu hy id id_id ig is it ja ka kk
kl km kn ko kok ku ky lb lij lkt ln lo lt lv mk ml mn mr ms mt my nb nb_no ne nl nn no nso om or pa pa_in pl
ps pt ro ru sa se sgs si sk sl smn sq sr sr_ba sr_me sr_rs ssy st sv sw ta te th tk tn to tr ug uk ur uz vi
vo wae wo xh yi yo zh zh_cn zh_hk zh_mo zh_sg zh_tw zu noaccent
"""

_TIMES = """
age ago century current_date current_localtime current_localtimestamp date_add date_diff date_part date_sub
date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month
decade epoch epoch_ms epoch_ns epoch_us era get_current_time get_current_timestamp hour isodow isoyear
julian last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz
microsecond millennium millisecond minute month monthname nanosecond normalized_interval now quarter second
strftime strptime time_bucket timetz_byte_comparable timezone timezone_hour timezone_minute to_centuries
to_days to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters
to_seconds to_timestamp to_weeks to_years today transaction_timestamp try_strptime week weekday weekofyear
year yearweek
"""

_LISTS = """
aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any
array_indexof array_inner_product array_intersect array_length array_negative_dot_product
array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back
array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice
array_sort array_transform array_unique array_value array_where array_zip filter flatten generate_series
generate_subscripts grade_up invoke list_aggr list_aggregate list_any_value list_append
list_approx_count_distinct list_apply list_avg list_bit_and list_bit_or list_bit_xor list_bool_and
list_bool_or list_cat list_concat list_contains list_cosine_distance list_cosine_similarity list_count
list_distance list_distinct list_dot_product list_element list_entropy list_extract list_filter list_first
list_grade_up list_has list_has_all list_has_any list_histogram list_indexof list_inner_product
list_intersect list_kurtosis list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode
list_negative_dot_product list_negative_inner_product list_pack list_position list_prepend list_product
list_reduce list_resize list_reverse list_reverse_sort list_select list_sem list_skewness list_slice
list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform list_unique list_var_pop
list_var_samp list_where list_zip range reduce unpivot_list
"""

_STRUCTURES = """
cardinality element_at map_concat map_contains map_contains_entry map_contains_value map_entries map_extract
map_extract_value map_from_entries map_keys map_values struct_concat struct_contains struct_extract
struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_position struct_update
struct_values union_extract union_tag union_value variant_array_length variant_comparator variant_contains
variant_exists variant_extract variant_extract_string variant_keys variant_normalize
variant_to_parquet_variant variant_type variant_typeof
"""

# Functions that take a type's name in a string are also checked by analysis.TYPE_TEXTS.
_JSON = """
array_to_json from_json from_json_strict json json_array json_array_length json_contains
json_copy_strftime_if_date json_copy_strftime_if_timestamp json_deep_merge json_exists json_extract
json_extract_path json_extract_path_text json_extract_string json_group_array json_group_object
json_group_structure json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize json_object
json_pretty json_quote json_remove json_replace json_set json_strip_nulls json_structure json_transform
json_transform_strict json_type json_valid json_value row_to_json to_json
"""

_GEOMETRY = """
st_asbinary st_asgeojson st_astext st_aswkb st_aswkt st_crs st_geomfromgeojson st_geomfromwkb
st_intersects_extent st_setcrs vertex_extract
"""

_TYPES = """
alias can_cast_implicitly cast_to_type enum_code enum_first enum_last enum_range enum_range_boundary
format_pg_type get_type make_type map_to_pg_oid pg_typeof replace_type typeof
"""

_CHOICES = "assert_true constant_or_null error greatest if least nullif switch"

# Sequences are also checked by Reach.check_sequence.
_IDENTITIES = """
currval gen_random_uuid nextval setval uuid uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7
"""

_AGGREGATES = """
any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null
arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or
bit_xor bitstring_agg bool_and bool_or corr count count_if countif covar_pop covar_samp decimal_average
entropy favg first fsum geomean geometric_mean group_concat histogram histogram_exact kahan_sum kurtosis
kurtosis_pop last list listagg lttb mad max max_by mean median min min_by mode product quantile
quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan
var_pop var_samp variance variant_group_array variant_group_object wavg weighted_avg
"""

_WINDOWS = """
cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense
row_number
"""

# PostgreSQL's functions, constant in DuckDB; the catalog for clients replaces many of them.
_POSTGRES = """
has_any_column_privilege has_column_privilege has_database_privilege has_foreign_data_wrapper_privilege
has_function_privilege has_language_privilege has_schema_privilege has_sequence_privilege
has_server_privilege has_table_privilege has_tablespace_privilege inet_client_addr inet_client_port
inet_server_addr inet_server_port pg_collation_is_visible pg_conf_load_time pg_conversion_is_visible
pg_function_is_visible pg_has_role pg_is_other_temp_schema pg_my_temp_schema pg_opclass_is_visible
pg_operator_is_visible pg_opfamily_is_visible pg_postmaster_start_time pg_size_pretty pg_table_is_visible
pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible
pg_type_is_visible
"""

_CONSTANTS = "current_catalog current_database version"

# PostgreSQL's functions that DuckDB lacks, and the operators of json: macros for clients of the wire
# (pgwire_gateway/catalog/postgres_functions.py), whose results depend on their arguments and the clock.
POSTGRES_MACROS = _set(
    """
    array_fill array_positions array_replace btrim clock_timestamp convert_from convert_to cosd date_bin
    decode_text div encode_bytes initcap json_array_elements json_array_elements_text json_build_array
    json_build_object json_each_text json_object_agg json_object_keys json_typeof justify_days justify_hours
    justify_interval jsonb_array_elements
    jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each
    jsonb_each_text jsonb_exists jsonb_extract_path jsonb_extract_path_text jsonb_object_agg
    jsonb_object_keys jsonb_typeof make_interval num_nonnulls num_nulls regexp_count regexp_like regexp_match
    regexp_substr rounded_interval rounded_time rounded_timestamp rounded_timetz
    sind statement_timestamp string_to_table tand text_to_timestamp to_char to_date to_jsonb
    to_number trim_array width_bucket jsonb_contains jsonb_pretty jsonb_set
    jsonb_strip_nulls @! @& @- @-! @-> @->> @>& @>> @| @|| <@&
    """
)

# Functions of the calling session: its variables, statement, user and search path.
SESSION_FUNCTIONS = _set(
    "current_query current_role current_schema current_schemas current_user getvariable session_user user"
)

_COLLATING = {f"{prefix}{name}" for name in _COLLATIONS.split() for prefix in ("collate_", "icu_collate_")}

# Functions that expressions of a text that runs once, in its own session, may call; in small letters.
FUNCTIONS = (
    _set(_OPERATORS, _NUMBERS, _TEXT, _PATHS, _TIMES, _LISTS, _STRUCTURES, _JSON, _GEOMETRY, _TYPES, _CHOICES)
    | _set(_IDENTITIES, _AGGREGATES, _WINDOWS, _POSTGRES, _CONSTANTS)
    | {"is distinct from", "is not distinct from", *_COLLATING}
    | SESSION_FUNCTIONS
    | POSTGRES_MACROS
)

# Functions that a definition may call: it runs later in other users' sessions and keeps their values, so it
# may neither read nor change the session.
DEFINITION_FUNCTIONS = FUNCTIONS - SESSION_FUNCTIONS - POSTGRES_MACROS - {"setseed"}

# Functions in FROM that use only their arguments.
TABLE_FUNCTIONS = _set(
    "duckdb_keywords generate_series icu_calendar_names json_each json_tree pg_timezone_names",
    "pragma_platform pragma_version range repeat repeat_row test_all_types unnest",
)
# PostgreSQL's functions in FROM: macros, as in POSTGRES_MACROS.
POSTGRES_TABLE_MACROS = _set(
    """
    generate_subscripts json_array_elements json_array_elements_text json_each_text json_object_keys
    jsonb_array_elements jsonb_array_elements_text jsonb_each jsonb_each_text jsonb_object_keys
    regexp_split_to_table string_to_table
    """
)

# Internal functions of DuckDB and ducktail, for plans and the engine: wrong arguments may crash the process.
INTERNAL_PREFIXES = ("__ducktail", "__internal", "__between", "__cast")

# Reason -> functions that were examined and are not permitted to everybody.
REFUSED_FOR = {
    "reads the catalog": """
        col_description format_type in_search_path obj_description pg_get_constraintdef pg_get_expr
        pg_get_viewdef shobj_description
    """,
    "reads settings or the file's format": "current_setting get_block_size",
    "tells what other sessions do": """
        current_connection_id current_query_id current_transaction_id txid_current
    """,
    "tells of rows that a view leaves out": "index_key stats vector_type",
    "blocks a thread, and nothing ends it": "pg_sleep sleep_ms",
    "writes or reads the log": "parse_duckdb_log_message write_log",
    "holds or runs a statement as a value": "json_deserialize_sql json_serialize_plan json_serialize_sql",
    "belongs to the engine": "ducktail_live ducktail_partition",
    "trusts bytes or a layout that it is given": """
        combine combine_aggr finalize remap_struct sum_no_overflow to_aggregate_state variant_bytes_to_variant
    """,
}
REFUSED = _set(*REFUSED_FOR.values())

# Reason -> functions in FROM that were examined and are not permitted to everybody.
REFUSED_TABLE_FUNCTIONS_FOR = {
    "reads files, or tells of them": """
        glob parquet_bloom_probe parquet_file_metadata parquet_full_metadata parquet_kv_metadata
        parquet_metadata parquet_scan parquet_schema read_blob read_csv read_csv_auto read_duckdb read_json
        read_json_auto read_json_objects read_json_objects_auto read_ndjson read_ndjson_auto
        read_ndjson_objects read_parquet read_single_csv_file read_single_json_file read_single_parquet_file
        read_text sniff_csv
    """,
    "reads the process's memory": """
        arrow_scan arrow_scan_dumb pandas_scan python_arrow_scan python_map_function
    """,
    "reads a table by a computed name": """
        duckdb_table_sample histogram histogram_values json_execute_serialized_sql query query_table seq_scan
        summary
    """,
    "reads the catalog": """
        duckdb_columns duckdb_constraints duckdb_databases duckdb_dependencies duckdb_functions duckdb_indexes
        duckdb_schemas duckdb_sequences duckdb_tables duckdb_triggers duckdb_types duckdb_views
        pragma_metadata_info pragma_show pragma_storage_info pragma_table_info
    """,
    "reads settings, secrets or what is loaded": """
        duckdb_available_metrics duckdb_coordinate_systems duckdb_dialects duckdb_extension_repositories
        duckdb_extensions duckdb_external_resource_types duckdb_external_resources duckdb_grammar_extensions
        duckdb_optimizers duckdb_profiling_settings duckdb_secret_type_parameters duckdb_secret_types
        duckdb_secrets duckdb_settings pragma_collations pragma_user_agent which_secret
    """,
    "tells what other sessions do": """
        duckdb_approx_database_count duckdb_connection_count duckdb_eviction_queues
        duckdb_external_file_cache duckdb_log_contexts duckdb_logs duckdb_logs_parsed duckdb_memory
        duckdb_prepared_statements duckdb_temporary_files duckdb_variables pragma_database_size
    """,
    "changes the process": """
        checkpoint create_external_resource deregister_external_resource destroy_external_resource
        disable_logging disable_profiling enable_logging enable_profiling force_checkpoint
        register_external_resource register_external_resource_type truncate_duckdb_logs
    """,
    "is for tests": "test_vector_types",
}
REFUSED_TABLE_FUNCTIONS = _set(*REFUSED_TABLE_FUNCTIONS_FOR.values())

# Words before a parenthesis in a definition that call no function: syntax, and types with modifiers.
SYNTAX = _set(
    """
    all always and any array as between both by case cast check coalesce collate columns default distinct else
    enum escape exclude exists extract filter for from glob group having ilike in include interval is key
    lambda leading like limit list map not offset on or order over overlay partition partitioned placing
    position primary row select set similar some sorted stored struct substring then to trailing treat trim
    try try_cast tuple union unique using values virtual when where with within zone
    bigint binary bit bitstring blob bool boolean bpchar bytea char character date datetime dec decimal double
    float float4 float8 geometry hugeint int int1 int128 int16 int2 int32 int4 int64 int8 integer json logical
    long null numeric nvarchar oid real short signed smallint string text time timestamp timestamp_ms
    timestamp_ns timestamp_s timestamptz timetz tinyint ubigint uhugeint uint uint128 uint16 uint32 uint64
    uint8 uinteger usmallint utinyint uuid varbinary varchar variant varying
    """
)


def is_internal(name: str) -> bool:
    """True if a function (in lower case) is internal to DuckDB or ducktail, and no text may call it."""
    return name.startswith(INTERNAL_PREFIXES)


def is_refused(name: str) -> bool:
    """True if a function (in lower case) was examined and is not permitted to everybody."""
    return name in REFUSED or is_internal(name)


_KNOWN = f"SELECT count(*) FROM system.main.duckdb_functions() WHERE {folded_sql('function_name')} = $1"


def refuse(cursor: duckdb.DuckDBPyConnection, path: tuple[str, ...], *, definition: bool = False) -> None:
    """Refuse an expression's call of a function that is not listed.

    Args:
        path: the function's name with its qualifiers.
        definition: the call runs later, in the sessions of others.

    Raises:
        InsufficientPrivilege: the function is not listed.
        UndefinedFunction: DuckDB has no function of this name.
    """
    name = fold(path[-1])
    if name in (DEFINITION_FUNCTIONS if definition else FUNCTIONS) or (definition and name in SYNTAX):
        return
    if not is_refused(name) and not _exists(cursor, name):
        raise UndefinedFunction(f"scalar Function with name {path[-1]} does not exist")
    if definition and name in FUNCTIONS:
        raise InsufficientPrivilege(
            f'permission denied for function "{path[-1]}" in a definition',
            detail="A definition runs in the sessions of others and would tell of them.",
        )
    raise no_function(path)


def refuse_in_from(path: tuple[str, ...]) -> None:
    """Refuse a call in FROM of a function that is not listed.

    Raises:
        InsufficientPrivilege: the function is not listed.
    """
    if fold(path[-1]) not in TABLE_FUNCTIONS | POSTGRES_TABLE_MACROS:
        raise no_function(path)


def no_function(path: tuple[str, ...]) -> InsufficientPrivilege:
    """The error for a function that is not permitted to everybody."""
    return InsufficientPrivilege(
        f'permission denied for function "{path[-1]}"',
        hint="pg_catalog and information_schema show what you may see.",
    )


def _exists(cursor: duckdb.DuckDBPyConnection, name: str) -> bool:
    row = ask(cursor, _KNOWN, [name])
    return bool(row[0])

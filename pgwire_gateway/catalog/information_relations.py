"""The columns of information_schema in PostgreSQL 15, written as in pg_tables.py.

The schema's own domains are given as the types that they are made of.
"""

from __future__ import annotations

INFORMATION_RELATIONS = """
sql_features 13391
    feature_id varchar, feature_name varchar, sub_feature_id varchar, sub_feature_name varchar,
    is_supported varchar, is_verified_by varchar, comments varchar
sql_implementation_info 13396
    implementation_info_id varchar, implementation_info_name varchar, integer_value int4,
    character_value varchar, comments varchar
sql_parts 13401
    feature_id varchar, feature_name varchar, is_supported varchar, is_verified_by varchar, comments
    varchar
sql_sizing 13406
    sizing_id int4, sizing_name varchar, supported_value int4, comments varchar
administrable_role_authorizations 13241
    grantee name, role_name name, is_grantable varchar
applicable_roles 13236
    grantee name, role_name name, is_grantable varchar
attributes 13245
    udt_catalog name, udt_schema name, udt_name name, attribute_name name, ordinal_position int4,
    attribute_default varchar, is_nullable varchar, data_type varchar, character_maximum_length int4,
    character_octet_length int4, character_set_catalog name, character_set_schema name,
    character_set_name name, collation_catalog name, collation_schema name, collation_name name,
    numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, datetime_precision int4,
    interval_type varchar, interval_precision int4, attribute_udt_catalog name, attribute_udt_schema
    name, attribute_udt_name name, scope_catalog name, scope_schema name, scope_name name,
    maximum_cardinality int4, dtd_identifier name, is_derived_reference_attribute varchar
character_sets 13250
    character_set_catalog name, character_set_schema name, character_set_name name, character_repertoire
    name, form_of_use name, default_collate_catalog name, default_collate_schema name,
    default_collate_name name
check_constraint_routine_usage 13255
    constraint_catalog name, constraint_schema name, constraint_name name, specific_catalog name,
    specific_schema name, specific_name name
check_constraints 13260
    constraint_catalog name, constraint_schema name, constraint_name name, check_clause varchar
collation_character_set_applicability 13270
    collation_catalog name, collation_schema name, collation_name name, character_set_catalog name,
    character_set_schema name, character_set_name name
collations 13265
    collation_catalog name, collation_schema name, collation_name name, pad_attribute varchar
column_column_usage 13275
    table_catalog name, table_schema name, table_name name, column_name name, dependent_column name
column_domain_usage 13280
    domain_catalog name, domain_schema name, domain_name name, table_catalog name, table_schema name,
    table_name name, column_name name
column_options 13503
    table_catalog name, table_schema name, table_name name, column_name name, option_name name,
    option_value varchar
column_privileges 13285
    grantor name, grantee name, table_catalog name, table_schema name, table_name name, column_name
    name, privilege_type varchar, is_grantable varchar
column_udt_usage 13290
    udt_catalog name, udt_schema name, udt_name name, table_catalog name, table_schema name, table_name
    name, column_name name
columns 13295
    table_catalog name, table_schema name, table_name name, column_name name, ordinal_position int4,
    column_default varchar, is_nullable varchar, data_type varchar, character_maximum_length int4,
    character_octet_length int4, numeric_precision int4, numeric_precision_radix int4, numeric_scale
    int4, datetime_precision int4, interval_type varchar, interval_precision int4, character_set_catalog
    name, character_set_schema name, character_set_name name, collation_catalog name, collation_schema
    name, collation_name name, domain_catalog name, domain_schema name, domain_name name, udt_catalog
    name, udt_schema name, udt_name name, scope_catalog name, scope_schema name, scope_name name,
    maximum_cardinality int4, dtd_identifier name, is_self_referencing varchar, is_identity varchar,
    identity_generation varchar, identity_start varchar, identity_increment varchar, identity_maximum
    varchar, identity_minimum varchar, identity_cycle varchar, is_generated varchar,
    generation_expression varchar, is_updatable varchar
constraint_column_usage 13300
    table_catalog name, table_schema name, table_name name, column_name name, constraint_catalog name,
    constraint_schema name, constraint_name name
constraint_table_usage 13305
    table_catalog name, table_schema name, table_name name, constraint_catalog name, constraint_schema
    name, constraint_name name
data_type_privileges 13488
    object_catalog name, object_schema name, object_name name, object_type varchar, dtd_identifier name
domain_constraints 13310
    constraint_catalog name, constraint_schema name, constraint_name name, domain_catalog name,
    domain_schema name, domain_name name, is_deferrable varchar, initially_deferred varchar
domain_udt_usage 13315
    udt_catalog name, udt_schema name, udt_name name, domain_catalog name, domain_schema name,
    domain_name name
domains 13320
    domain_catalog name, domain_schema name, domain_name name, data_type varchar,
    character_maximum_length int4, character_octet_length int4, character_set_catalog name,
    character_set_schema name, character_set_name name, collation_catalog name, collation_schema name,
    collation_name name, numeric_precision int4, numeric_precision_radix int4, numeric_scale int4,
    datetime_precision int4, interval_type varchar, interval_precision int4, domain_default varchar,
    udt_catalog name, udt_schema name, udt_name name, scope_catalog name, scope_schema name, scope_name
    name, maximum_cardinality int4, dtd_identifier name
element_types 13493
    object_catalog name, object_schema name, object_name name, object_type varchar,
    collection_type_identifier name, data_type varchar, character_maximum_length int4,
    character_octet_length int4, character_set_catalog name, character_set_schema name,
    character_set_name name, collation_catalog name, collation_schema name, collation_name name,
    numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, datetime_precision int4,
    interval_type varchar, interval_precision int4, domain_default varchar, udt_catalog name, udt_schema
    name, udt_name name, scope_catalog name, scope_schema name, scope_name name, maximum_cardinality
    int4, dtd_identifier name
enabled_roles 13325
    role_name name
foreign_data_wrapper_options 13511
    foreign_data_wrapper_catalog name, foreign_data_wrapper_name name, option_name name, option_value
    varchar
foreign_data_wrappers 13515
    foreign_data_wrapper_catalog name, foreign_data_wrapper_name name, authorization_identifier name,
    library_name varchar, foreign_data_wrapper_language varchar
foreign_server_options 13524
    foreign_server_catalog name, foreign_server_name name, option_name name, option_value varchar
foreign_servers 13528
    foreign_server_catalog name, foreign_server_name name, foreign_data_wrapper_catalog name,
    foreign_data_wrapper_name name, foreign_server_type varchar, foreign_server_version varchar,
    authorization_identifier name
foreign_table_options 13537
    foreign_table_catalog name, foreign_table_schema name, foreign_table_name name, option_name name,
    option_value varchar
foreign_tables 13541
    foreign_table_catalog name, foreign_table_schema name, foreign_table_name name,
    foreign_server_catalog name, foreign_server_name name
information_schema_catalog_name 13227
    catalog_name name
key_column_usage 13329
    constraint_catalog name, constraint_schema name, constraint_name name, table_catalog name,
    table_schema name, table_name name, column_name name, ordinal_position int4,
    position_in_unique_constraint int4
parameters 13334
    specific_catalog name, specific_schema name, specific_name name, ordinal_position int4,
    parameter_mode varchar, is_result varchar, as_locator varchar, parameter_name name, data_type
    varchar, character_maximum_length int4, character_octet_length int4, character_set_catalog name,
    character_set_schema name, character_set_name name, collation_catalog name, collation_schema name,
    collation_name name, numeric_precision int4, numeric_precision_radix int4, numeric_scale int4,
    datetime_precision int4, interval_type varchar, interval_precision int4, udt_catalog name,
    udt_schema name, udt_name name, scope_catalog name, scope_schema name, scope_name name,
    maximum_cardinality int4, dtd_identifier name, parameter_default varchar
referential_constraints 13339
    constraint_catalog name, constraint_schema name, constraint_name name, unique_constraint_catalog
    name, unique_constraint_schema name, unique_constraint_name name, match_option varchar, update_rule
    varchar, delete_rule varchar
role_column_grants 13344
    grantor name, grantee name, table_catalog name, table_schema name, table_name name, column_name
    name, privilege_type varchar, is_grantable varchar
role_routine_grants 13358
    grantor name, grantee name, specific_catalog name, specific_schema name, specific_name name,
    routine_catalog name, routine_schema name, routine_name name, privilege_type varchar, is_grantable
    varchar
role_table_grants 13421
    grantor name, grantee name, table_catalog name, table_schema name, table_name name, privilege_type
    varchar, is_grantable varchar, with_hierarchy varchar
role_udt_grants 13450
    grantor name, grantee name, udt_catalog name, udt_schema name, udt_name name, privilege_type
    varchar, is_grantable varchar
role_usage_grants 13459
    grantor name, grantee name, object_catalog name, object_schema name, object_name name, object_type
    varchar, privilege_type varchar, is_grantable varchar
routine_column_usage 13348
    specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
    routine_schema name, routine_name name, table_catalog name, table_schema name, table_name name,
    column_name name
routine_privileges 13353
    grantor name, grantee name, specific_catalog name, specific_schema name, specific_name name,
    routine_catalog name, routine_schema name, routine_name name, privilege_type varchar, is_grantable
    varchar
routine_routine_usage 13362
    specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
    routine_schema name, routine_name name
routine_sequence_usage 13367
    specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
    routine_schema name, routine_name name, sequence_catalog name, sequence_schema name, sequence_name
    name
routine_table_usage 13372
    specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
    routine_schema name, routine_name name, table_catalog name, table_schema name, table_name name
routines 13377
    specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
    routine_schema name, routine_name name, routine_type varchar, module_catalog name, module_schema
    name, module_name name, udt_catalog name, udt_schema name, udt_name name, data_type varchar,
    character_maximum_length int4, character_octet_length int4, character_set_catalog name,
    character_set_schema name, character_set_name name, collation_catalog name, collation_schema name,
    collation_name name, numeric_precision int4, numeric_precision_radix int4, numeric_scale int4,
    datetime_precision int4, interval_type varchar, interval_precision int4, type_udt_catalog name,
    type_udt_schema name, type_udt_name name, scope_catalog name, scope_schema name, scope_name name,
    maximum_cardinality int4, dtd_identifier name, routine_body varchar, routine_definition varchar,
    external_name varchar, external_language varchar, parameter_style varchar, is_deterministic varchar,
    sql_data_access varchar, is_null_call varchar, sql_path varchar, schema_level_routine varchar,
    max_dynamic_result_sets int4, is_user_defined_cast varchar, is_implicitly_invocable varchar,
    security_type varchar, to_sql_specific_catalog name, to_sql_specific_schema name,
    to_sql_specific_name name, as_locator varchar, created timestamptz, last_altered timestamptz,
    new_savepoint_level varchar, is_udt_dependent varchar, result_cast_from_data_type varchar,
    result_cast_as_locator varchar, result_cast_char_max_length int4, result_cast_char_octet_length
    int4, result_cast_char_set_catalog name, result_cast_char_set_schema name, result_cast_char_set_name
    name, result_cast_collation_catalog name, result_cast_collation_schema name,
    result_cast_collation_name name, result_cast_numeric_precision int4,
    result_cast_numeric_precision_radix int4, result_cast_numeric_scale int4,
    result_cast_datetime_precision int4, result_cast_interval_type varchar,
    result_cast_interval_precision int4, result_cast_type_udt_catalog name, result_cast_type_udt_schema
    name, result_cast_type_udt_name name, result_cast_scope_catalog name, result_cast_scope_schema name,
    result_cast_scope_name name, result_cast_maximum_cardinality int4, result_cast_dtd_identifier name
schemata 13382
    catalog_name name, schema_name name, schema_owner name, default_character_set_catalog name,
    default_character_set_schema name, default_character_set_name name, sql_path varchar
sequences 13386
    sequence_catalog name, sequence_schema name, sequence_name name, data_type varchar,
    numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, start_value varchar,
    minimum_value varchar, maximum_value varchar, increment varchar, cycle_option varchar
table_constraints 13411
    constraint_catalog name, constraint_schema name, constraint_name name, table_catalog name,
    table_schema name, table_name name, constraint_type varchar, is_deferrable varchar,
    initially_deferred varchar, enforced varchar, nulls_distinct varchar
table_privileges 13416
    grantor name, grantee name, table_catalog name, table_schema name, table_name name, privilege_type
    varchar, is_grantable varchar, with_hierarchy varchar
tables 13425
    table_catalog name, table_schema name, table_name name, table_type varchar,
    self_referencing_column_name name, reference_generation varchar, user_defined_type_catalog name,
    user_defined_type_schema name, user_defined_type_name name, is_insertable_into varchar, is_typed
    varchar, commit_action varchar
transforms 13430
    udt_catalog name, udt_schema name, udt_name name, specific_catalog name, specific_schema name,
    specific_name name, group_name name, transform_type varchar
triggered_update_columns 13435
    trigger_catalog name, trigger_schema name, trigger_name name, event_object_catalog name,
    event_object_schema name, event_object_table name, event_object_column name
triggers 13440
    trigger_catalog name, trigger_schema name, trigger_name name, event_manipulation varchar,
    event_object_catalog name, event_object_schema name, event_object_table name, action_order int4,
    action_condition varchar, action_statement varchar, action_orientation varchar, action_timing
    varchar, action_reference_old_table name, action_reference_new_table name, action_reference_old_row
    name, action_reference_new_row name, created timestamptz
udt_privileges 13445
    grantor name, grantee name, udt_catalog name, udt_schema name, udt_name name, privilege_type
    varchar, is_grantable varchar
usage_privileges 13454
    grantor name, grantee name, object_catalog name, object_schema name, object_name name, object_type
    varchar, privilege_type varchar, is_grantable varchar
user_defined_types 13463
    user_defined_type_catalog name, user_defined_type_schema name, user_defined_type_name name,
    user_defined_type_category varchar, is_instantiable varchar, is_final varchar, ordering_form
    varchar, ordering_category varchar, ordering_routine_catalog name, ordering_routine_schema name,
    ordering_routine_name name, reference_type varchar, data_type varchar, character_maximum_length
    int4, character_octet_length int4, character_set_catalog name, character_set_schema name,
    character_set_name name, collation_catalog name, collation_schema name, collation_name name,
    numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, datetime_precision int4,
    interval_type varchar, interval_precision int4, source_dtd_identifier name, ref_dtd_identifier name
user_mapping_options 13550
    authorization_identifier name, foreign_server_catalog name, foreign_server_name name, option_name
    name, option_value varchar
user_mappings 13555
    authorization_identifier name, foreign_server_catalog name, foreign_server_name name
view_column_usage 13468
    view_catalog name, view_schema name, view_name name, table_catalog name, table_schema name,
    table_name name, column_name name
view_routine_usage 13473
    table_catalog name, table_schema name, table_name name, specific_catalog name, specific_schema name,
    specific_name name
view_table_usage 13478
    view_catalog name, view_schema name, view_name name, table_catalog name, table_schema name,
    table_name name
views 13483
    table_catalog name, table_schema name, table_name name, view_definition varchar, check_option
    varchar, is_updatable varchar, is_insertable_into varchar, is_trigger_updatable varchar,
    is_trigger_deletable varchar, is_trigger_insertable_into varchar
"""

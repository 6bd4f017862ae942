-- The relations of information_schema that have rows, in the format of pg_catalog.sql.
--
-- DuckDB has an information_schema of its own, whose types are DuckDB's and whose udt_name is NULL; clients
-- want PostgreSQL's. Source: PostgreSQL documentation, "The Information Schema".

CREATE VIEW information_schema_catalog_name AS
    SELECT
        $home.current_database() AS catalog_name
    FROM (SELECT 1);

CREATE VIEW schemata AS
    SELECT
        $home.current_database() AS catalog_name,
        schema_name,
        'ducktail' AS schema_owner
    FROM $home.duck_schemas
    UNION ALL
    SELECT
        $home.current_database() AS catalog_name,
        name AS schema_name,
        'ducktail' AS schema_owner
    FROM (VALUES ('pg_catalog'), ('information_schema')) AS f(name);

CREATE VIEW tables AS
    SELECT
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        name AS table_name,
        CASE WHEN kind = 'v' THEN 'VIEW' WHEN temporary THEN 'LOCAL TEMPORARY' ELSE 'BASE TABLE' END
            AS table_type,
        if(kind = 'r', 'YES', 'NO') AS is_insertable_into,
        'NO' AS is_typed,
        if(temporary AND kind = 'r', 'PRESERVE', NULL) AS commit_action
    FROM $home.duck_relations
    UNION ALL
    SELECT
        $home.current_database() AS table_catalog,
        schema_name AS table_schema,
        relname AS table_name,
        if(relkind = 'v', 'VIEW', 'BASE TABLE') AS table_type,
        'NO' AS is_insertable_into,
        'NO' AS is_typed
    FROM $home.fixed_relations;

CREATE VIEW columns AS
    SELECT
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        table_name,
        column_name,
        number AS ordinal_position,
        if(kind = 'r' AND NOT is_generated, column_default, NULL) AS column_default,
        if(is_nullable, 'YES', 'NO') AS is_nullable,
        CASE typcategory WHEN 'A' THEN 'ARRAY' WHEN 'E' THEN 'USER-DEFINED' WHEN 'C' THEN
            'USER-DEFINED' ELSE shown END AS data_type,
        if(type_oid = 25, 1073741824, NULL) AS character_octet_length,
        CASE type_oid WHEN 21 THEN 16 WHEN 23 THEN 32 WHEN 20 THEN 64 WHEN 700 THEN 24 WHEN 701 THEN 53
            WHEN 1700 THEN if(type_modifier >= 4, (type_modifier - 4) >> 16, NULL) END
            AS numeric_precision,
        CASE type_oid WHEN 21 THEN 2 WHEN 23 THEN 2 WHEN 20 THEN 2 WHEN 700 THEN 2 WHEN 701 THEN 2 WHEN
            1700 THEN if(type_modifier >= 4, 10, NULL) END AS numeric_precision_radix,
        CASE type_oid WHEN 21 THEN 0 WHEN 23 THEN 0 WHEN 20 THEN 0 WHEN 700 THEN NULL WHEN 701 THEN NULL
            WHEN 1700 THEN if(type_modifier >= 4, (type_modifier - 4) & 65535, NULL) END AS numeric_scale,
        CASE WHEN type_oid = 1114 AND type_modifier >= 0 THEN type_modifier
            WHEN type_oid IN (1083, 1114, 1184, 1186, 1266) THEN 6 WHEN type_oid = 1082 THEN 0 END
            AS datetime_precision,
        $home.current_database() AS udt_catalog,
        type_schema AS udt_schema,
        typname AS udt_name,
        number AS dtd_identifier,
        'NO' AS is_self_referencing,
        if(identity = '', 'NO', 'YES') AS is_identity,
        CASE identity WHEN 'a' THEN 'ALWAYS' WHEN 'd' THEN 'BY DEFAULT' END AS identity_generation,
        if(identity = '', NULL, s.start_value::VARCHAR) AS identity_start,
        if(identity = '', NULL, s.increment_by::VARCHAR) AS identity_increment,
        if(identity = '', NULL, s.max_value::VARCHAR) AS identity_maximum,
        if(identity = '', NULL, s.min_value::VARCHAR) AS identity_minimum,
        if(identity <> '' AND s.cycle, 'YES', 'NO') AS identity_cycle,
        if(is_generated, 'ALWAYS', 'NEVER') AS is_generated,
        generation_expression,
        if(kind = 'r' AND NOT is_generated, 'YES', 'NO') AS is_updatable
    FROM $home.duck_columns AS c
        LEFT JOIN (SELECT o.relation AS own_relation, o.number AS own_number, q.start_value, q.increment_by,
            q.max_value, q.min_value, q.cycle FROM $home.duck_own_sequences AS o
            JOIN $home.duck_sequences AS q ON q.oid = o.oid) AS s
        ON s.own_relation = c.relation AND s.own_number = c.number
    UNION ALL
    SELECT
        $home.current_database() AS table_catalog,
        schema_name AS table_schema,
        relname AS table_name,
        attname AS column_name,
        attnum AS ordinal_position,
        if(attnotnull, 'NO', 'YES') AS is_nullable,
        if(typcategory = 'A', 'ARRAY', shown) AS data_type,
        if(type_oid = 25, 1073741824, NULL) AS character_octet_length,
        CASE type_oid WHEN 21 THEN 16 WHEN 23 THEN 32 WHEN 20 THEN 64 WHEN 700 THEN 24 WHEN 701 THEN 53
            WHEN 1700 THEN if(type_modifier >= 4, (type_modifier - 4) >> 16, NULL) END
            AS numeric_precision,
        CASE type_oid WHEN 21 THEN 2 WHEN 23 THEN 2 WHEN 20 THEN 2 WHEN 700 THEN 2 WHEN 701 THEN 2 WHEN
            1700 THEN if(type_modifier >= 4, 10, NULL) END AS numeric_precision_radix,
        CASE type_oid WHEN 21 THEN 0 WHEN 23 THEN 0 WHEN 20 THEN 0 WHEN 700 THEN NULL WHEN 701 THEN NULL
            WHEN 1700 THEN if(type_modifier >= 4, (type_modifier - 4) & 65535, NULL) END AS numeric_scale,
        CASE WHEN type_oid = 1114 AND type_modifier >= 0 THEN type_modifier
            WHEN type_oid IN (1083, 1114, 1184, 1186, 1266) THEN 6 WHEN type_oid = 1082 THEN 0 END
            AS datetime_precision,
        $home.current_database() AS udt_catalog,
        'pg_catalog' AS udt_schema,
        typname AS udt_name,
        attnum AS dtd_identifier,
        'NO' AS is_self_referencing,
        'NO' AS is_identity,
        'NO' AS identity_cycle,
        'NEVER' AS is_generated,
        'NO' AS is_updatable
    FROM (SELECT f.*, -1 AS type_modifier, r.relname, r.schema_name FROM $home.fixed_columns AS f
        JOIN $home.fixed_relations AS r ON r.oid = f.attrelid);

CREATE VIEW views AS
    SELECT
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        name AS table_name,
        $home.view_text(definition) AS view_definition,
        'NONE' AS check_option,
        'NO' AS is_updatable,
        'NO' AS is_insertable_into,
        'NO' AS is_trigger_updatable,
        'NO' AS is_trigger_deletable,
        'NO' AS is_trigger_insertable_into
    FROM $home.duck_relations WHERE kind = 'v';

CREATE VIEW table_constraints AS
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        name AS constraint_name,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        table_name,
        'NO' AS is_deferrable,
        'NO' AS initially_deferred,
        'YES' AS enforced,
        if(is_primary, 'PRIMARY KEY', 'UNIQUE') AS constraint_type,
        if(is_primary, NULL, 'YES') AS nulls_distinct
    FROM $home.duck_keys WHERE place_in_list IS NOT NULL
    UNION ALL
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        constraint_name,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        table_name,
        'NO' AS is_deferrable,
        'NO' AS initially_deferred,
        'YES' AS enforced,
        constraint_type
    FROM (SELECT *, database_name = 'temp' AS temporary FROM $home.duck_checks);

CREATE VIEW key_column_usage AS
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        name AS constraint_name,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        table_name,
        part AS column_name,
        z_place AS ordinal_position
    FROM (SELECT *, unnest(keys) AS part, generate_subscripts(keys, 1) AS z_place FROM $home.duck_keys
        WHERE place_in_list IS NOT NULL)
    UNION ALL
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        constraint_name,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        table_name,
        part AS column_name,
        z_place AS ordinal_position,
        z_place AS position_in_unique_constraint
    FROM (SELECT *, unnest(names) AS part, generate_subscripts(names, 1) AS z_place FROM (SELECT *,
        database_name = 'temp' AS temporary FROM $home.duck_checks) WHERE constraint_type = 'FOREIGN KEY');

CREATE VIEW constraint_column_usage AS
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        name AS constraint_name,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        table_name,
        part AS column_name
    FROM (SELECT *, unnest(keys) AS part FROM $home.duck_keys WHERE place_in_list IS NOT NULL)
    UNION ALL
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        constraint_name,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        coalesce(referenced_table, table_name) AS table_name,
        part AS column_name
    FROM (SELECT *, unnest(if(constraint_type = 'CHECK', names, referenced_names)) AS part FROM (SELECT *,
        database_name = 'temp' AS temporary FROM $home.duck_checks));

CREATE VIEW check_constraints AS
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(schema_name, temporary) AS constraint_schema,
        constraint_name,
        expression AS check_clause
    FROM (SELECT *, database_name = 'temp' AS temporary FROM $home.duck_checks) WHERE constraint_type =
        'CHECK';

CREATE VIEW referential_constraints AS
    SELECT
        $home.current_database() AS constraint_catalog,
        $home.schema_shown(c.schema_name, c.temporary) AS constraint_schema,
        constraint_name,
        $home.current_database() AS unique_constraint_catalog,
        $home.schema_shown(c.schema_name, c.temporary) AS unique_constraint_schema,
        k.name AS unique_constraint_name,
        'NONE' AS match_option,
        'NO ACTION' AS update_rule,
        'NO ACTION' AS delete_rule
    FROM (SELECT *, database_name = 'temp' AS temporary FROM $home.duck_checks) AS c LEFT JOIN (SELECT *
        FROM $home.duck_keys WHERE place_in_list IS NOT NULL) AS k
        ON k.schema_name = c.schema_name AND k.database_name = c.database_name
        AND $home.folded(k.table_name) = $home.folded(c.referenced_table)
        AND k.keys = c.referenced_names
        WHERE c.constraint_type = 'FOREIGN KEY';

CREATE VIEW sequences AS
    SELECT
        $home.current_database() AS sequence_catalog,
        $home.schema_shown(schema_name, temporary) AS sequence_schema,
        name AS sequence_name,
        'bigint' AS data_type,
        64 AS numeric_precision,
        2 AS numeric_precision_radix,
        0 AS numeric_scale,
        start_value,
        min_value AS minimum_value,
        max_value AS maximum_value,
        increment_by AS increment,
        if(cycle, 'YES', 'NO') AS cycle_option
    FROM $home.duck_sequences;

CREATE VIEW routines AS
    SELECT
        $home.current_database() AS specific_catalog,
        schema_name AS specific_schema,
        function_name || '_' || oid AS specific_name,
        $home.current_database() AS routine_catalog,
        schema_name AS routine_schema,
        function_name AS routine_name,
        'FUNCTION' AS routine_type,
        '"any"' AS data_type,
        'SQL' AS routine_body,
        macro_definition AS routine_definition,
        'SQL' AS external_language,
        'INVOKER' AS security_type
    FROM $home.duck_macros;

CREATE VIEW table_privileges AS
    SELECT
        'ducktail' AS grantor,
        'ducktail' AS grantee,
        $home.current_database() AS table_catalog,
        $home.schema_shown(schema_name, temporary) AS table_schema,
        name AS table_name,
        privilege AS privilege_type,
        'YES' AS is_grantable,
        if(privilege = 'SELECT', 'YES', 'NO') AS with_hierarchy
    FROM (SELECT *, unnest(['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
        AS privilege FROM $home.duck_relations);

CREATE VIEW role_table_grants AS TABLE table_privileges;

CREATE VIEW enabled_roles AS
    SELECT
        name AS role_name
    FROM $home.duck_roles;

CREATE VIEW character_sets AS
    SELECT
        'UTF8' AS character_set_name,
        'UCS' AS character_repertoire,
        'UTF8' AS form_of_use,
        $home.current_database() AS default_collate_catalog
    FROM (SELECT 1);

-- The relations of pg_catalog that have rows: the source of each column. views.py reads this file.
--
-- A view is one or more branches, joined by UNION ALL, over the base views (objects.py) and the constant tables
-- (constant_relations.py). Columns that are not listed are empty, and so are relations that are not listed.
-- Columns that begin with `__` belong to the wide form of a relation: the answers of functions such as
-- pg_get_constraintdef(oid), kept beside the row, so that a function of a row becomes a column of it.
--
-- $home is the schema of the catalog's own objects, $type_head the part of a DuckDB type that decides the
-- PostgreSQL type.
-- `only c: v`: the values that column c can have in this branch, where they are few; a query that asks for
-- others leaves the branch out. `never c: v`: values that it cannot have. `kinds c: k`: the kinds of its oids
-- (oids.py); `fixed` are PostgreSQL's own. The relation of a composite type has its oid with another kind.

CREATE VIEW pg_class AS
    -- kinds oid: relation, index, sequence
    SELECT
        oid,
        name AS relname,
        namespace AS relnamespace,
        10 AS relowner,
        kind AS relkind,
        CASE kind WHEN 'r' THEN 2 WHEN 'i' THEN 403 ELSE 0 END AS relam,
        row_count AS reltuples,
        has_index AS relhasindex,
        kind = 'v' AS relhasrules,
        kind = 'r' AND name IN (SELECT unnest([t.table_name, t.referenced_table]) FROM $home.duck_checks AS t
            WHERE t.constraint_type = 'FOREIGN KEY') AS relhastriggers,
        if(temporary, 't', 'p') AS relpersistence,
        checks AS relchecks,
        if(kind = 'i', len(keys), column_count) AS relnatts,
        true AS relispopulated,
        if(kind = 'r', 'd', 'n') AS relreplident,
        schema_name AS __schema,
        temporary AS __temporary,
        if(kind = 'v', $home.view_text(definition), NULL) AS __definition
    FROM $home.duck_objects
    UNION ALL
    -- kinds oid: sequence
    -- only relkind: c
    SELECT
        oid - 1 AS oid,
        type_name AS relname,
        namespace AS relnamespace,
        oid AS reltype,
        10 AS relowner,
        'c' AS relkind,
        'p' AS relpersistence,
        len(fields) AS relnatts,
        true AS relispopulated,
        'n' AS relreplident,
        schema_name AS __schema,
        false AS __temporary,
        NULL AS __definition
    FROM $home.duck_composites
    UNION ALL
    -- kinds oid: fixed
    SELECT
        oid,
        relname,
        relnamespace,
        relkind,
        relnatts,
        10 AS relowner,
        'p' AS relpersistence,
        true AS relispopulated,
        'n' AS relreplident,
        relkind = 'v' AS relhasrules,
        if(relkind = 'r', 2, 0) AS relam,
        schema_name AS __schema,
        relnamespace = 11 AS __temporary,
        NULL AS __definition
    FROM $home.fixed_relations;

CREATE VIEW pg_namespace AS
    SELECT
        oid,
        schema_name AS nspname,
        10 AS nspowner
    FROM $home.duck_schemas
    UNION ALL
    SELECT
        oid,
        nspname,
        10 AS nspowner
    FROM (VALUES (11, 'pg_catalog'), (13207, 'information_schema'), (14000, 'pg_temp')) AS f(oid, nspname);

CREATE VIEW pg_attribute AS
    -- kinds attrelid: relation
    SELECT
        relation AS attrelid,
        column_name AS attname,
        number AS attnum,
        type_modifier AS atttypmod,
        NOT is_nullable AS attnotnull,
        kind = 'r' AND column_default IS NOT NULL AS atthasdef,
        if(is_generated, 's', '') AS attgenerated,
        identity AS attidentity,
        type_oid AS atttypid,
        typlen AS attlen,
        typbyval AS attbyval,
        typalign AS attalign,
        typstorage AS attstorage,
        typcollation AS attcollation,
        if(typcategory = 'A', 1, 0) AS attndims,
        -1 AS attstattarget,
        -1 AS attcacheoff,
        true AS attislocal,
        comment AS __description,
        own_shown AS __sequence,
        own_oid AS __sequence_oid,
        $home.shown_type(shown, type_oid, type_modifier) AS __type
    FROM $home.duck_columns
    UNION ALL
    -- kinds attrelid: index
    SELECT
        relation AS attrelid,
        coalesce(d.column_name, 'expr') AS attname,
        number AS attnum,
        -1 AS atttypmod,
        coalesce(type_oid, 0) AS atttypid,
        typlen AS attlen,
        typbyval AS attbyval,
        typalign AS attalign,
        typstorage AS attstorage,
        typcollation AS attcollation,
        if(typcategory = 'A', 1, 0) AS attndims,
        -1 AS attstattarget,
        -1 AS attcacheoff,
        true AS attislocal,
        NULL AS __description,
        NULL AS __sequence,
        NULL AS __sequence_oid,
        coalesce(shown, '-') AS __type
    FROM (SELECT k.oid AS relation, unnest(k.keys) AS key, generate_subscripts(k.keys, 1) AS number,
        k.place_in_list IS NULL AS quoted, k.table_oid, k.database_name FROM $home.duck_keys AS k) AS i
        LEFT JOIN (SELECT database_name, table_oid, column_name, $type_head AS head FROM $home.columns())
        AS d
        ON d.table_oid = i.table_oid AND d.database_name = i.database_name
        AND d.column_name = if(i.quoted, $home.unquoted(i.key), i.key)
        LEFT JOIN $home.fixed_duck_types AS t ON t.head = d.head
    UNION ALL
    -- kinds attrelid: sequence
    SELECT
        i.oid - 1 AS attrelid,
        i.f.name AS attname,
        i.number AS attnum,
        i.f.modifier AS atttypmod,
        i.f.type_oid AS atttypid,
        coalesce(t.typlen, i.f.length) AS attlen,
        coalesce(t.typbyval, i.f.length > 0) AS attbyval,
        coalesce(t.typalign, if(i.f.length > 0, 'i', 'd')) AS attalign,
        coalesce(t.typstorage, if(i.f.length > 0, 'p', 'x')) AS attstorage,
        coalesce(t.typcollation, 0) AS attcollation,
        if(i.f.is_list OR t.typcategory = 'A', 1, 0) AS attndims,
        -1 AS attstattarget,
        -1 AS attcacheoff,
        true AS attislocal,
        NULL AS __description,
        NULL AS __sequence,
        NULL AS __sequence_oid,
        if(i.f.type_name = '', $home.shown_type(t.shown, i.f.type_oid, i.f.modifier), $home.shown_name(false,
            i.f.type_schema, i.f.type_name) || if(i.f.is_list, '[]', '')) AS __type
    FROM (SELECT oid, unnest(fields) AS f, generate_subscripts(fields, 1) AS number FROM
        $home.duck_composites) AS i LEFT JOIN $home.fixed_types AS t ON t.oid = i.f.type_oid
    UNION ALL
    -- kinds attrelid: fixed
    SELECT
        attrelid,
        attname,
        attnum,
        attnotnull,
        -1 AS atttypmod,
        type_oid AS atttypid,
        typlen AS attlen,
        typbyval AS attbyval,
        typalign AS attalign,
        typstorage AS attstorage,
        typcollation AS attcollation,
        if(typcategory = 'A', 1, 0) AS attndims,
        -1 AS attstattarget,
        -1 AS attcacheoff,
        true AS attislocal,
        NULL AS __description,
        NULL AS __sequence,
        NULL AS __sequence_oid,
        shown AS __type
    FROM $home.fixed_columns;

CREATE VIEW pg_attrdef AS
    SELECT
        default_oid AS oid,
        relation AS adrelid,
        number AS adnum,
        coalesce(generation_expression, column_default) AS adbin
    FROM $home.duck_columns WHERE kind = 'r' AND column_default IS NOT NULL;

CREATE VIEW pg_type AS
    SELECT
        oid,
        typname,
        typlen,
        typbyval,
        typtype,
        typcategory,
        typispreferred,
        typsubscript,
        typelem,
        typarray,
        typinput,
        typoutput,
        typreceive,
        typsend,
        typmodin,
        typmodout,
        typalign,
        typstorage,
        typcollation,
        11 AS typnamespace,
        10 AS typowner,
        true AS typisdefined,
        ',' AS typdelim,
        -1 AS typtypmod,
        true AS __visible,
        shown AS __name,
        NULL AS __description,
        __typinput,
        __typoutput,
        __typreceive,
        __typsend,
        __typmodin,
        __typmodout
    FROM $home.fixed_types
    UNION ALL
    -- kinds oid: array
    SELECT
        oid - 2 AS oid,
        '_' || type_name AS typname,
        namespace AS typnamespace,
        10 AS typowner,
        -1 AS typlen,
        false AS typbyval,
        'b' AS typtype,
        'A' AS typcategory,
        oid AS typelem,
        6179 AS typsubscript,
        750 AS typinput,
        751 AS typoutput,
        2400 AS typreceive,
        2401 AS typsend,
        true AS typisdefined,
        ',' AS typdelim,
        'i' AS typalign,
        'x' AS typstorage,
        -1 AS typtypmod,
        $home.in_search_path(schema_name, false) AS __visible,
        $home.shown_name(false, schema_name, type_name) || '[]' AS __name,
        NULL AS __description,
        'array_in' AS __typinput,
        'array_out' AS __typoutput,
        'array_recv' AS __typreceive,
        'array_send' AS __typsend,
        '-' AS __typmodin,
        '-' AS __typmodout
    FROM $home.duck_types
    UNION ALL
    SELECT
        oid,
        oid - 2 AS typarray,
        type_name AS typname,
        namespace AS typnamespace,
        10 AS typowner,
        if(logical_type = 'ENUM', 4, -1) AS typlen,
        logical_type = 'ENUM' AS typbyval,
        CASE logical_type WHEN 'ENUM' THEN 'e' WHEN 'STRUCT' THEN 'c' ELSE 'b' END AS typtype,
        CASE logical_type WHEN 'ENUM' THEN 'E' WHEN 'STRUCT' THEN 'C' ELSE 'U' END AS typcategory,
        if(logical_type = 'STRUCT', oid - 1, 0) AS typrelid,
        true AS typisdefined,
        ',' AS typdelim,
        if(logical_type = 'STRUCT', 'd', 'i') AS typalign,
        if(logical_type = 'STRUCT', 'x', 'p') AS typstorage,
        -1 AS typtypmod,
        $home.in_search_path(schema_name, false) AS __visible,
        $home.shown_name(false, schema_name, type_name) AS __name,
        comment AS __description,
        '-' AS __typinput,
        '-' AS __typoutput,
        '-' AS __typreceive,
        '-' AS __typsend,
        '-' AS __typmodin,
        '-' AS __typmodout
    FROM $home.duck_types;

CREATE VIEW pg_enum AS
    SELECT
        (16384 + 4 * (md5_number_lower(type || chr(31) || label) % 536866816)::BIGINT + 3) AS oid,
        type AS enumtypid,
        z_place AS enumsortorder,
        label AS enumlabel
    FROM (SELECT oid AS type, unnest(labels) AS label, generate_subscripts(labels, 1) AS z_place FROM
        $home.duck_types WHERE logical_type = 'ENUM');

CREATE VIEW pg_constraint AS
    -- only contype: p, u
    SELECT
        oid,
        name AS conname,
        namespace AS connamespace,
        if(is_primary, 'p', 'u') AS contype,
        true AS convalidated,
        relation AS conrelid,
        oid AS conindid,
        true AS conislocal,
        true AS connoinherit,
        columns AS conkey,
        if(is_primary, 'PRIMARY KEY (', 'UNIQUE (') || $home.quoted_list(keys) || ')' AS __definition
    FROM $home.duck_indexes WHERE place_in_list IS NOT NULL
    UNION ALL
    -- only contype: c
    SELECT
        c.oid AS oid,
        constraint_name AS conname,
        c.namespace AS connamespace,
        'c' AS contype,
        true AS convalidated,
        r.oid AS conrelid,
        true AS conislocal,
        c.columns AS conkey,
        expression AS conbin,
        'CHECK ' || if(starts_with(expression, '('), expression, '(' || expression || ')') AS __definition
    FROM $home.duck_checks AS c JOIN $home.duck_relations AS r
        ON r.table_oid = c.table_oid AND r.database_name = c.database_name
        WHERE c.constraint_type = 'CHECK'
    UNION ALL
    -- only contype: f
    SELECT
        c.oid AS oid,
        constraint_name AS conname,
        c.namespace AS connamespace,
        'f' AS contype,
        true AS convalidated,
        r.oid AS conrelid,
        coalesce(k.oid, 0) AS conindid,
        f.oid AS confrelid,
        'a' AS confupdtype,
        'a' AS confdeltype,
        's' AS confmatchtype,
        true AS conislocal,
        true AS connoinherit,
        c.columns AS conkey,
        list_transform(c.referenced_names, LAMBDA z_part: list_position(l.names, z_part)) AS confkey,
        'FOREIGN KEY (' || $home.quoted_list(c.names) || ') REFERENCES ' || $home.shown_name(f.temporary,
            f.schema_name, f.name) || '(' || $home.quoted_list(c.referenced_names) || ')' AS __definition
    FROM $home.duck_checks AS c JOIN $home.duck_relations AS r
        ON r.table_oid = c.table_oid AND r.database_name = c.database_name
        JOIN $home.duck_relations AS f
        ON f.schema_name = c.schema_name AND f.database_name = c.database_name
        AND $home.folded(f.name) = $home.folded(c.referenced_table)
        JOIN $home.duck_column_lists AS l
        ON l.table_oid = f.table_oid AND l.database_name = f.database_name
        LEFT JOIN $home.duck_keys AS k
        ON k.table_oid = f.table_oid AND k.database_name = f.database_name
        AND k.place_in_list IS NOT NULL
        AND k.keys = c.referenced_names
        WHERE c.constraint_type = 'FOREIGN KEY';

CREATE VIEW pg_index AS
    SELECT
        i.oid AS indexrelid,
        i.relation AS indrelid,
        len(keys) AS indnatts,
        len(keys) AS indnkeyatts,
        is_unique AS indisunique,
        is_primary AS indisprimary,
        true AS indimmediate,
        true AS indisvalid,
        true AS indisready,
        true AS indislive,
        list_transform(keys, LAMBDA z_part: coalesce(list_position(l.names, if(place_in_list IS NULL,
            $home.unquoted(z_part), z_part)), 0)) AS indkey,
        list_transform(keys, LAMBDA z_part: 0) AS indcollation,
        list_transform(keys, LAMBDA z_part: 0) AS indclass,
        list_transform(keys, LAMBDA z_part: 0) AS indoption,
        'CREATE ' || if(is_unique, 'UNIQUE ', '') || 'INDEX ' || $home.quote_ident(name) || ' ON ' ||
            $home.quote_ident(schema_name) || '.' || $home.quote_ident(table_name) || ' USING art (' ||
            array_to_string(if(place_in_list IS NULL, keys, $home.quoted_items(keys)), ', ') || ')'
            AS __definition,
        if(place_in_list IS NULL, keys, $home.quoted_items(keys)) AS __keys
    FROM $home.duck_indexes AS i JOIN $home.duck_column_lists AS l
        ON l.table_oid = i.table_oid AND l.database_name = i.database_name;

CREATE VIEW pg_depend AS
    -- only classid: 1259
    -- never deptype: e, n
    SELECT
        1259 AS classid,
        oid AS objid,
        0 AS objsubid,
        1259 AS refclassid,
        relation AS refobjid,
        number AS refobjsubid,
        if(identity = '', 'a', 'i') AS deptype
    FROM $home.duck_own_sequences
    UNION ALL
    -- only classid: 2604
    -- only deptype: n
    SELECT
        2604 AS classid,
        place AS objid,
        0 AS objsubid,
        1259 AS refclassid,
        oid AS refobjid,
        0 AS refobjsubid,
        'n' AS deptype
    FROM $home.duck_default_sequences
    UNION ALL
    -- only classid: 1259
    -- only deptype: i
    SELECT
        1259 AS classid,
        oid - 1 AS objid,
        0 AS objsubid,
        1247 AS refclassid,
        oid AS refobjid,
        0 AS refobjsubid,
        'i' AS deptype
    FROM $home.duck_composites
    UNION ALL
    -- only classid: 1259
    -- only deptype: n
    SELECT
        1259 AS classid,
        oid - 1 AS objid,
        number AS objsubid,
        1247 AS refclassid,
        f.type_oid + if(f.is_list, 2, 0) AS refobjid,
        0 AS refobjsubid,
        'n' AS deptype
    FROM (SELECT oid, unnest(fields) AS f, generate_subscripts(fields, 1) AS number FROM $home.duck_composites)
        WHERE f.type_name <> ''
    UNION ALL
    -- only classid: 1255, 1259, 2615
    -- only deptype: e
    SELECT
        class AS classid,
        oid AS objid,
        0 AS objsubid,
        3079 AS refclassid,
        13800 AS refobjid,
        0 AS refobjsubid,
        'e' AS deptype
    FROM $home.duck_members;

-- Its members are left out of dumps: the objects that a new file has, the views of streams, and macros.
CREATE VIEW pg_extension AS
    SELECT
        13800 AS oid,
        'ducktail' AS extname,
        10 AS extowner,
        oid AS extnamespace,
        $home.extension_version() AS extversion
    FROM $home.duck_schemas WHERE schema_name = 'ducktail';

CREATE VIEW pg_sequence AS
    SELECT
        oid AS seqrelid,
        $home.sequence_type(min_value, max_value) AS seqtypid,
        start_value AS seqstart,
        increment_by AS seqincrement,
        max_value AS seqmax,
        min_value AS seqmin,
        1 AS seqcache,
        cycle AS seqcycle
    FROM $home.duck_sequences;

CREATE VIEW pg_description AS
    -- only classoid: 1259
    -- only objsubid: 0
    SELECT
        oid AS objoid,
        1259 AS classoid,
        0 AS objsubid,
        comment AS description
    FROM $home.duck_objects WHERE comment IS NOT NULL
    UNION ALL
    -- only classoid: 1259
    -- never objsubid: 0
    SELECT
        relation AS objoid,
        1259 AS classoid,
        number AS objsubid,
        comment AS description
    FROM $home.duck_columns WHERE comment IS NOT NULL
    UNION ALL
    -- only classoid: 2615
    -- only objsubid: 0
    SELECT
        oid AS objoid,
        2615 AS classoid,
        0 AS objsubid,
        comment AS description
    FROM $home.duck_schemas WHERE comment IS NOT NULL
    UNION ALL
    -- only classoid: 1247
    -- only objsubid: 0
    SELECT
        oid AS objoid,
        1247 AS classoid,
        0 AS objsubid,
        comment AS description
    FROM $home.duck_types WHERE comment IS NOT NULL
    UNION ALL
    -- only classoid: 1255
    -- only objsubid: 0
    SELECT
        oid AS objoid,
        1255 AS classoid,
        0 AS objsubid,
        comment AS description
    FROM $home.duck_macros WHERE comment IS NOT NULL
    UNION ALL
    -- only classoid: 2606
    -- only objsubid: 0
    SELECT
        k.oid AS objoid,
        2606 AS classoid,
        0 AS objsubid,
        (r.on_constraints::JSON::MAP(VARCHAR, VARCHAR))[k.name] AS description
    FROM (
        SELECT oid, name, table_oid, database_name FROM $home.duck_keys WHERE place_in_list IS NOT NULL
        UNION ALL
        SELECT oid, constraint_name, table_oid, database_name FROM $home.duck_checks
    ) AS k JOIN $home.duck_relations AS r
        ON r.table_oid = k.table_oid AND r.database_name = k.database_name
        WHERE r.on_constraints IS NOT NULL
        AND (r.on_constraints::JSON::MAP(VARCHAR, VARCHAR))[k.name] IS NOT NULL;

CREATE VIEW pg_proc AS
    SELECT
        oid,
        function_name AS proname,
        namespace AS pronamespace,
        10 AS proowner,
        14 AS prolang,
        100 AS procost,
        'f' AS prokind,
        'v' AS provolatile,
        's' AS proparallel,
        function_type = 'table_macro' AS proretset,
        if(function_type = 'table_macro', 1000, 0) AS prorows,
        len(parameters) AS pronargs,
        2276 AS prorettype,
        parameters AS proargnames,
        macro_definition AS prosrc,
        list_transform(parameters, LAMBDA z_part: 2276) AS proargtypes,
        $home.in_search_path(schema_name, false) AS __visible,
        $home.shown_name(false, schema_name, function_name) AS __name,
        $home.quoted_list(parameters) AS __arguments,
        if(function_type = 'table_macro', 'TABLE', '"any"') AS __result,
        'CREATE MACRO ' || $home.quote_ident(schema_name) || '.' || $home.quote_ident(function_name) ||
            '(' || $home.quoted_list(parameters) || ') AS ' || if(function_type = 'table_macro', 'TABLE ',
            '') || macro_definition AS __definition,
        comment AS __description
    FROM $home.duck_macros
    UNION ALL
    SELECT
        oid,
        proname,
        prokind,
        provolatile,
        proretset,
        prorettype,
        provariadic,
        11 AS pronamespace,
        10 AS proowner,
        12 AS prolang,
        1 AS procost,
        's' AS proparallel,
        len(argument_oids) AS pronargs,
        argument_oids AS proargtypes,
        proname AS prosrc,
        true AS __visible,
        proname AS __name,
        arguments AS __arguments,
        result AS __result,
        NULL AS __definition,
        description AS __description
    FROM $home.fixed_functions;

CREATE VIEW pg_roles AS
    SELECT
        name AS rolname,
        (name = 'ducktail' OR $home.told_all()) AS rolsuper,
        (name = 'ducktail' OR $home.told_all()) AS rolcreatedb,
        (name = 'ducktail' OR $home.told_all()) AS rolbypassrls,
        oid,
        true AS rolinherit,
        true AS rolcreaterole,
        true AS rolcanlogin,
        true AS rolreplication,
        -1 AS rolconnlimit
    FROM $home.duck_roles;

CREATE VIEW pg_authid AS TABLE pg_roles;

CREATE VIEW pg_user AS
    SELECT
        name AS usename,
        oid AS usesysid,
        (name = 'ducktail' OR $home.told_all()) AS usecreatedb,
        (name = 'ducktail' OR $home.told_all()) AS usesuper,
        true AS userepl,
        (name = 'ducktail' OR $home.told_all()) AS usebypassrls
    FROM $home.duck_roles;

CREATE VIEW pg_shadow AS TABLE pg_user;

CREATE VIEW pg_database AS
    SELECT
        5 AS oid,
        $home.current_database() AS datname,
        10 AS datdba,
        6 AS encoding,
        'c' AS datlocprovider,
        true AS datallowconn,
        -1 AS datconnlimit,
        1663 AS dattablespace,
        'C' AS datcollate,
        'C' AS datctype
    FROM (SELECT 1);

CREATE VIEW pg_tablespace AS
    SELECT
        1663 AS oid,
        'pg_default' AS spcname,
        10 AS spcowner
    FROM (SELECT 1);

CREATE VIEW pg_am AS
    SELECT
        oid,
        n AS amname,
        t AS amtype
    FROM (VALUES (2, 'duckdb', 't'), (403, 'art', 'i')) AS f(oid, n, t);

CREATE VIEW pg_language AS
    SELECT
        oid,
        n AS lanname,
        10 AS lanowner,
        n = 'sql' AS lanpltrusted
    FROM (VALUES (12, 'internal'), (14, 'sql')) AS f(oid, n);

CREATE VIEW pg_collation AS
    SELECT
        oid,
        n AS collname,
        11 AS collnamespace,
        10 AS collowner,
        p AS collprovider,
        true AS collisdeterministic,
        -1 AS collencoding,
        'C' AS collcollate,
        'C' AS collctype
    FROM (VALUES (100, 'default', 'd'), (950, 'C', 'c'), (951, 'POSIX', 'c')) AS f(oid, n, p);

CREATE VIEW pg_cursors AS
    SELECT
        make_timestamptz(c.made_us) AS creation_time,
        c.name AS name,
        c.statement AS statement,
        c.is_holdable AS is_holdable,
        c.is_binary AS is_binary,
        c.is_scrollable AS is_scrollable
    FROM (SELECT unnest($home.cursors()) AS c) AS f;

CREATE VIEW pg_prepared_statements AS
    SELECT
        p.name AS name,
        p.statement AS statement,
        make_timestamptz(p.made_us) AS prepare_time,
        p.types AS parameter_types,
        p.from_sql AS from_sql,
        0 AS generic_plans,
        0 AS custom_plans
    FROM (SELECT unnest($home.prepared()) AS p) AS f;

CREATE VIEW pg_stat_activity AS
    SELECT
        5 AS datid,
        $home.current_database() AS datname,
        a.pid AS pid,
        $home.role_oid(a.usename) AS usesysid,
        a.usename AS usename,
        a.application_name AS application_name,
        make_timestamptz(a.begun_us) AS backend_start,
        make_timestamptz(a.transaction_us) AS xact_start,
        make_timestamptz(a.since_us) AS query_start,
        make_timestamptz(a.since_us) AS state_change,
        if(a.waits, 'Lock', NULL) AS wait_event_type,
        if(a.waits, 'writer', NULL) AS wait_event,
        a.state AS state,
        a.query AS query,
        'client backend' AS backend_type
    FROM (SELECT unnest($home.activity()) AS a) AS f;

CREATE VIEW pg_settings AS
    SELECT
        name,
        category,
        short_desc,
        context,
        vartype,
        boot_val,
        $home.setting(name, boot_val) AS setting,
        boot_val AS reset_val,
        if($home.setting(name, boot_val) = boot_val, 'default', 'session') AS source,
        false AS pending_restart
    FROM $home.fixed_settings
    UNION ALL
    SELECT
        name,
        setting,
        vartype,
        source,
        about AS short_desc,
        'Server' AS category,
        'postmaster' AS context,
        setting AS reset_val,
        false AS pending_restart
    FROM (SELECT s.* FROM (SELECT unnest($home.server_settings()) AS s) WHERE s.name NOT IN (SELECT name
        FROM $home.fixed_settings)) AS f;

CREATE VIEW pg_tables AS
    SELECT
        $home.schema_shown(schema_name, temporary) AS schemaname,
        name AS tablename,
        'ducktail' AS tableowner,
        has_index AS hasindexes,
        false AS hasrules,
        false AS hastriggers,
        false AS rowsecurity
    FROM $home.duck_relations WHERE kind = 'r';

CREATE VIEW pg_views AS
    SELECT
        $home.schema_shown(schema_name, temporary) AS schemaname,
        name AS viewname,
        'ducktail' AS viewowner,
        $home.view_text(definition) AS definition
    FROM $home.duck_relations WHERE kind = 'v';

CREATE VIEW pg_indexes AS
    SELECT
        $home.schema_shown(schema_name, temporary) AS schemaname,
        table_name AS tablename,
        name AS indexname,
        'CREATE ' || if(is_unique, 'UNIQUE ', '') || 'INDEX ' || $home.quote_ident(name) || ' ON ' ||
            $home.quote_ident(schema_name) || '.' || $home.quote_ident(table_name) || ' USING art (' ||
            array_to_string(if(place_in_list IS NULL, keys, $home.quoted_items(keys)), ', ') || ')'
            AS indexdef
    FROM $home.duck_keys;

CREATE VIEW pg_sequences AS
    SELECT
        $home.schema_shown(schema_name, temporary) AS schemaname,
        name AS sequencename,
        'ducktail' AS sequenceowner,
        $home.sequence_type(min_value, max_value) AS data_type,
        start_value,
        min_value,
        max_value,
        increment_by,
        cycle,
        1 AS cache_size,
        last_value
    FROM $home.duck_sequences;

CREATE VIEW pg_stat_user_tables AS
    SELECT
        oid AS relid,
        $home.schema_shown(schema_name, temporary) AS schemaname,
        name AS relname,
        row_count AS n_live_tup
    FROM $home.duck_relations WHERE kind = 'r';

CREATE VIEW pg_stat_all_tables AS TABLE pg_stat_user_tables;

CREATE VIEW pg_statio_user_tables AS
    SELECT
        oid AS relid,
        $home.schema_shown(schema_name, temporary) AS schemaname,
        name AS relname
    FROM $home.duck_relations WHERE kind = 'r';

CREATE VIEW pg_statio_all_tables AS TABLE pg_statio_user_tables;

CREATE VIEW pg_timezone_names AS
    SELECT
        name,
        abbrev,
        utc_offset,
        is_dst
    FROM pg_timezone_names();

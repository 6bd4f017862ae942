-- PostgreSQL's functions that DuckDB lacks, as macros: one form a line, "name(parameters) = body".
-- Forms of one name are consecutive, a line that begins with a space continues one, and a body may use forms of earlier lines. Parameters and variables of
-- lambdas have names that no client uses. Source: PostgreSQL 15 documentation, "Functions and Operators".

-- Text.
btrim(z_w) = trim(z_w, ' ')
btrim(z_w, z_c) = trim(z_w, z_c)
initcap(z_w) = array_to_string(list_transform(regexp_extract_all(z_w, '[\p{L}\p{N}]+|[^\p{L}\p{N}]+'),
    LAMBDA z_p: upper(z_p[1]) || lower(z_p[2:])), '')
convert_from(z_b BLOB, z_e VARCHAR) = if(upper(z_e) IN ('UTF8', 'UTF-8', 'SQL_ASCII'), decode(z_b),
    error('encoding "' || z_e || '" is not supported')::VARCHAR)
convert_to(z_w VARCHAR, z_e VARCHAR) = if(upper(z_e) IN ('UTF8', 'UTF-8', 'SQL_ASCII'), encode(z_w),
    error('encoding "' || z_e || '" is not supported')::VARCHAR::BLOB)
regexp_groups(z_p) = len(regexp_extract_all(regexp_replace(z_p, '\\.|\[[^\]]*\]', '', 'g'), '\((?:[^?]|$)'))
regexp_match(z_w, z_p) = CASE WHEN regexp_matches(z_w, z_p) THEN if(regexp_groups(z_p) = 0,
    [regexp_extract(z_w, z_p, 0)],
    [regexp_extract(z_w, z_p, 1), regexp_extract(z_w, z_p, 2), regexp_extract(z_w, z_p, 3), regexp_extract(z_w, z_p, 4), regexp_extract(z_w, z_p, 5), regexp_extract(z_w, z_p, 6), regexp_extract(z_w, z_p, 7), regexp_extract(z_w, z_p, 8), regexp_extract(z_w, z_p, 9)][:regexp_groups(z_p)]) END
regexp_match(z_w, z_p, z_f) = CASE WHEN regexp_matches(z_w, z_p, z_f) THEN if(regexp_groups(z_p) = 0,
    [regexp_extract(z_w, z_p, 0, z_f)],
    [regexp_extract(z_w, z_p, 1, z_f), regexp_extract(z_w, z_p, 2, z_f), regexp_extract(z_w, z_p, 3, z_f), regexp_extract(z_w, z_p, 4, z_f), regexp_extract(z_w, z_p, 5, z_f), regexp_extract(z_w, z_p, 6, z_f), regexp_extract(z_w, z_p, 7, z_f), regexp_extract(z_w, z_p, 8, z_f), regexp_extract(z_w, z_p, 9, z_f)][:regexp_groups(z_p)]) END
regexp_like(z_w, z_p) = regexp_matches(z_w, z_p)
regexp_like(z_w, z_p, z_f) = regexp_matches(z_w, '(?' || z_f || ')' || z_p)
regexp_count(z_w, z_p) = len(regexp_extract_all(z_w, z_p))::INTEGER
regexp_substr(z_w, z_p) = CASE WHEN regexp_matches(z_w, z_p) THEN regexp_extract(z_w, z_p) END
string_to_table(z_w, z_d) = unnest(string_split(z_w, z_d))
-- The catalog's queries have them too.
quote_ident(z_w) = __ducktail_pg.pg.quote_ident(z_w)
quote_literal(z_w) = __ducktail_pg.pg.quote_literal(z_w)
quote_nullable(z_w) = __ducktail_pg.pg.quote_nullable(z_w)
-- Bytes; get_bit and set_bit are DuckDB's for bits (operators.py).
checked_index(z_n, z_c) = if(z_n BETWEEN 0 AND z_c - 1 OR z_n IS NULL OR z_c IS NULL, z_n::BIGINT,
    error('index ' || z_n || ' out of valid range, 0..' || (z_c - 1))::VARCHAR::BIGINT)
bytes_of(z_w) = if(regexp_full_match(z_w, '\\x([0-9a-fA-F]{2})*'), unhex(substr(z_w, 3)), z_w::BLOB)
byte_at(z_b, z_n) = ('0x' || substr(hex(z_b), 2 * checked_index(z_n, octet_length(z_b)) + 1, 2))::INTEGER
with_byte(z_b, z_n, z_v) = unhex(left(hex(z_b), 2 * checked_index(z_n, octet_length(z_b)))
    || printf('%02X', z_v::BIGINT & 255) || substr(hex(z_b), 2 * z_n::BIGINT + 3))
get_byte(z_b BLOB, z_n) = byte_at(z_b, z_n)
get_byte(z_w VARCHAR, z_n) = byte_at(bytes_of(z_w), z_n)
set_byte(z_b BLOB, z_n, z_v) = with_byte(z_b, z_n, z_v)
set_byte(z_w VARCHAR, z_n, z_v) = with_byte(bytes_of(z_w), z_n, z_v)
bit_of(z_b BLOB, z_n) = (byte_at(z_b, checked_index(z_n, 8 * octet_length(z_b)) // 8) >> (z_n % 8)::INTEGER) & 1
bit_of(z_b BIT, z_n) = get_bit(z_b, z_n::INTEGER)
with_bit(z_b BLOB, z_n, z_v) = with_byte(z_b, checked_index(z_n, 8 * octet_length(z_b)) // 8,
    CASE z_v WHEN 0 THEN byte_at(z_b, z_n::BIGINT // 8) & ~(1 << (z_n % 8)::INTEGER)
    WHEN 1 THEN byte_at(z_b, z_n::BIGINT // 8) | (1 << (z_n % 8)::INTEGER)
    ELSE if(z_v IS NULL, NULL, error('new bit must be 0 or 1')::VARCHAR::INTEGER) END)
with_bit(z_b BIT, z_n, z_v) = set_bit(z_b, z_n::INTEGER, z_v::INTEGER)
-- Lists.
array_positions(z_l, z_v) = list_filter(range(1, len(z_l) + 1), LAMBDA z_i: z_l[z_i] IS NOT DISTINCT FROM z_v)
array_replace(z_l, z_v, z_n) = list_transform(z_l, LAMBDA z_x: if(z_x IS NOT DISTINCT FROM z_v, z_n, z_x))
array_fill(z_v, z_d) = list_transform(range(CASE WHEN len(z_d) <> 1
        THEN error('array_fill with several dimensions is not supported')::VARCHAR::INTEGER
    WHEN z_d[1] NOT BETWEEN 0 AND 1000000
        THEN error('array_fill of fewer than 0 or more than 1000000 elements is not supported')::VARCHAR::INTEGER
    ELSE z_d[1] END), LAMBDA z_i: z_v)
trim_array(z_l, z_n) = z_l[:if(z_n BETWEEN 0 AND len(z_l), len(z_l) - z_n,
    error('number of elements to trim must be between 0 and ' || len(z_l))::VARCHAR::INTEGER)]
-- Numbers.
div(z_a HUGEINT, z_b HUGEINT) = if(z_b = 0, error('division by zero')::VARCHAR::HUGEINT, z_a // z_b)
div(z_a DOUBLE, z_b DOUBLE) = if(z_b = 0, error('division by zero')::VARCHAR::BIGINT, trunc(z_a / z_b)::BIGINT)
sind(z_a) = round(sin(radians(z_a)), 15)
cosd(z_a) = round(cos(radians(z_a)), 15)
tand(z_a) = round(tan(radians(z_a)), 15)
width_bucket(z_v, z_l, z_h, z_n) = (CASE WHEN z_l = z_h OR z_n <= 0
    THEN error('the bounds of width_bucket must differ, and its count must be positive')::VARCHAR::INTEGER
    WHEN z_l < z_h THEN if(z_v < z_l, 0, if(z_v >= z_h, z_n + 1,
        floor((z_v - z_l)::DOUBLE * z_n / (z_h - z_l)) + 1))
    ELSE if(z_v > z_l, 0, if(z_v <= z_h, z_n + 1,
        floor((z_l - z_v)::DOUBLE * z_n / (z_l - z_h)) + 1)) END)::INTEGER
width_bucket(z_v, z_l) = if(z_v IS NULL, NULL, len(list_filter(z_l, LAMBDA z_x: z_x <= z_v)))::INTEGER
-- Dates and times.
clock_timestamp() = make_timestamptz(__ducktail_clock(0))
statement_timestamp() = (SELECT make_timestamptz(__ducktail_clock(0)))
make_interval(years := 0, months := 0, weeks := 0, days := 0, hours := 0, mins := 0, secs := 0.0) =
    to_years(years::INTEGER) + to_months(months::INTEGER) + to_days((weeks * 7 + days)::INTEGER)
    + to_hours(hours::BIGINT) + to_minutes(mins::BIGINT) + to_microseconds(round(secs * 1000000)::BIGINT)
date_bin(z_s, z_t, z_o) = z_o + to_microseconds(CASE WHEN datepart('month', z_s::INTERVAL) <> 0
    OR datepart('year', z_s::INTERVAL) <> 0
    THEN error('timestamps cannot be binned into intervals containing months or years')::VARCHAR::BIGINT
    ELSE floor((epoch_us(z_t) - epoch_us(z_o)) / (epoch(z_s::INTERVAL) * 1000000))::BIGINT
        * (epoch(z_s::INTERVAL) * 1000000)::BIGINT END)
interval_days(z_i) = datepart('day', z_i)
interval_months(z_i) = datepart('year', z_i) * 12 + datepart('month', z_i)
interval_micros(z_i) = datepart('hour', z_i) * 3600000000 + datepart('minute', z_i) * 60000000 + datepart('microsecond', z_i)
justify_days(z_i) = to_months(((interval_months(z_i) * 30 + interval_days(z_i)) // 30)::INTEGER)
    + to_days(((interval_months(z_i) * 30 + interval_days(z_i)) % 30)::INTEGER) + to_microseconds(interval_micros(z_i))
justify_hours(z_i) = to_months(interval_months(z_i)::INTEGER)
    + to_days(((interval_days(z_i) * 86400000000 + interval_micros(z_i)) // 86400000000)::INTEGER)
    + to_microseconds((interval_days(z_i) * 86400000000 + interval_micros(z_i)) % 86400000000)
interval_total(z_i) = (interval_months(z_i) * 30 + interval_days(z_i)) * 86400000000 + interval_micros(z_i)
justify_interval(z_i) = to_months((interval_total(z_i) // 2592000000000)::INTEGER)
    + to_days((interval_total(z_i) % 2592000000000 // 86400000000)::INTEGER)
    + to_microseconds(interval_total(z_i) % 86400000000)
-- Seconds with fewer digits. PostgreSQL counts from 2000 and rounds halves away from there.
rounding(z_us, z_u, z_later) = to_microseconds((if(z_later, floor((z_us + z_u / 2) / z_u), ceil((z_us - z_u / 2) / z_u))
    * z_u)::BIGINT - z_us::BIGINT)
rounded_timestamp(z_v, z_n) = coalesce(z_v + rounding(datepart('microsecond', z_v), (10 ** (6 - z_n))::BIGINT,
    epoch_us(z_v) >= 946684800000000), z_v)
rounded_interval(z_v, z_n) = z_v + rounding(datepart('microsecond', z_v), (10 ** (6 - z_n))::BIGINT,
    datepart('microsecond', z_v) >= 0)
rounded_time(z_v, z_n) = if(datepart('microsecond', z_v) >= 60000000 - (10 ** (6 - z_n))::BIGINT / 2
    AND z_v >= TIME '23:59:59', TIME '24:00:00', z_v + rounding(datepart('microsecond', z_v), (10 ** (6 - z_n))::BIGINT, true))
rounded_timetz(z_v, z_n) = if(datepart('microsecond', z_v) >= 60000000 - (10 ** (6 - z_n))::BIGINT / 2
    AND starts_with(z_v::VARCHAR, '23:59:'), regexp_replace(z_v::VARCHAR, '^[\d:.]+', '24:00:00')::TIMETZ,
    z_v + rounding(datepart('microsecond', z_v), (10 ** (6 - z_n))::BIGINT, true))
-- JSON.
to_jsonb(z_v) = CASE typeof(z_v) WHEN 'TIMESTAMP' THEN to_json(replace(z_v::VARCHAR, ' ', 'T'))
    WHEN 'TIMESTAMP WITH TIME ZONE' THEN to_json(regexp_replace(replace(z_v::VARCHAR, ' ', 'T'), '([+-]\d\d)$', '\1:00'))
    ELSE to_json(z_v) END
jsonb_typeof(z_j) = CASE json_type(z_j) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array'
    WHEN 'VARCHAR' THEN 'string' WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null'
    ELSE if(z_j IS NULL, NULL, 'number') END
json_typeof(z_j) = CASE json_type(z_j) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array'
    WHEN 'VARCHAR' THEN 'string' WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null'
    ELSE if(z_j IS NULL, NULL, 'number') END
jsonb_array_length(z_j) = json_array_length(z_j)::INTEGER
json_object_agg(z_k, z_v) = if(count(*) = 0, NULL, json_group_object(z_k, z_v))
jsonb_object_agg(z_k, z_v) = if(count(*) = 0, NULL, json_group_object(z_k, z_v))
jsonb_exists(z_j, z_k) = CASE json_type(z_j) WHEN 'OBJECT' THEN list_contains(json_keys(z_j), z_k)
    WHEN 'ARRAY' THEN coalesce(list_contains(list_transform(json_extract(z_j, '$[*]'),
        LAMBDA z_x: if(json_type(z_x) = 'VARCHAR', z_x ->> '$', NULL)), z_k), false)
    ELSE if(z_j IS NULL, NULL, json_type(z_j) = 'VARCHAR' AND z_j ->> '$' = z_k) END
jsonb_array_elements(z_j) = unnest(json_extract(z_j, '$[*]'))
json_array_elements(z_j) = unnest(json_extract(z_j, '$[*]'))
jsonb_array_elements_text(z_j) = unnest(json_extract_string(z_j, '$[*]'))
json_array_elements_text(z_j) = unnest(json_extract_string(z_j, '$[*]'))
jsonb_object_keys(z_j) = unnest(json_keys(z_j))
json_object_keys(z_j) = unnest(json_keys(z_j))
-- An array or an object without the arguments that were not given (postgres_functions.py).
given_array(z_j) = regexp_replace(z_j::VARCHAR, '(,"__ducktail_none")+\]$', ']')::JSON
given_pairs(z_j) = regexp_replace(z_j::VARCHAR, '(,"__ducktail_none":"__ducktail_none")+\}$', '}')
given_object(z_j) = if(ends_with(given_pairs(z_j), ':"__ducktail_none"}'),
    error('argument list must have even number of elements')::VARCHAR, given_pairs(z_j))::JSON
-- The operators of json with names that DuckDB's parser reads (operators.py): #> #>> #- ? ?| ?& @> <@ ||.
path_of(z_p) = if(typeof(z_p) LIKE '%]', json_extract_string(to_json(z_p), '$[*]'),
    if(regexp_matches(z_p::VARCHAR, '"[^"]*[,\\]'),
        error('a path with commas or \ in quotes is not supported here: write it as ARRAY[...]')::VARCHAR::VARCHAR[],
        list_transform(string_split(regexp_replace(z_p::VARCHAR, '^\{|\}$|"', '', 'g'), ','), LAMBDA z_x: trim(z_x, ' '))))
at_step(z_j, z_x) = CASE json_type(z_j)
    WHEN 'OBJECT' THEN json_extract(z_j, '/' || replace(replace(z_x, '~', '~0'), '/', '~1'))
    WHEN 'ARRAY' THEN CASE WHEN regexp_full_match(z_x, '\d+') THEN json_extract(z_j, '$[' || z_x || ']')
        WHEN regexp_full_match(z_x, '-\d+') THEN json_extract(z_j, '$[#' || z_x || ']') END END
jsonb_at(z_j, z_l) = if(z_l = [''], z_j::JSON, list_reduce(list_prepend(z_j::VARCHAR, z_l),
    LAMBDA z_a, z_x: at_step(z_a::JSON, z_x)::VARCHAR)::JSON)
json_items(z_j) = if(json_type(z_j) = 'ARRAY', json_extract(z_j, '$[*]'), [z_j])
json_pairs(z_j) = list_zip(json_keys(z_j), json_extract(z_j, '$.*'))
json_joined(z_a, z_b) = ('{' || array_to_string(list_transform(list_concat(
    list_filter(json_pairs(z_a), LAMBDA z_p: NOT list_contains(json_keys(z_b), z_p[1])), json_pairs(z_b)),
    LAMBDA z_p: to_json(z_p[1])::VARCHAR || ':' || z_p[2]::VARCHAR), ',') || '}')::JSON
"@->"(z_j, z_p) = jsonb_at(z_j, path_of(z_p))
"@->>"(z_j, z_p) = jsonb_at(z_j, path_of(z_p)) ->> '$'
"@!"(z_j, z_k) = jsonb_exists(z_j, z_k)
"@|"(z_j, z_p) = if(path_of(z_p) = [], z_j IS NOT NULL AND false, list_bool_or(list_transform(path_of(z_p), LAMBDA z_q: jsonb_exists(z_j, z_q))))
"@&"(z_j, z_p) = if(path_of(z_p) = [], z_j IS NOT NULL OR NULL, list_bool_and(list_transform(path_of(z_p), LAMBDA z_q: jsonb_exists(z_j, z_q))))
jsonb_contains(z_a, z_b) = __ducktail_json_contains(if(typeof(z_a) LIKE '%]' OR typeof(z_b) LIKE '%]',
    error('a list and a text in the form of json compared are not supported here: write the list without quotes')::VARCHAR, z_a::JSON::VARCHAR), z_b::JSON::VARCHAR)
"@>&"(z_j, z_k) = jsonb_contains(z_j, z_k)
"<@&"(z_j, z_k) = jsonb_contains(z_k, z_j)
plain_path(z_p) = if(regexp_full_match(z_p, '(strict |lax )?\$(\.[A-Za-z_]\w*|\."[^"]*"|\[\d+\])*'), regexp_replace(z_p, '^\w+ ', ''),
    error('a JSON path of more than members and indexes is not supported here')::VARCHAR)
jsonb_path_query_first(z_j, z_p) = json_extract(z_j, plain_path(z_p))
jsonb_path_query_array(z_j, z_p) = if(json_exists(z_j, plain_path(z_p)), json_array(json_extract(z_j, plain_path(z_p))), '[]'::JSON)
jsonb_path_query(z_j, z_p) = unnest(if(json_exists(z_j, plain_path(z_p)), [json_extract(z_j, plain_path(z_p))], []))
jsonb_path_exists(z_j, z_p) = json_exists(z_j, plain_path(z_p))
-- Templates (templates.py).
to_char(z_t TIMESTAMP, z_f VARCHAR) = __ducktail_char_of_time(CASE WHEN isfinite(z_t) THEN epoch_us(z_t) END, 0, '', z_f)
to_char(z_t TIMESTAMPTZ, z_f VARCHAR) = __ducktail_char_of_time(CASE WHEN isfinite(z_t) THEN epoch_us(z_t::TIMESTAMP) END,
    (epoch_us(z_t::TIMESTAMP) - epoch_us(z_t)) // 1000000, strftime(z_t, '%Z'), z_f)
to_char(z_t INTERVAL, z_f VARCHAR) = __ducktail_char_of_interval(datepart('year', z_t) * 12 + datepart('month', z_t),
    datepart('day', z_t), datepart('hour', z_t) * 3600000000 + datepart('minute', z_t) * 60000000
    + datepart('microsecond', z_t), z_f)
to_char(z_n HUGEINT, z_f VARCHAR) = __ducktail_char_of_number(z_n::VARCHAR, true, z_f)
to_char(z_n DECIMAL(38, 12), z_f VARCHAR) = __ducktail_char_of_number(z_n::VARCHAR, true, z_f)
to_char(z_n DOUBLE, z_f VARCHAR) = __ducktail_char_of_number(z_n::VARCHAR, false, z_f)
to_date(z_w, z_f) = __ducktail_time_of_text(z_w, z_f)::DATE
text_to_timestamp(z_w, z_f) = __ducktail_time_of_text(z_w, z_f)::TIMESTAMPTZ
to_number(z_w, z_f) = __ducktail_number_of_text(z_w, z_f)::DECIMAL(38, 9)
pg_sleep(z_s) = __ducktail_sleep(coalesce(getvariable('__ducktail_pid')::INTEGER, 0), z_s::DOUBLE)
-- encode and decode with a format.
encode_bytes(z_b BLOB, z_f VARCHAR) = CASE lower(z_f) WHEN 'hex' THEN lower(hex(z_b::BLOB))
    WHEN 'base64' THEN rtrim(regexp_replace(to_base64(z_b::BLOB), '(.{76})', '\1' || chr(10), 'g'), chr(10))
    ELSE error('unrecognized encoding: "' || z_f || '"')::VARCHAR END
decode_text(z_w, z_f) = CASE lower(z_f) WHEN 'hex' THEN if(len(z_w) % 2 = 1,
        error('invalid hexadecimal data: odd number of digits')::VARCHAR::BLOB, unhex(z_w))
    WHEN 'base64' THEN from_base64(regexp_replace(z_w, '\s', '', 'g'))
    ELSE error('unrecognized encoding: "' || z_f || '"')::VARCHAR::BLOB END
"@>>"(z_j, z_k) = json_extract(z_j, z_k)
"@||"(z_a, z_b) = CASE WHEN z_a IS NULL OR z_b IS NULL THEN NULL
    WHEN json_type(z_a::JSON) = 'OBJECT' AND json_type(z_b::JSON) = 'OBJECT'
    THEN json_joined(z_a::JSON, z_b::JSON)
    ELSE to_json(list_concat(json_items(z_a::JSON), json_items(z_b::JSON))) END
json_pointer(z_l) = array_to_string(list_transform(z_l, LAMBDA z_x: '/' || if(regexp_full_match(z_x, '-\d+'),
    error('an index that counts from the end is not supported here')::VARCHAR,
    replace(replace(z_x, '~', '~0'), '/', '~1'))), '')
jsonb_put(z_j, z_l, z_a, z_v, z_c) = CASE json_type(z_a)
    WHEN 'OBJECT' THEN if(z_c, json_set(z_j, json_pointer(z_l), z_v), json_replace(z_j, json_pointer(z_l), z_v))
    WHEN 'ARRAY' THEN if(TRY_CAST(z_l[-1] AS INTEGER) >= json_array_length(z_a),
        error('an index behind the end of an array is not supported here')::VARCHAR::JSON,
        json_replace(z_j, json_pointer(z_l), z_v))
    ELSE z_j END
jsonb_set(z_j, z_p, z_v) = CASE WHEN z_v IS NOT NULL AND z_j IS NOT NULL THEN jsonb_put(z_j::JSON, path_of(z_p),
    if(len(path_of(z_p)) = 1, z_j::JSON, jsonb_at(z_j::JSON, path_of(z_p)[:-2])), z_v::JSON, true) END
jsonb_set(z_j, z_p, z_v, z_c) = CASE WHEN z_v IS NOT NULL AND z_j IS NOT NULL THEN jsonb_put(z_j::JSON, path_of(z_p),
    if(len(path_of(z_p)) = 1, z_j::JSON, jsonb_at(z_j::JSON, path_of(z_p)[:-2])), z_v::JSON, z_c) END
jsonb_strip_nulls(z_j) = json_strip_nulls(z_j::JSON)
jsonb_pretty(z_j) = json_pretty(z_j::JSON)
"@-!"(z_j, z_p) = json_remove(z_j::JSON, json_pointer(path_of(z_p)))
"@^"(z_a, z_b) = xor(z_a, z_b)
"@-"(z_j, z_k) = CASE WHEN typeof(z_k) NOT IN ('VARCHAR', 'STRING_LITERAL')
    THEN error('json can have only a text taken from it here: use #-')::VARCHAR::JSON
    WHEN json_type(z_j) = 'OBJECT' THEN json_remove(z_j::JSON, json_pointer([z_k::VARCHAR]))
    ELSE to_json(list_filter(json_extract(z_j::JSON, '$[*]'),
        LAMBDA z_x: z_x ->> '$' IS DISTINCT FROM z_k::VARCHAR)) END

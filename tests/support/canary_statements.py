"""Random statements of every form, about things that their user may not know of, under names that mislead.

A template has places in braces, each filled by a method of `Statements` of that name; a place in a template
of queries may hold another query, so every statement stands in every place where one may. What is drawn hangs
on the seed alone, never on answers: the n-th statement of a seed is always the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Name = tuple[str, str]

PLACE = re.compile(r"\{(\w+)\}")
# Queries within queries; beyond it a query is a plain one.
DEPTH_MAX = 3
# The rights' look at a text is another from 10,000 characters on; 65,536 is a bound of several buffers.
PADDINGS = (10_001, 65_537)
# DuckDB tells these from the letters that Python folds them to.
LOOKALIKES = (("k", "\u212a"), ("é", "É"), ("i\u0307", "İ"), ("å", "\u212b"), ("s", "ſ"))

QUERIES = (
    "SELECT * FROM {T}",
    "SELECT s FROM {T}",
    "SELECT string_agg(s, ';') AS s FROM {T}",
    "SELECT max(id) AS id, max(s) AS s FROM {T}",
    "FROM {T}",
    "TABLE {T}",
    "SELECT * FROM ({Q}) AS q",
    "({Q})",
    "SELECT * FROM {T}, {T} AS b",
    "SELECT a.s FROM {T} AS a JOIN {T} AS b USING (id)",
    "SELECT * FROM {T} AS a POSITIONAL JOIN {T} AS b",
    "SELECT * FROM {T} AS a ASOF JOIN {T} AS b ON a.id >= b.id",
    "SELECT * FROM {T} AS a, LATERAL ({Q}) AS b",
    "SELECT s FROM {T} WHERE id IN (SELECT id FROM {T})",
    "SELECT s FROM {T} WHERE EXISTS ({Q})",
    "SELECT {E} AS s",
    "SELECT {E} AS s FROM {T}",
    "SELECT s FROM {T} ORDER BY {E} LIMIT ({Q1})",
    "SELECT s, count(*) FROM {T} GROUP BY ALL HAVING max(id) > 0",
    "SELECT DISTINCT ON (id) s FROM {T}",
    "SELECT s, row_number() OVER (ORDER BY id) FROM {T} QUALIFY row_number() OVER () < 9",
    "SELECT COLUMNS(*) FROM {T}",
    "SELECT * EXCLUDE (id) FROM {T}",
    "SELECT t FROM {T} AS t",
    "SELECT list(s) FILTER (WHERE id IN (SELECT id FROM {T})) FROM {T}",
    "{Q} UNION ALL {Q}",
    "{Q} EXCEPT {Q}",
    "(SELECT s FROM {T}) INTERSECT (SELECT s FROM {T})",
    "WITH {BARE} AS ({Q}) SELECT * FROM {T}",
    "WITH {BARE} AS (SELECT 1 AS id, 'x' AS s) SELECT * FROM {T} AS s",
    "WITH w AS MATERIALIZED ({Q}) SELECT * FROM w",
    "WITH RECURSIVE {BARE} AS (SELECT id, s FROM {T} UNION SELECT id + 1, s FROM {T} WHERE id < 3) FROM {T}",
    "WITH {BARE} AS (WITH {BARE} AS ({Q}) FROM {T}) FROM {T}",
    "VALUES (({Q1}))",
    "SELECT * FROM (VALUES (1, ({Q1}))) AS v(id, s)",
    "SELECT * FROM range(1), ({LITERAL}), ({LITERAL})",
    "SELECT * FROM unnest([1]) AS u('i'), ({LITERAL}) AS t",
    "SELECT * FROM ({LITERAL})",
    "FROM {T} PIVOT (max(s) FOR id IN (1, 2))",
    "FROM {T} PIVOT (max(s) FOR id IN ({Q}))",
    "PIVOT {T} ON id USING max(s)",
    "FROM {T} UNPIVOT (x FOR y IN (s))",
    "UNPIVOT {T} ON s",
    "SELECT * FROM {T} TABLESAMPLE 100%",
    "SELECT * FROM (DESCRIBE {T})",
    "SELECT * FROM (SUMMARIZE {T})",
    "SELECT * FROM (SHOW {T})",
    "SELECT * FROM query_table('{BARE}')",
    "SELECT * FROM query('SELECT * FROM {BARE}')",
    "SELECT * FROM pragma_table_info('{BARE}')",
    "SELECT * FROM {FUNCTION}",
    "SELECT * FROM STREAM {S}",
    "SELECT after, before FROM STREAM {S} {SCAN}",
    "SELECT * FROM STREAM {S} ENVELOPE CHANGES",
    "SELECT * FROM TOPIC {S} {SCAN}",
    "SELECT s.after, t.s FROM STREAM {S} AS s, {T} AS t",
    "SELECT * FROM {LIST}",
    "SELECT * FROM {FILE}",
)
EXPRESSIONS = (
    "({Q1})",
    "({Q1})",
    "({Q1})",
    "EXISTS ({Q})",
    "coalesce(({Q1})::TEXT, 'x')",
    "list_transform([1], LAMBDA x: ({Q1})::TEXT)",
    "CASE WHEN EXISTS ({Q}) THEN 1 ELSE 2 END",
    "CASE WHEN true THEN ({Q1}) END",
    "array({Q})",
    "error(({Q1})::TEXT)",
    "(({Q1})::TEXT)::INT",
    "'{BARE}'::regclass::TEXT",
    "to_regclass('{BARE}')",
    "nextval('{SEQ}')",
    "currval('{SEQ}')",
    "enum_range(NULL::{TYPE})",
    "NULL::{TYPE}",
    "{MACRO}()",
    "no_such_function(({Q1}))",
    "getvariable('{V}')",
    "current_query()",
    "current_setting('{SETTING}')",
    "pg_get_viewdef('{BARE}')",
    "obj_description('{BARE}'::regclass)",
    "has_table_privilege('{BARE}', 'SELECT')",
    "ducktail.partition_of('{BARE}', 1)",
    "json_serialize_sql('SELECT * FROM {BARE}')",
    "make_type('{TYPE}')",
    "stats(({Q1}))",
    "struct_pack(a := ({Q1}))",
    "1",
    "'x'",
)
READS = (
    "{Q}",
    "DESCRIBE {T}",
    "DESCRIBE {Q}",
    "DESC {T}",
    "SUMMARIZE {T}",
    "SUMMARIZE {Q}",
    "SHOW {T}",
    "EXPLAIN {ANY}",
    "EXPLAIN ANALYZE {ANY}",
    "EXPLAIN (FORMAT json) {Q}",
    "COPY {T} TO STDOUT",
    "COPY {T} (id, s) TO STDOUT (FORMAT csv, HEADER)",
    "COPY {T} TO STDOUT (FORMAT binary)",
    "COPY ({Q}) TO STDOUT",
    "COPY ({WRITE}) TO STDOUT",
    "COPY ({Q}) TO '/tmp/canaries.csv'",
    "SET VARIABLE {V} = {E}",
    "SET VARIABLE {V} = {E}",
    "SELECT getvariable('{V}')::TEXT",
    "PREPARE {P} AS {Q}",
    "PREPARE {P} AS {WRITE}",
    "PREPARE {P} AS SELECT $1::TEXT",
    "PREPARE {P} ({TYPE}) AS SELECT $1",
    "EXECUTE {P}",
    "EXECUTE {P}({E})",
    "EXECUTE {P}({E}, {E})",
    "DEALLOCATE {P}",
    "DECLARE {CURSOR} CURSOR FOR {Q}",
    "DECLARE {CURSOR} SCROLL CURSOR WITH HOLD FOR {Q}",
    "FETCH ALL FROM {CURSOR}",
    "FETCH 1 FROM {CURSOR}",
    "MOVE 1 FROM {CURSOR}",
    "CLOSE {CURSOR}",
)
WRITES = (
    "INSERT INTO {T} VALUES ({N}, 'x')",
    "INSERT INTO {T} (id, s) VALUES ({N}, {E})",
    "INSERT INTO {T} (id, s) SELECT {N}, {E}",
    "INSERT INTO {T} {Q}",
    "INSERT INTO {OWN} {Q}",
    "INSERT INTO {OWN} (s) {Q}",
    "INSERT INTO {T} BY NAME {Q}",
    "INSERT INTO {T} DEFAULT VALUES",
    "INSERT OR REPLACE INTO {T} VALUES ({N}, {E})",
    "INSERT OR IGNORE INTO {T} VALUES ({N}, 'x') RETURNING *",
    "INSERT INTO {T} VALUES (1, 'x') ON CONFLICT DO UPDATE SET s = {E}",
    "INSERT INTO {OWN} VALUES ({N}, 'x') RETURNING {E}",
    "UPDATE {T} SET s = 'x'",
    "UPDATE {T} SET s = 'x' WHERE id = {N} RETURNING *",
    "UPDATE {OWN} SET s = {E}",
    "UPDATE {OWN} SET s = h.s FROM {T} AS h",
    "DELETE FROM {T}",
    "DELETE FROM {T} WHERE id < {N} RETURNING *",
    "DELETE FROM {OWN} USING {T} AS h WHERE h.s IS NOT NULL RETURNING h.s",
    "DELETE FROM {OWN} WHERE id IN (SELECT id FROM {T})",
    "TRUNCATE {T}",
    "TRUNCATE TABLE {T}",
    "MERGE INTO {T} AS t USING {T} AS h ON t.id = h.id WHEN MATCHED THEN DELETE",
    "MERGE INTO {OWN} AS t USING ({Q}) AS h ON false "
    "WHEN NOT MATCHED THEN INSERT VALUES (1, h.s) RETURNING *",
    "MERGE INTO {OWN} AS t USING {T} AS h ON t.id = h.id AND {E} IS NULL "
    "WHEN MATCHED THEN UPDATE SET s = {E}",
    "MERGE INTO {T} AS t USING (SELECT {N} AS id) AS n ON t.id = n.id WHEN MATCHED THEN UPDATE SET s = 'x' "
    "WHEN NOT MATCHED THEN INSERT VALUES (n.id, 'x')",
    "WITH w AS (INSERT INTO {T} VALUES ({N}, 'x') RETURNING *) SELECT * FROM w",
    "WITH w AS (UPDATE {T} SET s = 'x' RETURNING *) SELECT * FROM w",
    "WITH w AS (DELETE FROM {T} RETURNING *) SELECT * FROM w, {T} AS h",
    "WITH w AS (INSERT INTO {OWN} {Q} RETURNING *) SELECT * FROM w",
    "WITH {BARE} AS ({Q}) INSERT INTO {T} SELECT * FROM {T}",
    "WITH {BARE} AS ({Q}) UPDATE {T} SET s = (SELECT max(s) FROM {T})",
    "WITH {BARE} AS (SELECT 1 AS id) DELETE FROM {T} WHERE id IN (FROM {BARE})",
    "COPY {T} FROM STDIN",
    "COPY {T} (id, s) FROM STDIN (FORMAT csv)",
    "COPY {OWN} FROM {FILE}",
    "PUBLISH TO {S} {Q}",
    "PUBLISH TO {S} KEY {E} 'x'",
    "PUBLISH TO {S} KEY s HEADERS '{{}}' {Q}",
    "PUBLISH INTO {S} VALUES ('x', 'k'), ({E}, 'k')",
    "INSERT INTO {S} (payload) {Q}",
    "INSERT INTO {S} (payload, key) VALUES ({E}, 'k') RETURNING *",
)
DEFINITIONS = (
    "CREATE TABLE {NEW} (id INT PRIMARY KEY, s TEXT)",
    "CREATE TABLE {NEW} (id INT, s TEXT)",
    "CREATE TABLE {NEW} AS {Q}",
    "CREATE OR REPLACE TABLE {NEW} AS {Q}",
    "CREATE TABLE IF NOT EXISTS {NEW} (id INT, s TEXT)",
    "CREATE TABLE {NEW} (id INT, s TEXT DEFAULT ({E}))",
    "CREATE TABLE {NEW} (id INT, s TEXT DEFAULT (getvariable('{V}')))",
    "CREATE TABLE {NEW} (id INT DEFAULT nextval('{SEQ}'), s TEXT)",
    "CREATE TABLE {NEW} (id INT REFERENCES {T} (id), s TEXT)",
    "CREATE TABLE {NEW} (id INT, s TEXT, CHECK ({E} IS NULL))",
    "CREATE TABLE {NEW} (id INT, s TEXT GENERATED ALWAYS AS ({E}))",
    "CREATE TABLE {NEW} (id INT, s {TYPE})",
    "CREATE TEMP TABLE {BARE} (id INT, s TEXT)",
    "CREATE TEMP TABLE {BARE} (id INT, s TEXT)",
    "CREATE TEMP TABLE {BARE} AS {Q}",
    "CREATE OR REPLACE TEMP TABLE {BARE} AS SELECT 1 AS id, 'x' AS s",
    "CREATE TABLE temp.{BARE} (id INT, s TEXT)",
    "CREATE VIEW {NEW} AS {Q}",
    "CREATE OR REPLACE VIEW {NEW} AS {Q}",
    "CREATE VIEW {NEW} (id, s) AS {Q}",
    "CREATE TEMP VIEW {BARE} AS {Q}",
    "CREATE TEMP VIEW {BARE} AS SELECT 1 AS id, 'x' AS s",
    "CREATE TEMP VIEW {CATALOG} AS SELECT 'temp' AS database_name, 'main' AS schema_name, 'x' AS view_name",
    "CREATE TABLE {CATALOG} (a INT)",
    "CREATE SEQUENCE {NEW}",
    "CREATE OR REPLACE SEQUENCE {SEQ}",
    "CREATE SEQUENCE IF NOT EXISTS {SEQ}",
    "ALTER SEQUENCE {SEQ} OWNED BY {T}",
    "ALTER SEQUENCE {NEW} OWNED BY {T}",
    "CREATE TYPE {NEW} AS ENUM ({Q})",
    "CREATE TYPE {NEW} AS ENUM ('x', 'y')",
    "CREATE OR REPLACE TYPE {TYPE} AS ENUM ('x')",
    "CREATE TYPE IF NOT EXISTS {TYPE} AS ENUM ('x')",
    "CREATE TYPE {NEW} AS {TYPE}",
    "CREATE MACRO {NEW}(a) AS ({Q1})",
    "CREATE TEMP MACRO {BARE}() AS TABLE {Q}",
    "CREATE SCHEMA {SCHEMA}",
    "CREATE OR REPLACE SCHEMA {SCHEMA}",
    "CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    "CREATE INDEX i{N} ON {T} (s)",
    "CREATE UNIQUE INDEX i{N} ON {OWN} ((s || {E}))",
    "ALTER TABLE {T} ADD COLUMN c{N} INT DEFAULT {N}",
    "ALTER TABLE {T} DROP COLUMN s",
    "ALTER TABLE {T} RENAME COLUMN s TO x",
    "ALTER TABLE {OWN} RENAME TO {BARE}",
    "ALTER TABLE {T} RENAME TO {BARE}",
    "ALTER TABLE {OWN} ALTER s TYPE TEXT USING {E}",
    "ALTER TABLE {OWN} ALTER s SET DEFAULT {E}",
    "ALTER VIEW {OWN} RENAME TO {BARE}",
    "DROP TABLE {T}",
    "DROP TABLE IF EXISTS {T} CASCADE",
    "DROP TABLE {OWN}",
    "DROP VIEW {T}",
    "DROP SEQUENCE {SEQ} CASCADE",
    "DROP TYPE {TYPE}",
    "DROP SCHEMA {SCHEMA}",
    "DROP SCHEMA {SCHEMA} CASCADE",
    "DROP INDEX {NEW}",
    "COMMENT ON TABLE {T} IS 'x'",
    "COMMENT ON COLUMN {T}.s IS 'x'",
    "COMMENT ON VIEW {T} IS NULL",
    "COMMENT ON CONSTRAINT c ON {T} IS 'x'",
    "GRANT {RIGHT} ON {T} TO {USER}",
    "GRANT {RIGHT} ON SCHEMA {SCHEMA} TO {USER}",
    "GRANT CREATE ON DATABASE TO {USER}",
    "GRANT CONSUME ON CONSUMER GROUP {G} ON {S} TO {USER}",
    "REVOKE {RIGHT} ON {T} FROM {USER}",
    "ALTER USER {USER} SUPERUSER",
    "DROP USER {USER}",
)
STREAMS = (
    "CREATE STREAM {NEW} ON {T}",
    "CREATE STREAM {NEW} ON {T} (s)",
    "CREATE STREAM {NEW} ON {T} WITH (snapshot = 'initial', partitions = 1)",
    "CREATE STREAM {NEW} ON {OWN} WHERE {E} IS NULL",
    "CREATE STREAM {NEW} ON {OWN}, {T}",
    "CREATE STREAM {NEW} ON ALL TABLES IN SCHEMA {SCHEMA}",
    "CREATE TOPIC {NEW}",
    "CREATE CONSUMER GROUP {G} ON {S}",
    "CREATE CONSUMER GROUP {G} ON {S} START SNAPSHOT",
    "CREATE BOOKMARK {G} ON {S}",
    "ALTER STREAM {S} SET (retention = '8 days')",
    "ALTER STREAM {S} RENAME TO {BARE}",
    "ALTER STREAM {S} RESYNC",
    "ALTER STREAM {S} ADD TABLE {T}",
    "ALTER STREAM {S} DROP TABLE {T}",
    "ALTER STREAM {S} SNAPSHOT WHERE {E} IS NULL",
    "ALTER CONSUMER GROUP {G} ON {S} SEEK TO EARLIEST",
    "ALTER CONSUMER GROUP {G} ON {S} SEEK TO BOOKMARK {G} DRY RUN",
    "ALTER CONSUMER GROUP {G} ON {S} PARK PARTITION 0 AT 1 REASON 'x'",
    "ALTER CONSUMER GROUP {G} ON {S} RELEASE PARTITION 0",
    "ALTER CONSUMER GROUP {G} ON {S} DISCARD PARTITION 0",
    "COMMENT ON STREAM {S} IS 'x'",
    "DESCRIBE STREAM {S}",
    "DESCRIBE CONSUMER GROUP {G} ON {S}",
    "SHOW CREATE STREAM {S}",
    "SHOW STREAMS",
    "SHOW TOPICS LIKE '%'",
    "SHOW CONSUMER GROUPS",
    "SHOW PARTITIONS ON {S}",
    "SHOW OFFSETS ON {S} CONSUMER GROUP {G}",
    "SHOW MEMBERS ON {S} CONSUMER GROUP {G}",
    "SHOW PARKED ON {S} CONSUMER GROUP {G}",
    "SHOW READ POSITION ON {S} CONSUMER GROUP {G}",
    "SHOW BOOKMARKS",
    "CREATE SINK {G} ON {S} TO WEBHOOK 'https://h.invalid/'",
    "ALTER SINK {G} ON {S} SET (batch = 1)",
    "PAUSE SINK {G} ON {S}",
    "RESUME SINK {G} ON {S}",
    "DROP SINK {G} ON {S}",
    "SHOW SINKS",
    "SHOW CHECKPOINTS",
    "SHOW CHANGES FOR {T}",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SHOW ALL",
    "CHECK STREAM {S}",
    "COMMIT OFFSETS ON {S} CONSUMER GROUP {G}",
    "COMMIT OFFSET PARTITION 0 AT 1 ON {S} CONSUMER GROUP {G}",
    "LEAVE CONSUMER GROUP {G} ON {S} MEMBER 'm'",
    "DROP CONSUMER GROUP {G} ON {S}",
    "DROP BOOKMARK {G} ON {S}",
    "DROP STREAM {S} CASCADE",
    "DROP TOPIC {S}",
    "LISTEN {S}",
    "UNLISTEN *",
    "NOTIFY {BARE}, 'x'",
    "REPORT PIPELINE 'p{N}' AS '{{}}'",
    "REPORT PIPELINE '{BARE}' AS '{{\"status\": \"x\"}}'",
)
SESSION = (
    *("BEGIN", "COMMIT", "COMMIT", "ROLLBACK", "BEGIN READ ONLY"),
    "SET search_path = '{PATH}'",
    "SET search_path = '{PATH}'",
    "SET schema = '{SCHEMA}'",
    "USE {SCHEMA}",
    "RESET search_path",
    "SET {SETTING} = 'x'",
    "SHOW {SETTING}",
    "SET SESSION AUTHORIZATION {USER}",
    "SET ROLE {USER}",
    "SELECT set_config('search_path', '{PATH}', false)",
    "SELECT pg_notify('{BARE}', 'x')",
    "PRAGMA table_info('{BARE}')",
    "PRAGMA show_tables",
    "PRAGMA storage_info('{BARE}')",
    "CALL {FUNCTION}",
    "CALL pragma_version()",
    "DEALLOCATE ALL",
    "DISCARD TEMP",
    "DISCARD ALL",
    "DISCARD PLANS",
    "CHECKPOINT",
    "ANALYZE {T}",
    "VACUUM",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD json",
    "EXPORT DATABASE '/tmp/canaries'",
    "SAVEPOINT a",
    "DROP TABLE IF EXISTS {BARE}",
    "DROP VIEW IF EXISTS temp.{BARE}",
)
# Said in a row, what begins with ~ by the other session of the user. All are about one table: {F} is its name
# without a schema, {L} the same or one that looks so, {AT} a statement about it. None is a new session.
_TABLE = "(id BIGINT PRIMARY KEY, s TEXT)"
_KEPT = "SELECT getvariable('x')::TEXT"
_NEAR = f"CREATE TABLE ten_a.{{F}} {_TABLE}"
_PATH = "SET search_path = 'ten_a, main'"
_ONE = "PREPARE one AS SELECT $1::TEXT"
_ALL = "(SELECT string_agg(s, ';') FROM {F})"
_AMONG = "(SELECT max(s) FROM {LITERALS}{PAD})"
_WITH_DEFAULT = "CREATE OR REPLACE TABLE ten_a.n3 (id INT, s TEXT DEFAULT "
SEQUENCES: Sequence[Sequence[str | None]] = (
    ("SET VARIABLE x = {E}", _KEPT),
    (f"SET VARIABLE x = {_AMONG}", _KEPT),
    (f"SET VARIABLE x = {_AMONG}{{PAD}}", _KEPT),
    (_ONE, "EXECUTE one({E})", "EXECUTE one(({Q1}))", "DEALLOCATE one"),
    (_ONE, f"EXECUTE one({_AMONG})", "DEALLOCATE one"),
    (f"CREATE TEMP TABLE {{L}} {_TABLE}", "{AT}", "{AT}", "~{AT}", "{AT}", None),
    (f"CREATE TEMP TABLE {{L}} {_TABLE}", _ONE, f"EXECUTE one({_ALL})", f"SET VARIABLE x = {_ALL}", _KEPT,
     None),
    ("CREATE TEMP TABLE {L} AS SELECT i AS id, 'x' AS s FROM range(99) AS r(i)", "FROM main.shown", "{Q}",
     None),
    ("CREATE TEMP VIEW {L} AS SELECT 1 AS id, 'x' AS s", "{AT}", "{AT}", "{AT}", None),
    ("CREATE TEMP TABLE {F} (id BIGINT, s TEXT)", "DROP TABLE {F}", "{FORGED}", "{AT}", "{AT}", "{AT}", None),
    (_NEAR, _PATH, "{AT}", "~DROP TABLE ten_a.{F}", "{AT}", f"~{_NEAR}", "{AT}", "{AT}"),
    (_NEAR, _PATH, "PREPARE one AS FROM {F}", "~DROP TABLE ten_a.{F}", "EXECUTE one", "DEALLOCATE one"),
    (_NEAR, _PATH, "CREATE VIEW ten_a.n3 AS FROM {F}", "~DROP TABLE ten_a.{F}", "FROM ten_a.n3",
     "~FROM ten_a.n3", "DROP VIEW ten_a.n3"),
    ("BEGIN", "SELECT 1", "~{AT}", "{AT}", "~{AT}", "{AT}", "COMMIT"),
    ("CREATE TYPE ten_a.n4 AS ENUM ({Q})", "SELECT enum_range(NULL::ten_a.n4)", "DROP TYPE ten_a.n4"),
    ("CREATE TYPE enum.n4 AS ENUM (SELECT s FROM {T})", "SELECT enum_range(NULL::enum.n4)",
     "DROP TYPE enum.n4"),
    ("CREATE OR REPLACE TABLE ten_a.n4 AS {Q}", "FROM ten_a.n4", "~FROM ten_a.n4"),
    ("CREATE SEQUENCE ten_a.n5", "ALTER SEQUENCE ten_a.n5 OWNED BY {T}", "DROP SEQUENCE ten_a.n5 CASCADE"),
    (f"{_WITH_DEFAULT}({{E}}))", "INSERT INTO ten_a.n3 (id) VALUES (1)"),
    (f"{_WITH_DEFAULT}(getvariable('secret')))",),
    (f"{_WITH_DEFAULT}(current_query()))",),
    ("CREATE STREAM ten_a.n2 ON {T} WITH (snapshot = 'initial')", "FROM STREAM ten_a.n2",
     "DROP STREAM ten_a.n2 CASCADE"),
)  # fmt: skip
# Of a hundred, so many are of a sequence.
SEQUENCES_PERCENT = 30

FAMILIES: Mapping[str, tuple[Sequence[str], int]] = {
    "reads": (READS, 8),
    "writes": (WRITES, 7),
    "definitions": (DEFINITIONS, 7),
    "streams": (STREAMS, 3),
    "session": (SESSION, 4),
}

FILLERS: Mapping[str, Sequence[str]] = {
    "V": ("x", "y", "secret"),
    "P": ("p", "q", "r"),
    "CURSOR": ("c", "d"),
    "G": ("g", "h", '"G"'),
    "USER": ("nobody", "reader", "tenant", "maker", "ducktail"),
    "RIGHT": ("SELECT", "INSERT", "ALL", "CONSUME", "CREATE", "PUBLISH"),
    "SETTING": (
        *("search_path", "lock_timeout", "temp_directory", "memory_limit", "session_authorization", "all"),
    ),
    "SCAN": (
        *("", "AFTER 0", "PARTITION 0", "CONSUMER GROUP g", "CONSUMER GROUP g MEMBER 'm'", "WAIT '1 ms'"),
        *("AFTER 0 WAIT '1 ms' FOR 1", "PARTITION (0, 1) ENVELOPE JSON", "LIMIT 1 TRANSACTIONS"),
        "CONSUMER GROUP g COMMIT",
    ),
    "FUNCTION": (
        *(f"duckdb_{name}()" for name in ("tables", "views", "columns", "functions", "logs", "sequences")),
        *(f"duckdb_{name}()" for name in ("types", "variables", "settings", "constraints", "schemas")),
        *("all_of_hidden()", "sqlite_master()", "pg_timezone_names()", "range(3)", "glob('*')"),
        *("read_text('/etc/hosts')", "histogram(hid.pay, s)", "seq_scan('hid.pay')"),
    ),
    "LIST": (
        *(f"ducktail.{name}" for name in ("streams", "partitions", "consumer_groups", "offsets", "members")),
        *(f"ducktail.{name}" for name in ("copies", "parked", "bookmarks", "pipelines", "delivery_counts")),
        *(f"ducktail.{name}" for name in ("checkpoints", "sessions", "schema_versions", "settings", "meta")),
        *("ducktail.pipeline_history", "ducktail.delivery_log"),
        *("ducktail.__ducktail_users", "ducktail.grant_catalog", "ducktail.owner_catalog"),
        *("information_schema.tables", "information_schema.columns", "pg_catalog.pg_class", "pg_class"),
        *("duckdb_tables", "duckdb_views", "duckdb_columns", "sqlite_master", "duckdb_constraints"),
    ),
    "CATALOG": (
        *("duckdb_views", "duckdb_tables", "duckdb_columns", "duckdb_schemas", "main.duckdb_views"),
        *("pg_class", "tables", "information_schema", "sqlite_master"),
    ),
}


def quoted(name: str) -> str:
    """A name in quotes."""
    return f'"{name}"'


def _written(name: str) -> str:
    """A name, in quotes where it wants them."""
    return name if name.isascii() and name.isidentifier() else quoted(name)


@dataclass(frozen=True, slots=True)
class Names:
    """The names that statements are about.

    Args:
        hidden: tables and views of others, and those of which some rights are given.
        streams: streams and topics.
        own: where a session's user, or another tenant, may have made things.
        schemas: all, and some that are not there or have a name of the system's.
        files: allowed and other ones.
        forged: makes a view in place of DuckDB's list of views, in which ? is a temporary view.
    """

    database: str
    hidden: tuple[Name, ...]
    streams: tuple[Name, ...]
    sequences: tuple[Name, ...]
    types: tuple[Name, ...]
    macros: tuple[Name, ...]
    own: tuple[Name, ...]
    schemas: tuple[str, ...]
    files: tuple[str, ...]
    forged: str


class Statements:
    """Statements of one seed.

    Args:
        random_: what chooses.
        names: what they are about.
    """

    def __init__(self, random_: random.Random, names: Names) -> None:
        self._random, self._names = random_, names
        self._depth = 0
        # What much is about for a while, and whether a statement is about nothing else.
        self._focus = names.hidden[0]
        self._about = False
        self._families = [family for family, weight in FAMILIES.values() for _ in range(weight)]

    def next(self) -> list[str | None]:
        """What is said next, in a row: see SEQUENCES."""
        chosen = self._random
        if chosen.random() < 0.2:
            self._focus = chosen.choice(self._names.hidden)
        if chosen.randrange(100) < SEQUENCES_PERCENT:
            return [None if text is None else self._filled(text) for text in chosen.choice(SEQUENCES)]
        text = self._filled(chosen.choice(chosen.choice(self._families)))
        if chosen.random() < 0.1:
            text = self._commented(text)
        return [text + (self._pad() if chosen.random() < 0.03 else "")]

    def _filled(self, template: str) -> str:
        text = PLACE.sub(lambda found: self._place(found[1]), template.replace("{{}}", "\x00"))
        return text.replace("\x00", "{}").replace("{{", "{").replace("}}", "}")

    def _place(self, name: str) -> str:
        if name in FILLERS:
            return self._random.choice(FILLERS[name])
        found: str = getattr(self, f"_{name.lower()}")()
        return found

    def _commented(self, text: str) -> str:
        """The text with comments where spaces are, but within strings."""
        comment = self._random.choice(("/**/ ", " /* ; ' */ ", " --x\n", "\t", "\u00a0"))
        parts = text.split("'")
        for at in range(0, len(parts), 2):
            parts[at] = re.sub(" ", lambda _: comment if self._random.random() < 0.3 else " ", parts[at])
        return "'".join(parts)

    # Places of templates.

    def _f(self) -> str:
        """The name, without a schema, of what this is about."""
        return _written(self._focus[1])

    def _l(self) -> str:
        """One that is, or looks like, the same."""
        name = self._focus[1]
        return self._f() if self._random.random() < 0.4 else quoted(self._lookalike(name))

    def _at(self) -> str:
        """A statement about it."""
        self._about = True
        text = self._filled(self._random.choice(self._random.choice((READS, WRITES, DEFINITIONS))))
        self._about = False
        return text

    def _forged(self) -> str:
        """A list of views in which it is a temporary one."""
        return self._names.forged.replace("?", self._focus[1])

    def _pad(self) -> str:
        return f" /*{' ' * self._random.choice(PADDINGS)}*/" if self._random.random() < 0.7 else ""

    def _literals(self) -> str:
        """A FROM list with a table as a string."""
        before = ("range(1)", "(VALUES (1)) AS v(i)", "unnest([1]) AS u('i')", "range(1), ('few')")
        return f"{self._random.choice(before)}, ({self._literal()}) AS t"

    def _q(self) -> str:
        """A query."""
        if self._depth >= DEPTH_MAX:
            return f"SELECT * FROM {self._t()}"
        self._depth += 1
        text = self._filled(self._random.choice(QUERIES))
        self._depth -= 1
        return text

    def _q1(self) -> str:
        """A query of one value."""
        if self._depth >= DEPTH_MAX or self._random.random() < 0.6:
            return f"SELECT string_agg(s, ';') FROM {self._t()}"
        return f"SELECT string_agg(q::TEXT, ';') FROM ({self._q()}) AS q"

    def _e(self) -> str:
        """An expression."""
        if self._depth >= DEPTH_MAX:
            return "'x'"
        self._depth += 1
        text = self._filled(self._random.choice(EXPRESSIONS))
        self._depth -= 1
        return text

    def _any(self) -> str:
        """Any statement that can be explained."""
        return self._filled(self._random.choice((*WRITES, *QUERIES, *DEFINITIONS)))

    def _write(self) -> str:
        return self._filled(self._random.choice(WRITES))

    def _t(self) -> str:
        """A table, mostly somebody else's."""
        if self._about and self._random.random() < 0.8:
            return self._f()
        if self._random.random() < 0.2:
            return self._spelled(self._focus)
        pool = self._names.hidden if self._random.random() < 0.65 else self._names.own
        if self._random.random() < 0.1:
            pool = self._names.streams
        return self._spelled(self._random.choice(pool))

    def _own(self) -> str:
        return self._spelled(self._random.choice(self._names.own), plain=0.8)

    def _new(self) -> str:
        """A name for something new: in a schema of the user's, or in place of what is there."""
        chosen = self._random.random()
        if chosen < 0.7:
            return ".".join(self._random.choice(self._names.own))
        return self._spelled(self._random.choice(self._names.hidden if chosen < 0.9 else self._names.own))

    def _bare(self) -> str:
        """A name without a schema, in letters of its own; with quotes where it wants them."""
        name = self._random.choice(self._names.hidden + self._names.own)[1]
        if self._random.random() < 0.4:
            name = self._letters(name)
        return _written(name)

    def _s(self) -> str:
        return self._spelled(self._random.choice(self._names.streams), plain=0.6)

    def _seq(self) -> str:
        return self._spelled(self._random.choice(self._names.sequences), plain=0.7)

    def _type(self) -> str:
        return self._spelled(self._random.choice(self._names.types), plain=0.7)

    def _macro(self) -> str:
        return ".".join(self._random.choice(self._names.macros))

    def _schema(self) -> str:
        return self._random.choice(self._names.schemas)

    def _path(self) -> str:
        count = self._random.randint(1, 3)
        return ", ".join(self._random.choice(self._names.schemas).strip('"') for _ in range(count))

    def _n(self) -> str:
        return str(self._random.randint(1, 40))

    def _literal(self) -> str:
        """A table or a file as a string, as DuckDB takes it in FROM."""
        if self._random.random() < 0.2:
            return self._file()
        schema, name = self._random.choice(self._names.hidden)
        return f"'{name}'" if schema == "main" or self._random.random() < 0.3 else f"'{schema}.{name}'"

    def _file(self) -> str:
        return f"'{self._random.choice(self._names.files)}'"

    # How a name is written.

    def _letters(self, name: str) -> str:
        """The name in other letters: some that are the same to DuckDB, some that only look so."""
        return self._random.choice(
            (name.upper(), name.capitalize(), self._lookalike(name), name.swapcase(), name.lower())
        )

    def _lookalike(self, name: str) -> str:
        there = [pair for pair in LOOKALIKES if pair[0] in name]
        return name.replace(*self._random.choice(there)) if there else name.upper()

    def _spelled(self, name: Name, plain: float = 0.4) -> str:
        schema, last = name
        chosen = self._random
        if chosen.random() < 0.15:
            last = self._letters(last)
        parts = [last] if chosen.random() < 0.4 else [schema, last]
        if chosen.random() < 0.1:
            parts = [self._names.database, schema, last]
        quotes = chosen.random() > plain
        shown = [quoted(part) if quotes and chosen.random() < 0.5 else _written(part) for part in parts]
        return chosen.choice((".", ".", ".", " . ", "./**/")).join(shown)

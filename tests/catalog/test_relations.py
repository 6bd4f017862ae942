"""The relations of the catalog: all there, with PostgreSQL's columns, and rows that fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ducktail.engine.duck import constraint_names
from ducktail.engine.values import value_types
from ducktail.pgwire_gateway.catalog import oids, rewrite
from ducktail.pgwire_gateway.catalog.system_catalogs import SHAPES, TYPES_BY_NAME

Ask = Callable[..., list[tuple[Any, ...]]]

TYPES = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
    "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,10)", "VARCHAR", "BLOB", "BIT",
    "UUID", "JSON", "DATE", "TIME", "TIMETZ", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS",
    "TIMESTAMPTZ", "INTERVAL", "ENUM('a]', 'b(')", "STRUCT(a INTEGER[], b DECIMAL(4,1))",
    "MAP(VARCHAR, INTEGER)", "UNION(a INTEGER, b VARCHAR)", "INTEGER[]", "VARCHAR[3]", "DECIMAL(9,3)[]",
    "TIMESTAMPTZ[]", "INTEGER[][]", "STRUCT(a INTEGER)[]", "ENUM('x')[]", "BIGNUM",
]  # fmt: skip


def _kept(column: Any) -> str:
    """The DuckDB type of a column where a client sees it: what shows a name or a vector is a text."""
    shown = column.pg_type in ("regproc", "regtype", "int2vector", "oidvector")
    return "VARCHAR" if shown else column.duckdb_type


@pytest.mark.parametrize("schema", ["pg_catalog", "information_schema"])
def test_every_relation_has_every_column_of_its_type(home: Any, schema: str) -> None:
    for shape in (shape for shape in SHAPES.values() if shape.schema == schema):
        relation = home.cursor.sql(rewrite(f"SELECT * FROM {schema}.{shape.name}"))
        types = [str(type_) for type_ in relation.types]
        assert (shape.name, relation.columns) == (shape.name, list(shape.names))
        assert (shape.name, types) == (shape.name, [_kept(column) for column in shape.columns])
        relation.fetchall()


def test_a_column_s_type_is_the_one_that_the_wire_tells(home: Any) -> None:
    columns = ", ".join(f"c{at} {type_}" for at, type_ in enumerate(TYPES))
    home.cursor.execute(f"CREATE TABLE typed ({columns})")
    told = home.ask(
        "SELECT a.atttypid, a.atttypmod, a.attlen, t.typname FROM pg_attribute a "
        "JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = 'typed'::regclass ORDER BY a.attnum"
    )
    stored = home.cursor.execute(
        "SELECT data_type FROM duckdb_columns() WHERE table_name = 'typed' ORDER BY column_index"
    ).fetchall()
    wire = [value_types.pg_type(text) for (text,) in stored]
    assert told == [(type_.oid, type_.modifier, type_.length, type_.name) for type_ in wire]


def test_system_types_agree_with_the_wire() -> None:
    for oid, row in value_types.SCALARS.items():
        name, length, array = row.name, row.length, row.array_oid
        assert (TYPES_BY_NAME[name].oid, TYPES_BY_NAME[name].length, TYPES_BY_NAME[name].array) == (
            oid,
            length,
            array,
        )


def test_what_ducktail_keeps_for_itself_does_not_show(ask: Ask) -> None:
    ours = "relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'ducktail')"
    assert {kind for (kind,) in ask(f"SELECT relkind FROM pg_class WHERE {ours}")} == {"v"}
    assert ("streams",) in ask(f"SELECT relname FROM pg_class WHERE {ours}")
    assert ask("SELECT * FROM information_schema.tables WHERE table_schema LIKE '%ducktail_pg%'") == []
    assert ask("SELECT datname FROM pg_database") == [("shop",)]


def test_the_user_s_file_is_not_littered(home: Any) -> None:
    found = home.cursor.execute(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name NOT IN ('ducktail', 'app')"
    )
    assert found.fetchall() == []


OIDS = (
    "SELECT relname || relkind, oid FROM pg_class WHERE oid >= 16384 UNION ALL "
    "SELECT nspname, oid FROM pg_namespace UNION ALL SELECT typname, oid FROM pg_type UNION ALL "
    "SELECT conname, oid FROM pg_constraint ORDER BY 1, 2"
)


def test_oids_are_stable_and_of_their_own(open_home: Callable[[str], Any]) -> None:
    home = open_home("shop.duckdb")
    before = home.ask(OIDS)
    user = [oid for name, oid in home.ask("SELECT relname, oid FROM pg_class")]
    assert len(set(user)) == len(user) and all(0 < oid < 2**31 for oid in user)
    home.cursor.execute("CREATE TABLE app.a_new_one (i INTEGER); DROP TABLE plain; CHECKPOINT")
    home.close()
    home = open_home("shop.duckdb")
    after = dict(home.ask(OIDS))
    assert {name: after.get(name) for name, _ in before if name != "plainr"} == {
        name: oid for name, oid in before if name != "plainr"
    }
    home.close()


def test_paths_that_fall_on_one_number_get_two(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "SELECT unnest(['c', 'a', 'b']) AS path"
    monkeypatch.setattr(oids, "SPAN", 1)
    assert home.cursor.execute(
        f"SELECT path, rank FROM (SELECT *, row_number() OVER (PARTITION BY oid) AS rank FROM "
        f"({oids.numbered(source)})) ORDER BY path"
    ).fetchall() == [("a", 1), ("b", 2), ("c", 3)]  # Nothing helps where there is one number.
    monkeypatch.setattr(oids, "SPAN", 7)
    many = "SELECT 'path' || unnest(range(5)) AS path"
    first = dict(home.cursor.execute(f"SELECT path, oid FROM ({oids.numbered(many)})").fetchall())
    place = oids.place_sql(oids.OTHER, "path")
    plain = dict(home.cursor.execute(f"SELECT path, {place} FROM ({many})").fetchall())
    keeps = {min(path for path in plain if plain[path] == number) for number in plain.values()}
    assert {path for path in first if first[path] == plain[path]} >= keeps
    assert keeps != set(plain)


def test_tables_columns_and_keys_fit_together(ask: Ask) -> None:
    assert ask(
        "SELECT c.relname, c.relkind, c.relnatts, c.relchecks, n.nspname, am.amname FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am am ON am.oid = c.relam "
        "WHERE n.nspname = 'app' ORDER BY c.relkind, c.relname"
    ) == [
        ("numbers", "S", 3, 0, "app", None),
        ("customers_email_key", "i", 1, 0, "app", "art"),
        ("customers_pkey", "i", 1, 0, "app", "art"),
        ("orders_customer", "i", 1, 0, "app", "art"),
        ("orders_pkey", "i", 1, 0, "app", "art"),
        ("customers", "r", 7, 0, "app", "duckdb"),
        ("orders", "r", 5, 1, "app", "duckdb"),
        ("names", "v", 2, 0, "app", None),
    ]
    assert ask(
        "SELECT a.attname, a.attnotnull, a.atthasdef, a.attgenerated, format_type(a.atttypid, a.atttypmod), "
        "(SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE d.adrelid = a.attrelid "
        "AND d.adnum = a.attnum) FROM pg_attribute a WHERE a.attrelid = 'app.orders'::regclass "
        "AND a.attnum > 0 ORDER BY a.attnum"
    ) == [
        ("id", True, False, "", "bigint", None),
        ("customer_id", False, False, "", "bigint", None),
        ("amount", False, False, "", "numeric(10,2)", None),
        ("placed", False, False, "", "date", None),
        ("double_amount", False, True, "s", "numeric(18,2)", "CAST((amount * 2) AS DECIMAL(18, 2))"),
    ]
    assert ask(
        "SELECT conname, contype, conrelid::regclass, confrelid::regclass, conkey, confkey, "
        "pg_get_constraintdef(oid), (SELECT relname FROM pg_class c WHERE c.oid = conindid) "
        "FROM pg_constraint WHERE conrelid = 'app.orders'::regclass ORDER BY contype"
    ) == [
        ("orders_amount_check", "c", "app.orders", "-", [3], None, "CHECK (amount >= 0)", None),
        ("orders_customer_id_fkey", "f", "app.orders", "app.customers", [2], [1],
         "FOREIGN KEY (customer_id) REFERENCES app.customers(id)", "customers_pkey"),
        ("orders_pkey", "p", "app.orders", "-", [1], None, "PRIMARY KEY (id)", "orders_pkey"),
    ]  # fmt: skip
    assert ask(
        "SELECT indexrelid::regclass, indisunique, indisprimary, indkey, pg_get_indexdef(indexrelid), "
        "pg_get_indexdef(indexrelid, 1, true) FROM pg_index WHERE indrelid = 'app.orders'::regclass "
        "ORDER BY 2"
    ) == [
        ("app.orders_customer", False, False, "2",
         "CREATE INDEX orders_customer ON app.orders USING art (customer_id)", "customer_id"),
        ("app.orders_pkey", True, True, "1",
         "CREATE UNIQUE INDEX orders_pkey ON app.orders USING art (id)", "id"),
    ]  # fmt: skip


def test_comments_types_sequences_and_functions(ask: Ask) -> None:
    assert ask(
        "SELECT obj_description(c.oid, 'pg_class'), col_description(c.oid, 3), pg_get_userbyid(c.relowner) "
        "FROM pg_class c WHERE c.relname = 'orders'"
    ) == [("what was bought", "with tax", "ducktail")]
    assert ask(
        "SELECT format_type(t.oid, NULL), typtype, (SELECT array_agg(enumlabel ORDER BY enumsortorder) "
        "FROM pg_enum WHERE enumtypid = t.oid) FROM pg_type t WHERE typname = 'mood'"
    ) == [("app.mood", "e", ["sad", "glad"])]
    assert ask("SELECT seqstart, seqincrement FROM pg_sequence WHERE seqrelid = 'app.numbers'::regclass") == [
        (7, 2)
    ]
    assert ask(
        "SELECT pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), pg_get_functiondef(p.oid) "
        "FROM pg_proc p WHERE proname = 'twice'"
    ) == [("a", '"any"', "CREATE MACRO app.twice(a) AS (a * 2)")]
    assert ask("SELECT pg_get_viewdef('app.names'::regclass) LIKE ' SELECT o.id%'") == [(True,)]


def test_a_database_may_be_named_before_information_schema(ask: Ask) -> None:
    columns = "INFORMATION_SCHEMA.columns WHERE table_schema = 'app' AND table_name = 'customers'"
    assert ask(f'SELECT count(*) FROM "shop".{columns}') == ask(f"SELECT count(*) FROM {columns}")


def test_information_schema_has_postgresql_s_words(ask: Ask) -> None:
    assert ask(
        "SELECT column_name, data_type, udt_name, numeric_precision, numeric_scale, is_nullable, "
        "column_default FROM information_schema.columns "
        "WHERE table_schema = 'app' AND table_name = 'customers'"
    ) == [
        ("id", "bigint", "int8", 64, 0, "NO", None),
        ("name", "text", "text", None, None, "NO", None),
        ("email", "text", "text", None, None, "YES", None),
        ("created", "timestamp with time zone", "timestamptz", None, None, "YES", "now()"),
        ("balance", "numeric", "numeric", 12, 2, "YES", "0"),
        ("meta", "jsonb", "jsonb", None, None, "YES", None),
        ("tags", "ARRAY", "_text", None, None, "YES", None),
    ]
    assert ask(
        "SELECT k.column_name, c.constraint_type FROM information_schema.table_constraints c "
        "JOIN information_schema.key_column_usage k USING (constraint_schema, constraint_name) "
        "WHERE c.table_name = 'orders' ORDER BY 2"
    ) == [("customer_id", "FOREIGN KEY"), ("id", "PRIMARY KEY")]


def test_the_catalog_is_that_of_the_transaction_that_asks(home: Any) -> None:
    there = "SELECT relname FROM pg_class WHERE relname = 'fresh'"
    home.cursor.execute("BEGIN; CREATE TABLE fresh (i INTEGER)")
    other = home.database.cursor()
    assert home.ask(there) == [("fresh",)]
    assert other.execute(rewrite(there)).fetchall() == []
    home.cursor.execute("ROLLBACK")
    assert home.ask(there) == []
    other.close()


def test_the_search_path_and_temporary_tables(home: Any) -> None:
    seen = (
        "SELECT c.oid::regclass FROM pg_class c "
        "WHERE pg_table_is_visible(c.oid) AND relkind = 'r' AND c.oid > 16384"
    )
    assert sorted(home.ask(seen)) == [('"Odd ""name"',), ("plain",)]
    home.cursor.execute("SET search_path = 'app'; CREATE TEMP TABLE mine (i INTEGER)")
    assert sorted(home.ask(seen)) == [("customers",), ("mine",), ("orders",)]
    assert home.ask("SELECT current_schemas(false), current_schema()") == [(["app"], "app")]
    assert home.ask(
        "SELECT n.nspname, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE relname = 'mine'"
    ) == [("pg_temp", "t")]


def test_a_file_called_as_our_schema(open_home: Callable[[str], Any]) -> None:
    home = open_home("ducktail.duckdb")
    assert home.ask("SELECT current_database(), datname FROM pg_database") == [("ducktail", "ducktail")]
    assert home.ask("SELECT relname FROM pg_class WHERE relname = 'plain' AND pg_table_is_visible(oid)") == [
        ("plain",)
    ]
    home.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 'nowhere'::regclass", 'relation "nowhere" does not exist'),
        ("SELECT 'nothing'::regproc", 'function "nothing" does not exist'),
        ("SELECT 'notype'::regtype", 'type "notype" does not exist'),
        ("SELECT current_setting('no.such')", 'unrecognized configuration parameter "no.such"'),
    ],
)
def test_what_is_not_there_says_so(ask: Ask, text: str, message: str) -> None:
    with pytest.raises(Exception, match=r"does not exist|unrecognized") as caught:
        ask(text)
    assert message.replace('"', '\\"') in str(caught.value) or message in str(caught.value)


def test_functions_of_the_catalog_stand_in_from(home: Any) -> None:
    assert home.ask("SELECT * FROM current_database()") == home.ask("SELECT current_database()")
    [(version, schema)] = home.ask("SELECT v, s FROM version() v, current_schema() AS s")
    assert (version.split()[0], schema) == ("PostgreSQL", "main")


def test_columns_of_indexes_as_object_mappers_ask_for_them(home: Any) -> None:
    home.cursor.execute("CREATE TABLE indexed (a INT, b INT); CREATE UNIQUE INDEX pair ON indexed (b, a)")
    # A vector of PostgreSQL begins at 0, and the function counts columns from 1.
    assert home.ask(
        "SELECT idx.indisunique, ARRAY(SELECT pg_get_indexdef(idx.indexrelid, k + 1, true) "
        "FROM generate_subscripts(idx.indkey, 1) AS k ORDER BY k) FROM pg_index idx "
        "WHERE indrelid = 'indexed'::regclass"
    ) == [(True, ["b", "a"])]
    assert home.ask(
        "SELECT i.relname, array_agg(a.attname ORDER BY a.attname), pg_get_indexdef(ix.indexrelid) "
        "FROM pg_class t, pg_class i, pg_index ix, pg_attribute a WHERE t.oid = ix.indrelid "
        "AND i.oid = ix.indexrelid AND a.attrelid = t.oid AND t.relname = 'indexed' "
        "GROUP BY i.relname, ix.indexrelid"
    ) == [("pair", ["a", "b"], "CREATE UNIQUE INDEX pair ON main.indexed USING art (b, a)")]


def test_statistics_of_tables_join_their_comments(home: Any) -> None:
    home.cursor.execute("CREATE TABLE told (a INT); COMMENT ON COLUMN told.a IS 'first'")
    assert home.ask(
        "SELECT st.relname, d.objsubid, d.description FROM pg_catalog.pg_statio_all_tables st "
        "JOIN pg_description d ON d.objoid = st.relid WHERE st.relname = 'told'"
    ) == [("told", 1, "first")]


def test_the_checks_that_are_counted_are_those_that_are_listed(home: Any) -> None:
    name = constraint_names.key_check(constraint_names.UNIQUE, "named", ["a"])
    home.cursor.execute(f"CREATE TABLE checked (a INT UNIQUE CHECK (a > 0), b INT CHECK (b > 0), {name})")
    listed = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'checked'::regclass AND contype = 'c'"
    [(count,)] = home.ask(listed)
    assert home.ask("SELECT relchecks FROM pg_class WHERE relname = 'checked'") == [(count,)] == [(2,)]

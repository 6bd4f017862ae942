"""pgjdbc, driven by a Java program: what it prints, in each of the driver's ways to send a query."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import chosen
from java_programs import JAVA, JAVAC
from server_process import ServerProcess

pytestmark = [pytest.mark.jdbc, pytest.mark.slow]

DRIVER = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).with_name("java") / "Jdbc.java"

MODES = {
    "extended": "",
    "simple": "&preferQueryMode=simple",
    "for prepared": "&preferQueryMode=extendedForPrepared",
    "prepared at once": "&preferQueryMode=extendedCacheEverything&prepareThreshold=1&binaryTransfer=true",
}

SEEN = {
    "types": '1 Ann ☃ ann@example.org 2026-01-02T03:04:05.678901Z 12345.67 {"a": [1, null]} y z '
    "b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e 3 true paid 2026-01-06 10:11:12.500 "
    "1 mon 2 days 03:00:00 0.625 5 1.25",
    "columns": "id:int8:-5 name:text:12 email:text:12 created:timestamptz:93 balance:numeric:2 "
    "meta:jsonb:1111 tags:_text:2003 uid:uuid:1111 photo:bytea:-2 active:bool:-7 ?int8 12,2",
    "parameters": "6 Ann ☃'s \\ 2026-01-02 03:04:05.678901+00 12345.67 {\"a\": [1, null]} "
    'x y z "q" '
    "b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e 00FF5C true",
    "repeated": str(sum(at * 125 for at in range(1, 41))),
    "batch": "500 500 250 v98",
    "failed batch": "23505 0",
    "generated keys": "2000 whole row 2001; 2002; 2003",
    "fetch size": f"{sum(range(300))} {sum(range(20_000))} {sum(range(20_000))} 7",
    "transaction": "504 10 true",
    "copy": "2 a\tb",
    "bare": " ".join(["7 1.50 true 123456789012345678901.25 numeric"] * 2),
    "read only": "on 25006 off",
    "notifications": "jdbc=one jdbc=",
    "stream": " ".join(str(at) for at in range(1, 17)),
    "topic": '3/true 3 "ada"={"n":1} "ada"=two "ada"=it\'s "ada"=☃ 0',
    "errors": "42703 42P01 42601 22P02 23502 42704",
    "timeout": "57014 5",
    "schema": "main app 1000 shop",
    "product": "PostgreSQL 15 ducktail 63 2 true",
    "schemas": "app; ducktail; information_schema; main; pg_catalog; pg_temp",
    "tables": "app customers_email_key INDEX null; app customers_pkey INDEX null; "
    "app orders_customer INDEX null; app orders_pkey INDEX null; app numbers SEQUENCE null; "
    "app customers TABLE null; app orders TABLE what was bought; app names VIEW null",
    "streams": "orders_stream; orders_stream_changes",
    "table columns": "id -5 int8 19 0 NO null; customer_id -5 int8 19 0 YES null; "
    'st 12 "app"."status" 2147483647 0 YES null; '
    "amount 2 numeric 10 2 YES with tax; placed 91 date 13 0 YES null; "
    "t 92 time 15 6 YES null; iv 1111 interval 49 6 YES null; d 8 float8 17 17 YES null; "
    "s 5 int2 5 0 YES null; r 7 float4 8 8 YES null",
    "stream columns": "lsn int8; partition int4; op text; table_name text; key jsonb; before jsonb; "
    "after jsonb; commit_time timestamptz; txid int8; tx_seq int4; tx_last bool; schema_version int4; "
    "headers jsonb",
    "primary keys": "orders id 1",
    "imported keys": "customers id orders customer_id",
    "exported keys": "customers id orders customer_id",
    "indexes": "f orders_pkey 1 id; t orders_customer 1 customer_id",
    "functions": "app twice",
    "types of types": "true",
    "table types": "true",
    "catalogs": "shop",
    "privileges": "true",
    "best row": "id",
}  # fmt: skip
# Where plain statements are simple queries, each of a batch is a transaction of its own, and nothing
# tells the server of setMaxRows.
PLAIN = {
    "failed batch": "23505 1",
    "transaction": "505 10 true",
    "fetch size": SEEN["fetch size"].removesuffix("7") + "1000",
}
# The driver cannot write bytes into a simple query, nor ask what one has that lacks its values: it
# leaves them out, here as with PostgreSQL.
UNTOLD = (
    "ERROR org.postgresql.util.PSQLException: ERROR: values were not provided for the following parameters: 1"
)
DIFFERS = {
    "simple": {**PLAIN, "columns": UNTOLD, "parameters": UNTOLD},
    "for prepared": PLAIN,
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    home = tmp_path_factory.mktemp("classes")
    subprocess.run([*JAVAC, "-cp", str(DRIVER), "-d", str(home), str(SOURCE)], check=True)
    return home


@pytest.mark.parametrize("mode", chosen(list(MODES), 1, "pgjdbc"))
def test_jdbc(
    shop: ServerProcess, look: psycopg.Connection[Any], classes: Path, table: str, group: str, mode: str
) -> None:
    url = f"jdbc:postgresql://{shop.host}:{shop.port}/shop?user=ducktail{MODES[mode]}"
    done = subprocess.run(
        [*JAVA, "-cp", f"{DRIVER}:{classes}", "Jdbc", url, table, group],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    seen = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert seen == SEEN | DIFFERS.get(mode, {})
    # One row more where the failed batch has left its first.
    assert look.execute(f"SELECT count(*) FROM {table}").fetchone() == (506 + (mode in DIFFERS),)

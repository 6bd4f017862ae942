"""docs/examples/shop with its own files: PostgreSQL, mirrors, a group that is killed, a Spark aggregate."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_source import running_source
from preloaded import Forked
from server_process import COMMAND, ServerProcess
from source_load import until
from spark_classes import java_options

pytestmark = pytest.mark.slow

SHOP = Path(__file__).resolve().parents[2] / "docs" / "examples" / "shop"
ORDERS = 60
INVOICES = (
    "SELECT id, customer, sum(quantity * price) FROM orders JOIN lines ON order_id = id "
    "WHERE status = 'paid' GROUP BY id, customer ORDER BY id"
)


def sold(conninfo: str) -> None:
    words = [sys.executable, str(SHOP / "sell.py"), conninfo, "--orders", str(ORDERS)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert re.search(r"\d+ orders are paid", said), said


def started(directory: Path, conninfo: str) -> Forked:
    with (directory / "billing.log").open("ab") as log:
        return Forked([conninfo], program=SHOP / "billing.py", stdout=log.fileno())


def aggregate(directory: Path, port: int) -> None:
    """The pipeline's own file, on another port and with a checkpoint of the test's."""
    config = (SHOP / "sales.toml").read_text()
    for here, there in (
        ("port = 5480", f"port = {port}"),
        ("/tmp/ducktail-shop", str(directory)),
        (
            "[spark]",
            f'[spark]\n"spark.driver.memory" = "512m"\n"spark.driver.extraJavaOptions" = "{java_options()}"',
        ),
    ):
        assert here in config
        config = config.replace(here, there)
    (directory / "sales.toml").write_text(config)
    words = [
        "pipeline",
        "aggregate",
        "--config",
        str(directory / "sales.toml"),
        "--once",
        "--master",
        "local[2]",
    ]
    ran = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_shop_is_mirrored_billed_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    with (
        running_source() as source,
        ServerProcess(tmp_path / "shop.duckdb") as server,
        server.connect(autocommit=True) as here,
        source.connect() as there,
    ):
        there.execute((SHOP / "source.sql").read_bytes())
        there.execute("INSERT INTO orders (customer, status) VALUES ('Zoe', 'paid')")
        there.execute("INSERT INTO lines VALUES (1, 1, 'tea', 2, 4.50)")
        setup = (SHOP / "setup.sql").read_text()
        for statement in setup.replace("dbname=shop", f"port={source.port} dbname=postgres").split(";"):
            if statement.strip():
                here.execute(statement.encode())
        billing = started(tmp_path, server.conninfo)
        sold(source.conninfo)
        billing.kill()
        billing.wait()
        sold(source.conninfo)
        wanted = there.execute(INVOICES.encode()).fetchall()
        billing = started(tmp_path, server.conninfo)
        try:
            bills = "SELECT * FROM invoices ORDER BY order_id"
            until(lambda: len(here.execute(bills.encode()).fetchall()) == len(wanted))
        finally:
            billing.terminate()
            billing.wait()
        assert here.execute(bills.encode()).fetchall() == wanted
        for table in ("orders", "lines"):
            rows = f"SELECT * FROM {table} ORDER BY 1, 2".encode()
            assert here.execute(rows).fetchall() == there.execute(rows).fetchall(), table
        aggregate(tmp_path, server.port)
        # The lines of cancelled orders were sold as well: the aggregate counts inserts.
        counted = here.execute("SELECT product, sum(sold)::BIGINT FROM sales GROUP BY ALL ORDER BY ALL")
        events = here.execute(
            "SELECT after->>'product', sum((after->>'quantity')::INT)::BIGINT FROM STREAM shop "
            "WHERE table_name = 'public.lines' AND op IN ('snapshot', 'insert') GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        assert counted.fetchall() == events
        here.execute("DROP STREAM shop CASCADE")

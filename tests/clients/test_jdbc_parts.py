"""pgjdbc's setFetchSize: many rows in parts, with other statements between them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from amounts import amount
from java_programs import JAVA, JAVAC
from server_process import ServerProcess

pytestmark = [pytest.mark.jdbc, pytest.mark.slow]

DRIVER = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).with_name("java") / "Parts.java"

# Fetch size, rows, and rows between two other statements.
ROWS = amount("DUCKTAIL_JDBC_ROWS", 200_000, 1_000_000)
READS = ((1, 2_000, 10), (10, ROWS // 10, 10_000), (1000, ROWS, 1000))


def test_many_rows_in_parts(shop: ServerProcess, tmp_path: Path) -> None:
    subprocess.run([*JAVAC, "-cp", str(DRIVER), "-d", str(tmp_path), str(SOURCE)], check=True)
    url = f"jdbc:postgresql://{shop.host}:{shop.port}/shop?user=ducktail"
    done = subprocess.run(
        [*JAVA, "-cp", f"{DRIVER}:{tmp_path}", "Parts", url, *(str(at) for read in READS for at in read)],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        f"{size}\t{sum(range(rows))} {rows // between}" for size, rows, between in READS
    ]

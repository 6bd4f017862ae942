"""Answers whose rows are large: they are given in parts, and do not fail where Arrow could not hold them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from local_client import Client, state_of

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive
from ducktail.sql.results.batches import PART_BYTES_MAX, in_parts


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    database = Database.open(str(tmp_path / "large.duckdb"))
    found = Client(database)
    yield found
    found.close()
    database.close()


def sizes(client: Client, text: str) -> list[tuple[int, int]]:
    """Rows and bytes of each part of an answer."""
    result = drive(client.session.execute(drive(client.session.parse(text))))
    found = []
    while (batch := result.fetch(None)) is not None:
        found.append((batch.row_count, batch.size))
    return found


def test_the_parts_of_a_batch_are_its_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"i": list(range(7)), "t": ["x" * (PART_BYTES_MAX // 3)] * 7})
    parts = list(in_parts([batch, batch.slice(0, 1), batch.slice(0, 0)]))
    assert [row for part in parts for row in part["i"].to_pylist()] == [*range(7), 0]
    assert max(part.nbytes for part in parts) <= PART_BYTES_MAX


def test_what_is_given_at_once_is_bounded_by_bytes(client: Client) -> None:
    query = "SELECT t FROM (SELECT repeat('x', 50000) AS t), range(5000)"
    found = sizes(client, query)
    assert sum(rows for rows, _ in found) == 5000
    assert max(size for _, size in found) <= PART_BYTES_MAX
    # Ordinary rows come as many as ever.
    ordinary = sizes(client, "SELECT i, i::VARCHAR FROM range(40000) r(i)")
    assert [rows for rows, _ in ordinary] == [16384, 16384, 7232]


def test_more_text_than_a_batch_holds(client: Client) -> None:
    query = "SELECT t FROM (SELECT repeat('x', 1100000) AS t), range(2000)"
    found = sizes(client, query)
    assert sum(rows for rows, _ in found) == 2000
    assert max(size for _, size in found) <= PART_BYTES_MAX
    client("BEGIN")
    assert state_of(client, query) == "54000"
    client("ROLLBACK")

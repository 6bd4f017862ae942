"""Reports of pipelines: their bounds, and what is kept when the database is opened again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.system_views import pipelines


def report(client: Client, name: str, batch: int = 0) -> None:
    client(f"REPORT PIPELINE '{name}' AS '{{\"batch_id\": {batch}}}'")


def test_the_newest_are_kept_and_survive(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.duckdb")
    database = Database.open(path)
    client = Client(database)
    for batch in range(pipelines.HISTORY_MAX + 5):
        report(client, "p", batch)
    report(client, "q")
    client.close()
    database.close()
    database = Database.open(path)
    client = Client(database)
    kept = client("SELECT batch_id FROM ducktail.pipeline_history WHERE pipeline_name = 'p'")
    assert [batch for (batch,) in kept] == list(range(5, pipelines.HISTORY_MAX + 5))
    assert client("SELECT pipeline_name, batch_id FROM ducktail.pipelines") == [
        ("p", pipelines.HISTORY_MAX + 4),
        ("q", 0),
    ]
    client.close()
    database.close()


def test_two_that_report_at_once_do_not_meet(tmp_path: Path) -> None:
    database = Database.open(str(tmp_path / "shop.duckdb"))
    failed: list[Exception] = []

    def work(name: str) -> None:
        client = Client(database)
        try:
            for batch in range(30):
                report(client, name, batch)
        except Exception as error:
            failed.append(error)
        client.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "a")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    client = Client(database)
    query = "SELECT pipeline_name, count(*) FROM ducktail.pipeline_history GROUP BY 1 ORDER BY 1"
    assert client(query) == [("a", 60), ("b", 30)]
    client.close()
    database.close()


def test_there_are_not_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "PIPELINES_MAX", 2)
    database = Database.open(str(tmp_path / "shop.duckdb"))
    client = Client(database)
    report(client, "a")
    report(client, "b")
    with raises("54000"):
        report(client, "c")
    report(client, "a", 1)
    # Who is silent for long makes room.
    monkeypatch.setattr(pipelines, "KEPT_US", -1_000_000)
    report(client, "c")
    assert client("SELECT pipeline_name FROM ducktail.pipelines") == [("c",)]
    client.close()
    database.close()


@pytest.mark.parametrize(
    ("name", "text", "sqlstate"),
    [
        ("n" * 256, "{}", "54000"),
        ("p", '{"a": "' + "x" * pipelines.STATE_BYTES_MAX + '"}', "54000"),
        ("p", '{"a": ' + "[" * 40 + "]" * 40 + "}", "22P02"),
        ("p", "[" * 60_000, "22P02"),
        ("p\0", "{}", "22P02"),
        ("p", '{"watermark": "9999-12-31T23:59:59-12:00"}', "22023"),
    ],
)
def test_what_is_out_of_bounds_is_refused(name: str, text: str, sqlstate: str) -> None:
    with raises(sqlstate):
        pipelines.read_report(name, text)

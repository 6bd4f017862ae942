"""A round of inserts alone has a query of its own: its events are those of the general one, byte for byte."""

from __future__ import annotations

import json

import pytest

from ducktail.engine.database import Database
from ducktail.engine.log.log import Commit
from ducktail.engine.log.queries import EventQuery, event_query
from ducktail.engine.waiting import drive
from ducktail.sql.session import Session

TABLE = """
    CREATE TABLE t (
        id INTEGER PRIMARY KEY, v VARCHAR, d DOUBLE, p DECIMAL(9, 2), ts TIMESTAMP, on_ DATE, b BLOB, j JSON,
        l INTEGER[], z TIMESTAMPTZ
    )
"""
ROWS = """
    INSERT INTO t VALUES
        (1, 'tab' || chr(9) || '"é', 'nan', 0.5, '2024-01-01 12:00:00.5', '2024-01-01', 'x'::BLOB,
            '{"a": [1]}', [1, NULL], '2024-01-01 12:00:00+02'),
        (2, NULL, '-inf', NULL, 'infinity', NULL, NULL, NULL, NULL, NULL)
"""


@pytest.mark.parametrize(
    "options",
    [
        "ON t",
        "ON t WITH (partitions = 1, before = 'none')",
        "ON t (v, d)",
        "ON t WITH (partitions = 4, partition_by = (v), before = 'key')",
    ],
)
@pytest.mark.parametrize("annotation", [None, '{"who": "it is"}'])
def test_inserts_are_read_in_a_shorter_way(options: str, annotation: str | None) -> None:
    database = Database.open(":memory:")
    session = Session(database)
    for text in (TABLE, f"CREATE STREAM s {options}", ROWS):
        drive(session.execute(drive(session.parse(text))))
    (stream,) = database.catalog.streams.values()
    query = event_query(database.catalog, stream)
    assert isinstance(query, EventQuery)
    cursor = database.cursor(utc=True)
    commit = Commit(1, 1_700_000_000_000_000, annotation)
    short, general = (
        cursor.sql(f"{sql('lsn BETWEEN 1 AND 2', 'true', commit)} ORDER BY lsn")
        for sql in (query.inserts_sql, query.sql)
    )
    assert (short.columns, short.types) == (general.columns, general.types)
    rows = short.fetchall()
    assert rows == general.fetchall() and len(rows) == 2
    assert json.loads(rows[0][6]).keys() >= {"v", "d"}
    cursor.close()
    drive(session.close())
    database.close()


def test_only_what_inserts_alone_is_told_so() -> None:
    """An update, a delete or both beside an insert, and a table that had one in the same transaction."""
    database = Database.open(":memory:")
    session = Session(database)

    def do(text: str) -> None:
        drive(session.execute(drive(session.parse(text))))

    told: list[bool] = []
    put = database.publisher.put
    database.publisher.put = lambda note: (told.append(bool(note.inserts)), put(note))[1]  # type: ignore
    for text in ("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)", "CREATE STREAM s ON t"):
        do(text)
    for text in (
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "INSERT INTO t SELECT i, i FROM range(3, 6) r(i)",
        "INSERT INTO t VALUES (1, 5) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (6, 6) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (1, 7), (9, 9) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "UPDATE t SET id = id + 10 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
    ):
        do(text)
    for text in ("BEGIN", "INSERT INTO t VALUES (20, 1)", "DELETE FROM t WHERE id = 20", "COMMIT"):
        do(text)
    assert told == [True, True, True, False, False, False, False]
    drive(session.close())
    database.close()

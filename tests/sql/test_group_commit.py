"""One-row writes of several sessions in one transaction of DuckDB, against the same writes one by one.

A session holds the writer lock until all others wait, so that what they have sent is one batch.
"""

from __future__ import annotations

import datetime
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from amounts import amount, seed_of
from local_client import Client, Row, check_stream, raises
from write_batches import INSERT, WAIT_S, Scene, Sent

from ducktail.engine.database import Database
from ducktail.engine.quoting import literal
from ducktail.sql.dml import group_writes
from ducktail.sql.session import Session


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database file, open."""
    opened = Database.open(str(tmp_path / "together.duckdb"))
    yield opened
    opened.close()


@pytest.fixture
def scene(database: Database) -> Iterator[Scene]:
    """Such a database."""
    made = Scene(database)
    yield made
    assert made.owner("CHECK STREAM s") == []


def test_writes_that_wait_are_one_batch_and_a_transaction_each(scene: Scene) -> None:
    batches, txid, lsn = (
        scene.commit.batches,
        scene.database.commits.last_txid,
        scene.database.commits.last_lsn,
    )
    sent = [Sent(scene.client(), INSERT, (key, f"v{key}")) for key in range(16)]
    for one in sent[:4]:
        one.client(f"SET ducktail.annotation = '{{\"n\": {one.parameters[0]}}}'")
    assert scene.together(sent) == ["INSERT 0 1"] * 16
    assert scene.commit.batches == batches + 1
    found = scene.commits(txid)
    assert [row[:3] for row in found] == [(txid + n, lsn + n, lsn + n) for n in range(1, 17)]
    assert [row[3] for row in found] == [f'{{"n":{n}}}' for n in range(4)] + [None] * 12
    events = scene.owner(
        f"SELECT lsn, txid, tx_seq, tx_last, (after ->> 'id')::int, headers FROM STREAM s AFTER {lsn}"
    )
    assert [row[:5] for row in events] == [(lsn + n, txid + n, 0, True, n - 1) for n in range(1, 17)]


@pytest.mark.parametrize("text", ["INSERT INTO t (id, v) VALUES ($1, $2)", "PUBLISH TO p KEY $1 $2"])
def test_sessions_that_begin_at_once_share_a_plan(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Writes with a plan of each session would be a statement each in a batch."""
    kept, keep = [], scene.commit.keep
    monkeypatch.setattr(scene.commit, "keep", lambda *given: (kept.append(given), keep(*given)))
    number: Callable[[int], object] = str if text.startswith("PUBLISH") else int
    clients = [scene.client() for _ in range(4)]
    for key, client in enumerate(clients):
        client(text, number(key), "v")
    sent = [Sent(client, text, (number(key), "v")) for key, client in enumerate(clients, 10)]
    scene.together(sent, offered=False)
    assert len(kept) < len(clients)


def test_only_the_guilty_fails(scene: Scene) -> None:
    returned = scene.commit.returned
    writes = [(1, "a"), (2, "b"), (1, "c"), (3, "bad"), (4, None), (5, "e")]
    sent = [Sent(scene.client(), INSERT, values) for values in writes]
    outcomes = scene.together(sent)
    assert scene.commit.returned == returned + 6
    assert sorted(outcomes) == ["23505", "23514", *["INSERT 0 1"] * 4]
    assert outcomes[3] == "23514" and {outcomes[0], outcomes[2]} == {"INSERT 0 1", "23505"}
    assert scene.owner("SELECT id FROM t WHERE id < 10 ORDER BY id") == [(1,), (2,), (4,), (5,)]


def test_a_waiting_write_can_be_cancelled_or_times_out(scene: Scene) -> None:
    clients = [scene.client(), scene.client(statement_timeout="50ms"), scene.client(lock_timeout="50ms")]
    sent = [Sent(client, INSERT, (key, "v")) for key, client in enumerate([*clients, scene.client()])]

    def meanwhile() -> None:
        clients[0].session.cancel()
        until = time.monotonic() + WAIT_S
        while len(scene.commit.waiting()) > 1:
            assert time.monotonic() < until
            time.sleep(0.001)

    written = scene.commit.writes
    assert scene.together(sent, meanwhile) == ["57014", "57014", "55P03", "INSERT 0 1"]
    assert scene.commit.writes == written + 1
    assert scene.owner("SELECT id FROM t WHERE id < 10") == [(3,)]


def test_a_write_that_a_batch_has_taken_is_answered_with_its_outcome(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a cancel nor a time-out ends it; one whose batch failed does not run again after a cancel."""
    begun, go_on, run = threading.Event(), threading.Event(), group_writes.GroupWrite.run

    def slow(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(WAIT_S)
        return run(*given)

    monkeypatch.setattr(group_writes.GroupWrite, "run", slow)
    for keys, outcomes in (((1, 2), ["INSERT 0 1"] * 2), ((3, 1), ["57014", "57014"])):
        begun.clear()
        go_on.clear()
        sent = [Sent(scene.client(), INSERT, (keys[0], "v"))]
        sent.append(Sent(scene.client(statement_timeout="50ms"), INSERT, (keys[1], "v")))
        threads = [threading.Thread(target=one.run) for one in sent]
        holder = Client(scene.database)
        holder("BEGIN")
        holder("INSERT INTO other VALUES (1)")
        for thread in threads:
            thread.start()
        while len(scene.commit.waiting()) < 2:
            assert all(thread.is_alive() for thread in threads)
        holder("ROLLBACK")
        holder.close()
        assert begun.wait(WAIT_S)
        sent[0].client.session.cancel()
        threads[1].join(0.1)
        assert all(thread.is_alive() for thread in threads)
        go_on.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert [one.outcome for one in sent] == outcomes
    assert scene.owner("SELECT id FROM t WHERE id < 10 ORDER BY id") == [(1,), (2,)]


def test_each_session_gets_its_own_row_of_returning(scene: Scene) -> None:
    scene.owner("CREATE SEQUENCE q START 100")
    scene.owner("CREATE TABLE r (id BIGINT DEFAULT nextval('q') PRIMARY KEY, v VARCHAR, n INT DEFAULT 7)")
    scene.owner("CREATE STREAM rs ON r")
    text = "INSERT INTO r (v) VALUES ($1) RETURNING v, id, n"
    scene.learn(text, lambda: ("warm",))
    sent = [Sent(scene.client(), text, (f"v{n}",)) for n in range(8)]
    batches = scene.commit.batches
    assert scene.together(sent) == ["INSERT 0 1"] * 8
    assert scene.commit.batches == batches + 1
    assert [one.rows[0][0] for one in sent] == [f"v{n}" for n in range(8)]
    assert len({one.rows[0][1] for one in sent}) == 8 and {one.rows[0][2] for one in sent} == {7}
    stored = dict(scene.owner("SELECT v, id FROM r WHERE v <> 'warm'"))
    assert stored == {one.rows[0][0]: one.rows[0][1] for one in sent}
    check_stream(scene.owner, "rs", "r")


UPDATE, DELETE = "UPDATE t SET v = $1 WHERE id = $2", "DELETE FROM t WHERE t.id = $1"


def test_updates_and_deletes_by_key_are_one_batch_and_a_transaction_each(scene: Scene) -> None:
    scene.owner("INSERT INTO t SELECT i, 'old' FROM range(40) r(i)")
    keys = iter(range(39, 0, -1))
    scene.learn(UPDATE, lambda: ("warm", next(keys)))
    scene.learn(DELETE, lambda: (next(keys),))
    batches, lsn = scene.commit.batches, scene.database.commits.last_lsn
    sent = [Sent(scene.client(), UPDATE, (f"v{key}", key)) for key in range(8)]
    for one in sent:
        one.client(f"SET ducktail.annotation = '{{\"n\": {one.parameters[1]}}}'")
    sent += [Sent(scene.client(), DELETE, (key,)) for key in range(8, 12)]
    sent += [Sent(scene.client(), INSERT, (100, "new")), Sent(scene.client(), INSERT, (101, None))]
    assert scene.together(sent) == [*["UPDATE 1"] * 8, *["DELETE 1"] * 4, *["INSERT 0 1"] * 2]
    assert scene.commit.batches == batches + 1
    events = scene.owner(
        "SELECT lsn, op, (key ->> 'id')::int, before ->> 'v', after ->> 'v', tx_seq, tx_last, txid "
        f"FROM STREAM s AFTER {lsn} ORDER BY lsn"
    )
    assert [row[0] for row in events] == list(range(lsn + 1, lsn + 15))
    assert [row[1:5] for row in events[:8]] == [("update", n, "old", f"v{n}") for n in range(8)]
    annotations = [row[3] for row in scene.commits(events[0][7] - 1)]
    assert annotations == [*(f'{{"n":{n}}}' for n in range(8)), *[None] * 6]
    assert sorted(row[1:5] for row in events[8:12]) == [("delete", n, "old", None) for n in range(8, 12)]
    assert {row[5:7] for row in events} == {(0, True)}


def test_updates_of_one_key_are_in_batches_of_their_own(scene: Scene) -> None:
    scene.owner("INSERT INTO t SELECT i, 'old' FROM range(40) r(i)")
    scene.learn(UPDATE, lambda: ("warm", 1))
    batches = scene.commit.batches
    sent = [Sent(scene.client(), UPDATE, (f"v{n}", 2)) for n in range(3)]
    sent.append(Sent(scene.client(), UPDATE, ("v", 3)))
    assert scene.together(sent) == ["UPDATE 1"] * 4
    assert scene.commit.batches == batches + 3
    assert scene.owner("SELECT v FROM t WHERE id IN (2, 3) ORDER BY id") == [("v2",), ("v",)]


UPSERT = "INSERT INTO t (id, v) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
NOTHING = "INSERT INTO t VALUES ($1, $2) ON CONFLICT DO NOTHING"


def test_upserts_are_one_batch_and_a_transaction_each(scene: Scene) -> None:
    scene.owner("INSERT INTO t SELECT i, 'old' FROM range(8) r(i)")
    keys = iter(range(2_000_000, 2_000_100))
    scene.learn(UPSERT, lambda: (next(keys), "warm"))
    scene.learn(NOTHING, lambda: (next(keys), "warm"))
    batches, lsn = scene.commit.batches, scene.database.commits.last_lsn
    sent = [Sent(scene.client(), UPSERT, (key, f"v{key}")) for key in range(4, 12)]
    sent += [Sent(scene.client(), NOTHING, (key, None)) for key in (20, 21)]
    # One key twice is two batches, in their order.
    sent.append(Sent(scene.client(), UPSERT, (4, "again")))
    assert scene.together(sent) == ["INSERT 0 1"] * 11
    assert scene.commit.batches == batches + 2
    events = scene.owner(
        "SELECT lsn, txid, op, (key ->> 'id')::int, before ->> 'v', after ->> 'v', tx_seq, tx_last "
        f"FROM STREAM s AFTER {lsn} ORDER BY lsn"
    )
    assert [row[0] for row in events] == list(range(lsn + 1, lsn + 12))
    assert [row[1] for row in events] == list(range(events[0][1], events[0][1] + 11))
    assert {row[6:] for row in events} == {(0, True)}
    assert events[-1][2:6] == ("update", 4, "v4", "again")
    assert sorted(row[2:6] for row in events[:8]) == sorted(
        [("update", key, "old", f"v{key}") for key in range(4, 8)]
        + [("insert", key, None, f"v{key}") for key in range(8, 12)]
    )
    assert sorted(row[2:4] for row in events[8:10]) == [("insert", 20), ("insert", 21)]


def test_upserts_with_literals_share_a_plan(scene: Scene) -> None:
    client = scene.client()
    text = "INSERT INTO t VALUES ({}, '{}') ON CONFLICT (id) DO UPDATE SET v = excluded.v"
    for key in range(3):
        client(text.format(key, "first"))
    writes = scene.commit.writes
    for key in range(2, 6):
        client(text.format(key, "it''s second"))
    assert scene.commit.writes == writes + 4
    assert scene.owner("SELECT v FROM t WHERE id IN (1, 2, 5) ORDER BY id") == [
        ("first",), ("it's second",), ("it's second",)
    ]  # fmt: skip
    alone = "INSERT INTO t VALUES ({}, 'v') ON CONFLICT (id) DO UPDATE SET v = 'x{}'"
    for key in range(5):
        client(alone.format(2, key))
    assert scene.commit.writes == writes + 4
    assert scene.owner("SELECT v FROM t WHERE id = 2") == [("x4",)]


def test_an_upsert_that_fails_or_does_nothing_is_answered_alone(scene: Scene) -> None:
    scene.owner("INSERT INTO t SELECT i, 'old' FROM range(8) r(i)")
    keys = iter(range(2_000_000, 2_000_100))
    scene.learn(UPSERT, lambda: (next(keys), "warm"))
    scene.learn(NOTHING, lambda: (next(keys), "warm"))
    returned, lsn = scene.commit.returned, scene.database.commits.last_lsn
    sent = [Sent(scene.client(), UPSERT, (1, "bad")), Sent(scene.client(), UPSERT, (2, "new"))]
    sent += [Sent(scene.client(), NOTHING, (3, "new")), Sent(scene.client(), NOTHING, (30, "new"))]
    assert scene.together(sent) == ["23514", "INSERT 0 1", "INSERT 0 0", "INSERT 0 1"]
    assert scene.commit.returned == returned + 4
    assert scene.database.commits.last_lsn == lsn + 2
    none = scene.client()
    with raises("23502"):
        none(UPSERT, None, "v")
    found = scene.owner("SELECT id, v FROM t WHERE id IN (1, 2, 3, 30) ORDER BY id")
    assert found == [(1, "old"), (2, "new"), (3, "old"), (30, "new")]


def test_a_text_that_finds_rows_does_not_fail_the_batches_of_others(scene: Scene) -> None:
    keys = iter(range(2_000_000, 2_000_100))
    scene.learn(NOTHING, lambda: (next(keys), "warm"))
    scene.owner("INSERT INTO t VALUES (1, 'old')")
    client, returned = scene.client(), scene.commit.returned
    for _ in range(5):
        client(NOTHING, 1, "new")
        assert client.tag == "INSERT 0 0"
    assert scene.commit.returned == returned + 1
    writes = scene.commit.writes
    sent = [Sent(scene.client(), INSERT, (key, "v")) for key in range(10, 14)]
    assert scene.together(sent) == ["INSERT 0 1"] * 4
    assert scene.commit.writes == writes + 4 and scene.commit.returned == returned + 1


def test_an_upsert_keeps_what_it_does_not_set(scene: Scene) -> None:
    """Columns of all places: not given, given and not set, set from another one, equal but not the same."""
    scene.owner(
        "CREATE TABLE w (a VARCHAR DEFAULT 'new', id BIGINT, part UUID, x DOUBLE, y DOUBLE, n INT DEFAULT 7, "
        "PRIMARY KEY (part, id))"
    )
    scene.owner("CREATE STREAM on_w ON w WITH (partitions = 3)")
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)
    scene.owner(
        f"INSERT INTO w VALUES ('old', 1, '{one}', '-0.0'::DOUBLE, 1.5, 1), ('old', 2, '{one}', 2.5, 3.5, 2)"
    )
    text = (
        'INSERT INTO w (x, id, part, y) VALUES ($1, $2, $3, $4) ON CONFLICT ("ID", part) '
        "DO UPDATE SET x = EXCLUDED.x, y = excluded.x"
    )
    scene.learn(text, lambda: (1.0, 9, other, 2.0))
    batches, lsn = scene.commit.batches, scene.database.commits.last_lsn
    rows = [(0.0, 1, one, 9.0), (7.5, 2, one, None), (8.5, 1, other, 9.5), (None, 2, other, 0.0)]
    sent = [Sent(scene.client(), text, row) for row in rows]
    assert scene.together(sent) == ["INSERT 0 1"] * 4
    assert scene.commit.batches == batches + 1
    found = scene.owner(
        "SELECT a, id, part::VARCHAR, x::VARCHAR, y::VARCHAR, n FROM w WHERE id < 9 ORDER BY part, id"
    )
    assert found == [
        ("old", 1, str(one), "-0.0", "0.0", 1),
        ("old", 2, str(one), "7.5", "7.5", 2),
        ("new", 1, str(other), "8.5", "9.5", 7),
        ("new", 2, str(other), None, "0.0", 7),
    ]
    ops = scene.owner(f"SELECT op, count(*) FROM STREAM on_w AFTER {lsn} GROUP BY op ORDER BY op")
    assert ops == [("insert", 2), ("update", 2)]
    assert scene.owner("CHECK STREAM on_w") == []


def test_an_update_of_a_missing_row_and_a_table_that_is_too_large(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.owner("INSERT INTO t SELECT i, 'old' FROM range(40) r(i)")
    scene.learn(UPDATE, lambda: ("warm", 1))
    values = (("a", 1), ("b", 999), (None, 2), ("bad", 3))
    sent = [Sent(scene.client(), UPDATE, each) for each in values]
    returned, lsn = scene.commit.returned, scene.database.commits.last_lsn
    assert scene.together(sent) == ["UPDATE 1", "UPDATE 0", "UPDATE 1", "23514"]
    assert scene.commit.returned == returned + 4
    assert scene.database.commits.last_lsn == lsn + 2
    none = scene.client()
    none(UPDATE, "c", None)
    assert none.tag == "UPDATE 0"
    monkeypatch.setattr(group_writes, "JOINED_ROWS_MAX", 10)
    monkeypatch.setattr(group_writes, "BATCHES_UNMEASURED", 0)
    sent = [Sent(scene.client(), UPDATE, ("d", key)) for key in range(4)]
    assert scene.together(sent) == ["UPDATE 1"] * 4
    writes = scene.commit.writes
    scene.client()(UPDATE, "e", 5)
    assert scene.commit.writes == writes


@pytest.mark.parametrize(
    "text",
    ["PUBLISH TO p KEY $1 $2", "INSERT INTO p (key, payload) VALUES ($1, $2)", "PUBLISH TO p $2 KEY $1"],
)
def test_published_events_that_wait_are_one_batch(scene: Scene, text: str) -> None:
    if text.endswith("KEY $1"):
        text = "INSERT INTO p (payload, key) VALUES ($2, $1)"
    scene.learn(text, lambda: ("warm", "1"))
    batches, lsn = scene.commit.batches, scene.database.commits.last_lsn
    payloads = ['{"a": 1}', "text", '"word"', None, "3"]
    sent = [Sent(scene.client(), text, (f"k{n}", payload)) for n, payload in enumerate(payloads)]
    sent.append(Sent(scene.client(), INSERT, (1, "v")))
    tag = "PUBLISH 1" if text.startswith("PUBLISH") else "INSERT 0 1"
    assert scene.together(sent) == [*[tag] * 5, "INSERT 0 1"]
    assert scene.commit.batches == batches + 1
    events = scene.owner(
        "SELECT lsn, partition, txid, key ->> '$', after::varchar, headers::varchar "
        f"FROM TOPIC p AFTER {lsn} ORDER BY lsn"
    )
    assert [row[0] for row in events] == list(range(lsn + 1, lsn + 6))
    assert len({row[2] for row in events}) == 5
    if tag == "PUBLISH 1":
        assert [one.rows[0][:2] for one in sent[:5]] == [(row[1], row[0]) for row in events]
    # The same as one by one.
    for n, payload in enumerate(payloads):
        scene.owner(text, f"k{n}", payload)
    again = scene.owner(
        "SELECT partition, key ->> '$', after::varchar, headers::varchar "
        f"FROM TOPIC p AFTER {lsn + 6} ORDER BY lsn"
    )
    assert [(row[1], *row[3:]) for row in events] == again


def test_events_without_a_key_are_distributed_in_turn(scene: Scene) -> None:
    text = "INSERT INTO p (payload) VALUES ($1)"
    scene.learn(text, lambda: ("1",))
    lsn = scene.database.commits.last_lsn
    scene.together([Sent(scene.client(), text, (str(n),)) for n in range(6)])
    assert Counter(scene.owner(f"SELECT partition FROM TOPIC p AFTER {lsn}")) == {(n,): 2 for n in range(3)}


def test_a_change_of_the_table_meanwhile(scene: Scene) -> None:
    """The writes run alone, as their plan does not apply any more."""

    def meanwhile() -> None:
        Client(scene.database)("CREATE TYPE mood AS ENUM ('ok')")

    sent = [Sent(scene.client(), INSERT, (key, "v")) for key in range(4)]
    returned = scene.commit.returned
    assert scene.together(sent, meanwhile) == ["INSERT 0 1"] * 4
    assert scene.commit.returned == returned + 4
    scene.owner("ALTER TABLE t ADD COLUMN w INT DEFAULT 5")
    client = scene.client()
    with raises("42601"):
        client("INSERT INTO t VALUES (9, 'v', 1, 2)")
    client("INSERT INTO t (id, v) VALUES (9, 'v')")
    assert scene.owner("SELECT w FROM t WHERE id = 9") == [(5,)]


CONFLICT = "INSERT INTO t VALUES ($1, $2) ON CONFLICT"
ALONE = {
    "an expression": ("t", "INSERT INTO t VALUES ($1, upper($2))", "v"),
    "a subquery": ("t", "INSERT INTO t VALUES ($1, (SELECT $2))", "v"),
    "two rows": ("t", "INSERT INTO t VALUES ($1, $2), ($1 + 1000, $2)", "v"),
    "an expression in DO UPDATE": ("t", f"{CONFLICT} (id) DO UPDATE SET v = excluded.v || 'x'", "v"),
    "a value in DO UPDATE": ("t", f"{CONFLICT} (id) DO UPDATE SET v = $2", "v"),
    "a value of the row in DO UPDATE": ("t", f"{CONFLICT} (id) DO UPDATE SET v = t.v", "v"),
    "DO UPDATE of the key": ("t", f"{CONFLICT} (id) DO UPDATE SET id = excluded.id", "v"),
    "DO UPDATE with WHERE": ("t", f"{CONFLICT} (id) DO UPDATE SET v = excluded.v WHERE t.v <> 'v'", "v"),
    "ON CONFLICT with RETURNING": ("t", f"{CONFLICT} (id) DO UPDATE SET v = excluded.v RETURNING id", "v"),
    "OR REPLACE": ("t", "INSERT OR REPLACE INTO t VALUES ($1, $2)", "v"),
    "ON CONFLICT of another key": (
        "q",
        "INSERT INTO q VALUES ($1, $2) ON CONFLICT (v) DO UPDATE SET id = excluded.id",
        "v",
    ),
    "DEFAULT": ("t", "INSERT INTO t VALUES ($1, DEFAULT)", None),
    "a default of the moment": ("u", "INSERT INTO u (id, v) VALUES ($1, $2)", "v"),
    "a check of the moment": ("c", "INSERT INTO c VALUES ($1, $2)", "v"),
    "a list": ("l", "INSERT INTO l VALUES ($1, $2)", ["v"]),
    "an expression in RETURNING": ("t", "INSERT INTO t VALUES ($1, $2) RETURNING id + 1", "v"),
    "an UPDATE of the key": ("t", "UPDATE t SET id = $1 + 0 WHERE id = $1", None),
    "an UPDATE with an expression": ("t", "UPDATE t SET v = v || $2 WHERE id = $1", "v"),
    "an UPDATE by another column": ("t", "UPDATE t SET v = $2 WHERE v = $1::varchar", "v"),
    "a DELETE of a range": ("t", "DELETE FROM t WHERE id < $1 - 5", None),
    "a key of its own table": ("f", "INSERT INTO f VALUES ($1, $2)", None),
    "a moment from a text": ("m", "INSERT INTO m VALUES ($1, $2::TEXT)", "2026-01-02 03:04:05"),
    "a moment from a day": ("m", "INSERT INTO m VALUES ($1, $2::DATE)", datetime.date(2026, 1, 2)),
    "an UPDATE to such a moment": ("m", "UPDATE m SET v = $2::TEXT WHERE id = $1", "2026-01-02 03:04:05"),
    "one key compared twice": ("t", 'UPDATE t SET v = $2 WHERE id = $1 AND "ID" = $1', "v"),
}


@pytest.mark.parametrize("what", ALONE)
def test_what_runs_alone(scene: Scene, what: str) -> None:
    scene.owner("CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR, since TIMESTAMP DEFAULT current_timestamp)")
    check = "CHECK (now() > TIMESTAMPTZ '2020-01-01 00:00:00+00')"
    scene.owner(f"CREATE TABLE c (id INT PRIMARY KEY, v VARCHAR, {check})")
    scene.owner("CREATE TABLE l (id INT PRIMARY KEY, v VARCHAR[])")
    scene.owner("CREATE TABLE f (id INT PRIMARY KEY, v INT REFERENCES f (id))")
    scene.owner("CREATE TABLE m (id INT PRIMARY KEY, v TIMESTAMPTZ)")
    scene.owner("CREATE TABLE q (id INT PRIMARY KEY, v VARCHAR UNIQUE)")
    table, text, value = ALONE[what]
    if table != "t":
        scene.owner(f"CREATE STREAM on_{table} ON {table}")
    plans, client = dict(scene.commit.plans), scene.client()
    for key in range(3):
        client(text, *((key,) if "$2" not in text else (key, value)))
    assert scene.commit.plans == plans


def test_values_that_a_list_would_change_run_alone(scene: Scene) -> None:
    values = ((1.6, "a"), ("3", "b"), (True, "c"), (4, 5))
    sent = [Sent(scene.client(), INSERT, pair) for pair in values]
    writes = scene.commit.writes
    assert scene.together(sent, offered=False) == ["INSERT 0 1"] * 4
    assert scene.commit.writes == writes
    found = scene.owner("SELECT id, v FROM t WHERE id < 10 ORDER BY id")
    assert found == [(1, "c"), (2, "a"), (3, "b"), (4, "5")]


def test_a_block_runs_alone(scene: Scene) -> None:
    writes = scene.commit.writes
    client = scene.client()
    client("BEGIN")
    client(INSERT, 1, "v")
    client(INSERT, 2, "v")
    client("COMMIT")
    assert scene.commit.writes == writes


@pytest.fixture
def ada(scene: Scene) -> Callable[[], Client]:
    """Makes sessions of a user who may insert into the table and the topic."""
    scene.owner("CREATE USER root PASSWORD 'secret-of-root-1' SUPERUSER")
    scene.owner("CREATE USER ada PASSWORD 'secret-of-ada-1'")
    scene.owner("GRANT INSERT ON t TO ada")
    scene.owner("GRANT PUBLISH ON p TO ada")

    def made() -> Client:
        client = scene.client()
        client.session = Session(scene.database, user="ada", account="ada", wire=True)
        return client

    return made


@pytest.mark.parametrize("literal", [False, True])
def test_rights_are_checked_for_each_write(scene: Scene, ada: Callable[[], Client], literal: bool) -> None:
    def sent(client: Client, key: int) -> Sent:
        return (
            Sent(client, f"INSERT INTO t VALUES ({key}, 'v')")
            if literal
            else Sent(client, INSERT, (key, "v"))
        )

    clients = [ada() for _ in range(4)]
    for key in range(10, 14):
        sent(clients[0], key).run()
    writes, batches = scene.commit.writes, scene.commit.batches
    both = [sent(client, key) for key, client in enumerate([*clients, scene.client()])]
    assert scene.together(both, offered=None) == ["INSERT 0 1"] * 5
    assert scene.commit.writes >= writes + 4 and scene.commit.batches == batches + 1
    writes = scene.commit.writes
    scene.owner("REVOKE INSERT ON t FROM ada")
    last = sent(clients[0], 20)
    last.run()
    assert last.outcome == "42P01" and scene.commit.writes == writes
    scene.owner("GRANT INSERT ON t TO ada")
    for key in range(30, 34):
        sent(clients[0], key).run()
    assert scene.commit.writes > writes
    # A right that is lost while the write waits for its batch.
    waiting = [sent(client, 40 + n) for n, client in enumerate(clients)]
    revoked = Sent(scene.client(), "REVOKE INSERT ON t FROM ada")
    assert scene.together([revoked, *waiting], offered=None) == ["REVOKE", *["42P01"] * 4]
    assert scene.commit.returned >= 4
    keys = [key for (key,) in scene.owner("SELECT id FROM t WHERE id < 100 ORDER BY id")]
    assert keys == [*range(5), *range(10, 14), *range(30, 34)]


def test_a_limited_user_publishes_in_a_batch(scene: Scene, ada: Callable[[], Client]) -> None:
    clients = [ada() for _ in range(3)]
    for _ in range(4):
        clients[0]("PUBLISH TO p KEY $1 $2", "k", "1")
    writes = scene.commit.writes
    sent = [Sent(client, "PUBLISH TO p KEY $1 $2", ("k", str(n))) for n, client in enumerate(clients)]
    assert scene.together(sent) == ["PUBLISH 1"] * 3
    assert scene.commit.writes == writes + 3
    scene.owner("REVOKE PUBLISH ON p FROM ada")
    with raises("42704"):
        clients[0]("PUBLISH TO p KEY $1 $2", "k", "1")


# The same load with batches and without.

LOADS = {
    "INSERT": (INSERT, lambda rng, n: (rng.randrange(40), rng.choice(["v", "v", "bad", None]))),
    "OTHER": ("INSERT INTO other VALUES ($1)", lambda rng, n: (n,)),
    "RETURNING": (
        "INSERT INTO t (v, id) VALUES ($1, $2) RETURNING id, v",
        lambda rng, n: ("r", rng.randrange(40)),
    ),
    "DELETE": ("DELETE FROM t WHERE id = $1", lambda rng, n: (rng.randrange(40),)),
    "UPDATE": (
        "UPDATE t SET v = $1 WHERE id = $2",
        lambda rng, n: (rng.choice([f"u{n}", "bad", None]), rng.randrange(40)),
    ),
    "UPSERT": (UPSERT, lambda rng, n: (rng.randrange(40), rng.choice([f"c{n}", "bad", None]))),
    "NOTHING": (NOTHING, lambda rng, n: (rng.randrange(40), rng.choice([f"c{n}", "bad", None]))),
    "PUBLISH": ("PUBLISH TO p KEY $1 $2", lambda rng, n: (f"k{rng.randrange(5)}", str(n))),
    "LITERAL": (
        "INSERT INTO t VALUES ({}, {})",
        lambda rng, n: (rng.randrange(40), rng.choice(["it's", "bad", None])),
    ),
    "LITERAL UPSERT": (
        "INSERT INTO t VALUES ({}, {}) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        lambda rng, n: (rng.randrange(40), rng.choice([f"it's {n}", "bad", None])),
    ),
    "LITERAL UPDATE": (
        "UPDATE t SET v = {} WHERE id = {}",
        lambda rng, n: (rng.choice([f"l{n}", "bad", None]), rng.randrange(40)),
    ),
    "LITERAL DELETE": ("DELETE FROM t WHERE id = {}", lambda rng, n: (rng.randrange(40),)),
}
CLIENTS = 6
STEPS = amount("DUCKTAIL_GROUP_STEPS", 16, 2000)


def test_random_loads_agree_with_their_events(database: Database) -> None:
    """Sessions at random: what is acknowledged is there, once; nothing else is."""
    for enabled in (True, False):
        _run_load(database, enabled=enabled)
    assert database.group_commit.writes > database.group_commit.batches > 0


def _literal(value: object) -> str:
    return "NULL" if value is None else literal(value) if isinstance(value, str) else str(value)


def _run_load(database: Database, *, enabled: bool) -> None:
    owner = Client(database)
    for name in ("s", "o"):
        owner(f"DROP STREAM IF EXISTS {name}")
    owner("DROP TOPIC IF EXISTS p")
    for name in ("t", "other"):
        owner(f"DROP TABLE IF EXISTS {name}")
    owner.close()
    scene = Scene(database)
    scene.commit.enabled = enabled
    for text, values in LOADS.values():
        rng = random.Random(1)
        if not text.startswith("INSERT INTO t") and "{}" not in text:
            scene.learn(text, lambda values=values, rng=rng: values(rng, 0))
    scene.learn(LOADS["RETURNING"][0], lambda: ("warm", next(scene._keys)))
    scene.owner("DELETE FROM t")
    done: list[tuple[str, tuple[object, ...], str, list[Row]]] = []
    barrier = threading.Barrier(CLIENTS)

    def work(number: int) -> None:
        rng, client = random.Random(seed_of("DUCKTAIL_GROUP_SEED", number)), scene.client()
        barrier.wait()
        for step in range(STEPS):
            kind = rng.choice(list(LOADS))
            text, values = LOADS[kind]
            given = values(rng, 1000 * number + step + 1)
            written = text.format(*map(_literal, given))
            sent = Sent(client, written, given if written == text else ())
            in_block = rng.random() < 0.1
            if in_block:
                client("BEGIN")
            sent.run()
            if in_block:
                client(rng.choice(["COMMIT", "ROLLBACK"]))
                sent.outcome = client.tag if sent.outcome[:1].isalpha() else sent.outcome
                if sent.outcome == "ROLLBACK":
                    continue
            done.append((kind, given, sent.outcome, sent.rows))
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    good = [one for one in done if one[2][:1].isalpha()]
    assert {one[2] for one in done if one not in good} <= {"23505", "23514"}
    assert all(
        (one[2] == "23514") is (one[1][1] == "bad") or one[2] == "23505"
        for one in done
        if one[0] in ("INSERT", "LITERAL")
    )
    others = sorted(row[0] for row in scene.owner("SELECT x FROM other WHERE x > 0"))
    assert others == sorted(one[1][0] for one in good if one[0] == "OTHER")
    for kind, parameters, _, rows in good:
        if kind == "RETURNING" and rows:
            assert rows == [(parameters[1], parameters[0])]
    stored = sorted(int(row[0]) for row in scene.owner("SELECT after FROM TOPIC p AFTER 0") if row[0] != "0")
    assert stored == sorted(int(str(one[1][1])) for one in good if one[0] == "PUBLISH")
    check_stream(scene.owner, "s", "t")
    commits = scene.owner("SELECT txid, first_lsn, last_lsn FROM ducktail.commits ORDER BY txid")
    assert [row[0] for row in commits] == list(range(commits[0][0], commits[0][0] + len(commits)))
    lsns = [row for row in commits if row[2] >= row[1]]
    assert all(later[1] == row[2] + 1 for row, later in pairwise(lsns))


class Raising:
    """A cursor whose next COMMIT raises, after DuckDB has committed or rolled back."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, end: str) -> None:
        self._cursor, self._end = cursor, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: Any, *values: Any) -> Any:
        """Run a statement, unless it is that COMMIT."""
        if sql != "COMMIT" or not self._end:
            return self._cursor.execute(sql, *values)
        self._cursor.execute(self._end)
        self._end = ""
        raise duckdb.IOException("IO Error: raised by a test")


def _no_cursor() -> duckdb.DuckDBPyConnection:
    raise duckdb.IOException("IO Error: raised by a test")


@pytest.mark.parametrize("can_be_told", [True, False])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_commit_that_raises(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, end: str, can_be_told: bool
) -> None:
    """Its outcome is found out, or each session is told that it is unknown; no number is given twice."""
    scene.commit._cursor = Raising(scene.commit._cursor, end)  # type: ignore[assignment]
    sent = [Sent(scene.client(), INSERT, (key, "v")) for key in range(4)]
    with monkeypatch.context() as patched:
        if not can_be_told:
            patched.setattr(scene.database.commits, "cursor", _no_cursor)
        outcomes = scene.together(sent)
    assert outcomes == (["INSERT 0 1"] if can_be_told else ["58030"]) * 4
    assert scene.client()(INSERT, 9, "v") == []
    stands = can_be_told or end == "COMMIT"
    found = [key for (key,) in scene.owner("SELECT id FROM t WHERE id < 10 ORDER BY id")]
    assert found == [*(range(4) if stands else ()), 9]
    lsns = [row[1] for row in scene.commits(0) if row[2] >= row[1]]
    assert lsns == list(range(1, scene.database.commits.last_lsn + 1))


TYPES = {
    "TINYINT": [0, -128, 127],
    "SMALLINT": [5, -32768],
    "INTEGER": [7, 2**31 - 1],
    "BIGINT": [1, -(2**63), 2**63 - 1],
    "FLOAT": [0.1, -0.0, float("inf"), float("nan"), 1e-45],
    "DOUBLE": [0.1, -0.0, float("nan"), 5e-324, 3],
    "BOOLEAN": [True, False],
    "VARCHAR": ["", "é\\'\"{}", "x" * 500],
    "JSON": ['{"a": [1, null]}', '"text"', " 1.50 "],
    "UUID": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)],
    "DATE": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)],
    "TIMESTAMP": [datetime.datetime(2026, 1, 2, 3, 4, 5, 678901), datetime.datetime(1, 1, 1)],
    "TIMESTAMPTZ": [
        datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=5.5))),
        datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    ],
    "BLOB": [b"", b"\x00\xff"],
    "DECIMAL(12, 3)": [Decimal("0.125"), Decimal("-123456789"), Decimal("1E+2"), Decimal("-0.0"), 7],
    "DECIMAL(38, 20)": [Decimal("123456789012345678.00000000000000000001"), Decimal("0.5")],
}


def test_values_are_the_same_in_a_batch_and_alone(scene: Scene) -> None:
    columns = [f"c{n}" for n in range(len(TYPES))]
    typed = ", ".join(f"{name} {type_}" for name, type_ in zip(columns, TYPES, strict=True))
    for table in ("together", "apart"):
        scene.owner(f"CREATE TABLE {table} (id INT PRIMARY KEY, {typed})")
        scene.owner(f"CREATE STREAM s_{table} ON {table}")
    places = ", ".join(f"${n}" for n in range(1, len(TYPES) + 2))
    insert = f"INSERT INTO {{}} VALUES ({places})"
    sets = ", ".join(f"{name} = ${n}" for n, name in enumerate(columns, 2))
    update = f"UPDATE {{}} SET {sets} WHERE id = $1"
    nothing = (None,) * len(TYPES)
    keys = iter(range(-9, 0))
    scene.learn(insert.format("together"), lambda: (next(keys), *nothing))
    scene.learn(update.format("together"), lambda: (-9, *nothing))
    rng = random.Random(seed_of("DUCKTAIL_GROUP_SEED"))
    rows = [(key, *(rng.choice([None, *values]) for values in TYPES.values())) for key in range(8)]
    for text, tag in ((insert, "INSERT 0 1"), (update, "UPDATE 1")):
        batches, writes = scene.commit.batches, scene.commit.writes
        sent = [Sent(scene.client(TimeZone="Asia/Tokyo"), text.format("together"), row) for row in rows]
        assert scene.together(sent) == [tag] * len(rows)
        assert (scene.commit.batches, scene.commit.writes) == (batches + 1, writes + len(rows))
        for row in rows:
            scene.owner(text.format("apart"), *row)
        given = ", ".join(f"encode({name}::VARCHAR)" for name in columns)
        found = [
            scene.owner(f"SELECT id, {given} FROM {table} WHERE id >= 0 ORDER BY id")
            for table in ("together", "apart")
        ]
        assert found[0] == found[1]
        events = [
            scene.owner(
                f"SELECT op, partition, key, before, after FROM STREAM s_{table} "
                "WHERE (key ->> 'id')::INT >= 0 ORDER BY lsn"
            )
            for table in ("together", "apart")
        ]
        assert events[0] == events[1]
        rows = [(key, *(rng.choice([None, *values]) for values in TYPES.values())) for key, *_ in rows]
    assert scene.owner("CHECK STREAM s_together") == []

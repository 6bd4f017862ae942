"""Reads and commits of a topic whose partitions are spread: any node gives what the owners have."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from nodes_in_process import NODES, Client, Cluster, RoundRobin, nodes_in_process

from ducktail.engine.errors import (
    CannotConnect,
    DucktailError,
    DuplicateObject,
    Gap,
    InvalidParameterValue,
    NotSupported,
    OutOfMemory,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ducktail.engine.waiting import Waiting
from ducktail.sql.cluster import gathering
from ducktail.sql.peer_requests.partition_moves import wait_for_partitions
from ducktail.sql.pipeline import execute as pipeline_module
from ducktail.sql.session import Session

PARTITIONS = 12
EVENTS = 120


@contextmanager
def filled() -> Iterator[Cluster]:
    """Three nodes with a topic, a group, a table on the first, and events that came through all nodes."""
    with nodes_in_process() as nodes:
        clients = [nodes.client(node) for node in nodes.databases]
        clients[0](f"CREATE TOPIC t WITH (partitions = {PARTITIONS})")
        clients[1]("CREATE CONSUMER GROUP g ON t")
        for start in range(0, EVENTS, 10):
            client = clients[start // 10 % 3]
            client(f"INSERT INTO t (payload, key) SELECT i, i FROM range({start}, {start + 10}) r(i)")
        for client in clients:
            client("CREATE TABLE names AS SELECT i AS id, 'name ' || i AS name FROM range(5) r(i)")
            client.close()
        yield nodes


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """The nodes of the tests that write nothing but their group's offsets."""
    with filled() as nodes:
        yield nodes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The nodes of a test that does more to them."""
    with filled() as nodes:
        yield nodes


@pytest.fixture
def clients(request: pytest.FixtureRequest) -> Iterator[dict[str, Client]]:
    """A client of each node, of the test's own nodes where it has some; group g is new."""
    has_own = "cluster" in request.fixturenames
    nodes: Cluster = request.getfixturevalue("cluster" if has_own else "shared")
    made = {node: nodes.client(node) for node in nodes.databases}
    if not has_own:
        made["n1"]("DROP CONSUMER GROUP g ON t")
        made["n2"]("CREATE CONSUMER GROUP g ON t")
    yield made
    for client in made.values():
        client.close()


def test_every_node_gives_all_events_in_one_order(clients: dict[str, Client]) -> None:
    given = [client("SELECT * FROM TOPIC t") for client in clients.values()]
    assert given[0] == given[1] == given[2]
    keys = [(row[7], row[1], row[0]) for row in given[0]]
    assert len(keys) == EVENTS and keys == sorted(keys)
    assert sorted(int(str(row[6])) for row in given[0]) == list(range(EVENTS))


@pytest.mark.parametrize("entry", ["n1", "n2", "n3"])
def test_shapes_of_queries(clients: dict[str, Client], entry: str) -> None:
    client = clients[entry]
    assert client("SELECT count(*), count(DISTINCT partition) FROM TOPIC t") == [(EVENTS, PARTITIONS)]
    rows = client(
        "SELECT (after->>'$')::INT AS n FROM TOPIC t WHERE (after->>'$')::INT % 10 = 0 "
        "ORDER BY n DESC LIMIT 3"
    )
    assert rows == [(110,), (100,), (90,)]
    joined = client(
        "SELECT n.name FROM TOPIC t AS e JOIN names n ON n.id = (e.after->>'$')::INT ORDER BY n.id"
    )
    assert joined == [(f"name {i}",) for i in range(5)]
    some = client("SELECT DISTINCT partition FROM TOPIC t PARTITION (1, 5, 6) ORDER BY 1")
    assert some == [(1,), (5,), (6,)]
    chosen = client("SELECT DISTINCT partition FROM TOPIC t WHERE partition IN (2, 3) ORDER BY 1")
    assert chosen == [(2,), (3,)]
    assert client("SELECT * FROM TOPIC t LIMIT 0") == []
    half = client("SELECT commit_time FROM TOPIC t LIMIT 60")[-1][0]
    later = client("SELECT count(*) FROM TOPIC t WHERE commit_time > $1", half)
    assert isinstance(later[0][0], int) and 0 < later[0][0] < EVENTS
    lsn, partition = client("SELECT lsn, partition FROM TOPIC t LIMIT 1")[0]
    after = json.dumps({str(partition): lsn})
    assert len(client(f"SELECT * FROM TOPIC t AFTER '{after}'")) == EVENTS - 1
    assert len(client(f"SELECT * FROM TOPIC t PARTITION {partition} AFTER {lsn}")) < EVENTS
    assert len(client("SELECT * FROM TOPIC t AFTER 0")) == EVENTS
    with pytest.raises(InvalidParameterValue, match="AFTER wants a map"):
        client("SELECT * FROM TOPIC t AFTER 7")
    with pytest.raises(InvalidParameterValue, match="has no partition 12"):
        client("SELECT * FROM TOPIC t PARTITION 12")


QUERIES = [
    "SELECT * FROM TOPIC t CONSUMER GROUP g LIMIT 7",
    "SELECT after FROM TOPIC t CONSUMER GROUP g LIMIT 7",
    "SELECT after FROM (SELECT * FROM TOPIC t CONSUMER GROUP g) q LIMIT 7",
    "SELECT upper(after::VARCHAR) FROM TOPIC t CONSUMER GROUP g LIMIT 7",
    "SELECT after FROM TOPIC t CONSUMER GROUP g ORDER BY lsn LIMIT 7",
]


@pytest.mark.parametrize("query", QUERIES)
def test_each_event_is_processed_once_by_polls_on_all_nodes(clients: dict[str, Client], query: str) -> None:
    column = 6 if query.startswith("SELECT *") else 0
    seen: list[int] = []
    turn = 0
    while True:
        client = clients[f"n{turn % 3 + 1}"]
        rows = client(query)
        client("COMMIT OFFSETS ON t CONSUMER GROUP g")
        if not rows:
            break
        seen += [int(str(row[column])) for row in rows]
        turn += 1
    assert sorted(seen) == list(range(EVENTS)) and turn == -(-EVENTS // 7)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("member", ["", "MEMBER 'm'"])
def test_a_loop_of_reads_with_commit(clients: dict[str, Client], query: str, member: str) -> None:
    column = 6 if query.startswith("SELECT *") else 0
    client = clients["n2"]
    text = query.replace("CONSUMER GROUP g", f"CONSUMER GROUP g {member} COMMIT WAIT '10 ms'")
    seen: list[int] = []
    while rows := client(text):
        lags = [int(str(row[3])) for row in clients["n1"]("SHOW OFFSETS ON t CONSUMER GROUP g")]
        assert sum(lags) == EVENTS - len(seen)
        seen += [int(str(row[column])) for row in rows]
    assert sorted(seen) == list(range(EVENTS))


def test_an_aggregate_covers_all_that_it_read(clients: dict[str, Client]) -> None:
    client = clients["n2"]
    assert client("SELECT count(*) FROM TOPIC t CONSUMER GROUP g") == [(EVENTS,)]
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    assert clients["n3"]("SELECT count(*) FROM TOPIC t CONSUMER GROUP g") == [(0,)]
    rows = clients["n1"]("SHOW OFFSETS ON t CONSUMER GROUP g")
    assert [row[0] for row in rows] == list(range(PARTITIONS))
    assert {row[3] for row in rows} == {0} and [row[1] for row in rows] == [row[2] for row in rows]


def test_partitions_are_shown_by_their_owners(clients: dict[str, Client]) -> None:
    shown = [client("SHOW PARTITIONS ON t") for client in clients.values()]
    assert shown[0] == shown[1] == shown[2]
    assert [row[0] for row in shown[0]] == list(range(PARTITIONS))
    assert sum(int(str(row[3])) for row in shown[0]) == EVENTS
    assert [row[8] for row in shown[0]] == [f"n{p % 3 + 1}" for p in range(PARTITIONS)]


def test_a_commit_by_numbers(clients: dict[str, Client]) -> None:
    client = clients["n1"]
    ends: dict[int, int] = {}
    for lsn, partition in client("SELECT lsn, partition FROM TOPIC t"):
        assert isinstance(lsn, int) and isinstance(partition, int)
        ends[partition] = lsn
    client(f"COMMIT OFFSET PARTITION 4 AT {ends[4]} ON t CONSUMER GROUP g")
    clients["n3"](f"COMMIT OFFSETS AT '{json.dumps(ends)}' ON t CONSUMER GROUP g")
    assert clients["n2"]("SELECT count(*) FROM TOPIC t CONSUMER GROUP g") == [(0,)]
    with pytest.raises(InvalidParameterValue):
        client("COMMIT OFFSET PARTITION 4 AT 0 ON t CONSUMER GROUP g")
    with pytest.raises(WrongState):
        client("COMMIT OFFSETS ON t CONSUMER GROUP g")


def test_a_commit_names_what_stands(cluster: Cluster, clients: dict[str, Client]) -> None:
    client = clients["n1"]
    client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    cluster.away.add("n3")
    with pytest.raises(CannotConnect, match='partitions 2, 5, 8 and 11 on node "n3"') as raised:
        client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    assert raised.value.detail is not None
    assert "Partitions 0, 1, 3, 4, 6, 7, 9 and 10 are committed." in raised.value.detail
    with pytest.raises(CannotConnect, match='partitions 2, 5, 8 and 11 on node "n3"'):
        client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    assert client("SELECT count(*) FROM TOPIC t PARTITION (0, 1) CONSUMER GROUP g") == [(0,)]
    cluster.away.clear()
    left = client("SELECT DISTINCT partition FROM TOPIC t CONSUMER GROUP g ORDER BY 1")
    assert left == [(2,), (5,), (8,), (11,)]


@pytest.mark.parametrize("at", ["", "AT '{}'"])
def test_a_commit_of_what_an_owner_has_given_on_while_it_waited(
    cluster: Cluster, clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """It is refused: it was acknowledged, and the group read the same events again at their new owner."""
    read = clients["n1"]("SELECT partition, lsn FROM TOPIC t CONSUMER GROUP g")
    ends = {str(partition): lsn for partition, lsn in sorted(read)}
    owner = cluster.databases["n2"]

    def waited(session: Session, *about: Any) -> Waiting[None]:
        if session.database is owner and session.part is not None and owner.placement.epoch == 1:
            owner.install_placement(RoundRobin(NODES[1], 2))
        yield from wait_for_partitions(session, *about)

    monkeypatch.setattr(pipeline_module, "wait_for_partitions", waited)
    with pytest.raises(SerializationFailure):
        clients["n1"](f"COMMIT OFFSETS {at.replace('{}', json.dumps(ends))} ON t CONSUMER GROUP g")
    [group] = [one for one in owner.catalog.groups.values() if one.name == "g"]
    standing = owner.offsets.positions(group.group_id)
    assert {p: standing[p].lsn for p in range(1, PARTITIONS, 3) if p in standing} == dict.fromkeys(
        range(1, PARTITIONS, 3), 0
    )


def test_seek_moves_every_owners_part(clients: dict[str, Client]) -> None:
    client = clients["n2"]
    client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    rows = client("ALTER CONSUMER GROUP g ON t SEEK TO EARLIEST")
    assert [row[0] for row in rows] == list(range(PARTITIONS))
    assert sum(int(str(row[3])) for row in rows) == EVENTS
    assert clients["n1"]("SELECT count(*) FROM TOPIC t CONSUMER GROUP g") == [(EVENTS,)]
    client("ALTER CONSUMER GROUP g ON t SEEK TO LATEST")
    one = client("ALTER CONSUMER GROUP g ON t SEEK TO PARTITION 3 EARLIEST")
    assert [row[0] for row in one] == [3]
    assert clients["n1"]("SELECT DISTINCT partition FROM TOPIC t CONSUMER GROUP g") == [(3,)]
    client("""ALTER CONSUMER GROUP g ON t SEEK TO AFTER '{"3": 0, "4": 0}'""")
    left = clients["n3"]("SELECT DISTINCT partition FROM TOPIC t CONSUMER GROUP g ORDER BY 1")
    assert left == [(3,), (4,)]
    with pytest.raises(InvalidParameterValue, match="wants a map"):
        client("ALTER CONSUMER GROUP g ON t SEEK TO AFTER 5")


def test_a_seek_elsewhere_voids_what_was_read(clients: dict[str, Client]) -> None:
    client = clients["n1"]
    client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    clients["n2"]("ALTER CONSUMER GROUP g ON t SEEK TO PARTITION 1 EARLIEST")
    with pytest.raises(DucktailError) as raised:
        client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    assert raised.value.sqlstate == "55000"


def test_a_transaction_commits_its_own_partitions_only(clients: dict[str, Client]) -> None:
    client = clients["n1"]
    client("BEGIN")
    client("SELECT * FROM TOPIC t PARTITION (0, 3) CONSUMER GROUP g")
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    client("COMMIT")
    left = client("SELECT DISTINCT partition FROM TOPIC t PARTITION (0, 1, 3) CONSUMER GROUP g")
    assert left == [(1,)]
    client("BEGIN")
    client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    with pytest.raises(NotSupported, match="a transaction block cannot commit the offset"):
        client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    client("ROLLBACK")
    # What the session has committed of the others before is none of it.
    client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    client("BEGIN")
    client("SELECT * FROM TOPIC t PARTITION (0, 3) CONSUMER GROUP g")
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    client("COMMIT")


def test_a_gap_is_its_owners(cluster: Cluster, clients: dict[str, Client]) -> None:
    client = clients["n1"]
    assert client("SELECT count(*) FROM TOPIC t") == [(EVENTS,)]  # All is published.
    there = cluster.databases["n2"]
    (topic,) = there.catalog.streams.values()
    last = there.buffers.of(topic).end_lsn
    there.retention.trim(topic, last)
    with pytest.raises(Gap):
        client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    assert client("SELECT count(*) FROM TOPIC t PARTITION (0, 2) CONSUMER GROUP g")
    client("ALTER CONSUMER GROUP g ON t SET (on_gap = 'earliest')")
    client.notices.clear()
    assert client("SELECT * FROM TOPIC t CONSUMER GROUP g")
    assert len([notice for notice in client.notices if "retention" in notice or "trimmed" in notice]) == 4


@pytest.mark.parametrize("entry", ["n1", "n2", "n3"])
def test_a_wait_ends_with_the_first_event_of_any_owner(clients: dict[str, Client], entry: str) -> None:
    client = clients[entry]
    assert len(client("SELECT * FROM TOPIC t CONSUMER GROUP g WAIT '20 s'")) == EVENTS
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    assert client("SELECT * FROM TOPIC t CONSUMER GROUP g WAIT '20 ms'") == []
    began_s = time.monotonic()
    assert len(client(f"SELECT * FROM TOPIC t WAIT '20 s' FOR {EVENTS}")) == EVENTS
    assert time.monotonic() - began_s < 10
    assert len(client(f"SELECT * FROM TOPIC t WAIT '20 ms' FOR {EVENTS + 1}")) == EVENTS
    both = "FROM TOPIC t CONSUMER GROUP g WAIT '20 ms' UNION ALL SELECT 1 FROM TOPIC t WAIT '20 ms'"
    assert client(f"SELECT count(*) FROM (SELECT 1 {both}) q") == [(EVENTS,)]


def test_events_are_set_aside_at_their_owner(clients: dict[str, Client]) -> None:
    client = clients["n1"]
    lsn = client("SELECT lsn FROM TOPIC t PARTITION 1 LIMIT 1")[0][0]
    client(f"ALTER CONSUMER GROUP g ON t PARK PARTITION 1 AT {lsn} REASON 'bad'")
    assert [row[:3] for row in clients["n3"]("SHOW PARKED ON t CONSUMER GROUP g")] == [(1, lsn, "parked")]
    assert client("SELECT count(*) FROM TOPIC t CONSUMER GROUP g") == [(EVENTS - 1,)]
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    client("ALTER CONSUMER GROUP g ON t RELEASE PARTITION 1")
    assert client("SELECT partition, lsn FROM TOPIC t CONSUMER GROUP g") == [(1, lsn)]
    client("COMMIT OFFSETS ON t CONSUMER GROUP g")
    assert client("SELECT partition, lsn FROM TOPIC t CONSUMER GROUP g") == []


@pytest.mark.parametrize("entry", ["n1", "n2"])
def test_transactions_are_read_whole(clients: dict[str, Client], entry: str) -> None:
    client = clients[entry]
    whole = client("SELECT partition, txid, commit_time FROM TOPIC t")
    there = {(int(str(p)) % 3, txid): time for p, txid, time in whole}
    in_order = sorted(there, key=lambda one: str(there[one]))
    assert len(there) > 9
    seen: list[tuple[object, ...]] = []
    turns = 0
    while rows := client(
        "SELECT partition, txid, commit_time FROM TOPIC t CONSUMER GROUP g LIMIT 4 TRANSACTIONS"
    ):
        # The earliest come first, and each is whole.
        expected = in_order[4 * turns : 4 * turns + 4]
        assert {(int(str(p)) % 3, txid) for p, txid, _ in rows} == set(expected)
        assert len(rows) == sum((int(str(p)) % 3, txid) in expected for p, txid, _ in whole)
        seen += rows
        client("COMMIT OFFSETS ON t CONSUMER GROUP g")
        turns += 1
    assert sorted(map(str, seen)) == sorted(map(str, whole))
    assert client("SELECT * FROM TOPIC t LIMIT 0 TRANSACTIONS") == []


def test_bookmarks_of_all_owners(cluster: Cluster, clients: dict[str, Client]) -> None:
    one, two, three = clients.values()
    one("SELECT * FROM TOPIC t CONSUMER GROUP g LIMIT 50")
    one("COMMIT OFFSETS ON t CONSUMER GROUP g")
    two("CREATE BOOKMARK half ON t CONSUMER GROUP g")
    three("CREATE BOOKMARK ends ON t")
    one("INSERT INTO t (payload) SELECT 'later' FROM range(24)")
    shown = [client("SHOW BOOKMARKS ON t") for client in (one, two, three)]
    facts = [[row[2:6] for row in rows] for rows in shown]
    assert facts[0] == facts[1] == facts[2]
    assert [(row[0], *row[2:]) for row in facts[0]] == [("ends", True, 24), ("half", True, EVENTS - 50 + 24)]
    two("ALTER CONSUMER GROUP g ON t SEEK TO BOOKMARK ends")
    assert len(three("SELECT * FROM TOPIC t CONSUMER GROUP g")) == 24
    three("ALTER CONSUMER GROUP g ON t SEEK TO BOOKMARK half")
    assert len(one("SELECT * FROM TOPIC t CONSUMER GROUP g")) == EVENTS - 50 + 24
    moved = one("ALTER CONSUMER GROUP g ON t SEEK TO PARTITION 4 BOOKMARK ends")
    assert [row[0] for row in moved] == [4]
    position = facts[0][0][1]
    with pytest.raises(DuplicateObject):
        one(f"CREATE BOOKMARK ends ON t AT '{position}'")
    two("DROP BOOKMARK ends ON t")
    one(f"CREATE BOOKMARK again ON t AT '{position}'")
    assert next(row[2:4] for row in three("SHOW BOOKMARKS ON t")) == ("again", position)
    for wrong in ('{"0": 1}', str(position).replace(": ", ": 99999")):
        with pytest.raises(InvalidParameterValue):
            one(f"CREATE BOOKMARK wrong ON t AT '{wrong}'")
    cluster.away.add("n3")
    with pytest.raises(CannotConnect):
        one("DROP BOOKMARK again ON t")
    cluster.away.clear()
    three("DROP BOOKMARK again ON t")
    with pytest.raises(UndefinedObject):
        three("DROP BOOKMARK again ON t")
    three("DROP BOOKMARK IF EXISTS again ON t")
    two("BEGIN")
    with pytest.raises(NotSupported):
        two("CREATE BOOKMARK b ON t")
    two("ROLLBACK")


def test_owners_leave_out_what_where_says_of_lsn_and_time(clients: dict[str, Client]) -> None:
    rows = clients["n1"]("SELECT lsn, commit_time FROM TOPIC t")
    times = sorted({row[1] for row in rows})
    middle = times[len(times) // 2]
    for text, wanted in (
        (f"commit_time >= '{middle}'", [row for row in rows if row[1] >= middle]),
        (f"commit_time < '{middle}'", [row for row in rows if row[1] < middle]),
        (f"commit_time = '{middle}'", [row for row in rows if row[1] == middle]),
        (f"lsn > 12 AND lsn <= 20 AND commit_time > '{times[0]}'",
         [row for row in rows if 12 < row[0] <= 20 and row[1] > times[0]]),
        ("commit_time > '2100-01-01'", []),
    ):  # fmt: skip
        assert wanted or "2100" in text
        for client in clients.values():
            assert client(f"SELECT lsn, commit_time FROM TOPIC t WHERE {text}") == wanted, text
            (count,) = client(f"SELECT count(*) FROM TOPIC t CONSUMER GROUP g WHERE {text}")[0]
            assert count == len(wanted)


def test_a_group_has_read_what_where_has_rejected(clients: dict[str, Client]) -> None:
    read = "SELECT lsn FROM TOPIC t CONSUMER GROUP g WHERE commit_time > '2100-01-01'"
    assert clients["n2"](read) == []
    clients["n2"]("COMMIT OFFSETS ON t CONSUMER GROUP g")
    assert clients["n3"]("SELECT count(*) FROM TOPIC t CONSUMER GROUP g") == [(0,)]


def test_what_is_gathered_is_what_can_pass(
    clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "GATHER_BYTES_MAX", 3000)
    with pytest.raises(OutOfMemory):
        clients["n1"]("SELECT count(*) FROM TOPIC t")
    last = "(SELECT max(commit_time) FROM TOPIC t PARTITION 0)"
    time = str(clients["n1"](f"SELECT {last}::VARCHAR")[0][0])
    assert clients["n1"](f"SELECT count(*) > 0 FROM TOPIC t WHERE commit_time >= '{time}'") == [(True,)]

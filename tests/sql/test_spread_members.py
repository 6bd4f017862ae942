"""Members of a group on a topic that is spread over nodes: the same through every node as on one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from nodes_in_process import Client, Cluster, nodes_in_process

from ducktail.engine.errors import (
    CannotConnect,
    DucktailError,
    NotSupported,
    SerializationFailure,
    WrongState,
)
from ducktail.engine.placement.peer import Peer
from ducktail.engine.waiting import drive
from ducktail.sql.cluster import membership
from ducktail.sql.peers.requests import Part
from ducktail.sql.session import Session

PARTITIONS, EVENTS = 6, 60
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with nodes_in_process() as nodes:
        yield nodes


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[dict[str, Client]]:
    """A client of each node."""
    made = {node: cluster.client(node) for node in cluster.databases}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture
def topic(clients: dict[str, Client]) -> str:
    """A topic with events and a group g; partition p is node p % 3's, its home the first."""
    name = f"t{next(_numbers)}"
    clients["n2"](f"CREATE TOPIC {name} WITH (partitions = {PARTITIONS})")
    clients["n3"](f"CREATE CONSUMER GROUP g ON {name}")
    clients["n1"](f"INSERT INTO {name} (payload, key) SELECT i, i FROM range({EVENTS}) r(i)")
    return name


def read(topic: str, member: str, more: str = "") -> str:
    return f"SELECT partition, lsn, after FROM TOPIC {topic} CONSUMER GROUP g MEMBER '{member}' {more}"


def commit(topic: str, member: str) -> str:
    return f"COMMIT OFFSETS ON {topic} CONSUMER GROUP g MEMBER '{member}'"


def shares(client: Client, topic: str) -> dict[object, tuple[object, object]]:
    rows = client(f"SHOW MEMBERS ON {topic} CONSUMER GROUP g")
    return {row[0]: (row[2], row[3]) for row in rows}


def test_members_on_several_nodes_share_the_partitions(clients: dict[str, Client], topic: str) -> None:
    first = clients["n2"](read(topic, "a"))
    assert len(first) == EVENTS
    # What a holds it keeps until it has committed it.
    assert clients["n3"](read(topic, "b")) == []
    told = [shares(client, topic) for client in clients.values()]
    assert told[0] == told[1] == told[2]
    assert told[0]["a"] == (list(range(PARTITIONS)), "revoking") and told[0]["b"] == ([], "waiting")
    clients["n2"](commit(topic, "a"))
    clients["n1"](f"INSERT INTO {topic} (payload, key) SELECT i, i FROM range({EVENTS}) r(i)")
    ours = {row[0] for row in clients["n3"](read(topic, "b"))}
    theirs = {row[0] for row in clients["n2"](read(topic, "a"))}
    assert len(ours) == len(theirs) == PARTITIONS // 2 and ours | theirs == set(range(PARTITIONS))
    shown = clients["n1"](f"SHOW OFFSETS ON {topic} CONSUMER GROUP g")
    assert {row[0] for row in shown if row[-1] == "b"} == ours
    rows = clients["n3"](f"SHOW MEMBERS ON {topic} CONSUMER GROUP g")
    assert sum(int(str(row[4])) for row in rows) == EVENTS


def test_a_member_is_the_same_on_every_node(clients: dict[str, Client], topic: str) -> None:
    rows = clients["n1"](read(topic, "m", "LIMIT 7"))
    position = clients["n3"](f"SHOW READ POSITION ON {topic} CONSUMER GROUP g MEMBER 'm'")
    assert json.loads(str(position[0][0]))
    clients["n2"](commit(topic, "m"))
    seen, turn = [row[2] for row in rows], itertools.cycle(("n3", "n1", "n2"))
    while rows := clients[next(turn)](read(topic, "m", "LIMIT 7")):
        seen += [row[2] for row in rows]
        clients[next(turn)](commit(topic, "m"))
    assert sorted(int(str(one)) for one in seen) == list(range(EVENTS))
    ends = {
        str(p): lsn for p, lsn, _ in sorted(clients["n1"](f"SELECT partition, lsn, 0 FROM TOPIC {topic}"))
    }
    by_number = f"COMMIT OFFSETS AT '{json.dumps(ends)}' ON {topic} CONSUMER GROUP g MEMBER 'm'"
    clients["n2"](by_number)
    clients["n2"](f"COMMIT OFFSET PARTITION 2 AT {ends['2']} ON {topic} CONSUMER GROUP g MEMBER 'm'")


@pytest.mark.parametrize("entry", ["n1", "n2"])
def test_who_has_lost_a_partition_commits_nothing(clients: dict[str, Client], topic: str, entry: str) -> None:
    client = clients[entry]
    client(read(topic, "a"))
    position = client(f"SHOW READ POSITION ON {topic} CONSUMER GROUP g MEMBER 'a'")[0][0]
    clients["n3"](f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'a'")
    with pytest.raises(SerializationFailure, match="not a member"):
        client(commit(topic, "a"))
    assert len(clients["n3"](read(topic, "b"))) == EVENTS
    client(read(topic, "a"))
    with pytest.raises(SerializationFailure, match="does not own"):
        client(f"COMMIT OFFSETS AT '{position}' ON {topic} CONSUMER GROUP g MEMBER 'a'")
    assert client(f"SELECT count(*) FROM TOPIC {topic} CONSUMER GROUP g") == [(EVENTS,)]
    with pytest.raises(WrongState, match="has members"):
        client(f"COMMIT OFFSETS AT '{position}' ON {topic} CONSUMER GROUP g")
    for member in "ab":
        client(f"LEAVE CONSUMER GROUP g ON {topic} MEMBER '{member}'")
    client(f"COMMIT OFFSETS AT '{position}' ON {topic} CONSUMER GROUP g")
    assert client(f"SELECT count(*) FROM TOPIC {topic} CONSUMER GROUP g") == [(0,)]
    client.notices.clear()
    client(f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'b'")
    assert client.notices == ["'b' is not a member of consumer group \"g\", skipping"]


def test_a_transaction_commits_its_members_own_partitions(clients: dict[str, Client], topic: str) -> None:
    client = clients["n2"]
    client("CREATE TABLE IF NOT EXISTS target (partition INTEGER, lsn BIGINT, after JSON)")
    client("BEGIN")
    client("INSERT INTO target " + read(topic, "a").replace("CONSUMER", "PARTITION (1, 4) CONSUMER"))
    client(commit(topic, "a"))
    # Of what a transaction holds, nothing goes to others.
    assert {row[0] for row in clients["n3"](read(topic, "b"))} <= {0, 2, 3, 5}
    clients["n3"](f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'b'")
    client("COMMIT")
    left = client(f"SELECT DISTINCT partition FROM TOPIC {topic} CONSUMER GROUP g ORDER BY 1")
    assert left == [(0,), (2,), (3,), (5,)]
    client("BEGIN")
    client(read(topic, "a"))
    with pytest.raises(NotSupported, match="a transaction block cannot commit the offset"):
        client(commit(topic, "a"))
    client("ROLLBACK")
    with pytest.raises(WrongState, match="rolled back"):
        client(commit(topic, "a"))


def test_a_member_that_waits(clients: dict[str, Client], topic: str) -> None:
    client = clients["n2"]
    client(read(topic, "a"))
    client(commit(topic, "a"))
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(client, read(topic, "a", "WAIT '60 s'"))
        while "a" not in shares(clients["n1"], topic):
            pass
        clients["n1"](f"INSERT INTO {topic} (payload) VALUES ('x')")
        assert len(waiting.result(30)) == 1
        client(commit(topic, "a"))
        waiting = other.submit(client, read(topic, "a", "WAIT '60 s' FOR 4"))
        clients["n1"](f"INSERT INTO {topic} (payload) SELECT 'y' FROM range(4)")
        assert len(waiting.result(30)) == 4
        client(commit(topic, "a"))
        heard = clients["n1"](f"SHOW MEMBERS ON {topic} CONSUMER GROUP g")[0][6]
        waiting = other.submit(client, read(topic, "a", "WAIT '60 s'"))
        while clients["n1"](f"SHOW MEMBERS ON {topic} CONSUMER GROUP g")[0][6] == heard:
            pass
        # Somebody comes: half of its partitions go, and it is told.
        assert clients["n3"](read(topic, "b")) == []
        assert waiting.result(30) == []
        waiting = other.submit(client, read(topic, "a", "WAIT '60 s'"))
        heard = clients["n1"](f"SHOW MEMBERS ON {topic} CONSUMER GROUP g")[0][6]
        while clients["n1"](f"SHOW MEMBERS ON {topic} CONSUMER GROUP g")[0][6] == heard:
            pass
        clients["n1"](f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'a'")
        assert waiting.result(30) == []


def test_a_seek_voids_what_a_member_has_read(clients: dict[str, Client], topic: str) -> None:
    clients["n2"](read(topic, "a"))
    clients["n3"](f"ALTER CONSUMER GROUP g ON {topic} SEEK TO PARTITION 1 EARLIEST")
    with pytest.raises(DucktailError) as raised:
        clients["n1"](commit(topic, "a"))
    assert raised.value.sqlstate == "55000"


def test_released_events_come_to_the_member(clients: dict[str, Client], topic: str) -> None:
    client = clients["n1"]
    places = client(f"SELECT partition, min(lsn) FROM TOPIC {topic} GROUP BY 1 ORDER BY 1")[:2]
    for partition, lsn in places:
        client(f"ALTER CONSUMER GROUP g ON {topic} PARK PARTITION {partition} AT {lsn}")
    assert len(client(read(topic, "a"))) == EVENTS - 2
    client(commit(topic, "a"))
    for partition, _ in places:
        client(f"ALTER CONSUMER GROUP g ON {topic} RELEASE PARTITION {partition}")
    assert [row[:2] for row in client(read(topic, "a"))] == places
    clients["n3"](commit(topic, "a"))
    assert client(read(topic, "a")) == []


@pytest.mark.parametrize("member", ["", "MEMBER 'a'"])
@pytest.mark.parametrize("how", ["COMMIT OFFSETS", "COMMIT OFFSET PARTITION {} AT {}"])
def test_what_a_limit_leaves_of_released_events_comes_again(
    clients: dict[str, Client], topic: str, member: str, how: str
) -> None:
    client = clients["n1"]
    gives = f"SELECT partition, lsn FROM TOPIC {topic} CONSUMER GROUP g {member}"
    ends = dict(client(f"SELECT partition, max(lsn) FROM TOPIC {topic} GROUP BY 1"))
    parked = []
    for partition in (0, 1, 2):
        for (lsn,) in client(f"SELECT lsn FROM TOPIC {topic} PARTITION {partition} LIMIT 3"):
            client(f"ALTER CONSUMER GROUP g ON {topic} PARK PARTITION {partition} AT {lsn}")
            parked.append((partition, lsn))
    assert len(client(gives)) == EVENTS - 9
    client(f"COMMIT OFFSETS ON {topic} CONSUMER GROUP g {member}")
    for partition in (0, 1, 2):
        client(f"ALTER CONSUMER GROUP g ON {topic} RELEASE PARTITION {partition}")
    given = []
    for _ in range(5):
        # Each owner has more of them than there is room for.
        rows = client(f"{gives} LIMIT 2")
        given += rows
        for partition in dict.fromkeys(partition for partition, _ in rows):
            end = ends[partition]
            client(f"{how.format(partition, end)} ON {topic} CONSUMER GROUP g {member}")
    assert sorted(given) == parked
    assert client(gives) == []


@pytest.mark.parametrize("limit", [100, 250])
def test_polls_of_runs_of_one_owners_events(clients: dict[str, Client], topic: str, limit: int) -> None:
    """What an owner is asked for first is a guess: where it has more that comes next, it is asked again."""
    client = clients["n2"]
    for text in ("900", "900", "1"):
        client(f"INSERT INTO {topic} (payload, key) SELECT i, i FROM range({text}) r(i)")
    given: list[tuple[object, ...]] = []
    query = f"SELECT commit_time, partition, lsn FROM TOPIC {topic} CONSUMER GROUP g LIMIT {limit}"
    while rows := client(query):
        assert len(rows) == min(limit, EVENTS + 1801 - len(given))
        given += rows
        client(f"COMMIT OFFSETS ON {topic} CONSUMER GROUP g")
    assert [time for time, *_ in given] == sorted(time for time, *_ in given)  # type: ignore[type-var]
    for partition in range(PARTITIONS):
        own = [lsn for _, of, lsn in given if of == partition]
        assert own == sorted(own)  # type: ignore[type-var]
    assert len(set(given)) == EVENTS + 1801


def test_two_connections_of_a_member_read_at_once(clients: dict[str, Client], topic: str) -> None:
    """Of each partition that counts which was given last; neither is in the other's way."""
    one, other = clients["n2"], clients["n3"]
    offsets = f"SHOW OFFSETS ON {topic} CONSUMER GROUP g"
    statement = drive(one.session.parse(read(topic, "a", "LIMIT 40")))
    result = drive(one.session.execute(statement, ()))
    given = other(read(topic, "a", "LIMIT 3"))
    other(commit(topic, "a"))
    ends = {str(partition): lsn for partition, lsn, _ in given}
    assert {str(row[0]): row[1] for row in other(offsets) if row[1]} == ends
    last: dict[object, object] = {}
    while (batch := result.fetch(None)) is not None:
        partitions, lsns = (column.to_pylist() for column in batch.record_batch().columns[:2])
        last.update(zip(partitions, lsns, strict=True))
    again = other.session.execute(drive(other.session.parse(read(topic, "a", "LIMIT 5"))), ())
    under_way = drive(again)
    one(commit(topic, "a"))
    assert {row[0]: row[1] for row in one(offsets) if row[1]} == last
    while under_way.fetch(None) is not None:
        pass
    assert len(other(read(topic, "a"))) == EVENTS - 40


def test_the_home_is_away(cluster: Cluster, clients: dict[str, Client], topic: str) -> None:
    clients["n2"](read(topic, "a"))
    cluster.away.add("n1")
    try:
        for text in (read(topic, "a"), commit(topic, "a"), read(topic, "a", "WAIT '1 s'")):
            with pytest.raises(CannotConnect, match="n1"):
                clients["n2"](text)
    finally:
        cluster.away.clear()
    clients["n2"](commit(topic, "a"))


def test_a_home_that_knows_no_epochs_any_more(
    cluster: Cluster, clients: dict[str, Client], topic: str
) -> None:
    assert len(clients["n2"](read(topic, "a"))) == EVENTS
    known = cluster.databases["n1"].members
    # It has started again, and its clock was set back.
    group = list(known._groups.values())[-1]
    group.members.clear()
    group.owners = [None] * PARTITIONS
    group.epoch = 5
    with pytest.raises(SerializationFailure, match="not a member"):
        clients["n2"](commit(topic, "a"))
    assert len(clients["n3"](read(topic, "b"))) == EVENTS
    clients["n3"](commit(topic, "b"))
    assert clients["n1"](f"SELECT count(*) FROM TOPIC {topic} CONSUMER GROUP g") == [(0,)]


def test_a_commit_of_a_read_that_the_home_was_not_told_of(
    cluster: Cluster, clients: dict[str, Client], topic: str
) -> None:
    clients["n2"](read(topic, "a", "LIMIT 9"))
    clients["n2"](commit(topic, "a"))
    cluster.untold.add("n1")
    try:
        rows = clients["n2"](read(topic, "a"))
    finally:
        cluster.untold.clear()
    for entry in ("n2", "n1"):
        with pytest.raises(WrongState, match="does not know what the latest read"):
            clients[entry](commit(topic, "a"))
    assert clients["n2"](read(topic, "a")) == rows
    clients["n3"](commit(topic, "a"))
    assert clients["n2"](read(topic, "a")) == []


def test_epochs_that_are_given_out_anew_while_a_member_reads(
    cluster: Cluster, clients: dict[str, Client], topic: str
) -> None:
    clients["n1"](read(topic, "a"))
    home = cluster.databases["n1"]
    (group,) = [
        group
        for stream in home.catalog.streams.values()
        if stream.name == topic
        for group in home.catalog.groups_of(stream.stream_id)
    ]
    known = home.members
    known.passed(group, PARTITIONS, known._groups[group.group_id].epoch)
    with pytest.raises(WrongState, match="given out anew"):
        clients["n1"](commit(topic, "a"))
    hold = known.begin_read(group, PARTITIONS, "a", "", range(PARTITIONS), gives=True, home=True)
    known.passed(group, PARTITIONS, known._groups[group.group_id].epoch)
    known.set_position(hold, dict.fromkeys(range(PARTITIONS), 7), dict.fromkeys(range(PARTITIONS), 0), 0, {})
    known.end(hold)
    with pytest.raises(WrongState, match="given out anew"):
        clients["n1"](commit(topic, "a"))
    assert len(clients["n2"](read(topic, "a"))) == EVENTS


def test_a_read_that_comes_late_to_an_owner(cluster: Cluster, clients: dict[str, Client], topic: str) -> None:
    assert len(clients["n2"](read(topic, "a"))) == EVENTS
    known = cluster.databases["n1"].members
    epochs = {p: epoch for p, epoch in enumerate(list(known._groups.values())[-1].epochs) if p % 3 == 2}
    ours = cluster.databases["n2"].placement
    link = Session(cluster.databases["n3"], peer=Peer("n2", ours.cluster, ours.epoch), wire=True)
    late = read(topic, "a", "LIMIT 1").replace("CONSUMER", "PARTITION (2, 5) CONSUMER")
    result = drive(link.execute(drive(link.parse(Part(ours.epoch, epochs=epochs).text(late))), ()))
    while result.fetch(None) is not None:
        pass
    drive(link.close())
    # The member was given all of it, and what is acknowledged is committed.
    clients["n2"](commit(topic, "a"))
    assert clients["n2"](read(topic, "a")) == []


def test_a_home_that_was_none_meanwhile(cluster: Cluster, clients: dict[str, Client], topic: str) -> None:
    clients["n2"](read(topic, "a", "LIMIT 9"))
    clients["n2"](commit(topic, "a"))
    epoch = cluster.databases["n1"].placement.epoch
    # Of what the others were told in between it knows nothing.
    cluster.place(epoch + 3)
    client = cluster.client("n2")
    try:
        with pytest.raises(SerializationFailure, match="not a member"):
            client(commit(topic, "a"))
        assert len(client(read(topic, "a"))) == EVENTS - 9
        client(commit(topic, "a"))
        assert client(read(topic, "a")) == []
    finally:
        client.close()


def test_an_owner_lets_nobody_in_with_an_older_epoch(
    cluster: Cluster, clients: dict[str, Client], topic: str
) -> None:
    clients["n2"](read(topic, "a"))
    known = cluster.databases["n1"].members
    shared = list(known._groups.values())[-1]
    stale = list(shared.epochs)
    position = clients["n2"](f"SHOW READ POSITION ON {topic} CONSUMER GROUP g MEMBER 'a'")[0][0]
    clients["n2"](f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'a'")
    assert len(clients["n3"](read(topic, "b"))) == EVENTS
    # A home that has forgotten: a's partitions are its own again, under the epochs of before.
    clients["n3"](f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'b'")
    clients["n2"](read(topic, "a", "LIMIT 0"))
    shared.epochs[:] = stale
    with pytest.raises(SerializationFailure, match="does not own"):
        clients["n2"](f"COMMIT OFFSETS AT '{position}' ON {topic} CONSUMER GROUP g MEMBER 'a'")
    # The owners keep what they have seen, over a restart too.
    for database in cluster.databases.values():
        (kept,) = [
            database.member_epochs.of(group.group_id)
            for stream in database.catalog.streams.values()
            if stream.name == topic
            for group in database.catalog.groups_of(stream.stream_id)
        ]
        assert kept and min(kept.values()) > max(stale)


def test_a_commit_without_members_after_a_home_whose_clock_was_ahead(
    cluster: Cluster, clients: dict[str, Client], topic: str
) -> None:
    clients["n2"](read(topic, "a"))
    clients["n2"](f"LEAVE CONSUMER GROUP g ON {topic} MEMBER 'a'")
    # It has started again, and its clock was set back.
    group = list(cluster.databases["n1"].members._groups.values())[-1]
    group.epoch = 5
    client = clients["n3"]
    assert len(client(f"SELECT lsn FROM TOPIC {topic} CONSUMER GROUP g")) == EVENTS
    client(f"COMMIT OFFSETS ON {topic} CONSUMER GROUP g")
    assert client(f"SELECT count(*) FROM TOPIC {topic} CONSUMER GROUP g") == [(0,)]


def test_a_commit_stands_whatever_the_home_says_of_it_afterwards(
    clients: dict[str, Client], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another placement has come into force between the owners' word and the home's."""

    def refused(*_: object, **__: object) -> dict[str, object]:
        raise SerializationFailure("this node is not the home")

    clients["n2"](read(topic, "a"))
    monkeypatch.setitem(membership.OPERATIONS, "committed", refused)
    clients["n2"](commit(topic, "a"))
    monkeypatch.undo()
    rows = clients["n1"](f"SHOW OFFSETS ON {topic} CONSUMER GROUP g")
    assert [row[3] for row in rows] == [0] * PARTITIONS

"""Promise 10: a member that lost its partition cannot commit; and what it takes to lose one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hands import SECOND_US, Hands
from local_client import Client, raises

from ducktail.engine.catalog.streams import Group as GroupOf
from ducktail.engine.database import Database
from ducktail.engine.groups.members import MEMBERS_MAX
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import drive

READ = "select partition, lsn from stream s consumer group g member $1"
COMMIT = "commit offsets on s consumer group g member $1"


class Group:
    """A database with stream s of two partitions, ten events each or so, and group g."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.database = Database.open(":memory:", Settings(), self.clock)
        self.clients: list[Client] = []
        maker = self.client()
        maker("create table t (id int primary key)")
        maker("create table target (lsn bigint)")
        maker("create stream s on t with (partitions = 2)")
        maker("create consumer group g on s")
        maker("insert into t select * from range(20)")

    def client(self) -> Client:
        """A new session."""
        self.clients.append(Client(self.database))
        return self.clients[-1]

    def wait(self, seconds: float) -> None:
        """Let time go by."""
        self.clock.us += int(seconds * SECOND_US)

    def group(self) -> GroupOf:
        """Group g, as the engine knows it."""
        return next(iter(self.database.catalog.groups.values()))

    def owners(self) -> dict[str, list[int]]:
        """Member -> its partitions."""
        return dict(self.clients[0]("select member_name, partitions from ducktail.members"))

    def committed(self) -> int:
        """The committed LSNs' sum."""
        total: int = self.clients[0].one("select sum(committed_lsn)::bigint from ducktail.offsets")
        return total


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    for client in made.clients:
        client.close()
    made.database.close()


def test_who_is_silent_for_too_long_has_lost_all(group: Group) -> None:
    a, b = group.client(), group.client()
    assert len(a(READ, "a")) == 20
    group.wait(29)
    assert b(READ, "b") == []
    group.wait(2)
    # A look at the group is enough; nobody has to read.
    assert group.owners() == {"b": [0, 1]}
    with raises("40001"):
        a(COMMIT, "a")
    with raises("40001"):
        a("commit offset partition 0 at 5 on s consumer group g member 'a'")
    assert group.committed() == 0
    assert len(b(READ, "b")) == 20
    b(COMMIT, "b")


def test_a_heartbeat_is_a_read_or_a_commit(group: Group) -> None:
    a = group.client()
    for _ in range(4):
        a(READ, "a")
        group.wait(20)
        a(COMMIT, "a")
        group.wait(20)
    assert group.owners() == {"a": [0, 1]}
    # One that gives nothing up: what was read is still to be committed.
    a("insert into t values (100)")
    a(READ, "a")
    for _ in range(3):
        group.wait(20)
        a(READ + " limit 0", "a")
    a(COMMIT, "a")
    group.wait(20)
    assert group.owners() == {"a": [0, 1]}
    # A look is none.
    a("show members on s consumer group g")
    a("show read position on s consumer group g member 'a'")
    group.wait(10)
    assert group.owners() == {}


def test_the_end_of_a_long_answer_is_a_heartbeat(group: Group) -> None:
    a = group.client()
    statement = drive(a.session.parse("select lsn from stream s consumer group g member 'a'"))
    result = drive(a.session.execute(statement))
    group.wait(29)
    while result.fetch(5) is not None:
        pass
    group.wait(29)
    assert group.owners() == {"a": [0, 1]}


def test_an_open_answer_keeps_its_partitions_until_it_ends_or_its_member_times_out(group: Group) -> None:
    a, b = group.client(), group.client()
    statement = drive(a.session.parse("select lsn from stream s consumer group g member 'a'"))
    result = drive(a.session.execute(statement))
    result.fetch(1)
    result.suspend()
    assert b(READ, "b") == []
    result.close()
    given = group.database.members.position(group.group(), 2, "a", 0).lsns
    assert [lsn for lsn in given.values() if lsn] == [1], "one event was given, and is not committed"
    (kept,) = [partition for partition, lsn in given.items() if lsn]
    assert group.owners() == {"a": [kept], "b": [1 - kept]}
    a(COMMIT, "a")
    b("leave consumer group g on s member 'b'")
    again = drive(a.session.execute(statement))
    group.wait(31)
    assert len(b(READ, "b")) > 0
    assert group.owners() == {"b": [0, 1]}
    again.close()
    assert group.owners() == {"b": [0, 1]}


def test_a_session_that_ends_holds_nothing(group: Group) -> None:
    a, b = group.client(), group.client()
    a("begin")
    a("declare c cursor for select lsn from stream s consumer group g member 'a'")
    a("fetch 1 from c")
    assert b(READ, "b") == []
    a.close()
    group.clients.remove(a)
    assert sorted(map(len, group.owners().values())) == [1, 1]


def test_two_connections_of_one_member(group: Group) -> None:
    one, two, other = group.client(), group.client(), group.client()
    one("begin")
    assert len(one(READ + " limit 3", "a")) == 3
    assert len(two(READ, "a")) == 20
    # What the second has given stays when the first is rolled back.
    one("rollback")
    two("begin")
    one(COMMIT, "a")
    assert group.clients[0].one("select sum(lag_events) from ducktail.offsets") == 0
    two("commit")
    # One of them fails: what stood there before is void, as in one session.
    other("insert into t values (100)")
    one(READ, "a")
    with raises("22000"):
        two("select 1 // (lsn - lsn) from stream s consumer group g member 'a'")
    with raises("55000"):
        one(COMMIT, "a")


def test_a_transaction_commits_what_it_has_read_itself(group: Group) -> None:
    """Whatever another connection of the member reads meanwhile: it would commit what it has not written."""
    one, two = group.client(), group.client()
    one("begin")
    one("insert into target select lsn from stream s consumer group g member 'a' limit 3")
    assert len(two(READ, "a")) == 20
    one(COMMIT, "a")
    one("commit")
    assert group.clients[0].one("select sum(lag_events) from ducktail.offsets") == 17
    assert one("select lsn from target order by lsn") == [(1,), (2,), (3,)]


def test_a_pooled_connection_is_whoever_it_says(group: Group) -> None:
    pooled = group.client()
    assert len(pooled(READ, "a")) == 20
    pooled("discard all")
    assert pooled(READ, "b") == []
    pooled(COMMIT, "a")
    assert sorted(map(len, group.owners().values())) == [1, 1]


def test_groups_and_streams_in_one_transaction(group: Group) -> None:
    a, b = group.client(), group.client()
    a("create table u (id int primary key)")
    a("create stream r on u with (partitions = 2)")
    a("create consumer group g on r")
    a("create consumer group h on s")
    a("insert into u select * from range(6)")
    a("begin")
    a("insert into target select lsn from stream s consumer group g member 'a'")
    a("insert into target select lsn from stream r consumer group g member 'a'")
    a("insert into target select lsn from stream s consumer group h member 'a'")
    a("commit offsets on s consumer group g member 'a'")
    a("commit offsets on r consumer group g member 'a'")
    a("commit offsets on s consumer group h member 'a'")
    b("leave consumer group h on s member 'a'")
    with raises("40001"):
        a("commit")
    assert (group.committed(), a.one("select count(*) from target")) == (0, 0)
    # Nothing stays pinned or held: another gets its share at once.
    for stream in ("s", "r"):
        a(f"select lsn from stream {stream} consumer group g member 'a' limit 0")
        b(f"select lsn from stream {stream} consumer group g member 'b' limit 0")
    shares = a("select len(partitions) from ducktail.members where group_name = 'g'")
    assert shares == [(1,)] * 4


def test_a_write_conflict_rolls_the_commit_back_and_lets_go(group: Group) -> None:
    a, b = group.client(), group.client()
    a("insert into target values (0)")
    a("begin")
    a("update target set lsn = 1")
    a(READ, "a")
    a(COMMIT, "a")
    with raises("40001"):
        b("begin")
        b("update target set lsn = 2")
    b("rollback")
    b(READ, "b")
    a("rollback")
    assert group.committed() == 0
    assert sorted(map(len, group.owners().values())) == [1, 1]


def test_a_savepoint_that_cannot_be_gone_back_to_gives_up_the_read(group: Group) -> None:
    a, b = group.client(), group.client()
    a("begin")
    a(READ, "a")
    a("savepoint x")
    a(READ, "a")
    with raises("0A000"):
        a("rollback to savepoint x")
    b(READ, "b")
    assert sorted(map(len, group.owners().values())) == [1, 1]
    with raises("25P02"):
        a(COMMIT, "a")
    a("rollback")
    with raises("55000"):
        a(COMMIT, "a")


def test_a_group_that_was_never_made_has_no_members(group: Group) -> None:
    a = group.client()
    a("begin")
    a("create consumer group x on s")
    a("select lsn from stream s consumer group x member 'a'")
    a("commit offsets on s consumer group x member 'a'")
    a("rollback")
    assert len(group.database.members._groups) <= 1
    a("begin")
    a("create consumer group x on s")
    a("select lsn from stream s consumer group x member 'a'")
    a("commit offsets on s consumer group x member 'a'")
    a("commit")
    assert group.clients[0].one("select sum(lag_events) from ducktail.offsets where group_name = 'x'") == 0
    a("drop stream s cascade")
    assert not group.database.members._groups


def test_a_member_that_comes_without_being_asked_stops_a_commit_without_member(group: Group) -> None:
    a, b = group.client(), group.client()
    a("begin")
    a("select lsn from stream s consumer group g")
    a("commit offsets on s consumer group g")
    b(READ, "b")
    with raises("55000"):
        a("commit")
    assert group.committed() == 0
    b(COMMIT, "b")


def test_a_group_takes_so_many_members(group: Group) -> None:
    a, members = group.client(), group.database.members
    for number in range(MEMBERS_MAX):
        members.end(members.begin_read(group.group(), 2, f"m{number}", "u", [0, 1], gives=True))
    with raises("54000"):
        a(READ, "one more")
    assert sum(map(len, group.owners().values())) == 2


def test_a_time_out_that_is_not_committed_counts_for_nobody(group: Group) -> None:
    a, b = group.client(), group.client()
    assert len(a(READ, "a")) == 20
    group.wait(2)
    b("begin")
    b("alter consumer group g on s set (session_timeout = '1 s')")
    b("select 1 from stream s consumer group g member 'b' limit 0")
    b("leave consumer group g on s member 'nobody'")
    b("rollback")
    assert group.owners().keys() == {"a", "b"}
    a(COMMIT, "a")


def test_a_lower_time_out_counts_from_the_alter_on(group: Group) -> None:
    a, b = group.client(), group.client()
    assert len(a(READ, "a")) == 20
    group.wait(20)
    b("alter consumer group g on s set (session_timeout = '5 s')")
    group.wait(4)
    assert group.owners() == {"a": [0, 1]}
    group.wait(1)
    assert group.owners() == {}
    assert len(a(READ, "a")) == 20
    group.wait(6)
    # Who was silent for too long before the time-out was raised is gone all the same.
    b("alter consumer group g on s set (session_timeout = '5 min')")
    assert group.owners() == {}


def test_who_waits_is_told_of_a_new_time_out(group: Group) -> None:
    a, b = group.client(), group.client()
    a(READ, "a")
    told: list[str] = []
    group.database.members.on_change = lambda group_id, name: told.append(name)
    b("alter consumer group g on s set (session_timeout = '5 s')")
    assert told == ["a"]


def test_a_group_that_is_gone_is_not_known_again(group: Group) -> None:
    a, known = group.client(), group.group()
    a(READ, "a")
    a("drop consumer group g on s")
    assert not group.database.last_reads
    members = group.database.members
    assert members.shown(known, 2) == []
    members.end(members.begin_read(known, 2, "late", "u", [0, 1], gives=True))
    assert members.shown(known, 2) == []

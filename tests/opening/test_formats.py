"""A file of an older format opens, is migrated and keeps everything; a newer one is refused.

`fixtures/README.md` says which versions wrote the files.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.catalog.rights import relation
from ducktail.engine.database import Database
from ducktail.engine.schema import FORMAT_VERSION, MIGRATIONS

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# Several versions have written 3.
LATER = ("format_2", "format_3", "format_3_checkpoints", "format_3_versions")


def unpacked(name: str, tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    path.write_bytes(gzip.decompress((FIXTURES / f"{name}.duckdb.gz").read_bytes()))
    return path


@pytest.fixture
def format_1(tmp_path: Path) -> Path:
    """The oldest file."""
    return unpacked("format_1", tmp_path)


def test_every_older_format_has_its_migration() -> None:
    assert sorted(MIGRATIONS) == list(range(1, FORMAT_VERSION))


def test_format_1_keeps_streams_events_and_offsets(format_1: Path) -> None:
    for _ in range(2):  # migrated, and opened again as what it is now
        database = Database.open(str(format_1))
        client = Client(database)
        events = client("select lsn, op, key::varchar, after::varchar from stream s after 0")
        assert [lsn for lsn, *_ in events] == list(range(1, 25))
        assert [op for _, op, *_ in events] == ["insert"] * 20 + ["update"] * 3 + ["delete"]
        assert {json.loads(after)["v"] for _, op, _, after in events if op == "update"} == {"changed"}
        assert client.one("select count(*) from stream big after 0") == 15
        typed = client("select _change_type, _lsn from s_changes order by _lsn, _change_type desc")
        assert typed == client("select _change_type, _lsn from stream s after 0 envelope changes")
        assert [lsn for _, lsn in typed] == [*range(1, 21), 21, 21, 22, 22, 23, 23, 24]
        notes = client("select lsn, after::varchar from stream notes_stream after 0")
        assert notes == [(25, '{"t":"a"}'), (26, '{"t":"b"}'), (27, '{"t":"c"}')]
        offsets = client("select partition, committed_lsn from ducktail.offsets order by partition")
        assert offsets == [(0, 10), (1, 12), (2, 6), (3, 5)]
        # Which columns were listed is not known: all of them are no list.
        assert client("show create stream s")[0][1] == (
            'CREATE STREAM "main"."s" ON "main"."orders" WITH (partitions = 4, retention = \'none\')'
        )
        client("comment on stream s is 'kept'")
        assert client("select comment from ducktail.streams where stream_name = 's'") == [("kept",)]
        client.close()
        database.close()
    with duckdb.connect(str(format_1)) as plain:
        facts = dict(plain.execute("select name, value from ducktail.meta").fetchall())
    assert facts["format"] == str(FORMAT_VERSION)
    assert facts["incarnation"] == "0" and len(facts["identity"]) == 36


def test_a_migrated_file_goes_on(format_1: Path) -> None:
    database = Database.open(str(format_1))
    client = Client(database)
    client("insert into orders values (100, 'new', 1)")
    assert client.one("select max(lsn) from stream s after 0") == 28
    client("create stream late on notes where t = 'd'")
    client("create consumer group late on late")
    client("insert into notes values ('d')")
    assert client("select lsn from stream late consumer group late") == [(29,)]
    client.close()
    database.close()


@pytest.mark.parametrize("name", LATER)
def test_later_formats_keep_streams_events_and_offsets(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    for opened in range(2):  # migrated, and opened again as what it is now
        database = Database.open(str(path))
        client = Client(database)
        lsns = events_are_kept(client, name)
        groups_are_kept(client, lsns, *(name >= older for older in LATER[1:3]))
        assert client.one("select count(*) from ducktail.bookmarks") == (name >= LATER[1]) + opened
        if not opened:
            client("create bookmark here on s consumer group g")
        if name >= LATER[1]:
            values = "select key::varchar, after::varchar from topic t after 0 order by lsn"
            published = [('"k1"', '{"n": 1}'), ('"k2"', '{"n": 2}'), ('"k1"', '{"n": 3}')]
            assert client(values) == published
            # What its producer repeats is not stored again.
            client("publish to t key 'k1' '{\"n\": 3}' with (producer = 'p', sequence = 7)")
            assert client(values) == published
        client.close()
        database.close()


def events_are_kept(client: Client, name: str) -> list[int]:
    """The LSNs of stream s, whose events are as they were, however they are asked for."""
    inserted = {"format_2": 20, LATER[-1]: 23}.get(name, 22)
    events = client("select lsn, op, after::varchar from stream s after 0 where op <> 'schema'")
    lsns = [lsn for lsn, *_ in events]
    assert len(events) == inserted + 3 and lsns[:23] == list(range(1, 24))
    assert [op for _, op, _ in events if op != "insert"] == ["update", "update", "delete"]
    image = '{"id":1,"st":"new","amount":0.25,"tags":["a",null],"placed":"2026-11-21T22:17:00+00:00"}'
    assert events[0][2] == image
    assert [lsn for (lsn,) in client("select lsn from s where op <> 'schema' order by lsn")] == lsns
    typed = client("select * from stream s after 0 envelope changes")
    assert typed == client("select * from s_changes order by _lsn, _change_type desc")
    assert len(typed) == inserted + 2 * 2 + 1
    assert client("select before::varchar from stream paid after 0 where op = 'delete'") == [('{"id":20}',)]
    assert client("select after::varchar from stream notes_stream") == [('{"t":"a"}',), ('{"t":"b"}',)]
    return lsns


def groups_are_kept(client: Client, lsns: list[int], has_parked: bool, has_comments: bool) -> None:
    """Groups go on where they were, with what they have set aside."""
    offsets = "select partition, committed_lsn from ducktail.offsets where group_name = 'g' order by 1"
    assert client(offsets) == [(0, 7), (1, 9), (2, 6), (3, 5)]
    groups = client(
        "select group_name, on_gap, session_timeout, on_park from ducktail.consumer_groups order by 1"
    )
    assert groups[:2] == [("g", "earliest", "00:00:30", "event"), ("late", "error", "00:00:30", "event")]
    assert groups[2:] == [("w", "error", "00:00:07", "key")] * has_parked
    read = client("select lsn from stream s consumer group g where op <> 'schema'")
    parked = client("select lsn, reason from ducktail.parked")
    assert parked == [(10, "later")] * has_parked
    assert {lsn for (lsn,) in read} == set(lsns) - {*range(1, 10)} - {lsn for lsn, _ in parked}
    told = "kept" if has_comments else None
    assert client("select comment from ducktail.streams where stream_name = 's'") == [(told,)]
    assert client("select pipeline_name, events from ducktail.pipelines") == [("p", 30)] * has_comments


@pytest.mark.parametrize("name", ["format_1", *LATER])
def test_a_migrated_file_is_held_against_its_log(name: str, tmp_path: Path) -> None:
    """Its tables get their first row-hash sums, and CHECK says since when there is one."""
    path = unpacked(name, tmp_path)
    database = Database.open(str(path))
    client = Client(database)
    assert client("check stream s") == []
    (notice,) = client.session.notices.take()
    had_one = "or of ducktail, hashes otherwise" if name == LATER[-1] else "first opened the database"
    assert had_one in str(notice.detail)
    client.close()
    database.close()
    with duckdb.connect(str(path)) as plain:
        plain.execute("delete from orders where id = (select max(id) from orders)")
    database = Database.open(str(path))
    client = Client(database)
    assert [kind for kind, *_ in client("check stream s")] == ["missing"]
    client("alter stream s resync")
    assert client("check stream s") == []
    client.close()
    database.close()


@pytest.mark.parametrize("name", LATER)
def test_a_later_migrated_file_goes_on(name: str, tmp_path: Path) -> None:
    database = Database.open(str(unpacked(name, tmp_path)))
    client = Client(database)
    client("alter table orders add column extra varchar default 'x'")
    client("insert into orders (id, st, extra) values (100, 'paid', 'y')")
    client("update orders set st = 'new' where id = 100")
    (last,) = client("select after::varchar from stream s after 0 where op = 'update'")[-1]
    assert json.loads(last)["extra"] == "y" and json.loads(last)["st"] == "new"
    assert client("select op from stream paid after 0")[-2:] == [("insert",), ("delete",)]
    extras = client("select extra from s_changes order by _lsn desc limit 3")
    assert extras == [("y",)] * 3
    assert client.one("select count(*) from ducktail.schema_versions where stream_name = 's'") > 1
    # Its users still have their passwords and rights.
    assert sorted(user.name for user in database.rights.users.values()) == ["ann", "root"]
    assert database.rights.has("ann", "select", relation("main", "orders"))
    client.close()
    database.close()


def test_a_newer_format_is_refused_and_left_alone(format_1: Path) -> None:
    with duckdb.connect(str(format_1)) as plain:
        plain.execute("update ducktail.meta set value = '999' where name = 'format'")
    before = format_1.read_bytes()
    with raises("XX001") as found:
        Database.open(str(format_1))
    assert "999" in found.value.message
    assert format_1.read_bytes() == before


def test_a_view_of_the_users_own_keeps_its_name(format_1: Path) -> None:
    with duckdb.connect(str(format_1)) as plain:
        plain.execute("create view s_changes as select 1 as mine")
    for _ in range(2):
        database = Database.open(str(format_1))
        client = Client(database)
        assert client("select * from s_changes") == [(1,)]
        assert client.one("select count(*) from stream s after 0 envelope changes") == 27
        client.close()
        database.close()
    database = Database.open(str(format_1))
    client = Client(database)
    client("drop stream s cascade")
    assert client("select * from s_changes") == [(1,)]
    client.close()
    database.close()

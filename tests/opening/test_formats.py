"""A file of an older format opens, is migrated and keeps everything; a newer one is refused.

`fixtures/format_n.duckdb.gz` was written by the version that had format n.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.storage.schema import FORMAT_VERSION, MIGRATIONS

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture
def format_1(tmp_path: Path) -> Path:
    """The old file, unpacked."""
    path = tmp_path / "shop.duckdb"
    path.write_bytes(gzip.decompress((FIXTURES / "format_1.duckdb.gz").read_bytes()))
    return path


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


def test_format_2_keeps_streams_events_and_offsets(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    path.write_bytes(gzip.decompress((FIXTURES / "format_2.duckdb.gz").read_bytes()))
    for count in (0, 1):  # migrated, and opened again as what it is now
        database = Database.open(str(path))
        client = Client(database)
        assert client.one("select count(*) from stream s after 0") == 23
        assert client("select group_name, on_gap from ducktail.consumer_groups") == [("g", "earliest")]
        offsets = client("select partition, committed_lsn from ducktail.offsets order by partition")
        assert offsets == [(0, 10), (1, 0), (2, 0), (3, 0)]
        assert client.one("select count(*) from ducktail.bookmarks") == count
        if not count:
            client("create bookmark b on s consumer group g")
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

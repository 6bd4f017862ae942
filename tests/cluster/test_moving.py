"""Partitions of a topic move between three server processes: with their events, groups and producers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses

from ducktail.__main__ import main
from ducktail.pgwire_gateway.command import cluster as cluster_command

NODES = ("n1", "n2", "n3")
FIRST = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1", n2 = "2", n3 = "3-1023" }\n'
Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("c"), 3, FIRST) as nodes:
        yield nodes


class Reader:
    """A session that reads a group of t, each time in other words, and commits in the same, as prepared."""

    READ = "SELECT partition, lsn, after FROM TOPIC t CONSUMER GROUP prepared LIMIT {}"
    COMMIT = "COMMIT OFFSETS ON t CONSUMER GROUP prepared"

    def __init__(self, session: Connection) -> None:
        self.session = session
        self.taken: list[tuple[int, int, Any]] = []
        self.limits = count(11)

    def read(self) -> bool:
        """Whether there was something."""
        rows = self.session.execute(self.READ.format(next(self.limits))).fetchall()
        try:
            self.session.execute(self.COMMIT, prepare=True)
        except psycopg.Error:
            return True  # The partitions have moved meanwhile: they come again.
        self.taken += rows
        return bool(rows)


class Mover:
    """Brings placements into force, each with the next epoch."""

    epoch = 1

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster

    def move(self, owners: str, order: tuple[str, ...] = NODES) -> None:
        Mover.epoch += 1
        topics = f'[[topics]]\nname = "*"\npartitions = {{ {owners} }}\n'
        text = self.cluster.text(Mover.epoch, topics)
        for name in order:
            with self.cluster[name].connect() as session:
                session.execute(f"INSTALL PLACEMENT '{text.replace(chr(39), chr(39) * 2)}'")


def events(cluster: ClusterProcesses, node: str, source: str) -> list[tuple[int, int, Any]]:
    with cluster[node].connect() as session:
        return session.execute(f"SELECT partition, lsn, after FROM {source}").fetchall()


def test_a_partition_moves_on_and_back(cluster: ClusterProcesses) -> None:
    mover = Mover(cluster)
    with cluster["n2"].connect() as session:
        session.execute("CREATE TOPIC t WITH (partitions = 4)")
        session.execute("CREATE CONSUMER GROUP g ON t")
        session.execute("CREATE CONSUMER GROUP unread ON t")
        session.execute("CREATE CONSUMER GROUP prepared ON t")
        session.execute("INSERT INTO t (key, payload) SELECT i, i FROM range(100) r(i)")
    stored = events(cluster, "n1", "TOPIC t")
    assert len(stored) == 100
    with cluster["n3"].connect() as session:
        session.execute("SELECT * FROM TOPIC t CONSUMER GROUP g LIMIT 50").fetchall()
        session.execute("COMMIT OFFSETS ON t CONSUMER GROUP g")
        offsets = session.execute("SHOW OFFSETS ON t CONSUMER GROUP g").fetchall()
    assert sum(row[3] for row in offsets) == 50
    known = 100
    readers = [Reader(cluster[node].connect()) for node in NODES]
    for owners in (
        'n1 = "0", n2 = "1-2", n3 = "3-1023"',
        'n1 = "0", n2 = "2", n3 = "1, 3-1023"',
        'n1 = "0-1", n2 = "2", n3 = "3-1023"',
        'n2 = "0-1023"',
        'n1 = "0-1023"',
    ):
        mover.move(owners)
        for node in NODES:
            assert events(cluster, node, "TOPIC t")[:known] == stored, (owners, node)
        with cluster["n1"].connect() as session:
            now = session.execute("SHOW OFFSETS ON t CONSUMER GROUP g").fetchall()
            assert [row[:4] for row in now] == [row[:4] for row in offsets]
            session.execute("INSERT INTO t (key, payload) SELECT i, i FROM range(20) r(i)")
        for reader in readers:
            reader.read()
        stored = events(cluster, "n2", "TOPIC t")
        known += 20
        assert len(stored) == known
        for partition in range(4):
            lsns = [lsn for p, lsn, _ in stored if p == partition]
            assert lsns == sorted(set(lsns))
        with cluster["n3"].connect() as session:
            offsets = session.execute("SHOW OFFSETS ON t CONSUMER GROUP g").fetchall()
            assert sum(row[3] for row in offsets) == known - 50
    while readers[0].read():
        pass
    # What one has committed, none gets again: they took turns.
    assert sorted(row for reader in readers for row in reader.taken) == sorted(stored)
    for reader in readers:
        reader.session.close()
    with cluster["n3"].connect() as session:
        seen = []
        read = "SELECT partition, lsn, after FROM TOPIC t CONSUMER GROUP unread LIMIT 33"
        while rows := session.execute(read).fetchall():
            seen += rows
            session.execute("COMMIT OFFSETS ON t CONSUMER GROUP unread")
    assert sorted(seen) == sorted(stored)


def test_a_repeat_after_a_move_stores_what_is_missing_and_nothing_twice(cluster: ClusterProcesses) -> None:
    mover = Mover(cluster)
    mover.move('n1 = "0-1", n2 = "2", n3 = "3-1023"')
    with cluster["n1"].connect() as session:
        session.execute("CREATE TOPIC named WITH (partitions = 4)")
        rows = "KEY q.payload SELECT i FROM range(20) r(i)"
        text = f"PUBLISH TO named {rows} WITH (producer = 'p', sequence = {{}})"
        first = session.execute(text.format(1)).fetchall()
        mover.move('n1 = "0", n2 = "1-2", n3 = "3-1023"')
        again = session.execute(text.format(1)).fetchall()
        assert [row[:2] for row in again] == [row[:2] for row in first]
        second = session.execute(text.format(2)).fetchall()
        assert len(second) == 20 and not {row[:2] for row in second} & {row[:2] for row in first}
        mover.move('n1 = "0-1", n2 = "2", n3 = "3-1023"')
        assert [row[:2] for row in session.execute(text.format(2)).fetchall()] == [row[:2] for row in second]
        assert session.execute("SELECT count(*) FROM TOPIC named").fetchone() == (40,)


def test_each_repeat_is_stored_once_where_partitions_have_come_to(cluster: ClusterProcesses) -> None:
    """Also on a node that had none of the topic's events before."""
    mover = Mover(cluster)
    mover.move('n1 = "0-1023"')
    with cluster["n1"].connect() as first, cluster["n3"].connect() as third:
        first.execute("CREATE TOPIC repeated WITH (partitions = 4)")
        first.execute("INSERT INTO repeated (key, payload) SELECT i, i FROM range(20) r(i)")
        mover.move('n3 = "0-1023"')
        for sequence in (1, 2):
            text = (
                "PUBLISH TO repeated KEY q.payload SELECT i FROM range(20) r(i) "
                f"WITH (producer = 'p', sequence = {sequence})"
            )
            places = third.execute(text).fetchall()
            assert len(places) == 20
            for session in (third, first) * 10:
                assert session.execute(text).fetchall()[0][:2] == places[0][:2]
        assert third.execute("SELECT count(*) FROM TOPIC repeated").fetchone() == (60,)


def test_parked_events_hold_up_their_own_partition_alone(
    cluster: ClusterProcesses, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mover = Mover(cluster)
    mover.move('n1 = "0-1", n2 = "2", n3 = "3-1023"')
    with cluster["n1"].connect() as session:
        session.execute("CREATE TOPIC parked WITH (partitions = 4)")
        session.execute("CREATE CONSUMER GROUP g ON parked")
        session.execute("INSERT INTO parked (key, payload) SELECT i, i FROM range(20) r(i)")
        (lsn,) = session.execute("SELECT min(lsn) FROM TOPIC parked PARTITION 0").fetchone() or ()
        session.execute(f"ALTER CONSUMER GROUP g ON parked PARK PARTITION 0 AT {lsn}")
        (there,) = session.execute("SELECT count(*) FROM TOPIC parked PARTITION 1").fetchone() or ()
        mover.move('n2 = "0-2", n3 = "3-1023"')
        assert session.execute("SELECT count(*) FROM TOPIC parked PARTITION 1").fetchone() == (there,)
        with pytest.raises(psycopg.errors.SerializationFailure) as caught:
            session.execute("SELECT count(*) FROM TOPIC parked PARTITION 0")
        assert "parked events" in (caught.value.diag.message_detail or "")
        # Who stops the node now loses them: a second `apply` says so too.
        file = cluster.folder / "again.toml"
        file.write_text(cluster.file("n1").read_text())
        monkeypatch.setattr(cluster_command, "ARRIVE_S", 0.0)
        assert main(["cluster", "apply", str(file)]) == 1
        assert "partitions 0 are still on n1" in capsys.readouterr().err
        mover.move('n1 = "0-1", n2 = "2", n3 = "3-1023"')
        session.execute(f"ALTER CONSUMER GROUP g ON parked RELEASE PARTITION 0 AT {lsn}")
        assert session.execute("SELECT count(*) FROM TOPIC parked").fetchone() == (20,)


def test_what_was_read_before_a_partition_left_does_not_undo_a_seek(cluster: ClusterProcesses) -> None:
    mover = Mover(cluster)
    mover.move('n1 = "0-1023"')
    with cluster["n1"].connect() as reader, cluster["n2"].connect() as other:
        other.execute("CREATE TOPIC sought WITH (partitions = 2)")
        other.execute("CREATE CONSUMER GROUP g ON sought")
        other.execute("INSERT INTO sought (key, payload) SELECT i, i FROM range(20) r(i)")
        read = "SELECT lsn FROM TOPIC sought CONSUMER GROUP g"
        reader.execute(read).fetchall()
        reader.execute("COMMIT OFFSETS ON sought CONSUMER GROUP g")
        assert reader.execute(read).fetchall() == []
        mover.move('n2 = "0-1023"')
        other.execute("ALTER CONSUMER GROUP g ON sought SEEK TO EARLIEST")
        mover.move('n1 = "0-1023"')
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            reader.execute("COMMIT OFFSETS ON sought CONSUMER GROUP g")
        assert len(reader.execute(read).fetchall()) == 20


@pytest.mark.parametrize("source", ["STREAM held_stream", "TOPIC held"])
def test_a_read_in_progress_goes_on_under_a_new_placement(cluster: ClusterProcesses, source: str) -> None:
    mover = Mover(cluster)
    mover.move('n1 = "0-7", n2 = "8-11", n3 = "12-1023"')
    name = source.split()[1]
    with cluster["n1"].connect() as owner, cluster["n3"].connect() as entry:
        if name == "held":
            owner.execute("CREATE TOPIC held WITH (partitions = 8)")
            owner.execute("INSERT INTO held (key, payload) SELECT i, i FROM range(100) r(i)")
        else:
            owner.execute("CREATE TABLE held_table (id INTEGER PRIMARY KEY)")
            owner.execute("CREATE STREAM held_stream ON held_table")
            owner.execute("INSERT INTO held_table SELECT i FROM range(100) r(i)")
        text = f"SELECT lsn FROM {source}"
        with entry.transaction(), entry.cursor("c") as cursor:
            rows = cursor.execute(text).fetchmany(10)
            mover.move('n1 = "0-7", n2 = "8-10", n3 = "11-1023"')
            # Another statement of this session is of the new placement, on a link of its own.
            assert entry.execute(f"SELECT count(*) FROM {source}").fetchone() == (100,)
            rows += cursor.fetchmany(10)
            if name == "held":  # What is read goes on, also where its partitions go elsewhere.
                mover.move('n2 = "0-7", n1 = "8-10", n3 = "11-1023"')
            rows += cursor.fetchall()
        assert sorted(rows) == sorted(owner.execute(text).fetchall())
        with entry.transaction(), entry.cursor("c") as cursor:
            cursor.execute(text).fetchmany(1)
        mover.move('n1 = "0-3", n2 = "4-7", n3 = "8-1023"')
        left = "SELECT count(*) FROM ducktail.sessions WHERE node = 'n3' AND state <> 'idle'"
        assert owner.execute(left).fetchone() == (0,)


def test_what_a_lost_node_had_begins_anew_and_is_told(
    cluster: ClusterProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test of the file: it ends a node for good."""
    mover = Mover(cluster)
    mover.move('n1 = "0", n2 = "1-2", n3 = "3-1023"')
    file, new = cluster.folder / "before.toml", cluster.folder / "after.toml"
    with cluster["n1"].connect() as session:
        session.execute("CREATE TOPIC kept WITH (partitions = 4)")
        session.execute("CREATE CONSUMER GROUP g ON kept")
        session.execute("CREATE CONSUMER GROUP forgiving ON kept WITH (on_gap = 'earliest')")
        session.execute("INSERT INTO kept (key, payload) SELECT i, i FROM range(40) r(i)")
        rows = session.execute("SELECT partition, lsn FROM TOPIC kept CONSUMER GROUP g").fetchall()
        session.execute("COMMIT OFFSETS ON kept CONSUMER GROUP g")
        # Partition 2 was given to n3 as well, and what n2 still has of it ends before the lost events.
        mover.move('n1 = "0", n2 = "1", n3 = "2-1023"')
        session.execute("INSERT INTO kept (key, payload) SELECT i, i FROM range(40) r(i)")
        cluster["n3"].kill()
        file.write_text(cluster.file("n1").read_text())
        assert main(["cluster", "plan", str(file), "--lost", "n3", "--output", str(new)]) == 0
        assert "what n3 had is given up" in capsys.readouterr().out
        assert main(["cluster", "apply", str(new)]) == 0
    for node in ("n1", "n2"):
        with cluster[node].connect() as session:
            left = session.execute("SELECT count(*) FROM TOPIC kept PARTITION (0, 1)").fetchone()
            assert left == (2 * sum(partition < 2 for partition, _ in rows),)
            for partition in (2, 3):
                last = max(lsn for p, lsn in rows if p == partition)
                for asked in ("CONSUMER GROUP g", f"AFTER {last}"):
                    with pytest.raises(psycopg.Error, match="is lost") as caught:
                        session.execute(f"SELECT * FROM TOPIC kept PARTITION {partition} {asked}")
                    assert caught.value.sqlstate == "72000"
    with cluster["n2"].connect() as session:
        told: list[str] = []
        session.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        session.execute("ALTER CONSUMER GROUP g ON kept SEEK TO EARLIEST")
        session.execute("INSERT INTO kept (key, payload) SELECT i, i FROM range(40) r(i)")
        for group in ("g", "forgiving"):
            read = f"SELECT partition, lsn FROM TOPIC kept CONSUMER GROUP {group}"
            found = session.execute(read).fetchall()
            session.execute(f"COMMIT OFFSETS ON kept CONSUMER GROUP {group}")
            for partition in range(4):
                count = sum(p == partition for p, _ in rows)
                mine = [lsn for p, lsn in found if p == partition]
                assert len(mine) == (3 * count if partition < 2 else count)
                assert partition < 2 or min(mine) > 2**50
        assert sum("is lost" in words for words in told) == 2

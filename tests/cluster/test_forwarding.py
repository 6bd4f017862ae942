"""Statements about streams on tables, sent to a node that does not have them: the owner's own answers."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses

NODES = ("n1", "n2", "n3")
ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1023" }\n'
Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes; n1 has table t with 30 rows, stream s of 3 partitions on it, and group g; n3 has other."""
    retention = ("--retention-interval-ms", "500")
    with ClusterProcesses(tmp_path_factory.mktemp("c"), 3, ALL, options=retention) as nodes:
        with nodes["n1"].connect() as owner:
            owner.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x VARCHAR)")
            owner.execute("CREATE STREAM s ON t WITH (partitions = 3)")
            owner.execute("INSERT INTO t SELECT i, 'x' || i FROM range(30) r(i)")
            owner.execute("UPDATE t SET x = 'new' WHERE id = 3")
            owner.execute("CREATE CONSUMER GROUP g ON s")
        with nodes["n3"].connect() as other:
            other.execute("CREATE TABLE o (id INTEGER PRIMARY KEY)")
            other.execute("CREATE STREAM other ON o")
        yield nodes


@pytest.fixture
def owner(cluster: ClusterProcesses) -> Iterator[Connection]:
    """A session where the streams are."""
    with cluster["n1"].connect() as session:
        yield session


@pytest.fixture
def entry(cluster: ClusterProcesses) -> Iterator[Connection]:
    """A session on a node that owns nothing."""
    with cluster["n2"].connect() as session:
        yield session


def answer(session: Connection, text: str, *values: object, **how: Any) -> Any:
    """What a client sees of a statement: columns, rows and tag, or all of the error."""
    try:
        cursor = session.cursor(**how).execute(text, values or None)
    except psycopg.Error as error:
        told = error.diag
        return (error.sqlstate, told.message_primary, told.message_hint, told.statement_position)
    if cursor.description is None:
        return cursor.statusmessage
    columns = [(column.name, column.type_code) for column in cursor.description]
    return columns, [_lasting(row) for row in cursor.fetchall()], cursor.statusmessage


def _lasting(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without what changes with the time of day."""
    return tuple(None if isinstance(value, float) else value for value in row)


READS = [
    "SELECT * FROM STREAM s",
    "SELECT * FROM STREAM s PARTITION 1",
    "SELECT lsn, after FROM STREAM s PARTITION (0, 2) AFTER 5 LIMIT 4",
    'SELECT * FROM STREAM s AFTER \'{"0": 7, "1": 3}\' LIMIT 10',
    "SELECT * FROM STREAM s ENVELOPE CHANGES LIMIT 31",
    "SELECT op, count(*) FROM STREAM s GROUP BY op ORDER BY ALL",
    "SELECT t.x, e.lsn FROM STREAM s e JOIN t ON t.id = CAST(e.after->>'id' AS INTEGER) ORDER BY e.lsn",
    "SELECT * FROM (SELECT * FROM STREAM s CONSUMER GROUP g LIMIT 7) q WHERE 1 = 0",
    "SELECT * FROM STREAM s LIMIT 1 TRANSACTIONS",
    "WITH e AS (SELECT * FROM STREAM main.s) SELECT max(lsn), min(commit_time) FROM e",
    "SELECT * FROM STREAM s CONSUMER GROUP g WAIT '5 s' LIMIT 3",
    "SELECT * FROM STREAM s AFTER 1000 WAIT '10 ms'",
    "SELECT lsn + 1 AS n, upper(op) FROM STREAM s WHERE partition = 1",
    "SHOW PARTITIONS ON s",
    "SHOW OFFSETS ON s CONSUMER GROUP g",
    "SHOW MEMBERS ON s CONSUMER GROUP g",
    "SHOW PARKED ON s CONSUMER GROUP g",
    "SHOW CONSUMER GROUPS ON s",
    "SHOW BOOKMARKS ON s",
    "DESCRIBE STREAM s",
    "SHOW CREATE STREAM s",
    "SHOW CHECKPOINTS ON s",
    "DESCRIBE CONSUMER GROUP g ON s",
    "EXPLAIN SELECT lsn FROM STREAM s",
    # Errors, as the owner tells them.
    "SELECT nothing FROM STREAM s",
    "SELECT * FROM STREAM s PARTITION 9",
    "SELECT * FROM STREAM s CONSUMER GROUP none",
    "SELECT 1 / 0 + lsn FROM STREAM s JOIN missing ON true",
    "SHOW OFFSETS ON s CONSUMER GROUP none",
    "COMMIT OFFSET PARTITION 0 AT 99999 ON s CONSUMER GROUP g",
    "COMMIT OFFSETS ON s CONSUMER GROUP g",
    "CREATE CONSUMER GROUP g ON s",
    "ALTER CONSUMER GROUP g ON s SEEK TO nowhere",
    "SELECT * FROM STREAM nothing",
    "COMMIT OFFSETS ON nothing CONSUMER GROUP g",
]


@pytest.mark.parametrize("text", READS)
@pytest.mark.parametrize("binary", [False, True])
def test_reads_and_errors_are_the_owners(
    owner: Connection, entry: Connection, text: str, binary: bool
) -> None:
    ours, theirs = (answer(session, text, binary=binary) for session in (entry, owner))
    if "missing" in text:
        # What the entry node says beside it: whose tables a statement sees.
        ours, theirs = ours[:2], theirs[:2]
    assert ours == theirs


def test_parameters_of_all_clauses(owner: Connection, entry: Connection) -> None:
    text = "SELECT lsn, partition FROM STREAM s PARTITION %s CONSUMER GROUP %s WHERE lsn > %s LIMIT %s"
    for values in ((0, "g", 3, 5), (1, "g", 0, 0), (2, "g", 10**6, 1)):
        assert answer(entry, text, *values) == answer(owner, text, *values)


def test_the_settings_of_the_session_count_there(owner: Connection, entry: Connection) -> None:
    for session in (owner, entry):
        session.execute("SET TimeZone = 'America/New_York'")
    text = "SELECT commit_time::VARCHAR, commit_time FROM STREAM s LIMIT 2"
    assert answer(entry, text) == answer(owner, text)
    entry.execute("SET statement_timeout = '100ms'")
    assert answer(entry, "SELECT * FROM STREAM s AFTER 1000 WAIT '20 s'")[0] == "57014"
    entry.execute("SET statement_timeout = 0")
    entry.execute("SET default_transaction_read_only = on")
    assert answer(entry, "CREATE CONSUMER GROUP h ON s")[0] == "25006"


def test_a_group_from_its_creation_to_its_end(owner: Connection, entry: Connection) -> None:
    for text in (
        "CREATE CONSUMER GROUP h ON s START EARLIEST",
        "SELECT lsn FROM STREAM s CONSUMER GROUP h LIMIT 8",
        "SHOW READ POSITION ON s CONSUMER GROUP h",
        "COMMIT OFFSETS ON s CONSUMER GROUP h",
        "SELECT lsn FROM STREAM s CONSUMER GROUP h LIMIT 8",
        "COMMIT OFFSETS ON s CONSUMER GROUP h",
        "COMMIT OFFSETS ON s CONSUMER GROUP h",
        "ALTER CONSUMER GROUP h ON s SEEK TO EARLIEST",
        "SELECT count(*) FROM STREAM s CONSUMER GROUP h",
        "COMMIT OFFSETS ON s CONSUMER GROUP h",
        "SELECT count(*) FROM STREAM s CONSUMER GROUP h",
        "CREATE BOOKMARK b ON s CONSUMER GROUP h",
        "SHOW BOOKMARKS ON s",
        "ALTER CONSUMER GROUP h ON s SEEK BOOKMARK b DRY RUN",
        "DROP BOOKMARK b ON s",
        "ALTER CONSUMER GROUP h ON s SET (session_timeout = '20 s')",
        "SELECT lsn FROM STREAM s CONSUMER GROUP h MEMBER 'm' LIMIT 3",
        "COMMIT OFFSETS ON s CONSUMER GROUP h MEMBER 'm'",
        "LEAVE CONSUMER GROUP h ON s MEMBER 'm'",
        "ALTER CONSUMER GROUP h ON s PARK PARTITION 0 AT 1 REASON 'bad'",
        "SHOW PARKED ON s CONSUMER GROUP h",
        "ALTER CONSUMER GROUP h ON s RELEASE PARTITION 0",
        "DROP CONSUMER GROUP h ON s",
        "SHOW OFFSETS ON s CONSUMER GROUP h",
    ):
        ours = answer(entry, text)
        assert not isinstance(ours, tuple) or len(ours) != 4 or "PARK" in text or ours[0] == "42704", ours
    assert answer(owner, "DESCRIBE CONSUMER GROUP h ON s")[0] == "42704"


def test_a_stream_over_several_tables(owner: Connection, entry: Connection) -> None:
    for text in (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY)",
        "CREATE TABLE lines (id INTEGER, line INTEGER, PRIMARY KEY (id, line))",
        "CREATE TABLE notes (txt VARCHAR)",
        "CREATE STREAM shop ON orders, lines, notes",
    ):
        owner.execute(text)
    with owner.transaction():
        for text in (
            "INSERT INTO orders VALUES (1)",
            "INSERT INTO lines VALUES (1, 1), (1, 2)",
            "INSERT INTO notes VALUES ('gift')",
        ):
            owner.execute(text)
    owner.execute("DELETE FROM lines WHERE line = 2")
    for text in (
        "SELECT * FROM STREAM shop",
        "SELECT * FROM STREAM shop PARTITION 0 AFTER 1",
        "SELECT table_name, tx_last FROM STREAM shop LIMIT 1 TRANSACTIONS",
        "SELECT * FROM STREAM shop ENVELOPE CHANGES",
        "SHOW CREATE STREAM shop",
        "DESCRIBE STREAM shop",
        "CHECK STREAM shop",
    ):
        assert answer(entry, text) == answer(owner, text), text
    assert answer(entry, "CREATE CONSUMER GROUP g ON shop WITH (on_park = 'key')")[0] == "0A000"
    entry.execute("CREATE CONSUMER GROUP g ON shop")
    read = "SELECT lsn, table_name, tx_last FROM STREAM shop CONSUMER GROUP g"
    first = entry.execute(f"{read} LIMIT 1 TRANSACTIONS").fetchall()
    assert [row[1:] for row in first] == [
        ("main.orders", False),
        *[("main.lines", False)] * 2,
        ("main.notes", True),
    ]
    entry.execute("COMMIT OFFSETS ON shop CONSUMER GROUP g")
    rest = entry.execute(read).fetchall()
    assert [row[1:] for row in rest] == [("main.lines", True)]
    entry.execute("COMMIT OFFSETS ON shop CONSUMER GROUP g")
    assert entry.execute(read).fetchall() == []
    entry.execute(f"ALTER CONSUMER GROUP g ON shop SEEK TO AFTER {first[1][0]}")
    assert entry.execute(read).fetchall() == [*first[2:], *rest]
    entry.execute("DROP STREAM shop CASCADE")
    assert answer(owner, "SELECT * FROM STREAM shop")[0] == "42704"


def test_a_read_position_is_what_the_client_was_sent(owner: Connection, entry: Connection) -> None:
    owner.execute("CREATE CONSUMER GROUP parts ON s")
    entry.execute("BEGIN")
    entry.execute("DECLARE c CURSOR FOR SELECT lsn FROM STREAM s CONSUMER GROUP parts")
    assert [row[0] for row in entry.execute("FETCH 4 FROM c")] == [1, 2, 3, 4]
    assert [row[0] for row in entry.execute("FETCH 3 FROM c")] == [5, 6, 7]
    entry.execute("COMMIT")
    entry.execute("COMMIT OFFSETS ON s CONSUMER GROUP parts")
    row = owner.execute("SELECT lsn FROM STREAM s CONSUMER GROUP parts LIMIT 1").fetchone()
    assert row == (8,)
    # One with SCROLL asks the owner for no more than is fetched, and goes back over what is here.
    entry.execute("BEGIN")
    entry.execute("DECLARE c SCROLL CURSOR FOR SELECT lsn FROM STREAM s CONSUMER GROUP parts")
    assert [row[0] for row in entry.execute("FETCH 3 FROM c")] == [8, 9, 10]
    assert [row[0] for row in entry.execute("FETCH BACKWARD 2 FROM c")] == [9, 8]
    assert [row[0] for row in entry.execute("FETCH ABSOLUTE 5 FROM c")] == [12]
    entry.execute("COMMIT")
    entry.execute("COMMIT OFFSETS ON s CONSUMER GROUP parts")
    row = owner.execute("SELECT lsn FROM STREAM s CONSUMER GROUP parts LIMIT 1").fetchone()
    assert row == (13,)
    entry.execute("BEGIN")
    entry.execute("SELECT lsn FROM STREAM s CONSUMER GROUP parts LIMIT 3")
    entry.execute("ROLLBACK")
    assert answer(entry, "COMMIT OFFSETS ON s CONSUMER GROUP parts")[0] == "55000"


@pytest.mark.parametrize(
    "text",
    [
        "COMMIT OFFSET PARTITION 0 AT 1 ON s CONSUMER GROUP g",
        "COMMIT OFFSETS AT '{\"0\": 1}' ON s CONSUMER GROUP g",
        "ALTER CONSUMER GROUP g ON s SEEK TO LATEST",
        "CREATE CONSUMER GROUP other ON s",
        "DROP STREAM s CASCADE",
    ],
)
def test_what_cannot_be_atomic_is_refused_in_a_transaction(entry: Connection, text: str) -> None:
    entry.execute("BEGIN")
    try:
        told = answer(entry, text)
        assert told[0] == "0A000" and "node n1" in told[1] and "outside of a transaction" in told[2]
    finally:
        entry.execute("ROLLBACK")


@pytest.fixture
def mine(entry: Connection, owner: Connection) -> Iterator[Connection]:
    """A session on the node that owns no stream, with tables of its own there; s has a new group m."""
    entry.execute("CREATE TABLE names (id INTEGER PRIMARY KEY, name VARCHAR)")
    entry.execute("INSERT INTO names SELECT i, 'n' || i FROM range(10) r(i)")
    entry.execute("CREATE TABLE mine (lsn BIGINT PRIMARY KEY, op VARCHAR)")
    owner.execute("CREATE CONSUMER GROUP m ON s")
    yield entry
    entry.execute("DROP TABLE names")
    entry.execute("DROP TABLE mine")
    owner.execute("DROP CONSUMER GROUP m ON s")


def position(session: Connection) -> Any:
    """What a session has read of s as group m, or why it has no position."""
    told = answer(session, "SHOW READ POSITION ON s CONSUMER GROUP m")
    return told[1][0][0] if len(told) == 3 else told[0]


def test_streams_of_other_nodes_beside_tables_of_this_one(
    mine: Connection, cluster: ClusterProcesses
) -> None:
    with cluster["n3"].connect() as third:
        third.execute("INSERT INTO o SELECT * FROM range(5)")
    for text, rows in (
        ("SELECT n.name, e.lsn FROM STREAM s e JOIN names n ON n.id = e.lsn ORDER BY 2 LIMIT 2",
         [("n1", 1), ("n2", 2)]),
        ("SELECT name, x, _change_type, _lsn FROM STREAM s ENVELOPE CHANGES JOIN names USING (id) "
         "WHERE _lsn > 30 ORDER BY ALL",
         [("n3", "new", "update_postimage", 31), ("n3", "x3", "update_preimage", 31)]),
        ("SELECT a.lsn, b.after->>'id' FROM STREAM s a JOIN STREAM other b ON a.lsn = b.lsn ORDER BY 1 "
         "LIMIT 1", [(1, "0")]),
        ("WITH e AS (SELECT lsn FROM STREAM s WHERE partition IN (0, 1, 2) LIMIT 4) "
         "SELECT count(*) FROM e, names", [(40,)]),
        ("SELECT count(*) FROM STREAM s AFTER 1000 WAIT '10 ms', names", [(0,)]),
        ("SELECT count(*) FROM STREAM s LIMIT 1 TRANSACTIONS", [(30,)]),
        ("SELECT * FROM (SELECT lsn, name FROM STREAM s, names) q WHERE 1 = 0", []),
    ):  # fmt: skip
        assert answer(mine, text)[1] == rows, text
    text = "SELECT count(*) FROM STREAM s PARTITION %s e, names WHERE e.lsn < %s AND name <> %s"
    (count,) = mine.execute("SELECT count(*) FROM STREAM s PARTITION 1 WHERE lsn < 10").fetchone() or (0,)
    assert answer(mine, text, 1, 10, "n1")[1] == [(9 * count,)]
    assert mine.execute("EXPLAIN SELECT count(*) FROM STREAM s, names").fetchall()
    assert answer(mine, "EXPLAIN ANALYZE SELECT count(*) FROM STREAM s, names")[0] == "0A000"
    with mine.cursor().copy("COPY (SELECT lsn FROM STREAM s, names WHERE id = lsn) TO STDOUT") as copy:
        assert len(b"".join(bytes(part) for part in copy).split()) == 9
    for text, sqlstate in (
        ("SELECT count(*) FROM STREAM s CONSUMER GROUP none, names", "42704"),
        ("SELECT nothing FROM STREAM s, names", "42703"),
        ("SELECT count(*) FROM STREAM s PARTITION 77, names", "22023"),
        ("SELECT count(*) FROM STREAM s WAIT '1 s', STREAM other WAIT '1 s', names", "0A000"),
    ):
        assert answer(mine, text)[0] == sqlstate, text


def test_what_is_read_elsewhere_and_written_here(mine: Connection) -> None:
    source = "FROM STREAM s CONSUMER GROUP m"
    assert answer(mine, f"INSERT INTO mine SELECT lsn, op {source} LIMIT 7") == "INSERT 0 7"
    assert max(position(mine).values()) == 7
    mine.execute("COMMIT OFFSETS ON s CONSUMER GROUP m")
    assert answer(mine, f"INSERT INTO mine SELECT 1, op {source}")[0] == "23505"
    assert position(mine) == "55000"
    assert answer(mine, f"INSERT INTO mine SELECT lsn, op {source}") == "INSERT 0 24"
    mine.execute("COMMIT OFFSETS ON s CONSUMER GROUP m")
    assert answer(mine, f"SELECT count(*) {source}, names")[1] == [(0,)]
    assert answer(mine, "CREATE TABLE made AS SELECT op, after FROM STREAM s") == "SELECT 31"
    assert answer(mine, "SELECT count(*) FROM made WHERE after->>'x' = 'new'")[1] == [(1,)]
    mine.execute("DROP TABLE made")
    with mine.transaction(), pytest.raises(psycopg.errors.FeatureNotSupported):
        mine.execute(f"INSERT INTO mine SELECT lsn + 100, op {source}")
        mine.execute("COMMIT OFFSETS ON s CONSUMER GROUP m")


def test_a_mixed_read_counts_as_far_as_its_client_has_got(mine: Connection) -> None:
    source, kept = "FROM STREAM s CONSUMER GROUP m", "(SELECT id FROM names)"
    assert answer(mine, f"SELECT lsn {source} WHERE lsn IN {kept} LIMIT 3")[1] == [(1,), (2,), (3,)]
    assert max(position(mine).values()) == 3
    changes = f"SELECT _lsn {source} ENVELOPE CHANGES WHERE id IN {kept} LIMIT 11"
    assert len(answer(mine, changes)[1]) == 12  # An update's rows are not parted.
    assert max(position(mine).values()) == 31
    mine.execute("BEGIN")
    mine.execute(f"DECLARE c CURSOR FOR SELECT lsn {source} WHERE lsn NOT IN {kept}")
    assert mine.execute("FETCH 2 FROM c").fetchall() == [(10,), (11,)]
    mine.execute("COMMIT")
    assert max(position(mine).values()) == 11
    assert answer(mine, f"SELECT count(*) {source} a, (SELECT * {source}) b, names")[1]
    assert position(mine) == "55000"
    mine.execute(f"SELECT count(*) {source} MEMBER 'one', names")
    mine.execute("COMMIT OFFSETS ON s CONSUMER GROUP m MEMBER 'one'")
    offsets = mine.execute("SHOW OFFSETS ON s CONSUMER GROUP m").fetchall()
    assert max(row[1] for row in offsets) == 31


def test_a_read_with_commit_commits_at_its_owner(owner: Connection, entry: Connection) -> None:
    owner.execute("CREATE CONSUMER GROUP loop ON s")
    for member in ("", "MEMBER 'm'"):
        owner.execute("ALTER CONSUMER GROUP loop ON s SEEK TO EARLIEST")
        read = f"SELECT lsn FROM STREAM s CONSUMER GROUP loop {member} COMMIT LIMIT 4"
        seen: list[int] = []
        while rows := entry.execute(read).fetchall():
            offsets = owner.execute("SHOW OFFSETS ON s CONSUMER GROUP loop").fetchall()
            assert max(row[1] for row in offsets) == len(seen)
            seen += [lsn for (lsn,) in rows]
        assert seen == list(range(1, 32))
        owner.execute("ALTER CONSUMER GROUP loop ON s SEEK TO EARLIEST")
        owner.execute("LEAVE CONSUMER GROUP loop ON s MEMBER 'm'")
        # A commit there is no part of a transaction here.
        entry.execute("BEGIN")
        told = answer(entry, read)
        assert told[0] == "0A000" and told[1].startswith("COMMIT OFFSETS on node n1")
        entry.execute("ROLLBACK")
    owner.execute("DROP CONSUMER GROUP loop ON s")


def test_deliveries_are_counted_at_the_owner(owner: Connection, entry: Connection) -> None:
    """Whichever node a consumer asks: one count, the same smaller answers, the same event parked."""
    entry.execute("CREATE CONSUMER GROUP counted ON s WITH (max_deliveries = 3)")
    read = "SELECT lsn, deliveries FROM STREAM s CONSUMER GROUP counted WITH DELIVERIES LIMIT 25"
    try:
        found = [session.execute(read).fetchall() for session in (entry, owner, entry)]
        assert [len(rows) for rows in found] == [25, 5, 1]
        assert [rows[0] for rows in found] == [(1, 1), (1, 2), (1, 3)]
        assert entry.execute(read).fetchall() == [(2, 3)]
        columns = "lsn, deliveries, members, reason"
        parked = f"SELECT {columns} FROM ducktail.parked WHERE group_name = 'counted'"
        assert owner.execute(parked).fetchall() == [(1, 3, [], "delivered 3 times and not committed")]
        shown = entry.execute("SHOW PARKED ON s CONSUMER GROUP counted").fetchall()
        assert [row[-2:] for row in shown] == [(3, [])]
        entry.execute("COMMIT OFFSETS ON s CONSUMER GROUP counted")
        assert entry.execute(read).fetchall() == [(3, 3)]
    finally:
        entry.execute("DROP CONSUMER GROUP counted ON s")


def test_a_topic_of_a_cluster_has_no_delivery_counts(entry: Connection) -> None:
    entry.execute("CREATE TOPIC uncounted WITH (partitions = 2)")
    try:
        for text in (
            "CREATE CONSUMER GROUP g ON uncounted WITH (max_deliveries = 3)",
            "ALTER CONSUMER GROUP plain ON uncounted SET (max_deliveries = 3)",
        ):
            if text.startswith("ALTER"):
                entry.execute("CREATE CONSUMER GROUP plain ON uncounted")
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                entry.execute(text)
    finally:
        entry.execute("DROP TOPIC uncounted CASCADE")


def test_a_mixed_read_with_commit(mine: Connection) -> None:
    where = "lsn > (SELECT min(id) FROM names)"
    read = f"SELECT lsn FROM STREAM s CONSUMER GROUP m COMMIT WHERE {where} LIMIT 3"
    for number in range(3):
        assert [lsn for (lsn,) in mine.execute(read)] == list(range(3 * number + 1, 3 * number + 4))
        offsets = mine.execute("SHOW OFFSETS ON s CONSUMER GROUP m").fetchall()
        assert max(row[1] for row in offsets) == 3 * number
    mine.execute("BEGIN")
    assert answer(mine, read)[0] == "0A000"
    mine.execute("ROLLBACK")


@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("more", ["", "JOIN names n ON n.id = c.id"])
def test_an_alter_of_the_owners_is_seen_by_the_next_statement(
    owner: Connection, mine: Connection, simple: bool, more: str
) -> None:
    """A statement that its client has not prepared before has the columns that there are."""
    kind = psycopg.ClientCursor if simple else psycopg.Cursor
    owner.execute("CREATE TABLE wide (id INTEGER PRIMARY KEY)")
    owner.execute("CREATE STREAM wides ON wide")
    try:
        owner.execute("INSERT INTO wide VALUES (1)")
        text = f"SELECT c.* FROM STREAM wides ENVELOPE CHANGES c {more} WHERE c.id < %s"
        for turn in range(4):
            names = ["id", *(f"x{n}" for n in range(turn))]
            for _ in range(2):
                cursor = kind(mine).execute(text, [5], prepare=False)
                assert [column.name for column in cursor.description or ()][:-5] == names
                assert cursor.rowcount == 1
            owner.execute(f"ALTER TABLE wide ADD COLUMN x{turn} VARCHAR")
        if simple:
            return
        statement = mine.execute(text, [5], prepare=True).statusmessage
        owner.execute("ALTER TABLE wide DROP COLUMN x0")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan"):
            mine.execute(text, [5], prepare=True)
        assert statement == "SELECT 1"
    finally:
        owner.execute("DROP STREAM wides CASCADE")
        owner.execute("DROP TABLE wide")


def test_a_whole_copy_of_another_nodes_table(owner: Connection, entry: Connection) -> None:
    """Read in parts into a table of this node's; and another one after a gap, with its warning."""
    owner.execute("CREATE TABLE w (id INTEGER PRIMARY KEY, v INTEGER)")
    owner.execute("INSERT INTO w SELECT i, i FROM range(50) r(i)")
    owner.execute("CREATE STREAM ws ON w WITH (partitions = 2)")
    entry.execute("CREATE TABLE w_mirror (id INTEGER, v INTEGER)")
    make = "CREATE CONSUMER GROUP c ON ws START SNAPSHOT WITH (on_gap = 'snapshot')"
    with entry.transaction(force_rollback=True), pytest.raises(psycopg.Error) as caught:
        entry.execute(make)
    assert caught.value.sqlstate in ("25001", "0A000")
    entry.execute(make)
    owner.execute("UPDATE w SET v = 100 WHERE id = 7")
    scan = "STREAM ws CONSUMER GROUP c ENVELOPE CHANGES"
    part = f"SELECT id, v FROM {scan} WHERE _change_type <> 'update_preimage'"
    seen = 0
    while count := entry.execute(f"INSERT INTO w_mirror SELECT * FROM ({part} LIMIT 20)").rowcount:
        entry.execute("COMMIT OFFSETS ON ws CONSUMER GROUP c")
        seen += count
    assert seen == 51
    last = "SELECT id, max(v) FROM w_mirror GROUP BY id ORDER BY id"
    assert entry.execute(last).fetchall() == owner.execute("SELECT * FROM w ORDER BY id").fetchall()
    facts = dict(entry.execute("DESCRIBE CONSUMER GROUP c ON ws").fetchall())
    assert (facts["copy_rows"], facts["copy_rows_left"]) == ("50", "0")
    # What is about the node itself.
    assert entry.execute("SELECT * FROM ducktail.copies").fetchall() == []
    owner.execute("UPDATE w SET v = 200 WHERE id < 10")
    owner.execute("ALTER STREAM ws SET (retention_bytes = 1)")
    trimmed = "SELECT sum(trimmed_unread) FROM ducktail.offsets WHERE group_name = 'c'"
    while owner.execute(trimmed).fetchone() != (10,):
        pass
    owner.execute("ALTER STREAM ws SET (retention_bytes = '1 GB')")
    told: list[tuple[str | None, str | None]] = []
    entry.add_notice_handler(lambda notice: told.append((notice.severity, notice.sqlstate)))
    entry.execute("TRUNCATE w_mirror")
    assert entry.execute(f"INSERT INTO w_mirror SELECT * FROM ({part})").rowcount == 50
    entry.execute("COMMIT OFFSETS ON ws CONSUMER GROUP c")
    assert ("WARNING", "72000") in told
    assert entry.execute(last).fetchall() == owner.execute("SELECT * FROM w ORDER BY id").fetchall()
    owner.execute("DROP STREAM ws CASCADE")
    owner.execute("DROP TABLE w")


def test_notices_and_copy(owner: Connection, entry: Connection) -> None:
    told: list[str] = []
    entry.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    entry.execute("CREATE CONSUMER GROUP IF NOT EXISTS g ON s")
    assert any("already exists" in words for words in told)
    texts = []
    for session in (owner, entry):
        with session.cursor().copy("COPY (SELECT lsn, op FROM STREAM s) TO STDOUT (FORMAT csv)") as copy:
            texts.append(b"".join(bytes(part) for part in copy))
    assert texts[0] == texts[1] and texts[0].count(b"\n") == 31


def test_many_rows_come_in_their_order(owner: Connection, entry: Connection) -> None:
    owner.execute("CREATE TABLE big (id INTEGER PRIMARY KEY, x VARCHAR)")
    owner.execute("CREATE STREAM bigs ON big")
    owner.execute("INSERT INTO big SELECT i, repeat('x', 50) FROM range(60_000) r(i)")
    for text in ("SELECT lsn, after FROM STREAM bigs", "SELECT lsn::DOUBLE, op FROM STREAM bigs"):
        with entry.cursor(), owner.cursor():
            assert entry.execute(text).fetchall() == owner.execute(text).fetchall()


def test_a_cancel_travels(owner: Connection, entry: Connection) -> None:
    told: list[Any] = []
    waiter = threading.Thread(
        target=lambda: told.append(answer(entry, "SELECT * FROM STREAM s AFTER 1000 WAIT '100 s'"))
    )
    waiter.start()
    working = "SELECT count(*) FROM ducktail.sessions WHERE node = 'n2' AND state = 'active'"
    while owner.execute(working).fetchone() != (1,):
        pass
    entry.cancel_safe()
    waiter.join(20)
    assert told[0][0] == "57014"
    while owner.execute(working).fetchone() != (0,):
        pass
    assert answer(entry, "SELECT lsn FROM STREAM s LIMIT 1")[1] == [(1,)]
    # A cancel that comes late ends nothing else.
    entry.execute("SET statement_timeout = '20ms'")
    for _ in range(20):
        assert answer(entry, "SELECT * FROM STREAM s AFTER 1000 WAIT '100 s'")[0] == "57014"
        entry.execute("SET statement_timeout = 0")
        assert answer(entry, "SELECT lsn FROM STREAM s LIMIT 1")[1] == [(1,)]
        entry.execute("SET statement_timeout = '20ms'")


def test_a_setting_that_was_sent_with_a_statement_that_timed_out_does_not_stay(
    owner: Connection, entry: Connection
) -> None:
    wait = "SELECT * FROM STREAM s AFTER 1000 WAIT '600 ms'"
    entry.execute("SELECT count(*) FROM STREAM s")
    entry.execute("SET statement_timeout = '100ms'")
    assert answer(entry, wait)[0] == "57014"
    entry.execute("SET statement_timeout = 0")
    assert answer(entry, wait) == answer(owner, wait)


def test_parameters_that_python_has_no_value_for(owner: Connection, entry: Connection) -> None:
    for value, type_ in (
        ("1 year 2 mons 3 days 04:05:06", "interval"),
        ("infinity", "timestamptz"),
        ("0044-03-15 BC", "date"),
    ):
        text = f"SELECT lsn, (%s::{type_})::VARCHAR AS v FROM STREAM s LIMIT 1"
        assert answer(entry, text, value) == answer(owner, text, value)
    text = "SELECT lsn, %s AS v FROM STREAM s LIMIT 1"
    value = datetime.timedelta(days=3, seconds=1)
    assert answer(entry, text, value) == answer(owner, text, value)


def test_schemas_of_the_search_path_that_the_owner_has_not(owner: Connection, entry: Connection) -> None:
    entry.execute("CREATE SCHEMA IF NOT EXISTS only_here")
    entry.execute("SET search_path = 'only_here'")
    assert answer(entry, "SELECT count(*) FROM STREAM main.s") == answer(
        owner, "SELECT count(*) FROM STREAM main.s"
    )
    assert answer(entry, "SELECT count(*) FROM STREAM s")[0] == "42704"
    entry.execute("SET search_path = only_here, main")
    assert answer(entry, "SELECT count(*) FROM STREAM s") == answer(owner, "SELECT count(*) FROM STREAM s")


def test_what_was_prepared_is_of_this_nodes_own_stream_once_it_has_one(
    cluster: ClusterProcesses, entry: Connection
) -> None:
    with cluster["n1"].connect() as other:
        other.execute("CREATE TABLE u (i INTEGER PRIMARY KEY)")
        other.execute("CREATE STREAM twice ON u")
        other.execute("INSERT INTO u VALUES (1)")
    entry.execute("CREATE TABLE mine (i INTEGER PRIMARY KEY)")
    text = "SELECT count(*) FROM STREAM twice"
    counts = []
    # As only a node can that has come by a name meanwhile.
    said = "-c ducktail.node=n1 -c ducktail.cluster=shop -c ducktail.epoch=1"
    with cluster["n2"].connect(options=said) as here:
        for change in ("CREATE TABLE aside (i INTEGER)", "CREATE STREAM twice ON mine", "DROP STREAM twice"):
            counts.append(entry.execute(text, prepare=True).fetchone())
            here.execute(change)
    counts.append(entry.execute(text, prepare=True).fetchone())
    assert counts == [(1,), (1,), (0,), (1,)]


def test_explain_in_a_transaction_block(entry: Connection) -> None:
    with entry.transaction():
        assert entry.execute("EXPLAIN SELECT lsn FROM STREAM s").fetchall()


def test_links_that_wait_for_a_session_are_few(cluster: ClusterProcesses, owner: Connection) -> None:
    sessions = [cluster["n2"].connect(application_name="many") for _ in range(20)]
    for session in sessions:
        session.execute("SELECT count(*) FROM STREAM s")
    for session in sessions:
        session.close()
    # All ended at once; 8 may stay of this user, besides those of other tests and of the directory.
    count = 20
    while count > 8:
        (count,) = owner.execute(
            "SELECT count(*) FROM ducktail.sessions WHERE application_name = 'many'"
        ).fetchone() or (0,)


def test_a_stream_that_was_nowhere_is_found_once_it_is_made(owner: Connection, entry: Connection) -> None:
    """What a session has asked for in vain it asks for again, in the same words."""
    scan = "FROM STREAM later"
    texts = [f"SELECT after {scan}", f"SELECT count(*) {scan}", "SHOW PARTITIONS ON later"]
    for text in texts:
        assert answer(entry, text)[0] == "42704"
    owner.execute("CREATE TABLE later_of (id INTEGER PRIMARY KEY)")
    owner.execute("CREATE STREAM later ON later_of")
    for text in texts:
        expected = answer(owner, text)
        assert expected[2].startswith(("SELECT", "SHOW"))
        assert answer(entry, text) == expected
    owner.execute("DROP STREAM later")
    owner.execute("DROP TABLE later_of")


@pytest.mark.parametrize("columns", ["e.lsn, e.after->>'id'", "e.lsn, e.after->>'id', (FROM beside)"])
def test_what_is_prepared_follows_its_stream(
    cluster: ClusterProcesses, owner: Connection, entry: Connection, columns: str
) -> None:
    """A stream that is dropped, made on another node, and made here: each is what is told at once."""
    entry.execute("CREATE TABLE beside AS SELECT 'y' AS y")
    by_name = f"EXECUTE walk_by_name -- {columns}"
    entry.execute("DEALLOCATE ALL")

    def told() -> list[Any]:
        found: list[Any] = []
        result = entry.pgconn.exec_prepared(b"walk", [])
        values = [result.get_value(row, 1) for row in range(result.ntuples)]
        found.append(values if result.ntuples else result.error_field(67))
        rows = answer(entry, by_name)
        found.append([row[1].encode() for row in rows[1]] if len(rows) == 3 else rows[0].encode())
        return found

    with cluster["n2"].connect() as here, cluster["n3"].connect() as third:
        text = f"SELECT {columns} FROM STREAM walking e"
        for number, session in enumerate((owner, third, here)):
            session.execute("CREATE TABLE walker (id INTEGER PRIMARY KEY)")
            session.execute("CREATE STREAM walking ON walker")
            session.execute(f"INSERT INTO walker VALUES ({number})")
            if session is owner:
                entry.pgconn.prepare(b"walk", text.encode())
                entry.execute(f"PREPARE walk_by_name AS {text}")
            assert told() == [[str(number).encode()]] * 2
            session.execute("DROP STREAM walking")
            session.execute("DROP TABLE walker")
            assert told() == [b"42704"] * 2
        here.execute("DROP TABLE beside")


def test_an_argument_of_execute_reads_no_stream_of_another_node(owner: Connection, entry: Connection) -> None:
    entry.execute("PREPARE echo AS SELECT $1 AS x")
    for scan in ("STREAM s", "STREAM s CONSUMER GROUP g MEMBER 'm'"):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="argument of EXECUTE cannot read a str"):
            entry.execute(f"EXECUTE echo((SELECT count(*) FROM {scan}))")
    assert owner.execute("SHOW MEMBERS ON s CONSUMER GROUP g").fetchall() == []
    assert entry.execute("EXECUTE echo(1)").fetchone() == (1,)

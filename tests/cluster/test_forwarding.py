"""Statements about streams on tables, sent to a node that does not have them: the owner's own answers."""

from __future__ import annotations

import datetime
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster_processes import ClusterProcesses

NODES = ("n1", "n2", "n3")
ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0-1023" }\n'
DRIVER = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).parents[1] / "clients" / "java" / "Forwarded.java"
Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes; n1 has table t with 30 rows, stream s of 3 partitions on it, and group g; n3 has other."""
    with ClusterProcesses(tmp_path_factory.mktemp("c"), 3, ALL) as nodes:
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


# What takes no time of its own; in a transaction, as the driver reads in parts, changes are refused.
JDBC_READS = [
    text for text in READS if text.startswith(("SELECT", "SHOW")) and not re.search("WAIT|missing", text)
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


def test_several_nodes_in_one_statement(entry: Connection) -> None:
    told = answer(entry, "SELECT * FROM STREAM s JOIN STREAM other o ON true")
    assert told[:2] == ("0A000", "a statement cannot be about several nodes")
    entry.execute("CREATE TABLE mine (lsn BIGINT)")
    try:
        told = answer(entry, "INSERT INTO mine SELECT lsn FROM STREAM s")
        assert told[:2] == ("0A000", "a statement cannot be about several nodes")
        told = answer(entry, "CREATE TABLE more AS SELECT lsn FROM STREAM s")
        assert told[:2] == ("0A000", "a statement cannot be about several nodes")
    finally:
        entry.execute("DROP TABLE mine")


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


def test_psql_sees_the_same(cluster: ClusterProcesses) -> None:
    texts = [text for text in READS if "missing" not in text and "WAIT" not in text]
    told = []
    for name in ("n1", "n2"):
        node = cluster[name]
        command = ["psql", "-XA", node.conninfo]
        for text in texts:
            command += ["-c", text]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        told.append((re.sub(r"\d+\.\d+", "", ended.stdout), ended.stderr))
    assert told[0] == told[1]


@pytest.mark.jdbc
def test_pgjdbc_sees_the_same(cluster: ClusterProcesses, tmp_path: Path) -> None:
    subprocess.run(["javac", "-cp", str(DRIVER), "-d", str(tmp_path), str(SOURCE)], check=True)
    nodes = [cluster[name] for name in NODES[:2]]
    urls = [f"jdbc:postgresql://{node.host}:{node.port}/ducktail?user=ducktail" for node in nodes]
    done = subprocess.run(
        ["java", "-cp", f"{DRIVER}:{tmp_path}", "Forwarded", *urls, *JDBC_READS],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    *lines, positions = done.stdout.splitlines()
    assert lines == ["same"] * 3 * len(JDBC_READS)
    there, here = positions.split("} ")
    assert there + "}" == here


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

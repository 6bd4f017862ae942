"""The connector of MySQL and MariaDB with a real MariaDB server: types, transactions, definitions, errors.

Source: docs/sources.md, "MySQL and MariaDB"; issue 28.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import pytest
from mariadb_process import MariadbServer
from mysql_reader import READ_S, SERVER_IDS, Reader, in_duckdb, until

from ducktail.engine.catalog.source_tables import (
    DEFINE,
    DELETE,
    INSERT,
    PIECE_ROWS,
    TRUNCATE,
    UPDATE,
    Change,
    SourceTable,
)
from ducktail.engine.checkpoints.positions import BinlogPosition, MariadbGtids
from ducktail.engine.errors import (
    DataError,
    NotSupported,
    SourceUnavailable,
    WrongState,
)
from ducktail.pgwire_gateway.sources.mysql import MysqlConnector, binlog, mysql_changes

pytestmark = [pytest.mark.slow]


# Types.


class Kind(NamedTuple):
    """A type there, its type here, and values: SQL there, and text here."""

    type: str
    duckdb: str
    values: Sequence[tuple[str, str | None]]


def same(*texts: str) -> list[tuple[str, str | None]]:
    return [(text, text.strip("'")) for text in texts]


TYPES = (
    Kind("tinyint", "TINYINT", same("-128", "127")),
    Kind("tinyint(1)", "TINYINT", same("1", "2")),
    Kind("boolean", "TINYINT", [("TRUE", "1"), ("FALSE", "0")]),
    Kind("tinyint unsigned", "UTINYINT", same("0", "255")),
    Kind("smallint", "SMALLINT", same("-32768", "32767")),
    Kind("smallint unsigned", "USMALLINT", same("65535", "0")),
    Kind("mediumint", "INTEGER", same("-8388608", "8388607", "-1")),
    Kind("mediumint unsigned", "UINTEGER", same("16777215", "0")),
    Kind("int", "INTEGER", same("-2147483648", "2147483647")),
    Kind("int unsigned zerofill", "UINTEGER", same("4294967295", "42")),
    Kind("bigint", "BIGINT", same("-9223372036854775808", "9223372036854775807")),
    Kind("bigint unsigned", "UBIGINT", same("18446744073709551615", "0")),
    Kind("decimal(10,2)", "DECIMAL(10,2)", same("-12345678.90", "0.05", "-0.05")),
    Kind("decimal(5)", "DECIMAL(5,0)", same("-99999", "7")),
    Kind("decimal(10,9)", "DECIMAL(10,9)", same("0.123456789", "-0.000000001")),
    Kind("decimal(38,10)", "DECIMAL(38,10)", same("-1234567890123456789012345678.0123456789")),
    Kind(
        "decimal(65,30)", "VARCHAR",
        same("-12345678901234567890123456789012345.123456789012345678901234567890",
             "0.000000000000000000000000000001"),
    ),
    Kind("decimal(40,2) zerofill", "VARCHAR", [("7.5", "7.50"), ("0", "0.00")]),
    Kind("float", "FLOAT", [("1.1", "1.1"), ("3.4028234e38", "3.4028235e+38"), ("-16777217", "-16777216.0")]),
    Kind("double", "DOUBLE", [("-0.1", "-0.1"), ("1.7976931348623157e308", "1.7976931348623157e+308"),
                              ("0.30000000000000004e0", "0.30000000000000004")]),
    Kind("bit(1)", "UBIGINT", [("b'1'", "1"), ("b'0'", "0")]),
    Kind("bit(10)", "UBIGINT", [("b'1000000001'", "513")]),
    Kind("bit(64)", "UBIGINT", [("x'FFFFFFFFFFFFFFFF'", "18446744073709551615"), ("1", "1")]),
    Kind("char(10)", "VARCHAR", [("'añ€😀'", "añ€😀"), ("'x  '", "x"), ("''", "")]),
    Kind("char(10) character set latin1", "VARCHAR", [("'é€'", "é€"), ("x'8190'", "\x81\x90")]),
    Kind("varchar(60)", "VARCHAR", same("'a  '", "'tab\t\"quote\"'")),
    Kind("varchar(300)", "VARCHAR", [("REPEAT('ü', 300)", "ü" * 300), ("''", "")]),
    Kind("varchar(20) character set cp1251", "VARCHAR", same("'Привет'")),
    Kind("varchar(20) character set sjis", "VARCHAR", same("'こんにちは'")),
    Kind("tinytext", "VARCHAR", same("'tiny'")),
    Kind("text character set ucs2", "VARCHAR", same("'Ω ünï'")),
    Kind("mediumtext", "VARCHAR", [("REPEAT('m', 70000)", "m" * 70000)]),
    Kind("longtext", "VARCHAR", same("'long 😀'")),
    Kind("binary(5)", "BLOB", [("x'6100'", "a\\x00\\x00\\x00\\x00"), ("x'0000000000'", "\\x00" * 5)]),
    Kind("varbinary(300)", "BLOB", [("x'00FF00'", "\\x00\\xFF\\x00"), ("''", "")]),
    Kind("tinyblob", "BLOB", [("x'01'", "\\x01")]),
    Kind("blob", "BLOB", [("x'C3A9'", "\\xC3\\xA9")]),
    Kind("longblob", "BLOB", [("REPEAT(x'00', 1000)", "\\x00" * 1000)]),
    Kind("json", "JSON", same("'{\"a\": [1, \"é\", null]}'", "'3'")),
    Kind("enum('a','b''c','ü,x')", "VARCHAR", [("'ü,x'", "ü,x"), ("'b''c'", "b'c"), ("'unknown'", "")]),
    Kind("set('x','y','z')", "VARCHAR", [("'z,x'", "x,z"), ("''", "")]),
    Kind("set(" + ",".join(f"'v{i}'" for i in range(64)) + ")", "VARCHAR", [("'v63,v0'", "v0,v63")]),
    Kind(
        "date", "DATE",
        [("'2024-02-29'", "2024-02-29"), ("'9999-12-31'", "9999-12-31"), ("'0000-00-00'", None),
         ("'2024-00-10'", None), ("'2023-02-31'", None), ("'0001-01-01'", "0001-01-01")],
    ),
    Kind("datetime", "TIMESTAMP", [("'2024-01-02 03:04:05'", "2024-01-02 03:04:05"), ("'0000-00-00'", None),
                                   ("'1900-02-29 01:02:03'", None)]),
    Kind("datetime(1)", "TIMESTAMP", same("'2024-01-02 03:04:05.6'")),
    Kind("datetime(3)", "TIMESTAMP", same("'1000-01-01 00:00:00.001'")),
    Kind("datetime(6)", "TIMESTAMP", same("'9999-12-31 23:59:59.999999'", "'2024-01-02 03:04:05.000001'")),
    # The session that writes is two hours ahead of UTC.
    Kind("timestamp null", "TIMESTAMPTZ", [("'2024-07-01 02:00:01'", "2024-07-01 00:00:01+00"), ("0", None)]),
    Kind("timestamp(2) null", "TIMESTAMPTZ", [("'2038-01-19 05:14:07.99'", "2038-01-19 03:14:07.99+00")]),
    Kind("timestamp(6) null", "TIMESTAMPTZ", [("'1970-01-01 02:00:01.000001'",
                                               "1970-01-01 00:00:01.000001+00")]),
    Kind("time", "INTERVAL", same("'838:59:59'", "'-838:59:59'", "'-00:00:01'")),
    Kind("time(1)", "INTERVAL", [("'-00:00:00.5'", "-00:00:00.5"), ("'23:59:59.9'", "23:59:59.9")]),
    Kind("time(3)", "INTERVAL", [("'-01:02:03.004'", "-01:02:03.004")]),
    Kind("time(6)", "INTERVAL", same("'-12:34:56.000001'", "'100:00:00.999999'")),
    Kind("year", "SMALLINT", same("1901", "2155", "0")),
    Kind("point", "BLOB", [("ST_GeomFromText('POINT(1 2)')",
                            "\\x00\\x00\\x00\\x00\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\xF0?"
                            "\\x00\\x00\\x00\\x00\\x00\\x00\\x00@")]),
    Kind("uuid", "UUID", same("'123e4567-e89b-12d3-a456-426655440000'",
                              "'00000000-0000-0000-0000-000000000000'",
                              "'018fd2a6-7c1e-7abc-8def-0123456789ab'")),
    Kind("inet6", "VARCHAR", same("'2001:db8::1'", "'::'", "'::ffff:1.2.3.4'", "'::1.2.3.4'")),
    Kind("inet4", "VARCHAR", same("'255.1.2.0'", "'0.0.0.0'")),
)  # fmt: skip


def test_types_and_values_from_a_copy_and_from_the_log(server: MariadbServer) -> None:
    count = max(len(kind.values) for kind in TYPES) + 1
    columns = ", ".join(f"c{i} {kind.type}" for i, kind in enumerate(TYPES))

    def values(place: int) -> str:
        chosen = (kind.values[place][0] if place < len(kind.values) else "NULL" for kind in TYPES)
        return f"({place}, {', '.join(chosen)})"

    insert = "INSERT INTO every VALUES " + ", ".join(values(place) for place in range(count))
    session = ("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+02:00', character_set_client = utf8mb4",)
    server.ask(f"CREATE TABLE every (id INT PRIMARY KEY, {columns})", *session, insert)
    with Reader(server, "every") as reader:
        [table] = reader.tables
        assert [column.type for column in table.columns[1:]] == [kind.duckdb for kind in TYPES]
        server.ask(*session, "DELETE FROM every", insert)
        [deletes, inserts] = reader.transactions()
        logged = [change.new for change in inserts]
        assert {change.op for change in inserts} == {INSERT} and {c.op for c in deletes} == {DELETE}
        for name, rows in (
            ("copied", reader.rows["every"]),
            ("logged", logged),
            ("deleted", [change.old for change in deletes]),
        ):
            found = sorted(in_duckdb(table, rows), key=lambda row: int(str(row[0])))  # type: ignore[arg-type]
            for number, kind in enumerate(TYPES):
                texts = [row[number + 1] for row in found]
                expected = [text for _, text in kind.values]
                expected += [None] * (count - len(expected))
                assert texts == expected, (name, kind.type)


def test_every_byte_of_a_character_set_is_read_as_the_server_reads_it(server: MariadbServer) -> None:
    sets = ("latin1", "latin2", "cp1251", "cp866", "greek", "hebrew", "koi8u", "macroman", "tis620", "cp852")
    columns = ", ".join(f"c_{name} CHAR(1) CHARACTER SET {name}" for name in sets)
    server.ask(f"CREATE TABLE bytes (id INT PRIMARY KEY, {columns})")
    with Reader(server, "bytes") as reader:
        for first in range(1, 256, 85):
            rows = (
                f"({byte}, {', '.join([f'''x'{byte:02x}' '''] * len(sets))})"
                for byte in range(first, first + 85)
            )
            server.ask("SET sql_mode = ''", f"INSERT INTO bytes VALUES {', '.join(rows)}")
        logged = {new[0]: new[1:] for _, _, new in reader.events()}  # type: ignore[index]
    with Reader(server, "bytes") as again:
        assert {row[0]: row[1:] for row in again.rows["bytes"]} == logged
    shown = server.ask("SELECT * FROM bytes ORDER BY id")
    assert len(shown) == 255
    for byte, *texts in shown:
        found = logged[byte]
        expected = [text if text != "?" or byte == ord("?") else "\ufffd" for text in texts]
        assert [
            mine if theirs != "\ufffd" else theirs for mine, theirs in zip(found, expected, strict=True)
        ] == expected


def test_tables_of_unusual_names_keys_and_columns(server: MariadbServer) -> None:
    server.ask(
        "CREATE TABLE `o``d \"d'ü` (`a b` INT, `ü``x` VARCHAR(5), g INT AS (`a b` * 2) VIRTUAL, "
        "s INT AS (`a b` * 3) STORED, hidden INT INVISIBLE DEFAULT 4, PRIMARY KEY (`ü``x`, `a b`))",
        "CREATE TABLE nokey (a INT, b LONGTEXT, UNIQUE (b))",
    )
    with Reader(server, "o`d \"d'ü", "nokey") as reader:
        odd, nokey = reader.tables
        assert odd.key == ("ü`x", "a b") and nokey.key == ()
        assert [(c.name, c.not_null) for c in odd.columns] == [
            ("a b", True), ("ü`x", True), ("g", False), ("s", False), ("hidden", False),
        ]  # fmt: skip
        assert all(odd.identity) and len(odd.identity) == 5
        server.ask(
            "INSERT INTO `o``d \"d'ü` (`a b`, `ü``x`) VALUES (1, 'x')",
            "UPDATE `o``d \"d'ü` SET `a b` = 2",
            "INSERT INTO nokey VALUES (1, 'long'), (1, NULL)",
            "DELETE FROM nokey WHERE b IS NULL",
        )
        assert reader.events() == [
            (INSERT, None, (1, "x", 2, 3, 4)),
            (UPDATE, (1, "x", 2, 3, 4), (2, "x", 4, 6, 4)),
            (INSERT, None, (1, "long")),
            (INSERT, None, (1, None)),
            (DELETE, (1, None), None),
        ]


@pytest.mark.parametrize(
    "definition",
    [
        "id INT, v VARCHAR(20) COMPRESSED",
        "id INT) WITH SYSTEM VERSIONING COMMENT='x'",
        "t TEXT CHARACTER SET swe7",
    ],
)
def test_what_cannot_be_read_is_refused_by_describe(server: MariadbServer, definition: str) -> None:
    end = "" if definition.endswith("'") else ")"
    server.ask("DROP TABLE IF EXISTS unread", f"CREATE TABLE unread ({definition}{end}")
    connector = MysqlConnector(server.url, [(None, "unread")], next(SERVER_IDS))
    with pytest.raises(NotSupported, match="unread"):
        connector.describe()


def test_a_date_that_does_not_exist_is_an_error_in_a_key(server: MariadbServer) -> None:
    server.ask("CREATE TABLE days (day DATE PRIMARY KEY, other DATE NOT NULL)")
    with Reader(server, "days") as reader:
        assert [c.not_null for c in reader.tables[0].columns] == [True, False]
        server.ask("SET sql_mode = ''", "INSERT INTO days VALUES ('2024-01-01', '0000-00-00')")
        assert reader.events() == [(INSERT, None, ("2024-01-01", None))]
        server.ask("SET sql_mode = ''", "INSERT INTO days VALUES ('0000-00-00', '2024-01-01')")
        error = reader.error()
    assert isinstance(error, DataError) and '"day"' in error.message and "shop.days" in error.message


# Transactions.


def test_transactions_come_whole_and_in_order_with_their_gtids(server: MariadbServer) -> None:
    server.ask(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY) ENGINE=MyISAM"
    )
    server.ask("CREATE TABLE other (id INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    with Reader(server, "a", "b") as reader:
        assert sorted(reader.rows["a"]) == [(1, 1), (2, 2)] and reader.rows["b"] == []
        first = int(reader.position.rpartition("-")[2])
        begun_us = time.time_ns() // 1000
        server.ask(
            "INSERT INTO other VALUES (1)",
            "BEGIN", "UPDATE a SET id = 3, v = 9 WHERE id = 2", "INSERT INTO other VALUES (2)",
            "DELETE FROM a WHERE id = 1", "COMMIT",
            "BEGIN", "INSERT INTO a VALUES (7, 7)", "ROLLBACK",
            "INSERT INTO b VALUES (5), (6)",
            "BEGIN", "INSERT INTO a VALUES (8, 8)", "SAVEPOINT s", "INSERT INTO a VALUES (9, 9)",
            "ROLLBACK TO s", "INSERT INTO a VALUES (10, 10)", "COMMIT",
            "TRUNCATE TABLE a",
        )  # fmt: skip
        pieces = reader.pieces()
    changed = [piece for piece in pieces if piece.changes]
    assert [[change[:2] + change[2:] for change in piece.changes] for piece in changed] == [
        [Change(UPDATE, ("shop", "a"), (2, 2), (3, 9)), Change(DELETE, ("shop", "a"), (1, 1), None)],
        [Change(INSERT, ("shop", "b"), None, (5,)), Change(INSERT, ("shop", "b"), None, (6,))],
        [Change(INSERT, ("shop", "a"), None, (8, 8)), Change(INSERT, ("shop", "a"), None, (10, 10))],
        [Change(TRUNCATE, ("shop", "a"), None, None)],
    ]
    commits = [piece.commit for piece in changed if piece.commit is not None]
    assert [commit.txid for commit in commits] == [f"0-1-{first + place}" for place in (2, 3, 4, 5)]
    assert [commit.position for commit in commits] == [commit.txid for commit in commits]
    positions = [MariadbGtids.parse(commit.position) for commit in commits]
    assert all(one < two for one, two in itertools.pairwise(positions))
    for commit in commits:
        # MariaDB logs whole seconds.
        assert begun_us - 1_000_000 <= commit.commit_us <= time.time_ns() // 1000


def test_reading_goes_on_behind_any_transaction_without_a_repetition(server: MariadbServer) -> None:
    server.ask("CREATE TABLE again (id INT PRIMARY KEY)")
    with Reader(server, "again") as reader:
        for number in range(10):
            server.ask(
                f"SET gtid_domain_id = {number % 3}", f"INSERT INTO again VALUES ({number})",
            )  # fmt: skip
        server.ask("FLUSH BINARY LOGS", "INSERT INTO again VALUES (10)")
        pieces = [piece for piece in reader.pieces() if piece.changes]
        rows = [change.new for piece in pieces for change in piece.changes]
        assert rows == [(number,) for number in range(11)]
        for place in (0, 1, 5, 9):
            commit = pieces[place].commit
            assert commit is not None
            reader.position, reader.changes = commit.position, None
            assert [new for _, _, new in reader.events()] == rows[place + 1 :], commit
        with reader.connector.copy() as copy:
            assert sorted(MariadbGtids.parse(copy.position).domains) == [0, 1, 2]


def test_a_large_transaction_comes_in_pieces(server: MariadbServer) -> None:
    server.ask("CREATE TABLE large (id INT PRIMARY KEY, v VARCHAR(200))", "CREATE TABLE one (id INT)")
    with Reader(server, "large") as reader:
        count = 2 * PIECE_ROWS + 5
        server.ask(
            "BEGIN", f"INSERT INTO large SELECT seq, REPEAT('x', 100) FROM seq_1_to_{count}",
            "UPDATE large SET v = REPEAT('y', 150) WHERE id <= 3", "COMMIT",
        )  # fmt: skip
        pieces = reader.pieces()
    assert all(0 < len(piece.changes) <= PIECE_ROWS for piece in pieces)
    assert len(pieces) > 2 and [piece.commit is None for piece in pieces] == [True] * (len(pieces) - 1) + [
        False
    ]
    rows = [change.new for piece in pieces for change in piece.changes]
    assert rows[:count] == [(number + 1, "x" * 100) for number in range(count)]
    assert rows[count:] == [(number, "y" * 150) for number in (1, 2, 3)]
    assert 100 * count < sum(piece.bytes for piece in pieces) < 200 * count


def test_a_transaction_that_ends_with_full_pieces_has_its_end(
    server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_changes, "PIECE_ROWS", 2)
    server.ask("CREATE TABLE full_pieces (id INT PRIMARY KEY)")
    with Reader(server, "full_pieces") as reader:
        server.ask("BEGIN", *(f"INSERT INTO full_pieces VALUES ({i})" for i in range(4)), "COMMIT")
        pieces = reader.pieces()
    assert [(len(piece.changes), piece.commit is None) for piece in pieces][:2] == [(2, True), (2, True)]
    assert len(pieces) == 3 and pieces[2].changes == () and pieces[2].commit is not None


def test_a_row_of_many_packets(server: MariadbServer) -> None:
    server.ask(
        "CREATE TABLE wide (id INT PRIMARY KEY, v LONGBLOB)", "SET GLOBAL max_allowed_packet = 64 << 20"
    )
    with Reader(server, "wide") as reader:
        server.ask("INSERT INTO wide VALUES (1, REPEAT('0123456789', 1700000)), (2, 'z')")
        rows = [new for _, _, new in reader.events()]
    assert rows == [(1, b"0123456789" * 1_700_000), (2, b"z")]


def test_positions_move_on_transactions_of_other_tables(server: MariadbServer) -> None:
    server.ask("CREATE TABLE idle (id INT)", "CREATE TABLE busy (id INT)")
    with Reader(server, "idle") as reader:
        changes = reader.open()
        server.ask(*(f"INSERT INTO busy VALUES ({i})" for i in range(50)))
        end, pieces = reader.end(), []
        while not pieces or pieces[-1].commit.position != end:
            piece = changes.next(2.0)
            assert piece is not None and piece.changes == () and piece.commit is not None
            pieces.append(piece)
        assert len(pieces) <= 3
        begun_s = time.monotonic()
        assert changes.next(0.2) is None
        assert 0.15 < time.monotonic() - begun_s < 2.0
        assert changes.behind()[0] == 0
        changes.confirm(end)


def test_the_bytes_behind_over_several_files(server: MariadbServer) -> None:
    server.ask("CREATE TABLE behind (id INT, v TEXT)")
    with Reader(server, "behind") as reader:
        changes = reader.open()
        server.ask("INSERT INTO behind VALUES (0, '')")
        assert len(reader.events()) == 1
        server.ask("INSERT INTO behind VALUES (1, REPEAT('x', 10000))", "FLUSH BINARY LOGS")
        server.ask("FLUSH BINARY LOGS", "INSERT INTO behind VALUES (2, REPEAT('x', 20000))")
        count, shown = changes.behind()
        assert count is not None and 30_000 < count < 40_000
        assert shown == str(BinlogPosition.parse(shown))
        assert len(reader.events()) == 2
        # A server writes a checkpoint of its own into a new file a moment later.
        until(lambda: changes.next(0.05) is not None or changes.behind()[0] == 0)


def test_positions_in_files(server: MariadbServer) -> None:
    server.ask("CREATE TABLE filed (id INT PRIMARY KEY)")
    with Reader(server, "filed", parameters="position=file") as reader:
        assert isinstance(binlog.position_of(reader.position), BinlogPosition)
        server.ask("INSERT INTO filed VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO filed VALUES (2)")
        # A server writes events of its own behind a transaction: the end of the log is no position of one.
        changes, pieces = reader.open(), []
        while len(pieces) < 2:
            piece = changes.next(READ_S)
            assert piece is not None and piece.commit is not None
            pieces += [piece] if piece.changes else []
        assert [piece.changes[0].new for piece in pieces] == [(1,), (2,)]
        reader.position, reader.changes = pieces[0].commit.position, None
        piece = reader.open().next(READ_S)
        while piece is not None and not piece.changes:
            piece = reader.open().next(READ_S)
        assert piece == pieces[1]


def test_a_log_without_transactions_has_a_position(own_server: MariadbServer) -> None:
    own_server.ask("CREATE TABLE t (id INT)", "RESET MASTER")
    with Reader(own_server, "t") as reader:
        assert reader.position == "0-1-0"
        own_server.ask("INSERT INTO t VALUES (1)")
        assert reader.events() == [(INSERT, None, (1,))]


def test_compressed_events(own_server: MariadbServer) -> None:
    own_server.ask("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    own_server.ask("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    with Reader(own_server, "t") as reader:
        own_server.ask(
            "INSERT INTO t VALUES (1, REPEAT('a', 1000)), (2, 'b')", "UPDATE t SET v = REPEAT('c', 900)",
            "ALTER TABLE t ADD COLUMN extra_column_with_a_long_name INT DEFAULT 7",
            "DELETE FROM t WHERE id = 1",
        )  # fmt: skip
        events = reader.events()
    assert [event[0] for event in events] == [INSERT, INSERT, UPDATE, UPDATE, DEFINE, DELETE]
    assert events[2][1:] == ((1, "a" * 1000), (1, "c" * 900)) and events[5][1] == (1, "c" * 900, 7)


def test_a_copy_is_consistent_with_its_position_under_writes(server: MariadbServer) -> None:
    server.ask("CREATE TABLE moving (id INT PRIMARY KEY, v INT)", "CREATE TABLE moved (id INT) ENGINE=MyISAM")
    server.ask("INSERT INTO moving SELECT seq, 0 FROM seq_1_to_200")
    stop = threading.Event()

    def write() -> None:
        connection = server.connect("shop")
        number = 0
        while not stop.is_set():
            number += 1
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE moving SET v = {number} WHERE id = {number % 200 + 1}")
                cursor.execute(f"INSERT INTO moved VALUES ({number})")
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            with Reader(server, "moving", "moved") as reader:
                state: dict[object, object] = dict(reader.rows["moving"])  # type: ignore[arg-type]
                inserted = [row[0] for row in reader.rows["moved"]]
                seen = 0
                for transaction in reader.transactions():
                    for change in transaction:
                        assert isinstance(change.new, tuple)
                        if change.table[1] == "moved":
                            inserted.append(change.new[0])
                        else:
                            assert change.old == (change.new[0], state[change.new[0]])
                            state[change.new[0]] = change.new[1]
                            seen += 1
                assert inserted == list(range(1, len(inserted) + 1))
        assert seen
    finally:
        stop.set()
        writer.join()


def test_a_copy_that_is_left_early_ends_its_connections(server: MariadbServer) -> None:
    server.ask("CREATE TABLE many (id INT)", "INSERT INTO many SELECT seq FROM seq_1_to_60000")
    with Reader(server, "many") as reader:
        with reader.connector.copy() as copy:
            blocks = copy.rows(reader.tables[0])
            assert len(next(iter(blocks))) == PIECE_ROWS
        with pytest.raises(SourceUnavailable):
            list(blocks)
    wanted = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE command = 'Query' AND info LIKE '%many%'"
    )
    until(
        lambda: (
            server.ask(wanted) == ((0,),) or server.ask(wanted + " AND info NOT LIKE '%COUNT%'") == ((0,),)
        )
    )


# Definitions.


def shape(table: SourceTable) -> list[tuple[str, str, bool, int, str]]:
    return [(c.name, c.type, c.not_null, c.number, c.fill) for c in table.columns]


def test_a_chain_of_definitions_is_followed_at_each_place_of_the_log(server: MariadbServer) -> None:
    server.ask(
        "CREATE TABLE chain (id INT PRIMARY KEY, v VARCHAR(10), w INT)",
        "INSERT INTO chain VALUES (1, 'a', 1)",
    )
    with Reader(server, "chain") as reader:
        server.ask(
            "ALTER TABLE chain ADD COLUMN n DECIMAL(6,2) NOT NULL DEFAULT 1.50 AFTER id, "
            "ADD e ENUM('p','q') FIRST",
            "INSERT INTO chain VALUES ('q', 2, 2.25, 'b', 2)",
            "ALTER TABLE chain CHANGE v name VARCHAR(20) CHARACTER SET latin1 NOT NULL, DROP w",
            "INSERT INTO chain VALUES ('p', 3, -1, 'é')",
            "ALTER TABLE chain MODIFY e ENUM('z','p','q') AFTER name, RENAME COLUMN n TO amount",
            "INSERT INTO chain VALUES (4, 7, 'c', 'z')",
            "ALTER TABLE chain MODIFY id BIGINT UNSIGNED, ADD (t TIME(3), u INT UNSIGNED NOT NULL)",
            "INSERT INTO chain VALUES (18446744073709551615, 8, 'd', 'q', '-01:02:03.5', 4294967295)",
            "ALTER TABLE chain ADD INDEX named (name), ALTER amount SET DEFAULT 3, ENGINE=InnoDB, "
            "COMMENT 'x, y'",
            "DELETE FROM chain WHERE id = 1",
        )  # fmt: skip
        events = reader.events()
        assert reader.differing() == []
    defined = [event[2] for event in events if event[0] == DEFINE]
    assert all(isinstance(table, SourceTable) and table.key == ("id",) for table in defined)
    id_, amount, name = (
        ("id", "INTEGER", True, 1, ""),
        ("amount", "DECIMAL(6,2)", True, 4, ""),
        ("name", "VARCHAR", True, 2, ""),
    )
    e = ("e", "VARCHAR", False, 5, "")
    assert [shape(table) for table in defined] == [  # type: ignore[arg-type]
        [e, id_, ("n", "DECIMAL(6,2)", True, 4, "'1.50'"), ("v", "VARCHAR", False, 2, ""),
         ("w", "INTEGER", False, 3, "")],
        [e, id_, ("n", "DECIMAL(6,2)", True, 4, ""), name],
        [id_, amount, name, e],
        [("id", "UBIGINT", True, 1, ""), amount, name, e, ("t", "INTERVAL", False, 6, ""),
         ("u", "UINTEGER", True, 7, "'0'")],
    ]  # fmt: skip
    assert [event for event in events if event[0] != DEFINE] == [
        (INSERT, None, ("q", 2, "2.25", "b", 2)),
        (INSERT, None, ("p", 3, "-1.00", "é")),
        (INSERT, None, (4, "7.00", "c", "z")),
        (INSERT, None, (2**64 - 1, "8.00", "d", "q", "-01:02:03.500000", 2**32 - 1)),
        (DELETE, (1, "1.50", "a", None, None, 0), None),
    ]


def test_reading_from_the_middle_of_a_chain_uses_the_stored_definition(server: MariadbServer) -> None:
    server.ask("CREATE TABLE stored (id INT PRIMARY KEY, a INT)")
    with Reader(server, "stored") as reader:
        server.ask(
            "ALTER TABLE stored ADD b SET('x','y') NOT NULL DEFAULT 'y'",
            "INSERT INTO stored VALUES (1, 1, 'x,y')",
        )
        assert [event[0] for event in reader.events()] == [DEFINE, INSERT]
        server.ask(
            "INSERT INTO stored VALUES (2, 2, 'y')", "ALTER TABLE stored DROP a, MODIFY b SET('w','x','y')"
        )
        server.ask("INSERT INTO stored VALUES (3, 'w')")
        [table] = reader.tables
        assert [c.fill for c in table.columns] == ["", "", "'y'"]
        later = MysqlConnector(server.url, [(None, "stored")], next(SERVER_IDS), reader.connector.identity)
        reader.changes = later.changes([table], reader.position)  # type: ignore[assignment]
        events = reader.events()
        later.close()
    assert events[0] == (INSERT, None, (2, 2, "y")) and events[2] == (INSERT, None, (3, "w"))


DEFINITIONS = (
    "n1 INT(7) UNSIGNED ZEROFILL NOT NULL DEFAULT 5 COMMENT 'a ''b'', c'",
    "n2 INTEGER SIGNED NULL, n3 INT8, n4 MIDDLEINT, n5 BOOL DEFAULT TRUE",
    "d1 DEC, d2 NUMERIC(7), d3 FIXED(8,3) UNSIGNED, d4 DOUBLE PRECISION, d5 REAL, d6 FLOAT(24), d7 FLOAT(25)",
    "d8 FLOAT(7,3), d9 DOUBLE(10,2), d10 FLOAT4, d11 FLOAT8",
    "c1 CHAR, c2 CHARACTER VARYING(12), c3 NATIONAL CHAR(4), c4 NVARCHAR(5), c5 CHAR(3) BYTE, c6 LONG",
    "c7 TEXT(100), c8 TEXT(70000) CHARACTER SET latin1, c9 BLOB(70000), c10 LONG VARBINARY",
    "c11 VARCHAR(9) BINARY, c12 VARCHAR(5) COLLATE latin2_general_ci, c14 TEXT ASCII",
    "c13 TEXT CHARACTER SET ucs2 COLLATE ucs2_bin NOT NULL",
    "c15 VARCHAR(7) CHARACTER SET binary, c16 MEDIUMTEXT CHARSET binary, c17 VARCHAR(3) CHARACTER SET utf8",
    "b1 BIT, b2 BINARY, b3 VARBINARY(400), e1 ENUM('a','it''s','x,y','(',')'), e2 SET('one','two')",
    "t1 DATETIME(3) NULL DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP(3), t2 TIME(0), t3 YEAR(4), t4 DATE",
    "j1 JSON, j2 LONGTEXT CHECK (JSON_VALID(`j2`)), j3 LONGTEXT CHECK (j3 <> 'x')",
    "u1 UUID, i1 INET6, i2 INET4, g1 POINT, g2 GEOMETRYCOLLECTION",
    "x1 INT INVISIBLE, x2 INT DEFAULT 1 CHECK (x2 > 0)",
)


@pytest.mark.parametrize("default", ["utf8mb4", "latin1"])
def test_a_definition_from_statements_is_that_of_the_server(server: MariadbServer, default: str) -> None:
    server.ask(f"CREATE OR REPLACE TABLE stated (id INT) DEFAULT CHARSET={default}")
    with Reader(server, "stated") as reader:
        for columns in DEFINITIONS:
            server.ask(f"ALTER TABLE stated ADD ({columns})")
        for columns in DEFINITIONS[3:6]:
            server.ask(
                "ALTER TABLE stated "
                + ", ".join(f"MODIFY {column}" for column in re.split(r", (?=[a-z]+[0-9]+ )", columns))
            )
        events = reader.events()
        assert {event[0] for event in events} == {DEFINE}
        assert reader.differing() == []


def test_an_unclear_statement_is_answered_by_the_server(server: MariadbServer) -> None:
    server.ask("CREATE TABLE unclear (id INT PRIMARY KEY, v VARCHAR(10), t TEXT) DEFAULT CHARSET=latin1")
    with Reader(server, "unclear") as reader:
        server.ask(
            "ALTER TABLE unclear CONVERT TO CHARACTER SET utf8mb4",
            "INSERT INTO unclear VALUES (1, '€é', '😀')",
        )
        events = reader.events()
        assert [event[0] for event in events] == [DEFINE, INSERT] and events[1][2] == (1, "€é", "😀")
        assert [c.number for c in reader.tables[0].columns] == [1, 2, 3]
        # The names change places, which is not certain from the text.
        server.ask(
            "ALTER TABLE unclear CHANGE v t VARCHAR(10), CHANGE t v TEXT",
            "INSERT INTO unclear VALUES (2, 'v', 't')",
        )
        server.ask("INSERT INTO unclear VALUES (3, 'v', 't')")
        assert [event[0] for event in reader.events()] == [DEFINE, INSERT, INSERT]
        assert [c.name for c in reader.tables[0].columns] == ["id", "t", "v"]
        server.ask("DELETE FROM unclear", "ALTER TABLE unclear CONVERT TO CHARACTER SET latin1")
        server.ask("ALTER TABLE unclear DROP v")
        error = reader.error()
    assert isinstance(error, WrongState) and "again afterwards" in error.message and error.hint


def test_an_online_change_of_a_definition_is_followed(server: MariadbServer) -> None:
    server.ask("CREATE TABLE online (id INT PRIMARY KEY, v INT)", "INSERT INTO online VALUES (1, 1)")
    with Reader(server, "online") as reader:
        server.ask(
            "CREATE TABLE _online_gho LIKE online", "ALTER TABLE _online_gho MODIFY v BIGINT",
            "INSERT INTO _online_gho SELECT * FROM online",
            "RENAME /* gh-ost */ TABLE shop.online TO shop._online_del, shop._online_gho TO shop.online",
            "INSERT INTO online VALUES (2, 5000000000)", "DROP TABLE _online_del",
        )  # fmt: skip
        events = reader.events()
        assert [event[0] for event in events] == [DEFINE, INSERT] and events[1][2] == (2, 5_000_000_000)
        assert [c.type for c in reader.tables[0].columns] == ["INTEGER", "BIGINT"]
        server.ask("CREATE TABLE others LIKE online", "RENAME TABLE online TO saved, others TO online")
        assert "renames it" in reader.error().message


REFUSED = (
    ("DROP TABLE refused", "drops it"),
    ("DROP TABLE IF EXISTS nothing, refused", "drops it"),
    ("RENAME TABLE refused TO elsewhere", "renames it"),
    ("ALTER TABLE refused RENAME elsewhere, ADD z INT", "renames it"),
    ("CREATE OR REPLACE TABLE refused (id INT)", "replaces it"),
    ("ALTER TABLE refused DROP PARTITION p1", "removes rows"),
    ("ALTER TABLE refused TRUNCATE PARTITION p1", "removes rows"),
    ("ALTER TABLE refused EXCHANGE PARTITION p1 WITH TABLE whole", "exchanges or removes rows"),
    ("ALTER IGNORE TABLE refused ADD UNIQUE (v)", "may remove rows"),
    ("ALTER TABLE refused ADD n INT AUTO_INCREMENT UNIQUE", '"n"'),
    ("ALTER TABLE refused ADD s INT AS (v + 1) STORED", '"s"'),
    ("ALTER TABLE refused ADD d DATETIME DEFAULT CURRENT_TIMESTAMP", '"d"'),
    ("ALTER TABLE refused ADD r DOUBLE DEFAULT (RAND())", '"r"'),
)


@pytest.mark.parametrize(("statement", "expected"), REFUSED)
def test_a_statement_that_cannot_be_followed_ends_the_stream(
    server: MariadbServer, statement: str, expected: str
) -> None:
    unique = statement.startswith("ALTER IGNORE") or "UNIQUE" in statement
    parts = "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    parts = "" if unique else f" PARTITION BY RANGE (id) {parts}"
    server.ask(
        "DROP TABLE IF EXISTS refused, elsewhere, whole", f"CREATE TABLE refused (id INT, v INT){parts}"
    )
    server.ask("CREATE TABLE whole (id INT, v INT)", "INSERT INTO refused VALUES (1, 1), (11, 2)")
    with Reader(server, "refused") as reader:
        server.ask("INSERT INTO refused VALUES (2, 2)", statement)
        changes = reader.open()
        piece = changes.next(READ_S)
        assert piece is not None and piece.changes[0].new == (2, 2)
        assert piece.commit is not None
        error = reader.error()
        assert error.sqlstate == "55000" and expected in error.message and "refused" in error.message
        assert error.hint


def test_a_dropped_database(server: MariadbServer) -> None:
    server.ask("CREATE DATABASE gone", "CREATE TABLE gone.t (id INT)", "CREATE TABLE kept (id INT)")
    connector = MysqlConnector(server.url, [("gone", "t"), (None, "kept")], next(SERVER_IDS))
    tables = connector.describe()
    assert [table.shown for table in tables] == ["gone.t", "shop.kept"]
    with connector.begin() as copy:
        position = copy.position
    server.ask("DROP DATABASE gone")
    with pytest.raises(WrongState, match=r"gone\.t.*drops its database"):
        connector.changes(tables, position).next(READ_S)
    connector.close()


def test_statements_that_change_nothing_of_the_stream(server: MariadbServer) -> None:
    server.ask("CREATE TABLE calm (id INT PRIMARY KEY, v INT)", "CREATE DATABASE IF NOT EXISTS beside")
    with Reader(server, "calm") as reader:
        server.ask(
            "CREATE TABLE beside.calm (id INT)", "ALTER TABLE beside.calm ADD x INT", "TRUNCATE beside.calm",
            "INSERT INTO beside.calm VALUES (1, 1)", "DROP TABLE beside.calm",
            "CREATE TABLE IF NOT EXISTS calm (other INT)", "CREATE TEMPORARY TABLE calm (id INT)",
            "INSERT INTO calm VALUES (77)", "DROP TEMPORARY TABLE calm",
            "CREATE VIEW looks AS SELECT * FROM calm", "CREATE OR REPLACE VIEW looks AS SELECT id FROM calm",
            "CREATE TRIGGER rises BEFORE INSERT ON calm FOR EACH ROW SET NEW.v = 5", "DROP VIEW looks",
            "CREATE TABLE copied SELECT * FROM calm", "ANALYZE TABLE calm", "OPTIMIZE TABLE calm",
            "FLUSH TABLES", "CREATE INDEX v_index ON calm (v)", "DROP INDEX v_index ON calm",
            "GRANT SELECT ON calm TO shop@'%'",
            "ALTER TABLE calm ADD CONSTRAINT positive CHECK (v > 0), ADD KEY k (v), AUTO_INCREMENT = 5",
            "ALTER TABLE calm DROP CONSTRAINT positive, DROP KEY k, FORCE, ALGORITHM=COPY",
            "ALTER ONLINE TABLE calm WAIT 5 ADD COLUMN IF NOT EXISTS v INT",
            "INSERT INTO calm VALUES (1, 1)",
        )  # fmt: skip
        assert reader.events() == [(INSERT, None, (1, 5))] and reader.differing() == []


def test_an_added_primary_key_is_part_of_the_definition(server: MariadbServer) -> None:
    server.ask("CREATE TABLE keyed (a INT, b INT NOT NULL)")
    with Reader(server, "keyed") as reader:
        server.ask("ALTER TABLE keyed ADD CONSTRAINT pk PRIMARY KEY USING BTREE (b, a)")
        server.ask(
            "ALTER TABLE keyed CHANGE a c INT FIRST",
            "ALTER TABLE keyed DROP PRIMARY KEY, ADD PRIMARY KEY (b)",
        )
        keys = [event[2].key for event in reader.events()]  # type: ignore[attr-defined]
        assert keys == [("b", "a"), ("b", "c"), ("b",)] and reader.differing() == []
        server.ask("ALTER TABLE keyed ADD e INT, DROP PRIMARY KEY, ADD PRIMARY KEY (c, e)")
        assert [event[0] for event in reader.events()] == [DEFINE] and reader.differing() == []
        assert [c.not_null for c in reader.tables[0].columns] == [True, True, True]


def test_names_in_the_log_are_compared_with_the_definition(own_server: MariadbServer) -> None:
    own_server.ask(
        "SET GLOBAL binlog_row_metadata = 'FULL'", "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"
    )
    with Reader(own_server, "t") as reader:
        own_server.ask("INSERT INTO t VALUES (1, 2, 3)")
        assert reader.events() == [(INSERT, None, (1, 2, 3))]
        # An alteration that is not in the log, as on a replica that was changed by hand.
        own_server.ask("SET sql_log_bin = 0", "ALTER TABLE t RENAME COLUMN a TO z")
        own_server.ask("INSERT INTO t VALUES (2, 2, 3)")
        error = reader.error()
        assert isinstance(error, WrongState) and '"a"' in error.message and '"z"' in error.message


@pytest.mark.parametrize(
    "hidden",
    [
        "ADD z INT",
        "DROP a",
        "MODIFY a BIGINT",
        "MODIFY d DATETIME(3)",
        "MODIFY n DECIMAL(8,3)",
        "MODIFY s ENUM('x')",
    ],
)
def test_a_definition_that_does_not_fit_the_log_is_an_error(server: MariadbServer, hidden: str) -> None:
    server.ask(
        "CREATE OR REPLACE TABLE unfit (id INT PRIMARY KEY, a INT, d DATETIME, n DECIMAL(8,2), s SET('x'))",
    )
    with Reader(server, "unfit") as reader:
        server.ask("SET sql_log_bin = 0", f"ALTER TABLE unfit {hidden}")
        server.ask("INSERT INTO unfit (id) VALUES (1)")
        error = reader.error()
        assert isinstance(error, WrongState) and "unfit" in error.message and error.hint


def test_fills_are_the_values_that_rows_get(server: MariadbServer) -> None:
    """Each kind of default, as DuckDB reads it, beside the value in the server's old row."""
    columns = [
        "INT NOT NULL", "INT DEFAULT -3", "BIGINT UNSIGNED DEFAULT '18446744073709551615'",
        "DECIMAL(8,3) DEFAULT 2.5", "FLOAT DEFAULT 1e3", "DOUBLE NOT NULL", "BIT(8) DEFAULT b'101'",
        "INT DEFAULT 0x1F", "BOOLEAN DEFAULT TRUE",
        "VARCHAR(10) DEFAULT 'it''s'", "CHAR(5) DEFAULT 'x  '", "TEXT NOT NULL", "VARCHAR(5) DEFAULT 12",
        "BINARY(3) DEFAULT 'a'", "BINARY(2) NOT NULL", "VARBINARY(4) DEFAULT x'00FF'", "BLOB NOT NULL",
        "ENUM('p','q') NOT NULL", "ENUM('p','q') DEFAULT 'Q'", "SET('x','y') DEFAULT 'y,x'",
        "SET('x','y') NOT NULL",
        "DATE DEFAULT '2024-02-03'", "DATETIME DEFAULT '2024-02-03 04:05:06'", "TIME DEFAULT '-01:02:03'",
        "TIME NOT NULL", "YEAR DEFAULT 1999", "UUID DEFAULT '123e4567-e89b-12d3-a456-426655440000'",
        "INET4 DEFAULT '1.2.3.4'", "INET6 NOT NULL", "JSON DEFAULT '[1]'", "INT", "TEXT DEFAULT NULL",
        "INT DEFAULT (7)",
    ]  # fmt: skip
    server.ask("CREATE TABLE filled (id INT PRIMARY KEY)", "INSERT INTO filled VALUES (1)")
    with Reader(server, "filled") as reader:
        server.ask(
            "SET sql_mode = ''",
            "ALTER TABLE filled " + ", ".join(f"ADD c{i} {c}" for i, c in enumerate(columns)),
        )
        reader.events()
        [table] = reader.tables
        with Reader(server, "filled") as later:
            [row] = in_duckdb(later.tables[0], later.rows["filled"])
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE kept (id INT)")
        connection.execute("INSERT INTO kept VALUES (1)")
        for column in table.columns[1:]:
            fill = f" DEFAULT {column.fill}" if column.fill else ""
            connection.execute(f"ALTER TABLE kept ADD COLUMN {column.name} {column.type}{fill}")
        texts = ", ".join(f"CAST({c.name} AS VARCHAR)" for c in table.columns)
        [found] = connection.execute(f"SELECT {texts} FROM kept").fetchall()
    assert found == row

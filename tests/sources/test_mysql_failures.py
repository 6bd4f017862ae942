"""The connector of MySQL and MariaDB when it cannot read: rights, settings, lost logs, ends of servers.

Source: docs/sources.md, "MySQL and MariaDB"; issue 28.
"""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import certificates
import pymysql
import pytest
from mariadb_process import PASSWORD, QUOTED, USER, MariadbServer
from mysql_reader import READ_S, SERVER_IDS, Reader, until

from ducktail.engine.catalog.source_tables import DELETE, INSERT, TRUNCATE
from ducktail.engine.errors import (
    CannotConnect,
    DucktailError,
    InsufficientPrivilege,
    InvalidAuthorization,
    InvalidParameterValue,
    InvalidPassword,
    NotSupported,
    SourceLost,
    SourceUnavailable,
    UndefinedTable,
    WrongObjectType,
    WrongState,
)
from ducktail.pgwire_gateway.sources.mysql import MysqlConnector, binlog
from ducktail.pgwire_gateway.sources.mysql.mysql_server import parsed

pytestmark = [pytest.mark.slow]


TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v INT)"


@pytest.fixture(scope="module")
def server(server: MariadbServer) -> MariadbServer:
    """The shared server, with a table."""
    server.ask(TABLE)
    return server


@pytest.fixture
def own_server(own_server: MariadbServer) -> MariadbServer:
    """An own server, with a table."""
    own_server.ask(TABLE)
    return own_server


def connector(url: str, *tables: str) -> MysqlConnector:
    return MysqlConnector(url, [(None, table) for table in tables or ("t",)], next(SERVER_IDS))


# URLs.


def test_urls() -> None:
    url = parsed(f"mysql://a%40b:{QUOTED}@[::1]:3307/d%C3%BC?ssl_mode=required&ssl_ca=/x%20y&position=file")
    assert (url.user, url.password, url.host, url.port, url.database) == ("a@b", PASSWORD, "::1", 3307, "dü")
    assert url.parameters == {"ssl_mode": "required", "ssl_ca": "/x y", "position": "file"}
    assert PASSWORD not in repr(url) and url.shown == "[::1]:3307"
    assert parsed("MYSQL://u@h").port == 3306 and parsed("mysql://u@h").password == ""


@pytest.mark.parametrize(
    "text",
    [
        "postgres://u:s3cret@h/d", "mysql://h/d", "mysql://u:s3cret@h:0", "mysql://u:s3cret@h:65536/d",
        "mysql://u:s3cret@h/d?ssl=1", "mysql://u:s3cret@h/d?ssl_mode=maybe", "mysql://u:s3cret@h/d?ssl_ca",
        "mysql://u:s3cret@h/d?ssl_ca=a&ssl_ca=b", "mysql://u:s3cret@h/d/e", "mysql://u:s3cret@h h/d",
        "mysql://u:s3cret@h/%FF", "mysql://u:s3cret@h?password_env=A", "mysql://u@h?password_env=NOT_SET_HERE",
        "mysql://u@h?password_file=/nothing/there", "mysql://u:s3cret@h/d#x", "",
    ],
)  # fmt: skip
def test_malformed_urls(text: str) -> None:
    with pytest.raises(InvalidParameterValue) as raised:
        MysqlConnector(text, [("d", "t")], 5).describe()
    shown = f"{raised.value.message} {raised.value.hint} {raised.value.detail}"
    assert "s3cret" not in shown and raised.value.__cause__ is None


def test_passwords_from_the_environment_and_a_file(
    server: MariadbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = f"mysql://{USER}@127.0.0.1:{server.port}/shop"
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    (tmp_path / "password").write_text(f"{PASSWORD}\nsecond line\n")
    for parameter in ("password_env=SHOP_PASSWORD", f"password_file={tmp_path / 'password'}"):
        with closing(connector(f"{bare}?{parameter}")) as made:
            assert [table.shown for table in made.describe()] == ["shop.t"]


def test_server_ids() -> None:
    for server_id in (0, -1, 1 << 32):
        with pytest.raises(InvalidParameterValue):
            MysqlConnector("mysql://u@h/d", [(None, "t")], server_id)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(NotSupported) as raised:
        MysqlConnector("mysql://u@h/d", [(None, "t")], 5)
    assert raised.value.sqlstate == "0A000" and raised.value.hint == "pip install 'ducktail[sources]'"


# Connections.


def test_a_server_that_cannot_be_reached() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for host in (f"127.0.0.1:{port}", "nothing.invalid"):
            with pytest.raises(SourceUnavailable) as raised:
                connector(f"mysql://u:{QUOTED}@{host}/d").describe()
            assert raised.value.sqlstate == "08006" and PASSWORD not in raised.value.message


def test_a_server_that_is_none_of_mysql() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
                client.recv(1)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises((CannotConnect, SourceUnavailable)) as raised:
            connector(f"mysql://u:{QUOTED}@127.0.0.1:{listening.getsockname()[1]}/d").describe()
        answering.join()
    assert PASSWORD not in raised.value.message


def test_a_wrong_password(server: MariadbServer) -> None:
    for url in (server.url.replace(QUOTED, "wr0ng"), server.url.replace(f"//{USER}", "//nobody")):
        with pytest.raises(InvalidPassword) as raised:
            connector(url).describe()
        assert raised.value.sqlstate == "28P01" and raised.value.hint
        assert "wr0ng" not in raised.value.message and PASSWORD not in raised.value.message


def test_encryption(installed: Path, tmp_path: Path) -> None:
    files, other = certificates.make(tmp_path), certificates.make(tmp_path, "other")
    settings: dict[str, str | None] = {
        "ssl-cert": str(files.certificate), "ssl-key": str(files.key), "ssl-ca": str(files.certificate),
        "require-secure-transport": "ON",
    }  # fmt: skip
    home = shutil.copytree(installed, tmp_path / "mariadb")
    with MariadbServer(home, settings) as server:
        server.ask("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        with pytest.raises((InvalidPassword, InvalidAuthorization)) as raised:
            connector(f"{server.url}?ssl_mode=disabled").describe()
        # MariaDB 10.11 has no error of its own for it.
        assert raised.value.sqlstate in ("28P01", "28000") and "ssl_mode" in str(raised.value.hint)
        with pytest.raises(CannotConnect) as failed:
            connector(f"{server.url}?ssl_ca={other.certificate}").describe()
        assert failed.value.sqlstate == "08001" and "certificate" in failed.value.message
        with pytest.raises(InvalidParameterValue, match="certificates"):
            connector(f"{server.url}?ssl_ca=/nothing/there").describe()
        for parameters in ("", "ssl_mode=required", f"ssl_mode=verify_ca&ssl_ca={files.certificate}"):
            with Reader(server, "t", parameters=parameters) as reader:
                server.ask("INSERT INTO t VALUES (1, 1)", "DELETE FROM t")
                assert [event[0] for event in reader.events()] == [INSERT, DELETE]
        with Reader(server, "t", parameters=f"ssl_ca={files.certificate}") as reader:
            server.ask("INSERT INTO t SELECT seq, 0 FROM seq_1_to_50000")
            assert len(reader.events()) == 50_000
            assert isinstance(_ended(reader, reader.open().close), SourceUnavailable)


def _ended(reader: Reader, end: object) -> DucktailError:
    """The error of a reader that waits, when another thread ends it."""
    changes = reader.open()
    timer = threading.Timer(0.2, end)  # type: ignore[arg-type]
    timer.start()
    begun_s = time.monotonic()
    with pytest.raises(DucktailError) as raised:
        while changes.next(READ_S) is not None:
            pass
    assert time.monotonic() - begun_s < READ_S / 2
    timer.join()
    return raised.value


def test_another_thread_ends_reading(server: MariadbServer) -> None:
    with Reader(server, "t") as reader:
        assert isinstance(_ended(reader, reader.open().close), SourceUnavailable)
        reader.changes = None
        assert isinstance(_ended(reader, reader.connector.close), SourceUnavailable)
        with pytest.raises(SourceUnavailable):
            reader.connector.describe()
        reader.open().close()


def test_another_thread_ends_a_copy(server: MariadbServer) -> None:
    server.ask("CREATE TABLE slow (id INT)", "INSERT INTO slow SELECT seq FROM seq_1_to_30000")
    with closing(connector(server.url, "slow")) as made:
        [table] = made.describe()
        with made.begin() as copy:
            blocks = copy.rows(table)
            next(iter(blocks))
            ending = threading.Thread(target=made.close)
            ending.start()
            ending.join()
            with pytest.raises(SourceUnavailable):
                for _ in range(10):
                    next(iter(blocks))
                raise AssertionError


def test_a_second_reader_with_the_same_server_id_is_noticed(server: MariadbServer) -> None:
    with Reader(server, "t") as reader:
        first = reader.open()
        other = MysqlConnector(server.url, [(None, "t")], reader.connector._server_id)
        with closing(other):
            other.describe()
            second = other.changes(reader.tables, reader.position)
            with pytest.raises(DucktailError) as raised:
                while first.next(READ_S) is not None:
                    pass
            assert raised.value.sqlstate in ("55000", "08006")
            server.ask("INSERT INTO t VALUES (500, 1)")
            piece = second.next(READ_S)
            assert piece is not None and piece.changes[0].new == (500, 1)


def test_a_server_that_is_silent_is_lost_and_an_idle_one_is_not(
    own_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binlog, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(binlog, "SILENCE_S", 1.0)
    with Reader(own_server, "t") as reader:
        changes = reader.open()
        ends_s = time.monotonic() + 1.5
        while time.monotonic() < ends_s:
            assert changes.next(0.5) is None
        assert own_server.process is not None
        own_server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(SourceUnavailable, match="sent nothing"):
                changes.next(READ_S)
        finally:
            own_server.process.send_signal(signal.SIGCONT)


# Rights, tables and settings.


def test_each_right_is_asked_for(server: MariadbServer) -> None:
    server.ask("CREATE USER reader@'%' IDENTIFIED BY 'x'", "CREATE TABLE other (id INT)")
    url = f"mysql://reader:x@127.0.0.1:{server.port}/shop"
    for grant in (
        "BINLOG MONITOR ON *.*",
        "SELECT (id) ON shop.t",
        "INSERT ON shop.other",
        "REPLICATION SLAVE ON *.*",
    ):
        server.ask(f"GRANT {grant} TO reader@'%'")
        with pytest.raises((InsufficientPrivilege, UndefinedTable)) as raised:
            connector(url, "t", "other").describe()
        assert raised.value.sqlstate in ("42501", "42P01") and "SELECT" in str(raised.value.hint)
    server.ask("GRANT SELECT ON shop.* TO reader@'%'", "REVOKE REPLICATION SLAVE ON *.* FROM reader@'%'")
    with pytest.raises(InsufficientPrivilege) as raised:
        connector(url, "t", "other").describe()
    assert raised.value.sqlstate == "42501" and "REPLICATION SLAVE" in str(raised.value.hint)
    server.ask("GRANT REPLICATION SLAVE ON *.* TO reader@'%'", "DELETE FROM t")
    with closing(connector(url, "t", "other")) as made:
        tables = made.describe()
        with made.begin() as copy:
            assert [list(copy.rows(table)) for table in tables] == [[], []]
            position = copy.position
        changes = made.changes(tables, position)
        server.ask("INSERT INTO t VALUES (1, 2)")
        piece = changes.next(READ_S)
        assert piece is not None and piece.changes[0].new == (1, 2)
        assert changes.behind()[0] is not None
        made.remove()


def test_tables_that_are_none(server: MariadbServer) -> None:
    server.ask("CREATE VIEW seen AS SELECT * FROM t", "CREATE SEQUENCE counted", "CREATE DATABASE bare")
    cases: Sequence[tuple[object, type[DucktailError], str]] = (
        ([(None, "nothing")], UndefinedTable, "shop.nothing"),
        ([("nowhere", "t")], UndefinedTable, "nowhere.t"),
        ([(None, "seen")], WrongObjectType, "view"),
        ([(None, "counted")], WrongObjectType, "sequence"),
        ([(None, "t"), ("shop", "t")], InvalidParameterValue, "twice"),
        ("bare", UndefinedTable, "bare"),
    )
    for selection, kind, expected in cases:
        with pytest.raises(kind, match=expected):
            MysqlConnector(server.url, selection, next(SERVER_IDS)).describe()  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterValue, match="without a database"):
        connector(server.url.removesuffix("shop")).describe()


def test_a_whole_database(server: MariadbServer) -> None:
    server.ask("CREATE DATABASE whole", "CREATE TABLE whole.b (id INT)", "CREATE TABLE whole.a (id INT)")
    server.ask("CREATE VIEW whole.v AS SELECT * FROM whole.a")
    with closing(MysqlConnector(server.url, "whole", next(SERVER_IDS))) as made:
        assert [table.shown for table in made.describe()] == ["whole.a", "whole.b"]
        assert made.identity.startswith("server_uid:")


SETTINGS = (
    ("binlog_format", "MIXED", "ROW"),
    ("binlog_format", "STATEMENT", "ROW"),
    ("binlog_row_image", "MINIMAL", "FULL"),
    ("binlog_row_image", "NOBLOB", "FULL"),
)


def test_settings_of_the_log(server: MariadbServer) -> None:
    for name, value, right in SETTINGS:
        server.ask(f"SET GLOBAL {name} = {value}")
        try:
            with pytest.raises(WrongState) as raised:
                connector(server.url).describe()
        finally:
            server.ask(f"SET GLOBAL {name} = {right}")
        assert raised.value.sqlstate == "55000" and f"{name} = {value}" in raised.value.message
        assert f"SET GLOBAL {name} = {right}" in str(raised.value.hint)
    with pytest.raises(WrongState, match="itself has the server id 1"):
        MysqlConnector(server.url, [(None, "t")], 1).describe()


def test_a_server_without_a_log_or_with_a_part_of_one(installed: Path, tmp_path: Path) -> None:
    home = shutil.copytree(installed, tmp_path / "mariadb")
    with MariadbServer(home, {"log-bin": None}) as server:
        server.ask("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        with pytest.raises(WrongState, match="no binary log") as raised:
            connector(server.url).describe()
        assert "log_bin" in str(raised.value.hint)
    for setting in ("binlog-ignore-db", "binlog-do-db"):
        name = "shop" if setting == "binlog-ignore-db" else "else"
        part = MariadbServer(home, {setting: name})
        with part as server, pytest.raises(WrongState, match='"shop" out of its log'):
            connector(server.url).describe()
    old = MariadbServer(home, {"version": "10.4.13-MariaDB-log"})
    with old as server, pytest.raises(NotSupported, match=r"10\.4\.13.*cannot be read"):
        connector(server.url).describe()


def test_foreign_keys_whose_actions_are_not_logged(server: MariadbServer) -> None:
    server.ask("CREATE TABLE parent (id INT PRIMARY KEY)", "INSERT INTO parent VALUES (1), (2)")
    server.ask(
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, CONSTRAINT up FOREIGN KEY (p) REFERENCES parent (id) "
        "ON DELETE CASCADE)",
        "CREATE TABLE kept (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
    )
    with pytest.raises(NotSupported) as raised:
        connector(server.url, "child").describe()
    assert raised.value.sqlstate == "0A000" and '"up"' in raised.value.message
    assert "foreign_key_actions=ignore" in str(raised.value.hint)
    with Reader(server, "child", "kept", parameters="foreign_key_actions=ignore") as reader:
        server.ask("INSERT INTO child VALUES (1, 1)", "DELETE FROM parent WHERE id = 1")
        # The row has gone without an event.
        assert [event[0] for event in reader.events()] == [INSERT] and server.ask("SELECT * FROM child") == ()
    with Reader(server, "kept") as reader:
        server.ask("ALTER TABLE kept ADD FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE SET NULL")
        assert isinstance(reader.error(), NotSupported)


# Changes that are not logged as rows.


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (900, 1)", "REPLACE LOW_PRIORITY t VALUES (900, 1)", "UPDATE shop.t SET v = 8",
        "UPDATE u JOIN t ON u.id = t.id SET t.v = 5", "DELETE FROM t WHERE id > 0", "DELETE t FROM t, u",
        "INSERT INTO `t` SELECT id + 500, v FROM u", "CALL fills()", "LOAD DATA INFILE '{}' INTO TABLE t",
    ],
)  # fmt: skip
def test_a_session_that_logs_statements(server: MariadbServer, statement: str, tmp_path: Path) -> None:
    server.ask("CREATE TABLE IF NOT EXISTS u (id INT PRIMARY KEY, v INT)", "REPLACE INTO u VALUES (2, 2)")
    server.ask("DELETE FROM t", "INSERT INTO t VALUES (2, 2)")
    server.ask("CREATE OR REPLACE PROCEDURE fills() INSERT INTO t VALUES (901, 1)")
    (tmp_path / "rows").write_text("902\t5\n")
    statement = statement.format(tmp_path / "rows")
    with Reader(server, "t") as reader:
        harmless = "REPLACE INTO u SELECT id + 1000, v FROM t"
        server.ask("SET binlog_format = STATEMENT", harmless, statement)
        error = reader.error()
    assert isinstance(error, WrongState) and "shop.t" in error.message and "binlog_format" in str(error.hint)


def test_a_session_that_logs_a_part_of_the_columns(server: MariadbServer) -> None:
    server.ask("REPLACE INTO t VALUES (700, 1)")
    with Reader(server, "t") as reader:
        server.ask("SET binlog_row_image = MINIMAL", "UPDATE t SET v = 9 WHERE id = 700")
        error = reader.error()
    assert isinstance(error, WrongState) and "binlog_row_image" in str(error.hint)


def test_prepared_transactions(server: MariadbServer) -> None:
    server.ask("CREATE TABLE xa_other (id INT PRIMARY KEY)", "DELETE FROM t")
    with Reader(server, "t") as reader:
        server.ask(
            "XA START 'one'", "INSERT INTO t VALUES (1, 1)", "XA END 'one'", "XA COMMIT 'one' ONE PHASE"
        )
        server.ask(
            "XA START 'two'",
            "INSERT INTO xa_other VALUES (1)",
            "XA END 'two'",
            "XA PREPARE 'two'",
            "XA COMMIT 'two'",
        )
        server.ask("INSERT INTO t VALUES (2, 2)")
        assert reader.events() == [(INSERT, None, (1, 1)), (INSERT, None, (2, 2))]
        server.ask(
            "XA START 'three'",
            "INSERT INTO t VALUES (3, 3)",
            "XA END 'three'",
            "XA PREPARE 'three'",
            "XA ROLLBACK 'three'",
        )
        error = reader.error()
    assert isinstance(error, NotSupported) and "XA" in error.message


# Lost logs and other servers.


def test_a_purged_log(own_server: MariadbServer) -> None:
    with Reader(own_server, "t") as reader, Reader(own_server, "t", parameters="position=file") as filed:
        own_server.ask("INSERT INTO t VALUES (1, 1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 2)")
        own_server.ask("FLUSH BINARY LOGS")
        last = str(own_server.ask("SHOW MASTER STATUS")[0][0])
        until(
            lambda: (
                not own_server.ask(f"PURGE BINARY LOGS TO '{last}'")
                and len(own_server.ask("SHOW BINARY LOGS")) == 1
            )
        )
        for old in (reader, filed):
            error = old.error()
            assert isinstance(error, SourceLost) and error.sqlstate == "55000", error
            assert "binlog_expire_logs_seconds" in str(error.hint)
            assert PASSWORD not in error.message


def _purged(server: MariadbServer, last: str) -> bool:
    """Purge the log up to a file; True if only this one is left."""
    server.ask(f"PURGE BINARY LOGS TO '{last}'")
    return len(server.ask("SHOW BINARY LOGS")) == 1


def test_a_position_that_the_server_has_never_had(own_server: MariadbServer) -> None:
    with Reader(own_server, "t") as reader:
        for position in ("0-1-1000000", "0-9-2", "3fdd0ec0-1ab4-11ef-9262-0242ac120002:1-5"):
            reader.position, reader.changes = position, None
            assert isinstance(reader.error(), SourceLost), position


def test_another_server(own_server: MariadbServer) -> None:
    own_server.ask("INSERT INTO t VALUES (1, 1)")
    with Reader(own_server, "t", parameters="position=file") as reader:
        url, selection = f"{own_server.url}?position=file", [(None, "t")]
        other = MysqlConnector(url, selection, next(SERVER_IDS), "server_uid:another")
        with closing(other), pytest.raises(SourceLost, match="another MySQL server"):
            other.changes(reader.tables, reader.position)
        own = MysqlConnector(url, selection, next(SERVER_IDS), reader.connector.identity)
        with closing(own):
            own.changes(reader.tables, reader.position).close()
    with Reader(own_server, "t") as reader:
        # A replica that has become the primary has the same GTIDs.
        replica = MysqlConnector(own_server.url, [(None, "t")], next(SERVER_IDS), "server_uid:another")
        with closing(replica):
            changes = replica.changes(reader.tables, reader.position)
            own_server.ask("INSERT INTO t VALUES (2, 2)")
            piece = changes.next(READ_S)
            assert piece is not None and piece.changes[0].new == (2, 2)


# Ends of the server.


def test_a_table_in_memory_is_empty_after_a_restart(own_server: MariadbServer) -> None:
    own_server.ask("CREATE TABLE m (id INT) ENGINE=MEMORY", "INSERT INTO m VALUES (1)")
    with Reader(own_server, "m") as reader:
        assert reader.rows["m"] == [(1,)]
        own_server.restart()
        assert own_server.ask("SELECT * FROM m") == ()
        own_server.ask("INSERT INTO m VALUES (2)")
        assert isinstance(reader.error() if reader.changes else SourceUnavailable(""), SourceUnavailable)
        assert reader.events() == [(TRUNCATE, None, None), (INSERT, None, (2,))]


def test_a_server_that_is_killed_under_load(own_server: MariadbServer) -> None:
    """Every committed row comes once, in order, through three kills."""
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            try:
                connection = own_server.connect("shop")
                with closing(connection), connection.cursor() as cursor:
                    while not stop.is_set():
                        number += 1
                        cursor.execute(f"INSERT INTO t VALUES ({number}, {number}), ({-number}, 0)")
                        written.append(number)
            except pymysql.MySQLError:
                time.sleep(0.02)

    with Reader(own_server, "t") as reader:
        writer = threading.Thread(target=write)
        writer.start()
        found: list[int] = []
        kills = 0
        try:
            while kills < 3 or len(found) < kills * 20 + 20:
                try:
                    changes = reader.open()
                    piece = changes.next(0.5)
                except SourceUnavailable:
                    reader.changes = None
                    time.sleep(0.05)
                    continue
                if piece is None or piece.commit is None:
                    continue
                assert [change.op for change in piece.changes] in ([INSERT, INSERT], [])
                found += [change.new[0] for change in piece.changes[:1]]  # type: ignore[index]
                reader.position = piece.commit.position
                if len(found) >= kills * 20 + 20 and kills < 3:
                    kills += 1
                    own_server.kill()
                    own_server.start()
        finally:
            stop.set()
            writer.join()
        reader.changes = None
        found += [new[0] for _, _, new in reader.events() if new[0] > 0]  # type: ignore[index]
    stored = [row[0] for row in own_server.ask("SELECT id FROM t WHERE id > 0 ORDER BY id")]
    assert found == stored and len(set(found)) == len(found)
    assert set(written) <= set(found)

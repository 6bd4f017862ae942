"""Who comes in: the first user, passwords, channel binding, and what is said to whom who does not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certificates
import psycopg
import pytest
from preloaded import ran
from server_process import ServerProcess

import ducktail

Serve = Callable[..., ServerProcess]
WRONG = 'password authentication failed for user "%s"'


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, certificate: certificates.Files
) -> Iterator[ServerProcess]:
    """A server with TLS whose superuser is ann, and bob who is none."""
    path = tmp_path_factory.mktemp("guarded") / "ducktail.duckdb"
    with ServerProcess(path, ("--port", "0", "--log-level", "debug", *certificate.options)) as server:
        with server.connect() as first:
            first.execute("CREATE USER ann PASSWORD 'ann''s secret' SUPERUSER")
            first.execute("CREATE USER bob PASSWORD 'bob secret'")
        yield server


def ann(server: ServerProcess, **more: Any) -> psycopg.Connection[Any]:
    return server.connect(user="ann", password="ann's secret", **more)


def bob(server: ServerProcess, **more: Any) -> psycopg.Connection[Any]:
    return server.connect(user="bob", password="bob secret", **more)


def test_a_password_lets_in_and_nothing_else_does(guarded: ServerProcess) -> None:
    with ann(guarded, require_auth="scram-sha-256") as connection:
        assert connection.execute("SELECT current_user, session_user").fetchone() == ("ann", "ann")
        assert connection.info.parameter_status("is_superuser") == "on"
    with bob(guarded) as connection:
        assert connection.info.parameter_status("is_superuser") == "off"
    for user, password in (
        ("ann", "bob secret"),
        ("ann", "ANN'S SECRET"),
        ("bob", ""),
        ("eve", "x"),
        ("ducktail", "x"),
        ("", "x"),
    ):
        with pytest.raises(psycopg.OperationalError):
            guarded.connect(user=user or "nobody", password=password)
    with pytest.raises(psycopg.OperationalError, match=WRONG % "eve"):
        guarded.connect(user="eve", password="x")
    with pytest.raises(psycopg.OperationalError, match=WRONG % "ann"):
        guarded.connect(user="ann", password="x")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        guarded.connect(user="ann")


def test_a_name_is_found_in_any_case_and_shown_as_it_was_made(guarded: ServerProcess) -> None:
    with guarded.connect(user="ANN", password="ann's secret") as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("ann",)


def test_channel_binding(guarded: ServerProcess, tmp_path: Path) -> None:
    with ann(guarded, sslmode="require", channel_binding="require") as connection:
        assert connection.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        ann(guarded, sslmode="disable", channel_binding="require")
    with ann(guarded, sslmode="disable") as connection:
        assert not connection.pgconn.ssl_in_use


@pytest.mark.parametrize("algorithm", ["rsa", "rsa-sha384", "ed25519"])
def test_channel_binding_with_other_certificates(serve: Serve, tmp_path: Path, algorithm: str) -> None:
    files = certificates.make(tmp_path, algorithm=algorithm)
    server = serve(options=("--port", "0", *files.options))
    with server.connect() as first:
        first.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
    arguments = {"user": "ann", "password": "x", "sslmode": "require"}
    if algorithm == "ed25519":
        # It has no hash to bind to: there is no -PLUS, and a client that insists is not let down in silence.
        with server.connect(**arguments) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="channel binding"):
            server.connect(**arguments, channel_binding="require")
    else:
        with server.connect(**arguments, channel_binding="require") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_first_user_closes_the_door(server: ServerProcess) -> None:
    with server.connect() as first:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            first.execute("CREATE USER bob PASSWORD 'x'")
        told: list[str] = []
        first.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        first.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
        assert told == ["from now on every connection needs a user and a password"]
        with pytest.raises(psycopg.OperationalError):
            server.connect()
        # A rolled back user was never there.
        first.execute("BEGIN")
        first.execute("CREATE USER eve PASSWORD 'x' SUPERUSER")
        first.execute("ROLLBACK")
        with pytest.raises(psycopg.OperationalError, match=WRONG % "eve"):
            server.connect(user="eve", password="x")
    server.kill()
    server.start()
    with pytest.raises(psycopg.OperationalError):
        server.connect()
    with server.connect(user="ann", password="x") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.stop()
    # The owner of the file has no door before him.
    with ducktail.connect(server.path) as con:
        con.execute("ALTER USER ann PASSWORD 'y'")
    server.start()
    with server.connect(user="ann", password="y") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match=WRONG % "ann"):
        server.connect(user="ann", password="x")


def test_passwords_change_and_users_go(guarded: ServerProcess) -> None:
    with ann(guarded) as root:
        root.execute("CREATE USER carl PASSWORD 'one'")
        with guarded.connect(user="carl", password="one") as carl:
            carl.execute("ALTER USER carl PASSWORD 'two'")
            for refused in (
                "ALTER USER bob PASSWORD 'two'",
                "ALTER USER carl SUPERUSER",
                "ALTER USER carl PASSWORD 'x' SUPERUSER",
                "CREATE USER dora PASSWORD 'x'",
                "CREATE USER dora PASSWORD 'x' SUPERUSER",
                "DROP USER bob",
                "DROP USER carl",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    carl.execute(refused)
            with pytest.raises(psycopg.OperationalError):
                guarded.connect(user="carl", password="one")
            guarded.connect(user="carl", password="two").close()
            with pytest.raises(psycopg.errors.ObjectInUse):
                root.execute("DROP USER ann")
            root.execute("DROP USER carl")
            # The session that is open is nobody's now.
            with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification):
                carl.execute("ALTER USER carl PASSWORD 'three'")
            with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification):
                carl.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match=WRONG % "carl"):
            guarded.connect(user="carl", password="two")


def test_what_stands_for_a_password_is_postgresqls(guarded: ServerProcess) -> None:
    """psql's \\password sends a verifier that libpq has made."""
    with ann(guarded) as root:
        root.execute("CREATE USER dave PASSWORD 'x'")
        verifier = root.pgconn.encrypt_password(b"\xc3\xa9 \xe2\x85\xa8", b"dave", b"scram-sha-256").decode()
        assert verifier.startswith("SCRAM-SHA-256$")
        root.execute(f"ALTER USER dave PASSWORD '{verifier}'")
        # SASLprep: the Roman numeral is its letters.
        guarded.connect(user="dave", password="é IX").close()
        root.execute("ALTER USER dave PASSWORD 'a\u00a0\u00adb'")
        guarded.connect(user="dave", password="a b").close()
        root.execute("DROP USER dave")


def test_a_password_stands_nowhere(guarded: ServerProcess) -> None:
    secret = "k0nspicuous"
    with ann(guarded) as root, ann(guarded) as other:
        root.execute(f"CREATE USER erna PASSWORD '{secret}'")
        for wrong in (
            f"CREATE USER erna PASSWORD '{secret}'",
            f"CREATE USER fritz PASSWORD '{secret}' '{secret}'",
            f"CREATE USER fritz '{secret}'",
            f"CREATE USER fritz PASSWORD '{secret}' LOGIN",
            f"ALTER USER fritz PASSWORD '{secret}'",
            f"ALTER USER PASSWORD '{secret}'",
            f"CREATE USER fritz PASSWORD '{secret}",
            f"EXPLAIN CREATE USER fritz PASSWORD '{secret}' x",
        ):
            with pytest.raises(psycopg.Error) as told:
                root.execute(wrong)
            diag = told.value.diag
            # `str` of the exception has libpq's own quotation of the text that it sent itself.
            parts = (diag.message_primary, diag.message_detail, diag.message_hint, diag.context)
            assert secret not in "".join(filter(None, parts)), wrong
        assert root.execute(f"EXPLAIN CREATE USER g PASSWORD '{secret}'").fetchall() == [("CREATE USER",)]
        root.execute(f"PREPARE p AS ALTER USER erna PASSWORD '{secret}'")
        root.execute("EXECUTE p")
        seen = []
        for view in ("ducktail.sessions", "ducktail.settings", "ducktail.meta", "pg_catalog.pg_authid",
                     "pg_catalog.pg_roles", "pg_catalog.pg_user", "pg_catalog.pg_shadow",
                     "pg_catalog.pg_stat_activity", "pg_catalog.pg_prepared_statements",
                     "duckdb_prepared_statements()", "duckdb_variables()", "duckdb_logs()"):  # fmt: skip
            try:
                seen.append(str(other.execute(f"SELECT * FROM {view}").fetchall()))
            except psycopg.Error as error:
                seen.append(str(error.diag.message_primary))
        assert secret not in "".join(seen) and "SCRAM-SHA-256$" not in "".join(seen)
        root.execute("DROP USER erna")
    assert secret not in "\n".join(guarded.lines)
    # Nor in the file: only what it is held against.
    for file in (guarded.path, f"{guarded.path}.wal"):
        if Path(file).exists():
            assert secret.encode() not in Path(file).read_bytes()


def test_verifiers_cannot_be_read(guarded: ServerProcess) -> None:
    hidden = "ducktail.__ducktail_users"
    with ann(guarded) as root:
        root.execute("CREATE OR REPLACE MACRO look(n) AS TABLE SELECT * FROM query_table(n)")
        root.execute("SET VARIABLE half = 'tail_users'")
        for door in (
            f"SELECT * FROM {hidden}",
            f"SELECT * FROM '{hidden}'",
            'SELECT * FROM "ducktail"."__DUCKTAIL_users"',
            f"DESCRIBE {hidden}",
            f"SUMMARIZE {hidden}",
            f"COPY {hidden} TO STDOUT",
            f"CREATE VIEW v AS SELECT * FROM {hidden}",
            f"CREATE TABLE copied AS SELECT * FROM {hidden}",
            f"PREPARE p AS SELECT * FROM {hidden}",
            f"EXPLAIN ANALYZE SELECT * FROM {hidden}",
            f"PRAGMA storage_info('{hidden}')",
            f"UPDATE {hidden} SET superuser = true",
            f"DELETE FROM {hidden}",
            "SELECT * FROM query('SELECT * FROM ducktail.__ducktail_users')",
            "SELECT * FROM query_table('ducktail.__duck' || getvariable('half'))",
            "SELECT * FROM look('ducktail.__duck' || 'tail_users')",
            "SELECT * FROM histogram_values('ducktail.__duck' || 'tail_users', verifier)",
            "CREATE TABLE copied AS SELECT * FROM look('ducktail.__duck' || 'tail_users')",
            "CREATE TABLE copied AS SELECT * FROM query_table('ducktail.__duck' || 'tail_users')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                root.execute(door)
        root.execute("PREPARE q AS SELECT * FROM query_table($1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            root.execute("EXECUTE q('ducktail.__duck' || 'tail_users')")
        with pytest.raises(psycopg.Error):
            root.execute("SELECT * FROM query_table(%s)", ["ducktail.__ducktail_users"])
        root.execute("CREATE TABLE mine AS SELECT 1 AS one")
        assert root.execute("SELECT * FROM look('mine')").fetchall() == [(1,)]


def test_listening_elsewhere(serve: Serve, tmp_path: Path, certificate: certificates.Files) -> None:
    path = tmp_path / "d.duckdb"
    with pytest.raises(RuntimeError, match="wants users"):
        ServerProcess(path, ("--port", "0", "--host", "0.0.0.0", *certificate.options))
    with ducktail.connect(path) as con:
        con.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
    with pytest.raises(RuntimeError, match="wants TLS"):
        ServerProcess(path, ("--port", "0", "--host", "0.0.0.0"))
    with ServerProcess(path, ("--port", "0", "--host", "0.0.0.0", *certificate.options)) as server:
        server.connect(user="ann", password="x").close()
        with pytest.raises(psycopg.OperationalError):
            server.connect(user="ducktail")
    with ServerProcess(tmp_path / "e.duckdb", ("--port", "0", "--host", "0.0.0.0", "--insecure")) as server:
        server.connect().close()


def test_a_backup_wants_the_password_too(guarded: ServerProcess, tmp_path: Path) -> None:
    def backup(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment}
        return ran(["backup", str(guarded.path), "TO", str(tmp_path / name)], environment=home)

    done = backup("a")
    assert done.returncode == 1 and "PGPASSWORD" in done.stderr
    assert backup("b", PGUSER="ann", PGPASSWORD="ann's secret").returncode == 0
    with ServerProcess(tmp_path / "b") as copy, pytest.raises(psycopg.OperationalError):
        copy.connect(dbname="b")

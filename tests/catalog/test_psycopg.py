"""psycopg 3's own questions: its types, and the connection's facts."""

from __future__ import annotations

import psycopg
from psycopg.types import TypeInfo
from psycopg.types.composite import CompositeInfo
from psycopg.types.enum import EnumInfo
from server_process import ServerProcess


def test_types_are_found_by_name(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
        for name, oid, array_oid in (("jsonb", 3802, 3807), ("int4", 23, 1007), ("text", 25, 1009)):
            found = TypeInfo.fetch(connection, name)
            assert found is not None and (found.name, found.oid, found.array_oid) == (name, oid, array_oid)
        assert TypeInfo.fetch(connection, "hstore") is None
        mood = EnumInfo.fetch(connection, "mood")
        assert mood is not None and list(mood.labels) == ["sad", "glad"]
        assert CompositeInfo.fetch(connection, "nowhere") is None


def test_the_facts_of_a_session(server: ServerProcess) -> None:
    named = {"user": "ann", "application_name": "facts", "row_factory": psycopg.rows.dict_row}
    with server.connect(**named) as connection:
        row = connection.execute(
            "SELECT current_user, session_user AS me, pg_backend_pid(), current_database(), "
            "current_setting('application_name') AS name, version() LIKE 'PostgreSQL 15%' AS is_15"
        ).fetchone()
        assert row == {
            "current_user": "ann", "me": "ann", "pg_backend_pid": connection.info.backend_pid,
            "current_database": "ducktail", "name": "facts", "is_15": True,
        }  # fmt: skip
        connection.execute("SET application_name = 'changed'")
        query = "SELECT setting, source FROM pg_settings WHERE name = 'application_name'"
        assert connection.execute(query).fetchone() == {"setting": "changed", "source": "session"}
        users = connection.execute("SELECT rolname FROM pg_roles ORDER BY 1").fetchall()
        assert [user["rolname"] for user in users] == ["ann", "ducktail"]


def test_parameters_in_catalog_queries(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        query = "SELECT c.relname, c.oid FROM pg_class c WHERE c.relname = %s AND c.relkind IN (%s, %s)"
        for _ in range(7):  # From the fifth on it is a prepared statement.
            found = connection.execute(query, ("orders", "r", "v")).fetchall()
            assert [row[0] for row in found] == ["orders"]
        again = connection.execute("SELECT %s::regclass::text", (str(found[0][1]),)).fetchone()
        assert again == ("orders",)


def test_the_servers_settings_and_what_a_session_listens_to(server: ServerProcess) -> None:
    with server.connect() as connection:
        query = "SELECT setting, source, context, vartype FROM pg_settings WHERE name = %s"
        found = connection.execute(query, ["spool_memory_bytes_max"]).fetchall()
        assert found == [("4194304", "default", "postmaster", "integer")]
        assert connection.execute("SELECT current_setting('wal_bytes_max')").fetchall() == [("268435456",)]
        query = "SELECT setting FROM pg_settings WHERE name = 'max_connections'"
        assert connection.execute(query).fetchall() == [("100",)]
        names = [row[0] for row in connection.execute("SELECT name FROM pg_settings").fetchall()]
        assert len(names) == len(set(names))
        assert connection.execute("SELECT pg_listening_channels()").fetchall() == []
        connection.execute("LISTEN one")
        connection.execute('LISTEN "Two"')
        for query in ("SELECT pg_listening_channels()", "SELECT * FROM pg_listening_channels()"):
            assert sorted(connection.execute(query).fetchall()) == [("Two",), ("one",)]
        connection.execute("UNLISTEN *")
        assert connection.execute("SELECT pg_catalog.pg_listening_channels() AS c").fetchall() == []

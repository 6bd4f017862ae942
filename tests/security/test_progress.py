"""How far others are: pipelines, checkpoints and groups are told to those whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

SETUP = """
REPORT PIPELINE 'nobodys' AS '{"batch_id": 1}';
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER bob PASSWORD 'x';
CREATE USER eve PASSWORD 'x';
CREATE TABLE sold (id INT);
CREATE STREAM sales ON sold;
GRANT CONSUME ON sales TO bob;
GRANT CONSUME ON sales TO eve;
"""
VIEWS = [
    *("pipelines", "pipeline_history", "checkpoints"),
    *("consumer_groups", "offsets", "members", "parked", "delivery_counts"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Tests leave it as it was, but for eve's right on the stream."""
    with ServerProcess(tmp_path_factory.mktemp("progress") / "shop.duckdb") as started:
        with started.connect() as first:
            for statement in filter(str.strip, SETUP.split(";")):
                first.execute(statement)
        for user in ("bob", "eve"):
            with started.connect(user=user, password="x") as connection:
                connection.execute(f"REPORT PIPELINE '{user}s_pipeline' AS '{{\"batch_id\": 1}}'")
                connection.execute(f"CREATE CONSUMER GROUP {user}s_group ON sales WITH (max_deliveries = 9)")
        yield started


def told(connection: Connection) -> str:
    """All that the views and SHOW tell."""
    queries = [
        *(f"SELECT * FROM ducktail.{view}" for view in VIEWS),
        "SHOW CHECKPOINTS",
        "SHOW CONSUMER GROUPS",
    ]
    return " ".join(str(connection.execute(query).fetchall()) for query in queries)


def test_each_is_told_of_his_own(bob: Connection, eve: Connection) -> None:
    for connection, mine, others in ((bob, "bob", "eve"), (eve, "eve", "bob")):
        found = told(connection)
        assert f"{mine}s_pipeline" in found
        assert f"{mine}s_group" in found
        assert f"{others}s_" not in found
        assert "nobodys" not in found


def test_the_superuser_is_told_of_all(ann: Connection) -> None:
    found = told(ann)
    for name in ("nobodys", "bobs_pipeline", "eves_pipeline", "bobs_group", "eves_group"):
        assert name in found


def test_a_name_that_is_taken_is_all_that_an_error_tells(eve: Connection) -> None:
    errors = []
    for name in ("bobs_pipeline", "nobodys"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
            eve.execute(f"REPORT PIPELINE '{name}' AS '{{}}'")
        diag = error.value.diag
        errors.append([str(diag.message_primary).replace(name, "x"), diag.message_detail, diag.message_hint])
    assert errors[0] == errors[1]


def test_a_group_tells_nothing_once_the_stream_is_out_of_reach(ann: Connection, eve: Connection) -> None:
    ann.execute("REVOKE CONSUME ON sales FROM eve")
    ann.execute("INSERT INTO sold VALUES (1)")
    found = told(eve)
    assert "sales" not in found
    assert "eves_pipeline" in found
    ann.execute("GRANT CONSUME ON sales TO eve")
    assert "eves_group" in told(eve)

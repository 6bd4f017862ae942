"""SHOW CHECKPOINTS of consumers in process, and who is told of them."""

from __future__ import annotations

import json

import ducktail
from ducktail.engine.checkpoints.positions import PostgresLsn
from ducktail.engine.checkpoints.state import Checkpoint, CheckpointState
from ducktail.engine.system_views.rows import live_rows
from ducktail.sql.python.stream_manager import checkpoints_of_jobs

SHOWN = (
    "SELECT stream_name, consumer_name, group_name, position, sequence, event_count FROM ducktail.checkpoints"
)


def test_consumers_groups_jobs_and_pipelines_stand_side_by_side() -> None:
    with ducktail.connect() as con:
        con.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        con.execute("CREATE STREAM s ON t WITH (partitions = 2)")
        con.execute("CREATE CONSUMER GROUP g ON s")
        con.execute("INSERT INTO t SELECT i FROM range(250) r(i)")
        for group in (None, "g"):
            stream = con.streams.open("s")
            for batch in stream.follow("mirror", group):
                if batch.event_count == 250:
                    stream.stop()
        con.execute("REPORT PIPELINE 'p' AS '{\"batch_id\": 3}'")
        database = con._shared.database
        job = Checkpoint("postgresql", PostgresLsn.parse("0/1234ABCD"), 5)
        checkpoints_of_jobs(database).save(CheckpointState("orders-copy", 1, 5, checkpoint=job))
        lsns = con.execute("SELECT partition, max(lsn) FROM STREAM s GROUP BY ALL").fetchall()
        ends = json.dumps({str(partition): lsn for partition, lsn in sorted(lsns)})
        assert con.execute(f"{SHOWN} ORDER BY ALL NULLS FIRST").fetchall() == [
            (None, "orders-copy", None, "0/1234ABCD", 1, 0),
            (None, "p", None, None, 3, None),
            ("s", None, "g", ends, None, None),
            ("s", "mirror", None, '{"0": 250, "1": 250}', 2, 250),
        ]
        [(seconds, watermark)] = con.execute(
            "SELECT age_seconds, watermark = (SELECT max(commit_time) FROM STREAM s) "
            "FROM ducktail.checkpoints WHERE consumer_name = 'mirror'"
        ).fetchall()
        assert 0 <= seconds < 60 and watermark
        assert len(con.execute("SHOW CHECKPOINTS ON s").fetchall()) == 2
        con.execute("DROP STREAM s CASCADE")
        assert len(con.execute("SHOW CHECKPOINTS").fetchall()) == 2


def test_a_user_is_told_of_his_own() -> None:
    with ducktail.connect() as con:
        con.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        con.execute("CREATE STREAM s ON t")
        con.execute("CREATE CONSUMER GROUP g ON s")
        con.execute("REPORT PIPELINE 'p' AS '{}'")
        con.streams.set_checkpoint("s", "mirror", 0)
        for statement in (
            "CREATE USER boss PASSWORD 'x' SUPERUSER",
            "CREATE USER bob PASSWORD 'x'",
            "GRANT SELECT ON s TO bob",
        ):
            con.execute(statement)

        def told(user: str) -> list[str]:
            return [
                row["consumer_name"] or row["group_name"]
                for row in json.loads(live_rows(con._shared.database, "checkpoints", user))
            ]

        assert sorted(told("boss")) == ["g", "mirror", "p"]
        assert told("bob") == []
        con.execute("GRANT CONSUME ON CONSUMER GROUP g ON s TO bob")
        con.execute("GRANT CONSUME ON s TO bob")
        assert told("bob") == ["g"]

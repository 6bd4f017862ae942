"""What a pipeline's line of progress says of how far it is behind, without Spark: against a real gateway."""

from __future__ import annotations

import io
import json

import pytest
from server_process import ServerProcess

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

from ducktail.spark_connector.options import Name, Use, parse
from ducktail.spark_connector.pipelines.reporting import Reporter


def test_behind_is_as_of_the_batch_that_is_done(gateway: ServerProcess) -> None:
    """The group follows with the next trigger only: what lies between is not behind any more."""
    options = parse({"host": gateway.host, "port": str(gateway.port)}, Use.READ)
    screen = io.StringIO()
    with gateway.connect() as look:
        look.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        look.execute('CREATE STREAM "o. s" ON orders WITH (partitions = 2)')
        look.execute('CREATE CONSUMER GROUP g ON "o. s"')
        for number in range(30):
            look.execute("INSERT INTO orders VALUES (%s)", (number,))
        reporter = Reporter(options, "p", Name("o. s"), "g", screen)
        assert reporter._lag() == 30
        lsns = look.execute('SELECT partition, lsn FROM STREAM "o. s" ORDER BY lsn').fetchall()
        done = {0: 0, 1: 0}
        for at, (partition, lsn) in enumerate(lsns):
            done[partition] = lsn
            if at % 5 == 0:
                assert reporter._lag(done) == 30 - at - 1
        position = json.dumps({str(partition): lsn for partition, lsn in done.items()})
        look.execute(f"COMMIT OFFSETS AT '{position}' ON \"o. s\" CONSUMER GROUP g")
        assert reporter._lag(done) == reporter._lag() == 0
        # A batch of long ago, of which the group knows more.
        assert reporter._lag({0: 0, 1: 0}) == 0
        said = reporter.finish("stopped", None)
    assert said.endswith("0 events behind") and screen.getvalue() == ""

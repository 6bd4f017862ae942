"""A node that a peer has told of a newer placement does not answer by its own any more."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from cluster_processes import ClusterProcesses

ALL = '[[topics]]\nname = "*"\npartitions = { n1 = "0", n2 = "1" }\n'


def test_what_a_stale_node_is_asked_about_topics_is_40001(tmp_path: Path) -> None:
    only = ALL.replace(', n2 = "1"', "")
    with ClusterProcesses(tmp_path, 2, only, start=False) as cluster:
        node = cluster.start("n1")
        cluster.start("n2")
        with node.connect() as client:
            client.execute("CREATE TOPIC news")
            client.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
            client.execute("CREATE STREAM s ON t")
            client.execute("PUBLISH TO news 'one'")
            said = "-c ducktail.node=n2 -c ducktail.cluster=shop -c ducktail.epoch=2"
            node.connect(options=said).close()
            with pytest.raises(psycopg.errors.SerializationFailure) as caught:
                client.execute("PUBLISH TO news 'two'")
            assert "epoch 2" in str(caught.value.diag.message_detail)
            # A stream on a table is where the table is, whatever the placement.
            client.execute("INSERT INTO t VALUES (1)")
            assert client.execute("SELECT count(*) FROM STREAM s").fetchone() == (1,)
            client.execute("INSTALL PLACEMENT %s", (cluster.text(epoch=2),))
            client.execute("PUBLISH TO news 'three'")
            counts = "SELECT routed, delivered_locally FROM ducktail.nodes WHERE local"
            assert client.execute(counts).fetchone() == (2, 2)

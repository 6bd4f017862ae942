"""The Spark connector's readers, called as Spark calls them, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from server_process import ServerProcess

from ducktail.spark_connector.data_source import DucktailSource
from ducktail.spark_connector.source.stream_reader import StreamReader

Offset = dict[str, Any]
Rows = list[dict[str, Any]]


def options_of(node: ServerProcess, **options: object) -> dict[str, str]:
    """The data source's, for a node; a node that is away is not waited for."""
    given = {"host": node.host, "port": node.port, "retryTimeout": "0 s"}
    return {name: str(value) for name, value in {**given, **options}.items()}


def read(node: ServerProcess, **options: object) -> Rows:
    """A batch read: its tasks run one by one, in copies of the reader."""
    source = DucktailSource(options_of(node, **options))
    reader = source.reader(source.schema())
    copy = pickle.loads(pickle.dumps(reader))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for task in tasks for batch in copy.read(task) for row in batch.to_pylist()]


@contextmanager
def streaming(node: ServerProcess, **options: object) -> Iterator[StreamReader]:
    """A streaming query's reader."""
    schema = DucktailSource(options_of(node, stream=options["stream"])).schema()
    given = options_of(node, **{"pollTimeout": "0 s", **options})
    reader = DucktailSource(given).streamReader(schema)
    assert isinstance(reader, StreamReader)
    try:
        yield reader
    finally:
        reader.stop()


def rows_of(reader: StreamReader, start: Offset, end: Offset) -> Rows:
    """A micro-batch's rows, as its tasks read them: in copies of the reader."""
    copy = pickle.loads(pickle.dumps(reader))
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return [row for task in tasks for batch in copy.read(task) for row in batch.to_pylist()]

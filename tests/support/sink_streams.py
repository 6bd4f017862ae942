"""A stream with a sink, for the tests of each kind of receiver."""

from __future__ import annotations

from typing import Any

from server_process import ServerProcess
from webhook_receiver import until


class SinkStream:
    """A table (id, v) of a served database, its stream, and a connection; the tests of a kind make the sink.

    Args:
        number: of the test's own, in the names of table and stream.
    """

    def __init__(self, server: ServerProcess, number: int, partitions: int = 3) -> None:
        self.server = server
        self.table, self.stream = f"t{number}", f"s{number}"
        self.connection = server.connect()
        self.sql(f"create table {self.table} (id int primary key, v text)")
        self.sql(f"create stream {self.stream} on {self.table} with (partitions = {partitions})")

    def sql(self, text: str) -> list[Any]:
        """The rows of a statement."""
        cursor = self.connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []

    def insert(self, first: int, last: int, v: str = "x") -> None:
        """Rows in one transaction."""
        self.sql(f"insert into {self.table} select i, '{v}' from range({first}, {last + 1}) t(i)")

    def state(self, column: str) -> Any:
        """A column of ducktail.sinks."""
        [(found,)] = self.sql(f"select {column} from ducktail.sinks where stream_name = '{self.stream}'")
        return found

    def drained(self, timeout_s: float = 60) -> None:
        """Wait until everything is delivered or parked."""
        until(lambda: self.state("lag_events") == 0, timeout_s)

    def restarted(self) -> None:
        """End the server with SIGKILL, and start it again."""
        self.connection.close()
        self.server.kill()
        self.server.start()
        self.connection = self.server.connect()

    def drop(self) -> None:
        """Drop stream and sink."""
        self.connection.close()
        with self.server.connect() as connection:
            connection.execute(f"drop stream {self.stream} cascade".encode())

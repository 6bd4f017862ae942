"""The nodes of a cluster that have a stream's partitions, and the driver's connections to them.

Of a server alone, and of what the given gateway has itself, the owner is the gateway that the options name.
Elsewhere rows are read straight from the owner; the given gateway is asked where that is, waits for
events and has the consumer group.
"""

from __future__ import annotations

from dataclasses import dataclass

from .connection import Connection, connect
from .options import Options


@dataclass(frozen=True, slots=True)
class Owner:
    """Where partitions are read.

    Args:
        node: its name in the cluster; "" for the gateway that the options name.
        host, port: where it listens.
    """

    node: str = ""
    host: str = ""
    port: int = 0

    def options(self, options: Options) -> Options:
        """How it is connected to: as the given gateway is, but for its address."""
        return options.at(self.host, self.port) if self.node else options

    def __str__(self) -> str:
        """For messages."""
        return f' on node "{self.node}"' if self.node else ""


GIVEN = Owner()


class Connections:
    """The connections of a driver, made when they are first wanted."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open: dict[Owner, Connection] = {}

    def to(self, owner: Owner = GIVEN) -> Connection:
        """The connection to a node.

        Raises:
            ConnectorError: as `connect`.
        """
        connection = self._open.get(owner)
        if connection is None or connection.closed:
            connection = self._open[owner] = connect(owner.options(self._options), owner.node)
        return connection

    def close(self) -> None:
        """End them all."""
        while self._open:
            self._open.popitem()[1].close()

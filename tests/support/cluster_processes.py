"""Several real server processes that are one cluster, on loopback, each with its own copy of cluster.toml."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from types import TracebackType

from server_process import ServerProcess

CLUSTER_TIMEOUT_S = 30.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; each another one."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class ClusterProcesses:
    """See the head of the file: nodes n1, n2, ... in `folder`, each in a folder of its name.

    Args:
        topics: the [[topics]] tables of the file.
        more: lines for its top.
        options: further words of each server's command line.
        guests: so many further nodes have a folder and a port, and are in no file and not started yet.

    Attributes:
        ports: where clients reach the nodes.
        reached: where other nodes do: the same, unless something stands in between.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        topics: str,
        more: str = "",
        start: bool = True,
        *,
        options: tuple[str, ...] = (),
        guests: int = 0,
    ) -> None:
        self.folder, self.topics, self.more, self.options = folder, topics, more, options
        names = [f"n{number}" for number in range(1, nodes + guests + 1)]
        self.ports = dict(zip(names, free_ports(nodes + guests), strict=True))
        self.reached = dict(self.ports)
        self.present = names[:nodes]
        self.nodes: dict[str, ServerProcess] = {}
        for name in names:
            (folder / name).mkdir()
            self.file(name).write_text(self.text())
        if start:
            for name in self.present:
                self.start(name)

    def text(self, epoch: int = 1, topics: str | None = None, without: str = "") -> str:
        """What cluster.toml says; `without` is a node that has left."""
        lines = ['cluster = "shop"', f"epoch = {epoch}", self.more]
        for name in (name for name in self.present if name != without):
            port = self.reached[name]
            lines += [f"[nodes.{name}]", 'host = "127.0.0.1"', f"port = {port}"]
        return "\n".join([*lines, self.topics if topics is None else topics]) + "\n"

    def file(self, name: str) -> Path:
        """A node's copy."""
        return self.folder / name / "cluster.toml"

    def start(self, name: str) -> ServerProcess:
        """Start a node (again)."""
        database = self.folder / name / f"{name}.duckdb"
        between = self.reached.get(name) != self.ports.get(name)
        port = ("--port", str(self.ports[name])) if between else ()
        options = ("--node", name, "--cluster", str(self.file(name)), *port, *self.options)
        self.nodes[name] = ServerProcess(database, options)
        return self.nodes[name]

    def reload(self, name: str, text: str) -> None:
        """Give a node another file and SIGHUP; it is read soon afterwards."""
        self.file(name).write_text(text)
        self.nodes[name].process.send_signal(signal.SIGHUP)

    def __getitem__(self, name: str) -> ServerProcess:
        return self.nodes[name]

    def __enter__(self) -> ClusterProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)  # It may stand still.
                node.stop()

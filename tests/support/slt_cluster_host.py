"""Nodes of a cluster in one process for the .slt files: two, of which one owns nothing, or three with shares.

As slt_host: {"open": path, "settings": {}, "spread": false} is answered with {"local": port, "entry": port},
or with the ports of three nodes that have a third of each topic; {"close": path} with {}. Ends when its input
does.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from ducktail.engine.cluster.joining import join
from ducktail.engine.database import Database
from ducktail.engine.placement.cluster_file import ClusterSource
from ducktail.engine.settings import Settings
from ducktail.pgwire_gateway import Server, listen
from ducktail.pgwire_gateway.server.postmaster import ServerThread

# The first one's name is that of the only node where there is no cluster.
NODES = ("local", "entry")
# Partition p of every topic is the p-th node's, counted round.
SPREAD = ("local", "second", "third")


def opened(path: Path, settings: dict[str, int], stack: ExitStack, nodes: tuple[str, ...]) -> dict[str, int]:
    """Open both databases and serve them; the file of the cluster stays what it was at the first time."""
    file, ports_file = path.with_suffix(".toml"), path.with_suffix(".ports")
    if ports_file.exists():
        ports = json.loads(ports_file.read_text())
    else:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
        ports = {name: one.getsockname()[1] for name, one in zip(nodes, sockets, strict=True)}
        for one in sockets:
            one.close()
        ports_file.write_text(json.dumps(ports))
        lines = ['cluster = "slt"', "epoch = 1"]
        for name, port in ports.items():
            lines += [f"[nodes.{name}]", 'host = "127.0.0.1"', f"port = {port}"]
        shares = ", ".join(f'{name} = "{place}"' for place, name in enumerate(nodes))
        owned = shares if nodes == SPREAD else 'local = "0-1023"'
        lines += ["[[topics]]", 'name = "*"', f"partitions = {{ {owned} }}"]
        file.write_text("\n".join(lines) + "\n")
    for name in nodes:
        place = path if name == "local" else path.with_name(f"{name}.duckdb")
        database = Database.open(str(place), Settings(**settings))
        stack.callback(database.close)
        join(database, ClusterSource(file, name))
        server = ServerThread(Server(database, listen("127.0.0.1", ports[name])))
        stack.callback(server.stop)
    return ports


def main() -> None:
    """Answer requests until the input ends."""
    all_opened: dict[str, ExitStack] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, int] = {}
        if "open" in request:
            stack = all_opened[request["open"]] = ExitStack()
            nodes = SPREAD if request.get("spread") else NODES
            answer = opened(Path(request["open"]), request["settings"], stack, nodes)
        else:
            all_opened.pop(request["close"]).close()
        print(json.dumps(answer), flush=True)
    for stack in all_opened.values():
        stack.close()


if __name__ == "__main__":
    main()

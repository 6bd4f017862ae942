"""Real RabbitMQ nodes for a test: one, or several in a cluster on loopback, with the stream plugin.

Each node is a process of Debian's `rabbitmq-server` with a directory, a node name and ports of its own; the
name server of Erlang's distribution (epmd) is a process of the test as well. All of them end with their
block. Nodes are killed with SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from certificates import Files
from rstream import AMQPMessage, Consumer, ConsumerOffsetSpecification, OffsetType, Producer, amqp_decoder
from rstream.client import Client
from rstream.exceptions import LeaderNotAvailable, StreamNotAvailable
from webhook_receiver import until

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
USER, PASSWORD = "shop", "s3cret:/@%"
# The same password in a URL.
QUOTED = "s3cret%3A%2F%40%25"
START_TIMEOUT_S = 120.0
FRAME_BYTES_MAX = 1 << 20
# The beginning of messages that mark the end of a stream for a reader.
MARK = b"end "

T = TypeVar("T")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class RabbitmqNode:
    """One node.

    Args:
        root: the directory of the cluster.
        number: its number in the cluster, from 1.
        names: the names of all nodes of the cluster.
        tls: the certificate of a second listener, with TLS.
    """

    def __init__(
        self, root: Path, number: int, names: Sequence[str], epmd_port: int, tls: Files | None = None
    ) -> None:
        self.name = names[number - 1]
        self.home = root / f"node{number}"
        self._log_path = root / f"node{number}.out"
        self._names = names
        self._root = root
        self.port, self.tls_port, self._amqp_port, self._distribution_port = _free_ports(4)
        self._tls = tls
        self._epmd_port = epmd_port
        self.process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """The environment of the node, and of the programs that ask it."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {
            **kept,
            "HOME": str(self._root),
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._amqp_port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.home / "mnesia"),
            # The others send a blank node its streams while it starts. Beside its database they would make it
            # a node with data, which looks for no cluster.
            "RABBITMQ_STREAM_DIR": str(self.home / "streams"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._root / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "none.conf"),
            # The coordinator of streams compares its members with the cluster's nodes each second.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -start_epmd false "
            "-kernel inet_dist_use_interface {127,0,0,1} -rabbit stream_tick_interval 1000",
        }

    def start(self) -> None:
        """Start the node; `wait` waits until it answers."""
        assert self.process is None
        self.home.mkdir(parents=True, exist_ok=True)
        peers = "".join(
            f"cluster_formation.classic_config.nodes.{place} = {name}\n"
            for place, name in enumerate(self._names, 1)
        )
        encrypted = ""
        if self._tls is not None:
            encrypted = (
                f"stream.listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
                f"stream.advertised_tls_port = {self.tls_port}\n"
                f"ssl_options.cacertfile = {self._tls.certificate}\n"
                f"ssl_options.certfile = {self._tls.certificate}\n"
                f"ssl_options.keyfile = {self._tls.key}\n"
            )
        (self.home / "rabbitmq.conf").write_text(
            f"default_user = {USER}\n"
            f"default_pass = {PASSWORD}\n"
            "loopback_users = none\n"
            "disk_free_limit.absolute = 1MB\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "stream.advertised_host = 127.0.0.1\n"
            f"stream.advertised_port = {self.port}\n"
            f"stream.frame_max = {FRAME_BYTES_MAX}\n"
            "cluster_formation.peer_discovery_backend = classic_config\n" + peers + encrypted
        )
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [str(PROGRAMS / "rabbitmq-server")],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment(),
                cwd=self.home, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until the node accepts connections of clients of streams."""
        ends_s = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self.process is not None
            ended = self.process.poll()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if ended is not None or time.monotonic() > ends_s:
                    tail = self._log_path.read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"{self.name} does not listen (status {ended}):\n{tail}") from None
                time.sleep(0.05)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()
        self.wait()

    def ask(self, program: str, *words: str) -> str:
        """The output of rabbitmqctl or rabbitmq-streams about this node."""
        command = [str(PROGRAMS / program), "--node", self.name, *words]
        asked = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=120)
        assert asked.returncode == 0, f"{' '.join(words)}: {asked.stdout}{asked.stderr}"
        return asked.stdout


class RabbitmqCluster:
    """Some nodes in one cluster, running until the end of the block.

    Args:
        root: a directory, empty or of an earlier run.
        tls: the certificate with which the nodes listen for TLS as well.
    """

    def __init__(self, root: Path, nodes: int = 1, tls: Files | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        [self._epmd_port] = _free_ports(1)
        names = [f"ducktail{number}x{self._epmd_port}@localhost" for number in range(1, nodes + 1)]
        self.nodes = [
            RabbitmqNode(root, number, names, self._epmd_port, tls) for number in range(1, nodes + 1)
        ]
        self._epmd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RabbitmqCluster:
        self._epmd = subprocess.Popen(
            ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until(lambda: _listens(self._epmd_port))
        try:
            # The others find the first one: nodes that start together might make several clusters.
            for node in self.nodes:
                node.start()
                node.wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()

    @property
    def url(self) -> str:
        """The URL of all nodes for CREATE SINK."""
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"rabbitmq-stream://{USER}:{QUOTED}@{places}/%2F"

    @property
    def tls_url(self) -> str:
        """The URL of all nodes with TLS."""
        places = ",".join(f"127.0.0.1:{node.tls_port}" for node in self.nodes)
        return f"rabbitmq-stream+tls://{USER}:{QUOTED}@{places}/%2F"

    def create_stream(self, name: str) -> None:
        """Make a stream with a replica on each node."""
        self.asked(lambda client: client.create_stream(name))

    def sync(self) -> None:
        """Make the nodes ready for SIGKILL; there must be a stream."""
        # RabbitMQ 3.10 writes the name of the coordinator of streams to the disk after minutes only; a node
        # that is killed before does not start it again.
        for node in self.nodes:
            node.ask("rabbitmqctl", "eval", "[dets:sync(Table) || Table <- dets:all()].")

    def replace(self, node: RabbitmqNode, stream: str) -> None:
        """Kill a node, delete its disk, and start a blank one in its place, until it has the stream again.

        The others forget the node before the blank one joins them, as a member that has lost its log must
        not vote. Until its replica has caught up, the stream has two that may be elected, so no other node
        may be killed before.
        """
        node.kill()
        shutil.rmtree(node.home)
        other = self._running()
        other.ask("rabbitmqctl", "forget_cluster_node", node.name)
        until(lambda: node.name not in self._coordinators(other), START_TIMEOUT_S)
        node.start()
        node.wait()
        until(lambda: node.name in self._coordinators(other), START_TIMEOUT_S)
        stored = max(offset for _, offset in self._replicas(other, stream).values())
        until(lambda: self._replicas(other, stream).get(node.name, ("", -1))[1] >= stored, START_TIMEOUT_S)
        self.sync()

    def _coordinators(self, node: RabbitmqNode) -> str:
        """The nodes that coordinate streams, as a term of Erlang; a node that restarts is one too."""
        return node.ask("rabbitmqctl", "eval", "ra:members({rabbit_stream_coordinator, node()}).")

    def _replicas(self, node: RabbitmqNode, stream: str) -> dict[str, tuple[str, int]]:
        """Node -> the role of its replica of a stream, and the offset up to which it has it."""
        told = json.loads(node.ask("rabbitmq-streams", "stream_status", stream, "--formatter", "json"))
        return {row["node"]: (row["role"], row["offset"]) for row in told}

    def delete_stream(self, name: str) -> None:
        """Delete a stream."""
        self.asked(lambda client: client.delete_stream(name))

    def asked(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """The answer of a node to a client."""

        async def work() -> T:
            client = await _connected(self._running())
            try:
                return await ask(client)
            finally:
                await client.close()

        return asyncio.run(work())

    def _running(self) -> RabbitmqNode:
        return next(node for node in self.nodes if node.process is not None)

    def messages(self, stream: str, timeout_s: float = 60.0) -> list[AMQPMessage]:
        """All messages of a stream: it ends with one that this call writes and leaves out."""
        ends_s = time.monotonic() + timeout_s
        while True:
            try:
                return asyncio.run(_read(self._running(), stream, timeout_s))
            except (StreamNotAvailable, LeaderNotAvailable):
                # A node was killed, and the stream is not open again.
                if time.monotonic() > ends_s:
                    raise
                time.sleep(0.1)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


async def _connected(node: RabbitmqNode) -> Client:
    client = Client("127.0.0.1", node.port, frame_max=FRAME_BYTES_MAX, heartbeat=60)
    await client.start()
    await client.authenticate("/", USER, PASSWORD)
    return client


async def _read(node: RabbitmqNode, stream: str, timeout_s: float) -> list[AMQPMessage]:
    place: dict[str, Any] = {
        "host": "127.0.0.1", "port": node.port, "vhost": "/", "username": USER, "password": PASSWORD,
    }  # fmt: skip
    end = secrets.token_hex(8).encode()
    found: list[AMQPMessage] = []
    ended = asyncio.Event()

    def take(message: AMQPMessage, _: object) -> None:
        if message.body == MARK + end:
            ended.set()
        elif not message.body.startswith(MARK):
            found.append(message)

    async with Producer(**place) as producer:
        await producer.send_wait(stream, AMQPMessage(body=MARK + end), timeout=10)
    consumer = Consumer(**place)
    await consumer.start()
    try:
        first = ConsumerOffsetSpecification(OffsetType.FIRST)
        await consumer.subscribe(stream, take, decoder=amqp_decoder, offset_specification=first)
        await asyncio.wait_for(ended.wait(), timeout_s)
    finally:
        await consumer.close()
    return found

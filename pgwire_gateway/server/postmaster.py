"""The server: opens the listening socket, accepts connections, and shuts down in order.

It owns the list of sessions (for CancelRequest and for the bound on their number) and the order of a
shutdown: new connections are refused; running requests may finish for a while, are then cancelled, then cut.
Source: docs/design/pgwire_gateway.md, "Ends".
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from ...engine.cluster.joining import reload
from ...engine.database import Database
from ...engine.errors import AdminShutdown, CannotConnectNow, DucktailError, InvalidAuthorization, IoError
from ...engine.waiting import drive
from ...sql.session import Session
from .. import catalog
from ..codec import Limits
from ..conversation import Conversation, Door, EndedStatement, Entry
from ..conversation.startup import LONG_KEY_BYTES
from ..sinks import Sinks
from ..sources import FeedRunners
from .admission import Admission, check_listener, door_for, for_peer, is_loopback
from .connection import INBOX_BYTES, Connection
from .event_loop import Longest, TimedLoop, Wakes
from .statement_log import StatementLog
from .tls import TlsFiles

if TYPE_CHECKING:
    from ..peers import Learner, Mover, Peers
    from .metrics import WatchPort

# The system's queue of unaccepted connections: a pool opens all of its connections at once.
BACKLOG = 100
# The time for running requests to finish in a shutdown, and for cancelled ones to roll back.
DRAIN_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 5.0

log = logging.getLogger("ducktail.gateway")


def listen(host: str, port: int, *, elsewhere: bool = False) -> socket.socket:
    """A socket bound to `host` and `port` (0: a free one).

    Args:
        elsewhere: the address may be reachable by other machines; `check_listener` decides.

    Raises:
        InvalidAuthorization: an address that other machines can reach.
        IoError: the port is taken or the name unknown.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        far = [str(item[4][0]) for item in found if not is_loopback(str(item[4][0]))]
        if far and not elsewhere:
            raise InvalidAuthorization(
                f"listening on {host} wants TLS and users: only loopback addresses do without",
                hint="--tls-cert and --tls-key name certificate and key.",
            )
        listener = socket.socket(family, kind, protocol)
        # A port in TIME_WAIT is free; a port with another listening process is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            # Listen now: two processes may bind the same port, but only one can listen.
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise IoError(f"cannot listen on {host}:{port}: {reason}") from None
    return listener


class Server:
    """Serves one open database on one listening socket.

    Args:
        database: the served database; the caller closes it.
        listener: a socket of `listen`; closed with the server.
        tls: certificate and key; None means no TLS.
        insecure: treat every client as if it were on this machine.
        watched: a socket of `listen`, for metrics and probes; closed with the server. None means no such
            port.

    Raises:
        InvalidParameterValue: the certificate or the key cannot be used.
        InvalidAuthorization: others can reach the port, and TLS or users are missing.
    """

    def __init__(
        self,
        database: Database,
        listener: socket.socket,
        tls: TlsFiles | None = None,
        *,
        insecure: bool = False,
        watched: socket.socket | None = None,
    ) -> None:
        check_listener(listener, database.rights, secured=tls is not None, insecure=insecure)
        self.insecure = insecure
        self.database = database
        self._listener = listener
        bounds = database.settings
        self._limits = Limits(
            bounds.unauthenticated_bytes_max, bounds.message_bytes_max, bounds.statements_max
        )
        self._tls = tls
        self.statement_log = StatementLog(bounds.log_min_duration_statement_ms)
        self.credentials = None if tls is None else tls.load()
        self._workers = ThreadPoolExecutor(
            database.settings.worker_threads, thread_name_prefix="ducktail-worker"
        )
        self._watched = watched
        self._watch_port: WatchPort | None = None
        self._attached: AttachedPort | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: Wakes | None = None
        self._sinks: Sinks | None = None
        self._feeds: FeedRunners | None = None
        self._peers: Peers | None = None
        self._learner: Learner | None = None
        self._mover: Mover | None = None
        self._server: asyncio.Server | None = None
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._connections: set[Connection] = set()
        # Ended connections whose sockets may still exist.
        self._lingering: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._over = asyncio.Event()
        self._draining = False
        # Identifies this run of the server in the traces of its sessions.
        self._run = secrets.token_hex(4)
        # Sessions are opened on worker threads.
        self._mutex = threading.Lock()
        self._admission = Admission(bounds)
        self._guests: dict[int, Visitor] = {}

    @property
    def ready(self) -> bool:
        """True if statements are answered: the server has started, is not ending, and both files can be
        used."""
        database = self.database
        works = database.fallen is None and database.side_failure is None
        return self._server is not None and not self._draining and works

    @property
    def connected(self) -> int:
        """The number of connections, including those that are not authenticated yet."""
        return len(self._connections)

    @property
    def connections_max(self) -> int:
        """The maximum number of sessions."""
        return self.database.settings.max_connections

    @property
    def longest_step(self) -> Longest | None:
        """The longest steps of the event loop in the last minute or two; None if they are not measured."""
        return self._loop.longest_step() if isinstance(self._loop, TimedLoop) else None

    @property
    def address(self) -> tuple[str, int]:
        """The listening address: host, port."""
        name = self._listener.getsockname()
        return name[0], name[1]

    def attach(self, port: AttachedPort) -> None:
        """Start, reload and close another port with this server, which has not started yet."""
        self._attached = port

    async def start(self) -> None:
        """Begin to accept connections."""
        self._loop = asyncio.get_running_loop()
        self._wakes = Wakes(self._loop)
        if self.database.cluster.joined:
            # Imported here, because a server outside a cluster does not need psycopg.
            from ..peers import Learner, Mover, Peers

            self._peers = Peers(self._loop, self.database.cluster)
            self._learner = Learner(self.database, self._peers, lambda: self._trace_of("learning"))
            self._mover = Mover(self.database, self._peers)
        await self._loop.run_in_executor(self._workers, self.database.at_opening, catalog.install)
        if self._peers is not None:
            await self._peers.greet()
        self._server = await self._loop.create_server(self._connect, sock=self._listener)
        if self._mover is not None:
            self._mover.start()
        self.database.announce(" ".join(map(str, self.address)))
        self._sinks = Sinks(self.database, self._loop, self._workers)
        self._sinks.start()
        self._feeds = FeedRunners(self.database, self._loop)
        self._feeds.start()
        if self._watched is not None:
            # Imported here, because a server without that port does not need prometheus_client.
            from .metrics import WatchPort

            self._watch_port = WatchPort(self, self._watched)
            await self._watch_port.start()
        if self._attached is not None:
            await self._attached.start(self._workers, self._wakes)

    def reload(self) -> None:
        """Read certificate, key and cluster file again; after an error the old ones remain."""
        if self._tls is not None:
            try:
                self.credentials = self._tls.load()
            except DucktailError as error:
                log.error("%s; the old certificate stays", error.message)
            else:
                log.info('certificate "%s" has been read again', self._tls.certificate)
                if self._attached is not None:
                    self._attached.reload()
        if self._loop is not None and not self._draining:
            self._loop.run_in_executor(self._workers, self._reload_cluster)

    def _reload_cluster(self) -> None:
        cluster = self.database.cluster
        try:
            if reload(self.database):
                log.info("the cluster file has been read again: epoch %d", cluster.placement.epoch)
                if cluster.lacks and self._learner is not None:
                    self._learner.learn()
        except DucktailError as error:
            log.error("%s; the placement of epoch %d stays", error.message, cluster.placement.epoch)
        except Exception:
            # A task that nobody awaits must not be garbage collected.
            log.exception("reading the cluster file again; the old placement stays")

    async def close(self) -> None:
        """Accept no more, end every session with 57P01, and wait for their ends (bounded)."""
        assert self._server is not None, "only a started server is closed"
        self._draining = True
        self.database.announce("")
        self._server.close()
        ending = AdminShutdown("terminating connection due to administrator command")
        for connection in list(self._connections):
            connection.end(ending)
        if self._attached is not None:
            await self._attached.drain(ending, DRAIN_TIMEOUT_S)
        if not await self._all_over(DRAIN_TIMEOUT_S):
            if self.database.synchronous_copies is not None:
                self.database.synchronous_copies.end_waits()
            for connection in list(self._connections):
                connection.cancel()
            if not await self._all_over(CANCEL_TIMEOUT_S):
                for connection in list(self._connections):
                    connection.abort()
                if not await self._all_over(CANCEL_TIMEOUT_S):
                    log.error("%d sessions did not end", len(self._connections))
        for connection in list(self._lingering):
            connection.hang_up()
        if self._feeds is not None:
            await self._feeds.close()
        if self._sinks is not None:
            await self._sinks.close()
        if self._mover is not None:
            # It waits for the loop.
            await asyncio.to_thread(self._mover.close)
        if self._peers is not None:
            self._peers.close()
        if self._learner is not None:
            await asyncio.to_thread(self._learner.close)
        if self._attached is not None:
            await self._attached.close()
        await asyncio.sleep(0)  # The sockets are closed in the loop's next round.
        self._workers.shutdown(wait=not self._connections)
        if self._watch_port is not None:
            # Last, so that requests meanwhile learn that it is ending.
            await self._watch_port.close()

    async def _all_over(self, timeout_s: float) -> bool:
        while self._connections:
            self._over.clear()
            try:
                await asyncio.wait_for(self._over.wait(), timeout_s)
            except TimeoutError:
                return False
        return True

    def _connect(self) -> Connection:
        assert self._loop is not None and self._wakes is not None, "connections come to a started server"
        guest = Guest(self, secrets.token_bytes(LONG_KEY_BYTES))
        settings = self.database.settings
        conversation = Conversation(guest, guest.secret, self._limits)
        connection = Connection(
            self._loop,
            self._inbox,
            self._workers,
            self._wakes,
            conversation,
            guest.leave,
            self.credentials,
            settings.authentication_timeout_ms / 1000,
        )
        guest.connection = connection
        if len(self._connections) - self._admission.count >= settings.connections_starting_max:
            # The client expects no answer yet, and a flood is not worth one.
            self._loop.call_soon(connection.abort)
        self._connections.add(connection)
        return connection

    # Requests of a guest.

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""
        return self.database.clock.monotonic_s()

    def door(self, entry: Entry, peer: str, *, secured: bool) -> Door:
        """The authentication required of a client at an address, see `Host.door`."""
        near = self.insecure or is_loopback(peer)
        return door_for(self.database.rights, entry, near=near, secured=secured)

    def open(self, guest: Visitor, entry: Entry, door: Door) -> Session:
        """Open a session, see `Host.open_session`."""
        self.database.check_name(entry.database)
        account, user = door.account, door.account or entry.user
        if entry.peer is not None:
            account, user = for_peer(self.database, entry.peer, account, user)
        with self._mutex:
            if self._draining:
                raise CannotConnectNow("the database system is shutting down")
        node, placement = None if entry.peer is None else entry.peer.node, self.database.placement
        others = {one.name for one in placement.nodes if one.name != placement.local.name}
        self._admission.enter(node, others)
        guest.node = node
        try:
            session = Session(
                self.database,
                user=user,
                account=account,
                application_name=entry.application_name,
                settings=dict(entry.settings),
                wire=True,
                peer=entry.peer,
            )
            try:
                session.dress(catalog.attach)
            except BaseException:
                drive(session.close())
                raise
        except BaseException:
            self._admission.leave(node)
            raise
        if entry.peer is None and self._peers is not None and self.database.placement.epoch:
            # A node's own sessions ask no other node.
            session.reach(self._peers, self._trace_of(session.id))
        if self.database.placement.epoch:
            session.learn = None if self._learner is None else self._learner.learn
        session.on_ended = guest.ended
        session.on_cancelled = guest.cancelled
        session.listening.on_news = guest.news
        with self._mutex:
            self._guests[session.id] = guest
        guest.opened_s = self.now_s()
        self.statement_log.session_opened(
            session.id, session.user, entry.application_name, guest.peer,
            tls=guest.secured,
            node=node,
            trace=session.entry.trace,
        )  # fmt: skip
        return session

    def _trace_of(self, session: object) -> str:
        return f"{self.database.placement.local.name}-{self._run}-{session}"

    def leave(self, guest: Guest, connection: Connection) -> None:
        """Handle the end of a connection."""
        session = connection.conversation.session
        if session is not None:
            self.closed(guest, session.id, connection.conversation.error)
        self._connections.discard(connection)
        self._lingering.add(connection)
        self._over.set()

    def closed(self, guest: Visitor, session_id: int, error: DucktailError | None) -> None:
        """Handle the end of a session.

        Args:
            error: the error that ended it, if any.
        """
        self._admission.leave(guest.node)
        with self._mutex:
            self._guests.pop(session_id, None)
        self.statement_log.session_closed(session_id, self.now_s() - guest.opened_s, error)

    def cancel(self, pid: int, secret: bytes) -> None:
        """Cancel the request of session `pid`, if `secret` is its own."""
        with self._mutex:
            guest = self._guests.get(pid)
        expected = bytes(LONG_KEY_BYTES) if guest is None else guest.secret
        if hmac.compare_digest(secret, expected) and guest is not None:
            guest.cancel_request()

    def news(self, guest: Guest) -> None:
        """Deliver notifications to a session; called on any thread."""
        if guest.connection is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(guest.connection.news)

    def cancelled(self, guest: Guest) -> None:
        """Handle another session's cancel of a session; called on any thread."""
        if guest.connection is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(guest.connection.cancel)

    def ended(self, guest: Guest, error: DucktailError) -> None:
        """Handle the engine's end of a session; called on any thread.

        The conversation learns of it at once: a cancel that follows must not be answered as a user's.
        """
        if guest.connection is not None:
            guest.connection.ending(error)
        if guest.connection is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(guest.connection.end, error)


class AttachedPort(Protocol):
    """Another port of the server, which opens sessions for its clients with `Server.open`: the HTTP API.

    A Protocol, because the server does not import it: a server without that port needs none of its libraries.
    """

    async def start(self, workers: ThreadPoolExecutor, wakes: Wakes) -> None:
        """Begin to accept connections.

        Args:
            workers: threads that may block.
            wakes: wakes the server's loop from other threads.
        """

    def reload(self) -> None:
        """Read the certificate again."""

    async def drain(self, error: DucktailError, timeout_s: float) -> None:
        """End waits and streams with `error`, and let running requests finish for a while."""

    async def close(self) -> None:
        """End all sessions, and stop listening."""


class Visitor(Protocol):
    """The client of a session: a connection of the wire, or a client of the HTTP API.

    Attributes:
        secret: the key with which the session's request may be cancelled.
        node: the node that the client is; None for other clients.
        opened_s: the time of the session's opening.
    """

    secret: bytes
    node: str | None
    opened_s: float

    @property
    def peer(self) -> str:
        """The client's address."""

    @property
    def secured(self) -> bool:
        """True if the client uses TLS."""

    def cancel_request(self) -> None:
        """Cancel the session's request, on the loop."""

    def news(self) -> None:
        """Handle new notifications; on any thread, as the two below."""

    def cancelled(self) -> None:
        """Handle another session's cancel."""

    def ended(self, error: DucktailError) -> None:
        """Handle the engine's end of the session."""


class Guest:
    """The `Host` of one connection's conversation."""

    def __init__(self, server: Server, secret: bytes) -> None:
        self.secret = secret
        self.connection: Connection | None = None
        self.opened_s = 0.0
        # The node that the client is; None for other clients.
        self.node: str | None = None
        self._server = server
        # `Host.now_s` as a method of the clock's own, because each message calls it.
        self.now_s = server.database.clock.monotonic_s
        # A reload must not change the certificate of a running connection.
        self.offers_tls = server.credentials is not None

    @property
    def peer(self) -> str:
        """The client's address."""
        assert self.connection is not None, "who is asked about is connected"
        return self.connection.peer

    @property
    def secured(self) -> bool:
        """True if the connection uses TLS."""
        assert self.connection is not None, "who is asked about is connected"
        return self.connection.conversation.channel.secured

    def cancel_request(self) -> None:
        """Cancel the session's request."""
        if self.connection is not None:
            self.connection.cancel()

    def door(self, entry: Entry, *, secured: bool) -> Door:
        """The authentication required of the client."""
        return self._server.door(entry, self.peer, secured=secured)

    def open_session(self, entry: Entry, door: Door) -> Session:
        """Open a session for the client."""
        self.secret = self.secret[: entry.key_bytes]
        return self._server.open(self, entry, door)

    def refused(self, entry: Entry | None, error: DucktailError) -> None:
        """Record the refused client."""
        assert self.connection is not None, "who is refused is connected"
        user = None if entry is None else entry.user
        self._server.statement_log.client_refused(user, self.connection.peer, error)

    def statement_ended(self, ended: EndedStatement) -> None:
        """Record an ended statement of the session."""
        self._server.statement_log.statement_ended(ended)

    def cancel(self, pid: int, secret: bytes) -> None:
        """Cancel the statement of session `pid`, if `secret` is its own."""
        self._server.cancel(pid, secret)

    def leave(self, connection: Connection) -> None:
        """Handle the end of the connection."""
        self._server.leave(self, connection)

    def news(self) -> None:
        """Handle new notifications of the session."""
        self._server.news(self)

    def cancelled(self) -> None:
        """Handle another session's cancel, which also ends the sending of the answer."""
        self._server.cancelled(self)

    def ended(self, error: DucktailError) -> None:
        """Handle the engine's end of the session."""
        self._server.ended(self, error)


class ServerThread:
    """A server with its own event loop and thread, for a process that does other work.

    Attributes:
        address: `host` and `port` of the listening socket.
    """

    def __init__(self, server: Server) -> None:
        self.host, self.port = self.address = server.address
        self._server = server
        self._loop = TimedLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ducktail-server", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), self._loop).result()
        except BaseException:
            self._stop()
            raise

    def stop(self) -> None:
        """End all sessions and stop listening; a second call does nothing."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
            self._stop()

    def close(self) -> None:
        """Stop the server, as `stop`."""
        self.stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def serve_in_thread(database: Database, host: str = "127.0.0.1", port: int = 0) -> ServerThread:
    """Serve `database` from a thread of this process.

    Returns:
        An object with `host`, `port` and `stop()`.

    Raises:
        InvalidAuthorization: the address is no loopback address.
        IoError: the port is taken.
    """
    return ServerThread(Server(database, listen(host, port)))

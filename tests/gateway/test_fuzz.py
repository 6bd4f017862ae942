"""Promise 13 over sockets: whatever peers do, the server lives, and its neighbours never notice.

Seeded attackers come and go meanwhile a neighbour writes a captured table, reads the events, commits the
offset and compares the values. Where an attacker reads its answers they are held against the protocol. At the
end nothing of the attackers may be left: no session, file, thread, memory, or word of a fault in the log.

DUCKTAIL_WIRE_SECONDS sets the time, DUCKTAIL_WIRE_SEED the seed (support/amounts.py).
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certificates
import psycopg
import pytest
from amounts import amount, seed_of
from random_wire import SCHEMA, Speaker
from server_process import ServerProcess
from wire_judge import Bounds, judge, judge_entry, pieces_of, requests_in
from wire_messages import Written

SECONDS = amount("DUCKTAIL_WIRE_SECONDS", 3.0, 120.0)
SEED = seed_of("DUCKTAIL_WIRE_SEED")
ATTACKERS = 2
LIMITS = {
    "authentication-timeout-ms": "10000",
    "unauthenticated-bytes-max": "2000",
    "message-bytes-max": "65536",
    "lock-timeout-ms": "500",
    "idle-in-transaction-session-timeout-ms": "2000",
    "statements-max": "4",
    "portals-max": "3",
}
BOUNDS = Bounds(2_000, 65_536)
# Long after every answer and every end: who waits longer has found a hang.
ANSWER_S = 30.0
# An attacker may hold the writer lock while it waits for another, up to its lock_timeout.
GAP_S_MAX = 10.0
# Peers that stand still at once, of each attacker; one that does not read holds some megabytes.
STUCK_MAX = 5
GROWN_BYTES_MAX = 250 << 20
# The executor's threads come as they are needed.
WORKERS = 16
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
SLOW = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8"

written = Written()


class Peer:
    """A socket to the server."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket: socket.socket = socket.create_connection((server.host, server.port), ANSWER_S)
        self.heard = b""

    def send(self, data: bytes) -> None:
        """Send, to a server that may have closed already."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, ssl.SSLError):
            pass

    def hear(self) -> bool:
        """What comes next; False at the end."""
        try:
            data = self.socket.recv(65536)
        except (ConnectionError, ssl.SSLError):
            data = b""
        self.heard += data
        return bool(data)

    def until(self, end: bytes) -> bool:
        """Hear up to what ends so; False where the server closes before."""
        while end not in self.heard:
            if not self.hear():
                return False
        return True

    def enter(self) -> bytes:
        """Come in; the key for a cancel."""
        self.send(written.startup())
        assert self.until(b"Z\0\0\0\5I"), self.heard
        entered, rest = judge_entry(self.heard)
        assert entered and not rest
        place = self.heard.index(b"K\0\0\0\x0c") + 5
        key, self.heard = self.heard[place : place + 8], b""
        return key

    def close(self) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """Cut it with a reset, as a crashed client's machine does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Attacker:
    """Does one thing after the other to a server, until its time is up."""

    def __init__(self, server: ServerProcess, context: ssl.SSLContext, seed: int) -> None:
        self.server = server
        self.chance = random.Random(seed)
        self.speaker = Speaker(self.chance)
        self.done: dict[str, int] = {}
        self.problem: BaseException | None = None
        self._context = context
        # Peers that say nothing more: the server cuts them, or they vanish later.
        self._stuck: list[Peer] = []

    def attack(self, end: float) -> None:
        """Go on until then; what goes wrong is kept, with what was tried."""
        try:
            while time.monotonic() < end:
                what = self.chance.choice(ATTACKS)
                try:
                    what(self)
                except BaseException as error:
                    error.add_note(f"while {what.__name__}, after {self.done}")
                    raise
                self.done[what.__name__] = self.done.get(what.__name__, 0) + 1
                if len(self._stuck) > STUCK_MAX:
                    self._stuck.pop(self.chance.randrange(STUCK_MAX)).vanish()
        except BaseException as error:
            self.problem = error
        finally:
            for peer in self._stuck:
                peer.vanish()

    def peer(self) -> Peer:
        return Peer(self.server)

    def talk(self) -> None:
        """A conversation of which every answer is held against the protocol."""
        peer = self.peer()
        peer.enter()
        self._hold(peer)

    def talk_in_tls(self) -> None:
        """The same within TLS."""
        peer = self.peer()
        peer.send(SSL_REQUEST)
        assert peer.hear() and peer.heard == b"S"
        peer.heard = b""
        peer.socket = self._context.wrap_socket(peer.socket, server_hostname="localhost")
        peer.enter()
        self._hold(peer)

    def _hold(self, peer: Peer) -> None:
        said = self.speaker.session()
        _, broken, rest = requests_in(said, BOUNDS)
        if rest and not broken:
            peer.send(said)
            return peer.vanish()
        marker = f"the end {self.chance.random()}"
        said += written.message("f", b"no\0") + written.sync
        said += written.query("ROLLBACK") + written.query(f"SELECT '{marker}'")
        for piece in pieces_of(said, self.speaker.places(said)):
            peer.send(piece)
        # The marker comes back in a row, and not in the text of an error.
        row = struct.pack("!hi", 1, len(marker)) + marker.encode()
        ended = not peer.until(row + b"C\0\0\0\rSELECT 1\0Z\0\0\0\5I")
        try:
            judge(said, peer.heard, BOUNDS, ended=ended)
        except AssertionError as error:
            error.add_note(repr(said))
            raise
        peer.close()

    def vanish(self) -> None:
        """A conversation, cut somewhere."""
        peer = self.peer()
        peer.enter()
        said = self.speaker.session()
        peer.send(said[: self.chance.randint(0, len(said))])
        peer.vanish()

    def half_closed(self) -> None:
        """A conversation whose client reads on after it has said its last."""
        peer = self.peer()
        peer.send(written.startup() + self.speaker.session())
        self._read_out(peer)

    def _read_out(self, peer: Peer) -> None:
        try:
            peer.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        while peer.hear():
            pass
        peer.close()

    def noise(self) -> None:
        """Bytes that are nothing, or a startup packet that is nearly one."""
        peer = self.peer()
        chance = self.chance
        noise = chance.randbytes(chance.randint(0, 300))
        peer.send(noise if chance.random() < 0.5 else self.speaker.startup())
        self._read_out(peer)

    def tls_noise(self) -> None:
        """TLS that is none, or half a handshake, asked for or direct."""
        chance, peer = self.chance, self.peer()
        if chance.random() < 0.5:
            peer.send(SSL_REQUEST)
            assert peer.hear() and peer.heard == b"S"
        hello = self._client_hello()
        noise = b"\x16" + chance.randbytes(200)
        said = chance.choice((hello, self.speaker.spoilt(hello), noise, written.startup()))
        peer.send(said[: chance.randint(1, len(said))])
        if chance.random() < 0.5:
            self._read_out(peer)
        else:
            self._stuck.append(peer)

    def _client_hello(self) -> bytes:
        outgoing = ssl.MemoryBIO()
        side = self._context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return outgoing.read()

    def plain_behind_request(self) -> None:
        """SSLRequest, and at once what somebody in between would like to have taken for the client's."""
        peer = self.peer()
        peer.send(SSL_REQUEST + written.startup() + written.query("SELECT 1"))
        while peer.hear():
            pass
        assert peer.heard[:1] == b"E" and b"unencrypted data" in peer.heard
        peer.close()

    def trickle(self) -> None:
        """A startup packet byte by byte, that never ends."""
        peer = self.peer()
        for byte in written.startup()[: self.chance.randint(1, 20)]:
            peer.send(bytes([byte]))
        self._stuck.append(peer)

    def cancels(self) -> None:
        """Many CancelRequests with wrong keys, and a right one for a statement under way."""
        victim = self.peer()
        key = victim.enter()
        victim.send(written.query(SLOW))
        for _ in range(10):
            wrong = struct.pack("!i", self.chance.randint(0, 50)) + self.chance.randbytes(4)
            other = self.peer()
            other.send(written.packet(80877102, self.chance.choice((wrong, key[:4] + wrong[4:], key[:6]))))
            other.vanish() if self.chance.random() < 0.5 else self._read_out(other)
        assert not victim.heard
        other = self.peer()
        other.send(written.packet(80877102, key))
        self._read_out(other)
        assert victim.until(b"Z\0\0\0\5I") and b"C57014\0" in victim.heard
        victim.send(written.terminate)
        assert not victim.hear()
        victim.close()

    def never_reads(self) -> None:
        """Asks for much, and takes nothing."""
        peer = self.peer()
        peer.enter()
        peer.send(written.query("SELECT repeat('x', 100) FROM range(200000)"))
        self._stuck.append(peer)

    def copies(self) -> None:
        """Begins a COPY of its own, and leaves it there."""
        peer = self.peer()
        peer.enter()
        peer.send(written.query("COPY plain FROM STDIN") + written.message("d", b"1\tx\n" * 100))
        assert peer.until(b"G\0\0\0\x0b")
        self._stuck.append(peer)


ATTACKS: tuple[Callable[[Attacker], None], ...] = (
    *(Attacker.talk,) * 8, *(Attacker.talk_in_tls,) * 3, *(Attacker.vanish,) * 4, Attacker.half_closed,
    *(Attacker.noise,) * 3, *(Attacker.tls_noise,) * 3, Attacker.plain_behind_request, Attacker.trickle,
    Attacker.cancels, Attacker.never_reads, Attacker.copies,
)  # fmt: skip


class Neighbour:
    """Writes, reads the event, commits the offset, and compares, on a thread of its own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.rounds = 0
        self.gap_s = 0.0
        self.problem: BaseException | None = None
        self._connection = connection
        self._stop = threading.Event()
        for text in (
            *SCHEMA,
            "CREATE TABLE watched (n INTEGER PRIMARY KEY, v VARCHAR)",
            "CREATE STREAM watched_stream ON watched",
            "CREATE CONSUMER GROUP watchers ON watched_stream",
            "SET lock_timeout = '20s'",
        ):
            connection.execute(text)
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._stop.is_set():
                start = time.monotonic()
                self._round()
                self.gap_s = max(self.gap_s, time.monotonic() - start)
                self.rounds += 1
        except BaseException as error:
            self.problem = error

    def _round(self) -> None:
        con, n = self._connection, self.rounds
        con.execute("INSERT INTO watched VALUES (%s, %s)", (n, f"v{n}"))
        rows = con.execute(
            "SELECT op, after->>'n', after->>'v' FROM STREAM watched_stream CONSUMER GROUP watchers"
        ).fetchall()
        assert rows == [("insert", str(n), f"v{n}")], rows
        con.execute("COMMIT OFFSETS ON watched_stream CONSUMER GROUP watchers")


class Held:
    """What a server's process holds."""

    def __init__(self, server: ServerProcess) -> None:
        place = Path(f"/proc/{server.process.pid}")
        self.files = len(list((place / "fd").iterdir()))
        self.threads = len(list((place / "task").iterdir()))
        self.bytes = int((place / "statm").read_text().split()[1]) * 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with TLS and with little room."""
    directory = tmp_path_factory.mktemp("fuzz")
    options = [word for name, value in LIMITS.items() for word in (f"--{name}", value)]
    certificate = certificates.make(directory)
    path = directory / "ducktail.duckdb"
    with ServerProcess(path, ("--port", "0", *options, *certificate.options)) as made:
        yield made
        begun = time.monotonic()
        made.stop()
        assert time.monotonic() - begun < GAP_S_MAX, "it has waited for connections that are gone"
        assert not [line for line in made.lines if "ERROR" in line or "Traceback" in line]


def attacked(server: ServerProcess, seconds: float, seed: int) -> list[Attacker]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    attackers = [Attacker(server, context, seed * 1000 + n) for n in range(ATTACKERS)]
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=each.attack, args=(end,)) for each in attackers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in attackers:
        if each.problem is not None:
            each.problem.add_note(f"DUCKTAIL_WIRE_SEED={seed}; the server: {server.lines[-5:]}")
            raise each.problem
    return attackers


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * SECONDS)
def test_attackers_and_a_neighbour(server: ServerProcess) -> None:
    with server.connect() as connection:
        neighbour = Neighbour(connection)
        try:
            # What a server needs once and keeps, it has after the first of them.
            attacked(server, SECONDS / 4, SEED)
            before = Held(server)
            attackers = attacked(server, SECONDS * 3 / 4, SEED + 1)
        finally:
            neighbour.stop()
        print({name: sum(a.done.get(name, 0) for a in attackers) for a in attackers for name in a.done})
        print(f"{neighbour.rounds} rounds of the neighbour, the longest {neighbour.gap_s:.2f} s")
        if neighbour.problem is not None:
            raise neighbour.problem
        assert neighbour.rounds > 10 and neighbour.gap_s < GAP_S_MAX
        assert connection.execute("SELECT count(*) FROM watched").fetchall() == [(neighbour.rounds,)]
        deadline = time.monotonic() + ANSWER_S
        while connection.execute("SELECT count(*) FROM ducktail.sessions").fetchall() != [(1,)]:
            assert time.monotonic() < deadline, "sessions are left behind"
        while (now := Held(server)).files > before.files and time.monotonic() < deadline:
            pass
        assert now.files <= before.files, "sockets are left open"
        assert now.threads <= before.threads + WORKERS
        assert now.bytes - before.bytes < GROWN_BYTES_MAX
    signs = ("Traceback", "ERROR", "unexpected error")
    problems = [line for line in server.lines if any(sign in line for sign in signs)]
    assert problems == []


@pytest.mark.parametrize("count", [300])
def test_a_flood_of_connections_that_say_nothing(
    server: ServerProcess, raw_to: Callable[[ServerProcess], Any], count: int
) -> None:
    with server.connect() as connection:
        for _ in range(count):
            raw_to(server)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_who_sends_on_is_not_cut_with_the_last_words_on_their_way(server: ServerProcess) -> None:
    peer = Peer(server)
    peer.enter()
    peer.send(b"f\0\0\x98\x18")
    while peer.hear():
        pass
    assert b"C08P01\0" in peer.heard
    # A cut would take unread words with it, and more surely so within TLS: what comes now is dropped.
    for _ in range(3):
        peer.socket.sendall(b"x" * 20)
    peer.close()

"""Promise 13 in process: codec, conversation and a real session, whatever a client's bytes are.

Each conversation of a seeded speaker is held three times, with three databases that see the same ones in the
same order: in one piece, byte by byte, and in random pieces. The answers must be the same; they must be what
the protocol says (`wire_judge`); and nothing of a conversation may be left when it is over.

DUCKTAIL_WIRE_SECONDS sets the time, DUCKTAIL_WIRE_SEED the first seed; a failure prints the seed
of its conversation and what was said.
"""

from __future__ import annotations

import base64
import gc
import random
import resource
import struct
import time
import weakref
from collections.abc import Callable, Iterable, Iterator

import pytest
from amounts import amount, seed_of
from random_wire import SCHEMA, Speaker
from wire_judge import Bounds, Wrong, answers_in, judge, judge_entry, pieces_of
from wire_messages import Written

from ducktail.engine.catalog.passwords import make_verifier
from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import Wait, block_on, drive
from ducktail.pgwire_gateway import catalog
from ducktail.pgwire_gateway.codec import Limits
from ducktail.pgwire_gateway.conversation import Conversation, Door, EndedStatement, Entry, Need
from ducktail.sql.session import Session

SECONDS = amount("DUCKTAIL_WIRE_SECONDS", 3.0, 120.0)
SEED = seed_of("DUCKTAIL_WIRE_SEED")
# However slow the machine is.
CONVERSATIONS_MIN = 50
LIMITS = Limits(unauthenticated_bytes_max=2_000, message_bytes_max=65_536, statements_max=4)
PORTALS_MAX = 3
# What no conversation may need more of, and what all of them together may leave in the process.
STEPS_MAX = 200_000
LEFT_BYTES_MAX = 128 << 20

# The exchange of RFC 7677, section 3: what is said, and the server's half of it.
VERIFIER = make_verifier("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
NONCES = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={NONCES[0]}".encode()
FINAL = f"c=biws,r={''.join(NONCES)},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()

written = Written()
SASL = written.message("p", b"SCRAM-SHA-256\0", struct.pack("!i", len(FIRST)), FIRST) + written.message(
    "p", FINAL
)


class Room:
    """A database, and its clients one after the other; a host as the server is one."""

    offers_tls = False

    def __init__(self) -> None:
        # Retention takes the writer lock now and then; it has nothing to do here.
        settings = Settings(portals_max=PORTALS_MAX, lock_timeout_ms=2_000, retention_interval_ms=3_600_000)
        self.database = Database.open(":memory:", settings)
        self.asks = False
        self.database.at_opening(catalog.install)
        session = Session(self.database)
        for text in SCHEMA:
            statement = drive(session.parse(text))
            drive(session.execute(statement)).close()
        drive(session.close())
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.ended: list[EndedStatement] = []

    # See Host.

    def door(self, entry: Entry, *, secured: bool) -> Door:
        return Door(None, VERIFIER, nonce=NONCES[1]) if self.asks else Door()

    def open_session(self, entry: Entry, door: Door) -> Session:
        session = Session(
            self.database,
            user=entry.user,
            application_name=entry.application_name,
            settings=dict(entry.settings),
            wire=True,
        )
        session.dress(catalog.attach)
        self.sessions.add(session)
        return session

    def refused(self, entry: Entry | None, error: DucktailError) -> None:
        pass

    def now_s(self) -> float:
        return self.database.clock.monotonic_s()

    def statement_ended(self, ended: EndedStatement) -> None:
        self.ended.append(ended)

    def cancel(self, pid: int, secret: bytes) -> None:
        pass

    def check_empty(self) -> None:
        """Nothing of a session is left."""
        database = self.database
        assert database.sessions.entries() == []
        assert database.transactions.writer_lock.holder() is None
        assert not database.transactions.writer_lock.waiting()
        assert not database.snapshots._open
        assert not database.notifications._listeners
        self.ended.clear()

    def check_freed(self) -> None:
        """Nobody holds a session that has ended."""
        gc.collect()
        assert not self.sessions, f"{len(self.sessions)} sessions that have ended are still held"


class Talk:
    """One conversation, driven as the server drives it, but on one thread."""

    def __init__(self, room: Room) -> None:
        self.conversation = Conversation(room, b"\1\2\3\4", LIMITS)
        self.channel = self.conversation.channel
        self.over = False
        self._steps = self.conversation.run()
        self._output: list[bytes] = []
        self._count = 0
        self._advance(first=True)

    def say(self, pieces: Iterable[bytes]) -> bytes:
        """Send bytes piece by piece; what is answered to them."""
        for piece in pieces:
            self.channel.receive(piece)
            if not self.over and not self.channel.idle:
                self._advance()
        answered, self._output = b"".join(self._output), []
        return answered

    def end(self) -> None:
        """The client is gone; the session is closed."""
        self.channel.lose()
        if not self.over:
            self._advance()
        assert self.over, "a conversation goes on without its client"
        self._steps = self.conversation.close()
        self.over = False
        self._advance(first=True)
        assert self.over

    def _advance(self, *, first: bool = False) -> None:
        """Up to the next need of input, or the end."""
        answer: bool | None = None if first else True
        try:
            while True:
                step = next(self._steps) if answer is None else self._steps.send(answer)
                self._count += 1
                assert self._count < STEPS_MAX, "a conversation does not end"
                self._output += map(bytes, self.channel.take_output())
                if step in (Need.INPUT, Need.COPYING):
                    assert self.channel.idle, "input is waited for that is there"
                    self._check_resting()
                    return
                answer = block_on(step) if isinstance(step, Wait) else True
        except StopIteration:
            self.over = True
            self._output += map(bytes, self.channel.take_output())

    def _check_resting(self) -> None:
        """Between two requests, outside a transaction, nothing is kept but what outlives one."""
        session = self.conversation.session
        if session is None or not self._output or not self._output[-1].endswith(b"Z\0\0\0\5I"):
            return
        kept = [name for name, portal in session.portals if not portal.hold]
        assert not kept, f"portals outlive their transaction: {kept}"


@pytest.fixture(scope="module")
def rooms() -> Iterator[list[Room]]:
    made = [Room() for _ in range(3)]
    yield made
    for room in made:
        room.database.close()


WAYS: tuple[Callable[[Speaker, bytes], Iterable[bytes]], ...] = (
    lambda speaker, data: [data],
    lambda speaker, data: pieces_of(data, list(range(1, len(data)))),
    lambda speaker, data: pieces_of(data, speaker.places(data)),
)


def spoken(seed: int) -> tuple[Speaker, bool, bytes, bytes]:
    """What is said in a seed's conversation: how the client comes in, whether it must be let in, and then."""
    speaker = Speaker(random.Random(seed))
    way = speaker.chance.random()
    if way < 0.85:
        return speaker, True, written.startup(), speaker.session()
    if way < 0.9:
        return speaker, True, written.startup() + SASL, speaker.session()
    entry = speaker.spoilt(written.startup() + SASL) if seed % 2 == 0 else speaker.startup()
    return speaker, False, entry, speaker.session()


def hold(rooms: list[Room], seed: int) -> None:
    """Hold one conversation in all rooms, and look at what comes of it."""
    speaker, good, entry, said = spoken(seed)
    heard: list[bytes] = []
    for room, way in zip(rooms, WAYS, strict=True):
        room.asks = entry.endswith(SASL) or (not good and seed % 2 == 0)
        talk = Talk(room)
        entered, behind = judge_entry(talk.say(way(speaker, entry)))
        assert entered or not good, "a client is not let in"
        if entered:
            answered = behind + talk.say(way(speaker, said))
            heard.append(answered)
            if not behind:
                judge(said, answered, Bounds(2_000, LIMITS.message_bytes_max), ended=talk.over)
        else:
            # The rest of a packet that was longer than its bytes, or bytes behind an end.
            heard.append(talk.say(way(speaker, said)))
        talk.end()
        room.check_empty()
    for other in heard[1:]:
        if heard[0] != other:
            # Notifications come when their events have been published: at any time.
            one, two = (
                [answer for answer in answers_in(data) if answer[0] != "A"] for data in (heard[0], other)
            )
            if one != two:
                place = next(
                    (n for n, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), -1
                )
                raise Wrong(f"in pieces it is another answer: {one[place:][:3]} and {two[place:][:3]}")


def test_conversations(rooms: list[Room], caplog: pytest.LogCaptureFixture) -> None:
    end = time.monotonic() + SECONDS
    seed, start_kib = SEED, 0
    while time.monotonic() < end or seed - SEED < CONVERSATIONS_MIN:
        try:
            hold(rooms, seed)
        except Exception as error:
            error.add_note(f"DUCKTAIL_WIRE_SEED={seed}: {spoken(seed)[2:]!r}")
            raise
        assert not caplog.records, f"seed {seed}: {caplog.records}"
        seed += 1
        if seed % 50 == 0:
            for room in rooms:
                room.check_freed()
            start_kib = start_kib or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(seed - SEED, "conversations")
    if start_kib:
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_kib
        assert grown_kib * 1024 < LEFT_BYTES_MAX, grown_kib

"""Conversations for tests of the wire: whatever a client may send, in good order, and then spoilt.

Seeded: the same seed makes the same conversations. Each is made of phrases over the whole grammar, most of
them as a driver would say them; then messages are dropped, doubled and swapped, and bytes are changed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from wire_messages import Written

SCHEMA = (
    "CREATE TABLE fuzzed (i INTEGER PRIMARY KEY, x VARCHAR)",
    "CREATE STREAM fuzzed_stream ON fuzzed WITH (partitions = 2)",
    "CREATE CONSUMER GROUP fuzzers ON fuzzed_stream",
    "CREATE TABLE plain (i INTEGER, x VARCHAR)",
)
READ = "SELECT lsn, op, key FROM STREAM fuzzed_stream CONSUMER GROUP fuzzers LIMIT 3"

# One statement each; a 7 becomes another digit, so that rows meet and miss each other.
STATEMENTS = (
    "", " -- nothing", "SELECT 1", "SELECT 'é' AS \"ü\", NULL, 1.5::DECIMAL(9,2), DATE '2026-01-07'",
    "SELECT i, repeat('x', 70) FROM range(27) r(i)", "VALUES (1, 'a'), (7, NULL)", "SELECT * FROM fuzzed",
    "SELECT 7 / 0, 'x'::INTEGER", "SELECT nothing FROM nowhere", "SELEC 1", "SELECT 'open", "SELECT (((7",
    "SELECT CAST(x AS INTEGER) FROM (VALUES ('1'), ('2'), ('no')) v(x)", "SELECT error('no')",
    "BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION", "END", "BEGIN", "ROLLBACK", "COMMIT AND CHAIN",
    "SAVEPOINT a", "RELEASE SAVEPOINT a", "ROLLBACK TO SAVEPOINT a",
    "INSERT INTO fuzzed VALUES (7, 'x')", "INSERT INTO fuzzed VALUES (77, 'y') RETURNING i, x",
    "UPDATE fuzzed SET x = 'z7' WHERE i < 50", "DELETE FROM fuzzed WHERE i % 7 = 1", "DELETE FROM fuzzed",
    "INSERT INTO plain SELECT i, 'p' FROM range(7) r(i)", "DELETE FROM plain RETURNING i",
    READ, READ, "SELECT partition, before, after FROM STREAM fuzzed_stream",
    "SELECT count(*) FROM STREAM fuzzed_stream", "COMMIT OFFSETS ON fuzzed_stream CONSUMER GROUP fuzzers",
    "SHOW STREAMS", "SHOW TimeZone", "SHOW nonsense",
    "SET TimeZone = 'Asia/Tokyo'", "RESET ALL", "SET application_name = 'fuzz7'", "SET nonsense = 1",
    "DECLARE c CURSOR FOR SELECT i FROM range(7) r(i)", "DECLARE c CURSOR WITH HOLD FOR SELECT i FROM fuzzed",
    f"DECLARE c CURSOR FOR {READ}", "FETCH 2 FROM c", "FETCH ALL FROM c", "MOVE 1 FROM c",
    "CLOSE c", "CLOSE ALL", "FETCH 1 FROM p", "MOVE ALL FROM p", "CLOSE p",
    "PREPARE s AS SELECT $1::INTEGER + 1", "EXECUTE s(7)", "EXECUTE s", "DEALLOCATE s", "DEALLOCATE ALL",
    "DISCARD ALL", "LISTEN fuzzed_stream", "LISTEN c7", "NOTIFY c7, 'told'", "UNLISTEN *",
    "EXPLAIN SELECT 1", "CREATE TEMP TABLE tt (i INTEGER)", "DROP TABLE IF EXISTS tt", "SELECT * FROM tt",
    "CREATE TABLE made (i INTEGER)", "DROP TABLE IF EXISTS made", "TRUNCATE plain", "PRAGMA version",
    "SELECT relname FROM pg_class WHERE relname = 'fuzzed'", "SELECT '{1,2}'::regclass", "SELECT version()",
    "COPY (SELECT i, 'a' FROM range(7) r(i)) TO STDOUT", "COPY fuzzed TO STDOUT (FORMAT csv, HEADER)",
    f"COPY ({READ}) TO STDOUT (FORMAT binary)", "COPY plain TO STDOUT", "COPY nowhere TO STDOUT",
    "COPY (SELECT CAST(x AS INTEGER) FROM (VALUES ('1'), ('no')) v(x)) TO STDOUT",
)  # fmt: skip
WITH_PARAMETERS = (
    "SELECT $1::INTEGER", "SELECT $1", "SELECT $1::VARCHAR, $2::INTEGER",
    "INSERT INTO fuzzed VALUES ($1, $2)", "SELECT i FROM range(7) r(i) WHERE i < $1",
    "DELETE FROM fuzzed WHERE i = $1", "SELECT $2", "SELECT $70000",
)  # fmt: skip
COPIES_IN = (
    "COPY plain FROM STDIN", "COPY fuzzed FROM STDIN (FORMAT csv)", "COPY plain FROM STDIN (FORMAT binary)",
)  # fmt: skip
COPY_PIECES = (
    b"1\ta\n", b"2\t\\N\n", b"3", b"7,b\n", b"8,c\n", b"x\ty\n", b"\\.\n", b"", b"\n", b'9,"', b"\xff\n",
    b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\0\2\0\0\0\4\0\0\0\7\xff\xff\xff\xff", b"\xff\xff",
)  # fmt: skip
VALUES = (None, b"", b"7", b"x", b"\0\0\0\7", b"\0\0\0\0\0\0\0\7", b"\xff\xfe", b"2026-01-01", b"1" * 40)
NAMES = ("", "", "", "p", "s", "c", "ü")
OIDS = (0, 23, 20, 25, 1043, 17, 1114, 1700, 999_999)

# Sent by a client that is in; kinds that a server knows in other places, and one that it does not.
written = Written()


@dataclass
class Speaker:
    """Makes conversations.

    Args:
        chance: where all choices come from.
    """

    chance: random.Random

    def session(self, phrases_max: int = 8) -> bytes:
        """What an open session is sent."""
        chance = self.chance
        said: list[bytes] = []
        for _ in range(chance.randint(1, phrases_max)):
            said += chance.choices(PHRASES, WEIGHTS)[0](self)
        kind = chance.randrange(6)
        if kind in (0, 1):
            said = self._shuffled(said)
        data = b"".join(said)
        return self.spoilt(data) if kind in (1, 2) else data

    def startup(self) -> bytes:
        """A startup packet, seldom a good one."""
        chance = self.chance
        version = chance.choice((3 << 16, 3 << 16, 3 << 16 | 2, 2 << 16, 4 << 16, 0))
        more = chance.choice(
            ({}, {"options": "-c TimeZone=UTC"}, {"options": "-c"}, {"TimeZone": "nowhere"},
             {"nonsense": "1"}, {"client_encoding": "klingon"}, {"replication": "database"}, {"_pq_.x": "1"},
             {"database": "nowhere"}, {"user": ""}, {"application_name": "ü" * chance.choice((1, 500, 6000))})
        )  # fmt: skip
        data = written.startup(version, **more)
        return self.spoilt(data) if chance.random() < 0.5 else data

    def spoilt(self, data: bytes) -> bytes:
        """Some bytes changed, cut, doubled or put in."""
        chance, wrong = self.chance, bytearray(data)
        for _ in range(chance.choice((1, 1, 1, 2, 6))):
            at = chance.randrange(len(wrong) + 1)
            match chance.randrange(5):
                case 0 if at < len(wrong):
                    wrong[at] = chance.randrange(256)
                case 1:
                    wrong[at : at + chance.randint(1, 8)] = b""
                case 2:
                    wrong[at:at] = chance.randbytes(chance.randint(1, 8))
                case 3:
                    wrong[at:at] = wrong[: chance.randint(0, len(wrong))]
                case _:
                    del wrong[at:]
        return bytes(wrong)

    def places(self, data: bytes) -> list[int]:
        """Where the bytes are cut into pieces."""
        count = self.chance.choice((0, 1, 2, 5, 20))
        return sorted(self.chance.randint(0, len(data)) for _ in range(count))

    def _shuffled(self, said: list[bytes]) -> list[bytes]:
        """Messages in another order, some of them missing, some twice."""
        chance, wrong = self.chance, list(said)
        for _ in range(chance.randint(1, 3)):
            at, other = chance.randrange(len(wrong)), chance.randrange(len(wrong))
            match chance.randrange(3):
                case 0:
                    wrong[at], wrong[other] = wrong[other], wrong[at]
                case 1:
                    wrong.insert(at, wrong[other])
                case _ if len(wrong) > 1:
                    del wrong[at]
        return wrong

    # Words.

    def text(self) -> str:
        """One statement."""
        text = self.chance.choice(STATEMENTS)
        return text.replace("7", str(self.chance.randrange(10))) if self.chance.random() < 0.7 else text

    def name(self) -> str:
        """A statement's or a portal's."""
        return self.chance.choice(NAMES)

    def _values(self, text: str) -> tuple[bytes | None, ...]:
        count = text.count("$") if self.chance.random() < 0.9 else self.chance.randrange(4)
        return tuple(self.chance.choice(VALUES) for _ in range(count))

    def _formats(self) -> tuple[int, ...]:
        return self.chance.choice(((), (), (), (), (0,), (1,), (1,), (0, 1), (2,)))

    def _ending(self) -> list[bytes]:
        others = ([written.flush], [], [written.flush, written.sync])
        return self.chance.choice(([written.sync],) * 5 + others)

    # Phrases.

    def simple(self) -> list[bytes]:
        """A Query, mostly with one statement."""
        count = self.chance.choice((1, 1, 1, 2, 4))
        return [written.query(";".join(self.text() for _ in range(count)))]

    def extended(self) -> list[bytes]:
        """What a driver says for a statement."""
        chance = self.chance
        text = chance.choice(WITH_PARAMETERS) if chance.random() < 0.3 else self.text()
        name, portal = self.name(), self.name()
        oids = tuple(chance.choice(OIDS) for _ in range(text.count("$"))) if chance.random() < 0.4 else ()
        said = [written.parse(text, name, oids)]
        if chance.random() < 0.4:
            said.append(written.describe("S", name))
        said.append(written.bind(portal, name, self._values(text), self._formats(), self._formats()))
        if chance.random() < 0.7:
            said.append(written.describe("P", portal))
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            said.append(written.execute(portal, chance.choice((0, 0, 1, 3, 1000, -1))))
            if chance.random() < 0.2:
                said += self._ending()
        if chance.random() < 0.3:
            said.append(written.close(chance.choice("SP"), chance.choice((name, portal))))
        return said + self._ending()

    def pipeline(self) -> list[bytes]:
        """Several before one Sync."""
        said = [part for _ in range(self.chance.randint(2, 4)) for part in self.extended()]
        return [part for part in said if part != written.sync] + [written.sync]

    def block(self) -> list[bytes]:
        """A transaction with something in it."""
        end = self.chance.choice(("COMMIT", "ROLLBACK", "END", "SELECT 1"))
        within = [part for _ in range(self.chance.randint(1, 4)) for part in self.phrase()]
        return [written.query("BEGIN"), *within, written.query(end)]

    def copy_in(self) -> list[bytes]:
        """A COPY FROM STDIN with what may come in it."""
        chance, text = self.chance, self.chance.choice(COPIES_IN)
        if chance.random() < 0.2:
            text = f"{self.text()};{text};{self.text()}"
        if chance.random() < 0.6:
            said = [written.query(text)]
        else:
            said = [written.parse(text), written.bind(), written.execute()]
            said += [written.sync] * chance.randrange(2)
        for _ in range(chance.randrange(5)):
            said.append(written.message("d", chance.choice(COPY_PIECES)))
            if chance.random() < 0.3:
                # The first two mean nothing there.
                said.append(chance.choice((written.sync, written.flush, self.message())))
        others = ([written.message("f", b"no\0")], [], [written.query("SELECT 1")])
        return said + chance.choice(([written.message("c")],) * 4 + others) + self._ending()

    def message(self) -> bytes:
        """Any message, in good shape, wherever it is."""
        return self.chance.choice(ALONE)(self)

    def alone(self) -> list[bytes]:
        """One of them as a phrase."""
        return [self.message()]

    def phrase(self) -> list[bytes]:
        """One that holds no other."""
        return self.chance.choice((Speaker.simple, Speaker.extended, Speaker.alone))(self)


PHRASES: tuple[Callable[[Speaker], list[bytes]], ...] = (
    Speaker.simple, Speaker.extended, Speaker.pipeline, Speaker.block, Speaker.copy_in, Speaker.alone,
)  # fmt: skip
WEIGHTS = (6, 8, 2, 3, 3, 1)

ALONE: tuple[Callable[[Speaker], bytes], ...] = (
    lambda s: written.sync, lambda s: written.sync, lambda s: written.flush,
    lambda s: written.describe(s.chance.choice("SP"), s.name()), lambda s: written.execute(s.name(), 1),
    lambda s: written.close(s.chance.choice("SP"), s.name()), lambda s: written.bind(s.name(), s.name()),
    lambda s: written.parse(s.text(), s.name()), lambda s: written.query(s.text()),
    lambda s: written.message("F", bytes(10)), lambda s: written.message("d", b"7\tx\n"),
    lambda s: written.message("c"), lambda s: written.message("f", b"no\0"),
    lambda s: written.message("Q", b"SELECT '\xff'\0"), lambda s: written.message("P", b"\xc3\0SELECT\0\0\0"),
    lambda s: written.message("f", b"\xff\0"), lambda s: written.message("E", b"\xff\0\0\0\0\0"),
    lambda s: written.message("p", b"secret\0") if s.chance.random() < 0.3 else written.sync,
    lambda s: written.terminate if s.chance.random() < 0.3 else written.flush,
    lambda s: b"?" + struct.pack("!i", 4) if s.chance.random() < 0.3 else written.sync,
    lambda s: written.query("x" * 70_000) if s.chance.random() < 0.3 else written.query("SELECT 1"),
)  # fmt: skip

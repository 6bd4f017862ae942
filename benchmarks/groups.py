"""Consumers that wait, offsets that are committed, groups that read side by side: `make bench`.

Beside ducktail, in the same run: a PostgreSQL outbox (a trigger that writes the event and NOTIFYs; LISTEN
and a keyset read; an UPDATE of an offset row) and Redis Streams (XADD in MULTI, XREADGROUP BLOCK, XACK;
appendfsync always). All three answer a commit once it is on disk. Each client is a process of its own, or
with many clients a thread in one of eight; JSON stays text. The servers take turns, and a figure is the
median of its rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import postgres
import psycopg
import redis_server
from stream_read import BATCH, FILL, HERE, LOAD, PEER, STREAM, TABLE, connect, ducktail_server

# The writer of the latency: transactions a second, and rows of each.
RATE, ROWS = 100, 10
MEMBERS = 8
PARTITIONS = 8
CLIENTS = (1, 8, 64)
# Rows that a written transaction has; as large as those of the events that are read.
WRITE = (
    "INSERT INTO orders SELECT i, i % 10007, 'item ' || i % 997, i % 9 + 1, (i % 100000) / 100.0, 'EUR', "
    "TIMESTAMP '2024-01-01', i % 3 = 0, 'city ' || i % 211, repeat('n', 40) FROM {numbers}"
)
OUTBOX = """
    CREATE TABLE orders (
        id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, quantity INTEGER, price DECIMAL(12, 2),
        currency VARCHAR, placed TIMESTAMP, shipped BOOLEAN, city VARCHAR, note VARCHAR
    );
    CREATE TABLE outbox (
        lsn BIGSERIAL PRIMARY KEY, op TEXT, key JSON, after JSON, commit_time TIMESTAMPTZ DEFAULT now()
    );
    CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO outbox (op, key, after)
            SELECT 'insert', json_build_object('id', id), row_to_json(n) FROM inserted n ORDER BY id;
        NOTIFY outbox;
        RETURN NULL;
    END $$;
    CREATE TRIGGER tell AFTER INSERT ON orders REFERENCING NEW TABLE AS inserted
        FOR EACH STATEMENT EXECUTE FUNCTION tell();
    CREATE INDEX ON events (partition, lsn);
"""


class Server(Protocol):
    """One of the three, as its clients use it; made anew in each process."""

    def write(self, first: int) -> None:
        """Commit ROWS rows, the first with this id."""

    def wait_from_now(self) -> None:
        """The next `waited` gives what is committed from now on."""

    def waited(self) -> list[int]:
        """Wait for the next rows; their ids."""

    def waited_done(self) -> None:
        """Commit them as processed."""

    def group(self, name: str) -> None:
        """Make a group at the beginning of the events."""

    def commit_one(self, group: str, number: int) -> None:
        """Commit an event as processed, durably."""

    def join(self, group: str, member: int | None) -> None:
        """Get ready to read."""

    def in_one_statement(self) -> None:
        """From now on a batch is one statement, which commits the batch before it, where there is such."""

    def batch(self) -> int:
        """Read up to BATCH events and commit them; how many there were."""

    def end(self) -> None:
        """Commit what is not committed yet."""


class Ducktail:
    """ducktail: the stream of a table."""

    def __init__(self, conninfo: str) -> None:
        self.con = connect(conninfo)
        self._read = self._commit = self._wait = ""
        self._together = False
        self._lsns: list[int] = []

    def write(self, first: int) -> None:
        """See Server."""
        self.con.execute(WRITE.format(numbers=f"range({first}, {first + ROWS}) r(i)"))

    def wait_from_now(self) -> None:
        """See Server."""
        self.con.execute("DROP CONSUMER GROUP IF EXISTS waiting ON orders_stream")
        self.con.execute("CREATE CONSUMER GROUP waiting ON orders_stream START LATEST")

    def waited(self) -> list[int]:
        """See Server."""
        read = "SELECT * FROM STREAM orders_stream CONSUMER GROUP waiting WAIT '30 s' LIMIT 1000"
        rows = self.con.execute(read).fetchall()
        return [_id(row[4]) for row in rows]

    def waited_done(self) -> None:
        """Commit them."""
        self.con.execute("COMMIT OFFSETS ON orders_stream CONSUMER GROUP waiting")

    def group(self, name: str) -> None:
        """See Server."""
        self.con.execute(f"CREATE CONSUMER GROUP {name} ON orders_stream")

    def join(self, group: str, member: int | None) -> None:
        """See Server."""
        named = "" if member is None else f" MEMBER 'm{member}'"
        self._read = f"SELECT * FROM STREAM orders_stream CONSUMER GROUP {group}{named} LIMIT {BATCH}"
        self._commit = f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}{named}"
        self.con.execute(self._read.replace(str(BATCH), "0"))

    def in_one_statement(self) -> None:
        """See Server."""
        self._read, self._together = self._read.replace(" LIMIT", " COMMIT LIMIT"), True

    def batch(self) -> int:
        """See Server."""
        count = len(self.con.execute(self._read).fetchall())
        if count and not self._together:
            self.con.execute(self._commit)
        return count

    def end(self) -> None:
        """See Server."""
        if self._together:
            self.con.execute(self._commit)

    def commit_one(self, group: str, number: int) -> None:
        """See Server."""
        if not self._lsns:
            read = "SELECT lsn FROM STREAM orders_stream PARTITION 0 LIMIT 40000"
            self._lsns = [row[0] for row in self.con.execute(read)]
        commit = f"COMMIT OFFSET PARTITION 0 AT %s ON orders_stream CONSUMER GROUP {group}"
        self.con.execute(commit, [self._lsns[number]])


class Postgres:
    """PostgreSQL: a trigger outbox, a table of the very same events, and offset rows."""

    def __init__(self, conninfo: str) -> None:
        self.con = connect(conninfo)
        self._where, self._reader, self._lsn = "", "", 0

    def write(self, first: int) -> None:
        """See Server."""
        self.con.execute(WRITE.format(numbers=f"generate_series({first}, {first + ROWS - 1}) r(i)"))

    def wait_from_now(self) -> None:
        """See Server."""
        self.con.execute("LISTEN outbox")
        self._lsn = self.con.execute("SELECT coalesce(max(lsn), 0) FROM outbox").fetchall()[0][0]
        self.con.execute("INSERT INTO offsets VALUES ('waiting', 0) ON CONFLICT DO NOTHING")

    def waited(self) -> list[int]:
        """See Server."""
        read = f"SELECT * FROM outbox WHERE lsn > %s ORDER BY lsn LIMIT {BATCH}"
        while not (rows := self.con.execute(read, [self._lsn]).fetchall()):
            for _ in self.con.notifies(timeout=30, stop_after=1):
                pass
        self._lsn = rows[-1][0]
        return [_id(row[2]) for row in rows]

    def waited_done(self) -> None:
        """Commit them."""
        self.con.execute("UPDATE offsets SET committed_lsn = %s WHERE reader = 'waiting'", [self._lsn])

    def group(self, name: str) -> None:
        """See Server."""
        for reader in (name, *(f"{name}_{number}" for number in range(PARTITIONS))):
            self.con.execute("INSERT INTO offsets VALUES (%s, 0)", [reader])

    def join(self, group: str, member: int | None) -> None:
        """See Server."""
        self._where = "" if member is None else f"partition = {member} AND"
        self._reader, self._lsn = group if member is None else f"{group}_{member}", 0

    def in_one_statement(self) -> None:
        """See Server."""

    def end(self) -> None:
        """See Server."""

    def batch(self) -> int:
        """See Server."""
        read = f"SELECT * FROM events WHERE {self._where} lsn > %s ORDER BY lsn LIMIT {BATCH}"
        rows = self.con.execute(read, [self._lsn]).fetchall()
        if rows:
            self._lsn = rows[-1][0]
            update = "UPDATE offsets SET committed_lsn = %s WHERE reader = %s"
            self.con.execute(update, [self._lsn, self._reader])
        return len(rows)

    def commit_one(self, group: str, number: int) -> None:
        """See Server."""
        self.con.execute("UPDATE offsets SET committed_lsn = %s WHERE reader = %s", [number, group])


class Redis:
    """Redis Streams: a stream of the same JSON, consumer groups, and an acknowledgement of each entry."""

    def __init__(self, port: str) -> None:
        import redis

        self.con: Any = redis.Redis(port=int(port))
        self._group, self._member = "", ""
        self._ids: list[bytes] = []

    def write(self, first: int) -> None:
        """See Server."""
        pipe = self.con.pipeline(transaction=True)
        for number in range(first, first + ROWS):
            pipe.xadd("written", {"op": "insert", "key": f'{{"id":{number}}}', "after": AFTER % number})
        pipe.execute()

    def wait_from_now(self) -> None:
        """See Server."""
        if self.con.exists("written"):
            self.con.xgroup_destroy("written", "waiting")
        self.con.xgroup_create("written", "waiting", "$", mkstream=True)

    def waited(self) -> list[int]:
        """See Server."""
        found = self.con.xreadgroup("waiting", "one", {"written": ">"}, count=BATCH, block=30_000)
        entries = _entries(found)
        self._ids = [entry[0] for entry in entries]
        return [_id(entry[1][b"key"].decode()) for entry in entries]

    def waited_done(self) -> None:
        """Commit them."""
        if self._ids:
            self.con.xack("written", "waiting", *self._ids)

    def group(self, name: str) -> None:
        """See Server."""
        self.con.xgroup_create("events", name, "0")

    def join(self, group: str, member: int | None) -> None:
        """See Server."""
        self._group, self._member = group, f"m{member}"

    def in_one_statement(self) -> None:
        """See Server."""

    def end(self) -> None:
        """See Server."""

    def batch(self) -> int:
        """See Server."""
        entries = _entries(self.con.xreadgroup(self._group, self._member, {"events": ">"}, count=BATCH))
        if entries:
            self.con.xack("events", self._group, *[entry[0] for entry in entries])
        return len(entries)

    def commit_one(self, group: str, number: int) -> None:
        """See Server."""
        if number >= len(self._ids):
            found = self.con.xreadgroup(group, "one", {"events": ">"}, count=2000)
            self._ids += [entry[0] for entry in _entries(found)]
        self.con.xack("events", group, self._ids[number])


AFTER = (
    '{"id":%d,"customer":17,"item":"item 17","quantity":3,"price":12.50,"currency":"EUR",'
    '"placed":"2024-01-01T00:00:00","shipped":true,"city":"city 17","note":"' + "n" * 40 + '"}'
)
SERVERS: dict[str, Callable[[str], Any]] = {"ducktail": Ducktail, "PostgreSQL": Postgres, "Redis": Redis}


def _entries(found: Any) -> list[Any]:
    """Of an answer of XREADGROUP, in either form of redis-py's."""
    if not found:
        return []
    return list(found[0][1]) if isinstance(found, list) else list(next(iter(found.values()))[0])


def _id(key: str) -> int:
    return int(key.partition(":")[2].strip(" }"))


# What runs in a process of its own. Times are CLOCK_MONOTONIC's: one for all processes.


def _consume(name: str, address: str, rows: int, ready: Any, out: Any) -> None:
    server = SERVERS[name](address)
    server.wait_from_now()
    ready.set()
    came: dict[int, float] = {}
    while len(came) < rows:
        ids = server.waited()
        now = time.monotonic()
        came.update(dict.fromkeys(ids, now))
        server.waited_done()
    out.put(came)


def latency(name: str, address: str, transactions: int, first: int) -> list[float]:
    """From each row's acknowledged commit to its consumer, in ms, sorted."""
    ready, out = CONTEXT.Event(), CONTEXT.Queue()
    rows = transactions * ROWS
    consumer = CONTEXT.Process(target=_consume, args=(name, address, rows, ready, out))
    consumer.start()
    ready.wait()
    server = SERVERS[name](address)
    acknowledged: dict[int, float] = {}
    due = time.monotonic() + 0.2
    for number in range(first, first + rows, ROWS):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / RATE
        server.write(number)
        acknowledged.update(dict.fromkeys(range(number, number + ROWS), time.monotonic()))
    came = out.get()
    consumer.join()
    return sorted((came[number] - at) * 1000 for number, at in acknowledged.items())


def _commit(name: str, address: str, groups: Sequence[str], barrier: Any, seconds: float, out: Any) -> None:
    counts = [0] * len(groups)
    ended = threading.Barrier(len(groups) + 1)

    def work(place: int) -> None:
        server = SERVERS[name](address)
        server.commit_one(groups[place], 0)
        ended.wait()
        barrier_passed.wait()
        until, number = time.monotonic() + seconds, 1
        while time.monotonic() < until:
            server.commit_one(groups[place], number)
            number += 1
        counts[place] = number - 1

    barrier_passed = threading.Event()
    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(groups))]
    for thread in threads:
        thread.start()
    ended.wait()
    barrier.wait()
    barrier_passed.set()
    for thread in threads:
        thread.join()
    out.put(sum(counts))


def commits(name: str, address: str, clients: int, seconds: float, turn: int) -> float:
    """Durable offset commits a second of so many clients, each with a group of its own."""
    groups = [f"c{turn}_{clients}_{number}" for number in range(clients)]
    server = SERVERS[name](address)
    for group in groups:
        server.group(group)
    processes = min(clients, MEMBERS)
    barrier, out = CONTEXT.Barrier(processes), CONTEXT.Queue()
    parts = [groups[number::processes] for number in range(processes)]
    _run([(_commit, (name, address, part, barrier, seconds, out)) for part in parts])
    return float(sum(out.get() for _ in parts) / seconds)


def _read(
    name: str,
    address: str,
    what: str,
    reader: tuple[str, int | None],
    events: int,
    left: Any,
    barrier: Any,
    out: Any,
) -> None:
    (group, member), server = reader, SERVERS[name](address)
    server.join(group, member)
    if what == "together":
        server.in_one_statement()
    barrier.wait()
    begun, count, used = time.monotonic(), 0, time.process_time()
    # Of several members one does not know how many there are for it.
    while (left.value > 0) if member is not None else count < events:
        found = server.batch()
        count += found
        if member is not None and found:
            with left.get_lock():
                left.value -= found
    server.end()
    out.put((count, begun, time.monotonic(), time.process_time() - used))


def reads(name: str, address: str, what: str, events: int, turn: int) -> tuple[float, float]:
    """Events a second of one consumer, of eight members of a group, of eight groups; and the clients' part.

    Returns:
        The rate, and the processor time of the clients for an event in microseconds.
    """
    groups = [f"r{turn}_{what[:3]}_{number}" for number in range(MEMBERS if what == "groups" else 1)]
    server = SERVERS[name](address)
    for group in groups:
        server.group(group)
    readers: list[tuple[str, int | None]] = [(group, None) for group in groups]
    if what == "members":
        readers = [(groups[0], number) for number in range(MEMBERS)]
    barrier, out, left = CONTEXT.Barrier(len(readers)), CONTEXT.Queue(), CONTEXT.Value("q", events)
    _run([(_read, (name, address, what, reader, events, left, barrier, out)) for reader in readers])
    found = [out.get() for _ in readers]
    count = sum(item[0] for item in found)
    wanted = events * len(groups)
    # A group promises each event at least once; what came twice does not count.
    assert count >= wanted, f"{name}, {what}: {count} events of {wanted}"
    if count > wanted:
        print(f"{name}, {what}: {count - wanted} events came twice", flush=True)
    spent_us = 1e6 * sum(item[3] for item in found) / count
    return wanted / (max(item[2] for item in found) - min(item[1] for item in found)), spent_us


def _run(works: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    processes = [CONTEXT.Process(target=work, args=arguments) for work, arguments in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, "a client has failed"


CONTEXT = multiprocessing.get_context("spawn")


def fill(addresses: dict[str, str], events: int) -> None:
    """The same events in all three."""
    import redis

    with connect(addresses["ducktail"]) as ours, connect(addresses["PostgreSQL"]) as peer:
        ours.execute(TABLE)
        ours.execute(STREAM)
        for first in range(0, events, LOAD):
            ours.execute(FILL.format(first=first, last=min(first + LOAD, events)))
        peer.execute(PEER)
        peer.execute(OUTBOX)
        pipe: Any = redis.Redis(port=int(addresses["Redis"])).pipeline(transaction=False)
        read, lsn = "SELECT * FROM STREAM orders_stream AFTER {} LIMIT 10000", 0
        with peer.cursor().copy("COPY events FROM STDIN") as copy:
            while rows := ours.execute(read.format(lsn)).fetchall():
                lsn = rows[-1][0]
                for row in rows:
                    copy.write_row(row)
                    pipe.xadd("events", {"op": row[2], "key": row[4], "after": row[6]})
                pipe.execute()
        peer.execute("ANALYZE events")
        peer.execute("CHECKPOINT")


Figures = dict[str, dict[str, list[float]]]
PARTS = ("reads", "commits", "latency")
CHOICES = (*PARTS, "consumer")  # The reads of one consumer alone.
READERS = (
    ("one", "1 consumer"),
    ("together", "1 consumer, commit and read in one statement"),
    ("members", "8 members, 1 group"),
    ("groups", "8 groups"),
)


def measure(
    addresses: dict[str, str],
    events: int,
    rounds: int,
    transactions: int,
    seconds: float,
    parts: Collection[str] = PARTS,
) -> Figures:
    """The figures of these parts by what they are of and by server, in rounds."""
    found: Figures = {}

    def note(what: str, name: str, value: float) -> None:
        found.setdefault(what, {}).setdefault(name, []).append(value)
        print(f"{what:<54} {name:<12} {value:>12,.2f}", flush=True)

    for turn in range(rounds):
        for what, of in READERS if "reads" in parts else READERS[:2] if "consumer" in parts else ():
            for name, address in addresses.items():
                rate, spent_us = reads(name, address, what, events, turn)
                note(f"events/s, {of}", name, rate)
                note(f"client's CPU for an event, us, {of}", name, spent_us)
        for clients in CLIENTS if "commits" in parts else ():
            for name, address in addresses.items():
                note(f"commits/s, {clients}", name, commits(name, address, clients, seconds, turn))
        for name, address in addresses.items() if "latency" in parts else ():
            times = latency(name, address, transactions, (1 << 40) + turn * transactions * ROWS)
            note("latency p50, ms", name, times[len(times) // 2])
            note("latency p99, ms", name, times[len(times) * 99 // 100])
    return found


# What is to be held: figure, whose, how many times the better of them at least (of a latency: ms at most).
BARS: tuple[tuple[str, str, float], ...] = (
    ("latency p50, ms", "", 2.0),
    ("commits/s, 8", "PostgreSQL", 0.5),
    ("commits/s, 64", "PostgreSQL", 1.0),
    ("events/s, 1 consumer, commit and read in one statement", "PostgreSQL", 1.2),
    ("events/s, 8 groups", "PostgreSQL Redis", 1.3),
)


def page(found: Figures, events: int, rounds: int, transactions: int, peer: str) -> str:
    """The result as a small Markdown page."""
    medians = {w: {n: statistics.median(v) for n, v in of.items()} for w, of in found.items()}
    lines = [
        "# Groups, waits and commits",
        "",
        f"{events:,} hot events, batches of {BATCH:,}; latency of {transactions:,} transactions of {ROWS} "
        f"rows, {RATE} a second, from the acknowledged COMMIT to the consumer's having the row. Medians of "
        f"{rounds} rounds; psycopg {psycopg.__version__}, {peer}; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores.",
        "",
        f"| figure | {' | '.join(SERVERS)} |",
        f"|---|{'---:|' * len(SERVERS)}",
    ]
    for what, of in medians.items():
        digits = 2 if what.endswith("ms") or ", us, " in what else 0
        lines.append(f"| {what} | {' | '.join(f'{of[name]:,.{digits}f}' for name in SERVERS)} |")
    lines += ["", "| bar | measured | held |", "|---|---:|---|"]
    for what, names, bar in BARS:
        if what not in medians:
            continue
        value, text = medians[what]["ducktail"], f"{what}: at most {bar:g}"
        held = value <= bar
        if names:
            value /= max(medians[what][name] for name in names.split())
            text, held = f"{what}: at least {bar:g} x {names.replace(' ', ' and ')}", value >= bar
        lines.append(f"| {text} | {value:.2f} | {'yes' if held else 'no'} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transactions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=CHOICES, nargs="+", default=PARTS, help="some parts alone")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "groups.md")
    given = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = {
            "ducktail": stack.enter_context(ducktail_server(directory)),
            "PostgreSQL": stack.enter_context(postgres.server()),
            "Redis": str(stack.enter_context(redis_server.server())),
        }
        fill(addresses, given.events)
        found = measure(addresses, given.events, given.rounds, given.transactions, given.seconds, given.only)
        with connect(addresses["PostgreSQL"]) as peer:
            version = f"PostgreSQL {peer.info.parameter_status('server_version')}"
    text = page(found, given.events, given.rounds, given.transactions, version)
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text(text)
    print(f"\n{text}\nwritten to {given.output}")


if __name__ == "__main__":
    main()

"""Programs of users that go on while the nodes of a cluster are killed and stopped, and what each was told.

They publish, insert, read and commit through random nodes; on an error they try again, often on another node.
What must not be they tell their world at once; the rest is judged in the end (cluster_judge.py).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from cluster_faults import GUEST, Fates
from cluster_processes import ClusterProcesses

NODES = ("n1", "n2", "n3")
# Keys of events, which are numbers.
KEYS = 200
CONNECT_S = 5
# Before a client that was failed tries again.
PAUSE_S = (0.02, 0.3)
# What may go by while nodes of a cluster find out that one is away, several times over, on a busy machine:
# a statement may meet a node that stands still after another one, or itself stand still.
STATEMENT_S = 60.0
# What a client sets its statement_timeout to, in seconds (0: none); by how much a statement may exceed it.
TIME_OUTS_S = (0, 0, 2, 5)
OVER_S = float(os.environ.get("DUCKTAIL_CLUSTER_OVER_SECONDS", "3"))
# How often a publication under a sequence is said.
REPEATS = 20
# How long after a trouble of its node a connection may still be told that it is broken.
AFTER_S = 10.0
# How often a client that has no node of its own goes to the one that joins and leaves, while it is there.
GUEST_SHARE = 0.1

# How an error tells what stands.
_STORED = r"The events of partitions? ([\d, and]+) are stored\."
_NOT_STORED = r"Those of partitions? ([\d, and]+) are not\."
_COMMITTED = r"Partitions ([\d, and]+) are committed\."
_NOT_COMMITTED = r"Partitions ([\d, and]+) are not committed\."

AWAY: set[str | None] = {None, "08001", "08006"}
EXPECTED: Mapping[str, set[str | None]] = {
    "insert": {None},  # It is said on the table's own node.
    # Of a partition that is on its way, or by a placement that is over: 40001.
    "publish": {*AWAY, "40001"},
    "read": {*AWAY, "40001"},
    "show": {*AWAY, "40001"},
    # What a session has read is forgotten with it, at an owner as well.
    "commit": {*AWAY, "55000", "40001"},
    # A member that was away too long has lost its partitions.
    "member commit": {*AWAY, "55000", "40001"},
}


class World:
    """What all clients share: the nodes, what is to be written next, and what went wrong.

    Args:
        partitions: of each key.
    """

    def __init__(self, nodes: ClusterProcesses, fates: Fates, seed: int, partitions: Sequence[int]) -> None:
        self.nodes, self.fates, self.seed = nodes, fates, seed
        self.of_key = partitions
        self.writing_over, self.reading_over = threading.Event(), threading.Event()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.slowest_s: dict[str, float] = defaultdict(float)
        self.overrun = (0.0, "")  # by how much a statement has exceeded its time-out, and which one
        self.faults: list[str] = []
        self.left: list[tuple[int, int, int]] = []  # sessions, sockets and threads of each node
        self._ids = itertools.count(1)

    def ids(self, count: int) -> list[int]:
        """Numbers of new events."""
        return [next(self._ids) for _ in range(count)]

    def fault(self, text: str) -> None:
        """Something that must not be."""
        self.faults.append(text)


class Failed(Exception):
    """A statement has failed, as it may; the client has dropped its connection, or not."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.sqlstate = error.sqlstate
        self.detail = error.diag.message_detail or ""


class Client:
    """One user's program: it runs statements on a node until that fails it, then on another."""

    def __init__(self, world: World, name: str, nodes: Sequence[str] = NODES) -> None:
        self.world, self.name = world, name
        self.rng = random.Random(f"{world.seed} {name}")
        self._nodes = nodes
        self._connection: psycopg.Connection[Any] | None = None
        self.node = nodes[0]
        self._time_out_s = 0
        self._pause = threading.Event()

    def work(self) -> None:
        """Until there is no more to do."""
        raise NotImplementedError

    def run(self, what: str, text: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a statement; its rows.

        Raises:
            Failed: it failed.
        """
        began_s = said_s = time.monotonic()
        try:
            connection = self._connected()
            said_s = time.monotonic()
            cursor = connection.execute(text, parameters)
            rows = cursor.fetchall() if cursor.description else []
            self.world.done[what] += 1
            return rows
        except psycopg.Error as error:
            self._note(what, text, error, began_s)
            if error.sqlstate is None or self.rng.random() < 0.5:
                self.leave()
            self._pause.wait(self.rng.uniform(*PAUSE_S))
            raise Failed(error) from None
        finally:
            took_s = time.monotonic() - began_s
            self.world.slowest_s[what] = max(took_s, self.world.slowest_s[what])
            self._check_time_out(text, said_s)
            if took_s > STATEMENT_S:
                self.world.fault(f"{self.name}: {took_s:.0f} s for {text[:80]}")

    def _check_time_out(self, text: str, said_s: float) -> None:
        """A statement ends when its time is over, whichever other node is away."""
        now_s = time.monotonic()
        over_s = now_s - said_s - self._time_out_s
        if not self._time_out_s or self.world.fates.away(self.node, said_s, now_s, 1.0):
            return
        words = f"{self.name} on {self.node}: {over_s:.1f} s more than {self._time_out_s} s for {text[:80]}"
        self.world.overrun = max(self.world.overrun, (over_s, words))
        if over_s > OVER_S:
            self.world.fault(words)

    def leave(self) -> None:
        """Hang up; the next statement goes to some node."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            guest = self._nodes is NODES and GUEST in self.world.nodes.present
            self.node = GUEST if guest and self.rng.random() < GUEST_SHARE else self.rng.choice(self._nodes)
            self._time_out_s = self.rng.choice(TIME_OUTS_S)
            self._connection = psycopg.connect(
                f"host=127.0.0.1 port={self.world.nodes.ports[self.node]} dbname=ducktail user=ducktail",
                autocommit=True,
                connect_timeout=CONNECT_S,
                application_name=self.name,
                options=f"-c statement_timeout={1000 * self._time_out_s}",
            )
        return self._connection

    def _note(self, what: str, text: str, error: psycopg.Error, began_s: float) -> None:
        now_s = time.monotonic()
        self.world.errors[what, error.sqlstate or "node away"] += 1
        words = f"{self.name} on {self.node}: {error.sqlstate} {error} of {text[:120]}"
        if error.sqlstate == "55P03" and self.world.fates.stood_still(began_s, now_s):
            return  # Who waited for a lock when its node was stopped has waited too long when it goes on.
        if error.sqlstate == "57014" and self._time_out_s:
            if now_s - began_s < self._time_out_s:
                self.world.fault(f"{words} after {now_s - began_s:.2f} s of {self._time_out_s} s")
            return
        if error.sqlstate in ("08004", "57P01") and self.node == GUEST:
            return  # The others do not know it any more, or not yet; it is shut down.
        if error.sqlstate not in EXPECTED[what]:
            self.world.fault(words)
        elif error.sqlstate is None and not self.world.fates.away(self.node, began_s, now_s, AFTER_S):
            self.world.fault(f"{words}, and the node was there")


@dataclass(slots=True)
class Attempt:
    """Events of one statement that was sent, once or again.

    Args:
        ids: event -> the partition of its key.
        acknowledged_s: when it was; None: never.
        stored, lost: partitions whose events are stored, and are not, as an error said.
        failed: the SQLSTATE of an error that said nothing of any partition; so nothing is stored.
    """

    ids: dict[int, int | None]
    acknowledged_s: float | None = None
    stored: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    failed: str | None = None


class Publisher(Client):
    """Publishes to the topic: under a sequence until it is acknowledged, or once and no more."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.attempts: list[Attempt] = []
        self.placed: dict[int, tuple[int, int]] = {}  # event -> partition and LSN as they were told
        self._sequence = 0

    def work(self) -> None:
        """Until the writing is over."""
        while not self.world.writing_over.wait(self.rng.uniform(0, 0.05)):
            if self.rng.random() < 0.1:
                self.leave()
            keys = [self.rng.choice((None, *range(KEYS))) for _ in range(self.rng.choice((1, 1, 3, 40)))]
            of_key = self.world.of_key
            ids = self.world.ids(len(keys))
            attempt = Attempt(
                {id_: None if key is None else of_key[key] for id_, key in zip(ids, keys, strict=True)}
            )
            self.attempts.append(attempt)
            way = self.rng.choice((self._sequenced, self._once, self._inserted))
            way(attempt, ids, keys)

    def _sequenced(self, attempt: Attempt, ids: list[int], keys: list[int | None]) -> None:
        self._sequence += 1
        named = f" WITH (producer = '{self.name}', sequence = {self._sequence})"
        over_s: float | None = None
        while over_s is None or time.monotonic() < over_s + STATEMENT_S:
            try:
                self._publish(attempt, ids, keys, named)
            except Failed:
                self.world.done["published again"] += 1
            else:
                self._repeat(ids, keys, named)
                return
            if over_s is None and self.world.writing_over.is_set():
                over_s = time.monotonic()
        self.world.fault(f"{self.name}: sequence {self._sequence} cannot be published")

    def _once(self, attempt: Attempt, ids: list[int], keys: list[int | None]) -> None:
        try:
            self._publish(attempt, ids, keys, "")
        except Failed as failed:
            _note_told(attempt, failed)

    def _repeat(self, ids: list[int], keys: list[int | None], named: str) -> None:
        """The same again, through any nodes: it is stored already, whatever comes of it."""
        for _ in range(REPEATS - 1):
            if self.rng.random() < 0.1:
                self.leave()
            try:
                places = self.run("publish", self._text(ids, keys, named))
            except Failed:
                continue
            self.world.done["repeated"] += 1
            if [tuple(place[:2]) for place in places] != [self.placed[id_] for id_ in ids]:
                self.world.fault(f"{self.name}: a repeat of{named} is answered {places[:5]}")

    @staticmethod
    def _text(ids: list[int], keys: list[int | None], named: str) -> str:
        rows = ", ".join(
            f"({id_}, {'NULL' if key is None else repr(str(key))}::VARCHAR)"
            for id_, key in zip(ids, keys, strict=True)
        )
        return f"PUBLISH TO t KEY q.k SELECT v.i AS payload, v.k FROM (VALUES {rows}) v(i, k){named}"

    def _publish(self, attempt: Attempt, ids: list[int], keys: list[int | None], named: str) -> None:
        places = self.run("publish", self._text(ids, keys, named))
        attempt.acknowledged_s = time.monotonic()
        if len(places) != len(ids):
            self.world.fault(f"{self.name}: {len(places)} places of {len(ids)} events")
        self.placed.update(zip(ids, [(partition, lsn) for partition, lsn, *_ in places], strict=False))

    def _inserted(self, attempt: Attempt, ids: list[int], keys: list[int | None]) -> None:
        rows = ", ".join(["(%s, %s)"] * len(ids))
        values = [
            v for id_, key in zip(ids, keys, strict=True) for v in (id_, None if key is None else str(key))
        ]
        try:
            self.run("publish", f"INSERT INTO t (payload, key) VALUES {rows}", values)
        except Failed as failed:
            _note_told(attempt, failed)
        else:
            attempt.acknowledged_s = time.monotonic()


def _note_told(attempt: Attempt, failed: Failed) -> None:
    """What an error says of partitions."""
    attempt.stored |= _partitions_told(failed, _STORED)
    attempt.lost |= _partitions_told(failed, _NOT_STORED)
    if not failed.detail:
        attempt.failed = failed.sqlstate


def _partitions_told(failed: Failed, pattern: str) -> set[int]:
    match = re.search(pattern, failed.detail)
    return set(map(int, re.findall(r"\d+", match[1]))) if match else set()


class Inserter(Client):
    """Inserts into the table of a node, there."""

    def __init__(self, world: World, node: str) -> None:
        super().__init__(world, f"inserter of {node}", (node,))
        self.attempts: list[Attempt] = []

    def work(self) -> None:
        """Until the writing is over."""
        while not self.world.writing_over.wait(self.rng.uniform(0.02, 0.3)):
            ids = self.world.ids(self.rng.choice((1, 5, 50)))
            attempt = Attempt(dict.fromkeys(ids))
            self.attempts.append(attempt)
            try:
                self.run("insert", f"INSERT INTO r_{self.node} VALUES {', '.join(f'({i})' for i in ids)}")
                attempt.acknowledged_s = time.monotonic()
            except Failed:
                continue


@dataclass(frozen=True, slots=True)
class Read:
    """One answer.

    Args:
        starts: partition -> the LSNs after which it may begin.
        cut: LIMIT may have ended it.
        lsns: partition -> what it has of it, in its order.
    """

    began_s: float
    starts: Mapping[int, frozenset[int]]
    cut: bool
    lsns: Mapping[int, list[int]]


class Reader(Client):
    """The only one who reads and commits some partitions of a group."""

    def __init__(self, world: World, name: str, source: str, group: str, partitions: Sequence[int]) -> None:
        super().__init__(world, name)
        self.source, self.group, self.partitions = source, group, tuple(partitions)
        self.reads: list[Read] = []
        self.seen: set[tuple[int, int, int]] = set()  # partition, LSN, event
        # Where it knows that the group is in each partition, and where else it may be.
        self._at = dict.fromkeys(partitions, 0)
        self._maybe: dict[int, set[int]] = {partition: set() for partition in partitions}

    def work(self) -> None:
        """Until all is read."""
        while not self.world.reading_over.is_set():
            try:
                rows = self._read()
                if rows:
                    self._commit(rows)
            except Failed:
                continue
            if self.rng.random() < 0.1:
                self.leave()

    def _read(self) -> dict[int, list[int]]:
        limit = self.rng.choice((7, 60, 1000))
        wait = self.rng.choice(("", " WAIT '300 ms'", " WAIT '3 s'"))
        some = ", ".join(map(str, self.partitions))
        text = (
            f"SELECT lsn, partition, after FROM {self.source} PARTITION ({some})"
            f" CONSUMER GROUP {self.group}{wait} LIMIT {limit}"
        )
        began_s = time.monotonic()
        rows = self.run("read", text)
        lsns: dict[int, list[int]] = defaultdict(list)
        for lsn, partition, after in rows:
            lsns[partition].append(lsn)
            self.seen.add((partition, lsn, after["id"] if isinstance(after, dict) else after))
        starts = {p: frozenset({self._at[p], *self._maybe[p]}) for p in self.partitions}
        self.reads.append(Read(began_s, starts, len(rows) == limit, lsns))
        self.world.done["rows"] += len(rows)
        return lsns

    def _commit(self, lsns: Mapping[int, list[int]]) -> None:
        ends = {partition: some[-1] for partition, some in lsns.items()}
        on = f"ON {self.source.split()[1]} CONSUMER GROUP {self.group}"
        way = self.rng.choice(("read position", "map", "partition"))
        if way == "partition":
            partition = self.rng.choice(list(ends))
            ends = {partition: ends[partition]}
            text = f"COMMIT OFFSET PARTITION {partition} AT {ends[partition]} {on}"
        elif way == "map":
            text = f"COMMIT OFFSETS AT '{json.dumps(ends)}' {on}"
        else:
            text = f"COMMIT OFFSETS {on}"
        try:
            self.run("commit", text)
        except Failed as failed:
            done, not_done = _partitions_told(failed, _COMMITTED), _partitions_told(failed, _NOT_COMMITTED)
            for partition, lsn in ends.items():
                if partition in done:
                    self._is_at(partition, lsn)
                elif partition not in not_done:
                    self._maybe[partition].add(lsn)
            raise
        for partition, lsn in ends.items():
            self._is_at(partition, lsn)

    def _is_at(self, partition: int, lsn: int) -> None:
        self._at[partition] = lsn
        self._maybe[partition] = {one for one in self._maybe[partition] if one > lsn}


class Member(Client):
    """A member of a group on a node's stream: it gets what is assigned to it."""

    def __init__(self, world: World, name: str, source: str, group: str) -> None:
        super().__init__(world, name)
        self.source, self.group = source, group
        self.seen: set[tuple[int, int, int]] = set()
        self.committed: Counter[tuple[int, int]] = Counter()
        self.maybe: set[tuple[int, int]] = set()  # of commits of which it is unknown what they did

    def work(self) -> None:
        """Until all is read."""
        member = f"CONSUMER GROUP {self.group} MEMBER '{self.name}'"
        while not self.world.reading_over.is_set():
            try:
                rows = self.run(
                    "read",
                    f"SELECT lsn, partition, after FROM {self.source} {member} WAIT '500 ms' LIMIT 100",
                )
                self.seen.update((p, lsn, x["id"] if isinstance(x, dict) else x) for lsn, p, x in rows)
                if rows:
                    self._commit(member, [(partition, lsn) for lsn, partition, _ in rows])
            except Failed:
                continue

    def _commit(self, member: str, events: Sequence[tuple[int, int]]) -> None:
        try:
            self.run("member commit", f"COMMIT OFFSETS ON {self.source.split()[1]} {member}")
        except Failed as failed:
            done, not_done = _partitions_told(failed, _COMMITTED), _partitions_told(failed, _NOT_COMMITTED)
            self.committed.update(event for event in events if event[0] in done)
            if failed.sqlstate not in ("55000", "40001") or failed.detail:
                self.maybe.update(event for event in events if event[0] not in done | not_done)
            raise
        self.committed.update(events)
        self.world.done["rows"] += len(events)


class Monitor(Client):
    """Looks at the committed LSNs of a group."""

    def __init__(self, world: World, name: str, stream: str, group: str) -> None:
        super().__init__(world, name)
        self._text = f"SHOW OFFSETS ON {stream} CONSUMER GROUP {group}"
        self._last: dict[int, int] = {}

    def work(self) -> None:
        """Until all is read."""
        while not self.world.reading_over.wait(0.2):
            try:
                rows = self.run("show", self._text)
            except Failed:
                continue
            for partition, lsn, *_ in rows:
                if lsn < self._last.get(partition, 0):
                    self.world.fault(f"{self.name}: partition {partition} back from {self._last} to {lsn}")
                self._last[partition] = lsn
            self.leave()

    def lag(self) -> int | None:
        """Events that the group has not committed; None where that cannot be asked now."""
        try:
            return sum(int(row[3]) for row in self.run("show", self._text))
        except Failed:
            return None

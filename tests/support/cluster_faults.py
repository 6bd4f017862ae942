"""What befalls the nodes of a cluster in a test: killed and started, stopped for a while and continued, cut
off from the others. Meanwhile partitions of a topic move from one to another, and a further node joins and
leaves.

Each node has a fate of its own, drawn from a seed, in a thread of its own; so several may be away at once.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from cluster_processes import ClusterProcesses
from cluster_proxies import FROM, TO, Proxies

# How long a node stands still. The others wait 5 s for a connection to it, and give one up after 10 s without
# an answer (`CONNECT_S`, `SILENT_S` and `PROBE_S` of pgwire_gateway/peers): less and more than each.
STOPS_S = {"short stop": (0.2, 3.0), "stop": (4.5, 7.0), "long stop": (10.5, 12.5)}
# How long a placement stands.
STANDS_S = (1.0, 5.0)
# A node that joins and leaves, how often that is the next placement, and how long it may take to be empty
# once no node is hindered any more.
GUEST, GUEST_SHARE, GONE_S = "n4", 0.3, 60.0
ACTS = ("kill", "kill", "kill", "short stop", "short stop", "stop", "long stop")


@dataclass(slots=True)
class Trouble:
    """A time in which a node was away, on the monotonic clock; until None it still is."""

    node: str
    act: str
    began_s: float
    ended_s: float | None = None


class Fates:
    """See the head of the file.

    Args:
        up_s: how long a node is left alone between two of its troubles, at least and at most.
    """

    def __init__(self, nodes: ClusterProcesses, seed: int, up_s: tuple[float, float]) -> None:
        self.troubles: list[Trouble] = []
        self.failed: list[Exception] = []
        self._nodes = nodes
        self._up_s = up_s
        self.owners: dict[int, str] = {}
        self.moves = 0
        self.visits, self.slowest_leave_s = 0, 0.0
        self.cuts: Counter[str] = Counter()
        self._down: set[str] = set()  # who is not there to be told of a placement
        self._absence = Trouble(GUEST, "absence", time.monotonic())
        self.troubles.append(self._absence)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, random.Random(f"{seed} {name}")))
            for name in nodes.nodes
        ]

    def moving(self, topic: str, owners: Mapping[int, str], seed: int) -> None:
        """Partitions of a topic are to move as well; `owners` says where they are."""
        self.owners = dict(owners)
        rng = random.Random(f"{seed} moves")
        self._threads.append(threading.Thread(target=self._moved, args=(topic, rng)))

    def _moved(self, topic: str, rng: random.Random) -> None:
        try:
            while not self._ended.wait(rng.uniform(*STANDS_S)):
                if GUEST not in self._nodes.ports or rng.random() > GUEST_SHARE:
                    self.move(topic, rng)
                elif GUEST in self._nodes.present:
                    self.goes(topic, rng)
                else:
                    self.comes(topic, rng)
        except Exception as error:
            self.failed.append(error)

    def move(self, topic: str, rng: random.Random) -> None:
        """A placement by which one or two partitions are others'; each node is told, in any order."""
        names = list(self._nodes.present)
        for partition in rng.sample(sorted(self.owners), rng.choice((1, 2))):
            self.owners[partition] = rng.choice([n for n in names if n != self.owners[partition]])
        self.moves += 1
        self.tell(topic, rng.sample(names, len(names)))

    def comes(self, topic: str, rng: random.Random) -> None:
        """A further node joins, and gets a few partitions."""
        for partition in rng.sample(sorted(self.owners), 3):
            self.owners[partition] = GUEST
        self.moves, self.visits = self.moves + 1, self.visits + 1
        self._down.add(GUEST)
        self._nodes.present.append(GUEST)
        self.tell(topic, self._nodes.present)
        self._nodes.start(GUEST)
        self._down.discard(GUEST)
        self._absence.ended_s = time.monotonic()

    def goes(self, topic: str, rng: random.Random) -> None:
        """It leaves, and is stopped once the others have what was its."""
        self._nodes.present.remove(GUEST)
        for partition, owner in self.owners.items():
            if owner == GUEST:
                self.owners[partition] = rng.choice(self._nodes.present)
        self.moves += 1
        self.tell(topic, [*self._nodes.present, GUEST])
        began_s = time.monotonic()
        ends_s: float | None = None
        waiting = set(self._nodes.present)
        while waiting:
            waiting = {name for name in waiting if not self._has_all(name)}
            if ends_s is None and self._ended.is_set():
                ends_s = time.monotonic() + GONE_S  # From here on nothing is in the way.
            if ends_s is not None and time.monotonic() > ends_s:
                why = [line for name in waiting for line in self._nodes[name].lines if "not come yet" in line]
                raise AssertionError(f"{waiting} have not all that was on {GUEST}: {why[-5:]}")
            time.sleep(0.1)  # The operator looks again.
        self.slowest_leave_s = max(self.slowest_leave_s, time.monotonic() - began_s)
        self._down.add(GUEST)
        self._absence = Trouble(GUEST, "absence", time.monotonic())
        self.troubles.append(self._absence)
        self._nodes[GUEST].stop()

    def _has_all(self, name: str) -> bool:
        """Whether a node has the present placement, and all that is its by it."""
        text = "SELECT count(*) FILTER (log = 'coming'), min(epoch) FROM ducktail.partitions"
        try:
            with self._nodes[name].connect(connect_timeout=2, options="-c statement_timeout=2000") as session:
                return session.execute(text).fetchone() == (0, 1 + self.moves)
        except psycopg.Error:
            return False  # It is away.

    def tell(self, topic: str, names: Sequence[str]) -> None:
        """Give the nodes the present placement; who is down finds it when it starts."""
        parts = {
            name: ", ".join(str(p) for p, owner in self.owners.items() if owner == name)
            for name in self._nodes.present
        }
        owners = ", ".join(f'{name} = "{some}"' for name, some in parts.items() if some)
        rule = f'[[topics]]\nname = "{topic}"\npartitions = {{ {owners} }}\n'
        text = self._nodes.text(1 + self.moves, rule)
        for name in names:
            # A node that starts meanwhile reads the one or the other.
            new = self._nodes.file(name).with_suffix(".new")
            new.write_text(text)
            new.replace(self._nodes.file(name))
        for name in names:
            if name not in self._down:
                self._nodes[name].process.send_signal(signal.SIGHUP)

    def cutting(self, proxies: Proxies, seed: int) -> None:
        """The nodes are to be cut off from each other as well, each for a while now and then."""
        for name in self._nodes.present:
            rng = random.Random(f"{seed} net {name}")
            self._threads.append(threading.Thread(target=self._cut, args=(proxies, name, rng)))

    def _cut(self, proxies: Proxies, name: str, rng: random.Random) -> None:
        try:
            while not self._ended.wait(rng.uniform(*self._up_s)):
                ways = rng.choice(((TO, FROM), (TO,), (FROM,)))
                kind = rng.choice(sorted(STOPS_S))
                self.cuts[f"{kind} of {' and '.join(ways)}"] += 1
                proxies.hold(name, ways)
                try:
                    self._ended.wait(rng.uniform(*STOPS_S[kind]))
                finally:
                    proxies.release(name, cut=rng.random() < 0.5)
        except Exception as error:
            self.failed.append(error)

    def begin(self) -> None:
        """Let it come."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No more of it: when it returns all nodes run."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    @property
    def counts(self) -> Counter[str]:
        """What was done, how often."""
        return Counter(trouble.act for trouble in self.troubles)

    def away(self, node: str, began_s: float, ended_s: float, after_s: float) -> bool:
        """Whether a node was away at some time from `began_s` to `ended_s`, or not long before that."""
        return any(
            one.node == node
            and one.began_s <= ended_s
            and (one.ended_s is None or one.ended_s + after_s >= began_s)
            for one in list(self.troubles)
        )

    def stood_still(self, began_s: float, ended_s: float) -> bool:
        """Whether a node stood still for longer than `lock_timeout`, some of it in this time."""
        return any(
            one.act == "long stop" and one.began_s <= ended_s and (one.ended_s or began_s) >= began_s
            for one in list(self.troubles)
        )

    def _guarded(self, name: str, rng: random.Random) -> None:
        try:
            self._fate(name, rng)
        except Exception as error:
            self.failed.append(error)

    def _fate(self, name: str, rng: random.Random) -> None:
        acts: list[str] = []
        while not self._ended.wait(rng.uniform(*self._up_s)):
            if not acts:
                acts = list(ACTS)
                rng.shuffle(acts)
            trouble = Trouble(name, acts.pop(), time.monotonic())
            self.troubles.append(trouble)
            process = self._nodes[name].process
            if trouble.act == "kill":
                self._down.add(name)
                self._nodes[name].kill()
                self._ended.wait(rng.uniform(0, 2))
                self._nodes[name].start()
                self._down.discard(name)
                # It may have read its file just before it was written.
                self._nodes[name].process.send_signal(signal.SIGHUP)
            else:
                process.send_signal(signal.SIGSTOP)
                try:
                    self._ended.wait(rng.uniform(*STOPS_S[trouble.act]))
                finally:
                    process.send_signal(signal.SIGCONT)
            trouble.ended_s = time.monotonic()

"""What befalls the nodes of a cluster in a test: killed and started, stopped for a while and continued.
Meanwhile partitions of a topic move from one to another.

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

from cluster_processes import ClusterProcesses

# How long a node stands still. The others wait 5 s for a connection to it, and give one up after 10 s without
# an answer (`CONNECT_S`, `SILENT_S` and `PROBE_S` of pgwire_gateway/forwarding): less and more than each.
STOPS_S = {"short stop": (0.2, 3.0), "stop": (4.5, 7.0), "long stop": (10.5, 12.5)}
# How long a placement stands.
STANDS_S = (1.0, 5.0)
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
        self._down: set[str] = set()  # who is not there to be told of a placement
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
                self.move(topic, rng)
        except Exception as error:
            self.failed.append(error)

    def move(self, topic: str, rng: random.Random) -> None:
        """A placement by which one or two partitions are others'; each node is told, in any order."""
        names = sorted(self._nodes.nodes)
        for partition in rng.sample(sorted(self.owners), rng.choice((1, 2))):
            self.owners[partition] = rng.choice([n for n in names if n != self.owners[partition]])
        self.moves += 1
        self.tell(topic, rng.sample(names, len(names)))

    def tell(self, topic: str, names: Sequence[str]) -> None:
        """Give the nodes the present placement; who is down finds it when it starts."""
        parts = {
            name: ", ".join(str(p) for p, owner in self.owners.items() if owner == name)
            for name in sorted(self._nodes.nodes)
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

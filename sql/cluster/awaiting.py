"""WAIT on a topic with partitions on other nodes: the owners wait, and this node counts their events.

For one event the first owner that has one is sufficient. For n events each owner waits for its part of the
missing ones: once all are there, at least one owner has its part; then the events are counted again.

A waiting member asks the topic's home periodically. This is its heartbeat, and it learns which partitions
it has. Source: docs/sql.md, "WAIT".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ...engine.catalog.streams import Stream
from ...engine.errors import CannotConnect, ConnectionLost
from ...engine.waiting import Wait, Waiting, all_of, first_true
from ..language import statements as st
from ..language.scan import render_scan
from ..peers.owners import Owners
from ..peers.requests import Part
from ..session_state.context import Context
from . import gathering
from .membership import Home
from .shares import ask_there, own_share

# How often a member that waits asks the home: a partition that comes to it or leaves it is known then.
HEARTBEAT_MS = 1000


@dataclass(slots=True, eq=False)
class Heartbeat:
    """The heartbeats of a member to the topic's home, while its scan waits for events.

    Args:
        wanted: the partitions of the scan.
        joined: True once it was a member; if it no longer is, LEAVE may have removed it.
        left: True if it was removed from the group.
    """

    home: Home
    member: str
    wanted: Sequence[int]
    joined: bool = False
    left: bool = False

    def look(self) -> Waiting[frozenset[int]]:
        """Send a heartbeat; returns the member's partitions. A removed member sends none.

        Raises:
            CannotConnect, ConnectionLost: the home is unavailable.
        """
        if self.left:
            return frozenset()
        look = yield from self.home.look(self.member, self.wanted, joins=not self.joined)
        self.joined, self.left = True, look.left
        return look.partitions


def heartbeat_s(heartbeats: Sequence[Heartbeat]) -> float:
    """The interval between heartbeats of such members, in seconds."""
    return (
        min(HEARTBEAT_MS, *(heartbeat.home.group.session_timeout_ms / 3 for heartbeat in heartbeats)) / 1000
    )


def send_heartbeats(heartbeats: Sequence[Heartbeat]) -> Waiting[bool]:
    """Send heartbeats during a wait that asks no other node; it does not end by itself."""
    while True:
        for heartbeat in heartbeats:
            yield from heartbeat.look()
        never: Future[None] = Future()
        yield Wait(never, heartbeat_s(heartbeats))


@dataclass(frozen=True, slots=True)
class OwnersWait:
    """The wait of one scan for events of several owners.

    Args:
        scan: the whole scan, with values in place of parameters.
        after: partition -> LSN; None to begin at the group's committed LSNs.
        events: the number of events that ends the wait.
        here: (scan, ms, events): waits for events of this node's own share, and counts them.
    """

    session: Context
    stream: Stream
    owners: Owners
    scan: st.Scan
    after: Mapping[int, int] | None
    events: int
    here: Callable[[st.Scan, int, int], Waiting[int]]

    def wait(self, partitions: Sequence[int], ends_s: float) -> Waiting[bool]:
        """Wait until enough events exist, or the time is up; True if they do.

        Raises:
            CannotConnect, ConnectionLost: an owner is unavailable.
            DucktailError: the error of an owner.
        """
        own, clock = gathering.by_owner(self.owners, partitions), self.session.database.clock
        if not own:
            return False
        counts = dict.fromkeys(own, 0)
        while True:
            if self.events > 1:
                works = [self._count(node, some, 0, self.events) for node, some in own.items()]
                found = yield from all_of(works, clock.monotonic_s)
                for node, count in zip(own, found, strict=True):
                    if isinstance(count, Exception):
                        raise count
                    counts[node] = count
            missing = self.events - sum(counts.values())
            left_ms = round((ends_s - clock.monotonic_s()) * 1000)
            if missing <= 0 or left_ms <= 0:
                return missing <= 0
            each = -(-missing // len(own))
            has = [self._has(node, some, left_ms, counts[node] + each) for node, some in own.items()]
            if not (yield from first_true(has, clock.monotonic_s)):
                return False
            if self.events == 1:
                return True

    def wait_among(
        self,
        partitions: Sequence[int],
        ends_s: float,
        heartbeat: Heartbeat | None,
        others: Sequence[Heartbeat],
    ) -> Waiting[None]:
        """Wait as `wait` does, and send heartbeats of the statement's members meanwhile.

        Args:
            heartbeat: that of the waiting member, if any. It waits for its own partitions; the loss of one
                ends the wait.
            others: the heartbeats of the members of other scans.
        """
        clock, owned = self.session.database.clock, frozenset[int]()
        heartbeats = [*others] if heartbeat is None else [heartbeat, *others]
        # An owner that waits may be the home of a member: it takes its questions one after the other.
        while (left_s := ends_s - clock.monotonic_s()) > 0:
            for other in others:
                yield from other.look()
            if heartbeat is not None:
                found = yield from heartbeat.look()
                if heartbeat.left or not owned <= found:
                    return
                owned, partitions = found, sorted(found)
            slice_s = min(left_s, heartbeat_s(heartbeats)) if heartbeats else left_s
            if partitions:
                if (yield from self.wait(partitions, clock.monotonic_s() + slice_s)):
                    return
            elif heartbeat is None:
                return
            else:
                never: Future[None] = Future()
                yield Wait(never, slice_s)

    def _has(self, node: str, partitions: Sequence[int], ms: int, events: int) -> Waiting[bool]:
        """Wait at an owner for a number of events; True if they exist."""
        return (yield from self._count(node, partitions, ms, events)) >= events

    def _count(self, node: str, partitions: Sequence[int], ms: int, events: int) -> Waiting[int]:
        """Wait at an owner (0 ms to count only); returns the number of its events, at most `events`."""
        share = gathering.share_of(self.scan, partitions, self.after)
        part = Part(self.owners.epoch)
        if node == self.owners.local:
            with own_share(self.session, part):
                return (yield from self.here(share, ms, events))
        if ms:
            share = replace(share, wait=f"{ms} ms", wait_for=events)
        sql = f"SELECT count(*) FROM (SELECT lsn FROM {render_scan(share)} LIMIT {events})"
        try:
            answer = yield from ask_there(self.session, node, part.text(sql), again=True)
        except (CannotConnect, ConnectionLost) as error:
            raise gathering.away(self.stream.name, node, partitions, error) from error
        return int(str(answer.rows[0][0]))

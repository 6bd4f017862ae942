"""A session's peers over its links to other nodes (forwarding/links.py): shares are FORWARDed statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ...engine.errors import CannotConnect, ConnectionLost, SerializationFailure
from ...engine.waiting import Waiting
from ..peers.links import Links
from ..peers.peer_frames import batch_of, head_of, tail_of
from ..peers.request import FETCH, Request
from ..results.results import ResultBatch, ResultColumn
from ..session_state.context import Context

# The number of the answer that is under way; those of relayed statements begin at 1.
SHARES = 0


class LinkedPeers:
    """See the head of the file."""

    def __init__(self, session: Context, links: Links) -> None:
        self._session = session
        self._links = links

    def ask(
        self,
        node: str,
        text: str,
        parameters: Sequence[object] = (),
        take: Callable[[ResultBatch], None] | None = None,
        *,
        again: bool = False,
        changes: bool = False,
    ) -> Waiting[tuple[ResultColumn, ...]]:
        """See Peers."""
        there = next((one for one in self._session.database.placement.nodes if one.name == node), None)
        if there is None:
            # Where it owns something the statement has a placement that is over.
            raise SerializationFailure(f'node "{node}" has left the cluster meanwhile', hint="Try again.")
        # Shares of one session are asked of a node one after the other: one number does for them, and what is
        # asked again is in the same words.
        number = SHARES
        request = Request("execute", text, (), parameters, portal=number)
        try:
            reply = yield from self._links.ask(self._session, there, request, again=again, changes=changes)
            columns = head_of(reply.frames[0]).columns or ()
            frames = reply.frames[1:]
            self._links.goes_on(there, number)
            while True:
                for frame in frames[:-1]:
                    batch = batch_of(frame)
                    if take is not None:
                        take(batch)
                tail = tail_of(frames[-1])
                if not tail.more:
                    return columns
                more = Request(FETCH, portal=number)
                frames = (yield from self._links.ask(self._session, there, more)).frames
        except (CannotConnect, ConnectionLost) as error:
            if f'"{node}"' not in error.message:
                error.message = f'node "{node}": {error.message}'
            raise
        finally:
            self._links.ended(there, number)

    def later(self, node: str, text: str) -> Future[Any] | None:
        """See Peers."""
        there = next((one for one in self._session.database.placement.nodes if one.name == node), None)
        if there is None:
            return None
        return self._links.later(there, Request("execute", text, portal=self._links.number()))

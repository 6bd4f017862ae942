"""Partitions that are on their way to this node: who waits for them, and why they have not come.

Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from ..errors import SerializationFailure
from ..streams.streams import Stream


class Arrivals:
    """What a node's mover (pgwire_gateway/peers/synchronization.py) tells the sessions; safe to use from
    several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._changed: Future[None] = Future()
        self._reasons: dict[int, str] = {}
        self._stuck: set[int] = set()
        # Has the mover look at once what there is to be taken; nobody where there is none.
        self.hurry: Callable[[], None] = lambda: None

    def changed(self) -> Future[None]:
        """Done once the mover has come to an end with a topic, for better or worse."""
        with self._mutex:
            return self._changed

    def tell(self, stream_id: int, reason: str | None, *, stuck: bool = False) -> None:
        """What was to come of a topic has come, or has not for this reason.

        Args:
            stuck: it will not come by itself soon.
        """
        with self._mutex:
            (self._stuck.add if stuck else self._stuck.discard)(stream_id)
            if reason is None:
                self._reasons.pop(stream_id, None)
            else:
                self._reasons[stream_id] = reason
            changed, self._changed = self._changed, Future()
        changed.set_result(None)

    def reason(self, stream_id: int) -> str | None:
        """Why partitions of a topic have not come, as it was found last."""
        return self._reasons.get(stream_id)

    def stuck(self, stream_id: int) -> bool:
        """Whether it is not worth while to wait for what is to come of a topic."""
        return stream_id in self._stuck

    def error(self, stream: Stream, partition: int, node: str) -> SerializationFailure:
        """What a statement about a partition that has not come is told."""
        return SerializationFailure(
            f'partition {partition} of topic "{stream.name}" is on its way to node "{node}"',
            detail=self.reason(stream.stream_id),
            hint="Try again.",
        )

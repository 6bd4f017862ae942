"""What the newest checkpoint of each key in a database is, as its process knows from having saved it.

A process opens a database alone, and whoever saves in it outside a transaction of his own holds `mutex`. So
what was saved last need not be read again to see that the next one goes forward, and that one can be a single
INSERT. What is not certain is not known: a key that a transaction of its own has touched is never known again
(it may be rolled back, and is not committed under the mutex), and what takes checkpoints away forgets all.

Source: docs/design/checkpoints.md, "In DuckDB".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from .state import CheckpointState

# Stream's number, group's number, key.
Key = tuple[int, int, str]
# So many rows may stand beyond those that are kept until a save takes them all away.
UNPRUNED_MAX = 16
# Larger ones are read again, and what is too old goes with each save: neither memory nor the file grows.
KNOWN_BYTES_MAX = 32 << 10
KNOWN_MAX = 1000


@dataclass(frozen=True, slots=True)
class Known:
    """The newest of a key.

    Args:
        newest: it, without its operator states and metadata.
        unpruned: rows that may stand beyond those that are kept.
    """

    newest: CheckpointState
    unpruned: int


class Saved:
    """See the head of the file; what is known is asked and told under `mutex`."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()  # two transactions that touch one row fail in DuckDB
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._touched: set[Key] = set()

    def take(self, key: Key) -> Known | None:
        """What is known of a key; it is not, until it is put back."""
        return None if key in self._touched else self._known.pop(key, None)

    def put(self, key: Key, state: CheckpointState, size: int, unpruned: int) -> None:
        """A state of so many bytes was saved, and is the newest of its key."""
        if size <= KNOWN_BYTES_MAX:
            self._known[key] = Known(replace(state, operator_states={}, metadata={}), unpruned)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)

    def forget(self) -> None:
        """Something was taken away."""
        self._known.clear()

    def touched(self, key: Key) -> None:
        """A transaction of its own changes a key; without the mutex, which whom it waits for may hold."""
        self._touched.add(key)

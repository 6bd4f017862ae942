"""First committer wins, for what DuckDB itself does not notice.

A transaction that has read before it wrote works on an older MVCC snapshot than the writer lock
would allow. So each captured commit leaves the keys that it wrote here, and a later write of an
older snapshot is held against them. A key is DuckDB's 64-bit hash of the primary key (without
one, of the whole old row): two keys of one hash cost a needless 40001, never a lost update.

Nothing is kept that no open transaction could meet: `forget_through` drops every commit that the
oldest open snapshot contains. Source: docs/design/engine.md, "Conflicts".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# One commit's keys beyond this count as "every key": 100,000 hashes are some 8 MB.
COMMIT_KEYS_MAX = 100_000
# Keys kept over all commits of a table, in case one snapshot stays open for long; beyond it the
# oldest commits fold into "every key".
TABLE_KEYS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """What one commit wrote in one table: `keys` is None where there were too many to keep."""

    counter: int
    keys: frozenset[int] | None


class Conflicts:
    """The keys that recent commits wrote in one captured table. The catalog's mutex guards it."""

    def __init__(self) -> None:
        self._commits: deque[WrittenKeys] = deque()
        self._count = 0
        self._every_key_counter = 0  # newest commit that counts as every key
        self._newest_counter = 0

    def record(self, counter: int, keys: frozenset[int] | None) -> None:
        """Keep what the commit with number `counter` wrote; counters only rise."""
        assert counter >= self._newest_counter, "commits come in order"
        self._newest_counter = counter
        if keys is None or len(keys) > COMMIT_KEYS_MAX:
            self._commits.clear()
            self._count = 0
            self._every_key_counter = counter
            return
        self._commits.append(WrittenKeys(counter, keys))
        self._count += len(keys)
        while self._count > TABLE_KEYS_MAX:
            self._every_key_counter = self._drop_oldest()

    def hit(self, snapshot_counter: int, keys: frozenset[int] | None) -> bool:
        """Whether a commit after `snapshot_counter` wrote one of `keys` (None: every key)."""
        if self._newest_counter <= snapshot_counter:
            return False
        if keys is None or self._every_key_counter > snapshot_counter:
            return keys is None or bool(keys)
        for commit in reversed(self._commits):
            if commit.counter <= snapshot_counter:
                return False
            assert commit.keys is not None
            if not commit.keys.isdisjoint(keys):
                return True
        return False

    def newer_than(self, snapshot_counter: int) -> bool:
        """Whether any commit after `snapshot_counter` wrote the table."""
        return self._newest_counter > snapshot_counter

    def forget_through(self, counter: int) -> None:
        """Drop the keys of commits up to and with `counter`: every open snapshot has them."""
        while self._commits and self._commits[0].counter <= counter:
            self._drop_oldest()

    def _drop_oldest(self) -> int:
        oldest = self._commits.popleft()
        assert oldest.keys is not None
        self._count -= len(oldest.keys)
        return oldest.counter

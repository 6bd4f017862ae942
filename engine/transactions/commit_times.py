"""The time of commits and the age of events, independent of jumps of the machine's clock.

The rules:

- A commit gets the clock's time, and never an earlier one than the commit before it.
- A clock that is behind the last commit was set back, or had jumped forward during an earlier commit. Commit
  times then continue at half the speed of elapsed time, so that the clock catches up with them.
- Across a jump of the clock, an age is elapsed time: a jump neither expires events early nor keeps them.
  After a jump forward the clock is trusted again once it has returned, or has stayed for `BELIEVED_US`.
- Each jump by more than `JUMP_US` is logged.

Elapsed time is that of the process (`Clock.monotonic_s`): a new process begins with the clock's time.
Source: docs/operations.md, "A clock that jumps".
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from ..clock import Clock
from ..schema import SCHEMA
from ..server_log import facts

logger = logging.getLogger(__name__)

SECOND_US = 1_000_000
# The difference of the clock and elapsed time between two readings that counts as a jump. NTP slews a clock,
# and elapsed time with it; each commit and each pass of retention reads them.
JUMP_US = 10 * SECOND_US
# Time for an operator to repair a clock that has jumped forward, before events expire by its time.
BELIEVED_US = 24 * 3600 * SECOND_US
# Commit times that are ahead of the clock advance by one microsecond per this many.
SLOWER = 2

# The columns that hold times of commits; times later than the clock are set to it (`reset_sql`).
_MOMENTS = (
    ("commits", "commit_time"),
    ("parked_commits", "commit_time"),
    ("schema_catalog", "since"),
    ("stream_catalog", "created_at"),
    ("group_copies", "made_at"),
    ("compacted_ranges", "compacted_at"),
)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A time and the elapsed time at that moment, both in microseconds."""

    us: int
    elapsed_us: int


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of the clocks, in microseconds.

    Args:
        clock_us: time of the machine's clock.
        steady_us: time of the clock without a jump forward that is not trusted yet.
        commit_us: time for a commit at this moment.
    """

    clock_us: int
    steady_us: int
    commit_us: int


class CommitTimes:
    """The times of commits; safe to use from several threads.

    Args:
        clock: the machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._last = Anchor(0, 0)  # the time of the last numbered commit
        self._seen = Anchor(*self._read())
        self._held: Anchor | None = None  # since a jump forward: the start of `steady_us`
        self._ahead: Anchor | None = None  # while commit times are ahead: the commit from which they continue

    def now_us(self) -> int:
        """The time for a commit at this moment; commit times never go back."""
        return self._look().commit_us

    def steady_us(self) -> int:
        """The time without a forward jump of the clock that is not trusted yet."""
        return self._look().steady_us

    def given(self, us: int) -> None:
        """Note the time of a numbered commit."""
        with self._mutex:
            self._last = Anchor(us, self._read()[1])

    @property
    def last_us(self) -> int:
        """The time of the last numbered commit."""
        return self._last.us

    def expired_before_us(self, retention_us: int) -> int:
        """The commit time before which events are older than the retention time."""
        now, ahead = self._look(), self._ahead
        expired_us = now.steady_us - retention_us
        if ahead is not None:
            # Since then commit times have advanced at their slower pace; earlier events are older still.
            slow_us = now.commit_us - retention_us // SLOWER
            if slow_us >= ahead.us:
                return max(expired_us, slow_us)
        return expired_us

    def age_us(self, commit_us: float) -> float:
        """The age of a commit, in microseconds."""
        now, ahead = self._look(), self._ahead
        if commit_us > now.clock_us and ahead is not None:
            return max(0.0, (now.commit_us - max(commit_us, ahead.us)) * SLOWER)
        since_us = now.steady_us if commit_us <= now.steady_us else now.clock_us
        return max(0.0, since_us - commit_us)

    def glimpse_ahead_us(self) -> int:
        """The lead of commit times over the clock, in microseconds; takes no lock."""
        clock_us, elapsed_us = self._read()
        ahead = self._ahead
        return max(0, _slowly(ahead or self._last, elapsed_us) - clock_us)

    def glimpse_held_us(self) -> int:
        """The lag of retention behind a clock that has jumped forward, in microseconds; takes no lock."""
        clock_us, elapsed_us = self._read()
        held = self._held
        return 0 if held is None else max(0, clock_us - held.us - (elapsed_us - held.elapsed_us))

    def _read(self) -> tuple[int, int]:
        return self._clock.now_us(), int(self._clock.monotonic_s() * SECOND_US)

    def _look(self) -> Now:
        with self._mutex:
            clock_us, elapsed_us = self._read()
            jump_us = clock_us - self._seen.us - (elapsed_us - self._seen.elapsed_us)
            self._seen = Anchor(clock_us, elapsed_us)
            steady_us = self._steady(clock_us, elapsed_us, jump_us)
            commit_us = self._commit_time(clock_us, elapsed_us)
            return Now(clock_us, steady_us, commit_us)

    def _steady(self, clock_us: int, elapsed_us: int, jump_us: int) -> int:
        if abs(jump_us) > JUMP_US:
            about = facts(seconds=jump_us / SECOND_US)
            logger.warning("the machine's clock has jumped", extra=about)
        held = self._held
        steady_us = clock_us if held is None else held.us + elapsed_us - held.elapsed_us
        if jump_us > JUMP_US:
            steady_us = clock_us - jump_us if held is None else steady_us
            self._held = Anchor(steady_us, elapsed_us)
        elif held is not None and (
            clock_us <= steady_us + JUMP_US or elapsed_us - held.elapsed_us > BELIEVED_US
        ):
            self._held, steady_us = None, clock_us
        return steady_us

    def _commit_time(self, clock_us: int, elapsed_us: int) -> int:
        was = self._ahead
        if was is None or _slowly(was, elapsed_us) < self._last.us:
            self._ahead = self._last
        commit_us = _slowly(self._ahead or self._last, elapsed_us)
        if clock_us >= commit_us:
            self._ahead = None
            return clock_us
        if was is None and commit_us - clock_us > JUMP_US:
            about = facts(seconds=(commit_us - clock_us) / SECOND_US)
            logger.warning("commit times are ahead of the machine's clock", extra=about)
        return commit_us


def _slowly(ahead: Anchor, elapsed_us: int) -> int:
    return ahead.us + (elapsed_us - ahead.elapsed_us) // SLOWER


def reset_sql(now_us: int) -> list[str]:
    """The statements that replace commit times later than the clock's time by it.

    The first one changes `commits`. Events that came with a partition from another node expire by the new
    time, but show their old one.

    Args:
        now_us: the clock's time.
    """
    now = f"make_timestamptz({now_us})"
    changes = [f"UPDATE {SCHEMA}.{table} SET {at} = {now} WHERE {at} > {now}" for table, at in _MOMENTS]
    return [
        *changes,
        f"UPDATE {SCHEMA}.segment_events SET commit_us = {now_us} WHERE commit_us > {now_us}",
    ]

"""The time of commits, and the age of events, whatever the machine's clock does.

The rules that it keeps:

- A commit gets the clock's time, and never an earlier one than the commit before it.
- A clock that is behind the last commit was set back, or had jumped forward while something was committed.
  Commit times then go on at half the speed of elapsed time, so that the clock catches up with them.
- An age is elapsed time wherever the clock has jumped: no jump lets events go too early, none keeps them.
  After a jump forward the clock is believed again when it has come back, or has stayed for `BELIEVED_US`.
- Each jump by more than `JUMP_US` is logged.

Elapsed time is the process's own (`Clock.monotonic_s`): a new process begins with what the clock says.
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
# By how much the clock and elapsed time may differ between two looks. A clock that is kept in step by NTP is
# slewed, and elapsed time with it; a look is due with each commit and each pass of retention.
JUMP_US = 10 * SECOND_US
# For so long an operator can mend a clock that has jumped forward before events go by what it says.
BELIEVED_US = 24 * 3600 * SECOND_US
# Commit times that are ahead of the clock advance by one microsecond in so many.
SLOWER = 2

# The columns that hold times of commits: those that are later than the clock are set to it (`reset_sql`).
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
    """A time, and what the clock of elapsed time showed then; both in microseconds."""

    us: int
    elapsed_us: int


@dataclass(frozen=True, slots=True)
class Now:
    """A look at the clocks, in microseconds.

    Args:
        clock_us: what the machine's clock says.
        steady_us: the same without a jump forward that is not believed yet.
        commit_us: the time of a commit that is made now.
    """

    clock_us: int
    steady_us: int
    commit_us: int


class CommitTimes:
    """See the head of the file; safe to use from several threads.

    Args:
        clock: the machine's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._last = Anchor(0, 0)  # the time of the last numbered commit
        self._seen = Anchor(*self._read())
        self._held: Anchor | None = None  # since a jump forward: where `steady_us` goes on from
        self._ahead: Anchor | None = None  # while commit times are ahead: the commit they go on from

    def now_us(self) -> int:
        """The time of a commit that is made now: commit times never go back."""
        return self._look().commit_us

    def steady_us(self) -> int:
        """The time without a jump of the clock forward that is not believed yet."""
        return self._look().steady_us

    def given(self, us: int) -> None:
        """A commit has got this time."""
        with self._mutex:
            self._last = Anchor(us, self._read()[1])

    @property
    def last_us(self) -> int:
        """The time of the last numbered commit."""
        return self._last.us

    def expired_before_us(self, retention_us: int) -> int:
        """The commit time before which events are older than this."""
        now, ahead = self._look(), self._ahead
        expired_us = now.steady_us - retention_us
        if ahead is not None:
            # Since then commit times have gone on at their slower pace; what was before is older yet.
            slow_us = now.commit_us - retention_us // SLOWER
            if slow_us >= ahead.us:
                return max(expired_us, slow_us)
        return expired_us

    def age_us(self, commit_us: float) -> float:
        """How long ago something was committed."""
        now, ahead = self._look(), self._ahead
        if commit_us > now.clock_us and ahead is not None:
            return max(0.0, (now.commit_us - max(commit_us, ahead.us)) * SLOWER)
        since_us = now.steady_us if commit_us <= now.steady_us else now.clock_us
        return max(0.0, since_us - commit_us)

    def glimpse_ahead_us(self) -> int:
        """By how much a commit's time is ahead of the clock; takes no lock."""
        clock_us, elapsed_us = self._read()
        ahead = self._ahead
        return max(0, _slowly(ahead or self._last, elapsed_us) - clock_us)

    def glimpse_held_us(self) -> int:
        """By how much retention is behind the clock, which has jumped forward; takes no lock."""
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
    """The statements that set the times of commits that are later than the clock to what it says.

    The first one is about `commits`. Events that came with a partition from another node go by the new time,
    and show the one that they had.

    Args:
        now_us: what the clock says.
    """
    now = f"make_timestamptz({now_us})"
    changes = [f"UPDATE {SCHEMA}.{table} SET {at} = {now} WHERE {at} > {now}" for table, at in _MOMENTS]
    return [
        *changes,
        f"UPDATE {SCHEMA}.segment_events SET commit_us = {now_us} WHERE commit_us > {now_us}",
    ]

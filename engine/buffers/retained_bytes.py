"""How many bytes of events a stream retains, and up to which LSN they must go to fit a bound.

What is measured is the events as they are sent: each is encoded once when it is published, and its
length is counted there. What was in the log before the database was opened is estimated from those
that the open encodes. The sums are kept at some LSNs only (marks), never more than `MARKS_MAX`: so
a stream may give up a little more than it must (a few thousandths of what it retains), never less.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

# A mark is two numbers; so many tell the bytes to within a few thousandths.
MARKS_MAX = 4096


class RetainedBytes:
    """Cumulative bytes of one stream's events by LSN; its owner guards it."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._sums: list[int] = []  # bytes of all events up to the LSN beside, since it was made
        self._sum = 0
        self._trimmed = 0
        self._step = 0  # least bytes between two marks

    @property
    def total(self) -> int:
        """Bytes of the retained events."""
        return self._sum - self._trimmed

    def add(self, last_lsn: int, size: int) -> None:
        """More events, up to `last_lsn`, have come: `size` bytes of them."""
        self._sum += size
        before = self._sums[-2] if len(self._sums) > 1 else self._trimmed
        if self._lsns and self._sum - before <= self._step:
            self._lsns[-1], self._sums[-1] = last_lsn, self._sum
            return
        self._lsns.append(last_lsn)
        self._sums.append(self._sum)
        if len(self._lsns) > MARKS_MAX:
            self._step = max(self._step, 4 * self.total // MARKS_MAX)
            # The newest mark stays: what is after the others is counted up to it.
            keep = len(self._lsns) % 2 == 0
            self._lsns, self._sums = self._lsns[keep::2], self._sums[keep::2]

    def trim(self, through_lsn: int) -> None:
        """Events up to `through_lsn` are gone."""
        gone = bisect_right(self._lsns, through_lsn)
        if gone:
            self._trimmed = self._sums[gone - 1]
            del self._lsns[:gone]
            del self._sums[:gone]

    def thin(self, through_lsn: int, left: float) -> None:
        """Of the events up to `through_lsn` such a part is left, evenly spread."""
        place = bisect_right(self._lsns, through_lsn)
        gone = 0
        for number in range(place):
            gone = round((self._sums[number] - self._trimmed) * (1 - left))
            self._sums[number] -= gone
        self._sums[place:] = [total - gone for total in self._sums[place:]]
        self._sum -= gone

    def excess_through(self, bound: int) -> int | None:
        """The LSN up to which events must go for the rest to fit `bound` bytes; None where it fits."""
        if self.total <= bound:
            return None
        return self._lsns[min(bisect_left(self._sums, self._sum - bound), len(self._lsns) - 1)]

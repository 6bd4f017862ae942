"""How far a time zone is from UTC at each of many instants.

Since 1972 no zone has changed its offset twice within six days. So an instant of a day at whose two ends
the offset is the same has that offset; only of a day with a change are the minutes asked for.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .text_form import DAY_US, SECOND_US, offset_s

Ints = npt.NDArray[np.int64]

# Days from 1970 that are looked up, 1972-01-01 to 2099-12-31; before, offsets have parts of a minute too.
FIRST_DAY, LAST_DAY = 730, 47_481
MINUTE_US = 60 * SECOND_US
UNKNOWN = -(10**6)
ZONES_KEPT = 64


def offsets_s(us: Ints, zone: str) -> Ints:
    """Seconds east of UTC at instants in microseconds from 1970."""
    days = us // DAY_US - FIRST_DAY
    if days.min() < 0 or days.max() > LAST_DAY - FIRST_DAY:
        return _asked(us, zone, MINUTE_US if us.min() >= FIRST_DAY * DAY_US else SECOND_US)
    found, ends = _of_days(days, zone), _of_days(days + 1, zone)
    changing = found != ends
    if changing.any():
        found[changing] = _asked(us[changing], zone, MINUTE_US)
    return found


def _of_days(days: Ints, zone: str) -> Ints:
    """At the beginnings of days, counted from the first."""
    table = _days(zone)
    found: Ints = table[days]
    unknown = found == UNKNOWN
    if unknown.any():
        for day in np.unique(days[unknown]).tolist():
            table[day] = offset_s((day + FIRST_DAY) * DAY_US, zone)
        found = table[days]
    return found


@lru_cache(ZONES_KEPT)
def _days(zone: str) -> Ints:
    """What is known of a zone; filled as it is asked for."""
    return np.full(LAST_DAY - FIRST_DAY + 2, UNKNOWN, np.int64)


def _asked(us: Ints, zone: str, step: int) -> Ints:
    """Asked for one by one, once for each that occurs."""
    instants, places = np.unique(us // step, return_inverse=True)
    return np.fromiter((offset_s(instant * step, zone) for instant in instants.tolist()), np.int64)[places]

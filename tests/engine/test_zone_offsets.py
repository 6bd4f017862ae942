"""Offsets of many instants at once against those asked for one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ducktail.engine.values.dates_times import DAY_US, FIRST_DAY, LAST_DAY, SECOND_US, offset_s, offsets_s

SEED = 1972
ZONES = [
    "UTC", "Europe/Berlin", "America/St_Johns", "America/Noronha", "America/Cambridge_Bay", "Asia/Kolkata",
    "Asia/Gaza", "Africa/Casablanca", "Africa/Cairo", "Australia/Lord_Howe", "Pacific/Apia",
    "Antarctica/Troll",
]  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
def test_many_at_once_are_as_one_by_one(zone: str) -> None:
    chance = random.Random(SEED)
    first, last = FIRST_DAY * DAY_US, LAST_DAY * DAY_US
    anywhere = [chance.randrange(first, last) for _ in range(2000)]
    # Each quarter of an hour of the days on which the offset changes, in some years.
    year = chance.randrange(1975, 2035) - 1970
    days = range(year * 365, year * 365 + 3 * 366)
    ends = {day: offset_s(day * DAY_US, zone) for day in [*days, days.stop]}
    changing = [day for day in days if ends[day] != ends[day + 1]]
    near = [day * DAY_US + quarter * 900 * SECOND_US for day in changing for quarter in range(96)]
    edges = [first, last, *(instant - 1 for instant in near), *near]
    for instants in (anywhere, edges, [first - 1, *edges], [last + DAY_US, *anywhere[:50]]):
        values = np.array(instants, np.int64)
        assert offsets_s(values, zone).tolist() == [offset_s(instant, zone) for instant in instants]

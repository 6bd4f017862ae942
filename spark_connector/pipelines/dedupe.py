"""`dedupe`: of the events with the same key within a time, one.

    dedupe(events, ["order_id"], "time", "1 hour")

Spark keeps each key until the watermark has passed its event's time by the time to live, in the checkpoint's
state: a key that comes again later than that is new. Which one of a key's events in one batch is passed on
Spark does not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import OptionError
from .aggregate import timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def dedupe(events: DataFrame, keys: Sequence[str], event_time: str, time_to_live: str) -> DataFrame:
    """The events without repeats.

    Raises:
        OptionError: no keys, columns that are not there, or no length of time.
    """
    missing = [key for key in keys if key not in events.columns]
    if not keys or missing:
        what = f'the events have no column "{missing[0]}"' if missing else "which columns are the key?"
        raise OptionError(f"{what} (dedupe.key)")
    return timed(events, event_time, time_to_live).dropDuplicatesWithinWatermark(list(keys))

"""`aggregate`: windows over event time, in the user's own SQL.

    aggregate(events, "SELECT window.start AS hour, origin, avg(delay) AS delay FROM events "
                      "GROUP BY window(time, '1 hour'), origin", "time", "10 minutes")

The SQL reads the view `events`. `window(time, '1 hour')` is a tumbling window, `window(time, '1 hour',
'15 minutes')` a sliding one, `session_window(time, '5 minutes')` a session. An event that is later than the
watermark is left out; a window is given when the watermark has passed its end (mode append), or with each
change (update).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as f

from ..errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW = "events"


def aggregate(events: DataFrame, query: str, event_time: str, watermark: str) -> DataFrame:
    """The query over the events.

    Raises:
        OptionError: the column is not there or no timestamp, or the query or the watermark is wrong.
    """
    timed(events, event_time, watermark).createOrReplaceTempView(VIEW)
    try:
        return events.sparkSession.sql(query)
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"the query is wrong (aggregate.sql): {str(error).splitlines()[0]}") from None


def timed(events: DataFrame, event_time: str, watermark: str) -> DataFrame:
    """The events with their event time's watermark.

    Raises:
        OptionError: the column is not there or no timestamp, or the watermark is no length of time.
    """
    types = {field.name: field.dataType.typeName() for field in events.schema}
    if event_time not in types:
        known = ", ".join(types)
        raise OptionError(f'the events have no column "{event_time}" (event_time); there are {known}')
    if types[event_time] not in ("timestamp", "timestamp_ntz"):
        found = types[event_time]
        raise OptionError(f'column "{event_time}" is of type {found}, not a timestamp (event_time)')
    if types[event_time] == "timestamp_ntz":
        # Spark has watermarks for timestamps with a zone only: the session's, UTC in a pipeline.
        events = events.withColumn(event_time, f.col(event_time).cast("timestamp"))
    try:
        return events.withWatermark(event_time, watermark)
    except PySparkException as error:
        what = str(error).splitlines()[0]
        raise OptionError(f'"{watermark}" is no length of time, such as 10 minutes: {what}') from None

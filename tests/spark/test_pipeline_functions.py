"""aggregate, dedupe and dead_letter as functions over any stream: here over files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ducktail.spark_connector.errors import OptionError

pytestmark = pytest.mark.slow


def stream(spark: Any, directory: Path, schema: str, *batches: list[dict[str, Any]]) -> Any:
    """A streaming data frame, a file a batch."""
    directory.mkdir()
    for at, rows in enumerate(batches):
        file = directory / f"{at}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark reads files in the order of their times.
        os.utime(file, (1_700_000_000 + at, 1_700_000_000 + at))
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
    return reader.json(str(directory))


def collected(spark: Any, frame: Any, name: str, checkpoint: Path) -> list[tuple[Any, ...]]:
    query = (
        frame.writeStream.format("memory").queryName(name)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(100)
    return [tuple(row) for row in spark.table(name).collect()]


def at(minute: int) -> str:
    return f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00"


EVENTS = "time timestamp_ntz, origin string, delay int"


def test_windows_of_three_kinds(spark: Any, tmp_path: Path) -> None:
    from ducktail.spark_connector.pipelines.kinds import aggregate

    first = [{"time": at(minute), "origin": "JFK", "delay": minute} for minute in (1, 5, 50, 65)]
    late = [{"time": at(2), "origin": "JFK", "delay": 1000}, {"time": at(400), "origin": "LGA", "delay": 1}]
    queries = {
        "tumbling": ("window(time, '1 hour')", [("00:00", 3, 56), ("01:00", 1, 65)]),
        "sliding": (
            "window(time, '1 hour', '30 minutes')",
            [("23:30", 2, 6), ("00:00", 3, 56), ("00:30", 2, 115), ("01:00", 1, 65)],
        ),
        "session": (
            "session_window(time, '10 minutes')",
            [("00:01", 2, 6), ("00:50", 1, 50), ("01:05", 1, 65)],
        ),
    }
    for kind, (window, wanted) in queries.items():
        # What is late comes behind a batch that moves the watermark past it, and one that then goes by it.
        events = stream(spark, tmp_path / kind, EVENTS, first, [late[1]], [late[1]], [late[0]])
        query = (
            f"SELECT date_format({window.partition('(')[0]}.start, 'HH:mm') AS start, count(*) AS n, "
            f"sum(delay) AS delay FROM events GROUP BY {window}, origin"
        )
        found = collected(spark, aggregate(events, query, "time", "10 minutes"), kind, tmp_path / f"{kind}_c")
        assert sorted(found) == sorted(wanted)
    events = stream(spark, tmp_path / "wrong", EVENTS, first)
    for wrong, said in (
        (("SELECT nope FROM events", "time", "1 minute"), "aggregate.sql"),
        (("SELECT 1 FROM events", "nope", "1 minute"), "event_time"),
        (("SELECT 1 FROM events", "origin", "1 minute"), "not a timestamp"),
        (("SELECT 1 FROM events", "time", "soon"), "no length of time"),
    ):
        with pytest.raises(OptionError, match=said):
            aggregate(events, *wrong)


def test_repeats_are_left_out_for_a_time(spark: Any, tmp_path: Path) -> None:
    from ducktail.spark_connector.pipelines.kinds import dedupe

    batches = [
        [{"time": at(0), "origin": "a", "delay": 1}, {"time": at(1), "origin": "a", "delay": 2}],
        [{"time": at(5), "origin": "a", "delay": 3}, {"time": at(6), "origin": "b", "delay": 4}],
        [{"time": at(100), "origin": "c", "delay": 5}],
        [{"time": at(100), "origin": "d", "delay": 7}],
        [{"time": at(101), "origin": "a", "delay": 6}],
    ]
    events = stream(spark, tmp_path / "in", EVENTS.replace("_ntz", ""), *batches)
    frame = dedupe(events, ["origin"], "time", "30 minutes").select("origin", "delay")
    found = collected(spark, frame, "deduped", tmp_path / "c")
    assert sorted(found) == [("a", 1), ("a", 6), ("b", 4), ("c", 5), ("d", 7)]
    with pytest.raises(OptionError, match="which columns"):
        dedupe(events, [], "time", "1 hour")


def test_bad_rows_are_told_apart(spark: Any, tmp_path: Path) -> None:
    from ducktail.spark_connector.pipelines.kinds import Rules, dead_letters

    payloads = [
        '{"id": 1, "price": 2.5}', '{"id": 2, "price": -1}', '{"id": "x"}', "no json", None, '{"id": 3}',
    ]  # fmt: skip
    events = stream(spark, tmp_path / "in", "after string", [{"after": payload} for payload in payloads])
    rules = Rules("id INT, price DOUBLE", {"price": "price > 0"})
    frame = dead_letters(events, rules).select("id", "price", "_reason", "_event")
    found = collected(spark, frame, "judged", tmp_path / "c")
    reasons = {event: reason for _, _, reason, event in found}
    assert reasons == {
        payloads[0]: None,
        payloads[1]: "breaks rule price: price > 0",
        payloads[2]: "does not parse as the schema",
        payloads[3]: "does not parse as the schema",
        None: "no payload",
        payloads[5]: "breaks rule price: price > 0",
    }
    assert (1, 2.5, None, payloads[0]) in found
    typed = [{"origin": "a", "delay": -1}, {"origin": "b", "delay": 1}]
    rows = stream(spark, tmp_path / "typed", EVENTS, typed)
    frame = dead_letters(rows, Rules(None, {"late": "delay >= 0"})).select("origin", "_reason")
    found = collected(spark, frame, "judged_rows", tmp_path / "c2")
    assert sorted(found) == [("a", "breaks rule late: delay >= 0"), ("b", None)]
    for wrong in (Rules(), Rules("id NOTYPE"), Rules(None, {"r": "nope > 0"})):
        with pytest.raises(OptionError, match="dead_letter"):
            dead_letters(rows if wrong.schema is None else events, wrong)

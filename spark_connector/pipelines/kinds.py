"""The kinds of pipelines, mirror, aggregate, dedupe and dead_letter, built from a configuration.

    aggregate(events, "SELECT window.start AS hour, origin, avg(delay) AS delay FROM events "
                      "GROUP BY window(time, '1 hour'), origin", "time", "10 minutes")
    dedupe(events, ["order_id"], "time", "1 hour")
    dead_letters(events, Rules("id INT, price DOUBLE", {"price": "price > 0"}))

`aggregate` runs the user's SQL over the view `events`. `window(time, '1 hour')` is a tumbling window,
`window(time, '1 hour', '15 minutes')` a sliding one, `session_window(time, '5 minutes')` a session. Events
later than the watermark are dropped; a window is emitted when the watermark has passed its end (output mode
append), or with each change (update).

`dedupe` passes one event per key within a time. Spark keeps each key in the checkpoint's state until the
watermark has passed its event's time by the time to live: a key that returns later is new. Spark does not
define which of a key's events in one batch is passed.

`dead_letters` adds `_reason`, which is NULL for valid rows, and `_event`, the event as JSON. A rule is a
condition in Spark's SQL; a row breaks it if it is false or NULL. Without a schema the rules apply to the
events' own columns.

The fourth kind is in mirror.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as f

from ..connection import connect, failure
from ..errors import OptionError
from ..options import Name, Options, Use, parse, quoted
from ..sink.staging import key_columns
from ..sink.target import PAYLOADS, TOPIC_COLUMNS
from ..sink.writers import batch_of, frame_target, write_once
from .config import Config, take_sink_options
from .mirror import SCD_TYPES, MirrorTarget, mirror
from .runner import Build, ask, read
from .targets import DeltaTarget, ParquetTarget, SqlTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

VIEW = "events"
PAYLOAD = "after"
_CORRUPT = "_corrupt_record"


def aggregate(events: DataFrame, query: str, event_time: str, watermark: str) -> DataFrame:
    """Run a query over the events, with a watermark on their event time.

    Raises:
        OptionError: the column is missing or not a timestamp, or the query or the watermark is invalid.
    """
    with_watermark(events, event_time, watermark).createOrReplaceTempView(VIEW)
    try:
        return events.sparkSession.sql(query)
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"the query is wrong (aggregate.sql): {str(error).splitlines()[0]}") from None


def with_watermark(events: DataFrame, event_time: str, watermark: str) -> DataFrame:
    """The events with a watermark on their event time.

    Raises:
        OptionError: the column is missing or not a timestamp, or the watermark is not a duration.
    """
    types = {field.name: field.dataType.typeName() for field in events.schema}
    if event_time not in types:
        known = ", ".join(types)
        raise OptionError(f'the events have no column "{event_time}" (event_time); there are {known}')
    if types[event_time] not in ("timestamp", "timestamp_ntz"):
        found = types[event_time]
        raise OptionError(f'column "{event_time}" is of type {found}, not a timestamp (event_time)')
    if types[event_time] == "timestamp_ntz":
        # Spark supports watermarks on timestamps with a time zone only: the session's, UTC in a pipeline.
        events = events.withColumn(event_time, f.col(event_time).cast("timestamp"))
    try:
        return events.withWatermark(event_time, watermark)
    except PySparkException as error:
        what = str(error).splitlines()[0]
        raise OptionError(f'"{watermark}" is no length of time, such as 10 minutes: {what}') from None


def dedupe(events: DataFrame, keys: Sequence[str], event_time: str, time_to_live: str) -> DataFrame:
    """Drop repeated events.

    Raises:
        OptionError: there are no keys, a column is missing, or the time to live is not a duration.
    """
    missing = [key for key in keys if key not in events.columns]
    if not keys or missing:
        what = f'the events have no column "{missing[0]}"' if missing else "which columns are the key?"
        raise OptionError(f"{what} (dedupe.key)")
    return with_watermark(events, event_time, time_to_live).dropDuplicatesWithinWatermark(list(keys))


@dataclass(frozen=True, slots=True)
class Rules:
    """The definition of a valid row.

    Args:
        schema: the schema of the JSON in the events' column `after`, as Spark's DDL; None if the events have
            columns.
        conditions: by the name that the reason contains.
    """

    schema: str | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)


def dead_letters(events: DataFrame, rules: Rules) -> DataFrame:
    """Add `_reason` and `_event` to the rows.

    Raises:
        OptionError: schema or rules are invalid.
    """
    if rules.schema is None and not rules.conditions:
        raise OptionError("neither a schema nor a rule says what a good row is (dead_letter.schema, .rules)")
    try:
        return _judged(events, rules)
    except (AnalysisException, ParseException) as error:
        what = str(error).splitlines()[0]
        raise OptionError(f"a rule or the schema is wrong (dead_letter.rules, .schema): {what}") from None


def _judged(events: DataFrame, rules: Rules) -> DataFrame:
    reason = f.lit(None).cast("string")
    rows = events
    if rules.schema is None:
        rows = rows.withColumn("_event", f.to_json(f.struct(*events.columns)))
    else:
        if PAYLOAD not in events.columns:
            raise OptionError('the events have no column "after": a schema is for envelope json')
        if "op" in events.columns:
            events = events.where("op <> 'schema'")  # Schema events are not rows.
        text = f.col(PAYLOAD).cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        row = f.from_json(text, f"{rules.schema}, {_CORRUPT} STRING", options)
        rows = events.select(text.alias("_event"), row.alias("_row")).select("_event", "_row.*")
        reason = (
            f.when(f.col("_event").isNull(), "no payload")
            .when(f.col(_CORRUPT).isNotNull(), "does not parse as the schema")
            .otherwise(reason)
        )
    for name, condition in rules.conditions.items():
        broken = ~f.coalesce(f.expr(condition), f.lit(False))
        reason = f.coalesce(reason, f.when(broken, f.lit(f"breaks rule {name}: {condition}")))
    return rows.withColumn("_reason", reason).drop(_CORRUPT)


def build_mirror(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Build a mirror."""
    target = config.target
    scd, keys = target.choice("scd", SCD_TYPES, 1), target.words("key")
    into = _mirror_target(config)
    target.end()
    config.own.end()
    changes = read(spark, config, envelope="changes", consumerGroup=config.name)
    return mirror(changes, into, keys or _primary_key(config), scd)


def _mirror_target(config: Config) -> MirrorTarget:
    kind = config.target.choice("kind", ("parquet", "delta", "table", "postgres"))
    if kind in ("parquet", "delta"):
        path: str = config.target.need("path", str)
        return ParquetTarget(path) if kind == "parquet" else DeltaTarget(path)
    table = str(config.target.name("table"))
    given = take_sink_options(config.target, "topic", "table", "writeMode", "orderBy")
    if kind == "postgres":
        # The defaults must not be the gateway's user, password and port.
        given = {"host": "127.0.0.1", "port": "5432", **given}
        return SqlTarget(parse(given, Use.WRITE_STREAM), table)
    return SqlTarget(config.write_options(given), table)


def _primary_key(config: Config) -> Sequence[str]:
    """The primary key of the stream's table."""
    stream = config.stream
    if stream is None:
        raise OptionError("source.stream is missing")

    def look() -> Sequence[str]:
        try:
            with connect(config.connection) as connection:
                found = connection.execute(
                    "SELECT table_name, columns FROM ducktail.streams WHERE lower(stream_name) = lower(%s) "
                    "AND lower(schema_name) = lower(coalesce(%s, current_schema()))",
                    (stream.name, stream.schema),
                ).fetchone()
                if found is None or found[0] is None:
                    raise OptionError(f'there is no stream "{stream}" on a table (option stream)')
                if found[1] is None:
                    raise OptionError(f'option stream: "{stream}" is over several tables, make one on each')
                return key_columns(connection, Name.parse(str(found[0])))
        except psycopg.Error as error:
            raise failure(error, f'looking at stream "{stream}"', "stream") from None

    keys = ask(config.name, look, config.connection)
    if not keys:
        raise OptionError(f'the table of stream "{stream}" has no primary key: name its key (target.key)')
    return keys


def build_aggregate(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Build an aggregation."""
    own = config.own
    query = own.need("sql", str)
    event_time, watermark = own.need("event_time", str), own.need("watermark", str)
    mode = own.choice("output_mode", ("append", "update", "complete"), "append")
    own_schema = own.take("schema", str)
    own.end()
    events = _events(spark, config, own_schema)
    return _into_target(aggregate(events, query, event_time, watermark), config, mode)


def build_dedupe(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Build a deduplication."""
    own = config.own
    keys, event_time, kept = own.words("key"), own.need("event_time", str), own.need("time_to_live", str)
    own_schema = own.take("schema", str)
    own.end()
    events = _events(spark, config, own_schema)
    return _into_target(dedupe(events, keys, event_time, kept), config, "append")


def build_dead_letter(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Build a pipeline with a topic for invalid rows."""
    own = config.own
    schema, topic = own.take("schema", str), own.need("topic", str)
    rules = own.section("rules").rest()
    own.end()
    good_options, key = _sink(config, config.target.choice("kind", ("topic", "table")))
    config.target.end()
    bad_options = config.write_options({"topic": topic})
    if all(good_options[name] == bad_options[name] for name in ("host", "port", "topic")):
        # A batch is written once to each target: the second write would be skipped.
        raise OptionError(f'good and bad rows cannot both go to topic "{topic}" (target, dead_letter.topic)')
    events = read(spark, config, consumerGroup=config.name)
    judged = dead_letters(events, Rules(schema, rules))

    def apply(frame: DataFrame, number: int) -> None:
        frame.persist()
        try:
            batch = batch_of(frame, number)
            good = _shaped(frame.where("_reason IS NULL").drop("_reason", "_event"), good_options, key)
            headers = f.create_map(f.lit("reason"), f.col("_reason"), f.lit("pipeline"), f.lit(config.name))
            bad = frame.where("_reason IS NOT NULL").select(
                f.col("_event").alias("value"), headers.alias("headers")
            )
            for rows, options in ((good, good_options), (bad, bad_options)):
                write_once(rows, options, frame_target(options, rows.schema, overwrite=False), batch)
        finally:
            frame.unpersist()

    return judged.writeStream.foreachBatch(apply)


def _events(spark: SparkSession, config: Config, schema: str | None) -> DataFrame:
    """The source's rows; with a schema, the rows in the events' JSON, with LSN and commit time."""
    events = read(spark, config, consumerGroup=config.name)
    if schema is None:
        return events
    row = f.from_json(f.col("after").cast("string"), schema)
    # Schema events are not rows.
    return (
        events.where("op <> 'schema'")
        .withColumn("_row", row)
        .select(
            "_row.*", f.col("lsn").alias("_lsn"), f.col("commit_time").alias("_commit_timestamp"), "key", "op"
        )
    )


def _sink(config: Config, kind: str) -> tuple[Options, list[str]]:
    """The options of the sink, and the columns of a topic's key."""
    key = config.target.words("key") if kind == "topic" else []
    other = "table" if kind == "topic" else "topic"
    given = take_sink_options(config.target, other)
    if kind not in given:
        raise OptionError(f"target.{kind} is missing: {kind} is the target's kind")
    return config.write_options(given), key


def _into_target(frame: DataFrame, config: Config, mode: str) -> DataStreamWriter:
    kind = config.target.choice("kind", ("topic", "table", "parquet"))
    if kind == "parquet":
        path = config.target.need("path", str)
        config.target.end()
        if mode != "append":
            raise OptionError(f"files are only appended to: {config.kind}.output_mode cannot be {mode}")
        return frame.writeStream.format("parquet").option("path", path).outputMode(mode)
    options, key = _sink(config, kind)
    config.target.end()
    shaped = _shaped(frame, options, key)
    if mode == "update":
        # Spark has no output mode update for sinks in Python.
        def apply(rows: DataFrame, number: int) -> None:
            target = frame_target(options, rows.schema, overwrite=False)
            write_once(rows, options, target, batch_of(rows, number))

        return shaped.writeStream.foreachBatch(apply).outputMode(mode)
    given = {**config.gateway, **{name: _text(options[name]) for name in options if options.is_given(name)}}
    return shaped.writeStream.format("ducktail").options(**given).outputMode(mode)


def _text(value: object) -> str:
    return ",".join(map(quoted, value)) if isinstance(value, list) else str(value)


def _shaped(frame: DataFrame, options: Options, key: Sequence[str]) -> DataFrame:
    """Convert rows to the columns of a topic, unless they have these, or go to a table."""
    names = {name.lower() for name in frame.columns}
    is_ready = bool(names & set(PAYLOADS)) and names <= set(TOPIC_COLUMNS)
    if options["topic"] is None or is_ready:
        return frame
    value = f.to_json(f.struct("*")).alias("value")
    if not key:
        return frame.select(value)
    one = f.col(key[0]).cast("string") if len(key) == 1 else f.to_json(f.struct(*key))
    return frame.select(one.alias("key"), value)


BUILDS: dict[str, Build] = {
    "mirror": build_mirror,
    "aggregate": build_aggregate,
    "dedupe": build_dedupe,
    "dead_letter": build_dead_letter,
}

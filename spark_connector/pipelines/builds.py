"""The pipelines that the command knows: what each makes of its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from pyspark.sql import functions as f

from .. import staging
from ..connection import connect, failure
from ..errors import OptionError
from ..names import Name, written
from ..options import Options, Use, parse
from ..sink import target as sink_target
from .aggregate import aggregate
from .config import Config, take_sink_options
from .dead_letter import Rules, dead_letters
from .dedupe import dedupe
from .mirror import SCD_TYPES, mirror
from .running import Build, asked, read
from .staged_frames import batch_of, write_once
from .target_delta import DeltaPlace
from .target_parquet import ParquetPlace
from .target_sql import SqlPlace
from .targets import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def build_mirror(spark: SparkSession, config: Config) -> DataStreamWriter:
    """`mirror`; see mirror.py."""
    target = config.target
    scd, keys = target.choice("scd", SCD_TYPES, 1), target.words("key")
    place = _place(config)
    target.end()
    config.own.end()
    changes = read(spark, config, envelope="changes", consumerGroup=config.name)
    return mirror(changes, place, keys or _primary_key(config), scd)


def _place(config: Config) -> Place:
    kind = config.target.choice("kind", ("parquet", "delta", "table", "postgres"))
    if kind in ("parquet", "delta"):
        path: str = config.target.need("path", str)
        return ParquetPlace(path) if kind == "parquet" else DeltaPlace(path)
    table = str(config.target.name("table"))
    given = take_sink_options(config.target, "topic", "table", "writeMode", "orderBy")
    if kind == "postgres":
        # Not the gateway's own user, password and port by accident.
        given = {"host": "127.0.0.1", "port": "5432", **given}
        return SqlPlace(parse(given, Use.WRITE_STREAM), table)
    return SqlPlace(config.write_options(given), table)


def _primary_key(config: Config) -> Sequence[str]:
    """The primary key of the table that a stream is on.

    Raises:
        OptionError: it has none, or the stream is not there.
    """
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
                return staging.key_columns(connection, Name.parse(str(found[0])))
        except psycopg.Error as error:
            raise failure(error, f'looking at stream "{stream}"', "stream") from None

    keys = asked(config.name, look, config.connection)
    if not keys:
        raise OptionError(f'the table of stream "{stream}" has no primary key: name its key (target.key)')
    return keys


def build_aggregate(spark: SparkSession, config: Config) -> DataStreamWriter:
    """`aggregate`; see aggregate.py."""
    own = config.own
    query = own.need("sql", str)
    event_time, watermark = own.need("event_time", str), own.need("watermark", str)
    mode = own.choice("output_mode", ("append", "update", "complete"), "append")
    own_schema = own.take("schema", str)
    own.end()
    events = _events(spark, config, own_schema)
    return _into_target(aggregate(events, query, event_time, watermark), config, mode)


def build_dedupe(spark: SparkSession, config: Config) -> DataStreamWriter:
    """`dedupe`; see dedupe.py."""
    own = config.own
    keys, event_time, kept = own.words("key"), own.need("event_time", str), own.need("time_to_live", str)
    own_schema = own.take("schema", str)
    own.end()
    events = _events(spark, config, own_schema)
    return _into_target(dedupe(events, keys, event_time, kept), config, "append")


def build_dead_letter(spark: SparkSession, config: Config) -> DataStreamWriter:
    """`dead_letter`; see dead_letter.py."""
    own = config.own
    schema, topic = own.take("schema", str), own.need("topic", str)
    rules = own.section("rules").rest()
    own.end()
    good_options, key = _sink(config, config.target.choice("kind", ("topic", "table")))
    config.target.end()
    bad_options = config.write_options({"topic": topic})
    if all(good_options[name] == bad_options[name] for name in ("host", "port", "topic")):
        # A batch is written once to each target: the second would be passed over.
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
                write_once(rows, options, sink_target(options, rows.schema, overwrite=False), batch)
        finally:
            frame.unpersist()

    return judged.writeStream.foreachBatch(apply)


def _events(spark: SparkSession, config: Config, schema: str | None) -> DataFrame:
    """The source's rows; with a schema, those of the JSON that the events hold, with the events' place."""
    events = read(spark, config, consumerGroup=config.name)
    if schema is None:
        return events
    row = f.from_json(f.col("after").cast("string"), schema)
    # What says that the table has changed is no row of it.
    return (
        events.where("op <> 'schema'")
        .withColumn("_row", row)
        .select(
            "_row.*", f.col("lsn").alias("_lsn"), f.col("commit_time").alias("_commit_timestamp"), "key", "op"
        )
    )


def _sink(config: Config, kind: str) -> tuple[Options, list[str]]:
    """Where rows go, and the columns that are a topic's key.

    Raises:
        OptionError: it is not named, or is of another kind.
    """
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
        # Spark knows no mode update of sinks in Python.
        def apply(rows: DataFrame, number: int) -> None:
            target = sink_target(options, rows.schema, overwrite=False)
            write_once(rows, options, target, batch_of(rows, number))

        return shaped.writeStream.foreachBatch(apply).outputMode(mode)
    given = {**config.gateway, **{name: _text(options[name]) for name in options if options.is_given(name)}}
    return shaped.writeStream.format("ducktail").options(**given).outputMode(mode)


def _text(value: object) -> str:
    return ",".join(map(written, value)) if isinstance(value, list) else str(value)


def _shaped(frame: DataFrame, options: Options, key: Sequence[str]) -> DataFrame:
    """Rows as a topic takes them, each a JSON object; a table's, and those that are so already, stay."""
    names = {name.lower() for name in frame.columns}
    is_ready = bool(names & set(staging.PAYLOADS)) and names <= set(staging.TOPIC_COLUMNS)
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

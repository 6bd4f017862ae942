"""The changes of `orders` as a table of Spark's, and what was paid as events of a topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
GATEWAY = {
    "host": os.environ.get("DUCKTAIL_HOST", "127.0.0.1"),
    "port": os.environ.get("DUCKTAIL_PORT", "5480"),
}


@dp.table
def orders_changes() -> DataFrame:
    """Every change, as ENVELOPE CHANGES has it."""
    return spark.readStream.format("ducktail").options(**GATEWAY, stream="orders_stream").load()


dp.create_sink("paid_orders", "ducktail", {**GATEWAY, "topic": "paid_orders"})


@dp.append_flow(target="paid_orders")
def paid() -> DataFrame:
    """An event for each order that is paid now."""
    return (
        spark.readStream.table("orders_changes")
        .where("_change_type IN ('insert', 'update_postimage') AND st = 'paid'")
        .select(
            f.col("id").cast("string").alias("key"),
            f.to_json(f.struct("id", "amount")).alias("value"),
        )
    )

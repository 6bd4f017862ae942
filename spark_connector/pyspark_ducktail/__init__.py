"""Spark's way to the data source: it looks for modules called pyspark_*, and in each for a DefaultSource.

Source: pyspark/sql/worker/lookup_data_sources.py. A module that cannot be imported would hide every
Python data source of that Spark, so this one imports what a client needs and nothing else.
"""

from ducktail.spark_connector.data_source import DucktailSource


class DefaultSource(DucktailSource):
    """`format("ducktail")`."""

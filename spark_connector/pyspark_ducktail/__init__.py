"""The module by which Spark finds the data source: DefaultSource of a pyspark_* module.

Source: pyspark/sql/worker/lookup_data_sources.py. If one of these modules fails, Spark finds no Python data
source at all, so this one imports the data source alone, which imports source and sink at their use.
"""

from ducktail.spark_connector.data_source import DucktailSource


class DefaultSource(DucktailSource):
    """`format("ducktail")`."""

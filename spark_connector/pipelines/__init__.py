"""Pipelines: small PySpark programs over streams, each a function and a `ducktail pipeline` command.

Importing this package does not import pyspark; its modules do.
"""

"""A PySpark data source; a client that speaks the wire. Importing this package does not import pyspark."""

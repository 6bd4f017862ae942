"""A PySpark data source; a client that speaks the wire."""

"""The sink: rows of Spark written to tables and topics, each batch once."""

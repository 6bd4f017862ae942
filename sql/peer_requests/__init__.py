"""Answers to the requests of other nodes: forwarded statements, definitions, partitions that move."""

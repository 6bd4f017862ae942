"""Streams, groups, captured tables and rights, as values in memory."""

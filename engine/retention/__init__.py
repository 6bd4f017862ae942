"""Retention and compaction: the deletion of the oldest events and of superseded ones."""

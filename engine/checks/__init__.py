"""Holding a stream against its table."""

"""Conversions between DuckDB's values and PostgreSQL's types, in text, binary, JSON and Arrow."""

"""Rewrites PostgreSQL's catalog queries."""


def rewrite(text: str) -> str:
    """The text as DuckDB understands it."""
    return text

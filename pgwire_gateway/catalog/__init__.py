"""What PostgreSQL's clients ask about a database: pg_catalog and information_schema over DuckDB's own."""

from .install import install
from .rewrite import respelt, rewrite
from .session import attach

__all__ = ["attach", "install", "respelt", "rewrite"]

"""What PostgreSQL's clients ask about a database: pg_catalog and information_schema over DuckDB's own."""

from .install import install
from .literals import numeric_columns
from .rewrite import respelt, rewrite
from .session import attach
from .unanswered import unanswered
from .unnamed import shown_names

__all__ = ["attach", "install", "numeric_columns", "respelt", "rewrite", "shown_names", "unanswered"]

"""PostgreSQL's catalog for clients: pg_catalog and information_schema over DuckDB's lists."""

from .casts import shown_arrays
from .installation import attach, install
from .numeric_type import numeric_columns, numeric_parameters
from .oids import object_oid
from .query_forms import NO_COLUMNS
from .query_rewrite import respelt, rewrite
from .result_columns import shown_names
from .time_types import column_digits
from .unanswered_queries import unanswered

__all__ = [
    "NO_COLUMNS",
    "attach",
    "column_digits",
    "install",
    "numeric_columns",
    "numeric_parameters",
    "object_oid",
    "respelt",
    "rewrite",
    "shown_arrays",
    "shown_names",
    "unanswered",
]

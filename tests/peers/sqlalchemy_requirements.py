"""What SQLAlchemy's suite may ask of ducktail: its requirements of other dialects, with more open."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

OPEN = frozenset(
    {
        "comment_reflection",
        "cross_schema_fk_reflection",
        "ctes",
        "ctes_on_dml",
        "ctes_with_update_delete",
        "ctes_with_values",
        "delete_returning",
        "except_",
        "fetch_first",
        "fetch_no_order_by",
        "fetch_offset_with_options",
        "foreign_keys_reflect_as_index",
        "identity_columns",
        "identity_columns_standard",
        "insert_executemany_returning",
        "insert_returning",
        "insertmanyvalues",
        "intersect",
        "isolation_level",
        "json_type",
        "parens_in_union_contained_select_w_limit_offset",
        "reflects_pk_names",
        "regexp_match",
        "regexp_replace",
        "schema_reflection",
        "schemas",
        "sequences",
        "sequences_optional",
        "server_side_cursors",
        "sql_expression_limit_offset",
        "table_ddl_if_exists",
        "table_value_constructor",
        "temp_table_reflection",
        "temporary_tables",
        "tuple_in",
        "tuple_in_w_empty",
        "update_from",
        "update_returning",
        "views",
        "window_functions",
    }
)


class Requirements(SuiteRequirements):
    """The requirements of a dialect outside of SQLAlchemy, which close what a database may lack."""

    def __getattribute__(self, name: str) -> Any:
        return exclusions.open() if name in OPEN else super().__getattribute__(name)

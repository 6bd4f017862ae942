"""The backend's classes, by the names by which Django looks for them."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base, features, operations

ADDRESSES = ("GenericIPAddressField", "IPAddressField")


class DatabaseFeatures(features.DatabaseFeatures):
    """PostgreSQL's features without savepoints: a TestCase rolls back one transaction for each test.

    The names of collations are DuckDB's own.
    """

    uses_savepoints = False
    supports_partial_indexes = False
    supports_nulls_distinct_unique_constraints = False
    test_collations = features.BaseDatabaseFeatures.test_collations


class DatabaseOperations(operations.DatabaseOperations):
    """Addresses are text, as in Django's backends for databases without inet."""

    def adapt_ipaddressfield_value(self, value: str | None) -> str | None:
        """An address as a parameter."""
        return value or None

    def lookup_cast(self, lookup_type: str, internal_type: str | None = None) -> Any:
        """The form of a column in a lookup."""
        text = "CharField" if internal_type in ADDRESSES else internal_type
        return super().lookup_cast(lookup_type, text)


class DatabaseWrapper(base.DatabaseWrapper):
    """The connection with these features."""

    data_types = base.DatabaseWrapper.data_types | dict.fromkeys(ADDRESSES, "varchar(39)")
    features_class = DatabaseFeatures
    ops_class = DatabaseOperations

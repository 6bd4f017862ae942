"""The relations of information_schema that have rows, as system_views.py has those of pg_catalog."""

from __future__ import annotations

from .system_views import Branch

INFORMATION_VIEWS: dict[str, list[Branch]] = {}

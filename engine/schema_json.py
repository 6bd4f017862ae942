"""A table's columns as JSON: what a schema event says of them, and what is kept of an earlier version.

Source: docs/schema_changes.md; docs/design/schema_changes.md, "The shape".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from .quoting import shown_name
from .table import Column, TableShape


def shown_table(shape: TableShape) -> str:
    """A table's name with its schema, as a user would write it."""
    return f"{shown_name(shape.schema)}.{shown_name(shape.name)}"


def columns_told(shape: TableShape, carried: Collection[str]) -> list[dict[str, Any]]:
    """The columns that a stream carries, in the table's order.

    Args:
        carried: their names.
    """
    return [
        {
            "name": column.name,
            "type": column.type,
            "not_null": column.not_null,
            **({} if column.default is None else {"default": column.default}),
        }
        for column in shape.stored
        if column.name in carried
    ]


def schema_json(shape: TableShape, carried: Collection[str]) -> str:
    """`after` of a schema event of a stream that carries these columns."""
    told = {
        "table": shown_table(shape),
        "primary_key": list(shape.primary_key),
        "columns": columns_told(shape, carried),
    }
    return json.dumps(told, ensure_ascii=False)


def version_json(
    shape: TableShape, ids: Sequence[int], carried: Sequence[tuple[int, Sequence[int]]]
) -> str:
    """A version's shape with the numbers of its columns, and of those that streams carry, to be kept."""
    return json.dumps({**asdict(shape), "ids": ids, "carried": carried}, ensure_ascii=False)


def version_of(text: str) -> tuple[TableShape, tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]]:
    """What `version_json` gave this text of."""
    kept = json.loads(text)
    shape = TableShape(
        schema=kept["schema"],
        name=kept["name"],
        stored=tuple(Column(**column) for column in kept["stored"]),
        generated=tuple((name, type_, text) for name, type_, text in kept["generated"]),
        column_order=tuple(kept["column_order"]),
        primary_key=tuple(kept["primary_key"]),
        unique=tuple(tuple(names) for names in kept["unique"]),
        unique_expressions=kept["unique_expressions"],
    )
    carried = tuple((stream_id, tuple(ids)) for stream_id, ids in kept["carried"])
    return shape, tuple(kept["ids"]), carried

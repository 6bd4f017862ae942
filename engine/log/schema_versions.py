"""A table's columns as JSON: what a schema event says of them, and what is kept of an earlier version.

Source: docs/schema_changes.md; docs/design/schema_changes.md, "The shape".
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, NamedTuple

from ..duck.table_shape import Column, TableShape
from ..quoting import shown_name
from ..schema import SCHEMA as OURS


def shown_table(shape: TableShape) -> str:
    """A table's name with its schema, as a user would write it; of a dropped one that which it had."""
    if shape.schema == OURS:
        return shape.name.partition(" ")[2]
    return f"{shown_name(shape.schema)}.{shown_name(shape.name)}"


def dropped_name(table_id: int, shape: TableShape) -> str:
    """The name, in our schema, of the table that stands in the place of a dropped one."""
    return f"{table_id} {shown_table(shape)}"


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


def schema_json(shape: TableShape, carried: Collection[str], renamed_from: str | None) -> str:
    """`after` of a schema event of a stream that carries these columns.

    Args:
        renamed_from: the table's name before, where it had another.
    """
    if shape.schema == OURS:
        return json.dumps({"table": shown_table(shape), "dropped": True}, ensure_ascii=False)
    told = {
        "table": shown_table(shape),
        **({} if renamed_from is None else {"renamed_from": renamed_from}),
        "primary_key": list(shape.primary_key),
        "columns": columns_told(shape, carried),
    }
    return json.dumps(told, ensure_ascii=False)


class KeptVersion(NamedTuple):
    """A version as it is kept: its shape, and what else a `TableVersion` has under these names."""

    shape: TableShape
    ids: tuple[int, ...]
    carried: tuple[tuple[int, tuple[int, ...]], ...] = ()
    txid: int = 0
    renamed_from: str | None = None


def version_json(version: KeptVersion) -> str:
    """The text of a version that is to be kept."""
    rest = {name: value for name, value in version._asdict().items() if name != "shape"}
    return json.dumps({**asdict(version.shape), **rest}, ensure_ascii=False)


def version_of(text: str) -> KeptVersion:
    """The version of which `version_json` gave this text; an old one may have no txid and no name before."""
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
    return KeptVersion(shape, tuple(kept["ids"]), carried, kept.get("txid", 0), kept.get("renamed_from"))

"""A table's columns as JSON: what a schema event says of them, and what is kept of an earlier version.

Source: docs/schema_changes.md; docs/design/schema_changes.md, "The shape".
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, NamedTuple

from ..quoting import shown_name
from ..schema import SCHEMA as OURS
from ..table import Column, TableShape


def shown_table(shape: TableShape) -> str:
    """A table's name with its schema, as a user would write it; of a dropped one that which it had."""
    if shape.schema == OURS:
        return shape.name.partition(" ")[2]
    return f"{shown_name(shape.schema)}.{shown_name(shape.name)}"


def dropped_name(table_id: int, shape: TableShape) -> str:
    """What stands in the place of a dropped table is called so, in our schema."""
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


def schema_json(shape: TableShape, carried: Collection[str]) -> str:
    """`after` of a schema event of a stream that carries these columns."""
    if shape.schema == OURS:
        return json.dumps({"table": shown_table(shape), "dropped": True}, ensure_ascii=False)
    told = {
        "table": shown_table(shape),
        "primary_key": list(shape.primary_key),
        "columns": columns_told(shape, carried),
    }
    return json.dumps(told, ensure_ascii=False)


class KeptVersion(NamedTuple):
    """A version as it is kept: its shape, and `ids`, `carried` and `txid` of a `TableVersion`."""

    shape: TableShape
    ids: tuple[int, ...]
    carried: tuple[tuple[int, tuple[int, ...]], ...] = ()
    txid: int = 0


def version_json(version: KeptVersion) -> str:
    """The text of a version that is to be kept."""
    rest = {"ids": version.ids, "carried": version.carried, "txid": version.txid}
    return json.dumps({**asdict(version.shape), **rest}, ensure_ascii=False)


def version_of(text: str) -> KeptVersion:
    """What `version_json` gave this text of; from before there was a txid in it, it was no other's."""
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
    return KeptVersion(shape, tuple(kept["ids"]), carried, kept.get("txid", 0))

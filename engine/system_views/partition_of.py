"""`ducktail.partition_of('s', key...)`: the partition of a key, without reading the stream.

A macro passes the stream's name, the values as texts and their types to a function of the engine, which
returns the partition or an error text. For a stream each value is cast to the type of its partition column;
for a topic it keeps its type. Source: docs/sql.md, "partition_of".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import duckdb

from ..catalog.catalog import Catalog
from ..catalog.rights import Rights, relation
from ..catalog.streams import Stream, key_of
from ..duck.cursors import ask
from ..duck.duckdb_errors import translated
from ..errors import DucktailError, InvalidParameterValue
from ..log.topic_rows import key_hash_sql
from ..partitioning import hash_of, hash_sql
from ..schema import WRONG
from ..values.duckdb_types import INTEGERS, read_type

_DEFAULT_SCHEMA = "main"
# A part of a name, quoted or not, up to the point or end behind it.
_PART = re.compile(r'(?:^|(?<=\.))(?:"((?:[^"]|"")*)"|([^.]*))(?=\.|$)', re.DOTALL)
_INTEGER = re.compile(r"-?\d{1,18}")


class PartitionOf:
    """The function behind the macro.

    Args:
        catalog, rights: return the present catalog and rights.
        cursor: returns a new cursor of the engine, in UTC.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        rights: Callable[[], Rights],
        cursor: Callable[[], duckdb.DuckDBPyConnection],
    ) -> None:
        self._catalog = catalog
        self._rights = rights
        self._cursor = cursor

    def __call__(
        self,
        name: str | None,
        schema: str,
        types: Sequence[str],
        texts: Sequence[str | None],
        account: str | None,
    ) -> str | None:
        """The partition as text, or WRONG and the error."""
        if name is None:
            return None
        try:
            stream = self._find(name, schema, account)
            if stream is None:
                return f'{WRONG}stream "{".".join(parts_of(name))}" does not exist'
            found = self._partition(stream, types, texts)
        except (DucktailError, duckdb.Error) as error:
            return f"{WRONG}partition_of: {translated(error).message}"
        return None if found is None else str(found)

    def _find(self, name: str, schema: str, account: str | None) -> Stream | None:
        streams = self._catalog().streams
        parts = key_of(*parts_of(name))
        keys = [parts] if len(parts) == 2 else [(*key_of(schema), *parts), (_DEFAULT_SCHEMA, *parts)]
        found = next((streams[key] for key in keys if key in streams), None)
        if found is None or account is None:
            return found
        rights = self._rights()
        user = rights.users.get(account)
        told = user is not None and (user.superuser or rights.sees(account, relation(*found.key)))
        return found if told else None

    def _partition(self, stream: Stream, types: Sequence[str], texts: Sequence[str | None]) -> int | None:
        wanted = list(types)
        by: tuple[str, ...] = ()
        if not stream.topic:
            by, wanted = self._columns(stream, len(texts))
        if len(texts) != (1 if stream.topic else len(wanted)):
            told = "a key" if stream.topic else f"({', '.join(by)})" if by else "other columns"
            raise InvalidParameterValue(f'{stream.kind} "{stream.name}" is partitioned by {told}')
        if stream.topic and texts[0] is None:
            return None  # Events without a key are distributed in turn.
        return self._hash(stream, wanted, texts) % stream.partitions

    def _columns(self, stream: Stream, count: int) -> tuple[tuple[str, ...], list[str]]:
        """Names and types of the partition columns of a stream on tables.

        For several tables with their own keys, those with `count` columns must have the same types.
        """
        found: dict[tuple[str, ...], tuple[str, ...]] = {}
        for captured in self._catalog().tables_of(stream):
            by = captured.part_of(stream).partition_by
            columns = {column.name: column.type for column in captured.shape.stored}
            types = tuple(columns[name] for name in by)
            if by and not captured.ours and (len(types) == count or stream.several is None):
                found[types] = by
        if len(found) > 1:
            raise InvalidParameterValue(
                f'the tables of stream "{stream.name}" have keys of different types: '
                + " and ".join(f"({', '.join(types)})" for types in sorted(found))
            )
        types, by = next(iter(found.items()), ((), ()))
        return by, list(types)

    def _hash(self, stream: Stream, types: Sequence[str], texts: Sequence[str | None]) -> int:
        pairs = list(zip(types, texts, strict=True))
        if all(_is_plain(read_type(type_).name, text) for type_, text in pairs):
            return hash_of(texts, types)
        values = [f"(${n}::{type_})" for n, type_ in enumerate(types, 1)]
        sql = hash_sql(list(zip(values, types, strict=True)))
        if stream.topic:
            sql = key_hash_sql(values[0], types[0])
        cursor = self._cursor()
        try:
            return int(ask(cursor, f"SELECT {sql}", list(texts))[0])
        finally:
            cursor.close()


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name in SQL; an unquoted part may have any character except a point.

    >>> parts_of('s."a.b ""c"" d"')
    ('s', 'a.b "c" d')
    """
    parts = (match.groups() for match in _PART.finditer(name))
    return tuple(plain if quoted is None else quoted.replace('""', '"') for quoted, plain in parts)


def _is_plain(type_: str, text: str | None) -> bool:
    """True if `hash_of` accepts a text as the value of its type."""
    if text is None or type_ == "VARCHAR":
        return True
    return type_ in INTEGERS and _INTEGER.fullmatch(text) is not None

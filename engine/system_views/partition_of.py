"""`ducktail.partition_of('s', key...)`: the partition of a key, without a look into the stream.

A macro gives a function of the engine's own the stream's name, the values as texts and their types; what
it answers is the partition, or why there is none. Of a stream each value is taken as its partition column's
type, of a topic as what it is. Source: docs/sql.md, "partition_of".
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
# A part of a name, quoted or not, up to the point or the end behind it.
_PART = re.compile(r'(?:^|(?<=\.))(?:"((?:[^"]|"")*)"|([^.]*))(?=\.|$)', re.DOTALL)
_INTEGER = re.compile(r"-?\d{1,18}")


class PartitionOf:
    """The function behind the macro.

    Args:
        catalog, rights: give what there is now.
        cursor: makes a cursor of the engine's own, in UTC.
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
        """The partition as text, or WRONG and what is wrong."""
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
            return None  # Without a key it goes round.
        return self._hash(stream, wanted, texts) % stream.partitions

    def _columns(self, stream: Stream, count: int) -> tuple[tuple[str, ...], list[str]]:
        """Names and types of the columns that a stream on tables is partitioned by.

        Of several tables with keys of their own those with so many columns must be of the same types.
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
    """The parts of a name as SQL writes it; what is not quoted may have any character but a point.

    >>> parts_of('s."a.b ""c"" d"')
    ('s', 'a.b "c" d')
    """
    parts = (match.groups() for match in _PART.finditer(name))
    return tuple(plain if quoted is None else quoted.replace('""', '"') for quoted, plain in parts)


def _is_plain(type_: str, text: str | None) -> bool:
    """True if a text is the value of its type as `hash_of` takes it."""
    if text is None or type_ == "VARCHAR":
        return True
    return type_ in INTEGERS and _INTEGER.fullmatch(text) is not None

"""Single events without a query: payload, key and headers from Python values, as `topic_rows` makes them.

Planning the INSERT that does it in SQL takes ten times as long as running it. Texts, bytes, whole numbers and
NULL, of ordinary size, come out the same here; anything else is left to SQL (None). What may not differ is
held against each other in tests/property/test_topic_values.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..partitioning import hash_of
from ..quoting import literal
from ..streams.captured import TopicLog
from ..streams.streams import Stream
from ..values.json_images import ESCAPES
from .topic_rows import ENCODING, HEADERS, KEY, PAYLOAD

# Longer texts are left to SQL, which also tells what is too long.
CHARS_MAX = 32_768
_BLANKS = " \t\n\r"
_NO_JSON = object()


@dataclass(frozen=True, slots=True)
class Single:
    """One event, ready for the log.

    Args:
        key_hash: its key's partition hash; None without a key.
    """

    topic: Stream
    payload: str | None
    key: str | None
    key_hash: int | None
    headers: str | None

    def sql(self, base_lsn: int, txid: int, turn: int, producer: tuple[str, int] | None, told: bool) -> str:
        """The INSERT; arguments as of `topic_rows.Publication.sql`."""
        partition = self.partition(turn)
        name, sequence = ("NULL", "NULL") if producer is None else (literal(producer[0]), str(producer[1]))
        texts = ", ".join("NULL" if x is None else literal(x) for x in (self.key, self.payload, self.headers))
        returning = " RETURNING partition, lsn" if told else ""
        return (
            f"INSERT INTO {TopicLog(self.topic).log} VALUES "
            f"({base_lsn + 1}, {txid}, {partition}, {texts}, {name}, {sequence}){returning}"
        )

    def table(self) -> pa.Table:
        """It as a table of one row: n, partition_hash, key, payload, headers."""
        names = ("n", "partition_hash", "key", "payload", "headers")
        values = (1, self.key_hash, self.key, self.payload, self.headers)
        types = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())
        columns = zip(names, values, types, strict=True)
        return pa.table({name: pa.array([value], type_) for name, value, type_ in columns})

    def partition(self, turn: int) -> int:
        """Where it goes."""
        return (turn if self.key_hash is None else self.key_hash) % self.topic.partitions


def single(topic: Stream, values: Mapping[str, object], types: Mapping[str, str]) -> Single | None:
    """The event of these values, where it is made here.

    Args:
        values, types: by column name; "" is the type of a NULL.
    """
    headers = _headers(values.get(HEADERS), types.get(HEADERS, ""))
    key = _key(values.get(KEY), types.get(KEY, ""))
    payload = _payload(values.get(PAYLOAD), types.get(PAYLOAD, ""))
    if headers is _NO_JSON or key is None or payload is None:
        return None
    text, encoding = payload
    if encoding is not None:
        if headers is not None:
            return None
        headers = f'{{"{ENCODING}":"{encoding}"}}'
    assert headers is None or isinstance(headers, str)
    return Single(topic, text, *key, headers)


def _is_text(value: object, type_: str, types: Sequence[str]) -> bool:
    return isinstance(value, str) and type_ in types and len(value) <= CHARS_MAX and "\0" not in value


def _json_string(text: str) -> str:
    return f'"{text.translate(ESCAPES)}"'


def _read(text: str) -> object:
    """What a JSON text holds; _NO_JSON where it is none.

    Raises:
        ValueError: it may be JSON to one reader and none to another.
    """
    if "\\u" in text:
        raise ValueError("surrogates")
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=str, parse_float=str)
    except json.JSONDecodeError:
        return _NO_JSON


def _refuse(_: str) -> object:
    raise ValueError("NaN or Infinity")


def _payload(value: object, type_: str) -> tuple[str | None, str | None] | None:
    """The payload's JSON, and what its headers must say of it; None where it is left to SQL."""
    if value is None:
        return None, None
    if isinstance(value, bytes) and type_ == "BLOB" and len(value) <= CHARS_MAX:
        return f'"{base64.b64encode(value).decode()}"', "base64"
    if not _is_text(value, type_, ("VARCHAR",)):
        return None
    assert isinstance(value, str)
    try:
        found = _read(value)
    except (ValueError, RecursionError):
        return None
    if found is _NO_JSON:
        return _json_string(value), None
    return value, "json" if value.lstrip(_BLANKS).startswith('"') else None


def _key(value: object, type_: str) -> tuple[str | None, int | None] | None:
    """The key's JSON and its partition hash; None where it is left to SQL."""
    if value is None:
        return None, None
    if _is_text(value, type_, ("VARCHAR",)):
        return _json_string(str(value)), hash_of([value], ["VARCHAR"])
    if type(value) is int and type_ == "BIGINT":
        return str(value), hash_of([value], ["BIGINT"])
    return None


def _headers(value: object, type_: str) -> object:
    """The headers as text; _NO_JSON where they are left to SQL, which tells what is wrong with them."""
    if value is None:
        return None
    if not _is_text(value, type_, ("VARCHAR", "JSON")):
        return _NO_JSON
    assert isinstance(value, str)
    try:
        found = _read(value)
    except (ValueError, RecursionError):
        return _NO_JSON
    return value if isinstance(found, dict) else _NO_JSON

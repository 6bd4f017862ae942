"""Published events as rows of a topic's log: from a query, in SQL, and from single Python values.

    lsn, txid, partition, key JSON, payload JSON, headers JSON, producer, sequence

A payload is stored as JSON in the log and returned in its original form. `payload_encoding` is a member of
the event's headers, present only where the payload's JSON alone is ambiguous:

    given                           stored                  payload_encoding
    text that is JSON, JSON         the text, unchanged     none; 'json' for a text that is a JSON string
    other text                      a JSON string           none
    bytes                           base64, a JSON string   'base64'
    any other type                  its JSON, as in `after` of a table's event (values/json_images.py)
    NULL                            NULL: a tombstone

A key's partition is that of its value (`partitioning.py`); a JSON key that is a string, a whole number or a
boolean counts as that value, so that events with equal keys are always in one partition. Events without a key
are distributed in turn.

`single` makes the row of one event from Python values, because planning the INSERT in SQL takes ten times as
long as running it. Texts, bytes, integers and NULL, of ordinary size, yield the same row as SQL; any other
value is left to SQL (None). tests/property/test_topic_values.py compares the two. Source: docs/topics.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..catalog.captured_tables import TopicLog
from ..catalog.streams import Stream
from ..errors import (
    DucktailError,
    InvalidParameterValue,
    InvalidTextRepresentation,
    NotSupported,
    ProgramLimitExceeded,
)
from ..partitioning import check_type, hash_of, hash_sql
from ..quoting import literal
from ..values.duckdb_types import read_type
from ..values.json_images import ESCAPES, lenient_sql, value_sql

PAYLOAD, KEY, HEADERS = COLUMNS = ("payload", "key", "headers")

# An event is held in memory several times: as the log's row, as Arrow, as the ready row.
PAYLOAD_BYTES_MAX = 16 << 20
# A key is stored in every event and hashed; longer keys are not expected.
KEY_BYTES_MAX = 64 << 10
HEADERS_BYTES_MAX = 64 << 10

# Member of headers with the original form of the payload.
ENCODING = "payload_encoding"

# A failed check is an error() with this prefix, followed by its position in _CHECKS.
_MARK = "__ducktail_topic:"
_CHECKS: tuple[DucktailError, ...] = (
    ProgramLimitExceeded(
        f"the payload is larger than {PAYLOAD_BYTES_MAX} bytes",
        hint="Publish where it is kept, and not the thing itself.",
    ),
    ProgramLimitExceeded(f"the key is larger than {KEY_BYTES_MAX} bytes"),
    ProgramLimitExceeded(f"the headers are larger than {HEADERS_BYTES_MAX} bytes"),
    InvalidTextRepresentation("the headers are not valid JSON"),
    InvalidParameterValue("the headers are not a JSON object", hint='Write them as \'{"name": "value"}\'.'),
)
_PAYLOAD_BYTES, _KEY_BYTES, _HEADERS_BYTES, _HEADERS_JSON, _HEADERS_OBJECT = range(len(_CHECKS))
_BLANKS = "e' \\t\\n\\r'"
# Longer texts are left to SQL, which also reports texts that are too long.
CHARS_MAX = 32_768
_JSON_BLANKS = " \t\n\r"
_NO_JSON = object()


def create_topic_log_sql(topic: Stream) -> str:
    """The DDL of a topic's log."""
    return (
        f"CREATE TABLE {TopicLog(topic).log} (lsn BIGINT, txid BIGINT, partition INTEGER, "
        "key JSON, payload JSON, headers JSON, producer VARCHAR, sequence BIGINT)"
    )


def check_error(text: str) -> DucktailError | None:
    """The error of a failed check in a message of DuckDB, or None."""
    at = text.find(_MARK)
    if at < 0:
        return None
    error = _CHECKS[int(text[at + len(_MARK)])]
    return type(error)(error.message, hint=error.hint)


def _failed(check: int) -> str:
    return f"error('{_MARK}{check}')"


@dataclass(frozen=True, slots=True)
class Rows:
    """A query whose rows are published.

    Args:
        query: the text of the query.
        columns: the role of each column (one of COLUMNS, None for an ignored column), with its DuckDB type.
    """

    query: str
    columns: Sequence[tuple[str | None, str]]

    def __post_init__(self) -> None:
        named = [name for name, _ in self.columns if name is not None]
        assert PAYLOAD in named and len(set(named)) == len(named) and set(named) <= set(COLUMNS)


@dataclass(frozen=True, slots=True)
class Publication:
    """The INSERT of rows into a topic's log, without its numbers.

    Args:
        body: the rows in the log's form: n (from 1), partition_hash, key, payload, headers.
    """

    topic: Stream
    body: str

    def sql(self, base_lsn: int, txid: int, turn: int, producer: tuple[str, int] | None, told: bool) -> str:
        """The text of the INSERT statement.

        Args:
            base_lsn: the LSN before its first event.
            turn: the partition, modulo their number, of its first event without a key.
            producer: the producer's name and its sequence number.
            told: True to return partition and LSN of each row, in order; else the number of rows.
        """
        partitions = self.topic.partitions
        partition = "0"
        if partitions > 1:
            partition = f"(coalesce(partition_hash::BIGINT, n - 1 + {turn}) % {partitions})::INTEGER"
        name, sequence = ("NULL", "NULL") if producer is None else (literal(producer[0]), str(producer[1]))
        returning = " RETURNING partition, lsn" if told else ""
        return (
            f"INSERT INTO {TopicLog(self.topic).log} SELECT {base_lsn} + n, {txid}, {partition}, key, "
            f"payload, headers, {name}, {sequence} FROM ({self.body}\n){returning}"
        )


def publication(topic: Stream, rows: Rows) -> Publication:
    """The INSERT of a query's rows into a topic's log.

    Raises:
        NotSupported: the key's type has no stable text.
    """
    names = [f"c{place}" for place in range(len(rows.columns))]
    found = {name: (c, type_) for c, (name, type_) in zip(names, rows.columns, strict=True) if name}
    payload, encoding = _payload(*found[PAYLOAD])
    key, key_hash = _key(*found[KEY]) if KEY in found else ("NULL::JSON", "NULL::UINTEGER")
    headers = _headers(*found[HEADERS]) if HEADERS in found else "NULL::VARCHAR"
    inner = (
        f"SELECT row_number() OVER () AS n, {key_hash} AS partition_hash, {key} AS key, "
        f"{payload} AS payload, {headers} AS headers, {encoding} AS encoding "
        f"FROM ({rows.query}\n) AS q({', '.join(names)})"
    )
    body = (
        "SELECT n, partition_hash, "
        f"{_bounded('key', KEY_BYTES_MAX, _KEY_BYTES)} AS key, "
        f"{_bounded('payload', PAYLOAD_BYTES_MAX, _PAYLOAD_BYTES)} AS payload, "
        f"{_bounded(_encoded_headers(encoding), HEADERS_BYTES_MAX, _HEADERS_BYTES)}::JSON AS headers "
        f"FROM ({inner})"
    )
    return Publication(topic, body)


def _bounded(x: str, bytes_max: int, check: int) -> str:
    return f"CASE WHEN strlen({x}) > {bytes_max} THEN {_failed(check)} ELSE {x} END"


def _payload(x: str, type_: str) -> tuple[str, str]:
    """SQL of a payload's JSON, and of its encoding for the headers (NULL for none)."""
    kind = read_type(type_).name
    if kind == "BLOB":
        return f"to_json(to_base64({x}))", f"CASE WHEN {x} IS NOT NULL THEN 'base64' END"
    if kind == "VARCHAR":
        valid = f"(json_valid({x}) AND NOT {lenient_sql(x)})"
        is_string = f"(ltrim({x}, {_BLANKS})[1] = '\"' AND {valid})"
        return (
            f"CASE WHEN {valid} THEN {x}::JSON ELSE to_json({x}) END",
            f"CASE WHEN {is_string} THEN 'json' END",
        )
    return value_sql(x, type_), "NULL::VARCHAR"


def _key(x: str, type_: str) -> tuple[str, str]:
    """SQL of a key's JSON, and of its partition hash; both NULL if the key is NULL."""
    try:
        check_type(type_)
    except NotSupported:
        raise NotSupported(
            f"type {type_[:100]} cannot be a key",
            hint="Publish it as text or as JSON: KEY x::VARCHAR, KEY to_json(x).",
        ) from None
    value = value_sql(x, type_)
    if read_type(type_).name == "JSON":
        # One spelling for each value, so that keys can be compared by their text.
        value = f"CASE WHEN {_is_plain_json(x)} THEN json({x}) ELSE {value} END"
    return value, f"CASE WHEN {x} IS NOT NULL THEN {key_hash_sql(x, type_)} END"


def key_hash_sql(x: str, type_: str) -> str:
    """SQL of the partition hash of a topic's key, type UINTEGER."""
    plain = hash_sql([(x, type_)])
    if read_type(type_).name != "JSON":
        return plain
    return (
        f"CASE WHEN {_is_plain_json(x)} "
        f"THEN ('0x' || left(sha1('[' || json({x}) || ']'), 8))::UINTEGER ELSE {plain} END"
    )


def _is_plain_json(x: str) -> str:
    """SQL boolean: a JSON key that counts as its plain value."""
    # DuckDB's JSON treats an integer of more than 64 bits as a DOUBLE; here its digits are kept.
    wide = f"regexp_full_match(json({x})::VARCHAR, '-?[0-9]+')"
    return f"(json_type({x}) IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'BOOLEAN') OR {wide})"


def _headers(x: str, type_: str) -> str:
    """SQL of headers as text, a JSON object."""
    if read_type(type_).name == "VARCHAR":
        text = (
            f"CASE WHEN json_valid({x}) AND NOT {lenient_sql(x)} THEN {x} ELSE {_failed(_HEADERS_JSON)} END"
        )
    else:
        text = f"{value_sql(x, type_)}::VARCHAR"
    return (
        f"CASE WHEN {x} IS NULL THEN NULL WHEN json_type({text}) = 'OBJECT' THEN {text} "
        f"ELSE {_failed(_HEADERS_OBJECT)} END"
    )


def _encoded_headers(encoding: str) -> str:
    """SQL of the headers with the payload's encoding."""
    if encoding.startswith("NULL"):
        return "headers"
    return f"CASE WHEN encoding IS NULL THEN headers ELSE {with_members({ENCODING: 'to_json(encoding)'})} END"


def with_members(members: Mapping[str, str], headers: str = "headers") -> str:
    """SQL of headers (text of a JSON object, or NULL) with members of our own before theirs.

    A publisher's member of the same name is dropped.

    Args:
        members: name -> SQL of its JSON text, not NULL.
    """
    ours = " || ',' || ".join(f"'\"{name}\":' || {value}" for name, value in members.items())
    names = ", ".join(f"'{name}'" for name in members)
    gone = "{" + ",".join(f'"{name}":null' for name in members) + "}"
    theirs = (
        f"CASE WHEN list_has_any(json_keys({headers}), [{names}]) "
        f"THEN json_merge_patch({headers}, '{gone}')::VARCHAR ELSE {headers}::VARCHAR END"
    )
    # Their text stays unchanged except for its first bracket.
    rest = f"ltrim(substr(ltrim({theirs}, {_BLANKS}), 2), {_BLANKS})"
    return (
        f"'{{' || {ours} || CASE WHEN {headers} IS NULL THEN '}}' WHEN {rest}[1] = '}}' THEN '}}' "
        f"ELSE ',' || {rest} END"
    )


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
        """The text of the INSERT; arguments as in `Publication.sql`."""
        partition = self.partition(turn)
        name, sequence = ("NULL", "NULL") if producer is None else (literal(producer[0]), str(producer[1]))
        texts = ", ".join("NULL" if x is None else literal(x) for x in (self.key, self.payload, self.headers))
        returning = " RETURNING partition, lsn" if told else ""
        return (
            f"INSERT INTO {TopicLog(self.topic).log} VALUES "
            f"({base_lsn + 1}, {txid}, {partition}, {texts}, {name}, {sequence}){returning}"
        )

    def table(self) -> pa.Table:
        """The event as a table of one row: n, partition_hash, key, payload, headers."""
        names = ("n", "partition_hash", "key", "payload", "headers")
        values = (1, self.key_hash, self.key, self.payload, self.headers)
        types = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())
        columns = zip(names, values, types, strict=True)
        return pa.table({name: pa.array([value], type_) for name, value, type_ in columns})

    def partition(self, turn: int) -> int:
        """The partition of its event."""
        return (turn if self.key_hash is None else self.key_hash) % self.topic.partitions


def single(topic: Stream, values: Mapping[str, object], types: Mapping[str, str]) -> Single | None:
    """The event of these values, or None if it is left to SQL.

    Args:
        values, types: by column name; "" is the type of a NULL.
    """
    headers = _single_headers(values.get(HEADERS), types.get(HEADERS, ""))
    key = _single_key(values.get(KEY), types.get(KEY, ""))
    payload = _single_payload(values.get(PAYLOAD), types.get(PAYLOAD, ""))
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
    """The value of a JSON text; _NO_JSON for other text."""
    if "\\u" in text:
        raise ValueError("surrogates")
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=str, parse_float=str)
    except json.JSONDecodeError:
        return _NO_JSON


def _refuse(_: str) -> object:
    raise ValueError("NaN or Infinity")


def _single_payload(value: object, type_: str) -> tuple[str | None, str | None] | None:
    """The payload's JSON, and its encoding for the headers; None if it is left to SQL."""
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
    return value, "json" if value.lstrip(_JSON_BLANKS).startswith('"') else None


def _single_key(value: object, type_: str) -> tuple[str | None, int | None] | None:
    """The key's JSON and its partition hash; None if it is left to SQL."""
    if value is None:
        return None, None
    if _is_text(value, type_, ("VARCHAR",)):
        return _json_string(str(value)), hash_of([value], ["VARCHAR"])
    if type(value) is int and type_ == "BIGINT":
        return str(value), hash_of([value], ["BIGINT"])
    return None


def _single_headers(value: object, type_: str) -> object:
    """The headers as text; _NO_JSON if they are left to SQL, which reports the error."""
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

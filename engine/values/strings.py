"""Text, bytea, uuid, bit and json in PostgreSQL's text and binary forms, and the errors of bad input.

Source: docs/design/values.md; PostgreSQL's src/backend/utils/adt, functions `*_in`, `*_recv`, `*_send`.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import Value
from duckdb.sqltypes import DuckDBPyType

from ..errors import CharacterNotInRepertoire, InvalidTextRepresentation, NotSupported
from . import arrow_values as av

BLANKS = " \t\n\r\v\f"
# Bytes of a BLOB column that are converted to hex at once: twice as many must be counted in 32 bits.
BLOB_HEX_BYTES_MAX = 2**30 - 1
# Size of a length word.
LENGTH_BYTES = 4
# Number of type objects cached; the values here use seven.
CLIENT_TYPES_CACHED = 64
# jsonb's only version, the first byte of its binary form.
JSONB_PREFIX = b"\1"
HEX_RE = re.compile(r"\\x((?:\s*+[0-9a-fA-F]{2})*+)\s*+", re.ASCII)
ESCAPED_RE = re.compile(r"\\(?:(\\)|([0-3][0-7]{2}))|([^\\]+)", re.DOTALL)
UUID_RE = re.compile(r"\{?([0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7})\}?", re.ASCII)


def typed(value: object, type_: str) -> Value:
    """A parameter that DuckDB casts to this type."""
    return Value(value, client_type(type_))


@lru_cache(CLIENT_TYPES_CACHED)
def client_type(type_: str) -> DuckDBPyType:
    """The type object of DuckDB's Python client."""
    return DuckDBPyType(type_)


def invalid_syntax(text: str, type_: str) -> InvalidTextRepresentation:
    """The error for a text that is invalid for the type, in PostgreSQL's wording."""
    return InvalidTextRepresentation(f'invalid input syntax for type {type_}: "{text[:100]}"')


def utf8(raw: bytes) -> str:
    """The text of UTF-8 bytes; a zero byte is refused, as in PostgreSQL."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8"') from error
    if "\0" in text:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8": 0x00')
    return text


# The text of a value and of a column.


def blob_text(value: av.Raw) -> str:
    """The text of a BLOB in bytea's hex format."""
    return "\\x" + bytes(value).hex()


def string_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of a column, unchanged."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def blob_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of a column of BLOBs in bytea's hex format."""
    column = column.cast(pa.binary())
    if not len(column) or column.buffers()[2] is None:
        return None
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    first, last = int(bounds[0]), int(bounds[-1])
    if last - first > BLOB_HEX_BYTES_MAX:
        return None
    digits = memoryview(column.buffers()[2])[first:last].hex().encode()
    doubled = pa.py_buffer(((bounds - first) * 2).astype(np.int32))
    texts = pa.Array.from_buffers(pa.string(), len(column), [None, doubled, pa.py_buffer(digits)])
    texts = pc.binary_join_element_wise("\\x", texts, "")
    return pc.if_else(pc.is_valid(column), texts, None) if column.null_count else texts


# The binary form of a value.


def string_binary(value: av.Raw) -> bytes:
    """The UTF-8 bytes of a text or json value."""
    return str(value).encode()


def jsonb_binary(value: av.Raw) -> bytes:
    """A json value as jsonb: the version byte and UTF-8 bytes."""
    return JSONB_PREFIX + str(value).encode()


def uuid_binary(value: av.Raw) -> bytes:
    """The 16 bytes of a UUID."""
    return (value if isinstance(value, uuid.UUID) else uuid.UUID(value)).bytes


def bits_binary(text: av.Raw) -> bytes:
    """The number of bits, then the bits from the left, filled with zeros."""
    size = -(-len(text) // 8)
    bits = int(text.ljust(size * 8, "0"), 2).to_bytes(size, "big") if text else b""
    return struct.pack("!i", len(text)) + bits


def vector_binary(element: int, code: str) -> Callable[[av.Raw], bytes]:
    """The writer of int2vector or oidvector from its text: an array that counts from 0."""
    packer = struct.Struct(code)

    def binary(text: av.Raw) -> bytes:
        items = [int(word) for word in str(text).split()]
        head = struct.pack("!iiIii", 1, 0, element, len(items), 0)
        return head + b"".join(packer.pack(packer.size - LENGTH_BYTES, item) for item in items)

    return binary


def refuse_binary(value: av.Raw) -> bytes:
    """Raise the error for a type whose values are known only as text."""
    raise NotSupported(
        "names of objects (regclass, regtype and the like) have no binary form here",
        hint="Cast the column to oid or to text.",
    )


# A client's text and binary parameters.


def read_bytea(text: str) -> object:
    """Bytes from the hex format or the old escape format."""
    if text.startswith("\\x"):
        found = HEX_RE.fullmatch(text)
        if found is None:
            raise invalid_syntax(text, "bytea")
        return bytes.fromhex(found[1])
    parts = []
    place = 0
    while place < len(text):
        piece = ESCAPED_RE.match(text, place)
        if piece is None:
            raise invalid_syntax(text, "bytea")
        backslash, octal, plain = piece.groups()
        parts.append(b"\\" if backslash else bytes([int(octal, 8)]) if octal else plain.encode())
        place = piece.end()
    return b"".join(parts)


def read_uuid(text: str) -> object:
    """A UUID: 32 hex digits, optional hyphens after any group of four and optional braces."""
    found = UUID_RE.fullmatch(text.strip(BLANKS))
    if found is None:
        raise invalid_syntax(text, "uuid")
    return uuid.UUID(found[1])


def read_bits(text: str) -> object:
    """A bit string of zeros and ones."""
    stripped = text.strip(BLANKS)
    if not stripped or set(stripped) - {"0", "1"}:
        raise invalid_syntax(text, "bit varying")
    return typed(stripped, "BIT")


def read_json(text: str) -> object:
    """JSON.

    DuckDB takes a parameter of type JSON as it is. Any other text stays a text, which DuckDB parses where it
    becomes JSON: a malformed value in a table would make the events of its row unreadable.
    """
    return typed(text, "JSON") if _is_json(text) else text


def _is_json(text: str) -> bool:
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # DuckDB refuses half of a surrogate pair.
    except (ValueError, RecursionError):
        return False
    return True


def receive_json(raw: bytes) -> object:
    """JSON from UTF-8 bytes."""
    return read_json(utf8(raw))


def receive_uuid(raw: bytes) -> object:
    """A UUID from 16 bytes."""
    return uuid.UUID(bytes=raw)


def receive_bits(raw: bytes) -> object:
    """A bit string from its number of bits and the bits from the left."""
    (length,) = struct.unpack_from("!i", raw)
    if length < 1 or len(raw) - 4 != -(-length // 8):
        raise ValueError("bits")
    return typed("".join(f"{byte:08b}" for byte in raw[4:])[:length], "BIT")


def receive_jsonb(raw: bytes) -> object:
    """JSON from jsonb's version byte and UTF-8 bytes."""
    if not raw.startswith(JSONB_PREFIX):
        raise ValueError("version")
    return read_json(utf8(raw[1:]))


def raw_bytes(text: str) -> bytes:
    """The bytes of bytea's hex format."""
    return bytes.fromhex(text[2:])

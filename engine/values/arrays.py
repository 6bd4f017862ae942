"""Arrays in PostgreSQL's text form, {1,"a \\"b\\"",NULL} with braces nested, and in its binary form.

Source: PostgreSQL's documentation, section 8.15.6, "Array Input and Output Syntax"; docs/design/values.md,
"Binary form".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidTextRepresentation

# PostgreSQL's MAXDIM.
DIMENSIONS_MAX = 6
BOUNDS = re.compile(r"\s*(?:\[-?\d+(?::-?\d+)?\])+\s*=", re.ASCII)
BOUND = re.compile(r"\[(?:(-?\d+):)?(-?\d+)\]", re.ASCII)
QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
PLAIN = re.compile(r'[^{},"\\]*+(?:\\.[^{},"\\]*+)*+', re.DOTALL)
# Characters of a long array that are split at a time: no other thread runs meanwhile.
FLAT_CHARS = 256 * 1024
# PostgreSQL's blanks around elements; a space beyond ASCII is part of an element.
BLANK = " \t\n\v\f\r"
BLANKS = re.compile(f"[{BLANK}]*")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# Elements that PostgreSQL puts into quotes.
QUOTED_ELEMENT = r'^$|[{},"\\\s]|^(?i:null)$'
QUOTED_ELEMENT_RE = re.compile(QUOTED_ELEMENT, re.ASCII)
ARRAY_HEAD = struct.Struct("!iii")
ARRAY_DIMENSION = struct.Struct("!ii")
LENGTH = struct.Struct("!i")
NULL_LENGTH = LENGTH.pack(-1)


# Text.


def is_array(text: str) -> bool:
    """True if a text begins as that of an array does, with bounds or without."""
    if text.lstrip().startswith("{"):
        return True
    bounds = BOUNDS.match(text)
    return bounds is not None and text[bounds.end() :].lstrip().startswith("{")


def read_array(text: str, element: Callable[[str], Any]) -> list[Any]:
    """The elements of an array's text, nested lists for more than one dimension.

    Args:
        text: the client's text; bounds before it ([0:1]=) must fit it, and are forgotten.
        element: converts one element's text to a value; not called for NULL.

    Raises:
        InvalidTextRepresentation: the text is malformed.

    >>> read_array('{1,NULL,"3"}', int)
    [1, None, 3]
    """
    bounds = BOUNDS.match(text)
    if bounds is None and _is_flat(text):
        return _flat(text, element)
    reader = _ArrayReader(text, bounds.end() if bounds else 0, element)
    found = reader.array(1)
    if reader.blanks() != len(text) or (bounds and not _fit(bounds[0], found)):
        raise reader.bad()
    return found


def _fit(bounds: str, items: list[Any]) -> bool:
    """True if bounds are those of the elements; the first element of each dimension decides."""
    for lower, upper in BOUND.findall(bounds):
        if not isinstance(items, list) or len(items) != int(upper) - int(lower or 1) + 1:
            return False
        items = items[0] if items else []
    return not isinstance(items, list)


def _is_flat(text: str) -> bool:
    """True if an array's text has only commas and elements without quotes and escapes."""
    inside = text[:1] == "{" and text[-1:] == "}" and text.count("{") == 1 and text.count("}") == 1
    return inside and '"' not in text and "\\" not in text


def _flat(text: str, element: Callable[[str], Any]) -> list[Any]:
    if not text[1:-1].strip(BLANK):
        return []
    found: list[Any] = []
    place, last = 1, len(text) - 1
    while place <= last:
        end = text.find(",", place + FLAT_CHARS, last) if place + FLAT_CHARS < last else last
        end = last if end < 0 else end
        for item in text[place:end].split(","):
            word = item.strip(BLANK)
            if not word:
                raise _malformed(text)
            found.append(None if len(word) == 4 and word.upper() == "NULL" else element(word))
        place = end + 1
    return found


def _malformed(text: str) -> InvalidTextRepresentation:
    return InvalidTextRepresentation(f'malformed array literal: "{text[:100]}"')


class _ArrayReader:
    def __init__(self, text: str, place: int, element: Callable[[str], Any]) -> None:
        self._text = text
        self._place = place
        self._element = element

    def bad(self) -> InvalidTextRepresentation:
        return _malformed(self._text)

    def blanks(self) -> int:
        """Skip blanks; returns the position behind them."""
        match = BLANKS.match(self._text, self._place)
        assert match is not None  # the pattern also matches the empty string
        self._place = match.end()
        return self._place

    def _next(self) -> str:
        place = self.blanks()
        if place >= len(self._text):
            raise self.bad()
        return self._text[place]

    def array(self, depth: int) -> list[Any]:
        """Read one pair of braces."""
        if depth > DIMENSIONS_MAX or self._next() != "{":
            raise self.bad()
        self._place += 1
        found: list[Any] = []
        if self._next() == "}":
            self._place += 1
            return found
        while True:
            found.append(self.array(depth + 1) if self._next() == "{" else self._item())
            mark = self._next()
            self._place += 1
            if mark == "}":
                return found
            if mark != ",":
                raise self.bad()

    def _item(self) -> Any:
        quoted = QUOTED.match(self._text, self._place)
        if quoted:
            self._place = quoted.end()
            return self._element(ESCAPE.sub(r"\1", quoted.group(1)))
        plain = PLAIN.match(self._text, self._place)
        assert plain is not None
        self._place = plain.end()
        text = plain.group().strip(BLANK)
        if not text:
            raise self.bad()
        return None if text.upper() == "NULL" else self._element(ESCAPE.sub(r"\1", text))


def element_text(text: str) -> str:
    """The text of an element inside an array, quoted where it must be."""
    if not QUOTED_ELEMENT_RE.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def array_text(items: Iterable[str | None]) -> str:
    """The text of an array, from the texts of its elements."""
    return f"{{{','.join('NULL' if item is None else element_text(item) for item in items)}}}"


def element_texts(texts: pa.Array) -> pa.Array:
    """The texts of elements inside arrays, quoted where they must be."""
    odd = pc.match_substring_regex(texts, QUOTED_ELEMENT)
    if not pc.any(odd).as_py():
        return texts
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(odd, pc.binary_join_element_wise('"', escaped, '"', ""), texts)


# Binary.


def array_binary(row: list[bytes | None], oid: int) -> bytes:
    """A one-dimensional array in binary form, from its elements' binary forms (None for NULL)."""
    parts = [array_head(len(row), None in row, oid)]
    for item in row:
        parts.append(NULL_LENGTH if item is None else struct.pack("!i", len(item)) + item)
    return b"".join(parts)


def array_head(length: int, nulls: bool, oid: int) -> bytes:
    """The head of a binary array: dimensions, a flag for NULLs, element type, size and lower bound."""
    if not length:
        return struct.pack("!iiI", 0, 0, oid)
    return struct.pack("!iiIii", 1, int(nulls), oid, length, 1)

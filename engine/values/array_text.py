"""PostgreSQL's text form of arrays, read: {1,"a \\"b\\"",NULL} and nested braces.

Source: PostgreSQL's documentation, section 8.15.6, "Array Input and Output Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..errors import InvalidTextRepresentation

# PostgreSQL's MAXDIM.
DIMENSIONS_MAX = 6
BOUNDS = re.compile(r"\s*(?:\[-?\d+(?::-?\d+)?\])+\s*=")
QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
PLAIN = re.compile(r'[^{},"\\]*+(?:\\.[^{},"\\]*+)*+', re.DOTALL)
# Characters of a long array that are cut at a time: no other thread goes on meanwhile.
FLAT_CHARS = 256 * 1024
BLANKS = re.compile(r"\s*")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def read_array(text: str, element: Callable[[str], Any]) -> list[Any]:
    """The elements of an array's text, nested lists for more than one dimension.

    Args:
        text: as a client sends it; a prefix of bounds ([0:1]=) is read over.
        element: makes a value of one element's text; NULL does not reach it.

    Raises:
        InvalidTextRepresentation: malformed (22P02).

    >>> read_array('{1,NULL,"3"}', int)
    [1, None, 3]
    """
    bounds = BOUNDS.match(text)
    if bounds is None and _is_flat(text):
        return _flat(text, element)
    reader = _ArrayReader(text, bounds.end() if bounds else 0, element)
    found = reader.array(1)
    if reader.blanks() != len(text):
        raise reader.bad()
    return found


def _is_flat(text: str) -> bool:
    """Whether all that stands in an array are commas, and elements without quotes and escapes."""
    inside = text[:1] == "{" and text[-1:] == "}" and text.count("{") == 1 and text.count("}") == 1
    return inside and '"' not in text and "\\" not in text


def _flat(text: str, element: Callable[[str], Any]) -> list[Any]:
    if not text[1:-1].strip():
        return []
    found: list[Any] = []
    place, last = 1, len(text) - 1
    while place <= last:
        end = text.find(",", place + FLAT_CHARS, last) if place + FLAT_CHARS < last else last
        end = last if end < 0 else end
        for item in text[place:end].split(","):
            word = item.strip()
            if not word:
                raise _bad(text)
            found.append(None if len(word) == 4 and word.upper() == "NULL" else element(word))
        place = end + 1
    return found


def _bad(text: str) -> InvalidTextRepresentation:
    return InvalidTextRepresentation(f'malformed array literal: "{text[:100]}"')


class _ArrayReader:
    def __init__(self, text: str, place: int, element: Callable[[str], Any]) -> None:
        self._text = text
        self._place = place
        self._element = element

    def bad(self) -> InvalidTextRepresentation:
        return _bad(self._text)

    def blanks(self) -> int:
        """Go over blanks; the place behind them."""
        match = BLANKS.match(self._text, self._place)
        assert match is not None  # the pattern matches nothing, too
        self._place = match.end()
        return self._place

    def _next(self) -> str:
        place = self.blanks()
        if place >= len(self._text):
            raise self.bad()
        return self._text[place]

    def array(self, depth: int) -> list[Any]:
        """One pair of braces."""
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
        text = plain.group().strip()
        if not text:
            raise self.bad()
        return None if text.upper() == "NULL" else self._element(ESCAPE.sub(r"\1", text))

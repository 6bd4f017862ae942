"""Settings files that people write: TOML, of bounded size, with the lines of keys for messages."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .errors import InvalidParameterValue, IoError

# Larger than any settings file; a larger file is another one.
FILE_BYTES_MAX = 1 << 20

_HEADER = re.compile(r"[ \t]*(\[\[?)([^\]#]+)\]\]?[ \t]*(?:#.*)?$")
_KEY = re.compile(r"[ \t]*+([^=#\[]++)=")
_PART = re.compile(r"(?<![ \t\w-])[ \t]*+(?:\"([^\"]*)\"|'([^']*)'|([\w-]+))[ \t]*(?:\.|$)")


def read_text(path: Path, what: str) -> str:
    """The text of a file.

    Args:
        what: the kind of file, for messages.

    Raises:
        InvalidParameterValue: the file is too large, or not UTF-8.
        IoError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise IoError(f'cannot read {what} "{path}": {reason}') from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidParameterValue(f"{path}: {error}") from None


def parse(text: str, place: str, what: str) -> dict[str, Any]:
    """The values of a TOML text.

    Args:
        place: the source of the text, for messages.

    Raises:
        InvalidParameterValue: the text is too large, or not TOML; the message has the line.
    """
    if len(text) > FILE_BYTES_MAX:
        raise InvalidParameterValue(f"{place}: larger than a {what} of {FILE_BYTES_MAX} bytes")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidParameterValue(f"{place}: {error}") from None


def line_of(text: str, *path: str | int) -> str:
    """`:` and the line of a key or table, for messages; if it is not found, the line of the table that
    contains it.

    Args:
        path: keys, and the places in arrays of tables, from 0: ("topics", 1, "name").
    """
    found, longest = 0, 0
    here: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            here = _parts(header[2])
            if header[1] == "[[":
                counts[here] = counts.get(here, -1) + 1
                here = (*here, counts[here])
            place = here
        elif key := _KEY.match(line):
            place = (*here, *_parts(key[1]))
        else:
            continue
        depth = min(len(place), len(path))
        if place[:depth] == path[:depth] and depth > longest:
            longest, found = depth, number
    return f":{found}" if found else ""


def _parts(text: str) -> tuple[str | int, ...]:
    return tuple(double or single or bare for double, single, bare in _PART.findall(text))


def did_you_mean(name: str, known: Collection[str], what: str) -> str:
    """A hint for an unknown name: the nearest, else all."""
    near = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {near[0]}?" if near else f"{what}: {', '.join(sorted(known))}."

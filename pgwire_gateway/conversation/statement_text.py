"""A statement's text as sent and as run: error positions, column names, long texts.

A statement may be the third of a simple query, and its catalog names may have been rewritten before the
session saw it; the session reports positions in the rewritten text. A catalog query's columns may have types
that DuckDB lacks: the client receives the catalog's types. A column without a name gets the name that
PostgreSQL would use.

Long texts and parameter lists are too slow for the event loop: splitting, parsing and decoding take time in
proportion to the bytes, and meanwhile no other client is answered. A short request is served where it
arrives, which saves the hop to a thread; a longer one runs wholly on a worker thread. There Python releases
its lock every few milliseconds; calls that do not (a regular expression, DuckDB's parser) are bounded to a
fraction of a second.
Source: docs/design/pgwire_gateway.md, "Long statements".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...engine.values.client_encodings import Encoding
from ...engine.values.duckdb_types import TIME_TYPES
from ...engine.values.value_types import CATALOG_TYPES
from ...sql.results.results import ResultColumn
from .. import catalog
from ..codec.frontend import Bind, Parse, Query

# Characters of a text, or bytes of all parameters together, that take the event loop some milliseconds.
INLINE_CHARS_MAX = 8 * 1024
# The same as a number of parameters, or of columns in a description.
INLINE_ITEMS_MAX = 1000


def are_long(parameters: Sequence[bytes | None]) -> bool:
    """True if parameters are too long for the event loop."""
    if len(parameters) > INLINE_ITEMS_MAX:
        return True
    return sum(map(len, filter(None, parameters))) > INLINE_CHARS_MAX


# The messages that can be too long for the event loop, with their tests.
IS_LONG: dict[type, Callable[[Any], bool]] = {
    Query: lambda m: len(m.text) > INLINE_CHARS_MAX,
    Parse: lambda m: len(m.text) > INLINE_CHARS_MAX or len(m.oids) > INLINE_ITEMS_MAX,
    Bind: lambda m: are_long(m.parameters),
}


def is_long_text(text: str) -> bool:
    """True if the text of a statement is too long for the event loop."""
    return len(text) > INLINE_CHARS_MAX


def are_many(columns: Sequence[object] | None) -> bool:
    """True if the description of the columns is too long for the event loop."""
    return columns is not None and len(columns) > INLINE_ITEMS_MAX


# The type of values that arrive as text and are sent as numeric, with all their digits.
NUMERIC_TEXT = "BIGNUM"


@dataclass(frozen=True, slots=True)
class Described:
    """A sent RowDescription, and its statement."""

    columns: Sequence[ResultColumn]
    formats: tuple[int, ...]
    message: bytes
    encoding: Encoding


@dataclass(slots=True, eq=False)
class StatementText:
    """One statement, as sent and as run.

    Args:
        offset: characters of the client's text before the statement.
        text: the statement as sent.
        rewritten: the statement as the session received it.
        types: the PostgreSQL types of its columns, if the catalog knows them.
        cast: the OIDs of the types that a catalog query casts its parameters to; 0 without a cast.
        nowhere: True if it is not part of the client's text, so that its errors have no position.
        reads_catalog: True if it reads the catalog, or needs a lookup there.
        converted: the parameters whose values become numerics, with their types (catalog/numeric_type.py).
        numeric: for each column that is just a numeric parameter, the parameter's number, else 0: the session
            returns text there.
        described: its last RowDescription: a kept statement returns the same columns again.
    """

    offset: int
    text: str
    rewritten: str
    types: tuple[str | None, ...] = ()
    cast: tuple[int, ...] = ()
    nowhere: bool = False
    reads_catalog: bool = False
    converted: Mapping[int, int] = field(default_factory=dict)
    numeric: tuple[int, ...] = ()
    described: Described | None = None
    # Two equal lists, such as those of a description and of a result, and what is shown for both.
    _shown: tuple[Sequence[ResultColumn], Sequence[ResultColumn], Sequence[ResultColumn]] | None = None

    @property
    def long(self) -> bool:
        """True if work on the text is too long for the event loop."""
        return is_long_text(self.text)

    def declared(self, oids: Sequence[int]) -> Sequence[int]:
        """The parameters' OIDs as the client declared them, else as the query casts them."""
        count = max(len(oids), len(self.cast), max(self.converted, default=0))
        if count == len(oids) and not self.cast and not self.converted:
            return oids
        known, cast = (*oids, *(0,) * (count - len(oids))), (*self.cast, *(0,) * (count - len(self.cast)))
        return [
            oid or self.converted.get(at, ours)
            for at, (oid, ours) in enumerate(zip(known, cast, strict=True), 1)
        ]

    def given(self, oids: Sequence[int]) -> Sequence[int]:
        """The parameters' OIDs for the session; 0 is text, for a parameter without a declared type."""
        return [
            0 if at in self.numeric else self.converted.get(at, oid)
            for at, oid in enumerate(self.declared(oids), 1)
        ]

    def columns(self, found: Sequence[ResultColumn] | None) -> Sequence[ResultColumn] | None:
        """The columns as the client's description has them."""
        if found is None:
            return None
        # Several sessions may share it: the value is assigned whole, and read once.
        kept = self._shown
        if kept is None or (kept[0] is not found and kept[1] is not found):
            same = kept is not None and kept[0] == found
            kept = (kept[0], found, kept[2]) if same and kept else (found, found, self._columns(found))
            self._shown = kept
        return kept[2]

    def _columns(self, found: Sequence[ResultColumn]) -> Sequence[ResultColumn]:
        if len(found) == 1 and found[0].name == catalog.NO_COLUMNS and catalog.NO_COLUMNS not in self.text:
            return ()
        if len(found) == len(self.numeric):
            found = [
                replace(column, type=NUMERIC_TEXT) if numeric and column.type == "VARCHAR" else column
                for column, numeric in zip(found, self.numeric, strict=True)
            ]
        if len(found) == len(digits := catalog.column_digits(self.text)):
            found = [
                replace(column, type=f"{column.type}({number})")
                if number is not None and column.type in TIME_TYPES
                else column
                for column, number in zip(found, digits, strict=True)
            ]
        if self.types and len(found) == len(self.types):
            return [
                replace(column, type=CATALOG_TYPES[type_]) if type_ in CATALOG_TYPES else column
                for column, type_ in zip(found, self.types, strict=True)
            ]
        names = [column.name for column in found]
        shown = catalog.shown_names(self.text, names)
        if shown is names:
            return found
        return [replace(column, name=name) for name, column in zip(shown, found, strict=True)]

    def position(self, at: int | None) -> int | None:
        """The position in the client's text (from 1) of position `at` in the rewritten one.

        None in a rewritten part: no position is better than a wrong one.
        """
        if at is None or self.nowhere:
            return None
        if self.rewritten == self.text:
            return self.offset + at
        before = _shared(self.text, self.rewritten)
        if at <= before:
            return self.offset + at
        room = min(len(self.text), len(self.rewritten)) - before
        after = min(_shared(self.text[::-1], self.rewritten[::-1]), room)
        if at > len(self.rewritten) - after:
            return self.offset + at + len(self.text) - len(self.rewritten)
        return None


def _shared(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))

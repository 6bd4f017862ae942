"""The parser of a COPY FROM STDIN in PostgreSQL's text and csv formats; bytes arrive in pieces of any size.

Nothing is converted here: a field is its text, unescaped, or None for NULL. The first line end (\\n, \\r\\n
or \\r) decides the line ends of all lines. Source: PostgreSQL documentation, "COPY", "File Formats".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.errors import BadCopyFileFormat, CharacterNotInRepertoire, ProgramLimitExceeded
from .copy_options import CSV, CopyOptions

# The longest row, equal to the protocol's longest message: it bounds the memory of a row without an end.
ROW_BYTES_MAX = 64 << 20
# The most delimiters in a line that one expression divides: it keeps every field's start in memory.
REGULAR_MAX = 10_000
# The number of characters of a line in an error's context.
SHOWN_MAX = 100
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}

Fields = list[str | None]


class TextRow(NamedTuple):
    """A row: the number of its first line (from 1), its fields (bytes in the binary format)."""

    line: int
    fields: Sequence[str | bytes | None]


class RowReader:
    """Divides bytes into rows.

    Args:
        table: the table's name, for errors.
        columns: the names of the filled columns, in order.
    """

    def __init__(self, options: CopyOptions, table: str, columns: Sequence[str]) -> None:
        self.ended = False  # by the line \.
        self._options = options
        self._table = table
        self._columns = columns
        self._not_null, self._null = options.forced(columns)
        self._forces = any((*self._not_null, *self._null))
        self._csv = options.format == CSV
        self._tail = bytearray()
        self._ending: bytes | None = None
        self._line = 0
        self._header = options.header
        # An incomplete row: its lines, the number of the first one, and True if a quote is open.
        self._open: list[str] = []
        self._open_bytes = 0
        self._first = 0
        self._quoted = False
        delimiter, quote, escape = map(re.escape, (options.delimiter, options.quote, options.escape))
        # Possessive quantifiers (`*+`) never backtrack: positions for backtracking would take a hundred bytes
        # for each doubled quote of a long field.
        self._field = re.compile(rf"[^\\{delimiter}]*+(?:\\.[^\\{delimiter}]*+)*+", re.DOTALL)
        self._bare = re.compile(rf"[^{delimiter}{quote}]*+")
        inside, bare = rf"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+", self._bare.pattern
        if options.escape != options.quote:
            plain = rf"[^{quote}{escape}]*+"
            self._inside = re.compile(rf"{plain}(?:{escape}[{quote}{escape}]?+{plain})*+")
        else:
            self._inside = re.compile(inside)
        self._escaped = re.compile(rf"{escape}([{quote}{escape}])")
        # Fields quoted as a whole or not at all. A line has at most one such division, so that a line without
        # one is recognized as quickly.
        self._part = re.compile(rf"(?:({quote})({inside}){quote}|({bare}))({delimiter}|\Z)")
        part = rf"(?:{quote}{inside}{quote}|{bare})"
        self._regular = re.compile(rf"(?:{part}{delimiter})*{part}")
        self._marks = re.compile(rf"{escape}[{quote}{escape}]|{quote}")

    def feed(self, data: bytes) -> list[TextRow]:
        """The rows that these bytes complete.

        Raises:
            BadCopyFileFormat: a row is malformed; the error has its line.
            CharacterNotInRepertoire: the bytes are not UTF-8.
            ProgramLimitExceeded: a row is larger than ROW_BYTES_MAX.
        """
        if self.ended:
            return []
        start = len(self._tail)
        self._tail += data
        if self._ending is None and not self._find_ending(final=False):
            self._bound(len(self._tail))
            return []
        assert self._ending is not None
        end = self._tail.rfind(self._ending, max(0, start - 1))
        if end < 0:
            self._bound(self._open_bytes + len(self._tail))
            return []
        whole = bytes(self._tail[:end])
        del self._tail[: end + len(self._ending)]
        return self._rows(whole)

    def finish(self) -> list[TextRow]:
        """Return the rows that the end of the data completes: the last line may lack its end."""
        if self.ended:
            return []
        rows: list[TextRow] = []
        if self._ending is None and self._tail:
            self._find_ending(final=True)
            if self._ending is not None:
                rows = self.feed(b"")
        if self._tail and not self.ended:
            whole = bytes(self._tail)
            self._tail.clear()
            self._ending = self._ending or b"\n"
            rows += self._rows(whole)
        if self._open and not self.ended:
            if self._csv:
                raise self._bad("unterminated CSV quoted field", self._first, "\n".join(self._open))
            # A backslash ends the data: it escapes nothing.
            line = "\n".join(self._open)
            self._open = []
            rows += self._row(self._first, line[:-1])
        return rows

    def _find_ending(self, *, final: bool) -> bool:
        """Take the first line end outside quotes as that of all lines."""
        place = 0
        try:
            for found in re.finditer(rb"\r\n|\r|\n", self._tail):
                if found[0] == b"\r" and found.end() == len(self._tail) and not final:
                    return False
                if self._csv:
                    self._quoted = self._still_quoted(self._tail[place : found.start()].decode("latin-1"))
                    place = found.end()
                if not self._quoted:
                    self._ending = found[0]
                    return True
            return False
        finally:
            self._quoted = False

    def _bound(self, size: int) -> None:
        if size > ROW_BYTES_MAX:
            raise ProgramLimitExceeded(
                f"a row of COPY is longer than {ROW_BYTES_MAX} bytes", context=self._place(self._line + 1)
            )

    def _rows(self, whole: bytes) -> list[TextRow]:
        assert self._ending is not None
        rows: list[TextRow] = []
        for line in _decoded(whole, self._place(self._line + 1)).split(self._ending.decode()):
            self._line += 1
            found = self._take_csv(line) if self._csv else self._take_text(line)
            if found is None:
                continue
            rows += found
            if self.ended:
                break
        return rows

    def _take_text(self, line: str) -> list[TextRow] | None:
        """A line of the text format; None if the row continues in the next line."""
        if "\r" in line and self._ending != b"\r":
            raise self._bad("literal carriage return found in data", self._line, line, '"\\r"')
        if "\n" in line:
            raise self._bad("literal newline found in data", self._line, line, '"\\n"')
        if line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2:
            self._hold(line)
            return None
        first, line = self._whole(line)
        if line == "\\.":
            self.ended = True
            return []
        return self._row(first, line)

    def _take_csv(self, line: str) -> list[TextRow] | None:
        if line == "\\." and not self._open:
            self.ended = True
            return []
        quote = self._options.quote
        if quote in line:
            self._quoted = self._still_quoted(line)
        if self._quoted:
            self._hold(line)
            return None
        first, line = self._whole(line)
        if quote not in line and ("\r" in line or "\n" in line):
            raise self._bad("unquoted carriage return or newline found in data", first, line, "quotes")
        return self._row(first, line)

    def _still_quoted(self, line: str) -> bool:
        """True if a quote is open at the end of a line."""
        if self._options.escape == self._options.quote:
            return self._quoted ^ bool(line.count(self._options.quote) % 2)
        quoted, place = self._quoted, 0
        while (found := self._marks.search(line, place)) is not None:
            if found[0] == self._options.quote:
                quoted = not quoted
            # Outside quotes an escape has no meaning, and the character after it is examined again.
            place = found.end() if quoted or found[0] == self._options.quote else found.start() + 1
        return quoted

    def _hold(self, line: str) -> None:
        if not self._open:
            self._first = self._line
        self._open.append(line)
        self._open_bytes += len(line)
        self._bound(self._open_bytes)

    def _whole(self, line: str) -> tuple[int, str]:
        """A row's first line number and its whole text."""
        if not self._open:
            return self._line, line
        assert self._ending is not None
        self._open.append(line)
        whole = (self._ending.decode() if self._csv else "\n").join(self._open)
        self._open, self._open_bytes = [], 0
        return self._first, whole

    def _row(self, first: int, line: str) -> list[TextRow]:
        if self._header:
            header, self._header = self._header, False
            if header == "match":
                self._match(first, self._cut(first, line, header=True))
            return []
        fields = self._cut(first, line)
        if len(fields) != len(self._columns):
            if len(fields) < len(self._columns):
                raise self._bad(f'missing data for column "{self._columns[len(fields)]}"', first, line)
            raise self._bad("extra data after last expected column", first, line)
        return [TextRow(first, fields)]

    def _match(self, first: int, names: Fields) -> None:
        if len(names) != len(self._columns):
            raise self._bad(
                f"wrong number of fields in header line: got {len(names)}, expected {len(self._columns)}",
                first,
            )
        for place, (name, column) in enumerate(zip(names, self._columns, strict=True), 1):
            if name != column:
                told = f'got "{name}", expected "{column}"'
                raise self._bad(f"column name mismatch in header line field {place}: {told}", first)

    def _cut(self, first: int, line: str, *, header: bool = False) -> Fields:
        if self._csv:
            return self._cut_csv(first, line, header)
        null, delimiter = self._options.null, self._options.delimiter
        if "\\" not in line:
            parts: Fields = line.split(delimiter)  # type: ignore[assignment]
            return [None if part == null else part for part in parts] if null in line else parts
        fields: Fields = []
        place = 0
        while True:
            found = self._field.match(line, place)
            assert found is not None
            raw = found[0]
            fields.append(None if raw == null else self._unescaped(first, raw) if "\\" in raw else raw)
            place = found.end() + 1
            if found.end() >= len(line):
                return fields

    def _unescaped(self, first: int, raw: str) -> str:
        # By bytes: \303\251 is one character.
        return _decoded(_ESCAPE.sub(_escape, raw.encode()), self._place(first))

    def _cut_csv(self, first: int, line: str, header: bool) -> Fields:
        null, delimiter, quote = self._options.null, self._options.delimiter, self._options.quote
        if quote not in line:
            parts = line.split(delimiter)
            if not self._forces:
                return [None if part == null else part for part in parts]
            quotes = [False] * len(parts)
        elif not (header or self._forces) and (fields := self._cut_regular(line)) is not None:
            return fields
        else:
            parts, quotes = self._cut_quoted(first, line)
        if header:
            return list(parts)
        fields = []
        for place, (part, quoted) in enumerate(zip(parts, quotes, strict=True)):
            known = place < len(self._columns)
            is_null = part == null
            if quoted:
                is_null = is_null and known and self._null[place]
            elif known and self._not_null[place]:
                is_null = False
            fields.append(None if is_null else part)
        return fields

    def _cut_regular(self, line: str) -> Fields | None:
        """The fields of a line in which quotes enclose whole fields, the usual case; None for another
        line."""
        if self._options.escape != self._options.quote or line.count(self._options.delimiter) > REGULAR_MAX:
            return None
        if self._regular.fullmatch(line) is None:
            return None
        null, quote = self._options.null, self._options.quote
        found = self._part.findall(line)
        if len(found) > 1 and not found[-2][3]:
            found.pop()  # After the last field there is one more empty match.
        return [
            inside.replace(quote + quote, quote) if opened else None if bare == null else bare
            for opened, inside, bare, _ in found
        ]

    def _cut_quoted(self, first: int, line: str) -> tuple[list[str], list[bool]]:
        """The fields of a line with quotes, and for each True if it had any."""
        fields: list[str] = []
        quotes: list[bool] = []
        place, end = 0, len(line)
        while True:
            parts: list[str] = []
            quoted = False
            while True:
                bare = self._bare.match(line, place)
                assert bare is not None
                parts.append(bare[0])
                place = bare.end()
                if place >= end or line[place] == self._options.delimiter:
                    break
                quoted = True
                inside = self._inside.match(line, place + 1)
                assert inside is not None
                if inside.end() >= end:
                    raise self._bad("unterminated CSV quoted field", first, line)
                parts.append(self._escaped.sub(r"\1", inside[0]))
                place = inside.end() + 1
            fields.append("".join(parts))
            quotes.append(quoted)
            if place >= end:
                return fields, quotes
            place += 1

    def _place(self, line: int) -> str:
        return f"COPY {self._table}, line {line}"

    def _bad(self, message: str, line: int, text: str = "", use: str = "") -> BadCopyFileFormat:
        shown = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
        return BadCopyFileFormat(
            message,
            hint=f"Use {use} to represent it." if use else None,
            context=self._place(line) + (f': "{shown}"' if text else ""),
        )


def _decoded(raw: bytes, context: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line, _, told = context.rpartition(" ")
        number = int(told) + raw[: error.start].count(b"\n")
        wrong = " ".join(f"0x{byte:02x}" for byte in raw[error.start : error.end])
        raise CharacterNotInRepertoire(
            f'invalid byte sequence for encoding "UTF8": {wrong}', context=f"{line} {number}"
        ) from None
    if "\0" in text:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8": 0x00', context=context)
    return text


def _escape(found: re.Match[bytes]) -> bytes:
    octal, hexadecimal, letter = found.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _LETTERS.get(letter, letter)

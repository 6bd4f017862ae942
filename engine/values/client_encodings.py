"""Encodings of clients: PostgreSQL's names, Python's codecs, and the conversion of rows that are ready.

The database is UTF8. A client with another `client_encoding` has its texts converted where they arrive and
where they leave: statements, parameters, rows, COPY in its text formats, errors and names. SQL_ASCII converts
nothing, as in PostgreSQL. Source: PostgreSQL documentation, "Character Set Support".
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import CharacterNotInRepertoire, NotSupported, UntranslatableCharacter
from . import value_types
from .duckdb_types import read_type
from .records import is_record

_HEAD = struct.Struct("!ci")
_LENGTH = struct.Struct("!i")

_MULTIBYTE = frozenset(
    {"UTF8", "EUC_JP", "EUC_CN", "EUC_KR", "EUC_JIS_2004", "SHIFT_JIS_2004", "SJIS", "BIG5", "GBK", "UHC"}
    | {"GB18030", "JOHAB"}
)

# Types whose binary form is their text, and those whose binary form has texts with lengths in it.
_TEXTS = frozenset({18, 19, 25, 114, 705, 1042, 1043, 3802})
_NESTED = frozenset({1002, 1003, 1009, 199, 1014, 1015, 3807, 2249})


def _known(type_: str) -> int:
    """The OID of a type, with text in place of a user's enum and record in place of a composite type."""
    read = read_type(type_)
    return value_types.ANY_RECORD if is_record(read) else value_types.known(value_types.pg_type_of(read).oid)


def _untranslatable(wrong: str, name: str, other: str) -> UntranslatableCharacter:
    return UntranslatableCharacter(
        f'character with byte sequence {wrong} in encoding "{name}" has no equivalent in encoding "{other}"'
    )


def _messages(data: bytes | memoryview) -> Iterator[tuple[bytes, bytes]]:
    """The kind and the body of each message."""
    data, at = bytes(data), 0
    while at < len(data):
        kind, length = _HEAD.unpack_from(data, at)
        end = at + 1 + length
        yield kind, data[at + 5 : end]
        at = end


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """An encoding of a client.

    Args:
        name: PostgreSQL's name.
        codec: Python's name; empty if nothing is converted.
        reader: the codec by which text of the client is decoded.
    """

    name: str
    codec: str
    reader: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", self.codec or "utf-8")

    def decoded(self, raw: bytes) -> str:
        """A text of the client.

        Raises:
            CharacterNotInRepertoire: the bytes are no text in this encoding.
            UntranslatableCharacter: a byte stands for no character in it.
        """
        try:
            return raw.decode(self.reader)
        except UnicodeDecodeError as error:
            wrong = " ".join(f"0x{byte:02x}" for byte in raw[error.start : error.end])
            name = self.name if self.codec else UTF8.name
            if name not in _MULTIBYTE:
                raise _untranslatable(wrong, name, UTF8.name) from None
            raise CharacterNotInRepertoire(f'invalid byte sequence for encoding "{name}": {wrong}') from None

    def spelled(self, text: str) -> bytes:
        """A name or message for the client; a question mark stands for a character that it cannot have."""
        return text.encode(self.reader, "replace")

    def given(self, raw: bytes | None, form: int, oid: int) -> bytes | None:
        """A parameter of the client, in UTF8.

        Args:
            form: 0 text, 1 binary.

        Raises:
            CharacterNotInRepertoire: the bytes are no text in this encoding.
            NotSupported: a binary array of texts.
        """
        if raw is None or not self.codec or raw.isascii():
            return raw
        is_record = oid >= value_types.USER_OID_FIRST and raw.startswith(b"\0")
        if form and (is_record or (oid := value_types.known(oid)) not in _TEXTS):
            if is_record or oid in _NESTED:
                raise self._refusal("binary arrays of texts")
            return raw
        return self.decoded(raw).encode()

    def columns(self, types: Sequence[str], forms: Sequence[int]) -> tuple[bool, ...]:
        """For each column of a result, True if its values are texts.

        Raises:
            NotSupported: a column is a binary array of texts.
        """
        oids = [_known(type_) for type_ in types]
        if any(form and oid in _NESTED for form, oid in zip(forms, oids, strict=True)):
            raise self._refusal("binary arrays of texts")
        return tuple(not form or oid in _TEXTS for form, oid in zip(forms, oids, strict=True))

    def rows(self, data: bytes | memoryview, texts: Sequence[bool]) -> bytes:
        """DataRow messages, converted for the client.

        Args:
            texts: for each column, whether its values are texts.

        Raises:
            UntranslatableCharacter: the encoding lacks a character.
        """
        return b"".join(
            _HEAD.pack(kind, 4 + len(row)) + row
            for kind, body in _messages(data)
            for row in (self._row(body, texts),)
        )

    def copied(self, data: bytes | memoryview) -> bytes | memoryview:
        """CopyData messages of text, converted for the client.

        Raises:
            UntranslatableCharacter: the encoding lacks a character.
        """
        if not self.codec:
            return data
        return b"".join(
            _HEAD.pack(kind, 4 + len(text)) + text
            for kind, body in _messages(data)
            for text in (self._encoded(body),)
        )

    def check_copy(self, *, binary: bool) -> None:
        """Check that a COPY has text.

        Raises:
            NotSupported: it is in a binary format, whose texts are UTF8.
        """
        if self.codec and binary:
            raise self._refusal("binary formats of COPY")

    def pieces(self) -> codecs.IncrementalDecoder:
        """A decoder of text that arrives in pieces."""
        return codecs.getincrementaldecoder(self.reader)()

    def _row(self, body: bytes, texts: Sequence[bool]) -> bytes:
        parts, place = [body[:2]], 2
        for is_text in texts:
            (size,) = _LENGTH.unpack_from(body, place)
            place += 4
            value = body[place : place + max(size, 0)]
            place += len(value)
            if is_text and not value.isascii():
                value = self._encoded(value)
                size = len(value)
            parts += (_LENGTH.pack(size), value)
        return b"".join(parts)

    def _encoded(self, value: bytes) -> bytes:
        text = value.decode()
        try:
            return text.encode(self.reader)
        except UnicodeEncodeError as error:
            wrong = " ".join(f"0x{byte:02x}" for byte in text[error.start].encode())
            raise _untranslatable(wrong, UTF8.name, self.name) from None

    def _refusal(self, what: str) -> NotSupported:
        return NotSupported(
            f'{what} are not supported with client_encoding "{self.name}"', hint="SET client_encoding = UTF8."
        )


# PostgreSQL's names of encodings -> Python's.
_CODECS = {
    "UTF8": "", "SQL_ASCII": "",
    "LATIN1": "iso8859_1", "LATIN2": "iso8859_2", "LATIN3": "iso8859_3", "LATIN4": "iso8859_4",
    "LATIN5": "iso8859_9", "LATIN6": "iso8859_10", "LATIN7": "iso8859_13", "LATIN8": "iso8859_14",
    "LATIN9": "iso8859_15", "LATIN10": "iso8859_16", "ISO_8859_5": "iso8859_5", "ISO_8859_6": "iso8859_6",
    "ISO_8859_7": "iso8859_7", "ISO_8859_8": "iso8859_8", "WIN866": "cp866", "WIN874": "cp874",
    **{f"WIN{page}": f"cp{page}" for page in range(1250, 1259)},
    "KOI8R": "koi8_r", "KOI8U": "koi8_u", "EUC_JP": "euc_jp", "EUC_CN": "gb2312", "EUC_KR": "euc_kr",
    "EUC_JIS_2004": "euc_jis_2004", "SHIFT_JIS_2004": "shift_jis_2004", "SJIS": "cp932", "BIG5": "cp950",
    "GBK": "gbk", "UHC": "cp949", "GB18030": "gb18030", "JOHAB": "johab",
}  # fmt: skip
ENCODINGS = {name: Encoding(name, codec) for name, codec in _CODECS.items()}
UTF8 = ENCODINGS["UTF8"]
_ALIASES = {
    "UNICODE": "UTF8", "ALT": "WIN866", "WIN": "WIN1251", "KOI8": "KOI8R", "TCVN": "WIN1258",
    "VSCII": "WIN1258", "MSKANJI": "SJIS", "SHIFTJIS": "SJIS",
    "WIN932": "SJIS", "WIN936": "GBK", "WIN949": "UHC", "WIN950": "BIG5",
    **{f"WINDOWS{page}": f"WIN{page}" for page in (866, 874, *range(1250, 1259))},
    "WINDOWS932": "SJIS", "WINDOWS936": "GBK", "WINDOWS949": "UHC", "WINDOWS950": "BIG5",
    "ISO88591": "LATIN1", "ISO88592": "LATIN2", "ISO88593": "LATIN3", "ISO88594": "LATIN4",
    "ISO88599": "LATIN5", "ISO885910": "LATIN6", "ISO885913": "LATIN7", "ISO885914": "LATIN8",
    "ISO885915": "LATIN9", "ISO885916": "LATIN10",
}  # fmt: skip


def _bare(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper())


_BY_NAME = dict(zip(map(_bare, ENCODINGS), ENCODINGS.values(), strict=True))
_BY_NAME.update((alias, ENCODINGS[name]) for alias, name in _ALIASES.items())


def encoding_of(name: str) -> Encoding | None:
    """The encoding of a name, in which case and punctuation do not matter; None for an unknown one.

    >>> encoding_of("utf-8") is UTF8, encoding_of("iso_8859-15").name
    (True, 'LATIN9')
    """
    return _BY_NAME.get(_bare(name[:64]))

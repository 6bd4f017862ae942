"""The options of COPY FROM STDIN and TO STDOUT, in PostgreSQL's new and old syntax.

    COPY t FROM STDIN [WITH] (FORMAT csv, HEADER, NULL 'x', ...)
    COPY t TO STDOUT [WITH] [BINARY] [DELIMITER [AS] 'x'] [NULL [AS] 'x'] [CSV [HEADER] [QUOTE [AS] 'x'] ...]

Source: PostgreSQL documentation, "COPY".

The module also classifies the options of a COPY from or to a file that DuckDB refuses. DuckDB decides on the
options of its formats, and reports every option that it does not know as not implemented. An option that
nobody knows raises PostgreSQL's 42601; an option that PostgreSQL has, or DuckDB has for another format,
raises 0A000.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from ...engine.errors import DucktailError, InvalidParameterValue, NotSupported, SyntaxError_, UndefinedColumn
from ...engine.quoting import fold
from ...engine.values.client_encodings import encoding_of
from ...engine.values.copy_rows import CopyForm
from ..text.classified import Classified, TokenReader
from ..text.tokens import STRING, Token

TEXT, CSV, BINARY, ARROW = "text", "csv", "binary", "arrow"
FORMATS = (TEXT, CSV, BINARY, ARROW)
# Formats without a delimiter, a text for NULL and a header.
NOT_TEXT = (BINARY, ARROW)
TRUE = frozenset({"true", "on", "1"})
FALSE = frozenset({"false", "off", "0"})
# Delimiters of the text format that PostgreSQL refuses: they could be an escape or part of a value.
TEXT_DELIMITERS_REFUSED = frozenset("\\.abcdefghijklmnopqrstuvwxyz0123456789")
ALL = "*"


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of a COPY.

    Args:
        header: False, True (the first line is skipped, or written) or "match" (it must name the columns).
        force_not_null, force_null, force_quote: names of columns in small letters, or `*` for all.
        encoding: the option ENCODING; empty without one.
    """

    format: str = TEXT
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool | str = False
    quote: str = '"'
    escape: str = '"'
    force_not_null: frozenset[str] = frozenset()
    force_null: frozenset[str] = frozenset()
    force_quote: frozenset[str] = frozenset()
    encoding: str = ""

    def form(self, columns: Sequence[str]) -> CopyForm:
        """The output format for rows of these columns.

        Raises:
            UndefinedColumn: FORCE_QUOTE names another column.
        """
        _check_forced(self.force_quote, columns)
        quoted = (place for place, name in enumerate(columns) if _is_named(name, self.force_quote))
        rest = (self.delimiter, self.null, self.quote, self.escape)
        return CopyForm(self.format, *rest, force_quote=frozenset(quoted))

    def forced(self, columns: Sequence[str]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """For each column, the values of FORCE_NOT_NULL and FORCE_NULL.

        Raises:
            UndefinedColumn: an option names a column that COPY does not fill.
        """
        _check_forced(self.force_not_null | self.force_null, columns)
        return tuple(
            tuple(_is_named(column, names) for column in columns)
            for names in (self.force_not_null, self.force_null)
        )  # type: ignore[return-value]


def _check_forced(names: frozenset[str], columns: Sequence[str]) -> None:
    known = {fold(name) for name in columns}
    for name in names - {ALL}:
        if name not in known:
            raise UndefinedColumn(f'FORCE column "{name}" is not referenced by COPY')


def _is_named(column: str, names: frozenset[str]) -> bool:
    return ALL in names or fold(column) in names


def read_options(statement: Classified) -> CopyOptions:
    """Read the options after FROM STDIN or TO STDOUT.

    Raises:
        SyntaxError_: an option is unknown or given twice.
        InvalidParameterValue: a value is invalid.
        NotSupported: an option is known and not supported.
    """
    assert statement.copy is not None
    reader = TokenReader(statement.text, statement.tokens, statement.copy.rest)
    reader.accept("WITH")
    given = _listed(reader) if reader.peek() == "(" else _old(reader)
    if statement.copy.binary:
        if "FORMAT" in given:
            raise SyntaxError_("conflicting or redundant options")
        given["FORMAT"] = BINARY
    if reader.peek() == "WHERE":
        hint = "Copy into a table of its own, and filter what is taken from there."
        raise NotSupported("WHERE in COPY is not supported", hint=hint)
    reader.expect_end()
    return _checked(given, reads=statement.copy.reads)


def _listed(reader: TokenReader) -> dict[str, object]:
    """Read `(NAME [value], ...)`."""
    first, end = reader.brackets()
    given: dict[str, object] = {}
    for cut, until in reader.slices(first, end):
        inner = TokenReader(reader.text, reader.tokens[:until], cut)
        position = inner.tokens[cut].start + 1 if cut < until else None
        name = inner.identifier().upper()
        rule = _RULES.get(name)
        if name in _NOT_SUPPORTED:
            raise NotSupported(f"COPY option {name} is not supported", position=position)
        if rule is None:
            raise SyntaxError_(f'option "{name.lower()}" not recognized', position=position)
        if name in given:
            raise SyntaxError_("conflicting or redundant options", position=position)
        given[name] = rule(inner)
        inner.expect_end()
    return given


def _old(reader: TokenReader) -> dict[str, object]:
    """Read the option words of PostgreSQL before 9.0, which psql's \\copy and many scripts still use."""
    given: dict[str, object] = {}
    while not reader.at_end and reader.peek() != "WHERE":
        position = reader.tokens[reader.index].start + 1
        word = reader.take().kind
        value: object
        if word == "FORCE":
            word = _forced_word(reader)
            value = frozenset(_names(reader))
        elif word in ("CSV", "BINARY"):
            word, value = "FORMAT", word.lower()
        elif word in ("HEADER", "FREEZE"):
            value = True
        elif word in ("DELIMITER", "DELIMITERS", "NULL", "QUOTE", "ESCAPE", "ENCODING"):
            reader.accept("AS")
            word = word.removesuffix("S") if word == "DELIMITERS" else word
            value = _string(reader)
        else:
            reader.index -= 1
            raise reader.unexpected()
        if word in given:
            raise SyntaxError_("conflicting or redundant options", position=position)
        given[word] = value
    return given


def _forced_word(reader: TokenReader) -> str:
    for words in (("NOT", "NULL"), ("NULL",), ("QUOTE",)):
        if reader.accept(*words):
            return "_".join(("FORCE", *words))
    raise reader.unexpected()


def _names(reader: TokenReader) -> list[str]:
    if reader.accept(ALL):
        return [ALL]
    names = [fold(reader.identifier())]
    while reader.accept(","):
        names.append(fold(reader.identifier()))
    return names


def _string(reader: TokenReader) -> str:
    if reader.peek() != STRING:
        raise reader.unexpected()
    return reader.take().value


def _format(reader: TokenReader) -> object:
    name = reader.value().lower()
    if name not in FORMATS:
        raise InvalidParameterValue(
            f'COPY format "{name}" not recognized', hint="text, csv, binary and arrow are known."
        )
    return name


def _header(reader: TokenReader) -> object:
    if reader.at_end:
        return True
    word = reader.value().lower()
    if word == "match":
        return word
    if word not in TRUE | FALSE:
        raise InvalidParameterValue('header requires a Boolean value or "match"')
    return word in TRUE


def _freeze(reader: TokenReader) -> object:
    if reader.at_end:
        return True
    word = reader.value().lower()
    if word not in TRUE | FALSE:
        raise InvalidParameterValue("freeze requires a Boolean value")
    return word in TRUE


def _columns(reader: TokenReader) -> object:
    if reader.accept(ALL):
        return frozenset({ALL})
    first, end = reader.brackets()
    inner = TokenReader(reader.text, reader.tokens[:end], first)
    return frozenset(_names(inner))


_RULES: Mapping[str, Callable[[TokenReader], object]] = {
    "FORMAT": _format,
    "DELIMITER": _string,
    "NULL": _string,
    "HEADER": _header,
    "QUOTE": _string,
    "ESCAPE": _string,
    "FORCE_NOT_NULL": _columns,
    "FORCE_NULL": _columns,
    "FORCE_QUOTE": _columns,
    "ENCODING": lambda reader: reader.value(),
    # It tunes PostgreSQL's storage.
    "FREEZE": _freeze,
}
_NOT_SUPPORTED = frozenset({"DEFAULT", "ON_ERROR", "LOG_VERBOSITY", "REJECT_LIMIT"})
# All options of PostgreSQL, supported or not.
POSTGRES_OPTIONS = _NOT_SUPPORTED.union(_RULES)
_ONLY_CSV = ("QUOTE", "ESCAPE", "FORCE_NOT_NULL", "FORCE_NULL", "FORCE_QUOTE")
_NOT_BINARY = ("DELIMITER", "NULL")
_ONLY_FROM = ("FORCE_NOT_NULL", "FORCE_NULL", "FREEZE")
_ONLY_TO = ("FORCE_QUOTE",)


def _refuse_misplaced(given: Mapping[str, object], form: object, *, reads: bool) -> None:
    """Refuse options of another format or direction."""
    for name in _NOT_BINARY:
        if name in given and form in NOT_TEXT:
            raise SyntaxError_(f"cannot specify {name} in {str(form).upper()} mode")
    if form in NOT_TEXT and given.get("HEADER", False) is not False:
        raise NotSupported(f"cannot specify HEADER in {str(form).upper()} mode")
    for name in _ONLY_CSV:
        if name in given and form != CSV:
            raise NotSupported(f"COPY {name} requires CSV mode")
    for name in _ONLY_TO if reads else _ONLY_FROM:
        if name in given:
            raise NotSupported(f"COPY {name} cannot be used with COPY {'FROM' if reads else 'TO'}")
    if not reads and given.get("HEADER") == "match":
        raise NotSupported('cannot use "match" with HEADER in COPY TO')


def _checked(given: Mapping[str, object], *, reads: bool) -> CopyOptions:
    form = given.get("FORMAT", TEXT)
    csv = form == CSV
    _refuse_misplaced(given, form, reads=reads)
    delimiter = str(given.get("DELIMITER", "," if csv else "\t"))
    null = str(given.get("NULL", "" if csv else "\\N"))
    quote = str(given.get("QUOTE", '"'))
    escape = str(given.get("ESCAPE", quote))
    encoding = str(given.get("ENCODING", ""))
    for name, value in (("delimiter", delimiter), ("quote", quote), ("escape", escape)):
        if len(value) != 1 or not value.isascii() or value in "\r\n":
            raise InvalidParameterValue(f"COPY {name} must be a single one-byte character")
    if not csv and delimiter in TEXT_DELIMITERS_REFUSED:
        raise InvalidParameterValue(f'COPY delimiter cannot be "{delimiter}"')
    if csv and delimiter == quote:
        raise InvalidParameterValue("COPY delimiter and quote must be different")
    if "\r" in null or "\n" in null or delimiter in null or (csv and quote in null):
        raise InvalidParameterValue(
            "COPY null representation cannot hold a line end, the delimiter or the quote"
        )
    header = given.get("HEADER", False)
    assert isinstance(header, bool | str)
    return CopyOptions(
        str(form), delimiter, null, header, quote, escape,
        _set(given.get("FORCE_NOT_NULL")), _set(given.get("FORCE_NULL")), _set(given.get("FORCE_QUOTE")),
        encoding,
    )  # fmt: skip


def check_encoding(options: CopyOptions, client_encoding: str) -> None:
    """Check that the option ENCODING is the client's encoding, from or to which all its texts are converted.

    Raises:
        NotSupported: ENCODING is another encoding.
    """
    wanted = encoding_of(options.encoding or client_encoding)
    if wanted is None or wanted is not encoding_of(client_encoding):
        raise NotSupported(
            f'COPY encoding "{options.encoding}" is not supported with client_encoding "{client_encoding}"',
            hint="SET client_encoding to it.",
        )


def _set(value: object) -> frozenset[str]:
    return value if isinstance(value, frozenset) else frozenset()


_OPTION = re.compile(
    r'(?:unrecognized option|unsupported option for COPY FROM:|FORMAT JSON\):) "?(\w+)"?', re.IGNORECASE
)
_FORMAT = re.compile(r"copy function with name (\S+) does not exist", re.IGNORECASE)
# Options of DuckDB's writers and of COPY itself; those of its readers are read from DuckDB.
_WRITING = frozenset(
    {"append", "array", "chunk_size", "codec", "compression_level", "dictionary_compression_ratio_threshold"}
    | {"dictionary_size_limit", "field_ids", "file_extension", "file_size_bytes", "filename_pattern"}
    | {"force_quote", "geoparquet_version", "hive_file_pattern", "kv_metadata", "order_by", "overwrite"}
    | {"overwrite_or_ignore", "partition_by", "per_thread_output", "prefix", "preserve_order", "quote_all"}
    | {"return_files", "return_stats", "row_group_size", "row_group_size_bytes", "row_groups_per_file"}
    | {"shredding", "suffix", "use_tmp_file", "write_bloom_filter", "write_empty_file"}
    | {"write_partition_columns"}
)
_READERS = ("read_csv", "read_json", "read_parquet")


@functools.cache
def _known() -> frozenset[str]:
    """Options, in small letters, that PostgreSQL or DuckDB has for any format."""
    query = (
        "SELECT DISTINCT lower(unnest(parameters)) FROM system.main.duckdb_functions() WHERE internal "
        "AND function_type = 'table' AND function_name IN ($1, $2, $3)"
    )
    with duckdb.connect(":memory:") as connection:
        readers = connection.execute(query, _READERS).fetchall()
    return _WRITING.union((row[0] for row in readers), map(str.lower, POSTGRES_OPTIONS))


def as_option_error(error: DucktailError, tokens: Sequence[Token]) -> DucktailError:
    """A DuckDB error about an option or a format in PostgreSQL's form; another error unchanged.

    Args:
        tokens: the statement's tokens after FROM or TO.
    """
    found = _OPTION.search(error.message)
    if found is not None:
        name = found[1].lower()
        place = _place(tokens, name)
        if name not in _known():
            return SyntaxError_(f'option "{name}" not recognized', hint=error.hint, position=place)
        hint = "It is not one of this format, or of this direction."
        return NotSupported(f"COPY option {name.upper()} is not supported here", hint=hint, position=place)
    found = _FORMAT.search(error.message)
    if found is not None:
        place = _place(tokens, found[1].lower())
        hint = "csv, parquet and json are known."
        return InvalidParameterValue(f'COPY format "{found[1]}" not recognized', hint=hint, position=place)
    return error


def _place(tokens: Sequence[Token], name: str) -> int | None:
    """The position of a word, in characters from 1; None if it is not there."""
    return next((token.start + 1 for token in tokens if token.value.lower().strip('"') == name), None)

"""Options of a COPY from or to a file: whose they are, where DuckDB does not take one.

DuckDB has the word on the options of its formats, and calls whatever it does not know not implemented.
An option that nobody knows is PostgreSQL's 42601; one that PostgreSQL has, or DuckDB has for another
format, is 0A000.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import duckdb

from ...engine.errors import DucktailError, InvalidParameterValue, NotSupported, SyntaxError_
from ..text.tokens import Token
from .options import POSTGRES_OPTIONS

_OPTION = re.compile(
    r'(?:unrecognized option|unsupported option for COPY FROM:|FORMAT JSON\):) "?(\w+)"?', re.IGNORECASE
)
_FORMAT = re.compile(r"copy function with name (\S+) does not exist", re.IGNORECASE)
# Of DuckDB's writers and of COPY itself; what its readers take is asked of it.
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
    """Options, in small letters, that PostgreSQL or DuckDB has for some format."""
    query = (
        "SELECT DISTINCT lower(unnest(parameters)) FROM system.main.duckdb_functions() WHERE internal "
        "AND function_type = 'table' AND function_name IN ($1, $2, $3)"
    )
    with duckdb.connect(":memory:") as connection:
        readers = connection.execute(query, _READERS).fetchall()
    return _WRITING.union((row[0] for row in readers), map(str.lower, POSTGRES_OPTIONS))


def as_option_error(error: DucktailError, tokens: Sequence[Token]) -> DucktailError:
    """An error of DuckDB about an option or a format as PostgreSQL tells it; any other as it is.

    Args:
        tokens: those of the statement behind FROM or TO.
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
    """Where a word stands, in characters from 1."""
    return next((token.start + 1 for token in tokens if token.value.lower().strip('"') == name), None)

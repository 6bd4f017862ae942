"""Rows of COPY FROM STDIN: whatever the pieces, what was written is what is read."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ducktail.engine.errors import DucktailError
from ducktail.sql.copy import text as copy_text
from ducktail.sql.copy.copy_options import CopyOptions
from ducktail.sql.copy.text import RowReader

COLUMNS = ("a", "b")
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8) | st.text(
    "\\\t\r\n\",;'Nx.", max_size=6
)
TABLE = st.lists(st.tuples(st.none() | TEXT, st.none() | TEXT), max_size=6)


def read(options: CopyOptions, data: bytes, cuts: list[int]) -> list[tuple[str | None, ...]]:
    """The rows of data that comes in pieces cut at these places."""
    reader = RowReader(options, "t", COLUMNS)
    found = []
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        found += reader.feed(data[start:end])
    found += reader.finish()
    return [tuple(row.fields) for row in found]


def escaped(value: str | None) -> str:
    """A value in the text format, as PostgreSQL writes it."""
    if value is None:
        return "\\N"
    for plain, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(plain, escape)
    return value


CUTS = st.lists(st.integers(0, 10_000), max_size=5)


@given(TABLE, st.sampled_from(["\n", "\r\n", "\r"]), CUTS, st.booleans())
def test_text(table: list[tuple[str | None, ...]], end: str, cuts: list[int], last: bool) -> None:
    data = end.join("\t".join(map(escaped, row)) for row in table) + (end if last and table else "")
    assert read(CopyOptions(), data.encode(), cuts) == table


@given(TABLE, st.sampled_from(["\n", "\r\n"]), CUTS)
def test_csv(table: list[tuple[str | None, ...]], end: str, cuts: list[int]) -> None:
    """What Python's csv module writes with every value in quotes; NULL is bare."""
    lines = (
        ",".join("" if value is None else '"' + value.replace('"', '""') + '"' for value in row) + end
        for row in table
    )
    options = CopyOptions("csv", ",", "")
    assert read(options, "".join(lines).encode(), cuts) == table


@given(st.text('a",N', max_size=12), st.sampled_from(["", "N"]))
def test_a_line_is_cut_quickly_as_it_is_slowly(line: str, null: str) -> None:
    """Quotes may stand within a field, and be left open: the quick way gives the same, or has no answer."""
    reader = RowReader(CopyOptions("csv", ",", null), "t", COLUMNS)
    quick = reader._cut_regular(line)
    if quick is not None:
        pairs = zip(*reader._cut_quoted(1, line), strict=True)
        assert quick == [None if part == null and not quoted else part for part, quoted in pairs]


def test_a_field_of_many_quotes_takes_no_memory_but_its_own() -> None:
    count = 200_000
    data = ('"' + count * '""' + '",2\n').encode()
    reader = RowReader(CopyOptions("csv", ",", ""), "t", COLUMNS)
    tracemalloc.start()
    try:
        [row] = reader.feed(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(row.fields[0] or "") == count and row.fields[1] == "2"
    assert peak < 10 * len(data)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), CUTS)
def test_csv_with_another_escape(table: list[tuple[str, str]], cuts: list[int]) -> None:
    lines = (
        ";".join("'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" for value in row) + "\n"
        for row in table
    )
    options = CopyOptions("csv", ";", "", quote="'", escape="\\")
    assert read(options, "".join(lines).encode(), cuts) == table


@pytest.mark.parametrize(
    ("options", "first", "then"),
    [
        (CopyOptions(), b"", b"x" * 100),
        (CopyOptions(), b"", b"x" * 98 + b"\\\n"),
        (CopyOptions("csv", ",", ""), b'"', b"x" * 99),
        (CopyOptions("csv", ",", ""), b'a,b\n"', b"x\n" * 50),
    ],
)
def test_a_row_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: CopyOptions, first: bytes, then: bytes
) -> None:
    monkeypatch.setattr(copy_text, "ROW_BYTES_MAX", 1000)
    reader = RowReader(options, "t", COLUMNS)
    reader.feed(first)
    with pytest.raises(DucktailError) as found:
        for _ in range(20):
            reader.feed(then)
    assert found.value.sqlstate == "54000"


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        (CopyOptions(), b"a\tb\r\nc\td\n", "missing|literal newline"),
        (CopyOptions(), b"a\tb\nc\rd\te\n", "literal carriage return"),
        (CopyOptions("csv", ",", ""), b"a,b\nc\rd,e\n", "unquoted carriage return"),
        (CopyOptions("csv", ",", ""), b'a,b\n"c,d\n', "unterminated"),
        (CopyOptions(), b"a\n", 'missing data for column "b"'),
        (CopyOptions(header="match"), b"a\tc\n", "column name mismatch in header line field 2"),
        (CopyOptions(header="match"), b"a\n", "wrong number of fields in header line"),
    ],
)
def test_what_is_not_of_the_format(options: CopyOptions, data: bytes, message: str) -> None:
    with pytest.raises(DucktailError, match=message) as found:
        read(options, data, [])
    assert found.value.sqlstate == "22P04"
    assert (found.value.context or "").startswith("COPY t, line ")

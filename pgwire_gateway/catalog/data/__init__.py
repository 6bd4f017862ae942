"""Data files of the catalog: constant relations as .tsv, views over DuckDB's lists as .sql."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files


def read_rows(name: str) -> Iterator[list[str]]:
    """The rows of a .tsv file, as texts, without its header."""
    for line in read_text(name).splitlines()[1:]:
        yield line.split("\t")


def read_text(name: str) -> str:
    """The text of a file."""
    return (files(__name__) / name).read_text("utf-8")

"""The SQL texts in a package: string literals of its source without docstrings, lines of its .sql files."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

# Stands where an f-string has a value.
VALUE = "\N{REPLACEMENT CHARACTER}"

_WORDS = re.compile(
    r"\b(?:SELECT|FROM|JOIN|WHERE|WITH|AND|LAMBDA|UNION ALL|CREATE|INSERT|UPDATE|DELETE|DROP)\b|\w\(\)"
)
_RELATION = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|VIEW)\s+((?:[\w{VALUE}\"]+\.)*\"?)(\w+)\b", re.IGNORECASE
)
_DUCKDB = re.compile(r"\b((?:duckdb|pragma)_\w+)")


@functools.cache
def texts(path: Path) -> tuple[tuple[int, str], ...]:
    """Each string of a file with its line; texts that stand side by side are one, as Python has it."""
    return tuple(_texts(path))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".sql":
        # A file of SQL: its comments are no SQL, and `$home` and the like stand for values.
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield number, re.sub(r"\$\w+", VALUE, "" if line.lstrip().startswith("--") else line)
        return
    tree = ast.parse(path.read_text())
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            passed.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            passed |= set(ast.walk(node)) - {node} - _inner(node)
            parts = (str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
            yield node.lineno, "".join(parts)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed:
            yield node.lineno, node.value


def _inner(node: ast.JoinedStr) -> set[ast.AST]:
    """What stands in the values of an f-string, which may have texts of its own."""
    return {inner for part in node.values if isinstance(part, ast.FormattedValue) for inner in ast.walk(part)}


def sources(folder: Path) -> list[Path]:
    """The files of a folder that have SQL texts."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".sql"))


def is_sql(text: str) -> bool:
    """Whether a text looks like SQL or a part of it."""
    return _WORDS.search(text) is not None


def names_in(text: str) -> set[str]:
    """The last names of the relations, and of DuckDB's functions, that an SQL text reads or writes."""
    return {name for _, name in _RELATION.findall(text)} | set(_DUCKDB.findall(text))

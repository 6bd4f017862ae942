"""Names and texts in SQL: the only module that quotes identifiers and literals, and folds names."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def ident(name: str) -> str:
    """Quote a name as an SQL identifier, whatever characters it has.

    >>> ident('odd "quoted" name')
    '"odd ""quoted"" name"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a text as an SQL string literal; DuckDB knows no backslash escapes in it.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def blob_text(value: bytes) -> str:
    r"""DuckDB's text of bytes: `\x` and two digits for each.

    >>> blob_text(b"a\0")
    '\\x61\\x00'
    """
    return "".join(f"\\x{byte:02X}" for byte in value)


def list_literal(items: Sequence[object]) -> str:
    """DuckDB's list of elements that are SQL already; None is NULL, and a list is a list within.

    >>> list_literal(["1", None, ["'a'"]])
    "[1, NULL, ['a']]"
    """
    written = (
        list_literal(item) if isinstance(item, list) else "NULL" if item is None else str(item)
        for item in items
    )
    return f"[{', '.join(written)}]"


def shown_name(name: str) -> str:
    """A name as a user would write it: quoted only where it must be."""
    return name if PLAIN_NAME.fullmatch(name) else ident(name)


def fold(name: str) -> str:
    """Fold a name for comparison as DuckDB does: A to Z become lower case, all other characters stay.

    `str.lower()` folds more: it would equate the tables "É" and "é", and KELVIN SIGN and k.

    >>> fold("Orders"), fold("ÉTÉ")
    ('orders', 'ÉtÉ')
    """
    if name.isascii():
        return name.lower()
    # Of bytes, lower() folds ASCII only; it is ten times as fast as translate() on a long text.
    return name.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")


def select_from(query: str, projection: str, columns: int) -> str:
    """A SELECT of a projection over a query's columns, named c0, c1, ...

    Args:
        query: one SELECT (or anything else allowed in FROM's parentheses), without a semicolon.

    >>> select_from("SELECT 1", "c0::VARCHAR", 1).splitlines()
    ['SELECT c0::VARCHAR FROM (SELECT 1', ') AS __ducktail_result(c0)']
    """
    names = ", ".join(f"c{place}" for place in range(columns))
    # The line break ends a comment at the query's end.
    return f"SELECT {projection} FROM ({query}\n) AS __ducktail_result({names})"


def folded_sql(expression: str) -> str:
    """SQL that folds the value of an SQL expression as `fold` does; SQL's own lower() folds all of Unicode.

    translate() is slow, so ASCII, of which each letter is one byte, takes lower(). The functions stand with
    their catalog and schema, where no macro of a user can hide them.
    """
    letters = f"'{string.ascii_uppercase}', '{string.ascii_lowercase}'"
    return (
        f"CASE WHEN system.main.strlen({expression}) = system.main.length({expression}) "
        f"THEN system.main.lower({expression}) ELSE system.main.translate({expression}, {letters}) END"
    )

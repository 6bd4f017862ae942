"""Names and texts as SQL: the only place where an identifier or a literal is quoted."""

from __future__ import annotations

import re

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


def shown_name(name: str) -> str:
    """A name as a user would write it: quoted only where it must be."""
    return name if PLAIN_NAME.fullmatch(name) else ident(name)

"""PostgreSQL's schemas `public` and `pg_temp`, which are `main` and `temp` here, before the names of a text.

Scripts of pg_dump and of object-relational mappers write `public.orders`. If a schema of that name exists, it
is meant. Source: docs/clients.md, "Differences from PostgreSQL".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...engine.duck.objects import DEFAULT_SCHEMA, TEMPORARY
from ...engine.quoting import fold, literal
from ..language.statements.sources import KINDS
from ..rights.analysis import SEQUENCES
from ..session_state.context import Context
from ..text.classified import Name
from ..text.spans import Replacement
from ..text.tokens import STRING, Token

PUBLIC, PG_TEMP = "public", "pg_temp"
# The words of ALTER STREAM before tables of its source.
_SELECTS = frozenset({"TABLE", "TABLES", "WHERE"})


def may_name_schema(folded: str) -> bool:
    """True if a folded text may name one of these schemas."""
    if PG_TEMP in folded:
        return True
    return PUBLIC + "." in folded or PUBLIC + '"' in folded


def parts_in_main(session: Context, parts: Name) -> Name:
    """A name with `main` in place of the schema, if that does not exist."""
    if len(parts) == 2 and fold(parts[0]) == PUBLIC and not session.names.has_schema(PUBLIC):
        return (DEFAULT_SCHEMA, parts[1])
    return parts


def _source_names(tokens: Sequence[Token]) -> int:
    """The place from which a text names tables of a stream's source, whose schemas are those there."""
    kinds = [token.kind for token in tokens]
    if kinds[:1] == ["CREATE"]:
        for at, pair in enumerate(pairwise(kinds)):
            if pair[0] == "FROM" and pair[1] in KINDS and "STREAM" in kinds[1:3]:
                return at
            if pair == ("MIRROR", "OF") and "TABLE" in kinds[at:]:
                return kinds.index("TABLE", at)
    if kinds[:1] == ["ALTER"] and "STREAM" in kinds[1:3]:
        return next((at for at, kind in enumerate(kinds) if at > 3 and kind in _SELECTS), len(tokens))
    return len(tokens)


def in_schema(session: Context, tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacements of the schemas in qualified names, also those of sequences in strings."""
    tokens = tokens[: _source_names(tokens)]
    for token, dot in pairwise(tokens):
        if token.is_name and dot.kind == "." and fold(token.name) == PG_TEMP:
            yield Replacement(token.start, token.end, TEMPORARY)
    found = [at for at, token in enumerate(tokens) if token.is_name and fold(token.name) == PUBLIC]
    qualifying = [at for at in found if tokens[at + 1 : at + 2] and tokens[at + 1].kind == "."]
    if session.names.has_schema(PUBLIC):
        return
    if len(qualifying) == len(found):  # Otherwise a table or an alias may have the name.
        for at in qualifying:
            if not at or tokens[at - 1].kind != ".":
                yield Replacement(tokens[at].start, tokens[at].end, DEFAULT_SCHEMA)
    for at, token in enumerate(tokens[2:], 2):
        if token.kind == STRING and token.value.startswith(PUBLIC + ".") and tokens[at - 1].kind == "(":
            if fold(tokens[at - 2].text) in SEQUENCES:
                name = DEFAULT_SCHEMA + token.value.removeprefix(PUBLIC)
                yield Replacement(token.start, token.end, literal(name))

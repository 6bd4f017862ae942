"""What a later version brings: parsed already, and answered 0A000 until then.

Nothing of the language is read and passed over: a statement, clause or option is either carried out
or named here, with what to use instead where there is something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...engine.errors import NotSupported
from .parse import Query
from .statements import CreateStream, Statement


@dataclass(frozen=True, slots=True)
class Later:
    """Something that is not supported yet: what it is, what to use instead, where it stands (from 1)."""

    what: str
    hint: str | None = None
    position: int | None = None


def _create_stream(statement: CreateStream) -> Iterator[Later]:
    if statement.all_in_schema is not None:
        yield Later("ALL TABLES IN SCHEMA", "Name the tables: CREATE STREAM s ON a, b, c.")


_PARTS: dict[type[Statement], Callable[..., Iterator[Later]]] = {
    CreateStream: _create_stream,
}


def later_parts(parsed: Statement | Query) -> Iterator[Later]:
    """All that a statement or query has of what is not supported yet."""
    if isinstance(parsed, Query):
        return
    if type(parsed) in _PARTS:
        yield from _PARTS[type(parsed)](parsed)


def refuse_later(parsed: Statement | Query) -> None:
    """Refuse what this version does not bring yet.

    Raises:
        NotSupported: 0A000, with the clause and what to use instead.
    """
    for part in later_parts(parsed):
        raise NotSupported(f"{part.what} is not supported yet", hint=part.hint, position=part.position)

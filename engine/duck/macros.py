"""The macros of a database, listed once for each change of the catalog that may concern them.

DuckDB computes all rows of `duckdb_functions()` before it filters them: a listing takes 15 ms, as long as a
hundred small statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from ..quoting import fold
from .objects import Generation

_SQL = (
    "SELECT database_name, function_name, function_type, macro_definition "
    "FROM system.main.duckdb_functions() WHERE NOT internal"
)


@dataclass(frozen=True, slots=True)
class Macro:
    """One form of a macro, or a function that is not DuckDB's own.

    Args:
        catalog: the name of its database.
        name: folded.
        kind: `macro`, `table_macro` or another type of function.
        definition: its expression or query; None for a function that is no macro.
    """

    catalog: str
    name: str
    kind: str
    definition: str | None

    @property
    def query(self) -> str:
        """The macro's definition as a query."""
        return f"{self.definition}" if self.kind == "table_macro" else f"SELECT ({self.definition})"


Macros = tuple[Macro, ...]


def list_macros(cursor: duckdb.DuckDBPyConnection) -> Macros:
    """The macros that are visible in the cursor's transaction, including temporary ones.

    Raises:
        duckdb.Error: the query fails.
    """
    rows = cursor.execute(_SQL).fetchall()
    return tuple(Macro(catalog, fold(name), kind, definition) for catalog, name, kind, definition in rows)


class KnownMacros:
    """The committed macros, listed once for each generation of macros."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._known: tuple[int, Macros] | None = None

    def begin(self, catalog: str, bodies: Sequence[str], name: str) -> None:
        """Note that a new database has no macros but the forms of one."""
        generation = self._generation.stable_macros
        if generation is not None:
            self._known = generation, tuple(Macro(catalog, name, "macro", body) for body in bodies)

    def latest(self, cursor: duckdb.DuckDBPyConnection) -> Macros:
        """The macros now.

        Args:
            cursor: a cursor without an open transaction, and of a session without temporary macros.
        """
        before, known = self._generation.stable_macros, self._known
        if known is not None and known[0] == before:
            return known[1]
        macros = list_macros(cursor)
        if before is not None and self._generation.stable_macros == before:
            self._known = before, macros
        return macros

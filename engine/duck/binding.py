"""Binding and parsing of texts by DuckDB without running them: columns, parameters, and a flag for writes.

`_bind` of the DuckDB client returns all of it in a tenth of a millisecond, but is not public; if a client
lacks it, public functions like PREPARE are used, which are slower. Only this module depends on that. Binding
fixes a transaction's MVCC snapshot, so it is done on a cursor of its own.

`Parsed` caches the trees of texts that run repeatedly: parsing takes a third of the time of a statement of
one row (docs/design/engine.md, "Parsed once"). Names are bound and the plan is made at each run, with that
run's parameters. A text that runs once is not cached, because many texts occur only once. A long text is
never parsed separately from its run: the client's parser holds Python's lock, half a second for 20,000 rows
of VALUES, in which no other thread of the process runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from ..errors import NotSupported

# The client's name for a text that is run as several statements.
SEVERAL = "multi"
# Trees take up to 14 bytes for each character.
KEPT_CHARS_MAX = 32 * 1024
# The client's texts for a type that the binder does not know, and for that of a bare NULL.
_UNKNOWN = frozenset({"UNKNOWN", '"UNKNOWN"'})
_UNTYPED = _UNKNOWN | {'"NULL"', "NULL", "SQLNULL"}


@dataclass(frozen=True, slots=True)
class Bound:
    """The binder's result for a text.

    Args:
        names, types: names and DuckDB type texts of the result's columns, in order.
        parameters: name ("1", "2", ..) -> DuckDB type text.
        writes: True if running it changes the database.
        returns_rows: True if it returns rows (a plain INSERT returns a count).
        untyped: the names of parameters whose type the binder does not determine; VARCHAR in `parameters`.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    parameters: dict[str, str]
    writes: bool
    returns_rows: bool
    untyped: frozenset[str] = frozenset()


def bind(cursor: duckdb.DuckDBPyConnection, text: str) -> Bound:
    """Bind one statement.

    Raises:
        duckdb.Error: the text cannot be parsed or bound; the error has the position in `text`.
        NotSupported: a statement that is no query, whose PIVOT lists no values.
    """
    names, types, parameters, returns, _, kind, writes = cursor._bind(text, with_type=True, with_writes=True)
    if kind == SEVERAL:
        # A PIVOT first queries the rows for its columns. DuckDB runs a statement that is no query to tell.
        try:
            relation = cursor.sql(f"FROM (\n{text.rstrip().rstrip(';')}\n)")
        except duckdb.ParserException as error:
            raise NotSupported(
                "a PIVOT without a list of its values is supported in queries only",
                hint="List the values: PIVOT ... ON column IN (...).",
            ) from error
        names, types = relation.columns, relation.types
    return Bound(
        tuple(names),
        tuple(type_text(type_) for type_ in types),
        {name: type_text(type_) for name, type_ in parameters},
        writes,
        returns == "query_result",
        frozenset(name for name, type_ in parameters if str(type_) in _UNKNOWN),
    )


def type_text(type_: object) -> str:
    """A DuckDB type's text; the type of a bare NULL or an undeclared parameter is VARCHAR."""
    text = str(type_)
    return "VARCHAR" if text in _UNTYPED else text


class Parsed:
    """A statement's text, and its tree from its second run on.

    DuckDB parses `/` by the cursor's integer_division: a user's text is cached with that setting.
    """

    __slots__ = ("_runs", "_statement", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._statement: duckdb.Statement | None = None
        self._runs = 0

    def run(
        self, cursor: duckdb.DuckDBPyConnection, values: Mapping[str, object] | Sequence[object] = ()
    ) -> duckdb.DuckDBPyConnection:
        """Run the text; its rows are the cursor's result.

        Args:
            values: the values of $1, $2 and so on; or by name (`1` is $1), if the text may use fewer.

        Raises:
            duckdb.Error: the statement fails.
        """
        if len(self.text) > KEPT_CHARS_MAX:
            return self._run_long(cursor, values)
        statement = self._statement
        if statement is None:
            (statement,) = cursor.extract_statements(self.text)
            self._runs += 1
            if self._runs > 1:
                self._statement = statement
        if not isinstance(values, Mapping):
            return cursor.execute(statement, list(values) or None)
        named = statement.named_parameters
        return cursor.execute(statement, {name: values[name] for name in named if name in values} or None)

    def _run_long(
        self, cursor: duckdb.DuckDBPyConnection, values: Mapping[str, object] | Sequence[object]
    ) -> duckdb.DuckDBPyConnection:
        if not isinstance(values, Mapping):
            return cursor.execute(self.text, list(values) or None)
        named = bind(cursor, self.text).parameters if values else ()
        return cursor.execute(self.text, {name: values[name] for name in named if name in values} or None)

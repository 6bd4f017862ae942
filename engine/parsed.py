"""Texts that DuckDB parses once.

Parsing takes a third of what a statement of one row takes (docs/design/engine.md, "Parsed once"). What is
kept is the tree: names are bound and the plan is made at each run, with that run's parameters. A text
that runs once is not kept, as many are told only once. A long text is not parsed apart from its run at all:
the client's parser holds Python's lock, for 20,000 rows of VALUES for half a second, in which nothing else of
the process goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from .binding import bind

# Trees take up to 14 bytes a character.
KEPT_CHARS_MAX = 32 * 1024


class Parsed:
    """A statement's text, and its tree from its second run on.

    DuckDB parses `/` by the cursor's integer_division: a text of users' is kept with that.
    """

    __slots__ = ("_runs", "_statement", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._statement: duckdb.Statement | None = None
        self._runs = 0

    def run(
        self, cursor: duckdb.DuckDBPyConnection, values: Mapping[str, object] | Sequence[object] = ()
    ) -> duckdb.DuckDBPyConnection:
        """Run it; its rows are the cursor's.

        Args:
            values: of $1, $2 and so on; or by name (`1` is $1), where the text may name fewer.

        Raises:
            duckdb.Error: the statement's own.
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

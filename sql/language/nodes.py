"""The nodes that our language adds to sqlglot's trees.

A statement of ours is one node around its dataclass, which is the truth; a scan is a `Table`, so
that whatever walks a tree for tables and scopes finds it as a source.
"""

from __future__ import annotations

from sqlglot import exp

from .statements import Scan, Statement


class OurStatement(exp.Expression):
    """A statement of ours; `this` is its dataclass."""

    arg_types = {"this": True}  # noqa: RUF012 - sqlglot's own form

    @property
    def statement(self) -> Statement:
        """The statement."""
        statement = self.args["this"]
        assert isinstance(statement, Statement)
        return statement


class StreamScan(exp.Table):
    """A stream scan in FROM: a table whose `scan` says which stream, and how it is read."""

    arg_types = {**exp.Table.arg_types, "scan": True}  # noqa: RUF012 - sqlglot's own form

    @property
    def scan(self) -> Scan:
        """The scan's clauses and its place in the text."""
        scan = self.args["scan"]
        assert isinstance(scan, Scan)
        return scan


class Transactions(exp.Expression):
    """The word behind `LIMIT n` that makes it count transactions."""

    arg_types = {}  # noqa: RUF012 - sqlglot's own form

"""The nodes of sqlglot's trees that stand for what our language adds to DuckDB's.

They are sqlglot's own classes, as its compiled build allows no subclasses: a statement of ours is a
`Command`, a stream scan a `Table`, so that code which walks a tree for tables and scopes finds it as a
source. Their `meta` holds our dataclass, which decides; their text is in our language, and DuckDB's
generator writes it.
"""

from __future__ import annotations

from sqlglot import exp

from .scan import Scan, render_scan
from .statements.row import Statement
from .statements.table import render_statement

# Where in the text the select list of a Select ends, from 0: edits of the user's text go there.
LIST_END = "ducktail_list_end"
_STATEMENT, _SCAN, _TRANSACTIONS = "ducktail_statement", "ducktail_scan", " TRANSACTIONS"


def statement_node(statement: Statement) -> exp.Command:
    """The node of a statement of ours."""
    verb, _, rest = render_statement(statement).partition(" ")
    node = exp.Command(this=verb, expression=f" {rest}" if rest else None)
    node.meta[_STATEMENT] = statement
    return node


def statement_of(node: exp.Expr) -> Statement | None:
    """The statement of ours that a node is."""
    statement: Statement | None = node.meta.get(_STATEMENT)
    return statement


def become_scan(table: exp.Expr, scan: Scan) -> None:
    """Make a table a stream scan; what stands behind it in the tree stays."""
    table.set("this", exp.Var(this=render_scan(scan)))
    table.meta[_SCAN] = scan


def scan_of(node: exp.Expr) -> Scan | None:
    """The stream scan that a node is: its clauses and its place in the text."""
    scan: Scan | None = node.meta.get(_SCAN)
    return scan


def become_transactions(limit: exp.Expr) -> None:
    """Make a limit one of transactions."""
    limit.set("limit_options", exp.Var(this=_TRANSACTIONS))


def counts_transactions(limit: exp.Expr) -> bool:
    """True if a limit counts transactions."""
    options = limit.args.get("limit_options")
    return isinstance(options, exp.Var) and options.name == _TRANSACTIONS

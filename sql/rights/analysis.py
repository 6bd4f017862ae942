"""The names in a text, by DuckDB's own parser: tables, functions, types, and the use of each table.

`json_serialize_sql` gives the tree of a query without binding it, so nothing is looked up and no error can
tell of what the asker may not see. DML stands in the tree as a common table expression; MERGE, which may
not, is cut by our own tokens. Views and macros are not followed here (reach.py does).
Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import duckdb

from ...engine.duck.cursors import ask
from ...engine.errors import ProgramLimitExceeded
from ...engine.quoting import fold
from ..text.spans import without_lists
from ..text.tokens import plain_spaces

Path = tuple[str, ...]

SELECT = frozenset({"select"})
# Wraps DML, so that it is a query to the parser.
_WRAPPED = "WITH __ducktail_written AS ({text}) SELECT 1"
WRAPPED_AT = _WRAPPED.index("{text}")
# The tree in DuckDB's JSON; Python takes about 15 times as much for it.
TREE_BYTES_MAX = 32 << 20
_TREE = (
    "SELECT CASE WHEN system.main.strlen(tree) <= $2 THEN tree END "
    "FROM (SELECT system.main.json_serialize_sql($1) AS tree)"
)
# An end of line: the text may end in a comment.
_END = "\n"


class NotAnalysed(Exception):
    """The parser gives no tree of this text; with its own words where it is no SQL."""

    def __init__(self, message: str, *, syntax: bool) -> None:
        super().__init__(message)
        self.syntax = syntax


@dataclass(frozen=True, slots=True)
class Table:
    """A relation that a text names, and what it does with it.

    Args:
        place: in characters of the analysed text, from 0; None where the parser does not tell.
    """

    path: Path
    privileges: frozenset[str]
    place: int | None = None


@dataclass(slots=True)
class Named:
    """All that a text names.

    Args:
        tables: common table expressions are not among them.
        functions: of all kinds but those in `table_functions`.
        sequences: arguments of nextval and the like; None for one that is not written out.
        types: of casts.
        type_texts: of types that stand in strings (`make_type('INT')`); None for one that is not
            written out.
        special: SHOW TABLES and its like, by the name that DuckDB gives them.
        files: whether a COPY stands in it.
    """

    tables: list[Table] = field(default_factory=list)
    functions: set[Path] = field(default_factory=set)
    table_functions: set[Path] = field(default_factory=set)
    sequences: list[str | None] = field(default_factory=list)
    types: set[Path] = field(default_factory=set)
    type_texts: list[str | None] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    files: bool = False


SEQUENCES = frozenset({"nextval", "currval", "setval"})
# Functions that take names of types in a string -> which of their arguments it is.
TYPE_TEXTS = {
    "make_type": 0, "from_json": 1, "from_json_strict": 1, "json_transform": 1, "json_transform_strict": 1,
}  # fmt: skip


def named_in_query(cursor: duckdb.DuckDBPyConnection, text: str) -> Named:
    """The names in a query.

    Raises:
        NotAnalysed: the parser gives no tree.
        ProgramLimitExceeded: it is too large to be looked through.
    """
    text = plain_spaces(without_lists(text))
    (found_tree,) = ask(cursor, _TREE, [text, TREE_BYTES_MAX])
    if found_tree is None:
        raise ProgramLimitExceeded(
            "the statement is too large to be told what it reads",
            hint="COPY takes rows in any number, and a parameter a list of any length.",
        )
    tree = json.loads(found_tree)
    if tree["error"]:
        raise NotAnalysed(tree["error_message"], syntax=tree.get("error_type") == "parser")
    found = Named()
    for statement in tree["statements"]:
        _Walk(found, text).node(statement["node"], frozenset())
    return found


def named_in_dml(cursor: duckdb.DuckDBPyConnection, text: str) -> Named:
    """The names in an INSERT, UPDATE, DELETE or TRUNCATE.

    Raises:
        NotAnalysed: the parser gives no tree.
    """
    return named_in_query(cursor, _WRAPPED.format(text=text + _END))


def named_in_expression(cursor: duckdb.DuckDBPyConnection, text: str) -> Named:
    """The names in an expression, or in several separated by commas.

    Raises:
        NotAnalysed: the parser gives no tree.
    """
    return named_in_query(cursor, f"SELECT {text}{_END}")


class _Walk:
    """One walk down a tree."""

    def __init__(self, found: Named, text: str) -> None:
        self._found = found
        self._bytes = text.encode()

    def node(self, node: Any, visible: frozenset[str]) -> None:
        """Take what stands here and below.

        Args:
            visible: the common table expressions that can be named here, folded.
        """
        if isinstance(node, list):
            for child in node:
                self.node(child, visible)
            return
        if not isinstance(node, dict):
            return
        visible = self._with_ctes(node, visible)
        kind = node.get("type")
        rule = _RULES.get(kind) if isinstance(kind, str) else None
        done: frozenset[str] = frozenset() if rule is None else rule(self, node, visible)
        if "function_name" in node:
            self._function(node)
        if node.get("class") == "TYPE":
            self._found.types.add(_path(node, "type_name"))
        for key, child in node.items():
            if key not in done and key != "cte_map":
                self.node(child, visible)

    def _with_ctes(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """Walk the node's own common table expressions; each sees those before it."""
        for entry in (node.get("cte_map") or {}).get("map", ()):
            self.node(entry["value"], visible)
            visible |= {fold(entry["key"])}
        return visible

    def recursive(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """WITH RECURSIVE: only its second part sees the expression itself."""
        self.node(node.get("left"), visible)
        self.node(node.get("right"), visible | {fold(str(node.get("cte_name", "")))})
        return frozenset({"left", "right"})

    def table(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """A relation by its name."""
        self._table(node, SELECT, visible)
        return frozenset()

    def _table(self, node: dict[str, Any], privileges: frozenset[str], visible: frozenset[str]) -> None:
        path = _path(node, "table_name")
        if len(path) == 1 and fold(path[0]) in visible:
            return
        self._found.tables.append(Table(path, privileges, self._place(node)))

    def insert(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """INSERT: what it gives back, and what ON CONFLICT changes, it reads as well."""
        privileges = {"insert"}
        conflict = node.get("on_conflict_info") or {}
        if node.get("returning_list"):
            privileges |= {"select"}
        if conflict and conflict.get("action_type") not in ("NOTHING", "THROW"):
            privileges |= {"select", "update"}
        self._found.tables.append(Table(_path(node, "table"), frozenset(privileges)))
        return frozenset({"table_ref"})

    def update(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """UPDATE: what it sets may hang on what is there."""
        return self._written(node, frozenset({"update", "select"}), visible)

    def delete(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """DELETE and TRUNCATE: with a condition it tells what is there."""
        reads = any(node.get(key) for key in ("condition", "using_clauses", "returning_list"))
        return self._written(node, frozenset({"delete"}) | (SELECT if reads else frozenset()), visible)

    def _written(
        self, node: dict[str, Any], privileges: frozenset[str], visible: frozenset[str]
    ) -> frozenset[str]:
        target = node.get("table")
        if not isinstance(target, dict) or target.get("type") != "BASE_TABLE":
            raise NotAnalysed("what is written is no table", syntax=False)
        # A common table expression cannot be written: the name is a table's.
        self._table(target, privileges, frozenset())
        return frozenset({"table"})

    def copy(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """COPY in a common table expression writes a file."""
        self._found.files = True
        return frozenset()

    def table_function(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """A function in FROM."""
        function = node["function"]
        self._found.table_functions.add(_path(function, "function_name"))
        for key, child in function.items():
            if key != "function_name":
                self.node(child, visible)
        return frozenset({"function"})

    def show(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """DESCRIBE and SUMMARIZE have their query below them; SHOW TABLES has a name of DuckDB's."""
        if node.get("show_type") == "SHOW_SPECIAL" or node.get("query") is None:
            self._found.special.append(str(node.get("table_name", "")))
        return frozenset()

    def _function(self, node: dict[str, Any]) -> None:
        path = _path(node, "function_name")
        self._found.functions.add(path)
        name = fold(path[-1])
        if name in SEQUENCES:
            self._found.sequences.append(_constant(node, 0))
        if name in TYPE_TEXTS:
            self._found.type_texts.append(_constant(node, TYPE_TEXTS[name]))

    def _place(self, node: dict[str, Any]) -> int | None:
        offset = node.get("query_location")
        if not isinstance(offset, int) or not 0 <= offset < len(self._bytes):
            return None
        return len(self._bytes[:offset].decode(errors="ignore"))


def _path(node: dict[str, Any], name: str) -> Path:
    """The whole name, outermost part first."""
    parts = (node.get("qualified_name") or {}).get("path")
    if parts:
        return tuple(parts)
    return (str(node[name]),)


def _constant(call: dict[str, Any], number: int) -> str | None:
    """An argument, where it is a string that is written out."""
    arguments = call.get("arguments") or call.get("children") or []
    if any(one.get("name") or (one.get("expression") or one).get("alias") for one in arguments):
        return None  # DuckDB puts arguments with names into their own places.
    found = arguments[number] if number < len(arguments) else {}
    literal = (found.get("expression") or found).get("literal") or {}
    text = literal.get("text")
    return text if isinstance(text, str) and literal.get("kind") == "STRING" else None


_RULES = {
    "RECURSIVE_CTE_NODE": _Walk.recursive,
    "BASE_TABLE": _Walk.table,
    "INSERT_QUERY_NODE": _Walk.insert,
    "UPDATE_QUERY_NODE": _Walk.update,
    "DELETE_QUERY_NODE": _Walk.delete,
    "COPY_QUERY_NODE": _Walk.copy,
    "TABLE_FUNCTION": _Walk.table_function,
    "SHOW_REF": _Walk.show,
}

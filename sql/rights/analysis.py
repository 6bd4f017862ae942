"""The analysis of a statement: the queries in it, and the tables, functions and types that each names.

One analysis serves the resolution of names (pipeline/resolve.py), the check of rights (permission.py) and the
check of the views of topics (pipeline/checks.py); a statement keeps it. `json_serialize_sql` returns the tree
of a query without binding it, so nothing is looked up and no error reveals a hidden object. DML is put into a
common table expression; MERGE, which the parser does not accept there, is divided by ducktail's own
tokenizer. Views and macros are not followed here (reach.py follows them).

The expressions of a definition (DEFAULT, CHECK, USING, generated columns, indexes) run later, for any user
who writes the table. They have no tree and are analysed by their words: every name before a parenthesis is
checked as a function name; this may find too many names but never too few.
Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from ...engine.capture.plan import Dml
from ...engine.duck.cursors import ask
from ...engine.errors import DucktailError, InsufficientPrivilege, ProgramLimitExceeded
from ...engine.quoting import fold
from ..dml.dml import slice_dml
from ..language.classify import classify
from ..language.parse import Query
from ..reading import scan_relation
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, Kind
from ..text.spans import (
    Replacement,
    cut,
    defining_query_span,
    user_position,
    variable_value,
    without_lists,
)
from ..text.tokens import RESERVED, STRING, Token, plain_spaces
from .functions import SESSION_FUNCTIONS

Path = tuple[str, ...]

SELECT = frozenset({"select"})
# Wraps DML, so that the parser sees a query. The line end: the text may end in a comment.
_WRAPPED = "WITH __ducktail_written AS (", "\n) SELECT 1"
_EXPRESSION = "SELECT ", "\n"
# The maximum size of the tree in DuckDB's JSON; Python's objects take about 15 times as much.
TREE_BYTES_MAX = 32 << 20
_TREE = (
    "SELECT CASE WHEN system.main.strlen(tree) <= $2 THEN tree END "
    "FROM (SELECT system.main.json_serialize_sql($1) AS tree)"
)
# The key under which a statement keeps its analysis.
_KEPT = "analysis"


class NotAnalysed(Exception):
    """The error for a text without a syntax tree; it has the parser's message if the text is not SQL."""

    def __init__(self, message: str, *, syntax: bool) -> None:
        super().__init__(message)
        self.syntax = syntax


@dataclass(frozen=True, slots=True)
class Table:
    """A relation that a text names, and its use there.

    Args:
        place: character position in the statement's text, from 0; None if the parser reports none.
    """

    path: Path
    privileges: frozenset[str]
    place: int | None = None


@dataclass(slots=True)
class Named:
    """All names in a text.

    Args:
        tables: relations, without common table expressions.
        functions: functions of all kinds except table functions, which are in `table_functions`.
        sequences: arguments of nextval and related functions; None for an argument that is not a literal.
        types: types of casts.
        type_texts: types in strings (`make_type('INT')`); None for an argument that is not a literal.
        special: SHOW TABLES and similar statements, by DuckDB's names for them.
        files: the text contains a COPY.
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
# Functions that take names of types in a string -> the index of that argument.
TYPE_TEXTS = {
    "make_type": 0, "from_json": 1, "from_json_strict": 1, "json_transform": 1, "json_transform_strict": 1,
}  # fmt: skip


@dataclass(slots=True)
class QueryPart:
    """A query in a statement, as DuckDB's parser receives it.

    Args:
        text: the query.
        edits: the edits that made it from the statement's text, in order; None for a text whose positions are
            not the statement's.
        target: the target of a MERGE, with the privileges for its clauses; targets of other DML are in the
            tree.
    """

    text: str
    edits: tuple[Sequence[Replacement], ...] | None = ()
    target: Table | None = None
    _named: Named | None = None

    def named(self, cursor: duckdb.DuckDBPyConnection) -> Named:
        """All names in the query.

        Raises:
            NotAnalysed: the parser returns no tree.
            ProgramLimitExceeded: the tree is too large.
        """
        if self._named is None:
            named = named_in_query(cursor, self.text)
            named.tables = [replace(table, place=self._place(table.place)) for table in named.tables]
            self._named = named
        return self._named

    def _place(self, place: int | None) -> int | None:
        if place is None or self.edits is None:
            return None
        for edits in reversed(self.edits):
            place = user_position(place + 1, edits) - 1
        return place


def expression(text: str) -> QueryPart:
    """An expression in a statement, or several separated by commas."""
    return QueryPart(text.join(_EXPRESSION), None)


def parts_of(session: Context, statement: ParsedStatement) -> tuple[QueryPart, ...]:
    """The queries in a statement whose tables DuckDB reads or writes; stream scans are empty relations.

    Statements inside others (EXPLAIN, PREPARE, COPY of a query) are analysed separately.

    Raises:
        DucktailError: a MERGE cannot be divided.
    """
    classified, scans = statement.classified, list[Replacement]()
    if isinstance(statement.node, Query):
        scans = scan_relation.empty_scans(session, statement.node)
    text, schema = cut(classified.text, scans), session.names.schema
    kept = statement.plans.get(_KEPT)
    found: tuple[QueryPart, ...]
    if isinstance(kept, tuple) and kept[:2] == (text, schema):
        found = kept[2]
        return found
    try:
        found = tuple(_parts(classify(text) if scans else classified, scans, schema))
    except DucktailError as error:
        if error.position is not None:
            error.position = user_position(error.position, scans)
        raise
    statement.plans[_KEPT] = text, schema, found
    return found


def _parts(classified: Classified, scans: Sequence[Replacement], schema: str) -> Iterator[QueryPart]:
    text = classified.text

    def part(opening: str, start: int, first: int, end: int, closing: str = "") -> QueryPart:
        """The text up to `end`, with `opening` in place of the text from `start` to `first`."""
        edit = (Replacement(start, first, opening),)
        return QueryPart(cut(text[:end], edit) + closing, (scans, edit))

    if classified.verb == "MERGE":
        assert classified.dml is not None
        merge = slice_dml(classified, schema, lambda _: ("column",))
        if merge.merge is None or merge.has_subquery:
            raise InsufficientPrivilege(
                "permission denied: MERGE with a subquery in ON or WHEN",
                hint="Put it into the source: USING (SELECT ...).",
            )
        main, source = _merge_places(classified)
        end = source + len(merge.merge.source)
        assert text[source:end] == merge.merge.source, "the source is what stands behind USING"
        query = part("SELECT * FROM ", main, source, end, "\n")
        verbs = {clause.action.value.split()[0].lower() for clause in merge.merge.clauses}
        privileges = SELECT | (verbs & {"insert", "update", "delete"})
        query.target = Table(classified.dml.target, privileges)
        yield query
        yield expression(_merge_expressions(merge))
    elif classified.kind is Kind.DML:
        yield part(_WRAPPED[0], 0, 0, len(text), _WRAPPED[1])
    elif classified.kind is Kind.READ and classified.verb != "PRAGMA":
        yield QueryPart(text, (scans,))
    elif classified.kind is Kind.DDL:
        span = defining_query_span(classified)
        if span is not None:
            yield part("", 0, *span)
    elif classified.verb == "SET VARIABLE":
        value = variable_value(classified.tokens)
        if value is not None:
            yield part(_EXPRESSION[0], 0, value, len(text), _EXPRESSION[1])


def _merge_places(classified: Classified) -> tuple[int, int]:
    """The beginnings of MERGE and of its source."""
    tokens, facts = classified.tokens, classified.dml
    assert facts is not None
    using = next(
        i for i in range(facts.main, len(tokens)) if tokens[i].kind == "USING" and not tokens[i].depth
    )
    return tokens[facts.main].start, tokens[using + 1].start


def _merge_expressions(merge: Dml) -> str:
    """All expressions of a MERGE, separated by commas."""
    assert merge.merge is not None
    on = merge.merge.on
    found = [on[2:]] if on[:2].upper() == "ON" else []
    for clause in merge.merge.clauses:
        sets = (value for _, value in clause.sets)
        found += [text for text in (clause.condition, *sets, *clause.values, clause.message) if text]
    listed = [f"({text}\n)" for text in found]
    return ", ".join(listed if merge.returning is None else [*listed, merge.returning]) or "NULL"


def named_in_query(cursor: duckdb.DuckDBPyConnection, text: str) -> Named:
    """The names in a query.

    Raises:
        NotAnalysed: the parser returns no tree.
        ProgramLimitExceeded: the tree is too large to analyse.
    """
    text = plain_spaces(without_lists(text))
    tree = tree_of(cursor, text)
    found = Named()
    for statement in tree["statements"]:
        _Walk(found, text).node(statement["node"], frozenset())
    return found


def tree_of(cursor: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    """The parser's tree of a query.

    Raises:
        NotAnalysed: the parser returns no tree.
        ProgramLimitExceeded: the tree is too large to analyse.
    """
    (found_tree,) = ask(cursor, _TREE, [text, TREE_BYTES_MAX])
    if found_tree is None:
        raise ProgramLimitExceeded(
            "the statement is too large to be told what it reads",
            hint="COPY takes rows in any number, and a parameter a list of any length.",
        )
    tree: dict[str, Any] = json.loads(found_tree)
    if tree["error"]:
        raise NotAnalysed(tree["error_message"], syntax=tree.get("error_type") == "parser")
    return tree


class _Walk:
    """A depth-first walk over a tree."""

    def __init__(self, found: Named, text: str) -> None:
        self._found = found
        self._bytes = text.encode()

    def node(self, node: Any, visible: frozenset[str]) -> None:
        """Collect the names of a node and of the nodes below it.

        Args:
            visible: the folded names of the common table expressions in scope.
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
            self._found.types.add(path_of(node, "type_name"))
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
        """Collect a relation by its name."""
        self._table(node, SELECT, visible)
        return frozenset()

    def _table(self, node: dict[str, Any], privileges: frozenset[str], visible: frozenset[str]) -> None:
        path = path_of(node, "table_name")
        if len(path) == 1 and fold(path[0]) in visible:
            return
        self._found.tables.append(Table(path, privileges, self._place(node)))

    def insert(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """Collect an INSERT; it also reads the table for RETURNING and for ON CONFLICT ... DO UPDATE."""
        privileges = {"insert"}
        conflict = node.get("on_conflict_info") or {}
        if node.get("returning_list"):
            privileges |= {"select"}
        if conflict and conflict.get("action_type") not in ("NOTHING", "THROW"):
            privileges |= {"select", "update"}
        self._found.tables.append(Table(path_of(node, "table"), frozenset(privileges)))
        return frozenset({"table_ref"})

    def update(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """Collect an UPDATE, which also reads the table: new values may depend on the old row."""
        return self._written(node, frozenset({"update", "select"}), visible)

    def delete(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """Collect a DELETE or TRUNCATE, which also reads the table if it has a condition."""
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
        """Collect a COPY in a common table expression, which writes a file."""
        self._found.files = True
        return frozenset()

    def table_function(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """Collect a function in FROM."""
        function = node["function"]
        self._found.table_functions.add(path_of(function, "function_name"))
        for key, child in function.items():
            if key != "function_name":
                self.node(child, visible)
        return frozenset({"function"})

    def show(self, node: dict[str, Any], visible: frozenset[str]) -> frozenset[str]:
        """Collect DESCRIBE and SUMMARIZE, with a query below them, or SHOW TABLES, with a name of
        DuckDB's."""
        if node.get("show_type") == "SHOW_SPECIAL" or node.get("query") is None:
            self._found.special.append(str(node.get("table_name", "")))
        return frozenset()

    def _function(self, node: dict[str, Any]) -> None:
        path = path_of(node, "function_name")
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


def path_of(node: dict[str, Any], name: str) -> Path:
    """The qualified name, outermost part first."""
    parts = (node.get("qualified_name") or {}).get("path")
    if parts:
        return tuple(parts)
    return (str(node[name]),)


def _constant(call: dict[str, Any], number: int) -> str | None:
    """The value of an argument that is a string literal; None for another expression."""
    arguments = call.get("arguments") or call.get("children") or []
    if any(one.get("name") or (one.get("expression") or one).get("alias") for one in arguments):
        return None  # DuckDB moves named arguments to their own places.
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


# Names by the words of a text, without a tree.


def chains(tokens: Sequence[Token]) -> Iterator[tuple[int, Path]]:
    """Each name with its qualifiers: the index of its last token, and its parts."""
    at = 0
    while at < len(tokens):
        if not tokens[at].is_name:
            at += 1
            continue
        parts = [tokens[at].name]
        while at + 2 < len(tokens) and tokens[at + 1].kind == "." and tokens[at + 2].is_name:
            at += 2
            parts.append(tokens[at].name)
        yield at, tuple(parts)
        at += 1


def named_in_words(tokens: Sequence[Token], depth: int) -> Named:
    """The names that may be called in a definition.

    Args:
        depth: brackets inside fewer open ones hold names and columns: `t (a INT)`.
    """
    found = Named()
    for at, path in chains(tokens):
        if at + 1 >= len(tokens) or tokens[at + 1].kind != "(" or tokens[at].depth < depth:
            continue
        first = at - 2 * (len(path) - 1)
        if first and tokens[first - 1].kind == "REFERENCES":
            continue
        found.functions.add(path)
        name = fold(path[-1])
        if name in SEQUENCES:
            found.sequences.append(_string(tokens, at + 2))
        if name in TYPE_TEXTS:
            found.type_texts.append(None)
    found.functions |= {(name,) for name in _called_without_bracket(tokens)}
    return found


# At DEFAULT's own depth, these words end its expression.
_AFTER_DEFAULT = frozenset({"CHECK", "GENERATED", "AS", "REFERENCES", "CONSTRAINT", "PRIMARY", "UNIQUE"})


def _called_without_bracket(tokens: Sequence[Token]) -> Iterator[str]:
    """The functions in DEFAULT that are called by name alone (current_user); no column can be there."""
    within: int | None = None
    for token in tokens:
        if within is not None:
            ends = token.depth == within and (token.kind == "," or token.kind in _AFTER_DEFAULT)
            if ends or token.depth < within:
                within = None
            elif token.is_name and fold(token.name) in SESSION_FUNCTIONS:
                yield fold(token.name)
        if token.kind == "DEFAULT":
            within = token.depth


# Types that contain types, which follow a bracket or a comma.
_OF_TYPES = frozenset({"MAP", "STRUCT", "UNION", "ROW", "TUPLE", "LIST", "ARRAY"})


def named_types(tokens: Sequence[Token]) -> Iterator[tuple[int, Path]]:
    """Each name with its qualifiers that may be a type's: the index of its first token, and its parts.

    A type follows a column's name, `::`, AS or TYPE, is inside a type, or precedes a string.
    """
    for at, path in chains(tokens):
        first = at - 2 * (len(path) - 1)
        if len(path) == 1 or not first:
            continue
        before = tokens[first - 1]
        literal = at + 1 < len(tokens) and tokens[at + 1].kind == STRING
        column = before.is_name and before.kind not in RESERVED
        inside = before.kind in ("(", ",") and _opener(tokens, first) in _OF_TYPES
        if literal or column or inside or before.kind in ("::", "AS"):
            yield first, path


def _opener(tokens: Sequence[Token], at: int) -> str:
    """The word before the bracket around a token."""
    depth = tokens[at].depth - 1
    opening = next((i for i in range(at - 1, 0, -1) if tokens[i].kind == "(" and tokens[i].depth == depth), 0)
    return tokens[opening - 1].name.upper() if opening else ""


def _string(tokens: Sequence[Token], at: int) -> str | None:
    """The string that is a call's only argument."""
    whole = at + 1 < len(tokens) and tokens[at].kind == STRING and tokens[at + 1].kind == ")"
    return tokens[at].value if whole else None

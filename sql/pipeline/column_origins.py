"""The origins of a result's columns: the table and the number of the column, as RowDescription has them.

A column has an origin if it is a column of a table or view and nothing else, directly or through subqueries,
common table expressions and joins; a column of a view has the view. The origin is read from the tree of the
one analysis of a text (rights/analysis.py), and names of tables are found by the one resolver; columns are
found here, by DuckDB's rules, in the relations of FROM. Where the tree has something that is not known here,
or a name could mean more than one column, the column has none. What is found is compared with the names of
the result, column by column, before it is used.

Applications repeat a text with other literals: origins are kept by the text without its literals, for one
state of the catalog. Source: PostgreSQL's documentation, "Message Formats", RowDescription; its
markTargetListOrigin; docs/clients.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from ...engine.duck.objects import TABLE, TYPE, Object
from ...engine.errors import DucktailError
from ...engine.quoting import fold
from ..language.parse import Query
from ..results.results import ResultColumn
from ..rights.analysis import NotAnalysed, Path, parts_of, path_of, tree_of
from ..session_state.context import Context
from ..session_state.run_text import bound
from ..session_state.state_of import state_of
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from . import user_types

# The number of texts whose origins a session keeps, and the length of the longest one.
KEPT_MAX = 256
TEXT_CHARS_MAX = 8 * 1024
# The keys under which a statement keeps its origins, and its result's columns with them.
_FOUND, _MARKED = "origins", "columns with origins"
# The mark of a statement whose columns never have one.
NEVER = "never"
# Texts with these keep their literals: a quote in them may not be that of a string, or the string is a name.
_SPECIAL = re.compile(
    r"\\|\$(?!\d)|--|/\*|\b(?:from|join|as|update|into)\s*'|\bfrom\b[^()']{0,500},\s*'",
    re.IGNORECASE,
)
# Words without which a text names no table.
_NAMING = re.compile(r"\b(?:from|table|returning)\b", re.IGNORECASE)
# Words without which a text has no cast.
_CASTING = re.compile(r"::|\bcast\b", re.IGNORECASE)
# The beginning of a list of literals or parameters, in a text without its literals.
_LISTS = re.compile(r"\(\$?\?(?:\s*,\s*\$?\?)+")
# A quoted name, which is kept, or a literal.
_LITERALS = re.compile(r"""("[^"]*")|'[^']*'|\b\d+(?:\.\d+)?\b""")
# What a `*` may have beside the relation's name.
_OF_STAR = frozenset({"class", "type", "query_location", "query_location_length", "relation_name"})
_KNOWN_OF_STAR = _OF_STAR | {"exclude_list"}
# Joins with the columns of both sides, and those in which a column of USING is the left one.
_BOTH_SIDES = frozenset({"INNER", "LEFT", "RIGHT", "OUTER"})
_LEFT_ONES = frozenset({"INNER", "LEFT"})
# The name of an expression that is no column's, and one that may be any.
NO_COLUMN, ANY = "", "?"
# Expressions whose name is not a column's; so is that of functions.
_NAMED_OTHERWISE = frozenset({"CONSTANT", "COMPARISON", "CONJUNCTION", "CASE", "WINDOW"})

Origin = tuple[Object, int]


# Folded name, OID of the table, number, and OID of the type in a cast, of each column; OID 0 for none.
Origins = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a query or relation.

    Args:
        name: its folded name, NO_COLUMN or ANY.
        origin: None if it has none.
        cast: the OID of the type that it is cast to, or declared with, if that is a type of a user; else 0.
    """

    name: str
    origin: Origin | None = None
    cast: int = 0


Columns = list[_Column] | None


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation of FROM.

    Args:
        name: its folded name with all qualifiers, outermost first; its alias.
        columns: None if they are not known.
    """

    name: Path
    columns: Columns

    def is_called(self, qualifier: Path) -> bool:
        """True if a column may be qualified so."""
        return self.name[-len(qualifier) :] == qualifier


@dataclass(frozen=True, slots=True)
class _Scope:
    """The relations of FROM, and the columns that a name without a qualifier may mean."""

    relations: list[_Relation]
    columns: Columns


@dataclass(frozen=True, slots=True)
class _Kept:
    """The origins of a text's columns in one state of the catalog, with their OIDs."""

    state: object
    columns: Origins | None


def with_origins(
    session: Context, statement: ParsedStatement, columns: tuple[ResultColumn, ...] | None
) -> tuple[ResultColumn, ...] | None:
    """The columns of a statement's description, with their origins and the types of users."""
    return None if columns is None else marked(session, statement, columns, origins(session, statement))


def origins(session: Context, statement: ParsedStatement) -> Origins | None:
    """The origins of the columns of a statement's result.

    None if no column has one, or if their number is not known.
    """
    if session.object_oid is None or statement.away is not None:
        return None
    if session.block.ddl and statement.classified.kind in (Kind.READ, Kind.DML):
        user_types.known(session)  # Not when there is a result, whose rows this would take.
    kept = statement.plans.get(_FOUND)
    if kept is NEVER:
        return None
    if kept is None and not _may_have(statement):
        statement.plans[_FOUND] = NEVER
        return None
    state = _state(session)
    if isinstance(kept, _Kept) and kept.state == state and state is not None:
        return kept.columns
    if not _NAMING.search(statement.text) and not user_types.known(session).ambiguous:
        return None  # The labels alone tell the type of a cast.
    shape = _shape(statement.text), statement.user_oids
    kept = session.origins.get(shape)
    if not isinstance(kept, _Kept) or kept.state != state or state is None:
        kept = _Kept(state, _found(session, statement))
        session.origins.pop(shape, None)
        if len(session.origins) >= KEPT_MAX:
            del session.origins[next(iter(session.origins))]
        session.origins[shape] = kept
    statement.plans[_FOUND] = kept
    return kept.columns


def _may_have(statement: ParsedStatement) -> bool:
    """True if columns of a statement may have origins, in whatever state of the catalog."""
    classified = statement.classified
    if classified.kind not in (Kind.READ, Kind.DML) or isinstance(statement.node, Query):
        return False
    if classified.verb == "MERGE" or (classified.dml is not None and not classified.dml.has_returning):
        return False
    text = statement.text
    if statement.user_oids:
        return True
    return len(text) <= TEXT_CHARS_MAX and bool(_NAMING.search(text) or _CASTING.search(text))


def _shape(text: str) -> str:
    """A text without its literals, and with one in place of a list of them."""
    if _SPECIAL.search(text):
        return text
    shape = _LITERALS.sub(r"\1?", text)
    return _LISTS.sub("(?*", shape) if "(?" in shape or "($?" in shape else shape


def marked(
    session: Context, statement: ParsedStatement, columns: tuple[ResultColumn, ...], found: Origins | None
) -> tuple[ResultColumn, ...]:
    """The columns with their origins, if the names agree, and with the types of users.

    The same tuple for the same arguments.
    """
    if found is not None and len(found) != len(columns):
        found = None
    kept = statement.plans.get(_MARKED)
    if isinstance(kept, tuple) and kept[0] is columns and kept[1] is found:
        _, _, types, known = kept
        if types is None or types is user_types.known(session):
            made: tuple[ResultColumn, ...] = known
            return made
    types = None
    if _has_types(session, statement, columns):
        types = user_types.known(session)
    none = (("", 0, 0, 0),) * len(columns)
    here = found or none
    if any(oid and name != fold(column.name) for (name, oid, *_), column in zip(here, columns, strict=True)):
        here = none
    made = columns
    if types is not None or here is not none:
        made = tuple(
            ResultColumn(column.name, types.shown(column.type, cast) if types else column.type, oid, number)
            for (_, oid, number, cast), column in zip(here, columns, strict=True)
        )
    statement.plans[_MARKED] = columns, found, types, made
    return made


def _has_types(session: Context, statement: ParsedStatement, columns: tuple[ResultColumn, ...]) -> bool:
    """True if columns may have types of users: those of a query of DuckDB's, not of events."""
    is_query = statement.classified.kind in (Kind.READ, Kind.DML) and not isinstance(statement.node, Query)
    return is_query and user_types.has_any(session, (column.type for column in columns))


def _state(session: Context) -> object:
    """The state of catalog and rights to which origins belong; None for one that will not occur again."""
    state = state_of(session)
    if state is None:
        return None
    names, access = session.names, session.access
    temporary = names.temporary_objects() if names.temporary else None
    return state, temporary, access.rights if access.limited else None


def _found(session: Context, statement: ParsedStatement) -> Origins | None:
    """The origins of a statement's columns, from its tree."""
    try:
        (part,) = parts_of(session, statement)
        reader = _Reader(session, statement.user_oids)
        tree = tree_of(session.meta, part.text)
        node = tree["statements"][0]["node"]
        if statement.classified.kind is Kind.DML:
            node = node["cte_map"]["map"][0]["value"]["query_node"]
        columns = reader.query(node, {})
    except (NotAnalysed, DucktailError, duckdb.Error, ValueError, LookupError, RecursionError):
        return None
    if columns is None or not any(column.origin or column.cast for column in columns):
        return None
    return tuple(
        (column.name, reader.oid(column.origin[0]), column.origin[1], column.cast)
        if column.origin
        else (column.name, 0, 0, column.cast)
        for column in columns
    )


class _Reader:
    """Reads the columns of the queries in a tree; None for columns whose number is not known.

    Args:
        given: the OIDs of users' types with which parameters are declared, 0 for others.
    """

    def __init__(self, session: Context, given: Sequence[int]) -> None:
        self._session = session
        self._given = given
        self._resolver = session.names.resolver

    def oid(self, found: Object | None) -> int:
        """The OID of an object for clients; 0 for none."""
        assert self._session.object_oid is not None, "the caller has looked"
        names = self._session.names
        return (
            0
            if found is None
            else self._session.object_oid(found, names.objects(), names.temporary_objects())
        )

    def query(self, node: dict[str, Any], ctes: Mapping[str, Columns]) -> Columns:
        """The columns of a query, or of RETURNING.

        Args:
            ctes: the columns of the common table expressions in scope, by folded name.
        """
        inner = dict(ctes)
        for entry in (node.get("cte_map") or {}).get("map", ()):
            value = entry["value"]
            inner[fold(entry["key"])] = _renamed(self.query(value["query_node"], inner), value["aliases"])
        match node["type"]:
            case "SELECT_NODE":
                return self._items(node["select_list"], self._scope(node["from_table"], inner))
            case "INSERT_QUERY_NODE":
                return self._items(node["returning_list"], _alone(self._table(path_of(node, "table"), "")))
            case "UPDATE_QUERY_NODE" | "DELETE_QUERY_NODE":
                # A common table expression cannot be written: the name is a table's.
                return self._items(node["returning_list"], self._scope(node["table"], {}))
        return None

    # FROM.

    def _scope(self, node: dict[str, Any], ctes: Mapping[str, Columns]) -> _Scope:
        kind, alias = node["type"], fold(node.get("alias") or "")
        if kind == "EMPTY":
            return _Scope([], [])
        if kind == "JOIN" and not alias:
            return self._join(node, ctes)
        relation = _Relation((alias,), None)
        if kind == "SUBQUERY":
            relation = _Relation((alias,), self.query(node["subquery"]["node"], ctes))
        elif kind == "BASE_TABLE" and not node.get("at_clause"):
            path = path_of(node, "table_name")
            name = fold(path[-1])
            if len(path) == 1 and name in ctes:
                relation = _Relation((alias or name,), ctes[name])
            else:
                relation = self._table(path, alias)
        columns = _renamed(relation.columns, node.get("column_name_alias") or ())
        return _alone(_Relation(relation.name, columns))

    def _table(self, path: Path, alias: str) -> _Relation:
        found = self._resolver.find(TABLE, path)
        if found is None:
            return _Relation((alias or fold(path[-1]),), None)
        names = bound(self._session, f"SELECT * FROM {found.in_full}").names
        columns = [_Column(fold(name), (found, number)) for number, name in enumerate(names, 1)]
        name = (alias,) if alias else tuple(map(fold, (found.catalog, found.schema, found.name)))
        return _Relation(name, columns)

    def _join(self, node: dict[str, Any], ctes: Mapping[str, Columns]) -> _Scope:
        left, right = self._scope(node["left"], ctes), self._scope(node["right"], ctes)
        relations, kind = [*left.relations, *right.relations], node["join_type"]
        if left.columns is None or right.columns is None or kind not in _BOTH_SIDES:
            return _Scope(relations, None)
        shared = {fold(name) for name in node["using_columns"]}
        if node["ref_type"] == "NATURAL":
            if _has_any(left.columns) or _has_any(right.columns):
                return _Scope(relations, None)
            shared = {one.name for one in left.columns} & {one.name for one in right.columns}
        merged = [
            one if one.name not in shared or kind in _LEFT_ONES else _Column(one.name) for one in left.columns
        ]
        return _Scope(relations, [*merged, *(one for one in right.columns if one.name not in shared)])

    # The select list.

    def _items(self, items: Sequence[dict[str, Any]], scope: _Scope) -> Columns:
        found: list[_Column] = []
        for item in items:
            columns = self._item(item, scope)
            if columns is None:
                return None
            found += columns
        return found

    def _item(self, item: dict[str, Any], scope: _Scope) -> Columns:
        """The columns of one item of a select list."""
        kind, alias = item["class"], fold(item.get("alias") or "")
        if kind == "STAR":
            return _star(item, scope)
        if kind == "COLUMN_REF":
            parts = tuple(map(fold, item["column_names"]))
            return [replace(_meant(parts, scope), name=alias or parts[-1])]
        if _expands(item):
            return None
        # The name of another expression may be the name of a column in it, as that of `(s).a` is.
        is_other = kind in _NAMED_OTHERWISE or (kind == "FUNCTION" and "extract" not in item["function_name"])
        cast = self._type(item["type_expr"]) if kind == "CAST" else 0
        if kind == "PARAMETER" and item["identifier"].isdecimal():
            cast = dict(enumerate(self._given, 1)).get(int(item["identifier"]), 0)
        return [_Column(alias or (NO_COLUMN if is_other else ANY), cast=cast)]

    def _type(self, node: dict[str, Any]) -> int:
        """The OID of the user's type that a cast names, or of that of the elements of a list."""
        if node["type_name"] == "list":
            (node,) = node["children"]
        return self.oid(self._resolver.find(TYPE, tuple(node["qualified_name"]["path"])))


def _alone(relation: _Relation) -> _Scope:
    return _Scope([relation], relation.columns)


def _renamed(columns: Columns, names: Sequence[str]) -> Columns:
    """The columns of a relation with the names of its column aliases, which may be fewer than the columns."""
    columns = _distinct(columns)
    if columns is None or not names:
        return columns
    first = [replace(one, name=fold(name)) for name, one in zip(names, columns, strict=False)]
    return _distinct([*first, *columns[len(first) :]])


def _distinct(columns: Columns) -> Columns:
    """The columns of a relation, without their names if these are not distinct: DuckDB gives them others."""
    names = [column.name for column in columns or () if column.name not in (NO_COLUMN, ANY)]
    return columns if len(set(names)) == len(names) else [_Column(ANY) for _ in columns or ()]


def _meant(parts: Path, scope: _Scope) -> _Column:
    """The column of a name; one without an origin if it is not known."""
    columns = scope.columns
    if len(parts) > 1:
        called = [one for one in scope.relations if one.is_called(parts[:-1])]
        if len(called) != 1:
            return _Column(ANY)
        columns = called[0].columns
    meant = [column for column in columns or () if column.name in (parts[-1], ANY)]
    return meant[0] if len(meant) == 1 else _Column(ANY)


def _star(item: dict[str, Any], scope: _Scope) -> Columns:
    """The columns of `*` or `t.*`, possibly with EXCLUDE."""
    if any(value for key, value in item.items() if key not in _KNOWN_OF_STAR):
        return None
    columns = scope.columns
    if item["relation_name"]:
        called = [one for one in scope.relations if one.is_called((fold(item["relation_name"]),))]
        if len(called) != 1:
            return None
        columns = called[0].columns
    if columns is None:
        return None
    without = set(map(fold, item["exclude_list"]))
    if without and any(column.name in (NO_COLUMN, ANY) for column in columns):
        return None
    return [column for column in columns if column.name not in without]


def _has_any(columns: Sequence[_Column]) -> bool:
    return any(column.name == ANY for column in columns)


def _expands(node: Any) -> bool:
    """True if an expression may be several columns: COLUMNS(...) or an unnested struct in it."""
    rest = [node]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        elif isinstance(one, dict):
            # The star of count(*) is no COLUMNS(*).
            if one.get("class") == "STAR" and one.get("columns"):
                return True
            if one.get("function_name") in ("unnest", "unlist"):
                return True
            rest += one.values()
    return False

r"""Rewrites a client's catalog query, written for PostgreSQL, into one that DuckDB answers.

Three steps apply to fewer and fewer texts: a regular expression passes ordinary SQL unchanged; a pass over
the tokens removes the name of PostgreSQL's own schema and renames ducktail's functions; a query that reads
the catalog is parsed by sqlglot and rewritten as a tree. Only queries are rewritten: in DML the internal
names would reach the capture's analysis of a statement, in DDL they would be stored in the user's file.
would be kept in the user's file.

Each rule for the tree is a function from a node to its replacement; RULES has the rule of each kind of
node. The tree is walked from the leaves up, so a rule sees rewritten children and parents that are not yet
rewritten. The meaning of a column is looked up in the FROM of the queries around it, whose tables know
their relation (scope.py). Functions that look into the catalog become subqueries of the tree: their
tables come from the query's common table expressions, which DuckDB binds once however many calls there are.
Source: docs/design/catalog.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError, SqlglotError

from ...engine.errors import DucktailError, InsufficientPrivilege
from ...engine.quoting import fold
from ...engine.values import value_types
from ...sql.rights.analysis import SEQUENCES
from ...sql.statements import session_calls
from ...sql.text.spans import Replacement, cut
from ...sql.text.tokens import Token, occurs, tokenize
from . import functions, public_schema
from .casts import (
    array,
    cast_parameters,
    name_of,
    parameter_oid,
    plain_names,
    respell_cast,
    respell_column,
    respell_literals,
)
from .functions import PRIVILEGE_FUNCTIONS, ROW_FUNCTIONS, USER_VARIABLE, lookups, privilege_by_oid
from .oids import CATALOG, HOME, MARK, OUR_PREFIX, OWNER, TEMPORARY_SCHEMA, TYPE_MARK
from .operators import respell_operators
from .query_forms import fill_lists, respell_forms
from .result_columns import column_types, divide_whole, hold_types, name_columns, spread_stars
from .scope import (
    SHAPE,
    bare,
    call,
    called,
    column_of,
    columns_used,
    mark_empty,
    mark_tables,
    mark_wanted,
    shape_of,
    string,
    table_of,
    use_of,
    wide_column,
)
from .system_catalogs import INFORMATION_SCHEMA, PG_CATALOG, PG_SHAPES
from .views import ctes


def inline(call: exp.Anonymous) -> exp.Expr:
    """The body of the called function with its arguments; other calls unchanged."""
    found = _bodies().get((called(call), len(call.expressions)))
    if found is None:
        return call
    parameters, body = found
    arguments = dict(zip(parameters, call.expressions, strict=True))
    copy = body.copy()
    for column in list(copy.find_all(exp.Column)):
        argument = None if column.table else arguments.get(column.name)
        if argument is not None:
            column.replace(exp.Paren(this=argument.copy()))
    return copy


@cache
def _bodies() -> dict[tuple[str, int], tuple[tuple[str, ...], exp.Expr]]:
    """Each function's parameters and body, by name and number of arguments."""
    found = {}
    for head, sql in lookups().items():
        name, _, rest = head.partition("(")
        parameters = tuple(part.strip() for part in rest.rstrip(")").split(",") if part)
        body = parse_one(f"({sql})", read="duckdb")
        for table in body.find_all(exp.Table):
            table.meta[SHAPE] = PG_SHAPES[table.name].key
        found[name, len(parameters)] = (parameters, body)
    return found


Rule = Callable[[Any], exp.Expr]

# The common table expression for parameters that the rewritten query does not use.
PARAMETERS = f"{OUR_PREFIX}_parameters"
# Functions with another name in DuckDB.
_RENAMED = {"json_build_object": "json_object"}
# Functions in FROM that are replaced by queries.
_SOURCES = {
    "pg_partition_ancestors": "(SELECT NULL::BIGINT AS relid, 1 AS depth WHERE false)",
    "pg_get_keywords": "(SELECT keyword_name AS word, upper(keyword_category[:1]) AS catcode, "
    "keyword_category AS catdesc FROM system.main.duckdb_keywords())",
    "pg_listening_channels": f"(SELECT unnest({HOME}.channels()) AS pg_listening_channels)",
    # Of columns that are always empty: nothing here has such options.
    "pg_options_to_table": "(SELECT NULL::VARCHAR AS option_name, NULL::VARCHAR AS option_value WHERE false)",
}
# Functions in a select list that return many rows.
_EXPANDED = {
    "pg_partition_ancestors": "unnest([]::BIGINT[])",
    "pg_listening_channels": f"unnest({HOME}.channels())",
}

# Columns whose arrays begin at 0.
_VECTORS = ("int2vector", "oidvector")
_FORMAT_PART = re.compile(r"%(\d+\$)?([sIL%])")
# Functions that a relation's wide form answers from two columns of one row.
_PAIRS = {
    "format_type": (("atttypid", "atttypmod"), "__type"),
    "col_description": (("attrelid", "attnum"), "__description"),
}


@dataclass(frozen=True, slots=True)
class Respelt:
    """A query in DuckDB's spelling.

    Args:
        types: the PostgreSQL types of its columns; None for the types of DuckDB's answer.
        parameters: the OIDs of the types that the query casts `$1`, `$2`, ... to, else 0.
        reads_catalog: it reads a relation of the catalog, or calls a function that needs one.
    """

    text: str
    types: tuple[str | None, ...] = ()
    parameters: tuple[int, ...] = ()
    reads_catalog: bool = False


def respell(text: str) -> Respelt:
    """The query in DuckDB's spelling.

    Args:
        text: one query, its functions marked and without `pg_catalog.`.

    Raises:
        SqlglotError: sqlglot cannot read the text as a query.
    """
    tree = parse_one(text, read="postgres")
    if not isinstance(tree, exp.Query):
        raise ParseError("not a query")
    parameters = _parameters(tree)
    name_columns(tree)
    mark_tables(tree)
    spread_stars(tree)
    divide_whole(tree)
    types = column_types(tree)
    tree = _walked(tree)
    hold_types(tree, types)
    waiting = list(tree.find_all(exp.Anonymous))
    while waiting:
        found = waiting.pop()
        body = inline(found)
        if body is not found:
            # A call within the arguments was copied with them.
            waiting = [other for other in waiting if all(node is not found for node in _above(other))]
            waiting += body.find_all(exp.Anonymous)
            found.replace(body)
        elif name := called(found):
            found.set("this", f"{HOME}.{name}")
    mark_wanted(tree)
    mark_empty(tree)
    wanted = columns_used(tree)
    for table in tree.find_all(exp.Table):
        if use := use_of(table):
            # A database may qualify it, as in dbt's queries: there is only one, by any name.
            table.set("catalog", None)
            table.set("db", None)
            table.set("this", exp.to_identifier(use.cte))
    common = ctes(wanted)
    if lost := sorted(parameters.keys() - _parameters(tree).keys()):
        # An unused argument is still a parameter that the client sends.
        kept = ", ".join(f"${n}::{value_types.duckdb_type(parameters[n]) or 'VARCHAR'}" for n in lost)
        common.append(f"{PARAMETERS} AS (SELECT {kept})")
    return Respelt(
        _with(", ".join(common), tree.sql("duckdb", normalize_functions=False)),
        tuple(types),
        tuple(parameters.get(number, 0) for number in range(1, max(parameters, default=0) + 1)),
    )


def _above(node: exp.Expr) -> list[exp.Expr]:
    """The node and everything around it."""
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found


def _parameters(tree: exp.Expr) -> dict[int, int]:
    """The parameters by number, with the OID of the type that the query casts them to, else 0."""
    types: dict[int, int] = {}
    for found in tree.find_all(exp.Parameter):
        if found.name.isdigit():
            cast = found.find_ancestor(exp.Cast, exp.Query)
            direct = cast if isinstance(cast, exp.Cast) and bare(cast.this) is found else None
            types[int(found.name)] = parameter_oid(direct.args["to"]) if direct is not None else 0
    return types


def _with(ctes: str, query: str) -> str:
    """The query with ducktail's common table expressions before its own."""
    if not ctes:
        return query
    for opening in ("WITH RECURSIVE ", "WITH "):
        if query.startswith(opening):
            return f"{opening}{ctes}, {query.removeprefix(opening)}"
    return f"WITH {ctes} {query}"


def _walked(node: exp.Expr) -> exp.Expr:
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expr):
            new = _walked(value)
            if new is not value:
                node.set(key, new)
        elif isinstance(value, list):
            items = [_walked(item) if isinstance(item, exp.Expr) else item for item in value]
            if any(one is not other for one, other in zip(items, value, strict=True)):
                node.set(key, items)
    for kind, rule in RULES.items():
        if isinstance(node, kind):
            return rule(node)
    return node


def _table(node: exp.Table) -> exp.Expr:
    """A function in FROM: the column of `unnest(x) a` is also called `a`."""
    if isinstance(node.this, exp.Identifier):
        return node
    alias = node.args.get("alias")
    if source := _SOURCES.get(called(node.this)):
        query = parse_one(source, read="duckdb")
        query.set("alias", alias or exp.TableAlias(this=exp.to_identifier(called(node.this))))
        return query
    if isinstance(alias, exp.TableAlias) and alias.this and not alias.columns:
        alias.set("columns", [exp.to_identifier(alias.name)])
    if _counts_vector(node.this):
        name = exp.to_identifier("generate_subscripts")
        query = exp.Subquery(this=exp.Select(expressions=[exp.alias_(_subscripts(node.this), name)]))
        query.set("alias", alias or exp.TableAlias(this=name.copy()))
        return query
    return node


def _counts_vector(node: exp.Expr) -> bool:
    """True for generate_subscripts of a column whose arrays begin at 0."""
    if not isinstance(node, exp.Anonymous) or len(node.expressions) != 2:
        return False
    if fold(str(node.this)).removeprefix(MARK) != "generate_subscripts":
        return False
    column = column_of(node.expressions[0])
    return column is not None and column.pg_type in _VECTORS


def _subscripts(node: exp.Expr) -> exp.Expr:
    body: exp.Expr = parse_one("unnest(range(len(z)))::INTEGER", read="duckdb")
    next(body.find_all(exp.Column)).replace(node.expressions[0].copy())
    return body


def _lists(node: exp.Unnest) -> exp.Expr:
    """`unnest(a, b) [WITH ORDINALITY]` of several lists, side by side."""
    lists = node.expressions
    if len(lists) < 2:
        return node
    alias = node.args.get("alias")
    names = [column.name for column in alias.columns] if alias else []
    items = [exp.Anonymous(this="unnest", expressions=[one]) for one in lists]
    if ordinality := node.args.get("offset"):
        lengths = [exp.Anonymous(this="len", expressions=[one.copy()]) for one in lists]
        most = exp.Add(
            this=exp.Anonymous(this="greatest", expressions=lengths), expression=exp.Literal.number(1)
        )
        numbers = exp.Anonymous(this="range", expressions=[exp.Literal.number(1), most])
        items.append(exp.Anonymous(this="unnest", expressions=[numbers]))
        named = isinstance(ordinality, exp.Identifier)
        names += [ordinality.name] if named and len(names) == len(lists) else []
    names += (["unnest"] * len(lists) + ["ordinality"])[len(names) : len(items)]
    columns = [exp.alias_(item, name, quoted=True) for item, name in zip(items, names, strict=True)]
    return exp.Subquery(
        this=exp.Select(expressions=columns),
        alias=exp.TableAlias(this=alias.this) if alias and alias.this else None,
    )


def _like(node: exp.Binary) -> exp.Expr:
    """LIKE, whose escape is a backslash in PostgreSQL and nothing in DuckDB."""
    public_schema.compare(node)
    if isinstance(node.parent, exp.Escape):
        return node
    return exp.Escape(this=node, expression=exp.Literal.string("\\"))


def _equal(node: exp.Binary) -> exp.Expr:
    """A comparison of an array column with the text of an array."""
    for key, other in (("this", "expression"), ("expression", "this")):
        text = string(node.args[key])
        column = column_of(node.args[other])
        if text is not None and column is not None and column.duckdb_type.endswith("[]"):
            node.set(key, exp.cast(array(text), column.duckdb_type, dialect="duckdb"))
    return public_schema.compare(node)


def _any(node: exp.Any) -> exp.Expr:
    text = string(node.this)
    if text is not None and text.startswith("{"):
        node.set("this", exp.Paren(this=array(text)))
    elif isinstance(bare(node.this), exp.Parameter) and isinstance(node.parent, exp.Binary):
        column = column_of(node.parent.this)
        if column is not None:
            kept = exp.cast(bare(node.this), f"{column.duckdb_type}[]", dialect="duckdb")
            node.set("this", exp.Paren(this=kept))
    return node


def _coalesce(node: exp.Coalesce) -> exp.Expr:
    """`coalesce(list, '{}')`."""
    for item in node.expressions:
        if string(item) == "{}":
            item.replace(exp.Array(expressions=[]))
    return node


def _joined(node: exp.DPipe) -> exp.Expr:
    """`||` of arrays: with NULL the result is the other array, while DuckDB returns NULL."""
    for side in (node.this, node.expression):
        column = column_of(side)
        if isinstance(bare(side), exp.Array) or (column and column.duckdb_type.endswith("[]")):
            return exp.Anonymous(this="list_concat", expressions=[node.this, node.expression])
    return node


def _bracket(node: exp.Bracket) -> exp.Expr:
    """An element of a vector or a name, counted from 0; sqlglot stores a literal index less one."""
    column = column_of(node.this)
    if column is None or column.pg_type not in (*_VECTORS, "name") or len(node.expressions) != 1:
        return node
    index = node.expressions[0]
    more = 2 if isinstance(index, (exp.Literal, exp.Neg)) else 1
    place = exp.Add(this=exp.Paren(this=index), expression=exp.Literal.number(more))
    function = "array_extract" if column.pg_type == "name" else "list_extract"
    return exp.Anonymous(this=function, expressions=[node.this, place])


def _function(node: exp.Anonymous) -> exp.Expr:
    name = called(node)
    arguments = node.expressions
    if name in _PAIRS and len(arguments) == 2:
        return _pair(node, *_PAIRS[name])
    if name == "pg_get_serial_sequence" and len(arguments) == 2:
        return _serial_sequence(node)
    if name == "format_type" and isinstance(arguments[1], exp.Null):
        return node
    if name == "obj_description" and len(arguments) == 2 and (catalog := string(arguments[1])):
        shape = PG_SHAPES.get(catalog)
        return call(name, arguments[0], exp.Literal.number(shape.oid if shape else 0))
    if name in PRIVILEGE_FUNCTIONS:
        return _privilege(node, name)
    if name in ROW_FUNCTIONS and arguments:
        return _row_function(node, *ROW_FUNCTIONS[name])
    if name in _EXPANDED:
        return parse_one(_EXPANDED[name], read="duckdb")
    if _counts_vector(node) and not isinstance(node.parent, exp.Table):
        return _subscripts(node)
    if name == "_pg_expandarray":
        return exp.Anonymous(this="unnest", expressions=[node])
    if fold(str(node.this)) in _RENAMED:
        node.set("this", _RENAMED[fold(str(node.this))])
    return node


def _privilege(node: exp.Anonymous, name: str) -> exp.Expr:
    """A privilege function of an object whose oid is in a column: the object is looked up by oid."""
    at = len(node.expressions) - PRIVILEGE_FUNCTIONS[name]
    column = column_of(node.expressions[at]) if 0 <= at <= 1 else None
    if column is not None and column.pg_type == "oid":
        return call(privilege_by_oid(name), *node.expressions)
    return node


def _pair(node: exp.Anonymous, keys: tuple[str, str], answer: str) -> exp.Expr:
    """A function of two columns of one row of pg_attribute; format_type of a row of pg_type."""
    first, second = node.expressions
    table = table_of(first)
    if table is None:
        return node
    shape = shape_of(table)
    assert shape, "table_of finds tables of the catalog"
    names = (fold(bare(first).name), fold(bare(second).name))
    if shape.name == "pg_attribute" and names == keys and table_of(second) is table:
        return _of_row(node, wide_column(table, answer))
    if called(node) == "format_type" and isinstance(bare(second), exp.Null) and names[0] == "oid":
        return name_of(first, "regtype") if shape.name == "pg_type" else node
    return node


def _serial_sequence(node: exp.Anonymous) -> exp.Expr:
    """The sequence of a row of pg_attribute, which names its table as `attrelid::regclass::text`."""
    relation, column = map(bare, node.expressions)
    while isinstance(relation, exp.Cast) or called(relation) == "regclass_out":
        relation = bare(relation.this if isinstance(relation, exp.Cast) else relation.expressions[0])
    table = table_of(relation)
    shape = shape_of(table) if table is not None else None
    if table is None or shape is None or shape.name != "pg_attribute" or table_of(column) is not table:
        return node
    if (fold(relation.name), fold(column.name)) != ("attrelid", "attname"):
        return node
    return wide_column(table, "__sequence")


def _row_function(node: exp.Anonymous, relation: str, key: str, answer: str) -> exp.Expr:
    first, *rest = node.expressions
    table = table_of(first)
    shape = shape_of(table) if table is not None else None
    if table is None or shape is None or shape.name != relation or fold(bare(first).name) != key:
        return node
    if relation == "pg_index" and rest and bare(rest[0]).sql() != "0":
        return node  # It is pg_get_indexdef of one column of the index.
    return _of_row(node, wide_column(table, answer))


def _of_row(node: exp.Anonymous, column: exp.Column) -> exp.Expr:
    """The column that answers a call; in a grouped query one value of it, as the row's key is in GROUP BY."""
    query = node.find_ancestor(exp.Select, exp.Group, exp.AggFunc)
    grouped = isinstance(query, exp.Select) and query.args.get("group") is not None
    return exp.AnyValue(this=column) if grouped else column


def _format(node: exp.Format) -> exp.Expr:
    """format('%s.%I', a, b) as the concatenation of its parts; a template in DuckDB's form stays."""
    text = string(node.this)
    if text is None or "{}" in text:
        return node
    parts: list[exp.Expr] = []
    arguments = list(node.expressions)
    last = taken = 0
    for found in _FORMAT_PART.finditer(text):
        if found.start() > last:
            parts.append(exp.Literal.string(text[last : found.start()]))
        last = found.end()
        if found[2] == "%":
            parts.append(exp.Literal.string("%"))
            continue
        at = int(found[1][:-1]) - 1 if found[1] else taken
        taken = at + 1
        if at >= len(arguments):
            return node
        parts.append(_formatted(arguments[at].copy(), found[2]))
    if last < len(text):
        parts.append(exp.Literal.string(text[last:]))
    return exp.Anonymous(this="concat", expressions=parts or [exp.Literal.string("")])


def _formatted(value: exp.Expr, how: str) -> exp.Expr:
    if how == "I":
        return call("quote_ident", exp.cast(value, "VARCHAR", dialect="duckdb"))
    return call("quote_nullable", value) if how == "L" else value


RULES: dict[type[exp.Expr], Rule] = {
    exp.Cast: respell_cast,
    exp.Column: respell_column,
    exp.Table: _table,
    exp.Unnest: _lists,
    exp.Like: _like,
    exp.ILike: _like,
    exp.EQ: _equal,
    exp.NEQ: _equal,
    exp.RegexpLike: public_schema.compare,
    exp.In: public_schema.contained,
    exp.Any: _any,
    exp.Coalesce: _coalesce,
    exp.DPipe: _joined,
    exp.Bracket: _bracket,
    exp.Anonymous: _function,
    exp.Format: _format,
    # DuckDB would take the bare word for a column that is named after it.
    exp.CurrentTimestamp: lambda node: exp.Anonymous(this="now"),
}


# A client's catalog query is a few thousand characters; a longer text contains a user's data.
TEXT_MAX = 64 * 1024
# Bounds of the rewritten texts that are kept: their number, and the longest one. A client repeats its texts;
# a text is a few kilobytes.
TEXTS_KEPT = 512
KEPT_CHARS_MAX = 8 * 1024

_HINTS = re.compile(
    r"pg_|information_schema|\b(?:to_)?reg[a-z]+\b|current_|\b(?:session_)?user\b|\bversion\s*\("
    r"|_description\s*\("
    r"|_privilege\s*\(|\bquote_|\bformat_type\b|set_config|getdatabaseencoding|operator\s*\(|\binet_"
    r"|txid_|array_|row_security|::\s*oid\b",
    re.IGNORECASE,
)
_OUR_NAME = re.compile(CATALOG, re.IGNORECASE | re.ASCII)
_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})
_BEFORE_A_QUERY = frozenset({"EXPLAIN", "ANALYZE", "VERBOSE"})
_WRITING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "INTO"})
# Types that DuckDB does not know.
_TYPES = frozenset(
    {"regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole", "regoper", "regoperator"}
    | {"name", "xid", "cid"}
)
_OID_TYPES = frozenset(name.upper() for name in _TYPES - {"name"}) | {"OID"}
# DuckDB's functions with the same names; PostgreSQL's are meant only in queries of the catalog.
_NATIVE = frozenset({"array_to_string", "array_length", "string_to_array"})
# Functions that PostgreSQL calls without parentheses, and ducktail's equivalents.
_BARE = {
    "CURRENT_USER": "current_user", "SESSION_USER": "session_user", "CURRENT_ROLE": "current_role",
    "CURRENT_CATALOG": "current_catalog",
}  # fmt: skip
# The same for USER, which may be a column's name in DuckDB: only in a query without FROM, at the beginning of
# an expression.
_USER = "USER"
_BEFORE_USER = frozenset({"SELECT", ",", "(", "=", "||", "<>"})
# In statements that store or write, the expression of the session's user; it names nothing of the catalog.
_USERS = frozenset({"CURRENT_USER", "SESSION_USER", "CURRENT_ROLE"})
_WRITTEN_USER = f"coalesce(getvariable('{USER_VARIABLE}')::VARCHAR, '{OWNER}')"
_WRITES_OR_DEFINES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "ALTER"})
_CLAUSES = frozenset({"SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "VALUES", "WITH"})
# Keywords that PostgreSQL accepts as a column's name after AS, and the tokens that may follow.
_LABELS = _WRITING | {"SELECT", "TABLE", "WITH", "USER", "ORDER", "GROUP"}
_AFTER_A_LABEL = frozenset({"", ",", ")", ";", "FROM", "WHERE", "UNION", "ORDER", "LIMIT", "GROUP"})
_AFTER_A_COLUMN = frozenset({"", ",", ";", "FROM", "WHERE", "UNION", "ORDER", "LIMIT"})
_OURS = functions.names()
_LOOKUPS = frozenset(head.partition("(")[0] for head in functions.lookups()) | functions.ROWS


class Piece(NamedTuple):
    """A token of the new text, with its position in the old one (start == end: none)."""

    text: str
    token: Token


def rewrite(text: str) -> str:
    """The text in DuckDB's form; a text without references to PostgreSQL's catalog is unchanged.

    Raises:
        InsufficientPrivilege: see `respelt`.
    """
    return respelt(text).text


def respelt(text: str) -> Respelt:
    """The text in DuckDB's form, and the types of its columns where the catalog knows them.

    Raises:
        InsufficientPrivilege: the text itself names the catalog's database, whose changes would affect every
            session.
    """
    text = fill_lists(respell_operators(respell_literals(text)))
    if occurs(_OUR_NAME, text):
        _refuse_our_name(text)
    if len(text) > TEXT_MAX or _HINTS.search(text) is None:
        return Respelt(respell_forms(plain_names(text)), parameters=cast_parameters(text))
    if session_calls.read(text):
        return Respelt(text)  # The session runs these statements.
    found = (_kept_rewritten if len(text) <= KEPT_CHARS_MAX else _rewritten)(text)
    if not found.reads_catalog and not found.types:
        found = replace(found, text=respell_forms(found.text))
    return found if found.parameters else replace(found, parameters=cast_parameters(text))


def _refuse_our_name(text: str) -> None:
    try:
        tokens = tokenize(text)
    except DucktailError:
        return  # The session reports the error in it.
    for token in tokens:
        if token.is_name and fold(token.name) == CATALOG:
            raise InsufficientPrivilege(
                f'permission denied for database "{CATALOG}"',
                hint="It is ducktail's own; what it holds is in pg_catalog and information_schema.",
                position=token.start + 1,
            )


def _rewritten(text: str) -> Respelt:
    try:
        tokens = tokenize(text)
    except DucktailError:
        return Respelt(text)  # The session reports the error in it.
    first = next((at for at, token in enumerate(tokens) if token.kind not in _BEFORE_A_QUERY), None)
    if first is None or tokens[first].kind not in _QUERIES or _writes(tokens):
        return Respelt(_writing(text, tokens))
    if any(token.kind == ";" for token in tokens[:-1]):
        return Respelt(text)  # Several statements: the session refuses them, or divides them and calls again.
    has_from = any(token.kind == "FROM" for token in tokens)
    pieces = _plain(tokens, with_user=not has_from)
    reads = _reads_catalog(tokens)
    if reads or _asks_the_session(tokens, pieces):
        try:
            begin = tokens[first].start
            query = respell(" ".join(piece.text for piece in pieces if piece.token.start >= begin))
        except SqlglotError:
            pass  # It is not PostgreSQL's grammar; only its names are replaced.
        else:
            types = query.types if first == 0 else ()
            return Respelt(text[: tokens[first].start] + query.text, types, query.parameters, reads)
    return Respelt(_spliced(text, pieces), reads_catalog=reads)


_kept_rewritten = lru_cache(TEXTS_KEPT)(_rewritten)


def _writes(tokens: Sequence[Token]) -> bool:
    return any(token.kind in _WRITING and not _is_label(tokens, at) for at, token in enumerate(tokens))


def _is_label(tokens: Sequence[Token], at: int) -> bool:
    """True if a keyword is a column's name: after AS, or after a table's name."""
    before = tokens[at - 1].kind if at else ""
    # A name after AS ends its item; a query after AS (of CREATE TABLE) does not.
    following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
    return before == "." or (before == "AS" and following in _AFTER_A_LABEL)


def _reads_catalog(tokens: Sequence[Token]) -> bool:
    """True if it names a relation of the catalog, or a function or type that needs a lookup there."""
    for at, token in enumerate(tokens):
        following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
        if not token.is_name:
            continue
        name = fold(token.name)
        if name in PG_SHAPES and following not in ("(", "."):
            return True
        before = tokens[at - 1].kind if at else ""
        if name in _LOOKUPS and following == "(" and not _names_sequence(tokens, at):
            return True
        if (name, following) in ((INFORMATION_SCHEMA, "."), ("operator", "(")):
            return True
        if name in _TYPES and before in ("::", "AS", ".") and not _names_sequence(tokens, at - 2):
            return True
        if name == "oid" and before in ("::", "AS") and any(one.kind == "PG_TYPEOF" for one in tokens[:at]):
            return True
    return False


def _names_sequence(tokens: Sequence[Token], at: int) -> bool:
    """True if a token begins the argument of nextval, currval or setval, which the session resolves."""
    if at > 1 and tokens[at - 1].kind == ".":
        at -= 2
    if at > 5 and tokens[at].kind == ")":
        at -= 5  # pg_get_serial_sequence('t', 'c')
    return at > 1 and tokens[at - 1].kind == "(" and fold(tokens[at - 2].text) in SEQUENCES


def _asks_the_session(tokens: Sequence[Token], pieces: Sequence[Piece]) -> bool:
    """True if it has no FROM and calls one of ducktail's functions or casts to oid: its types are then
    PostgreSQL's."""
    if any(token.kind == "FROM" for token in tokens):
        return False
    if any(before.kind == "::" and token.kind == "OID" for before, token in pairwise(tokens)):
        return True
    return any(piece.text.startswith(MARK) or piece.token.kind == "CURRENT_SCHEMA" for piece in pieces)


def _writing(text: str, tokens: Sequence[Token]) -> str:
    """A text that writes or defines: `current_user` is the session's, and PostgreSQL's schema is left out.

    No function of ducktail's is substituted: its name would be stored in the user's file.
    """
    if not tokens or tokens[0].kind not in _WRITES_OR_DEFINES | {"WITH"}:
        return text
    if tokens[0].kind in ("CREATE", "ALTER") and tokens[1:2] and tokens[1].kind in ("USER", "ROLE"):
        return text
    pieces = []
    for at, token in enumerate(tokens):
        kinds = [found.kind for found in tokens[at : at + 4]]
        before = tokens[at - 1].kind if at else ""
        following = kinds[1] if len(kinds) > 1 else ""
        owner = before == "TO" and tokens[at - 2].kind == "OWNER"
        if token.kind in _USERS and not owner and before not in (".", "AS") and following not in ("(", "."):
            pieces.append(Replacement(token.start, token.end, _WRITTEN_USER))
        elif token.is_name and fold(token.name) == PG_CATALOG and kinds[1:2] == ["."] and kinds[3:] == ["("]:
            pieces.append(Replacement(token.start, tokens[at + 2].start, ""))
    return cut(text, pieces) if pieces else text


def _plain(tokens: Sequence[Token], *, with_user: bool) -> list[Piece]:
    """The tokens without those that only qualify PostgreSQL's own objects.

    These are `pg_catalog.f(...)`, `OPERATOR(pg_catalog.~)` and `COLLATE pg_catalog.default`; calls of
    ducktail's functions get their marked names.
    """
    pieces: list[Piece] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        kinds = tuple(found.kind for found in tokens[at : at + 6])
        if _is_prefix(token, kinds):
            at += 2
            pieces += _named(tokens, at, qualified=True, with_user=False)
            at += 1
        elif kinds[:2] == ("OPERATOR", "("):
            closing = next((i for i in range(at, len(tokens)) if tokens[i].kind == ")"), len(tokens) - 1)
            operator = "".join(found.text for found in tokens[at + 2 : closing])
            pieces.append(Piece(operator.rpartition(".")[2], _joined_tokens(tokens[at], tokens[closing])))
            at = closing + 1
        elif token.kind == "COLLATE":
            at += 4 if kinds[2:3] == (".",) else 2
        else:
            pieces += _named(tokens, at, qualified=False, with_user=with_user)
            at += 1
    return pieces


def _is_prefix(token: Token, kinds: tuple[str, ...]) -> bool:
    """True if the token is PostgreSQL's own schema before an object that is no relation of it."""
    if not token.is_name or kinds[1:2] != (".",):
        return False
    name = fold(token.name)
    return name == PG_CATALOG or (name == INFORMATION_SCHEMA and kinds[2:3] == ("_PG_EXPANDARRAY",))


def _joined_tokens(first: Token, last: Token) -> Token:
    return first._replace(end=last.end)


def _named(tokens: Sequence[Token], at: int, *, qualified: bool, with_user: bool) -> list[Piece]:
    """The token at `at` unchanged, or marked if it calls one of ducktail's functions."""
    if at >= len(tokens):
        return []
    token = tokens[at]
    before = tokens[at - 1].kind if at and not qualified else ""
    following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
    place = _joined_tokens(tokens[at - 2], token) if qualified else token
    if token.kind in _LABELS and _is_label(tokens, at):
        return [Piece(f'"{fold(token.text)}"', place)]  # sqlglot reads no such keyword as a name.
    if before == "." or not token.is_name:
        return [Piece(token.text, place)]
    name = fold(token.name)
    around = tokens[at - 3].kind if qualified and at > 2 else before
    if following == "[" and token.kind in _OID_TYPES and around in ("::", "AS"):
        return [Piece(TYPE_MARK + name, place)]  # sqlglot reads no array of these types.
    if following == "(" and name in _OURS and not _names_sequence(tokens, at):
        return [Piece(MARK + name, place)]
    if following not in ("(", ".") and before != "AS" and token.kind in _BARE:
        return [Piece(f"{MARK}{_BARE[token.kind]}()", place)]
    if token.kind == _USER and with_user and before in _BEFORE_USER and following != ".":
        return [Piece(f"{MARK}user()", place)]
    return [Piece(token.text, place)]


def _spliced(text: str, pieces: Sequence[Piece]) -> str:
    """The text with ducktail's functions qualified, and otherwise unchanged."""
    parts: list[str] = []
    last = 0
    for piece, name in zip(pieces, _names(pieces), strict=True):
        new = piece.text
        if new.startswith(MARK):
            function = new.removeprefix(MARK)
            new = function if function in _NATIVE else f"{HOME}.{function}"
        elif fold(new) == TEMPORARY_SCHEMA:
            new = "temp"
        if name:
            new += f' AS "{name}"'
        if new != text[piece.token.start : piece.token.end]:
            parts += [text[last : piece.token.start], new]
            last = piece.token.end
    return "".join(parts) + text[last:] if parts else text


def _names(pieces: Sequence[Piece]) -> list[str]:
    """PostgreSQL's name for each piece that ends a column consisting of a call of ducktail's functions."""
    names = [""] * len(pieces)
    clause = ""
    for at, piece in enumerate(pieces):
        kind = piece.token.kind
        if piece.token.depth == 0 and kind in _CLAUSES:
            clause = kind
        begins = at > 0 and pieces[at - 1].text.upper() in ("SELECT", ",")
        if piece.token.depth or clause != "SELECT" or not begins or not piece.text.startswith(MARK):
            continue
        end = at if piece.text.endswith("()") else _closing(pieces, at + 1)
        following = pieces[end + 1].text.upper() if end + 1 < len(pieces) else ""
        if following in _AFTER_A_COLUMN and piece.text.removeprefix(MARK) not in _NATIVE:
            names[end] = piece.text.removeprefix(MARK).removesuffix("()")
    return names


def _closing(pieces: Sequence[Piece], opening: int) -> int:
    """The index of the parenthesis that closes the one at `opening`."""
    depth = pieces[opening].token.depth
    found = (at for at in range(opening + 1, len(pieces)) if pieces[at].token.depth == depth)
    return next((at for at in found if pieces[at].text == ")"), len(pieces) - 1)

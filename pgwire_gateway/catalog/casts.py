r"""Casts and literals of PostgreSQL's types: other names in DuckDB, reg types, bytea and array texts.

A value of regclass and related types is an oid that is read and shown as a name. Here it is the oid, and
becomes the name where PostgreSQL would show it: in a column that the client sees, and in a conversion to
text.

`'\x00ff'::bytea` is two bytes to PostgreSQL, which reads pairs of digits, and three to DuckDB, which requires
`\x` before each pair: drivers that write their values into the text (psycopg2, pgjdbc with
preferQueryMode=simple) would store other bytes than they were given; libpq's PQescapeBytea without a
connection writes the old form, `'\000\377'`. `::jsonb` is DuckDB's JSON, and `'{a,NULL}'::text[]` a list;
pgjdbc writes a date with a zone (`2026-01-02 +00`). Only bytes under PostgreSQL's own name of the type are
rewritten: `BLOB` is DuckDB's name. Spark truncates `ONLY` a table, which has no children here. Source:
PostgreSQL documentation, "bytea Hex Format", "bytea Escape Format", "Array Value Input", "TRUNCATE".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from sqlglot import exp

from ...engine.errors import DucktailError, InvalidTextRepresentation, NumericOutOfRange
from ...engine.quoting import blob_text, fold, ident, list_literal, literal
from ...engine.values import value_types
from ...engine.values.arrays import is_array, read_array
from ...engine.values.strings import read_bytea
from ...sql.text.spans import Replacement, cut
from ...sql.text.tokens import PARAMETER, QUOTED, RESERVED, STRING, Token, occurs, tokenize
from . import like_escape, numeric_type, time_types, time_zones
from .float_type import column_list, in_cast, is_type, wide_floats
from .oids import TYPE_MARK
from .scope import bare, call, called, column_of, goes_out, shape_of, string, table_of, tables_of, wide_column
from .system_catalogs import FUNCTION_COLUMNS, FUNCTION_OIDS, OID_OF_NAME, SHAPES, TYPES, TYPES_BY_NAME

# Type -> the family of macros that reads and writes it.
_REG_TYPES = {
    "regclass": "regclass", "regtype": "regtype", "regproc": "regproc", "regprocedure": "regproc",
    "regnamespace": "regnamespace", "regrole": "regrole",
}  # fmt: skip
# PostgreSQL's type -> DuckDB's, for types that sqlglot does not know.
_TYPES = {
    "name": "VARCHAR", "char": "VARCHAR", "bpchar": "VARCHAR", "text": "VARCHAR", "cstring": "VARCHAR",
    "varchar": "VARCHAR", "pg_node_tree": "VARCHAR", "aclitem": "VARCHAR", "pg_lsn": "VARCHAR",
    "sql_identifier": "VARCHAR", "character_data": "VARCHAR", "yes_or_no": "VARCHAR", "unknown": "VARCHAR",
    "cardinal_number": "INTEGER", "oid": "BIGINT", "xid": "BIGINT", "cid": "BIGINT", "xid8": "BIGINT",
    "int2vector": "SMALLINT[]", "oidvector": "BIGINT[]", "int2": "SMALLINT", "int4": "INTEGER",
    "int8": "BIGINT",
    **dict.fromkeys(_REG_TYPES, "BIGINT"),
    **dict.fromkeys(("regoper", "regoperator", "regcollation", "regconfig", "regdictionary"), "VARCHAR"),
}  # fmt: skip
TEXTS = frozenset(name for name, type_ in _TYPES.items() if type_ == "VARCHAR")
# Names of the catalog's own objects, which need no lookup.
_KNOWN: dict[str, dict[str, int]] = {
    "regclass": {
        name: shape.oid
        for (schema, relation), shape in SHAPES.items()
        for name in (relation if schema == "pg_catalog" else f"{schema}.{relation}",)
    },
    "regtype": OID_OF_NAME,
    "regproc": FUNCTION_OIDS,
}
# The column that shows the name of a row, by relation and key.
_NAMES = {("pg_class", "oid"): "regclass", ("pg_type", "oid"): "regtype", ("pg_proc", "oid"): "regproc"}
_CLASS_COLUMNS = frozenset({"classoid", "classid", "refclassid"})
_TEXT_FUNCTIONS = frozenset(
    {"quote_ident", "quote_literal", "format", "current_setting", "pg_get_serial_sequence", "pg_typeof"}
)
_TYPNAMES = {found.oid: found.name for found in TYPES}


def type_name(to: exp.Expr) -> str:
    """A type's name in small letters, without schema, quotes and length."""
    text = fold(to.sql("postgres")).replace('"', "")
    brackets = "[]" if text.endswith("[]") else ""
    name = text.removesuffix("[]").rpartition(".")[2].partition("(")[0].strip()
    return name.removeprefix(TYPE_MARK) + brackets


def pg_type_name(to: exp.Expr) -> str | None:
    """pg_type.typname of a type; None for one that is not in the catalog."""
    name = type_name(to)
    element = name.removesuffix("[]")
    if element == "char" and not (isinstance(to, exp.DataType) and to.this == exp.DType.USERDEFINED):
        element = "bpchar"
    oid = TYPES_BY_NAME[element].oid if element in TYPES_BY_NAME else OID_OF_NAME.get(element)
    if oid is None:
        return None
    return f"_{_TYPNAMES[oid]}" if name.endswith("[]") else _TYPNAMES[oid]


def parameter_oid(to: exp.Expr) -> int:
    """The reported type of a parameter that is cast to this one; a type that reads names takes a text."""
    name = pg_type_name(to)
    oid = TYPES_BY_NAME[name].oid if name in TYPES_BY_NAME else value_types.TEXT
    return oid if oid == value_types.NUMERIC or value_types.duckdb_type(oid) else value_types.TEXT


def respell_cast(node: exp.Cast) -> exp.Expr:
    """A cast in DuckDB's spelling."""
    name = type_name(node.to)
    if name in _REG_TYPES:
        return _reg(node, _REG_TYPES[name])
    if name == "oid" and called(bare(node.this)) == "pg_typeof":
        return call("regtype_in", bare(node.this))
    if name.endswith("[]"):
        element = _TYPES.get(name.removesuffix("[]"))
        text = string(node.this)
        if text is not None and text.startswith("{"):
            node.set("this", array(text))
        return exp.cast(node.this, f"{element}[]", dialect="duckdb") if element else node
    if name in TEXTS and (shown := _shown_column(bare(node.this))) is not None:
        return shown
    if name in _TYPES:
        return exp.cast(node.this, _TYPES[name], dialect="duckdb")
    return node


def array(text: str) -> exp.Array:
    """An array from PostgreSQL's text of one.

    >>> array('{a,"b c"}').sql("duckdb")
    "['a', 'b c']"
    """
    return _nodes(read_array(text, exp.Literal.string))


def _nodes(items: Sequence[Any]) -> exp.Array:
    nodes = (
        _nodes(item) if isinstance(item, list) else exp.null() if item is None else item for item in items
    )
    return exp.Array(expressions=list(nodes))


def _reg(node: exp.Cast, family: str) -> exp.Expr:
    value = node.this
    shown = _is_shown(node)
    text = string(value)
    if family == "regclass" and isinstance(bare(value), exp.Column) and bare(value).name == "__sequence":
        # The sequence of a column (pg_get_serial_sequence), whose oid is in the same row.
        value = exp.column("__sequence_oid", bare(value).args["table"].copy(), quoted=True)
    if text is None and not _is_text(value):
        return name_of(value, family) if shown else value
    oid = _known(text, family) if text is not None else None
    reader = "catalog_in" if _is_class(node) else f"{family}_in"
    found: exp.Expr = exp.Literal.number(oid) if oid is not None else call(reader, value)
    return call(f"{family}_out", found) if shown else found


def _is_class(node: exp.Cast) -> bool:
    """True if a value is compared with a column that has oids of the catalog's own relations."""
    around: exp.Expr = node
    while isinstance(around.parent, (exp.Paren, exp.Cast)):
        around = around.parent
    if not isinstance(around.parent, exp.EQ):
        return False
    other = around.parent.expression if around.parent.this is around else around.parent.this
    return column_of(other) is not None and fold(bare(other).name) in _CLASS_COLUMNS


def name_of(value: exp.Expr, family: str) -> exp.Expr:
    """The name that represents an oid: a column if its row is in the query."""
    table = table_of(value)
    if table is not None:
        key = (fold(table.name), fold(bare(value).name))
        if _NAMES.get(key) == family:
            return wide_column(table, "__name")
    return call(f"{family}_out", value)


def _known(text: str, family: str) -> int | None:
    if text.isdigit():
        return int(text)
    return _KNOWN.get(family, {}).get(fold(text.strip()).removeprefix("pg_catalog."))


# Expressions that are texts, whatever is in them.
_TEXTS = (
    *(exp.DPipe, exp.Concat, exp.Parameter, exp.Placeholder, exp.Format),
    *(exp.CurrentSchema, exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.Replace, exp.SplitPart),
)


def _is_text(value: exp.Expr) -> bool:
    """True if a value that is cast to regclass is a name rather than an oid."""
    value = bare(value)
    if isinstance(value, _TEXTS):
        return True
    if isinstance(value, exp.Cast):
        return type_name(value.to) in TEXTS | {"varchar", "text"}
    if called(value):
        return called(value) in _TEXT_FUNCTIONS
    if isinstance(value, exp.Column):
        column = column_of(value)
        return column.duckdb_type == "VARCHAR" if column else fold(value.name).endswith("name")
    return False


def _is_shown(node: exp.Expr) -> bool:
    """True if a reg value is shown by name, not by its oid."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Cast):
        return type_name(parent.to) in TEXTS
    if isinstance(parent, (exp.DPipe, exp.Concat, exp.Format)):
        return True
    if isinstance(parent, exp.Expr) and called(parent) in _TEXT_FUNCTIONS:
        return True
    return goes_out(node)


def respell_column(node: exp.Column) -> exp.Expr:
    """A column that PostgreSQL shows differently from DuckDB, and `tableoid`."""
    name = fold(node.name)
    if name == "tableoid":
        return _tableoid(node)
    column = column_of(node)
    if column is None or not goes_out(node):
        return node
    shown = _shown_column(node)
    if shown is None:
        return node
    return exp.alias_(shown, name, quoted=True) if isinstance(node.parent, exp.Select) else shown


def _shown_column(node: exp.Expr) -> exp.Expr | None:
    """The text of a column that PostgreSQL shows differently from its stored form; None for other columns."""
    column, table = column_of(node), table_of(node)
    if column is None or table is None:
        return None
    if column.name in FUNCTION_COLUMNS:
        return wide_column(table, f"__{column.name}")
    if column.pg_type in ("regproc", "regtype"):
        return call(f"{column.pg_type}_out", node.copy())
    if column.pg_type in ("int2vector", "oidvector"):
        return call("array_to_string", node.copy(), exp.Literal.string(" "))
    return None


def _tableoid(node: exp.Column) -> exp.Expr:
    """The oid of the relation of a row, which is the same for all of its rows."""
    qualifier = fold(node.table)
    select = node.find_ancestor(exp.Select)
    while select is not None:
        for table in tables_of(select):
            shape = shape_of(table)
            if shape and qualifier in ("", fold(table.alias_or_name)):
                oid = exp.Literal.number(shape.oid)
                return exp.alias_(oid, node.name) if isinstance(node.parent, exp.Select) else oid
        select = select.find_ancestor(exp.Select)
    return node


# Types of PostgreSQL that DuckDB has under another name.
_NAMES_OF_TYPES = {"jsonb": "JSON", "varbit": "BIT"}
_HINT = re.compile(
    r"\bbytea\b|\bjsonb\b|\bvarbit\b|\btruncate\b|\b(?:local|global)\s+temp|\bany\b[\s(]*'\{"
    r"|[+-]\d\d'\)?::date|\}'\s*\)?\s*(?:::|as\b)|\bdefault\s+'\{|\bfloat\b|\barray\s*\["
    r"|\b(?:numeric|decimal)\s*\(\s*\d\d"
    r"|(?:[,(=<>+*/|-]|\b(?:select|by|where|and|or|not|set|on|having|distinct|column|add|rename|returning|when"
    rf"|then|else|case))\s*\bat\b|::\s*_[a-z]|{like_escape.HINT}|{time_zones.HINT}|{numeric_type.HINT}",
    re.IGNORECASE,
)
_HINT_WORDS = (
    *("bytea", "jsonb", "varbit", "truncate", "temp", "any", "date", "}'", "'{", "float", "array", "like"),
    *("~~", "numeric", "decimal", "dec", "zone", " at", "(at", ",at", "=at", "\nat", "::_", ":: _"),
)
_DATE_WITH_ZONE = re.compile(r"(\d+-\d\d?-\d\d?)\s+[+-]\d\d(?::?\d\d)?")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
# Bounds of the texts whose parameter types are kept: their number, the longest one, and the longest examined.
TEXTS_KEPT = 512
KEPT_CHARS_MAX = 8 * 1024
TEXT_MAX = 64 * 1024
# The maximum number of parameters in Bind.
PARAMETERS_MAX = 65_535
# A text that may have the type name: in a cast, or in the definition of a column.
_NAME_HINT = re.compile(r"(?:::|\bas)\s*\"?name\b|\A\s*(?:create|alter)\b", re.IGNORECASE)
# What may be between these words and the name `name` of a column or constraint.
_BEFORE_NAMED = frozenset({"ADD", "COLUMN", "EXISTS", "CONSTRAINT", "KEY"})
_CAST_PARAMETER = re.compile(r"\$\d+\s*::")
# Further words of a type with several.
_TYPE_WORDS = frozenset({"PRECISION", "VARYING", "WITH", "WITHOUT", "TIME", "ZONE"})
# The text around a list of DuckDB's that makes PostgreSQL's text of it.
_SHOWN_BEFORE = "('{' || array_to_string(list_transform(list_transform(("
_SHOWN_BEHIND = r"""), lambda item: if(typeof(item) = 'BOOLEAN', left(item::VARCHAR, 1), item::VARCHAR)),
lambda item: CASE WHEN item IS NULL THEN 'NULL' WHEN item = ''
OR lower(item) = 'null' OR regexp_matches(item, '[{},"\\\s]')
THEN '"' || replace(replace(item, '\', '\\'), '"', '\"') || '"' ELSE item END), ',') || '}')"""
_SHOWN_BEHIND = " ".join(_SHOWN_BEHIND.split("\n"))
# Arrays whose elements have the same text in DuckDB and in PostgreSQL.
SHOWN_ARRAYS = frozenset(
    value_types.ARRAY_OF[oid]
    for oid in (
        *(value_types.BOOL, value_types.INT2, value_types.INT4, value_types.INT8, value_types.TEXT),
        *(value_types.VARCHAR, value_types.BPCHAR, value_types.JSON, value_types.JSONB),
        *(value_types.UUID, value_types.DATE),
    )
)


def respell_literals(text: str) -> str:
    r"""The text with literals, types and patterns in DuckDB's form, and without ONLY.

    >>> print(respell_literals(r"SELECT '\x00ff'::bytea, x::jsonb, '{a,NULL}'::text[]"))
    SELECT '\x00\xFF'::bytea, x::JSON, ['a', NULL]::text[]

    Raises:
        NumericOutOfRange: a numeric has too many digits.
    """
    if not occurs(_HINT, text, _HINT_WORDS) and not time_types.has_time_casts(text):
        return text
    try:
        tokens = tokenize(text)
        if named := list(_array_names(tokens)):
            text = cut(text, named)
            tokens = tokenize(text)
        pieces = [*_pieces(tokens), *_only(tokens), *_local(tokens), *_ats(tokens), *wide_floats(tokens)]
        pieces += [*like_escape.like_escapes(tokens), *time_zones.offsets(tokens)]
        pieces += numeric_type.exact_literals(tokens)
        pieces += time_types.time_casts(tokens, _precedes_type, _value_before)
        return cut(text, pieces)
    except NumericOutOfRange:
        raise
    except DucktailError:
        return text  # The session reports the error in it.


def _array_names(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """PostgreSQL's own names of array types in casts: `_int4` is `int4[]`."""
    for before, token in pairwise(tokens):
        name = fold(token.text)
        if before.kind == "::" and name.startswith("_") and name[1:] in TYPES_BY_NAME:
            yield Replacement(token.start, token.end, f"{name[1:]}[]")


def plain_names(text: str) -> str:
    """The text with PostgreSQL's type `name` as VARCHAR, in casts and definitions of columns.

    A query of the catalog is not passed: in it the type is reported as it is.

    >>> plain_names('SELECT name::name, CAST(a AS name), b::"name"[] AS name FROM t')
    'SELECT name::VARCHAR, CAST(a AS VARCHAR), b::VARCHAR[] AS name FROM t'
    >>> plain_names("ALTER TYPE name RENAME TO other")
    'ALTER TYPE name RENAME TO other'
    >>> plain_names("ALTER TABLE t ADD COLUMN name VARCHAR, ADD COLUMN other name")
    'ALTER TABLE t ADD COLUMN name VARCHAR, ADD COLUMN other VARCHAR'
    """
    if "name" not in fold(text) or len(text) > TEXT_MAX or _NAME_HINT.search(text) is None:
        return text
    try:
        tokens = tokenize(text)
    except DucktailError:
        return text  # The session reports the error in it.
    columns = column_list(tokens)
    return cut(
        text,
        [
            Replacement(token.start, token.end, "VARCHAR")
            for at, token in enumerate(tokens)
            if at > 2
            and _type_name(token) == "name"
            and tokens[at - 1].kind not in _BEFORE_NAMED
            and [following.kind for following in tokens[at + 1 : at + 2]] != [STRING]
            and is_type(tokens, at, columns)
        ],
    )


def _type_name(token: Token) -> str:
    """The name of a type that a token may be: small letters, quoted or not; empty for another token."""
    if token.kind == QUOTED:
        return token.name
    return fold(token.text) if token.is_word else ""


def _only(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The ONLY of `TRUNCATE [TABLE] ONLY t`."""
    kinds = [token.kind for token in tokens[:4]]
    place = 2 if kinds[1:2] == ["TABLE"] else 1
    if kinds[:1] == ["TRUNCATE"] and kinds[place : place + 1] == ["ONLY"] and len(tokens) > place + 1:
        if tokens[place + 1].is_name:
            yield Replacement(tokens[place].start, tokens[place + 1].start, "")


def _local(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The LOCAL or GLOBAL of `CREATE LOCAL TEMPORARY TABLE`, which have no effect in PostgreSQL either."""
    kinds = [token.kind for token in tokens[:5]]
    place = 3 if kinds[1:3] == ["OR", "REPLACE"] else 1
    scope, word = kinds[place : place + 1], kinds[place + 1 : place + 2]
    if kinds[:1] == ["CREATE"] and scope in (["LOCAL"], ["GLOBAL"]) and word in (["TEMP"], ["TEMPORARY"]):
        yield Replacement(tokens[place].start, tokens[place + 1].start, "")


# Tokens before a name.
_BEFORE_NAME = frozenset(
    {
        ",",
        "(",
        "=",
        "<",
        ">",
        "<=",
        ">=",
        "<>",
        "!=",
        "+",
        "-",
        "*",
        "/",
        "||",
        "SELECT",
        "BY",
        "WHERE",
        "AND",
    }
    | {"OR", "NOT", "SET", "ON", "HAVING", "DISTINCT", "COLUMN", "ADD", "RENAME", "RETURNING", "WHEN", "THEN"}
    | {"ELSE", "CASE"}
)


def _ats(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """Quotes around a column of the name `at`, a word of DuckDB's grammar."""
    for before, token in pairwise(tokens):
        if token.kind == "AT" and before.kind in _BEFORE_NAME:
            yield Replacement(token.start, token.end, ident(fold(token.text)))


def cast_parameters(text: str) -> tuple[int, ...]:
    """The OIDs of the types that a text casts `$1`, `$2`, ... to; 0 without a cast to a known type.

    DuckDB determines no parameter's type if one of them is without context (`SELECT $1, $2::date`).

    >>> cast_parameters("SELECT $1, $3::int[], $2::timestamp with time zone, $4::numeric(3, 1)")
    (0, 1184, 1007, 0)
    """
    if len(text) > TEXT_MAX or _CAST_PARAMETER.search(text) is None:
        return ()
    return (_kept_cast_parameters if len(text) <= KEPT_CHARS_MAX else _cast_parameters)(text)


def _cast_parameters(text: str) -> tuple[int, ...]:
    try:
        tokens = tokenize(text)
    except DucktailError:
        return ()
    found: dict[int, int] = {}
    for at, token in enumerate(tokens[:-2]):
        number = token.text[1:]
        if token.kind == PARAMETER and number.isdigit() and tokens[at + 1].kind == "::":
            found.setdefault(int(number), _type_oid(tokens, at + 2))
    if not found or max(found) > PARAMETERS_MAX:
        return ()
    return tuple(found.get(number, 0) for number in range(1, max(found) + 1))


_kept_cast_parameters = lru_cache(TEXTS_KEPT)(_cast_parameters)


def _type_oid(tokens: Sequence[Token], at: int) -> int:
    """The OID of the type that begins at `at`, if a parameter can have it."""
    end = at
    while end < len(tokens) and end < at + 4 and tokens[end].is_word:
        end += 1
    for last in range(end, at, -1):
        name = " ".join(fold(token.name) for token in tokens[at:last])
        oid = OID_OF_NAME.get(name)
        if oid is None:
            continue
        following = tokens[last].kind if last < len(tokens) else ""
        if following == "[":
            oid = value_types.ARRAY_OF.get(oid, 0)
        return oid if following != "(" and value_types.duckdb_type(oid) else 0
    return 0


def _pieces(tokens: Sequence[Token]) -> Iterator[Replacement]:
    for at, token in enumerate(tokens):
        before = tokens[at - 1].kind if at else ""
        # An alias may have the name of a type: `ARRAY[1] AS text`.
        typed = at > 0 and _precedes_type(tokens, at - 1)
        following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
        if type_ := _NAMES_OF_TYPES.get(_type_name(token)):
            if typed or (token.kind == "JSONB" and following == STRING and before != "."):
                yield Replacement(token.start, token.end, type_)
        if token.kind in ("NUMERIC", "DECIMAL") and typed:
            yield from numeric_type.precision(tokens, at + 1)
        if token.kind == "ANY":
            yield from _any(tokens, at)
        if before in (STRING, ")") and at + 1 < len(tokens) and _precedes_type(tokens, at):
            yield from _array(tokens, at)
        if token.kind == "DEFAULT" and before == "]" and at + 1 < len(tokens):
            yield from _listed(tokens[at + 1], _items(tokens[at + 1]))
        if token.kind == "ARRAY" and at + 1 < len(tokens) and tokens[at + 1].kind == "[":
            yield from _shown_array(tokens, at)
        if token.kind == "DATE" and before == "::" and (value := _value_before(tokens, at - 1)):
            if value.kind == STRING and (found := _DATE_WITH_ZONE.fullmatch(value.value)):
                yield Replacement(value.start, value.end, f"'{found[1]}'")
        if token.kind != "BYTEA" or (before == "AS" and not typed):
            continue
        if at + 1 < len(tokens) and tokens[at + 1].kind == "[":
            continue
        value = _value_before(tokens, at - 1) if typed else None
        if value is None and at + 1 < len(tokens):
            value = tokens[at + 1]
        if value is not None and value.kind == STRING and (written := _bytes(value.value)) is not None:
            yield Replacement(value.start, value.end, f"'{written}'")


def _precedes_type(tokens: Sequence[Token], at: int) -> bool:
    """True for a `::`, and for the AS of a CAST, unlike that of an alias."""
    return tokens[at].kind == "::" or (tokens[at].kind == "AS" and in_cast(tokens, at))


def _value_before(tokens: Sequence[Token], at: int) -> Token | None:
    """The literal before `::`, in brackets or not; `)` after a call."""
    if at > 2 and tokens[at - 1].kind == ")" and tokens[at - 3].kind == "(":
        called = at > 3 and tokens[at - 4].is_name and tokens[at - 4].kind not in RESERVED
        return tokens[at - 1 if called else at - 2]
    return tokens[at - 1] if at else None


def _array(tokens: Sequence[Token], at: int) -> Iterator[Replacement]:
    """The literal before `::` or AS, and its type with a pair of brackets for each dimension.

    To PostgreSQL dimensions belong to the value: `'{{1,2}}'::int[]` has two.
    """
    first, last = _brackets(tokens, at + 1)
    value = _value_before(tokens, at)
    items = None if value is None else _items(value)
    if value is None or first == last or items is None:
        return
    if tokens[at + 1].kind == "BYTEA":
        items = _rewritten(items, _bytes_literal)
    elif type_ := time_types.type_at(tokens, at + 1):
        items = _rewritten(items, partial(time_types.written, type_))
    yield from _listed(value, items)
    pairs = sum(token.kind == "[" for token in tokens[first:last])
    if items and (dimensions := _dimensions(items)) != pairs:
        yield Replacement(tokens[first].start, tokens[last - 1].end, "[]" * dimensions)


def _rewritten(items: list[object], write: Callable[[str], str | None]) -> list[object]:
    """The elements of an array in DuckDB's form: `write` returns None for one that is in it."""
    made: list[object] = []
    for item in items:
        if isinstance(item, list):
            made.append(_rewritten(item, write))
        else:
            made.append((write(item[1:-1]) or item) if isinstance(item, str) else item)
    return made


def _bytes_literal(text: str) -> str | None:
    """DuckDB's literal of an array's element, in which quotes are doubled."""
    written = _bytes(text.replace("''", "'"))
    return None if written is None else f"'{written}'"


def _bytes(text: str) -> str | None:
    r"""DuckDB's text of bytes; None if PostgreSQL does not read the text, or DuckDB reads the same.

    >>> print(_bytes(r"\x61FF"), _bytes(r"a\\\001"), _bytes(r"\x61\xff"), _bytes("a"))
    \x61\xFF \x61\x5C\x01 None None
    """
    if "\\" not in text and text.isascii():
        return None
    try:
        value = read_bytea(text)
    except InvalidTextRepresentation:
        return None
    assert isinstance(value, bytes)
    return blob_text(value)


def _brackets(tokens: Sequence[Token], at: int) -> tuple[int, int]:
    """The place of the first bracket of the type that begins at `at`, and the place behind the last one."""

    def kind(place: int) -> str:
        return tokens[place].kind if place < len(tokens) else ""

    place = at + 1
    while kind(place) == "." or kind(place) in _TYPE_WORDS:
        place += 2 if kind(place) == "." else 1
    if kind(place) == "(":
        depth = tokens[place].depth
        place = 1 + next((end for end in range(place + 1, len(tokens)) if tokens[end].depth == depth), place)
        while kind(place) in _TYPE_WORDS:
            place += 1
    first = place
    while kind(place) == "[" and "]" in (kind(place + 1), kind(place + 2)):
        place += 2 if kind(place + 1) == "]" else 3
    return first, place


def _items(token: Token) -> list[object] | None:
    """The elements of an array's literal, as SQL; None if it is none."""
    if token.kind != STRING or not is_array(token.value):
        return None
    try:
        return read_array(token.value, literal)
    except DucktailError:
        return None


def _dimensions(items: Sequence[object]) -> int:
    inside = next((item for item in items if isinstance(item, list)), None)
    return 1 if inside is None else 1 + _dimensions(inside)


def _listed(token: Token, items: Sequence[object] | None) -> Iterator[Replacement]:
    if items is not None:
        yield Replacement(token.start, token.end, list_literal(items))


def _shown_array(tokens: Sequence[Token], at: int) -> Iterator[Replacement]:
    """`ARRAY[1,2]::text`, which is `{1,2}` to PostgreSQL and `[1, 2]` to DuckDB."""
    depth = tokens[at].depth
    last = next((place for place in range(at + 2, len(tokens)) if tokens[place].depth <= depth), at)
    following = [token.kind for token in tokens[last + 1 : last + 3]]
    nested = any(token.kind == "[" for token in tokens[at + 2 : last])
    if following[1:2] not in (["TEXT"], ["VARCHAR"]) or not _precedes_type(tokens, last + 1):
        return
    first, end = _brackets(tokens, last + 2)
    if not nested and first == end:
        yield Replacement(tokens[at].start, tokens[at].start, _SHOWN_BEFORE)
        yield Replacement(tokens[last].end, tokens[last].end, _SHOWN_BEHIND)


def shown_arrays(text: str, oids: Sequence[int]) -> str:
    """The text with `$1::text` of an array parameter as PostgreSQL's text of it: `{1,2}`.

    Args:
        oids: the types that the client declares.
    """
    if SHOWN_ARRAYS.isdisjoint(oids) or len(text) > TEXT_MAX or _CAST_PARAMETER.search(text) is None:
        return text
    try:
        tokens = tokenize(text)
    except DucktailError:
        return text  # The session reports the error in it.
    pieces = []
    for at, token in enumerate(tokens):
        kinds = [following.kind for following in tokens[at + 1 : at + 4]]
        if token.kind != PARAMETER or kinds[:2] not in (["::", "TEXT"], ["::", "VARCHAR"]):
            continue
        number = int(token.text[1:]) if token.text[1:].isdecimal() else 0
        if 0 < number <= len(oids) and oids[number - 1] in SHOWN_ARRAYS and kinds[2:] not in (["["], ["("]):
            type_ = value_types.duckdb_type(oids[number - 1])
            shown = f"({_SHOWN_BEFORE}{token.text}::{type_}{_SHOWN_BEHIND})"
            pieces.append(Replacement(token.start, token.end, shown))
    return cut(text, pieces)


def _any(tokens: Sequence[Token], at: int) -> Iterator[Replacement]:
    """`= ANY('{1,2}')`: PostgreSQL takes the type from the other side, so numbers stay unquoted here."""
    inside = [token for token in tokens[at + 1 : at + 6] if token.kind not in ("(", ")")][:2]
    if not inside or inside[0].kind != STRING or not inside[0].value.lstrip().startswith("{"):
        return
    if inside[1:] and inside[1].kind == "::":
        return
    try:
        items = read_array(inside[0].value, lambda item: item if _NUMBER.fullmatch(item) else literal(item))
    except DucktailError:
        return
    yield Replacement(inside[0].start, inside[0].end, list_literal(items))

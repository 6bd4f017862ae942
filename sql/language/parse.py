"""The parser of the language: from a text to a statement of ducktail, or to a query with stream scans.

How to use it, for one statement without its semicolon (`split_statements` cuts a longer text):

    if ours:                          # classify() says Kind.OURS
        statement = parse(text)       # a dataclass of statements/
    elif has_scan(text):              # cheap; an ordinary text is never parsed
        query = parse(text, is_table) # a Query
        shapes = shapes_of(query)     # shape.py: the read position of each scan, edits, pruning

`is_table(name)` is True if the session sees a table or view of that (lower-case) name; it is called for
"stream" and "topic" only, and only if a text has those words in a FROM clause. With such a table a Query may
have no scans: then it is a text for DuckDB. A scan's `start` and `end` are its span in `text`: a relation's
name, `AS`, the scan's `visible_name` and its column names replace it, and the rest of the text is the user's
own. `query.problem` is an error of sqlglot's parser: DuckDB still runs the text, and the error is raised only
if DuckDB's parser refuses it too. `parameter_types(result)` returns the types of the parameters in ducktail's
clauses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache

from sqlglot import exp

from ...engine.errors import InvalidParameterValue, NotSupported, SyntaxError_
from ..text.hints import foreign_clause, foreign_opening
from ..text.tokens import NUMBER, PARAMETER, Token, closing, occurs, tokenize
from .clauses import Number, Parameter
from .dialect import counts_transactions, parse_tree
from .grammar import Grammar
from .scan import IsTable, Scan, find_scans, may_open
from .statements.row import Row, Statement
from .statements.table import find_opening

# Bounds of the parsed queries that are kept: a reader polls with the same text again and again. Some 20 KB
# for each query make 10 MB at most.
KEPT_QUERIES = 256
KEPT_CHARACTERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class TransactionLimit:
    """`LIMIT n TRANSACTIONS`, which bounds the query's scan.

    Args:
        start, end: its span in the text, from 0, half open.
        limit: the number of transactions; None for LIMIT NULL TRANSACTIONS, which bounds nothing.
    """

    start: int
    end: int
    limit: Number | None


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A text for DuckDB with stream scans; the same text returns the same object.

    Args:
        text: the user's text.
        scans: its stream scans, in the text's order.
        tokens: the tokens of the whole text.
        tree: sqlglot's tree, without EXPLAIN and COPY; None if sqlglot did not understand the text.
        problem: the error of sqlglot's parser.
        explain: EXPLAIN precedes it, with or without ANALYZE.
        copy: it is `COPY (query) TO`; the tree is the inner query's.
        transactions: the clause LIMIT n TRANSACTIONS; None without it.
        commits: the scan with COMMIT; None without one.
    """

    text: str
    scans: tuple[Scan, ...]
    tokens: tuple[Token, ...]
    tree: exp.Expr | None
    problem: SyntaxError_ | None = None
    explain: bool = False
    transactions: TransactionLimit | None = None
    copy: bool = False
    commits: Scan | None = None

    @property
    def parameters_count(self) -> int:
        """The highest number of a parameter in the text; 0 without one."""
        numbers = (token.text[1:] for token in self.tokens if token.kind == PARAMETER)
        return max((int(number) for number in numbers if number.isdigit()), default=0)


_WORDS = re.compile(r"\b(?:stream|topic|consumer|emit|wait|group(?!\s+by\b))\b", re.IGNORECASE | re.ASCII)

_EACH_HAS_ONE = ("stream", "topic", "consumer", "emit", "wait", "group")


def has_scan(text: str) -> bool:
    """True if `parse` must read this text: it may contain a scan, or a foreign clause that means one."""
    if not occurs(_WORDS, text, _EACH_HAS_ONE):
        return False
    tokens = tokenize(text)
    return may_open(tokens) or foreign_clause(tokens) is not None


def _no_table(name: str) -> bool:
    return False


def parse(text: str, is_table: IsTable = _no_table) -> Statement | Query:
    """Read one statement.

    Args:
        text: one statement; comments and a final semicolon are allowed.
        is_table: returns True if a table or view of that lower-case name is visible.

    Raises:
        SyntaxError_: the text is invalid; the error has the position of the token.
        InvalidParameterValue: an option or a number is out of bounds.
        InvalidTextRepresentation: a map of LSNs is malformed.
        NotSupported: a scan is not allowed there, as in a view.
    """
    tokens = tokenize(text)
    while tokens and tokens[-1].kind == ";":
        tokens = tokens[:-1]
    grammar = Grammar(text, tokens)
    row = find_opening(grammar)
    if row is not None:
        return _statement(grammar, row)
    foreign = foreign_opening(tokens) or foreign_clause(tokens)
    if foreign is not None:
        raise foreign
    if not may_open(tokens):
        return Query(text, (), tokens, None)
    tables = frozenset(word for word in ("stream", "topic") if is_table(word))
    if len(text) > KEPT_CHARACTERS_MAX:
        return _query(text, tokens, tables)
    return _kept_query(text, tokens, tables)


def _statement(grammar: Grammar, row: Row) -> Statement:
    try:
        statement = row.parse(grammar)
        grammar.expect_end()
    except SyntaxError_ as error:
        if error.hint is not None:
            raise
        hint = f"The form is: {row.form}."
        raise SyntaxError_(error.message, hint=hint, position=error.position) from None
    return statement


def _query(text: str, tokens: tuple[Token, ...], tables: frozenset[str]) -> Query:
    scans = find_scans(tokens, text, tables.__contains__)
    if not scans:
        return Query(text, (), tokens, None)
    begin = _behind_explain(tokens)
    _refuse_definitions(tokens[begin:])
    _check_limits(tokens)
    if len(committing := [scan for scan in scans if scan.commits]) > 1:
        raise NotSupported(
            "COMMIT of several stream scans is not supported",
            hint="Each commit would be durable by itself: run COMMIT OFFSETS for each group first.",
            position=committing[1].start + 1,
        )
    copied = _copied(tokens, begin)
    first, last = copied or (begin, len(tokens) - 1)
    tree = parse_tree(text, tokens[first].start, tokens[last].end, scans)
    problem = tree if isinstance(tree, SyntaxError_) else None
    transactions = _transactions(text, tokens, len(scans))
    if transactions is None and not isinstance(tree, SyntaxError_) and _counts_transactions(tree):
        word = next(token for token in tokens if token.kind == "TRANSACTIONS")
        raise SyntaxError_(
            'syntax error at or near "TRANSACTIONS"',
            hint="LIMIT ... TRANSACTIONS takes a number, a parameter or NULL.",
            position=word.start + 1,
        )
    return Query(
        text,
        scans,
        tokens,
        None if isinstance(tree, SyntaxError_) else tree,
        problem,
        begin > 0,
        transactions,
        copied is not None,
        next(iter(committing), None),
    )


def _counts_transactions(tree: exp.Expr) -> bool:
    return any(map(counts_transactions, tree.find_all(exp.Limit)))


def _copied(tokens: tuple[Token, ...], begin: int) -> tuple[int, int] | None:
    """First and last token of the query of COPY (query) TO; None for another statement."""
    if tokens[begin].kind != "COPY" or begin + 1 >= len(tokens) or tokens[begin + 1].kind != "(":
        return None
    return begin + 2, closing(tokens, begin + 1) - 1


_kept_query = lru_cache(KEPT_QUERIES)(_query)


def _behind_explain(tokens: tuple[Token, ...]) -> int:
    """Index of the token after EXPLAIN [ANALYZE] [VERBOSE] [(options)]; 0 without EXPLAIN."""
    if tokens[0].kind != "EXPLAIN":
        return 0
    index = 1
    while tokens[index].kind in ("ANALYZE", "ANALYSE", "VERBOSE"):
        index += 1
    if tokens[index].kind == "(" and tokens[index + 1].kind not in ("SELECT", "FROM", "WITH", "(", "TABLE"):
        index = closing(tokens, index) + 1
    return min(index, len(tokens) - 1)


_DEFINITIONS = {"VIEW": "view", "MACRO": "macro", "FUNCTION": "macro", "TRIGGER": "trigger"}


def _refuse_definitions(tokens: tuple[Token, ...]) -> None:
    """Refuse a scan in a stored definition: a scan is read when its statement runs."""
    if tokens[0].kind != "CREATE":
        return
    for token in tokens[1:6]:
        kind = _DEFINITIONS.get(token.kind)
        if kind is not None:
            raise NotSupported(
                f"a {kind} over a stream scan is not supported",
                hint="A view called as the stream shows its retained events: make the view on that one.",
                position=tokens[0].start + 1,
            )
        if token.kind in ("TABLE", "AS", "("):
            return


def _check_limits(tokens: tuple[Token, ...]) -> None:
    """Refuse a negative LIMIT with its position in the user's text; DuckDB's error has another one."""
    for index, token in enumerate(tokens[:-2]):
        if token.kind in ("LIMIT", "OFFSET") and tokens[index + 1].kind == "-":
            number = tokens[index + 2]
            if number.kind == NUMBER:
                raise InvalidParameterValue(
                    f"{token.kind} must not be negative: -{number.text}", position=tokens[index + 1].start + 1
                )


def _transactions(text: str, tokens: tuple[Token, ...], scans: int) -> TransactionLimit | None:
    """The clause LIMIT n TRANSACTIONS."""
    found: TransactionLimit | None = None
    for index in range(2, len(tokens)):
        if tokens[index].kind != "TRANSACTIONS" or tokens[index - 2].kind != "LIMIT":
            continue
        position = tokens[index - 2].start + 1
        if found is not None or scans > 1:
            raise NotSupported(
                "LIMIT ... TRANSACTIONS is not supported "
                + ("twice in a query" if found is not None else "over several stream scans"),
                hint="Read the streams one after the other, in one transaction.",
                position=position,
            )
        g = Grammar(text, tokens, index - 1)
        limit = None if g.accept("NULL") else g.number("LIMIT")
        found = TransactionLimit(position - 1, tokens[index].end, limit)
    return found


# The types of parameters in ducktail's clauses, by their fields.
_BIGINT = frozenset({"lsn", "limit", "wait_for", "sequence"})
_INTEGER = frozenset({"partition", "partitions"})


def parameter_types(parsed: Statement | Query) -> dict[int, str]:
    """The DuckDB types of the parameters in ducktail's clauses, by number: BIGINT, INTEGER or VARCHAR.

    AFTER's is VARCHAR, because it may be a map of positions as well as an LSN (`parse_after` reads both); a
    client that binds a number declares its type. START accepts an LSN only.
    """
    types: dict[int, str] = {}
    for part in parsed.scans if isinstance(parsed, Query) else (parsed,):
        _types_of(part, "", types)
    if isinstance(parsed, Query) and parsed.transactions is not None:
        _types_of(parsed.transactions.limit, "limit", types)
    return types


def _types_of(value: object, name: str, types: dict[int, str]) -> None:
    if isinstance(value, Parameter):
        types.setdefault(value.index, _type_of(name))
    elif isinstance(value, tuple):
        for item in value:
            _types_of(item, name, types)
    elif is_dataclass(value) and not isinstance(value, type):
        kind = getattr(value, "kind", "")
        if kind == "after" and name == "start":
            kind = "lsn"
        for field in fields(value):
            own = kind if field.name == "value" else field.name
            _types_of(getattr(value, field.name), own, types)


def _type_of(name: str) -> str:
    if name in _INTEGER:
        return "INTEGER"
    return "BIGINT" if name in _BIGINT else "VARCHAR"

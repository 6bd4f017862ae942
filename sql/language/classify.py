"""The classification of statements by their opening words, which is the allow-list.

No unrecognised statement is passed on to DuckDB: a statement is of a known kind, or it is refused. The
opening words of ducktail's statements are those of `statements/`. The classifier reads tokens only; DuckDB's
own binder decides whether a statement writes a captured table, also through a function or a view, so
`may_write` is True in doubt. Source: docs/design/sql.md, "Rights".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...engine.errors import InsufficientPrivilege, NotSupported, SyntaxError_
from ...engine.quoting import fold
from ..text.classified import (
    Classified,
    CursorFacts,
    DmlFacts,
    Kind,
    LockingFacts,
    TokenReader,
    refused,
)
from ..text.hints import foreign_opening
from ..text.tokens import NUMBER, PARAMETER, QUOTED, Token, tokenize
from .classify_ddl import alter, comment, create, drop
from .classify_session import (
    begin,
    commit,
    copy,
    deallocate,
    discard,
    execute,
    explain,
    prepare,
    release,
    reset,
    rollback,
    savepoint,
    set_,
    show,
    start,
)
from .locking_clause import without_locking
from .statements.row import canonical, expansions, has_behind_name
from .statements.table import NAME_TOKENS_MAX, ROWS

# Verbs that write, as words anywhere in a text; QUERY runs a text that is not among the tokens.
_WRITING_WORDS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "QUERY", "QUERY_TABLE"})
_CTE_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"})

# It runs a plan that no inspection of the text can check (facts of docs/design/sql.md, "Ways round").
_FORBIDDEN_FUNCTION = "json_execute_serialized_sql"

# Openings of other systems' statements, and of some unsupported ones, which ducktail's parser answers.
_FOREIGN = (
    "CREATE OR REPLACE [CHANGE] STREAM",
    "CREATE OR REPLACE TOPIC",
    "CREATE SUBSCRIPTION",
    "CREATE CHANGEFEED",
    "COMMENT ON CONSUMER GROUP",
    "SUBSCRIBE",
)

_NOT_ALLOWED = {
    "ATTACH": "ATTACH is not allowed",
    "DETACH": "DETACH is not allowed",
    "INSTALL": "INSTALL is not allowed",
    "LOAD": "LOAD is not allowed",
    "EXPORT": "EXPORT DATABASE is not allowed",
    "IMPORT": "IMPORT DATABASE is not allowed",
    "CALL": "CALL is not allowed",
}
_OUTSIDE_HINT = "Nothing outside the database can be reached through SQL."

_NOT_SUPPORTED = {
    "REINDEX": None,
    "CLUSTER": None,
    "REFRESH": None,
    "REASSIGN": None,
    "SECURITY": None,
}

_READ_PRAGMAS = frozenset(
    {
        "table_info",
        "show_tables",
        "show_tables_expanded",
        "show",
        "database_list",
        "database_size",
        "collations",
        "functions",
        "version",
        "platform",
        "user_agent",
        "storage_info",
        "metadata_info",
    }
)

# Statements whose queries may lock rows.
_LOCKING = frozenset({"SELECT", "WITH", "(", "VALUES", "TABLE", "FROM"}) | _CTE_VERBS

Rule = Callable[[TokenReader], Classified]


def classify(text: str) -> Classified:
    """Classify one statement.

    Args:
        text: one statement, with or without a semicolon at its end.

    Returns:
        Its classification; a statement that must not run is of Kind.REFUSED, with the error to raise.

    Raises:
        SyntaxError_: the opening is malformed or unknown; the error has the position.
    """
    tokens = tokenize(text)
    while tokens and tokens[-1].kind == ";":
        tokens = tokens[:-1]
    if not tokens:
        return Classified(Kind.EMPTY, text, tokens)
    for token in tokens:
        if token.kind == ";":
            raise SyntaxError_('syntax error at or near ";"', position=token.start + 1)
    locking: tuple[LockingFacts, ...] = ()
    if tokens[0].kind in _LOCKING and any(token.kind == "FOR" for token in tokens):
        text, tokens, locking = without_locking(text, tokens)
    reader = TokenReader(text, tokens)
    if _FORBIDDEN_FUNCTION in fold(text):
        error = NotSupported(f"{_FORBIDDEN_FUNCTION} is not supported", hint="Write the statement itself.")
        return refused(reader, error)
    ours = _opening_of_ours(tokens)
    if ours is not None:
        return Classified(Kind.OURS, text, tokens, verb=ours)
    foreign = foreign_opening(tokens)
    if foreign is not None:
        raise foreign
    rule = _RULES.get(tokens[0].kind)
    if rule is None:
        return _unknown(reader)
    return replace(rule(reader), locking=locking) if locking else rule(reader)


# Opening words -> the verb under which errors mention the statement.
_OPENINGS = {words: canonical(words) for pattern in _FOREIGN for words in expansions(pattern)} | {
    words: verb for row in ROWS for words, verb in row.openings.items()
}
# Openings that are ducktail's only if a name follows.
_NEED_A_NAME = frozenset(words for row in ROWS if row.needs_name for words in row.openings)
# Openings that are another statement's unless these words follow a name.
_BEHIND_NAMES = {words: row.behind_name for row in ROWS if row.behind_name for words in row.openings}
_OPENING_FIRSTS = frozenset(words[0] for words in _OPENINGS)
_OPENING_WORDS_MAX = max(len(words) for words in _OPENINGS)


def _opening_of_ours(tokens: tuple[Token, ...]) -> str | None:
    if tokens[0].kind not in _OPENING_FIRSTS:
        return None
    kinds = tuple(token.kind for token in tokens[:_OPENING_WORDS_MAX])
    for length in range(len(kinds), 0, -1):
        verb = _OPENINGS.get(kinds[:length])
        if verb is not None:
            bare = kinds[:length] in _NEED_A_NAME and len(tokens) == length
            behind = _BEHIND_NAMES.get(kinds[:length])
            if behind is not None:
                ahead = [token.kind for token in tokens[length : length + NAME_TOKENS_MAX]]
                bare = not has_behind_name(ahead, behind)
            return None if bare else verb
    return None


def _unknown(reader: TokenReader) -> Classified:
    first = reader.tokens[0]
    if first.kind in _NOT_ALLOWED:
        return refused(reader, InsufficientPrivilege(_NOT_ALLOWED[first.kind], hint=_OUTSIDE_HINT))
    if first.kind in _NOT_SUPPORTED:
        error = NotSupported(f"{first.kind} is not supported", hint=_NOT_SUPPORTED[first.kind])
        return refused(reader, error)
    raise reader.unexpected()


def _may_write(tokens: tuple[Token, ...]) -> bool:
    return any(
        token.kind in _WRITING_WORDS or (token.kind == QUOTED and token.name.upper() in _WRITING_WORDS)
        for token in tokens
    )


def _cte_writes(tokens: tuple[Token, ...]) -> bool:
    """True if a parenthesis opens with a data-modifying verb that another token follows: `( UPDATE t`.

    A WITH may precede the verb in the parenthesis: `( WITH a AS ( SELECT 1 ) UPDATE t`.
    """
    return any(
        tokens[i].kind in _CTE_VERBS
        and tokens[i].depth > 0
        and tokens[i - 1].kind in ("(", ")")
        and tokens[i + 1].is_name
        for i in range(1, len(tokens) - 1)
    )


def _read(reader: TokenReader) -> Classified:
    tokens = tuple(reader.tokens)
    may_write = _may_write(tokens)
    verb = "SELECT" if tokens[0].kind in ("(", "FROM", "WITH") else tokens[0].kind
    return Classified(
        Kind.READ,
        reader.text,
        tokens,
        verb=verb,
        may_write=may_write,
        cte_writes=may_write and _cte_writes(tokens),
    )


def take_cte_head(reader: TokenReader) -> tuple[str, int]:
    """Read a common table expression up to its query's parenthesis: its name, and its number of columns."""
    name, columns = reader.identifier(), 0
    if reader.peek() == "(":
        columns = len(reader.slices(*reader.brackets()))
    if reader.accept("USING", "KEY"):
        reader.brackets()
    if not reader.accept("AS"):
        raise reader.unexpected()
    reader.accept("NOT")
    reader.accept("MATERIALIZED")
    return name, columns


def _with(reader: TokenReader) -> Classified:
    """WITH: classify the statement after the last common table expression."""
    reader.take()
    reader.accept("RECURSIVE")
    while True:
        take_cte_head(reader)
        reader.brackets()
        if not reader.accept(","):
            break
    if reader.at_end:
        raise reader.unexpected()
    if reader.peek() in _CTE_VERBS:
        return _dml(reader)
    return _read(reader)


# Words before the name of the table that each verb writes.
_BEFORE_TARGET: dict[str, tuple[tuple[str, ...], ...]] = {
    "INSERT": (("OR", "REPLACE"), ("OR", "IGNORE"), ("INTO",)),
    "UPDATE": (),
    "DELETE": (("FROM",),),
    "TRUNCATE": (("TABLE",),),
    "MERGE": (("INTO",),),
}
_NOT_AN_ALIAS = frozenset(
    {"SET", "USING", "WHERE", "RETURNING", "VALUES", "SELECT", "DEFAULT", "BY", "WITH", "FROM", "TABLE", "ON"}
    | {"OVERRIDING", "PIVOT", "UNPIVOT", "DESCRIBE", "SHOW", "SUMMARIZE", "CASCADE", "RESTRICT", "EXECUTE"}
)


def _dml(reader: TokenReader) -> Classified:
    tokens = tuple(reader.tokens)
    main = reader.index
    verb = reader.take().kind
    if verb == "UPDATE" and reader.peek() == "EXTENSIONS" and reader.peek(1) in ("", "("):
        return refused(reader, InsufficientPrivilege("UPDATE EXTENSIONS is not allowed", hint=_OUTSIDE_HINT))
    for words in _BEFORE_TARGET[verb]:
        reader.accept(*words)
    position = 0 if reader.at_end else tokens[reader.index].start
    target = reader.qualified()
    if verb == "INSERT" and _overrides_user_values(tokens):
        hint = "Leave the identity column out."
        return refused(reader, NotSupported("OVERRIDING USER VALUE is not supported", hint=hint))
    facts = DmlFacts(
        main=main,
        target=target,
        target_position=position,
        alias=_alias(reader),
        has_with=main > 0,
        has_returning=any(token.kind == "RETURNING" and token.depth == 0 for token in tokens[main:]),
    )
    return Classified(
        Kind.DML,
        reader.text,
        tokens,
        verb=verb,
        may_write=True,
        cte_writes=_cte_writes(tokens),
        dml=facts,
    )


def _overrides_user_values(tokens: tuple[Token, ...]) -> bool:
    at = next((i for i, token in enumerate(tokens) if token.kind == "OVERRIDING"), len(tokens))
    return [token.kind for token in tokens[at + 1 : at + 3]] == ["USER", "VALUE"]


def _alias(reader: TokenReader) -> str | None:
    if reader.accept("AS"):
        return reader.identifier()
    if reader.at_end or reader.peek() in _NOT_AN_ALIAS or not reader.tokens[reader.index].is_name:
        return None
    return reader.take().name


def _writing(rule: Rule) -> Rule:
    """The same rule, with `may_write` from all words: CTAS and COPY TO may contain DML."""

    def ruled(reader: TokenReader) -> Classified:
        found = rule(reader)
        tokens = found.tokens
        if found.kind is Kind.REFUSED or not _may_write(tokens):
            return found
        return replace(found, may_write=True, cte_writes=_cte_writes(tokens))

    return ruled


def _utility(reader: TokenReader) -> Classified:
    first = reader.take().kind
    if first == "FORCE":
        if not reader.accept("CHECKPOINT"):
            raise reader.unexpected()
        first = "CHECKPOINT"
    return Classified(Kind.UTILITY, reader.text, tuple(reader.tokens), verb=first)


def _do(reader: TokenReader) -> Classified:
    return Classified(Kind.DO, reader.text, tuple(reader.tokens), verb="DO")


def _lock(reader: TokenReader) -> Classified:
    """LOCK [TABLE] [ONLY] name [, ...] [IN lockmode MODE] [NOWAIT]"""
    reader.take()
    reader.accept("TABLE")
    tables: list[str] = []
    while not tables or reader.accept(","):
        reader.accept("ONLY")
        first = reader.index
        reader.qualified()
        tables.append(reader.cut(first, reader.index))
        reader.accept("*")
    mode = "ACCESS EXCLUSIVE"
    if reader.accept("IN"):
        words = []
        while not reader.at_end and reader.peek() != "MODE":
            words.append(reader.take().kind)
        mode = " ".join(words)
        if not reader.accept("MODE"):
            raise reader.unexpected()
    reader.accept("NOWAIT")
    reader.expect_end()
    if mode != "ACCESS SHARE":
        hint = "A captured table has one writer at a time; SELECT ... FOR UPDATE locks its tables."
        return refused(reader, NotSupported(f"LOCK TABLE in {mode} mode is not supported", hint=hint))
    name = ", ".join(tables)
    return Classified(Kind.UTILITY, reader.text, tuple(reader.tokens), verb=LOCK_TABLE, name=name)


LOCK_TABLE = "LOCK TABLE"


def _use(reader: TokenReader) -> Classified:
    reader.take()
    name = ".".join(reader.qualified())
    reader.expect_end()
    return Classified(Kind.UTILITY, reader.text, tuple(reader.tokens), verb="USE", name=name)


def _pragma(reader: TokenReader) -> Classified:
    reader.take()
    name = fold(reader.identifier())
    if name not in _READ_PRAGMAS or reader.peek() == "=":
        error = NotSupported(f'PRAGMA "{name}" is not supported', hint="Settings are changed with SET.")
        return refused(reader, error)
    return Classified(Kind.READ, reader.text, tuple(reader.tokens), verb="PRAGMA", name=name)


def _forward(reader: TokenReader) -> Classified:
    """FORWARD $1: the statement between nodes of a cluster, for which it is reserved."""
    if [token.kind for token in reader.tokens[1:]] != [PARAMETER]:
        return _unknown(reader)
    return Classified(Kind.FORWARD, reader.text, tuple(reader.tokens), verb="FORWARD")


ALL = None
_WAYS = ("NEXT", "PRIOR", "FIRST", "LAST", "ABSOLUTE", "RELATIVE", "FORWARD", "BACKWARD", "ALL")

_SIMPLE_WAYS = {
    "NEXT": ("FORWARD", 1),
    "PRIOR": ("BACKWARD", 1),
    "FIRST": ("ABSOLUTE", 1),
    "LAST": ("ABSOLUTE", -1),
    "ALL": ("FORWARD", ALL),
}


def _name(reader: TokenReader) -> str:
    """A cursor's name: small letters unless quoted, as the name of a driver's portal."""
    quoted = reader.peek() == QUOTED
    name = reader.identifier()
    return name if quoted else fold(name)


def _classified(reader: TokenReader, verb: str, facts: CursorFacts) -> Classified:
    reader.expect_end()
    return Classified(Kind.CURSOR, reader.text, tuple(reader.tokens), verb=verb, cursor=facts)


def declare(reader: TokenReader) -> Classified:
    """DECLARE name [BINARY] [INSENSITIVE] [[NO] SCROLL] CURSOR [WITH | WITHOUT HOLD] FOR query"""
    reader.take()
    name = _name(reader)
    binary = scroll = False
    while not reader.accept("CURSOR"):
        if reader.accept("BINARY"):
            binary = True
        elif reader.accept("SCROLL"):
            scroll = True
        elif not reader.accept("NO", "SCROLL") and not reader.accept_one("INSENSITIVE", "ASENSITIVE"):
            raise reader.unexpected()
    hold = reader.accept("WITH", "HOLD")
    if not hold:
        reader.accept("WITHOUT", "HOLD")
    if not reader.accept("FOR"):
        raise reader.unexpected()
    inner, offset = reader.rest()
    facts = CursorFacts(name, inner=inner, offset=offset, binary=binary, scroll=scroll, hold=hold)
    return _classified(reader, "DECLARE CURSOR", facts)


def _number(reader: TokenReader) -> int | None:
    sign = reader.accept_one("-", "+")
    if reader.peek() != NUMBER or not reader.tokens[reader.index].text.isdigit():
        if sign:
            raise reader.unexpected()
        return None
    number = int(reader.take().text)
    return -number if sign == "-" else number


def _taken(reader: TokenReader) -> tuple[str, int | None]:
    """The direction of a cursor and its count: ("FORWARD", None) means all remaining rows."""
    number = _number(reader)
    if number is not None:
        return "FORWARD", number
    # A cursor may have one of the words as its name; then no token follows it.
    way = reader.accept_one(*_WAYS) if reader.peek(1) else None
    if way is None:
        return "FORWARD", 1
    if way in ("ABSOLUTE", "RELATIVE"):
        number = _number(reader)
        if number is None:
            raise reader.unexpected()
        return way, number
    if way in ("FORWARD", "BACKWARD"):
        return way, ALL if reader.accept("ALL") else (1 if (given := _number(reader)) is None else given)
    return _SIMPLE_WAYS[way]


def fetch(reader: TokenReader) -> Classified:
    """{ FETCH | MOVE } [way] [FROM | IN] name"""
    verb = reader.take().kind
    way, count = _taken(reader)
    reader.accept_one("FROM", "IN")
    return _classified(reader, verb, CursorFacts(_name(reader), way=way, count=count))


def close(reader: TokenReader) -> Classified:
    """CLOSE { name | ALL }"""
    reader.take()
    name = None if reader.accept("ALL") else _name(reader)
    return _classified(reader, "CLOSE CURSOR", CursorFacts(name))


_RULES: dict[str, Rule] = {
    "SELECT": _read,
    "FROM": _read,
    "VALUES": _read,
    "TABLE": _read,
    "(": _read,
    "DESCRIBE": _read,
    "DESC": _read,
    "SUMMARIZE": _read,
    "PIVOT": _read,
    "PIVOT_WIDER": _read,
    "UNPIVOT": _read,
    "PIVOT_LONGER": _read,
    "WITH": _with,
    "INSERT": _dml,
    "UPDATE": _dml,
    "DELETE": _dml,
    "TRUNCATE": _dml,
    "MERGE": _dml,
    "CREATE": _writing(create),
    "ALTER": _writing(alter),
    "DROP": drop,
    "COMMENT": comment,
    "BEGIN": begin,
    "START": start,
    "COMMIT": commit,
    "END": commit,
    "ROLLBACK": rollback,
    "ABORT": rollback,
    "SAVEPOINT": savepoint,
    "RELEASE": release,
    "SET": _writing(set_),
    "RESET": reset,
    "SHOW": show,
    "DISCARD": discard,
    "DEALLOCATE": deallocate,
    "COPY": _writing(copy),
    "DECLARE": declare,
    "DO": _do,
    "FETCH": fetch,
    "MOVE": fetch,
    "CLOSE": close,
    "EXPLAIN": explain,
    "PREPARE": prepare,
    "EXECUTE": execute,
    "CHECKPOINT": _utility,
    "FORCE": _utility,
    "ANALYZE": _utility,
    "VACUUM": _utility,
    "USE": _use,
    "LOCK": _lock,
    "PRAGMA": _pragma,
    "FORWARD": _forward,
}

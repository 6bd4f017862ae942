"""Statements about the session: transactions, settings, prepared statements, EXPLAIN and COPY."""

from __future__ import annotations

from ...engine.errors import InsufficientPrivilege, NotSupported, SyntaxError_
from ...engine.quoting import fold
from ..text.classified import (
    Classified,
    CopyFacts,
    ExecuteFacts,
    ExplainFacts,
    Kind,
    Name,
    PrepareFacts,
    SettingFacts,
    TokenReader,
    TransactionFacts,
    refused,
)
from ..text.tokens import QUOTED, STRING

# Isolation levels in PostgreSQL's spelling.
_LEVELS = (("READ", "COMMITTED"), ("READ", "UNCOMMITTED"), ("REPEATABLE", "READ"), ("SERIALIZABLE",))
# SHOW of these words is a query of the catalog; SHOW of another name is a setting or a table.
_SHOW_CATALOG = frozenset({"TABLES", "DATABASES", "SCHEMAS", "VARIABLES", "COLUMNS", "INDEXES", "FUNCTIONS"})


def _transaction(reader: TokenReader, verb: str, facts: TransactionFacts | None = None) -> Classified:
    reader.expect_end()
    facts = facts or TransactionFacts()
    return Classified(Kind.TRANSACTION, reader.text, tuple(reader.tokens), verb=verb, transaction=facts)


def _modes(reader: TokenReader) -> TransactionFacts:
    """Read the modes of BEGIN and SET TRANSACTION, with or without commas between them."""
    modes: dict[str, str] = {}
    while not reader.at_end:
        if reader.accept("ISOLATION", "LEVEL"):
            level = next((words for words in _LEVELS if reader.accept(*words)), None)
            if level is None:
                raise reader.unexpected()
            modes["transaction_isolation"] = " ".join(level).lower()
        elif reader.accept("READ", "ONLY"):
            modes["transaction_read_only"] = "on"
        elif reader.accept("READ", "WRITE"):
            modes["transaction_read_only"] = "off"
        elif reader.accept("DEFERRABLE"):
            modes["transaction_deferrable"] = "on"
        elif reader.accept("NOT", "DEFERRABLE"):
            modes["transaction_deferrable"] = "off"
        else:
            raise reader.unexpected()
        if reader.accept(",") and reader.at_end:
            raise reader.unexpected()
    return TransactionFacts(modes)


def begin(reader: TokenReader) -> Classified:
    """BEGIN [WORK | TRANSACTION] [modes]"""
    reader.take()
    reader.accept_one("WORK", "TRANSACTION")
    reader.accept_one("DEFERRED", "IMMEDIATE")
    return _transaction(reader, "BEGIN", _modes(reader))


def start(reader: TokenReader) -> Classified:
    """START TRANSACTION [modes]"""
    reader.take()
    if not reader.accept("TRANSACTION"):
        raise reader.unexpected()
    return _transaction(reader, "BEGIN", _modes(reader))


def _chain(reader: TokenReader) -> TransactionFacts:
    if reader.accept("AND", "NO", "CHAIN"):
        return TransactionFacts()
    return TransactionFacts(chain=reader.accept("AND", "CHAIN"))


def commit(reader: TokenReader) -> Classified:
    """{ COMMIT | END } [WORK | TRANSACTION] [AND [NO] CHAIN], COMMIT PREPARED name"""
    reader.take()
    if reader.accept("PREPARED"):
        return _prepared_transaction(reader, "COMMIT PREPARED")
    reader.accept_one("WORK", "TRANSACTION")
    return _transaction(reader, "COMMIT", _chain(reader))


def rollback(reader: TokenReader) -> Classified:
    """{ ROLLBACK | ABORT } [WORK | TRANSACTION] [AND [NO] CHAIN | TO [SAVEPOINT] name | PREPARED name]"""
    reader.take()
    if reader.accept("PREPARED"):
        return _prepared_transaction(reader, "ROLLBACK PREPARED")
    reader.accept_one("WORK", "TRANSACTION")
    if not reader.accept("TO"):
        return _transaction(reader, "ROLLBACK", _chain(reader))
    reader.accept("SAVEPOINT")
    return _transaction(reader, "ROLLBACK TO", TransactionFacts(savepoint=_folded(reader)))


def _folded(reader: TokenReader) -> str:
    """A name: small letters unless quoted."""
    quoted = reader.peek() == QUOTED
    name = reader.identifier()
    return name if quoted else fold(name)


def savepoint(reader: TokenReader) -> Classified:
    """SAVEPOINT name"""
    reader.take()
    return _transaction(reader, "SAVEPOINT", TransactionFacts(savepoint=_folded(reader)))


def release(reader: TokenReader) -> Classified:
    """RELEASE [SAVEPOINT] name"""
    reader.take()
    reader.accept("SAVEPOINT")
    return _transaction(reader, "RELEASE", TransactionFacts(savepoint=_folded(reader)))


def _prepared_transaction(reader: TokenReader, verb: str) -> Classified:
    if reader.peek() != STRING:
        raise reader.unexpected()
    return _transaction(reader, verb, TransactionFacts(identifier=reader.take().value))


def _setting(reader: TokenReader, verb: str, facts: SettingFacts) -> Classified:
    reader.expect_end()
    return Classified(Kind.SETTING, reader.text, tuple(reader.tokens), verb=verb, setting=facts)


def _setting_name(reader: TokenReader) -> str:
    return ".".join(reader.qualified()).lower()


SET_CONSTRAINTS = "SET CONSTRAINTS"


def set_(reader: TokenReader) -> Classified:
    """SET [scope] name { = | TO } value [, ...], and the forms that have words of their own."""
    reader.take()
    if reader.accept("TRANSACTION"):
        return _transaction(reader, "SET TRANSACTION", _modes(reader))
    if reader.accept("SESSION", "CHARACTERISTICS", "AS", "TRANSACTION"):
        return _transaction(reader, "SET SESSION CHARACTERISTICS", _modes(reader))
    if reader.accept("VARIABLE"):
        facts = SettingFacts("VARIABLE", reader.identifier(), None)
        return Classified(Kind.SETTING, reader.text, tuple(reader.tokens), verb="SET VARIABLE", setting=facts)
    if reader.accept("SESSION", "AUTHORIZATION"):
        return _set_to(reader, "SESSION", "session_authorization")
    if reader.peek() == "CONSTRAINTS" and reader.peek(1) not in ("=", "TO"):
        return Classified(Kind.UTILITY, reader.text, tuple(reader.tokens), verb=SET_CONSTRAINTS)
    scope = None
    if reader.peek() in ("SESSION", "LOCAL", "GLOBAL") and reader.peek(1) not in ("=", "TO"):
        scope = reader.take().kind
    if reader.accept("TIME", "ZONE"):
        return _set_to(reader, scope, "timezone")
    if reader.accept("NAMES"):
        return _set_to(reader, scope, "client_encoding")
    if reader.peek() == "ROLE" and reader.peek(1) not in ("=", "TO"):
        reader.take()
        return _set_to(reader, scope, "role")
    if reader.peek() == "SCHEMA" and reader.peek(1) not in ("=", "TO"):
        reader.take()
        return _set_to(reader, scope, "search_path")
    name = _setting_name(reader)
    if reader.accept_one("=", "TO") is None:
        raise reader.unexpected()
    return _set_to(reader, scope, name)


def _set_to(reader: TokenReader, scope: str | None, name: str) -> Classified:
    if reader.at_end:
        raise reader.unexpected()
    values: tuple[str, ...] | None = None
    first, end = reader.index, len(reader.tokens)
    if not (end - first == 1 and reader.peek() == "DEFAULT"):
        parts: list[str] = []
        for cut, until in reader.slices(first, end):
            single = reader.tokens[cut]
            if until == cut:
                raise reader.unexpected()
            quoted = until - cut == 1 and not single.is_word
            parts.append((single.value if single.text[0] not in '"`' else single.name) if quoted else "")
            parts[-1] = parts[-1] if quoted else reader.cut(cut, until)
        values = tuple(parts)
    reader.index = end
    return _setting(reader, "SET", SettingFacts(scope, name, values))


def reset(reader: TokenReader) -> Classified:
    """RESET [scope] { name | ALL | SESSION AUTHORIZATION }"""
    reader.take()
    if reader.accept("SESSION", "AUTHORIZATION"):
        return _setting(reader, "RESET", SettingFacts(None, "session_authorization", None))
    if reader.accept("TIME", "ZONE"):
        return _setting(reader, "RESET", SettingFacts(None, "timezone", None))
    scope = reader.accept_one("SESSION", "LOCAL", "GLOBAL")
    if scope is not None and reader.at_end:
        raise reader.unexpected()
    return _setting(reader, "RESET", SettingFacts(scope, _setting_name(reader), None))


_SHOW_WORDS = {
    ("TRANSACTION", "ISOLATION", "LEVEL"): "transaction_isolation",
    ("SESSION", "AUTHORIZATION"): "session_authorization",
    ("TIME", "ZONE"): "timezone",
}


def show(reader: TokenReader) -> Classified:
    """SHOW of the catalog is a READ; of a single name it is a setting, or else a table."""
    reader.take()
    tokens = tuple(reader.tokens)
    if reader.peek() in _SHOW_CATALOG or (reader.peek() == "ALL" and reader.peek(1) == "TABLES"):
        return Classified(Kind.READ, reader.text, tokens, verb="SHOW")
    for words, name in _SHOW_WORDS.items():
        if reader.accept(*words):
            return _setting(reader, "SHOW", SettingFacts(None, name, None))
    if reader.at_end or not tokens[reader.index].is_name:
        return Classified(Kind.READ, reader.text, tokens, verb="SHOW")
    return _setting(reader, "SHOW", SettingFacts(None, _setting_name(reader), None))


def discard(reader: TokenReader) -> Classified:
    """DISCARD { ALL | PLANS | SEQUENCES | TEMP | TEMPORARY }"""
    reader.take()
    what = reader.accept_one("ALL", "PLANS", "SEQUENCES", "TEMP", "TEMPORARY")
    if what is None:
        raise reader.unexpected()
    return _setting(reader, "DISCARD", SettingFacts(None, what.lower(), None))


def explain(reader: TokenReader) -> Classified:
    """EXPLAIN [ANALYZE] [VERBOSE] [(option [value], ...)] statement"""
    reader.take()
    options: dict[str, str] = {}
    analyze = reader.accept_one("ANALYZE", "ANALYSE") is not None
    reader.accept("VERBOSE")
    if reader.peek() == "(" and _are_options(reader):
        first, end = reader.brackets()
        for cut, until in reader.slices(first, end):
            name = reader.tokens[cut].kind.replace("ANALYSE", "ANALYZE")
            value = reader.cut(cut + 1, until).strip("'").lower()
            if name not in _EXPLAIN_OPTIONS:
                raise SyntaxError_(
                    f'unrecognized EXPLAIN option "{fold(reader.tokens[cut].text)}"',
                    position=reader.tokens[cut].start + 1,
                )
            if name != "FORMAT" and value not in _TRUE | _FALSE:
                raise SyntaxError_(
                    f"{fold(name)} requires a Boolean value", position=reader.tokens[cut].start + 1
                )
            options[name] = value
        analyze = analyze or options.get("ANALYZE", "off") not in _FALSE
    # The others choose between details of PostgreSQL's plans: DuckDB shows its own.
    options = {name: value for name, value in options.items() if name in ("ANALYZE", "FORMAT")}
    inner, offset = reader.rest()
    facts = ExplainFacts(analyze, options, inner, offset)
    return Classified(Kind.EXPLAIN, reader.text, tuple(reader.tokens), verb="EXPLAIN", explain=facts)


_EXPLAIN_OPTIONS = frozenset(
    {"ANALYZE", "VERBOSE", "COSTS", "SETTINGS", "BUFFERS", "WAL", "TIMING", "SUMMARY", "FORMAT"}
)
_TRUE, _FALSE = frozenset({"", "on", "true", "1"}), frozenset({"off", "false", "0"})


def _are_options(reader: TokenReader) -> bool:
    """True if the parenthesis contains EXPLAIN's options, and not a query."""
    return reader.peek(1) not in ("SELECT", "FROM", "VALUES", "WITH", "TABLE", "(", "PIVOT", "UNPIVOT")


def prepare(reader: TokenReader) -> Classified:
    """PREPARE name [(type, ...)] AS statement, PREPARE TRANSACTION name"""
    reader.take()
    if reader.accept("TRANSACTION"):
        return _prepared_transaction(reader, "PREPARE TRANSACTION")
    name = reader.identifier()
    types: tuple[str, ...] = ()
    if reader.peek() == "(":
        first, end = reader.brackets()
        types = tuple(_type(reader.cut(cut, until)) for cut, until in reader.slices(first, end))
    if not reader.accept("AS"):
        raise reader.unexpected()
    inner, offset = reader.rest()
    facts = PrepareFacts(name, types, inner, offset)
    return Classified(Kind.PREPARE, reader.text, tuple(reader.tokens), verb="PREPARE", prepare=facts)


def _type(text: str) -> str:
    """The type of a parameter, which may be qualified by PostgreSQL's schema."""
    name = text.strip()
    if fold(name).startswith(_PG_SCHEMA):
        name = name[len(_PG_SCHEMA) :]
    return "BIGINT" if fold(name) == "oid" else name


_PG_SCHEMA = "pg_catalog."


def execute(reader: TokenReader) -> Classified:
    """EXECUTE name [([parameter { := | => }] expression, ...)]"""
    reader.take()
    name = reader.identifier()
    arguments: tuple[tuple[str | None, str], ...] = ()
    if reader.peek() == "(":
        first, end = reader.brackets()
        arguments = tuple(_argument(reader, cut, until) for cut, until in reader.slices(first, end))
    reader.expect_end()
    facts = ExecuteFacts(name, arguments)
    return Classified(Kind.EXECUTE, reader.text, tuple(reader.tokens), verb="EXECUTE", execute=facts)


def _argument(reader: TokenReader, first: int, end: int) -> tuple[str | None, str]:
    """One argument of EXECUTE: the name of its parameter, if any, and its expression."""
    tokens = reader.tokens
    if end - first > 2 and tokens[first].is_name and tokens[first + 1].kind in (":=", "=>"):
        return tokens[first].name, reader.cut(first + 2, end)
    return None, reader.cut(first, end)


def deallocate(reader: TokenReader) -> Classified:
    """DEALLOCATE [PREPARE] { name | ALL }"""
    reader.take()
    if reader.peek(1):
        reader.accept("PREPARE")
    name = None if reader.accept("ALL") else reader.identifier()
    reader.expect_end()
    return Classified(Kind.DEALLOCATE, reader.text, tuple(reader.tokens), verb="DEALLOCATE", name=name)


def copy(reader: TokenReader) -> Classified:
    """COPY { table [(columns)] | (query) } { FROM { STDIN | file } | TO { STDOUT | file } } [options]"""
    reader.take()
    table: Name | None = None
    position = 0
    columns: tuple[str, ...] | None = None
    query: str | None = None
    query_offset: int | None = None
    binary = False
    if reader.peek() == "(":
        first, end = reader.brackets()
        query, query_offset = reader.cut(first, end), reader.tokens[first].start
    elif reader.peek() == "FROM" and reader.peek(1) == "DATABASE":
        return refused(reader, InsufficientPrivilege("COPY FROM DATABASE is not allowed"))
    else:
        if reader.peek() == "BINARY" and reader.peek(1) not in ("FROM", "TO", "(", "."):
            binary = reader.accept("BINARY")
        position = 0 if reader.at_end else reader.tokens[reader.index].start
        table = reader.qualified()
        if reader.peek() == "(":
            first, end = reader.brackets()
            columns = tuple(reader.tokens[cut].name for cut, _ in reader.slices(first, end))
    direction = reader.accept_one("FROM", "TO")
    if direction is None:
        raise reader.unexpected()
    reads = direction == "FROM"
    if reads and query is not None:
        raise reader.unexpected()
    if reader.peek() == "PROGRAM" and reader.peek(1) == STRING:
        return refused(reader, InsufficientPrivilege("COPY from or to a program is not allowed"))
    client = reader.accept("STDIN" if reads else "STDOUT")
    if reader.at_end and not client:
        raise reader.unexpected()
    if binary and not client:
        return refused(reader, NotSupported("files in PostgreSQL's binary format are not supported"))
    facts = CopyFacts(table, position, columns, query, query_offset, reads, client, reader.index, binary)
    return Classified(Kind.COPY, reader.text, tuple(reader.tokens), verb="COPY", copy=facts)

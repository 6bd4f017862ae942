"""COPY between a table or a query and a file of the server, or the client.

A file is read or written by DuckDB's own COPY. Into a captured table, COPY first fills a temporary table with
the same columns, so that the parser, its errors and the defaults are DuckDB's; one captured INSERT then
copies its rows. Only files in a directory that the operator has allowed are accessible.

COPY (...) TO STDOUT runs the statement in the parentheses (a query, also over stream scans, or a DML with
RETURNING) as a statement of its own; a table is read with a query of its columns. The rows of the answer are
then encoded in the COPY's format, batch by batch. Source: docs/sql.md, "COPY".
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from ...engine.duck.duckdb_errors import FILES_HINT
from ...engine.errors import DucktailError, InsufficientPrivilege, NotSupported
from ...engine.quoting import ident
from ...engine.waiting import Waiting
from ..dml import cte_writes, writes
from ..language.classify import classify
from ..results.results import CopyOut, Result
from ..session_state.context import Context
from ..session_state.names import Key
from ..session_state.run_text import atomically, bound, count_of, placed
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, CopyFacts, Kind
from ..text.tokens import PARAMETER, QUOTED, STRING, Token
from . import files
from . import stdin as copy_in
from .copy_options import ARROW, as_option_error, check_encoding, read_options
from .stdin import columns_of, target_text

Values = tuple[object, ...]
# The temporary table that a file is read into.
TWIN = "__ducktail_twin"
# DuckDB's options that make COPY ... TO return rows.
_ANSWERING = frozenset({"RETURN_FILES", "RETURN_STATS"})
# Options that become part of the names of written files.
_NAMING = frozenset({"FILENAME_PATTERN", "FILE_EXTENSION"})


def run_copy(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run a COPY; the query of a COPY ... TO STDOUT runs as a statement of its own, with its own scans."""
    facts = statement.classified.copy
    assert facts is not None
    if facts.client and not facts.reads:
        return (yield from begin(session, statement))
    return (yield from copy(session, statement, statement.classified, parameters))


def copy(
    session: Context, statement: ParsedStatement, classified: Classified, parameters: Values
) -> Waiting[Result]:
    """Run a COPY text that is not TO STDOUT: the statement's own, or the same with its scans replaced."""
    facts = classified.copy
    assert facts is not None
    if facts.client:
        return (yield from copy_in.begin(session, statement, classified))
    if not session.database.settings.allowed_directories:
        raise InsufficientPrivilege("files cannot be read or written", hint=FILES_HINT)
    _refuse_outside(session, classified, facts, parameters)
    try:
        if facts.reads:
            return (yield from _from_file(session, statement, classified, facts, parameters))
        return (yield from _to_file(session, statement, classified, parameters))
    except DucktailError as error:
        told = as_option_error(error, classified.tokens[facts.rest :])
        if told is error:
            raise
        raise told from error


def _refuse_outside(session: Context, classified: Classified, facts: CopyFacts, parameters: Values) -> None:
    """Refuse file names outside the allowed directories, and the database's own files
    (engine/duck/allowed_files.py)."""
    tokens, place = classified.tokens, facts.rest
    token = tokens[place]
    if place + 1 < len(tokens) and not (tokens[place + 1].is_word or tokens[place + 1].kind == "("):
        raise _not_a_literal(token.start)
    if token.kind == PARAMETER and 0 < (number := files.parameter_number(tokens, place)) <= len(parameters):
        files.require(session, str(parameters[number - 1]), token)
    elif token.kind == QUOTED or (token.kind == STRING and token.text[0] not in "xXbBnN"):
        files.require(session, token.value if token.kind == STRING else token.name, token)
    else:
        raise _not_a_literal(token.start)
    for index in range(place, len(tokens) - 1):
        option = _option(tokens[index])
        if option in _NAMING and not _is_plain(tokens, index + 1):
            raise InsufficientPrivilege(
                f"COPY option {option} must be a string without a directory",
                hint=FILES_HINT,
                position=tokens[index].start + 1,
            )


def _not_a_literal(start: int) -> NotSupported:
    hint = "Write it as a string, or give it as a parameter."
    return NotSupported("COPY wants the name of its file as a string", hint=hint, position=start + 1)


def _option(token: Token) -> str:
    """The option that a word names, quoted or not; "" if the token is no word."""
    return token.name.upper() if token.is_name else ""


def _is_plain(tokens: Sequence[Token], index: int) -> bool:
    """True if an option's value is a string without a directory."""
    ends = index + 1 >= len(tokens) or tokens[index + 1].kind in (",", ")")
    return ends and tokens[index].kind == STRING and "/" not in tokens[index].value


def _to_file(
    session: Context, statement: ParsedStatement, classified: Classified, parameters: Values
) -> Waiting[Result]:
    if any(_option(token) in _ANSWERING for token in classified.tokens):
        raise NotSupported("COPY ... TO cannot answer what it has written", hint="Leave RETURN_... out.")

    def rest(left: Classified, values: Values) -> Waiting[Result]:
        if session.block.begun:
            session.block.touched()
        try:
            return Result.command(f"COPY {count_of(session, left.text, values)}")
        except duckdb.Error as error:
            raise placed(session, error, left.text) from error
        yield

    if classified.cte_writes:
        return (yield from cte_writes.run_cte_writes(session, statement, classified, parameters, rest))
    return (yield from rest(classified, parameters))


def _from_file(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    facts: CopyFacts,
    parameters: Values,
) -> Waiting[Result]:
    key = copy_in.target(session, facts)
    if session.database.catalog.stream_of_view(key) is not None:
        raise NotSupported(
            f'COPY of a file into topic "{key[-1]}" is not supported',
            hint="INSERT INTO the topic SELECT ... FROM read_csv('...'), or COPY ... FROM STDIN.",
        )
    while True:
        if key not in session.block.tables:
            count = yield from _plain(session, classified, facts, key, parameters)
        else:
            count = yield from _captured(session, statement, classified, facts, parameters)
        if count is not None:
            return Result.command(f"COPY {count}")


def _plain(
    session: Context, classified: Classified, facts: CopyFacts, key: Key, parameters: Values
) -> Waiting[int | None]:
    """COPY into a table without a stream; None if the table has just got one."""
    if session.block.begun:
        session.block.touched()
    assert facts.table is not None
    transactions = session.database.transactions
    try:
        free = yield from session.block.enter_plain_write(key)
        if not free:
            return None
        return count_of(session, classified.text, parameters)
    except duckdb.Error as error:
        raise placed(session, error, classified.text) from error
    finally:
        if not session.block.begun:
            transactions.gate.leave(session.id)


def _captured(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    facts: CopyFacts,
    parameters: Values,
) -> Waiting[int]:
    """COPY into a captured table through a temporary one; the lock is taken after the file is read."""
    _ = bound(session, classified.text)
    text, tokens = classified.text, classified.tokens
    name = copy_in.target_text(facts)
    listed = ",".join(map(ident, copy_in.columns_of(session, facts)))
    source = text[tokens[facts.rest].start :]
    counted = 0

    def work() -> Waiting[Result]:
        nonlocal counted
        session.block.touched()
        try:
            session.cursor.execute(
                f"CREATE TEMP TABLE {TWIN} AS SELECT {listed} FROM {name} LIMIT 0"
            ).fetchall()
            counted = count_of(session, f"COPY {TWIN} FROM {source}", parameters)
        except duckdb.Error as error:
            raise _told(session, error, text) from error
        insert = classify(f"INSERT INTO {name} ({listed}) SELECT * FROM {TWIN}")
        yield from writes.write(session, statement, insert, ())
        session.cursor.execute(f"DROP TABLE temp.{TWIN}").fetchall()
        return Result.command("COPY")

    yield from atomically(session, work)
    return counted


def _told(session: Context, error: duckdb.Error, text: str) -> DucktailError:
    """The error without the internal table's name."""
    found = placed(session, error, text)
    found.message = found.message.replace(TWIN, "the table")
    return found


ANSWERING = (Kind.READ, Kind.DML)


def begin(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    """Run the copied query; its result has the output format.

    Raises:
        NotSupported: the session has no client that can receive rows, or the statement returns no rows.
    """
    facts = statement.classified.copy
    assert facts is not None
    if not session.wire:
        raise NotSupported(
            "COPY TO STDOUT wants a connection over the wire",
            hint="In process a SELECT gives its rows as Arrow or as Python values.",
        )
    options = read_options(statement.classified)
    check_encoding(options, session.variables["client_encoding"])
    try:
        inner = yield from session.parse(_source(session, facts))
        if options.format == ARROW:
            inner = _as_arrow(inner)
        result = yield from _run(session, inner)
    except DucktailError as error:
        if error.position is not None:
            # The query over a table is internal: the user's text has no such positions.
            error.position = None if facts.query_offset is None else error.position + facts.query_offset
        raise
    assert result.columns is not None
    names = [column.name for column in result.columns]
    try:
        result.copy_to(CopyOut(options.form(names), bool(options.header)))
    except DucktailError:
        result.fail()
        raise
    return result


def _as_arrow(inner: ParsedStatement) -> ParsedStatement:
    """The statement of a query with an Arrow answer."""
    if inner.classified.kind is not Kind.READ or inner.classified.cte_writes:
        raise NotSupported("COPY of what writes cannot be in FORMAT arrow", hint="Take csv or binary.")
    return inner.as_arrow()


def _source(session: Context, facts: CopyFacts) -> str:
    """The text of the statement that returns the copied rows."""
    if facts.query is not None:
        return facts.query
    listed = ",".join(map(ident, columns_of(session, facts)))
    return f"SELECT {listed or '*'} FROM {target_text(facts)}"


def _run(session: Context, inner: ParsedStatement) -> Waiting[Result]:
    classified = inner.classified
    if classified.error is not None:
        raise classified.error
    if classified.kind not in ANSWERING:
        raise NotSupported(
            f"{classified.verb} cannot be copied" if classified.verb else "there is nothing to copy"
        )
    if classified.dml is not None and not classified.dml.has_returning:
        raise NotSupported("COPY query must have a RETURNING clause")
    return (yield from session.execute_within(inner, ()))

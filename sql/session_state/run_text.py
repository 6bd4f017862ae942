"""Small helps that the runners of statements share: binding, running a text, making a result.

The arguments of our statements: literals, or the values of parameters in their place.

Whether a transaction may write: READ ONLY and READ WRITE, of a block or of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from ...engine.duck.binding import Bound, Parsed, bind, type_text
from ...engine.duck.cursors import arrow_table
from ...engine.duck.duckdb_errors import FILES_HINT, translated
from ...engine.errors import (
    ActiveTransaction,
    DucktailError,
    InsufficientPrivilege,
    InvalidParameterValue,
    InvalidTextRepresentation,
    SyntaxError_,
    UndefinedParameter,
    UndefinedTable,
)
from ...engine.quoting import fold
from ...engine.values import arrow_types, datarow
from ...engine.waiting import Waiting
from ..language import statements as st
from ..results.batches import FEW_ROWS, PlainBatch, taken
from ..results.results import (
    BATCH_ROWS,
    ArrowSource,
    ReadySource,
    Result,
    ResultColumn,
    select_tag,
    table_result,
)
from ..settings import READ_ONLY
from ..text.tokens import tokenize
from .context import Context
from .statement import NUMERIC, Casts

# What the names begin with under which a session's own cursor has the rows of scans.
OWN_RELATION = "__ducktail_"


def binding_cursor(session: Context, text: str | None = None) -> duckdb.DuckDBPyConnection:
    """The cursor to bind on: binding fixes an MVCC snapshot, so it is the session's own only where
    that is fixed already, or where temporary tables (which only it sees) may be named.

    Args:
        text: what is to be bound; None may name any.
    """
    transaction = session.block.transaction
    if transaction is not None and transaction.snapshot_counter is not None:
        session.cursors.settle()
        return session.cursor
    temporary = session.names.temporary
    if temporary if text is None else _may_name(text, (OWN_RELATION, *temporary)):
        session.cursors.settle()
        if session.block.whole:
            session.block.touched()
        return session.cursor
    return session.meta


def _may_name(text: str, temporary: Collection[str]) -> bool:
    """True if one of these names (in lower case) may occur in a text."""
    lowered = fold(text)
    return any(name.replace('"', '""') in lowered for name in temporary)


def _bind(session: Context, text: str) -> Bound:
    cursor = binding_cursor(session, text)
    try:
        return bind(cursor, text)
    except duckdb.Error:
        if cursor is not session.meta or not session.names.temporary:
            raise
    # It may name a temporary table through a view, or something else that is temporary.
    return bind(binding_cursor(session), text)


def bound(session: Context, text: str) -> Bound:
    """Bind a text that is the user's own.

    Raises:
        DucktailError: the binder's error, with its place in the text.
    """
    try:
        return _bind(session, text)
    except duckdb.Error as error:
        raise placed(session, error, text) from error


def placed(session: Context, error: BaseException, text: str) -> DucktailError:
    """An error of a text, with its place there.

    What binds without running tells an error without its place; PREPARE tells it with, and costs more:
    it is asked only now.
    """
    found = translated(error, text)
    if found.position is not None:
        return _file(found, text)
    try:
        session.meta.execute(PREPARE + text)
        session.meta.execute("DEALLOCATE __ducktail_place")
    except duckdb.Error as again:
        told = translated(again, PREPARE + text)
        if type(told) is type(found) and told.position is not None and told.position > len(PREPARE):
            told.position -= len(PREPARE)
            return _file(told, text)
    return found


def _file(error: DucktailError, text: str) -> DucktailError:
    """The error for a string in place of a table: a file name, which is not accessible."""
    if isinstance(error, UndefinedTable) and text[(error.position or 1) - 1 :].startswith("'"):
        return InsufficientPrivilege(
            "files cannot be read",
            hint=FILES_HINT,
            position=error.position,
        )
    return error


def bound_with_types(session: Context, text: str, given: Sequence[str]) -> tuple[Bound, Casts | None]:
    """Bind a text whose parameters the client has given types.

    A type of the result that hangs on a parameter (`SELECT $1 + 1`) is told by binding once more with
    typed NULLs in the parameters' places; a parameter without a type is text.

    Returns:
        What the binder says, with the types that the client is told of its parameters, and what these are
        cast to for the answer to be so; None where casts cannot stand in their places.

    Raises:
        SyntaxError_: a parameter has a name.
    """
    known = {str(place): type_ for place, type_ in enumerate(given, 1) if type_}
    try:
        found = bound(session, text)
    except DucktailError:
        # `x = ANY($1)` binds only once the parameter is known to be a list.
        if not known:
            raise
        typed = bound(session, with_nulls(text, known))
        return Bound(typed.names, typed.types, known, typed.writes, typed.returns_rows), _casts(known)
    if not found.parameters:
        return found, None
    for name in found.parameters:
        if not name.isdecimal():
            raise SyntaxError_(f'syntax error at or near "${name}"', position=text.find(f"${name}") + 1)
    types = {name: _sent_as(type_, known.get(name)) for name, type_ in found.parameters.items()}
    try:
        typed = _bind(session, with_nulls(text, types))
    except duckdb.Error:
        # What cannot be texts (`SELECT $1 + 1`) may be numbers.
        numbers = {name: NUMERIC if type_ == "VARCHAR" else type_ for name, type_ in types.items()}
        try:
            if not session.wire or found.names != UNTOLD:
                raise
            typed = _bind(session, with_nulls(text, numbers))
        except duckdb.Error:
            return Bound(found.names, found.types, types, found.writes, found.returns_rows), None
        types = numbers
    names = found.names if len(found.names) == len(typed.names) else typed.names
    return Bound(names, typed.types, types, found.writes, found.returns_rows), _casts(types)


def _sent_as(type_: str, declared: str | None) -> str:
    """The type that has every value which a client can send for a parameter.

    Args:
        type_: what the binder takes it for, by what stands beside it.
        declared: what the client says that it is.
    """
    if declared is not None:
        kept = declared == NUMERIC and (type_ in OVER_NUMERIC or type_.startswith(NUMERICS))
        return type_ if kept and not type_.endswith("]") else declared
    element = type_.rstrip("[]0123456789") if type_.endswith("]") else type_
    return WIDER.get(element, element) + type_[len(element) :]


def _casts(types: Mapping[str, str]) -> Casts:
    numeric = {name: type_ for name, type_ in types.items() if type_.startswith(NUMERICS)}
    return Casts({name: type_ for name, type_ in types.items() if name not in numeric}, numeric)


def with_nulls(text: str, types: Mapping[str, str]) -> str:
    """The text with each parameter replaced by a NULL of its type."""
    return _at_parameters(text, types, lambda name: f"(NULL::{types[name]})")


def with_casts(text: str, types: Mapping[str, str]) -> str:
    """The text with each parameter cast to its type: its answer has the types that were described."""
    return _at_parameters(text, types, lambda name: f"(${name}::{types[name]})")


def _at_parameters(text: str, types: Mapping[str, str], put: Callable[[str], str]) -> str:
    parts, last = [], 0
    for token in tokenize(text):
        if token.text.startswith("$") and token.text[1:] in types:
            parts += [text[last : token.start], put(token.text[1:])]
            last = token.end
    return "".join(parts) + text[last:]


def result_columns(names: Sequence[str], types: Sequence[object]) -> tuple[ResultColumn, ...]:
    """Columns from DuckDB's names and types."""
    return tuple(ResultColumn(name, type_text(type_)) for name, type_ in zip(names, types, strict=True))


@contextmanager
def told_in(session: Context, user_text: str | None) -> Iterator[None]:
    """Context in which DuckDB's errors are translated, with positions in the user's own text."""
    try:
        yield
    except duckdb.Error as error:
        if user_text is None:
            raise translated(error) from error
        raise placed(session, error, user_text) from error


def query_result(
    session: Context,
    text: str,
    parameters: Sequence[object],
    user_text: str | None,
    learn: Callable[[Result, pa.Schema], None] | None = None,
    *,
    arrow: bool = False,
    again: bool = False,
) -> Result:
    """Run a query on the session's cursor; its rows are computed as the client takes them.

    Args:
        text: what DuckDB runs.
        user_text: the same text where it is the user's own, for the places of errors.
        learn: told of the result, and of Arrow's schema of its rows.
        arrow: the rows go out as Arrow has them.
        again: it may be run a second time where nothing of its answer has been given.

    Raises:
        DucktailError: DuckDB's error.
    """
    values = list(parameters) or None
    with told_in(session, user_text):
        relation = session.cursor.sql(text, params=values)
        if relation is None:
            return Result.command("SELECT 0")
        columns = result_columns(relation.columns, relation.types)
        wrap = arrow_types.plain_query
        if session.wire:
            wrap = arrow_types.copy_query if arrow else datarow.wrapped
        if wrapped := wrap(text, [column.type for column in columns]):
            text = wrapped
            relation = session.cursor.sql(text, params=values)
        reader = relation.to_arrow_reader(BATCH_ROWS)

    def with_few_rows() -> pa.RecordBatchReader:
        return session.cursor.sql(text, params=values).to_arrow_reader(FEW_ROWS)

    # In a transaction block the failed one has ended the block.
    batches = taken(reader, with_few_rows if again and not session.block.begun else None)
    result = Result(columns, ArrowSource(batches, user_text), select_tag)
    result.arrow_schema = reader.schema
    if learn is not None:
        learn(result, reader.schema)
    return result


def rows_result(
    session: Context, columns: Sequence[ResultColumn], table: pa.Table, tag: Callable[[int], str]
) -> Result:
    """A result of complete rows, in the form that the client needs."""
    projection = _projection(session, [column.type for column in columns])
    if projection is not None:
        names = [f"c{place}" for place in range(len(columns))]
        session.meta.register(KEPT_ROWS, arrow_types.readable(table.rename_columns(names)))
        try:
            table = session.meta.sql(f"SELECT {projection} FROM {KEPT_ROWS}").to_arrow_table()
        finally:
            session.meta.unregister(KEPT_ROWS)
    return table_result(columns, table, tag)


def count_of(session: Context, text: str | Parsed, parameters: Sequence[object]) -> int:
    """Run a statement that answers a count, to its end."""
    if isinstance(text, Parsed):
        rows = text.run(session.cursor, parameters).fetchall()
    else:
        rows = session.cursor.execute(text, list(parameters) or None).fetchall()
    return int(rows[0][0]) if rows and isinstance(rows[0][0], int) else 0


def rows_of(
    session: Context, text: str, parameters: Sequence[object]
) -> tuple[tuple[ResultColumn, ...], pa.Table]:
    """Run a statement and take all its rows."""
    cursor = session.cursor.execute(text, list(parameters) or None)
    description = cursor.description or []
    columns = result_columns([item[0] for item in description], [item[1] for item in description])
    return columns, arrow_table(cursor)


def _projection(session: Context, types: Sequence[str]) -> str | None:
    """The SELECT list that converts columns without a lossless Arrow form to text; None if there are none."""
    return datarow.select_text(types) if session.wire else arrow_types.select_plain(types)


@contextmanager
def lossless(session: Context, types: Sequence[str]) -> Iterator[None]:
    """Context in which the cursor returns rows of these types without loss, in DuckDB's own Arrow types.

    `rows_result` needs it where a type is odd.
    """
    if _projection(session, types) is None:
        yield
        return
    with in_duckdb_arrow_types(session, types):
        yield


@contextmanager
def in_duckdb_arrow_types(session: Context, types: Sequence[str]) -> Iterator[None]:
    """Context in which the cursor returns rows in DuckDB's own Arrow types, whatever their types.

    What is given back to DuckDB needs it.
    """
    session.cursor.execute("SET SESSION arrow_lossless_conversion = true")
    try:
        yield
        session.cursor.execute(LOSSY)
    except BaseException:
        # A failed transaction takes no setting, and the statement's own error is what is told.
        session.cursors.later(LOSSY)
        raise


@contextmanager
def undone(session: Context, types: Sequence[object]) -> Iterator[None]:
    """Context that undoes an autocommit write if its rows of these types cannot be returned."""
    if session.block.begun or not any(arrow_types.may_be_refused(type_text(type_)) for type_ in types):
        yield
        return
    session.cursor.begin()
    try:
        yield
    except BaseException:
        session.cursor.rollback()
        raise
    session.cursor.commit()


def atomically(session: Context, work: Callable[[], Waiting[Result]]) -> Waiting[Result]:
    """Do `work`, whose rows are all taken, in the open block, or in one that ends with it."""
    if session.block.begun:
        return (yield from work())
    session.block.begin()
    try:
        result = yield from work()
    except BaseException:
        session.block.rollback()
        raise
    yield from session.block.commit()
    return result


def text_rows(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]], tag: str) -> Result:
    """A small result of text columns."""
    found = tuple(ResultColumn(*column) for column in columns)
    schema = pa.schema([(column.name, ARROW.get(column.type, pa.string())) for column in found])
    batch = PlainBatch([tuple(row) for row in rows], tuple(column.type for column in found), schema)
    return Result(found, ReadySource([batch] if rows else []), lambda _: tag)


# What DuckDB calls the one column that it tells where the columns hang on a parameter's type.
UNTOLD = ("unknown",)
# DuckDB's types with fewer values than the PostgreSQL type by which a client knows them, and what has all.
WIDER = {
    "TINYINT": "SMALLINT",
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
}
# Those that a client knows as numeric, and lists of them.
NUMERICS = ("DECIMAL", "UBIGINT", "HUGEINT", "UHUGEINT")
# What a numeric is beside values of these types.
OVER_NUMERIC = frozenset({"FLOAT", "DOUBLE", "BIGNUM"})
PREPARE = "PREPARE __ducktail_place AS "
LOSSY = "SET SESSION arrow_lossless_conversion = false"
KEPT_ROWS = "__ducktail_rows"
ARROW = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "BOOLEAN": pa.bool_(), "DOUBLE": pa.float64()}


Values = tuple[object, ...]


def check_given(index: int, parameters: Values) -> None:
    """There is a value for each parameter up to this one.

    Raises:
        UndefinedParameter.
    """
    if index > len(parameters):
        raise UndefinedParameter(f"there is no parameter ${index}")


def value_of(scalar: st.Scalar, parameters: Values) -> object:
    """A scalar of a statement, a parameter replaced by its value.

    Raises:
        InvalidParameterValue: the parameter's value is NULL. UndefinedParameter: it has none.
    """
    if not isinstance(scalar, st.Parameter):
        return scalar
    check_given(scalar.index, parameters)
    value = parameters[scalar.index - 1]
    if value is None:
        raise InvalidParameterValue(f"parameter ${scalar.index} must not be NULL")
    return value


def number(scalar: st.Scalar, parameters: Values, what: str) -> int:
    """A scalar that is a whole number, at least 0.

    Raises:
        InvalidTextRepresentation: it is none. InvalidParameterValue: it is negative.
    """
    value = value_of(scalar, parameters)
    if isinstance(value, bool) or not isinstance(value, int):
        try:
            value = int(str(value))
        except ValueError as error:
            raise InvalidTextRepresentation(f'{what} wants a whole number, not "{value}"') from error
    if value < 0:
        raise InvalidParameterValue(f"{what} must not be negative: {value}")
    return value


def text(scalar: st.Scalar, parameters: Values) -> str:
    """A scalar that is a name or another text."""
    return str(value_of(scalar, parameters))


def begun_read_only(session: Context) -> bool:
    """True if the session's next statement is, or would be, in a read-only transaction."""
    return session.variables[READ_ONLY] == "on"


def choose(session: Context, *, read_only: bool) -> None:
    """Make the open transaction read-only, or one that writes; outside of one it means nothing.

    Raises:
        ActiveTransaction: a read-only one that has begun to read cannot write any more.
    """
    if not session.block.begun:
        return
    if begun_read_only(session) and not read_only and session.block.transaction is not None:
        raise ActiveTransaction("transaction read-write mode must be set before any query")
    session.changed(READ_ONLY, "on" if read_only else "off", report=False, local=False)

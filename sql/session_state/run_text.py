"""Helpers that runners share: binding, running a text, making a result.

They also evaluate the arguments of ducktail's statements (literals, or parameters replaced by their values)
and the access mode of a transaction: READ ONLY or READ WRITE, of the block or of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

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
from ...engine.values.duckdb_types import read_type
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
from ..settings import ISOLATION, READ_ONLY
from ..text.tokens import tokenize
from .context import Context
from .operand_types import operand_types
from .statement import NUMERIC, Casts

# Prefix of the names under which a session's own cursor has the rows of scans.
OWN_RELATION = "__ducktail_"


def binding_cursor(session: Context, text: str | None = None) -> duckdb.DuckDBPyConnection:
    """The cursor to bind on.

    Binding fixes an MVCC snapshot, so it is the session's own cursor only where the snapshot is fixed
    already, or where the text may name temporary tables, which only that cursor sees.

    Args:
        text: the text to bind; None means that it may name any table.
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
    # It may name a temporary object through a view, or a temporary object of another kind.
    return bind(binding_cursor(session), text)


def bound(session: Context, text: str) -> Bound:
    """Bind a text of the user's own.

    Raises:
        DucktailError: the binder's error, with its place in the text.
    """
    try:
        return _bind(session, text)
    except duckdb.Error as error:
        raise placed(session, error, text) from error


def placed(session: Context, error: BaseException, text: str) -> DucktailError:
    """An error of a text, with its position there.

    Binding without running reports an error without its position; PREPARE reports the position but costs
    more, so it is used only after an error.
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
    """Bind a text whose parameters have types that the client has given.

    Where a result type depends on a parameter (`SELECT n + $1`), binding once more with typed NULLs in the
    parameters' places finds it. A parameter without a type has that of the operand beside it, or is text.

    Returns:
        The binder's result, with the parameter types to report to the client, and the casts of the parameters
        that make the answer have the described types; None if casts cannot replace them.

    Raises:
        SyntaxError_: a parameter is named.
    """
    known = {str(place): type_ for place, type_ in enumerate(given, 1) if type_}
    try:
        found = bound(session, text)
    except DucktailError:
        # `x = ANY($1)` binds only with a list as the parameter.
        if not known:
            raise
        typed = bound(session, with_nulls(text, known))
        return Bound(typed.names, typed.types, known, typed.writes, typed.returns_rows), _casts(known)
    if not found.parameters:
        return found, None
    for name in found.parameters:
        if not name.isdecimal():
            raise SyntaxError_(f'syntax error at or near "${name}"', position=text.find(f"${name}") + 1)
    parameters, alone = dict(found.parameters), found.untyped - known.keys()
    if session.wire and alone:
        beside = operand_types(partial(_bind, session), text, known)
        parameters |= beside
        alone -= beside.keys()
    types = {name: _sent_as(type_, known.get(name)) for name, type_ in parameters.items()}
    try:
        typed = _bind(session, with_nulls(text, types))
    except duckdb.Error:
        # A parameter that cannot be text (`SELECT abs($1)`) may be a number.
        numbers = types | dict.fromkeys(alone, NUMERIC)
        try:
            if not session.wire or not alone:
                raise
            typed = _bind(session, with_nulls(text, numbers))
        except duckdb.Error:
            return Bound(found.names, found.types, types, found.writes, found.returns_rows), None
        types = numbers
    names = typed.names if found.names == UNTOLD or len(found.names) != len(typed.names) else found.names
    return Bound(names, typed.types, types, found.writes, found.returns_rows), _casts(types)


def _sent_as(type_: str, declared: str | None) -> str:
    """The type that holds every value which a client can send for a parameter.

    Args:
        type_: the binder's type, from the parameter's context.
        declared: the client's declared type.
    """
    if declared is not None:
        kept = declared == NUMERIC and (type_ in OVER_NUMERIC or type_.startswith(NUMERICS))
        # To PostgreSQL `$1::int[][]` is an int[], as the client declares it.
        kept |= declared.endswith("]") and type_.count("[") > declared.count("[")
        return type_ if kept and (declared.endswith("]") or not type_.endswith("]")) else declared
    element = type_.rstrip("[]0123456789") if type_.endswith("]") else type_
    return WIDER.get(element, element) + type_[len(element) :]


def _casts(types: Mapping[str, str]) -> Casts:
    numeric = {name: type_ for name, type_ in types.items() if type_.startswith(NUMERICS)}
    return Casts({name: type_ for name, type_ in types.items() if name not in numeric}, numeric)


def with_nulls(text: str, types: Mapping[str, str]) -> str:
    """The text with each parameter replaced by a NULL of its type."""
    return _at_parameters(text, types, lambda name: f"({_null(types[name])})")


def _null(type_: str) -> str:
    """A NULL of a type; a struct of NULLs for a struct, because the field of a NULL has no type in DuckDB."""
    if not type_.startswith("STRUCT(") or type_.endswith("]"):
        return f"NULL::{type_}"
    return f"row({', '.join(_null(child.text) for child in read_type(type_).children)})::{type_}"


def with_casts(text: str, types: Mapping[str, str]) -> str:
    """The text with each parameter cast to its type, so that its answer has the described types."""
    return _at_parameters(text, types, lambda name: f"(${name}::{types[name]})")


def _at_parameters(text: str, types: Mapping[str, str], put: Callable[[str], str]) -> str:
    parts, last = [], 0
    for token in tokenize(text):
        if token.text.startswith("$") and token.text[1:] in types:
            parts += [text[last : token.start], put(token.text[1:])]
            last = token.end
    return "".join(parts) + text[last:]


def result_columns(names: Sequence[str], types: Sequence[object]) -> tuple[ResultColumn, ...]:
    """Columns with DuckDB's names and types."""
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
        text: the text that DuckDB runs.
        user_text: the same text if it is the user's own, for the positions of errors.
        learn: called with the result and the Arrow schema of its rows.
        arrow: the rows are sent as Arrow has them.
        again: True if it may run a second time while nothing of its answer has been sent.

    Raises:
        DucktailError: the translated error of DuckDB.
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

    # In a transaction block the failed attempt has ended the block.
    batches = taken(reader, with_few_rows if again and not session.block.begun else None)
    result = Result(columns, ArrowSource(batches, user_text), select_tag)
    result.arrow_schema = reader.schema
    if learn is not None:
        learn(result, reader.schema)
    return result


def rows_result(
    session: Context, columns: Sequence[ResultColumn], table: pa.Table, tag: Callable[[int], str]
) -> Result:
    """A result of complete rows, in the client's format."""
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
    """Run a statement that returns a count, to its end."""
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

    `rows_result` needs it for types without a standard Arrow form.
    """
    if _projection(session, types) is None:
        yield
        return
    with in_duckdb_arrow_types(session, types):
        yield


@contextmanager
def in_duckdb_arrow_types(session: Context, types: Sequence[str]) -> Iterator[None]:
    """Context in which the cursor returns rows of any types in DuckDB's own Arrow types.

    Rows that go back to DuckDB need it.
    """
    session.cursor.execute("SET SESSION arrow_lossless_conversion = true")
    try:
        yield
        session.cursor.execute(LOSSY)
    except BaseException:
        # A failed transaction accepts no setting, and the statement's own error is the one to report.
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
    """Do `work`, whose rows are all taken, in the open block or in a block that ends with it."""
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
    """A small result with text columns."""
    found = tuple(ResultColumn(*column) for column in columns)
    schema = pa.schema([(column.name, ARROW.get(column.type, pa.string())) for column in found])
    batch = PlainBatch([tuple(row) for row in rows], tuple(column.type for column in found), schema)
    return Result(found, ReadySource([batch] if rows else []), lambda _: tag)


# DuckDB's name for the single column that it describes where the columns depend on a parameter's type.
UNTOLD = ("unknown",)
# DuckDB types with fewer values than the PostgreSQL type that clients see, and the DuckDB type with all
# values.
WIDER = {
    "TINYINT": "SMALLINT",
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
}
# Types that a client sees as numeric, and lists of them.
NUMERICS = ("DECIMAL", "UBIGINT", "HUGEINT", "UHUGEINT")
# Types beside which the binder takes a numeric for a value of that type.
OVER_NUMERIC = frozenset({"FLOAT", "DOUBLE", "BIGNUM"})
PREPARE = "PREPARE __ducktail_place AS "
LOSSY = "SET SESSION arrow_lossless_conversion = false"
KEPT_ROWS = "__ducktail_rows"
ARROW = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}


Values = tuple[object, ...]


def check_given(index: int, parameters: Values) -> None:
    """Check that every parameter up to this one has a value.

    Raises:
        UndefinedParameter: a value is missing.
    """
    if index > len(parameters):
        raise UndefinedParameter(f"there is no parameter ${index}")


def value_of(scalar: st.Scalar, parameters: Values) -> object:
    """The value of a statement's scalar, with a parameter replaced by its value.

    Raises:
        InvalidParameterValue: the parameter's value is NULL.
        UndefinedParameter: the parameter has no value.
    """
    if not isinstance(scalar, st.Parameter):
        return scalar
    check_given(scalar.index, parameters)
    value = parameters[scalar.index - 1]
    if value is None:
        raise InvalidParameterValue(f"parameter ${scalar.index} must not be NULL")
    return value


def number(scalar: st.Scalar, parameters: Values, what: str) -> int:
    """The value of a scalar that must be a whole number of at least 0.

    Raises:
        InvalidTextRepresentation: the value is no whole number.
        InvalidParameterValue: the value is negative.
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
    """The value of a scalar that is a name or another text."""
    return str(value_of(scalar, parameters))


def begun_read_only(session: Context) -> bool:
    """True if the session's present transaction, or its next one, is read-only."""
    return session.variables[READ_ONLY] == "on"


def choose(session: Context, mode: str, value: str) -> None:
    """Set a mode of the open transaction; without one, do nothing.

    Each level of isolation is snapshot isolation, and keeps its name.

    Args:
        mode: the setting.

    Raises:
        ActiveTransaction: the transaction has begun to read, and cannot become read-write, or have another
            level.
    """
    if not session.block.begun:
        return
    if value != session.variables[mode] and session.block.transaction is not None:
        if mode == READ_ONLY and value == "off":
            raise ActiveTransaction("transaction read-write mode must be set before any query")
        if mode == ISOLATION:
            raise ActiveTransaction("SET TRANSACTION ISOLATION LEVEL must be called before any query")
    session.changed(mode, value, report=False, local=False)

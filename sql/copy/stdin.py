"""COPY ... FROM STDIN: rows that a client sends in pieces, written in batches of bounded size.

All rows are one transaction: the open one, or one that ends with the last row. A batch is one INSERT,
captured if the table has a stream; the first batch takes the writer lock. An error in a row is reported with
its line. Source: docs/sql.md, "COPY".
"""

from __future__ import annotations

from ...engine.duck.objects import TEMPORARY
from ...engine.errors import DucktailError, NotSupported, SerializationFailure
from ...engine.log import topic_rows
from ...engine.quoting import folded_sql, ident
from ...engine.values.copy_columns import BadValue, ColumnLoader, column_loader
from ...engine.waiting import Waiting
from ..dml import topic_writes, writes
from ..language.classify import classify
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.names import Key
from ..session_state.run_text import binding_cursor, bound
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, CopyFacts
from .arrow import ArrowCopyIn
from .binary import BinaryRowReader
from .copy_options import ARROW, BINARY, check_encoding, read_options
from .inserting import CopyTarget, Inserting, Refused
from .text import RowReader, TextRow

# Bytes from the client for each batch: some tens of MB as values of Python and Arrow.
BATCH_BYTES = 4 << 20
# A longer piece is divided into parts of this size.
PIECE_BYTES_MAX = 1 << 20
SHOWN_MAX = 100


def target(session: Context, facts: CopyFacts) -> Key:
    """The target table of a COPY ... FROM.

    Raises:
        NotSupported: the target is a stream.
        InsufficientPrivilege: the target is in the reserved schema.
    """
    assert facts.table is not None
    key = session.names.table_key(facts.table)
    writes.refuse_ours(session, "COPY", key, facts.table_position)
    return key


def target_text(facts: CopyFacts) -> str:
    """The table's name as SQL."""
    assert facts.table is not None
    return ".".join(map(ident, facts.table))


def columns_of(session: Context, facts: CopyFacts) -> tuple[str, ...]:
    """The filled columns: the listed ones, or all stored ones."""
    if facts.columns is not None:
        return facts.columns
    schema, name = target(session, facts)
    in_temporary = schema == TEMPORARY
    rows = (
        binding_cursor(session)
        .execute(
            "SELECT column_name FROM system.main.duckdb_columns() WHERE database_name = $1 "
            f"AND {folded_sql('schema_name')} = $2 AND {folded_sql('table_name')} = $3 "
            "AND NOT is_generated ORDER BY column_index",
            [
                TEMPORARY if in_temporary else session.database.catalog_name,
                "main" if in_temporary else schema,
                name,
            ],
        )
        .fetchall()
    )
    return tuple(row[0] for row in rows)


def begin(session: Context, statement: ParsedStatement, classified: Classified) -> Waiting[Result]:
    """Begin a COPY FROM STDIN; the rows arrive through `CopyIn`.

    Raises:
        NotSupported: the session has no client that can send rows.
    """
    facts = classified.copy
    assert facts is not None
    if not session.wire:
        raise NotSupported(
            "COPY FROM STDIN wants a connection over the wire",
            hint="In process Connection.append(table, frame) loads rows, as does INSERT ... SELECT.",
        )
    options = read_options(classified)
    check_encoding(options, session.variables["client_encoding"])
    target(session, facts)
    own = not session.block.begun
    # DuckDB's transaction begins with the first batch: a slow client holds no snapshot before that.
    yield from session.begin_implicit()
    names, types = _filled(session, facts)
    assert facts.table is not None
    filled = CopyTarget(session, statement, facts.table[-1], target_text(facts), names, types, own)
    result = Result.command("COPY 0")
    if options.format == ARROW:
        result.copy_in = ArrowCopyIn(filled)
        return result
    binary = options.format == BINARY
    reader = BinaryRowReader(filled.name, names) if binary else RowReader(options, filled.name, names)
    timezone = session.variables.values["timezone"]
    known = types if types is not None else ("VARCHAR",) * len(names)
    loaders = [column_loader(type_, timezone, binary=binary) for type_ in known]
    result.copy_in = CopyFromStdin(filled, reader, loaders)
    return result


def _filled(session: Context, facts: CopyFacts) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The filled columns and their types; None for the types of a topic, whose columns accept any value."""
    name = target_text(facts)
    insert = classify(f"INSERT INTO {name} {_bracketed(facts.columns)} SELECT NULL")
    if topic_writes.target(session, insert) is not None:
        names = facts.columns or topic_rows.COLUMNS
        topic_writes.query_of(session, insert).named(names)
        return names, None
    names = columns_of(session, facts)
    listed = ",".join(map(ident, names))
    # DuckDB's errors about the table or a column come before the client sends its rows.
    if names:
        _unplaced(session, f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {name}")
    types = _unplaced(session, f"SELECT {listed or '*'} FROM {name}")
    if len(types) != len(names):
        raise SerializationFailure(f"table {name} has just been made, or altered", hint="Try again.")
    return names, types


def _bracketed(names: tuple[str, ...] | None) -> str:
    return f"({','.join(map(ident, names))})" if names else ""


def _unplaced(session: Context, text: str) -> tuple[str, ...]:
    """Bind an internal text for the types of its columns; its errors have no position in the user's text."""
    try:
        return bound(session, text).types
    except DucktailError as error:
        error.position = None
        raise


class CopyFromStdin:
    """One running COPY FROM STDIN in the text, csv or binary format.

    Args:
        loaders: the conversions of the columns, in order.
    """

    def __init__(
        self, target: CopyTarget, reader: RowReader | BinaryRowReader, loaders: list[ColumnLoader]
    ) -> None:
        self._target = target
        self._reader = reader
        self._binary = isinstance(reader, BinaryRowReader)
        self._inserting = Inserting(target, loaders)
        self._loaders = loaders
        self._rows: list[TextRow] = []
        self._bytes = 0

    @property
    def column_count(self) -> int:
        """The number of columns in a row."""
        return len(self._target.columns)

    @property
    def binary(self) -> bool:
        """True if the rows are in the binary format."""
        return self._binary

    def write(self, data: bytes) -> Waiting[None]:
        """Accept a piece of the client's data.

        Raises:
            DucktailError: a row is malformed (the error has its line), or the INSERT fails.
        """
        for start in range(0, len(data), PIECE_BYTES_MAX):
            piece = data[start : start + PIECE_BYTES_MAX]
            self._rows += self._reader.feed(piece)
            self._bytes += len(piece)
            if self._bytes >= BATCH_BYTES and self._rows:
                yield from self._flush()

    def finish(self) -> Waiting[Result]:
        """End the COPY: write the rest, and commit its own transaction."""
        self._rows += self._reader.finish()
        if self._rows:
            yield from self._flush()
        if self._target.own:
            yield from self._target.session.block.commit()
            yield from self._inserting.send()
        return Result.command(f"COPY {self._inserting.count}")

    def _flush(self) -> Waiting[None]:
        rows, self._rows, self._bytes = self._rows, [], 0
        columns = zip(*(row.fields for row in rows), strict=True)
        arrays = []
        for place, (texts, loader) in enumerate(zip(columns, self._loaders, strict=True)):
            try:
                arrays.append(loader.load(texts))
            except BadValue as bad:
                raise self._placed(bad.error, rows, bad.place, place) from bad
        try:
            yield from self._inserting.put(arrays)
        except Refused as refused:
            error = refused.error
            error.context = f"COPY {self._target.name}, lines {rows[0].line} to {rows[-1].line}"
            if refused.at is not None:
                self._placed(error, rows, *refused.at)
            raise error from refused

    def _placed(self, error: DucktailError, rows: list[TextRow], row: int, column: int) -> DucktailError:
        """The error with the position of a value: its line and column."""
        place = f"COPY {self._target.name}, line {rows[row].line}, column {self._target.columns[column]}"
        text = rows[row].fields[column]
        if isinstance(text, bytes):
            error.context = place
        else:
            shown = text or ""
            shown = shown if len(shown) <= SHOWN_MAX else shown[:SHOWN_MAX] + "..."
            error.context = f'{place}: "{shown}"'
        return error

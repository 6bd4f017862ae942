"""PEP 249 over a session: `ducktail.connect(path)`, without the wire.

A connection is one session on one open database, and every statement of docs/sql.md runs in it as
it does over the wire. The choices that PEP 249 leaves open:

- `apilevel` is "2.0"; `threadsafety` is 1: threads may share the module, not a connection (a
  session runs one call at a time; `Connection.cancel` alone may come from any thread);
- `paramstyle` is "qmark" (`?`), and `$1`, `$2` work as well;
- `autocommit` is True unless asked otherwise, as in DuckDB and against PEP 249's default: a loop
  that polls a stream in an open transaction would see one MVCC snapshot for ever. With
  `autocommit=False` the first statement begins a transaction, and `commit` or `rollback` ends it;
- the type_code of a column is DuckDB's own name of its type, such as "BIGINT" or "DECIMAL(18,3)", and
  PEP 249's type objects compare equal to it.

A fetch takes from the session exactly the rows that the caller asked for, never more in advance:
the rows that a reader was given are what COMMIT OFFSETS commits. So `fetchmany(1000)` is the fast way
to read a long answer in parts, and `fetchall`, `fetch_arrow_table`, `df` and `pl` to read it whole.
Source: docs/start.md, "In Python".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, time
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Protocol

import duckdb
import pyarrow as pa

from ...engine.database import Database
from ...engine.duck.table_shape import RESERVED_PREFIX
from ...engine.errors import AdminShutdown, CharacterNotInRepertoire, DucktailError, InFailedTransaction
from ...engine.log.events import Event
from ...engine.waiting import drive
from ..results.notices import Notice
from ..results.results import Result
from ..session import Session
from ..session_state.data_frames import Frames
from ..text.classified import TokenReader
from ..text.tokens import number_question_marks, split_statements, tokenize
from . import open_databases
from .errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
    from_engine,
    translated,
)
from .feed import Batch
from .open_databases import IN_MEMORY, Server
from .python_values import Row, arrow_table, rows
from .stream_manager import ConsumerCheckpoint, ReplicationStream, StreamManager

if TYPE_CHECKING:
    import pandas
    import polars


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Batch",
    "Binary",
    "Connection",
    "ConsumerCheckpoint",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "Event",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "ReplicationStream",
    "Server",
    "StreamManager",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 1
paramstyle = "qmark"

DEFAULT_PORT = 5480
# The maximum number of notices kept for a program that never reads them.
NOTICES_MAX = 100
# The name of `append`'s frame during its statement.
APPENDED = f"{RESERVED_PREFIX}_append"


class Gateway(Protocol):
    """The server of an open database over the wire; passed in, because sql knows no socket."""

    def __call__(self, database: Database, host: str, port: int) -> Server:
        """Start to serve, and return once it listens."""


class Connection:
    """One session on an open database; made by `connect` or `duplicate`.

    As a context manager it commits (or after an error rolls back) and closes.

    Attributes:
        notices: notices and warnings beside the answers, the newest last.
    """

    # PEP 249, "Optional DB API Extensions": the exceptions as attributes of a connection.
    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(
        self,
        shared: open_databases.OpenDatabase,
        user: str,
        application_name: str,
        autocommit: bool,
        gateway: Gateway | None,
    ) -> None:
        self._shared = shared
        self._user, self._application_name = user, application_name
        self._autocommit = autocommit
        self._gateway = gateway
        self._closed = False
        self._session = Session(shared.database, user=user, application_name=application_name)
        self.notices: deque[Notice] = deque(maxlen=NOTICES_MAX)
        self._streams = StreamManager(shared.database, shared.following, user, self.notices.extend)

    @property
    def autocommit(self) -> bool:
        """True if each statement outside BEGIN is a transaction of its own."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self.check_open()
        if self.in_transaction:
            raise ProgrammingError("autocommit cannot be changed inside a transaction", "25001")
        self._autocommit = value

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open, including a failed one."""
        return self._session.transaction_status != "I"

    @property
    def closed(self) -> bool:
        """True if `close` has been called."""
        return self._closed

    @property
    def streams(self) -> StreamManager:
        """The streams that the program follows; they end with the connection."""
        return self._streams

    def cursor(self) -> Cursor:
        """A new cursor; all cursors of a connection share its session and transaction."""
        self.check_open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[object] = ()) -> Cursor:
        """Run a statement on a new cursor and return that."""
        return self.cursor().execute(operation, parameters)

    def register(self, name: str, frame: object) -> None:
        """Make a data frame readable in SQL under a name, in this connection only.

        It is read while a statement runs, not copied, so it must not change until then. It remains registered
        until `unregister` or `close`, whatever happens to transactions; the same name again replaces it.

        Args:
            name: the name of an SQL identifier, without quotes; case is ignored.
            frame: a pandas or polars DataFrame, an Arrow Table, RecordBatch or RecordBatchReader, or
                any object with `__arrow_c_stream__`. A reader, or an object that is none of the others, can
                be read once: a second read, also within one statement, raises 55000.

        Raises:
            ProgrammingError: a table, view or stream has the name; 42804: the object holds no rows.
        """
        self._with_frames(lambda frames: frames.register(name, frame))

    def unregister(self, name: str) -> None:
        """Remove a registered object.

        Raises:
            ProgrammingError: nothing is registered under the name.
        """
        self._with_frames(lambda frames: frames.unregister(name))

    def append(self, table: str, frame: object, *, by_name: bool = False) -> int:
        """Insert the rows of a data frame, as one INSERT in the session's transaction.

        Args:
            table: the table's name in SQL: schema-qualified or not, quoted where necessary.
            frame: a data frame of a type that `register` accepts.
            by_name: match columns by name; columns of the table that the frame lacks take their defaults.
                Otherwise the frame has the table's columns, in order.

        Returns:
            The number of inserted rows.

        Raises:
            Error: the INSERT fails, and no row is inserted.
        """
        with translated():
            target = table_name(table)
        words = "BY NAME " if by_name else ""
        self._with_frames(lambda frames: frames.put(APPENDED, frame))
        try:
            return self.execute(f"INSERT INTO {target} {words}SELECT * FROM {APPENDED}").rowcount
        finally:
            if not self._closed:
                self._with_frames(lambda frames: frames.unregister(APPENDED))

    def commit(self) -> None:
        """Commit the open transaction, if there is one.

        Raises:
            OperationalError: a conflict with another transaction; everything is rolled back.
            InternalError: a statement of the transaction had failed; everything is rolled back.
        """
        self.check_open()
        failed = self._session.transaction_status == "E"
        self._end_transaction("COMMIT")
        if failed:
            hint = "Run the whole transaction again."
            raise from_engine(InFailedTransaction("the transaction had failed and is rolled back", hint=hint))

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one."""
        self.check_open()
        self._end_transaction("ROLLBACK")

    def cancel(self) -> None:
        """Cancel a statement that another thread runs on this connection; it fails with 57014."""
        self._session.cancel()

    def duplicate(self) -> Connection:
        """Another connection to the same database, with a session of its own."""
        self.check_open()
        open_databases.join_again(self._shared)
        return Connection(self._shared, self._user, self._application_name, self._autocommit, self._gateway)

    def serve(self, port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> Server:
        """Serve this database over the Postgres wire, from a thread of this process.

        Args:
            port: the port to listen on; 0 chooses a free one, which is the result's `port`.
            host: a loopback address.

        Returns:
            The server, with `host`, `port` and `stop()`. It ends with the database's last connection.
        """
        self.check_open()
        if self._gateway is None:
            raise NotSupportedError("serve needs the connection of ducktail.connect", "0A000")
        with translated():
            server = self._gateway(self._shared.database, host, port)
        self._shared.servers.append(server)
        return server

    def close(self) -> None:
        """Roll back, end the session, and close the database with its last connection."""
        if self._closed:
            return
        self._closed = True
        if not open_databases.is_ours(self._shared):
            return
        with translated(), ExitStack() as last_first:  # Each step runs, even if the one before it has raised.
            last_first.callback(open_databases.leave, self._shared)
            last_first.callback(lambda: drive(self._session.close()))
            last_first.callback(self._streams.end, AdminShutdown("the connection is being closed"))

    def run_text(self, text: str, parameters: Sequence[object]) -> Result:
        """Run the statements of `text` and return the last result; for cursors.

        Several statements are one transaction, as in one simple query of PostgreSQL.
        """
        with self._running(text):
            return self._run_all(split_statements(text), parameters)

    def run_many(self, text: str, sets: Iterable[Sequence[object]]) -> int:
        """Run one statement with each set of parameters, all or none, and return the rows written; for
        cursors.

        Outside a transaction the whole run is one.
        """
        with self._running(text):
            if not self._autocommit and not self.in_transaction:
                self._run_one("BEGIN")
            drive(self._session.begin_implicit())
            try:
                written = sum(self._written(text, parameters) for parameters in sets)
            except BaseException:
                drive(self._session.abort_implicit())
                raise
            drive(self._session.commit_implicit())
            return written

    @contextmanager
    def _running(self, text: str) -> Iterator[None]:
        """Context in which a text runs: an error fails an open block."""
        self.check_open()
        _check_text(text)
        try:
            yield
        except DucktailError:
            self._session.fail()
            raise
        finally:
            self.notices.extend(self._session.take_notices())

    def check_open(self) -> None:
        """Raise InterfaceError (08003) when the connection is closed."""
        if self._closed:
            raise InterfaceError("the connection is closed", "08003")

    @property
    def reading(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's cursor with the session's settings, beside the one that runs statements; for cursors."""
        return self._session.meta

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._closed and kind is None:
                self.commit()
        finally:
            self.close()

    def _run_all(self, statements: list[str], parameters: Sequence[object]) -> Result:
        if not self._autocommit and not self.in_transaction:
            self._run_one("BEGIN")
        if len(statements) <= 1:
            return self._run_one(statements[0] if statements else "", parameters)
        if parameters:
            raise ProgrammingError("parameters want a text of one statement", "42601")
        drive(self._session.begin_implicit())
        try:
            for statement in statements[:-1]:
                result = self._run_one(statement)
                while result.fetch(None) is not None:
                    pass
            result = self._run_one(statements[-1])
            self._session.cursors.settle()
        except BaseException:
            drive(self._session.abort_implicit())
            raise
        drive(self._session.commit_implicit())
        return result

    def _run_one(self, text: str, parameters: Sequence[object] = ()) -> Result:
        statement = drive(self._session.parse(number_question_marks(text)))
        return drive(self._session.execute(statement, tuple(parameters)))

    def _written(self, text: str, parameters: Sequence[object]) -> int:
        """Run a statement that returns no rows, and return the number of rows written."""
        result = self._run_one(text, parameters)
        if result.columns is not None:
            result.close()
            raise ProgrammingError("executemany wants a statement that gives no rows", "42601")
        while result.fetch(None) is not None:
            pass
        return max(rows_written(result.tag), 0)

    def _with_frames(self, work: Callable[[Frames], None]) -> None:
        self.check_open()
        with translated():
            drive(self._session.with_frames(work))

    def _end_transaction(self, text: str) -> None:
        if self.in_transaction:
            with translated():
                self.run_text(text, ())


def table_name(text: str) -> str:
    """The name of a table, parsed from SQL that contains nothing else.

    Raises:
        SyntaxError_: the text is no name.
    """
    reader = TokenReader(text, tokenize(text))
    reader.qualified()
    if not reader.at_end:
        raise reader.unexpected()
    return text


def _check_text(text: str) -> None:
    """Refuse a lone surrogate, which has no bytes in UTF-8 and no error of DuckDB."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CharacterNotInRepertoire(f"the statement is no Unicode text: {error.reason}") from error


def connect(
    path: str | os.PathLike[str] = IN_MEMORY,
    *,
    autocommit: bool = True,
    user: str = "ducktail",
    application_name: str = "",
    gateway: Gateway | None = None,
    allowed_directories: Iterable[str | os.PathLike[str]] = (),
    allowed_networks: Iterable[str] = (),
    **settings: int,
) -> Connection:
    """Open a DuckDB file, or join the one that this process has open, and begin a session.

    Args:
        path: the file, created if missing; ":memory:" is a new database in memory.
        autocommit: False begins a transaction with the first statement, as in PEP 249.
        user: the session's user name (`current_user`, `ducktail.sessions`).
        application_name: shown in `ducktail.sessions`.
        gateway: started by `Connection.serve`; `ducktail.connect` passes the package's own.
        allowed_directories: the directories whose files COPY, read_csv and similar functions may read and
            write.
        allowed_networks: the networks, such as "10.0.0.0/8", to which sinks may send although they are not
            public.
        settings: settings of docs/settings.md, such as `lock_timeout_ms=2000`.

    Raises:
        OperationalError: the file is open in another process, or here with other settings.
        DataError: an unknown setting or a value outside its bounds.
    """
    with translated():
        named = open_databases.settings_named(settings, allowed_directories, allowed_networks)
        shared = open_databases.join(path, named)
        try:
            return Connection(shared, user, application_name, autocommit, gateway)
        except BaseException:
            open_databases.leave(shared)
            raise


class TypeObject:
    """A family of types: equal to the name of each type in it."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return other.partition("(")[0] in self._names
        return self is other

    def __hash__(self) -> int:
        return hash(self._names)


STRING = TypeObject("VARCHAR", "JSON", "UUID", "ENUM", "BIT")
BINARY = TypeObject("BLOB")
NUMBER = TypeObject(
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
)
DATETIME = TypeObject(
    *("DATE", "TIME", "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "INTERVAL"),
)
# DuckDB has no separate type for a row's id: rowid is a BIGINT.
ROWID = TypeObject()

Date = date
Time = time
Timestamp = datetime
Binary = bytes


def DateFromTicks(ticks: float) -> date:
    """The local date at `ticks` seconds since 1970-01-01 UTC."""
    return date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> time:
    """The local time of day at `ticks` seconds since 1970-01-01 UTC."""
    return datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:
    """The local date and time at `ticks` seconds since 1970-01-01 UTC."""
    return datetime.fromtimestamp(ticks)


Description = list[tuple[str, str, None, None, None, None, None]]


class Cursor:
    """One statement at a time, with the rows of its answer.

    Made by `Connection.cursor()`; all cursors of a connection share its session and transaction.

    Attributes:
        arraysize: the default number of rows of `fetchmany()`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._result: Result | None = None
        self._written_by_many: int | None = None
        self._closed = False

    @property
    def description(self) -> Description | None:
        """A 7-tuple (name, DuckDB type, five times None) for each column; None without rows."""
        if self._result is None or self._result.columns is None:
            return None
        return [(column.name, column.type, None, None, None, None, None) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """The number of rows written, or returned once all are fetched; -1 if it is not known (yet)."""
        if self._written_by_many is not None:
            return self._written_by_many
        return rows_written(self.statusmessage)

    @property
    def statusmessage(self) -> str | None:
        """The command tag, such as "INSERT 0 3" or "CREATE STREAM", once the statement is complete."""
        return self._result.tag if self._result is not None else None

    def execute(self, operation: str, parameters: Sequence[object] = ()) -> Cursor:
        """Run a statement, or several separated by semicolons (without parameters, in one transaction).

        Args:
            operation: the text, with `?` or `$1`, `$2`, ... in the places of parameters.
            parameters: their values, in order.

        Returns:
            The cursor itself; it has the last statement's answer.

        Raises:
            Error: with the SQLSTATE in `.sqlstate`.
        """
        self._check_open()
        self._forget()
        with translated():
            result = self.connection.run_text(operation, parameters)
            if result.columns is None:
                while result.fetch(None) is not None:
                    pass
        self._result = result
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[object]]) -> Cursor:
        """Run a statement once for each set of parameters: all of them, or none.

        Outside a transaction the run is one transaction; inside one, an error fails the transaction as usual.
        For many rows `Connection.append` is far faster.

        Raises:
            ProgrammingError: the statement returns rows (PEP 249 leaves them undefined).
        """
        self._check_open()
        self._forget()
        with translated():
            self._written_by_many = self.connection.run_many(operation, seq_of_parameters)
        return self

    def fetchone(self) -> Row | None:
        """The next row, or None after the last one."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, at most `size` of them (default `arraysize`); [] after the last one."""
        left = self.arraysize if size is None else size
        taken: list[Row] = []
        while left > 0 and (more := self._take(left)):
            taken += more
            left -= len(more)
        return taken

    def fetchall(self) -> list[Row]:
        """All remaining rows."""
        taken: list[Row] = []
        while more := self._take(None):
            taken += more
        return taken

    def fetch_arrow_table(self) -> pa.Table:
        """All remaining rows, as an Arrow table with DuckDB's own Arrow types."""
        result = self._answer()
        with translated():
            return arrow_table(result, self.connection.reading)

    def df(self) -> pandas.DataFrame:
        """All remaining rows, as a pandas data frame.

        Raises:
            NotSupportedError: pandas is not installed.
        """
        _wanted("pandas")
        frame: pandas.DataFrame = self.fetch_arrow_table().to_pandas()
        return frame

    def pl(self) -> polars.DataFrame:
        """All remaining rows, as a polars data frame.

        Raises:
            NotSupportedError: polars is not installed.
        """
        frame: polars.DataFrame = _wanted("polars").from_arrow(self.fetch_arrow_table())
        return frame

    def close(self) -> None:
        """Discard the rest of the answer and make the cursor unusable."""
        self._forget()
        self._closed = True

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Do nothing: PEP 249 requires the method, and types are inferred."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: PEP 249 requires the method, and no value is ever cut."""

    def __iter__(self) -> Iterator[Row]:
        while (row := self.fetchone()) is not None:
            yield row

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, count: int | None) -> list[Row]:
        """The next batch of at most `count` rows; [] after the last row, empty batches passed over."""
        result = self._answer()
        assert result.columns is not None
        with translated():
            while (batch := result.fetch(count)) is not None:
                if found := rows(batch.record_batch(), result.columns, self.connection.reading):
                    # The program has these rows: they are an answer by themselves.
                    result.suspend()
                    return found
        return []

    def _answer(self) -> Result:
        """The result that a fetch reads from."""
        self._check_open()
        if self._result is None or self._result.columns is None:
            raise InterfaceError("there is no answer to fetch from", "24000")
        return self._result

    def _check_open(self) -> None:
        self.connection.check_open()
        if self._closed:
            raise InterfaceError("the cursor is closed", "24000")

    def _forget(self) -> None:
        if self._result is not None:
            self._result.close()
        self._result, self._written_by_many = None, None


def rows_written(tag: str | None) -> int:
    """The number in a command tag, such as 3 of "INSERT 0 3"; -1 without a number."""
    last = (tag or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else -1


def _wanted(module: str) -> ModuleType:
    """An optional library, or an error with the command that installs it."""
    try:
        return import_module(module)
    except ImportError:
        hint = f"Install it, as with `pip install {module}`, or use fetch_arrow_table()."
        raise NotSupportedError(f"{module} is not installed", "0A000", hint=hint) from None

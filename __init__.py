"""Change streams for DuckDB, spoken as SQL over the Postgres wire.

    import ducktail

    con = ducktail.connect("shop.duckdb")
    con.execute("CREATE STREAM orders_stream ON orders")
    con.serve(port=5480)

    for batch in con.streams.open("orders_stream").follow("mirror"):
        ...

The names below are PEP 249's and those of following a stream; they are loaded when first used, so that a
program that wants another part of the package (a Spark worker, say) does not load DuckDB for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .engine.version import VERSION as __version__

if TYPE_CHECKING:
    from .engine.database import Database
    from .sql.python.dbapi import (
        BINARY,
        DATETIME,
        NUMBER,
        ROWID,
        STRING,
        Batch,
        Binary,
        Connection,
        ConsumerCheckpoint,
        Cursor,
        DatabaseError,
        DataError,
        Date,
        DateFromTicks,
        Error,
        Event,
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        ProgrammingError,
        ReplicationStream,
        Server,
        StreamManager,
        Time,
        TimeFromTicks,
        Timestamp,
        TimestampFromTicks,
        Warning,
    )

apilevel = "2.0"
threadsafety = 1
paramstyle = "qmark"

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
    "__version__",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]


def connect(
    path: str | os.PathLike[str] = ":memory:",
    *,
    autocommit: bool = True,
    user: str = "ducktail",
    application_name: str = "",
    allowed_directories: Iterable[str | os.PathLike[str]] = (),
    allowed_networks: Iterable[str] = (),
    **settings: int,
) -> Connection:
    """Open a DuckDB file, or join the one that this process has open, and begin a session.

    Args:
        path: the file, made where there is none; ":memory:" is a new database in memory.
        autocommit: False begins a transaction with the first statement, as PEP 249 has it.
        user: who the session says it is (`current_user`, `ducktail.sessions`).
        application_name: shown in `ducktail.sessions`.
        allowed_directories: what COPY, read_csv and the like may read and write files under.
        allowed_networks: networks to which sinks may send although they are not public.
        settings: those of docs/settings.md, such as `lock_timeout_ms=2000`.

    Raises:
        OperationalError: 55006, the file is open in another process, or here with other settings.
        DataError: 22023, an unknown setting or a value outside its bounds.
    """
    from .sql.python import dbapi

    return dbapi.connect(
        path,
        autocommit=autocommit,
        user=user,
        application_name=application_name,
        gateway=_serve,
        allowed_directories=allowed_directories,
        allowed_networks=allowed_networks,
        **settings,
    )


def _serve(database: Database, host: str, port: int) -> Server:
    """The gateway, which only this module may know besides `ducktail serve`."""
    from .pgwire_gateway import serve_in_thread

    return serve_in_thread(database, host, port)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .sql.python import dbapi

    return getattr(dbapi, name)

"""The connection to a MySQL or MariaDB server: its URL, its errors, and the facts that decide how it is read.

    mysql://user:password@host:3306/database?ssl_ca=/etc/ca.pem

A password may be named instead of written: `password_env=NAME` is an environment variable, and
`password_file=PATH` a file, whose first line it is. No message contains it, nor the URL.
Source: docs/sources.md.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ....engine.checkpoints.positions import BinlogPosition
from ....engine.errors import (
    CannotConnect,
    CharacterNotInRepertoire,
    DucktailError,
    InsufficientPrivilege,
    InvalidAuthorization,
    InvalidParameterValue,
    InvalidPassword,
    NotSupported,
    SourceLost,
    SourceUnavailable,
    UndefinedDatabase,
    UndefinedTable,
    WrongState,
)
from .mysql_ddl import created
from .mysql_types import MysqlTable, quoted

if TYPE_CHECKING:
    import pymysql

PORT = 3306
CONNECT_S = 10.0
# For an answer; one that waits for a lock of the source's is not sooner.
ANSWER_S = 300.0
# A copy may pause between two rows for as long.
PAUSE_S = 86_400
PASSWORD_BYTES_MAX = 4096

_PART = r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"
_URL = re.compile(
    rf"mysql://(?P<user>{_PART}+)(?::(?P<password>{_PART}*))?@"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?"
    rf"(?:/(?P<database>{_PART}*))?(?:\?(?P<query>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
# Parameters of a URL with the values that they accept; None for any text.
PARAMETERS: Mapping[str, tuple[str, ...] | None] = {
    "ssl_mode": _SSL_MODES,
    "ssl_ca": None,
    "ssl_cert": None,
    "ssl_key": None,
    "password_env": None,
    "password_file": None,
    "position": ("gtid", "file"),
    "foreign_key_actions": ("refuse", "ignore"),
}


@dataclass(frozen=True, slots=True)
class MysqlUrl:
    """A server, a user and a default database.

    Args:
        written: the password that is written in the URL; None if it has none.
        database: the database of tables that are named without one; "" for none.
        parameters: the parameters of the query, by name.
    """

    user: str
    written: str | None = field(repr=False)
    host: str
    port: int
    database: str
    parameters: Mapping[str, str]

    @property
    def password(self) -> str:
        """The password, from where the URL says.

        Raises:
            InvalidParameterValue: the environment variable or the file is not there.
        """
        variable, path = (self.parameters.get(name) for name in ("password_env", "password_file"))
        if variable is not None:
            value = os.environ.get(variable)
            if value is None:
                raise InvalidParameterValue(
                    f'the environment variable "{variable}" of the password is not set'
                )
            return value
        return _first_line(path) if path is not None else self.written or ""

    @property
    def shown(self) -> str:
        """The server in messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parsed(text: str) -> MysqlUrl:
    """The parts of a URL.

    Raises:
        InvalidParameterValue: it is no such URL, or has a parameter that is not known.
    """
    found = _URL.fullmatch(text)
    if found is None:
        raise InvalidParameterValue(
            "the URL of a MySQL or MariaDB server is malformed",
            hint="It is mysql://user:password@host:port/database; a special character is percent-encoded.",
        )
    port = int(found["port"] or PORT)
    if not 0 < port < 1 << 16:
        raise InvalidParameterValue(f"the URL's port {port} is not from 1 to 65535")
    parameters: dict[str, str] = {}
    for part in filter(None, (found["query"] or "").split("&")):
        name, equals, value = part.partition("=")
        if name not in PARAMETERS:
            raise InvalidParameterValue(
                f'the URL has an unknown parameter "{_decoded(name)[:40]}"',
                hint=f"Known are {', '.join(PARAMETERS)}.",
            )
        if not equals or name in parameters:
            raise InvalidParameterValue(f'the URL\'s parameter "{name}" has no value, or is there twice')
        allowed, value = PARAMETERS[name], _decoded(value)
        if allowed is not None and value not in allowed:
            raise InvalidParameterValue(f'the URL\'s parameter "{name}" is one of {", ".join(allowed)}')
        parameters[name] = value
    written = None if found["password"] is None else _decoded(found["password"])
    if (written is not None) + ("password_env" in parameters) + ("password_file" in parameters) > 1:
        raise InvalidParameterValue("the URL has more than one of a password, password_env and password_file")
    host, database = found["host"].strip("[]"), _decoded(found["database"] or "")
    return MysqlUrl(_decoded(found["user"]), written, host, port, database, parameters)


def _decoded(text: str) -> str:
    whole = _ENCODED.sub(lambda part: bytes.fromhex(part[1].decode()), text.encode())
    try:
        return whole.decode()
    except UnicodeDecodeError:
        raise InvalidParameterValue("a part of the URL is not UTF-8") from None


def _first_line(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            lines = file.read(PASSWORD_BYTES_MAX).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidParameterValue(f'cannot read the password file "{path}": {reason}') from None
    return lines[0] if lines else ""


# Errors of the server by their codes.
_TLS_HINT = "Add ssl_mode=required to the URL, and ssl_ca=PATH to verify the server."
_UNAVAILABLE = frozenset(
    (1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1412, 1927, 1969, 2002, 2003,
     2006, 2013, 2014, 2055, 3024)
)  # fmt: skip
_DENIED = frozenset((1044, 1142, 1143, 1227, 1370, 1410))
_INSECURE = frozenset((3159, 4151))
_CERTIFICATE = 2026
_READING_LOG = 1236


def translated(code: int, message: str, shown: str) -> DucktailError:
    """Our error for one of the server's, or of the connection.

    Args:
        shown: the server, for messages.
    """
    text = f"MySQL server {shown}: {message}"
    if code in _UNAVAILABLE:
        return SourceUnavailable(f"{text} (error {code})")
    if code in _INSECURE or "insecure transport" in message:
        return InvalidAuthorization(f"{text} (error {code})", hint=_TLS_HINT)
    if code == 1045:
        return InvalidPassword(
            f"{text} (error {code})",
            hint="Check user and password. A server or a user that requires TLS or a certificate refuses a "
            "connection without it by the same error: see ssl_mode and ssl_cert.",
        )
    if code in (1129, 1130, 1251, 1275, 1524, 1820, 1862, 4166):
        return InvalidAuthorization(f"{text} (error {code})")
    if code == _CERTIFICATE:
        return CannotConnect(f"{text} (error {code})", hint="Check ssl_mode, ssl_ca, ssl_cert and ssl_key.")
    if code == 1049:
        return UndefinedDatabase(f"{text} (error {code})")
    if code in (1146, 1051):
        return UndefinedTable(f"{text} (error {code})")
    if code in _DENIED:
        return InsufficientPrivilege(f"{text} (error {code})", hint=RIGHTS_HINT)
    if code == _READING_LOG:
        return _log_error(message, shown)
    return WrongState(f"{text} (error {code})")


RIGHTS_HINT = (
    "The user needs SELECT on the tables, and REPLICATION SLAVE and REPLICATION CLIENT on *.* (which MariaDB "
    "calls BINLOG MONITOR). A copy needs RELOAD from MySQL, and LOCK TABLES for tables of engines without "
    "transactions."
)


def _log_error(message: str, shown: str) -> DucktailError:
    """The error of a server that cannot send the log."""
    lowered = message.lower()
    if "same server_uuid/server_id" in lowered or "same server_id" in lowered:
        return WrongState(
            f"MySQL server {shown}: another reader has the same server id",
            hint="Each reader and each replica of a server needs a server id of its own.",
        )
    if "max_allowed_packet" in lowered:
        return WrongState(
            f"MySQL server {shown}: an event is larger than the server sends: {message}",
            hint="Set max_allowed_packet at the source to its largest value, 1G.",
        )
    return SourceLost(
        f"MySQL server {shown} no longer has the changes after the position: {message}",
        hint="Its binary log was purged or replaced. Create the stream again, which copies the tables, and "
        "keep logs longer: binlog_expire_logs_seconds.",
    )


@dataclass(frozen=True, slots=True)
class MysqlServer:
    """Facts of a server.

    Args:
        version: major, minor and patch.
        variables: its global variables that matter, by name, as text.
    """

    mariadb: bool
    version: tuple[int, ...]
    variables: Mapping[str, str]

    @property
    def product(self) -> str:
        return "MariaDB" if self.mariadb else "MySQL"

    @property
    def logs_foreign_keys(self) -> bool:
        """True if changes by the actions of foreign keys are in the log, as those of statements."""
        return not self.mariadb and self.version >= (9, 6) and not self.on("innodb_native_foreign_keys")

    def on(self, name: str) -> bool:
        return self.variables.get(name, "").upper() in ("ON", "1", "YES")

    @property
    def identity(self) -> str:
        """A text that another server does not have: by its uuid, or for MariaDB by its uid, or id."""
        for name in ("server_uuid", "server_uid"):
            if self.variables.get(name):
                return f"{name}:{self.variables[name]}"
        return f"server_id:{self.variables['server_id']}"


_VARIABLES = (
    "binlog_format", "binlog_row_image", "binlog_row_value_options", "binlog_transaction_compression",
    "gtid_domain_id", "gtid_mode", "innodb_native_foreign_keys", "log_bin", "lower_case_table_names",
    "server_id", "server_uid", "server_uuid", "log_bin_basename", "binlog_row_metadata",
)  # fmt: skip

Row = tuple[Any, ...]
T = TypeVar("T")


class MysqlConnections:
    """The connections of one connector; they can be ended from any thread.

    Raises:
        NotSupported: pymysql, which is not a requirement of ducktail, is not installed.
    """

    def __init__(self, url: MysqlUrl) -> None:
        try:
            self._library = importlib.import_module("pymysql")
        except ModuleNotFoundError:
            raise NotSupported(
                "streams from MySQL want the package pymysql, which is not installed",
                hint="pip install 'ducktail[sources]'",
            ) from None
        self.url = url
        self._lock = threading.Lock()
        self._open: set[pymysql.Connection[Any]] = set()
        self._closed = False

    def error(self, code: int, message: str) -> DucktailError:
        """Our error for one of the server's; see `translated`."""
        return translated(code, message, self.url.shown)

    def open(self) -> pymysql.Connection[Any]:
        """A new connection, in UTC and without modes of SQL.

        Raises:
            SourceUnavailable: the server cannot be reached.
        """
        if self._closed:
            raise SourceUnavailable("the connections to the source are closed")
        url = self.url
        settings = {
            "host": url.host, "port": url.port, "user": url.user, "password": url.password.encode(),
            "charset": "utf8mb4", "sql_mode": "", "autocommit": True, "conv": {},
            "connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "write_timeout": ANSWER_S,
            "program_name": "ducktail", **self._tls(),
        }  # fmt: skip
        try:
            connection: pymysql.Connection[Any] = self._library.connect(**settings)
        except self._library.MySQLError as error:
            raise self._failed(error) from None
        except Exception as error:
            # pymysql has no error of its own for an answer that is not MySQL's, or for a missing library.
            raise CannotConnect(
                f"cannot connect to MySQL server {url.shown}: {error}",
                hint="A password of caching_sha2_password needs an encrypted connection: ssl_mode=required.",
            ) from error
        with self._lock:
            self._open.add(connection)
            closed = self._closed
        if closed:
            self.end(connection)
            raise SourceUnavailable("the connections to the source are closed")
        self.ask(connection, "SET time_zone = '+00:00'")
        return connection

    def _tls(self) -> dict[str, object]:
        found = self.url.parameters
        ca, mode = found.get("ssl_ca"), found.get("ssl_mode")
        mode = mode or ("verify_identity" if ca else "preferred")
        if mode == "disabled":
            return {"ssl_disabled": True}
        if mode == "preferred" and not ca and "ssl_cert" not in found:
            return {}
        try:
            context = ssl.create_default_context(cafile=ca)
            context.check_hostname = mode == "verify_identity"
            if mode in ("preferred", "required"):
                context.verify_mode = ssl.CERT_NONE
            if "ssl_cert" in found:
                context.load_cert_chain(found["ssl_cert"], found.get("ssl_key"))
        except (OSError, ssl.SSLError) as error:
            raise InvalidParameterValue(f"cannot read the URL's certificates: {error}") from None
        return {"ssl": context}

    def _failed(self, error: Exception) -> DucktailError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 2013
        message = str(error.args[1]) if len(error.args) > 1 else str(error)
        original = getattr(error, "original_exception", None)
        if isinstance(original, ssl.SSLError):
            code = _CERTIFICATE
        return self.error(code, message)

    def ask(self, connection: pymysql.Connection[Any], statement: str) -> Sequence[Row]:
        """The rows of a statement, whose values are text."""

        def rows() -> Sequence[Row]:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                found: Sequence[Row] = cursor.fetchall()
                return found

        return self.guarded(rows)

    def undecoded(self, connection: pymysql.Connection[Any], statement: str) -> Sequence[Row]:
        """The rows of a statement, whose values are bytes, as the server has sent them."""

        def rows() -> Sequence[Row]:
            connection.query(statement, unbuffered=True)
            result = connection._result
            assert result is not None
            result.converters = [(None, None)] * len(result.converters)
            found = []
            while (row := result._read_rowdata_packet_unbuffered()) is not None:
                found.append(row)
            return found

        return self.guarded(rows)

    def guarded(self, call: Callable[[], T]) -> T:
        """The answer of a call on a connection, with the server's errors as ours."""
        try:
            return call()
        except self._library.MySQLError as error:
            raise self._failed(error) from None
        except UnicodeDecodeError as error:
            found = error.object[error.start : error.end].hex()
            raise CharacterNotInRepertoire(
                f"MySQL server {self.url.shown} sends bytes 0x{found} in a text, which are no UTF-8"
            ) from None
        except DucktailError:
            raise
        except Exception as error:
            # Ended by another thread, or malformed: pymysql has no error of its own for it.
            raise SourceUnavailable(
                f"the connection to MySQL server {self.url.shown} is lost: {error}"
            ) from error

    def end(self, connection: pymysql.Connection[Any]) -> None:
        """End a connection of this thread at once, whatever it waits for."""
        with self._lock:
            self._open.discard(connection)
        _shut(connection)
        connection._force_close()

    def forget(self, connection: pymysql.Connection[Any]) -> None:
        """Leave a connection to its user, who ends it."""
        with self._lock:
            self._open.discard(connection)

    def text(self, statement: bytes, collation: int) -> str:
        """The text of a statement in the log; bytes that are no text become surrogates."""
        try:
            codec = self._library.charset.charset_by_id(collation).encoding
        except KeyError:
            codec = "utf-8"  # MariaDB's newer collations, all of Unicode
        return statement.decode(codec, "surrogateescape")

    def close(self) -> None:
        """End all connections; calls on them in other threads fail."""
        with self._lock:
            self._closed = True
            found = list(self._open)
            self._open.clear()
        for connection in found:
            _shut(connection)

    def server(self, connection: pymysql.Connection[Any]) -> MysqlServer:
        """The facts of the server.

        Raises:
            NotSupported: it is too old.
        """
        text = str(self.ask(connection, "SELECT VERSION()")[0][0])
        mariadb = "mariadb" in text.lower()
        numbers = re.findall(r"[0-9]+", text.removeprefix("5.5.5-"))[:3]
        version = tuple(int(number) for number in numbers)
        least = (10, 5) if mariadb else (8, 0)
        if version < least:
            name = "MariaDB" if mariadb else "MySQL"
            raise NotSupported(
                f"{name} {'.'.join(numbers)} of server {self.url.shown} cannot be read",
                hint=f"{name} {'.'.join(map(str, least))} is the oldest version that can.",
            )
        wanted = ", ".join(f"'{name}'" for name in _VARIABLES)
        rows = self.ask(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})")
        return MysqlServer(mariadb, version, {str(name): str(value) for name, value in rows})


def table_now(
    connections: MysqlConnections,
    connection: pymysql.Connection[Any],
    server: MysqlServer,
    schema: str,
    name: str,
) -> MysqlTable:
    """The definition that a table has now.

    Raises:
        UndefinedTable: it does not exist.
        NotSupported: it cannot be read.
    """
    statement = f"SHOW CREATE TABLE {quoted(schema)}.{quoted(name)}"
    # A default of a binary type is in it as it is.
    text = connections.undecoded(connection, statement)[0][1] or b""
    return created(text.decode("utf-8", "surrogateescape"), schema, mariadb=server.mariadb)


def log_end(
    connections: MysqlConnections, connection: pymysql.Connection[Any], server: MysqlServer
) -> tuple[BinlogPosition, str, str]:
    """The end of the log, and the databases that are logged only, and never, separated by commas.

    Raises:
        InsufficientPrivilege: the user has not the right.
    """
    # MySQL 8.4 has no longer the old name.
    renamed = not server.mariadb and server.version >= (8, 2)
    row = connections.ask(connection, "SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")[0]
    return BinlogPosition.parse(f"{row[0]}:{row[1]}"), str(row[2] or ""), str(row[3] or "")


def _shut(connection: pymysql.Connection[Any]) -> None:
    sock = connection._sock
    if sock is not None:
        try:
            # Not the method of an encrypted socket, which another thread may be reading.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

"""Commands on a database file: check, backup, restore, reset-commit-times.

The backup of a database that a server has open is made by this process, not by the server: it requires access
to the directory, and no SQL user can make the server write a file. The server only delays its checkpoints,
because of an open transaction on a separate connection; the side file has its address. Source:
docs/operations.md, "Checks, backup and restore".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ...engine.clock import SystemClock
from ...engine.database import Database
from ...engine.errors import (
    DuplicateObject,
    InvalidAuthorization,
    InvalidParameterValue,
    IoError,
    ObjectInUse,
)
from ...engine.replication.point_in_time import Moment, check_copy, restore_copy, restore_report
from ...engine.settings import Settings
from ...engine.storage import backup
from ...engine.storage.side_file import DamagedSideFile, SideFile, side_path
from ...engine.storage.wal_chain import wal_paths
from ...engine.transactions.commit_times import reset_sql

CONNECT_TIMEOUT_S = 10
# No retention runs while a command has the database open.
NEVER_MS = 3_600_000


def check(path: Path, temporary: Path | None = None) -> int:
    """Print the state of a closed database file or a continuous copy; return 1 if it is damaged.

    Args:
        temporary: the directory in which a copy is restored for the check; None for the system's.

    Raises:
        UndefinedObject: the file does not exist, or the directory has no copy.
        ObjectInUse: another process has the file open.
        InvalidParameterValue: a file is checked where it is.
    """
    if path.is_dir():
        about, wrong = check_copy(path, temporary)
        return _tell(about, wrong)
    if temporary is not None:
        raise InvalidParameterValue("--temporary is for the check of a continuous copy")
    with backup.closed_database(str(path)) as descriptor:
        if descriptor is None:
            raise ObjectInUse(
                f'database file "{path}" is open in another process',
                hint="Stop the server to check the file, or check a backup of it.",
            )
    about, wrong = backup.look_through(str(path))
    return _tell(about, wrong)


def _tell(about: list[str], wrong: list[str]) -> int:
    for line in about:
        print(line)
    for line in wrong:
        print(f"damage: {line}")
    print("damaged" if wrong else "no damage found")
    return 1 if wrong else 0


def make_backup(path: Path, target: Path) -> int:
    """Copy a database, open or not, into one new file, and verify the copy.

    Raises:
        DuplicateObject: the target exists.
        UndefinedObject: the file does not exist.
        ObjectInUse: a process that is no server has it open.
        DataCorrupted: the file or the copy is damaged.
    """
    for there in (target, *wal_paths(str(target))):
        if there.exists():
            raise DuplicateObject(f'"{there}" already exists', hint="A backup writes over nothing.")
    temporary = backup.new_temporary(target)
    with backup.closed_database(str(path)) as descriptor:
        if descriptor is not None:
            backup.copy_closed(str(path), descriptor, temporary)
    if descriptor is None:
        with checkpoints_held(path):
            backup.copy_live(str(path), temporary)
    print(f"backup {backup.finish(temporary, target)}")
    return 0


def restore(source: Path, target: Path, at: str | None = None, lsn: int | None = None) -> int:
    """Create a database from a backup, or from a continuous copy as of a moment.

    Args:
        at: a time, in UTC unless it has an offset.

    Raises:
        DucktailError: see `backup.restore` and `restore_copy`.
    """
    if source.is_dir():
        moment = Moment(lsn, None if at is None else _microseconds(at))
        for line in restore_report(*restore_copy(source, moment, target)):
            print(line)
        return 0
    if at is not None or lsn is not None:
        raise InvalidParameterValue(
            "--at and --lsn choose a moment of a continuous copy", hint="A backup is as of one moment."
        )
    print(f"restored {backup.restore(source, target)}")
    return 0


def _microseconds(text: str) -> int:
    """A time as microseconds since 1970.

    >>> _microseconds("1970-01-01 00:00:01"), _microseconds("1970-01-01 01:00+01:00")
    (1000000, 0)
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidParameterValue(
            f'"{text}" is no time', hint="For example 2026-11-23 12:00, or 2026-11-23T12:00:00.5+01:00."
        ) from None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def reset_commit_times(path: Path) -> int:
    """Set the commit times of a closed database that are later than the machine's clock to the clock's time.

    Raises:
        UndefinedObject: the file does not exist.
        ObjectInUse: another process has the file open.
        DataCorrupted: the file is damaged.
    """
    with backup.closed_database(str(path)) as descriptor:
        if descriptor is None:
            raise ObjectInUse(f'database file "{path}" is open in another process', hint="Stop the server.")
    clock = SystemClock()
    database = Database.open(str(path), Settings(retention_interval_ms=NEVER_MS), clock)
    try:
        steps = database.retention.steps
        with steps.locked():
            count, *_ = steps.transaction(reset_sql(clock.now_us()))
    finally:
        database.close()
    print(f"{count} commits were later than the clock, and have its time now")
    return 0


@contextmanager
def checkpoints_held(path: Path) -> Iterator[None]:
    """Context in which the server that has the database open makes no checkpoint.

    Raises:
        ObjectInUse: no server answers for the file.
        IoError: the connection was lost.
    """
    import psycopg  # Imported here: only the backup of an open database is a client of a server.

    address, identity = _announced(path)
    nobody = ObjectInUse(
        f'database file "{path}" is open in a process that serves nobody',
        hint="Serve it, or close it.",
    )
    if not address:
        raise nobody
    host, port = address.rsplit(" ", 1)
    try:
        connection = psycopg.connect(
            host=host, port=int(port), dbname="ducktail", user=os.environ.get("PGUSER", "ducktail"),
            application_name="ducktail backup", connect_timeout=CONNECT_TIMEOUT_S,
        )  # fmt: skip
    except psycopg.OperationalError as error:
        if "password" in str(error):
            raise InvalidAuthorization(
                "the server wants a password before it is backed up",
                hint="A superuser's, in PGUSER and PGPASSWORD or in ~/.pgpass.",
            ) from None
        raise nobody from None
    try:
        with connection:
            row = connection.execute("SELECT value FROM ducktail.meta WHERE name = 'identity'").fetchone()
            connection.rollback()
            if row is None or row[0] != identity:
                raise nobody
            connection.execute("SET idle_in_transaction_session_timeout = 0")
            connection.commit()
            # The written row does not matter; it is rolled back.
            connection.execute(f'CREATE TABLE "ducktail_backup_{os.getpid()}" (i INTEGER)')
            yield
            connection.rollback()
    except psycopg.Error as error:
        raise IoError("the server did not hold its checkpoints back", detail=str(error).strip()) from error


def _announced(path: Path) -> tuple[str, str]:
    try:
        side = SideFile.open(side_path(str(path)))
    except DamagedSideFile:
        return "", ""
    if side is None:
        return "", ""
    try:
        return side.address, str(side.identity)
    finally:
        side.close()

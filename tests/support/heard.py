"""A session of this process, and everything that its user is told by it: rows, names, errors, notices.

What a client of the wire would be sent is kept as bytes, so that a test can ask whether something stands
anywhere in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ducktail.engine.catalog.rights import RELATION, Item
from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import Waiting, drive
from ducktail.sql.results.results import Result
from ducktail.sql.session import Session
from ducktail.sql.session_state.statement import ParsedStatement

Row = tuple[str | None, ...]
UNPRINTABLE = re.compile(r"[\x00-\x1f\ufffd ]+")
OK = "00000"
# The SQLSTATE of an exception that no client should ever see: it is none of ours.
INTERNAL = "XX000"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one statement.

    Args:
        sqlstate: OK, or the error's.
        told: all that its user is told, in UTF-8.
        rows: as texts; of a COPY TO STDOUT its lines.
        tag: the command tag; None after an error.
    """

    sqlstate: str
    told: bytes
    rows: tuple[Row, ...] = ()
    tag: str | None = None

    def __contains__(self, secret: str) -> bool:
        return secret.encode() in self.told

    def __str__(self) -> str:
        shown = UNPRINTABLE.sub(" ", self.told.decode(errors="replace"))
        return f"{self.sqlstate} {self.tag or ''} {shown[:300]}"


class Heard:
    """One session.

    Args:
        account: its user; None is the owner of the database.
    """

    def __init__(self, database: Database, account: str | None = None, **settings: str) -> None:
        user = account or "ducktail"
        self.session = Session(database, user=user, account=account, settings=settings, wire=True)
        self.account = account

    def __call__(self, text: str, *parameters: object) -> tuple[Row, ...]:
        """Run a statement that must not fail.

        Raises:
            AssertionError: it does.
        """
        answer = self.ask(text, *parameters)
        assert answer.sqlstate == OK, f"{text[:300]}: {answer}"
        return answer.rows

    def ask(self, text: str, *parameters: object, data: bytes = b"", describe: bool = False) -> Answer:
        """Run a statement, and take all that it answers.

        Args:
            data: sent to a COPY FROM STDIN.
            describe: ask for columns and parameters before it runs, as the extended protocol does.
        """
        told: list[bytes] = []
        rows: list[Row] = []
        tag: str | None = None
        try:
            statement = drive(self.session.parse(text))
            if describe:
                told += _described(statement)
            result = drive(self.session.execute(statement, parameters))
            if result.copy_in is not None:
                result = self._copy_in(result, data)
            self._take(result, told, rows)
            tag = result.tag
            sqlstate = OK
        except DucktailError as error:
            sqlstate = error.sqlstate
            told += _words(error)
        except Exception as error:
            sqlstate = INTERNAL
            told.append(f"{type(error).__name__}: {error}".encode())
        if sqlstate != OK:
            with suppress(DucktailError):
                drive(self.session.abort_implicit())
        told += self._notices()
        return Answer(sqlstate, b"\n".join(told), tuple(rows), tag)

    def begin(self, text: str) -> Waiting[Result]:
        """Begin a statement that has to wait: what it waits for has not come yet.

        Returns:
            The rest of it, for `end`.
        """
        work = self.session.execute(drive(self.session.parse(text)))
        next(work)
        return work

    def end(self, work: Waiting[Result]) -> str:
        """What it waited for has come. The SQLSTATE with which it then ends."""
        try:
            wait = work.send(True)
            while True:
                wait = work.send(wait.future.exception(wait.timeout_s) is None)
        except StopIteration:
            return OK
        except DucktailError as error:
            return error.sqlstate

    def notified(self) -> list[str]:
        """The channels of the notifications that it has had."""
        return [one.channel for one in self.session.take_notifications()]

    def close(self) -> None:
        """End the session."""
        drive(self.session.close())

    def _copy_in(self, result: Result, data: bytes) -> Result:
        assert result.copy_in is not None
        drive(self.session.copy_data(result.copy_in, data))
        return drive(self.session.copy_done(result.copy_in))

    def _take(self, result: Result, told: list[bytes], rows: list[Row]) -> None:
        columns = result.columns or ()
        told += [column.name.encode() for column in columns]
        types = [column.type for column in columns]
        while (batch := result.fetch(None)) is not None:
            if result.copy_out is not None:
                data = bytes(batch.copy_rows(types, result.copy_out.form, "UTC"))
                rows += [(line[5:].decode(errors="replace"),) for line in _messages(data)]
            else:
                data = bytes(batch.datarows(types, [0] * len(types), "UTC"))
                rows += [_fields(message) for message in _messages(data)]
            told.append(data)

    def _notices(self) -> Iterator[bytes]:
        for notice in self.session.take_notices():
            yield str(notice).encode()
        if self.session.transaction_status == "I":
            for one in self.session.take_notifications():
                yield f"{one.channel} {one.payload}".encode()


# The verifier of the password "x": making one takes its time.
_VERIFIER = (
    "SCRAM-SHA-256$4096:aGVhcmRoZWFyZGhlYXJkaA==$"
    "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=:q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA="
)


class World:
    """A database in memory with sessions of its users.

    Args:
        superusers, users: who they are; without any there are no users at all.
        schemas: made for those of them who have CREATE there, by user.
    """

    def __init__(
        self,
        superusers: Sequence[str] = (),
        users: Sequence[str] = (),
        schemas: Mapping[str, str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.database = Database.open(":memory:", settings)
        self._sessions: list[Heard] = []
        self.root = self.session()
        self.people(superusers, users)
        for user, schema in (schemas or {}).items():
            self.run(f"CREATE SCHEMA {schema}", f"GRANT CREATE ON SCHEMA {schema} TO {user}")

    def people(self, superusers: Sequence[str], users: Sequence[str]) -> None:
        """Make users; what was there before belongs to nobody."""
        self.run(
            *(f"CREATE USER {user} PASSWORD '{_VERIFIER}' SUPERUSER" for user in superusers),
            *(f"CREATE USER {user} PASSWORD '{_VERIFIER}'" for user in users),
        )

    def session(self, account: str | None = None, **settings: str) -> Heard:
        """Another session of a user."""
        self._sessions.append(Heard(self.database, account, **settings))
        return self._sessions[-1]

    def run(self, *statements: str) -> None:
        """Run what must not fail, as the owner of the database."""
        for statement in statements:
            self.root(statement)

    def state(self, table: str) -> tuple[object, ...]:
        """All that a table is: its rows, its definition, its comments, its indexes, its rights."""
        schema, _, name = table.rpartition(".")
        at = (RELATION, schema, name)
        where = f"schema_name = '{schema}' AND table_name = '{name}'"
        rights = self.database.rights
        return (
            sorted(self.root(f'SELECT t::VARCHAR FROM {schema}."{name}" AS t')),
            self.root(f"SELECT sql, comment FROM duckdb_tables() WHERE {where}"),
            self.root(f"SELECT column_name, comment FROM duckdb_columns() WHERE {where} ORDER BY ALL"),
            self.root(f"SELECT sql FROM duckdb_indexes() WHERE {where} ORDER BY ALL"),
            {item: owner for item, owner in rights.owners.items() if _of(item) == at},
            {key: some for key, some in rights.grants.items() if _of(key[1]) == at},
        )

    def things(self) -> tuple[object, ...]:
        """All that is defined, and whose it is: the tables' rows are not looked at."""
        rights = self.database.rights
        return (
            self.root(
                "SELECT schema_name, sql, comment FROM duckdb_tables() WHERE schema_name <> 'ducktail' "
                "ORDER BY ALL"
            ),
            self.root("SELECT sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY ALL"),
            self.root("SELECT sql, comment FROM duckdb_indexes() ORDER BY ALL"),
            self.root("SELECT schema_name, sequence_name, sql FROM duckdb_sequences() ORDER BY ALL"),
            self.root("SELECT schema_name, type_name, labels FROM duckdb_types() ORDER BY ALL"),
            self.root("SELECT schema_name, sql FROM duckdb_schemas() ORDER BY ALL"),
            dict(rights.owners),
            dict(rights.grants),
        )

    def end_sessions(self) -> None:
        """End all sessions but the owner's."""
        for session in self._sessions[1:]:
            session.close()
        del self._sessions[1:]

    def close(self) -> None:
        """End all sessions, and close the database."""
        self.end_sessions()
        self.root.close()
        self.database.close()


class Shared:
    """A world for several tests: it is made anew behind one that has changed it.

    Args:
        make: makes the world.
        tables: whose rows are looked at as well.
    """

    def __init__(self, make: Callable[[], World], *tables: str) -> None:
        self._make, self._tables = make, tables
        self._world: World | None = None
        self._before: object = None

    def take(self) -> World:
        """The world, with no sessions but its owner's."""
        if self._world is None:
            self._world = self._make()
            self._before = self._state(self._world)
        return self._world

    def give_back(self) -> None:
        """A test is done with it."""
        assert self._world is not None
        self._world.end_sessions()
        try:
            kept = self._state(self._world) == self._before
        except AssertionError:  # What is asked of it fails.
            kept = False
        if not kept:
            self.close()

    def close(self) -> None:
        """No test wants it any more."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def _state(self, world: World) -> object:
        return world.things(), [world.state(table) for table in self._tables]


def _of(item: Item) -> tuple[str, str, str]:
    return item.kind, item.schema, item.name


def _words(error: DucktailError) -> Iterator[bytes]:
    for part in (error.message, error.detail, error.hint, error.context):
        if part:
            yield part.encode(errors="replace")


def _described(statement: ParsedStatement) -> list[bytes]:
    found = [type_.encode() for type_ in statement.parameter_types]
    for column in statement.columns or ():
        found += [column.name.encode(), column.type.encode()]
    return found


def _messages(data: bytes) -> Iterator[bytes]:
    """Messages of the wire: a letter, the length of the rest, the rest."""
    at = 0
    while at < len(data):
        length = struct.unpack_from("!i", data, at + 1)[0]
        yield data[at : at + 1 + length]
        at += 1 + length


def _fields(message: bytes) -> Row:
    """The fields of a DataRow in text format."""
    count, at = struct.unpack_from("!h", message, 5)[0], 7
    found: list[str | None] = []
    for _ in range(count):
        length = struct.unpack_from("!i", message, at)[0]
        at += 4
        found.append(None if length < 0 else message[at : at + length].decode(errors="replace"))
        at += max(length, 0)
    return tuple(found)

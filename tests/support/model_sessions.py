"""How the statements of table_model reach a session: SQL, COPY's rows, a file, frames, many parameters."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
from local_client import Client, Row
from table_statements import Statement

import ducktail
from ducktail.engine.errors import DucktailError

FRAME = "given"


class Program:
    """A connection of this process, called as a Client is."""

    def __init__(self, connection: ducktail.Connection) -> None:
        self.connection = connection
        self.tag: str | None = None
        self("set lock_timeout = 1")

    def __call__(self, text: str) -> list[Row]:
        """Run one statement and take all its rows."""
        cursor = self.connection.execute(text)
        rows = cursor.fetchall() if cursor.description is not None else []
        self.tag = cursor.statusmessage
        return rows

    def close(self) -> None:
        """End the session."""
        self.connection.close()


@cache
def plain() -> duckdb.DuckDBPyConnection:
    """A DuckDB of the model's own, which makes files, frames and Python's values."""
    return duckdb.connect()


def _file(client: Any, statement: Statement, files: Path) -> None:
    # A new name each time: DuckDB keeps what it has read of a file.
    path = files / f"{len(os.listdir(files))}.given"
    form = statement.text.partition("'{file}'")[2]
    plain().execute(f"copy ({statement.given}) to '{path}' {form}").fetchall()
    client(statement.text.replace("{file}", str(path)))


def _frame(client: Program, statement: Statement, _: Path) -> None:
    client.connection.register(FRAME, plain().sql(statement.given).to_arrow_table())
    client(statement.text)


def _reader(client: Program, statement: Statement, _: Path) -> None:
    client.connection.register(FRAME, plain().sql(statement.given).to_arrow_table().to_reader())
    client(statement.text)


def _append(client: Program, statement: Statement, _: Path) -> None:
    client.connection.append(statement.text, plain().sql(statement.given).to_arrow_table())


def _append_by_name(client: Program, statement: Statement, _: Path) -> None:
    client.connection.append(statement.text, plain().sql(statement.given).df(), by_name=True)


def _many(client: Program, statement: Statement, _: Path) -> None:
    client.connection.cursor().executemany(statement.text, plain().sql(statement.given).fetchall())


# How a statement of this `way` is run; a Client sends "stdin", what is Python's alone is a Program's.
WAYS: dict[str, Callable[[Any, Statement, Path], object]] = {
    "sql": lambda client, statement, _: client(statement.text),
    "stdin": lambda client, statement, _: client.copy(statement.text, statement.given),
    "file": _file,
    "frame": _frame,
    "reader": _reader,
    "append": _append,
    "append by name": _append_by_name,
    "many": _many,
}


def state_of(client: Client | Program, statement: Statement, files: Path) -> str:
    """'ok', or the SQLSTATE with which a statement fails; `files` is an allowed directory."""
    try:
        WAYS[statement.way](client, statement, files)
    except (DucktailError, ducktail.Error) as error:
        return error.sqlstate
    return "ok"

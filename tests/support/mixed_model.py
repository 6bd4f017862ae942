"""What the mixed load of mixed_child knows of a table: its states as they were intended and acknowledged.

A state is the table's columns, its rows and its version. Before a change the state that it would make is
written to a journal, and behind it that it was acknowledged; kill -9 loses nothing of that, as it was given
to the system. So a table that is opened again is in the last acknowledged state, or in the intended one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class State:
    """A table: name -> type of each column, key -> row, and the number of its version."""

    columns: dict[str, str]
    rows: dict[int, Row] = field(default_factory=dict)
    version: int = 1

    def with_rows(self, rows: dict[int, Row]) -> State:
        return replace(self, rows=rows)

    def text(self) -> str:
        """As the journal has it."""
        return json.dumps([list(self.columns.items()), list(self.rows.values()), self.version])

    @classmethod
    def read(cls, text: str) -> State:
        columns, rows, version = json.loads(text)
        return cls(dict(columns), {row["id"]: row for row in rows}, version)


@dataclass
class Known:
    """What a table, and what its log says, may be.

    Args:
        edited: the file was written past ducktail: the log is another than the table, until RESYNC.
    """

    table: list[State]
    log: list[State]
    edited: bool = False


class Journal:
    """Lines of (who, what, text), each written whole: 'will' and 'done' of a change, 'edit', 'resync'."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, who: str, what: str, text: str = "") -> None:
        line = json.dumps([who, what, text]).encode() + b"\n"
        assert os.write(self._file, line) == len(line)

    def _lines(self, who: str) -> Iterable[tuple[str, str]]:
        for line in self._path.read_text().splitlines():
            name, what, text = json.loads(line)
            if name == who:
                yield what, text

    def known(self, table: str, first: State) -> Known:
        """What a table may be now."""
        known = Known([first], [first])
        for what, text in self._lines(table):
            state = State.read(text) if text else known.table[-1]
            if what == "will":
                known.table, known.log = [known.table[0], state], [known.log[0], state]
            elif what == "edit":
                known.table, known.edited = [*known.table, state], True
            elif what == "resync":
                known.log = [*known.log, state]
            else:  # 'done', 'failed', or what was found when the file was opened: 'is'.
                last = known.table[0] if what == "failed" else state
                known = Known([last], [last])
        return known

    def offsets(self, who: str) -> tuple[dict[int, int], dict[int, int]]:
        """A group's committed LSNs as they were acknowledged last, and as they were asked for."""
        done: dict[int, int] = {}
        asked: dict[int, int] = {}
        for what, text in self._lines(who):
            if what == "will":
                asked = {int(number): lsn for number, lsn in json.loads(text).items()}
            else:
                done = {**done, **asked}
        return done, {**done, **asked}


def fold(events: Iterable[tuple[Any, ...]]) -> State:
    """Events (op, partition, key, before, after, schema_version) folded as a consumer does it.

    Each must fit the row that the last one left. At a schema event the rows change as ALTER TABLE has
    changed those of the table.
    """
    rows: dict[int, Row] = {}
    columns: dict[str, str] = {}
    version = 1
    for op, partition, key, before, after, schema_version in events:
        if op == "schema":
            if partition == 0:
                now = json.loads(after)["columns"]
                rows = {number: _altered(row, now) for number, row in rows.items()}
                columns = {column["name"]: column["type"] for column in now}
                version = schema_version
            continue
        assert schema_version == version
        number = json.loads(key)["id"]
        if op == "snapshot":
            rows[number] = json.loads(after)
            continue
        had = rows.pop(number, None)
        wanted = None if before is None else json.loads(before)
        assert had == wanted, f"{op} of {number}: {wanted} is not {had}"
        if after is not None:
            rows[number] = json.loads(after)
    return State(columns, rows, version)


def _altered(row: Row, now: list[dict[str, Any]]) -> Row:
    """A row after ADD, DROP or RENAME COLUMN, or ALTER TYPE."""
    old, new = list(row), [column["name"] for column in now]
    if len(new) > len(old):
        return {**row, new[-1]: int(now[-1]["default"])}
    if len(new) < len(old):
        return {name: row[name] for name in new}
    values = dict(zip(new, row.values(), strict=True))
    for column in now:
        value = values[column["name"]]
        values[column["name"]] = str(value) if column["type"] == "VARCHAR" else int(value)
    return values

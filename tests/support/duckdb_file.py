"""Files of DuckDB's sqllogictest format, replayed beside DuckDB: without streams, and with some on all.

Records are parted by empty lines; `#` begins a comment line. What a query answers is not in the file: DuckDB,
in the same process, is asked.

    statement ok | statement error | query [rowsort]
    SQL ...

    parameters 42.4, NULL   the next record's `$1`, `$2`, ..: they come over a socket
    onlyif plain            the next record is left out where tables have streams (docs say so of it)
    drop t                  DROP TABLE, behind its streams where it has some of its own
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg

import ducktail
from ducktail.sql.python.dbapi import Connection

# Without a stream, with one on each table, with one on all tables of the schema.
WAYS = ("plain", "each", "all")
CREATE = re.compile(
    r"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w++)(?!\.)", re.IGNORECASE
)

# Types of which the events' JSON has other texts than DuckDB's to_json.
OTHERWISE = re.compile("BLOB|TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Record:
    """One statement.

    Args:
        kind: ok, error, query or drop.
        line: where it begins in the file, from 1.
        parameters: SQL of their values.
    """

    kind: str
    sql: str
    line: int
    sorted: bool
    plain_only: bool
    parameters: str = ""


def records(path: Path) -> Iterator[Record]:
    """The records of a file."""
    plain_only, parameters, lines = False, "", path.read_text().splitlines()
    at = 0
    while at < len(lines):
        words = lines[at].split()
        if not words or words[0].startswith("#"):
            at += 1
            continue
        if words == ["onlyif", "plain"]:
            plain_only, at = True, at + 1
            continue
        if words[0] == "parameters":
            parameters, at = " ".join(words[1:]), at + 1
            continue
        if words[0] == "drop":
            yield Record("drop", words[1], at + 1, False, plain_only)
            plain_only, at = False, at + 1
            continue
        end = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
        kind = words[0] if words[0] == "query" else words[1]
        assert kind in ("query", "ok", "error"), f"{path}:{at + 1}"
        sql, ordered = "\n".join(lines[at + 1 : end]), "rowsort" in words
        yield Record(kind, sql, at + 1, ordered, plain_only, parameters)
        plain_only, parameters, at = False, "", end


class Replay:
    """One file beside DuckDB, in one of the ways."""

    def __init__(self, path: Path, way: str) -> None:
        self._path, self._way = path, way
        self._plain = duckdb.connect()
        self._ours: Connection = ducktail.connect()
        self._wire: psycopg.Connection | None = None
        self._streams: dict[str, str] = {}
        if way == "all":
            self._ours.execute("CREATE STREAM every ON ALL TABLES IN SCHEMA main WITH (partitions = 1)")

    def run(self) -> None:
        """Run the records; each answer is DuckDB's, and what the streams say at the end are the tables."""
        try:
            for record in records(self._path):
                if not (record.plain_only and self._way != "plain"):
                    self._run(record)
            for table, stream in self._folded():
                self._check(table, stream)
        finally:
            self._plain.close()
            if self._wire is not None:
                self._wire.close()
            self._ours.close()

    def _run(self, record: Record) -> None:
        if record.kind == "drop":
            self._drop(record.sql)
            return
        said, ours = self._answers(self._plain, record), self._answers(self._ours, record)
        place = f"{self._path.name}:{record.line} [{self._way}]\n{record.sql}"
        assert (said == "error") == (record.kind == "error"), f"{place}\nDuckDB: {said}"
        assert ours == said, f"{place}\nDuckDB: {said}\nducktail: {ours}"
        made = CREATE.match(record.sql)
        if self._way == "each" and record.kind == "ok" and made is not None and made[1] not in self._streams:
            self._streams[made[1]] = f"{made[1]}_events"
            snapshot = "WITH (partitions = 1, snapshot = 'initial')"
            self._ours.execute(f"CREATE STREAM {made[1]}_events ON {made[1]} {snapshot}")

    def _answers(self, on: Any, record: Record) -> object:
        try:
            if record.parameters:
                found = self._with_parameters(on, record)
            else:
                found = on.execute(record.sql)
            if record.kind != "query":
                return "ok"
            rows = [tuple(map(repr, row)) for row in found.fetchall()]
        except (duckdb.Error, ducktail.Error, psycopg.Error) as error:
            if record.kind != "error":
                return f"error: {error}"
            return "error"
        return sorted(rows) if record.sorted else rows

    def _with_parameters(self, on: Any, record: Record) -> Any:
        """Run it with its parameters: by DuckDB's own client, and by psycopg."""
        values = duckdb.sql(f"SELECT {record.parameters}").fetchall()[0]
        if on is self._plain:
            return on.execute(record.sql, {str(place): value for place, value in enumerate(values, 1)})
        if self._wire is None:
            server = self._ours.serve(0)
            at = f"host={server.host} port={server.port} user=ducktail dbname=memory"
            self._wire = psycopg.connect(at, autocommit=True, cursor_factory=psycopg.RawCursor)
        return self._wire.execute(record.sql.encode(), values)

    def _drop(self, table: str) -> None:
        if (stream := self._streams.pop(table, None)) is not None:
            self._ours.execute(f"DROP STREAM {stream} CASCADE")
        for on in (self._plain, self._ours):
            on.execute(f"DROP TABLE {table}")

    def _folded(self) -> list[tuple[str, str]]:
        """The tables that are there, each with the stream that it is in."""
        if self._way == "plain":
            return []
        tables = self._plain.execute(
            "SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND schema_name = 'main' ORDER BY 1"
        ).fetchall()
        return [(table, self._streams.get(table, "every")) for (table,) in tables]

    def _check(self, table: str, stream: str) -> None:
        place = f"{self._path.name} [{self._way}]: table {table}"
        columns = self._plain.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = $1 AND NOT is_generated "
            "ORDER BY column_index",
            [table],
        ).fetchall()
        stored = [name for name, _ in columns]
        names = ", ".join(f'"{name}"' for name in stored)
        texts = ", ".join(f'"{name}"::VARCHAR' for name in stored)
        for on in (self._plain, self._ours):
            rows = on.execute(f"SELECT {texts} FROM {table}").fetchall()
            if on is self._plain:
                expected = Counter(map(repr, rows))
            else:
                assert Counter(map(repr, rows)) == expected, place
        if self._way == "each":
            assert self._ours.execute(f"CHECK STREAM {stream}").fetchall() == [], place
        events = self._ours.execute(
            f"SELECT op, before, after FROM STREAM {stream} WHERE table_name = 'main.{table}' ORDER BY lsn"
        ).fetchall()
        altered = any(op == "schema" for op, _, _ in events[1:])
        whole = ", ".join(f"'{name}': \"{name}\"" for name in stored)
        rows = self._ours.execute(f"SELECT to_json({{{whole}}})::VARCHAR FROM {table}").fetchall()
        if not altered and not any(OTHERWISE.search(type_) for _, type_ in columns):
            now, folded = Counter(_plain_json(row[0]) for row in rows), _fold(events)
            assert folded == now, f"{place}, as JSON: {folded - now} are to be {now - folded}"
        if self._way == "each" and not altered:
            self._check_typed(table, stream, names, place)

    def _check_typed(self, table: str, stream: str, names: str, place: str) -> None:
        """A mirror that INSERT ... SELECT keeps from the typed changes is the table."""
        run = self._ours.execute
        kinds = {"come": "'insert', 'snapshot', 'update_postimage'", "gone": "'delete', 'update_preimage'"}
        for made, kind in kinds.items():
            run(f"CREATE TEMP TABLE {made} AS SELECT {names} FROM {table} LIMIT 0")
            changes = f"SELECT {names} FROM STREAM {stream} ENVELOPE CHANGES WHERE _change_type IN ({kind})"
            run(f"INSERT INTO {made} {changes}")
        mirror, now = "(FROM come EXCEPT ALL FROM gone)", f"(SELECT {names} FROM {table})"
        # There is nothing behind it.
        end_lsn = run(f"SELECT max(lsn) FROM STREAM {stream}").fetchall()[0][0] or 0
        nothing = f"SELECT {names} FROM STREAM {stream} AFTER {end_lsn} ENVELOPE CHANGES WHERE _lsn > 0"
        run(f"INSERT INTO come {nothing}")
        assert run(nothing).fetchall() == [], place
        left = run(f"({mirror} EXCEPT ALL {now}) UNION ALL ({now} EXCEPT ALL {mirror})").fetchall()
        assert left == [], f"{place}, typed: {left[:5]}"
        for made in kinds:
            run(f"DROP TABLE temp.{made}")


def _fold(events: list[tuple[str, str | None, str | None]]) -> Counter[str]:
    """Events (op, before, after) folded to rows with their counts."""
    rows: Counter[str] = Counter()
    for op, before, after in events:
        if op == "schema":
            continue
        if before is not None:
            gone = _plain_json(before)
            assert rows[gone] > 0, f"{op} of a row that is not there: {before}"
            rows[gone] -= 1
        if after is not None:
            rows[_plain_json(after)] += 1
    return +rows


def _plain_json(text: str) -> str:
    """An object's text as Python writes it: of a number the value counts, and not how many digits it has."""
    return json.dumps(json.loads(text))

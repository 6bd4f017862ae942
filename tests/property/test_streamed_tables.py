"""Random statements on tables with streams, in sessions, against plain DuckDB, and what is read of them.

Each round makes one kind of table of random_dml twice: in plain DuckDB, and in a database with a stream on
it. The same DML and ALTER TABLE run on both, alone and in transactions, with their parameters from Python,
over a socket, or as EXECUTE's arguments; table, row count, rows of RETURNING and outcome must be the same.
The table must be what the streams say: their JSON folded between any two changes of its columns, the typed
changes folded, and a mirror that a consumer group keeps by INSERT ... SELECT, which often finds nothing new.
What a WHERE picks out of events and changes is what it picks out of a table of them. CHECK STREAM finds
nothing.

DUCKTAIL_FUZZ_SECONDS sets the time, DUCKTAIL_FUZZ_SEED the first seed; a failure prints the seed
of its round.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any

import duckdb
import psycopg
import pytest
from amounts import amount, seed_of
from beside_duckdb import Result, answers_rows, first_texts, forgiven, rollback, rows_of, run_plain, texts
from json_back import literal_of, parsed
from random_alter import Alteration, Generator
from random_dml import COMPARED, KINDS, Statement, TableKind

import ducktail
from ducktail.engine.quoting import ident, literal
from ducktail.engine.values.duckdb_types import read_type

SECONDS = amount("DUCKTAIL_FUZZ_SECONDS", 3.0, 300.0)
SEED = seed_of("DUCKTAIL_FUZZ_SEED")
STEPS = 16
# Refused, by documentation: what cannot be captured, and ALTER TABLE of what something depends on.
REFUSED = ("0A000", "2BP01")
INTERNAL = "XX000"
# Outcomes of a statement after which the tables are to be the same.
ONGOING = ("ok", "refused", "error")

# How much more often a kind is taken whose reads differ from those of its log's bytes.
OFTEN = 3

Columns = list[tuple[str, str]]
Rows = Counter[tuple[Any, ...]]
Run = Callable[[Statement], Result]


class Ours:
    """A database with a server, and a session of each sort."""

    def __init__(self) -> None:
        self.program = ducktail.connect()
        self.server = self.program.serve(0)
        self.wire = psycopg.connect(
            host=self.server.host,
            port=self.server.port,
            user="ducktail",
            dbname="memory",
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
        )
        for run in (self.program.execute, self.wire.execute):
            run("SET TimeZone = 'UTC'")

    def close(self) -> None:
        self.wire.close()
        self.server.stop()
        self.program.close()

    def __call__(self, text: str) -> list[tuple[Any, ...]]:
        cursor = self.program.execute(text)
        return cursor.fetchall() if cursor.description is not None else []

    def run_python(self, statement: Statement) -> Result:
        return self._run_program(statement.text, statement.parameters)

    def run_prepared(self, statement: Statement) -> Result:
        """As PREPARE and EXECUTE in SQL."""
        if not statement.parameters:
            return self.run_python(statement)
        given = ", ".join(map(argument, statement.parameters))
        prepared = self._run_program(f"PREPARE p AS {statement.text}", [])
        return prepared if prepared[0] != "ok" else self._run_program(f"EXECUTE p({given})", [])

    def run_wire(self, statement: Statement) -> Result:
        """Over a socket; values come as texts there, so that counts alone are held against DuckDB's."""
        try:
            cursor = self.wire.execute(statement.text.encode(), statement.parameters or None)
            counted = statement.text.startswith("select ") or "select count(*) from w" in statement.text
            return "ok", cursor.rowcount, ([], texts(cursor.fetchall())) if counted else None
        except psycopg.Error as error:
            return str(error.sqlstate), str(error), None

    def _run_program(self, text: str, parameters: Sequence[object]) -> Result:
        try:
            cursor = self.program.execute(text, parameters)
            if cursor.description is None:
                return "ok", cursor.rowcount, None
            table = cursor.fetch_arrow_table()
            return "ok", table.num_rows, rows_of(table)
        except ducktail.Error as error:
            return error.sqlstate, str(error), None


def argument(value: object) -> str:
    """SQL of a parameter's value."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | Decimal) else literal(str(value))


class Round:
    """One kind of table in both databases."""

    def __init__(self, ours: Ours, plain: duckdb.DuckDBPyConnection, seed: int) -> None:
        self.ours, self.plain, self.r = ours, plain, random.Random(seed)
        [self.kind] = self.r.choices(KINDS, [OFTEN if own_reads(kind) else 1 for kind in KINDS])
        self.generator = Generator(self.r, self.kind)
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        # The table's rows before and behind each change of its columns, as one who keeps a copy has them.
        self.ends: list[tuple[Columns, Rows]] = []
        self.starts: list[Rows] = [Counter()]
        self.types = dict(self.kind.columns)
        self.unfit: set[str] = set()  # columns with values of which no event tells
        self.mirrors = True
        self.filter = ""

    def run(self) -> None:
        """Play it, and look at what is there then."""
        self.make()
        for _ in range(STEPS):
            if not self.step():
                break
            if self.mirrors and self.r.random() < 0.3:
                self.follow()
        self.check()

    def make(self) -> None:
        made, rows = first_texts(self.r, self.kind)
        self.plain.execute("SET TimeZone = 'UTC'")
        for text in [*made, *rows]:
            outcomes = []
            for run in (self.plain.execute, self.ours):
                try:
                    run(text)
                    outcomes.append("ok")
                except (duckdb.Error, ducktail.Error):
                    outcomes.append("error")
            assert outcomes[0] == outcomes[1], text
        name, options = self.kind.name, "WITH (partitions = 1, snapshot = 'initial')"
        self.ours(f"CREATE STREAM s ON {name} {options}")
        self.filter = self.condition()
        self.ours(f"CREATE STREAM f ON {name} WHERE {self.filter} {options}")
        self.ours("CREATE CONSUMER GROUP g ON s START EARLIEST")
        columns = ", ".join(f"{c} {type_}" for c, type_ in self.kind.columns.items())
        self.ours(f"CREATE TEMP TABLE mirror ({columns}, _change_type VARCHAR)")

    def condition(self) -> str:
        """A WHERE clause that a stream may have."""
        others = [c for c, type_ in self.kind.columns.items() if type_ in COMPARED]
        if others and self.r.random() < 0.7:
            column = self.r.choice(others)
            value = self.generator.value(column, parameters=False)
            return f"{column} {self.r.choice(('=', '<', '<>'))} {value}"
        column = self.r.choice(self.generator.ints)
        return self.r.choice((f"{column} % 2 = 0", f"{column} > {self.r.randint(0, 9)}"))

    # Statements.

    def step(self) -> bool:
        """A statement, or a few in a transaction; False where the two cannot be compared any further."""
        run: Run = self.r.choice((self.ours.run_python, self.ours.run_prepared, self.ours.run_wire))
        if self.r.random() < 0.8:
            return self.one(run, in_block=False) in ONGOING
        kept = list(self.starts), list(self.ends), self.types, set(self.unfit), self.mirrors
        columns = list(self.generator.columns)
        self.plain.execute("BEGIN")
        assert run(Statement("BEGIN"))[0] == "ok"
        self.history.append("BEGIN")
        done = "ok"
        for _ in range(self.r.randint(2, 3)):
            done = self.one(run, in_block=True)
            if done != "ok":
                break
        ends = "COMMIT" if done in ("ok", "open") and self.r.random() < 0.8 else "ROLLBACK"
        self.history.append(ends)
        ended = run(Statement(ends))
        assert ended[0] == "ok", ended
        if ends == "ROLLBACK":
            rollback(self.plain)
            self.starts, self.ends, self.types, self.unfit, self.mirrors = kept
            self.generator.columns[:] = columns
        else:
            self.plain.execute("COMMIT")
        return done in ONGOING

    def one(self, run: Run, *, in_block: bool) -> str:
        """Run a statement on both; the answer is one of ONGOING, or the two can be compared no further."""
        statement = self.generator.statement()
        alteration, self.generator.alteration = self.generator.alteration, None
        self.history.append(f"{statement.text}   {statement.parameters or ''} [{run.__name__}]")
        read: Callable[[str], list[tuple[Any, ...]]] = self.ours
        if run == self.ours.run_wire:
            read = lambda text: self.ours.wire.execute(text.encode()).fetchall()  # noqa: E731
        if alteration is not None:
            columns = without_json(self.columns(read))
            end, start = self.rows(read, columns), self.rows(read, columns, alteration)
        ours = run(statement)
        assert ours[0] != INTERNAL, ours
        if ours[0] in REFUSED:
            self.counts["refused"] += 1
            return "refused"
        theirs = run_plain(self.plain, statement, in_block=in_block)
        failed = [result[0] != "ok" for result in (ours, theirs)]
        if failed[0] != failed[1]:
            known = forgiven(self.kind, statement, ours, theirs, in_block=in_block)
            assert known, f"plain {theirs}\nours {ours}"
            return "differs"
        self.counts["alter" if alteration else "error" if failed[0] else run.__name__] += 1
        if failed[0]:
            return "numbers" if self.kind.volatile else "error"
        if alteration is not None:
            if self.types.get(alteration.column) != alteration.type:
                self.types = {**self.types, alteration.column: alteration.type}
                self.ends.append((columns, end))
                self.starts.append(start)
                self.mirrors = False
                if not alteration.value.startswith("null::"):
                    self.unfit.add(alteration.column)
            self.generator.altered(alteration)
        elif ours[1] != -1:
            assert ours[1] == theirs[1], f"row count: plain {theirs[1]}, ours {ours[1]}"
        if statement.open:
            return "open"
        if isinstance(ours[2], tuple) and answers_rows(statement):
            assert isinstance(theirs[2], tuple)
            same = ours[2] == theirs[2] if ours[2][0] else ours[2][1] == theirs[2][1]
            assert same, f"rows: plain {theirs[2]}\nours {ours[2]}"
        listed = self.columns(read)
        query = f"SELECT {shown(listed)} FROM {self.kind.name}"
        wanted, found = texts(self.plain.execute(query).fetchall()), texts(read(query))
        assert wanted == found, f"table: plain {wanted}\nours {found}"
        return "ok"

    def columns(self, read: Callable[[str], list[tuple[Any, ...]]]) -> Columns:
        """The stored columns with their types."""
        table, schema = self.kind.table.strip('"'), self.kind.schema
        return [
            (str(name), str(type_))
            for name, type_ in read(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE NOT is_generated AND "
                f"table_name = {literal(table)} AND schema_name = {literal(schema)} ORDER BY column_index"
            )
        ]

    def rows(
        self,
        read: Callable[[str], list[tuple[Any, ...]]],
        columns: Columns,
        alteration: Alteration | None = None,
    ) -> Rows:
        """The table's rows as texts; those of a copy behind an ALTER TABLE, if there is one."""
        source = self.kind.name
        if alteration is not None:
            quoted = alteration.column
            there = any(ident(name) == ident(quoted.strip('"').replace('""', '"')) for name, _ in columns)
            if there:
                source = f"(SELECT * REPLACE ({alteration.value} AS {quoted}) FROM {source})"
            else:
                source = f"(SELECT *, {alteration.value} AS {quoted} FROM {source})"
                columns = [*columns, (quoted, "")]
        return Counter(map(even, read(f"SELECT {shown(columns)} FROM {source}")))

    # Reads.

    def follow(self) -> None:
        """A consumer group's round: a mirror takes what is new, or nothing."""
        names = ", ".join(self.kind.columns)
        source = "STREAM s CONSUMER GROUP g ENVELOPE CHANGES"
        self.ours("BEGIN")
        self.ours(f"INSERT INTO mirror SELECT {names}, _change_type FROM {source}")
        self.ours("COMMIT OFFSETS ON s CONSUMER GROUP g")
        self.ours("COMMIT")
        assert self.ours(f"SELECT {names} FROM {source} WHERE {self.condition()}") == []
        self.ours(f"INSERT INTO mirror SELECT {names}, _change_type FROM {source}")

    def check(self) -> None:
        found = self.ours("CHECK STREAM s")
        assert found == [], found
        columns = self.columns(self.ours)
        known = without_json(columns)
        self.ends.append((known, self.rows(self.ours, known)))
        self.check_json()
        told = [(name, type_) for name, type_ in columns if name not in self.unfit]
        now = self.rows(self.ours, told)
        for relation in ("STREAM s ENVELOPE CHANGES", "s_changes"):
            changes = self.ours(f"SELECT {shown(told)}, _change_type FROM {relation}")
            assert folded(changes) == now, f"{relation}: {difference(folded(changes), now)}"
        if self.mirrors:
            self.follow()
            mirror = folded(self.ours(f"SELECT {shown(told)}, _change_type FROM mirror"))
            assert mirror == now, f"mirror: {difference(mirror, now)}"
            for where, stream in ((self.filter, "f"), (self.condition(), "s")):
                self.check_where(shown(told), where, stream)

    def check_json(self) -> None:
        """The events fold to the rows before each change of the columns, and to those of now."""
        events = self.ours("SELECT op, before, after FROM STREAM s ORDER BY lsn")
        part = 0
        rows = Counter(self.starts[0])
        for op, before, after in [*events, ("schema", None, None)]:
            columns, end = self.ends[min(part, len(self.ends) - 1)]
            if op == "schema":
                assert +rows == end, f"events: {difference(+rows, end)}"
                part += 1
                rows = Counter(self.starts[part]) if part < len(self.starts) else Counter()
                continue
            if before is not None:
                gone = self.image(before, columns)
                assert rows[gone] > 0, f"{op} of a row that is not there: {gone}"
                rows[gone] -= 1
            if after is not None:
                rows[self.image(after, columns)] += 1
        assert part == len(self.starts), "a schema event for each change of the columns"

    def image(self, text: str, columns: Columns) -> tuple[Any, ...]:
        """An image's values as DuckDB's texts."""
        given = dict(parsed(text))
        values = ", ".join(
            f"{literal_of(given[name], read_type(type_), type_)} AS {ident(name)}" for name, type_ in columns
        )
        return even(self.plain.execute(f"SELECT {shown(columns)} FROM (SELECT {values})").fetchall()[0])

    def check_where(self, values: str, where: str, stream: str) -> None:
        """What a WHERE finds among a stream's changes is what it finds in a table of them."""
        found = signed(self.ours(f"SELECT {values}, _change_type FROM mirror WHERE {where}"))
        read = f"SELECT {values}, _change_type FROM STREAM {stream} ENVELOPE CHANGES"
        told = signed(self.ours(read if stream == "f" else f"{read} WHERE {where}"))
        assert told == found, f"{stream}, {where}: {difference(told, found)}"


def own_reads(kind: TableKind) -> bool:
    """Whether values of a kind compare, or travel, in a way of their own."""
    return any(type_ in COMPARED or "union" in type_ for type_ in kind.columns.values())


def shown(columns: Columns) -> str:
    """The columns' values as texts, by which a union's NULL member is not NULL."""
    return ", ".join(
        f"to_json({ident(name)})::VARCHAR" if "UNION" in type_ else f"{ident(name)}::VARCHAR"
        for name, type_ in columns
    )


def without_json(columns: Columns) -> Columns:
    """Those whose values can be read back from an event: JSON stands in it as it is."""
    return [column for column in columns if "JSON" not in column[1]]


def even(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row in which equal values are one; see `texts`."""
    return tuple(texts([row]))


def signed(changes: list[tuple[Any, ...]]) -> Rows:
    """Rows that come and rows that go, each with its sign."""
    return Counter(
        (row, kind in ("insert", "snapshot", "update_postimage"))
        for row, kind in ((even(change[:-1]), change[-1]) for change in changes)
    )


def folded(changes: list[tuple[Any, ...]]) -> Rows:
    """The rows that have come and not gone."""
    rows: Rows = Counter()
    for (row, comes), count in signed(changes).items():
        rows[row] += count if comes else -count
    assert min(rows.values(), default=0) >= 0, "more have gone than have come"
    return +rows


def difference(left: Rows, right: Rows) -> str:
    return f"{left - right} are to be {right - left}"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_a_streamed_table_does_what_a_plain_one_does() -> None:
    ends = time.monotonic() + SECONDS
    counts: Counter[str] = Counter()
    for seed in itertools.count(SEED * 1_000_000):
        counts += play(seed)
        if time.monotonic() > ends:
            break
    print(f"{seed - SEED * 1_000_000 + 1} rounds", dict(counts))


def play(seed: int) -> Counter[str]:
    """One round; gives how often statements were run in each way."""
    with closing(Ours()) as ours, duckdb.connect() as plain:
        one = Round(ours, plain, seed)
        try:
            one.run()
        except Exception as error:
            head = f"seed {seed}, {one.kind.label}: {one.kind.ddl}, f WHERE {one.filter}"
            history = "\n  ".join(one.history)
            raise AssertionError(f"{head}\n  {history}\n{type(error).__name__}: {error}") from error
    return one.counts

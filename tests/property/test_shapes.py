"""The three shapes of capture against plain DuckDB, on random statements.

Each round makes one kind of table twice, in two databases in memory; one is captured. The same
random statements run on both: table, row count, RETURNING and class of error must be the same, the
log must fold to the table event by event with dense LSNs, and an error must leave no log row.

DUCKTAIL_FUZZ_SECONDS sets the time, DUCKTAIL_FUZZ_SEED the first seed; a failure prints
the seed of its round. Most rounds run with capture's own bounds, the others with tiny ones, so that
the ways for many rows are taken too.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal

import duckdb
import pytest
from amounts import amount, seed_of
from beside_duckdb import EQUAL, EQUALS, Result, first_texts, forgiven, rollback, rows_of, run_plain, texts
from random_dml import KINDS, Statement, TableKind
from random_merge import Generator

from ducktail.engine.capture import capture
from ducktail.engine.capture.capture import CapturedTable, Dml, Outcome, read_views
from ducktail.engine.duck.binding import bind
from ducktail.engine.duck.determinism import compares_inexactly, consistent_functions
from ducktail.engine.duck.table_shape import TableShape, read_shape
from ducktail.engine.errors import InternalError, NotSupported
from ducktail.engine.partitioning import hash_sql
from ducktail.engine.quoting import ident
from ducktail.sql.dml.dml import slice_dml
from ducktail.sql.language.classify import classify
from ducktail.sql.session_state.run_text import UNTOLD, with_nulls

SECONDS = amount("DUCKTAIL_FUZZ_SECONDS", 4.0, 300.0)
SEED = seed_of("DUCKTAIL_FUZZ_SEED")
STATEMENTS_PER_ROUND = 10
# Types of parameters.
TYPES = {int: "INT", Decimal: "DECIMAL(9,3)", str: "VARCHAR", type(None): '"NULL"'}


def told(row: Sequence[str | None], lenient: Collection[int]) -> tuple[str | None, ...]:
    """A row of the log or the table; at the lenient places equal values are one."""
    if not lenient:
        return tuple(row)
    return tuple(
        EQUAL.sub(lambda found: EQUALS[found[0]], value) if value and i in lenient else value
        for i, value in enumerate(row)
    )


class Captured:
    """The captured copy of a table."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, kind: TableKind) -> None:
        self.cursor = cursor
        self.kind = kind
        name = kind.table.strip('"')
        self.shape: TableShape = read_shape(cursor, kind.schema, name)
        self.table = CapturedTable(self.shape, "ducktail.log_1", frozenset(self.shape.primary_key))
        self.lsn = 0
        images = ", ".join(f"{side}{i} {c.type}" for side in "on" for i, c in enumerate(self.shape.stored, 1))
        cursor.execute("create schema ducktail")
        cursor.execute(
            "create table ducktail.log_1(lsn bigint, txid bigint, op varchar, stream_id int, rid bigint, "
            f"key_hash uinteger, key_change int, {images})"
        )
        self.shapes: collections.Counter[str] = collections.Counter()
        self.last_plan: object = None
        self.start = self.rows()

    def rows(self) -> list[tuple[str, ...]]:
        columns = ", ".join(f"{ident(c.name)}::varchar" for c in self.shape.stored)
        return self.cursor.execute(f"select {columns} from {self.shape.qualified}").fetchall()

    def run(self, statement: Statement) -> Result:
        """Run a statement through capture, as a session does: bind, plan, execute, commit."""
        try:
            if not statement.text.startswith("truncate"):
                self.cursor.execute(f"explain {statement.text}", self._nulls(statement)).fetchall()
            dml: Dml = slice_dml(
                classify(statement.text), self.kind.schema, lambda query: self._names(query, statement)
            )
            if dml.query_from and not self.shape.generated:
                dml = dataclasses.replace(dml, repeatable=True)
            self.last_plan = plan = capture.plan(dml, self.table, views=lambda: read_views(self.cursor))
            self.cursor.execute("begin")
            outcome = capture.execute(self.cursor, plan, statement.parameters, self.lsn, 7)
            self.cursor.execute("commit")
        except duckdb.Error as error:
            rollback(self.cursor)
            return type(error).__name__, str(error), None
        self.shapes[plan.shape.value] += 1
        self.shapes[f"{dml.verb.value}{' upsert' if dml.conflict else ''} {plan.shape.value}"] += 1
        self._check_outcome(outcome)
        self.lsn += outcome.events
        rows = None if outcome.returning is None else rows_of(outcome.returning)
        return "ok", outcome.rows, rows

    def _names(self, query: str, statement: Statement) -> tuple[str, ...]:
        """A query's columns, which the binder does not tell where they hang on a parameter."""
        found = bind(self.cursor, query).names
        if found != UNTOLD:
            return found
        given = self._nulls(statement) or {}
        nulls = with_nulls(query, {name: TYPES[type(value)] for name, value in given.items()})
        return bind(self.cursor, nulls).names

    @staticmethod
    def _nulls(statement: Statement) -> dict[str, object] | None:
        return {str(n): value for n, value in enumerate(statement.parameters, 1)} or None

    def _check_outcome(self, outcome: Outcome) -> None:
        """Events are as many as the log's new rows, in order; the keys are those of the rows."""
        new = f"ducktail.log_1 where lsn > {self.lsn}"
        logged = self.cursor.execute(f"select op, txid from {new} order by lsn").fetchall()
        assert len(logged) == outcome.events, (outcome, logged)
        assert "".join(op for op, _ in logged) == "".join(sorted((o for o, _ in logged), key="dui".index))
        if outcome.keys is None:
            assert outcome.events > capture.KEYS_MAX
            return
        places = [(self.shape.position(name) or 0) + 1 for name in self.shape.primary_key]
        every = range(1, len(self.shape.stored) + 1)
        old = f"hash({', '.join(f'o{p}' for p in places or every)})"
        keys = f"select {old} from {new} and op <> 'i'"
        if places:
            keys += f" union select hash({', '.join(f'n{p}' for p in places)}) from {new} and op <> 'd'"
        assert outcome.keys == {row[0] for row in self.cursor.execute(keys).fetchall()}

    def log_rows(self) -> int:
        return int(self.cursor.execute("select count(*) from ducktail.log_1").fetchall()[0][0])

    def check_log(self) -> None:
        """The log folds from the first rows to the present ones, event by event and key by key."""
        n = len(self.shape.stored)
        columns = ", ".join(f"{side}{i}::varchar" for side in "on" for i in range(1, n + 1))
        events = self.cursor.execute(
            f"select lsn, op, key_change, {columns} from ducktail.log_1 order by lsn"
        )
        logged = events.fetchall()
        hidden = self._hidden(row[1:2] + row[3:] for row in logged)
        start = [told(row, hidden) for row in self.start]
        rows = collections.Counter(start)
        places = [self.shape.position(name) for name in self.shape.primary_key]
        by_key = {tuple(row[p] for p in places): row for row in start} if places else {}
        for expected, (lsn, op, pair, *values) in enumerate(logged, 1):
            old, new = told(values[:n], hidden), told(values[n:], hidden)
            assert lsn == expected, "LSNs are dense"
            assert pair is None or op in "di"
            if op in "ud":
                assert rows[old] > 0, f"event {lsn}: no such old row {old}"
                rows[old] -= 1
            if op in "ui":
                rows[new] += 1
            if places:
                fold_key(by_key, op, old, new, [p for p in places if p is not None])
        present = collections.Counter(told(row, hidden) for row in self.rows())
        assert +rows == present, "the log folds to the table"
        self._check_key_hashes()

    def _hidden(self, logged: Iterable[Sequence[str | None]]) -> frozenset[int]:
        """The places of inexact columns that an update has filled where NULL stood.

        Below the NULL DuckDB keeps the value from before it, and an update in place by an equal one
        brings that back. No statement can see it beforehand.
        """
        n = len(self.shape.stored)
        inexact = [i for i, column in enumerate(self.shape.stored) if compares_inexactly(column)]
        return frozenset(
            i
            for op, *values in logged
            for i in inexact
            if op == "u" and "NULL" in (values[i] or "NULL") and values[i] != values[n + i]
        )

    def _check_key_hashes(self) -> None:
        key = [(i, c) for i, c in enumerate(self.shape.stored, 1) if c.name in self.shape.primary_key]
        key.sort(key=lambda found: self.shape.primary_key.index(found[1].name))
        sides = [(f"(case op when 'd' then o{i} else n{i} end)", c.type) for i, c in key]
        wanted = hash_sql(sides) if key else "null"
        query = f"select count(*) from ducktail.log_1 where key_hash is distinct from {wanted}"
        assert self.cursor.execute(query).fetchall() == [(0,)]


def fold_key(
    by_key: dict[tuple[str, ...], tuple[str, ...]],
    op: str,
    old: tuple[str, ...],
    new: tuple[str, ...],
    places: list[int],
) -> None:
    old_key, new_key = tuple(old[p] for p in places), tuple(new[p] for p in places)
    if op in "ud":
        assert by_key.get(old_key) == old, f"{op}: the key's row is {by_key.get(old_key)}, not {old}"
    if op == "u":
        assert old_key == new_key, "an update keeps its key"
    if op == "i":
        assert new_key not in by_key, f"insert of the live key {new_key}"
    if op == "d":
        del by_key[old_key]
    else:
        by_key[new_key] = new


def connections(rng: random.Random, kind: TableKind, threads: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Two databases with the same rows."""
    made, rows = first_texts(rng, kind)
    for _ in range(2):
        connection = duckdb.connect(":memory:")
        for text in (f"set threads = {threads}", "set timezone = 'UTC'", *made):
            connection.execute(text)
        for text in rows:
            try:
                connection.execute(text)
            except duckdb.Error:
                continue  # a row that a constraint refuses, in both
        yield connection


def play(seed: int) -> collections.Counter[str]:
    """One round; gives how often each shape ran."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    plain, other = connections(rng, kind, threads=1 + seed % 2)
    captured = Captured(other, kind)
    generator = Generator(rng, kind)
    history: list[str] = []
    try:
        for _ in range(STATEMENTS_PER_ROUND):
            statement = generator.statement()
            history.append(f"{statement.text}   {statement.parameters or ''}")
            if not step(plain, captured, statement):
                break
        captured.check_log()
    except (AssertionError, InternalError) as error:
        shown = "\n  ".join(history)
        head = f"seed {seed}, threads {1 + seed % 2}, {kind.label}: {kind.ddl}"
        raise AssertionError(f"{head}\n  {shown}\n{captured.last_plan}\n{error}") from error
    finally:
        plain.close()
        other.close()
    return captured.shapes


def step(plain: duckdb.DuckDBPyConnection, captured: Captured, statement: Statement) -> bool:
    """One statement on both; False where the two cannot be compared any further."""
    before = captured.log_rows()
    try:
        ours = captured.run(statement)
    except NotSupported:
        captured.shapes["refused"] += 1
        return True
    theirs = run_plain(plain, statement)
    if ours[0] != theirs[0] and forgiven(captured.kind, statement, ours, theirs):
        return False
    assert ours[0] == theirs[0], f"plain {theirs}\ncaptured {ours}"
    if ours[0] != "ok":
        assert captured.log_rows() == before, "log rows after an error"
        captured.shapes["error"] += 1
        return not captured.kind.volatile  # a failed statement may take other numbers of a sequence
    assert ours[1] == theirs[1], f"row count: plain {theirs[1]}, captured {ours[1]}"
    if statement.open:
        return False
    assert ours[2] == theirs[2], f"RETURNING: plain {theirs[2]}\ncaptured {ours[2]}"
    columns = ", ".join(f"{ident(c.name)}::varchar" for c in captured.shape.stored)
    rows = plain.execute(f"select {columns} from {captured.shape.qualified}").fetchall()
    mine = captured.rows()
    assert texts(rows) == texts(mine), f"table: plain {rows}\ncaptured {mine}"
    return True


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_captured_statements_do_what_plain_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    consistent_functions()
    bounds = {name: getattr(capture, name) for name in ("KEYS_MAX", "SLICE_ROWS_MAX", "FEW_ROWS_MAX")}
    ends = time.monotonic() + SECONDS
    shapes: collections.Counter[str] = collections.Counter()
    for seed in itertools.count(SEED * 1_000_000):
        tiny = seed % 4 == 0
        for name, bound in bounds.items():
            monkeypatch.setattr(capture, name, 1 if tiny else bound)
        shapes += play(seed)
        # On a slow machine until each shape has come.
        if time.monotonic() > ends and all(shapes[shape] > 0 for shape in "ABC"):
            break
    print(f"{seed - SEED * 1_000_000 + 1} rounds", dict(shapes))

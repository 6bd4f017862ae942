"""Random tables, statements, changes, sessions, streams, groups, retention and restarts against a model.

After each step: the model's rows are the table, the events that came are those that the model says (so
that the stream folds to the table, both ways), every other stream is its view of them, hot reads and
the stream's view give the same, LSNs are dense in commit order, and nothing appears behind a reader.
Promises 1 to 9. Sessions are of the wire and of this process; rows come in statements, by COPY from
a client and from files, in frames and as parameters. DUCKTAIL_STATEFUL_EXAMPLES (default 12) is how many
runs of up to 50 steps are made; the statements that they had are counted at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from local_client import Client
from model_sessions import Program, state_of
from table_model import (
    COLUMNS,
    TYPES,
    Duplicate,
    Effect,
    Row,
    Rows,
    Statement,
    Table,
    keyed_statements,
    loads,
    predicates,
    statements,
)

import ducktail
from ducktail.engine.log import EVENT_NAMES
from ducktail.engine.values.json_images import value_sql
from ducktail.sql.copy import stdin
from ducktail.sql.dbapi import opened

EXAMPLES = int(os.environ.get("DUCKTAIL_STATEFUL_EXAMPLES", "12"))
# Shrinking a failure takes minutes; CI prints the steps as they were.
SHRINKS = bool(os.environ.get("DUCKTAIL_STATEFUL_SHRINK"))
STEPS = 50
SESSIONS = 3
WRITERS, TABLES = st.integers(0, SESSIONS - 1), st.integers(0, 1)
STREAMS_MAX = 4
# Retention is asked for by hand here.
BOUNDS = {"retention_interval_ms": 3_600_000}
# A COPY FROM STDIN of a few rows is written in several batches.
BATCH_BYTES = 40
SPLIT = {"id": 0, "v": 1, "s": 2}

Change = tuple[str, Row | None, Row | None]  # op, old, new


@dataclass
class Session:
    """A session, and what its open transaction has seen and done."""

    client: Client | Program
    in_block: bool = False
    failed: bool = False
    view: dict[str, Rows] | None = None
    snapshot: int = 0  # commits and changes of streams when it was taken
    written: list[tuple[Table, list[Change]]] = field(default_factory=list)
    effects: list[tuple[Table, list[Effect]]] = field(default_factory=list)
    holds_lock: bool = False

    def reset(self) -> None:
        self.in_block = self.failed = self.holds_lock = False
        self.view, self.written, self.effects = None, [], []


@dataclass
class Stream:
    """A stream as the model knows it, with every event that it has had."""

    name: str
    table: Table
    where: Any = None
    ops: frozenset[str] = frozenset({"insert", "update", "delete"})
    columns: tuple[int, ...] = (0, 1, 2, 3)
    before: str = "full"
    partition_by: tuple[str, ...] | None = None
    count: int = 1  # of its partitions
    events: list[tuple[int, int]] = field(default_factory=list)  # (lsn, partition)
    seen_lsn: int = 0
    edge_lsn: int = 0
    partitions: dict[object, int] = field(default_factory=dict)

    def shows(self, change: Change) -> Change | None:
        """The change as this stream has it."""
        op, old, new = change
        if op == "schema":
            return change
        if self.where is not None:
            after = new is not None and self.where(new)
            before = old is not None and self.where(old)
            if op == "update":
                op = {(True, True): "update", (True, False): "insert", (False, True): "delete"}.get(
                    (after, before), ""
                )
            elif not (after or before):
                op = ""
        if op not in self.ops:
            return None
        return op, old if op != "insert" else None, new if op != "delete" else None


class Streams(RuleBasedStateMachine):
    """See the head of the file."""

    steps = 0
    forms: ClassVar[Counter[tuple[str, str]]] = Counter()  # statements by form and outcome

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ducktail-stateful-"))
        self.files = self.directory / "files"
        self.files.mkdir()
        self.openings = 0
        self.tables: list[Table] = []
        self.rows: dict[str, Rows] = {}
        self.streams: dict[str, Stream] = {}
        self.groups: dict[tuple[str, str], dict[int, int]] = {}
        self.sessions: list[Session] = []
        self.commits: list[dict[str, set[object]]] = []  # a change of streams is a commit of no keys
        self.pending: list[list[tuple[Table, list[Change]]]] = []  # transactions not yet seen
        self.ends: list[int] = []  # the last LSN of each transaction
        self.numbers = 0
        self.x_json: dict[str, list[str]] = {}
        self.defaults: set[str] = set()  # tables whose column v has one

    @initialize(
        kinds=st.tuples(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES))),
        keys=st.tuples(*[st.sampled_from([(0,), (0,), (0, 2), (2, 0), ()])] * 2),
    )
    def start(self, kinds: tuple[str, str], keys: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        self.open()
        for number, (kind, key) in enumerate(zip(kinds, keys, strict=True)):
            table = Table(f"t{number}", kind, key)
            self.tables.append(table)
            self.rows[table.name] = Counter()
            self.reader(table.ddl)
            self.reader(f"create stream all{number} on {table.name}")
            self.streams[f"all{number}"] = Stream(f"all{number}", table, count=8 if table.key else 1)
            self.x_json[table.name] = [_image(literal, kind) for literal in table.literals]

    def open(self) -> None:
        path, allowed = self.directory / "model.duckdb", [self.files]
        self.opened = opened.join(path, opened.settings_named(BOUNDS, allowed))
        self.database = self.opened.database
        self.reader = Client(self.database)
        # Sessions of the wire and of this process take turns, so that each place has been both.
        self.openings += 1
        self.sessions = [
            Session(
                Client(self.database, wire=True, lock_timeout="1")
                if (number + self.openings) % 2
                else Program(ducktail.connect(path, allowed_directories=allowed, **BOUNDS))
            )
            for number in range(SESSIONS)
        ]

    def close(self) -> None:
        for session in self.sessions:
            session.client.close()
        self.reader.close()
        opened.leave(self.opened)

    def teardown(self) -> None:
        if self.sessions:
            self.close()
        shutil.rmtree(self.directory)

    # Writing.

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def write(self, data: st.DataObject, session: int, table: int) -> None:
        known = self.tables[table]
        self._write(self.sessions[session], known, data.draw(statements(known)))

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def write_by_key(self, data: st.DataObject, session: int, table: int) -> None:
        known = self.tables[table]
        made = (keyed_statements if known.key else statements)(known)
        self._write(self.sessions[session], known, data.draw(made))

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def load(self, data: st.DataObject, session: int, table: int) -> None:
        """COPY, frames, many parameters."""
        at, known = self.sessions[session], self.tables[table]
        self._write(at, known, data.draw(loads(known, isinstance(at.client, Client))))

    def _write(self, session: Session, table: Table, statement: Statement) -> None:
        if session.in_block and session.view is None:
            self._take_snapshot(session)
        view = self.rows if session.view is None else session.view
        runs: list[list[Effect]] = []
        after: Rows | None = view[table.name]
        try:
            for run in (statement.effects, *statement.more):
                assert after is not None
                runs.append(run(after))
                after = table.after(after, runs[-1])
        except Duplicate:
            after = None
        effects = [effect for run in runs for effect in run]
        state = state_of(session.client, statement, self.files)
        Streams.forms[statement.form, state] += 1
        if session.failed:
            assert state == "25P02", state
            return
        if any(other.holds_lock for other in self.sessions if other is not session):
            assert state == "55P03", (state, statement.text)
        else:
            self._judge(session, table, statement, effects, after, state)
        if state != "ok":
            session.failed = session.in_block
            session.holds_lock = session.holds_lock and not session.in_block
            return
        assert after is not None
        changes = [(table, listed) for run in runs if (listed := self._changes(table, run))]
        if not session.in_block:
            self._committed([(table, effects)], changes)
            return
        assert session.view is not None
        session.holds_lock = True
        session.view[table.name] = after
        session.effects.append((table, effects))
        session.written += changes

    def _judge(
        self,
        session: Session,
        table: Table,
        statement: Statement,
        effects: list[Effect],
        after: Rows | None,
        state: str,
    ) -> None:
        """Whether a statement may end so."""
        since = self.commits[session.snapshot :] if session.in_block else []
        met = any(commit.get(table.name, set()) & _keys(table, effects) for commit in since)
        if state == "ok":
            assert after is not None, f"two rows of one key: {statement.text}"
            assert not met, f"a conflict was not noticed: {statement.text}"
        elif state == "23505":
            assert after is None, f"no duplicate: {statement.text}"
        else:
            assert state == "40001" and any(table.name in commit for commit in since), (
                state,
                statement.text,
            )

    def _changes(self, table: Table, effects: list[Effect]) -> list[Change]:
        """The events of a statement, deletes first, then updates, then inserts."""
        split = set(table.key)
        for stream in self.streams.values():
            if stream.table is table and stream.partition_by:
                split |= {SPLIT[name] for name in stream.partition_by}
        deletes: list[Change] = []
        updates: list[Change] = []
        inserts: list[Change] = []
        for effect in effects:
            old, new = effect.old, effect.new
            if old is not None and new is not None and all(old[i] == new[i] for i in split):
                updates.append(("update", old, new))
                continue
            if old is not None:
                deletes.append(("delete", old, None))
            if new is not None:
                inserts.append(("insert", None, new))
        return deletes + updates + inserts

    def _committed(
        self, effects: list[tuple[Table, list[Effect]]], changes: list[tuple[Table, list[Change]]]
    ) -> None:
        keys: dict[str, set[object]] = defaultdict(set)
        for table, done in effects:
            self.rows[table.name] = table.after(self.rows[table.name], done)
            if done:
                keys[table.name] |= _keys(table, done)
        self.commits.append(dict(keys))
        if changes:
            self.pending.append(changes)

    # Transactions.

    def _take_snapshot(self, session: Session) -> None:
        session.view = dict(self.rows)
        session.snapshot = len(self.commits)

    @precondition(lambda self: any(not s.in_block for s in self.sessions))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if not s.in_block]))
        session.client("begin")
        session.in_block = True

    @precondition(lambda self: any(s.in_block for s in self.sessions))
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if s.in_block]))
        session.client("commit" if commits else "rollback")
        assert session.client.tag == ("COMMIT" if commits and not session.failed else "ROLLBACK")
        if commits and not session.failed:
            self._committed(session.effects, session.written)
        session.reset()

    @precondition(lambda self: sum(not s.in_block for s in self.sessions) > 1)
    @rule(data=st.data(), table=TABLES)
    def meet(self, data: st.DataObject, table: int) -> None:
        """One session takes a snapshot, another one writes, then the first one does: often the same rows."""
        free = [number for number, session in enumerate(self.sessions) if not session.in_block]
        first, second = data.draw(st.permutations(free))[:2]
        known = self.tables[table]
        made = (keyed_statements if known.key else statements)(known)
        self.sessions[first].client("begin")
        self.sessions[first].in_block = True
        self.look(first, table)
        theirs = data.draw(made)
        self._write(self.sessions[second], known, theirs)
        self._write(self.sessions[first], known, data.draw(st.one_of(st.just(theirs), made)))

    @rule(session=WRITERS, table=TABLES)
    def look(self, session: int, table: int) -> None:
        """Read a table: in a transaction it is the snapshot with its own writes."""
        at, known = self.sessions[session], self.tables[table]
        if at.failed:
            assert _state(at.client, f"select 1 from {known.name}") == "25P02"
            return
        if at.in_block and at.view is None:
            self._take_snapshot(at)
        view = self.rows if at.view is None else at.view
        assert self._rows(at.client, known) == view[known.name]

    def _rows(self, client: Client | Program, table: Table) -> Rows:
        x = " ".join(
            f"when x is not distinct from ({literal})::{table.kind} then {i}"
            for i, literal in enumerate(table.literals)
        )
        return Counter(client(f"select id, v, s, case when x is null then null {x} end from {table.name}"))

    # Changes of a table, which leave its rows and what may be written as they are.

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def alter(self, data: st.DataObject, session: int, table: int) -> None:
        at, known = self.sessions[session], self.tables[table]
        # Each version that is retained makes the views slower, and this asks them at every step.
        if at.in_block or len(self.database.catalog.tables["main", known.name].older) > 2:
            return
        name, has_null = known.name, any(row[1] is None for row in self.rows[known.name])
        kind = data.draw(st.sampled_from(["default", "not null", "rename", "rename column"]))
        if kind == "default":
            drops = name in self.defaults
            done = self._alter(at, known, f"{name} alter v {'drop default' if drops else 'set default null'}")
            self.defaults ^= {name} if done else set()
        elif kind == "rename column":
            if self._alter(at, known, f"{name} rename column x to other"):
                assert self._alter(at, known, f"{name} rename column other to x")
        elif kind == "rename":
            if self._alter(at, known, f"{name} rename to other"):
                assert self._alter(at, known, f"other rename to {name}")
        elif self._alter(at, known, f"{name} alter v set not null", "23502" if has_null else "ok"):
            assert self._alter(at, known, f"{name} alter v drop not null")

    def _alter(self, session: Session, table: Table, text: str, wanted: str = "ok") -> bool:
        state = _state(session.client, f"alter table {text}")
        if any(other.holds_lock for other in self.sessions):
            wanted = "55P03"
        assert state == wanted, (state, text)
        if state != "ok":
            return False
        widest = max(stream.count for stream in self.streams.values() if stream.table is table)
        self.commits.append({table.name: set()})
        self.pending.append([(table, [("schema", None, None)] * widest)])
        return True

    # Streams.

    @precondition(lambda self: len(self.streams) < 2 + STREAMS_MAX)
    @rule(data=st.data())
    def create_stream(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.numbers += 1
        stream = Stream(f"s{self.numbers}", table)
        where = data.draw(st.one_of(st.none(), predicates(table)))
        columns = data.draw(st.one_of(st.none(), st.sets(st.integers(0, 3), min_size=1)))
        ops = data.draw(st.sets(st.sampled_from(sorted(stream.ops)), min_size=1))
        if columns is not None:
            stream.columns = tuple(sorted(columns | set(table.key)))
        stream.ops = frozenset(ops)
        stream.count = data.draw(st.sampled_from([1, 3, 8])) if table.key else 1
        options = [f"partitions = {stream.count}"] if table.key else []
        by = data.draw(st.one_of(st.none(), st.sampled_from(["v", "s"])))
        if by is not None:
            options = [f"partition_by = '{by}'", "partitions = 4"]
            stream.partition_by, stream.count = (by,), 4
        if table.key:
            stream.before = data.draw(st.sampled_from(["full", "key", "none"]))
            options.append(f"before = '{stream.before}'")
        initial = data.draw(st.booleans())
        options.append(f"snapshot = '{'initial' if initial else 'none'}'")
        if where is not None:
            stream.where = where[1]
        listed = f"({', '.join(COLUMNS[i] for i in sorted(columns))})" if columns is not None else ""
        text = (
            f"create stream {stream.name} on {table.name} {listed} operations {', '.join(sorted(ops))} "
            f"{'where ' + where[0] if where else ''} with ({', '.join(options)})"
        )
        maker = self.sessions[0].client if not self.sessions[0].in_block else None
        if maker is None:
            return
        state = _state(maker, text)
        if any(s.holds_lock for s in self.sessions):
            assert state == "55P03", state
            return
        assert state == "ok", (state, text)
        self.commits.append({t.name: set() for t in self.tables})
        stream.seen_lsn = max(s.seen_lsn for s in self.streams.values())
        self.streams[stream.name] = stream
        if initial:
            self._expect_snapshot(stream)

    def _expect_snapshot(self, stream: Stream) -> None:
        rows = self.reader(f"select lsn, partition, op, after from stream {stream.name}")
        assert {row[2] for row in rows} <= {"snapshot"}
        standing = self.rows[stream.table.name].elements()
        wanted = [row for row in standing if not stream.where or stream.where(row)]
        found = [self._image(stream.table, row[3], stream.columns) for row in rows]
        assert Counter(found) == Counter(_part(row, stream.columns) for row in wanted)
        stream.events += [(row[0], row[1]) for row in rows]
        taken = sum(self.rows[stream.table.name].values())
        for other in self.streams.values():
            other.seen_lsn += taken
        self.ends.append(stream.seen_lsn)

    @precondition(lambda self: len(self.streams) > 2 and not self.sessions[0].in_block)
    @rule(data=st.data())
    def drop_stream(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.streams) - {"all0", "all1"})))
        state = _state(self.sessions[0].client, f"drop stream {name} cascade")
        if any(s.holds_lock for s in self.sessions):
            assert state == "55P03", state
            return
        assert state == "ok", state
        del self.streams[name]
        self.groups = {key: lsns for key, lsns in self.groups.items() if key[0] != name}
        self.commits.append({t.name: set() for t in self.tables})

    @rule(data=st.data(), part=st.floats(0, 1))
    def trim(self, data: st.DataObject, part: float) -> None:
        """Retention lets go of a stream's oldest events."""
        stream = data.draw(st.sampled_from(sorted(self.streams.values(), key=lambda s: s.name)))
        left = [lsn for lsn, _ in stream.events if lsn > stream.edge_lsn]
        if not left or any(s.holds_lock for s in self.sessions):
            return
        # Whole transactions go.
        through = next(end for end in self.ends if end >= left[int(part * (len(left) - 1))])
        self.database.retention.trim(self.database.catalog.streams["main", stream.name], through)
        stream.edge_lsn = through
        rows = self.reader(f"select lsn, partition from stream {stream.name} after 0")
        assert rows == [event for event in stream.events if event[0] > through]

    # Groups.

    @rule(data=st.data(), latest=st.booleans())
    def create_group(self, data: st.DataObject, latest: bool) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams.values(), key=lambda s: s.name)))
        key = (stream.name, f"g{len(self.groups)}")
        if key in self.groups or any(s.holds_lock for s in self.sessions):
            return
        start = "latest" if latest else "earliest"
        self.reader(f"create consumer group {key[1]} on {stream.name} start {start}")
        self.groups[key] = dict(self.reader(_offsets_of(key)))
        for number, lsn in self.groups[key].items():
            mine = [at for at, partition in stream.events if partition == number]
            if latest:
                assert lsn == max(mine, default=0)
            else:
                assert lsn == max((at for at in mine if at <= stream.edge_lsn), default=0)

    @precondition(lambda self: bool(self.groups))
    @rule(
        data=st.data(),
        limit=st.integers(1, 20),
        how=st.sampled_from(["read", "commit", "transaction", "rollback"]),
    )
    def consume(self, data: st.DataObject, limit: int, how: str) -> None:
        """Read a group's next events and commit them or not; only a commit moves anything."""
        key = data.draw(st.sampled_from(sorted(self.groups)))
        stream, committed = self.streams[key[0]], self.groups[key]
        in_block = how in ("transaction", "rollback")
        read = f"select lsn, partition from stream {key[0]} consumer group {key[1]} limit {limit}"
        if in_block:
            self.reader("begin")
        if any(self._edge(stream, number) > lsn for number, lsn in committed.items()):
            assert _state(self.reader, read) == "72000"
            if in_block:
                self.reader("rollback")
            return
        wanted = [(lsn, number) for lsn, number in stream.events if lsn > committed[number]]
        assert self.reader(read) == wanted[:limit]
        moved = dict(committed)
        for lsn, number in wanted[:limit]:
            moved[number] = lsn
        if how != "read":
            self.reader(f"commit offsets on {key[0]} consumer group {key[1]}")
        if in_block:
            self.reader("commit" if how == "transaction" else "rollback")
        if how in ("commit", "transaction"):
            self.groups[key] = moved
        assert dict(self.reader(_offsets_of(key))) == self.groups[key]

    @rule(table=st.integers(0, 1))
    def wait(self, table: int) -> None:
        """Somebody waits for a table's events, and may again: for a while they are made before COMMIT."""
        stream = self.streams[f"all{table}"]
        assert self.reader(f"select lsn from stream {stream.name} after {stream.seen_lsn} wait '1 ms'") == []

    @staticmethod
    def _edge(stream: Stream, number: int) -> int:
        """The last event of a partition that has been trimmed."""
        gone = (lsn for lsn, at in stream.events if at == number and lsn <= stream.edge_lsn)
        return max(gone, default=0)

    @rule()
    def restart(self) -> None:
        """Close and open: what was not committed is gone, all else is there."""
        self.close()
        self.open()
        for key, lsns in self.groups.items():
            assert dict(self.reader(_offsets_of(key))) == lsns
        for stream in self.streams.values():
            rows = self.reader(f"select lsn, partition from stream {stream.name} after 0")
            assert rows == [event for event in stream.events if event[0] > stream.edge_lsn]

    @rule(data=st.data())
    def hold_against_log(self, data: st.DataObject) -> None:
        """CHECK finds nothing: all changes of a table were captured, and what retention took is counted."""
        name = data.draw(st.sampled_from(sorted(self.streams)))
        assert self.reader(f"check stream {name}") == []

    # What must hold after each step.

    @invariant()
    def check(self) -> None:
        Streams.steps += 1
        if not self.tables:
            return
        fresh = {table.name: self._fresh(table) for table in self.tables}
        transactions = self._transactions(fresh)
        assert len(transactions) == len(self.pending), "each transaction that committed, and no other"
        for found, wanted in zip(transactions, self.pending, strict=True):
            self._check_transaction(found, wanted)
        self.pending = []
        for table in self.tables:
            assert self._rows(self.reader, table) == self.rows[table.name]
        self._check_streams(fresh)

    def _fresh(self, table: Table) -> list[dict[str, Any]]:
        """A table's new events, from the stream that has them all; hot reads and the view agree."""
        stream = next(s for s in self.streams.values() if s.table is table and s.name.startswith("all"))
        return self._events(stream)

    def _events(self, stream: Stream) -> list[dict[str, Any]]:
        rows = self.reader(f"select * from stream {stream.name} after {stream.seen_lsn}")
        cold = self.reader(f"select * from {stream.name} where lsn > {stream.seen_lsn} order by lsn")
        assert rows == cold
        return [dict(zip(EVENT_NAMES, row, strict=True)) for row in rows]

    @staticmethod
    def _transactions(fresh: dict[str, list[dict[str, Any]]]) -> list[list[tuple[str, dict[str, Any]]]]:
        """All new events in LSN order, by transaction."""
        events = sorted(
            ((name, event) for name, listed in fresh.items() for event in listed),
            key=lambda pair: pair[1]["lsn"],
        )
        by_txid: dict[int, list[tuple[str, dict[str, Any]]]] = {}
        for name, event in events:
            by_txid.setdefault(event["txid"], []).append((name, event))
        assert list(by_txid) == sorted(by_txid), "transactions do not interleave"
        return list(by_txid.values())

    def _check_transaction(
        self, found: list[tuple[str, dict[str, Any]]], wanted: list[tuple[Table, list[Change]]]
    ) -> None:
        """Its events are those of its statements, one after the other, dense and numbered."""
        first = found[0][1]["lsn"]
        if wanted[0][1][0][0] == "schema":
            # Its own partitions' events are the first ones; there may be wider streams than this.
            [(table, changes)] = wanted
            self.ends.append(first + len(changes) - 1)
            count = next(s.count for s in self.streams.values() if s.table is table and "all" in s.name)
            wanted = [(table, changes[:count])]
        else:
            self.ends.append(first + len(found) - 1)
        assert [event["lsn"] for _, event in found] == list(range(first, first + len(found)))
        assert [event["tx_seq"] for _, event in found] == list(range(len(found)))
        assert len({event["commit_time"] for _, event in found}) == 1
        lasts = {name: event["lsn"] for name, event in found}
        assert all(event["tx_last"] == (lasts[name] == event["lsn"]) for name, event in found)
        place = 0
        for table, changes in wanted:
            part = found[place : place + len(changes)]
            place += len(changes)
            assert {name for name, _ in part} == {table.name}
            told = [self._change(table, event, (0, 1, 2, 3)) for _, event in part]
            assert [op for op, _, _ in told] == [op for op, _, _ in changes]
            assert Counter(told) == Counter(changes)
        assert place == len(found)

    def _change(self, table: Table, event: dict[str, Any], columns: tuple[int, ...]) -> Change:
        op = event["op"]
        if op == "schema":
            assert event["key"] is event["before"] is None
            told = [column["name"] for column in json.loads(event["after"])["columns"]]
            assert ["x" if name == "other" else name for name in told] == [COLUMNS[i] for i in columns]
            return "schema", None, None
        return (
            op,
            self._image(table, event["before"], columns),
            self._image(table, event["after"], columns),
        )

    def _image(self, table: Table, text: str | None, columns: tuple[int, ...]) -> Any:
        """A row, or the part of it that a stream carries, from its JSON."""
        if text is None:
            return None
        members = json.loads(text)
        assert list(members) == [COLUMNS[i] for i in columns], text
        if 3 in columns and members["x"] is not None:
            members["x"] = self.x_json[table.name].index(_canonical(members["x"]))
        return tuple(members.values())

    def _check_streams(self, fresh: dict[str, list[dict[str, Any]]]) -> None:
        for stream in self.streams.values():
            table = stream.table
            base = fresh[table.name]
            if stream.name.startswith("all"):
                events = base
            else:
                events = self._events(stream)
                wanted = [shown for event in base for shown in self._shown(stream, event)]
                assert [(e["lsn"], self._told(stream, e)) for e in events] == wanted
            for event in events:
                stream.events.append((event["lsn"], event["partition"]))
                if event["op"] == "schema":
                    continue
                values = self._partition_values(stream, event, base)
                known = stream.partitions.setdefault(values, event["partition"])
                assert known == event["partition"], "a partition of given values never changes"
            if base:
                stream.seen_lsn = max(e["lsn"] for e in base)
        newest = max([*(stream.seen_lsn for stream in self.streams.values()), *self.ends[-1:]])
        for stream in self.streams.values():
            stream.seen_lsn = newest

    def _shown(self, stream: Stream, event: dict[str, Any]) -> list[tuple[int, Change]]:
        """What a stream has of an event of the stream that has all of the table's, by LSN."""
        change = stream.shows(self._change(stream.table, event, (0, 1, 2, 3)))
        if event["op"] != "schema":
            return [] if change is None else [(event["lsn"], self._carried(stream, change))]
        numbers = range(stream.count) if event["partition"] == 0 else ()
        return [(event["lsn"] + number, ("schema", None, None)) for number in numbers]

    def _told(self, stream: Stream, event: dict[str, Any]) -> Change:
        """An event of a stream, the images as it carries them."""
        if event["op"] == "schema":
            return self._change(stream.table, event, stream.columns)
        before = {"full": stream.columns, "key": stream.table.key, "none": ()}[stream.before]
        old = self._image(stream.table, event["before"], tuple(before))
        return event["op"], old, self._image(stream.table, event["after"], stream.columns)

    @staticmethod
    def _carried(stream: Stream, change: Change) -> Change:
        op, old, new = change
        before = {"full": stream.columns, "key": stream.table.key, "none": None}[stream.before]
        told = None if old is None or before is None else _part(old, before)
        return op, told, None if new is None else _part(new, stream.columns)

    def _partition_values(self, stream: Stream, event: dict[str, Any], base: list[dict[str, Any]]) -> object:
        whole = next(e for e in base if e["lsn"] == event["lsn"])
        _, old, new = self._change(stream.table, whole, (0, 1, 2, 3))
        row = new if new is not None else old
        assert row is not None
        places = [SPLIT[name] for name in stream.partition_by] if stream.partition_by else stream.table.key
        return tuple(row[i] for i in places)


def _image(literal: str, kind: str) -> str:
    """The canonical JSON of a literal as the column's type stores it."""
    with duckdb.connect() as connection:
        connection.execute(f"create table one as select ({literal})::{kind} as x")
        columns = "select data_type from duckdb_columns() where table_name = 'one'"
        type_ = connection.execute(columns).fetchall()[0][0]
        text = connection.execute(f"select ({value_sql('x', type_)})::varchar from one").fetchall()[0][0]
    return _canonical(json.loads(text))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _part(row: Row, columns: tuple[int, ...]) -> tuple[object, ...]:
    return tuple(row[i] for i in columns)


def _keys(table: Table, effects: list[Effect]) -> set[object]:
    """What conflicts are told by: keys, old and new; without a key the old rows."""
    olds = {table.key_of(effect.old) for effect in effects if effect.old is not None}
    if not table.key:
        return olds
    return olds | {table.key_of(effect.new) for effect in effects if effect.new is not None}


def _offsets_of(key: tuple[str, str]) -> str:
    return (
        "select partition, committed_lsn from ducktail.offsets "
        f"where stream_name = '{key[0]}' and group_name = '{key[1]}' order by 1"
    )


def _state(client: Client | Program, text: str) -> str:
    return state_of(client, Statement(text, lambda _: []), Path())


Streams.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, *((Phase.shrink,) if SHRINKS else ())),
)


@pytest.mark.timeout(3600)
@pytest.mark.slow
class TestStreams(Streams.TestCase):
    """The machine, run by hypothesis."""

    @pytest.fixture(autouse=True)
    def batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a COPY FROM STDIN writes at a time is small."""
        monkeypatch.setattr(stdin, "BATCH_BYTES", BATCH_BYTES)

    def tearDown(self) -> None:
        super().tearDown()
        print(f"{Streams.steps} steps")
        for form in sorted({form for form, _ in Streams.forms}):
            states = {state: n for (known, state), n in sorted(Streams.forms.items()) if known == form}
            print(f"{form}: {states}")

"""The machine that test_stateful drives: a database, its model, and what must hold after each step."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from group_model import Group
from hypothesis.stateful import RuleBasedStateMachine, invariant
from local_client import Client
from model_sessions import Program, state_of
from stream_model import MINIMAL, Change, Done, Images, Part, Session, Stream, Told, part
from table_model import BASE, Duplicate, Effect, Row, Rows, Table, X
from table_statements import Statement

import ducktail
from ducktail.engine.log.log import EVENT_NAMES
from ducktail.sql.python import open_databases

SESSIONS = 3
LOOKS_BETWEEN = 5
# What every stream that carries all of a row tells of an event.
TOLD = ("op", "table_name", "key", "before", "after", "commit_time", "txid", "schema_version", "headers")
# Retention is asked for by hand here.
BOUNDS = {"retention_interval_ms": 3_600_000}


class Machine(RuleBasedStateMachine):
    """A database beside its model; a subclass has the rules."""

    steps = 0
    forms: ClassVar[Counter[tuple[str, str]]] = Counter()  # statements by form and outcome

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ducktail-stateful-"))
        self.path = self.directory / "model.duckdb"
        self.files = self.directory / "files"
        self.files.mkdir()
        self.openings = 0
        self.looks = 0  # since it was opened
        self.tables: list[Table] = []
        self.rows: dict[str, Rows] = {}
        self.streams: dict[str, Stream] = {}
        self.wide: Stream | None = None  # over all tables; it has everything
        self.groups: dict[tuple[str, str], Group] = {}
        self.sessions: list[Session] = []
        self.commits: list[dict[str, set[object]]] = []  # a change of streams is a commit of no keys
        self.pending: list[list[Part]] = []  # transactions not yet seen
        self.ends: list[int] = []  # the last LSN of each transaction
        self.numbers = 0
        self.images: dict[str, Images] = {}
        self.defaults: set[str] = set()  # tables whose column v has one

    def open(self) -> None:
        allowed = [self.files]
        self.opened = open_databases.join(self.path, open_databases.settings_named(BOUNDS, allowed))
        self.database = self.opened.database
        self.reader = Client(self.database, lock_timeout="1")
        for group in self.groups.values():
            # Nobody is a member any more, or has read.
            group.members.clear()
            group.void()
        # Sessions of the wire and of this process take turns, so that each place has been both.
        self.openings += 1
        self.looks = 0
        self.sessions = [
            Session(
                Client(self.database, wire=True, lock_timeout="1")
                if (number + self.openings) % 2
                else Program(ducktail.connect(self.path, allowed_directories=allowed, **BOUNDS))
            )
            for number in range(SESSIONS)
        ]

    def close(self) -> None:
        for session in self.sessions:
            session.client.close()
        self.reader.close()
        open_databases.leave(self.opened)

    def kill(self) -> None:
        """Close it, and leave the files as SIGKILL would have left them."""
        kept = self.directory / "killed"
        kept.mkdir()
        files = [path for path in self.directory.glob(f"{self.path.name}*") if path.is_file()]
        # Not by this process: one that closes a file gives up all the locks that it has on it.
        subprocess.run(["cp", "-p", *files, str(kept)], check=True)
        self.close()
        for path in self.directory.glob(f"{self.path.name}*"):
            if path.is_file():
                path.unlink()
        for path in kept.iterdir():
            path.rename(self.directory / path.name)
        kept.rmdir()

    def state(self, text: str) -> str:
        """How a statement of the reader ends: 'ok', or its SQLSTATE."""
        return state_of(self.reader, Statement(text, lambda _: []), self.files)

    @staticmethod
    def count(form: str, outcome: str) -> None:
        """What was done, and what came of it, for the end."""
        Machine.forms[form, outcome] += 1

    def teardown(self) -> None:
        if self.sessions:
            self.close()
        shutil.rmtree(self.directory)

    @property
    def tables_by_name(self) -> dict[str, Table]:
        """The tables as all see them."""
        return {table.name: table for table in self.tables}

    @property
    def may_reopen(self) -> bool:
        """Whether it may be closed and opened: not all the time, as that takes as long as many steps."""
        return self.looks >= LOOKS_BETWEEN

    @property
    def locked(self) -> bool:
        """Whether a transaction holds the writer lock."""
        return any(session.holds_lock for session in self.sessions)

    def sorted_streams(self) -> list[Stream]:
        """The streams of one table by name, to be drawn from."""
        return sorted(self.streams.values(), key=lambda s: s.name)

    def all_streams(self) -> list[Stream]:
        """The same and the wide one."""
        return [*self.sorted_streams(), *([] if self.wide is None else [self.wide])]

    def widest(self, table: Table) -> int:
        """The partitions of a table's widest stream."""
        return max(s.count for s in self.all_streams() if s is self.wide or s.table == table)

    def of_table(self, table: Table) -> list[Stream]:
        """A table's streams."""
        return [stream for stream in self.streams.values() if stream.table == table]

    def whole_of(self, table: Table) -> Stream:
        """The stream of a table that has every event."""
        return next(stream for stream in self.of_table(table) if stream.has_all)

    def minimal(self, table: Table) -> str:
        """How a table's refreshes are told."""
        return min((stream.minimal for stream in self.of_table(table)), key=MINIMAL.index)

    # Writing.

    def write_one(self, session: Session, table: Table, statement: Statement) -> None:
        """Run a statement, and judge what came of it."""
        if session.in_block and session.view is None:
            self.take_snapshot(session)
        if session.in_block and self.tables_by_name[table.name].altered >= session.snapshot:
            self._write_stale(session, table, statement)
            return
        view = self.rows[table.name] if session.view is None else session.view[table.name]
        runs: list[list[Effect]] = []
        after: Rows | None = view
        try:
            for run in (statement.effects, *statement.more):
                assert after is not None
                runs.append(run(after))
                after = table.after(after, runs[-1])
        except Duplicate:
            after = None
        effects = [effect for run in runs for effect in run]
        state = self._run(session, statement)
        if session.failed:
            assert state == "25P02", state
            return
        if any(other.holds_lock for other in self.sessions if other is not session):
            assert state == "55P03", (state, statement.text)
        else:
            self._judge(session, table, statement, effects, after, state)
        if state != "ok":
            self.has_failed(session)
            return
        assert after is not None
        version = table.version
        done = [Done(table, version, run, self.changes_of(table, run), statement.deletes) for run in runs]
        self.has_done(session, done)

    def has_done(self, session: Session, done: list[Done]) -> None:
        """A session's statement is done: committed, or a part of its transaction."""
        if not session.in_block:
            self.committed(done)
            return
        assert session.view is not None
        session.holds_lock = True
        for one in done:
            session.view[one.table.name] = one.after(session.view[one.table.name])
        session.done += done

    def _run(self, session: Session, statement: Statement) -> str:
        state = state_of(session.client, statement, self.files)
        Machine.forms[statement.form, state] += 1
        return state

    def _write_stale(self, session: Session, table: Table, statement: Statement) -> None:
        """The table was altered since the transaction began to read: it cannot write it."""
        state = self._run(session, statement)
        if session.failed:
            assert state == "25P02", state
            return
        busy = any(other.holds_lock for other in self.sessions if other is not session)
        wanted = {"55P03", "40001"} if busy else {"40001"}
        if state == "ok" and table.called != self.tables_by_name[table.name].called:
            # By an old name it is told at COMMIT.
            state = state_of(session.client, Statement("commit", lambda _: []), self.files)
            session.reset()
        assert state in wanted, (state, statement.text)
        self.has_failed(session)

    @staticmethod
    def has_failed(session: Session) -> None:
        """A session's statement has ended with an error."""
        session.failed = session.in_block
        session.holds_lock = session.holds_lock and not session.in_block

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
        met = any(commit.get(table.name, set()) & keys_of(table, effects) for commit in since)
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

    def changes_of(self, table: Table, effects: list[Effect]) -> list[Change]:
        """The events of a statement, deletes first, then updates, then inserts."""
        split = set(table.key)
        for stream in self.of_table(table):
            split |= {BASE.index(name) for name in stream.partition_by or ()}
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

    def committed(self, done: list[Done]) -> None:
        """A transaction has been committed."""
        keys: dict[str, set[object]] = defaultdict(set)
        parts = self._parts(done)
        for one in done:
            name = one.table.name
            self.rows[name] = one.after(self.rows[name])
            if one.effects:
                keys[name] |= keys_of(one.table, one.effects)
            if one.alters is not None:
                self.tables_by_name[name].versions.update(one.table.versions)
                self.tables_by_name[name].called = one.table.called
                self.tables_by_name[name].altered = len(self.commits)
                keys[name] |= set()
        self.commits.append(dict(keys))
        if parts:
            self.pending.append(parts)

    def _parts(self, done: list[Done]) -> list[Part]:
        """The events of a transaction: what it has deleted and inserted of one table may be folded."""
        parts: list[Part] = []
        called = {table.name: table.called for table in self.tables}
        while done:
            table = done[0].table
            count = next((i for i, one in enumerate(done) if one.table != table or one.alters), len(done))
            run, done = done[: count or 1], done[count or 1 :]
            changed = [one for one in run if one.effects]
            folds = self.minimal(table) == "all" and table.key and {one.deletes for one in changed} == {0, 1}
            listed = [self.changes_of(table, folded(table, run))] if folds else [one.changes for one in run]
            # Behind RENAME TO in a transaction the old name is told until its next change, or its end.
            called[table.name] = run[0].called or called[table.name]
            parts += [
                Part(table, run[0].version, changes, called[table.name]) for changes in listed if changes
            ]
        return parts

    def renamed(self, session: Session) -> list[Done]:
        """What its transaction tells at its end of the tables that are called otherwise then."""
        done: list[Done] = []
        for table in session.tables.values():
            told = [one.called for one in session.done if one.table == table and one.called]
            if table.called != [self.tables_by_name[table.name].called, *told][-1]:
                table.altered_to(table.columns)
                changes: list[Change] = [("schema", None, None)] * self.widest(table)
                same: Callable[[Row], Row] = tuple
                done.append(Done(table, table.version, [], changes, alters=same, called=table.called))
        return done

    def take_snapshot(self, session: Session) -> None:
        """A transaction touches the database for the first time."""
        session.tables = {table.name: table.own() for table in self.tables}
        session.view = dict(self.rows)
        session.snapshot = len(self.commits)

    def table_of(self, session: Session, number: int) -> Table:
        """A table as a session sees it now."""
        table = self.tables[number]
        return session.tables.get(table.name, table)

    def rows_of(self, client: Client | Program, table: Table) -> Rows:
        """A table's rows as they are read."""
        names = [table.x_place() if place == X else name for place, name in enumerate(table.names)]
        return Counter(client(f"select {', '.join(names)} from {table.called}"))

    # What must hold after each step.

    @invariant()
    def check(self) -> None:
        Machine.steps += 1
        self.looks += 1
        if not self.tables:
            return
        fresh = {table.name: self.events_of(self.whole_of(table)) for table in self.tables}
        transactions = _transactions(fresh)
        assert len(transactions) == len(self.pending), "each transaction that committed, and no other"
        for found, wanted in zip(transactions, self.pending, strict=True):
            self._check_transaction(found, wanted)
        self.pending = []
        for table in self.tables:
            assert self.rows_of(self.reader, table) == self.rows[table.name]
        self._check_streams(fresh)

    def events_of(self, stream: Stream) -> list[dict[str, Any]]:
        """A stream's new events; the view has the same, which is asked where there are some: it is dear."""
        rows = self.reader(f"select * from stream {stream.name} after {stream.seen_lsn}")
        if rows:
            view = f"select * from {stream.name} where lsn > {stream.seen_lsn} order by lsn"
            assert self.reader(view) == rows
        return [dict(zip(EVENT_NAMES, row, strict=True)) for row in rows]

    def _check_transaction(self, found: list[tuple[str, dict[str, Any]]], wanted: list[Part]) -> None:
        """Its events are those of its statements, one after the other, dense and numbered."""
        first = base = found[0][1]["lsn"]
        lsns: list[int] = []
        events = [event for _, event in found]
        place = 0
        for one in wanted:
            # Of a schema event a stream shows as many as it has partitions; there may be wider ones.
            is_schema = one.changes[0][0] == "schema"
            count = self.whole_of(one.table).count if is_schema else len(one.changes)
            told = events[place : place + count]
            lsns += range(base, base + count)
            assert {name for name, _ in found[place : place + count]} == {one.table.name}
            base, place = base + len(one.changes), place + count
            assert {event["schema_version"] for event in told} == {one.version}
            assert {event["table_name"] for event in told} == {f"main.{one.called}"}
            changes = [self.change_of(one.table, event) for event in told]
            assert [op for op, _, _ in changes] == [op for op, _, _ in one.changes[:count]]
            assert Counter(changes) == Counter(one.changes[:count])
        assert place == len(found)
        self.ends.append(base - 1)
        assert [event["lsn"] for event in events] == lsns
        assert [event["tx_seq"] for event in events] == [lsn - first for lsn in lsns]
        assert len({event["commit_time"] for event in events}) == 1
        lasts = {name: event["lsn"] for name, event in found}
        assert all(event["tx_last"] == (lasts[name] == event["lsn"]) for name, event in found)

    def change_of(self, table: Table, event: dict[str, Any], stream: Stream | None = None) -> Change:
        """An event of the stream that has all, or of another one, the rows as that one carries them."""
        stream = stream or self.whole_of(table)
        columns = table.versions[event["schema_version"]]
        new = [columns[i] for i in stream.places(columns)]
        if event["op"] == "schema":
            assert event["key"] is event["before"] is None
            told = [column["name"] for column in json.loads(event["after"])["columns"]]
            assert told == [column.name for column in new]
            return "schema", None, None
        old = [columns[i] for i in stream.old_places(columns)]
        images = self.images[table.name]
        return event["op"], images.row(event["before"], old), images.row(event["after"], new)

    def _check_streams(self, fresh: dict[str, list[dict[str, Any]]]) -> None:
        for stream in self.streams.values():
            table = stream.table
            base = fresh[table.name]
            events = base
            if not stream.has_all:
                events = self.events_of(stream)
                wanted = [shown for event in base for shown in self._shown(stream, event)]
                assert [(e["lsn"], self.change_of(table, e, stream)) for e in events] == wanted
            by_lsn = {event["lsn"]: event for event in base}
            for event in events:
                stream.events.append(self.images[table.name].told(stream, event))
                if event["op"] != "schema":
                    self._check_key(stream, event, by_lsn[event["lsn"]])
            if base:
                stream.seen_lsn = max(e["lsn"] for e in base)
        if self.wide is not None:
            self._check_wide(self.wide, fresh)
        newest = max([*(stream.seen_lsn for stream in self.streams.values()), *self.ends[-1:]])
        for stream in self.all_streams():
            stream.seen_lsn = newest

    def _check_wide(self, wide: Stream, fresh: dict[str, list[dict[str, Any]]]) -> None:
        """The stream over all tables has the events of each, in one order and in whole transactions."""
        events = self.events_of(wide)
        wanted = []
        for event in sorted((e for base in fresh.values() for e in base), key=lambda e: int(e["lsn"])):
            told = [event[name] for name in TOLD]
            if event["op"] != "schema":
                wanted.append((event["lsn"], told))
            elif event["partition"] == 0:
                wanted += [(event["lsn"] + number, told) for number in range(wide.count)]
        assert [(event["lsn"], [event[name] for name in TOLD]) for event in events] == wanted
        lasts = {event["txid"]: event["lsn"] for event in events}
        assert all(event["tx_last"] == (lasts[event["txid"]] == event["lsn"]) for event in events)
        owners = {event["lsn"]: name for name, base in fresh.items() for event in base}
        for event in events:
            wide.events.append(Told.of(event))
            if event["op"] != "schema":
                key = (owners[event["lsn"]], event["key"])
                assert wide.partitions.setdefault(key, event["partition"]) == event["partition"]

    def _check_key(self, stream: Stream, event: dict[str, Any], whole: dict[str, Any]) -> None:
        """The event's key, and its partition, are those of its row."""
        table = stream.table
        _, old, new = self.change_of(table, whole)
        row = new if new is not None else old
        assert row is not None
        columns = table.versions[event["schema_version"]]
        key = self.images[table.name].row(event["key"], [columns[i] for i in table.key])
        assert (key or ()) == part(row, table.key)
        by = [BASE.index(name) for name in stream.partition_by or ()] or table.key
        known = stream.partitions.setdefault(part(row, by), event["partition"])
        assert known == event["partition"], "a partition of given values never changes"

    def _shown(self, stream: Stream, event: dict[str, Any]) -> list[tuple[int, Change]]:
        """What a stream has of an event of the stream that has all of the table's, by LSN."""
        table = stream.table
        change = stream.shows(self.change_of(table, event))
        if event["op"] == "schema":
            numbers = range(stream.count) if event["partition"] == 0 else ()
            return [(event["lsn"] + number, ("schema", None, None)) for number in numbers]
        columns = table.versions[event["schema_version"]]
        return [] if change is None else [(event["lsn"], stream.carried(change, columns))]


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


def keys_of(table: Table, effects: Iterable[Effect]) -> set[object]:
    """What conflicts are told by: keys, old and new; without a key the old rows."""
    olds = {table.key_of(effect.old) for effect in effects if effect.old is not None}
    if not table.key:
        return olds
    return olds | {table.key_of(effect.new) for effect in effects if effect.new is not None}


def folded(table: Table, run: list[Done]) -> list[Effect]:
    """What statements have done to each key together, where it is another row then."""
    first: dict[tuple[object, ...], Row | None] = {}
    last: dict[tuple[object, ...], Row | None] = {}
    for one in run:
        for effect in one.effects:
            if effect.old is not None:
                first.setdefault(table.key_of(effect.old), effect.old)
                last[table.key_of(effect.old)] = None
        for effect in one.effects:
            if effect.new is not None:
                first.setdefault(table.key_of(effect.new), None)
                last[table.key_of(effect.new)] = effect.new
    return [Effect(first[key], row) for key, row in last.items() if first[key] != row]

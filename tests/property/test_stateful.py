"""Random tables, statements, changes, sessions, streams, groups, retention and restarts against a model.

After each step: the model's rows are the table, the events that came are those that the model says (so
that the stream folds to the table, both ways), every other stream is its view of them, hot reads and
the stream's view give the same, LSNs are dense in commit order, and nothing appears behind a reader.
Now and then all that is retained is read again, in both envelopes, by the columns of each event's own
version; compaction takes what was superseded; CHECK STREAM is asked; and the file is written past ducktail,
which CHECK has to find and RESYNC to mend. Groups are read in every form, hot and from the log, and shared by
members; they get whole copies, at their beginning and behind gaps, and park and release events. The database
is closed, or killed, and opened again. Promises 1 to 10. Sessions are of the wire and of this process; rows
come in statements, by COPY from a client and from files, in frames and as parameters.
DUCKTAIL_STATEFUL_EXAMPLES is how many runs of up to 50 steps are made, DUCKTAIL_STATEFUL_SEED what they
come from; the statements that they had are counted at the end.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from amounts import amount, seed_of
from group_rules import Groups, Kind, cold, group_kinds
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from local_client import Client
from model_machine import SESSIONS, Machine
from model_sessions import Program, state_of
from stream_model import MINIMAL, Change, Done, Images, Part, Session, Stream, Told
from table_model import BASE, NAMES, TYPES, Column, Columns, Duplicate, Effect, Row, Rows, Table, X, cast
from table_statements import (
    Statement,
    keyed_statements,
    loads,
    past_ducktail,
    predicates,
    refresh,
    refresh_steps,
    refreshed,
    statements,
)

from ducktail.sql.copy import stdin

EXAMPLES = amount("DUCKTAIL_STATEFUL_EXAMPLES", 3, 100)
# Shrinking a failure takes minutes; CI prints the steps as they were.
SHRINKS = bool(os.environ.get("DUCKTAIL_STATEFUL_SHRINK"))
STEPS = 50
WRITERS, TABLES = st.integers(0, SESSIONS - 1), st.integers(0, 1)
# A look at everything takes longer than a statement.
WRITES = st.integers(1, 3)
STREAMS_MAX = 4
# Each version that is retained makes the views slower, and every step asks them.
OLDER_MAX = 2
ADDED_MAX = 2
# A COPY FROM STDIN of a few rows is written in several batches.
BATCH_BYTES = 40


class Streams(Groups):
    """See the head of the file."""

    @initialize(
        kinds=st.tuples(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES))),
        keys=st.tuples(*[st.sampled_from([(0,), (0,), (0, 2), (2, 0), ()])] * 2),
        minimal=st.tuples(*[st.sampled_from(["replace", "all", "all", "none"])] * 2),
        wide=st.sampled_from([0, 0, 1, 3, 12]),
        tombstones=st.tuples(*[st.sampled_from([None, "1 day", "0 s"])] * 2),
        groups=st.lists(group_kinds(), min_size=1, max_size=3),
        all_tables=st.booleans(),
    )
    def start(
        self,
        kinds: tuple[str, str],
        keys: tuple[tuple[int, ...], tuple[int, ...]],
        minimal: tuple[str, str],
        wide: int,
        tombstones: tuple[str | None, str | None],
        groups: list[Kind],
        all_tables: bool,
    ) -> None:
        self.open()
        for number, (kind, key) in enumerate(zip(kinds, keys, strict=True)):
            table = Table(f"t{number}", kind, key)
            stream = Stream(f"all{number}", table, count=8 if table.key else 1, minimal=minimal[number])
            stream.tombstones = tombstones[number] if table.key else None
            self.tables.append(table)
            self.rows[table.name] = Counter()
            self.reader(table.ddl)
            options = ", ".join([f"minimal_changes = '{stream.minimal}'", *stream.compaction])
            self.reader(f"create stream {stream.name} on {table.name} with ({options})")
            self.streams[stream.name] = stream
            self.images[table.name] = Images(table)
        # Without any primary key there is one partition.
        wide = wide if any(keys) else min(wide, 1)
        if wide:
            self.wide = Stream("wide", self.tables[0], count=wide)
            options = f"with (partitions = {wide}, minimal_changes = 'all')"
            on = "all tables in schema main" if all_tables else ", ".join(t.name for t in self.tables)
            self.reader(f"create stream wide on {on} {options}")
        for number, kind in enumerate(groups):
            self.make_group(self.all_streams()[number % len(self.all_streams())], kind)

    # Writing.

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def write(self, data: st.DataObject, session: int, table: int) -> None:
        at = self.sessions[session]
        for _ in range(data.draw(WRITES)):
            known = self.table_of(at, table)
            self.write_one(at, known, data.draw(statements(known)))

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def write_by_key(self, data: st.DataObject, session: int, table: int) -> None:
        at, known = self.sessions[session], self.table_of(self.sessions[session], table)
        made = (keyed_statements if known.key else statements)(known)
        for _ in range(data.draw(WRITES)):
            self.write_one(at, known, data.draw(made))

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def load(self, data: st.DataObject, session: int, table: int) -> None:
        """COPY, frames, many parameters."""
        at, known = self.sessions[session], self.table_of(self.sessions[session], table)
        for _ in range(data.draw(WRITES)):
            self.write_one(at, known, data.draw(loads(known, isinstance(at.client, Client))))

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def refresh(self, data: st.DataObject, session: int, table: int) -> None:
        """CREATE OR REPLACE TABLE: what differs is told."""
        at, known = self.sessions[session], self.table_of(self.sessions[session], table)
        if known.key:
            self.write_one(at, known, data.draw(refresh(known, self.minimal(known) == "none")))
        elif not at.in_block:
            assert (
                _state(at.client, f"create or replace table {known.called} as from {known.called}") == "0A000"
            )

    @precondition(lambda self: any(not s.in_block for s in self.sessions))
    @rule(data=st.data(), table=TABLES)
    def refresh_in_steps(self, data: st.DataObject, table: int) -> None:
        """DELETE or TRUNCATE, and INSERT of much the same, in one transaction, which may go on."""
        session, known = data.draw(self._free()), self.tables[table]
        session.client("begin")
        session.in_block = True
        for statement in data.draw(refresh_steps(known, self.rows[known.name])):
            self.write_one(session, known, statement)

    # Transactions.

    def _free(self) -> st.SearchStrategy[Session]:
        return st.sampled_from([s for s in self.sessions if not s.in_block])

    @precondition(lambda self: any(not s.in_block for s in self.sessions))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        session = data.draw(self._free())
        session.client("begin")
        session.in_block = True

    @precondition(lambda self: any(s.in_block for s in self.sessions))
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if s.in_block]))
        session.client("commit" if commits else "rollback")
        assert session.client.tag == ("COMMIT" if commits and not session.failed else "ROLLBACK")
        if commits and not session.failed:
            self.committed([*session.done, *self.renamed(session)])
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
        self.write_one(self.sessions[second], known, theirs)
        self.write_one(self.sessions[first], known, data.draw(st.one_of(st.just(theirs), made)))

    @rule(session=WRITERS, table=TABLES)
    def look(self, session: int, table: int) -> None:
        """Read a table: in a transaction it is the snapshot with its own writes."""
        at, known = self.sessions[session], self.table_of(self.sessions[session], table)
        if at.failed:
            assert _state(at.client, f"select 1 from {known.called}") == "25P02"
            return
        if at.in_block and at.view is None:
            self.take_snapshot(at)
        rows = self.rows[known.name] if at.view is None else at.view[known.name]
        assert self.rows_of(at.client, self.table_of(at, table)) == rows

    # Changes of a table.

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def alter(self, data: st.DataObject, session: int, table: int) -> None:
        """What leaves the rows as they are; in a transaction or by itself."""
        at = self.sessions[session]
        if at.in_block and at.view is None:
            self.take_snapshot(at)
        known = self.table_of(at, table)
        if at.failed or not self._may_alter(known):
            return
        kind = data.draw(st.sampled_from(["default", "not null", "rename", "rename"]))
        name = known.name
        if kind == "rename":
            other = name if known.called != name else f"{name}_otherwise"
            self._alter(at, known, f"{known.called} rename to {other}", known.columns, called=other)
        elif kind == "not null":
            rows = self.rows[name] if at.view is None else at.view[name]
            wanted = "23502" if any(row[1] is None for row in rows) else "ok"
            # DuckDB cannot behind an UPDATE, which some other statements come down to.
            also = "0A000" if any(one.table == known and one.effects for one in at.done) else wanted
            text = f"{known.called} alter v set not null"
            if self._alter(at, known, text, known.columns, wanted=wanted, also=also):
                text = f"{self.table_of(at, table).called} alter v drop not null"
                assert self._alter(at, self.table_of(at, table), text, known.columns)
        elif not at.in_block:
            drops = name in self.defaults
            text = f"{known.called} alter v {'drop default' if drops else 'set default null'}"
            done = self._alter(at, known, text, known.columns)
            self.defaults ^= {name} if done else set()

    @rule(data=st.data(), session=WRITERS, table=TABLES)
    def alter_columns(self, data: st.DataObject, session: int, table: int) -> None:
        """ADD, DROP, RENAME COLUMN and ALTER TYPE: the events of each version are by its own columns.

        What USING or a default that is no constant makes of the rows are events, too.
        """
        at = self.sessions[session]
        if at.in_block and at.view is None:
            self.take_snapshot(at)
        known = self.table_of(at, table)
        if at.failed or not self._may_alter(known):
            return
        added = len(known.columns) - len(BASE)
        kinds = ["rename", "retype", *["add"] * (added < ADDED_MAX), *["drop", "retype"] * (added > 0)]
        _ALTERATIONS[data.draw(st.sampled_from(kinds))](self, data, at, known)

    def _may_alter(self, table: Table) -> bool:
        present = self.database.catalog.tables["main", self.tables_by_name[table.name].called]
        return len(present.older) + table.version - present.version <= OLDER_MAX

    def _add(self, data: st.DataObject, at: Session, known: Table) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if name not in known.names]))
        column = Column(0, name, data.draw(st.sampled_from(["int", "varchar"])))
        self.numbers += 1
        default = data.draw(st.sampled_from([None, cast(7, column.kind)]))
        column = replace(column, number=100 + self.numbers, default=default)
        columns = (*known.columns, column)
        text = f"{known.called} add column {name} {column.kind}"
        if default is not None and data.draw(st.booleans()):
            # Volatile, with a value that is known: each row has an event.
            text += f" default case when random() < 2 then {default!r} end"
            filled: Callable[[Row], Row] = lambda row: (*row[:-1], default)  # noqa: E731
            self._alter(at, known, text, columns, lambda row: (*row, None), rewrites=filled)
            return
        text += "" if default is None else f" default {default!r}"
        self._alter(at, known, text, columns, lambda row: (*row, default))

    def _drop(self, data: st.DataObject, at: Session, known: Table) -> None:
        place = data.draw(st.integers(len(BASE), len(known.columns) - 1))
        columns = (*known.columns[:place], *known.columns[place + 1 :])
        last = any(not stream.places(columns) for stream in self.of_table(known))
        text = f"{known.called} drop column {known.names[place]}"
        wanted = "2BP01" if last else "ok"
        self._alter(at, known, text, columns, lambda row: (*row[:place], *row[place + 1 :]), wanted)

    def _rename(self, data: st.DataObject, at: Session, known: Table) -> None:
        place = data.draw(st.integers(X, len(known.columns) - 1))
        name = data.draw(st.sampled_from([name for name in NAMES if name not in known.names]))
        text = f"{known.called} rename column {known.names[place]} to {name}"
        self._alter(at, known, text, known.renamed(place, name))

    def _retype(self, data: st.DataObject, at: Session, known: Table) -> None:
        place = data.draw(st.sampled_from([1, *range(len(BASE), len(known.columns))]))
        column = known.columns[place]
        using = data.draw(st.booleans())
        kinds = ["int", "bigint", *["varchar"] * (place > X)]
        kind = data.draw(st.sampled_from([kind for kind in kinds if using or kind != column.kind]))
        rows = self.rows[known.name] if at.view is None else at.view[known.name]
        wanted = "ok"
        kept = [row for row in rows if row[0] != 1] if using else rows
        if place > X and any(row[place] == "word" for row in kept) and kind != "varchar":
            wanted = "22P02"
        elif kind == column.kind:
            wanted = "ok"
        elif place == 1 and any(stream.partition_by == ("v",) for stream in self.of_table(known)):
            wanted = "0A000"
        elif place == 1 and any("v" in stream.filter.split() for stream in self.of_table(known)):
            wanted = "2BP01"
        new = replace(column, kind=kind, default=cast(column.default, kind))
        columns = (*known.columns[:place], new, *known.columns[place + 1 :])
        text = f"{known.called} alter {column.name} type {kind}"

        def retyped(row: Row) -> Row:
            return (*row[:place], cast(row[place], kind), *row[place + 1 :])

        def rewritten(row: Row) -> Row:
            return (*row[:place], cast(7, kind) if row[0] == 1 else row[place], *row[place + 1 :])

        if using:
            text += f" using case when id = 1 then 7::{kind} else {column.name}::{kind} end"
        self._alter(at, known, text, columns, retyped, wanted, rewrites=rewritten if using else None)

    def _alter(
        self,
        session: Session,
        table: Table,
        text: str,
        columns: Columns,
        rows: Callable[[Row], Row] = lambda row: row,
        wanted: str = "ok",
        called: str = "",
        also: str = "",
        rewrites: Callable[[Row], Row] | None = None,
    ) -> bool:
        """Run an ALTER TABLE.

        Args:
            columns: what the table has then.
            rows: a row as it is then; that is no event of it.
            rewrites: what becomes of such a row besides, in an event.
            called: what RENAME TO calls it.
            also: another way in which it may end.
        """
        state = _state(session.client, f"alter table {text}")
        Machine.forms["alter in a block" if session.in_block else "alter", state] += 1
        since = self.commits[session.snapshot :] if session.in_block else []
        if any(other.holds_lock for other in self.sessions if other is not session):
            assert state == "55P03", (state, text)
        elif any(table.name in commit for commit in since):
            assert state in (wanted, also, "40001"), (state, text)
        else:
            assert state in (wanted, also), (state, text)
        if state != "ok":
            self.has_failed(session)
            return False
        # In autocommit others see it at once; what `committed` makes of it is the same then.
        table = table if session.in_block else table.own()
        table.called = called or table.called
        if called and session.in_block:
            # It is told at the end.
            self.has_done(session, [])
            return True
        before = self.rows[table.name] if session.view is None else session.view[table.name]
        changes: list[Change] = []
        if columns != table.columns or rewrites is None:
            table.altered_to(columns)
            changes = [("schema", None, None)] * self.widest(table)
        done = [Done(table, table.version, [], changes, alters=rows, called=table.called)]
        if rewrites is not None:
            effects = self._rewritten(table, Counter([rows(row) for row in before.elements()]), rewrites)
            done.append(Done(table, table.version, effects, self.changes_of(table, effects)))
        self.has_done(session, done)
        return True

    def _rewritten(self, table: Table, old: Rows, rewrites: Callable[[Row], Row]) -> list[Effect]:
        """What an ALTER TABLE does to the rows besides what it tells of the columns."""
        new = Counter([rewrites(row) for row in old.elements()])
        if self.minimal(table) == "none" or not table.key:
            gone, come = (old, new) if self.minimal(table) == "none" else (old - new, new - old)
            return [Effect(row, None) for row in gone.elements()] + [
                Effect(None, row) for row in come.elements()
            ]
        return table.difference(old, new)

    @precondition(lambda self: any(not s.in_block for s in self.sessions))
    @rule(data=st.data(), table=TABLES, kind=st.sampled_from(["same", "same", "add", "drop"]))
    def swap(self, data: st.DataObject, table: int, kind: str) -> None:
        """A table that is built anew takes the name, maybe with other columns: what differs is told."""
        session, known = data.draw(self._free()), self.tables[table]
        standing = data.draw(refreshed(known, self.rows[known.name]))
        if not known.key or not standing or not self._may_alter(known):
            return
        columns = tuple(replace(column, default=None) for column in known.columns)
        shaped: Callable[[Row], Row] = tuple
        filled = shaped
        if kind == "add" and len(columns) < len(BASE) + ADDED_MAX:
            name = data.draw(st.sampled_from([name for name in NAMES if name not in known.names]))
            value = data.draw(st.sampled_from([None, 7]))
            self.numbers += 1
            columns = (*columns, Column(100 + self.numbers, name, "int"))
            shaped, filled = lambda row: (*row, None), lambda row: (*row, value)
        elif kind == "drop" and len(columns) > len(BASE):
            place = data.draw(st.integers(len(BASE), len(columns) - 1))
            columns = (*columns[:place], *columns[place + 1 :])
            shaped = filled = lambda row: (*row[:place], *row[place + 1 :])
        built = known.own()
        differs = columns != known.columns or known.name in self.defaults
        if differs:
            built.altered_to(columns)
        old = Counter([shaped(row) for row in self.rows[known.name].elements()])
        new = Counter([filled(row) for row in standing])
        wanted = "ok"
        if len({known.key_of(row) for row in new}) < sum(new.values()):
            wanted = "23505"
        elif any(not stream.places(columns) for stream in self.of_table(known)):
            wanted = "2BP01"
        if not self._run_swap(session, built, new, wanted):
            return
        self.defaults.discard(known.name)
        changes: list[Change] = [("schema", None, None)] * (self.widest(known) if differs else 0)
        effects = [Effect(row, None) for row in old] + [Effect(None, row) for row in new]
        if self.minimal(known) != "none":
            effects = known.difference(old, new)
        self.committed(
            [
                Done(built, built.version, [], changes, alters=shaped, called=built.called),
                Done(built, built.version, effects, self.changes_of(known, effects)),
            ]
        )

    def _run_swap(self, session: Session, built: Table, rows: Rows, wanted: str) -> bool:
        texts = [
            "begin",
            f"create table built as {built.query(rows.elements())}",
            f"alter table {built.called} rename to old",
            f"alter table built rename to {built.called}",
            "drop table old",
            "commit",
        ]
        state = next((state for text in texts if (state := _state(session.client, text)) != "ok"), "ok")
        Machine.forms["swap", state] += 1
        if self.locked:
            wanted = "55P03"
        assert state == wanted, state
        if state != "ok":
            _state(session.client, "rollback")
        return state == "ok"

    # Streams.

    @precondition(lambda self: len(self.streams) < 2 + STREAMS_MAX)
    @rule(data=st.data())
    def create_stream(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.numbers += 1
        stream = Stream(f"s{self.numbers}", table)
        where = data.draw(st.one_of(st.none(), predicates(table)))
        places = range(len(table.columns))
        chosen = data.draw(st.one_of(st.none(), st.sets(st.sampled_from(places), min_size=1)))
        ops = data.draw(st.sets(st.sampled_from(sorted(stream.ops)), min_size=1))
        if chosen is not None:
            stream.listed = frozenset(table.columns[i].number for i in chosen | set(table.key))
        stream.ops = frozenset(ops)
        stream.count = data.draw(st.sampled_from([1, 3, 8])) if table.key else 1
        options = [f"partitions = {stream.count}"] if table.key else []
        by = data.draw(st.one_of(st.none(), st.sampled_from(["v", "s"])))
        if by is not None:
            options = [f"partition_by = '{by}'", "partitions = 4"]
            stream.partition_by, stream.count = (by,), 4
        if table.key:
            stream.before = data.draw(st.sampled_from(["full", "key", "none"]))
            stream.minimal = data.draw(st.sampled_from(["all", *MINIMAL]))
            # One that is not compacted keeps the whole table from it.
            stream.tombstones = data.draw(st.sampled_from([*[self.whole_of(table).tombstones] * 3, None]))
            options += [f"before = '{stream.before}'", f"minimal_changes = '{stream.minimal}'"]
            options += stream.compaction
        initial = data.draw(st.booleans())
        options.append(f"snapshot = '{'initial' if initial else 'none'}'")
        if where is not None:
            stream.filter, stream.where = where
        listed = f"({', '.join(table.names[i] for i in sorted(chosen))})" if chosen is not None else ""
        text = (
            f"create stream {stream.name} on {table.called} {listed} operations {', '.join(sorted(ops))} "
            f"{'where ' + where[0] if where else ''} with ({', '.join(options)})"
        )
        if self.sessions[0].in_block:
            return
        state = _state(self.sessions[0].client, text)
        if self.locked:
            assert state == "55P03", state
            return
        assert state == "ok", (state, text)
        self.commits.append({t.name: set() for t in self.tables})
        stream.seen_lsn = max(s.seen_lsn for s in self.streams.values())
        self.streams[stream.name] = stream
        if initial:
            self._expect_snapshot(stream)

    def _expect_snapshot(self, stream: Stream) -> None:
        table = stream.table
        events = self.events_of(stream)
        assert {event["op"] for event in events} <= {"snapshot"}
        self.expect_rows(stream, events)
        stream.events += [self.images[table.name].told(stream, event) for event in events]
        taken = sum(self.rows[table.name].values())
        # A whole copy that was given to a group meanwhile has taken LSNs as well.
        [[end_lsn]] = self.reader("select max(last_lsn) from ducktail.commits")
        assert end_lsn >= stream.seen_lsn + taken
        for other in self.all_streams():
            other.seen_lsn = end_lsn
        self.ends.append(stream.seen_lsn)

    @precondition(lambda self: len(self.streams) > 2 and not self.sessions[0].in_block)
    @rule(data=st.data())
    def drop_stream(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.streams) - {"all0", "all1"})))
        state = _state(self.sessions[0].client, f"drop stream {name} cascade")
        if self.locked:
            assert state == "55P03", state
            return
        assert state == "ok", state
        del self.streams[name]
        self.groups = {key: group for key, group in self.groups.items() if key[0] != name}
        self.commits.append({t.name: set() for t in self.tables})

    @rule(data=st.data(), share=st.floats(0, 1))
    def trim(self, data: st.DataObject, share: float) -> None:
        """Retention lets go of a stream's oldest events."""
        stream = data.draw(st.sampled_from(self.all_streams()))
        left = stream.retained
        if not left or self.locked:
            return
        # Whole transactions go.
        through = next(end for end in self.ends if end >= left[int(share * (len(left) - 1))].lsn)
        self.database.retention.trim(self.database.catalog.streams["main", stream.name], through)
        for group in (group for group in self.groups.values() if group.stream is stream):
            group.trimmed(event for event in left if event.lsn <= through)
        stream.edge_lsn = through
        rows = self.reader(f"select lsn, partition from stream {stream.name} after 0")
        assert rows == stream.positions

    @rule()
    def compact(self) -> None:
        """Compacted streams keep the last event of each key, and what other streams need stays."""
        if self.locked:
            return
        self.database.retention.look()
        for stream in self.all_streams():
            gone = stream.compacted_to(
                self.reader(f"select lsn, partition from stream {stream.name} after 0")
            )
            Machine.forms["compaction", "gone"] += gone

    @rule(data=st.data(), share=st.floats(0, 1))
    def read_again(self, data: st.DataObject, share: float) -> None:
        """All that is retained behind a place, of every version, in both envelopes, hot or cold."""
        stream = data.draw(st.sampled_from(self.all_streams()))
        left = stream.retained
        after = left[int(share * (len(left) - 1))].lsn if left else 0
        wanted = [(e.lsn, e.partition, e.op, e.version) for e in left if e.lsn > after]
        names = "lsn, partition, op, schema_version"
        assert self.reader(f"select {names} from stream {stream.name} after {after}") == wanted
        assert self.reader(f"select {names} from {stream.name} where lsn > {after} order by lsn") == wanted
        if stream is self.wide:
            return
        changes = stream.changes(event for event in left if event.lsn > after)
        columns = stream.changes_names
        hot = f"select {columns} from stream {stream.name} after {after} envelope changes"
        assert self.reader(hot) == changes
        view = f"select {columns} from {stream.name}_changes where _lsn > {after}"
        # Of an update's rows the old one is first.
        assert self.reader(f"{view} order by _lsn, _change_type desc") == changes
        with cold(self.database, stream):
            assert self.reader(hot) == changes

    # Groups, waiting and restarts.

    @rule(table=st.integers(0, 1))
    def wait(self, table: int) -> None:
        """Somebody waits for a table's events, and may again: for a while they are made before COMMIT."""
        stream = self.streams[f"all{table}"]
        assert self.reader(f"select lsn from stream {stream.name} after {stream.seen_lsn} wait '1 ms'") == []

    @precondition(lambda self: self.may_reopen)
    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        """Close and open, or be killed: what was not committed is gone, all else is there."""
        if killed:
            self.kill()
        else:
            self.close()
        self.open()
        self.expect_groups()
        for stream in self.all_streams():
            rows = self.reader(f"select lsn, partition from stream {stream.name} after 0")
            assert rows == stream.positions

    # CHECK and RESYNC.

    @rule(data=st.data())
    def hold_against_log(self, data: st.DataObject) -> None:
        """CHECK finds nothing: all changes of a table were captured, and what retention took is counted."""
        stream = data.draw(st.sampled_from(self.all_streams()))
        assert self.reader(f"check stream {stream.name}") == []

    @precondition(lambda self: self.may_reopen)
    @rule(data=st.data(), table=TABLES)
    def edit_past_ducktail(self, data: st.DataObject, table: int) -> None:
        """Plain DuckDB writes the file: CHECK finds it, readers are told, RESYNC mends it."""
        known = self.tables[table]
        if not known.key:
            return
        edits = data.draw(st.lists(past_ducktail(known), min_size=1, max_size=3))
        self.close()
        before = self.rows[known.name]
        with duckdb.connect(str(self.path)) as plain:
            for edit in edits:
                rows = self.rows[known.name]
                try:
                    self.rows[known.name] = known.after(rows, edit.effects(rows))
                except Duplicate:
                    continue
                plain.execute(edit.text).fetchall()
        self.open()
        streams = [s.name for s in self.all_streams() if s is self.wide or s.table == known]
        stream = data.draw(st.sampled_from(streams))
        if self.rows[known.name] == before:
            assert self.reader(f"check stream {stream}") == []
            return
        assert self.reader(f"check stream {stream}") != []
        if data.draw(st.booleans()):
            self.close()
            self.open()
        whole = self.whole_of(known)
        assert _state(self.reader, f"select * from stream {whole.name}") == "55000"
        self.reader(f"alter stream {stream} resync")
        self._expect_mended(known, before)
        assert self.reader(f"check stream {whole.name}") == []

    def _expect_mended(self, table: Table, before: Counter[Row]) -> None:
        """The events of RESYNC take the rows of before to those of now, but for rows that nobody knew of."""
        stream = self.whole_of(table)
        events = self.events_of(stream)
        folded = {table.key_of(row): row for row in before}
        changes = [self.change_of(table, event) for event in events]
        for op, old, new in changes:
            if old is not None:
                assert folded.pop(table.key_of(old)) == old
            if new is not None:
                assert op == "snapshot" or table.key_of(new) not in folded
                folded[table.key_of(new)] = new
        now = {table.key_of(row): row for row in self.rows[table.name]}
        lost = {key for key in folded if key not in now}
        assert {key: row for key, row in folded.items() if key not in lost} == now
        if lost:
            known = {self._key(table, e) for s in self.of_table(table) for e in s.retained if e.key}
            assert not lost & known, "what was known to be gone was not told"
        if changes:
            self.pending.append([Part(table, table.version, changes, table.called)])
        self.commits.append({table.name: set()})

    @staticmethod
    def _key(table: Table, event: Told) -> Row | None:
        """The key of an event since the columns were what they are; CHECK looks at no older ones."""
        since = [columns for version, columns in table.versions.items() if version >= event.version]
        same = len({tuple((c.number, c.kind) for c in columns) for columns in since}) == 1
        assert event.key is not None
        return tuple(event.key[table.columns[i].number][0] for i in table.key) if same else None


_ALTERATIONS: dict[str, Callable[[Any, st.DataObject, Session, Table], None]] = {
    "add": Streams._add,
    "drop": Streams._drop,
    "rename": Streams._rename,
    "retype": Streams._retype,
}


def _state(client: Client | Program, text: str) -> str:
    return state_of(client, Statement(text, lambda _: []), Path())


seed(seed_of("DUCKTAIL_STATEFUL_SEED"))(Streams)
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
        print(f"{Machine.steps} steps")
        for form in sorted({form for form, _ in Machine.forms}):
            states = {state: n for (known, state), n in sorted(Machine.forms.items()) if known == form}
            print(f"{form}: {states}")

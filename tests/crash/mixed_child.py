"""A mixed load on one database file, killed with SIGKILL again and again at random points.

`python mixed_child.py DIRECTORY KILLS SEED`: each run of the load is a process of its own, which first holds
what it finds in the file against the journal, and then goes on: a thread for each table changes its rows and
its columns and refreshes it, others read groups and move rows, share and park them (mixed_groups.py). Before
some runs plain DuckDB writes the file. The last run only looks. A database is used for FILE_KILLS kills. What
was seen is printed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import random
import select
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import duckdb
import mixed_groups
from local_client import Client
from mixed_model import Journal, Known, Row, State, fold

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError, LockNotAvailable, ObjectInUse, SerializationFailure
from ducktail.engine.settings import Settings

# Of <sys/prctl.h>.
PR_SET_PDEATHSIG = 1
FILE_KILLS = 10
# Retention looks often, so that it is killed as well.
BOUNDS = Settings(retention_interval_ms=100, lock_timeout_ms=60_000)
# A run is killed while it opens and looks, or behind so many acknowledged changes and a moment.
OPENING_SHARE, OPENING_S = 0.15, 0.4
CHANGES_MAX, MOMENT_S = 25, 0.03
# No run takes this long to open the file and to look at it, or for its next change.
STEP_TIMEOUT_S = 60
KEYS = 25
COLUMNS = {"id": "INTEGER", "v": "BIGINT", "w": "VARCHAR"}
COLUMNS_MAX = 5
EDIT_SHARE = 0.3
ANEW_SHARE = 0.1
MIRRORS = "select group_name from ducktail.consumer_groups where group_name like 'mirror%'"
# Their events all stay, and fold to the table; those of `brief` go after a moment.
KEPT = ("a", "b")
BRIEF, COMPACTED = "brief", "compacted"
TABLES = (*KEPT, BRIEF, COMPACTED)
# Each transaction writes all of these, in this order; the last has no key.
TOGETHER = ("debit", "credit", "note")
SETUP = (
    *(f"create table {name} (id int primary key, v bigint, w varchar)" for name in TABLES),
    "create stream s_a on a with (partitions = 3, retention = 'none')",
    "create stream narrow on a (v) with (before = 'key', partitions = 1, retention = 'none')",
    "create stream s_b on b with (partitions = 2, retention = 'none', minimal_changes = 'all')",
    "create stream s_brief on brief with (partitions = 2, retention = '1 s')",
    "create stream pair on a, b with (partitions = 2, retention = 'none', minimal_changes = 'all')",
    "create stream s_compacted on compacted "
    "with (retention = 'none', compaction = 'key', compaction_lag = '0 s')",
    *(f"create table {name} (id int{' primary key' * (name != 'note')}, v bigint)" for name in TOGETHER),
    "create stream books on debit, credit, note with (partitions = 3, retention = 'none')",
    "create stream booked on credit with (retention = '1 s')",
    "create consumer group carrier on books",
    "create table carried (lsn bigint)",
    "create table moved (lsn bigint)",
    "create table mirror (id int, v bigint)",
    "create consumer group reader on s_a",
    "create consumer group mover on s_b",
    *mixed_groups.SETUP,
)


class Load:
    """What is done to one table: each change is random, and its state is known before it is made."""

    def __init__(
        self, database: Database, journal: Journal, name: str, state: State, seed: int, told: int
    ) -> None:
        self._client = Client(database)
        self._journal, self._name, self._state, self._told = journal, name, state, told
        self._chance = random.Random(seed)
        added = (int(column[1:]) for column in list(state.columns)[len(COLUMNS) :])
        self._number = max([0, *added, *(row["v"] for row in state.rows.values())])

    def run(self) -> None:
        """Change the table until the process is killed."""
        ways: list[Callable[[], tuple[State, list[str]]]] = [
            *[self._write] * 8,
            *[self._transaction] * 3,
            self._alter,
            self._migrate,
            self._replace,
            self._swap,
            self._build_again,
        ]
        while True:
            if self._chance.random() < 0.03:
                self._look()
                continue
            state, texts = self._chance.choice(ways)()
            self._journal.write(self._name, "will", state.text())
            try:
                self._run(texts)
            except (SerializationFailure, LockNotAvailable):
                with suppress(DucktailError):
                    self._client("rollback")
                self._journal.write(self._name, "failed")
                continue
            self._journal.write(self._name, "done", state.text())
            self._state = state
            os.write(self._told, b".")

    def _run(self, texts: list[str]) -> None:
        if len(texts) == 1:
            self._client(texts[0])
            return
        for text in ("begin", *texts, "commit"):
            self._client(text)
        assert self._client.tag == "COMMIT"

    def _look(self) -> None:
        """What changes nothing."""
        look = f"check stream s_{self._name}"
        # What retention has taken RESYNC would give again, if anything differed: there it is not asked for.
        again = look if self._name == BRIEF else f"alter stream s_{self._name} resync"
        # A CHECKPOINT does not wait for the transactions of others.
        with suppress(ObjectInUse):
            assert self._client(self._chance.choice([look, again, "checkpoint"])) == []

    def _write(self) -> tuple[State, list[str]]:
        state, text = self._statement(self._state)
        return state, [text]

    def _transaction(self) -> tuple[State, list[str]]:
        return self._several(*[self._statement] * self._chance.randint(2, 4))

    def _migrate(self) -> tuple[State, list[str]]:
        """A change of the columns among writes."""
        return self._several(self._statement, self._altered, self._statement)

    def _several(self, *steps: Callable[[State], tuple[State, str]]) -> tuple[State, list[str]]:
        state, texts = self._state, []
        for step in steps:
            state, text = step(state)
            texts.append(text)
        return state, texts

    def _statement(self, state: State) -> tuple[State, str]:
        self._number += 1
        keys = self._chance.sample(range(KEYS), self._chance.randint(1, 4))
        listed, v = ", ".join(map(str, keys)), self._number
        rows = dict(state.rows)
        there = [key for key in keys if key in rows]
        kind = self._chance.choice(["upsert", "upsert", "update", "delete"])
        if kind == "delete":
            for key in there:
                del rows[key]
            return state.with_rows(rows), f"delete from {self._name} where id in ({listed})"
        if kind == "update":
            rows |= {key: {**rows[key], "v": v} for key in there}
            return state.with_rows(rows), f"update {self._name} set v = {v} where id in ({listed})"
        rows |= {key: {**rows.get(key, _new(state, key)), "v": v} for key in keys}
        values = ", ".join(f"({key}, {v}, 'w')" for key in keys)
        text = f"insert into {self._name} (id, v, w) values {values}"
        return state.with_rows(rows), f"{text} on conflict (id) do update set v = excluded.v"

    def _alter(self) -> tuple[State, list[str]]:
        return self._several(self._altered)

    def _altered(self, state: State) -> tuple[State, str]:
        """The next version of the table: its added columns come and go."""
        name, columns = self._name, dict(state.columns)
        added = list(columns)[len(COLUMNS) :]
        self._number += 1
        kinds = [*["add"] * (len(columns) < COLUMNS_MAX), *["drop", "rename", "type"] * bool(added)]
        kind = self._chance.choice(kinds)
        at = self._chance.choice(added) if added else ""
        rows = {key: dict(row) for key, row in state.rows.items()}
        if kind == "add":
            new = f"c{self._number}"
            text = f"alter table {name} add column {new} int default 7"
            columns[new] = "INTEGER"
            rows = {key: {**row, new: 7} for key, row in rows.items()}
        elif kind == "drop":
            text = f"alter table {name} drop column {at}"
            del columns[at]
            rows = {key: {n: row[n] for n in columns} for key, row in rows.items()}
        elif kind == "rename":
            new = f"c{self._number}"
            text = f"alter table {name} rename column {at} to {new}"
            columns = {new if n == at else n: type_ for n, type_ in columns.items()}
            rows = {key: dict(zip(columns, row.values(), strict=True)) for key, row in rows.items()}
        else:
            type_ = "INTEGER" if columns[at] == "VARCHAR" else "VARCHAR"
            text = f"alter table {name} alter column {at} type {type_}"
            columns[at] = type_
            made = str if type_ == "VARCHAR" else int
            rows = {key: {**row, at: made(row[at])} for key, row in rows.items()}
        return State(columns, rows, state.version + 1), text

    def _changed(self) -> dict[int, Row]:
        """The rows as a refresh has them: much as they were."""
        self._number += 1
        rows = {key: dict(row) for key, row in self._state.rows.items() if self._chance.random() < 0.9}
        for key in self._chance.sample(range(KEYS), 3):
            rows[key] = {**rows.get(key, _new(self._state, key)), "v": self._number}
        return rows

    def _values(self, rows: dict[int, Row]) -> str:
        columns = self._state.columns
        texts = [", ".join(repr(row[name]) for name in columns) for row in rows.values()]
        typed = ", ".join(f"{name}::{type_} as {name}" for name, type_ in columns.items())
        return f"select {typed} from (values ({'), ('.join(texts)})) q({', '.join(columns)})"

    def _replace(self) -> tuple[State, list[str]]:
        rows = self._changed()
        text = f"create or replace table {self._name} as {self._values(rows)}"
        return self._state.with_rows(rows), [text]

    def _swap(self) -> tuple[State, list[str]]:
        """Another table takes the name; it is to have the columns that it was made with."""
        state, name = self._state, self._name
        if state.columns != COLUMNS:
            return self._replace()
        rows = self._changed()
        return state.with_rows(rows), [
            f"create table built_{name} (id int primary key, v bigint, w varchar)",
            f"insert into built_{name} {self._values(rows)}",
            f"alter table {name} rename to old_{name}",
            f"alter table built_{name} rename to {name}",
            f"drop table old_{name}",
        ]

    def _build_again(self) -> tuple[State, list[str]]:
        rows = self._changed()
        return self._state.with_rows(rows), [
            self._chance.choice([f"truncate {self._name}", f"delete from {self._name}"]),
            f"insert into {self._name} {self._values(rows)}",
        ]


def _new(state: State, key: int) -> Row:
    """A row that an INSERT of id, v and w makes: the others have their defaults."""
    row = {name: "7" if type_ == "VARCHAR" else 7 for name, type_ in state.columns.items()}
    return {**row, "id": key, "w": "w"}


def read(database: Database, journal: Journal) -> None:
    """Read a group's events and commit them, each commit written down before and behind it."""
    client = Client(database)
    while True:
        rows = client("select lsn, partition from stream s_a consumer group reader wait '100 ms' limit 20")
        if rows:
            asked = {partition: lsn for lsn, partition in rows}
            journal.write("reader", "will", json.dumps(asked))
            client("commit offsets on s_a consumer group reader")
            journal.write("reader", "done")


def move(database: Database) -> None:
    """Move the LSNs of a group's events into a table with their offsets, in one transaction."""
    client = Client(database)
    while True:
        if not client("select lsn from stream s_b consumer group mover wait '100 ms' limit 1"):
            continue
        client("begin")
        client("insert into moved select lsn from stream s_b consumer group mover limit 20")
        client("commit offsets on s_b consumer group mover")
        client("commit")


def book(database: Database, seed: int) -> None:
    """Write several tables in each transaction, some of which alter one of them between the writes."""
    client, chance = Client(database), random.Random(seed)
    while True:
        number, kind = chance.getrandbits(31), chance.random()
        client("begin")
        for place, name in enumerate(TOGETHER):
            client(f"insert into {name} (id, v) values ({number}, {place})")
            if kind < 0.1 and place == 1:
                client(f"alter table {chance.choice(TOGETHER)} add column c{number} int")
            elif kind < 0.2 and place == 1:
                added = client("select column_name from (describe debit) where column_name like 'c%'")
                if added:
                    client(f"alter table debit drop column {added[0][0]}")
        client("commit" if kind < 0.95 else "rollback")


def carry(database: Database) -> None:
    """Move the LSNs of whole transactions over several tables with their offsets, in one transaction."""
    client = Client(database)
    while True:
        if client("select lsn from stream books consumer group carrier wait '100 ms' limit 1"):
            carry_on(client)


def carry_on(client: Client) -> bool:
    """One batch of that; whether there was one."""
    client("begin")
    client(
        "insert into carried select lsn from (select lsn from stream books consumer group carrier "
        "limit 2 transactions)"
    )
    moved = client.tag != "INSERT 0 0"
    if moved:
        client("commit offsets on books consumer group carrier")
    client("commit")
    return moved


def mirror(database: Database, seed: int) -> None:
    """Keep a copy of table a by a group that begins with the whole of it, and now and then by a new one."""
    client, chance = Client(database), random.Random(seed)
    while True:
        groups = client(MIRRORS)
        if not groups or chance.random() < ANEW_SHARE:
            for (group,) in groups:
                client(f"drop consumer group {group} on s_a")
            # Where there is no group nobody says what the copy is.
            client("delete from mirror")
            client(f"create consumer group mirror{chance.getrandbits(32)} on s_a start snapshot")
            continue
        [(group,)] = groups
        if client(f"select lsn from stream s_a consumer group {group} wait '100 ms' limit 1"):
            follow(client, group)


def follow(client: Client, group: str) -> int:
    """Take a batch of a group into the copy, with its offsets in one transaction; gives its events."""
    client("begin")
    rows = client(f"select op, key, after from stream s_a consumer group {group} limit 20")
    for op, key, after in rows:
        if op != "schema":
            number = json.loads(key)["id"]
            client(f"delete from mirror where id = {number}")
            if after is not None:
                client(f"insert into mirror values ({number}, {json.loads(after)['v']})")
    if rows:
        client(f"commit offsets on s_a consumer group {group}")
    client("commit")
    return len(rows)


# What is found when the file is opened.


def check(database: Database, journal: Journal) -> dict[str, State]:
    """Hold the file against the journal, and mend what was written past ducktail.

    Returns:
        Each table as it was found.
    """
    client = Client(database)
    assert not database.damage, database.damage
    states = {}
    for name in TABLES:
        known = journal.known(name, State(COLUMNS))
        found = _table(client, name)
        state = next((one for one in known.table if (one.columns, one.rows) == found), None)
        assert state is not None, f"{name} is neither what was acknowledged nor what was under way"
        if name == BRIEF:
            _check_chain(client, state)
        elif name == COMPACTED:
            _check_lasts(client, state)
        else:
            _check_log(client, journal, name, known, state)
        versions = f"select max(schema_version) from ducktail.schema_versions where stream_name = 's_{name}'"
        assert client.one(versions) == state.version
        assert client(f"check stream s_{name}") == []
        journal.write(name, "is", state.text())
        states[name] = state
    names = "lsn, op, table_name, key, before, after, txid, schema_version"
    each = " union all ".join(f"select {names} from s_{name} where op <> 'schema'" for name in KEPT)
    whole = client(f"select {names} from pair where op <> 'schema' order by lsn")
    assert whole == client(f"select * from ({each}) order by lsn")
    assert client(f"select {names} from stream pair where op <> 'schema'") == whole
    _check_together(client)
    _check_offsets(client, journal)
    for (group,) in client(MIRRORS):
        while follow(client, group):
            pass
        assert sorted(client("select id, v from mirror")) == sorted(client("select id, v from a"))
    mixed_groups.check(client, journal)
    client.close()
    return states


def _table(client: Client, name: str) -> tuple[dict[str, str], dict[int, Row]]:
    columns = {row[0]: row[1] for row in client(f"describe {name}")}
    rows = client(f"select {', '.join(columns)} from {name}")
    return columns, {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def _check_log(client: Client, journal: Journal, name: str, known: Known, state: State) -> None:
    """The events fold to the table, each there once; or to what it was before somebody edited the file."""
    logged = _folded(client, name)
    assert any((logged.rows, logged.version) == (one.rows, one.version) for one in known.log), name
    if logged.rows != state.rows:
        assert known.edited, f"the events of {name} do not fold to its rows"
        assert client(f"check stream s_{name}") != []
        journal.write(name, "resync", state.text())
        client(f"alter stream s_{name} resync")
        logged = _folded(client, name)
        assert logged.rows == state.rows, "RESYNC has not mended it"
    hot = client(f"select lsn from stream s_{name}")
    assert hot == client(f"select lsn from s_{name} order by lsn") == sorted(set(hot))
    if name == "a":
        changes = "select lsn from {} where op <> 'schema' order by lsn"
        assert client(changes.format("s_a")) == client(changes.format("narrow"))


def _folded(client: Client, name: str) -> State:
    names = "op, partition, key, before, after, schema_version"
    return fold(client(f"select {names} from s_{name} order by lsn"))


def _check_chain(client: Client, state: State) -> None:
    """Retention has taken the oldest events alone: those that are left follow one another to the table."""
    last: dict[int, int | None] = {}
    changes = "select key, before, after from s_brief where op <> 'schema' order by lsn"
    for key, before, after in client(changes):
        number = json.loads(key)["id"]
        old, new = (None if text is None else json.loads(text)["v"] for text in (before, after))
        assert last.get(number, old) == old
        last[number] = new
    assert all(new == state.rows.get(number, {"v": None})["v"] for number, new in last.items())


def _check_lasts(client: Client, state: State) -> None:
    """Of each key there is its last event, whatever has gone."""
    last: dict[int, int | None] = {}
    for key, after in client("select key, after from s_compacted where op <> 'schema' order by lsn"):
        last[json.loads(key)["id"]] = None if after is None else json.loads(after)["v"]
    found = {number: v for number, v in last.items() if v is not None}
    assert found == {number: row["v"] for number, row in state.rows.items()}


def _check_together(client: Client) -> None:
    """Transactions over several tables are there whole and in their order, and carried once."""
    names = "lsn, txid, tx_seq, tx_last, table_name, after"
    rows = client(f"select {names} from stream books where op <> 'schema'")
    assert rows == client(f"select {names} from books where op <> 'schema' order by lsn")
    for first in range(0, len(rows), len(TOGETHER)):
        events = rows[first : first + len(TOGETHER)]
        assert [event[4] for event in events] == [f"main.{name}" for name in TOGETHER]
        assert len({(event[1], json.loads(event[5])["id"]) for event in events}) == 1
        assert [event[3] for event in events] == [False, False, True]
    for name in TOGETHER:
        ids = client(f"select id from {name} order by 1")
        assert ids == sorted((json.loads(row[5])["id"],) for row in rows if row[4] == f"main.{name}")
    assert client("check stream books") == []
    while carry_on(client):
        pass
    carried = client("select lsn from carried order by lsn")
    assert carried == client("select lsn from stream books"), "what was carried and its offsets part"


def _check_offsets(client: Client, journal: Journal) -> None:
    """A group is where it was acknowledged, or where the commit under way would bring it."""
    offsets = "select partition, committed_lsn from ducktail.offsets where group_name = '{}'"
    done, asked = journal.offsets("reader")
    found = dict(client(offsets.format("reader")))
    before, then = ({**dict.fromkeys(found, 0), **lsns} for lsns in (done, asked))
    assert found in (before, then), (found, done, asked)
    journal.write("reader", "will", json.dumps(found))
    journal.write("reader", "done")
    mover = dict(client(offsets.format("mover")))
    passed = [lsn for lsn, partition in client("select lsn, partition from s_b") if lsn <= mover[partition]]
    moved = [lsn for (lsn,) in client("select lsn from moved")]
    assert sorted(moved) == sorted(passed), "moved rows and their offsets part"


# Runs, and kills.


def edit(path: Path, journal: Journal, chance: random.Random) -> None:
    """Write the file past ducktail; a journal that says so may be ahead of it."""
    name = chance.choice(KEPT)
    known = journal.known(name, State(COLUMNS))
    with duckdb.connect(str(path)) as plain:
        columns = [str(row[0]) for row in plain.execute(f"describe {name}").fetchall()]
        found = plain.execute(f"select {', '.join(columns)} from {name}").fetchall()
        rows = {row[0]: dict(zip(columns, row, strict=True)) for row in found}
        state = next((one for one in known.table if one.rows == rows and list(one.columns) == columns), None)
        if state is None or not rows:
            return
        key = chance.choice(sorted(rows))
        # RESYNC cannot name a row that is gone whose events are from before the columns changed.
        if state.version == 1 and chance.random() < 0.5:
            text = f"delete from {name} where id = {key}"
            del rows[key]
        else:
            text = f"update {name} set v = v + 1000000 where id = {key}"
            rows[key] = {**rows[key], "v": rows[key]["v"] + 1_000_000}
        journal.write(name, "edit", state.with_rows(rows).text())
        plain.execute(text)


def load(path: Path, seed: int, ready: int, *, last: bool) -> None:
    """One run; it ends by being killed, or after its look if it is the last one."""
    chance = random.Random(seed)
    journal = Journal(path.with_suffix(".journal"))
    if chance.random() < EDIT_SHARE and not last:
        edit(path, journal, chance)
    database = Database.open(str(path), BOUNDS)
    states = check(database, journal)
    os.write(ready, b".")
    if last:
        database.close()
        return
    runs: list[Callable[[], None]] = [
        Load(database, journal, name, state, chance.getrandbits(32), ready).run
        for name, state in states.items()
    ]
    runs += [lambda: read(database, journal), lambda: move(database), lambda: carry(database)]
    runs.append(partial(book, database, chance.getrandbits(32)))
    runs.append(partial(mirror, database, chance.getrandbits(32)))
    for run in (mixed_groups.sort, mixed_groups.come_late):
        runs.append(partial(run, database, journal, chance.getrandbits(32)))
    for name in mixed_groups.MEMBERS:
        runs.append(partial(mixed_groups.work, database, journal, chance.getrandbits(32), name))
    threads = [threading.Thread(target=ending, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ending(run: Callable[[], None]) -> None:
    """Run to the end of the process; an error is its end."""
    try:
        run()
    except BaseException as error:
        traceback.print_exc()
        print(getattr(error, "detail", None), file=sys.stderr, flush=True)
        # What the others do: one of them may be whom it has waited for.
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


def make(path: Path, _: int) -> None:
    """The tables, streams and groups."""
    database = Database.open(str(path), BOUNDS)
    client = Client(database)
    for text in SETUP:
        client(text)
    client.close()
    database.close()
    Journal(path.with_suffix(".journal"))


def forked(run: Callable[[int], None]) -> tuple[int, int]:
    """A process that runs this, and what it says when it is ready on."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Without its parent it would go on for ever.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        ending(lambda: run(told))
        os._exit(0)
    os.close(told)
    return pid, ready


def ended(pid: int, ready: int) -> int:
    """Wait for the process: its exit code, or the signal that ended it as a negative number."""
    os.close(ready)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_and_kill(path: Path, chance: random.Random) -> str:
    """One run, killed at a random point; gives where that was."""
    seed, opening = chance.getrandbits(32), chance.random() < OPENING_SHARE
    delay = chance.uniform(0, OPENING_S if opening else MOMENT_S)
    pid, ready = forked(lambda told: load(path, seed, told, last=False))
    for _ in range(0 if opening else chance.randint(1, CHANGES_MAX)):
        assert select.select([ready], [], [], STEP_TIMEOUT_S)[0], "it does not go on"
        if not os.read(ready, 1):
            break
    # Nobody waits for anything here: it is to be killed at a random point.
    threading.Event().wait(delay)
    os.kill(pid, signal.SIGKILL)
    code = ended(pid, ready)
    assert code == -signal.SIGKILL, f"the run with seed {seed} ended with {code}"
    return "killed while it opened" if opening else "killed"


def main(directory: Path, kills: int, seed: int) -> None:
    """Run and kill, one file after the other."""
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    for first in range(0, kills, FILE_KILLS):
        path = directory / f"{first}.duckdb"
        assert ended(*forked(partial(make, path))) == 0
        seen.update(run_and_kill(path, chance) for _ in range(min(FILE_KILLS, kills - first)))
        assert ended(*forked(partial(load, path, 0, last=True))) == 0
        seen.update(json.loads(line)[1] for line in path.with_suffix(".journal").read_text().splitlines())
    print(dict(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

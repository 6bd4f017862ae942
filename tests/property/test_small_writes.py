"""One-row writes of sixteen sessions, which share transactions of DuckDB, against a model of one by one.

The events are the order in which the writes came about. Each acknowledged write is one event between its
beginning and its answer; one that found a row, or none, did so at a moment between these; a failed one has no
event. And what does not depend on the order is answered as by one session that writes alone: the same tags,
rows and messages. Promises 1, 3 and 5. DUCKTAIL_GROUP_STEPS is how often each session writes.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from amounts import amount, seed_of
from local_client import Client, Row, check_stream, state_of

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError

pytestmark = pytest.mark.timeout(3600)

STEPS = amount("DUCKTAIL_GROUP_STEPS", 5, 2000)
SESSIONS = 16
# Few rows, which all sessions write; and the time in which a write is cancelled or has its deadline.
KEYS = range(24)
HASTE_S = 0.01
TEXTS = {
    "insert": "INSERT INTO t VALUES ($1, $2)",
    "returning": "INSERT INTO t (id, v) VALUES ($1, $2) RETURNING v, id",
    "update": "UPDATE t SET v = $2 WHERE id = $1",
    "delete": "DELETE FROM t WHERE id = $1",
    "upsert": "INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    "nothing": "INSERT INTO t VALUES ($1, $2) ON CONFLICT DO NOTHING",
    "publish": "PUBLISH TO p KEY $1 $2",
    "topic": "INSERT INTO p (key, payload) VALUES ($1, $2)",
}
# What the event of a write may be.
OPS = {
    "insert": {"insert"},
    "returning": {"insert"},
    "update": {"update"},
    "delete": {"delete"},
    "upsert": {"insert", "update"},
    "nothing": {"insert"},
    "publish": {"publish"},
    "topic": {"publish"},
}
PUBLISHED = {"publish", "topic"}
# How a write is sent, and the errors that this allows.
HOWS = {
    "plain": set[str](),
    "in a block": set[str](),
    "rolled back": set[str](),
    "with a deadline": {"57014"},
    "with lock_timeout": {"55P03"},
    "cancelled": {"57014"},
}


@dataclass
class Sent:
    """One write and its outcome.

    Args:
        value: the value that no other write has; "bad" breaks the CHECK.
        after_lsn, through_lsn: the last LSN before it was sent, and when it was answered.
        tag: its command tag; empty if it failed or was rolled back.
        error: SQLSTATE and message of its error.
    """

    kind: str
    key: int
    value: str
    how: str = "plain"
    after_lsn: int = 0
    through_lsn: int = 0
    tag: str = ""
    error: tuple[str, str] = ("", "")
    rows: list[Row] = field(default_factory=list)

    @property
    def parameters(self) -> tuple[object, ...]:
        """The values of its parameters."""
        key = str(self.key) if self.kind in PUBLISHED else self.key
        return (key,) if self.kind == "delete" else (key, self.value)

    @property
    def written(self) -> bool:
        """True if it has an event."""
        return bool(self.tag) and not self.tag.endswith(" 0")

    def run(self, database: Database, client: Client, rng: random.Random) -> None:
        """Run it."""
        settings = {"with a deadline": "statement_timeout", "with lock_timeout": "lock_timeout"}
        if setting := settings.get(self.how):
            client(f"SET {setting} = '{1 + int(1000 * HASTE_S * rng.random())}ms'")
        if self.how in ("in a block", "rolled back"):
            client("BEGIN")
        canceller = threading.Timer(HASTE_S * rng.random(), client.session.cancel)
        if self.how == "cancelled":
            canceller.start()
        self.after_lsn = database.commits.last_lsn
        try:
            self.rows = client(TEXTS[self.kind], *self.parameters)
            self.tag = client.tag or ""
        except DucktailError as error:
            self.error = error.sqlstate, error.message
        if self.how == "cancelled":
            canceller.join()
        if self.how in ("in a block", "rolled back"):
            client("COMMIT" if self.how == "in a block" else "ROLLBACK")
            self.tag = "" if client.tag == "ROLLBACK" else self.tag
        self.through_lsn = database.commits.last_lsn
        # The time of a RESET is limited, too.
        while setting and state_of(client, f"RESET {setting}") != "ok":
            pass


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Database]]:
    """Opens databases with a table, its stream and a topic; each text of a write has a plan."""
    databases = []

    def open_one(name: str) -> Database:
        databases.append(database := Database.open(str(tmp_path / f"{name}.duckdb")))
        client = Client(database, wire=True)
        client("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR CHECK (v <> 'bad'))")
        client("CREATE STREAM s ON t")
        client("CREATE TOPIC p WITH (partitions = 3)")
        for key in range(-3, 0):
            for kind in ("insert", "update", "upsert", "delete", "returning", "delete", "nothing", "delete"):
                client(TEXTS[kind], *Sent(kind, key, f"warm {kind}").parameters)
            for kind in PUBLISHED:
                client(TEXTS[kind], *Sent(kind, key, f"warm {kind}").parameters)
        client.close()
        return database

    yield open_one
    for database in databases:
        database.close()


def in_threads(works: Sequence[Callable[[], object]]) -> None:
    """Run works side by side; their errors are the test's."""
    errors = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("enabled", [True, False])
def test_writes_of_many_sessions_are_in_one_order(opened: Callable[[str], Database], enabled: bool) -> None:
    database = opened("order")
    database.group_commit.enabled = enabled
    begun_lsn, sent = database.commits.last_lsn, [list[Sent]() for _ in range(SESSIONS)]

    def work(number: int) -> None:
        rng, client = random.Random(seed_of("DUCKTAIL_GROUP_SEED", number)), Client(database, wire=True)
        for step in range(STEPS):
            kind = rng.choice(list(TEXTS))
            bad = kind not in PUBLISHED and rng.random() < 0.05
            how = "plain" if rng.random() < 0.6 else rng.choice(list(HOWS))
            value = "bad" if bad else f"v{number}.{step}"
            sent[number].append(Sent(kind, rng.choice(KEYS), value, how))
            sent[number][-1].run(database, client, rng)
        client.close()

    in_threads([lambda number=number: work(number) for number in range(SESSIONS)])
    assert not enabled or database.group_commit.writes > database.group_commit.batches
    judge(Client(database), [one for each in sent for one in each], begun_lsn)


def judge(owner: Client, sent: Sequence[Sent], begun_lsn: int) -> None:
    """Compare the outcomes of writes with the events after an LSN."""
    streamed = owner(f"SELECT lsn, op, (key ->> 'id')::INT, after ->> 'v' FROM STREAM s AFTER {begun_lsn}")
    published = owner(
        f"SELECT lsn, 'publish', (key ->> '$')::INT, after ->> '$' FROM TOPIC p AFTER {begun_lsn}"
    )
    events = sorted([*streamed, *published])
    last_lsn = begun_lsn + len(events)
    assert [event[0] for event in events] == list(range(begun_lsn + 1, last_lsn + 1))
    commits = "SELECT first_lsn, last_lsn FROM ducktail.commits WHERE last_lsn >= first_lsn AND first_lsn > "
    assert owner(f"{commits} {begun_lsn} ORDER BY txid") == [(event[0],) * 2 for event in events]
    check_stream(owner, "s", "t")

    # The LSNs at which a row began and ceased to be there.
    turns: dict[int, list[int]] = {key: [] for key in KEYS}
    for lsn, op, key, _ in streamed:
        if op != "update":
            assert len(turns[key]) % 2 == (op == "delete")
            turns[key].append(lsn)

    def was(one: Sent, *, there: bool) -> bool:
        """Whether the row was there, or not, at a moment between a write's beginning and its answer."""
        moments = [one.after_lsn, *(lsn for lsn in turns[one.key] if one.after_lsn < lsn <= one.through_lsn)]
        return any(sum(lsn <= at for lsn in turns[one.key]) % 2 == there for at in moments)

    by_value = {event[3]: event for event in events if event[3] is not None}
    assert len(by_value) == sum(event[3] is not None for event in events), "a write has two events"
    for one in sent:
        _, op, key, _ = event = by_value.get(one.value, (0, "", 0, ""))
        if one.kind != "delete" and one.written:
            assert op in OPS[one.kind] and key == one.key, one
            assert one.after_lsn < event[0] <= one.through_lsn, one
        else:
            assert not event[0], (one, event)
        state = one.error[0]
        if state == "23505":
            assert one.kind in ("insert", "returning") and was(one, there=True), one
        elif state == "23514":
            assert one.value == "bad", one
        elif state:
            assert state in HOWS[one.how], one
        elif one.tag.endswith(" 0"):
            assert was(one, there=one.kind == "nothing"), one
        if one.kind == "returning" and one.rows:
            assert one.rows == [(one.value, one.key)], one
    _judge_deletes([one for one in sent if one.kind == "delete" and one.written], streamed)
    assert sum(one.written for one in sent) == len(events)


def _judge_deletes(deletes: Sequence[Sent], streamed: Sequence[Row]) -> None:
    """Each event of a DELETE has a statement of its own, which was running then."""
    left = list(deletes)
    for lsn, op, key, _ in streamed:
        if op == "delete":
            running = [one for one in left if one.key == key and one.after_lsn < lsn <= one.through_lsn]
            assert running, f"nobody has deleted row {key} at {lsn}"
            left.remove(min(running, key=lambda one: one.through_lsn))
    assert not left


def test_answers_are_those_of_writes_one_by_one(opened: Callable[[str], Database]) -> None:
    """In each round the sessions write rows of their own, so that no answer depends on the order."""
    rng = random.Random(seed_of("DUCKTAIL_GROUP_SEED"))
    together, apart = opened("together"), opened("apart")
    clients, alone = [Client(together, wire=True) for _ in range(SESSIONS)], Client(apart)
    for number in range(STEPS):
        kinds = [rng.choice([kind for kind in TEXTS if kind != "publish"]) for _ in clients]
        values = ["bad" if rng.random() < 0.05 else f"v{number}.{place}" for place in range(SESSIONS)]
        places = rng.sample(KEYS, SESSIONS)
        rounds = [[Sent(*each) for each in zip(kinds, places, values, strict=True)] for _ in range(2)]
        in_threads(
            [
                lambda one=one, client=client: one.run(together, client, rng)
                for one, client in zip(rounds[0], clients, strict=True)
            ]
        )
        for one in rounds[1]:
            one.run(apart, alone, rng)
        answers = [[(one.tag, one.error, one.rows) for one in each] for each in rounds]
        assert answers[0] == answers[1], kinds
    assert together.group_commit.writes > together.group_commit.batches
    stored = "SELECT id, v FROM t ORDER BY id"
    assert (owner := Client(together))(stored) == alone(stored)
    told = "SELECT op, key, before, after FROM STREAM s AFTER 0 WHERE op <> 'schema'"
    assert Counter(owner(told)) == Counter(alone(told))
    told = "SELECT partition, key, after FROM TOPIC p AFTER 0"
    assert Counter(owner(told)) == Counter(alone(told))

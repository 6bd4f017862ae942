"""A database in which whatever is hidden has a canary in it, and statements that must not make one sing.

Each hidden thing holds texts `cnry_LABEL_n` and numbers `9100LLnnn` of its own, in rows, names, labels,
comments, defaults and files; no statement ever says one. So one in anything that a user is told is a leak,
unless somebody who takes part may see it. Users have two sessions each, which take turns or race.

A seed says who takes part and what is said (`canary_statements.py`): `Play(seed, statements)` is the same
each time, but for races.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
from canary_statements import Names, Statements, quoted
from heard import INTERNAL, OK, Answer, Heard, World
from local_client import check_stream

from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings

CANARY = re.compile(rb"cnry_([a-z]+)|\b9100(\d\d)\d{3}\b|(SCRAM-SHA-256)")
# SQLSTATEs of what no statement should come to.
BROKEN = (INTERNAL, "XX001", "58030")
# Errors of these SQLSTATEs that are known, by their words -> why they stay.
KNOWN: dict[str, str] = {}
# So many statements are shown of those before a failure.
SHOWN = 30
# Between two looks at the whole.
LOOK_EVERY = 600
RENEW_CHANCE = 0.02
RELATIONS = (
    "SELECT schema_name, table_name FROM duckdb_tables() UNION ALL "
    "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal"
)

# Things with rows: label -> name. A label's place here is its number.
TABLES = {
    "pay": ("hid", "pay"),
    "plain": ("hid", "plain"),
    "stock": ("main", "stock"),
    "ete": ("main", "été"),
    "key": ("main", "key"),
    "orders": ("shop", "orders"),
    "theirs": ("ten_b", "mine"),
    "some": ("main", "few"),
    "folded": ("main", "i̇"),
}
CAPTURED = ("pay", "stock", "key", "orders", "theirs", "folded")
LABELS = (*TABLES, "numbers", "news", "events")
# Tables that nobody who takes part has a right to write.
KEPT = ("hid.pay", "hid.plain", "main.stock", "main.été", "main.key", "ten_b.mine", "main.few", "main.i̇")

# Names of streams on one table, with what tells them apart, and the table's schema and name.
STREAMS = (
    "SELECT s.schema_name, s.stream_name, s.identity, t.schema_name, t.table_name FROM ducktail.streams AS s "
    "JOIN duckdb_tables() AS t ON replace(s.tables[1], '\"', '') = t.schema_name || '.' || t.table_name "
    "WHERE len(s.tables) = 1"
)

# Who takes part: what he is given, and the labels of the canaries that he may see then.
USERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nobody": ((), ()),
    "reader": (("SELECT ON shop.orders",), ("orders",)),
    "writer": (("INSERT ON shop.orders",), ()),
    "changer": (("SELECT ON shop.orders", "UPDATE ON shop.orders", "DELETE ON shop.orders"), ("orders",)),
    "viewer": (("SELECT ON main.shown",), ("some",)),
    "follower": (("SELECT ON shop.orders_changes", "CONSUME ON shop.orders_changes"), ("orders",)),
    "grouped": (
        ("CONSUME ON shop.orders_changes", "CONSUME ON CONSUMER GROUP g ON shop.orders_changes"),
        ("orders", "member"),
    ),
    "publisher": (("PUBLISH ON shop.events",), ()),
    "shopper": (("SELECT ON SCHEMA shop",), ("orders", "events")),
    "tenant": (("CREATE ON SCHEMA ten_a",), ()),
    "neighbour": (("CREATE ON SCHEMA ten_a", "CREATE ON SCHEMA enum"), ()),
    "maker": (("CREATE ON DATABASE", "CREATE ON SCHEMA main"), ()),
}
# Most find the most who may make something.
WEIGHTS = {"tenant": 6, "neighbour": 4, "maker": 3, "viewer": 2}

NEW = tuple(f"n{n}" for n in range(5))


def row(label: str, n: int) -> str:
    """The n-th row of a thing, as SQL."""
    return f"({number(label, n)}, 'cnry_{label}_{n}')"


def number(label: str, n: int) -> int:
    """Its number."""
    return 910_000_000 + LABELS.index(label) * 1000 + n


def names(file: Path | None) -> Names:
    """What statements are about."""
    streams = [(schema, f"{name}_changes") for schema, name in (TABLES[label] for label in CAPTURED)]
    own = [("ten_a", name) for name in (*NEW, "mine", "stock", "few")]
    own += [("enum", NEW[0]), ("temp", "stock"), ("main", NEW[0]), ("main", NEW[1]), ("made", NEW[0])]
    others = ("hid.v", "main.shown", "main.allowed", "main.absent")
    ours = ("hid.pay_changes", "hid.pay_changes_changes", "ducktail.streams", "ducktail.log_1")
    topics = ("hid.news", "shop.events")
    return Names(
        database="memory",
        hidden=(*TABLES.values(), *map(_parts, (*others, *topics, *ours))),
        streams=(*streams, *map(_parts, (*topics, "ten_a.n0", "ten_a.n1"))),
        sequences=tuple(map(_parts, ("hid.numbers", "ten_a.n0", "ten_a.n1", "ten_b.counter"))),
        types=tuple(map(_parts, ("hid.kinds", "ten_a.n0", "ten_a.n2"))),
        macros=tuple(map(_parts, ("main.of_hidden", "main.next_hidden", "ten_a.n0"))),
        own=tuple(own),
        schemas=(
            *("main", "hid", "shop", "ten_a", "ten_a", "ten_b", "enum", "made", "temp", "absent", '"HID"'),
            *("ducktail", "information_schema", "pg_temp"),
        ),
        forged=forged(),
        files=("/etc/hosts", *(() if file is None else (str(file), f"{file.parent}/*.csv"))),
    )


def forged() -> str:
    """See Names."""
    given = {"database_name": "'temp'", "schema_name": "'main'", "view_name": "'?'", "internal": "false"}
    given["sql"] = "'CREATE VIEW x AS SELECT 1 AS s;'"
    with duckdb.connect() as plain:
        columns = plain.execute("DESCRIBE FROM duckdb_views()").fetchall()
    listed = ", ".join(f"({given.get(name, 'NULL')})::{type_} AS {name}" for name, type_, *_ in columns)
    return f"CREATE TEMP VIEW duckdb_views AS SELECT {listed}"


def _parts(name: str) -> tuple[str, str]:
    schema, _, last = name.partition(".")
    return schema, last


def aviary(file: Path | None, *, users: bool) -> World:
    """The database.

    Args:
        file: one with canaries, in a directory that is then allowed.
        users: there are some; else all sessions are the owner's.
    """
    allowed = () if file is None else (str(file.parent),)
    world = World(settings=Settings(allowed_directories=allowed))
    world.run(*(f"CREATE SCHEMA {schema}" for schema in ("hid", "shop", "ten_a", "ten_b", "enum")))
    for label, (schema, name) in TABLES.items():
        table = f"{schema}.{quoted(name)}"
        default = "" if label != "plain" else " DEFAULT 'cnry_default_1'"
        world.run(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, s TEXT{default})")
        if label in CAPTURED:
            world.run(f"CREATE STREAM {schema}.{quoted(name + '_changes')} ON {table} WITH (partitions = 2)")
        world.run(f"INSERT INTO {table} VALUES {row(label, 1)}, {row(label, 2)}")
    world.run(
        "CREATE TABLE hid.cnry_name_1 (cnry_column_1 INT)",
        "CREATE INDEX cnry_index_1 ON hid.plain (s)",
        "COMMENT ON TABLE hid.pay IS 'cnry_comment_1'",
        "COMMENT ON COLUMN hid.plain.s IS 'cnry_comment_2'",
        f"CREATE SEQUENCE hid.numbers START {number('numbers', 1)}",
        "CREATE SEQUENCE ten_b.counter",
        "CREATE TYPE hid.kinds AS ENUM ('cnry_kinds_1')",
        "CREATE VIEW hid.v AS SELECT * FROM hid.pay",
        "CREATE TABLE allowed (id BIGINT)",
        f"INSERT INTO few VALUES {row('stock', 3)}",
        "INSERT INTO allowed VALUES (1)",
        "CREATE VIEW shown AS FROM few WHERE id % 1000 IN (SELECT id FROM allowed)",
        "CREATE MACRO of_hidden() AS (SELECT max(s) FROM hid.pay)",
        "CREATE MACRO all_of_hidden() AS TABLE SELECT * FROM hid.pay",
        "CREATE MACRO next_hidden() AS nextval('hid.numbers')",
    )
    for topic, label in (("hid.news", "news"), ("shop.events", "events")):
        world.run(f"CREATE TOPIC {topic} WITH (partitions = 2)")
        world.run(f"PUBLISH TO {topic} KEY 'k' 'cnry_{label}_1'")
    for stream in ("shop.orders_changes", "hid.pay_changes", "hid.news"):
        world.run(
            f"CREATE CONSUMER GROUP g ON {stream}",
            f"SELECT * FROM STREAM {stream} CONSUMER GROUP g MEMBER 'cnry_member_1'",
            f"CREATE BOOKMARK cnry_bookmark_1 ON {stream}",
        )
    world.run("REPORT PIPELINE 'cnry_pipeline_1' AS '{\"status\": \"cnry_pipeline_2\"}'")
    if users:
        # At last: the owner of the database is asked nothing while there are none.
        world.people(["ann"], [*USERS, "victim"])
        given = [f"GRANT {grant} TO {user}" for user, (grants, _) in USERS.items() for grant in grants]
        world.run(*given, "GRANT INSERT ON SCHEMA ten_a TO victim")
    return world


@dataclass(frozen=True, slots=True)
class Said:
    """A statement of a seed.

    Args:
        session: which of its user's sessions says it.
        text: None ends the session, and begins another one in its place.
    """

    index: int
    user: str
    session: int
    text: str | None
    describe: bool

    def __str__(self) -> str:
        text = "(a new session)" if self.text is None else re.sub(" {99,}", " {...} ", self.text)
        return f"{self.index:5} {self.user}/{self.session}: {text[:600]}"


def said(seed: int, count: int, among: Sequence[str], about: Names) -> list[Said]:
    """What is said in a seed."""
    chosen = random.Random(seed)
    statements = Statements(chosen, about)
    rows: dict[str, deque[tuple[int, str | None]]] = {user: deque() for user in among}
    found = []
    for index in range(count):
        user = chosen.choice(among)
        if not rows[user]:
            session = chosen.randrange(2)
            for text in [None] if chosen.random() < RENEW_CHANCE else statements.next():
                other = text is not None and text.startswith("~")
                said_by = 1 - session if other else session
                rows[user].append((said_by, None if text is None else text.removeprefix("~")))
        session, text = rows[user].popleft()
        found.append(Said(index, user, session, text, chosen.random() < 0.3))
    return found


class Singing(AssertionError):
    """A canary was told, or something has changed that should not have."""


@dataclass(slots=True)
class Play:
    """One seed.

    Args:
        seed: says who takes part, and what they say.
        count: of statements.
        file: see `aviary`.
        users: whether there are any; without them only capture is looked at.
        racing: the two sessions of a user are threads of their own.
        only: the indexes that are said; None is all.
    """

    seed: int
    count: int
    file: Path | None = None
    users: bool = True
    racing: bool = False
    only: frozenset[int] | None = None
    said_count: int = field(init=False, default=0)
    answered: dict[str, int] = field(init=False, default_factory=dict)
    _world: World = field(init=False)
    _among: list[str] = field(init=False)
    _allowed: frozenset[str] = field(init=False)
    _sessions: dict[tuple[str, int], Heard] = field(init=False, default_factory=dict)
    _before: list[object] = field(init=False, default_factory=list)
    _there: frozenset[object] = field(init=False, default=frozenset())
    _streams: frozenset[str | None] = field(init=False, default=frozenset())
    _history: deque[tuple[Said, Answer]] = field(init=False)

    def __post_init__(self) -> None:
        chosen = random.Random(~self.seed)
        weighted = [user for user in USERS for _ in range(WEIGHTS.get(user, 1))]
        self._among = sorted({chosen.choice(weighted) for _ in range(3)}) if self.users else ["one", "two"]
        self._history = deque(maxlen=SHOWN)
        # Whoever may see a canary may tell the others.
        self._allowed = frozenset(label for user in self._among if self.users for label in USERS[user][1])

    def __call__(self) -> None:
        """Say it all.

        Raises:
            Singing: with the seed, and what was said last.
        """
        heard_log = _Log()
        root_logger = logging.getLogger()
        root_logger.addHandler(heard_log)
        try:
            self._world = aviary(self.file, users=self.users)
            self._before = [self._world.state(table) for table in KEPT] if self.users else []
            self._there = frozenset(self._world.root(RELATIONS))
            self._streams = frozenset(row[2] for row in self._world.root(STREAMS))
            assert len(self._streams) == len(CAPTURED)
            spoken = said(self.seed, self.count, self._among, names(self.file))
            if self.only is not None:
                spoken = [one for one in spoken if one.index in self.only]
            for start in range(0, len(spoken), LOOK_EVERY):
                self._say(spoken[start : start + LOOK_EVERY])
                self._look(heard_log)
        except Singing as error:
            raise Singing(f"{error}\n{self._told()}") from None
        finally:
            root_logger.removeHandler(heard_log)
            with suppress(DucktailError):
                self._world.close()

    def _told(self) -> str:
        shown = "\n".join(f"{one}\n        {answer}" for one, answer in self._history)
        return f"seed {self.seed}, {', '.join(self._among)}; the last statements:\n{shown}"

    # What is said.

    def _say(self, spoken: Sequence[Said]) -> None:
        if not self.racing:
            for one in spoken:
                self._ask(one)
            return
        failed: list[Exception] = []

        def go(mine: Iterable[Said]) -> None:
            try:
                for one in mine:
                    if failed:
                        return
                    self._ask(one)
            except Exception as error:
                failed.append(error)

        halves = [[one for one in spoken if one.session == number] for number in (0, 1)]
        threads = [threading.Thread(target=go, args=(half,), daemon=True) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def _session(self, user: str, number: int) -> Heard:
        found = self._sessions.get((user, number))
        if found is None:
            account = user if self.users else None
            found = self._world.session(account, lock_timeout="20", statement_timeout="10000")
            self._sessions[user, number] = found
        return found

    def _ask(self, one: Said) -> None:
        if one.text is None:
            left = self._sessions.pop((one.user, one.session), None)
            if left is not None:
                left.close()
            return
        try:
            session = self._session(one.user, one.session)
        except DucktailError as error:
            raise Singing(f"no session for {one}: {error.sqlstate} {error}") from None
        if session.session.transaction_status == "E":
            session.ask("ROLLBACK")
        answer = session.ask(one.text, data=b"7\tx\n", describe=one.describe)
        self._history.append((one, answer))
        self.said_count += 1
        self.answered[answer.sqlstate] = self.answered.get(answer.sqlstate, 0) + 1
        self._hold(answer, str(one))

    def _hold(self, answer: Answer, by: str) -> None:
        """Refuse what nobody may be told."""
        if self.users:
            found = self._canaries(answer.told)
            if found:
                raise Singing(f"{', '.join(found)} was told by {by}\n{answer}")
        if answer.sqlstate in BROKEN and not any(known in str(answer) for known in KNOWN):
            raise Singing(f"{by}\n{answer}")

    def _canaries(self, told: bytes) -> list[str]:
        found = set()
        for text, place, verifier in CANARY.findall(told):
            label = verifier or text or LABELS[int(place) % len(LABELS)].encode()
            if label.decode() not in self._allowed:
                found.add(label.decode())
        return sorted(found)

    # The look at the whole.

    def _look(self, heard_log: _Log) -> None:
        for session in self._sessions.values():
            session.ask("ROLLBACK")
        if self.users:
            self._look_at_victim()
            for table, before in zip(KEPT, self._before, strict=True):
                self._root(f"{table} has changed", lambda table=table: self._world.state(table), before)
            self._sweep()
            sung = self._canaries(heard_log.text())
            if sung:
                raise Singing(f"{', '.join(sung)} in the log")
        self._look_at_streams()

    def _root(self, what: str, ask: Callable[[], object], wanted: object) -> None:
        try:
            found = ask()
        except AssertionError as error:
            raise Singing(f"{what}: {error}") from None
        if found != wanted:
            raise Singing(f"{what}: {found}, and not {wanted}")

    def _look_at_victim(self) -> None:
        """Somebody with a variable of his own writes what the tenants have made."""
        victim = self._world.session("victim", lock_timeout="20")
        victim("SET VARIABLE secret = 'cnry_variable_1'")
        for name in (*NEW, "mine", "pay", "stock"):
            victim.ask(f"INSERT INTO ten_a.{name} (id) VALUES (99) /* cnry_query_1 */")
        victim.close()

    def _sweep(self) -> None:
        """What has been made and can be read now, and what sessions have kept."""
        for user in self._among:
            session = self._world.session(user)
            for schema, name in self._world.root(RELATIONS):
                if (schema, name) in self._there:
                    continue
                text = f"SELECT * FROM {quoted(schema or '')}.{quoted(name or '')}"
                self._hold(session.ask(text), f"{user}: {text}")
            session.close()
        for (user, _), session in self._sessions.items():
            for variable in ("x", "y", "secret"):
                text = f"SELECT getvariable('{variable}')::TEXT"
                self._hold(session.ask(text), f"{user}: {text}")

    def _look_at_streams(self) -> None:
        """CHECK STREAM of all, and those that were made first fold to their tables."""
        root = self._world.root
        streams = root.ask(STREAMS)
        if streams.sqlstate != OK:
            raise Singing(f"{STREAMS}: {streams}")
        for schema, name, identity, table_schema, table in streams.rows:
            stream = f"{quoted(schema or '')}.{quoted(name or '')}"
            checked = root.ask(f"CHECK STREAM {stream}")
            if checked.sqlstate != OK or checked.rows:
                raise Singing(f"CHECK STREAM {stream}: {checked} {checked.rows}")
            # Behind ALTER TABLE, older events have other columns.
            altered = root.ask(f"SELECT count(*) FROM STREAM {stream} WHERE op = 'schema'").rows != (("0",),)
            if identity not in self._streams or altered:
                continue
            try:
                check_stream(root, stream, f"{quoted(table_schema or '')}.{quoted(table or '')}")
            except AssertionError as error:
                raise Singing(f"{stream} does not fold to its table {table}: {error}") from None


def shrunk(play: Play) -> list[int]:
    """The indexes of a few of a failing play's statements with which it still fails, in whatever way.

    A race is said in turns: what takes a race to fail is not made smaller.
    """
    kept = list(range(play.count if play.only is None else max(play.only) + 1))
    step = len(kept)
    while step:
        for start in range(len(kept) - 1, -1, -step):
            fewer = kept[: max(0, start - step + 1)] + kept[start + 1 :]
            if fewer != kept and _fails(replace(play, only=frozenset(fewer), racing=False)):
                kept = fewer
        step //= 2
    return kept


def _fails(play: Play) -> bool:
    try:
        play()
    except Singing:
        return True
    return False


class _Log(logging.Handler):
    """All that is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._lines.append(self.format(record))

    def text(self) -> bytes:
        """All of them."""
        return "\n".join(self._lines).encode(errors="replace")

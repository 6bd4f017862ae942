"""Every statement about streams, groups, reading and committing that a node may be asked about another's.

A walk leaves all as it was, so that it has the same answers each time, whoever is asked. `{s}` stands for a
stream on table `{t}` with three partitions and 22 events, `{p}` for a topic that the walk makes and drops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Value = int | str
MAP = """'{"0": 3, "2": 4}'"""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement.

    Args:
        values: of its parameters $1, $2, ...
        pure: it may be asked again and again, in a transaction as well.
        broken: a driver that can reads in parts of four, and gives up in the second.
        topic: it is about a topic that the walk makes.
    """

    text: str
    values: tuple[Value, ...] = ()
    pure: bool = False
    broken: bool = False
    topic: bool = False

    def named(self, stream: str, table: str) -> Step:
        """With the names that are meant."""
        text = re.sub(
            r"\{([stp])\}", lambda found: {"s": stream, "p": stream, "t": table}[found[1]], self.text
        )
        return replace(self, text=text, topic="{p}" in self.text)

    @property
    def literal(self) -> str:
        """With the values in their places."""

        def shown(found: re.Match[str]) -> str:
            value = self.values[int(found[1]) - 1]
            return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

        return re.sub(r"\$(\d)", shown, self.text) if self.values else self.text


def steps(*texts: str, pure: bool = False) -> list[Step]:
    """Statements without parameters."""
    return [Step(text, pure=pure) for text in texts]


STREAMS = [
    *steps(
        "SHOW STREAMS LIKE '{s}'",
        "SHOW CHANGE STREAMS LIKE '{s}'",
        "SHOW TOPICS LIKE '{s}'",
        "SHOW PARTITIONS ON {s}",
        "SHOW CREATE STREAM {s}",
        "DESCRIBE STREAM {s}",
        pure=True,
    ),
    *steps(
        "CHECK STREAM {s}",
        "ALTER STREAM {s} SET (retention = '3 days', buffer_bytes = '8 MiB')",
        "SHOW CREATE STREAM {s}",
        "ALTER STREAM {s} SET (retention = '7 days', buffer_bytes = '64 MiB')",
        "ALTER STREAM {s} SET (partitions = 7)",
        "ALTER TOPIC {s} SET (retention = '3 days')",
        "COMMENT ON STREAM {s} IS 'what it is'",
        "DESCRIBE STREAM {s}",
        "COMMENT ON STREAM {s} IS NULL",
        "ALTER STREAM {s} RENAME TO {s}_once",
        "SELECT count(*) FROM STREAM {s}",
        "SELECT count(*) FROM STREAM {s}_once",
        "ALTER STREAM {s}_once RENAME TO {s}",
        "ALTER STREAM {s} RESYNC",
        "ALTER STREAM {s} ADD TABLE other",
        "ALTER STREAM {s} DROP TABLE other",
        "ALTER STREAM {s} SNAPSHOT",
        "ALTER STREAM {s} SNAPSHOT TABLE other WHERE id > 1",
        "CHECK STREAM nowhere",
        "DROP STREAM IF EXISTS nowhere",
        "DROP TOPIC {s}",
        "REPORT PIPELINE 'walk' AS '{}'",
    ),
]
GROUPS = steps(
    "CREATE CONSUMER GROUP g ON {s}",
    "CREATE CONSUMER GROUP g ON {s}",
    "CREATE CONSUMER GROUP IF NOT EXISTS g ON {s}",
    "CREATE CONSUMER GROUP late ON {s} START LATEST WITH (on_gap = 'earliest', on_park = 'key')",
    "CREATE CONSUMER GROUP behind ON {s} START AFTER 5 WITH (session_timeout = '20 s')",
    "CREATE CONSUMER GROUP timed ON {s} START AT TIMESTAMP '2020-01-01'",
    "CREATE CONSUMER GROUP wrong ON {s} WITH (on_gap = 'never')",
    "SHOW CONSUMER GROUPS ON {s}",
    "DESCRIBE CONSUMER GROUP late ON {s}",
    "ALTER CONSUMER GROUP late ON {s} SET (on_gap = 'error', session_timeout = '9 s')",
    "DESCRIBE CONSUMER GROUP late ON {s}",
    "SHOW OFFSETS ON {s} CONSUMER GROUP behind",
    "DROP STREAM {s}",
    *(f"DROP CONSUMER GROUP {group} ON {{s}}" for group in ("late", "behind", "timed")),
    "DROP CONSUMER GROUP late ON {s}",
    "DROP CONSUMER GROUP IF EXISTS late ON {s}",
    "DESCRIBE CONSUMER GROUP late ON {s}",
)
READING = [
    *steps(
        "SELECT * FROM STREAM {s}",
        "SELECT * FROM STREAM main.{s} PARTITION 1",
        "SELECT lsn, after FROM STREAM {s} PARTITION (0, 2) AFTER 5 LIMIT 4",
        f"SELECT * FROM STREAM {{s}} AFTER {MAP} LIMIT 9",
        "SELECT * FROM STREAM {s} ENVELOPE CHANGES LIMIT 21",
        "SELECT * FROM STREAM {s} ENVELOPE JSON AS e ORDER BY e.lsn DESC LIMIT 2",
        "SELECT op, count(*) FROM STREAM {s} GROUP BY op ORDER BY ALL",
        "SELECT {t}.x, e.lsn FROM STREAM {s} e JOIN {t} ON {t}.id = CAST(e.after->>'id' AS INTEGER) "
        "ORDER BY e.lsn",
        "SELECT * FROM (SELECT * FROM STREAM {s} CONSUMER GROUP g LIMIT 7) q WHERE 1 = 0",
        "SELECT * FROM STREAM {s} LIMIT 1 TRANSACTIONS",
        "WITH e AS (SELECT * FROM STREAM {s}) SELECT max(lsn), min(commit_time) FROM e",
        "SELECT lsn FROM STREAM {s} WHERE partition = 1 AND lsn > 3 AND commit_time > '2020-01-01'",
        "SELECT lsn + 1 AS n, upper(op) FROM STREAM {s} LIMIT 0",
        "SHOW MEMBERS ON {s} CONSUMER GROUP g",
        "SHOW PARKED ON {s} CONSUMER GROUP g",
        "SHOW OFFSETS ON {s} CONSUMER GROUP none",
        "SELECT nothing FROM STREAM {s}",
        "SELECT * FROM STREAM {s} PARTITION 9",
        "SELECT * FROM STREAM {s} CONSUMER GROUP none",
        "SELECT * FROM STREAM {s} AFTER 99999999",
        "SELECT * FROM STREAM {s} WAIT 5",
        "SELECT * FROM TOPIC {s}",
        "SELECT * FROM STREAM nowhere",
        pure=True,
    ),
    *steps(
        "SELECT * FROM STREAM {s} CONSUMER GROUP g WAIT '5 s' FOR 2 LIMIT 3",
        "SELECT * FROM STREAM {s} AFTER 22 WAIT '10 ms'",
        "SHOW CHECKPOINTS ON {s}",
        "EXPLAIN SELECT lsn FROM STREAM {s} CONSUMER GROUP g",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT lsn, op FROM STREAM {s} CONSUMER GROUP g",
        "FETCH 3 FROM c",
        "FETCH 4 FROM c",
        "CLOSE c",
        "SELECT count(*) FROM STREAM {s}",
        "COMMIT",
        "SHOW READ POSITION ON {s} CONSUMER GROUP g",
        "PREPARE once AS SELECT lsn FROM STREAM {s} PARTITION $1 CONSUMER GROUP g WHERE lsn > $2 LIMIT $3",
        "EXECUTE once(1, 2, 3)",
        "EXECUTE once(2, 0, 1)",
        "DEALLOCATE once",
    ),
    Step("SELECT lsn, op FROM STREAM {s} PARTITION $1 LIMIT $2", (1, 3), pure=True),
    Step("SELECT lsn FROM STREAM {s} AFTER $1 WAIT $2 LIMIT $3", (5, "5 s", 2), pure=True),
    Step("SELECT lsn FROM STREAM {s} AFTER $1 WHERE lsn < $2", ('{"0": 3, "1": 4, "2": 5}', 9), pure=True),
    Step("SELECT lsn FROM STREAM {s} PARTITION ($1, $2) CONSUMER GROUP $3 LIMIT $4", (0, 2, "g", 5)),
    Step("SELECT lsn FROM STREAM {s} PARTITION $1", (-1,), pure=True),
]
COMMITTING = [
    Step("SELECT lsn FROM STREAM {s} CONSUMER GROUP g", broken=True),
    *steps(
        "SHOW READ POSITION ON {s} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
        "SHOW OFFSETS ON {s} CONSUMER GROUP g",
        "SELECT lsn FROM STREAM {s} CONSUMER GROUP g LIMIT 4",
        "SHOW READ POSITION ON {s} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
        "SELECT lsn FROM STREAM {s} CONSUMER GROUP g COMMIT LIMIT 2",
        "SELECT lsn FROM STREAM {s} CONSUMER GROUP g COMMIT LIMIT 2",
        "SHOW OFFSETS ON {s} CONSUMER GROUP g",
        "COMMIT OFFSETS AT '{\"0\": 99999}' ON {s} CONSUMER GROUP g",
        "COMMIT OFFSET PARTITION 0 AT 1 ON {s} CONSUMER GROUP g",
        "SELECT max(lsn) FROM STREAM {s} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
        "SELECT * FROM STREAM {s} CONSUMER GROUP g",
        "SHOW OFFSETS ON {s} CONSUMER GROUP g",
        *(
            f"ALTER CONSUMER GROUP g ON {{s}} SEEK TO {place}{end}"
            for place in (
                "EARLIEST",
                "LATEST",
                f"AFTER {MAP}",
                "PARTITION 1 AFTER 4",
                "AT TIMESTAMP '2020-01-01'",
            )
            for end in (" DRY RUN", "")
        ),
        "ALTER CONSUMER GROUP g ON {s} SEEK TO AFTER 99999",
        "ALTER CONSUMER GROUP g ON {s} SEEK TO EARLIEST",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
    ),
    Step("COMMIT OFFSET PARTITION $1 AT $2 ON {s} CONSUMER GROUP $3", (0, 7, "g")),
    Step("COMMIT OFFSETS AT $1 ON {s} CONSUMER GROUP g", ('{"0": 8, "1": 9}',)),
    Step("SHOW OFFSETS ON {s} CONSUMER GROUP $1", ("g",)),
    Step("ALTER CONSUMER GROUP g ON {s} SEEK TO PARTITION $1 AFTER $2", (0, 2)),
    *steps(
        "CREATE SINK k ON {s} TO WEBHOOK 'https://h.invalid/' WITH (batch = 5)",
        "CREATE SINK k ON {s} TO WEBHOOK 'https://h.invalid/'",
        "PAUSE SINK k ON {s}",
        "ALTER SINK k ON {s} SET (batch = 6)",
        "RESUME SINK k ON {s}",
        "DROP CONSUMER GROUP k ON {s}",
        "CREATE SINK kafka ON {s} TO KAFKA 'b.invalid' TOPIC 't'",
        "DROP SINK kafka ON {s}",
        "DROP SINK k ON {s}",
        "DROP SINK k ON {s}",
        "CREATE BOOKMARK now ON {s}",
        "CREATE BOOKMARK now ON {s}",
        "CREATE BOOKMARK of_g ON {s} CONSUMER GROUP g",
        f"CREATE BOOKMARK there ON {{s}} AT {MAP}",
        "SHOW BOOKMARKS ON {s}",
        "ALTER CONSUMER GROUP g ON {s} SEEK TO BOOKMARK there DRY RUN",
        "ALTER CONSUMER GROUP g ON {s} SEEK TO BOOKMARK there",
        "ALTER CONSUMER GROUP g ON {s} SEEK TO BOOKMARK nowhere",
        *(f"DROP BOOKMARK {name} ON {{s}}" for name in ("now", "of_g", "there", "there")),
        "ALTER CONSUMER GROUP g ON {s} SEEK TO EARLIEST",
        "ALTER CONSUMER GROUP g ON {s} PARK PARTITION {parked} REASON 'bad'",
        "SHOW PARKED ON {s} CONSUMER GROUP g",
        "SELECT lsn FROM STREAM {s} CONSUMER GROUP g LIMIT 2",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
        "ALTER CONSUMER GROUP g ON {s} RELEASE PARTITION 0",
        "ALTER CONSUMER GROUP g ON {s} DISCARD PARTITION 0",
        "SELECT lsn FROM STREAM {s} CONSUMER GROUP g LIMIT 3",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
        "SHOW PARKED ON {s} CONSUMER GROUP g",
        "ALTER CONSUMER GROUP g ON {s} RELEASE PARTITION 0 AT 1",
    ),
    Step("SELECT lsn FROM STREAM {s} CONSUMER GROUP $1 MEMBER $2 LIMIT 3", ("g", "m")),
    *steps(
        "SHOW MEMBERS ON {s} CONSUMER GROUP g",
        "SHOW READ POSITION ON {s} CONSUMER GROUP g MEMBER 'm'",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g MEMBER 'm'",
        "COMMIT OFFSETS ON {s} CONSUMER GROUP g MEMBER 'nobody'",
        "LEAVE CONSUMER GROUP g ON {s} MEMBER 'm'",
        "LEAVE CONSUMER GROUP g ON {s} MEMBER 'm'",
        "DROP CONSUMER GROUP g ON {s}",
    ),
]
TABLE = [*STREAMS, *GROUPS, *READING, *COMMITTING]

PLACES = "partition, op, key, after, tx_seq, headers"
TOPIC = [
    *steps(
        "CREATE TOPIC {p} WITH (partitions = 12)",
        "CREATE TOPIC {p} WITH (partitions = 12)",
        "CREATE TOPIC IF NOT EXISTS {p}",
        "SHOW TOPICS LIKE '{p}'",
        "DESCRIBE STREAM {p}",
        "COMMENT ON TOPIC {p} IS 'what it is'",
        "ALTER TOPIC {p} SET (retention = '3 days')",
        "ALTER TOPIC {p} RENAME TO {p}_once",
        "ALTER TOPIC {p}_once RENAME TO {p}",
        "SHOW CREATE STREAM {p}",
        "SHOW TOPICS LIKE '{p}'",
        "SHOW PARTITIONS ON {p}",
        "CREATE CONSUMER GROUP g ON {p}",
        "CREATE CONSUMER GROUP late ON {p} START LATEST",
        "CREATE CONSUMER GROUP behind ON {p} START AFTER 5",
        "DESCRIBE CONSUMER GROUP late ON {p}",
        "ALTER CONSUMER GROUP late ON {p} SET (session_timeout = '9 s')",
        "SHOW CONSUMER GROUPS ON {p}",
        "PUBLISH TO {p} KEY q.payload SELECT i FROM range(24) r(i)",
        "PUBLISH TO {p} KEY 'k' HEADERS '{\"h\": 1}' 'one'",
        "PUBLISH TO {p} KEY 'k' 'two' WITH (producer = 'walk', sequence = 1)",
        "PUBLISH TO {p} KEY 'k' 'two' WITH (producer = 'walk', sequence = 1)",
        "INSERT INTO {p} (key, payload) SELECT i, i FROM range(5) r(i)",
        "INSERT INTO {p} (key, payload) VALUES ('k', 'three') RETURNING partition, payload",
        f"SELECT {PLACES} FROM TOPIC {{p}} ORDER BY partition, lsn",
        f"SELECT {PLACES} FROM TOPIC {{p}} PARTITION 4",
        f"SELECT {PLACES} FROM STREAM {{p}} PARTITION (3, 9) ORDER BY partition, lsn",
        "SELECT partition, count(*) FROM TOPIC {p} AFTER 0 GROUP BY partition ORDER BY ALL",
        "SELECT count(*) FROM TOPIC {p} CONSUMER GROUP g WHERE partition IN (1, 8)",
        "SELECT count(*) FROM TOPIC {p} AFTER 5",
        "SELECT count(*) FROM TOPIC {p} ENVELOPE CHANGES",
        "SELECT count(*) FROM TOPIC {p} WAIT '5 s' FOR 31",
        "EXPLAIN SELECT lsn FROM TOPIC {p}",
        "SELECT count(*) FROM TOPIC {p} CONSUMER GROUP late",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT partition, after FROM TOPIC {p} CONSUMER GROUP g WHERE partition = 2",
        "FETCH 1 FROM c",
        "CLOSE c",
        "COMMIT",
        "PREPARE once AS SELECT after FROM TOPIC {p} PARTITION $1 CONSUMER GROUP g LIMIT $2",
        "EXECUTE once(1, 2)",
        "EXECUTE once(9, 1)",
        "DEALLOCATE once",
    ),
    Step("SELECT after FROM TOPIC {p} PARTITION $1 CONSUMER GROUP $2 LIMIT $3", (5, "g", 2)),
    Step("SELECT count(*) FROM TOPIC {p} PARTITION $1 AFTER $2 WAIT $3", (5, 0, "5 s")),
    Step("INSERT INTO {p} (key, payload) VALUES ($1, $2)", ("k", "four")),
    *steps(
        "SELECT partition, after FROM TOPIC {p} CONSUMER GROUP g ORDER BY partition, lsn",
        "COMMIT OFFSETS ON {p} CONSUMER GROUP g",
        "SHOW OFFSETS ON {p} CONSUMER GROUP g",
        "SELECT * FROM TOPIC {p} CONSUMER GROUP g",
        "ALTER CONSUMER GROUP g ON {p} SEEK TO AFTER 5",
        "ALTER CONSUMER GROUP g ON {p} SEEK TO LATEST DRY RUN",
        "ALTER CONSUMER GROUP g ON {p} SEEK TO AT TIMESTAMP '2020-01-01'",
        "SHOW OFFSETS ON {p} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {p} CONSUMER GROUP g",
        "COMMIT OFFSET PARTITION 3 AT 0 ON {p} CONSUMER GROUP g",
        "COMMIT OFFSETS AT '{\"99\": 1}' ON {p} CONSUMER GROUP g",
        "CREATE BOOKMARK now ON {p}",
        "CREATE BOOKMARK of_g ON {p} CONSUMER GROUP g",
        "SHOW BOOKMARKS ON {p}",
        "ALTER CONSUMER GROUP g ON {p} SEEK TO BOOKMARK now",
        "ALTER CONSUMER GROUP g ON {p} SEEK TO EARLIEST",
        "DROP BOOKMARK now ON {p}",
        "DROP BOOKMARK now ON {p}",
        "SHOW PARKED ON {p} CONSUMER GROUP g",
        "ALTER CONSUMER GROUP g ON {p} RELEASE PARTITION 7",
        "SHOW CHECKPOINTS ON {p}",
        "SELECT count(*) FROM TOPIC {p} CONSUMER GROUP g MEMBER 'm'",
        "SHOW MEMBERS ON {p} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {p} CONSUMER GROUP g",
        "COMMIT OFFSETS ON {p} CONSUMER GROUP g MEMBER 'm'",
        "LEAVE CONSUMER GROUP g ON {p} MEMBER 'm'",
        "DROP CONSUMER GROUP late ON {p}",
        "DROP TOPIC {p}",
        "DROP TOPIC {p} CASCADE",
        "SELECT * FROM TOPIC {p}",
    ),
]


@dataclass(frozen=True, slots=True)
class Told:
    """What a client sees of a statement.

    Args:
        columns: of its rows; none where it has none.
        rows: as texts; None is NULL.
        error: SQLSTATE, message, DETAIL and HINT.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    error: tuple[str | None, ...] = ()

    def lasting(self, step: Step) -> Told:
        """Without what is another each time: times of the day, and the LSNs of a topic's nodes."""
        gone = PASSING | (OF_TOPICS if step.topic else frozenset())
        rows = []
        for row in self.rows:
            named = zip(self.columns, row, strict=True)
            kept = [("#" if value is not None else None) if name in gone else value for name, value in named]
            if self.columns == ("property", "value") and row[0] in gone:
                kept[1] = "#"
            if self.columns == ("QUERY PLAN",):
                kept = [PLAN.sub("#", value or "") for value in row]
            rows.append(tuple(None if value is None else UUID.sub("#", value) for value in kept))
        return Told(self.columns, tuple(rows), tuple(self._words(step)))

    def _words(self, step: Step) -> Iterable[str | None]:
        for words in self.error:
            yield words if words is None or not step.topic else NUMBER.sub("#", words)


UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# Of a plan, what the numbers in the tables make of it: DuckDB packs values by how large they are just now.
PLAN = re.compile(r"\bU?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?\b|[\d ─]+")
NUMBER = re.compile(r"\b\d{1,18}\b")
PASSING = frozenset(
    {
        "lag_seconds",
        "headroom_seconds",
        "age_seconds",
        "committed_at",
        "created_at",
        "joined_at",
        "last_heartbeat",
        "last_read_at",
        "last_commit_at",
        "parked_at",
        "epoch",
    }
)
OF_TOPICS = frozenset(
    {
        "lsn",
        "committed_lsn",
        "end_lsn",
        "first_lsn",
        "last_lsn",
        "from_lsn",
        "to_lsn",
        "position",
        "buffered_from_lsn",
        "created_lsn",
        "bytes",
        "lag_bytes",
        "trimmed_through_lsn",
        "local",
    }
)


def walk(of: Sequence[Step], stream: str, table: str, parked: str) -> list[Step]:
    """The statements of a walk about a stream.

    Args:
        parked: partition and LSN of an event that can be parked.
    """
    return [replace(step, text=step.text.replace("{parked}", parked)).named(stream, table) for step in of]

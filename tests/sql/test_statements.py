"""Every statement of the language: what a text becomes, what it is refused with, and back to a text."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st_

from ducktail.engine.errors import (
    DucktailError,
    InvalidParameterValue,
    InvalidTextRepresentation,
    NotSupported,
    ProgramLimitExceeded,
    SyntaxError_,
    UndefinedParameter,
)
from ducktail.sql.language import statements as st
from ducktail.sql.language.clauses import Option, Options, Secret
from ducktail.sql.language.parse import Query, has_scan, parameter_types, parse
from ducktail.sql.language.position_text import format_positions, parse_after, parse_positions
from ducktail.sql.language.statements import OPENINGS, render_statement
from ducktail.sql.read_shape.shape import shapes_of
from ducktail.sql.statements.runners import RUNNERS
from ducktail.sql.text.units import BYTES_MAX, INTERVAL_MS_MAX, parse_bytes, parse_interval_ms


def name(*parts: str) -> st.Name:
    return st.Name(parts)


P = st.Parameter
HOOK = st.Receiver("webhook", "https://h/p?a=b")
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RETAINED = Options((Option("retention", 86_400_000),))

STATEMENTS: dict[str, st.Statement] = {
    "CREATE STREAM s ON t": st.CreateStream(name("s"), (name("t"),)),
    "create /* a */ change stream -- b\n if not exists S ON TABLE main.T": st.CreateStream(
        name("S"), (name("main", "T"),), if_not_exists=True
    ),
    'CREATE STREAM "a.b"."c""d" ON t (x, "Y z")': st.CreateStream(
        name("a.b", 'c"d'), (name("t"),), columns=("x", "Y z")
    ),
    "CREATE STREAM s ON t OPERATIONS DELETE, INSERT": st.CreateStream(
        name("s"), (name("t"),), operations=("insert", "delete")
    ),
    "CREATE STREAM s ON t APPEND_ONLY = TRUE": st.CreateStream(
        name("s"), (name("t"),), operations=("insert",)
    ),
    "CREATE STREAM s ON t WHERE a IN (SELECT 1) AND b = 'with' OPERATIONS UPDATE": st.CreateStream(
        name("s"),
        (name("t"),),
        operations=("update",),
        where=st.Fragment("a IN (SELECT 1) AND b = 'with'"),
    ),
    "CREATE STREAM s ON a, b.c": st.CreateStream(name("s"), (name("a"), name("b", "c"))),
    "CREATE STREAM s ON ALL TABLES IN SCHEMA n": st.CreateStream(name("s"), (), name("n")),
    "CREATE TOPIC IF NOT EXISTS s": st.CreateTopic(name("s"), if_not_exists=True),
    "ALTER STREAM s RENAME TO s2": st.RenameStream(name("s"), "s2"),
    "ALTER TOPIC s RENAME TO s2": st.RenameTopic(name("s"), "s2"),
    "ALTER STREAM s SET (retention = '1 day')": st.SetStream(name("s"), RETAINED),
    "ALTER TOPIC s SET (retention = '1 day')": st.SetTopic(name("s"), RETAINED),
    "ALTER CONSUMER GROUP g ON s SET (on_gap = 'error')": st.SetGroup(
        "g", name("s"), Options((Option("on_gap", "error"),))
    ),
    "ALTER STREAM s RESYNC": st.ResyncStream(name("s")),
    "COMMENT ON STREAM s IS 'it''s'": st.CommentOnStream(name("s"), "it's"),
    "COMMENT ON TOPIC s IS NULL": st.CommentOnTopic(name("s"), None),
    "DROP STREAM s": st.DropStream(name("s")),
    "DROP CHANGE STREAM IF EXISTS s CASCADE": st.DropStream(name("s"), if_exists=True, cascade=True),
    "DROP TOPIC s": st.DropTopic(name("s")),
    "SHOW STREAMS": st.ShowStreams(),
    "SHOW CHANGE STREAMS LIKE 'a%'": st.ShowStreams(like="a%"),
    "SHOW TOPICS": st.ShowTopics(),
    "SHOW PARTITIONS ON s": st.ShowPartitions(name("s")),
    "SHOW CREATE STREAM s": st.ShowCreateStream(name("s")),
    "DESCRIBE STREAM stream": st.DescribeStream(name("stream")),
    "CHECK STREAM s": st.CheckStream(name("s")),
    "SHOW CHANGES FOR t SINCE '2024-01-01' LIMIT $1": st.ShowChanges(name("t"), "2024-01-01", P(1)),
    "SHOW CHANGES FOR t SINCE 500": st.ShowChanges(name("t"), 500),
    "LISTEN s": st.Listen("s"),
    "UNLISTEN *": st.Unlisten(None),
    "LISTEN Upper": st.Listen("upper"),
    'LISTEN "Upper"': st.Listen("Upper"),
    "NOTIFY c": st.Notify("c", ""),
    "NOTIFY c, 'it''s'": st.Notify("c", "it's"),
    "UNLISTEN s": st.Unlisten("s"),
    "PUBLISH TO s 'payload'": st.Publish(name("s"), st.Fragment("'payload'")),
    "PUBLISH INTO s KEY 'a' || 'b' HEADERS '{}' 'payload'": st.Publish(
        name("s"), st.Fragment("'payload'"), "value", st.Fragment("'a' || 'b'"), st.Fragment("'{}'")
    ),
    "PUBLISH TO s VALUES ('a'), ('b')": st.Publish(name("s"), st.Fragment("VALUES ('a'), ('b')"), "values"),
    "PUBLISH TO s 'p' WITH (sequence = 7, producer = 'x')": st.Publish(
        name("s"), st.Fragment("'p'"), producer="x", sequence=7
    ),
    "PUBLISH TO s KEY $1 HEADERS $2 || $3 $4": st.Publish(
        name("s"), st.Fragment("$4"), "value", st.Fragment("$1"), st.Fragment("$2 || $3")
    ),
    "PUBLISH TO s WITH a AS (SELECT 1) SELECT * FROM a WITH (producer = 'p', sequence = 1)": st.Publish(
        name("s"), st.Fragment("WITH a AS (SELECT 1) SELECT * FROM a"), "select", producer="p", sequence=1
    ),
    "PUBLISH TO s $1 WITH (producer = $2, sequence = $3)": st.Publish(
        name("s"), st.Fragment("$1"), producer=P(2), sequence=P(3)
    ),
    "PUBLISH TO s SELECT x FROM t": st.Publish(name("s"), st.Fragment("SELECT x FROM t"), "select"),
    "CREATE CONSUMER GROUP g ON s": st.CreateGroup("g", name("s")),
    "CREATE CONSUMER GROUP IF NOT EXISTS 'my group' ON s START LATEST": st.CreateGroup(
        "my group", name("s"), st.Place("latest"), if_not_exists=True
    ),
    "CREATE CONSUMER GROUP $1 ON s START AFTER $2": st.CreateGroup(P(1), name("s"), st.Place("after", P(2))),
    "CREATE CONSUMER GROUP g ON s START AFTER '{\"0\": 3}'": st.CreateGroup(
        "g", name("s"), st.Place("after", '{"0": 3}')
    ),
    "CREATE CONSUMER GROUP g ON s START AT TIMESTAMP '2024-01-01'": st.CreateGroup(
        "g", name("s"), st.Place("timestamp", "2024-01-01")
    ),
    "CREATE CONSUMER GROUP g ON s START SNAPSHOT": st.CreateGroup("g", name("s"), st.Place("snapshot")),
    "ALTER CONSUMER GROUP g ON s SEEK TO EARLIEST": st.SeekGroup("g", name("s"), st.EARLIEST),
    "ALTER CONSUMER GROUP g ON s SEEK PARTITION 3 AFTER 17 DRY RUN": st.SeekGroup(
        "g", name("s"), st.Place("after", 17), 3, dry_run=True
    ),
    "ALTER CONSUMER GROUP g ON s SEEK BOOKMARK b": st.SeekGroup("g", name("s"), st.Place("bookmark", "b")),
    "ALTER CONSUMER GROUP g ON s PARK PARTITION 1 AT 5 REASON 'bad'": st.Park("g", name("s"), 1, 5, "bad"),
    "ALTER CONSUMER GROUP g ON s DISCARD PARTITION 1 AT 25": st.Discard("g", name("s"), 1, 25),
    "ALTER CONSUMER GROUP g ON s RELEASE PARTITION 1": st.Release("g", name("s"), 1),
    "DROP CONSUMER GROUP IF EXISTS g ON s": st.DropGroup("g", name("s"), if_exists=True),
    "DESCRIBE CONSUMER GROUP g ON s": st.DescribeGroup("g", name("s")),
    "SHOW CONSUMER GROUPS": st.ShowGroups(),
    "SHOW CONSUMER GROUPS ON s": st.ShowGroups(name("s")),
    "SHOW OFFSETS ON s CONSUMER GROUP g": st.ShowOffsets(name("s"), "g"),
    "SHOW MEMBERS ON s CONSUMER GROUP g": st.ShowMembers(name("s"), "g"),
    "SHOW PARKED ON s CONSUMER GROUP g": st.ShowParked(name("s"), "g"),
    "SHOW READ POSITION ON s CONSUMER GROUP g": st.ShowReadPosition(name("s"), "g"),
    "SHOW READ POSITION ON s CONSUMER GROUP g MEMBER m": st.ShowReadPosition(name("s"), "g", "m"),
    "LEAVE CONSUMER GROUP g ON s MEMBER 'm'": st.LeaveGroup("g", name("s"), "m"),
    "COMMIT OFFSET PARTITION 0 AT 17 ON s CONSUMER GROUP g": st.CommitOffset(name("s"), "g", 0, 17),
    "COMMIT OFFSET PARTITION '0' AT '17' ON s CONSUMER GROUP 'g'": st.CommitOffset(name("s"), "g", 0, 17),
    "COMMIT OFFSET PARTITION $1 AT $2 ON s CONSUMER GROUP $3 MEMBER $4": st.CommitOffset(
        name("s"), P(3), P(1), P(2), P(4)
    ),
    "COMMIT OFFSETS ON s CONSUMER GROUP g": st.CommitOffsets(name("s"), "g"),
    "COMMIT OFFSETS AT '{\"0\": 17}' ON s CONSUMER GROUP 'g'": st.CommitOffsets(name("s"), "g", '{"0": 17}'),
    "COMMIT OFFSETS AT ? ON s CONSUMER GROUP ?": st.CommitOffsets(name("s"), P(2), P(1)),
    "CREATE BOOKMARK b ON s": st.CreateBookmark("b", name("s")),
    "CREATE BOOKMARK b ON s CONSUMER GROUP g": st.CreateBookmark("b", name("s"), "g"),
    "CREATE BOOKMARK b ON s AT '{\"0\": 1}'": st.CreateBookmark("b", name("s"), at='{"0": 1}'),
    "CREATE SINK k ON s TO WEBHOOK 'https://h/p?a=b'": st.CreateSink("k", name("s"), HOOK),
    "CREATE SINK IF NOT EXISTS k ON s START LATEST TO WEBHOOK 'https://h/p?a=b' "
    f"WITH (batch = 5, backoff = '1 s', columns = (lsn, after), secret = '{KEY}', on_park = 'key')": (
        st.CreateSink(
            "k",
            name("s"),
            HOOK,
            st.Place("latest"),
            Options(
                (
                    Option("batch", 5),
                    Option("backoff", 1000),
                    Option("columns", ("lsn", "after")),
                    Option("secret", KEY),
                    Option("on_park", "key"),
                )
            ),
            if_not_exists=True,
        )
    ),
    "ALTER SINK k ON s TO WEBHOOK 'https://h/p?a=b' SET (secret = NULL, timeout = '5 s')": st.AlterSink(
        "k",
        name("s"),
        HOOK,
        Options((Option("secret", Secret("")), Option("timeout", 5000))),
    ),
    "CREATE SINK k ON s TO KAFKA 'b1:9092,[::1]' TOPIC 't' WITH (key = 'none')": st.CreateSink(
        "k", name("s"), st.Receiver("kafka", "b1:9092,[::1]", "t"), options=Options((Option("key", "none"),))
    ),
    "CREATE SINK r ON s TO RABBITMQ 'rabbitmq-stream://u:p%40@h:5552,[::1]:1/%2F' STREAM 'x'": st.CreateSink(
        "r",
        name("s"),
        st.Receiver(
            "rabbitmq", "rabbitmq-stream://h:5552,[::1]:1/%2F", "x", {"username": "u", "password": "p@"}
        ),
    ),
    "ALTER SINK r ON s TO RABBITMQ 'rabbitmq-stream+tls://h:5551/v' STREAM 'x'": st.AlterSink(
        "r", name("s"), st.Receiver("rabbitmq", "rabbitmq-stream+tls://h:5551/v", "x")
    ),
    "ALTER SINK k ON s TO KAFKA 'b1' TOPIC 't'": st.AlterSink(
        "k", name("s"), st.Receiver("kafka", "b1", "t")
    ),
    "DROP SINK IF EXISTS k ON s": st.DropSink("k", name("s"), if_exists=True),
    "PAUSE SINK k ON s": st.PauseSink("k", name("s")),
    "RESUME SINK k ON s": st.ResumeSink("k", name("s")),
    "SHOW SINKS ON s": st.ShowSinks(name("s")),
    "CREATE STREAM s FROM POSTGRES 'host=h dbname=d' TABLE a.t, u WITH (slot = 'x')": st.CreateStream(
        name("s"),
        (name("a", "t"), name("u")),
        options=Options((Option("slot", "x"),)),
        source=st.SourceClause("postgres", "host=h dbname=d"),
    ),
    "CREATE STREAM s FROM POSTGRES 'host=h' PUBLICATION p": st.CreateStream(
        name("s"), (), source=st.SourceClause("postgres", "host=h", publication=name("p"))
    ),
    "CREATE STREAM s FROM MYSQL 'mysql://h/d' SCHEMA d": st.CreateStream(
        name("s"), (), source=st.SourceClause("mysql", "mysql://h/d", schema=name("d"))
    ),
    "PAUSE STREAM s": st.PauseStream(name("s")),
    "ALTER STREAM s ADD TABLE a, b.c": st.AddSourceTables(name("s"), (name("a"), name("b", "c"))),
    "ALTER STREAM s DROP TABLE a": st.DropSourceTables(name("s"), (name("a"),)),
    "ALTER STREAM s SNAPSHOT": st.SnapshotStream(name("s")),
    "ALTER STREAM s SNAPSHOT TABLE a.b WHERE id > 5": st.SnapshotStream(
        name("s"), name("a", "b"), st.Fragment("id > 5")
    ),
    "RESUME STREAM s": st.ResumeStream(name("s")),
    "CREATE TABLE a.t MIRROR OF STREAM s TABLE public.t": st.CreateMirror(
        name("a", "t"), name("s"), name("public", "t")
    ),
    "SHOW SOURCES": st.ShowSources(),
    "SHOW SOURCES ON s": st.ShowSources(name("s")),
    "DROP BOOKMARK b ON s": st.DropBookmark("b", name("s")),
    "SHOW BOOKMARKS ON s": st.ShowBookmarks(name("s")),
    "SHOW CHECKPOINTS": st.ShowCheckpoints(),
    "SHOW NODES": st.ShowNodes(),
    "SHOW PLACEMENT": st.ShowPlacement(),
    "SHOW CONTINUOUS COPIES": st.ShowContinuousCopies(),
    "INSTALL PLACEMENT 'epoch = 1'": st.InstallPlacement("epoch = 1"),
    "REPORT PIPELINE 'p' AS '{}'": st.ReportPipeline("p", "{}"),
    "CREATE USER u PASSWORD 'secret' SUPERUSER": st.CreateUser("u", "secret", superuser=True),
    "ALTER USER u NOSUPERUSER": st.AlterUser("u", superuser=False),
    "ALTER USER u RENAME TO v": st.AlterUser("u", new="v"),
    "DROP USER u": st.DropUser("u"),
    "CREATE TOKEN ci FOR USER u": st.CreateToken("ci", "u"),
    "CREATE TOKEN \"C I\" FOR USER u VALID UNTIL '2030-01-01'": st.CreateToken("C I", "u", "2030-01-01"),
    "DROP TOKEN IF EXISTS ci": st.DropToken("ci", if_exists=True),
    "SHOW TOKENS": st.ShowTokens(),
    "GRANT CONSUME, SELECT ON s TO u": st.Grant(("select", "consume"), "relation", name("s"), "u"),
    "GRANT ALL ON DATABASE TO u": st.Grant(st.PRIVILEGES, "database", None, "u"),
    "REVOKE CREATE ON SCHEMA n FROM u": st.Revoke(("create",), "schema", name("n"), "u"),
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_text_becomes_its_statement(text: str) -> None:
    assert parse(text) == STATEMENTS[text]
    assert parse(text + " ;") == STATEMENTS[text]


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_becomes_a_text_again(text: str) -> None:
    statement = STATEMENTS[text]
    assert parse(render_statement(statement)) == statement


def test_every_opening_has_a_statement_here() -> None:
    first_words = {tuple(text.upper().replace("/* A */ ", "").split()[:4]) for text in STATEMENTS}
    for words in OPENINGS:
        if "CHANGE" in words or words[-1] == "ROLE" or words == ("SHOW", "CREATE", "TOPIC"):
            continue
        assert any(found[: len(words)] == words for found in first_words), words


def test_every_statement_is_here() -> None:
    assert {type(statement) for statement in STATEMENTS.values()} == {row.node for row in st.ROWS}


@pytest.mark.parametrize("row", st.ROWS, ids=lambda row: row.node.__name__)
def test_every_statement_has_a_runner(row: st.Row) -> None:
    # A PUBLISH is run as an INSERT.
    assert row.node in RUNNERS or row.view is not None or row.node is st.Publish
    assert all(OPENINGS[words].grammar is row.grammar for words in row.openings)


def test_options() -> None:
    text = (
        'CREATE STREAM s ON t WITH (Partitions = 4, partition_by = (a, "B c"), before = KEY, '
        "snapshot = 'initial', buffer_bytes = '64 MiB', retention = '7 days', retention_bytes = none, "
        "minimal_changes = 'all', compaction = 'key', tombstone_retention = '1 day')"
    )
    statement = parse(text)
    assert isinstance(statement, st.CreateStream)
    options = statement.options
    assert options.integer("partitions") == 4
    assert options.names("partition_by") == ("a", "B c")
    assert options.text("before") == "key"
    assert options.text("snapshot") == "initial"
    assert options.integer("buffer_bytes") == 64 << 20
    assert options.integer("retention") == 7 * 86_400_000
    assert "retention_bytes" in options
    assert options.integer("retention_bytes") is None
    assert options.position("partitions") == text.index("Partitions") + 1
    assert parse(render_statement(statement)) == statement


@pytest.mark.parametrize("value", ["'a, \"B, c\"'", '(a, "B, c")', "(\"a\", 'B, c')"])
def test_partition_by_is_a_list_or_a_string(value: str) -> None:
    statement = parse(f"CREATE STREAM s ON t WITH (partition_by = {value})")
    assert isinstance(statement, st.CreateStream)
    assert statement.options.names("partition_by") == ("a", "B, c")


def test_snowflake_is_understood() -> None:
    for text in (
        "CREATE STREAM s ON TABLE t APPEND_ONLY = TRUE SHOW_INITIAL_ROWS = TRUE",
        "CREATE STREAM s ON TABLE t WITH (append_only = true, show_initial_rows = true)",
    ):
        statement = parse(text)
        assert isinstance(statement, st.CreateStream)
        assert statement.operations == ("insert",)
        assert statement.options.text("snapshot") == "initial"
    assert parse("CREATE STREAM s ON t APPEND_ONLY = FALSE") == parse("CREATE STREAM s ON t")


# Text with the error's place marked by `^`, its class, and words of the message or hint.
ERRORS = [
    ("CREATE STREAM^", SyntaxError_, "the name of the stream"),
    ("CREATE STREAM s^", SyntaxError_, "CREATE STREAM s ON t"),
    ("CREATE STREAM s ON t ^x", SyntaxError_, "OPERATIONS, WHERE or WITH"),
    ("CREATE STREAM ^select ON t", SyntaxError_, 'near "select"'),
    ('CREATE STREAM ^"" ON t', SyntaxError_, "zero-length"),
    ("CREATE STREAM s ON t WITH (partitions^)", SyntaxError_, "value of partitions"),
    ("CREATE STREAM s ON t WITH (partitions = 4, ^PARTITIONS = 5)", SyntaxError_, "given twice"),
    ("CREATE STREAM s ON t OPERATIONS INSERT, ^TRUNCATE", SyntaxError_, "INSERT, UPDATE or DELETE"),
    ("CREATE STREAM s ON t WHERE^", SyntaxError_, "a predicate"),
    ("CREATE STREAM s ON t WHERE a ^WHERE b", SyntaxError_, "given twice"),
    ("CREATE STREAM s ^(id int) WITH (kafka_topic = 'x')", SyntaxError_, "CREATE STREAM s ON t"),
    ("CREATE STREAM s ^AS SELECT 1", SyntaxError_, "CREATE TABLE first"),
    ("CREATE STREAM s ON ^VIEW v", NotSupported, "behind the view"),
    ("CREATE STREAM s ON t WITH (^partitions = 0)", InvalidParameterValue, "from 1 to 1024"),
    ("CREATE STREAM s ON t WITH (^partitions = 1025)", InvalidParameterValue, "from 1 to 1024"),
    ("CREATE STREAM s ON t WITH (^partitons = 4)", InvalidParameterValue, 'Did you mean "partitions"?'),
    ("CREATE STREAM s ON t WITH (^before = 'ful')", InvalidParameterValue, 'Did you mean "full"?'),
    ("CREATE STREAM s ON t WITH (^buffer_bytes = 5)", InvalidParameterValue, "65536"),
    ("CREATE STREAM s ON t WITH (^buffer_bytes = '1 parsec')", InvalidParameterValue, "64 MiB"),
    ("CREATE STREAM s ON t WITH (^retention = 5)", InvalidParameterValue, "Give a unit"),
    ("CREATE STREAM s ON t WITH (^partition_by = 'a,')", InvalidParameterValue, "list of columns"),
    ("CREATE STREAM s ON t WITH (^on_gap = 'error')", InvalidParameterValue, "unknown option"),
    ("ALTER STREAM s SET (^partitions = 9)", InvalidParameterValue, "fixed for the stream's life"),
    ("CREATE CONSUMER GROUP g^", SyntaxError_, "ON"),
    ("CREATE CONSUMER GROUP g ON s START ^NOW", SyntaxError_, "EARLIEST, LATEST"),
    ("CREATE CONSUMER GROUP g ON s START AFTER ^-1", InvalidParameterValue, "less than 0"),
    ("CREATE CONSUMER GROUP g ON s START AFTER ^'x'", InvalidTextRepresentation, "map of partitions"),
    ("CREATE CONSUMER GROUP ^'' ON s", InvalidParameterValue, "no name"),
    ("CREATE CONSUMER GROUP g ON s WITH (^session_timeout = 30)", InvalidParameterValue, "Give a unit"),
    ("COMMIT OFFSETS ON s^", SyntaxError_, "CONSUMER GROUP"),
    ("COMMIT OFFSETS ^PARTITION 1 AT 5 ON s CONSUMER GROUP g", SyntaxError_, "COMMIT OFFSET PARTITION"),
    ("COMMIT OFFSETS AT ^'17' ON s CONSUMER GROUP g", InvalidTextRepresentation, "map"),
    ("COMMIT OFFSET PARTITION 1 AT ^1.5 ON s CONSUMER GROUP g", SyntaxError_, "an integer"),
    ("COMMIT OFFSET PARTITION 1 AT ^9223372036854775808 ON s CONSUMER GROUP g", InvalidParameterValue, ""),
    ("DROP STREAM s^, t", SyntaxError_, "The form is"),
    ("SHOW OFFSETS ON s CONSUMER GROUP ^$x", SyntaxError_, "$1, $2"),
    ("^SUBSCRIBE TO s", SyntaxError_, "FROM STREAM s CONSUMER GROUP g"),
    ("CREATE ^SUBSCRIPTION x", SyntaxError_, "CREATE CONSUMER GROUP g ON s"),
    ("CREATE ^CHANGEFEED FOR t", SyntaxError_, "CREATE STREAM s ON t"),
    ("^CREATE OR REPLACE STREAM s ON t", NotSupported, "DROP STREAM s"),
    ("SELECT * FROM orders EMIT ^CHANGES", SyntaxError_, "FROM STREAM orders"),
    ("SELECT * FROM main.o CONSUMER ^GROUP g LIMIT 5", SyntaxError_, "FROM STREAM main.o CONSUMER GROUP"),
    ("SELECT * FROM STREAM s PARTITION ^-1", InvalidParameterValue, "less than 0"),
    ("SELECT * FROM STREAM s PARTITION ^'nine'", InvalidTextRepresentation, "invalid integer"),
    ("SELECT * FROM STREAM s PARTITION ^'-1'", InvalidParameterValue, "less than 0"),
    ("SELECT * FROM STREAM s PARTITION ^x", SyntaxError_, "PARTITION takes"),
    ("SELECT * FROM STREAM s PARTITION (1, ^)", SyntaxError_, "an integer"),
    ("SELECT * FROM STREAM s AFTER ^'{\"0\": x}'", InvalidTextRepresentation, "map"),
    ("SELECT * FROM STREAM s CONSUMER GROUP g ^CONSUMER GROUP h", SyntaxError_, "given twice"),
    ("SELECT * FROM STREAM s MEMBER ^'m'", SyntaxError_, "after CONSUMER GROUP g"),
    ("SELECT * FROM STREAM s WAIT ^5", InvalidParameterValue, "Give a unit"),
    ("SELECT * FROM STREAM s WAIT ^'5'", InvalidParameterValue, "Give a unit"),
    ("SELECT * FROM STREAM s WAIT '5 s' FOR ^0", InvalidParameterValue, "less than 1"),
    ("SELECT * FROM STREAM s ENVELOPE ^XML", SyntaxError_, "JSON or CHANGES"),
    ("SELECT * FROM STREAM s ^COMMIT", SyntaxError_, "CONSUMER GROUP g. As an alias"),
    ("SELECT * FROM STREAM s CONSUMER GROUP g COMMIT ^COMMIT", SyntaxError_, "given twice"),
    ("SELECT * FROM STREAM s CONSUMER GROUP g ^COMMIT AFTER 5", NotSupported, "with AFTER"),
    (
        "SELECT * FROM STREAM s CONSUMER GROUP g COMMIT a, ^STREAM s CONSUMER GROUP h COMMIT b",
        NotSupported,
        "several",
    ),
    ("SELECT * FROM STREAM s LIMIT ^-1", InvalidParameterValue, "LIMIT must not be negative"),
    ("SELECT * FROM x: STREAM s ^y", SyntaxError_, "two aliases"),
    ("SELECT * FROM STREAM s PARTITION^", SyntaxError_, "PARTITION takes"),
    ("SELECT * FROM (SELECT * FROM STREAM s AFTER^) x", SyntaxError_, "AFTER takes"),
    ("SELECT * FROM STREAM s consumer ^GROUP BY op", SyntaxError_, "it wants AS"),
    (f"SELECT * FROM STREAM s AFTER ^{'9' * 5000}", InvalidParameterValue, "greater than"),
    (f"SELECT * FROM STREAM s AFTER ^${'9' * 5000}", UndefinedParameter, "no parameter"),
    ("SELECT * FROM STREAM s LIMT ^5", SyntaxError_, 'near "5"'),
    ("^CREATE VIEW v AS SELECT * FROM STREAM s", NotSupported, "retained events"),
    ("^CREATE OR REPLACE MACRO m() AS TABLE SELECT * FROM STREAM s", NotSupported, "macro"),
    ("SELECT * FROM STREAM s ^'", SyntaxError_, "unterminated"),
]


@pytest.mark.parametrize(("marked", "kind", "words"), ERRORS)
def test_errors_have_their_class_their_place_and_a_way_out(
    marked: str, kind: type[DucktailError], words: str
) -> None:
    text = marked.replace("^", "")
    with pytest.raises(kind) as caught:
        parse(text)
    error = caught.value
    assert error.position == marked.index("^") + 1
    assert words in f"{error.message} {error.hint}"
    assert not error.message.endswith(".")
    for sentence in (error.hint, error.detail):
        assert sentence is None or sentence.endswith((".", "?"))


# Scans.


def scan_of(text: str, tables: tuple[str, ...] = ()) -> st.Scan:
    query = parse(text, tables.__contains__)
    assert isinstance(query, Query)
    (scan,) = query.scans
    return scan


def test_a_scan_with_all_its_clauses() -> None:
    text = (
        "SELECT * FROM STREAM a.s WAIT '5 s' FOR 10 AFTER $4 PARTITION ($1, 2) "
        "CONSUMER GROUP $2 MEMBER $3 ENVELOPE CHANGES AS x (l, p) WHERE true"
    )
    scan = scan_of(text)
    assert scan == st.Scan(
        name("a", "s"), 14, text.index(" WHERE"), (P(1), 2), P(2), P(3), P(4), "changes", "5 s", 10,
        alias="x", columns=("l", "p"),
    )  # fmt: skip
    query = parse(text)
    assert parameter_types(query) == {1: "INTEGER", 2: "VARCHAR", 3: "VARCHAR", 4: "VARCHAR"}


def test_a_scan_with_commit() -> None:
    for clauses in ("COMMIT CONSUMER GROUP g MEMBER 'm'", "CONSUMER GROUP g MEMBER 'm' COMMIT"):
        text = f"SELECT * FROM STREAM s {clauses} x"
        end = len(text)
        assert scan_of(text) == st.Scan(name("s"), 14, end, None, "g", "m", alias="x", commits=True)
    assert scan_of("SELECT * FROM STREAM s AS commit").alias == "commit"
    assert scan_of('SELECT * FROM STREAM s "commit"').alias == "commit"
    assert scan_of("SELECT * FROM STREAM s CONSUMER GROUP commit").group == "commit"


def test_parameter_types_of_statements() -> None:
    text = "COMMIT OFFSET PARTITION $1 AT $2 ON s CONSUMER GROUP $3"
    assert parameter_types(parse(text)) == {1: "INTEGER", 2: "BIGINT", 3: "VARCHAR"}
    assert parameter_types(parse("COMMIT OFFSETS AT $2 ON s CONSUMER GROUP $1")) == dict.fromkeys(
        (1, 2), "VARCHAR"
    )
    assert parameter_types(parse("CREATE CONSUMER GROUP $1 ON s START AFTER $2")) == {
        1: "VARCHAR",
        2: "BIGINT",
    }


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("SELECT * FROM STREAM s", "STREAM s"),
        ("FROM stream s x WHERE x.lsn > 3", "stream s x"),
        ('SELECT * FROM /* STREAM a */ STREAM -- b\n s AS "x y" LIMIT 3', 'STREAM -- b\n s AS "x y"'),
        ("SELECT * FROM t JOIN STREAM s ON true", "STREAM s"),
        ("SELECT * FROM t, (STREAM s CONSUMER GROUP g)", "STREAM s CONSUMER GROUP g"),
        ("SELECT * FROM x: STREAM s LIMIT 3", "x: STREAM s"),
        ("PIVOT STREAM s ON op USING count(*)", "STREAM s"),
        ("SELECT 'FROM STREAM t' FROM STREAM partition PARTITION 3", "STREAM partition PARTITION 3"),
        ("SELECT * FROM STREAM s AS consumer GROUP BY op", "STREAM s AS consumer"),
        ('SELECT * FROM STREAM s "after" WHERE "after".lsn > 3', 'STREAM s "after"'),
        ("SELECT * FROM STREAM stream stream", "STREAM stream stream"),
        ("DELETE FROM t USING STREAM s WHERE t.id = s.lsn", "STREAM s"),
        ("EXPLAIN (ANALYZE) SELECT * FROM STREAM s", "STREAM s"),
        ("COPY (SELECT * FROM STREAM s) TO STDOUT (FORMAT csv, HEADER)", "STREAM s"),
        ("SELECT * FROM STREAM 日本 AS \U0001f986 LIMIT 1", "STREAM 日本 AS \U0001f986"),
    ],
)
def test_the_span_of_a_scan(text: str, span: str) -> None:
    assert has_scan(text)
    scan = scan_of(text)
    assert text[scan.start : scan.end] == span


NO_SCANS = [
    "SELECT * FROM stream",
    "SELECT * FROM STREAM WHERE x",
    "SELECT * FROM stream AS x",
    'SELECT * FROM "stream" s',
    "SELECT * FROM main.stream s",
    "SELECT stream, topic, partition, after FROM t",
    "SELECT a, stream b, topic c FROM t",
    "SELECT x IS DISTINCT FROM stream y FROM t",
    "SELECT extract(year FROM stream), f(stream) FROM t",
    "INSERT INTO stream VALUES (1)",
    "UPDATE stream SET x = 1",
    "SELECT * FROM t ORDER BY stream, topic DESC",
    "SELECT 'FROM STREAM s'",
    "SELECT 1 -- FROM STREAM s",
    "WITH stream AS (SELECT 1) SELECT * FROM stream s",
    'WITH RECURSIVE a AS (SELECT 1), "stream"(x) AS (SELECT 2) SELECT * FROM stream s',
    "SELECT * FROM stream(5)",
    "SELECT * FROM t PIVOT (stream s FOR x IN (1))",
    "SELECT emit changes FROM t",
    "SELECT * FROM orders consumer GROUP BY x",
]


@pytest.mark.parametrize("text", NO_SCANS)
def test_what_is_no_scan(text: str) -> None:
    query = parse(text)
    assert isinstance(query, Query)
    assert query.scans == ()


def test_ordinary_texts_are_not_looked_at() -> None:
    for text in ("SELECT 1", "SELECT stream FROM t", "INSERT INTO t VALUES ('stream')", "SELECT emit FROM x"):
        assert not has_scan(text)


def test_a_table_called_stream_hides_a_scan_without_clauses() -> None:
    both = ("stream", "topic")
    for text in (
        "SELECT * FROM stream s",
        "SELECT * FROM stream partition",
        "SELECT * FROM topic t, stream s",
    ):
        query = parse(text, both.__contains__)
        assert isinstance(query, Query)
        assert query.scans == ()
    assert scan_of("SELECT * FROM stream s PARTITION 3", both).partitions == (3,)
    assert scan_of("SELECT * FROM STREAM s CONSUMER GROUP g", both).group == "g"
    assert scan_of("SELECT * FROM topic t, stream s AFTER 5", both).after == 5
    assert scan_of("SELECT * FROM STREAM s", ("topic",)).stream == name("s")


def test_what_sqlglot_does_not_know_is_left_to_duckdb() -> None:
    query = parse("SELECT * FROM STREAM s WHERE #!")
    assert isinstance(query, Query)
    assert query.tree is None
    assert query.problem is not None and query.problem.sqlstate == "42601"


def test_a_deep_text_does_no_harm() -> None:
    for text in (
        "SELECT " + "(" * 1000 + "1" + ")" * 1000 + " FROM STREAM s",
        "SELECT * FROM STREAM s WHERE " + " OR ".join(f"partition = {n}" for n in range(5000)),
        "SELECT * FROM " + "(SELECT * FROM " * 500 + "STREAM s" + ")" * 500,
    ):
        query = parse(text)
        assert isinstance(query, Query)
        assert len(query.scans) == 1
    with pytest.raises(ProgramLimitExceeded):
        parse("SELECT " + "(" * 1001 + "1" + ")" * 1001)


WORDS = sorted({word for text in (*STATEMENTS, *NO_SCANS) for word in text.split()})


@given(st_.lists(st_.sampled_from([*WORDS, "(", ")", ",", "'", "LIMIT", "-1", "STREAM", "FROM", "INSERT"])))
@settings(max_examples=300, deadline=None)
def test_any_text_is_answered(words: list[str]) -> None:
    text = " ".join(words)
    with suppress(DucktailError):
        has_scan(text)
        parsed = parse(text)
        parameter_types(parsed)
        if isinstance(parsed, Query):
            assert len(shapes_of(parsed)) == len(parsed.scans)


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN (ANALYZE, FORMAT g SELECT * FROM STREAM s CONSUMER GROUP g LIMIT",
        "SELECT upper(op), (SELECT x FROM t) FROM STREAM s CONSUMER GROUP INSERT LIMIT 3",
        "COPY (SELECT * FROM STREAM s",
        f"SELECT * FROM STREAM s ORDER BY {'1' * 5000} LIMIT {'9' * 5000}",
        f"SELECT * FROM STREAM s WHERE partition = {'9' * 5000}",
        "CREATE TABLE t b SELECT * FROM STREAM s",
    ],
)
def test_broken_texts(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with suppress(DucktailError):
        parsed = parse(text)
        assert isinstance(parsed, Query)
        shapes_of(parsed)
    assert not caplog.records


# Units and positions.


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("7d", 604_800_000),
        ("30 s", 30_000),
        ("5 min", 300_000),
        ("500 ms", 500),
        ("1 day 02:00:00", 93_600_000),
        ("02:30", 9_000_000),
        ("1.5 hours", 5_400_000),
        ("1 hour, 30 minutes", 5_400_000),
        ("1 mon", 30 * 86_400_000),
        ("1500 us", 1),
        ("PT1H30M", 5_400_000),
        ("P1DT1S", 86_401_000),
        ("0 s", 0),
    ],
)
def test_intervals(text: str, milliseconds: int) -> None:
    assert parse_interval_ms(text) == milliseconds
    assert parse_interval_ms(f" {text} ") == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "5.5", "-5 s", "5 x", "s", "5 s 3", "1:2:3:4", "P", "PT", "1 day ago", "٣ s", "9e9 s"],
)
def test_bad_intervals(text: str) -> None:
    with pytest.raises(InvalidParameterValue) as caught:
        parse_interval_ms(text)
    assert caught.value.hint is not None and "30 s" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("64 MiB", 64 << 20),
        ("10 GB", 10**10),
        ("1.5kB", 1500),
        ("1 TiB", 1 << 40),
        (" 7 bytes ", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "5 parsec", "-1", "1 2", "1e3"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InvalidParameterValue):
        parse_bytes(text)


def test_units_have_bounds() -> None:
    with pytest.raises(InvalidParameterValue, match="too long"):
        parse_interval_ms(f"{INTERVAL_MS_MAX + 1} ms")
    with pytest.raises(InvalidParameterValue, match="too large"):
        parse_bytes(f"{(BYTES_MAX >> 40) + 1} TiB")
    with pytest.raises(InvalidParameterValue):
        parse_interval_ms("9" * 10_000 + " s")


def test_positions() -> None:
    assert parse_positions(' {"0": 17, "12": 0} ') == {0: 17, 12: 0}
    assert parse_positions("{}") == {}
    assert parse_positions(format_positions({3: 1, 0: 2})) == {0: 2, 3: 1}
    assert parse_after("17") == parse_after(17) == 17
    assert parse_after('{"0": 1}') == {0: 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "[]",
        "null",
        '{"a": 1}',
        '{"0": -1}',
        '{"0": 1.5}',
        '{"0": "1"}',
        '{"0": true}',
        '{"0": 9223372036854775808}',
        '{"0": 1, "0": 2}',
        '{"0": 1, "00": 2}',
        '{"0": NaN}',
        '{"0": {"1": 2}}',
        "[" * 100_000,
        '{"0": ' + "9" * 10_000 + "}",
    ],
)
def test_bad_positions(text: str) -> None:
    with pytest.raises(InvalidTextRepresentation):
        parse_positions(text)

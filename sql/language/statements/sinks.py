"""Statements about sinks. Source: docs/sql.md, "Sinks"."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ....engine.catalog import rabbitmq_url
from ....engine.catalog.brokers import BROKERS_MAX, HOST, KAFKA_PORT, is_port, parsed_brokers
from ....engine.catalog.sinks import KAFKA, PASSWORD, RABBITMQ, USERNAME, WEBHOOK
from ....engine.errors import InvalidParameterValue
from ....engine.quoting import ident
from .. import clauses
from ..clauses import Name, Options, name_sql, scalar_sql
from ..grammar import Grammar, collected
from .groups import EARLIEST, Place, place_sql, start_place
from .row import Effect, InCluster, Right, Row, Statement, View

# Longer URLs are refused by many servers; the brokers of a cluster have the same bound.
URL_CHARS_MAX = 2048
# Scheme, host, port and path with query; neither user names nor fragments, and ASCII only.
_URL = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{HOST})(?::(?P<port>[0-9]{{1,5}}))?(?:[/?][\x21\x22\x24-\x7e]*)?",
    re.IGNORECASE,
)

# The longest name of a stream.
NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of a sink's events.

    Args:
        kind: the kind of receiver, one of `engine.catalog.sinks.KINDS`.
        address: its URL, or the brokers of its cluster.
        place: the topic or the stream at this address; None for a kind that has one place only.
        secrets: the options that the statement gave within the address.
    """

    kind: str
    address: str
    place: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class CreateSink(Statement):
    """CREATE SINK name ON stream TO receiver."""

    name: str
    stream: Name
    receiver: Receiver
    start: Place = EARLIEST
    options: Options = Options()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterSink(Statement):
    """ALTER SINK name ON stream: another receiver, other options, or both."""

    name: str
    stream: Name
    receiver: Receiver | None = None
    options: Options = Options()

    def __post_init__(self) -> None:
        assert self.receiver is not None or self.options.given


@dataclass(frozen=True, slots=True)
class DropSink(Statement):
    """DROP SINK name ON stream."""

    name: str
    stream: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class PauseSink(Statement):
    """PAUSE SINK name ON stream."""

    name: str
    stream: Name


@dataclass(frozen=True, slots=True)
class ResumeSink(Statement):
    """RESUME SINK name ON stream."""

    name: str
    stream: Name


@dataclass(frozen=True, slots=True)
class ShowSinks(Statement):
    """SHOW SINKS; `stream` None is all streams."""

    stream: Name | None = None


def hosts_of(receiver: Receiver) -> tuple[str, ...]:
    """The hosts of a receiver that a statement has accepted."""
    if receiver.kind == WEBHOOK:
        found = _URL.fullmatch(receiver.address)
        return () if found is None else (found["host"],)
    if receiver.kind == RABBITMQ:
        found_url = rabbitmq_url.parsed(receiver.address)
        brokers = None if found_url is None else found_url[0].brokers
    else:
        brokers = parsed_brokers(receiver.address, KAFKA_PORT)
    assert brokers is not None, "the grammar has accepted them"
    return tuple(host for host, _ in brokers)


def _webhook(g: Grammar) -> Receiver:
    """'https://...'; WEBHOOK has been read."""
    position = g.position
    url = g.literal("the URL of the webhook")
    found = _URL.fullmatch(url)
    if found is None or len(url) > URL_CHARS_MAX or not is_port(found["port"]):
        raise InvalidParameterValue(
            "the URL of the webhook is not valid",
            hint="Write https://host/path, in ASCII, without user name and fragment; "
            "the option headers takes an Authorization.",
            position=position,
        )
    return Receiver(WEBHOOK, url)


def _kafka(g: Grammar) -> Receiver:
    """'host:9092,...' TOPIC 't'; KAFKA has been read."""
    position = g.position
    brokers = g.literal("the brokers of the Kafka cluster")
    if len(brokers) > URL_CHARS_MAX or parsed_brokers(brokers, KAFKA_PORT) is None:
        raise InvalidParameterValue(
            "the brokers of the Kafka cluster are not valid",
            hint=f"Write host:port, or up to {BROKERS_MAX} separated by commas and without spaces.",
            position=position,
        )
    g.expect("TOPIC")
    position = g.position
    topic = g.literal("the name of the topic")
    if clauses.KAFKA_TOPIC.fullmatch(topic) is None:
        raise InvalidParameterValue(
            "the name of the topic is not valid",
            hint="Kafka allows up to 249 letters, digits, dots, underscores and hyphens.",
            position=position,
        )
    return Receiver(KAFKA, brokers, topic)


def _rabbitmq(g: Grammar) -> Receiver:
    """'rabbitmq-stream://...' STREAM 'x'; RABBITMQ has been read."""
    position = g.position
    text = g.literal("the URL of the brokers")
    found = rabbitmq_url.parsed(text) if len(text) <= URL_CHARS_MAX else None
    if found is None:
        raise InvalidParameterValue(
            "the URL of the brokers is not valid",
            hint="Write rabbitmq-stream://user:password@host:5552,host:5552/vhost, or "
            "rabbitmq-stream+tls://..., with special characters as %2F.",
            position=position,
        )
    g.expect("STREAM")
    position = g.position
    stream = g.literal("the name of the stream")
    if not 1 <= len(stream.encode()) <= NAME_BYTES_MAX or not stream.isprintable():
        raise InvalidParameterValue(
            "the name of the stream is not valid",
            hint=f"RabbitMQ allows up to {NAME_BYTES_MAX} bytes.",
            position=position,
        )
    url, credentials = found
    secrets = {} if credentials is None else dict(zip((USERNAME, PASSWORD), credentials, strict=True))
    return Receiver(RABBITMQ, url.text(), stream, secrets)


# The word of a kind after TO -> the grammar of what follows.
_RECEIVERS: Mapping[str, Callable[[Grammar], Receiver]] = {
    "WEBHOOK": _webhook,
    "KAFKA": _kafka,
    "RABBITMQ": _rabbitmq,
}
# The word before the place of a receiver that has several.
_PLACE_WORDS = {KAFKA: "TOPIC", RABBITMQ: "STREAM"}


def _receiver(g: Grammar) -> Receiver:
    """WEBHOOK 'https://...' or another kind of receiver; TO has been read."""
    for word, receiver in _RECEIVERS.items():
        if g.accept(word):
            return receiver(g)
    raise g.expected(" or ".join(_RECEIVERS))


def _named(g: Grammar) -> tuple[str, Name]:
    return g.simple_name("the name of the sink"), g.on_stream()


def create_sink(g: Grammar) -> Statement:
    """CREATE SINK [IF NOT EXISTS] k ON s [START place] TO receiver [WITH (...)]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name, stream = _named(g)
    start = start_place(g) if g.accept("START") else EARLIEST
    g.expect("TO")
    receiver = _receiver(g)
    options = collected(g.options("sink")) if g.accept("WITH") else Options()
    return CreateSink(name, stream, receiver, start, options, exists)


def alter_sink(g: Grammar) -> Statement:
    """ALTER SINK k ON s [TO receiver] [SET (...)]"""
    name, stream = _named(g)
    receiver = _receiver(g) if g.accept("TO") else None
    options = collected(g.options("sink")) if g.accept("SET") else Options()
    if receiver is None and not options.given:
        raise g.expected("TO and a receiver, or SET (option = value, ...)")
    return AlterSink(name, stream, receiver, options)


def drop_sink(g: Grammar) -> Statement:
    """DROP SINK [IF EXISTS] k ON s"""
    exists = g.accept("IF", "EXISTS")
    name, stream = _named(g)
    return DropSink(name, stream, exists)


def pause_sink(g: Grammar) -> Statement:
    """PAUSE SINK k ON s"""
    return PauseSink(*_named(g))


def resume_sink(g: Grammar) -> Statement:
    """RESUME SINK k ON s"""
    return ResumeSink(*_named(g))


def show_sinks(g: Grammar) -> Statement:
    """SHOW SINKS [ON s]"""
    return ShowSinks(g.perhaps_on_stream())


def _on(name: str, stream: Name) -> str:
    return f"{ident(name)} ON {name_sql(stream)}"


def _receiver_sql(receiver: Receiver | None) -> str:
    if receiver is None:
        return ""
    address = receiver.address
    if receiver.secrets:
        user, password = (rabbitmq_url.encoded(receiver.secrets[name]) for name in (USERNAME, PASSWORD))
        address = address.replace("://", f"://{user}:{password}@", 1)
    written = f"TO {receiver.kind.upper()} {scalar_sql(address)}"
    if receiver.place is None:
        return written
    return f"{written} {_PLACE_WORDS[receiver.kind]} {scalar_sql(receiver.place)}"


def _create_sql(s: CreateSink) -> str:
    return clauses.words(
        "CREATE SINK",
        clauses.when(s.if_not_exists, "IF NOT EXISTS"),
        _on(s.name, s.stream),
        clauses.when(s.start.kind != "earliest", f"START {place_sql(s.start)}"),
        _receiver_sql(s.receiver),
        clauses.options_clause(s.options),
    )


def _alter_sql(s: AlterSink) -> str:
    options = clauses.options_clause(s.options, "SET")
    return clauses.words(f"ALTER SINK {_on(s.name, s.stream)}", _receiver_sql(s.receiver), options)


ROWS = (
    Row(
        CreateSink,
        "CREATE SINK",
        Right.CREATE_SINK,
        Effect.WRITES,
        InCluster.OWNER,
        create_sink,
        "CREATE SINK [IF NOT EXISTS] k ON s [START ...] "
        "TO {WEBHOOK 'https://...' | KAFKA 'host:9092' TOPIC 't' | "
        "RABBITMQ 'rabbitmq-stream://...' STREAM 'x'} [WITH (...)]",
        _create_sql,
    ),
    Row(
        AlterSink,
        "ALTER SINK",
        Right.CREATE_SINK,
        Effect.WRITES,
        InCluster.OWNER,
        alter_sink,
        "ALTER SINK k ON s [TO {WEBHOOK 'https://...' | KAFKA 'host:9092' TOPIC 't' | "
        "RABBITMQ 'rabbitmq-stream://...' STREAM 'x'}] [SET (...)]",
        _alter_sql,
    ),
    Row(
        DropSink,
        "DROP SINK",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        drop_sink,
        "DROP SINK [IF EXISTS] k ON s",
        lambda s: clauses.drop("DROP SINK", s.if_exists, _on(s.name, s.stream)),
    ),
    Row(
        PauseSink,
        "PAUSE SINK",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        pause_sink,
        "PAUSE SINK k ON s",
        lambda s: f"PAUSE SINK {_on(s.name, s.stream)}",
    ),
    Row(
        ResumeSink,
        "RESUME SINK",
        Right.CREATE_SINK,
        Effect.WRITES,
        InCluster.OWNER,
        resume_sink,
        "RESUME SINK k ON s",
        lambda s: f"RESUME SINK {_on(s.name, s.stream)}",
    ),
    Row(
        ShowSinks,
        "SHOW SINKS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ALL_NODES,
        show_sinks,
        "SHOW SINKS [ON s]",
        lambda s: clauses.perhaps_on("SHOW SINKS", s.stream),
        View(
            "sinks",
            "schema_name, stream_name, sink_name, kind, target, state, reason, lag_events, in_flight, "
            "delivered_events, parked_events, failed_requests, last_delivered_at, fault, fault_at, "
            "changed_at, owner, options",
        ),
    ),
)

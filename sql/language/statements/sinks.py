"""Statements about sinks. Source: docs/sql.md, "Sinks"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ....engine.catalog.sinks import WEBHOOK
from ....engine.errors import InvalidParameterValue
from ....engine.quoting import ident
from .. import clauses
from ..clauses import Name, Options, name_sql, scalar_sql
from ..grammar import Grammar, collected
from .groups import EARLIEST, Place, place_sql, start_place
from .row import Effect, InCluster, Right, Row, Statement, View

# Longer URLs are refused by many servers.
URL_CHARS_MAX = 2048
# Scheme, host, port and path with query; neither user names nor fragments, and ASCII only.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:[/?][\x21\x22\x24-\x7e]*)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of a sink's events: its kind, and its address."""

    kind: str
    address: str


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


def host_of(url: str) -> str:
    """The host of a URL that a statement has accepted, in brackets if it is an IPv6 address."""
    found = _URL.fullmatch(url)
    assert found is not None
    return found["host"]


def _receiver(g: Grammar) -> Receiver:
    """WEBHOOK 'https://...'; TO has been read."""
    g.expect("WEBHOOK")
    position = g.position
    url = g.literal("the URL of the webhook")
    found = _URL.fullmatch(url)
    port = None if found is None else found["port"]
    if found is None or len(url) > URL_CHARS_MAX or (port is not None and not 0 < int(port) < 1 << 16):
        raise InvalidParameterValue(
            "the URL of the webhook is not valid",
            hint="Write https://host/path, in ASCII, without user name and fragment; "
            "the option headers takes an Authorization.",
            position=position,
        )
    return Receiver(WEBHOOK, url)


def _named(g: Grammar) -> tuple[str, Name]:
    return g.simple_name("the name of the sink"), g.on_stream()


def create_sink(g: Grammar) -> Statement:
    """CREATE SINK [IF NOT EXISTS] k ON s [START place] TO WEBHOOK 'url' [WITH (...)]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name, stream = _named(g)
    start = start_place(g) if g.accept("START") else EARLIEST
    g.expect("TO")
    receiver = _receiver(g)
    options = collected(g.options("sink")) if g.accept("WITH") else Options()
    return CreateSink(name, stream, receiver, start, options, exists)


def alter_sink(g: Grammar) -> Statement:
    """ALTER SINK k ON s [TO WEBHOOK 'url'] [SET (...)]"""
    name, stream = _named(g)
    receiver = _receiver(g) if g.accept("TO") else None
    options = collected(g.options("sink")) if g.accept("SET") else Options()
    if receiver is None and not options.given:
        raise g.expected("TO WEBHOOK 'https://...' or SET (option = value, ...)")
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
    return "" if receiver is None else f"TO {receiver.kind.upper()} {scalar_sql(receiver.address)}"


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
        "CREATE SINK [IF NOT EXISTS] k ON s [START ...] TO WEBHOOK 'https://...' [WITH (...)]",
        _create_sql,
    ),
    Row(
        AlterSink,
        "ALTER SINK",
        Right.CREATE_SINK,
        Effect.WRITES,
        InCluster.OWNER,
        alter_sink,
        "ALTER SINK k ON s [TO WEBHOOK 'https://...'] [SET (...)]",
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

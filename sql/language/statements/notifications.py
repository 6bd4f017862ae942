"""LISTEN, NOTIFY and UNLISTEN. Source: docs/sql.md, "Notifications"."""

from __future__ import annotations

from dataclasses import dataclass

from ....engine.quoting import fold, ident, literal
from ...text.tokens import QUOTED
from ..grammar import STRING, Grammar
from .row import Effect, InCluster, Right, Row, Statement


@dataclass(frozen=True, slots=True)
class Listen(Statement):
    """LISTEN channel."""

    channel: str


@dataclass(frozen=True, slots=True)
class Notify(Statement):
    """NOTIFY channel, payload; '' without a payload."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Unlisten(Statement):
    """UNLISTEN channel; None means all channels."""

    channel: str | None


def _channel(g: Grammar, what: str) -> str:
    """A channel's name: small letters unless quoted, as in PostgreSQL."""
    quoted = g.peek() == QUOTED
    name = g.simple_name(what)
    return name if quoted else fold(name)


def listen(g: Grammar) -> Statement:
    """LISTEN channel"""
    return Listen(_channel(g, "the name of a stream or channel"))


def unlisten(g: Grammar) -> Statement:
    """UNLISTEN { channel | * }"""
    return Unlisten(None if g.accept("*") else _channel(g, "the name of a stream or channel, or *"))


def notify(g: Grammar) -> Statement:
    """NOTIFY channel [, 'payload']"""
    channel = _channel(g, "the name of a channel")
    if not g.accept(","):
        return Notify(channel, "")
    if g.peek() != STRING:
        raise g.expected("a payload: a string")
    return Notify(channel, g.take().value)


ROWS = (
    Row(
        Listen,
        "LISTEN",
        Right.CHECKED_BY_RUNNER,
        Effect.TRANSIENT,
        InCluster.ENTRY_NODE,
        listen,
        "LISTEN channel",
        lambda s: f"LISTEN {ident(s.channel)}",
    ),
    Row(
        Unlisten,
        "UNLISTEN",
        Right.CHECKED_BY_RUNNER,
        Effect.TRANSIENT,
        InCluster.ENTRY_NODE,
        unlisten,
        "UNLISTEN { channel | * }",
        lambda s: f"UNLISTEN {'*' if s.channel is None else ident(s.channel)}",
    ),
    Row(
        Notify,
        "NOTIFY",
        Right.CHECKED_BY_RUNNER,
        Effect.TRANSIENT,
        InCluster.ENTRY_NODE,
        notify,
        "NOTIFY channel [, 'payload']",
        lambda s: f"NOTIFY {ident(s.channel)}" + (f", {literal(s.payload)}" if s.payload else ""),
    ),
)

"""Sinks: the definitions of what ducktail delivers to receivers outside, as frozen values of the catalog.

A sink is a consumer group with a receiver. The group, which has the sink's name, has its positions, parked
events and rights; a sink adds where its events go, and whether they do now. Secrets are kept apart from the
options: they are shown nowhere. Source: docs/sinks.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..schema import SINKS

WEBHOOK, KAFKA, RABBITMQ = "webhook", "kafka", "rabbitmq"
# A sink delivers, was paused by a user, or has stopped by itself, for a reason that needs a user.
RUNNING, PAUSED, STOPPED = "running", "paused", "stopped"
# The option with the keys of signatures, and the one with headers, whose values may be tokens.
SECRET, HEADERS = "secret", "headers"
# The user at a receiver, and the password.
USERNAME, PASSWORD = "username", "password"
# The places at receivers that have several: they are stored as options, and written as clauses of their own.
TOPIC, STREAM = "topic", "stream"

Value = int | str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of receiver.

    Args:
        library: the module that sends to it, which is not a requirement of ducktail.
        extra: ducktail's extra that installs it.
        defaults: its options with their defaults; times in milliseconds, None is all columns.
        secrets: the options that are shown nowhere, and have no default.
        place: the option that is the place at the receiver; None for a kind that has one place only.
    """

    library: str
    extra: str
    defaults: Mapping[str, Value]
    secrets: tuple[str, ...]
    place: str | None = None


# The options that the runner of each sink uses.
_DELIVERY: Mapping[str, Value] = {
    "backoff": 1_000,
    "backoff_max": 60_000,
    "timeout": 15_000,
    "on_failure": "park",
    "envelope": "events",
    "columns": None,
}
KINDS: Mapping[str, Kind] = {
    WEBHOOK: Kind(
        "aiohttp", "http", {"batch": 100, "max_in_flight": 8, "attempts": 8, **_DELIVERY}, (SECRET, HEADERS)
    ),
    KAFKA: Kind(
        "confluent_kafka",
        "kafka",
        {
            "batch": 1_000,
            "max_in_flight": 8,
            **_DELIVERY,
            "timeout": 30_000,
            TOPIC: "",
            "key": "event",
            "acks": "all",
            "compression": "none",
            "transactional": "false",
            "positions": "ducktail.positions",
            "security_protocol": "plaintext",
            "sasl_mechanism": "plain",
            "sasl_username": None,
            "ssl_ca": None,
            "ssl_certificate": None,
        },
        ("sasl_password", "ssl_key"),
        TOPIC,
    ),
    RABBITMQ: Kind(
        "rstream",
        "rabbitmq",
        {"batch": 1_000, "max_in_flight": 8, **_DELIVERY, STREAM: "", "ssl_ca": None},
        (USERNAME, PASSWORD),
        STREAM,
    ),
}

_COLUMNS = "group_id, uid, kind, target, options, secrets, state, reason, epoch_us(changed_at)"
_SHOWN_TARGET = re.compile(r"[^?#]*")


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink.

    Args:
        group_id: its consumer group, which has its name.
        uid: identifies it for receivers, in the ids of its deliveries.
        kind: the kind of receiver, one of KINDS.
        target: the receiver's address: a URL, or the brokers of a cluster.
        options: its options without secrets; an absent one has its default (`Kind.defaults`).
        secrets: the options that are shown nowhere (`Kind.secrets`); `headers` is JSON text.
        state: RUNNING, PAUSED or STOPPED.
        reason: the reason of a stop; None otherwise.
        changed_us: the time of the last change of its state, microseconds since 1970.
    """

    group_id: int
    uid: str
    kind: str
    target: str
    options: Mapping[str, Value]
    secrets: Mapping[str, str] = field(repr=False)
    state: str = RUNNING
    reason: str | None = None
    changed_us: int = 0

    def __post_init__(self) -> None:
        assert self.kind in KINDS
        assert self.state in (RUNNING, PAUSED, STOPPED)
        assert set(self.options) <= set(KINDS[self.kind].defaults), self.options
        assert set(self.secrets) <= set(KINDS[self.kind].secrets)

    @property
    def shown_target(self) -> str:
        """The target without a URL's query, in which some receivers expect a token; and the place there."""
        place = KINDS[self.kind].place
        if place is not None:
            return f"{self.target}/{self.text(place)}"
        found = _SHOWN_TARGET.match(self.target)
        assert found is not None
        return found[0] if found[0] == self.target else f"{found[0]}?..."

    def integer(self, name: str) -> int:
        """The value of an option that is a count or a time in milliseconds."""
        value = self._value(name)
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> str:
        """The value of an option that is a word."""
        value = self._value(name)
        assert isinstance(value, str)
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """The value of an option that is a list of names; None for all."""
        value = self._value(name)
        assert value is None or isinstance(value, tuple)
        return value

    def text_or_none(self, name: str) -> str | None:
        """The value of an option that is a text or absent."""
        value = self._value(name)
        assert value is None or isinstance(value, str)
        return value

    def _value(self, name: str) -> Value:
        return self.options.get(name, KINDS[self.kind].defaults[name])

    @property
    def headers(self) -> dict[str, str]:
        """Additional headers of its requests."""
        found: dict[str, str] = json.loads(self.secrets.get(HEADERS, "{}"))
        return found

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its signatures, as in the option `secret`."""
        return tuple(self.secrets.get(SECRET, "").split())

    def options_text(self) -> str:
        """All its options as JSON: secrets by number or name, headers by name."""
        told: dict[str, object] = {name: self._value(name) for name in KINDS[self.kind].defaults}
        if self.kind == WEBHOOK:
            told["secrets"] = len(self.keys)
            told[HEADERS] = sorted(self.headers)
        else:
            told["secrets"] = sorted(self.secrets)
        return json.dumps(told)

    def stored(self) -> list[object]:
        """The values of its row, in the order of the table's columns."""
        options, secrets = json.dumps(dict(self.options)), json.dumps(dict(self.secrets))
        return [self.group_id, self.uid, self.kind, self.target, options, secrets, self.state, self.reason]


def select_sql() -> str:
    """The SELECT of all sinks, for `sink_of`."""
    return f"SELECT {_COLUMNS} FROM ducktail.{SINKS} ORDER BY group_id"


def sink_of(row: tuple[int, str, str, str, str, str, str, str | None, int]) -> Sink:
    """The sink of a row of `select_sql`."""
    group_id, uid, kind, target, options, secrets, state, reason, changed_us = row
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(options).items()}
    return Sink(group_id, uid, kind, target, found, json.loads(secrets), state, reason, changed_us)

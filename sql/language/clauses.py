"""The clauses that statements share: values, options, and their rendering as SQL.

The values are parameters, names and pieces of the user's text. Each option of WITH (...) and SET (...) has
one row with the rule for its value: an unknown option or an invalid value raises 22023, whose message lists
the
known ones and asks "did you mean". No option is read and ignored. Source: docs/sql.md, "Streams", "Consumer
groups".
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...engine.errors import InvalidParameterValue, SyntaxError_
from ...engine.quoting import fold, ident, literal
from ...engine.values.dates_times import duration_text
from ..text.units import parse_bytes, parse_interval_ms


@dataclass(frozen=True, slots=True)
class Parameter:
    """The statement's parameter `$index`, from 1."""

    index: int

    def __post_init__(self) -> None:
        assert self.index >= 1


Number = int | Parameter
Text = str | Parameter
Scalar = int | str | Parameter


@dataclass(frozen=True, slots=True)
class Name:
    """A name with its qualifiers, outermost first: ("main", "orders")."""

    parts: tuple[str, ...]
    position: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        assert self.parts and all(self.parts)

    @property
    def last(self) -> str:
        """The name without its qualifiers."""
        return self.parts[-1]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of the user's own text, such as a predicate, and its position."""

    text: str
    position: int = field(default=0, compare=False)


Value = int | str | bool | tuple[str, ...] | None

PARTITIONS_MAX = 1024
# A smaller buffer holds too few events to be worth its bookkeeping.
BUFFER_BYTES_MIN = 64 << 10
BUFFER_BYTES_MAX = 1 << 40
# A shorter retention would trim events before a group that polls once a second has seen them.
RETENTION_MS_MIN = 1000
# A member must be able to miss one heartbeat without losing its partitions.
SESSION_TIMEOUT_MS_MIN = 1000
# More attempts only repeat what has failed.
MAX_DELIVERIES_MAX = 1000
# The longest pause between two attempts of a sink, and the longest time for an answer.
SINK_WAIT_MS_MAX, SINK_TIMEOUT_MS_MAX = 3_600_000, 600_000


# A secret of Standard Webhooks has 24 to 64 bytes, in base64 after this prefix.
SECRET_PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
# Two keys while receivers change from one to the other; more would only be forgotten.
KEYS_MAX = 4
# Header fields that a sink writes itself, or that belong to the connection.
OWN_HEADERS = frozenset({
    "connection", "content-length", "content-type", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
HEADERS_MAX, HEADERS_CHARS_MAX = 32, 8192


class Secret(str):
    """A text that no error, log or representation shows."""

    def __repr__(self) -> str:
        return "'...'"


@dataclass(frozen=True, slots=True)
class Raw:
    """A value as written: its kind is 'string', 'number', 'word', 'list' or 'null'."""

    kind: str
    text: str
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One option with its value: int (milliseconds, bytes, counts), str, names or None."""

    name: str
    value: Value
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Options:
    """The options in a statement; each at most once."""

    given: tuple[Option, ...] = ()

    def __post_init__(self) -> None:
        assert len({option.name for option in self.given}) == len(self.given)

    def __iter__(self) -> Iterator[Option]:
        return iter(self.given)

    def __contains__(self, name: str) -> bool:
        return any(option.name == name for option in self.given)

    def position(self, name: str) -> int | None:
        """The position of the option in the text, from 1."""
        return next((option.position or None for option in self.given if option.name == name), None)

    def _value(self, name: str) -> Value:
        return next((option.value for option in self.given if option.name == name), None)

    def integer(self, name: str) -> int | None:
        """The value of a count, a size or an interval; None if absent."""
        value = self._value(name)
        assert value is None or isinstance(value, int)
        return value

    def text(self, name: str) -> str | None:
        """The value of an option with a fixed set of words; None if absent."""
        value = self._value(name)
        assert value is None or isinstance(value, str)
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """The value of a list of columns; None if absent."""
        value = self._value(name)
        assert value is None or isinstance(value, tuple)
        return value


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for an option's value.

    Args:
        parse: converts the written value; its ValueError has the expected form, and a hint.
        owners: the kinds of objects that have the option: stream, postgres or mysql (a stream with such a
            source), topic, group, publish, sink.
        secret: errors do not show its value.
    """

    parse: Callable[[Raw], Value]
    owners: frozenset[str]
    secret: bool = False


def _integer(low: int, high: int) -> Callable[[Raw], Value]:
    def parse(raw: Raw) -> Value:
        if raw.kind in ("number", "string") and re.fullmatch(r"\s*\d{1,18}\s*", raw.text, re.ASCII):
            value = int(raw.text)
            if low <= value <= high:
                return value
        raise ValueError(f"expected an integer from {low} to {high}")

    return parse


def _words(*allowed: str) -> Callable[[Raw], Value]:
    def parse(raw: Raw) -> Value:
        word = raw.text.strip().lower()
        if raw.kind in ("string", "word") and word in allowed:
            return word
        raise ValueError(f"known are {', '.join(allowed)}", _did_you_mean(word, allowed))

    return parse


def _bytes(low: int, high: int) -> Callable[[Raw], Value]:
    def parse(raw: Raw) -> Value:
        if raw.kind not in ("number", "string"):
            raise ValueError("expected a size such as '64 MiB'")
        value = parse_bytes(raw.text)
        if not low <= value <= high:
            raise ValueError(f"expected a size from {low} to {high} bytes")
        return value

    return parse


def _interval(low_ms: int, high_ms: int | None = None) -> Callable[[Raw], Value]:
    def parse(raw: Raw) -> Value:
        if raw.kind not in ("number", "string"):
            raise ValueError("expected an interval such as '7 days'")
        value = parse_interval_ms(raw.text)
        if value < low_ms:
            raise ValueError(f"expected an interval of at least {low_ms} ms")
        if high_ms is not None and value > high_ms:
            raise ValueError(f"expected an interval of at most {duration_text(high_ms * 1000)}")
        return value

    return parse


def _or_none(parse: Callable[[Raw], Value], *words: str) -> Callable[[Raw], Value]:
    """A parser that accepts NULL, 'none' and some other words as None, and calls `parse` for other values."""

    def parse_or_none(raw: Raw) -> Value:
        if raw.kind == "null" or raw.text.strip().lower() in ("none", *words):
            return None
        return parse(raw)

    return parse_or_none


_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s,"]+))\s*(?:,|$)')


def _columns(raw: Raw) -> Value:
    """Column names: `(a, "B c")`, or the same as a string `'a, "B c"'`."""
    names = raw.items if raw.kind == "list" else (raw.text,) if raw.kind == "word" else _split(raw)
    if not names:
        raise ValueError("expected a list of columns such as (a, b)")
    if len({fold(name) for name in names}) < len(names):
        raise ValueError("expected a list of columns without repetition")
    return names


def _split(raw: Raw) -> tuple[str, ...]:
    names: list[str] = []
    place = 0
    while raw.kind == "string" and place < len(raw.text):
        found = _COLUMN.match(raw.text, place)
        if found is None:
            return ()
        names.append(found[1].replace('""', '"') if found[1] else found[2])
        place = found.end()
    return () if raw.text.rstrip().endswith(",") else tuple(names)


def _text(raw: Raw) -> Value:
    if raw.kind != "string" or not raw.text:
        raise ValueError("expected a string")
    return raw.text


def _secret(raw: Raw) -> Value:
    """The keys of Standard Webhooks, separated by spaces: the receiver may know any of them."""
    if raw.kind == "null":
        return Secret()
    keys = raw.text.split() if raw.kind == "string" else []
    if not 1 <= len(keys) <= KEYS_MAX or not all(map(_is_key, keys)):
        raise ValueError(
            f"expected {SECRET_PREFIX} and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes",
            f"Up to {KEYS_MAX} keys, with spaces between them, sign each delivery.",
        )
    return Secret(" ".join(keys))


def _is_key(text: str) -> bool:
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return False
    return text.startswith(SECRET_PREFIX) and SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")


def _headers(raw: Raw) -> Value:
    """Header fields as a JSON object of texts."""
    if raw.kind == "null":
        return Secret()
    wanted = 'expected a JSON object of texts such as \'{"X-Team": "billing"}\''
    try:
        found = json.loads(raw.text) if raw.kind == "string" else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(wanted)
    if len(found) > HEADERS_MAX or len(raw.text) > HEADERS_CHARS_MAX:
        raise ValueError(f"at most {HEADERS_MAX} headers, and {HEADERS_CHARS_MAX} characters in all")
    for name, value in found.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError("a name or a value has a character that no header may have")
        if name.lower() in OWN_HEADERS or name.lower().startswith(("webhook-", "ce-")):
            raise ValueError("one of the headers is written by the sink itself")
    if len({name.lower() for name in found}) < len(found):
        raise ValueError("a header is given twice")
    return Secret(json.dumps(found))


# The names that Kafka allows for topics.
KAFKA_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
CREDENTIAL_CHARS_MAX, PEM_CHARS_MAX = 1024, 64 << 10


def _topic(raw: Raw) -> Value:
    if raw.kind != "string" or KAFKA_TOPIC.fullmatch(raw.text) is None:
        raise ValueError("expected up to 249 letters, digits, dots, underscores and hyphens")
    return raw.text


def _line(raw: Raw) -> Value:
    if raw.kind != "string" or not 1 <= len(raw.text) <= CREDENTIAL_CHARS_MAX or not raw.text.isprintable():
        raise ValueError(f"expected up to {CREDENTIAL_CHARS_MAX} printable characters")
    return raw.text


def _password(raw: Raw) -> Value:
    return Secret() if raw.kind == "null" else Secret(_line(raw))


def _pem(raw: Raw) -> Value:
    """Certificates, or a key, as text: the server opens no file that a statement names."""
    if raw.kind != "string" or len(raw.text) > PEM_CHARS_MAX or "-----BEGIN " not in raw.text:
        raise ValueError("expected a PEM text, which begins with -----BEGIN")
    return raw.text


def _private_key(raw: Raw) -> Value:
    return Secret() if raw.kind == "null" else Secret(_pem(raw))


def _slot(raw: Raw) -> Value:
    if raw.kind != "string" or re.fullmatch(r"[a-z0-9_]{1,63}", raw.text, re.ASCII) is None:
        raise ValueError("expected up to 63 lower-case letters, digits and underscores")
    return raw.text


_ON_TABLE = frozenset({"stream"})
# A stream on tables here, and one with a source of each kind.
_STREAM = _ON_TABLE | {"postgres", "mysql"}
_STREAM_OR_TOPIC = _STREAM | {"topic"}
_GROUP = frozenset({"group"})
_PUBLISH = frozenset({"publish"})
_SINK = frozenset({"sink"})
_GROUP_OR_SINK = _GROUP | _SINK

RULES: dict[str, Rule] = {
    "partitions": Rule(_integer(1, PARTITIONS_MAX), _STREAM_OR_TOPIC),
    "partition_by": Rule(_columns, _STREAM),
    "retention": Rule(_or_none(_interval(RETENTION_MS_MIN), "infinity"), _STREAM_OR_TOPIC),
    "retention_bytes": Rule(_or_none(_bytes(1, 1 << 60)), _STREAM_OR_TOPIC),
    "buffer_bytes": Rule(_bytes(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX), _STREAM_OR_TOPIC),
    "snapshot": Rule(_words("none", "initial"), _STREAM),
    "before": Rule(_words("full", "key", "none"), _STREAM),
    "minimal_changes": Rule(_words("replace", "all", "none"), _ON_TABLE),
    "compaction": Rule(_words("none", "key"), _STREAM_OR_TOPIC),
    "compaction_lag": Rule(_interval(0), _STREAM_OR_TOPIC),
    "tombstone_retention": Rule(_interval(0), _STREAM_OR_TOPIC),
    "slot": Rule(_slot, frozenset({"postgres"})),
    "server_id": Rule(_integer(1, 2**32 - 1), frozenset({"mysql"})),
    "on_gap": Rule(_words("error", "earliest", "snapshot"), _GROUP_OR_SINK),
    "on_park": Rule(_words("event", "key"), _GROUP_OR_SINK),
    "session_timeout": Rule(_interval(SESSION_TIMEOUT_MS_MIN), _GROUP_OR_SINK),
    "max_deliveries": Rule(_or_none(_integer(1, MAX_DELIVERIES_MAX)), _GROUP),
    "producer": Rule(_text, _PUBLISH),
    "sequence": Rule(_integer(0, 10**18 - 1), _PUBLISH),
    "secret": Rule(_secret, _SINK, secret=True),
    "headers": Rule(_headers, _SINK, secret=True),
    "batch": Rule(_integer(1, 1000), _SINK),
    "max_in_flight": Rule(_integer(1, 100), _SINK),
    "attempts": Rule(_integer(1, 1000), _SINK),
    "backoff": Rule(_interval(10, SINK_WAIT_MS_MAX), _SINK),
    "backoff_max": Rule(_interval(10, SINK_WAIT_MS_MAX), _SINK),
    "timeout": Rule(_interval(100, SINK_TIMEOUT_MS_MAX), _SINK),
    "on_failure": Rule(_words("park", "stop"), _SINK),
    "envelope": Rule(_words("events", "changes", "cloudevents", "cloudevents_binary"), _SINK),
    "columns": Rule(_or_none(_columns, "all"), _SINK),
    "key": Rule(_words("event", "none"), _SINK),
    "acks": Rule(_words("all"), _SINK),
    "compression": Rule(_words("none", "gzip", "snappy", "lz4", "zstd"), _SINK),
    "transactional": Rule(_words("true", "false"), _SINK),
    "positions": Rule(_topic, _SINK),
    "security_protocol": Rule(_words("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"), _SINK),
    "sasl_mechanism": Rule(_words("plain", "scram-sha-256", "scram-sha-512"), _SINK),
    "sasl_username": Rule(_or_none(_line), _SINK),
    "sasl_password": Rule(_password, _SINK, secret=True),
    "ssl_ca": Rule(_or_none(_pem), _SINK),
    "ssl_certificate": Rule(_or_none(_pem), _SINK),
    "ssl_key": Rule(_private_key, _SINK, secret=True),
    "username": Rule(_password, _SINK, secret=True),
    "password": Rule(_password, _SINK, secret=True),
}

# Options that may be changed later; the others are fixed when the stream is created.
CHANGEABLE = frozenset(
    {"retention", "retention_bytes", "buffer_bytes", "compaction", "compaction_lag", "tombstone_retention"}
)
# Options of streams and topics whose value is a length of time in milliseconds.
COMPACTED = ("compaction_lag", "tombstone_retention")
INTERVALS = frozenset({"retention", *COMPACTED})

# Words of other systems, and ducktail's equivalents.
_FOREIGN = {
    "kafka_topic": "partitions",
    "num_partitions": "partitions",
    "replicas": "partitions",
    "retention_ms": "retention",
    "max_staleness": "retention",
    "initial_snapshot": "snapshot",
    "before_image": "before",
    "replica_identity": "before",
    "cleanup_policy": "compaction",
    "min_compaction_lag_ms": "compaction_lag",
    "delete_retention_ms": "tombstone_retention",
    "max_poll_interval_ms": "session_timeout",
    "delivery_limit": "max_deliveries",
    "max_receive_count": "max_deliveries",
    "maxreceivecount": "max_deliveries",
    "group_share_delivery_count_limit": "max_deliveries",
    "format": "envelope",
    "transactional_id": "transactional",
    "compression_type": "compression",
    "ssl_ca_pem": "ssl_ca",
    "ssl_certificate_pem": "ssl_certificate",
    "ssl_key_pem": "ssl_key",
}


def check(owner: str, name: str, raw: Raw, position: int) -> Option:
    """Check an option and convert its value.

    Args:
        owner: the kind of its object: stream, topic, group, publish, sink.
        position: the position of the option's name in the text, from 1.

    Raises:
        InvalidParameterValue: the name is unknown or the value invalid.
    """
    folded = name.lower()
    rule = RULES.get(folded)
    if rule is None or owner not in rule.owners:
        raise _unknown(owner, name, position)
    try:
        return Option(folded, rule.parse(raw), position)
    except ValueError as error:
        expected, hint = (*error.args, None)[:2]
        shown = "" if rule.secret else f" {_shown(raw)}"
        raise InvalidParameterValue(
            f'invalid value{shown} for option "{folded}": {expected}', hint=hint, position=position
        ) from None
    except InvalidParameterValue as error:
        raise InvalidParameterValue(
            f'invalid value {_shown(raw)} for option "{folded}": {error.message}',
            hint=error.hint,
            position=position,
        ) from None


def _did_you_mean(word: str, known: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(word, known, n=1)
    return f'Did you mean "{close[0]}"?' if close else None


def _shown(raw: Raw) -> str:
    return f"({', '.join(raw.items)})" if raw.kind == "list" else f'"{raw.text}"'


def _unknown(owner: str, name: str, position: int) -> InvalidParameterValue:
    known = [option for option, rule in RULES.items() if owner in rule.owners]
    hint = _did_you_mean(name.lower(), known)
    foreign = _FOREIGN.get(name.lower().replace(".", "_"))
    if foreign in known:
        hint = f'Did you mean "{foreign}"?'
    kinds = {"group": "consumer group", "publish": "PUBLISH"}
    kind = kinds.get(owner, f"stream from {owner}" if owner in ("postgres", "mysql") else owner)
    return InvalidParameterValue(
        f'unknown option "{name}" of a {kind}: known are {", ".join(known)}', hint=hint, position=position
    )


def collect(options: list[Option]) -> Options:
    """The options of one statement.

    Raises:
        SyntaxError_: an option is given twice.
    """
    seen: set[str] = set()
    for option in options:
        if option.name in seen:
            raise SyntaxError_(f'option "{option.name}" is given twice', position=option.position or None)
        seen.add(option.name)
    return Options(tuple(options))


# Options whose value is a length of time in milliseconds.
_INTERVALS = INTERVALS | {"session_timeout", "backoff", "backoff_max", "timeout"}


def name_sql(name: Name) -> str:
    """A name, quoted, with its qualifiers."""
    return ".".join(ident(part) for part in name.parts)


def scalar_sql(value: Scalar) -> str:
    """A number, a string literal or a parameter."""
    if isinstance(value, Parameter):
        return f"${value.index}"
    return literal(value) if isinstance(value, str) else str(value)


def named(value: str | Parameter) -> str:
    """A group's or member's name, or a parameter."""
    return ident(value) if isinstance(value, str) else scalar_sql(value)


def words(*parts: str | None) -> str:
    """The parts that are not empty, with spaces between them."""
    return " ".join(part for part in parts if part)


def when(condition: bool, text: str) -> str:
    """The text if the condition holds, else ""."""
    return text if condition else ""


def clause(word: str, value: Scalar | None) -> str:
    """A clause with a value; "" without a value."""
    return "" if value is None else f"{word} {scalar_sql(value)}"


def member_clause(member: str | Parameter | None) -> str:
    """[ MEMBER m ]"""
    return "" if member is None else f"MEMBER {named(member)}"


def of_group(stream: Name, group: str | Parameter) -> str:
    """ON s CONSUMER GROUP g"""
    return f"ON {name_sql(stream)} CONSUMER GROUP {named(group)}"


def group_on_stream(group: str | Parameter, stream: Name) -> str:
    """g ON s"""
    return f"{named(group)} ON {name_sql(stream)}"


def perhaps_on(verb: str, stream: Name | None) -> str:
    """A verb, and ON s if the statement names a stream."""
    return verb if stream is None else f"{verb} ON {name_sql(stream)}"


def drop(verb: str, exists: bool, what: str, cascade: bool = False) -> str:
    """DROP ... [IF EXISTS] what [CASCADE]"""
    return words(verb, when(exists, "IF EXISTS"), what, when(cascade, "CASCADE"))


def columns(names: Iterable[str]) -> str:
    """( column, ... )"""
    return f"({', '.join(ident(name) for name in names)})"


def options_clause(options: Options, word: str = "WITH") -> str:
    """WITH ( option = value, ... ); nothing without options."""
    assert all(option.name in RULES for option in options)
    return f"{word} ({', '.join(_option(option) for option in options)})" if options.given else ""


def _option(option: Option) -> str:
    return f"{option.name} = {_option_value(option.name, option.value)}"


def _option_value(name: str, value: Value) -> str:
    if isinstance(value, tuple):
        return columns(value)
    if value is None:
        return "'none'"
    if value == "" and isinstance(value, Secret):
        return "NULL"
    if name in _INTERVALS:
        assert isinstance(value, int)
        return literal(duration_text(value * 1000))
    return literal(value) if isinstance(value, str) else str(value)

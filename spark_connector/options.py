"""The options of the data source and of its sink, in one table, and the names that are their values.

An option is a row of `OPTIONS`: its name, its meaning, its default, and where it applies. `parse` turns
a user's texts into an `Options`, whose values have their types. Option names are compared without case, as
in Spark (`options["maxeventspertrigger"]` and `options["maxEventsPerTrigger"]` are one). An unknown option
is refused by name, and so is one that does not apply: nothing is parsed and ignored. The values of secrets
appear in no error and no repr.

    options = parse(given, Use.READ_STREAM)
    options["host"], options["port"]            # "127.0.0.1", 5480

A new option is a new row, and a row in the table of docs/spark/options.md (tests/spark/test_options.py
compares the two).

Names of streams, topics and tables are written `orders`, `app.orders` or `app."a.b"`. An unquoted part is
taken literally, including blanks within it; a part in double quotes may contain any character, with quotes
doubled. `str(name)` gives a text that parses as the same name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from psycopg import sql

from .errors import OptionError

_PLAIN = re.compile(r'[^\s".,\x00](?:[^".,\x00]*[^\s".,\x00])?')
_PART = rf'"(?:[^"\x00]|"")+"|{_PLAIN.pattern}'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_LIST = re.compile(rf"\s*({_PART})\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class Name:
    """A name with an optional schema, both without quotes, as in the catalog."""

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, written: str) -> Name:
        """Parse a name as users write it.

        Raises:
            ValueError: the text is not a name.
        """
        found = _NAME.fullmatch(written)
        if found is None:
            raise ValueError(
                "it is a name, perhaps with its schema, such as orders or app.orders; a name with a dot, a "
                'comma or a quote stands in double quotes: app."a.b"'
            )
        schema, name = found.groups()
        return cls(_unquoted(name), None if schema is None else _unquoted(schema))

    @property
    def identifier(self) -> sql.Identifier:
        """The name as SQL."""
        return sql.Identifier(*self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """Schema, if any, and name."""
        return (self.name,) if self.schema is None else (self.schema, self.name)

    def __str__(self) -> str:
        return ".".join(map(quoted, self.parts))


def parse_list(text: str) -> list[str]:
    """Parse column names separated by commas.

    Raises:
        ValueError: the text is not such a list.
    """
    found, at = [], 0
    while at < len(text) or text.rstrip().endswith(","):
        one = _LIST.match(text, at)
        if one is None:
            raise ValueError("it is names with commas between, such as version or day, version")
        found.append(_unquoted(one[1]))
        at = one.end()
    if not found:
        raise ValueError("it is empty")
    return found


def quoted(part: str) -> str:
    """A part of a name as users write it, in quotes where it needs them."""
    return part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


# A TCP port is 16 bits.
PORT_MAX = 65535
# More Spark partitions than this in one read are a mistake: each is a connection.
PARTITIONS_MAX = 100_000
# The longest poll of the server; a query that is stopped does not wait for it.
POLL_MAX_S = 3600.0


class Use(Enum):
    """The Spark calls to which an option applies, as users write them."""

    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READS = frozenset({Use.READ, Use.READ_STREAM})
WRITES = frozenset({Use.WRITE, Use.WRITE_STREAM})
ALL = frozenset(Use)

# Options that Spark itself adds to a streaming query.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})

Convert = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Args:
        name: as users write it; compared without case.
        meaning: a sentence for the docs.
        uses: the calls to which it applies.
        convert: text -> value; raises ValueError with a description of valid values.
        default: the value if the option is not given, None for none.
        secret: the value is never shown.
    """

    name: str
    meaning: str
    uses: frozenset[Use]
    convert: Convert
    default: Any = None
    secret: bool = False


def text(value: str) -> str:
    """Text that is not empty."""
    if not value:
        raise ValueError("it is empty")
    return value


def choice(*words: str) -> Convert:
    """One of several words, compared without case."""

    def convert(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return value.lower()

    return convert


def integer(least: int, most: int | None = None) -> Convert:
    """An integer from `least` to `most`."""

    def convert(value: str) -> int:
        bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            raise ValueError(f"it is a whole number {bounds}")
        number = int(value)
        if number < least or (most is not None and number > most):
            raise ValueError(f"it is a whole number {bounds}")
        return number

    return convert


def flag(value: str) -> bool:
    """Boolean: true or false."""
    if value.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return value.lower() == "true"


_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def seconds(most: float) -> Convert:
    """A duration with its unit, such as '500 ms', '10 s', '1 min'; in seconds."""

    def convert(value: str) -> float:
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|min|h)", value.strip())
        if found is None:
            raise ValueError("it is a time with a unit, such as '500 ms', '10 s' or '1 min'")
        length = float(found[1]) * _SECONDS[found[2]]
        if length > most:
            raise ValueError(f"it is at most {most:g} s")
        return length

    return convert


def timestamp(value: str) -> str:
    """A timestamp with its time zone, in the form that the server reads."""
    if not re.fullmatch(
        r"\d{4,6}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?\s*(Z|UTC|[+-]\d\d(:?\d\d)?)", value
    ):
        raise ValueError("it is a timestamp with its zone, such as '2026-01-31 12:00:00+00'")
    return value.replace("T", " ").replace("Z", "+00").replace("UTC", "+00")


def positions(value: str) -> dict[int, int]:
    """JSON map from partition to the last LSN before the first one that is read."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        re.fullmatch(r"[0-9]{1,4}", partition) and type(lsn) is int and 0 <= lsn < 1 << 63
        for partition, lsn in found.items()
    ):
        raise ValueError("""it is a map from partition to LSN, such as '{"0": 17, "1": 20}'""")
    return {int(partition): lsn for partition, lsn in found.items()}


def starting(value: str) -> str | dict[int, int]:
    """Start of a query: earliest, latest, group, snapshot, or a map from partition to LSN."""
    if value.lower() in ("earliest", "latest", "group", "snapshot"):
        return value.lower()
    try:
        return positions(value)
    except ValueError:
        raise ValueError(
            "it is earliest, latest, group, snapshot, or a map from partition to LSN: "
            """'{"0": 17, "1": 20}'"""
        ) from None


_STREAM = frozenset({Use.READ_STREAM})
_BATCH = frozenset({Use.READ})
# An LSN is a positive 64-bit number.
LSN_MAX = (1 << 63) - 1

OPTIONS: tuple[Option, ...] = (
    # Connection.
    Option("host", "Name or address of the gateway.", ALL, text, "127.0.0.1"),
    Option("port", "TCP port of the gateway.", ALL, integer(1, PORT_MAX), 5480),
    Option("user", "The user who connects.", ALL, text, "ducktail"),
    Option("password", "The user's password.", ALL, str, None, secret=True),
    Option(
        "database", "The database's name; `ducktail` means the one that is served.", ALL, text, "ducktail"
    ),
    Option(
        "sslmode",
        "As in libpq: disable, allow, prefer, require, verify-ca, verify-full.",
        ALL,
        choice("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "prefer",
    ),
    Option("sslrootcert", "File with the trusted certificates, on every node.", ALL, text, None),
    Option("connectTimeout", "Longest time for establishing a connection.", ALL, seconds(600.0), 10.0),
    Option(
        "retryTimeout",
        "How long an operation that may succeed later (while the gateway starts) is retried: `load()`, the "
        "planning of a read or write, and its tasks.",
        ALL,
        seconds(3600.0),
        30.0,
    ),
    Option(
        "table",
        "For a write, the target table; for a read, the table or view that is read instead of a stream, in "
        "one task and one snapshot.",
        _BATCH | WRITES,
        Name.parse,
    ),
    # Sink.
    Option("topic", "The topic to which rows are published.", WRITES, Name.parse, None),
    Option(
        "writeMode",
        "How rows are written to a table: append, or upsert by its primary key.",
        WRITES,
        choice("append", "upsert"),
        "append",
    ),
    Option(
        "orderBy",
        "For writeMode upsert: columns that determine the last of several rows of one key in a batch.",
        WRITES,
        parse_list,
        None,
    ),
    Option(
        "stagingSchema",
        "Schema for rows that tasks have sent and the driver has not published; created if missing.",
        WRITES,
        text,
        "ducktail_spark",
    ),
    # Source.
    Option("stream", "The stream or topic to read.", READS, Name.parse),
    Option(
        "envelope",
        "The columns: changes (the table's own with Spark's change columns), or json (those of an event). "
        "The default is changes for a stream on a table, json for a topic.",
        READS,
        choice("changes", "json"),
    ),
    Option(
        "minPartitions",
        "Least number of Spark partitions, if there are events for them: ranges of a stream's partition.",
        READS,
        integer(1, PARTITIONS_MAX),
    ),
    Option("startingLsn", "First LSN to read.", _BATCH, integer(1, LSN_MAX)),
    Option("startingTimestamp", "Commit time of the first events to read.", _BATCH, timestamp),
    Option("endingLsn", "Last LSN to read.", _BATCH, integer(1, LSN_MAX)),
    Option("endingTimestamp", "Commit time of the last events to read.", _BATCH, timestamp),
    Option(
        "startingOffsets",
        "Where a query without a checkpoint begins: earliest, latest (requires consumerGroup), group, "
        "snapshot (a whole copy of the table and then every event; requires a consumerGroup that does not "
        "exist yet), or a map from partition to the last LSN to skip. The default is group if consumerGroup "
        "is given (a new one begins at earliest), otherwise earliest.",
        _STREAM,
        starting,
    ),
    Option(
        "consumerGroup",
        "The consumer group whose committed LSNs follow the query's checkpoint; created if missing.",
        _STREAM,
        text,
    ),
    Option("maxEventsPerTrigger", "Most events in a micro-batch.", _STREAM, integer(1, LSN_MAX)),
    Option(
        "wholeTransactions",
        "A micro-batch ends with a transaction's last event, even if this exceeds maxEventsPerTrigger.",
        _STREAM,
        flag,
        False,
    ),
    Option(
        "pollTimeout",
        "How long the gateway waits for a new event before a trigger ends without events.",
        _STREAM,
        seconds(POLL_MAX_S),
        1.0,
    ),
)  # fmt: skip


class Options(Mapping[str, Any]):
    """Checked values by option name, with defaults; picklable; secrets are hidden in its repr."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        self._values = dict(values)
        self.given = given

    def __getitem__(self, name: str) -> Any:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def at(self, host: str, port: int) -> Options:
        """The same options for another gateway."""
        return Options({**self._values, "host": host, "port": port}, self.given)

    def is_given(self, name: str) -> bool:
        """True if the user gave the option."""
        return name.lower() in self.given

    def __repr__(self) -> str:
        shown = {
            name: "..." if _BY_NAME[name].secret and value is not None else value
            for name, value in self._values.items()
        }
        return f"Options({shown})"


_BY_NAME = {option.name.lower(): option for option in OPTIONS}


def parse(given: Mapping[str, str], *uses: Use) -> Options:
    """Check and convert the options that a user gave.

    Args:
        given: texts by name, compared without case.
        uses: the calls to which the options must apply, each to one of them: two where the call is not
            known yet (reads of both kinds ask for the schema).

    Raises:
        OptionError: an unknown option, one that does not apply, or an invalid value.
    """
    values = {name: option.default for name, option in _BY_NAME.items() if option.uses & set(uses)}
    found = set()
    for written, value in given.items():
        name = written.lower()
        if name in SPARKS_OWN:
            continue
        option = _BY_NAME.get(name)
        if option is None:
            raise OptionError(_unknown(written))
        if name not in values:
            places = " and ".join(use.value for use in Use if use in option.uses)
            raise OptionError(
                f"option {option.name} does not apply to {' or '.join(use.value for use in uses)}: "
                f"it is one of {places}"
            )
        try:
            values[name] = option.convert(value)
        except ValueError as error:
            shown = "" if option.secret else f' "{value}"'
            raise OptionError(f"option {option.name} cannot be{shown}: {error}") from None
        found.add(name)
    return Options(values, frozenset(found))


def _unknown(written: str) -> str:
    if written.lower() == "path":
        return "ducktail has no path: name what is read or written by an option, not by load() or save()"
    near = difflib.get_close_matches(written.lower(), _BY_NAME, n=1)
    hint = f", did you mean {_BY_NAME[near[0]].name}?" if near else ""
    return f"unknown option {written}{hint} (known: {', '.join(option.name for option in OPTIONS)})"

"""Settings of an operator: one frozen value with every limit of the server, validated at construction."""

from __future__ import annotations

import os
from dataclasses import Field, dataclass, field, fields, replace

from .errors import InvalidParameterValue
from .networks import networks_of

MIB = 1 << 20

# Sources of values, in PostgreSQL's words; ARGUMENT is an argument of `ducktail.connect`.
DEFAULT, FILE, ENVIRONMENT = "default", "configuration file", "environment variable"
COMMAND_LINE, ARGUMENT = "command line", "argument"


def _setting(default: int, low: int, high: int, about: str) -> int:
    """An integer setting with its bounds (both inclusive) and a line for help and docs."""
    value: int = field(default=default, metadata={"low": low, "high": high, "about": about})
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits of one open database.

    Raises:
        InvalidParameterValue: a value is out of its bounds.

    Source: docs/settings.md.
    """

    lock_timeout_ms: int = _setting(
        10_000, 1, 86_400_000, "longest wait for the writer lock, a group, or a stream that is being created"
    )
    idle_in_transaction_session_timeout_ms: int = _setting(
        60_000, 0, 86_400_000, "a session idle in a transaction for longer is terminated (0: never)"
    )
    wal_bytes_max: int = _setting(
        256 * MIB,
        MIB,
        1 << 40,
        "above this size the oldest session idle in a transaction is terminated at once",
    )
    retention_interval_ms: int = _setting(
        10_000, 100, 3_600_000, "interval at which events that are no longer retained are deleted"
    )
    max_connections: int = _setting(100, 1, 10_000, "maximum number of sessions")
    peer_connections_reserved: int = _setting(
        20, 0, 10_000, "part of max_connections reserved for other nodes of the cluster; at most half"
    )
    peer_connections_max: int = _setting(40, 1, 10_000, "maximum number of sessions of one other node")
    connections_starting_max: int = _setting(
        100, 1, 10_000, "connections besides max_connections whose clients are not authenticated yet"
    )
    authentication_timeout_ms: int = _setting(
        10_000, 100, 600_000, "a client that is not authenticated after this time is disconnected"
    )
    unauthenticated_bytes_max: int = _setting(
        10_000, 1_000, MIB, "longest message of a client that is not authenticated yet"
    )
    message_bytes_max: int = _setting(
        64 * MIB, 64 << 10, (1 << 30) - 1, "longest query, parameter list or piece of COPY data"
    )
    http_connections_max: int = _setting(
        2_000, 1, 100_000, "maximum number of connections to the HTTP API; beyond it idle ones are closed"
    )
    long_polls_max: int = _setting(5_000, 1, 1_000_000, "maximum number of reads that wait for events (WAIT)")
    sinks_max: int = _setting(100, 0, 1_000, "maximum number of sinks (0: none delivers)")
    sources_max: int = _setting(100, 0, 1_000, "maximum number of streams with a source (0: none is read)")
    statements_max: int = _setting(10_000, 1, 1_000_000, "maximum number of prepared statements in a session")
    portals_max: int = _setting(1_000, 1, 100_000, "maximum number of cursors and portals in a session")
    worker_threads: int = _setting(16, 1, 1_000, "threads that run DuckDB calls for the gateway")
    spool_memory_bytes_max: int = _setting(
        4 * MIB, 0, 1 << 40, "memory for a session's unfinished results while other statements run"
    )
    spool_bytes_max: int = _setting(
        64 << 30,
        0,
        1 << 50,
        "most that the unfinished results of all sessions write next to PATH beyond that",
    )
    buffer_bytes_total: int = _setting(
        512 * MIB, MIB, 1 << 40, "total size of the buffers of all streams; the oldest events leave first"
    )
    memory_limit_bytes: int = _setting(
        0, 0, 1 << 50, "DuckDB's memory; 0 means four fifths of the machine's, less buffer_bytes_total"
    )
    temp_bytes_max: int = _setting(
        64 << 30, 0, 1 << 50, "most that DuckDB spills to PATH.tmp beyond its memory (0: nothing)"
    )
    log_min_duration_statement_ms: int = _setting(
        -1, -1, 86_400_000, "a client's statement that takes this long is logged (0: each, -1: none)"
    )

    copy_interval_ms: int = _setting(
        1_000, 10, 3_600_000, "interval at which new commits are copied to the directories in copy_to"
    )
    copy_generation_ms: int = _setting(
        86_400_000,
        1_000,
        31_536_000_000,
        "a continuous copy begins a new generation, with a full copy, this often",
    )
    copy_generations: int = _setting(
        7, 1, 10_000, "generations that a continuous copy keeps at most; older ones are deleted"
    )
    copy_retention_ms: int = _setting(
        604_800_000,
        1_000,
        315_360_000_000,
        "generations that ended longer ago are deleted from a continuous copy",
    )
    copy_verify_interval_ms: int = _setting(
        86_400_000, 0, 31_536_000_000, "a continuous copy is restored and checked this often (0: never)"
    )

    synchronous_copies: int = _setting(
        0, 0, 100, "a commit is answered when this many of the directories in copy_to have it (0: none)"
    )
    synchronous_copies_timeout_ms: int = _setting(
        30_000,
        10,
        3_600_000,
        "longest wait of a commit for the synchronous copies; then it is an error, 57R01",
    )

    allowed_directories: tuple[str, ...] = field(
        default=(), metadata={"about": "directories whose files SQL may read and write"}
    )
    allowed_networks: tuple[str, ...] = field(
        default=(), metadata={"about": "networks to which sinks may send although they are not public"}
    )
    copy_to: tuple[str, ...] = field(
        default=(), metadata={"about": "directories to which the database is copied continuously"}
    )

    def __post_init__(self) -> None:
        for item in numbers():
            check_number(item, getattr(self, item.name))
        networks_of(self.allowed_networks)
        # Links are resolved here, because DuckDB compares resolved paths.
        resolved = tuple(os.path.realpath(item) for item in self.allowed_directories)
        for directory in resolved:
            if not os.path.isdir(directory):
                raise InvalidParameterValue(f'"{directory}" in "allowed_directories" is not a directory')
        object.__setattr__(self, "allowed_directories", resolved)
        targets = tuple(os.path.realpath(item) for item in self.copy_to)
        for directory in targets:
            if not os.path.isdir(directory):
                raise InvalidParameterValue(
                    f'"{directory}" in "copy_to" is not a directory', hint="Create it, or mount its disk."
                )
        if len(set(targets)) < len(targets):
            raise InvalidParameterValue('"copy_to" has a directory twice')
        for directory in targets:
            if any(os.path.commonpath((directory, one)) == one for one in resolved):
                raise InvalidParameterValue(
                    f'"{directory}" in "copy_to" lies in a directory that SQL may write',
                    hint="A copy contains everything, the verifiers of passwords as well.",
                )
        object.__setattr__(self, "copy_to", targets)
        if self.synchronous_copies > len(targets):
            raise InvalidParameterValue(
                f'"synchronous_copies" is {self.synchronous_copies}, and "copy_to" has {len(targets)}',
                hint="Each synchronous copy needs a directory in copy_to.",
            )


def numbers() -> tuple[Field[int], ...]:
    """The integer fields of Settings with bounds."""
    return tuple(item for item in fields(Settings) if "low" in item.metadata)


def check_number(item: Field[int], value: object) -> None:
    """Refuse an invalid value of an integer setting.

    Raises:
        InvalidParameterValue: the value is not an integer within the bounds.
    """
    low, high = item.metadata["low"], item.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameterValue(
            f'setting "{item.name}" wants a whole number from {low} to {high}, not {value!r}'
        )


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A row of ducktail.settings.

    Args:
        source: DEFAULT, FILE, ENVIRONMENT, COMMAND_LINE or ARGUMENT.
        place: the flag, the variable, or the file and its line; None for a default.
    """

    name: str
    setting: str
    source: str
    place: str | None
    about: str


def shown(settings: Settings) -> tuple[ShownSetting, ...]:
    """The rows for settings passed as arguments."""
    rows = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        source = DEFAULT if value == item.default else ARGUMENT
        rows.append(ShownSetting(item.name, shown_text(value), source, None, item.metadata["about"]))
    return tuple(rows)


def shown_text(value: object) -> str:
    """A setting's value in the form of the views."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def told_everybody(rows: tuple[ShownSetting, ...]) -> tuple[ShownSetting, ...]:
    """The settings visible to all users: the limits, but no files or addresses of the server's machine."""
    bounds = {item.name for item in numbers()}
    return tuple(replace(row, place=None) for row in rows if row.name in bounds)

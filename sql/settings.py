"""A session's settings: PostgreSQL's common ones, ducktail's own, and DuckDB's that may be set.

Each is a row of `VARIABLES`: its default, the parser of its values, and whether a change is reported to the
client (PostgreSQL's GUC_REPORT). A setting without a parser here accepts only the value that describes
ducktail's behaviour: `standard_conforming_strings = off` is refused, not ignored. Source: docs/settings.md,
"Of a session"; PostgreSQL's "Server Configuration".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ..engine.errors import (
    CantChangeRuntimeParam,
    InvalidParameterValue,
    InvalidTextRepresentation,
    NotSupported,
    ProgramLimitExceeded,
    UndefinedObject,
)
from ..engine.values.client_encodings import encoding_of
from ..engine.values.date_styles import DATESTYLE_DEFAULT, read_datestyle
from ..engine.values.dates_times import fixed_zone
from .text.hints import SHOWN
from .text.units import parse_interval_ms

SERVER_VERSION = "15.0"
APPLICATION_NAME_CHARS_MAX = 256
# The annotation in the headers of the session's events: each event contains it.
ANNOTATION = "ducktail.annotation"
INTEGER_DIVISION = "integer_division"
ANNOTATION_BYTES_MAX = 4096
# The client's trace id, for the logs of all nodes that work for it.
TRACE = "ducktail.trace"
TRACE_CHARS_MAX = 128
UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
TRUE_WORDS = frozenset({"on", "true", "yes", "1", "t", "y"})
FALSE_WORDS = frozenset({"off", "false", "no", "0", "f", "n"})

# Foreign keys, of which DuckDB lacks much, are accepted with a WARNING.
UNENFORCED = "unenforced_foreign_keys"

# The access mode of the open transaction, and that of a new one.
READ_ONLY = "transaction_read_only"
ROLE = "role"
DATESTYLE = "datestyle"
DEFAULT_READ_ONLY = "default_transaction_read_only"
ISOLATION, DEFERRABLE = "transaction_isolation", "transaction_deferrable"
# The modes of the open transaction, by the settings with those of a new one.
MODES = {f"default_{mode}": mode for mode in (READ_ONLY, ISOLATION, DEFERRABLE)}

# Settings with a dot in the name belong to clients, which may store any text in them.
CUSTOM_NAME = re.compile(r"[a-z_][\w$]*(?:\.[a-z_][\w$]*)+")
CUSTOM_PREFIX_RESERVED = "ducktail."
CUSTOM_MAX, CUSTOM_CHARS_MAX = 1000, 1024 * 1024

Reader = Callable[[str, tuple[str, ...]], str]


def _one(name: str, values: tuple[str, ...]) -> str:
    if len(values) != 1:
        raise InvalidParameterValue(f'setting "{name}" takes one value')
    return values[0]


def _text(name: str, values: tuple[str, ...]) -> str:
    return _one(name, values)[:APPLICATION_NAME_CHARS_MAX]


def _boolean(name: str, values: tuple[str, ...]) -> str:
    word = _one(name, values).lower()
    if word in TRUE_WORDS:
        return "on"
    if word in FALSE_WORDS:
        return "off"
    raise InvalidParameterValue(f'setting "{name}" wants a boolean, not "{word}"')


def _milliseconds(name: str, values: tuple[str, ...]) -> str:
    text = _one(name, values).strip()
    if text.isdigit():
        return text
    return str(parse_interval_ms(text))


def _annotation(name: str, values: tuple[str, ...]) -> str:
    """Parse a JSON object, without blanks; an empty text is none."""
    text = _one(name, values)
    if not text:
        return ""
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise InvalidParameterValue(
                f'setting "{name}" wants a JSON object, not "{text[:100]}"',
                hint='Such as \'{"job": "import 7"}\'.',
            )
        # Events must not contain text that other JSON parsers may refuse (NaN, half a surrogate).
        kept = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(kept.encode())
    except (ValueError, RecursionError) as error:
        raise InvalidTextRepresentation(f'setting "{name}" is not valid JSON: "{text[:100]}"') from error
    if size > ANNOTATION_BYTES_MAX:
        raise ProgramLimitExceeded(f'setting "{name}" is larger than {ANNOTATION_BYTES_MAX} bytes')
    return kept


def _trace(name: str, values: tuple[str, ...]) -> str:
    text = _one(name, values)
    if len(text) > TRACE_CHARS_MAX:
        raise InvalidParameterValue(f'setting "{name}" has at most {TRACE_CHARS_MAX} characters')
    return text


def _whole(low: int, high: int) -> Reader:
    def read(name: str, values: tuple[str, ...]) -> str:
        text = _one(name, values)
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise InvalidParameterValue(
                f'setting "{name}" wants a whole number from {low} to {high}, not "{text}"'
            )
        return str(number)

    return read


def _number(name: str, values: tuple[str, ...]) -> str:
    text = _one(name, values)
    try:
        float(text)
    except ValueError as error:
        raise InvalidParameterValue(f'setting "{name}" wants a number, not "{text}"') from error
    return text


def _size(name: str, values: tuple[str, ...]) -> str:
    text = _one(name, values)
    if re.fullmatch(r"\d+\s*(?:B|kB|MB|GB|TB)?", text, re.ASCII) is None:
        raise InvalidParameterValue(f'setting "{name}" wants a size such as 64MB, not "{text}"')
    return text


def _custom(name: str, values: tuple[str, ...]) -> str:
    text = ", ".join(values)
    if len(text) > CUSTOM_CHARS_MAX:
        raise ProgramLimitExceeded(f'setting "{name}" has at most {CUSTOM_CHARS_MAX} characters')
    return text


def _only(*allowed: str, why: str | None = None) -> Reader:
    """The parser of a setting with only these values here, and the reason."""

    def read(name: str, values: tuple[str, ...]) -> str:
        text = ", ".join(values)
        for value in allowed:
            if text.lower().replace("'", "").replace(" ", "") == value.lower().replace(" ", ""):
                return value
        raise InvalidParameterValue(
            f'setting "{name}" can only be {" or ".join(repr(v) for v in allowed)} here, not "{text}"',
            detail=why,
        )

    return read


def _encoding(name: str, values: tuple[str, ...]) -> str:
    text = _one(name, values)
    found = encoding_of(text)
    if found is None:
        raise InvalidParameterValue(
            f'invalid value for parameter "{name}": "{text}"', detail="The encoding is not known."
        )
    return found.name


def _boolean_only(wanted: str) -> Reader:
    def read(name: str, values: tuple[str, ...]) -> str:
        word = _boolean(name, values)
        if word != wanted:
            raise NotSupported(f'setting "{name}" can only be {wanted}')
        return word

    return read


def _datestyle(name: str, values: tuple[str, ...]) -> str:
    return read_datestyle(values, DATESTYLE_DEFAULT)


def _search_path(name: str, values: tuple[str, ...]) -> str:
    return ", ".join(part for value in values if (part := value.strip()))


# INTERVAL '+02:00' HOUR TO MINUTE: an offset to the east.
_INTERVAL_ZONE = re.compile(r"interval\s*'([+-]?\d{1,2}(?::\d\d)?)'(?:\s*hour\s+to\s+minute)?", re.IGNORECASE)
# POSIX's form, as in PostgreSQL: an abbreviation, and an offset to the west.
_POSIX_ZONE = re.compile(r"(?:<[\w+:-]+>|[A-Za-z]{3,})?([+-]?)(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
# PostgreSQL's limit of an offset.
ZONE_HOURS_MAX = 15
_HOURS_EAST = re.compile(r"([+-]?)(\d{1,2})(?:\.(\d+)|:([0-5]\d))?", re.ASCII)


def _timezone(name: str, values: tuple[str, ...]) -> str:
    text = _one(name, values).strip()
    if text.upper() in ("UTC", "GMT", "Z"):
        return "UTC" if text.upper() != "GMT" else "GMT"
    if text.lower() == "local":
        return "UTC"
    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        found = _zone_names().get(text.lower()) or _offset_zone(text)
        if found is None:
            raise InvalidParameterValue(f'invalid value for setting "TimeZone": "{text}"') from error
    return found


@cache
def _zone_names() -> dict[str, str]:
    """The names of time zones by their small letters."""
    return {name.lower(): name for name in available_timezones()}


def _offset_zone(text: str) -> str | None:
    """The zone of an offset; None for a text that is none."""
    interval = _INTERVAL_ZONE.fullmatch(text)
    east = _HOURS_EAST.fullmatch(text if interval is None else interval[1])
    if east is not None and (interval is not None or east[4] is None):
        sign, hours = -1 if east[1] == "-" else 1, int(east[2])
        minutes = Fraction(f"0.{east[3] or 0}") * 60 + int(east[4] or 0)
    elif (west := _POSIX_ZONE.fullmatch(text)) is not None:
        sign, hours, minutes = 1 if west[1] == "-" else -1, int(west[2]), Fraction(west[3] or 0)
    else:
        return None
    if minutes:
        whole = minutes.denominator == 1 and hours <= ZONE_HOURS_MAX
        return fixed_zone(sign * (hours * 60 + int(minutes))) if whole else None
    if hours == 0:
        return "UTC"
    # The names of these zones have POSIX's sign.
    zone = f"Etc/GMT{'-' if sign > 0 else '+'}{hours}"
    return zone if zone in available_timezones() else None


def _fixed(name: str, values: tuple[str, ...]) -> str:
    raise CantChangeRuntimeParam(f'setting "{name}" cannot be changed')


def _isolation(name: str, values: tuple[str, ...]) -> str:
    level = _one(name, values).lower()
    if level == "serializable":
        raise NotSupported(
            "isolation level SERIALIZABLE is not supported",
            hint="Transactions run in snapshot isolation: REPEATABLE READ.",
        )
    if level not in ("repeatable read", "read committed", "read uncommitted"):
        raise InvalidParameterValue(f'setting "{name}" has no value "{level}"')
    return level


@dataclass(frozen=True, slots=True)
class Variable:
    """One setting.

    Args:
        name: its displayed name.
        default: its value in a new session; None means DuckDB's own present value.
        read: converts the values of SET into the stored text, or raises.
        report: changes are reported to the client.
        duckdb: the DuckDB setting that follows it, or None.
        unused: True if it controls a part of PostgreSQL that ducktail lacks; SET has no effect, and reports
            this.
    """

    name: str
    default: str
    read: Reader
    about: str
    report: bool = False
    duckdb: str | None = None
    unused: bool = False

    @property
    def fixed(self) -> bool:
        """True if it cannot be changed."""
        return self.read is _fixed


def _unused() -> tuple[Variable, ...]:
    """Settings of PostgreSQL's planner and memory, with their defaults there."""
    plans = "no effect: DuckDB plans queries by itself"
    memory = "no effect: memory is a setting of the server"
    switches = {
        "async_append bitmapscan gathermerge hashagg hashjoin incremental_sort indexonlyscan indexscan "
        "material memoize mergejoin nestloop parallel_append parallel_hash partition_pruning seqscan sort "
        "tidscan": "on",
        "partitionwise_aggregate partitionwise_join": "off",
    }
    rows: list[tuple[str, str, Reader]]
    rows = [(f"enable_{word}", on, _boolean) for words, on in switches.items() for word in words.split()]
    rows += [
        ("geqo", "on", _boolean),
        ("jit", "off", _boolean),
        ("parallel_leader_participation", "on", _boolean),
        ("plan_cache_mode", "auto", _only("auto", "force_generic_plan", "force_custom_plan")),
        ("constraint_exclusion", "partition", _only("partition", "on", "off")),
        ("force_parallel_mode", "off", _only("off", "on", "regress")),
        ("effective_cache_size", "4GB", _size),
        ("min_parallel_table_scan_size", "8MB", _size),
        ("min_parallel_index_scan_size", "512kB", _size),
    ]
    costs = {
        "random_page_cost": "4", "seq_page_cost": "1", "cpu_tuple_cost": "0.01",
        "cpu_index_tuple_cost": "0.005", "cpu_operator_cost": "0.0025", "parallel_setup_cost": "1000",
        "parallel_tuple_cost": "0.1", "cursor_tuple_fraction": "0.1", "join_collapse_limit": "8",
        "from_collapse_limit": "8", "geqo_threshold": "12", "default_statistics_target": "100",
        "max_parallel_workers": "8", "max_parallel_workers_per_gather": "2",
        "max_parallel_maintenance_workers": "2", "effective_io_concurrency": "1", "hash_mem_multiplier": "2",
    }  # fmt: skip
    sizes = {"work_mem": "4MB", "maintenance_work_mem": "64MB", "temp_buffers": "8MB"}
    return (
        *(Variable(name, default, read, plans, unused=True) for name, default, read in rows),
        *(Variable(name, default, _number, plans, unused=True) for name, default in costs.items()),
        *(Variable(name, default, _size, memory, unused=True) for name, default in sizes.items()),
        Variable(
            "default_toast_compression",
            "pglz",
            _only("pglz", "lz4"),
            "no effect: DuckDB compresses all columns",
            unused=True,
        ),
        Variable(
            "synchronous_commit",
            "on",
            _only("on", "off", "local", "remote_write", "remote_apply"),
            "no effect: every commit is durable when it is answered",
            unused=True,
        ),
    )


def _local_names() -> tuple[Variable, ...]:
    about = "C only"
    names = ["lc_messages", "lc_monetary", "lc_numeric", "lc_time"]
    return tuple(
        Variable(name, "C", _only("C", "POSIX", "C.UTF-8", "en_US.UTF-8", "en_US.utf8"), about)
        for name in names
    )


VARIABLES: dict[str, Variable] = {
    variable.name.lower(): variable
    for variable in (
        Variable("application_name", "", _text, "name that the client gives itself", report=True),
        Variable("client_encoding", "UTF8", _encoding, "encoding of the client's texts", report=True),
        Variable(
            "client_min_messages",
            "notice",
            _only(
                "notice", "warning", "error", "log", "info", "debug1", "debug2", "debug3", "debug4", "debug5"
            ),
            "lowest level of notices that are sent",
        ),
        Variable(
            "DateStyle",
            DATESTYLE_DEFAULT,
            _datestyle,
            "ISO, SQL, Postgres or German, and DMY, MDY or YMD: the form of dates in output",
            report=True,
        ),
        Variable(
            "TimeZone",
            "UTC",
            _timezone,
            "time zone in which timestamptz is displayed",
            report=True,
            duckdb="TimeZone",
        ),
        Variable(
            "IntervalStyle",
            "postgres",
            _only("postgres", "postgres_verbose", "sql_standard", "iso_8601"),
            "form of intervals in output",
            report=True,
        ),
        Variable("bytea_output", "hex", _only("hex", why="Bytes are always sent in hex."), "hex only"),
        Variable("extra_float_digits", "1", _whole(-15, 3), "floats are always shortest and exact"),
        Variable("integer_datetimes", "on", _fixed, "fixed", report=True),
        Variable("standard_conforming_strings", "on", _boolean_only("on"), "on only", report=True),
        Variable("escape_string_warning", "on", _boolean, "no effect: such warnings do not exist"),
        Variable("backslash_quote", "safe_encoding", _only("safe_encoding", "off"), "safe_encoding only"),
        Variable(
            "server_version", SERVER_VERSION, _fixed, "the PostgreSQL version of the protocol", report=True
        ),
        Variable("server_version_num", "150000", _fixed, "the same as a number"),
        Variable("server_encoding", "UTF8", _fixed, "fixed", report=True),
        Variable("is_superuser", "on", _fixed, "fixed", report=True),
        Variable("session_authorization", "", _fixed, "the user of the session", report=True),
        Variable("in_hot_standby", "off", _fixed, "fixed", report=True),
        Variable(DEFAULT_READ_ONLY, "off", _boolean, "new transactions are read-only", report=True),
        Variable(READ_ONLY, "off", _boolean, "the open transaction is read-only"),
        Variable(
            "default_transaction_isolation",
            "repeatable read",
            _isolation,
            "snapshot isolation, under each name",
        ),
        Variable(
            "transaction_isolation", "repeatable read", _isolation, "snapshot isolation, under each name"
        ),
        Variable("default_transaction_deferrable", "off", _boolean, "no effect: it is for SERIALIZABLE"),
        Variable("transaction_deferrable", "off", _boolean, "no effect: it is for SERIALIZABLE"),
        Variable("max_prepared_transactions", "0", _fixed, "fixed: there is no two-phase commit"),
        Variable("max_index_keys", "32", _fixed, "what clients expect"),
        Variable("block_size", "8192", _fixed, "what clients expect"),
        Variable("lc_collate", "C", _fixed, "fixed: texts are ordered by their bytes"),
        Variable("lc_ctype", "C", _fixed, "fixed"),
        Variable("data_checksums", "on", _fixed, "fixed: DuckDB checks its blocks"),
        Variable("wal_level", "logical", _fixed, "fixed: streams have every change"),
        Variable("max_identifier_length", "63", _fixed, "what clients expect; names may be longer"),
        Variable(UNENFORCED, "off", _boolean, "foreign keys are accepted, and not enforced"),
        Variable("row_security", "on", _boolean, "no effect: there are no row policies"),
        Variable("xmloption", "content", _only("content", "document"), "no effect: there is no xml"),
        Variable("synchronize_seqscans", "on", _boolean, "no effect: no scan follows another one"),
        Variable("check_function_bodies", "on", _boolean, "no effect: macros are always checked"),
        Variable("lo_compat_privileges", "off", _boolean, "no effect: there are no large objects"),
        Variable("default_tablespace", "", _only("", "pg_default"), "the only one"),
        Variable("temp_tablespaces", "", _only("", "pg_default"), "the only one"),
        Variable("default_table_access_method", "duckdb", _only("duckdb", "heap"), "how tables are kept"),
        Variable("default_with_oids", "off", _boolean_only("off"), "off only, as in PostgreSQL"),
        Variable("quote_all_identifiers", "off", _boolean_only("off"), "off only"),
        Variable("array_nulls", "on", _boolean_only("on"), "on only"),
        Variable("transform_null_equals", "off", _boolean_only("off"), "off only"),
        Variable("exit_on_error", "off", _boolean_only("off"), "off only"),
        Variable(
            "session_replication_role",
            "origin",
            _only("origin", "local", why="Triggers and constraints cannot be turned off."),
            "origin only",
        ),
        Variable(
            "idle_session_timeout",
            "0",
            _only("0", why="A session outside a transaction is never ended for being idle."),
            "0 only",
        ),
        Variable("password_encryption", "scram-sha-256", _only("scram-sha-256"), "scram-sha-256 only"),
        Variable(ROLE, "none", _text, "none, or the name of the user of the session"),
        *_local_names(),
        *_unused(),
        Variable(
            "statement_timeout",
            "0",
            _milliseconds,
            "longest run of a statement, ms; 0 means no limit",
            duckdb="max_execution_time",
        ),
        Variable("lock_timeout", "10000", _milliseconds, "longest wait for a lock, ms; 0 means the default"),
        Variable(
            "idle_in_transaction_session_timeout",
            "60000",
            _milliseconds,
            "a session idle in a transaction for longer is terminated, ms; 0 means never",
        ),
        Variable(
            "search_path",
            "main",
            _search_path,
            "schemas in which unqualified names are looked up",
            duckdb="search_path",
        ),
        Variable("schema", "main", _one, "schema in which unqualified names are created", duckdb="schema"),
        Variable(INTEGER_DIVISION, "off", _boolean, "1 / 2 is 0, as in PostgreSQL", duckdb=INTEGER_DIVISION),
        Variable(ANNOTATION, "", _annotation, "a JSON object that is added to the headers of events"),
        Variable(TRACE, "", _trace, "an id that appears in the logs of all nodes that work for the session"),
        Variable(
            "default_null_order",
            "nulls_last",
            _only("nulls_last", "nulls_first", "postgres"),
            "position of NULLs in ORDER BY; postgres: last, and first with DESC",
            duckdb="default_null_order",
        ),
    )
}
# Other names of the same settings.
ALIASES = {
    "time zone": "timezone",
    "names": "client_encoding",
    "session characteristics as transaction": "default_transaction_isolation",
    "transaction isolation level": "transaction_isolation",
}


def _custom_variable(key: str) -> Variable | None:
    """A client's own setting of this name; None if the name is not of that form."""
    if CUSTOM_NAME.fullmatch(key) is None or key.startswith(CUSTOM_PREFIX_RESERVED):
        return None
    return Variable(key, "", _custom, "a client's own setting")


def is_setting(name: str) -> bool:
    """True if a name is that of a setting; a client's own need not have a value."""
    key = name.lower()
    return key in VARIABLES or _custom_variable(key) is not None


def variable(name: str) -> Variable:
    """The setting of this name.

    Raises:
        UndefinedObject: there is no such setting.
    """
    key = name.lower()
    key = ALIASES.get(key, key)
    found = VARIABLES.get(key) or _custom_variable(key)
    if found is None:
        near = [] if key in SHOWN else difflib.get_close_matches(key, VARIABLES, 1)
        raise UndefinedObject(
            f'unrecognized configuration parameter "{name}"',
            hint=f"Did you mean {VARIABLES[near[0]].name}?" if near else SHOWN.get(key),
        )
    return found


@dataclass(frozen=True, slots=True)
class SavedSettings:
    """The values of settings at a savepoint, and the values before SET LOCAL."""

    values: dict[str, str]
    local: dict[str, str]


class Variables:
    """The present values of one session's settings, and the values that a transaction block restores."""

    def __init__(self, given: dict[str, str]) -> None:
        self.defaults = {key: variable.default for key, variable in VARIABLES.items()}
        self.defaults.update(given)
        self.values = dict(self.defaults)
        self._at_start: set[str] = set()  # the client's initial settings
        self._at_begin: dict[str, str] | None = None  # the values at the beginning of the open block
        self._local: dict[str, str] = {}  # the values before SET LOCAL
        self.changes: dict[str, str] = {}  # reported settings since `take_changes`

    def __getitem__(self, name: str) -> str:
        return self.values[name.lower()]

    def change(self, key: str, value: str, *, report: bool, local: bool) -> None:
        """Set the value of a setting.

        Args:
            report: report it to the client.
            local: until the end of the open block.
        """
        if key not in self.values and len(self.values) >= CUSTOM_MAX:
            raise ProgramLimitExceeded(f"a session has at most {CUSTOM_MAX} settings")
        if local and key not in self._local:
            self._local[key] = self.values.get(key, "")
        self.values[key] = value
        if key in MODES and self._at_begin is None:
            self.values[MODES[key]] = value
        if report:
            self.changes[variable(key).name] = value

    def check(self, name: str, values: tuple[str, ...] | None) -> None:
        """Check a value as SET does.

        Raises:
            UndefinedObject: there is no such setting.
            InvalidParameterValue: the value is invalid.
            CantChangeRuntimeParam: the setting cannot be changed.
        """
        found = variable(name)
        if values is not None:
            found.read(found.name, values)

    def started(self) -> None:
        """Make the values with which the session began its defaults; they are not reported as changes."""
        self._at_start = {
            key
            for key, value in self.values.items()
            if value != self.default(key) and variable(key).read is not _fixed
        }
        if self.values["application_name"]:
            self._at_start.add("application_name")
        self.defaults = dict(self.values)
        self.changes.clear()

    def default(self, key: str) -> str:
        """The value after RESET; a client's own setting is empty then."""
        return self.defaults.get(key, "")

    @property
    def annotation(self) -> str | None:
        """The annotation of events written now."""
        return self.values[ANNOTATION] or None

    @property
    def integer_division(self) -> bool:
        """The present meaning of `/` for DuckDB's parser; texts parsed before keep their meaning."""
        return self.values[INTEGER_DIVISION] == "on"

    def block_begins(self) -> None:
        """Remember the values, which ROLLBACK restores."""
        self._at_begin = dict(self.values)

    def kept(self) -> SavedSettings:
        """The values that ROLLBACK TO a savepoint made now restores."""
        return SavedSettings(dict(self.values), dict(self._local))

    def return_to(self, kept: SavedSettings) -> dict[str, str]:
        """Return to a savepoint; return the values that settings must have now."""
        self._local = dict(kept.local)
        return {key: kept.values.get(key, "") for key in self.values}

    def block_ends(self, *, committed: bool) -> dict[str, str]:
        """End the block, and return the values that settings must have now."""
        before, self._at_begin = self._at_begin, None
        local, self._local = self._local, {}
        found = local
        if not committed and before is not None:
            # Most blocks change no setting.
            found = {} if before == self.values else {key: before.get(key, "") for key in self.values}
        # Each transaction begins with the defaults.
        for default, mode in MODES.items():
            self.values[mode] = found.get(default, self.values[default])
            found.pop(mode, None)
        return found

    def take_changes(self) -> dict[str, str]:
        """Take the reported settings that have changed since the last call."""
        changes, self.changes = self.changes, {}
        return changes

    def shown(self, name: str) -> str:
        """A value in the form of SHOW: a time in the largest unit that divides it.

        Raises:
            UndefinedObject: there is no such setting, or a client's own has no value yet.
        """
        found = variable(name)
        value = self.values.get(found.name.lower())
        if value is None:
            raise UndefinedObject(f'unrecognized configuration parameter "{name}"')
        if found.read is not _milliseconds or value == "0":
            return value
        whole = next((u for u in UNITS if int(value) % u[0] == 0), (1, "ms"))
        return f"{int(value) // whole[0]}{whole[1]}"

    def source(self, name: str) -> str:
        """The source of a value, in the words of PostgreSQL's pg_settings."""
        key = name.lower()
        if self.values[key] != self.defaults[key]:
            return "session"
        return "default" if key not in self._at_start else "client"

    def milliseconds(self, name: str) -> int:
        """The value of a time setting, in milliseconds."""
        return int(self.values[name])

    def reported(self) -> dict[str, str]:
        """The values that a client receives at the start."""
        return {variable.name: self.values[key] for key, variable in VARIABLES.items() if variable.report}

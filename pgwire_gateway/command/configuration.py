"""Settings of `ducktail serve`: read from flag, environment, file and default, in this order.

The table `OPTIONS` lists them; a name is the same everywhere: `lock_timeout_ms` in the file,
`--lock-timeout-ms` as a flag, `DUCKTAIL_LOCK_TIMEOUT_MS` in the environment. --config, --insecure and
--accept-loss are flags only: the first names the file, the others must be explicit.
Source: docs/settings.md.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.errors import DucktailError, InvalidParameterValue
from ...engine.placement.cluster_file import ClusterSource
from ...engine.server_log import FORMATS, LEVELS
from ...engine.settings import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    FILE,
    Settings,
    ShownSetting,
    check_number,
    numbers,
    shown_text,
)
from ...engine.toml_file import line_of, parse, read_text

PREFIX = "DUCKTAIL_"
CONFIG = "config"
PORT_MAX = 65_535
# Names that exist only as flags.
ALOUD = {
    "insecure": "treat every connection as local: no TLS, and no password while there is no user",
    "accept_loss": "serve a database that lacks acknowledged commits",
}


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of the command.

    Args:
        kind: the type of its value in the file; `list` is a list of strings.
        check: raises ValueError with the fault of an invalid value of that type.
        shown: its name in ducktail.settings, if different.
        separator: separates the values of a list in its environment variable.
    """

    name: str
    kind: type
    default: object
    about: str
    metavar: str
    check: Callable[[Any], None] = lambda value: None
    shown: str = ""
    separator: str = os.pathsep

    @property
    def flag(self) -> str:
        """The setting's flag on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The setting's environment variable."""
        return PREFIX + self.name.upper()

    def read(self, text: str) -> object:
        """The value of a flag's or environment variable's text.

        Raises:
            ValueError: the text is no value of this setting.
        """
        if self.kind is list:
            # Several directories are separated as in PATH.
            return [part for part in text.split(self.separator) if part]
        return self.take(_whole(text) if self.kind is int else text)

    def take(self, value: object) -> object:
        """A value in the file, checked.

        Raises:
            ValueError: the value is invalid for this setting.
        """
        wrong = isinstance(value, bool) or not isinstance(value, self.kind)
        if wrong or (isinstance(value, list) and not all(isinstance(item, str) for item in value)):
            wanted = {int: "a whole number", str: "a string", list: "a list of strings"}[self.kind]
            raise ValueError(f"wants {wanted}, not {value!r}")
        self.check(value)
        return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"not a whole number: {text!r}") from None


def _port(value: int) -> None:
    if not 0 <= value <= PORT_MAX:
        raise ValueError(f"not a port from 0 to {PORT_MAX}: {value}")


def _address(value: str) -> None:
    address_of(value)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    >>> address_of("127.0.0.1:5481"), address_of("[::1]:0")
    (('127.0.0.1', 5481), ('::1', 0))

    Raises:
        ValueError: the text is no address.
    """
    host, colon, digits = text.rpartition(":")
    if not colon or not host or not (digits.isascii() and digits.isdecimal() and len(digits) <= 5):
        raise ValueError(f"not HOST:PORT: {text!r}")
    _port(int(digits))
    return host.removeprefix("[").removesuffix("]"), int(digits)


# A web origin: scheme and host, with a port where it is not the scheme's own.
ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


def origins_of(text: str) -> tuple[str, ...]:
    """Web origins, separated by commas; * is any.

    >>> origins_of("https://a.example, http://localhost:3000")
    ('https://a.example', 'http://localhost:3000')

    Raises:
        ValueError: one is no origin.
    """
    origins = tuple(part.strip() for part in text.split(","))
    for origin in origins:
        if origin != "*" and ORIGIN.fullmatch(origin) is None:
            raise ValueError(f"not an origin such as https://app.example.com: {origin!r}")
    return origins


def _origins(value: str) -> None:
    origins_of(value)


def one_of(words: tuple[str, ...]) -> Callable[[str], None]:
    """A check for one of several words."""

    def check(value: str) -> None:
        if value not in words:
            raise ValueError(f"not one of {', '.join(words)}: {value!r}")

    return check


LOG_LEVEL = Option(
    "log_level", str, "info", f"lowest level that is logged: {', '.join(LEVELS)}", "LEVEL", one_of(LEVELS)
)
LOG_FORMAT = Option(
    "log_format", str, "text", "format of the logs: text, or json (one object per line)", "FORMAT",
    one_of(FORMATS),
)  # fmt: skip
OPTIONS = (
    Option("path", str, "ducktail.duckdb", "the DuckDB file", "PATH"),
    Option("host", str, "127.0.0.1", "listening address; beyond loopback it requires TLS and users", "HOST"),
    Option("port", int, 5480, "TCP port, 0 for any free one", "PORT", _port),
    Option("metrics_port", int, None, "port for /metrics, /ready, /live; 0 for any free one", "PORT", _port),
    Option("metrics_host", str, "127.0.0.1", "address of that port, which has no authentication", "HOST"),
    Option(
        "http", str, None, "address of the HTTP API, port 0 for any free one; as --host, beyond loopback it "
        "requires TLS and users", "HOST:PORT", _address,
    ),
    Option(
        "http_cors", str, None, "web origins whose pages may use the HTTP API, separated by commas; * is any",
        "ORIGINS", _origins,
    ),
    Option("tls_cert", str, None, "TLS certificate with its chain, as PEM; reloaded on SIGHUP", "FILE"),
    Option("tls_key", str, None, "the certificate's key, as PEM, without a passphrase", "FILE"),
    Option("cluster", str, None, "the cluster.toml of the cluster; reloaded on SIGHUP", "FILE"),
    Option("node", str, None, "this node's name in it; host and port are then taken from it", "NAME"),
    LOG_LEVEL,
    LOG_FORMAT,
    Option(
        "allow_dir", list, (), "a directory whose files SQL may read and write, including subdirectories; "
        "may be repeated", "DIR", shown="allowed_directories",
    ),
    Option(
        "allow_network", list, (), "a network to which sinks may send although it is not public, such as "
        "10.0.0.0/8; may be repeated", "NETWORK", shown="allowed_networks", separator=",",
    ),
    Option(
        "copy_to", list, (), "a directory to which the database is copied continuously; may be repeated",
        "DIR",
    ),
    *(
        Option(item.name, int, item.default, item.metadata["about"], "N")
        for item in numbers()
    ),
)  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}
NUMBERS = {item.name: item for item in numbers()}


@dataclass(frozen=True, slots=True)
class Found:
    """A value and its origin.

    Args:
        source: the origin in the words of engine.settings.
        place: the flag, the variable, or file and line; None for a default.
    """

    value: Any
    source: str = DEFAULT
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every setting of `ducktail serve` with its place; made by `configure`."""

    found: Mapping[str, Found]

    def __getitem__(self, name: str) -> Any:
        return self.found[name].value

    def settings(self) -> Settings:
        """The engine's settings.

        Raises:
            InvalidParameterValue: an allowed directory or one for copies is no directory, or an allowed
                network no network.
        """
        values = {name: self[name] for name in NUMBERS}
        directories, networks = tuple(self["allow_dir"]), tuple(self["allow_network"])
        return Settings(
            allowed_directories=directories,
            allowed_networks=networks,
            copy_to=tuple(self["copy_to"]),
            **values,
        )

    def cluster(self) -> ClusterSource | None:
        """The cluster and the node's name in it; None without a cluster.

        Raises:
            InvalidParameterValue: one of the two settings is missing.
        """
        cluster, node = self["cluster"], self["node"]
        if (cluster is None) != (node is None):
            raise InvalidParameterValue("--cluster and --node go together")
        return None if cluster is None else ClusterSource(Path(cluster), node)

    def as_node(self, source: ClusterSource) -> Configuration:
        """The configuration with the host and port of the cluster's file, if no others are given.

        Raises:
            InvalidParameterValue: the file is invalid.
            IoError: the file cannot be read.
        """
        local = source.load().local
        said = {"host": local.host, "port": local.port}
        place = f'{source.path}, node "{source.node}"'
        return Configuration(
            {
                **self.found,
                **{n: Found(v, FILE, place) for n, v in said.items() if self.found[n].source == DEFAULT},
            }
        )

    def shown(self, settings: Settings) -> tuple[ShownSetting, ...]:
        """The rows of ducktail.settings."""
        rows = []
        for option in OPTIONS:
            found = self.found[option.name]
            # Show the value in force: the links of directories are resolved.
            value = getattr(settings, option.shown) if option.shown else found.value
            name = option.shown or option.name
            rows.append(ShownSetting(name, shown_text(value), found.source, found.place, option.about))
        for name, about in ALOUD.items():
            found = self.found[name]
            rows.append(ShownSetting(name, shown_text(found.value), found.source, found.place, about))
        return tuple(rows)


def configure(given: Mapping[str, Any], environment: Mapping[str, str]) -> Configuration:
    """Combine flags, environment and file.

    Args:
        given: the flags' values, by setting; None for an absent flag.

    Raises:
        InvalidParameterValue: a key is unknown or a value invalid; the error names its place.
        IoError: the file cannot be read.
    """
    place = given.get(CONFIG) or environment.get(PREFIX + CONFIG.upper())
    file = read_file(Path(place)) if place else {}
    found = {option.name: _find(option, given, environment, file) for option in OPTIONS}
    for name in ALOUD:
        aloud = bool(given.get(name))
        found[name] = Found(aloud, *((COMMAND_LINE, f"--{name.replace('_', '-')}") if aloud else ()))
    return Configuration(found)


def _find(
    option: Option, given: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Found]
) -> Found:
    """The value of one setting: the first of flag, environment, file and default that has one."""
    found = file.get(option.name, Found(option.default))
    # An empty value is unset: containers pass on missing values in this form.
    if text := environment.get(option.variable):
        try:
            found = Found(option.read(text), ENVIRONMENT, option.variable)
        except ValueError as error:
            raise InvalidParameterValue(f"{option.variable}: {error}") from None
    if given.get(option.name) is not None:
        flag = "PATH" if option.name == "path" else option.flag
        found = Found(given[option.name], COMMAND_LINE, flag)
    if option.name in NUMBERS:
        try:
            check_number(NUMBERS[option.name], found.value)
        except InvalidParameterValue as error:
            raise InvalidParameterValue(f"{found.place}: {error.message}") from None
    return found


def setting_of(option: Option, given: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """The value of one setting for a command that takes no file.

    Raises:
        InvalidParameterValue: the value is invalid.
    """
    return _find(option, given, environment, {}).value


def read_file(path: Path) -> dict[str, Found]:
    """The settings of a configuration file.

    Raises:
        InvalidParameterValue: the file is not TOML, or a key is unknown or a value invalid; with the line.
        IoError: the file cannot be read.
    """
    text = read_text(path, "configuration file")
    values = parse(text, str(path), "configuration file")
    return {name: _take(path, text, name, value) for name, value in values.items()}


def _take(path: Path, text: str, name: str, value: object) -> Found:
    place = f"{path}{line_of(text, name)}"
    option = BY_NAME.get(name)
    if option is None:
        raise _unknown(place, name, value)
    try:
        return Found(option.take(value), FILE, place)
    except ValueError as error:
        raise InvalidParameterValue(f'{place}: setting "{name}": {error}') from None


def _unknown(place: str, name: str, value: object) -> DucktailError:
    near = difflib.get_close_matches(name, BY_NAME, 1)
    hint = f"Did you mean {near[0]}?" if near else "docs/settings.md lists the settings."
    if name in ALOUD:
        hint = f"It is only a flag: --{name.replace('_', '-')}."
    elif isinstance(value, dict):
        hint = "Settings stand in no table: lock_timeout_ms = 500."
    return InvalidParameterValue(f'{place}: unknown setting "{name}"', hint=hint)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `ducktail serve`; an absent flag is None."""
    parser.add_argument(
        "--config", metavar="FILE", help="a configuration file, TOML; flags and environment override it"
    )
    for option in OPTIONS:
        add_flag(parser, option)
    for name, about in ALOUD.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=about)


def add_flag(parser: argparse.ArgumentParser, option: Option) -> None:
    """Add the flag of one setting."""
    default = "" if option.default in (None, ()) else f" (default: {option.default})"
    about = f"{option.about}{default}"
    if option.name == "path":
        parser.add_argument("path", nargs="?", metavar="PATH", help=about)
    elif option.kind is list:
        parser.add_argument(option.flag, action="append", metavar=option.metavar, help=about)
    else:
        parser.add_argument(option.flag, type=_reader(option), metavar=option.metavar, help=about)


def _reader(option: Option) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            return option.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read

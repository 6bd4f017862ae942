"""The configuration of a pipeline: one TOML file, in which unknown keys are errors.

    name = "orders"                       # in its reports; also its consumer group
    checkpoint = "/data/checkpoints/orders"
    trigger = "5 seconds"                 # interval of batches; default: no pause

    [gateway]                             # of the stream and of the pipeline's reports
    host = "127.0.0.1"                    # and port, user, password, ...: docs/spark/options.md

    [source]                              # options of format("ducktail")
    stream = "orders_stream"
    maxEventsPerTrigger = 100000

    [target]
    kind = "parquet"                      # the other keys depend on the kind
    path = "/data/orders"

    [spark]                               # any configuration of Spark
    "spark.sql.shuffle.partitions" = 4

Source: docs/spark/pipelines.md.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..options import OPTIONS, WRITES, Name, Options, Use, parse


class Section:
    """A table of the file; keys are taken one by one, and `end` refuses the rest.

    Args:
        path: the path of the file, for messages.
        name: the name of the table; "" for the top of the file.
    """

    def __init__(self, path: str, name: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._name = name
        self._values = dict(values)
        self._known: set[str] = set()

    def where(self, key: str) -> str:
        """A key in messages."""
        return f"{self._name}.{key}" if self._name else key

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Take a key's value, or its default.

        Raises:
            OptionError: the value has another type, or is an empty text.
        """
        self._known.add(key)
        value = self._values.pop(key, default)
        if value is default:
            return value
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(value) not in kinds or value == "":
            wanted = " or ".join(_KINDS[one] for one in kinds)
            raise OptionError(f"{self.where(key)} must be {wanted}: {self._path}")
        return value

    def need(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Take a required key's value.

        Raises:
            OptionError: the key is missing, or see `take`.
        """
        value = self.take(key, kind)
        if value is None:
            raise OptionError(f"{self.where(key)} is missing: {self._path}")
        return value

    def name(self, key: str) -> Name:
        """Take a required name of a table."""
        try:
            return Name.parse(self.need(key, str))
        except ValueError as error:
            raise OptionError(f"{self.where(key)} cannot be so: {error}: {self._path}") from None

    def words(self, key: str) -> list[str]:
        """Take a list of texts, or one text; empty if the key is missing."""
        value = self.take(key, (str, list), [])
        found = [value] if isinstance(value, str) else value
        if not all(isinstance(word, str) and word for word in found):
            raise OptionError(f"{self.where(key)} must be a list of texts: {self._path}")
        return found

    def choice(self, key: str, choices: tuple[Any, ...], default: Any = None) -> Any:
        """Take one of several values."""
        value = self.take(key, type(choices[0]), default)
        if value is None:
            raise OptionError(f"{self.where(key)} is missing: {self._path}")
        if value not in choices:
            known = ", ".join(map(str, choices))
            raise OptionError(f"{self.where(key)} is one of {known}, not {value}: {self._path}")
        return value

    def section(self, key: str) -> Section:
        """Take a nested table; empty if the key is missing."""
        return Section(self._path, self.where(key), self.take(key, dict, {}))

    def rest(self) -> dict[str, str]:
        """Take all other keys as texts: options that are checked elsewhere."""
        found = {key: _option_text(value) for key, value in self._values.items()}
        self._values.clear()
        return found

    def end(self) -> None:
        """Refuse all other keys.

        Raises:
            OptionError: an unknown key.
        """
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            known = ", ".join(sorted(self._known))
            raise OptionError(f"unknown key {self.where(key)}{hint} (known: {known}): {self._path}")


_KINDS: dict[type, str] = {
    str: "a text", int: "a whole number", list: "a list", dict: "a table", bool: "true or false",
}  # fmt: skip


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration that all pipelines share.

    Args:
        gateway: options of the connection, as texts.
        source: the options of `format("ducktail")`, including the gateway's.
        target, own: sections that this kind of pipeline reads.
    """

    kind: str
    name: str
    checkpoint: str
    trigger: str
    gateway: dict[str, str]
    source: dict[str, str]
    spark: dict[str, str]
    target: Section
    own: Section

    def write_options(self, given: Mapping[str, str]) -> Options:
        """Options of a sink: `given`, with the gateway's as defaults."""
        return parse({**self.gateway, **given}, Use.WRITE_STREAM)

    @property
    def stream(self) -> Name | None:
        """The stream that is read."""
        given = {key: value for key, value in self.source.items() if key.lower() == "stream"}
        found: Name | None = parse(given, Use.READ_STREAM)["stream"]
        return found

    @property
    def connection(self) -> Options:
        """Options of the connection for reports."""
        return parse(self.gateway, Use.READ)


def read_config(path: Path, kind: str) -> Config:
    """Read a configuration file.

    Raises:
        OptionError: the file cannot be read, or a key is missing, invalid or unknown.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"--config: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"--config: {path} is no TOML: {error}") from None
    top = Section(str(path), "", values)
    name, checkpoint = top.need("name", str), top.need("checkpoint", str)
    trigger = top.take("trigger", str, "0 seconds")
    gateway = top.section("gateway").rest()
    parse(gateway, Use.READ)
    source = {**gateway, **top.section("source").rest()}
    spark = top.section("spark").rest()
    target, own = top.section("target"), top.section(kind)
    top.end()
    return Config(kind, name, checkpoint, trigger, gateway, source, spark, target, own)


def take_sink_options(section: Section, *but: str) -> dict[str, str]:
    """Take the options of a sink, including its connection's, from a [target].

    Args:
        but: options that do not apply.
    """
    names = [option.name for option in OPTIONS if option.uses >= WRITES and option.name not in but]
    found = {name: section.take(name, (str, int, bool)) for name in names}
    return {name: _option_text(value) for name, value in found.items() if value is not None}

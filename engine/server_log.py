"""The format of server logs: a message and facts, as text or as JSON, one line for each event.

A message names the event, and its objects are in facts: `log.info("connection opened",
extra=facts(session=3))`. Neither ever contains a password, a parameter, or a user's value; statements are
logged without their literals (`sql/text/tokens.py`). Source: docs/operations.md, "Logs".
"""

from __future__ import annotations

import json
import logging
import re
import time
from traceback import format_tb
from typing import Any, TextIO

from .duck.duckdb_errors import recognized
from .errors import RaisedException

LEVELS = ("debug", "info", "warning", "error")
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

FACTS = "facts"
# Characters that could end a line, or start a terminal command.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def facts(**values: object) -> dict[str, Any]:
    """The facts of an event, for the `extra` of a logging call; None values are omitted."""
    return {FACTS: {name: value for name, value in values.items() if value is not None}}


def set_up(stream: TextIO, level: str, form: str) -> None:
    """Write this process's logs of `level` and above to `stream`, in one of FORMATS."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
    least = logging.getLevelNamesMapping()[level.upper()]
    # Messages of libraries below a warning are for their developers.
    logging.basicConfig(level=max(logging.WARNING, least), handlers=[handler], force=True)
    logging.getLogger("ducktail").setLevel(least)


def _time(record: logging.LogRecord) -> str:
    """The time in UTC, as ISO 8601 with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _facts_of(record: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = getattr(record, FACTS, {})
    return found


class TextFormatter(logging.Formatter):
    """The format `TIME LEVEL LOGGER: message name=value ...`; a traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of one event."""
        words = [f"{name}={_word(value)}" for name, value in _facts_of(record).items()]
        head = f"{_time(record)} {record.levelname} {record.name}: {_escaped(record.getMessage())}"
        line = " ".join([head, *words])
        if record.exc_info:
            line += "".join(f"\n  {_escaped(part)}" for part in _trace(record.exc_info[1]).splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object on each line: time, level, logger, message, the facts by name, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """The JSON of one event."""
        event: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts_of(record),
        }
        if record.exc_info:
            event["traceback"] = _trace(record.exc_info[1])
        return json.dumps(event, default=str)


def without_values(error: BaseException) -> str:
    """An error's message for the log; only its SQLSTATE or class if the message may contain a value.

    Messages of SQLSTATE classes 22 and 23 contain values ("could not convert string 'x'", "duplicate key"),
    and Python's own errors may.
    """
    told = recognized(error)
    if isinstance(error, OSError) and (told is None or error.errno is not None):
        return str(error)
    if told is None:
        return type(error).__name__
    shown = told.sqlstate[:2] not in ("22", "23") and not isinstance(told, RaisedException)
    return f"{told.sqlstate} {told.message}" if shown else told.sqlstate


def _trace(error: BaseException | None) -> str:
    """The tracebacks of an error and of its causes, the first cause first."""
    parts: list[str] = []
    shown: set[int] = set()
    # An error that was raised from itself, or from one that it has caused, would never end.
    while error is not None and id(error) not in shown:
        shown.add(id(error))
        frames = "".join(format_tb(error.__traceback__))
        parts.append(f"{frames}{type(error).__name__}: {without_values(error)}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(reversed(parts))


def _word(value: object) -> str:
    """A value as one word, quoted as JSON if necessary."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)

"""No regular expression of ours takes more than linear time, whatever text a client sends.

Each pattern of a module is run, by the methods that its module calls, on texts that repeat its own letters,
quotes, digits, blanks and brackets, at two lengths of which one is four times the other. A text that is four
times as long may take four times as long, and not sixteen times.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import ducktail
from ducktail.engine.duck import duckdb_errors
from ducktail.engine.duck.determinism import calls_in

ROOT = Path(ducktail.__file__).parent
PACKAGES = ("engine", "sql", "pgwire_gateway")
CHARS = 1000
# Times are compared from here on: what is shorter is not worth it, and is not measured well.
SECONDS_MIN = 0.003
GROWTH_MAX = 9.0

# Pattern -> why it may take longer on what it is not given.
BOUNDED = {
    "engine.checkpoints.positions._MEMBERS": "the text fits _WHOLE",
    "engine.values.temporal_input.MOMENT_RE": "matched as a whole, on 1,000 characters",
    "engine.values.temporal_input.TIME_RE": "matched as a whole, on 1,000 characters",
    "sql.text.units._BARE": "200 characters",
    "sql.text.units._BYTES": "200 characters",
    "sql.text.units._AMOUNT": "200 characters",
    "sql.text.units._CLOCK": "200 characters",
}
PUMPS = [
    *' a1"\'\\().,%\n{}[]-_\t', '""', "''", "a.", "1.", "a ", "1 ", ' "', '"a"', '"a', "'a", "\\\\", "\\a",
    "a(", "a,", "/*", "1a", "x1", "select ",
]  # fmt: skip


def patterns() -> dict[str, tuple[re.Pattern[Any], set[str]]]:
    """Each compiled pattern of a module, and the methods that the module calls."""
    found = {}
    for package in PACKAGES:
        for info in pkgutil.walk_packages([str(ROOT / package)], f"ducktail.{package}."):
            module = importlib.import_module(info.name)
            source = Path(str(module.__file__)).read_text()
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern) and re.search(rf"^{name}\b.*=", source, re.MULTILINE):
                    called = rf"\b{name}\.(search|match|fullmatch|findall|finditer|sub)\b"
                    methods = set(re.findall(called, source)) or {"match"}
                    found[f"{info.name.removeprefix('ducktail.')}.{name}"] = (value, methods)
    return found


def literals(pattern: re.Pattern[Any]) -> list[str]:
    """The texts that a pattern has letter by letter, in order."""
    found: list[str] = []

    def walk(items: Any) -> None:
        run = ""
        for op, argument in items:
            if op is constants.LITERAL:
                run += chr(argument)
                continue
            found.append(run)
            run = ""
            if op in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
                walk(argument[2])
            elif op is constants.SUBPATTERN:
                walk(argument[-1])
            elif op is constants.BRANCH:
                for branch in argument[1]:
                    walk(branch)
            elif op in (constants.ASSERT, constants.ASSERT_NOT):
                walk(argument[1])
            elif op is constants.ATOMIC_GROUP:
                walk(argument)
            elif op is constants.IN:
                found.extend(chr(value) for kind, value in argument if kind is constants.LITERAL)
        found.append(run)

    walk(parser.parse(pattern.pattern, pattern.flags))
    return [text for text in found if text]


def texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """What stands before, again and again, and behind."""
    own = literals(pattern)
    for before in dict.fromkeys(("", "".join(own[:1]), "".join(own[:2]))):
        for pump in dict.fromkeys((*PUMPS, *own, "".join(own))):
            if pump:
                yield before, pump, "\x01"


def seconds(call: Callable[[Any], Any], text: Any) -> float:
    began = time.process_time()
    found = call(text)
    if isinstance(found, Iterator):
        for _ in found:
            pass
    return time.process_time() - began


def grows(call: Callable[[Any], Any], made: Callable[[int], Any]) -> bool:
    """Whether the time grows faster than the text; measured three times before that is said."""
    for _ in range(3):
        longer = seconds(call, made(4 * CHARS))
        if longer < SECONDS_MIN or longer < GROWTH_MAX * seconds(call, made(CHARS)):
            return False
    return True


PATTERNS = patterns()


def test_the_patterns_are_found() -> None:
    assert len(PATTERNS) > 80
    assert BOUNDED.keys() <= PATTERNS.keys()


@pytest.mark.parametrize("name", sorted(PATTERNS.keys() - BOUNDED.keys()))
def test_a_pattern_takes_linear_time(name: str) -> None:
    pattern, methods = PATTERNS[name]
    binary = isinstance(pattern.pattern, bytes)
    for method in methods:
        function = getattr(pattern, method)
        call = (lambda text: pattern.sub(text[:0], text)) if method == "sub" else function
        for before, pump, behind in texts(pattern):

            def made(count: int, parts: tuple[str, str, str] = (before, pump, behind)) -> Any:
                text = parts[0] + parts[1] * (count // len(parts[1])) + parts[2]
                return text.encode() if binary else text

            assert not grows(call, made), (method, before, pump)


def test_a_growth_is_seen() -> None:
    pattern = re.compile(r"\s*x\s*$")
    assert grows(pattern.search, lambda count: " " * 4 * count)
    assert not grows(pattern.match, lambda count: "x" * 4 * count)


@pytest.mark.parametrize("pump", ['"(', '""(', "a", "a ", '""', '"', "a(", '"a"(', "((", " ("])
def test_calls_are_found_in_linear_time(pump: str) -> None:
    assert not grows(calls_in, lambda count: pump * 8 * count)


def test_calls_are_found() -> None:
    text = """foo (1) + "Bar baz"(2) || "q""x" (3) + 'text(' + nextval('x') + ab.cd\t(1) + x"""
    assert calls_in(text) == {"foo", "bar baz", 'q""x', "text", "nextval", "cd"}


def test_a_long_error_is_told_by_its_beginning_and_its_end() -> None:
    told = duckdb_errors.translated(duckdb.Error("Invalid Input Error: " + "begin " * 100_000 + "end"))
    assert len(told.message) < duckdb_errors.MESSAGE_CHARS_MAX + 10
    assert told.message.startswith("begin") and told.message.endswith("end")

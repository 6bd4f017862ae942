"""PostgreSQL's functions that DuckDB lacks: macros on the search path of the wire's sessions.

The macros are in a schema of their own in the catalog's database, behind the session's search path: a call
stays as the client wrote it, in queries, DML and views, and a user's macro of the same name comes first. No
function of DuckDB's has the name of one: DuckDB's meaning stays. Functions with templates, and pg_sleep, are
Python (templates.py).

Source: data/functions.sql; docs/clients.md, "Functions".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

import duckdb
from duckdb.func import FunctionNullHandling

from ...engine.clock import SystemClock
from .oids import CATALOG, OUR_PREFIX
from .templates import (
    char_of_number,
    char_of_time,
    number_of_text,
    of_interval,
    of_time,
    time_of_text,
)

# The schema of the macros; nothing else is in it.
FUNCTIONS_SCHEMA = f"{OUR_PREFIX}_functions"
PLACE = f"{CATALOG}.{FUNCTIONS_SCHEMA}"
# Numbers of arguments of the functions that take any number of them: forms up to so many elements, pairs or
# steps, and one for more, whose parameters have defaults. A form for each number would be most of a server's
# start.
FORMS = 16
PATH_FORMS = 4
JSON_ARGUMENTS_MAX = 100
ARGUMENTS_MAX = 32
# The default of an argument that is not given.
NONE = f"{OUR_PREFIX}_none"

_CONTINUED = re.compile(r"\n +")


@cache
def forms() -> dict[str, list[str]]:
    """The macros: name -> its forms, as `(parameters) AS (body)`."""
    text = resources.files(__package__).joinpath("data/functions.sql").read_text("utf-8")
    found: dict[str, list[str]] = {}
    for line in _CONTINUED.sub(" ", text).splitlines():
        if line and not line.startswith("--"):
            head, _, body = line.partition(" = ")
            name, _, parameters = head.partition("(")
            found.setdefault(name, []).append(f"({parameters} AS ({body})")
    for head, body in _of_any_number():
        name, _, parameters = head.partition("(")
        found.setdefault(name, []).append(f"({parameters} AS ({body})")
    own = re.compile(rf"(?<![\w.\"])({'|'.join(name for name in found if name[0].isalpha())})\(")
    return {name: [_qualified(own, form) for form in found[name]] for name in found}


def _qualified(own: re.Pattern[str], form: str) -> str:
    """A form with the macros that its body calls by their full names: a user may have one of that name."""
    parameters, _, body = form.partition(" AS ")
    called = own.sub(lambda found: f"{PLACE}.{found[1]}(", body)
    return f"{parameters} AS {called}"


def _of_any_number() -> Iterator[tuple[str, str]]:
    for kind in ("json", "jsonb"):
        for name, made, step in (("array", _array, 1), ("object", _object, 2)):
            head = f"{kind}_build_{name}"
            for count in range(0, step * FORMS + 1, step):
                yield f"{head}({_arguments(count)})", made(count)
            parameters = _arguments(JSON_ARGUMENTS_MAX, step * (FORMS + 1))
            yield f"{head}({parameters})", f"given_{name}({made(JSON_ARGUMENTS_MAX)})"
    for name, test, default in (("num_nulls", "IS NULL", "0"), ("num_nonnulls", "IS NOT NULL", "NULL")):
        counted = " + ".join(f"(z_{at} {test})::INTEGER" for at in range(ARGUMENTS_MAX))
        yield f"{name}({_arguments(ARGUMENTS_MAX, 1, default)})", counted
    for count in (*range(1, PATH_FORMS + 1), ARGUMENTS_MAX - 1):
        path = f"[{', '.join(f'z_{at}::VARCHAR' for at in range(count))}]"
        if count > PATH_FORMS:
            path = f"list_filter({path}, LAMBDA z_x: z_x IS DISTINCT FROM '{NONE}')"
        parameters = f"z_j, {_arguments(count, PATH_FORMS + 1)}"
        yield f"jsonb_extract_path({parameters})", f"jsonb_at(z_j, {path})"
        yield f"jsonb_extract_path_text({parameters})", f"jsonb_at(z_j, {path}) ->> '$'"


def _arguments(count: int, given: int = JSON_ARGUMENTS_MAX, default: str = f"'{NONE}'") -> str:
    """So many parameters; those after the first `given` have a default."""
    return ", ".join(f"z_{at}" + (f" := {default}" if at >= given else "") for at in range(count))


def _array(count: int) -> str:
    return f"json_array({_arguments(count)})"


def _object(count: int) -> str:
    pairs = (f"z_{at}::VARCHAR, z_{at + 1}" for at in range(0, count, 2))
    return f"json_object({', '.join(pairs)})"


@cache
def names() -> frozenset[str]:
    """The names of all macros."""
    return frozenset(name.strip('"') for name in forms()) | {head.partition("(")[0] for head in TABLES}


# Functions in FROM: head -> query.
TABLES = {
    **{
        f"{kind}_array_elements(z_j)": "SELECT unnest(json_extract(z_j, '$[*]')) AS value"
        for kind in ("json", "jsonb")
    },
    **{
        f"{kind}_array_elements_text(z_j)": "SELECT unnest(json_extract_string(z_j, '$[*]')) AS value"
        for kind in ("json", "jsonb")
    },
    "jsonb_each(z_j)": "SELECT unnest(json_keys(z_j)) AS key, unnest(json_extract(z_j, '$.*')) AS value",
    **{
        f"{kind}_each_text(z_j)": "SELECT unnest(json_keys(z_j)) AS key, "
        "unnest(json_extract_string(z_j, '$.*')) AS value"
        for kind in ("json", "jsonb")
    },
    **{
        f"{kind}_object_keys(z_j)": f"SELECT unnest(json_keys(z_j)) AS {kind}_object_keys"
        for kind in ("json", "jsonb")
    },
    "string_to_table(z_w, z_d)": "SELECT unnest(string_split(z_w, z_d)) AS string_to_table",
    "regexp_split_to_table(z_w, z_p)": "SELECT unnest(regexp_split_to_array(z_w, z_p)) "
    "AS regexp_split_to_table",
    "generate_subscripts(z_l, z_d)": "SELECT unnest(range(1, len(z_l) + 1))::INTEGER AS generate_subscripts",
}


def statements() -> Iterator[str]:
    """The statements that create the schema and its macros."""
    yield f"CREATE SCHEMA {PLACE}"
    for name, found in forms().items():
        yield f"CREATE MACRO {PLACE}.{name}{', '.join(found)}"
    for head, query in TABLES.items():
        yield f"CREATE MACRO {PLACE}.{head} AS TABLE {query}"


def register(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create the Python functions that the macros call.

    Each is a function of a module: DuckDB keeps none alive once this cursor is closed.
    """
    functions: list[tuple[str, Callable[..., str | int | bool | None], list[Any], str, bool]] = [
        ("char_of_time", _char_of_time, ["BIGINT", "BIGINT", "VARCHAR", "VARCHAR"], "VARCHAR", False),
        ("char_of_interval", _char_of_interval, ["BIGINT", "BIGINT", "BIGINT", "VARCHAR"], "VARCHAR", False),
        ("char_of_number", _char_of_number, ["VARCHAR", "BOOLEAN", "VARCHAR"], "VARCHAR", False),
        ("time_of_text", _time_of_text, ["VARCHAR", "VARCHAR"], "VARCHAR", False),
        ("number_of_text", _number_of_text, ["VARCHAR", "VARCHAR"], "VARCHAR", False),
        ("json_contains", _json_contains, ["VARCHAR", "VARCHAR"], "BOOLEAN", False),
        ("clock", _clock, ["INTEGER"], "BIGINT", True),
    ]
    for name, function, parameters, returned, volatile in functions:
        cursor.create_function(
            f"__ducktail_{name}", function, parameters, returned,
            null_handling=FunctionNullHandling.SPECIAL, side_effects=volatile,
        )  # fmt: skip


def _char_of_time(
    micros: int | None, offset: int | None, zone: str | None, template: str | None
) -> str | None:
    if micros is None or template is None:
        return None
    return char_of_time(of_time(micros, offset, zone or ""), template)


def _char_of_interval(
    months: int | None, days: int | None, micros: int | None, template: str | None
) -> str | None:
    if months is None or days is None or micros is None or template is None:
        return None
    return char_of_time(of_interval(months, days, micros), template)


def _char_of_number(value: str | None, exact: bool | None, template: str | None) -> str | None:
    if value is None or template is None:
        return None
    return char_of_number(Decimal(value), template, exact=bool(exact))


def _time_of_text(text: str | None, template: str | None) -> str | None:
    if text is None or template is None:
        return None
    at, offset = time_of_text(text, template)
    if offset is None:
        return str(at)
    return f"{at - timedelta(seconds=offset)}+00"


def _number_of_text(text: str | None, template: str | None) -> str | None:
    return None if text is None or template is None else f"{number_of_text(text, template):f}"


def _json_contains(one: str | None, other: str | None) -> bool | None:
    if one is None or other is None:
        return None
    try:
        return json_contains(_read(one), _read(other))
    except RecursionError as error:
        raise ValueError("json that deep is not supported here") from error


_read = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal).decode


def json_contains(one: object, other: object) -> bool:
    """The operator `@>` of jsonb: an array of which `other` is a scalar contains it, at the top only.

    >>> json_contains([1, [2]], 1), json_contains([[1]], [1]), json_contains({"a": [1, 2]}, {"a": [2]})
    (True, False, True)
    """
    if isinstance(one, list) and not isinstance(other, (list, dict)):
        other = [other]
    return _contains(one, other)


def _contains(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return all(key in one and _contains(one[key], value) for key, value in other.items())
    if isinstance(one, list) and isinstance(other, list):
        return all(any(_contains(item, value) for item in one) for value in other)
    return type(one) is type(other) and one == other


def _clock(_: int | None) -> int:
    return SystemClock().now_us()

"""Pipelines: reports of external programs about their progress on streams.

A report is a JSON object under the pipeline's name. The newest reports of each pipeline are kept in a table
of the database, appended within the reporting transaction and under the writer lock, so that two reports
never conflict; the views read that table. Reports do not move positions and are not needed to resume: they
are information for people. Source: docs/sql.md, "REPORT PIPELINE".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

import duckdb

from ..duck.cursors import ask, ask_maybe
from ..errors import InvalidParameterValue, InvalidTextRepresentation, ProgramLimitExceeded
from ..quoting import fold, literal
from ..schema import SCHEMA
from ..values.dates_times import SECOND_US

# Reports kept of a pipeline: some minutes for one that reports every few seconds, a day for one that runs
# each quarter hour.
HISTORY_MAX = 100
# A batch from a source of 1,024 partitions has some 30 bytes of offsets for each, twice.
STATE_BYTES_MAX = 128 * 1024
# The view reads each of them.
PIPELINES_MAX = 1000
# A pipeline without reports for this time makes room for others.
KEPT_US = 30 * 24 * 3600 * SECOND_US
# Names appear in views and error texts.
NAME_CHARS_MAX = 255
_INT8_MAX = (1 << 63) - 1
# Deepest nesting of a report, because JSON readers are recursive.
_DEPTH_MAX = 32

TABLE = f"{SCHEMA}.pipeline_reports"


@dataclass(frozen=True, slots=True)
class Report:
    """A validated report.

    Args:
        name: the pipeline's name as given.
        state: the JSON object as text, on one line.
    """

    name: str
    state: str

    @property
    def key(self) -> str:
        """The pipeline's key, independent of the name's case."""
        return fold(self.name)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _INT8_MAX


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _time(value: object) -> bool:
    return time_of(value) is not None


# Members of a report with a column in the views; all others stay in `state`.
FACTS = {
    "status": (_text, "a text"),
    "batch_id": (_whole, "a whole number, at least 0"),
    "events": (_whole, "a whole number, at least 0"),
    "events_per_second": (_number, "a number, at least 0"),
    "state_rows": (_whole, "a whole number, at least 0"),
    "watermark": (_time, "a time as ISO 8601 has it, such as '2026-01-31T12:00:00Z'"),
    "offsets": (_object, "an object"),
}


def time_of(value: object) -> str | None:
    """A time's text in UTC; None for other text. A time without a zone is UTC."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return None


def read_report(name: str, text: str) -> Report:
    """Check a report.

    Raises:
        InvalidParameterValue: the name is empty, the state is not an object, or a known member is invalid.
        InvalidTextRepresentation: the state is not JSON.
        ProgramLimitExceeded: the report is too long.
    """
    if not name:
        raise InvalidParameterValue("the pipeline has no name")
    if "\0" in name:
        raise InvalidTextRepresentation("the pipeline's name holds the character 0")
    if len(name) > NAME_CHARS_MAX:
        raise ProgramLimitExceeded(f"the pipeline's name is longer than {NAME_CHARS_MAX} characters")
    if len(text.encode()) > STATE_BYTES_MAX:
        raise ProgramLimitExceeded(f'the state of pipeline "{name}" is longer than {STATE_BYTES_MAX} bytes')
    state = _parsed(name, text)
    if not isinstance(state, dict):
        raise InvalidParameterValue(
            f'the state of pipeline "{name}" is no JSON object',
            hint="""REPORT PIPELINE 'name' AS '{"batch_id": 7, "events": 1000}'""",
        )
    for part, (is_one, wanted) in FACTS.items():
        if state.get(part) is not None and not is_one(state[part]):
            raise InvalidParameterValue(f'"{part}" of pipeline "{name}" must be {wanted}')
    return Report(name, json.dumps(state, separators=(",", ":")))


def _parsed(name: str, text: str) -> Any:
    def refuse(what: str) -> NoReturn:
        raise ValueError(f"{what} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands in it twice")
        return found

    try:
        state = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
        # Half of a surrogate pair is not a character.
        json.dumps(state, ensure_ascii=False).encode()
        if _depth(state) > _DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {_DEPTH_MAX}")
    except RecursionError as error:
        raise _no_json(name, f"it is nested deeper than {_DEPTH_MAX}") from error
    except ValueError as error:
        raise _no_json(name, str(error)) from error
    return state


def _no_json(name: str, why: str) -> InvalidTextRepresentation:
    return InvalidTextRepresentation(
        f'the state of pipeline "{name}" is no valid JSON', detail=f"{why[:1].upper()}{why[1:]}."
    )


def _depth(value: object) -> int:
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        return 0
    return 1 + max(map(_depth, inner), default=0)


def silent(cursor: duckdb.DuckDBPyConnection, now_us: int) -> list[str]:
    """The keys of pipelines that have not reported for `KEPT_US`."""
    rows = cursor.execute(
        f"SELECT key FROM {TABLE} GROUP BY key HAVING max(reported_at) < make_timestamptz({now_us - KEPT_US})"
    ).fetchall()
    return [key for (key,) in rows]


def there_is(cursor: duckdb.DuckDBPyConnection, key: str) -> bool:
    """True if a pipeline has reported before."""
    return ask_maybe(cursor, f"SELECT 1 FROM {TABLE} WHERE key = {literal(key)} LIMIT 1") is not None


def check_room(cursor: duckdb.DuckDBPyConnection) -> None:
    """Check that a new pipeline may report.

    Raises:
        ProgramLimitExceeded: there are too many pipelines.
    """
    (count,) = ask(cursor, f"SELECT count(DISTINCT key) FROM {TABLE}")
    if count >= PIPELINES_MAX:
        raise ProgramLimitExceeded(
            f"there are {PIPELINES_MAX} pipelines, and there can be no more",
            hint="A pipeline keeps its name when it starts again; 30 days of silence end it.",
        )


def forget(cursor: duckdb.DuckDBPyConnection, keys: Iterable[str]) -> None:
    """Delete the reports of pipelines."""
    listed = ", ".join(map(literal, keys))
    if listed:
        cursor.execute(f"DELETE FROM {TABLE} WHERE key IN ({listed})").fetchall()


def store(cursor: duckdb.DuckDBPyConnection, report: Report, now_us: int, by: str) -> None:
    """Append a report, and delete the pipeline's oldest beyond `HISTORY_MAX`.

    Raises:
        duckdb.Error: a concurrent transaction has changed the same rows.
    """
    key = literal(report.key)
    cursor.execute(
        f"INSERT INTO {TABLE} VALUES (nextval('{SCHEMA}.object_id'), {key}, {literal(report.name)}, "
        f"{literal(report.state)}, make_timestamptz({now_us}), {literal(by)})"
    ).fetchall()
    cursor.execute(
        f"DELETE FROM {TABLE} WHERE key = {key} AND seq <= (SELECT seq FROM {TABLE} WHERE key = {key} "
        f"ORDER BY seq DESC LIMIT 1 OFFSET {HISTORY_MAX})"
    ).fetchall()


def rows(cursor: duckdb.DuckDBPyConnection, *, history: bool) -> list[dict[str, Any]]:
    """The newest report of each pipeline, or with `history` all stored ones in order of arrival."""
    newest = "" if history else "QUALIFY row_number() OVER (PARTITION BY key ORDER BY seq DESC) = 1"
    found = cursor.execute(
        f"SELECT pipeline, state, epoch_us(reported_at), reported_by FROM {TABLE} {newest} ORDER BY seq"
    ).fetchall()
    return [_row(*one) for one in found]


def _row(name: str, text: str, reported_us: int, by: str) -> dict[str, Any]:
    state = json.loads(text)
    facts = {part: state.get(part) for part in FACTS}
    offsets = facts["offsets"]
    return {
        "pipeline_name": name,
        **facts,
        "watermark": time_of(facts["watermark"]),
        "offsets": None if offsets is None else json.dumps(offsets),
        "state": text,
        "reported_at": datetime.fromtimestamp(reported_us / SECOND_US, UTC).isoformat(),
        "reported_by": by or None,
    }

"""Triggers, and the tables that they write: a trigger's writes are not captured.

DuckDB binds the text of a trigger each time that it fires, by the search path of the writing session. So a
target without a schema may be any table of its name, and counts as all of them. The texts are from
`duckdb_triggers()`, where every name that is a keyword is quoted: the first word outside of brackets behind
FOR EACH that can open a statement opens the trigger's statement. An unrecognized target may be any table, and
firing such a trigger is refused.

Source: docs/sql.md, "Writing".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import duckdb

from ..quoting import fold
from ..schema import SCHEMA
from .streams import key_of

TableKey = tuple[str, ...]

# A quoted name or string, whose quotes within are doubled, a word, or anything else.
_TOKEN = re.compile(r'"[^"]*"|' + r"'[^']*'|\w+|\S")
_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
# Words that may be between a verb and its target.
_BEFORE_TARGET = frozenset({"INTO", "FROM", "OR", "REPLACE", "IGNORE"})


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a trigger writes, in lower case.

    Args:
        schema: the schema; None for a table of this name in any schema.
        name: the name; None for any table.
    """

    schema: str | None
    name: str | None

    def may_be(self, key: TableKey) -> bool:
        """True if the target may be this table."""
        return self.name in (None, key[-1]) and self.schema in (None, key[0])


ANY = Target(None, None)


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger: the table whose writes fire it, and its targets."""

    name: str
    table: TableKey
    target: Target


@dataclass(frozen=True, slots=True)
class Triggers:
    """The triggers of a database."""

    all: tuple[Trigger, ...] = ()

    def on(self, key: TableKey) -> bool:
        """True if writes of a table fire one."""
        return any(trigger.table == key for trigger in self.all)

    def fired_by(self, key: TableKey) -> Iterator[Trigger]:
        """The triggers fired by a write of a table, directly or through other triggers, each once."""
        left, found = list(self.all), [Target(key[0], key[-1])]
        while found:
            target = found.pop()
            fired = [trigger for trigger in left if target.may_be(trigger.table)]
            left = [trigger for trigger in left if trigger not in fired]
            found += [trigger.target for trigger in fired]
            yield from fired

    def that_write(self, keys: Collection[TableKey]) -> Iterator[Trigger]:
        """The triggers that may write one of these tables, one of the engine's own, or any table."""
        for trigger in self.all:
            target = trigger.target
            if target == ANY or target.schema == SCHEMA or any(target.may_be(key) for key in keys):
                yield trigger


def read_triggers(cursor: duckdb.DuckDBPyConnection) -> Triggers:
    """The triggers of the database, visible in the cursor's transaction."""
    rows = cursor.execute(
        "SELECT trigger_name, schema_name, table_name, sql, database_name "
        "FROM system.main.duckdb_triggers() WHERE database_name = current_database() ORDER BY ALL"
    ).fetchall()
    return Triggers(
        tuple(
            Trigger(name, key_of(schema, table), target_of(text, database))
            for name, schema, table, text, database in rows
        )
    )


def target_of(text: str, database: str) -> Target:
    """The target of the writes of a trigger's text.

    Args:
        text: the text in duckdb_triggers().
        database: the name under which DuckDB has it attached.
    """
    words = _TOKEN.findall(text)
    try:
        at = words.index("FOR")
        at = _verb(words, at + (3 if words[at + 1] == "EACH" else len(words)))
        while words[at] in _BEFORE_TARGET:
            at += 1
        *qualifiers, name = _name(words, at)
    except (ValueError, IndexError):
        return ANY
    if qualifiers and (len(qualifiers) > 1 or fold(qualifiers[-1]) != fold(database)):
        return Target(fold(qualifiers[-1]), fold(name))
    # Only the database is given: the search path decides the schema.
    return Target(None, fold(name))


def _verb(words: list[str], at: int) -> int:
    """The index behind the next word that opens the trigger's statement."""
    depth = 0
    for place in range(at, len(words)):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if not depth and words[place] in _VERBS:
            return place + 1
    raise ValueError("it opens none")


def _name(words: list[str], at: int) -> list[str]:
    """The parts of the name that begins at an index."""
    parts = [""]
    for word in words[at:]:
        if word == ".":
            parts.append("")
        elif word[0] == '"':
            # A doubled quote within one ends a word and begins the next.
            parts[-1] += f'"{word[1:-1]}' if parts[-1] else word[1:-1]
        elif parts[-1]:
            break
        else:
            parts[-1] = word
    if not all(parts):
        raise ValueError("it is none")
    return parts

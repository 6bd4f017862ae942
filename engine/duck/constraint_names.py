"""Names of constraints, which DuckDB forgets: a name that a user gave is in the text of a CHECK.

The expression of a named CHECK is a CASE that has the name and otherwise gives the condition. A named PRIMARY
KEY, UNIQUE or FOREIGN KEY is followed by a CHECK that is always true, with its kind and name and the same
columns. So a name follows its constraint through renames, copies of the file and restores, like the kind of a
column with a sequence of its own (identities.py). DuckDB evaluates the constant part once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..quoting import ident, literal

PRIMARY_KEY, UNIQUE, FOREIGN_KEY = KEYS = ("PRIMARY KEY", "UNIQUE", "FOREIGN KEY")

_PREFIX = "constraint "
CLOSING = ") END"
# The beginning and the end of such an expression as DuckDB shows it, around the literal of the name.
STORED_OPENING = f"CASE  WHEN (('{_PREFIX}"
_BEHIND_NAME, _STORED_CLOSING = "' = '')) THEN (NULL) ELSE ", " END"
# PostgreSQL's words for a violation, up to the name.
VIOLATES = 'violates check constraint "'
_FAILED, _WITH = "CHECK constraint failed on table ", " with expression CHECK("


def opening(name: str) -> str:
    """The text before the condition of a constraint with this name, up to CLOSING.

    >>> opening("positive") + "a > 0" + CLOSING
    "CASE 'constraint positive' WHEN '' THEN NULL ELSE (a > 0) END"
    """
    return f"CASE {literal(_PREFIX + name)} WHEN '' THEN NULL ELSE ("


def split(expression: str) -> tuple[str, str] | None:
    """The name and the condition of a constraint's expression as DuckDB shows it; None without a name.

    >>> split("CASE  WHEN (('constraint positive' = '')) THEN (NULL) ELSE (a > 0) END")
    ('positive', '(a > 0)')
    """
    if not expression.startswith(STORED_OPENING):
        return None
    rest = expression.removeprefix(STORED_OPENING)
    end = 0
    while rest.startswith("''", end) or (end < len(rest) and rest[end] != "'"):
        end += 2 if rest[end] == "'" else 1
    name, behind = rest[:end].replace("''", "'"), rest[end:]
    if not behind.startswith(_BEHIND_NAME) or not behind.endswith(_STORED_CLOSING):
        return None
    return name, behind.removeprefix(_BEHIND_NAME).removesuffix(_STORED_CLOSING)


def key_check(kind: str, name: str, columns: Sequence[str]) -> str:
    """The CHECK with the name of a key.

    >>> key_check(UNIQUE, "u", ["a"])
    "CHECK (CASE 'UNIQUE u' WHEN '' THEN \\"a\\" IS NULL ELSE true END)"
    """
    absent = " AND ".join(f"{ident(column)} IS NULL" for column in columns)
    return f"CHECK (CASE {literal(f'{kind} {name}')} WHEN '' THEN {absent} ELSE true END)"


_KEY_OPENING = "CASE  WHEN (('{}"
_KEY_PATTERN = rf"^CASE  WHEN \(\('({'|'.join(KEYS)}) ((?:[^']|'')*)' = ''\)\) THEN \((.*)\) ELSE true END$"
_KEY = re.compile(_KEY_PATTERN, re.DOTALL)
# A column in the condition, in the order of the key's columns.
_COLUMN_PATTERN = r"""\(("(?:[^"]|"")*"|[^\s()"]+) IS NULL\)"""
_COLUMN = re.compile(_COLUMN_PATTERN)


def key_of(expression: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Kind, name and columns of the key that a CHECK names; None for another CHECK."""
    if not expression.startswith("CASE ") or not (found := _KEY.match(expression)):
        return None
    columns = tuple(map(_unquoted, _COLUMN.findall(found[3])))
    return found[1], found[2].replace("''", "'"), columns


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def listed_sql(constraints: str) -> str:
    """SQL of a list of constraints with their names and conditions, without the CHECKs that only name.

    Args:
        constraints: the list, as duckdb_constraints() has it.
    """
    parts = f"regexp_extract(expression, {literal(_KEY_PATTERN)}, ['kind', 'name', 'absent'], 's')"
    openings = " OR ".join(f"starts_with(expression, {literal(_KEY_OPENING.format(kind))})" for kind in KEYS)
    name = name_sql("coalesce(c.expression, '')", f"coalesce(n.name, {default_sql('c.')})")
    found = _unescaped("any_value(parts.name)")
    column = """if(z_c[1] = '"', replace(z_c[2:-2], '""', '"'), z_c)"""
    columns = f"regexp_extract_all(parts.absent, {literal(_COLUMN_PATTERN)}, 1)"
    return f"""
        SELECT c.* REPLACE ({name} AS constraint_name, {condition_sql("c.expression")} AS expression)
        FROM {constraints} AS c LEFT JOIN (
            SELECT database_name, table_oid, parts.kind AS kind, {found} AS name,
                   list_transform({columns}, LAMBDA z_c: {column}) AS columns
            FROM (SELECT database_name, table_oid, {parts} AS parts FROM {constraints} WHERE {openings})
            GROUP BY database_name, table_oid, kind, columns) AS n
          ON n.table_oid = c.table_oid AND n.database_name = c.database_name AND n.kind = c.constraint_type
          AND n.columns = c.constraint_column_names
        WHERE NOT coalesce({openings.replace("expression", "c.expression")}, false)"""


def default_sql(prefix: str = "") -> str:
    """SQL of the name of a constraint without one, as PostgreSQL names keys, and DuckDB the others.

    Args:
        prefix: the alias of duckdb_constraints(), with a dot.
    """
    columns = f"array_to_string({prefix}constraint_column_names, '_')"
    return (
        f"CASE {prefix}constraint_type WHEN '{PRIMARY_KEY}' THEN concat({prefix}table_name, '_pkey') "
        f"WHEN '{FOREIGN_KEY}' THEN concat({prefix}table_name, '_', {columns}, '_fkey') "
        f"ELSE {prefix}constraint_name END"
    )


def worded(message: str) -> str:
    """DuckDB's message of a violated constraint, by its name if it has one.

    >>> print(worded('CHECK constraint failed on table "t" with expression CHECK((a > 0))'))
    CHECK constraint failed on table "t" with expression CHECK((a > 0))
    """
    table, failed, expression = message.removeprefix(_FAILED).partition(_WITH)
    found = split(expression.removesuffix(")")) if failed and message.startswith(_FAILED) else None
    return message if found is None else f'new row for relation {table} {VIOLATES}{found[0]}"'


def name_sql(expression: str, otherwise: str) -> str:
    """SQL of a constraint's name, given SQL of its expression and of the name without one."""
    found = f"regexp_extract({expression}, {literal(_PATTERN)}, 1)"
    return f"if(starts_with({expression}, {literal(STORED_OPENING)}), {_unescaped(found)}, {otherwise})"


def condition_sql(expression: str) -> str:
    """SQL of a constraint's condition, given SQL of its expression."""
    found = f"regexp_extract({expression}, {literal(_PATTERN)}, 2, 's')"
    return f"if(starts_with({expression}, {literal(STORED_OPENING)}), {found}, {expression})"


_PATTERN = rf"^CASE  WHEN \(\('{_PREFIX}((?:[^']|'')*)' = ''\)\) THEN \(NULL\) ELSE (.*) END$"


def _unescaped(text: str) -> str:
    return f"replace({text}, '''''', '''')"

"""Names of CHECK constraints: the name is in the text of the expression, because DuckDB forgets it.

A named constraint is one whose expression is a CASE that has the name and otherwise gives the condition. So
the name follows the constraint through renames, copies of the file and restores, like the kind of a column
with a sequence of its own (identities.py). DuckDB evaluates the constant part once.
"""

from __future__ import annotations

from ..quoting import literal

_PREFIX = "constraint "
CLOSING = ") END"
# The beginning and the end of such an expression as DuckDB shows it, around the literal of the name.
STORED_OPENING = f"CASE  WHEN (('{_PREFIX}"
_BEHIND_NAME, _STORED_CLOSING = "' = '')) THEN (NULL) ELSE ", " END"
# PostgreSQL's words for a violation, up to the name.
VIOLATES = 'violates check constraint "'
_FAILED, _WITH = "CHECK constraint failed on table ", " with expression CHECK("


def opening(name: str) -> str:
    """The text in front of the condition of a constraint with this name, up to CLOSING.

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

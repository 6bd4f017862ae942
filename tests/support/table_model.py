"""A plain model of a captured table: rows in a Counter, and columns that come, go and are called otherwise.

Every table has the columns id, v, s and x, x of a type of its own whose values are places in a list of
literals; behind them stand those that ALTER TABLE has added. A row is a tuple of their values. A column is
its number: a new one never has that of another, whatever it is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

# id, v, s, the place of x among the literals (None: NULL), and the values of added columns.
Row = tuple[Any, ...]
Rows = Counter[Row]
BASE = ("id", "v", "s", "x")
X = 3
# What x and the added columns may be called, so that one often has a name that another had.
NAMES = ("x", "other", "e", "f")
IDS = range(12)

# The types of x, each with literals that are all different.
TYPES: dict[str, tuple[str, ...]] = {
    "double": ("1.5", "'nan'::double", "'inf'::double", "1e300", "0.1"),
    "decimal(38,10)": ("12345678901234567890.0000000001", "-0.5", "0"),
    "int[]": ("[1, null]", "[]", "[7]"),
    "struct(a bigint, b varchar)": ("{'a': 9007199254740993, 'b': 'x'}", "{'a': null, 'b': '\"'}"),
    "timestamptz": ("timestamptz '2026-01-01 00:00:00.000001+00'", "timestamptz '1969-12-31 23:59:59+00'"),
    "hugeint": ("170141183460469231731687303715884105727", "-1"),
    "blob": ("'\\x00\\xff'::blob", "'abc'::blob"),
    "json": ("'{\"a\": [1, 2]}'::json", "'3'::json"),
    "map(varchar, int)": ("map {'k': 1}", "map {}"),
    "varchar": ("'plain'", "'it''s'", "''", "'ß\U0001f986'"),
}

# The same values as PostgreSQL writes them in COPY, before a format's own escapes.
TEXTS: dict[str, tuple[str, ...]] = {
    "double": ("1.5", "NaN", "Infinity", "1e300", "0.1"),
    "decimal(38,10)": ("12345678901234567890.0000000001", "-0.5", "0"),
    "int[]": ("{1,NULL}", "{}", "{7}"),
    "struct(a bigint, b varchar)": ('{"a": 9007199254740993, "b": "x"}', '{"a": null, "b": "\\""}'),
    "timestamptz": ("2026-01-01 00:00:00.000001+00", "1969-12-31 23:59:59+00"),
    "hugeint": ("170141183460469231731687303715884105727", "-1"),
    "blob": ("\\x00ff", "\\x616263"),
    "json": ('{"a": [1, 2]}', "3"),
    "map(varchar, int)": ('{"k": 1}', "{}"),
    "varchar": ("plain", "it's", "", "ß\U0001f986"),
}


class Duplicate(Exception):
    """The statement would leave two rows of one key."""


@dataclass(frozen=True)
class Effect:
    """One row that a statement changes: old alone is a delete, new alone an insert, both an update."""

    old: Row | None
    new: Row | None


@dataclass(frozen=True)
class Column:
    """A column as one version of its table has it; `default` is of the type `kind`."""

    number: int
    name: str
    kind: str
    default: int | str | None = None


Columns = tuple[Column, ...]


@dataclass(eq=False, repr=False)
class Table:
    """A table of the model, as all see it or as one transaction does; it is the one of this name.

    `key` are the places of its primary key's columns.

    Args:
        called: what it is called now, as RENAME TO has it; `name` stays.
        versions: the columns of each version; the last one's are the present ones.
        altered: where in the model's commits it was altered last.
    """

    name: str
    kind: str
    key: tuple[int, ...]
    versions: dict[int, Columns] = field(default_factory=dict)
    altered: int = -1
    called: str = ""

    def __post_init__(self) -> None:
        self.called = self.called or self.name
        if self.versions:
            return
        kinds = ("int", "int", "varchar", self.kind)
        self.versions[1] = tuple(
            Column(number, name, kind) for number, (name, kind) in enumerate(zip(BASE, kinds, strict=True))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def own(self) -> Table:
        """The same for one transaction, which may alter it."""
        return replace(self, versions=dict(self.versions))

    @property
    def version(self) -> int:
        return max(self.versions)

    @property
    def columns(self) -> Columns:
        return self.versions[self.version]

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.columns)

    @property
    def x(self) -> str:
        """What column x is called now."""
        return self.columns[X].name

    @property
    def literals(self) -> tuple[str, ...]:
        return TYPES[self.kind]

    @property
    def ddl(self) -> str:
        key = f", primary key ({', '.join(BASE[i] for i in self.key)})" if self.key else ""
        return f"create table {self.called} (id int, v int, s varchar, x {self.kind}{key})"

    def key_of(self, row: Row) -> tuple[object, ...]:
        return tuple(row[i] for i in self.key) if self.key else row

    def after(self, rows: Rows, effects: Iterable[Effect]) -> Rows:
        """The rows when the effects have taken place.

        Raises:
            Duplicate: two of them would have one key.
        """
        found = Counter(rows)
        for effect in effects:
            if effect.old is not None:
                assert found[effect.old] > 0, "a statement changes rows that are there"
                found[effect.old] -= 1
            if effect.new is not None:
                found[effect.new] += 1
        found = +found
        if self.key and len({self.key_of(row) for row in found}) < sum(found.values()):
            raise Duplicate
        return found

    def difference(self, old: Rows, new: Rows) -> list[Effect]:
        """What takes one to the other, of rows that their keys tell apart."""
        olds, news = ({self.key_of(row): row for row in rows} for rows in (old, new))
        pairs = [(olds.get(key), news.get(key)) for key in {**olds, **news}]
        return [Effect(was, now) for was, now in pairs if was != now]

    def filled(self, row: Row) -> Row:
        """A row of the first columns with the others' defaults."""
        return (*row[: len(BASE)], *(column.default for column in self.columns[len(BASE) :]))

    def literal(self, x: int | None) -> str:
        return "null" if x is None else self.literals[x]

    def values(self, row: Row) -> str:
        """A row, or the first columns of one, in brackets."""
        texts = [self.literal(value) if i == X else sql_of(value) for i, value in enumerate(row)]
        return f"({', '.join(texts)})"

    def query(self, rows: Iterable[Row]) -> str:
        """These rows as a query with the table's types, which any DuckDB can run."""
        values = ", ".join(map(self.values, rows))
        typed = ", ".join(f"{c.name}::{c.kind} as {c.name}" for c in self.columns)
        return f"select {typed} from (values {values}) q({', '.join(self.names)})"

    def texts(self, row: Row) -> tuple[str | None, ...]:
        """A row as COPY's texts."""
        own = [None if value is None else str(value) for value in row]
        own[X] = None if row[X] is None else TEXTS[self.kind][row[X]]
        return tuple(own)

    def x_place(self, name: str | None = None) -> str:
        """SQL: the place of x among the literals."""
        x = name or self.x
        cases = (
            f"when {x} is not distinct from ({literal})::{self.kind} then {i}"
            for i, literal in enumerate(self.literals)
        )
        return f"case when {x} is null then null {' '.join(cases)} end"

    def altered_to(self, columns: Columns) -> None:
        """It has another version."""
        self.versions[self.version + 1] = columns

    def renamed(self, place: int, name: str) -> Columns:
        """The columns with one called otherwise."""
        return tuple(replace(c, name=name) if i == place else c for i, c in enumerate(self.columns))


def names_of(columns: Columns) -> tuple[str, ...]:
    """What columns are called."""
    return tuple(column.name for column in columns)


def cast(value: Any, kind: str) -> Any:
    """An added column's value in another of its types; None where that cannot be."""
    if value is None:
        return None
    if kind == "varchar":
        return str(value)
    return int(value) if str(value).lstrip("-").isdigit() else None


def sql_of(value: int | str | None) -> str:
    """A number or a text as a literal."""
    return "null" if value is None else repr(value)

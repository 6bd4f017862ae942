"""Random reads and ALTER TABLE that rewrites rows, for tests/property/test_streamed_tables.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import random_merge
from random_dml import NOCASE, PARAMETERS, RANDOM, TableKind

# A column's types, by the one that it is made with; the values of that one fit all of them.
OTHER_TYPES = {
    "int": ("int", "int", "bigint", "hugeint"),
    "varchar": ("varchar", "varchar", NOCASE),
    NOCASE: (NOCASE, NOCASE, "varchar"),
    "decimal(10,2)": ("decimal(10,2)", "decimal(12,3)", "decimal(10,2)"),
}
# Defaults by type: the same wherever they are evaluated, and of a value of their own for each row.
CONSTANTS = {"int": ("7", "null", "1 + 1"), "varchar": ("'d'", "upper('e')"), "double": ("1.5",)}
FRESH = {
    "int": ("case when random() < 2 then 5 end", "abs(random() * 0)::int"),
    "varchar": ("case when random() < 2 then 'x' end", "'n' || (random() * 0)::int"),
    "double": ("case when random() < 2 then 0.5 end",),
}
ADDED_MAX = 2


@dataclass(frozen=True)
class Alteration:
    """What an ALTER TABLE makes of the rows that are there, as one who keeps a copy does.

    Args:
        column: the one that it adds or changes.
        type: the type that this has then.
        value: SQL of the column's value in a copy, over the columns before.
    """

    column: str
    type: str
    value: str


class Generator(random_merge.Generator):
    """Random statements on one kind of table, ALTER TABLE among them."""

    def __init__(self, rng: random.Random, kind: TableKind) -> None:
        super().__init__(rng, replace(kind, columns=dict(kind.columns)))
        self.alteration: Alteration | None = None
        self.added = 0

    def makers(self) -> list[tuple[int, Callable[[], str]]]:
        """As `random_merge` has it, and ALTER TABLE."""
        adding = [(4, self.add_column)] * (self.added < ADDED_MAX)
        return [*super().makers(), (12, self.counted), (4, self.in_cte), (8, self.using), *adding]

    def ignore(self) -> str:
        """As `random_dml` has it: which of rows that meet in two keys stays is not promised."""
        return self.insert() if len(self.kind.unique) > 1 else super().ignore()

    def counted(self) -> str:
        """A read: how many rows a WHERE finds."""
        return f"select count(*) from {self.kind.name} where {self.found()}"

    def in_cte(self) -> str:
        """A write whose rows a query counts."""
        written = f"delete from {self.kind.name} where {self.found()}"
        return f"with w as ({written} returning {self.columns[0]}) select count(*) from w"

    def found(self) -> str:
        """A WHERE clause, mostly with a parameter."""
        known = [column for column, type_ in self.kind.columns.items() if type_ in PARAMETERS]
        column = self.r.choice([column for column in known if column in self.columns])
        compared = f"{column} = {self.parameter(column)}"
        return compared if self.r.random() < 0.7 else self.predicate(self.relation)

    def altered(self, done: Alteration) -> None:
        """An ALTER TABLE has been done: its column is written and read from now on."""
        if done.column not in self.columns:
            self.columns.append(done.column)

    def using(self) -> str:
        """ALTER TYPE, with USING most of the time; often to the type that the column has."""
        column = self.r.choice([c for c in self.columns if c not in self.keys] or self.columns)
        made = self.kind.columns[column]
        type_ = self.r.choice(OTHER_TYPES.get(made, (made,)))
        self.alteration = Alteration(column, type_, f"try_cast({column} as {bare(type_)})")
        using = f" using {self.rewritten(column)}" if self.r.random() < 0.85 else ""
        return f"alter table {self.kind.name} alter {self.spelled(column)} type {type_}{using}"

    def rewritten(self, column: str) -> str:
        """What USING may say."""
        kind = self.kind.columns[column]
        other = self.r.choice(self.columns)
        if kind == "int":
            some = f"case when {self.r.choice(self.ints)} % 2 = 0 then {column} else -1 end"
            return self.pick(f"{column} * 10", f"{column} + 1", column, some, "0", "(random() * 0)::int")
        if kind in ("varchar", NOCASE):
            return self.pick(f"upper({column})", f"{column} || '{column[0]}'", f"alias({other})", f"{column}")
        return self.pick(
            column, self.value(column, parameters=False), f"case when random() < 2 then {column} end"
        )

    def add_column(self) -> str:
        """ADD COLUMN with a default, which may be another one in each row."""
        self.added += 1
        column, type_ = f"added{self.added}", self.pick(*CONSTANTS)
        roll = self.r.random()
        constant = roll < 0.4
        if constant:
            default = self.pick(*CONSTANTS[type_])
        elif roll < 0.8:
            default = self.pick(*FRESH[type_])
        else:
            # Which row gets which number of a sequence is not promised.
            default, self.now.open = self.pick(RANDOM[type_], f"nextval('sq')::{type_}"), True
        value = f"({default})::{type_}" if constant else f"null::{type_}"
        self.alteration = Alteration(column, type_, value)
        self.kind.columns[column] = type_
        return f"alter table {self.kind.name} add column {column} {type_} default {default}"


def bare(type_: str) -> str:
    """A type without its collation."""
    return type_.partition(" collate ")[0]

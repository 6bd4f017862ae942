"""The relations of the catalog as the common table expressions of one query.

A view over views would be bound by DuckDB again wherever it stands: a query of psql that names
pg_class twice, pg_index and pg_constraint would bind the list of tables seven times. So a query
brings along what it needs, each once, with only the columns that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .information_views import INFORMATION_VIEWS
from .objects import base_views
from .places import HOME, OUR_PREFIX
from .shapes import PG_CATALOG, Column, Shape
from .system_views import AROUND, SYSTEM_VIEWS, Branch

_BASE = re.compile(rf"{re.escape(HOME)}\.(duck_(?:{'|'.join(name[5:] for name in base_views())}))\b(?!\()")


def branches_of(shape: Shape) -> Sequence[Branch]:
    """Where a relation's rows come from; none for one that is empty."""
    views = SYSTEM_VIEWS if shape.schema == PG_CATALOG else INFORMATION_VIEWS
    return views.get(shape.name, ())


def extra_of(shape: Shape) -> tuple[str, ...]:
    """The columns that only the relation's wide form has."""
    branches = branches_of(shape)
    own = branches[0].extra if branches else {}
    return tuple(dict.fromkeys([*own, *(AROUND.get(shape.name, {}) if branches else {})]))


def empty_sql(shape: Shape, wanted: Iterable[str]) -> str:
    """The SELECT of a relation's columns without a row."""
    types = {column.name: column.duckdb_type for column in shape.columns}
    columns = ", ".join(f'NULL::{types.get(name, "VARCHAR")} AS "{name}"' for name in wanted)
    return f"SELECT {columns} WHERE false"


def relation_sql(shape: Shape, branches: Sequence[Branch], wanted: Iterable[str]) -> str:
    """The SELECT of a relation's columns, those of the wide form included.

    What is the same in all branches stands once, around their UNION ALL.
    """
    wanted = list(wanted)
    types = {column.name: column for column in shape.columns}
    around = {name: AROUND[shape.name][name] for name in wanted if name in AROUND.get(shape.name, {})}
    inside = [name for name in wanted if name not in around]
    inside += [name for _, needs in around.values() for name in needs]
    varying = [name for name in dict.fromkeys(inside) if any(name in _values(branch) for branch in branches)]
    if not varying:
        varying = [next(iter(branches[0].values))]
    union = " UNION ALL ".join(
        f"SELECT {_picked(branch, varying, types)} FROM {branch.source}" for branch in branches
    )
    picked = []
    for name in wanted:
        if name in around:
            sql = around[name][0]
        elif name in varying:
            sql = f'"{name}"'
        else:
            sql = types[name].empty
        type_ = f"::{types[name].duckdb_type}" if name in types else ""
        picked.append(f'({sql}){type_} AS "{name}"')
    return f"SELECT {', '.join(picked)} FROM ({union}) AS z_u"


def _values(branch: Branch) -> dict[str, str]:
    return {**branch.values, **branch.extra}


def _picked(branch: Branch, names: Sequence[str], types: dict[str, Column]) -> str:
    values = _values(branch)
    return ", ".join(f'{values.get(name) or types[name].empty} AS "{name}"' for name in names)


@lru_cache(1)
def _bases() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The base views as CTEs: SQL, and the names of those that it uses."""
    return {name: _with_ctes(sql) for name, sql in base_views().items()}


def _with_ctes(sql: str) -> tuple[str, tuple[str, ...]]:
    used = tuple(dict.fromkeys(_BASE.findall(sql)))
    return _BASE.sub(lambda found: cte_name(found[1]), sql), used


def cte_name(name: str) -> str:
    """What a relation or base view is called in a query that brings it along."""
    return f"{OUR_PREFIX}_{name}"


@dataclass(frozen=True, slots=True)
class Use:
    """A relation as a query uses it.

    Args:
        branches: those of its branches that can have rows which the query wants; none: it is empty.
    """

    shape: Shape
    branches: tuple[int, ...]

    @property
    def cte(self) -> str:
        """What the query calls it."""
        which = "".join(map(str, self.branches)) if self.branches else "none"
        return cte_name(f"{self.shape.key}_{which}")


def ctes(wanted: dict[Use, list[str]]) -> list[str]:
    """The common table expressions of a query.

    Args:
        wanted: the columns that it uses of each relation.
    """
    bases: dict[str, None] = {}
    relations: list[str] = []
    for use, names in wanted.items():
        if not use.branches:
            sql = empty_sql(use.shape, names)
        else:
            branches = branches_of(use.shape)
            picked = [branches[at] for at in use.branches]
            sql, used = _with_ctes(relation_sql(use.shape, picked, names))
            _collect(used, bases)
        relations.append(f"{use.cte} AS ({sql})")
    return [f"{cte_name(name)} AS MATERIALIZED ({_bases()[name][0]})" for name in bases] + relations


def _collect(names: Iterable[str], into: dict[str, None]) -> None:
    """The base views that these use, each after those that it uses itself."""
    for name in names:
        if name not in into:
            _collect(_bases()[name][1], into)
            into[name] = None

"""The relations of pg_catalog and information_schema that have rows, and how a query brings them along.

data/pg_catalog.sql and data/information_schema.sql list the source of each column; all other columns get the
value for "nothing of that kind" (system_relations.py), and relations that are not listed are empty.

The relations become common table expressions of the query that names them. DuckDB would bind a view over
views again wherever it stands: a query of psql that names pg_class twice, pg_index and pg_constraint would
bind the list of tables seven times. So a query has each relation once, with only the columns that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from .data import read_text
from .objects import HEAD, base_views
from .oids import FIXED, HOME, INDEX, OTHER, OUR_PREFIX, RELATION, SEQUENCE, kind_of
from .system_relations import PG_CATALOG, Column, Shape


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows of a relation.

    Args:
        source: the FROM, with its WHERE.
        values: SQL by column.
        extra: SQL of the columns that only the wide form has.
        only: the values that a column can have here, where they are few; a query that wants others
            need not make this branch.
        never: values that a column cannot have here.
        kinds: the kinds of the oids (oids.py) in a column here; FIXED is PostgreSQL's own.
    """

    source: str
    values: dict[str, str]
    extra: dict[str, str] = field(default_factory=dict)
    only: dict[str, frozenset[str]] = field(default_factory=dict)
    never: dict[str, frozenset[str]] = field(default_factory=dict)
    kinds: dict[str, frozenset[int]] = field(default_factory=dict)

    def may_have(self, column: str, wanted: frozenset[str]) -> bool:
        """Whether there can be rows where the column is one of the wanted values."""
        here = (self.only.get(column, wanted) & wanted) - self.never.get(column, frozenset())
        kinds = self.kinds.get(column)
        return any(kinds is None or kind_of(value) in kinds for value in here)


# Columns of a wide form that are made once, around the branches, from others of them.
AROUND: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "pg_class": {
        "__visible": (f"{HOME}.in_search_path(__schema, __temporary)", ("__schema", "__temporary")),
        "__name": (
            f"{HOME}.shown_name(__temporary, __schema, relname)", ("__schema", "__temporary", "relname")
        ),
    },
}  # fmt: skip

# The kinds of oids by their words in the data files.
_KINDS = {"fixed": FIXED, "relation": RELATION, "index": INDEX, "sequence": SEQUENCE, "other": OTHER}
_VIEW = re.compile(r"^CREATE VIEW (\w+) AS(?: TABLE (\w+);)?$")
_COMMENT = re.compile(r"^    -- (only|never|kinds) (\w+): (.+)$")
_ITEM_INDENT, _SELECT, _UNION, _FROM = " " * 8, "    SELECT", "    UNION ALL", "    FROM "


def read_views(text: str) -> dict[str, list[Branch]]:
    """The branches of each view in a file of views; its header says how it is written."""
    text = text.replace("$home", HOME).replace("$type_head", HEAD)
    found: dict[str, list[Branch]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if view := _VIEW.match(line):
            name, same_as = view.groups()
            found[name] = found[same_as] if same_as else []
        elif line == _UNION or (line.endswith(";") and line.startswith(" ")):
            if line != _UNION:
                lines.append(line.removesuffix(";"))
            found[name].append(_branch(lines))
            lines = []
        elif line.startswith(" "):
            lines.append(line)
    assert not lines, "every view ends with a semicolon"
    return found


def _branch(lines: Sequence[str]) -> Branch:
    """One SELECT with the comments before it."""
    select = lines.index(_SELECT)
    source = next(at for at, line in enumerate(lines) if line.startswith(_FROM))
    bounds: dict[str, dict[str, frozenset[str]]] = {"only": {}, "never": {}, "kinds": {}}
    for line in lines[:select]:
        comment = _COMMENT.match(line)
        assert comment, f"no bound of a branch: {line}"
        bounds[comment[1]][comment[2]] = frozenset(comment[3].split(", "))
    items: list[str] = []
    for line in lines[select + 1 : source]:
        if line.startswith(_ITEM_INDENT + " "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    columns: dict[str, str] = {}
    for item in items:
        sql, _, name = item.removesuffix(",").rpartition(" AS ")
        columns[name] = sql or name
    return Branch(
        " ".join(line.strip() for line in lines[source:]).removeprefix("FROM "),
        {name: sql for name, sql in columns.items() if not name.startswith("__")},
        {name: sql for name, sql in columns.items() if name.startswith("__")},
        bounds["only"],
        bounds["never"],
        {column: frozenset(_KINDS[word] for word in words) for column, words in bounds["kinds"].items()},
    )


SYSTEM_VIEWS = read_views(read_text("pg_catalog.sql"))
INFORMATION_VIEWS = read_views(read_text("information_schema.sql"))

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

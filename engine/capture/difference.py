"""The difference between old and new rows of a table, by which refreshes are captured.

With a primary key the difference is one FULL JOIN on the key:

    only old    a delete
    only new    an insert
    both        an update, where a column differs

Equal values are not a difference: NULL and NULL, NaN and NaN, 0.0 and -0.0, 1 month and 30 days. Texts are
compared byte by byte in any collation; nested values are equal when their parts are. DuckDB runs the join and
keeps its result: both spill to disk, and no rows are held in Python.

A refresh in one statement replaces a table's contents; only the difference is written and logged. It is shape
C: the log is written from the difference, then the table from the log, by row id. An unchanged row costs a
comparison, and the table keeps its constraints, its indexes and its defaults.

A refresh in several statements, TRUNCATE and INSERTs, is folded at its end. Each statement is captured as it
runs, because the transaction must see its own rows. At the end the log's rows behind an LSN, all of one
table, are replaced by the difference between the row before each key's first event and the row after its last
event. Source: docs/checks.md; docs/refreshes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from ..duck.cursors import ask, ask_maybe
from ..duck.determinism import compares_inexactly
from ..duck.table_shape import TableShape
from ..errors import NotNullViolation, UniqueViolation
from ..quoting import ident
from .log_sql import (
    apply_delete,
    apply_insert,
    apply_update,
    conflict_hash,
    images,
    key_changes,
    log_from_stage,
    logged,
    split_deletes,
    stored_names,
    touches_unique,
)
from .plan import CapturedTable, Plan, Shape, numbers

# The sorts of a differing row, in the order of their events; `c` is an update that is split into two.
SORTS = "dcui"


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the old and the new rows of a table with a primary key, as SQL.

    Args:
        shape: the table's shape, with a primary key.
        old: a SELECT of `rid` and the old rows as o1, o2, ...; each key once.
        new: a SELECT of the new rows as n1, n2, ...; each key once.
        with_text: `name AS (...)`, the common table expressions that `old` and `new` use, or ''.
        whole: every old row becomes a delete and every new one an insert, even if they are equal.
        fresh: positions, from 0, of columns with a default that the old rows did not have. The owner of a
            copy of the table fills them with the default, as after ADD COLUMN, so a NULL is an event as well.
    """

    shape: TableShape
    old: str
    new: str
    with_text: str = ""
    whole: bool = False
    fresh: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.shape.primary_key, "rows are told apart by their primary key"

    def sql(self) -> str:
        """A SELECT of the rows that differ: rid, o1.., n1..; an absent row's columns are NULL."""
        return f"WITH {self.with_text} {self._select()}" if self.with_text else self._select()

    def _select(self) -> str:
        places = range(1, len(self.shape.stored) + 1)
        if self.whole:
            none = ",".join("NULL" for _ in places)
            gone = f"SELECT rid,{images('o', self.shape)},{none} FROM ({self.old})"
            names = f"rid,{images('o', self.shape)},{images('n', self.shape)}"
            come = f"SELECT NULL,{none},{images('n', self.shape)} FROM ({self.new})"
            return f"SELECT * FROM ({gone} UNION ALL {come}) AS w({names})"
        columns = ",".join([*(f"o.o{i}" for i in places), *(f"n.n{i}" for i in places)])
        keys = " AND ".join(
            f"{self._comparable('o.o', i)}={self._comparable('n.n', i)}" for i in self._key_places()
        )
        unlike = [
            f"{self._comparable('o.o', i)} IS DISTINCT FROM {self._comparable('n.n', i)}"
            for i in places
            if i not in self._key_places()
        ]
        differs = " OR ".join([*unlike, *(f"n.n{place + 1} IS NULL" for place in self.fresh)])
        absent = f"o.o{self._key} IS NULL OR n.n{self._key} IS NULL"
        return (
            f"SELECT o.rid,{columns} FROM ({self.old}) AS o FULL JOIN ({self.new}) AS n ON {keys} "
            f"WHERE {absent}" + (f" OR {differs}" if differs else "")
        )

    def sort_sql(self, split: list[int]) -> str:
        """SQL of a differing row's sort, computed from the columns of `sql`.

        Args:
            split: positions, from 0, of the columns by which an update is split.
        """
        changed = f"WHEN {key_changes(self.shape, split)} THEN 'c' " if split else ""
        absent = f"WHEN o{self._key} IS NULL THEN 'i' WHEN n{self._key} IS NULL THEN 'd'"
        return f"CASE {absent} {changed}ELSE 'u' END"

    def log_sql(self, table: CapturedTable, inexact: Sequence[int] = ()) -> str:
        """The INSERT of the difference's events into the table's log: deletes, updates, inserts.

        Args:
            inexact: positions of columns that keep their old value if the new one compares equal, as the
                table does.
        """
        key = set(self.shape.primary_key)
        split = [i for i, c in enumerate(self.shape.stored) if c.name in table.split_on and c.name not in key]
        sorts = SORTS if split else SORTS.replace("c", "")
        with_text = f"WITH {self.with_text}" if self.with_text else ""
        return log_from_stage(table, with_text, self._select(), self.sort_sql(split), sorts, inexact)

    @property
    def _key(self) -> int:
        """The position, from 1, of a column that is not NULL in any row."""
        return self._key_places()[0]

    def _key_places(self) -> list[int]:
        return [self.shape.place(name) + 1 for name in self.shape.primary_key]

    def _comparable(self, side: str, place: int) -> str:
        return comparable(f"{side}{place}", self.shape.stored[place - 1].type)


def keyless_sql(
    table: CapturedTable, old: str, new: str, op: str, base_lsn: int, txid: int, *, whole: bool
) -> str:
    """The INSERT of one side of the difference of a table without a primary key into its log.

    Rows are identified by all of their columns, and duplicates are counted.

    Args:
        old: a SELECT of `rid` and the old rows as o1, o2, ...
        new: a SELECT of the new rows as n1, n2, ...
        op: 'd' for old rows that are gone, or 'i' for new rows.
        whole: log all old, or all new, rows.
    """
    places = range(1, len(table.shape.stored) + 1)
    texts = {place for place in places if table.shape.stored[place - 1].type == "VARCHAR"}

    def rows(side: str, select: str) -> str:
        values = (f"{comparable(f'{side}{i}', table.shape.stored[i - 1].type)} AS c{i}" for i in places)
        return f"SELECT {','.join(values)} FROM ({select})"

    sides = [rows("o", old), rows("n", new)]
    side = "o" if op == "d" else "n"
    mine, others = sides if op == "d" else sides[::-1]
    values = ",".join(f"decode(c{i})" if i in texts else f"c{i}" for i in places)
    return (
        f"INSERT INTO {table.log} (lsn,txid,op,{images(side, table.shape)}) "
        f"SELECT {base_lsn}+row_number() OVER (),{txid},'{op}',{values} "
        f"FROM ({mine if whole else f'{mine} EXCEPT ALL {others}'})"
    )


def comparable(value: str, type_: str) -> str:
    """SQL of a value for comparison: a text by its bytes, because a collation may equate two texts."""
    return f"encode({value})" if type_ == "VARCHAR" else value


def check_key(cursor: duckdb.DuckDBPyConnection, relation: str, shape: TableShape) -> None:
    """Check that each new row has a key of its own.

    Args:
        relation: SQL of the relation of the new rows.
        shape: the shape of the table that they replace.

    Raises:
        NotNullViolation: a key column is NULL.
        UniqueViolation: two rows have the same key.
    """
    names = [ident(name) for name in shape.primary_key]
    nulls = " OR ".join(f"{name} IS NULL" for name in names)
    (count,) = ask(cursor, f"SELECT count(*) FROM {relation} WHERE {nulls}")
    if count:
        raise NotNullViolation(
            f'NULL in the primary key of table "{shape.name}"', detail=f"{count} new rows have it."
        )
    keys = ",".join(comparable(ident(n), shape.stored[shape.place(n)].type) for n in shape.primary_key)
    twice = ask_maybe(
        cursor,
        f"SELECT any_value(concat_ws(', ',{','.join(f'{n}::VARCHAR' for n in names)})) "
        f"FROM {relation} GROUP BY {keys} HAVING count(*)>1 LIMIT 1",
    )
    if twice is not None:
        raise UniqueViolation(
            f'duplicate key in the new rows of table "{shape.name}"',
            detail=f"They have key ({twice[0]}) more than once.",
        )


def table_rows(shape: TableShape) -> str:
    """A SELECT of a table's rows as n1, n2, ..."""
    columns = ",".join(f"n{i}" for i in range(1, len(shape.stored) + 1))
    return f"SELECT * FROM (SELECT {stored_names(shape)} FROM {shape.qualified}) AS n({columns})"


def plan_refresh(table: CapturedTable, source: str, *, minimal: bool) -> Plan:
    """Plan the replacement of a table's rows.

    Args:
        table: it has a primary key, and no generated columns.
        source: a table of the new rows, with the same column names and types.
        minimal: log only the difference; else each old row is a delete and each new one an insert.
    """
    shape = table.shape
    difference = Difference(
        shape,
        f"SELECT rowid AS rid,{_as('o', shape)} FROM {shape.qualified}",
        f"SELECT {_as('n', shape)} FROM {source}",
        whole=not minimal,
    )
    key = set(shape.primary_key)
    places = [i for i, column in enumerate(shape.stored) if column.name not in key]
    inexact = [i for i in places if compares_inexactly(shape.stored[i])] if minimal else []
    deletes, inserts = ("d", apply_delete(table)), ("i", apply_insert(table))
    updates = (("u", apply_update(table, places)),) if places and minimal else ()
    return Plan(
        shape=Shape.STAGED,
        log=difference.log_sql(table, inexact),
        lists_entries=False,
        entries=f"SELECT op,rid IS NULL,{conflict_hash('', shape)} FROM {logged(table)}",
        steps=(deletes, *updates, inserts),
        split_deletes=split_deletes(table),
        sliceable=not shape.unique_expressions and not touches_unique(shape, places),
    )


def _as(side: str, shape: TableShape) -> str:
    """The stored columns, named as the columns of an image."""
    named = zip(shape.stored, images(side, shape).split(","), strict=True)
    return ",".join(f"{ident(column.name)} AS {name}" for column, name in named)


@dataclass(slots=True)
class Refresh:
    """A possible refresh in progress in a transaction: no other table was captured since it began.

    Args:
        table_id, table: the captured table.
        after_lsn: the LSN before its first event.
        deleted, inserted: True once a DELETE, or another statement, was captured.
        plain: all other statements were inserts behind all deletes: no key is deleted or inserted twice.
    """

    table_id: int
    table: CapturedTable
    after_lsn: int
    deleted: bool = False
    inserted: bool = False
    plain: bool = True

    @property
    def may_shrink(self) -> bool:
        """True if rows were both deleted and inserted."""
        return self.deleted and self.inserted

    def went_on(self, *, deletes: bool, inserts: bool) -> None:
        """Record a captured statement of the table."""
        self.plain = self.plain and (inserts or (deletes and not self.inserted))
        self.deleted = self.deleted or deletes
        self.inserted = self.inserted or not deletes


def fold(cursor: duckdb.DuckDBPyConnection, refresh: Refresh, last_lsn: int, txid: int) -> int:
    """Fold a refresh, up to the transaction's last LSN so far.

    Returns:
        The number of its events, whose LSNs follow `refresh.after_lsn`.

    Raises:
        duckdb.Error: DuckDB failed; the transaction must be rolled back.
    """
    shape, log = refresh.table.shape, refresh.table.log
    first, last = ("op='d'", "op='i'") if refresh.plain else (_ends("min", refresh), _ends("max", refresh))
    mine = f"{log} WHERE lsn>{refresh.after_lsn} AND lsn<={last_lsn}"
    difference = Difference(
        shape,
        f"SELECT rid,{images('o', shape)} FROM {mine} AND op<>'i' AND {first}",
        f"SELECT {images('n', shape)} FROM {mine} AND op<>'d' AND {last}",
    )
    events = int(ask(cursor, difference.log_sql(refresh.table), numbers(last_lsn, txid))[0])
    for statement in (
        f"DELETE FROM {mine}",
        f"UPDATE {log} SET lsn=lsn-{last_lsn - refresh.after_lsn} WHERE lsn>{last_lsn}",
    ):
        cursor.execute(statement).fetchall()
    return events


def _ends(which: str, refresh: Refresh) -> str:
    """SQL boolean: a row of the log is the first (`min`) or the last (`max`) of its key."""
    shape = refresh.table.shape
    keys = ",".join(_keys(shape))
    return (
        f"lsn IN (SELECT {which}(lsn) FROM {refresh.table.log} WHERE lsn>{refresh.after_lsn} GROUP BY {keys})"
    )


def _keys(shape: TableShape) -> list[str]:
    places = [shape.place(name) + 1 for name in shape.primary_key]
    return [f"(CASE WHEN op='d' THEN o{place} ELSE n{place} END)" for place in places]

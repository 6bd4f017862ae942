"""Shape B for an INSERT ... SELECT that can run twice: into the log first, then as it is.

In bulk it takes two thirds of the time of shape A, which must return every row of the table's INSERT
and hash its key on the way. It is for a SELECT over one base table that has nothing volatile in it, so
that both runs give the same rows; the row counts must agree.
"""

from __future__ import annotations

from ..table import RESERVED_PREFIX, TableShape
from .description import BASE, TXID, CapturedTable, Dml, Plan, Shape
from .rows import conflict_hash, images, logged, partition_hash

_SOURCE = f"{RESERVED_PREFIX}_q"
_ROWS = f"{RESERVED_PREFIX}_w"


def given_places(dml: Dml, shape: TableShape) -> tuple[int, ...]:
    """Places of the stored columns that the source gives, in the source's order."""
    if dml.rows == ((),):
        return ()
    if dml.columns is None:
        return tuple(range(len(shape.stored)))
    return tuple(shape.place(name) for name in dml.columns)


def default_texts(dml: Dml, shape: TableShape) -> list[str]:
    """The defaults of the columns that the source does not give."""
    given = set(given_places(dml, shape))
    return [c.default for i, c in enumerate(shape.stored) if i not in given and c.default is not None]


def plan_repeatable(dml: Dml, table: CapturedTable) -> Plan:
    """Plan an INSERT whose query gives the same rows when it runs twice."""
    shape = table.shape
    given = given_places(dml, shape)
    names = {place: f"{RESERVED_PREFIX}_v{i}" for i, place in enumerate(given)}
    values = [
        f"({names.get(place) or column.default or 'NULL'})::{column.type} AS n{place + 1}"
        for place, column in enumerate(shape.stored)
    ]
    columns = images("n", shape)
    source = f"({dml.query}) AS {_SOURCE}({','.join(names[place] for place in given)})"
    key = conflict_hash("i", shape)
    return Plan(
        shape=Shape.LOG_FIRST,
        log=f"INSERT INTO {table.log}(lsn,txid,op,key_hash,{columns}) "
        f"SELECT {BASE}+row_number() OVER (),{TXID},'i',{partition_hash('n', shape)},{columns} "
        f"FROM (SELECT {','.join(values)} FROM {source}) AS {_ROWS}",
        lists_entries=False,
        entries=f"SELECT 'i',false,{key} FROM {logged(table)}" if key else None,
        verbatim=dml.text,
        inserts=True,
    )

"""Shape A: the user's own INSERT or DELETE in one statement with the log.

    WITH w(n1, ..) AS (<the user's text> RETURNING "c1", ..)
    INSERT INTO log (..) SELECT base + row_number() OVER (), .. FROM w

What is returned is what was stored: defaults, sequences and random values are evaluated once. Every
read of the user's text is an ancestor of the write to the log, which is what makes one statement of
two writes safe; the parts of a CTE have no other order. With RETURNING the log's INSERT becomes a
CTE too and the user's list is selected from what it returns; the first column is a BIGINT because
DuckDB's client reads row 0, column 0 of such a statement as a count. The row id that DELETE ...
RETURNING may name goes by way of the log.
"""

from __future__ import annotations

from .description import BASE, TXID, CapturedTable, Dml, Plan, Shape, Verb
from .rows import (
    LOGGED,
    WRITTEN,
    conflict_hash,
    conflict_hash_by_name,
    image_as_table,
    images,
    logged,
    partition_hash,
    stored_names,
)


def plan_verbatim(dml: Dml, table: CapturedTable, few: bool) -> Plan:
    """Plan an INSERT without DO UPDATE, or a DELETE.

    Args:
        few: few rows are expected, so that the log's INSERT may return each one's key.
    """
    shape = table.shape
    side, op = ("n", "i") if dml.verb is Verb.INSERT else ("o", "d")
    columns = images(side, shape)
    one_row = dml.row_count == 1
    number = BASE + ("+1" if one_row else "+row_number() OVER ()")
    key = conflict_hash(op, shape)
    rid, rowid = (",rid", ",rowid") if dml.names_hidden else ("", "")
    written = f"{WRITTEN}({columns}{rid}) AS ({dml.text} RETURNING {stored_names(shape)}{rowid})"
    insert = (
        f"INSERT INTO {table.log}(lsn,txid,op,key_hash,{columns}{rid}) "
        f"SELECT {number},{TXID},'{op}',{partition_hash(side, shape)},{columns}{rid} FROM {WRITTEN}"
    )
    entries = f"SELECT {key} FROM {logged(table)}" if key else None
    if dml.returning is None:
        listed = few and key is not None
        text = f"WITH {written} {insert}" + (f" RETURNING {key}" if listed else "")
        return Plan(Shape.VERBATIM, text, listed, entries, one_row, inserts=op == "i", deletes=op == "d")
    image = image_as_table(side, shape, LOGGED, rid.lstrip(","))
    named_key = f"{conflict_hash_by_name(shape)}," if key else ""
    text = (
        f"WITH {written},{LOGGED} AS ({insert} RETURNING {columns}{rid}) "
        f"SELECT 0::BIGINT,{named_key}{dml.returning} FROM ({image}) AS {dml.relation}"
    )
    inserts = op == "i"
    return Plan(
        Shape.VERBATIM, text, False, entries, one_row, gives_rows=True, inserts=inserts, deletes=not inserts
    )

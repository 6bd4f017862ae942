"""What streams over all tables of a schema need beside those on a list.

Such a stream is one over several tables. The first of them is ours: it has no rows, and the columns that all
others are partitioned by, so that the stream is over one where the schema has none. Which tables there are
is seen under the writer lock; who makes, renames or drops one says so at the gate under `all_of` the schema,
so that CREATE STREAM can wait for him. What comes later is in `made_tables.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import ProgramLimitExceeded
from ..quoting import fold, ident, literal
from ..schema import SCHEMA
from ..streams.streams import TABLES_MAX, key_of
from ..table import Column, TableShape
from ..transactions.transaction import TableKey

# In place of a table's name, which is never empty: all tables of a schema.
ALL = ""
# The only column of the first table of a stream that is partitioned by each table's own key.
NOTHING = "nothing"


def all_of(schema: str) -> TableKey:
    """Under which the gate knows who makes, drops or renames tables in a schema."""
    return key_of(schema, ALL)


def check_bound(tables: int) -> None:
    """A stream is not on more than it can read.

    Raises:
        ProgramLimitExceeded: 54000.
    """
    if tables > TABLES_MAX:
        raise ProgramLimitExceeded(
            f"a stream on all tables of a schema is on {TABLES_MAX} tables at most, not on {tables}",
            detail="Tables that were dropped count as long as events of them are retained.",
            hint="Make the table in another schema; or DROP STREAM, and make several, on lists of tables.",
        )


def first_shape(stream_id: int, partition_by: Sequence[str] | None) -> TableShape:
    """The table of ours that a stream over all tables of a schema begins with."""
    stored = tuple(Column(name, "VARCHAR", None, False) for name in partition_by or (NOTHING,))
    names = tuple(column.name for column in stored)
    return TableShape(SCHEMA, f"{stream_id} of all tables", stored, (), names, (), ())


def create_sql(shape: TableShape) -> str:
    """The DDL of a table of ours."""
    columns = [f"{ident(column.name)} {column.type}" for column in shape.stored]
    if shape.primary_key:
        columns.append(f"PRIMARY KEY ({_names(shape.primary_key)})")
    return f"CREATE TABLE {shape.qualified} ({', '.join(columns)})"


def none_aside_sql(schema: str) -> str:
    """No table of a schema has had to leave its streams for another one."""
    return f"DELETE FROM {SCHEMA}.replaced_tables WHERE schema_name = {literal(fold(schema))}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(ident, names))

"""The rows of a query, taken into memory whole, to be read again by the same session.

Arrow loses some of DuckDB's types on the way unless it is told not to, and a few even then
(engine/values/carrying.py): those travel in another type and are cast back where the rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...engine.duck.binding import type_text
from ...engine.quoting import ident
from ...engine.values.carrying import sent, taken_back
from ..context import Context
from ..running import LOSSY


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows with columns c0, c1, .., and what they are called."""

    table: pa.Table
    names: tuple[str, ...]
    types: tuple[str, ...]

    def query(self, relation: str, without: str) -> str:
        """What reads the rows, registered as `relation`, under their names and types.

        Args:
            without: a column that is left out.
        """
        items = [
            f"{taken_back(f'c{place}', type_)} AS {ident(name)}"
            for place, (name, type_) in enumerate(zip(self.names, self.types, strict=True))
            if name != without
        ]
        return f"SELECT {', '.join(items)} FROM {relation}"


def taken_whole(session: Context, text: str, values: Sequence[object]) -> Taken:
    """Run a query on the session's cursor and take all its rows."""
    parameters = list(values) or None
    relation = session.cursor.sql(text, params=parameters)
    names, types = tuple(relation.columns), tuple(map(type_text, relation.types))
    places = [f"c{place}" for place in range(len(names))]
    items = [f"{sent(place, type_)} AS {place}" for place, type_ in zip(places, types, strict=True)]
    session.cursor.execute("SET SESSION arrow_lossless_conversion = true")
    try:
        # The line break ends a comment at the text's end.
        wrapped = f"SELECT {', '.join(items)} FROM ({text}\n) AS taken({', '.join(places)})"
        table = session.cursor.sql(wrapped, params=parameters).to_arrow_table()
        session.cursor.execute(LOSSY)
    except BaseException:
        # A failed transaction takes no setting: it is put back before the next statement.
        session.cursors.later(LOSSY)
        raise
    return Taken(table, names, types)

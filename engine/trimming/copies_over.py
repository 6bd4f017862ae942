"""Letting go of whole copies: a step of each pass of retention.

A copy's table is dropped once its group has committed all of it in each partition, or has left it, or is
gone; so is one that a crash has left to nobody. What `group_copies` says of LSNs that no log has stays until
`commits` has lost their lines. Source: docs/design/copies.md.
"""

from __future__ import annotations

from dataclasses import replace

from ..asking import ask
from ..offsets.offsets import Offsets
from ..schema import SCHEMA
from ..streams.catalog import Catalog
from ..streams.copies import NOBODY, TABLE, Copy, copy_tables
from .steps import Steps

# Rows of the catalog whose LSNs `commits` does not have any more.
_FORGOTTEN = (
    f"FROM {TABLE} WHERE group_id = {NOBODY} "
    f"AND last_lsn < (SELECT coalesce(min(first_lsn), 0) FROM {SCHEMA}.commits)"
)


class CopiesOver:
    """See the head of the file."""

    def __init__(self, catalog: Catalog, offsets: Offsets, steps: Steps) -> None:
        self._catalog = catalog
        self._offsets = offsets
        self._steps = steps

    def look(self) -> None:
        """Drop what is over.

        Raises:
            LockNotAvailable: 55P03. duckdb.Error: nothing of the step is done.
        """
        with self._catalog.mutex:
            copies = [copy for copy in self._catalog.copies.values() if copy.spans]
        for copy in copies:
            if self._is_read(copy):
                with self._steps.locked():
                    self._drop(copy)
        if self._unused() or ask(self._steps.cursor, f"SELECT count(*) {_FORGOTTEN}")[0]:
            with self._steps.locked():
                drops = [f"DROP TABLE {table}" for table in self._unused()]
                self._steps.transaction([*drops, f"DELETE {_FORGOTTEN}"])

    def _drop(self, copy: Copy) -> None:
        """Drop the table of a copy that is read, under the writer lock; the next pass does it where a SEEK or
        a commit holds the group."""
        try:
            held = self._offsets.lock(copy.group_id, self._steps.owner) is None
            if held and self._catalog.copies.get(copy.group_id) is copy and self._is_read(copy):
                over = replace(copy, spans={})
                self._steps.transaction([over.update_sql(), f"DROP TABLE {copy.table}"])
                with self._catalog.mutex:
                    self._catalog.copies[copy.group_id] = over
        finally:
            self._offsets.unlock([copy.group_id], self._steps.owner)

    def _is_read(self, copy: Copy) -> bool:
        """Whether its group has committed all of its rows."""
        positions = self._offsets.positions(copy.group_id)
        return not any(copy.left(number, at.lsn) for number, at in positions.items())

    def _unused(self) -> list[str]:
        """The tables of copies that are neither read nor being made."""
        tables = copy_tables(self._steps.cursor)
        with self._catalog.mutex:
            used = {copy.copy_id for copy in self._catalog.copies.values() if copy.spans}
            used |= self._catalog.copying.keys()
        return [table for number, table in tables if number not in used]

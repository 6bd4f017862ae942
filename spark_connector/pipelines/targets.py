"""Where a mirror keeps its table: what a place must be able to do, and the batches it is given.

A place takes each batch once: what it writes and the mark that it was written stand or fall together. A place
with a mark of another query is an error, as the rows would not fit together; so is one that holds anything
without a mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .. import staging
from ..errors import ConnectorError
from . import changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Change:
    """A batch, as it is to be applied.

    Args:
        rows: of `changes.latest` for SCD type 1, of `changes.versions` for type 2.
        columns: the table's own.
        keys: of them, those of the primary key.
    """

    rows: DataFrame
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    scd: int
    batch: staging.Batch

    @classmethod
    def of(cls, frame: DataFrame, keys: Sequence[str], scd: int, batch: staging.Batch) -> Change:
        """The change that a batch of ENVELOPE CHANGES makes."""
        made = changes.latest if scd == 1 else changes.versions
        columns = tuple(changes.table_columns(frame.schema))
        return cls(made(frame, keys), columns, tuple(keys), scd, batch)

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns of the mirror."""
        return self.columns if self.scd == 1 else (*self.columns, *changes.VERSION_COLUMNS)


class Place(Protocol):
    """One place for a mirror."""

    def apply(self, change: Change) -> None:
        """Bring a batch in; one that was brought in before changes nothing.

        Raises:
            ConnectorError: nothing of it is there.
        """


def other_query(place: str, option: str) -> ConnectorError:
    """The error of a place that another query has written."""
    return ConnectorError(
        f"{place} holds what a query with another checkpoint has written (options checkpoint, {option}): "
        "give this one the same checkpoint, or an empty place"
    )


def foreign(place: str, option: str) -> ConnectorError:
    """The error of a place that holds what no mirror has written: it would be mixed with it, or lost."""
    return ConnectorError(
        f"{place} is not empty, and no mirror has written it (option {option}): give the mirror an empty "
        "place, or one that is not there yet"
    )


def unmarked(place: str, option: str, batch: staging.Batch) -> ConnectorError:
    """The error of a place that does not know of the batches before: the rows of another, or none."""
    return ConnectorError(
        f"{place} does not know of the batches before batch {batch.number} that the checkpoint has (options "
        f"checkpoint, {option}): bring back what was there, or begin anew with an empty checkpoint and "
        "another consumer group"
    )


def gone(place: str, option: str, batch: staging.Batch) -> ConnectorError:
    """The error of a place that is not there any more: a new one would hold only what comes from now on."""
    return ConnectorError(
        f"{place} is not there, and the checkpoint has batches before batch {batch.number} in it "
        f"(options checkpoint, {option}): bring it back, or begin anew with an empty checkpoint and another "
        "consumer group"
    )

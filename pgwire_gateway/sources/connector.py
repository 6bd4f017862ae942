"""A connector: the client of one database outside whose changes feed a stream.

All calls block and are made on the source's own thread; `close` may be called from any thread, and ends a
call in progress with an error. Source: docs/design/sources.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from ...engine.catalog.source_tables import Piece, SourceTable


class Copy(ABC):
    """A consistent view of the tables as of one position; a context."""

    position: str

    @abstractmethod
    def rows(self, table: SourceTable) -> Iterator[Sequence[tuple[object, ...]]]:
        """The rows of a table in blocks of at most PIECE_ROWS, in the order of its columns."""

    @abstractmethod
    def close(self) -> None:
        """End the view."""

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Changes(ABC):
    """The changes after a position."""

    @abstractmethod
    def next(self, timeout_s: float) -> Piece | None:
        """The next piece; None if there is none within the time."""

    @abstractmethod
    def confirm(self, position: str) -> None:
        """Everything up to a position is durable here; sent to the source now or with the next message."""

    @abstractmethod
    def behind(self) -> tuple[int | None, str]:
        """The bytes of the source's log that are not read yet (None if unknown), and the source's own end."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True once everything up to the end that was asked for has been given; nothing comes afterwards."""

    @abstractmethod
    def close(self) -> None:
        """End reading; from any thread."""


class Connector(ABC):
    """The client of one source.

    Errors of all calls are `DucktailError`s with a SQLSTATE of their own and a hint; a message never contains
    a password. `SourceUnavailable` (08006) is worth another attempt; every other error wants a user.
    """

    @property
    @abstractmethod
    def identity(self) -> str | None:
        """Identifies the source, once it is described; None if it cannot tell."""

    @abstractmethod
    def describe(self) -> Sequence[SourceTable]:
        """The selected tables; checks that the source can be read: settings, rights, keys, types."""

    @abstractmethod
    def begin(self) -> Copy:
        """Make what the source needs (slot, publication), afresh, and a copy as of its first position."""

    @abstractmethod
    def publish(self) -> None:
        """Let what `begin` made have the selected tables from now on."""

    @abstractmethod
    def copy(self) -> Copy:
        """Another copy, as of now, while what `begin` made goes on."""

    @abstractmethod
    def changes(self, tables: Sequence[SourceTable], position: str, until: str | None = None) -> Changes:
        """The changes after a position, of tables whose definitions are known as of it.

        Args:
            until: the position of a copy, behind which nothing is given; None for no end.

        Raises:
            SourceLost: the source no longer has them.
            SourceUnavailable: `until` is before the position.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove what `begin` made; nothing to remove is no error."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections; from any thread."""

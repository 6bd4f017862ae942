"""PART '<facts>' <statement>: a node's share of a statement that another node was given.

Only a session that another node has opened knows it. The statement is done here and nowhere else: of a
topic, on the partitions that this node owns. What it has beside its text are the facts, an object of JSON.
Source: docs/design/cluster.md, "Shares".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...engine.errors import ProtocolViolation, SerializationFailure
from ...engine.quoting import literal

_PART = re.compile(r"PART '((?:[^']|'')*)' (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """The facts of a share.

    Args:
        epoch: of the placement by which the statement was shared out.
        uid: which definition of the cluster the topic or the group is, where it is made here.
        owner: whose it is, where that is not who makes it here.
        fresh: no node has it yet.
        without: nodes that are away while it is made, and are to be told when they are back.
        makes: the name is asked for by a node that is about to make it.
        producer, sequence: whose publication a share of events is, and its number there.
        told: the places of its events are asked for.
        through: what is committed is the session's read position, no further than this.
        given: what is committed by number, and how far who commits has been given events: partition -> LSN.
        epochs: partition -> the epoch under which it is the member's that reads or commits.
        nobody: an epoch of the group's home under which it has no members.
        asked: what is asked of the home about members (membership.py).
        within: the least and the greatest LSN, and the earliest and the latest commit time in microseconds
            since 1970, that the query's WHERE lets pass; None for no bound.
    """

    epoch: int
    uid: str | None = None
    owner: str | None = None
    fresh: bool = False
    without: Sequence[str] = ()
    makes: bool = False
    producer: str | None = None
    sequence: int = 0
    told: bool = False
    events: bool = False
    through: Mapping[str, int] | None = None
    given: Mapping[str, int] | None = None
    epochs: Mapping[str, int] | None = None
    nobody: int = 0
    asked: Mapping[str, Any] | None = None
    within: Sequence[int | None] | None = None

    @property
    def assigned(self) -> dict[int, int]:
        """Partition -> epoch."""
        return {int(partition): epoch for partition, epoch in (self.epochs or {}).items()}

    def text(self, statement: str) -> str:
        """A share of a statement as it is sent."""
        return f"PART {literal(json.dumps(self._facts()))} {statement}"

    def _facts(self) -> dict[str, Any]:
        """Those that say something."""
        said = {name: getattr(self, name) for name in _NAMES}
        return {name: value for name, value in said.items() if value not in (None, False, 0, ())}

    def check(self, epoch: int, node: str) -> None:
        """Refuse a share of another placement than the one in force here.

        Raises:
            SerializationFailure.
        """
        if self.epoch != epoch:
            stale = "The node that was asked" if self.epoch < epoch else f'Node "{node}"'
            raise SerializationFailure(
                f'placement {epoch} is in force on node "{node}", not {self.epoch}',
                detail=f"{stale} has an older one.",
                hint="Try again; SHOW NODES shows which placement each node has.",
            )


_NAMES = tuple(field.name for field in fields(Part))


def split(text: str) -> tuple[Part | None, str]:
    """The facts and the statement of a share; no facts where the text is none.

    Raises:
        ProtocolViolation: facts that this version does not know.
    """
    found = _PART.match(text)
    if found is None:
        return None, text
    try:
        return Part(**json.loads(found[1].replace("''", "'"))), found[2]
    except (ValueError, TypeError) as error:
        raise ProtocolViolation(f"a share with unknown facts: {error}") from None

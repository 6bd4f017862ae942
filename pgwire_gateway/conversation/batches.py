"""A driver's batch: the same statement bound and executed again and again, before one Sync.

Drivers send an executemany, or JDBC's executeBatch, as Bind, Describe and Execute of a prepared statement
for each set of parameters; psycopg has several of the same text, for integers of different widths and
for NULLs. Those that are here already are run as one statement where the
session knows how (sql/together.py), and each is answered as if it had been run alone. What has not
come yet is not waited for. Source: docs/design/pgwire_gateway.md, "Batches".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...engine.errors import DucktailError
from ...sql.together import EXECUTIONS_MAX, agree, kinds
from ..codec.frontend import Bind, Describe, Execute
from .channel import Channel

Values = Sequence[object]


@dataclass(frozen=True, slots=True)
class Execution:
    """One of them that is to come.

    Args:
        values: of its parameters.
        described: whether its portal is described before it is executed.
    """

    values: Values
    described: bool

    @property
    def messages(self) -> int:
        """How many messages it is."""
        return 2 + self.described


def to_come(
    channel: Channel, first: Values, types: Sequence[str], decode: Callable[[Bind], Values | None]
) -> list[Execution]:
    """The executions, in the unnamed portal, that are here already and go together with one.

    Args:
        first: the parameters of the one that is being executed.
        types: of its parameters, DuckDB's.
        decode: the parameters of a Bind; None where it is of another statement.
    """
    found: list[Execution] = []
    known, last = kinds(first, types), tuple(map(type, first))
    at = 0
    while known is not None and len(found) < EXECUTIONS_MAX - 1:
        bind = channel.ahead(at)
        if not isinstance(bind, Bind) or bind.portal:
            break
        described = _is_of_portal(channel.ahead(at + 1))
        execute = channel.ahead(at + 1 + described)
        if not isinstance(execute, Execute) or execute.portal:
            break
        try:
            values = decode(bind)
        except DucktailError:
            break  # Told when its turn comes.
        if values is None:
            break
        if (shape := tuple(map(type, values))) != last:
            others = kinds(values, types)
            if others is None or not agree(known, others):
                break
            last = shape
        found.append(Execution(values, described))
        at += found[-1].messages
    return found


def _is_of_portal(message: object) -> bool:
    return isinstance(message, Describe) and message.kind == "P" and not message.name

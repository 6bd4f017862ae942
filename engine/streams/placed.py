"""Events whose partitions are known already: this node's share of what was published to a topic.

The node that was asked has worked out key, payload, headers and partition; here they become rows of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..quoting import ident, literal
from .captured import TopicLog
from .streams import Stream


@dataclass(frozen=True, slots=True)
class Placed:
    """Such events.

    Args:
        relation: what is registered on the transaction's cursor: n (in order), partition, key, payload,
            headers.
        but: the partitions whose events are left out.
    """

    topic: Stream
    relation: str
    but: frozenset[int] = frozenset()

    def sql(self, base_lsn: int, txid: int, turn: int, producer: tuple[str, int] | None, told: bool) -> str:
        """The INSERT; arguments as of `topic_rows.Publication.sql`."""
        name, sequence = ("NULL", "NULL") if producer is None else (literal(producer[0]), str(producer[1]))
        returning = " RETURNING partition, lsn" if told else ""
        return (
            f"INSERT INTO {TopicLog(self.topic).log} "
            f"SELECT {base_lsn} + row_number() OVER (ORDER BY n), {txid}, partition, key::JSON, "
            f"payload::JSON, headers::JSON, {name}, {sequence} FROM {ident(self.relation)}{self._where} "
            f"ORDER BY n{returning}"
        )

    @property
    def _where(self) -> str:
        return f" WHERE partition NOT IN ({', '.join(map(str, self.but))})" if self.but else ""

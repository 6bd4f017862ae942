"""The events of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..quoting import literal, shown_name
from ..streams.captured import Source, TopicLog
from .log import ANNOTATION, HEAD_BYTES
from .queries import LogEvents
from .topic_rows import with_members


def _topic_headers(annotation: str) -> str:
    """SQL of a publisher's headers with the annotation of his transaction."""
    merged = with_members({ANNOTATION: annotation}, "l.headers")
    return f"CASE WHEN {annotation} IS NULL THEN l.headers ELSE ({merged})::JSON END"


@dataclass(frozen=True, slots=True)
class TopicQuery(LogEvents):
    """The events of a topic, which its log holds ready but for what `commits` adds.

    Args:
        bases: by partition, the LSN up to which rows of the log are passed over: its segment has the events
            up to there (`segments.py`). Empty where no partition has come from another node.
    """

    bases: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def source(self) -> Source:
        """The topic's log."""
        return TopicLog(self.stream)

    @property
    def bytes_sql(self) -> str:
        """See LogEvents."""
        sizes = (f"coalesce(strlen({name}), 0)" for name in ("payload", "key", "headers"))
        return " + ".join([str(HEAD_BYTES), *sizes])

    def rows(self, where: str) -> str:
        """The log rows."""
        behind = f" AND lsn > [{', '.join(map(str, self.bases))}][partition + 1]" if self.bases else ""
        return f"SELECT * FROM {self.log} WHERE ({where}){behind}"

    def _values(self, annotation: str | None) -> Mapping[str, str]:
        name = f"{shown_name(self.stream.schema)}.{shown_name(self.stream.name)}"
        return {
            "partition": "l.partition",
            "op": "'publish'",
            "table_name": literal(name),
            "key": "l.key",
            "before": "NULL::JSON",
            "after": "l.payload",
            "schema_version": "1",
            "headers": "l.headers" if annotation is None else _topic_headers(annotation),
        }

"""A database whose streams are compacted, and what they show of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reopening import Editable


class Compacting(Editable):
    """A database that is opened again and again, and compacted when a test says so."""

    def reopen(self) -> None:
        """Close it and open it again; nothing is damaged."""
        self.again()
        assert not self.database.damage

    def one(self, text: str) -> Any:
        """The first value."""
        return self.client.one(text)

    def look(self) -> None:
        """A pass of retention, compaction with it."""
        self.database.retention.look()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the file, past the language."""
        cursor = self.database.cursor()
        try:
            return cursor.execute(sql).fetchall()
        finally:
            cursor.close()

    def logs(self) -> dict[str, int]:
        """The logs of captured tables, with their rows."""
        names = self.ask("SELECT table_name FROM duckdb_tables() WHERE table_name SIMILAR TO 'log_[0-9_]+'")
        return {name: self.ask(f'SELECT count(*) FROM ducktail."{name}"')[0][0] for (name,) in names}


def lsns(base: Compacting, stream: str) -> list[int]:
    """The events of a stream, from the log: the view shows them as a read does, and so does the count."""
    read = base(f"select lsn, partition, op, key, after, tx_last, tx_seq from stream {stream}")
    assert base(f"select lsn, partition, op, key, after, tx_last, tx_seq from {stream} order by lsn") == read
    counted = Counter(partition for _, partition, *_ in read)
    first = {p: min(row[0] for row in read if row[1] == p) for p in counted}
    where = f"where stream_name = '{stream}' and events > 0"
    shown = base(f"select partition, events, first_lsn from ducktail.partitions {where}")
    assert {p: n for p, n, _ in shown} == counted
    assert {p: lsn for p, _, lsn in shown} == first
    return [row[0] for row in read]

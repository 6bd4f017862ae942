"""The catalog: all streams, groups, bookmarks and captured tables, in memory.

The tables behind it are in `schema.py`; it is a cache of them that only the engine's commits change
(under its mutex), so that finding a stream costs no query.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ..duck.objects import Generation
from ..errors import NotSupported, UndefinedObject, WrongState
from ..quoting import fold
from .captured_tables import Captured, Source, TopicLog
from .copies import Copy
from .segments import Segments
from .streams import CHANGES_SUFFIX, Bookmark, Group, Stream, key_of
from .triggers import Triggers


@dataclass(slots=True)
class Catalog:
    """All streams, groups, bookmarks and captured tables of the database.

    Args:
        copies: group id -> its whole copy, the latest one that it has had.
        copying: number -> the copies that are being made.
        behind: stream id -> what its readers are told where tables have come into its schema past ducktail.
        aside: names of tables that are in none of the streams over all of their schema, as others have taken
            their places; see `is_aside`.
        version: counts up where what a name means may have changed, in DuckDB's catalog as well.
        changes: of DuckDB's catalog, told before they are committed and after.
        mutex: guards changes of it, and of what follows it in memory; no DuckDB call is made under it.
    """

    tables: dict[tuple[str, ...], Captured] = field(default_factory=dict)
    streams: dict[tuple[str, ...], Stream] = field(default_factory=dict)
    groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    bookmarks: dict[tuple[int, str], Bookmark] = field(default_factory=dict)
    copies: dict[int, Copy] = field(default_factory=dict)
    copying: dict[int, Copy] = field(default_factory=dict)
    behind: dict[int, WrongState] = field(default_factory=dict)
    aside: set[tuple[str, ...]] = field(default_factory=set)
    unserved: dict[tuple[str, ...], str] = field(default_factory=dict)
    triggers: Triggers = Triggers()
    version: int = 0
    changes: Generation = field(default_factory=Generation, compare=False, repr=False)
    segments: Segments = field(default_factory=Segments, compare=False, repr=False)
    mutex: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    def table_by_id(self, table_id: int) -> Captured:
        """The captured table with this number."""
        # Of a list, as in the others below: who does not hold the mutex may meet who changes it.
        found = next((table for table in list(self.tables.values()) if table.table_id == table_id), None)
        if found is None:
            raise UndefinedObject("the stream does not exist any more")
        return found

    def sources_of(self, stream: Stream) -> tuple[Source, ...]:
        """The owners of the logs that a stream is over: one, or the tables of a stream over several."""
        return (TopicLog(stream),) if stream.topic else self.tables_of(stream)

    def tables_of(self, stream: Stream) -> tuple[Captured, ...]:
        """The captured tables that a stream is on, in the order in which they were named; of a topic none."""
        if stream.of_schema is not None and not stream.is_part:
            stream = self.present(stream) or stream  # Tables have come since somebody got hold of it.
        return () if stream.topic else tuple(self.table_by_id(table_id) for table_id in stream.tables)

    def over_schema(self, schema: str) -> tuple[Stream, ...]:
        """The streams over all tables of a schema, by any case of its name."""
        found = (stream for stream in list(self.streams.values()) if stream.of_schema is not None)
        return tuple(stream for stream in found if key_of(stream.of_schema or "") == key_of(schema))

    def is_aside(self, key: tuple[str, ...]) -> bool:
        """True if a table without a stream has had to leave the streams over all of its schema to another."""
        return key in self.aside and key not in self.tables and bool(self.over_schema(key[0]))

    def refuse_triggered(self, key: tuple[str, ...], captured: Collection[tuple[str, ...]]) -> None:
        """Before rows of a table are written: what a trigger would write goes past the streams.

        Args:
            captured: the captured tables, as the transaction has them.

        Raises:
            NotSupported: one that is fired may write a captured table; or a captured one has one.
        """
        if not self.triggers.all:
            return
        if key in captured and self.triggers.on(key):
            raise NotSupported(
                f'table "{key[-1]}" has streams and a trigger, and cannot be written',
                detail="The trigger was made past ducktail.",
                hint="DROP TRIGGER first.",
            )
        fired = Triggers(tuple(self.triggers.fired_by(key)))
        for trigger in fired.that_write(captured):
            raise NotSupported(
                f'table "{key[-1]}" cannot be written, as a trigger may write a table with streams',
                detail=f'What a trigger writes is not captured. It is "{trigger.name}".',
                hint="DROP TRIGGER first, or name its table with another schema.",
            )

    def none_aside(self, schema: str) -> None:
        """The first stream over all tables of a schema is made, on all that are there."""
        self.aside -= {key for key in self.aside if key[0] == fold(schema)}

    @property
    def sources(self) -> list[Source]:
        """All that have a log: the captured tables and the topics."""
        topics = (TopicLog(stream) for stream in self.streams.values() if stream.topic)
        return [*self.tables.values(), *topics]

    def source_by_id(self, table_id: int) -> Source | None:
        """The owner of the log of this number, None where none is left."""
        with self.mutex:
            return next((source for source in self.sources if source.table_id == table_id), None)

    def streams_over(self, table_id: int) -> tuple[Stream, ...]:
        """The streams over a log, whole; what is over several is met with each of its tables."""
        with self.mutex:
            source = self.source_by_id(table_id)
            if source is None:
                return ()
            found = (self.streams.get(own.key) if own.is_part else own for own in source.streams)
            return tuple(stream for stream in found if stream is not None)

    def stream_by_id(self, stream_id: int) -> Stream | None:
        """The stream with this number, if it still is."""
        return next((s for s in list(self.streams.values()) if s.stream_id == stream_id), None)

    def present(self, stream: Stream) -> Stream | None:
        """A stream as it is now, by whatever name; None where it is no more."""
        found = self.streams.get(stream.key)
        return found if found and found.stream_id == stream.stream_id else self.stream_by_id(stream.stream_id)

    def stream_of_view(self, key: tuple[str, ...]) -> Stream | None:
        """The stream that has a view of this name, if one has."""
        found = self.streams.get(key)
        if found is None and key[-1].endswith(CHANGES_SUFFIX):
            base = self.streams.get((*key[:-1], key[-1].removesuffix(CHANGES_SUFFIX)))
            found = base if base is not None and base.changes_view else None
        return found

    def groups_of(self, stream_id: int) -> tuple[Group, ...]:
        """A stream's groups, oldest first."""
        return tuple(group for group in self.groups.values() if group.stream_id == stream_id)

    def may_copy(self, stream_id: int, group: str | None) -> bool:
        """True if a group of a stream may take whole copies (`on_gap = 'snapshot'`).

        Args:
            group: its name; None: any group of the stream.
        """
        with self.mutex:
            if group is None:
                return any(one.on_gap == "snapshot" for one in self.groups_of(stream_id))
            known = self.groups.get((stream_id, fold(group)))
            return known is not None and known.on_gap == "snapshot"

    def copied_versions(self, source: Source) -> set[int]:
        """The versions of a table that copies are of which are read, or are being made."""
        streams = {stream.stream_id for stream in source.streams}
        read = [copy for copy in self.copies.values() if copy.spans]
        return {copy.version for copy in (*read, *self.copying.values()) if copy.stream_id in streams}

    def bookmarks_of(self, stream_id: int) -> tuple[Bookmark, ...]:
        """A stream's bookmarks, oldest first."""
        found = [mark for mark in self.bookmarks.values() if mark.stream_id == stream_id]
        return tuple(sorted(found, key=lambda mark: mark.bookmark_id))

    def put_part(self, captured: Captured, part: Stream) -> None:
        """Add a stream to its table, or a part of one, and the table when it is the first one there."""
        known = self.tables.get(captured.key, captured)
        self.tables[captured.key] = known.with_streams((*known.streams, part))

    def put_stream(self, stream: Stream, parts: Sequence[tuple[Captured, Stream]] = ()) -> None:
        """Add a stream, or a topic.

        Args:
            parts: the tables that it is on, and what it is on each; none of a topic.
        """
        for captured, part in parts:
            self.put_part(captured, part)
        self.streams[stream.key] = stream

    def put_table(self, before: Captured, after: Captured) -> None:
        """Show a captured table as it is now, with its streams: another version, or another name."""
        assert before.table_id == after.table_id
        known = self.tables[before.key]
        self.tables[after.key] = after  # First, so that it is never missing to who does not hold the mutex.
        if before.key != after.key and known.table_id == before.table_id:  # Else another has it.
            del self.tables[before.key]
        for stream in after.streams:
            if not stream.is_part:
                self.streams[stream.key] = stream
                continue
            whole = self.streams[stream.key]
            if whole.of_schema is None and whole.partition_by and whole.tables[0] == after.table_id:
                # They may be called otherwise now; the whole goes by its first table's names.
                self.streams[stream.key] = replace(whole, partition_by=stream.partition_by)

    def put_new_table(self, captured: Captured) -> None:
        """A table has come into a schema of which streams are over all tables: they are over it too."""
        self.tables[captured.key] = captured
        for part in captured.streams:
            whole = self.streams[part.key]
            self.streams[part.key] = replace(whole, several=(*whole.tables, captured.table_id))

    def take_table(self, captured: Captured) -> None:
        """Forget what was left of a dropped table: its streams, over all of a schema, go on without it."""
        del self.tables[captured.key]
        for part in captured.streams:
            whole = self.streams[part.key]
            rest = tuple(table_id for table_id in whole.tables if table_id != captured.table_id)
            self.streams[part.key] = replace(whole, several=rest)

    def replace_stream(self, before: Stream, after: Stream) -> None:
        """Show a stream as it is now: other options, or another name."""
        assert before.stream_id == after.stream_id
        for captured in self.tables_of(before):
            own = captured.part_of(before)
            streams = tuple(after.as_on(own) if s is own else s for s in captured.streams)
            self.tables[captured.key] = captured.with_streams(streams)
        del self.streams[before.key]
        self.streams[after.key] = after

    def drop_stream(self, stream: Stream) -> None:
        """Take a stream away with all that is its; with its last stream the table is no longer captured."""
        del self.streams[stream.key]
        for group in self.groups_of(stream.stream_id):
            del self.groups[group.key]
            self.copies.pop(group.group_id, None)
        for bookmark in self.bookmarks_of(stream.stream_id):
            del self.bookmarks[bookmark.key]
        for captured in self.tables_of(stream):
            rest = tuple(s for s in captured.streams if s.stream_id != stream.stream_id)
            if rest:
                self.tables[captured.key] = captured.with_streams(rest)
            else:
                del self.tables[captured.key]

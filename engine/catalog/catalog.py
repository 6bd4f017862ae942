"""The catalog: all streams, groups, bookmarks and captured tables, in memory.

It is a cache of the tables in `schema.py`. Only the engine's commits change it (under its mutex), so that
finding a stream costs no query.
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
from .feeds import Feed, Mirror
from .segments import Segments
from .sinks import Sink
from .streams import CHANGES_SUFFIX, Bookmark, Group, Stream, key_of
from .triggers import Triggers


@dataclass(slots=True)
class Catalog:
    """All streams, groups, bookmarks and captured tables of the database.

    Args:
        sinks: group id -> the sink that it is.
        feeds: stream id -> the source outside that feeds it.
        mirrors: schema and name -> the mirror that the table is.
        copies: group id -> its latest whole copy.
        copying: number -> a copy that is being made.
        behind: stream id -> the error for its readers, if tables were created in its schema without ducktail.
        aside: names of tables excluded from the streams over their schema, because other tables have taken
            their places.
        has_identities: True if a table may have a column GENERATED ALWAYS AS IDENTITY.
        version: a counter that rises when the meaning of a name may have changed, also in DuckDB's catalog.
        changes: the changes of DuckDB's catalog, reported before and after their commit.
        mutex: guards changes of the catalog and of dependent objects in memory; DuckDB is not called under
            it.
    """

    tables: dict[tuple[str, ...], Captured] = field(default_factory=dict)
    streams: dict[tuple[str, ...], Stream] = field(default_factory=dict)
    groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    bookmarks: dict[tuple[int, str], Bookmark] = field(default_factory=dict)
    sinks: dict[int, Sink] = field(default_factory=dict)
    feeds: dict[int, Feed] = field(default_factory=dict)
    mirrors: dict[tuple[str, ...], Mirror] = field(default_factory=dict)
    copies: dict[int, Copy] = field(default_factory=dict)
    copying: dict[int, Copy] = field(default_factory=dict)
    behind: dict[int, WrongState] = field(default_factory=dict)
    aside: set[tuple[str, ...]] = field(default_factory=set)
    unserved: dict[tuple[str, ...], str] = field(default_factory=dict)
    triggers: Triggers = Triggers()
    has_identities: bool = False
    version: int = 0
    changes: Generation = field(default_factory=Generation, compare=False, repr=False)
    segments: Segments = field(default_factory=Segments, compare=False, repr=False)
    mutex: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    def table_by_id(self, table_id: int) -> Captured:
        """The captured table with this number."""
        # A copy in a list, as below: without the mutex the collection may change during iteration.
        found = next((table for table in list(self.tables.values()) if table.table_id == table_id), None)
        if found is None:
            raise UndefinedObject("the stream does not exist any more")
        return found

    def sources_of(self, stream: Stream) -> tuple[Source, ...]:
        """The owners of a stream's logs: one, or the tables of a stream over several."""
        return (TopicLog(stream),) if stream.topic else self.tables_of(stream)

    def tables_of(self, stream: Stream) -> tuple[Captured, ...]:
        """The captured tables of a stream, in the order of its definition; empty for a topic."""
        if stream.several is not None and not stream.is_part:
            stream = self.present(stream) or stream  # Tables may have come or gone since the caller got it.
        return () if stream.topic else tuple(self.table_by_id(table_id) for table_id in stream.tables)

    def over_schema(self, schema: str) -> tuple[Stream, ...]:
        """The streams over all tables of a schema; the case of its name is ignored."""
        found = (stream for stream in list(self.streams.values()) if stream.of_schema is not None)
        return tuple(stream for stream in found if key_of(stream.of_schema or "") == key_of(schema))

    def is_aside(self, key: tuple[str, ...]) -> bool:
        """True if a table is excluded from the streams over its schema in favour of another table."""
        return key in self.aside and key not in self.tables and bool(self.over_schema(key[0]))

    def refuse_triggered(self, key: tuple[str, ...], captured: Collection[tuple[str, ...]]) -> None:
        """Refuse a write that fires triggers, because streams miss the writes of a trigger.

        Args:
            captured: the captured tables in the transaction.

        Raises:
            NotSupported: a fired trigger may write a captured table, or a captured table has a trigger.
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
        """Clear the excluded tables of a schema when its first stream over all tables is created."""
        self.aside -= {key for key in self.aside if key[0] == fold(schema)}

    @property
    def sources(self) -> list[Source]:
        """All owners of logs: the captured tables and the topics."""
        topics = (TopicLog(stream) for stream in self.streams.values() if stream.topic)
        return [*self.tables.values(), *topics]

    def source_by_id(self, table_id: int) -> Source | None:
        """The owner of the log with this number, or None."""
        with self.mutex:
            return next((source for source in self.sources if source.table_id == table_id), None)

    def streams_over(self, table_id: int) -> tuple[Stream, ...]:
        """The whole streams over a log; a stream over several is found by each of its tables."""
        with self.mutex:
            source = self.source_by_id(table_id)
            if source is None:
                return ()
            found = (self.streams.get(own.key) if own.is_part else own for own in source.streams)
            return tuple(stream for stream in found if stream is not None)

    def stream_by_id(self, stream_id: int) -> Stream | None:
        """The stream with this number, or None."""
        return next((s for s in list(self.streams.values()) if s.stream_id == stream_id), None)

    def present(self, stream: Stream) -> Stream | None:
        """The present state of a stream, under any name; None if it was dropped."""
        found = self.streams.get(stream.key)
        return found if found and found.stream_id == stream.stream_id else self.stream_by_id(stream.stream_id)

    def stream_of_view(self, key: tuple[str, ...]) -> Stream | None:
        """The stream with a view of this name, or None."""
        found = self.streams.get(key)
        if found is None and key[-1].endswith(CHANGES_SUFFIX):
            base = self.streams.get((*key[:-1], key[-1].removesuffix(CHANGES_SUFFIX)))
            found = base if base is not None and base.changes_view else None
        return found

    def groups_of(self, stream_id: int) -> tuple[Group, ...]:
        """A stream's groups, oldest first."""
        return tuple(group for group in self.groups.values() if group.stream_id == stream_id)

    def reads_may_write(self, stream_id: int, group: str | None) -> bool:
        """True if reads of a group of a stream may take whole copies, or count deliveries.

        Args:
            group: the name of the group; None for any group of the stream.
        """
        with self.mutex:
            if group is None:
                return any(one.reads_may_write for one in self.groups_of(stream_id))
            known = self.groups.get((stream_id, fold(group)))
            return known is not None and known.reads_may_write

    def copied_versions(self, source: Source) -> set[int]:
        """The table versions of copies that are read or being made."""
        streams = {stream.stream_id for stream in source.streams}
        read = [copy for copy in self.copies.values() if copy.spans]
        return {copy.version for copy in (*read, *self.copying.values()) if copy.stream_id in streams}

    def bookmarks_of(self, stream_id: int) -> tuple[Bookmark, ...]:
        """A stream's bookmarks, oldest first."""
        found = [mark for mark in self.bookmarks.values() if mark.stream_id == stream_id]
        return tuple(sorted(found, key=lambda mark: mark.bookmark_id))

    def put_part(self, captured: Captured, part: Stream) -> None:
        """Add a stream, or a part of one, to its table, which is added if this is its first."""
        known = self.tables.get(captured.key, captured)
        self.tables[captured.key] = known.with_streams((*known.streams, part))

    def put_stream(self, stream: Stream, parts: Sequence[tuple[Captured, Stream]] = ()) -> None:
        """Add a stream or a topic.

        Args:
            parts: its tables with the part of the stream on each; empty for a topic.
        """
        for captured, part in parts:
            self.put_part(captured, part)
        self.streams[stream.key] = stream

    def put_table(self, before: Captured, after: Captured) -> None:
        """Replace a captured table and its streams by another version, or under another name."""
        assert before.table_id == after.table_id
        known = self.tables[before.key]
        self.tables[after.key] = after  # First, so that readers without the mutex always find it.
        if (
            before.key != after.key and known.table_id == before.table_id
        ):  # Otherwise another table has the key.
            del self.tables[before.key]
        for stream in after.streams:
            if not stream.is_part:
                self.streams[stream.key] = stream
                continue
            whole = self.streams[stream.key]
            if whole.of_schema is None and whole.partition_by and whole.tables[0] == after.table_id:
                # They may be renamed; the whole stream uses its first table's names.
                self.streams[stream.key] = replace(whole, partition_by=stream.partition_by)

    def put_new_table(self, captured: Captured) -> None:
        """Add a new table to its streams: over all tables of its schema, or of a source."""
        self.tables[captured.key] = captured
        for part in captured.streams:
            whole = self.streams[part.key]
            self.streams[part.key] = replace(whole, several=(*whole.tables, captured.table_id))

    def take_table(self, captured: Captured) -> None:
        """Remove the remains of a dropped table: its streams continue without it."""
        del self.tables[captured.key]
        for part in captured.streams:
            whole = self.streams[part.key]
            rest = tuple(table_id for table_id in whole.tables if table_id != captured.table_id)
            self.streams[part.key] = replace(whole, several=rest)

    def replace_stream(self, before: Stream, after: Stream) -> None:
        """Replace a stream by its state with other options or another name."""
        assert before.stream_id == after.stream_id
        for captured in self.tables_of(before):
            own = captured.part_of(before)
            streams = tuple(after.as_on(own) if s is own else s for s in captured.streams)
            self.tables[captured.key] = captured.with_streams(streams)
        del self.streams[before.key]
        self.streams[after.key] = after

    def drop_stream(self, stream: Stream) -> None:
        """Remove a stream with its groups and bookmarks; without streams its table is no longer captured."""
        del self.streams[stream.key]
        for group in self.groups_of(stream.stream_id):
            del self.groups[group.key]
            self.copies.pop(group.group_id, None)
            self.sinks.pop(group.group_id, None)
        for bookmark in self.bookmarks_of(stream.stream_id):
            del self.bookmarks[bookmark.key]
        for captured in self.tables_of(stream):
            rest = tuple(s for s in captured.streams if s.stream_id != stream.stream_id)
            if rest:
                self.tables[captured.key] = captured.with_streams(rest)
            else:
                del self.tables[captured.key]

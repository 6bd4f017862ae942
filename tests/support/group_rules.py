"""Rules of test_stateful about groups: forms of reading, whole copies, gaps, parked events, members."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from group_model import Given, Group, Read
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model_machine import Machine
from stream_model import Stream, Told, part

from ducktail.engine.database import Database
from ducktail.engine.log.log import EVENT_NAMES

Kind = tuple[str, str, str]  # START, on_gap, on_park
NAMES = ("a", "b", "c")
STARTS = ("earliest", "earliest", "latest", "snapshot")
GAPS = ("error", "earliest", "snapshot")
# What a COMMIT OFFSETS says.
COMMITS = ("read", "commit", "commit", "transaction", "rollback", "by number")


# What is done with a group.
USES = ("consume", "consume", "consume", "park", "park", "release", "leave")
SHARES = ("read as a member", "read as a member", "commit as a member", "leave", "consume", "park", "release")


def group_kinds() -> st.SearchStrategy[Kind]:
    """Where a group starts, and its options."""
    return st.tuples(st.sampled_from(STARTS), st.sampled_from(GAPS), st.sampled_from(["event", "key"]))


class Groups(Machine):
    """See the head of the file; `reader` is the session that reads."""

    @rule(data=st.data(), kind=group_kinds())
    def create_group(self, data: st.DataObject, kind: Kind) -> None:
        """A group of any kind."""
        self.make_group(data.draw(st.sampled_from(self.all_streams())), kind)

    def make_group(self, stream: Stream, kind: Kind) -> None:
        """Create one; not everything can be had of every stream."""
        start, on_gap, on_park = kind
        key = (stream.name, f"g{len(self.groups)}")
        options = f"on_gap = '{on_gap}', on_park = '{on_park}', session_timeout = '1 hour'"
        create = f"create consumer group {key[1]} on {stream.name} start {start} with ({options})"
        if key in self.groups:
            return
        wanted = "ok"
        of_several = stream is self.wide and ("snapshot" in (start, on_gap) or on_park == "key")
        if of_several or (on_gap, on_park) == ("snapshot", "key"):
            wanted = "0A000"
        elif self.locked:
            wanted = "55P03"
        state = self.state(create)
        assert state == wanted, (state, create)
        if wanted != "ok":
            return
        group = Group(stream, key[1], on_gap, on_park, self._offsets(key))
        self.groups[key] = group
        if start == "snapshot":
            self._expect_copy(group)
            return
        for number, lsn in group.committed.items():
            assert lsn == (stream.last(number) if start == "latest" else stream.edge(number))

    def _offsets(self, key: tuple[str, str]) -> dict[int, int]:
        where = f"stream_name = '{key[0]}' and group_name = '{key[1]}'"
        return dict(self.reader(f"select partition, committed_lsn from ducktail.offsets where {where}"))

    def expect_groups(self) -> None:
        """Each group is where it was, with what it has parked."""
        for key, group in self.groups.items():
            assert self._offsets(key) == group.committed
            self._expect_parked(group)

    def _expect_parked(self, group: Group) -> None:
        where = f"stream_name = '{group.stream.name}' and group_name = '{group.name}'"
        shown = self.reader(f"select lsn, partition, state from ducktail.parked where {where} order by 1")
        parked = [(lsn, one.event.partition, "parked") for lsn, one in group.parked.items()]
        released = [(lsn, event.partition, "released") for lsn, event in group.released.items()]
        assert shown == sorted(parked + released)

    def _expect_copy(self, group: Group) -> None:
        """The group alone has the rows as they are now, by the partitions of their keys, and nothing else
        but what was released before."""
        stream = group.stream
        rows = self.reader(f"select * from {group.source}")
        events = [dict(zip(EVENT_NAMES, row, strict=True)) for row in rows]
        events = [event for event in events if event["lsn"] not in group.released]
        assert {event["op"] for event in events} <= {"snapshot"}
        self.expect_rows(stream, events)
        group.committed = self._offsets((stream.name, group.name))
        [base] = set(group.committed.values())
        assert base >= stream.seen_lsn
        group.copy = [self.images[stream.table.name].told(stream, event) for event in events]
        assert all(event.lsn > base for event in group.copy)
        self.count("whole copy", "at a gap" if group.members or group.read else "")
        # What members have read is void.
        group.holding |= {name for name, given in group.members.items() if given is not None}
        group.members, group.is_behind = dict.fromkeys(group.members), True

    def expect_rows(self, stream: Stream, events: list[dict[str, Any]]) -> None:
        """The events are the rows that the stream shows of its table."""
        table = stream.table
        standing = self.rows[table.name].elements()
        wanted = [row for row in standing if not stream.where or stream.where(row)]
        found = [self.change_of(table, event, stream)[2] for event in events]
        places = stream.places(table.columns)
        assert Counter(found) == Counter(part(row, places) for row in wanted)

    # Reading.

    @precondition(lambda self: bool(self.groups))
    @rule(data=st.data(), uses=st.lists(st.sampled_from(USES), min_size=1, max_size=8))
    def read_a_group(self, data: st.DataObject, uses: list[str]) -> None:
        """Read it in any way, commit, park and release, one after the other."""
        self._use(data, uses)

    @precondition(lambda self: bool(self.groups))
    @rule(data=st.data(), uses=st.lists(st.sampled_from(SHARES), min_size=1, max_size=8))
    def share_a_group(self, data: st.DataObject, uses: list[str]) -> None:
        """The same by its members."""
        self._use(data, uses)

    def _use(self, data: st.DataObject, uses: list[str]) -> None:
        group = self.groups[data.draw(st.sampled_from(sorted(self.groups)))]
        for use in uses:
            _USES[use](self, data, group)
            self._expect_members(group)
            assert self._offsets((group.stream.name, group.name)) == group.committed
            self._expect_parked(group)

    def _consume(self, data: st.DataObject, group: Group) -> None:
        """Read a group's next events and commit them or not; only a commit moves anything."""
        how, read = data.draw(st.sampled_from(COMMITS)), self._read(data, group)
        in_block = how in ("transaction", "rollback")
        given = self._answer(data, group, read, in_block)
        if given is None:
            return
        place = self._place(group, given)
        group.read |= place
        group.covers |= given.covers
        shown = self._standing(group)
        assert {number: shown.get(number) for number in group.read} == group.read
        place, at = dict(group.read), ""
        if how == "by number":
            place = {number: lsn for number, lsn in place.items() if data.draw(st.booleans())} or place
            at = f"at '{json.dumps({str(number): lsn for number, lsn in place.items()})}'"
        wanted = "55000" if group.members else "ok"
        if how != "read":
            text = f"commit offsets {at} on {group.on}"
            assert self.state(text) == wanted, text
            if wanted == "ok" and how != "rollback":
                group.commit(place, group.covers)
        if in_block:
            self.reader("commit" if how == "transaction" else "rollback")
            if how == "rollback" or wanted != "ok":
                group.void()

    def _read(self, data: st.DataObject, group: Group) -> Read:
        """Any form of read."""
        changes = group.stream is not self.wide and data.draw(st.booleans())
        under = "_" if changes else ""
        partitions = None
        where: list[str] = data.draw(st.sampled_from([[], [], ["1 = 1"]]))
        test = lambda event: True  # noqa: E731
        kind = data.draw(st.sampled_from(["", "", "", "partition", "where partition", "lsn", "time", "op"]))
        known = group.next(group.all_partitions())
        event = data.draw(st.sampled_from(known)) if known else None
        if kind.endswith("partition"):
            numbers = st.sets(st.sampled_from(sorted(group.committed)), min_size=1)
            partitions = frozenset(data.draw(numbers))
            if kind == "where partition":
                where = [*where, f"{under}partition in ({', '.join(map(str, sorted(partitions)))})"]
        elif event is not None and kind == "lsn":
            sign = data.draw(st.sampled_from([">", "<=", "="]))
            where = [*where, f"{under}lsn {sign} {event.lsn}"]
            test = _held(sign, event.lsn, lambda e: e.lsn)
        elif event is not None and kind == "time":
            sign = data.draw(st.sampled_from([">=", "<"]))
            name = "_commit_timestamp" if changes else "commit_time"
            where = [*where, f"{name} {sign} '{event.commit_time.isoformat()}'"]
            test = _held(sign, event.commit_time, lambda e: e.commit_time)
        elif event is not None and kind == "op" and not changes:
            where, test = [*where, f"op = '{event.op}'"], lambda e: e.op == event.op
        limit = data.draw(st.one_of(st.none(), st.integers(1, 12)))
        whole = limit is not None and data.draw(st.sampled_from([False, False, True]))
        cold = data.draw(st.sampled_from([False, False, True]))
        text = f"where {' and '.join(where)}" if where else ""
        if text and group.released:
            limit = None  # Which of those that it rejects behind the last row are given, nothing says.
        return Read(changes, partitions, text, test, limit, whole and kind != "op", cold, kind == "partition")

    def _answer(self, data: st.DataObject, group: Group, read: Read, in_block: bool) -> Given | None:
        """Read, and hold the answer against the model's; None where the read is an error."""
        partitions = read.partitions or group.all_partitions()
        lost = group.lost(partitions)
        if lost and group.on_gap == "snapshot" and not self.locked:
            if in_block and data.draw(st.booleans()):
                self._copy_behind_a_snapshot(group, read)
                return None
            source = f"{group.source} where partition in ({', '.join(map(str, partitions))}) limit 1"
            self.reader(f"select lsn from {source}")
            self._expect_copy(group)
            lost = False
        if in_block:
            self.reader("begin")
        wanted = "ok"
        if lost:
            wanted = {"error": "72000", "snapshot": "55P03", "earliest": "ok"}[group.on_gap]
        if wanted != "ok":
            assert self.state(read.select("1", group.source)) == wanted
            self.count("read", wanted)
            if in_block:
                self.reader("rollback")
            group.void()
            return None
        if group.is_behind and not self._reads_all(group):
            if in_block:
                self.reader("rollback")
            return None
        rows = self._rows(group, read, group.source)
        given = group.gives(read)
        assert rows == self._wanted(group, read, given), read
        self.count("read", "cold" if read.cold else "hot")
        return given

    def _reads_all(self, group: Group) -> bool:
        """Read all that there is, so that the read position is known; whether that can be."""
        if group.on_gap != "earliest" and group.lost(group.all_partitions()):
            return False
        self.reader(f"select count(*) from {group.source}")
        whole = group.gives(Read())
        group.void()
        group.read, group.covers = self._place(group, whole), whole.covers
        return True

    def _rows(self, group: Group, read: Read, source: str) -> list[Any]:
        names = group.stream.changes_names if read.changes else "lsn, partition, op, schema_version"
        with cold(self.database, group.stream) if read.cold else nullcontext():
            return self.reader(read.select(names, source))

    @staticmethod
    def _wanted(group: Group, read: Read, given: Given) -> list[Any]:
        if read.changes:
            return group.stream.changes(given.events)
        return [(event.lsn, event.partition, event.op, event.version) for event in given.events]

    def _copy_behind_a_snapshot(self, group: Group, read: Read) -> None:
        """A block that has read before gets nothing of the copy that its read makes."""
        self.reader("begin")
        self.reader(f"select 1 from {group.stream.table.called} limit 1")
        released = set(group.released)
        rows = self.reader(f"select lsn from {group.source} {_where_partitions(read)}")
        assert {lsn for (lsn,) in rows} <= released
        self.reader("rollback")
        self._expect_copy(group)

    def _place(self, group: Group, given: Given, member: str | None = None) -> dict[int, int]:
        """The read position, which is where the read may have left it."""
        place = self._standing(group, member)
        for number, low in given.lows.items():
            lsn = place.get(number, group.committed[number])
            assert low <= lsn <= given.highs[number], (number, place, given.lows, given.highs)
        return {number: place.get(number, group.committed[number]) for number in given.lows}

    def _standing(self, group: Group, member: str | None = None) -> dict[int, int]:
        end = "" if member is None else f"member '{member}'"
        shown = json.loads(self.reader.one(f"show read position on {group.on} {end}"))
        return {int(number): lsn for number, lsn in shown.items()}

    # Parked events.

    def _park(self, data: st.DataObject, group: Group) -> None:
        """Set an event aside; most are what a read would give."""
        known = group.next(group.all_partitions())
        others = [*group.stream.retained, *(one.event for one in group.parked.values())]
        if data.draw(st.integers(0, 5)) == 0 or not known:
            known = others
        if not known:
            return
        event = data.draw(st.sampled_from(known))
        place = f"partition {event.partition} at {event.lsn}"
        text = f"alter consumer group {group.name} on {group.stream.name} park {place}"
        if self._changed(data, text, self._parks(group, event)):
            group.park(event)

    def _parks(self, group: Group, event: Told) -> str:
        """How PARK of an event that is there ends."""
        if self.locked:
            return "55P03"
        if event.lsn in group.parked:
            return "42710"
        if event.lsn not in group.released:
            if event.op == "schema":
                return "0A000"
            if event.lsn <= group.committed[event.partition]:
                return "22023"
        return "42710" if group.head(event) else "ok"

    def _release(self, data: st.DataObject, group: Group) -> None:
        """Give parked events again: one, or all of a partition."""
        if not group.parked:
            return
        one = data.draw(st.booleans())
        head = group.parked[data.draw(st.sampled_from(sorted(group.parked)))]
        place = f"partition {head.event.partition} {f'at {head.event.lsn}' if one else ''}"
        heads = [p for p in group.parked.values() if p.event.partition == head.event.partition]
        wanted = "55P03" if self.locked else "ok"
        if one:
            heads = [head]
            if wanted == "ok" and head.by_key and group.head(head.event):
                wanted = "55000"
        text = f"alter consumer group {group.name} on {group.stream.name} release {place}"
        if self._changed(data, text, wanted):
            group.release(heads)

    def _changed(self, data: st.DataObject, text: str, wanted: str) -> bool:
        """Run PARK or RELEASE, perhaps in a transaction that is rolled back; whether it changed anything."""
        takes_back = data.draw(st.integers(0, 3)) == 3
        if takes_back:
            self.reader("begin")
        assert self.state(text) == wanted, text
        self.count(text.split()[6], wanted)
        if takes_back:
            self.reader("rollback")
        return wanted == "ok" and not takes_back

    # Members.

    def _owners(self, group: Group) -> dict[int, str | None]:
        where = f"stream_name = '{group.stream.name}' and group_name = '{group.name}'"
        return dict(self.reader(f"select partition, member from ducktail.offsets where {where}"))

    def _member_reads(self, data: st.DataObject, group: Group) -> None:
        """A member gets what is next in its own partitions; it keeps those of which it was given events."""
        name = data.draw(st.sampled_from(NAMES))
        changes = group.stream is not self.wide and data.draw(st.booleans())
        read = Read(changes=changes, cold=data.draw(st.sampled_from([False, False, True])))
        source = f"{group.source} member '{name}'"
        if group.lost(group.all_partitions()):
            return
        rows = self._rows(group, read, source)
        mine = {number for number, owner in self._owners(group).items() if owner == name}
        given = group.gives(read, mine)
        assert rows == self._wanted(group, read, given)
        group.members[name] = given
        group.holding.discard(name)
        self.count("as a member", "read")

    def _member_commits(self, data: st.DataObject, group: Group) -> None:
        name = data.draw(st.sampled_from(NAMES))
        text = f"commit offsets on {group.on} member '{name}'"
        given = group.members.get(name)
        if name not in group.members:
            assert self.state(text) == "40001"
        elif given is not None:
            place = self._place(group, given, name)
            assert self.state(text) == "ok"
            group.commit(place, given.covers)
            group.members[name], group.is_behind = None, True
            self.count("as a member", "commit")

    def _member_leaves(self, data: st.DataObject, group: Group) -> None:
        name = data.draw(st.sampled_from(NAMES))
        self.reader(f"leave consumer group {group.name} on {group.stream.name} member '{name}'")
        group.members.pop(name, None)
        group.holding.discard(name)

    def _expect_members(self, group: Group) -> None:
        """Each partition is somebody's, as evenly as can be where nobody holds anything."""
        owners = self._owners(group)
        assert set(owners.values()) <= ({*group.members} or {None})
        for name, given in group.members.items():
            held = {event.partition for event in given.events} if given is not None else set()
            assert all(owners[number] == name for number in held), "taken before it was committed"
        # What has been passed without a row (a schema event, in ENVELOPE CHANGES) is held as what was given.
        passed = (given.highs.items() for given in group.members.values() if given is not None)
        if (
            group.members
            and not group.holding
            and all(lsn <= group.committed[n] for highs in passed for n, lsn in highs)
        ):
            counts = [list(owners.values()).count(name) for name in group.members]
            assert max(counts) - min(counts) <= 1


_USES: dict[str, Callable[[Any, st.DataObject, Group], None]] = {
    "commit as a member": Groups._member_commits,
    "consume": Groups._consume,
    "leave": Groups._member_leaves,
    "park": Groups._park,
    "read as a member": Groups._member_reads,
    "release": Groups._release,
}


def _where_partitions(read: Read) -> str:
    if read.partitions is None:
        return ""
    return f"where partition in ({', '.join(map(str, read.partitions))})"


def _held(sign: str, value: Any, of: Any) -> Any:
    compared = {
        ">": lambda e: of(e) > value,
        ">=": lambda e: of(e) >= value,
        "<": lambda e: of(e) < value,
        "<=": lambda e: of(e) <= value,
        "=": lambda e: of(e) == value,
    }
    return compared[sign]


@contextmanager
def cold(database: Database, stream: Stream) -> Iterator[None]:
    """What is read of a stream meanwhile comes from its log."""
    buffers, known = database.buffers, database.catalog.streams["main", stream.name]
    stand, buffers._bytes_max = buffers._bytes_max, 0
    try:
        buffers.resize(known)
        yield
    finally:
        buffers._bytes_max = stand
        buffers.remake(known, database.commits.last_lsn)

"""Windows of a log: the events that a scan reads from it at once, and those that wait for the next scan.

A window belongs to its scan, not to the rows that a client fetches at a time: it is bounded in rows and in
bytes, each window has four times the rows of the one before it, and its events are counted in the partitions
that are read. So a portal of 1,000 rows a fetch costs as many DuckDB statements as one of 10,000, and the
first row waits for a small window only.

A group that is behind reads with many short scans, each of which begins where the previous one has ended. A
closed scan therefore leaves its window here, and a scan that begins within it continues in memory. Windows
hold published events, which do not change; a window that was read before compaction or retention removed some
of its events is not used again.

The windows of open scans have a common bound too. Beyond it, the one that has not been read for the longest
time is taken from its scan, which then continues from its position with a small window: a client may open
many cursors and leave them. Source: docs/design/reading.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..log.log import Layout
from ..values import datarow
from .buffer import Hot

# Log rows of the first window of a scan, the growth of the next ones, and the most of one window.
FIRST_ROWS, GROWTH, ROWS_MAX = 2048, 4, 1 << 17
# About the bytes of the events in a window; one event may be larger. They exist up to three times while they
# are read: in DuckDB, in Arrow, and encoded for the client.
WINDOW_BYTES_MAX = 16 << 20
# Bytes of all windows that wait for a next scan, with their encoded rows.
KEPT_BYTES_MAX = 64 << 20
# Bytes of the windows that open scans hold, with their encoded rows; the latest one may be larger.
OPEN_BYTES_MAX = 256 << 20
# Log rows of a window from which on the next one is read while it is sent, and how many are read so at once.
AHEAD_ROWS, AHEAD_AT_ONCE = 1 << 15, 2

# Rows of a window that are encoded together, however few of them are fetched at a time.
PAGE_ROWS = 1 << 14
# Rows of a page that are encoded by themselves if the page is encoded in another form: an event loop may ask
# for so many.
FEW_ROWS_MAX = 1 << 11

Lsns = npt.NDArray[np.int64]


class EncodedPage:
    """Rows of a window, encoded once for all of their readers that want the same form."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self._encoded: tuple[tuple[object, ...], memoryview, list[int]] | None = None

    @property
    def is_encoded(self) -> bool:
        """True if the rows have been encoded."""
        return self._encoded is not None

    def datarows(
        self,
        part: slice,
        columns: Sequence[int],
        types: Sequence[str],
        formats: Sequence[int],
        timezone: str,
    ) -> memoryview:
        """Some of the rows as DataRow messages.

        The page keeps one form. Few rows in another form do not displace it: clients with two forms would
        otherwise encode the page at each fetch.

        Args:
            columns: the places of the columns of a message.
        """
        form = (tuple(columns), tuple(types), tuple(formats), timezone)
        found = self._encoded
        if found is None or found[0] != form:
            rows = self.rows.select(list(columns))
            if found is not None and (count := part.stop - part.start) <= FEW_ROWS_MAX:
                return datarow.encoded(rows.slice(part.start, count), types, formats, timezone)[0]
            # Another reader may do the same meanwhile: either result serves both.
            found = self._encoded = (form, *datarow.encoded(rows, types, formats, timezone))
        _, data, bounds = found
        return data[bounds[part.start] : bounds[part.stop]]


class Pages:
    """The rows of a window in pages, which its readers share.

    Args:
        places: the places of the rows among `rows`, which are copied at the first use; None for all rows.
    """

    def __init__(self, rows: pa.RecordBatch, places: Lsns | None = None) -> None:
        self._rows, self._places = rows, places
        self._pages: dict[int, EncodedPage] = {}

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows."""
        if self._places is not None:
            self._rows, self._places = self._rows.take(pa.array(self._places)), None
        return self._rows

    def is_encoded(self, row: int) -> bool:
        """True if the page of a row has been encoded; a look that copies no rows."""
        page = self._pages.get(row // PAGE_ROWS)
        return page is not None and page.is_encoded

    def at(self, start: int, end: int) -> tuple[EncodedPage, slice]:
        """The page of a row, and the rows in it up to another one."""
        number = start // PAGE_ROWS
        first = number * PAGE_ROWS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = EncodedPage(self.rows.slice(first, PAGE_ROWS))
        return page, slice(start - first, min(end - first, page.rows.num_rows))


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The events of some partitions between two LSNs, as Arrow, in LSN order.

    Args:
        source: identifies the stream's buffers, their compactions, and the form of the rows: windows of
            another source are not those of a scan.
        starts: partition -> the LSN after which its events are in the window.
        high: the LSN up to which they are.
        pages: the events.
        first: the place in the pages of the first row.
        lsns, partitions: LSN and partition of each row.
        target: the number of log rows that the window was to have.
    """

    source: tuple[object, ...]
    starts: Mapping[int, int]
    high: int
    pages: Pages
    first: int
    lsns: Lsns
    partitions: npt.NDArray[np.int32]
    target: int

    @property
    def size(self) -> int:
        """The approximate size of the window in bytes, with the encoded rows."""
        return 2 * int(self.pages.rows.get_total_buffer_size())

    def covers(self, after: Mapping[int, int]) -> bool:
        """True if it has all events up to its end of a scan that continues behind these LSNs."""
        starts = self.starts
        return min(after.values()) < self.high and all(
            lsn >= starts.get(number, lsn + 1) for number, lsn in after.items()
        )

    def within(self, after: Mapping[int, int], through_lsn: int) -> LogWindow:
        """The part of the window for a scan behind these LSNs and up to another."""
        lsns, partitions = self.lsns, self.partitions
        lowest, highest = min(after.values()), through_lsn
        if len(after) == len(self.starts):
            # Behind the last of these LSNs the rows of all partitions are wanted.
            highest = min(max(after.values()), through_lsn)
        start, later, end = lsns.searchsorted([lowest, highest, through_lsn], "right").tolist()
        bounds = np.full(max(*self.starts, *after) + 1, through_lsn, np.int64)
        bounds[list(after)] = list(after.values())
        between = slice(start, later)
        kept = start + np.flatnonzero(lsns[between] > bounds[partitions[between]])
        high = min(self.high, through_lsn)
        if not len(kept) or int(kept[0]) + len(kept) == later:
            first = later - len(kept)
            lsns, partitions, pages = lsns[first:end], partitions[first:end], self.pages
            first += self.first
        else:
            part = np.concatenate((kept, np.arange(later, end)))
            lsns, partitions = lsns[part], partitions[part]
            pages, first = Pages(self.pages.rows, part + self.first), 0
        return LogWindow(self.source, self.starts, high, pages, first, lsns, partitions, self.target)

    def stop(self, start: int, limit: int) -> int:
        """The end of the rows of a page from `start`, at most `limit`, and one more of the same LSN."""
        page_end = (self.first + start) // PAGE_ROWS * PAGE_ROWS + PAGE_ROWS - self.first
        end = min(start + limit, len(self.lsns), page_end)
        if start < end < len(self.lsns) and self.lsns[end - 1] == self.lsns[end]:
            end += 1
        return end


@dataclass(frozen=True, slots=True)
class Cold:
    """The events of a read from the log, in LSN order; otherwise as `Hot`.

    Args:
        page: the rows of the window that contains the events, in the columns of the scan.
        part: the positions of the events in the page.
        layout: the columns of the page.
    """

    lsns: list[int]
    partitions: list[int]
    page: EncodedPage
    part: slice
    layout: Layout
    exhausted: bool

    @property
    def rows(self) -> list[bytes]:
        """The events as text-format DataRows."""
        batch = self.page.rows.slice(self.part.start, len(self.lsns))
        return datarow.messages(batch, self.layout.types)


Page = Hot | Cold


class Held:
    """The window that an open scan holds, the part of it that the scan needs, and the window that comes next.

    Attributes:
        taken: the windows have been taken from the scan.
        closed: the scan is closed; its window that is still coming is kept for the next scan.
        coming: reads the next window; it has the error of that read.
        arrived: the next window.
    """

    def __init__(self) -> None:
        self.window: LogWindow | None = None
        self.part: LogWindow | None = None
        self.taken = False
        self.closed = False
        self.coming: Future[None] | None = None
        self.arrived: LogWindow | None = None

    def settle(self) -> None:
        """Wait until no window is being read for the scan."""
        if self.coming is not None:
            wait([self.coming])

    def arrival(self) -> LogWindow | None:
        """Take the next window, once it is there; None without any, or if it was taken.

        Raises:
            DucktailError: the window could not be read.
        """
        coming, self.coming = self.coming, None
        if coming is not None:
            coming.result()
        arrived, self.arrived = self.arrived, None
        return arrived

    def when_settled(self, work: Callable[[], None]) -> None:
        """Do something as soon as no window is being read, in whatever thread that is."""
        if self.coming is None:
            work()
        else:
            self.coming.add_done_callback(lambda _: work())


@dataclass(frozen=True, slots=True)
class _Coming:
    """A window that is being read in a thread of the engine's.

    Args:
        after: partition -> the LSN behind which it begins.
        held: the holds of the scan that has begun it.
        done: ends with it.
    """

    source: tuple[object, ...]
    after: Mapping[int, int]
    held: Held
    done: Future[None]


class ReadAhead:
    """The windows of open scans, and those that closed ones have left; both bounded in bytes."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._windows: OrderedDict[int, LogWindow] = OrderedDict()
        self._bytes = 0
        self._open: OrderedDict[Held, int] = OrderedDict()
        self._open_bytes = 0
        self._threads = ThreadPoolExecutor(AHEAD_AT_ONCE, thread_name_prefix="ducktail-ahead")
        self._coming: list[_Coming] = []
        self._followed: tuple[object, int] | None = None  # The window behind which one was read last.
        self._is_alone = False  # The last two scans that found a window found the same.
        self._closed = False

    def close(self) -> None:
        """Wait for the windows that are being read; no more are read ahead."""
        with self._mutex:
            self._closed = True
        self._threads.shutdown()

    def hold(self, held: Held, window: LogWindow, part: LogWindow, *, may_be_taken: bool) -> None:
        """Give a scan a window; those of other scans make room for it.

        Args:
            may_be_taken: the scan can read the rest of it again.
        """
        with self._mutex:
            self._forget(held)
            held.window, held.part = window, part
            if not may_be_taken:
                return
            self._open[held] = window.size
            self._open_bytes += window.size
            while self._open_bytes > OPEN_BYTES_MAX and len(self._open) > 1:
                other = next(iter(self._open))
                self._forget(other)
                other.window, other.part, other.arrived, other.taken = None, None, None, True

    def begin(
        self, held: Held, window: LogWindow, after: Mapping[int, int], read: Callable[[], LogWindow]
    ) -> None:
        """Read the window behind a scan's in another thread, unless threads or memory are short.

        Args:
            after: partition -> the LSN behind which it begins.
        """
        with self._mutex:
            is_short = len(self._coming) >= AHEAD_AT_ONCE or self._open_bytes + window.size > OPEN_BYTES_MAX
            if self._closed or is_short or held.coming is not None or held not in self._open:
                return
            self._submit(held, window, after, partial(self._read, held, read))
            if held.coming is not None:
                self._open[held] += window.size
                self._open_bytes += window.size

    def _submit(
        self, held: Held, window: LogWindow, after: Mapping[int, int], work: Callable[[], None]
    ) -> None:
        """Read a window in another thread; without one, the scan reads by itself."""
        is_refused = False

        def run() -> None:
            # The executor keeps work for which it has started no thread; the scan uses its cursor meanwhile.
            with self._mutex:
                if is_refused:
                    return
            try:
                work()
            finally:
                with self._mutex:
                    self._coming.remove(coming)

        try:
            done = self._threads.submit(run)
        except RuntimeError:
            is_refused = True
            return
        coming = _Coming(window.source, dict(after), held, done)
        self._coming.append(coming)
        held.coming = done
        self._followed = window.source, window.high

    def _read(self, held: Held, read: Callable[[], LogWindow]) -> None:
        window = read()
        with self._mutex:
            is_left = held.closed and not held.taken
            held.arrived = None if held.taken or held.closed else window
        if is_left:
            self.put(window)

    def arriving(self, source: tuple[object, ...], after: Mapping[int, int]) -> Future[None] | None:
        """Ends once a window behind these LSNs is there for any scan; None if none is being read."""
        with self._mutex:
            for coming in self._coming:
                if coming.held.closed and coming.source == source and coming.after == after:
                    return coming.done
        return None

    def follow(
        self, held: Held, window: LogWindow, after: Mapping[int, int], read: Callable[[], LogWindow]
    ) -> None:
        """Read ahead the window behind one that successive short scans share.

        This is done only while all short scans read in one place: readers in several places would displace
        each other's windows.

        Args:
            held: the holds of the closing scan; its cursor reads.
            after: partition -> the LSN behind which it begins.
            read: reads the window; its error is ignored, because the next scan then reads by itself.
        """
        with self._mutex:
            is_short = len(self._coming) >= AHEAD_AT_ONCE or not self._is_alone
            if not (self._closed or is_short or (window.source, window.high) == self._followed):
                self._submit(held, window, after, lambda: self.put(read()))

    def use(self, held: Held) -> None:
        """Note that a scan reads its window."""
        with self._mutex:
            if held in self._open:
                self._open.move_to_end(held)

    def release(self, held: Held) -> None:
        """Take the window of a scan that is closed."""
        with self._mutex:
            self._forget(held)
            held.window = held.part = None
            arrived, held.arrived = held.arrived, None
            held.closed = True
        if arrived is not None:
            self.put(arrived)

    def _forget(self, held: Held) -> None:
        self._open_bytes -= self._open.pop(held, 0)

    def put(self, window: LogWindow) -> None:
        """Keep a window; the windows that were used least recently make room for it."""
        size = window.size
        if size > KEPT_BYTES_MAX:
            return
        with self._mutex:
            if id(window) in self._windows:
                return
            self._windows[id(window)] = window
            self._bytes += size
            while self._bytes > KEPT_BYTES_MAX:
                _, oldest = self._windows.popitem(last=False)
                self._bytes -= oldest.size

    def find(self, source: tuple[object, ...], after: Mapping[int, int]) -> LogWindow | None:
        """A window that has the next events of a scan behind these LSNs; None without any."""
        with self._mutex:
            for key, window in reversed(self._windows.items()):
                if window.source == source and window.covers(after):
                    self._is_alone = key == next(reversed(self._windows))
                    self._windows.move_to_end(key)
                    return window
        return None

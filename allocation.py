"""How the server's process gets memory, gives it back, and looks for garbage; and what it has no room for.

Encoding rows takes and frees arrays of some megabytes all the time. The C library gives each of them back
to the system at once and gets its next one page by page, cleared: a tenth of what a result costs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
from importlib.machinery import ModuleSpec
from typing import ClassVar

# Of <malloc.h>: free memory that is kept at an arena's end, and sizes from which memory is got by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 8 << 20
ALONE_BYTES = 4 << 20
# Freed memory within the arenas, of all threads, that is not worth a look.
FREED_BYTES_MAX = 64 << 20
# Python looks for unreachable cycles whenever so many more objects were made than freed. Its own 700 are the
# requests of some twenty clients that are under way at once, none of them garbage: looking at them again and
# again was a quarter of the event loop's time. So many are a few megabytes.
YOUNG_OBJECTS_MAX = 10_000


def keep_freed_memory() -> None:
    """Keep some freed memory for what comes next, where the C library is glibc; elsewhere do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, ALONE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class _Mallinfo2(ctypes.Structure):
    """Of <malloc.h>: what the C library knows of its memory, in bytes."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def give_back_freed_memory() -> None:
    """Give freed memory back to the system, where much of it lies between what is in use.

    Each worker thread has an arena of its own, of which the C library gives back the end alone: statements of
    megabytes, parsed on one thread and then another, would leave some hundred megabytes.
    """
    library = ctypes.CDLL(None)
    mallinfo = getattr(library, "mallinfo2", None)
    if mallinfo is None:
        return
    mallinfo.restype = _Mallinfo2
    if mallinfo().fordblks > FREED_BYTES_MAX:
        library.malloc_trim(0)


class _Without:
    """A finder of modules that says that pandas is not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Nothing about any other module."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of the server", name=name)
        return None


def leave_pandas_out() -> None:
    """Keep pandas out of this process, which has no use of it.

    Where it is installed pyarrow imports it at the first array that it makes of Python values, to see whether
    they are pandas' own: 33 MB and 0.2 s of each server's start.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _Without)


def collect_seldom() -> None:
    """Look for garbage less often, and never at what has been imported: that stays to the end."""
    gc.collect()
    gc.freeze()
    # Then it is garbage like all else; DuckDB's module would list what it finds left over on standard error.
    atexit.register(gc.unfreeze)
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])

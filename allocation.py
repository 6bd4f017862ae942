"""How the server's process gets memory from the system, and gives it back.

Encoding rows takes and frees arrays of some megabytes all the time. The C library gives each of them back
to the system at once and gets its next one page by page, cleared: a tenth of what a result costs.
"""

from __future__ import annotations

import ctypes

# Of <malloc.h>: free memory that is kept at an arena's end, and sizes from which memory is got by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 8 << 20
ALONE_BYTES = 4 << 20


def keep_freed_memory() -> None:
    """Keep some freed memory for what comes next, where the C library is glibc; elsewhere do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, ALONE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)

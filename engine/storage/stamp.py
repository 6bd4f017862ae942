"""Whether somebody has written a database file since ducktail closed it: its stamp, then and now.

DuckDB gives each checkpoint a number, which stands in one of the two headers of the file with where the
checkpoint's catalog is; what was committed since is in the log beside the file. So headers and the log's
length are others once anybody has committed anything, and the same in a copy. Read while DuckDB has not got
the file open: closing a descriptor would let go of its lock.
"""

from __future__ import annotations

import hashlib

from .file import MEMORY
from .side_file import STAMP_BYTES
from .wal_chain import wal_paths

# The main header and the two of checkpoints, 4,096 bytes each.
HEADER_BYTES = 3 * 4096


def read_stamp(path: str) -> bytes | None:
    """The stamp of a database file that nobody here has open; None where there is none, or in memory."""
    if path == MEMORY:
        return None
    try:
        with open(path, "rb") as file:
            found = hashlib.blake2b(file.read(HEADER_BYTES), digest_size=STAMP_BYTES)
        sizes = [log.stat().st_size if log.exists() else 0 for log in wal_paths(path)]
    except OSError:
        return None
    found.update(repr(sizes).encode())
    return found.digest()


def stamp_left(path: str) -> bytes | None:
    """The stamp of a file that has just been closed; None where DuckDB's log is still there.

    Then somebody has its instance open yet (a result that was not read to its end), which will write the log
    into the file: and to open the file here would let go of the instance's lock.
    """
    return None if any(log.exists() for log in wal_paths(path)) else read_stamp(path)

"""What a conversation asks of whoever drives it.

A conversation is a generator. It yields a step and is resumed when the step has been done:
a `Wait` of the session (resumed with True when its future is done, False when its time is up; a
cancelled session makes the future done), or one of the needs below. Between two steps it touches
no socket and no clock. It may be resumed on another thread than before, never on two at once.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum, auto
from typing import TypeVar

from ...engine.waiting import Wait

T = TypeVar("T")


class Need(Enum):
    """A step that is no wait."""

    INPUT = auto()
    """Resume when there are messages, on the caller's own thread; write the output before."""
    COPYING = auto()
    """Resume when there are messages of the COPY that is being answered, or it is cancelled."""
    FLUSH = auto()
    """Write the output; resume when the client has taken enough of it."""
    SECURE = auto()
    """Write the output, then TLS: resume at once; all bytes from now on go through it."""
    WORKER = auto()
    """Resume on a thread that may block: DuckDB is called next. Holds until the next INPUT."""


Step = Wait | Need
Steps = Generator[Step, bool, T]

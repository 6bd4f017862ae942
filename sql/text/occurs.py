"""A first look at a text, whatever its length: whether a pattern occurs in it at all.

A regular expression holds Python's lock from its beginning to its end, and of megabytes one with many words
takes a second or more, in which no other thread goes on: not the event loop either. So a long text is
searched window by window.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# One search of a window takes some 50 ms for the slowest of the patterns.
WINDOW_CHARS = 256 * 1024
# What stands on the border of two windows is whole in one of them: the longest words, and blanks between.
OVERLAP_CHARS = 64 * 1024


def occurs(pattern: re.Pattern[str], text: str, words: Sequence[str] = ()) -> bool:
    """Whether a pattern of bounded length, but for blanks, is found in a text.

    Args:
        words: in small letters, of which each match has one: to look for them takes a hundredth of the time.

    At a window's end it may be found where more of the text would say no (`jsonb` in `jsonbx`): whoever
    asks looks at the tokens next.
    """
    if words:
        small = text.lower()
        if not any(word in small for word in words):
            return False
    if len(text) <= WINDOW_CHARS:
        return pattern.search(text) is not None
    starts = range(0, len(text), WINDOW_CHARS)
    return any(pattern.search(text, at, at + WINDOW_CHARS + OVERLAP_CHARS) is not None for at in starts)

"""What is too long for the event loop: the one rule by which a request goes to a worker thread.

To cut, parse and decode takes time that grows with the bytes, and as long as the event loop does it nobody
else is answered. So what is short is done where it comes, which saves the hop to a thread, and what is longer
wholly on a worker thread, from the first look at it. There Python passes its lock on every few milliseconds;
the calls that do not (a regular expression, DuckDB's parser) are made so that they take no longer than a
fraction of a second. Source: docs/design/pgwire_gateway.md, "What is long".
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codec.frontend import Bind, Message, Parse, Query

# Characters of a text, or bytes of all parameters together: some milliseconds of the event loop.
INLINE_CHARS_MAX = 8 * 1024
# Parameters, or columns of a description.
INLINE_ITEMS_MAX = 1000


def is_long(message: Message) -> bool:
    """Whether a message is no work for the event loop."""
    match message:
        case Query(text):
            return len(text) > INLINE_CHARS_MAX
        case Parse(_, text, oids):
            return len(text) > INLINE_CHARS_MAX or len(oids) > INLINE_ITEMS_MAX
        case Bind():
            return are_long(message.parameters)
    return False


def are_long(parameters: Sequence[bytes | None]) -> bool:
    """Whether parameters are no work for the event loop."""
    if len(parameters) > INLINE_ITEMS_MAX:
        return True
    return sum(len(value) for value in parameters if value is not None) > INLINE_CHARS_MAX


def is_long_text(text: str) -> bool:
    """Whether the text of a statement is no work for the event loop."""
    return len(text) > INLINE_CHARS_MAX


def are_many(columns: Sequence[object] | None) -> bool:
    """Whether the description of columns is no work for the event loop."""
    return columns is not None and len(columns) > INLINE_ITEMS_MAX

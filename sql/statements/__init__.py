"""The runners of the statements that are neither reads nor writes, a file a subject."""

# All are loaded here, as each makes itself known in `runners`.
from . import (
    bookmarks,
    cursor_statements,
    groups,
    listen,
    runners,
    session_calls,
    set_and_show,
    show,
    show_changes,
    streams,
    transactions,
    users,
    utilities,
)

__all__ = [
    "bookmarks",
    "checks",
    "cursor_statements",
    "groups",
    "listen",
    "members",
    "runners",
    "session_calls",
    "set_and_show",
    "show",
    "show_changes",
    "streams",
    "transactions",
    "users",
    "utilities",
]

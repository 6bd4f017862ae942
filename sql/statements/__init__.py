"""The runners of statements that neither read nor write rows, one file for each subject."""

# All files are imported here, because each registers its runners in `runners`.
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
    sinks,
    sources,
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
    "sinks",
    "sources",
    "streams",
    "transactions",
    "users",
    "utilities",
]

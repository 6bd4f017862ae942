"""Notices and warnings for the client."""

from __future__ import annotations

from dataclasses import dataclass

# The number of notices kept for a driver that does not take them.
NOTICES_MAX = 100
# The severities that each level of client_min_messages leaves out; the levels of DEBUG leave out none.
LEFT_OUT = {
    **dict.fromkeys(("log", "info", "notice"), ("DEBUG",)),
    "warning": ("DEBUG", "NOTICE"),
    "error": ("DEBUG", "NOTICE", "WARNING"),
}


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice or warning."""

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None


class Notices:
    """The notices of one session that its driver has not taken yet: `pending`."""

    def __init__(self) -> None:
        self.pending: list[Notice] = []

    def add(
        self,
        message: str,
        *,
        severity: str = "NOTICE",
        sqlstate: str = "00000",
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Add a notice beside the answer."""
        if len(self.pending) < NOTICES_MAX:
            self.pending.append(Notice(severity, sqlstate, message, detail, hint))

    def take(self, level: str = "notice") -> list[Notice]:
        """Take the notices since the last call.

        Args:
            level: the value of client_min_messages.
        """
        if not self.pending:
            return []
        notices, self.pending = self.pending, []
        return [notice for notice in notices if notice.severity not in LEFT_OUT.get(level, ())]

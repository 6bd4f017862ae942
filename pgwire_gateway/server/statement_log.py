"""Counters and log lines of a server's connections and statements.

Counts are kept here rather than in a library's metrics: each statement increments one, from any worker
thread, and readers take a copy. No password, parameter or literal is recorded.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

from ...engine.errors import DucktailError, InvalidAuthorization, InvalidPassword
from ...engine.server_log import facts
from ...sql.text.tokens import masked
from ..conversation import EndedStatement

OK = "ok"
# A client's application name may be as long as a startup packet.
NAME_CHARS_MAX = 128

log = logging.getLogger("ducktail.gateway")


class StatementLog:
    """Counts statements and sessions, and logs the slow and the refused.

    Args:
        slow_ms: statements of at least this duration in milliseconds are logged; -1 for none.

    Attributes:
        statements: the number of ended statements, by kind and `ok` or SQLSTATE.
        refused: the number of refused clients, by SQLSTATE.
        opened: the number of opened sessions.
        unanswered: the number of catalog queries that could not be answered.
    """

    def __init__(self, slow_ms: int) -> None:
        self._slow_s = None if slow_ms < 0 else slow_ms / 1000
        self._mutex = threading.Lock()
        self.statements: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.opened = 0
        self.unanswered = 0

    def statement_ended(self, ended: EndedStatement) -> None:
        """Count an ended statement, and log a slow one."""
        outcome = ended.sqlstate or OK
        with self._mutex:
            if ended.sqlstate or not ended.resumed:
                self.statements[ended.kind, outcome] += ended.executions
            self.unanswered += ended.unanswered
        if self._slow_s is not None and ended.seconds >= self._slow_s:
            log.warning(
                "slow statement",
                extra=facts(
                    session=ended.session_id,
                    trace=ended.trace or None,
                    duration_ms=round(ended.seconds * 1000, 3),
                    kind=ended.kind,
                    outcome=outcome,
                    statement=masked(ended.text),
                ),
            )

    def outcomes(self) -> dict[tuple[str, str], int]:
        """The number of completed statements by kind and outcome; a copy."""
        with self._mutex:
            return dict(self.statements)

    def refusals(self) -> dict[str, int]:
        """The number of refused clients by SQLSTATE; a copy."""
        with self._mutex:
            return dict(self.refused)

    def session_opened(
        self,
        session_id: int,
        user: str,
        application: str,
        peer: str,
        *,
        tls: bool,
        node: str | None,
        trace: str,
    ) -> None:
        """Count and log an opened session; `node` is set for a node of the cluster."""
        with self._mutex:
            self.opened += 1
        log.info(
            "connection opened",
            extra=facts(
                session=session_id,
                user=_short(user),
                application=_short(application),
                peer=peer,
                tls=tls,
                node=node,
                trace=trace or None,
            ),
        )

    def session_closed(self, session_id: int, seconds: float, error: DucktailError | None) -> None:
        """Log the end of a session, with the error that ended it, if any."""
        log.info(
            "connection closed",
            extra=facts(
                session=session_id, duration_s=round(seconds, 3), sqlstate=error and error.sqlstate,
                reason=error and error.message,
            ),
        )  # fmt: skip

    def client_refused(self, user: str | None, peer: str, error: DucktailError) -> None:
        """Count and log a refused client."""
        with self._mutex:
            self.refused[error.sqlstate] += 1
        failed = isinstance(error, InvalidAuthorization | InvalidPassword)
        log.log(
            logging.WARNING if failed else logging.INFO,
            "authentication failed" if failed else "connection refused",
            extra=facts(
                user=user and _short(user), peer=peer, sqlstate=error.sqlstate, reason=_short(error.message)
            ),
        )


def _short(text: str) -> str:
    return text[:NAME_CHARS_MAX]

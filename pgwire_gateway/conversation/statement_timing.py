"""Duration and outcome of a conversation's statements, reported to the host as each one ends.

A statement begins with its Query or its Execute and ends with CommandComplete or an error: the time
includes waits for locks and for a client that takes its rows slowly. Of a portal that is read in pieces only
the first piece counts as a statement; text that cannot be parsed or bound counts too, with an unknown kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...sql.text.classified import Kind

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ended:
    """A statement that has ended.

    Args:
        kind: the value of its Kind, or UNKNOWN.
        sqlstate: of its error; None where there was none.
        text: as the client sent it, literals and all: not for logs as it is.
        resumed: it was a further piece of a portal that has been counted.
        unanswered: it asked the catalog something that this could not answer.
        executions: how often it was executed in this time.
        trace: the id by which it is followed through several nodes' logs; "" is none.
    """

    session_id: int
    kind: str
    sqlstate: str | None
    seconds: float
    text: str
    resumed: bool
    unanswered: bool = False
    executions: int = 1
    trace: str = ""


class Observed:
    """The statement that one conversation is at.

    Args:
        now_s: a clock that never goes back, in seconds.
        tell: takes what has ended.
        trace: says the session's trace id.
    """

    __slots__ = ("_kind", "_now_s", "_resumed", "_session_id", "_start_s", "_tell", "_text", "_trace")

    def __init__(
        self,
        session_id: int,
        now_s: Callable[[], float],
        tell: Callable[[Ended], None],
        trace: Callable[[], str] = str,
    ) -> None:
        self._session_id = session_id
        self._trace = trace
        self._now_s = now_s
        self._tell = tell
        self._text = ""
        self._kind: Kind | None = None
        self._resumed = False
        self._start_s = 0.0

    @property
    def text(self) -> str:
        """The statement, as the client sent it."""
        return self._text

    def reset(self, text: str = "") -> None:
        """A message has come, or the next statement of its text begins."""
        self._text, self._kind, self._resumed = text, None, False
        self._start_s = self._now_s()

    def found(self, kind: Kind, text: str, *, resumed: bool = False) -> None:
        """It is known what the statement is."""
        self._kind, self._text, self._resumed = kind, text, resumed

    def end(self, sqlstate: str | None = None, *, unanswered: bool = False, executions: int = 1) -> None:
        """The statement, or this piece of it, has ended; a message that ran none and failed counts too.

        Args:
            executions: of the statement, that were run as one.
        """
        kind = UNKNOWN if self._kind is None else str(self._kind.value)
        seconds = self._now_s() - self._start_s
        self._tell(
            Ended(
                self._session_id,
                kind,
                sqlstate,
                seconds,
                self._text,
                self._resumed,
                unanswered,
                executions,
                self._trace(),
            )
        )

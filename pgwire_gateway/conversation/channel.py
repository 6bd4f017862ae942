"""The two queues of a conversation, messages in and bytes out, the steps it yields, and its end.

A conversation is a generator. It yields a step and is resumed when the step has been done: a `Wait`
of the session (resumed with True when its future is done, False when its time is up; a cancelled
session makes the future done), or a `Need`. Between two steps it touches no socket and no clock. It
may be resumed on another thread than before, never on two at once.

The server calls `receive`, `end`, `lose` and `take_output` on the event loop's thread; the conversation
calls the rest, on any. Only a deque and single assignments cross between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import TypeVar

from ...engine.errors import DucktailError, ProtocolViolation, QueryCanceled
from ...engine.waiting import Wait
from ..codec import Limits, Receiver, encode
from ..codec.backend import Message as Answer
from ..codec.frontend import Malformed, Message, Terminate

T = TypeVar("T")


class Need(Enum):
    """A step other than a wait."""

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


# Output that is collected before the client must take it: large enough that a system call costs
# nothing against filling it, small enough that a hundred sessions do not count.
OUTPUT_BYTES_MAX = 256 * 1024
# The beginning of an answer that is not held back for its end: what PostgreSQL's own buffer holds.
PRESSING_BYTES = 8 * 1024
# Requests that may wait while one is answered: a pipeline's worth, so that a client that sends
# without end is slowed down by TCP instead of filling our memory.
INPUT_BYTES_MAX = 1024 * 1024
# Waiting requests that are answered in one stretch where none of them asks DuckDB: a millisecond or a
# few, after which the other connections of the event loop get their turn.
STRETCH_MAX = 100


class Fatal(Exception):
    """The session is over; the client gets the reason."""

    def __init__(self, error: DucktailError) -> None:
        super().__init__(error.message)
        self.error = error


class Gone(Exception):
    """The session is over, and the client has left."""


class Channel:
    """Messages from the client and bytes to it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._receiver = Receiver(limits)
        # Each message with the bytes that are no longer held once it is taken.
        self._pending: deque[tuple[Message, int]] = deque()
        self._unclaimed = 0
        self._received = 0
        self._taken = 0
        self._output: list[bytes | memoryview] = []
        self._output_bytes = 0
        # Requests since the last pause between two.
        self._stretch = 0
        # Whether what is to be written ends a request, or is a notice: its client may wait for it.
        self.due = False
        self._ending: DucktailError | None = None
        self._lost = False
        # Whether the present request has been cancelled and does not know it yet.
        self.cancelled = False
        # Whether the bytes come and go through TLS, and what a password may be bound to there.
        self.secured = False
        self.end_point: bytes | None = None

    # The server's side.

    def receive(self, data: bytes) -> None:
        """Bytes from the client."""
        self._received += len(data)
        self._unclaimed += len(data)
        messages = self._receiver.receive(data)
        if messages:
            self._pending.extend((message, 0) for message in messages[:-1])
            self._pending.append((messages[-1], self._unclaimed))
            self._unclaimed = 0

    def end(self, error: DucktailError) -> None:
        """End the session with a FATAL error at the next moment that allows it."""
        self._ending = self._ending or error

    def lose(self) -> None:
        """The client has vanished."""
        self._lost = True

    def cancel(self) -> None:
        """The present request is to go no further."""
        self.cancelled = True

    def secure(self, end_point: bytes | None) -> None:
        """From now on the bytes go through TLS."""
        self.secured, self.end_point = True, end_point

    @property
    def idle(self) -> bool:
        """True if no message is waiting."""
        return not self._pending

    @property
    def full(self) -> bool:
        """True if the client should be read no further until messages have been taken.

        A message that is still coming does not count: it has a bound of its own.
        """
        return bool(self._pending) and self._received - self._taken > INPUT_BYTES_MAX

    @property
    def over(self) -> bool:
        """True if the session must end."""
        return self._lost or self._ending is not None

    @property
    def pressing(self) -> bool:
        """True if the output must be written before more is collected: see PRESSING_BYTES."""
        return self.due or self._output_bytes > PRESSING_BYTES

    def take_output(self) -> list[bytes | memoryview]:
        """Take the output, in order; it belongs to the caller. Small messages are joined into one piece."""
        output, size = self._output, self._output_bytes
        self._output, self._output_bytes, self.due = [], 0, False
        if len(output) > 1 and size <= OUTPUT_BYTES_MAX:
            return [b"".join(output)]
        return output

    # The conversation's side.

    def authenticated(self) -> None:
        """The client is let in: long messages are accepted."""
        self._receiver.authenticated = True

    def check_silent(self) -> None:
        """Check that a client that asked for TLS sends nothing before the answer.

        What comes before it was put there by someone else, to be taken for part of the secured stream
        (CVE-2021-23214); what came in the same piece as the request, the receiver has seen.

        Raises:
            Fatal: there is more.
        """
        if self._pending or not self._receiver.empty:
            raise Fatal(ProtocolViolation("received unencrypted data after SSL request"))

    def next(self, need: Need = Need.INPUT, while_idle: Callable[[], None] = lambda: None) -> Steps[Message]:
        """The next message.

        Args:
            need: INPUT for the next request; COPYING within one, which a cancel ends.
            while_idle: called whenever there is none, before waiting for it.

        Raises:
            QueryCanceled: the request has been cancelled.
            Fatal: the bytes are no messages, or the server ends the session.
            Gone: the client has left.
        """
        check = self.check_cancelled if need is Need.COPYING else self.check
        check()
        while not self._pending:
            while_idle()
            yield need
            check()
        message, freed = self._pending.popleft()
        self._taken += freed
        if isinstance(message, Malformed):
            raise Fatal(message.error)
        if isinstance(message, Terminate):
            raise Gone
        return message

    def coming(self) -> Steps[Message]:
        """The message behind this one, left where it is; waited for where it is not here yet.

        Raises:
            Fatal: the server ends the session. Gone: the client has left.
        """
        self.check()
        while not self._pending:
            yield Need.INPUT
            self.check()
        return self._pending[0][0]

    def ahead(self, place: int = 0) -> Message | None:
        """A message after this one, the next one for place 0, if it is here already."""
        # The server may append meanwhile; only the conversation takes.
        return self._pending[place][0] if place < len(self._pending) else None

    def skip(self, count: int) -> None:
        """Take messages that have been looked at."""
        for _ in range(count):
            _, freed = self._pending.popleft()
            self._taken += freed

    def rest(self) -> Steps[None]:
        """Between two requests: a client that sends without end takes its answers, and is not alone."""
        self._stretch += 1
        if self._stretch >= STRETCH_MAX or self._output_bytes > OUTPUT_BYTES_MAX:
            self._stretch = 0
            yield Need.FLUSH

    def settle(self) -> None:
        """Settle a request that is answered or has failed: a cancel no longer refers to it."""
        self.cancelled = False

    def check_cancelled(self) -> None:
        """Raise QueryCanceled if the request has been cancelled, Fatal or Gone as `check`."""
        self.check()
        if self.cancelled:
            raise QueryCanceled("canceling statement due to user request")

    def check(self) -> None:
        """Raise Fatal or Gone if the session must end."""
        if self._lost:
            raise Gone
        if self._ending is not None:
            raise Fatal(self._ending)

    def send(self, message: Answer) -> None:
        """Queue a message for the client."""
        self.send_bytes(encode(message))

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Queue bytes that are messages already."""
        self._output.append(data)
        self._output_bytes += len(data)

    def relieve(self, *, at_once: bool = False) -> Steps[None]:
        """Let the client take the output if there is much of it, or `at_once`."""
        if at_once or self._output_bytes > OUTPUT_BYTES_MAX:
            yield Need.FLUSH
            self.check_cancelled()

"""The two queues of a conversation, messages in and bytes out, the steps it yields, and its end.

A conversation is a generator. It yields a step and is resumed after it: a `Wait` of the session (resumed with
True when its future is done, False when its time is up; a cancel of the session makes the future done), or a
`Need`. Between two steps it touches no socket and no clock. It may be resumed on another thread than before,
never on two at once.

The server calls `receive`, `end`, `lose` and `take_output` on the event loop's thread; the conversation calls
the other methods, on any thread. Only a deque and single assignments cross between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import TypeVar

from ...engine.errors import DucktailError, ProtocolViolation, QueryCanceled
from ...engine.values.client_encodings import UTF8, Encoding
from ...engine.waiting import Wait
from ..codec import Limits, Receiver, encode
from ..codec.backend import Message as Answer
from ..codec.frontend import Malformed, Message, Terminate

T = TypeVar("T")


class Need(Enum):
    """A step other than a wait."""

    INPUT = auto()
    """Resume when there are messages, on the caller's own thread; write output that is due before."""
    COPYING = auto()
    """Resume when there are messages of the COPY that is being answered, or it is cancelled; write the output
    before."""
    FLUSH = auto()
    """Write the output; resume when the client has taken enough of it."""
    SECURE = auto()
    """Write the output, then TLS: resume at once; all bytes from now on go through it."""
    WORKER = auto()
    """Resume on a thread that may block: DuckDB is called next. Holds until the next INPUT."""


Step = Wait | Need
Steps = Generator[Step, bool, T]


# The output that is collected before the client must take it: large enough that a system call costs little
# beside filling it, small enough that a hundred sessions take little memory.
OUTPUT_BYTES_MAX = 256 * 1024
# The beginning of an answer that is sent before its end: the size of PostgreSQL's own buffer.
PRESSING_BYTES = 8 * 1024
# The maximum number of requests that wait while one is answered: a pipeline's worth. TCP slows down a client
# that sends without end, before it fills the memory.
INPUT_BYTES_MAX = 1024 * 1024
# Waiting requests that are answered in one stretch if none of them needs DuckDB: a few milliseconds, after
# which the other connections of the event loop have their turn.
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
        self._encoding = UTF8
        # Each message with the number of bytes that are freed when it is taken.
        self._pending: deque[tuple[Message, int]] = deque()
        self._unclaimed = 0
        self._received = 0
        self._taken = 0
        self._output: list[bytes | memoryview] = []
        self._output_bytes = 0
        # The number of requests since the last pause.
        self._stretch = 0
        # True if the client may wait for the output: the end of a request, an error, a notice, a question.
        self.due = False
        self._ending: DucktailError | None = None
        self._lost = False
        # True if the present request has been cancelled and has not noticed.
        self.cancelled = False
        # True if the connection uses TLS; and the data for channel binding.
        self.secured = False
        self.end_point: bytes | None = None

    # The server's side.

    def receive(self, data: bytes) -> None:
        """Accept bytes from the client."""
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
        """Note that the client has vanished."""
        self._lost = True

    def cancel(self) -> None:
        """Cancel the present request."""
        self.cancelled = True

    def secure(self, end_point: bytes | None) -> None:
        """Note that the bytes go through TLS from now on."""
        self.secured, self.end_point = True, end_point

    @property
    def idle(self) -> bool:
        """True if no message is waiting."""
        return not self._pending

    @property
    def full(self) -> bool:
        """True if no more bytes of the client should be read until messages have been taken.

        An incomplete message does not count: it has a bound of its own.
        """
        return bool(self._pending) and self._received - self._taken > INPUT_BYTES_MAX

    @property
    def over(self) -> bool:
        """True if the session must end."""
        return self._lost or self._ending is not None

    @property
    def pressing(self) -> bool:
        """True if the output must be written before more is collected (PRESSING_BYTES)."""
        return self.due or self._output_bytes > PRESSING_BYTES

    def take_output(self) -> list[bytes | memoryview]:
        """Take the output, in order; it belongs to the caller. Small messages are joined into one piece."""
        output, size = self._output, self._output_bytes
        self._output, self._output_bytes, self.due = [], 0, False
        if len(output) > 1 and size <= OUTPUT_BYTES_MAX:
            return [b"".join(output)]
        return output

    # The conversation's side.

    @property
    def encoding(self) -> Encoding:
        """The client's encoding; messages that have arrived already are in the one before."""
        return self._encoding

    @encoding.setter
    def encoding(self, encoding: Encoding) -> None:
        self._encoding = self._receiver.encoding = encoding

    def authenticated(self) -> None:
        """Note that the client has been authenticated: long messages are accepted from now on."""
        self._receiver.authenticated = True

    def check_silent(self) -> None:
        """Check that a client that asked for TLS sends nothing before the answer.

        Earlier bytes were inserted by a third party, to be taken for a part of the secured stream
        (CVE-2021-23214); the receiver has checked the piece with the request.

        Raises:
            Fatal: the client has sent more.
        """
        if self._pending or not self._receiver.empty:
            raise Fatal(ProtocolViolation("received unencrypted data after SSL request"))

    def next(self, need: Need = Need.INPUT, while_idle: Callable[[], None] = lambda: None) -> Steps[Message]:
        """The next message.

        Args:
            need: INPUT for the next request; COPYING within a request, which a cancel ends.
            while_idle: called before each wait for a message.

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
        """Wait for the next message and return it without taking it.

        Raises:
            Fatal: the server ends the session.
            Gone: the client has left.
        """
        self.check()
        while not self._pending:
            yield Need.INPUT
            self.check()
        return self._pending[0][0]

    def ahead(self, place: int = 0) -> Message | None:
        """A later message, the next one for place 0; None if it has not arrived."""
        # The server may append meanwhile; only the conversation takes.
        return self._pending[place][0] if place < len(self._pending) else None

    def skip(self, count: int) -> None:
        """Take messages that have been examined."""
        for _ in range(count):
            _, freed = self._pending.popleft()
            self._taken += freed

    def rest(self) -> Steps[None]:
        """Pause between two requests, so that a client that sends without end takes its answers and leaves
        others time."""
        self._stretch += 1
        if self._stretch >= STRETCH_MAX or self._output_bytes > OUTPUT_BYTES_MAX:
            self._stretch = 0
            yield Need.FLUSH

    def settle(self) -> None:
        """Settle a request that is answered or has failed: a cancel no longer refers to it."""
        self.cancelled = False

    def check_cancelled(self) -> None:
        """Raise QueryCanceled if the request has been cancelled, or as `check`."""
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
        self.send_bytes(encode(message, self._encoding))

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Queue bytes that are messages already."""
        self._output.append(data)
        self._output_bytes += len(data)

    def relieve(self, *, at_once: bool = False, committed: bool = False) -> Steps[None]:
        """Let the client take the output if there is much of it, or `at_once`.

        Args:
            committed: the statement has committed, so that a cancel does not end it.
        """
        if at_once or self._output_bytes > OUTPUT_BYTES_MAX:
            yield Need.FLUSH
            if committed:
                self.check()
            else:
                self.check_cancelled()

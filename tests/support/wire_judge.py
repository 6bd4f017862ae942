"""What a server must answer to a client's bytes, worked out anew from the protocol's own rules.

`judge` is given all that a client has sent and all that it was answered. It cuts the client's bytes into
messages itself, walks over them in order, and takes from the answers what belongs to each: nothing else may
be there, nothing may be missing. It knows no SQL but for what the command tags say of transactions.
Source: PostgreSQL documentation, "Message Flow", "Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# How the body of each message is laid out: z a string, i an Int32, t `S` or `P`, r the rest, H a count and
# as many Int16, I the same with Int32, V the same with values.
LAYOUTS = {
    "Q": "z", "P": "zzI", "B": "zzHVH", "D": "tz", "C": "tz", "E": "zi", "S": "", "H": "", "X": "",
    "F": "r", "d": "r", "c": "", "f": "z", "p": "r",
}  # fmt: skip
LARGE = frozenset("QPBFd")
SMALL_BYTES_MAX = 10_000
# How often a conversation is walked over: few have more than one COPY that fails.
GUESSES_MAX = 200
# Answered with ReadyForQuery whatever happens.
READY = frozenset("QFS")


class Wrong(AssertionError):
    """The server has broken a rule."""


@dataclass(frozen=True, slots=True)
class Request:
    """A message of the client's.

    Args:
        kind: its type letter.
        sound: its strings are UTF-8.
        text: a Query's, or what a Parse names and says, as far as it is sound.
        number: an Execute's row limit.
    """

    kind: str
    sound: bool = True
    text: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long messages may be."""

    unauthenticated: int = 10_000
    large: int = 64 << 20


def requests_in(data: bytes, bounds: Bounds) -> tuple[list[Request], bool, int]:
    """The messages of an open session; whether what comes behind them is none; its bytes."""
    found: list[Request] = []
    at = 0
    while at < len(data):
        kind = chr(data[at])
        if kind not in LAYOUTS:
            return found, True, len(data) - at
        if len(data) < at + 5:
            break
        (length,) = struct.unpack_from("!i", data, at + 1)
        if not 4 <= length <= (bounds.large if kind in LARGE else SMALL_BYTES_MAX):
            return found, True, len(data) - at
        end = at + 1 + length
        if len(data) < end:
            break
        request = _read(kind, data[at + 5 : end])
        if request is None:
            return found, True, len(data) - at
        found.append(request)
        at = end
    return found, False, len(data) - at


def _read(kind: str, body: bytes) -> Request | None:
    texts: list[str] = []
    at = number = 0
    known = True
    for part in LAYOUTS[kind]:
        if part == "r":
            at = len(body)
        elif part == "z":
            end = body.find(b"\0", at)
            if end < 0:
                return None
            try:
                texts.append(body[at:end].decode())
            except UnicodeDecodeError:
                return Request(kind, sound=False)
            at = end + 1
        elif part == "t":
            # Looked at when all is read: a name behind it that is no UTF-8 is told first.
            known = body[at : at + 1] in (b"S", b"P")
            texts.append(chr(body[at]) if known else "")
            at += 1
        elif part == "i":
            if len(body) < at + 4:
                return None
            (number,) = struct.unpack_from("!i", body, at)
            at += 4
        else:
            after = _list(part, body, at)
            if after is None:
                return None
            at = after
    return Request(kind, text="".join(texts), number=number) if known and at == len(body) else None


def _list(part: str, body: bytes, at: int) -> int | None:
    if len(body) < at + 2:
        return None
    (count,) = struct.unpack_from("!H", body, at)
    at += 2
    if part != "V":
        at += count * (2 if part == "H" else 4)
        return at if at <= len(body) else None
    for _ in range(count):
        if len(body) < at + 4:
            return None
        (length,) = struct.unpack_from("!i", body, at)
        at += 4 + (0 if length == -1 else length)
        if length < -1 or at > len(body):
            return None
    return at


# The server's side: every message whole, and laid out as its kind is.


def answers_in(data: bytes) -> list[tuple[str, bytes]]:
    """What a server has sent, checked message by message; the last one must be whole."""
    found: list[tuple[str, bytes]] = []
    at = 0
    while at < len(data):
        if len(data) < at + 5:
            raise Wrong(f"half a message at the end: {data[at:]!r}")
        kind = chr(data[at])
        (length,) = struct.unpack_from("!i", data, at + 1)
        body = data[at + 5 : at + 1 + length]
        if kind not in ANSWERS or length < 4 or len(body) != length - 4 or not ANSWERS[kind](body):
            raise Wrong(f"no backend message: {data[at : at + 60]!r}")
        found.append((kind, body))
        at += 1 + length
    return found


def _strings(body: bytes) -> bool:
    return body.endswith(b"\0")


def _row(body: bytes) -> bool:
    return _list("V", body, 0) == len(body)


def _columns(body: bytes) -> bool:
    (count,) = struct.unpack_from("!H", body)
    at = 2
    for _ in range(count):
        at = body.index(b"\0", at) + 19
    return at == len(body)


def _report(body: bytes) -> bool:
    found = fields(body)
    return body.endswith(b"\0\0") and {"S", "V", "C", "M"} <= set(found) and len(found["C"]) == 5


def _counted(width: int) -> Callable[[bytes], bool]:
    return lambda body: len(body) == 2 + width * struct.unpack_from("!H", body)[0]


def _copy(body: bytes) -> bool:
    return body[0] in (0, 1) and _list("H", body, 1) == len(body)


def _empty(body: bytes) -> bool:
    return not body


ANSWERS: dict[str, Callable[[bytes], bool]] = {
    "R": lambda body: len(body) >= 4, "K": lambda body: len(body) == 8, "S": _strings, "v": _strings,
    "Z": lambda body: body in (b"I", b"T", b"E"), "T": _columns, "D": _row, "C": _strings, "I": _empty,
    "1": _empty, "2": _empty, "3": _empty, "n": _empty, "s": _empty, "c": _empty, "t": _counted(4),
    "E": _report, "N": _report, "A": _strings, "G": _copy, "H": _copy, "d": lambda body: True,
}  # fmt: skip


def fields(body: bytes) -> dict[str, str]:
    """The fields of an error or a notice by their letters."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}


# The judgement.


@dataclass
class Answers:
    """What is left of a server's answers; what may come at any time is taken out."""

    found: list[tuple[str, bytes]]
    at: int = 0

    def peek(self) -> str:
        """The next kind; empty at the end."""
        return self.found[self.at][0] if self.at < len(self.found) else ""

    @property
    def next(self) -> bytes:
        """The body of the next."""
        return self.found[self.at][1]

    def take(self, kinds: str, why: str) -> tuple[str, bytes]:
        """The next answer, of one of these kinds."""
        if self.peek() not in kinds or not self.peek():
            before = "".join(kind for kind, _ in self.found[: self.at][-12:])
            raise Wrong(f"{why}: {self.peek() or 'nothing'} instead of one of {kinds}, after {before}")
        self.at += 1
        return self.found[self.at - 1]


@dataclass
class Judge:
    """The walk over an open session's messages.

    Args:
        statuses: what the next ReadyForQuery may say.
        copying: the kind of message that began the COPY FROM STDIN which is under way, if one is.
        guesses: for each error that may be of a piece of COPY data or of what comes behind it, whether it is.
        executed: whether there was an Execute since the last Sync.
        last: whether nothing whole is behind the present message.
    """

    answers: Answers
    guesses: list[bool]
    guessed: int = 0
    statuses: set[str] = field(default_factory=lambda: {"I"})
    skipping: bool = False
    executed: bool = False
    last: bool = False
    copying: str = ""
    over: bool = False
    text: str = ""
    limit: int = 0

    def request(self, request: Request) -> None:
        """Take what belongs to a message."""
        if self.copying:
            self._copy(request)
        elif request.kind == "X":
            self.over = True
        elif self.skipping and request.kind != "S":
            pass
        elif request.kind == "p":
            self.fatal()
        else:
            self.text, self.limit = request.text.lower(), request.number
            self._begin(request)

    def fatal(self) -> None:
        """The session ends with an error."""
        _, body = self.answers.take("E", "what ends the session")
        if fields(body)["S"] != "FATAL":
            raise Wrong(f"an end that is not FATAL: {body!r}")
        self.over = True

    def _begin(self, request: Request) -> None:
        if request.kind in "dcfH" and request.sound:
            return
        if not request.sound or request.kind == "F":
            self._error(request.kind)
        else:
            RULES[request.kind](self)

    def _copy(self, request: Request) -> None:
        began, kind = self.copying, request.kind
        if kind in "SH" or (kind == "d" and not self._is_of_this()):
            return
        if kind == "X":
            self.over = True
            return
        self.copying = ""
        if kind == "c" and self.answers.peek() == "C":
            self._command(self.answers.take("C", "a COPY's end")[1])
            if began == "Q":
                self.statements()
        else:
            if kind in "dcf" and self.answers.peek() == "E":
                if fields(self.answers.next)["M"].startswith("unexpected message"):
                    raise Wrong(f"a COPY is ended by what belongs there, before {kind}")
            self._error(began)

    def _is_of_this(self) -> bool:
        if self.answers.peek() != "E" or fields(self.answers.next)["S"] == "FATAL":
            return False
        if self.guessed == len(self.guesses):
            self.guesses.append(True)
        self.guessed += 1
        return self.guesses[self.guessed - 1]

    def _error(self, kind: str) -> None:
        self.answers.take("E", f"an error in answer to {kind}")
        self._failed()
        if kind in READY:
            self.ready()
        else:
            self.skipping = True

    def _failed(self) -> None:
        # A COMMIT that fails has ended its transaction; one of several statements may have as well.
        ends = "commit" in self.text or "end" in self.text or "execute" in self.text
        self.statuses = {"E" if status in "TE" else "I" for status in self.statuses}
        if ends:
            self.statuses.add("I")

    def _command(self, body: bytes) -> None:
        tag = body[:-1].decode()
        if tag in ("BEGIN", "START TRANSACTION"):
            self.statuses = {"T"}
        elif tag in ("COMMIT", "ROLLBACK", "PREPARE TRANSACTION"):
            # ROLLBACK TO says the same, and AND CHAIN begins another.
            stays = "savepoint" in self.text or " to " in self.text or "chain" in self.text
            self.statuses = {"I", "T", "E"} if stays or "execute" in self.text else {"I"}

    def ready(self) -> None:
        """Take ReadyForQuery."""
        status = self.answers.take("Z", "the end of a request")[1].decode()
        if status not in self.statuses:
            raise Wrong(f"transaction status {status} instead of one of {self.statuses} ({self.text!r})")
        self.statuses = {status}
        self.skipping = False

    def statements(self) -> None:
        """Take the answers of a Query's statements."""
        while self.answers.peek() != "Z":
            if not self._rows("Q", described=True):
                return
        self.ready()

    def _rows(self, began: str, *, described: bool) -> bool:
        """Take one statement's answer; False where the request is through, or a COPY wants its rows."""
        kind = self.answers.peek()
        if kind == "T" and described:
            width = self.answers.take("T", "a description")[1][:2]
            while self.answers.peek() == "D":
                if self.answers.take("D", "rows")[1][:2] != width:
                    raise Wrong("a row is not as wide as its description")
            kind, body = self.answers.take("CE", "the end of rows")
        elif kind == "H":
            self.answers.take("H", "a COPY")
            while self.answers.peek() == "d":
                self.answers.take("d", "rows of a COPY")
            if self.answers.peek() == "c":
                self.answers.take("c", "the end of a COPY's rows")
                kind, body = self.answers.take("CE", "the end of a COPY")
            else:
                kind, body = self.answers.take("E", "the end of a COPY that has failed")
        elif kind == "G":
            self.answers.take("G", "a COPY")
            self.copying = began
            return False
        elif described:
            kind, body = self.answers.take("CIE", "a statement's answer")
        else:
            given = 0
            while self.answers.peek() == "D":
                self.answers.take("D", "rows")
                given += 1
            kind, body = self.answers.take("CIsE", "a portal's answer")
            if given > self.limit > 0 or (kind == "s" and given != self.limit):
                raise Wrong(f"{given} rows of a portal that was asked for {self.limit}")
        if kind == "E":
            self._failed()
            if began == "Q":
                self.ready()
            else:
                self.skipping = True
            return False
        if kind == "C":
            self._command(body)
        return True

    def one(self, *kinds: str) -> None:
        """Take one answer of each of these kinds in order, or an error."""
        for accepted in kinds:
            if self.answers.take(accepted + "E", "an answer")[0] == "E":
                self._failed()
                self.skipping = True
                return

    def sync(self) -> None:
        """Take what belongs to a Sync."""
        self.text, self.executed = "", False
        if self.answers.peek() == "E":
            self.answers.take("E", "a commit that failed")
            self._failed()
        self.ready()

    def execute(self) -> None:
        """Take what belongs to an Execute; which statement it runs is not known here."""
        self.text = "execute"
        first, self.executed = not self.executed, True
        if first and self.last and "I" in self.statuses and not self.answers.peek():
            # It begins when the message behind it is here: that one decides on its transaction.
            return
        before = set(self.statuses)
        self._rows("E", described=False)
        self.statuses |= before if self.skipping else set()


RULES: dict[str, Callable[[Judge], None]] = {
    "Q": Judge.statements,
    "P": lambda judge: judge.one("1"),
    "B": lambda judge: judge.one("2"),
    "D": lambda judge: judge.one(*(("t", "Tn") if judge.text.startswith("s") else ("Tn",))),
    "C": lambda judge: judge.one("3"),
    "E": Judge.execute,
    "S": Judge.sync,
}


def judge_entry(data: bytes) -> tuple[bool, bytes]:
    """Read what is answered to a startup packet: whether the client is in, and what comes behind it.

    With it come the messages of SASL, if any. One who is refused has a FATAL error, a CancelRequest nothing.
    """
    found = answers_in(data)
    kinds = "".join(kind for kind, _ in found if kind != "N")
    if kinds.lstrip("v").lstrip("R") == "E":
        if fields(found[-1][1])["S"] != "FATAL":
            raise Wrong("a client is refused, and not FATAL")
        return False, b""
    if kinds.strip("v") in ("", "R", "RR"):
        # The server waits for more: an answer of SASL's, or the rest of a packet.
        return False, b""
    head, ready, _ = kinds.partition("Z")
    if not ready or head.strip("S").lstrip("v").lstrip("R").lstrip("S").rstrip("S") != "K":
        raise Wrong(f"no entry: {kinds[:60]}")
    at = 0
    for kind, body in found:
        at += 5 + len(body)
        if kind == "Z":
            break
    return True, data[at:]


def judge(sent: bytes, answered: bytes, bounds: Bounds, *, ended: bool) -> None:
    """Hold what an open session was sent against what it answered.

    Args:
        ended: whether the server has ended the session.

    Raises:
        Wrong: it has broken a rule.
    """
    found = [answer for answer in answers_in(answered) if answer[0] not in "NSA"]
    requests, broken, _ = requests_in(sent, bounds)
    guesses: list[bool] = []
    for _ in range(GUESSES_MAX):
        try:
            _walk(Judge(Answers(found), guesses), requests, broken=broken, ended=ended)
            return
        except Wrong:
            # Another guess, the last one first.
            while guesses and not guesses[-1]:
                guesses.pop()
            if not guesses:
                raise
            guesses[-1] = False


def _walk(walk: Judge, requests: list[Request], *, broken: bool, ended: bool) -> None:
    for place, request in enumerate(requests, 1):
        walk.last = place == len(requests) and not broken
        walk.request(request)
        if walk.over:
            break
    if broken and not walk.over:
        walk.fatal()
    if walk.answers.peek():
        left = walk.answers.found[walk.answers.at :]
        raise Wrong(f"more is answered than was asked: {left[:5]}")
    if walk.over != ended:
        raise Wrong(f"the session has {'' if ended else 'not '}ended, and should {'not ' * ended}have")


def pieces_of(data: bytes, places: list[int]) -> Iterator[bytes]:
    """The bytes cut at these places."""
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        yield data[start:end]

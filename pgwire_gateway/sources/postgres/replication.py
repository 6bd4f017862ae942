"""The changes of a PostgreSQL after a position: START_REPLICATION, its messages, and our answers.

A status is sent at most each second while the confirmed position moves, else each ten seconds, and at once
where the server asks for one. The server keeps its log from the confirmed position on. In an idle database
that position would stay, and the log of other databases would be kept with it; so keepalives move it: the
end of the log in a keepalive is a position if everything before it has been given.

Source: PostgreSQL, "Streaming Replication Protocol"; docs/design/sources.md.
"""

from __future__ import annotations

import time
from struct import Struct

from ....engine import errors
from ....engine.catalog.source_tables import Commit, Piece
from ....engine.checkpoints.positions import PostgresLsn
from ..connector import Changes
from .libpq import Link
from .pgoutput import DATA, EPOCH_US, PgoutputDecoder

# Between two statuses of a moving position.
STATUS_S = 1.0
# Between two statuses of one that does not move; it is well below wal_sender_timeout, 60 s by default.
IDLE_STATUS_S = 10.0
# How long messages are waited for after one that has come, if another came so shortly before it.
GATHER_S, BUSY_S = 0.000_3, 0.002
# Read at once; statuses are sent between, also while one transaction arrives.
MESSAGES_MAX = 2_000

_KEEPALIVE = ord("k")
_LSN = Struct("!Q")
_KEEPALIVE_FIELDS = Struct("!QqB")
_STATUS = Struct("!cQQQqB")


class PostgresChanges(Changes):
    """Changes that are being read.

    Args:
        link: a connection on which START_REPLICATION has begun.
        control: another one, which is asked for the server's end.
        position: where reading begins.
        progress_s: time between two pieces without changes.
    """

    def __init__(
        self, link: Link, control: Link, decoder: PgoutputDecoder, position: int, progress_s: float
    ) -> None:
        self._link = link
        self._control = control
        self._decoder = decoder
        self._progress_s = progress_s
        self._messages: list[bytes] = []
        self._at = 0
        # LSNs: the last one that was read; what is durable here; up to where all is given; the same with
        # keepalives.
        self._received = self._confirmed = self._given = self._end = position
        self._end_us = 0
        self._server_end = ""
        self._moved_s = self._sent_s = time.monotonic()
        self._sent = 0
        self._woken_s = 0.0
        # The server has asked for a status: one is sent now, and again once the position of then is durable.
        self._asked = False
        self._asked_lsn = 0

    def next(self, timeout_s: float) -> Piece | None:
        """The next piece; None if there is none within the time."""
        until_s = time.monotonic() + timeout_s
        with self._link.calls:
            while True:
                piece = self._decoder.pending() or self._decoded()
                now_s = time.monotonic()
                self._answer(now_s)
                if piece is not None:
                    if piece.commit is not None:
                        self._given, self._moved_s = self._decoder.end, now_s
                    return piece
                if self._decoder.ended:
                    return None
                self._messages, self._at = self._link.read_messages(MESSAGES_MAX), 0
                if self._messages:
                    continue
                piece = self._progress(now_s)
                if piece is not None or now_s >= until_s:
                    return piece
                if self._link.wait_message(min(until_s, self._sent_s + self._status_s())):
                    self._gather()

    def _gather(self) -> None:
        """Let messages of a busy server arrive, which come one by one: three for a transaction of one row."""
        now_s = time.monotonic()
        if now_s < self._woken_s + BUSY_S:
            time.sleep(GATHER_S)
        self._woken_s = now_s

    def _decoded(self) -> Piece | None:
        """A piece of the messages that were read."""
        messages = self._messages
        while self._at < len(messages) and not self._decoder.passed:
            piece, self._at = self._decoder.read(messages, self._at)
            if self._at and messages[self._at - 1][0] == DATA:
                (lsn,) = _LSN.unpack_from(messages[self._at - 1], 1)
                self._received = max(self._received, lsn)
            if piece is not None:
                return piece
            if self._at < len(messages) and not self._decoder.passed:
                if messages[self._at][0] != _KEEPALIVE:
                    raise errors.ProtocolViolation("the source has sent a message that is not known")
                self._keepalive(messages[self._at])
                self._at += 1
        if self._decoder.passed:
            return None
        self._messages, self._at = [], 0
        if self._decoder.between and self._decoder.end > self._end:
            self._end, self._end_us = self._decoder.end, self._decoder.end_us
        return None

    def _keepalive(self, message: bytes) -> None:
        end, sent_us, asked = _KEEPALIVE_FIELDS.unpack_from(message, 1)
        self._received = max(self._received, end)
        if self._decoder.between:
            self._decoder.look(end)
            if end > self._end:
                self._end, self._end_us = end, sent_us + EPOCH_US
        if asked:
            self._asked = True
            self._asked_lsn = self._end

    def _progress(self, now_s: float) -> Piece | None:
        """A piece without changes, if the position has moved without any."""
        if self._end <= self._given or not self._decoder.between:
            return None
        if self._asked_lsn <= self._given and now_s < self._moved_s + self._progress_s:
            return None
        self._given, self._moved_s = self._end, now_s
        return Piece((), Commit(str(PostgresLsn(self._end)), self._end_us, ""))

    def confirm(self, position: str) -> None:
        """Everything up to a position is durable here."""
        with self._link.calls:
            self._confirmed = max(self._confirmed, PostgresLsn.parse(position).number)
            if self._asked_lsn and self._confirmed >= self._asked_lsn:
                self._asked, self._asked_lsn = True, 0
            self._answer(time.monotonic())

    def _status_s(self) -> float:
        # Where the end is near, the server is asked for it soon.
        soon = self._confirmed > self._sent or self._decoder.until is not None
        return STATUS_S if soon else IDLE_STATUS_S

    def _answer(self, now_s: float) -> None:
        """Send a status if it is time."""
        if not self._asked and now_s < self._sent_s + self._status_s():
            return
        # An idle server is asked for a keepalive, which may move the position.
        ask = not self._asked and self._confirmed == self._sent
        self._asked, self._sent, self._sent_s = False, self._confirmed, now_s
        sent_us = time.time_ns() // 1000 - EPOCH_US
        written = max(self._received, self._confirmed)
        self._link.send_message(_STATUS.pack(b"r", written, self._confirmed, self._confirmed, sent_us, ask))

    def behind(self) -> tuple[int | None, str]:
        """The bytes of the server's log that are not read yet, and its end."""
        try:
            ((end,),) = self._control.query("SELECT pg_catalog.pg_current_wal_flush_lsn()")
        except errors.SourceUnavailable:
            return None, self._server_end
        self._server_end = end or ""
        return max(0, PostgresLsn.parse(self._server_end).number - self._received), self._server_end

    @property
    def ended(self) -> bool:
        """True once everything up to the end that was asked for has been given."""
        return self._decoder.ended

    @property
    def closed(self) -> bool:
        return self._link.closed

    def close(self) -> None:
        """End reading; from any thread."""
        self._link.close()
        with self._link.calls:
            self._decoder.close()

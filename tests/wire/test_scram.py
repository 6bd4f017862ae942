"""SCRAM, message by message: the RFC's own example, and everything that is not it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from typing import Any

import pytest

from ducktail.engine.catalog.passwords import (
    make_verifier,
    mock_verifier,
    prepared,
    read_verifier,
    verifier_of,
)
from ducktail.engine.errors import (
    DucktailError,
    InvalidParameterValue,
    ProtocolViolation,
    TooManyConnections,
)
from ducktail.pgwire_gateway.conversation import Conversation, Door, EndedStatement, Entry, Need, Session
from ducktail.pgwire_gateway.conversation.startup import PLAIN, PLUS, Scram

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
ANSWER = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
PROOF = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
VERIFIER = make_verifier("pencil", SALT)
END_POINT = hashlib.sha256(b"a certificate").digest()


def exchange(end_point: bytes | None = None) -> Scram:
    return Scram(VERIFIER, end_point, SERVER_NONCE)


def client_final(password: str, answer: bytes, bare: str, header: bytes, nonce: str | None = None) -> bytes:
    """What a client answers to server-first."""
    said = dict(part.split("=", 1) for part in answer.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(said["s"]), int(said["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    without = f"c={base64.b64encode(header).decode()},r={said['r'] if nonce is None else nonce}"
    message = f"{bare},{answer.decode()},{without}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    return f"{without},p={proof}".encode()


def test_the_example_of_the_rfc() -> None:
    scram = exchange()
    assert scram.mechanisms == (PLAIN,)
    assert scram.first(PLAIN, FIRST) == ANSWER
    assert scram.final(FINAL) == PROOF


def test_a_wrong_password_is_none() -> None:
    scram = exchange()
    answer = scram.first(PLAIN, FIRST)
    bare = FIRST[3:].decode()
    assert scram.final(client_final("pencil", answer, bare, b"n,,")) is not None
    scram = exchange()
    answer = scram.first(PLAIN, FIRST)
    assert scram.final(client_final("Pencil", answer, bare, b"n,,")) is None


def test_channel_binding() -> None:
    first, header = b"p=tls-server-end-point,,n=,r=abc", b"p=tls-server-end-point,,"
    scram = exchange(END_POINT)
    assert scram.mechanisms == (PLUS, PLAIN)
    answer = scram.first(PLUS, first)
    assert scram.final(client_final("pencil", answer, "n=,r=abc", header + END_POINT)) is not None
    # Somebody in between shows another certificate: the client has bound to that one.
    for bound in (header + bytes(32), header, b"n,,"):
        scram = exchange(END_POINT)
        answer = scram.first(PLUS, first)
        with pytest.raises(ProtocolViolation, match="channel binding check failed"):
            scram.final(client_final("pencil", answer, "n=,r=abc", bound))
    # Without -PLUS over TLS: what is bound must be nothing.
    scram = exchange(END_POINT)
    answer = scram.first(PLAIN, b"n,,n=,r=abc")
    assert scram.final(client_final("pencil", answer, "n=,r=abc", b"n,,")) is not None


@pytest.mark.parametrize(
    ("mechanism", "first", "end_point"),
    [
        ("SCRAM-SHA-1", FIRST, None),
        (PLUS, b"p=tls-server-end-point,,n=,r=abc", None),
        (PLUS, b"n,,n=,r=abc", END_POINT),
        (PLAIN, b"p=tls-server-end-point,,n=,r=abc", END_POINT),
        (PLUS, b"p=tls-unique,,n=,r=abc", END_POINT),
        # It was told that there is no channel binding: somebody has changed our offer.
        (PLAIN, b"y,,n=,r=abc", END_POINT),
        (PLAIN, b"n,a=root,n=,r=abc", None),
        (PLAIN, b"n,,m=x,n=,r=abc", None),
        (PLAIN, b"n,,n=,r=", None),
        (PLAIN, b"n,,n=,r=a\x00c", None),
        (PLAIN, b"n,,n=,r=abc\n", None),
        (PLAIN, b"", None),
        (PLAIN, b"\xff\xfe", None),
    ],
)
def test_first_words_that_are_none(mechanism: str, first: bytes, end_point: bytes | None) -> None:
    with pytest.raises(ProtocolViolation):
        exchange(end_point).first(mechanism, first)


def test_y_is_fine_where_there_is_nothing_to_bind_to() -> None:
    scram = exchange()
    answer = scram.first(PLAIN, b"y,,n=,r=abc")
    assert scram.final(client_final("pencil", answer, "n=,r=abc", b"y,,")) is not None
    scram = exchange()
    answer = scram.first(PLAIN, b"y,,n=,r=abc")
    with pytest.raises(ProtocolViolation, match="channel binding"):
        scram.final(client_final("pencil", answer, "n=,r=abc", b"n,,"))


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws",
        FINAL.replace(b"biws", b"!"),
        FINAL.replace(SERVER_NONCE.encode(), b""),
        FINAL.replace(b"r=", b"r=x"),
        FINAL[: FINAL.index(b",p=")] + b",p=AAAA",
        FINAL[: FINAL.index(b",p=")] + b",p=",
        b"c=biws," + FINAL,
        FINAL + b"\0",
        b"\xff",
    ],
)
def test_final_words_that_are_none(final: bytes) -> None:
    scram = exchange()
    scram.first(PLAIN, FIRST)
    with pytest.raises(ProtocolViolation):
        scram.final(final)


def test_a_verifier_is_postgresqls_and_reads_back() -> None:
    text = str(VERIFIER)
    assert text == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
        "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert read_verifier(text) == VERIFIER == verifier_of(text, b"other salt")
    assert "WG5d" not in repr(VERIFIER) and "wfPL" not in repr(VERIFIER)
    for none in ("", "secret", text[:-1], text + "=", text.replace("4096", "0"), text.replace("256", "1")):
        assert read_verifier(none) is None
    with pytest.raises(InvalidParameterValue):
        read_verifier(text.replace("4096", "1000001"))
    with pytest.raises(InvalidParameterValue):
        verifier_of("x" * 2000, b"salt")


def test_the_salt_of_a_user_who_is_not_there_is_always_the_same() -> None:
    first, again, other = (mock_verifier(b"s" * 32, name) for name in ("eve", "eve", "adam"))
    assert first == again and first.salt != other.salt and len(first.salt) == len(SALT)
    assert mock_verifier(b"t" * 32, "eve").salt != first.salt
    assert first.iterations == VERIFIER.iterations


@pytest.mark.parametrize(
    ("password", "hashed"),
    [
        ("plain", "plain"),
        ("I\u00adX", "IX"),
        ("a\u00a0b", "a b"),
        ("\u2168", "IX"),
        ("\u00aa", "a"),
        ("\x07", "\x07"),
        ("\u06271", "\u06271"),
        ("\u06271\u0628", "\u06271\u0628"),
        ("\U00010000", "\U00010000"),
    ],
)
def test_passwords_are_hashed_in_one_form(password: str, hashed: str) -> None:
    assert prepared(password) == hashed


# In a conversation.


class Host:
    """A server that asks for a password, and says who has passed."""

    offers_tls = False

    def __init__(self, door: Door) -> None:
        self.way = door
        self.passed: list[Door] = []
        self.refusals: list[str] = []

    def door(self, entry: Entry, *, secured: bool) -> Door:
        return self.way

    def open_session(self, entry: Entry, door: Door) -> Session:
        self.passed.append(door)
        raise TooManyConnections("enough has been seen")

    def refused(self, entry: Entry | None, error: DucktailError) -> None:
        self.refusals.append(error.sqlstate)

    def now_s(self) -> float:
        raise AssertionError("no statement comes")

    def statement_ended(self, ended: EndedStatement) -> None:
        raise AssertionError("no statement comes")

    def cancel(self, pid: int, secret: bytes) -> None:
        raise AssertionError("nobody cancels")


class Talk:
    """A conversation up to its session."""

    def __init__(self, door: Door, read_answers: Any) -> None:
        self.host = Host(door)
        self._read = read_answers
        self._conversation = Conversation(self.host, b"\1\2\3\4")
        self._steps = self._conversation.run()
        self.over = False
        next(self._steps)

    def say(self, data: bytes) -> list[tuple[str, bytes]]:
        """Send bytes; the answers up to the next need of input, or the end."""
        self._conversation.channel.receive(data)
        try:
            while self._steps.send(True) is Need.WORKER:
                pass
        except StopIteration:
            self.over = True
        answers: list[tuple[str, bytes]] = self._read(b"".join(self._conversation.channel.take_output()))
        return answers


@pytest.fixture
def talk(read_answers: Any) -> Talk:
    """With a user who is there."""
    return Talk(Door("user", VERIFIER, nonce=SERVER_NONCE), read_answers)


def sasl_first(written: Any, mechanism: str, words: bytes) -> bytes:
    message: bytes = written.message("p", written.text(mechanism), struct.pack("!i", len(words)), words)
    return message


def test_a_conversation_lets_in_whoever_knows_the_password(talk: Talk, written: Any) -> None:
    assert talk.say(written.startup()) == [("R", struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0")]
    assert talk.host.passed == []
    assert talk.say(sasl_first(written, PLAIN, FIRST)) == [("R", struct.pack("!i", 11) + ANSWER)]
    answers = talk.say(written.message("p", FINAL))
    assert answers[0] == ("R", struct.pack("!i", 12) + PROOF)
    assert [found.account for found in talk.host.passed] == ["user"]


def test_a_conversation_refuses_everybody_else(talk: Talk, written: Any, read_fields: Any) -> None:
    talk.say(written.startup())
    answer = talk.say(sasl_first(written, PLAIN, FIRST))[0][1][4:]
    ((kind, body),) = talk.say(written.message("p", client_final("no", answer, FIRST[3:].decode(), b"n,,")))
    assert (kind, read_fields(body)["C"], read_fields(body)["S"]) == ("E", "28P01", "FATAL")
    assert talk.over and talk.host.passed == [] and talk.host.refusals == ["28P01"]


def test_a_user_who_is_not_there_is_told_the_same(read_answers: Any, written: Any, read_fields: Any) -> None:
    talk = Talk(Door(None, VERIFIER, known=False, nonce=SERVER_NONCE), read_answers)
    talk.say(written.startup())
    talk.say(sasl_first(written, PLAIN, FIRST))
    # Even one who guesses what he is held against.
    ((kind, body),) = talk.say(written.message("p", FINAL))
    assert (kind, read_fields(body)["M"]) == ("E", 'password authentication failed for user "ann"')
    assert talk.host.passed == []


@pytest.mark.parametrize("at", [0, 1])
def test_nothing_else_is_answered_before_the_password(
    talk: Talk, written: Any, read_fields: Any, at: int
) -> None:
    """A query in place of either message."""
    talk.say(written.startup())
    if at:
        talk.say(sasl_first(written, PLAIN, FIRST))
    ((kind, body),) = talk.say(written.query("select 1"))
    assert (kind, read_fields(body)["C"]) == ("E", "08P01")
    assert talk.over and talk.host.passed == []


def test_messages_before_the_password_are_short(talk: Talk, written: Any, read_fields: Any) -> None:
    talk.say(written.startup())
    ((kind, body),) = talk.say(written.message("p", bytes(20_000)))
    assert (kind, read_fields(body)["C"]) == ("E", "08P01")

"""The start of a session: the startup packet, and authentication by SCRAM-SHA-256.

The startup packet names the user, the database and settings. SCRAM has two messages each way: client-first,
server-first, client-final, server-final; over TLS it offers channel binding (-PLUS). A client message that is
no SCRAM raises 08P01; a wrong password and an unknown user raise the same 28P01.
Source: PostgreSQL documentation, "Start-up", "StartupMessage", "SASL Authentication"; RFC 5802, sections 5
to 7; RFC 7677.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...engine.catalog.passwords import Verifier
from ...engine.errors import (
    InvalidAuthorization,
    NotSupported,
    ProtocolViolation,
    SyntaxError_,
)
from ...engine.placement.peer import PEER_SETTINGS, Peer, read_peer
from ..codec.frontend import Startup

PLAIN = "SCRAM-SHA-256"
PLUS = "SCRAM-SHA-256-PLUS"
BINDING = "tls-server-end-point"

# gs2-header, then client-first-message-bare; an authorization identity and mandatory extensions (m=) are
# refused. The user's name is that of the startup packet: libpq sends an empty one here.
_NONCE = r"r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*"
_FIRST = re.compile(rf"((?:(n|y)|p=([A-Za-z0-9.-]+)),,)(n=[^,]*,{_NONCE})")
_FINAL = re.compile(rf"(c=([A-Za-z0-9+/=]+),{_NONCE}),p=([A-Za-z0-9+/=]+)")


class Scram:
    """One SCRAM exchange.

    Args:
        verifier: the user's verifier.
        end_point: the certificate's hash; None without TLS, or if it has none.
        nonce: the server's half, random, printable, without commas.
    """

    def __init__(self, verifier: Verifier, end_point: bytes | None, nonce: str) -> None:
        self._verifier = verifier
        self._end_point = end_point
        self._nonce = nonce
        self._header = ""
        self._said = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The offered mechanisms, the best first."""
        return (PLAIN,) if self._end_point is None else (PLUS, PLAIN)

    def first(self, mechanism: str, data: bytes) -> bytes:
        """Answer client-first.

        Raises:
            ProtocolViolation: the message is no client-first, or asks for a mechanism that is not offered.
        """
        if mechanism not in self.mechanisms:
            raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
        found = _FIRST.fullmatch(_text(data))
        if found is None:
            raise ProtocolViolation("malformed SCRAM message")
        self._header, flag, binding, bare, nonce = found.groups()
        if (mechanism == PLUS) != (binding is not None) or binding not in (None, BINDING):
            raise ProtocolViolation("malformed SCRAM message: the channel binding does not fit the mechanism")
        if flag == "y" and self._end_point is not None:
            # It supports binding, and received an offer without it: a third party has changed the offer.
            raise ProtocolViolation("SCRAM channel binding negotiation error")
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._said = f"{bare},{answer}"
        return answer.encode()

    def final(self, data: bytes) -> bytes | None:
        """Answer client-final; None for a wrong password.

        Raises:
            ProtocolViolation: the message is no client-final, or of another exchange or channel.
        """
        found = _FINAL.fullmatch(_text(data))
        if found is None:
            raise ProtocolViolation("malformed SCRAM message")
        without_proof, binding, nonce, proof_text = found.groups()
        bound = self._end_point if self._header.startswith("p=") else b""
        assert bound is not None, "what is bound was offered"
        if not hmac.compare_digest(_bytes(binding), self._header.encode() + bound):
            raise ProtocolViolation("SCRAM channel binding check failed")
        if not hmac.compare_digest(nonce, self._nonce):
            raise ProtocolViolation("malformed SCRAM message: the nonce is another")
        message = f"{self._said},{without_proof}".encode()
        proof = _bytes(proof_text)
        signature = hmac.digest(self._verifier.stored_key, message, "sha256")
        if len(proof) != len(signature):
            raise ProtocolViolation("malformed SCRAM message")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._verifier.server_key, message, "sha256"))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolViolation("malformed SCRAM message") from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ProtocolViolation("malformed SCRAM message") from None


MAJOR = 3
# 3.2 differs from 3.0 in the length of cancel keys; 3.1 never existed. Clients of newer versions are told.
MINOR = 2
SHORT_KEY_BYTES, LONG_KEY_BYTES = 4, 32

NO = frozenset({"false", "off", "no", "0"})
# Parameters used here; every other parameter is a setting of the session.
OURS = frozenset({"user", "database", "application_name", "options", "replication"})
PROTOCOL_OPTION = "_pq_."


@dataclass(frozen=True, slots=True)
class Entry:
    """A client that asks for a session.

    Args:
        settings: initial settings of the session, by name.
        protocol_options: `_pq_.` options, none of which is known.
        minor: the minor version in use.
        newer: the client asked for a newer version.
        peer: the node of a cluster that the client is; None for other clients.
    """

    user: str
    database: str
    application_name: str
    settings: Mapping[str, str]
    protocol_options: tuple[str, ...]
    minor: int
    newer: bool
    peer: Peer | None = None

    @property
    def key_bytes(self) -> int:
        """The length of the cancel key."""
        return LONG_KEY_BYTES if self.minor >= MINOR else SHORT_KEY_BYTES

    @property
    def negotiates(self) -> bool:
        """True if NegotiateProtocolVersion is the first answer."""
        return self.newer or bool(self.protocol_options)


@dataclass(frozen=True, slots=True)
class Door:
    """The authentication required of a client.

    Args:
        account: the user's name at creation; None is the database's owner, accepted without a password.
        verifier: the verifier of the user's password; None requires no password.
        known: the user exists; unknown users are asked for a password too.
        nonce: the server's half of the nonce.
    """

    account: str | None = None
    verifier: Verifier | None = None
    known: bool = True
    nonce: str = ""


def read_startup(startup: Startup) -> Entry:
    """Read a startup packet.

    Raises:
        NotSupported: another major version, or a replication connection.
        InvalidAuthorization: the packet names no user.
        InvalidParameterValue: incomplete parameters of a node.
        SyntaxError_: `options` are no settings.
    """
    if startup.major != MAJOR:
        raise NotSupported(
            f"unsupported frontend protocol {startup.major}.{startup.minor}: server supports {MAJOR}.{MINOR}"
        )
    sent = dict(startup.parameters)
    user = sent.get("user", "")
    if not user:
        raise InvalidAuthorization("no user name specified in startup packet")
    _refuse_replication(sent.get("replication", "false"))
    settings = dict(read_options(sent.get("options", "")))
    for name, value in sent.items():
        if name not in OURS and not name.startswith(PROTOCOL_OPTION):
            settings[name] = value
    said = {name.lower(): settings.pop(name) for name in list(settings) if name.lower() in PEER_SETTINGS}
    return Entry(
        user=user,
        database=sent.get("database") or user,
        application_name=settings.pop("application_name", sent.get("application_name", "")),
        settings=settings,
        protocol_options=tuple(name for name in sent if name.startswith(PROTOCOL_OPTION)),
        minor=min(startup.minor, MINOR),
        newer=startup.minor > MINOR,
        peer=read_peer(said),
    )


def _refuse_replication(value: str) -> None:
    if value.lower() not in NO:
        raise NotSupported(
            "replication connections are not supported",
            hint="Read a stream with SELECT ... FROM STREAM.",
        )


def read_options(text: str) -> list[tuple[str, str]]:
    """The settings in `options`: `-c name=value`, `-cname=value` and `--name=value`.

    A backslash keeps the character after it, a space included.
    """
    settings = []
    words = iter(_words(text))
    for word in words:
        if word == "-c":
            setting = next(words, "")
        elif word.startswith("--"):
            # As in PostgreSQL, dashes in a long option's name mean underscores.
            name, equals, value = word[2:].partition("=")
            setting = name.replace("-", "_") + equals + value
        elif word.startswith("-c"):
            setting = word[2:]
        else:
            raise SyntaxError_(f"invalid command-line argument for server process: {word}")
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise SyntaxError_(f"-c {setting} requires a value")
        settings.append((name, value))
    return settings


def _words(text: str) -> list[str]:
    words: list[str] = []
    word: list[str] | None = None
    characters = iter(text)
    for character in characters:
        if character.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        word.append(next(characters, "") if character == "\\" else character)
    if word is not None:
        words.append("".join(word))
    return words

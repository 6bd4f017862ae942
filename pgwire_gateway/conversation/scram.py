"""SCRAM-SHA-256, with channel binding (-PLUS) where the connection is TLS: the server's side.

Two messages each way: client-first, server-first, client-final, server-final. What a client says that is
no SCRAM is 08P01, a wrong password and a user who is not there are the same 28P01.
Source: RFC 5802, sections 5 to 7; RFC 7677; PostgreSQL documentation, "SASL Authentication".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from ...engine.errors import ProtocolViolation
from ...engine.rights.scram import Verifier

PLAIN = "SCRAM-SHA-256"
PLUS = "SCRAM-SHA-256-PLUS"
BINDING = "tls-server-end-point"

# gs2-header, then client-first-message-bare; an authorization identity and mandatory extensions (m=) are
# refused. The user's name is that of the startup packet: libpq sends an empty one here.
_NONCE = r"r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*"
_FIRST = re.compile(rf"((?:(n|y)|p=([A-Za-z0-9.-]+)),,)(n=[^,]*,{_NONCE})")
_FINAL = re.compile(rf"(c=([A-Za-z0-9+/=]+),{_NONCE}),p=([A-Za-z0-9+/=]+)")


class Scram:
    """One exchange.

    Args:
        verifier: of the user.
        end_point: the certificate's hash; None without TLS, or where it has none.
        nonce: the server's half, random, printable without commas.
    """

    def __init__(self, verifier: Verifier, end_point: bytes | None, nonce: str) -> None:
        self._verifier = verifier
        self._end_point = end_point
        self._nonce = nonce
        self._header = ""
        self._said = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What is offered, the best first."""
        return (PLAIN,) if self._end_point is None else (PLUS, PLAIN)

    def first(self, mechanism: str, data: bytes) -> bytes:
        """Answer client-first.

        Raises:
            ProtocolViolation: 08P01, it is none, or wants what is not offered.
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
            # It would have bound, and was told that we cannot: somebody has changed our offer.
            raise ProtocolViolation("SCRAM channel binding negotiation error")
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._said = f"{bare},{answer}"
        return answer.encode()

    def final(self, data: bytes) -> bytes | None:
        """Answer client-final; None where the password is wrong.

        Raises:
            ProtocolViolation: 08P01, it is none, or of another exchange or channel.
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

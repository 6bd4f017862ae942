"""TLS between a socket's bytes and a conversation's: one code path for SSLRequest and for direct TLS.

The bytes go through two memory buffers of the ssl module, so that the connection keeps its socket. The
certificate is read from files, at the start and again on SIGHUP; a connection keeps its first certificate.

SCRAM-SHA-256-PLUS binds a password to a hash of the certificate (`tls-server-end-point`). The hash function
is that of the certificate's own signature, SHA-256 where that is MD5 or SHA-1. A certificate whose signature
names no hash (Ed25519, RSASSA-PSS) has none: channel binding is not offered with it. Only the part of the DER
that leads to the signature's algorithm is read.
Source: PostgreSQL documentation, "SSL Session Encryption"; RFC 5929, section 4; RFC 5280, section 4.1.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass

from ...engine.errors import InvalidParameterValue

SEQUENCE = 0x30
OBJECT_IDENTIFIER = 0x06

# Content bytes of the identifiers of signature algorithms -> the hash.
_RSA = bytes.fromhex("2a864886f70d0101")
_ECDSA2 = bytes.fromhex("2a8648ce3d0403")
HASHES: dict[bytes, str] = {
    _RSA + b"\x04": "sha256",  # MD5, too weak
    _RSA + b"\x05": "sha256",  # SHA-1, too weak
    _RSA + b"\x0b": "sha256",
    _RSA + b"\x0c": "sha384",
    _RSA + b"\x0d": "sha512",
    _RSA + b"\x0e": "sha224",
    bytes.fromhex("2a8648ce3d0401"): "sha256",  # ECDSA with SHA-1
    _ECDSA2 + b"\x01": "sha224",
    _ECDSA2 + b"\x02": "sha256",
    _ECDSA2 + b"\x03": "sha384",
    _ECDSA2 + b"\x04": "sha512",
}


def end_point_hash(certificate: bytes) -> bytes | None:
    """The channel binding of a DER certificate; None if none is defined.

    Raises:
        ValueError: the bytes are no certificate.
    """
    name = HASHES.get(_signature_algorithm(certificate))
    return None if name is None else hashlib.new(name, certificate).digest()


def _signature_algorithm(certificate: bytes) -> bytes:
    """The signature algorithm: Certificate ::= SEQUENCE { tbsCertificate, SEQUENCE { algorithm, ... },
    signature }"""
    outer, _ = _value(certificate, SEQUENCE)
    _, rest = _value(outer, SEQUENCE)
    algorithm, _ = _value(rest, SEQUENCE)
    identifier, _ = _value(algorithm, OBJECT_IDENTIFIER)
    return identifier


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the first value in `data`, and the rest."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("not a DER certificate")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("a DER certificate that is cut")
    return data[start : start + length], data[start + length :]


# The protocol that a client announces in TLS (PostgreSQL 17's direct TLS requires it).
ALPN = "postgresql"
# First byte of a TLS handshake; a startup packet begins with the high byte of a length, 0.
HANDSHAKE_BYTE = 0x16
# The number of decrypted bytes taken at once: the maximum of a TLS record.
RECORD_BYTES = 16 * 1024


class TlsBroken(Exception):
    """The peer's bytes are no TLS, or announce another protocol inside."""


class TlsClosed(Exception):
    """The peer has ended TLS properly."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A loaded certificate.

    Args:
        end_point: a hash of the certificate, to which SCRAM binds a password; None if none is defined.
    """

    context: ssl.SSLContext
    end_point: bytes | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files with the certificate (with its chain, PEM) and the key (PEM, without a passphrase)."""

    certificate: str
    key: str

    def load(self, protocol: str = ALPN) -> Credentials:
        """Read certificate and key.

        Args:
            protocol: the protocol that the server announces in ALPN.

        Raises:
            InvalidParameterValue: a file is missing or no PEM, or the two do not match.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_alpn_protocols([protocol])
        try:
            # OpenSSL would ask for a passphrase on the terminal, where nobody answers.
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            with open(self.certificate, encoding="ascii", errors="replace") as file:
                first = _first_certificate(file.read())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
            raise InvalidParameterValue(
                f'cannot use certificate "{self.certificate}" with key "{self.key}": {str(reason).lower()}'
            ) from None
        return Credentials(context, end_point_hash(first))


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _first_certificate(pem: str) -> bytes:
    """The server's own certificate of a chain, DER."""
    head, foot = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start = pem.index(head)
    return ssl.PEM_cert_to_DER_cert(pem[start : pem.index(foot, start) + len(foot)])


class TlsLayer:
    """One connection's TLS.

    Args:
        direct: the client began with TLS, without SSLRequest, and must have announced the protocol.
    """

    def __init__(self, credentials: Credentials, *, direct: bool) -> None:
        self.established = False
        self.end_point = credentials.end_point
        self._direct = direct
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = credentials.context.wrap_bio(self._in, self._out, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """Decrypt the peer's bytes; `take` returns the answer, also after an error.

        Raises:
            TlsBroken: the bytes are no TLS, or announce another protocol inside.
            TlsClosed: the peer has ended TLS.
        """
        self._in.write(data)
        plain = bytearray()
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = True
                if self._direct and self._object.selected_alpn_protocol() != ALPN:
                    raise TlsBroken(f'direct TLS without ALPN "{ALPN}"')
            while piece := self._object.read(RECORD_BYTES):
                plain += piece
        except ssl.SSLWantReadError:
            return bytes(plain)
        except ssl.SSLZeroReturnError:
            pass
        except (ssl.SSLError, OSError) as error:
            raise TlsBroken(getattr(error, "reason", None) or str(error)) from None
        if plain:
            return bytes(plain)
        raise TlsClosed

    def send(self, data: bytes | memoryview) -> None:
        """Encrypt bytes for `take`; nothing can be sent before the handshake has ended."""
        if self.established and len(data):
            self._object.write(data)

    def end(self) -> None:
        """Send the end of the data (close_notify)."""
        if self.established:
            try:
                self._object.unwrap()
            except (ssl.SSLError, OSError):
                pass  # It also waits for the peer's close_notify, which is not needed.

    def take(self) -> bytes:
        """Take the bytes for the socket."""
        return self._out.read()

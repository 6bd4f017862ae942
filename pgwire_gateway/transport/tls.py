"""TLS between a socket's bytes and a conversation's: one code path for SSLRequest and for direct TLS.

The bytes go through two memory buffers of the ssl module's, so the socket stays the connection's own.
The certificate is read from files, at the start and again on SIGHUP; a connection keeps the one that it
began with. Source: PostgreSQL documentation, "SSL Session Encryption"; RFC 5929, section 4.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from ...engine.errors import InvalidParameterValue
from .certificate import end_point_hash

# What a client says in TLS that it will speak inside (PostgreSQL 17's direct TLS asks for it).
ALPN = "postgresql"
# First byte of a TLS handshake; a startup packet begins with the high byte of a length, 0.
HANDSHAKE_BYTE = 0x16
# Decrypted bytes taken at a time: a TLS record holds no more.
RECORD_BYTES = 16 * 1024


class TlsBroken(Exception):
    """The peer's bytes are no TLS, or not the TLS that is spoken here."""


class TlsClosed(Exception):
    """The peer has ended TLS in the proper way."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate that is ready to be shown.

    Args:
        end_point: what SCRAM binds a password to: a hash of the certificate; None where none is defined.
    """

    context: ssl.SSLContext
    end_point: bytes | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificate (with its chain, PEM) and key (PEM, without a passphrase) are."""

    certificate: str
    key: str

    def load(self) -> Credentials:
        """Read both.

        Raises:
            InvalidParameterValue: 22023, a file is missing, is no PEM, or the two do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_alpn_protocols([ALPN])
        try:
            # A passphrase would be asked on the terminal; nobody sits there.
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
        direct: the client began with TLS, without SSLRequest: it must have asked for our protocol.
    """

    def __init__(self, credentials: Credentials, *, direct: bool) -> None:
        self.established = False
        self.end_point = credentials.end_point
        self._direct = direct
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = credentials.context.wrap_bio(self._in, self._out, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """What the peer's bytes say; `take` gives what is to be answered, whatever comes of it.

        Raises:
            TlsBroken: they are no TLS, or another protocol is wanted inside.
            TlsClosed: there will be no more.
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
        """Encrypt; `take` has it then. Before the handshake is over nothing can be said."""
        if self.established and len(data):
            self._object.write(data)

    def end(self) -> None:
        """Say that there will be no more (close_notify)."""
        if self.established:
            try:
                self._object.unwrap()
            except (ssl.SSLError, OSError):
                pass  # It also waits for the peer to say the same; that is not needed.

    def take(self) -> bytes:
        """What is to be written to the socket."""
        return self._out.read()

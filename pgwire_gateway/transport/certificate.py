"""The hash of a certificate that SCRAM-SHA-256-PLUS binds a password to (`tls-server-end-point`).

The hash function is the one of the certificate's own signature, SHA-256 where that is MD5 or SHA-1. A
certificate whose signature names no hash (Ed25519, RSASSA-PSS) has none: channel binding is not offered
with it. Only as much of DER is read here as it takes to find the signature's algorithm.
Source: RFC 5929, section 4.1; RFC 5280, section 4.1.
"""

from __future__ import annotations

import hashlib

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
    """The channel binding of a DER certificate, or None where none is defined.

    Raises:
        ValueError: it is no certificate.
    """
    name = HASHES.get(_signature_algorithm(certificate))
    return None if name is None else hashlib.new(name, certificate).digest()


def _signature_algorithm(certificate: bytes) -> bytes:
    """Certificate ::= SEQUENCE { tbsCertificate, SEQUENCE { algorithm, ... }, signature }"""
    outer, _ = _value(certificate, SEQUENCE)
    _, rest = _value(outer, SEQUENCE)
    algorithm, _ = _value(rest, SEQUENCE)
    identifier, _ = _value(algorithm, OBJECT_IDENTIFIER)
    return identifier


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the value that `data` begins with, and what stands behind it."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("not a DER certificate")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("a DER certificate that is cut")
    return data[start : start + length], data[start + length :]

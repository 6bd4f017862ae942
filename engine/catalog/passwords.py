"""Password verifiers: SCRAM-SHA-256's stored key and server key; the password itself is never stored.

The text has PostgreSQL's form, `SCRAM-SHA-256$4096:salt$stored:server` with base64 parts, so that verifiers
can be imported and psql's `\\password`, which sends one, works. Source: RFC 5802, section 3; RFC 7677; RFC
4013 (SASLprep); PostgreSQL documentation, "pg_authid".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from dataclasses import dataclass, field

from ..errors import InvalidParameterValue

# Rounds of PBKDF2 for a new verifier: RFC 7677's least, which is PostgreSQL's default.
ITERATIONS = 4096
# Most rounds that an imported verifier may demand of a client.
ITERATIONS_MAX = 1_000_000
SALT_BYTES = 16
KEY_BYTES = 32
PASSWORD_CHARS_MAX = 1024

_FORM = re.compile(r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")

# Characters that SASLprep forbids in a password.
_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """The keys that verify a password.

    Args:
        stored_key: the hash of the client's key.
        server_key: the server's key.
    """

    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert 1 <= self.iterations <= ITERATIONS_MAX and self.salt
        assert len(self.stored_key) == len(self.server_key) == KEY_BYTES

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"


def make_verifier(password: str, salt: bytes) -> Verifier:
    """The verifier of a password.

    Args:
        salt: random bytes.
    """
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return Verifier(ITERATIONS, salt, hashlib.sha256(client_key).digest(), server_key)


def is_password_of(verifier: Verifier, password: str) -> bool:
    """True if a password is that of a verifier; takes as long for any password of one length.

    >>> verifier = make_verifier("secret", b"salt")
    >>> is_password_of(verifier, "secret"), is_password_of(verifier, "Secret")
    (True, False)
    """
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)


def read_verifier(text: str) -> Verifier | None:
    """The verifier in a text; None for other text.

    Raises:
        InvalidParameterValue: the verifier demands too many rounds of a client.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    try:
        salt, stored, server = (base64.b64decode(part, validate=True) for part in found.groups()[1:])
    except binascii.Error:
        return None
    iterations = int(found[1])
    if not salt or not iterations or len(stored) != KEY_BYTES or len(server) != KEY_BYTES:
        return None
    if iterations > ITERATIONS_MAX:
        raise InvalidParameterValue(f"a verifier has at most {ITERATIONS_MAX} iterations")
    return Verifier(iterations, salt, stored, server)


def verifier_of(password: str, salt: bytes) -> Verifier:
    """The verifier for the text behind PASSWORD: a password, or already a verifier.

    Raises:
        InvalidParameterValue: the password is too long.
    """
    if len(password) > PASSWORD_CHARS_MAX:
        raise InvalidParameterValue(f"a password has at most {PASSWORD_CHARS_MAX} characters")
    return read_verifier(password) or make_verifier(password, salt)


def mock_verifier(secret: bytes, name: str) -> Verifier:
    """The verifier for a user that does not exist: always the same salt, and no matching password.

    Args:
        secret: a secret of this database, without which a mock salt cannot be distinguished from a real one.
    """
    salt = hmac.digest(secret, b"salt" + name.encode(), "sha256")[:SALT_BYTES]
    stored = hmac.digest(secret, b"stored" + name.encode(), "sha256")
    return Verifier(ITERATIONS, salt, stored, hmac.digest(secret, b"server" + name.encode(), "sha256"))


def prepared(password: str) -> str:
    """A password in the form that both sides hash (SASLprep); a forbidden one stays unchanged.

    >>> prepared("I\u00adX"), prepared("\u2168"), prepared("\u0007")
    ('IX', 'IX', '\\x07')
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c)
    )
    text = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not text or any(forbids(c) for c in text for forbids in _PROHIBITED):
        return password
    if any(map(stringprep.in_table_d1, text)):
        # Right-to-left text must begin and end with these, and contain no others.
        ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
        if not ends or any(map(stringprep.in_table_d2, text)):
            return password
    return text

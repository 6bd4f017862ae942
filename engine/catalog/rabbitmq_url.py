"""URLs of RabbitMQ streams: `rabbitmq-stream://user:password@host:5552,host:5552/vhost`.

User, password and virtual host are percent-encoded. A sink keeps the URL without user and password, which
are secrets of it. Source: docs/sinks.md, "RabbitMQ streams".
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from .brokers import Broker, brokers_text, parsed_brokers

SCHEME, TLS_SCHEME = "rabbitmq-stream", "rabbitmq-stream+tls"
# The ports that the protocol has without and with TLS.
PORT, TLS_PORT = 5552, 5551

# A part of user, password or virtual host: what a URI allows there, and percent-encoded bytes.
_PART = r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"
_ENCODED_BYTE = re.compile(rb"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(f"{string.ascii_letters}{string.digits}-._~")
_URL = re.compile(
    rf"rabbitmq-stream(?P<tls>\+tls)?://(?:(?P<user>{_PART}+):(?P<password>{_PART}*)@)?"
    rf"(?P<brokers>[^/@?#]+)(?:/(?P<vhost>{_PART}*))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RabbitmqUrl:
    """The brokers of a cluster, and the virtual host; without user and password."""

    tls: bool
    brokers: tuple[Broker, ...]
    vhost: str

    def text(self) -> str:
        """The URL, without user and password."""
        scheme = TLS_SCHEME if self.tls else SCHEME
        return f"{scheme}://{brokers_text(self.brokers)}/{encoded(self.vhost)}"


def parsed(text: str) -> tuple[RabbitmqUrl, tuple[str, str] | None] | None:
    """A URL, and its user and password if it has them; None for a text that is no such URL."""
    found = _URL.fullmatch(text)
    if found is None:
        return None
    tls = found["tls"] is not None
    brokers = parsed_brokers(found["brokers"], TLS_PORT if tls else PORT)
    if brokers is None:
        return None
    try:
        vhost = "/" if not found["vhost"] else _decoded(found["vhost"])
        credentials = None
        if found["user"] is not None:
            credentials = _decoded(found["user"]), _decoded(found["password"])
    except UnicodeDecodeError:
        return None
    return RabbitmqUrl(tls, brokers, vhost), credentials


def encoded(text: str) -> str:
    """A user, a password or a virtual host as a part of a URL."""
    return "".join(chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in text.encode())


def _decoded(text: str) -> str:
    return _ENCODED_BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()

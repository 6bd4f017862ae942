"""URLs of RabbitMQ streams: `rabbitmq-stream://user:password@host:5552,host:5552/vhost`.

User, password and virtual host are percent-encoded. A sink keeps the URL without user and password, which
are secrets of it. Source: docs/sinks.md, "RabbitMQ streams".
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

SCHEME, TLS_SCHEME = "rabbitmq-stream", "rabbitmq-stream+tls"
# The ports that the protocol has without and with TLS.
PORT, TLS_PORT = 5552, 5551
# A cluster has an odd number of nodes, seldom more than seven.
BROKERS_MAX = 16

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_BROKER = re.compile(rf"(?P<host>{_HOST})(?::(?P<port>[0-9]{{1,5}}))?")
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
    """The brokers of a cluster, and the virtual host; without user and password.

    Args:
        brokers: host and port of each.
    """

    tls: bool
    brokers: tuple[tuple[str, int], ...]
    vhost: str

    def text(self) -> str:
        """The URL, without user and password."""
        places = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.brokers
        )
        return f"{TLS_SCHEME if self.tls else SCHEME}://{places}/{encoded(self.vhost)}"


def parsed(text: str) -> tuple[RabbitmqUrl, tuple[str, str] | None] | None:
    """A URL, and its user and password if it has them; None for a text that is no such URL."""
    found = _URL.fullmatch(text)
    if found is None:
        return None
    tls = found["tls"] is not None
    brokers = []
    for place in found["brokers"].split(","):
        broker = _BROKER.fullmatch(place)
        if broker is None:
            return None
        port = int(broker["port"] or (TLS_PORT if tls else PORT))
        if not 0 < port < 1 << 16:
            return None
        brokers.append((broker["host"].strip("[]"), port))
    if len(brokers) > BROKERS_MAX:
        return None
    try:
        vhost = "/" if not found["vhost"] else _decoded(found["vhost"])
        credentials = None
        if found["user"] is not None:
            credentials = _decoded(found["user"]), _decoded(found["password"])
    except UnicodeDecodeError:
        return None
    return RabbitmqUrl(tls, tuple(brokers), vhost), credentials


def encoded(text: str) -> str:
    """A user, a password or a virtual host as a part of a URL."""
    return "".join(chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in text.encode())


def _decoded(text: str) -> str:
    return _ENCODED_BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()

"""Lists of brokers: `host:9092,[2001:db8::1]:9093,host`, as statements about sinks name them.

Brackets surround an IPv6 address in a list, and are no part of a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Host and port.
Broker = tuple[str, int]

# A client needs one broker that answers, to find the others; a cluster's first nodes are enough.
BROKERS_MAX = 16
KAFKA_PORT = 9092

# A host of a receiver: a name, an IPv4 address, or an IPv6 address in brackets.
HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_BROKER = re.compile(rf"(?P<host>{HOST})(?::(?P<port>[0-9]{{1,5}}))?")


def parsed_brokers(text: str, port: int) -> tuple[Broker, ...] | None:
    """The brokers in a list without spaces; None for a text that is no such list.

    Args:
        port: the port of a broker that is named without one.

    >>> parsed_brokers("a:1,[::1]", 9092)
    (('a', 1), ('::1', 9092))
    """
    if text.count(",") >= BROKERS_MAX:
        return None
    brokers = []
    for place in text.split(","):
        found = _BROKER.fullmatch(place)
        if found is None or not is_port(found["port"]):
            return None
        brokers.append((found["host"].strip("[]"), int(found["port"] or port)))
    return tuple(brokers)


def is_port(text: str | None) -> bool:
    """True for digits that are a TCP port, and for no port."""
    return text is None or 0 < int(text) < 1 << 16


def brokers_text(brokers: Iterable[Broker]) -> str:
    """The list of some brokers, each with its port."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in brokers)
